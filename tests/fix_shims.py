# SPDX-License-Identifier: Apache-2.0
"""Plugin executables: the compiled shim and the Python one, each installed once for the run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pycni.cli import install
from pycni.exec import installation

SHIMS = ("compiled", "python")


@pytest.fixture(scope="session")
def shims() -> dict[str, Callable[..., bytes]]:
    """How each kind of shim is made, given what it is to hold."""
    binary = installation.prebuilt() or install.compile_shim()
    if binary is None:
        pytest.skip("needs a C compiler")
    return {
        "compiled": partial(installation.compiled_shim, binary),
        "python": installation.python_shim,
    }


@pytest.fixture(scope="session")
def bin_dirs(
    tmp_path_factory: pytest.TempPathFactory, shims: dict[str, Callable[..., bytes]]
) -> dict[str, Path]:
    """A directory of plugin executables for each kind of shim; no service listens where they ask.

    PYCNI_SHIM_SOCKET in the environment of a call names another socket.
    """
    nowhere = str(tmp_path_factory.mktemp("nowhere") / "shim.sock")
    where = {"socket": nowhere, "interpreter": sys.executable, "packages": installation.packages()}
    directories = {}
    for kind in SHIMS:
        directories[kind] = tmp_path_factory.mktemp(f"{kind}-bin")
        installation.install(directories[kind], shims[kind](**where))
    return directories
