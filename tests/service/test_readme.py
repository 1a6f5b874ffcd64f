# SPDX-License-Identifier: Apache-2.0
"""README.md: a newcomer pastes what stands there, line by line, and it works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.root, pytest.mark.nft]

ROOT = Path(__file__).parents[2]


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_eight_lines_and_the_python_beside_them_run(tmp_path: Path) -> None:
    """On a machine that has nothing yet, one right after the other."""
    lines, program = blocks("sh")[0], blocks("python")[0]
    assert 8 == len(lines.splitlines())
    (tmp_path / "program.py").write_text(program)
    command = tmp_path / "pycni"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m pycni.cli.main "$@"\n')
    command.chmod(0o755)
    commands = lines.replace("make demo", "true").replace(".venv/bin/pycni", str(command))
    script = f"""
        set -e
        mount -t tmpfs tmpfs /var/lib
        {commands}
        {sys.executable} {tmp_path}/program.py
        {command} del edge web
        kill %1
        wait %1
    """
    done = subprocess.run(
        ["tools/isolated.sh", "bash", "-c", script],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "8080 → 80/tcp" in done.stdout
    assert "['10.2.0.3/16', 'fd00:10:2::3/64']" in done.stdout
