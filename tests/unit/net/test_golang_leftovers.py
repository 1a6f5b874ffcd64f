# SPDX-License-Identifier: Apache-2.0
"""The marks the Go plugins write into their comments."""

from __future__ import annotations

from pycni.net import golang_leftovers


def test_the_mark_is_the_one_go_writes() -> None:
    """Seen on a node: network podnet, interface eth0, container c1."""
    mark = golang_leftovers.masquerade_mark("podnet", "c1", "eth0")
    assert "fa98a27bbcc17b2e-f4d01f2ef4b92245" == mark
