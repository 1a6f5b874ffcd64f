# SPDX-License-Identifier: Apache-2.0
"""Plugin executables: the compiled shim and the Python one, each installed once for the run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pycni.cli import install
from pycni.exec import installation

SHIMS = ("compiled", "python")


@pytest.fixture(scope="session")
def bin_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A directory of plugin executables for each kind of shim; no service listens where they ask.

    PYCNI_SHIM_SOCKET in the environment of a call names another socket.
    """
    nowhere = str(tmp_path_factory.mktemp("nowhere") / "shim.sock")
    where = {"socket": nowhere, "interpreter": sys.executable}
    binary = installation.prebuilt() or install.compile_shim()
    if binary is None:
        pytest.skip("needs a C compiler")
    contents = {
        "compiled": installation.compiled_shim(binary, **where),
        "python": installation.python_shim(**where),
    }
    directories = {}
    for kind in SHIMS:
        directories[kind] = tmp_path_factory.mktemp(f"{kind}-bin")
        installation.install(directories[kind], contents[kind])
    return directories
