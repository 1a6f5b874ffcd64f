# SPDX-License-Identifier: Apache-2.0
"""A Side costs nothing until it is used."""

from __future__ import annotations

import subprocess
import sys


def test_naming_a_side_imports_nothing_of_the_kernel() -> None:
    """Plugins import it on systems that have no netlink, and in processes that count time."""
    program = (
        "import sys; from pycni.kernel.side import Side; Side().close(); "
        "print([m for m in sys.modules if m in ('socket', '_socket', 'ctypes', 'msgspec')"
        " or m.startswith('pycni.kernel.')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert b"['pycni.kernel.side']\n" == done.stdout
