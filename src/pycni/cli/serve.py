# SPDX-License-Identifier: Apache-2.0
"""`pycni serve`: run the service."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from pycni.cli import output

CONF_DIR, STATE_DIR = "/etc/cni/net.d", "/var/lib/pycni"
CACHE_DIR, SHIM_SOCKET = "/var/lib/cni", "/run/pycni/shim.sock"
PLUGIN_PATH = "/opt/cni/bin:/usr/lib/cni:/usr/libexec/cni"


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
    cache_dir: Annotated[
        str, typer.Option(help="Results are also cached here as libcni does; empty: nowhere.")
    ] = CACHE_DIR,
    shim_socket: Annotated[
        str, typer.Option(help="Plugin executables call here; empty: nowhere.")
    ] = SHIM_SOCKET,
    plugin_path: Annotated[
        str, typer.Option(envvar="CNI_PATH", help="Directories of plugin executables, by colons.")
    ] = PLUGIN_PATH,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run the service until it is told to stop by SIGTERM or Ctrl-C."""
    from pycni.service import daemon

    logging.basicConfig(
        stream=sys.stderr,
        level=log_level.upper(),
        format="%(levelname)s %(name)s %(message)s",
    )
    settings = daemon.Settings(
        socket=socket or context.obj.socket,
        shim_socket=Path(shim_socket) if shim_socket else None,
        state_dir=state_dir,
        conf_dir=Path(conf_dir) if conf_dir else None,
        cache_dir=Path(cache_dir) if cache_dir else None,
        plugin_path=tuple(part for part in plugin_path.split(":") if part),
    )
    if sys.stderr.isatty() and not context.obj.json:
        output.console().print(f"pycni serves on {settings.socket}; Ctrl-C stops it")
    daemon.serve(settings)
