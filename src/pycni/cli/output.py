# SPDX-License-Identifier: Apache-2.0
"""What every subcommand shares: the connection, tables or JSON on stdout, errors on stderr."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pycni.errors import CniError

if TYPE_CHECKING:
    import typer
    from rich.console import Console

    from pycni.client import Client

DEFAULT_SOCKET = Path("/run/pycni/cni.sock")

FAILED, NOT_FOUND, CONFLICT, NO_SERVICE, TRY_AGAIN = 1, 3, 4, 5, 6
# By the name of the gRPC status an error came under, which tells more than its CNI code.
EXIT_OF_STATUS = {
    "NOT_FOUND": NOT_FOUND,
    "ALREADY_EXISTS": CONFLICT,
    "ABORTED": CONFLICT,
    "FAILED_PRECONDITION": CONFLICT,
    "RESOURCE_EXHAUSTED": TRY_AGAIN,
    "UNAVAILABLE": TRY_AGAIN,
}


class Options(NamedTuple):
    """The options that stand before the subcommand."""

    socket: Path
    json: bool
    wait_s: float = 0


@contextlib.contextmanager
def connected(context: typer.Context) -> Iterator[Client]:
    """A client of the service the options name."""
    # gRPC takes longer to import than `--help` may take in all.
    from pycni.client import Client

    with Client(str(context.obj.socket)) as client:
        if context.obj.wait_s:
            client.wait_ready(context.obj.wait_s)
        yield client


def console() -> Console:
    """Where tables go."""
    from rich.console import Console

    return Console()


def print_json(document: Any) -> None:
    """One JSON document for programs."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def print_table(headings: Iterable[str], rows: Iterable[Iterable[str]], *, empty: str) -> None:
    """A table for people, or the sentence `empty` when there are no rows."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table if table.row_count else empty)


def report(error: CniError) -> int:
    """Print `error` on stderr and return the exit status that tells scripts its kind."""
    lines = [f"pycni: {error.msg}"]
    where = _where(error)
    if where:
        lines.append(f"  in: {where}")
    if error.causes:  # the details would say the same, without whom each concerns
        lines += [f"  {_place(cause)}{cause}" for cause in error.causes]
    elif error.details:
        lines.append(f"  {error.details}")
    lines.append(f"  CNI error code {error.wire_code}")
    sys.stderr.write("\n".join(lines) + "\n")
    return exit_status(error)


def _where(error: CniError) -> str:
    plugin = f"plugins[{error.plugin_index}] {error.plugin_type}" if error.plugin_type else ""
    return " ".join(part for part in (plugin, str(error.verb or "")) if part)


def _place(error: CniError) -> str:
    attachment = "/".join(filter(None, (error.network, error.container_id, error.ifname)))
    place = " ".join(filter(None, (attachment, _where(error))))
    return f"{place}: " if place else ""


def exit_status(error: CniError) -> int:
    """The exit status for `error`; see cli.main."""
    if type(error).__name__ == "ServiceUnavailable":  # its module imports gRPC
        return NO_SERVICE
    status = getattr(error.__cause__, "code", None)
    if callable(status):
        return EXIT_OF_STATUS.get(status().name, FAILED)
    return TRY_AGAIN if error.wire_code == 11 else FAILED
