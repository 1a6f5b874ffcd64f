# SPDX-License-Identifier: Apache-2.0
"""The documents: they are true of the code, short where they must be, and their links lead on."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.meta.source import ROOT, builtin_plugins, modules, report

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
DECISION_LINES = 40


def documents() -> list[Path]:
    """Every Markdown page."""
    return [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]


def test_links_lead_somewhere() -> None:
    """Every relative link names a file of the repository."""
    faults = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in documents()
        for target in LINK.findall(page.read_text())
        if not target.startswith(("http:", "https:", "mailto:"))
        and not (page.parent / target).exists()
    ]
    assert not faults, report(faults)


def test_the_plugin_table_is_that_of_the_registry() -> None:
    """README's table is what tools/plugin_table.py writes."""
    run = subprocess.run(
        [sys.executable, ROOT / "tools/plugin_table.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_decisions_are_short_and_numbered() -> None:
    """A decision record fits on a screen, and its number is its own."""
    records = sorted((ROOT / "docs/decisions").glob("*.md"))
    numbers = [record.name.split("-")[0] for record in records]
    assert numbers == sorted(set(numbers))
    faults = [
        f"{record.name}: {lines} lines"
        for record in records
        if (lines := len(record.read_text().splitlines())) > DECISION_LINES
    ]
    assert not faults, report(faults)


@pytest.mark.parametrize("section", ["Context", "Decision", "Consequences"])
def test_decisions_say_why(section: str) -> None:
    """Each record has the sections a reader looks for."""
    faults = [
        record.name
        for record in sorted((ROOT / "docs/decisions").glob("*.md"))
        if f"## {section}" not in record.read_text()
    ]
    assert not faults, report(faults)


def test_decisions_named_in_the_code_exist() -> None:
    """A comment that points to a decision record points to one that is there."""
    faults = [
        f"{module.name}: {name}"
        for module in modules("src/pycni")
        for name in re.findall(r"docs/decisions/[\w.-]+\.md", module.text)
        if not (ROOT / name).exists()
    ]
    assert not faults, report(faults)


def test_python_examples_are_python() -> None:
    """Every Python block of the documentation compiles."""
    faults = []
    for page in documents():
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            try:
                ast.parse(block)
            except SyntaxError as error:
                faults.append(f"{page.relative_to(ROOT)}: {error}")
    assert not faults, report(faults)


def test_every_registered_plugin_is_in_the_readme() -> None:
    """The table names each built-in plugin by its CNI type."""
    readme = (ROOT / "README.md").read_text()
    assert [] == [name for name in builtin_plugins() if f"`{name}`" not in readme]
