# SPDX-License-Identifier: Apache-2.0
"""A Side costs nothing until it is used."""

from __future__ import annotations

import os
import subprocess
import sys


def test_naming_a_side_imports_nothing_of_the_kernel() -> None:
    """Plugins import it on systems that have no netlink, and in processes that count time."""
    program = (
        "import sys; from pycni.kernel.side import Side; Side().close(); "
        "print([m for m in sys.modules if m in ('socket', '_socket', 'ctypes', 'msgspec')"
        " or m.startswith('pycni.kernel.')])"
    )
    # Without `site`, whose .pth files (of coverage, for one) import what they like.
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, check=True, env=environ
    )
    assert b"['pycni.kernel.side']\n" == done.stdout
