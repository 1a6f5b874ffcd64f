# SPDX-License-Identifier: Apache-2.0
"""The `node` fixture: a fresh host and containers to run built-in plugins between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pycni.kernel.netns import Netns
    from tests.harness import Node


@pytest.fixture
def node(host: Netns, make_netns: Callable[..., Netns], tmp_path: Path) -> Iterator[Node]:
    """A node without networks; what a plugin leaves behind fails the test."""
    from tests.harness import Node

    node = Node(host, make_netns, tmp_path)
    yield node
    node.close()
