# SPDX-License-Identifier: Apache-2.0
"""Real .exe files for the plugins: Windows starts nothing else, and libcni looks for no other.

A launcher is distlib's small program, a line that names the interpreter, and an archive that holds
the plugin's name: what pip makes of console scripts. It runs the plugin in its own process; there
is no shim on Windows, for there is no socket that passes a namespace.
"""

from __future__ import annotations

import importlib.resources
import io
import os
import pathlib
import sys
import sysconfig
import zipfile
from collections.abc import Iterable

from pycni.errors import IOFailure

# libcni tries <type>.exe before <type> (containernetworking/cni #360).
SUFFIX = ".exe"
DEFAULT_BIN_DIR = r"%ProgramFiles%\containerd\cni\bin"
DEFAULT_CONF_DIR = r"%ProgramFiles%\containerd\cni\conf"
_MAIN = "from pycni.exec.skel import main\n\nmain({plugin!r})\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time a zip can hold: equal launchers have equal bytes


def default_bin_dir() -> pathlib.Path:
    """Where containerd looks for plugins."""
    return pathlib.Path(os.path.expandvars(DEFAULT_BIN_DIR))


def default_conf_dir() -> pathlib.Path:
    """Where containerd looks for network configurations."""
    return pathlib.Path(os.path.expandvars(DEFAULT_CONF_DIR))


def build(plugin_type: str, *, python: str = sys.executable) -> bytes:
    """The launcher of one plugin, for this processor."""
    return pack(_MAIN.format(plugin=plugin_type), python=python)


def pack(code: str, *, python: str = sys.executable) -> bytes:
    """An executable that runs `code` with the interpreter `python`."""
    stub = "t64-arm.exe" if sysconfig.get_platform() == "win-arm64" else "t64.exe"
    program = (importlib.resources.files("distlib") / stub).read_bytes()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        entry = zipfile.ZipInfo("__main__.py", _EPOCH)
        packed.writestr(entry, code)
    # -E: what containerd's environment says about Python is not meant for us.
    return program + f'#!"{python}" -E\r\n'.encode() + archive.getvalue()


def read_plugin_type(path: pathlib.Path) -> str | None:
    """The plugin a file launches, or None if it is not a launcher of ours."""
    try:
        with zipfile.ZipFile(path) as packed:
            text = packed.read("__main__.py").decode()
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return None
    head, _, tail = _MAIN.partition("{plugin!r}")
    if not (text.startswith(head) and text.endswith(tail)):
        return None
    return text.removeprefix(head).removesuffix(tail).strip("'\"")


def install(
    directory: pathlib.Path,
    plugin_types: Iterable[str],
    *,
    python: str = sys.executable,
    force: bool = False,
) -> list[pathlib.Path]:
    """Write a launcher for each plugin, and return those that were not there yet.

    A file of somebody else is left alone unless `force`, and then kept with the suffix .bak.
    """
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for plugin_type in plugin_types:
        target = directory / f"{plugin_type}{SUFFIX}"
        content = build(plugin_type, python=python)
        if target.exists():
            if target.read_bytes() == content:
                continue
            if read_plugin_type(target) is None:
                if not force:
                    raise IOFailure(
                        f"{target} exists and is not pycni's",
                        hint="use force to replace it; it is kept as a backup",
                    )
                target.replace(target.with_suffix(".exe.bak"))
        fresh = target.with_suffix(".new")
        fresh.write_bytes(content)
        fresh.replace(target)
        written.append(target)
    return written


def uninstall(directory: pathlib.Path) -> list[pathlib.Path]:
    """Remove every launcher of ours, and nothing else."""
    if not directory.is_dir():
        return []
    ours = [path for path in sorted(directory.glob(f"*{SUFFIX}")) if read_plugin_type(path)]
    for path in ours:
        path.unlink()
    return ours
