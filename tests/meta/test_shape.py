# SPDX-License-Identifier: Apache-2.0
"""How a file looks: header, docstrings, size, suppressions, and the shape of a plugin."""

from __future__ import annotations

import ast
import re
from itertools import pairwise

from tests.meta.source import PACKAGE, ROOT, Module, builtin_plugins, modules, report

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
SPDX = "# SPDX-License-Identifier: Apache-2.0"
# An exception to a limit is defended beside the code, by a comment with the reason.
DEFENCE = re.compile(r"# Long because \S+")
PRODUCT = ("src/pycni", "tools", "bench")
CODE = (*PRODUCT, "tests")
VERBS = ("add", "delete", "check", "gc", "status")


def everything(folders: tuple[str, ...] = CODE) -> list[Module]:
    """Every hand-written Python file of the repository."""
    return [module for folder in folders for module in modules(folder)]


def has_annotations(tree: ast.Module) -> bool:
    """Whether the file annotates anything."""
    return any(
        isinstance(node, ast.AnnAssign)
        or (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None)
        for node in ast.walk(tree)
    )


def test_every_file_begins_with_the_licence_and_says_what_it_is() -> None:
    """SPDX line first (after a shebang), then a docstring; annotations are not evaluated."""
    faults = []
    for module in everything():
        head = [line for line in module.lines[:2] if not line.startswith("#!")]
        if not head or head[0] != SPDX:
            faults.append(f"{module.name}:1: does not begin with {SPDX!r}")
        if not ast.get_docstring(module.tree):
            faults.append(f"{module.name}:1: has no module docstring")
        if has_annotations(module.tree) and "from __future__ import annotations" not in module.text:
            faults.append(f"{module.name}:1: lacks `from __future__ import annotations`")
    assert not faults, report(faults)


def test_every_other_source_begins_with_the_licence() -> None:
    """Shell, C, proto, Makefile and unit files carry the SPDX line too."""
    patterns = ("tools/*.sh", "src/**/*.c", "proto/**/*.proto", "Makefile", ".ci/run", "deploy/*.*")
    faults = [
        f"{path.relative_to(ROOT)}:1: has no SPDX line at its top"
        for pattern in patterns
        for path in sorted(ROOT.glob(pattern))
        if path.is_file()
        and "SPDX-License-Identifier: Apache-2.0"
        not in "\n".join(path.read_text().splitlines()[:2])
    ]
    assert not faults, report(faults)


def test_files_stay_readable_in_one_sitting() -> None:
    """A file has at most 600 lines, unless a comment at its top defends its length."""
    faults = [
        f"{module.name}: {len(module.lines)} lines, at most {MAX_FILE_LINES}"
        for module in everything()
        if len(module.lines) > MAX_FILE_LINES and not DEFENCE.search("\n".join(module.lines[:40]))
    ]
    assert not faults, report(faults)


def test_functions_fit_on_one_screen() -> None:
    """A function has at most 60 lines, unless a comment in it or above it defends its length."""
    faults = []
    for module in everything(PRODUCT):
        for node in module.functions():
            start, end = node.lineno, node.end_lineno or node.lineno
            body = "\n".join(module.lines[max(start - 3, 0) : end])
            if end - start + 1 > MAX_FUNCTION_LINES and not DEFENCE.search(body):
                faults.append(module.at(node, f"{node.name} has {end - start + 1} lines"))
    assert not faults, report(faults)


def test_every_test_says_its_rule() -> None:
    """A test's docstring says the rule that its name names."""
    faults = [
        module.at(node, f"{node.name} has no docstring")
        for module in modules("tests")
        for node in module.functions()
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert not faults, report(faults)


def test_suppressions_carry_their_reason() -> None:
    """`type: ignore` and `noqa` name their code, and why it is right here follows."""
    bare = re.compile(
        r"# type: ignore(?!\[[\w, -]+\]\s+# \S)|# noqa(?!: [A-Z]+\d+(, ?[A-Z]+\d+)* +--? \S)"
    )
    faults = [
        f"{module.name}:{number}: {line.strip()}"
        for module in everything(PRODUCT)
        for number, line in enumerate(module.lines, 1)
        if bare.search(line)
    ]
    assert not faults, report(faults)


def test_nothing_is_left_to_be_done() -> None:
    """No markers of unfinished work, no body that only raises NotImplementedError."""
    marker = re.compile(r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError")
    faults = [
        f"{module.name}:{number}: {line.strip()}"
        for module in everything()
        if module.path.name != "test_shape.py"
        for number, line in enumerate(module.lines, 1)
        if marker.search(line)
    ]
    assert not faults, report(faults)


def find_plugin(plugin_type: str) -> tuple[Module | None, ast.ClassDef | None]:
    """The module and class the registry names, if they exist."""
    dotted, _, class_name = builtin_plugins()[plugin_type].partition(":")
    path = PACKAGE.parent / (dotted.replace(".", "/") + ".py")
    module = next((found for found in modules("src/pycni") if found.path == path), None)
    if module is None:
        return None, None
    classes = [node for node in module.tree.body if isinstance(node, ast.ClassDef)]
    return module, next((node for node in classes if node.name == class_name), None)


def test_a_plugin_is_five_verbs_in_spec_order() -> None:
    """Each built-in plugin defines add, delete, check, gc and status first, in that order."""
    faults = []
    for plugin_type in builtin_plugins():
        module, found = find_plugin(plugin_type)
        if module is None or found is None:
            faults.append(f"{plugin_type}: {builtin_plugins()[plugin_type]} does not exist")
            continue
        methods = [node.name for node in found.body if isinstance(node, ast.FunctionDef)]
        public = [name for name in methods if not name.startswith("_")]
        if tuple(public[: len(VERBS)]) != VERBS:
            faults.append(module.at(found, f"public methods begin {public[:5]}, not {list(VERBS)}"))
    assert not faults, report(faults)


def test_a_plugin_module_is_named_after_its_type() -> None:
    """CNI type "host-local" lives in plugins/host_local.py."""
    modules_by_type = {name: at.partition(":")[0] for name, at in builtin_plugins().items()}
    assert {
        name: f"pycni.plugins.{name.replace('-', '_')}" for name in modules_by_type
    } == modules_by_type


def test_plugin_verbs_stand_before_their_helpers() -> None:
    """A reader finds the verbs first: no method stands between or before them."""
    faults = []
    for plugin_type in builtin_plugins():
        module, found = find_plugin(plugin_type)
        if module is None or found is None:
            continue
        methods = [node.name for node in found.body if isinstance(node, ast.FunctionDef)]
        places = [methods.index(verb) for verb in VERBS if verb in methods]
        if any(right - left != 1 for left, right in pairwise(places)):
            faults.append(module.at(found, f"helpers stand between the verbs: {methods}"))
    assert not faults, report(faults)
