# SPDX-License-Identifier: Apache-2.0
"""`pycni install` and `pycni uninstall`: an executable for each plugin, where runtimes look."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pycni.cli import output
from pycni.errors import TryAgain
from pycni.exec import shim_build

if TYPE_CHECKING:
    from pycni.exec import installation

BIN_DIR, SHIM_SOCKET = "/opt/cni/bin", "/run/pycni/shim.sock"
COMPILE_TIMEOUT_S = 60

BinDir = Annotated[Path, typer.Option(help="Plugin executables are put here.")]
ConfDir = Annotated[Path | None, typer.Option(help="Network configurations of other runtimes.")]


def install(
    context: typer.Context,
    bin_dir: BinDir = Path(BIN_DIR),
    conf_dir: ConfDir = None,
    network: Annotated[
        list[str] | None,
        typer.Option(
            help="Write a configuration into --conf-dir that runs this network whole;"
            " without it, one for each network that was put into the service."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option(help="Replace other programs' files, keeping NAME.pycni-backup.")
    ] = False,
    python: Annotated[
        bool, typer.Option(help="Use the Python shim, even if a compiled one can be had.")
    ] = False,
    shim_socket: Annotated[
        Path, typer.Option(help="The service listens here for plugin executables.")
    ] = Path(SHIM_SOCKET),
    interpreter: Annotated[
        Path, typer.Option(help="The Python that has pycni, for when no service listens.")
    ] = Path(sys.executable),
) -> None:
    """Put an executable for each plugin where container runtimes look for them."""
    from pycni.exec import installation

    if network and conf_dir is None:
        raise typer.BadParameter("--network needs --conf-dir")
    networks = network or (_put_networks(context) if conf_dir else [])
    for name in networks:
        installation.check_reference(conf_dir or Path(), name, force=force)
    binary = None if python else installation.prebuilt() or compile_shim()
    # A runtime starts executables in a directory of its own choice.
    where = {
        "socket": os.path.abspath(shim_socket),
        "interpreter": os.path.abspath(interpreter),
    }
    if where["interpreter"] == sys.executable:  # of another one we know nothing
        where["packages"] = installation.packages()
    if binary is None:
        shim = installation.python_shim(**where)
    else:
        shim = installation.compiled_shim(binary, **where)
    changes = [installation.install(bin_dir, shim, force=force)]
    for name in networks:
        assert conf_dir is not None
        changes.append(installation.write_reference(conf_dir, name, force=force))
    _report(context, changes, shim="python" if binary is None else "compiled")
    if binary is None and not python and not context.obj.json:
        sys.stderr.write("pycni: no C compiler was found: an execution takes 7 ms instead of 0.2\n")


def uninstall(
    context: typer.Context, bin_dir: BinDir = Path(BIN_DIR), conf_dir: ConfDir = None
) -> None:
    """Remove what `pycni install` wrote, and give back what it had replaced."""
    from pycni.exec import installation

    changes = [installation.uninstall(bin_dir)]
    if conf_dir is not None:
        changes.append(installation.remove_references(conf_dir))
    _report(context, changes)


def _put_networks(context: typer.Context) -> list[str]:
    """The networks that only the service knows: those of files other runtimes read themselves."""
    from pycni.cli.network import fetch

    try:
        networks, _ = fetch(context)
    except TryAgain:
        sys.stderr.write(
            f"pycni: no service listens on {context.obj.socket}: "
            "of networks, only those named by --network get a configuration\n"
        )
        return []
    return [network.name for network in networks if not network.source_path]


def compile_shim() -> bytes | None:
    """The shim, made by the first C compiler here that can; None if there is none."""
    source = Path(shim_build.__file__).with_name(shim_build.SOURCE)
    with tempfile.TemporaryDirectory(prefix="pycni-") as directory:
        binary = Path(directory, "shim")
        for command in shim_build.commands(str(source), str(binary)):
            try:
                done = subprocess.run(
                    command, capture_output=True, timeout=COMPILE_TIMEOUT_S, check=False
                )
            except (OSError, subprocess.TimeoutExpired):
                continue
            if done.returncode == 0:
                return binary.read_bytes()
    return None


def _report(
    context: typer.Context, changes: Sequence[installation.Changes], *, shim: str = ""
) -> None:
    kinds = ("written", "backed_up", "removed", "restored")
    paths = {kind: [str(p) for change in changes for p in getattr(change, kind)] for kind in kinds}
    if context.obj.json:
        output.print_json({**paths, **({"shim": shim} if shim else {})})
        return
    for kind in kinds:
        for path in paths[kind]:
            output.console().print(
                f"{kind.replace('_', ' ')} {path}", highlight=False, soft_wrap=True
            )
    if not any(paths.values()):
        output.console().print("nothing to do")
