# SPDX-License-Identifier: Apache-2.0
"""The borders of DESIGN.md section 1: who may import, open, print and exit."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

from tests.meta.source import PACKAGE, ROOT, Module, modules, report

# Where a capability may be used: packages of pycni, or single modules by their path below it.
FACES = ("cli", "exec", "service", "client", "sdk", "testing")
ALLOWED_IMPORTS: dict[str, tuple[str, ...]] = {
    # exec and service own the listening sockets and the shim's end of them.
    "socket": ("kernel", "windows", "exec", "service", "cli", "testing"),
    "_socket": ("kernel", "windows", "exec", "service"),
    "ctypes": ("kernel", "windows", "testing"),
    "subprocess": ("kernel", "windows", "runtime/child", "cli", "testing"),
    "grpc": ("service", "client", "sdk", "cli", "runtime/grpc_executor", "testing"),
    "grpc_health": ("service", "client", "cli", "testing"),
    "grpc_reflection": ("service", "client", "cli", "testing"),
    "grpc_status": ("service", "client", "sdk", "cli", "testing"),
    "google": ("service", "client", "sdk", "cli", "runtime/grpc_executor", "testing"),
    "typer": ("cli",),
    "rich": ("cli",),
    "json5": ("cli",),
    "pyroute2": (),
}
ALLOWED_CALLS: dict[str, tuple[str, ...]] = {
    "os.setns": ("kernel/netns",),
    "os.unshare": ("kernel/netns",),
    "os.system": (),
    "os.popen": (),
    "os.fork": (),
    "print": ("cli", "exec", "service"),
    "sys.exit": FACES,
    "os._exit": ("exec",),
}
PROC_ALLOWED = ("kernel", "runtime/executors", "testing")


def is_allowed(module: Module, places: tuple[str, ...]) -> bool:
    """Whether the module is one of `places` or below one."""
    path = module.path.relative_to(PACKAGE).with_suffix("").as_posix()
    return any(path == place or path.startswith(f"{place}/") for place in places)


def imported(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """Each import with the top-level package it names."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node, node.module.partition(".")[0]


def called(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """Each call by a plain or once dotted name."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Name(id=name)):
                yield node, name
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)):
                yield node, f"{owner}.{name}"


def strings(module: Module) -> Iterator[ast.Constant]:
    """Each string that is not a docstring."""
    for node in ast.walk(module.tree):
        for child in ast.iter_child_nodes(node):
            if isinstance(node, ast.Expr) or not isinstance(child, ast.Constant):
                continue
            if isinstance(child.value, str):
                yield child


def test_imports_point_down_only() -> None:
    """The import-linter contracts of pyproject.toml hold."""
    run = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_each_capability_stays_where_it_belongs() -> None:
    """Sockets, ctypes, processes, gRPC and third-party faces are imported only by their owners."""
    faults = [
        module.at(node, f"imports {name}, allowed in {', '.join(ALLOWED_IMPORTS[name]) or 'none'}")
        for module in modules("src/pycni")
        for node, name in imported(module)
        if name in ALLOWED_IMPORTS and not is_allowed(module, ALLOWED_IMPORTS[name])
    ]
    assert not faults, report(faults)


def test_namespaces_output_and_exit_stay_where_they_belong() -> None:
    """setns stands in one file; only the faces print and end the process."""
    faults = [
        module.at(node, f"calls {name}, allowed in {', '.join(ALLOWED_CALLS[name]) or 'none'}")
        for module in modules("src/pycni")
        for node, name in called(module)
        if name in ALLOWED_CALLS and not is_allowed(module, ALLOWED_CALLS[name])
    ]
    assert not faults, report(faults)


def test_proc_is_read_by_the_kernel_layer_only() -> None:
    """No other layer spells a path below /proc."""
    faults = [
        module.at(node, f"{node.value!r} belongs to kernel/")
        for module in modules("src/pycni")
        if not is_allowed(module, PROC_ALLOWED)
        for node in strings(module)
        if str(node.value).startswith("/proc")
    ]
    assert not faults, report(faults)
