# SPDX-License-Identifier: Apache-2.0
"""A lab of fake plugins, and a node of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pycni.runtime.node import Node
from tests.unit.runtime import fakes
from tests.unit.runtime.fakes import Lab, conflist


@pytest.fixture(autouse=True)
def _close_stores() -> Iterator[None]:
    """A store left open would warn at some later test's expense."""
    yield
    while fakes.OPENED:
        fakes.OPENED.pop().close()


@pytest.fixture
def lab() -> Lab:
    """Fake plugins a, b and c."""
    return Lab()


@pytest.fixture
def node(lab: Lab) -> Iterator[Node]:
    """A node that has the network `net` of a and b."""
    node = lab.node()
    node.networks.put(conflist("a", "b"))
    yield node
    node.close()


@pytest.fixture
def namespaces(tmp_path: Path) -> list[str]:
    """Two files to stand for namespaces."""
    paths = [str(tmp_path / name) for name in ("one", "two")]
    for path in paths:
        Path(path).touch()
    return paths
