# SPDX-License-Identifier: Apache-2.0
"""The tools of `make check`, run as tests, so that `make test` covers them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.meta.source import ROOT

BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "format", "--check"],
        ["ruff", "check", "--output-format=concise"],
        ["mypy"],
    ],
    ids=" ".join,
)
@pytest.mark.timeout(300)
def test_the_code_satisfies(command: list[str]) -> None:
    """Format, lint rules and strict types hold for the whole repository."""
    run = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
