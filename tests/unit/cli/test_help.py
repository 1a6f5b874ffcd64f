# SPDX-License-Identifier: Apache-2.0
"""Every command says how it is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pycni.cli.main import app


def commands(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """The words that lead to each command below this one."""
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *path, name)


@pytest.mark.parametrize("path", list(commands(typer.main.get_command(app))), ids=" ".join)
def test_each_command_has_a_help(path: tuple[str, ...]) -> None:
    """`--help` ends with 0, and brackets in a text are not taken for markup."""
    done = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"})
    assert (0, None) == (done.exit_code, done.exception)
    if path == ("add",):
        assert "[IP:]HOST:CONTAINER[/udp|/sctp]." in done.stdout
