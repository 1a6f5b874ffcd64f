# SPDX-License-Identifier: Apache-2.0
"""`pycni serve`: run the service."""

from __future__ import annotations

import enum
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pycni.cli import output

if TYPE_CHECKING:
    from pycni.service.tls import TlsFiles

CONF_DIR, STATE_DIR = "/etc/cni/net.d", "/var/lib/pycni"
CACHE_DIR, SHIM_SOCKET = "/var/lib/cni", "/run/pycni/shim.sock"
PLUGIN_PATH = "/opt/cni/bin:/usr/lib/cni:/usr/libexec/cni"
LISTEN = "127.0.0.1:8472"
RATE, READ_ONLY_RATE = 2000.0, 100.0
TLS_FILES = "--tls-cert, --tls-key and --tls-client-ca"
if sys.platform == "win32":
    from pycni.windows import launchers

    CONF_DIR = str(launchers.default_conf_dir())
    PLUGIN_PATH = str(launchers.default_bin_dir())
    STATE_DIR, CACHE_DIR = os.path.expandvars(r"%ProgramData%\pycni"), ""


class LogLevel(enum.StrEnum):
    """The least severity that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def serve(
    context: typer.Context,
    socket: Annotated[
        Path | None, typer.Option(help="Listen here instead of the socket of `pycni --socket`.")
    ] = None,
    state_dir: Annotated[
        Path, typer.Option(envvar="PYCNI_STATE_DIR", help="Networks and attachments are kept here.")
    ] = Path(STATE_DIR),
    conf_dir: Annotated[
        str, typer.Option(help="Networks are read from here as well; empty: from nowhere.")
    ] = CONF_DIR,
    types_dir: Annotated[
        Path | None,
        typer.Option(help="Message types of `extra` are read from descriptor sets in here."),
    ] = None,
    cache_dir: Annotated[
        str, typer.Option(help="Results are also cached here as libcni does; empty: nowhere.")
    ] = CACHE_DIR,
    shim_socket: Annotated[
        str, typer.Option(help="Plugin executables call here; empty: nowhere.")
    ] = SHIM_SOCKET,
    plugin_path: Annotated[
        str, typer.Option(envvar="CNI_PATH", help="Directories of plugin executables.")
    ] = PLUGIN_PATH,
    keep_capabilities: Annotated[
        bool,
        typer.Option(
            "--keep-capabilities",
            help="Leave `capabilities` in what plugins are given, as libcni does.",
        ),
    ] = False,
    read_only_socket: Annotated[
        Path | None, typer.Option(help="Listen here too, for those who may only look.")
    ] = None,
    read_only_group: Annotated[
        str, typer.Option(help="Give that socket to this group; else it is the service's user's.")
    ] = "",
    listen: Annotated[
        str,
        typer.Option(
            "--tls-listen", "--listen", help="The host:port for TLS; needs the next three."
        ),
    ] = LISTEN,
    tls_cert: Annotated[
        Path | None, typer.Option(help="The service's certificate, for mutual TLS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key.")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="The authority whose certificates clients must have.")
    ] = None,
    tls_admin: Annotated[
        list[str] | None,
        typer.Option(
            help="Name in the certificate of an administrator; repeat it. Without this and "
            "--tls-read-only everybody whom the authority certifies is one."
        ),
    ] = None,
    tls_read_only: Annotated[
        list[str] | None,
        typer.Option(help='Name in the certificate of one who may only look; "*" is everybody.'),
    ] = None,
    rate: Annotated[
        float, typer.Option(min=0, help="Calls a second of one administrator; 0: no limit.")
    ] = RATE,
    read_only_rate: Annotated[
        float, typer.Option(min=0, help="Calls a second of one who may only look; 0: no limit.")
    ] = READ_ONLY_RATE,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged.")] = LogLevel.INFO,
) -> None:
    """Run the service until it is told to stop by SIGTERM or Ctrl-C."""
    # Long because each option is a parameter: typer reads them from the signature.
    from pycni.service import access, daemon

    logging.basicConfig(
        stream=sys.stderr,
        level=log_level.value.upper(),
        format="%(levelname)s %(name)s %(message)s",
    )
    unix = os.name == "posix"  # elsewhere there are no unix sockets to listen on
    tls = _tls_files(tls_cert, tls_key, tls_client_ca)
    _expect_whole(context, tls=tls is not None, reader=read_only_socket is not None)
    settings = daemon.Settings(
        socket=(socket or context.obj.socket) if unix else None,
        shim_socket=Path(shim_socket) if shim_socket and unix else None,
        state_dir=state_dir,
        conf_dir=Path(conf_dir) if conf_dir else None,
        types_dir=types_dir,
        cache_dir=Path(cache_dir) if cache_dir else None,
        plugin_path=tuple(part for part in plugin_path.split(os.pathsep) if part),
        keep_capabilities=keep_capabilities,
        listen=listen,
        read_only_socket=read_only_socket if unix else None,
        read_only_group=read_only_group,
        tls=tls,
        roles=access.Roles(admin=tuple(tls_admin or ()), read_only=tuple(tls_read_only or ())),
        rates=access.Rates(admin=access.rate_of(rate), read_only=access.rate_of(read_only_rate)),
    )
    if sys.stderr.isatty() and not context.obj.json:
        where = settings.socket or settings.listen
        output.console().print(f"pycni serves on {where}; Ctrl-C stops it")
    daemon.serve(settings)


def _expect_whole(context: typer.Context, *, tls: bool, reader: bool) -> None:
    """Raise BadParameter for an option that would do nothing: its listener is not there."""
    needed = {
        "listen": ("--tls-listen", tls, TLS_FILES),
        "tls_admin": ("--tls-admin", tls, TLS_FILES),
        "tls_read_only": ("--tls-read-only", tls, TLS_FILES),
        "read_only_group": ("--read-only-group", reader, "--read-only-socket"),
    }
    for name, (option, there, needs) in needed.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and not there:
            raise typer.BadParameter(f"{option} needs {needs}")


def _tls_files(cert: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    """All three or none."""
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None or client_ca is None:
        raise typer.BadParameter(f"{TLS_FILES} go together")
    from pycni.service.tls import TlsFiles

    return TlsFiles(certificate=cert, key=key, client_ca=client_ca)
