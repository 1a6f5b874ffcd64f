# SPDX-License-Identifier: Apache-2.0
"""The repository as the meta tests see it: its files, parsed, and where a line stands."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "pycni"
GENERATED = PACKAGE / "service" / "pb"

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """One Python file: its text, its lines and its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """The path below the repository, for messages."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def layer(self) -> str:
        """The package below pycni the module is in, or the module itself: "kernel", "errors"."""
        return self.path.relative_to(PACKAGE).with_suffix("").parts[0]

    @property
    def lines(self) -> list[str]:
        """The text by lines."""
        return self.text.splitlines()

    def at(self, node: ast.AST, text: str) -> str:
        """A message about one place."""
        return f"{self.name}:{getattr(node, 'lineno', 1)}: {text}"

    def functions(self) -> Iterator[FunctionNode]:
        """Every function, nested ones too."""
        return (node for node in ast.walk(self.tree) if isinstance(node, FunctionNode))


@functools.cache
def modules(folder: str) -> tuple[Module, ...]:
    """Every hand-written Python file below `folder`."""
    return tuple(
        Module(path, text := path.read_text(), ast.parse(text, filename=str(path)))
        for path in sorted((ROOT / folder).rglob("*.py"))
        if GENERATED not in path.parents and "__pycache__" not in path.parts
    )


def report(faults: list[str]) -> str:
    """All faults in one message."""
    return "\n".join([f"{len(faults)} offender(s)", *faults])


@functools.cache
def builtin_plugins() -> dict[str, str]:
    """The registry's literal table, CNI type to "module:Class", read without importing anything."""
    registry = next(m for m in modules("src/pycni/plugins") if m.path.name == "__init__.py")
    for node in registry.tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id="BUILTIN"), value=ast.Dict() as table):
                found: dict[str, str] = ast.literal_eval(table)
                return found
    raise AssertionError("plugins/__init__.py has no literal BUILTIN table")
