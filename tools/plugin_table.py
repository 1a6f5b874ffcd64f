#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the plugin table of README.md from the registry, or check that it is current.

    tools/plugin_table.py            write
    tools/plugin_table.py --check    exit 1 if the table differs

Each row is a plugin's CNI type, what the first sentence of its module docstring says of it (after
the colon), and its source file.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN = "<!-- plugins: begin (tools/plugin_table.py) -->\n"
END = "<!-- plugins: end -->\n"


def registry() -> dict[str, str]:
    """The literal table of pycni.plugins, CNI type to "module:Class"."""
    tree = ast.parse((ROOT / "src/pycni/plugins/__init__.py").read_text())
    for node in tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id="BUILTIN"), value=ast.Dict() as table):
                found: dict[str, str] = ast.literal_eval(table)
                return found
    raise SystemExit("plugins/__init__.py has no literal BUILTIN table")


def row(plugin_type: str, target: str) -> str:
    """One line of the table."""
    path = "src/" + target.partition(":")[0].replace(".", "/") + ".py"
    docstring = ast.get_docstring(ast.parse((ROOT / path).read_text())) or ""
    name, _, summary = docstring.partition("\n")[0].partition(": ")
    if plugin_type not in name:
        raise SystemExit(f"{path}: the docstring does not begin with {plugin_type!r} and a colon")
    summary = summary.partition(". ")[0].rstrip(".")
    return f"| `{plugin_type}` | {summary} | [{Path(path).name}]({path}) |\n"


def table() -> str:
    """The whole table."""
    rows = [row(plugin_type, target) for plugin_type, target in registry().items()]
    return "| type | what it does | source |\n|---|---|---|\n" + "".join(rows)


def main() -> int:
    """Write the table into README.md, or with --check compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 on a difference"
    )
    options = parser.parse_args()
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = before + BEGIN + table() + END + after
    if options.check and wanted != text:
        print("README.md: the plugin table is not current (run: tools/plugin_table.py)")
        return 1
    if wanted != text:
        README.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
