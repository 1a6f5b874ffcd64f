# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml cannot say: compile the shim where a C compiler is, and tag the wheel for it.

Without a compiler the package is the same but for that file, and `pycni install` compiles it or
does with the Python shim.
"""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

EXEC = Path("pycni", "exec")
SOURCES = Path(__file__).parent / "src" / EXEC


def compile_shim(directory: Path) -> Path | None:
    """The compiled shim in `directory`, or None if no compiler here can make it."""
    spec = importlib.util.spec_from_file_location("shim_build", SOURCES / "shim_build.py")
    assert spec is not None
    assert spec.loader is not None
    shim_build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shim_build)
    output = directory / shim_build.prebuilt_name(platform.machine())
    for command in shim_build.commands(str(SOURCES / shim_build.SOURCE), str(output)):
        try:
            done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return output
    return None


class BuildPy(build_py):
    """The modules, and the shim beside its source."""

    shim: Path | None = None

    def run(self) -> None:
        """Build; an editable installation compiles when `pycni install` runs."""
        super().run()
        if sys.platform == "linux" and not self.editable_mode:
            self.shim = compile_shim(Path(self.build_lib, EXEC))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """The files that were built."""
        built = [str(self.shim)] if self.shim else []
        return [*super().get_outputs(include_bytecode), *built]


class Wheel(bdist_wheel):
    """A wheel for every Python, of one kind of machine if the shim is in it: it is static."""

    def get_tag(self) -> tuple[str, str, str]:
        """The wheel's tag, asked for when everything is built."""
        tag: tuple[str, str, str] = super().get_tag()
        build = self.get_finalized_command("build_py")
        if isinstance(build, BuildPy) and build.shim is not None:
            return (tag[0], tag[1], f"linux_{platform.machine()}")
        return tag


setup(cmdclass={"build_py": BuildPy, "bdist_wheel": Wheel})
