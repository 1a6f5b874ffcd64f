# SPDX-License-Identifier: Apache-2.0
"""The `pycni` command: one file per group of subcommands, imported when the group is used.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 exists or is in use, 5 no service
answers, 6 try again later.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pycni import __version__
from pycni.cli import (
    attachment,
    cnitool,
    conformance,
    demo,
    doctor,
    install,
    install_windows,
    network,
    output,
    serve,
    tree,
)
from pycni.errors import CniError

app = typer.Typer(
    help="Container networking for this node: CNI over gRPC and through executables.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.serve)
app.add_typer(network.app, name="network")
app.command("add")(attachment.add)
app.command("del")(attachment.delete)
app.command("check")(attachment.check)
app.command("gc")(attachment.gc)
app.command("list")(attachment.list_attachments)
app.command("tree")(tree.tree)
app.command("demo")(demo.demo)
app.add_typer(cnitool.app, name="cnitool")
if sys.platform == "win32":
    app.command("doctor")(doctor.doctor)
    app.command("install")(install_windows.install)
    app.command("uninstall")(install_windows.uninstall)
else:
    app.command("install")(install.install)
    app.command("uninstall")(install.uninstall)
    app.command("conformance")(conformance.conformance)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pycni {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    socket: Annotated[
        Path,
        # Whether it may be used shows when it is, and not while `serve` is told another one.
        typer.Option(
            envvar="PYCNI_SOCKET", help="The service's socket.", show_default=True, readable=False
        ),
    ] = output.DEFAULT_SOCKET,
    wait: Annotated[
        float, typer.Option(min=0, help="Wait so many seconds for a service that is starting.")
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Options of every subcommand."""
    context.obj = output.Options(socket=socket, json=json, wait_s=wait)


def main() -> None:
    """Run the command line; errors say what to do next and choose the exit status."""
    try:
        app()
    except CniError as error:
        sys.exit(output.report(error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
