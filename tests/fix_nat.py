# SPDX-License-Identifier: Apache-2.0
"""The `nat` fixture: containers on two bridges and a machine outside, see `tests.nat`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pycni.kernel.netns import Netns
    from tests.nat import World


@pytest.fixture
def nat(host: Netns, make_netns: Callable[..., Netns]) -> Iterator[World]:
    """Cables laid, forwarding on, no rule anywhere."""
    from tests.nat import World

    world = World(host, make_netns)
    yield world
    world.close()
