# SPDX-License-Identifier: Apache-2.0
"""How shim.c is compiled: the commands to try, best first. The package's build reads this too.

Static, because the shim's own time is mostly the loader's: 0.2 ms with musl, 0.5 with a static
glibc, 0.8 with a dynamic one. Imports nothing, so that a build without our dependencies can use it.
"""

from __future__ import annotations

SOURCE = "shim.c"
COMPILERS = ("musl-gcc", "cc", "gcc", "clang")
FLAGS = ("-std=gnu11", "-O2", "-s", "-static", "-Wall", "-Wextra")


def prebuilt_name(machine: str) -> str:
    """The name of the compiled shim beside this file, in a package built for `machine`."""
    return f"shim-{machine}.bin"


def commands(source: str, output: str) -> list[list[str]]:
    """The command lines that make `output` of `source`; the first that succeeds is enough."""
    return [[compiler, *FLAGS, "-o", output, source] for compiler in COMPILERS]
