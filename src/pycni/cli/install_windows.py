# SPDX-License-Identifier: Apache-2.0
"""`pycni install` and `pycni uninstall` on Windows: an .exe for each plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pycni.cli import output
from pycni.plugins import KNOWN
from pycni.windows import launchers

# What a Windows node can use; the others need Linux.
PLUGINS = (
    "win-bridge",
    "win-overlay",
    "nat",
    "sdnbridge",
    "sdnoverlay",
    "transparent",
    "l2tunnel",
    "host-local",
    "static",
)
BinDir = Annotated[
    Path | None,
    typer.Option(help="Plugins are put here.", show_default=launchers.DEFAULT_BIN_DIR),
]


def install(
    context: typer.Context,
    bin_dir: BinDir = None,
    force: Annotated[
        bool, typer.Option(help="Replace other programs' files, keeping them as .bak.")
    ] = False,
) -> None:
    """Put an executable for each plugin where container runtimes look for them."""
    directory = bin_dir or launchers.default_bin_dir()
    wanted = [plugin for plugin in PLUGINS if plugin in KNOWN]
    _report(context, "installed", launchers.install(directory, wanted, force=force))


def uninstall(context: typer.Context, bin_dir: BinDir = None) -> None:
    """Remove the executables that `pycni install` made, and nothing else."""
    removed = launchers.uninstall(bin_dir or launchers.default_bin_dir())
    _report(context, "removed", removed)


def _report(context: typer.Context, done: str, paths: list[Path]) -> None:
    if context.obj.json:
        output.print_json({done: [str(path) for path in paths]})
        return
    for path in paths:
        output.console().print(f"{done} {path}", highlight=False, soft_wrap=True)
    if not paths:
        output.console().print("nothing to do")
