# SPDX-License-Identifier: Apache-2.0
"""bridge: containers that come and go together, and in each other's place."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from pycni.errors import CniError
from pycni.kernel.links import Links
from tests.harness import Json, Node
from tests.kernel.test_bridge import EDGE, dual
from tests.kernel.test_bridge_verbs import failing, host_ends


def test_parallel_calls_share_one_bridge(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """P11, case 46: 16 ADDs at once make one bridge; every fourth fails and harms nobody.

    Their DELs share their waits: 12 removals, far fewer removing messages.
    """
    ids = [f"c{number}" for number in range(2, 18)]
    for container_id in ids:
        node.container(container_id)

    def add(container_id: str) -> Json | None:
        number = int(container_id[1:])
        config = dual(EDGE, number)
        if number % 4:
            return node.add(config, container_id)
        with pytest.raises(CniError, match="fixed: ADD"):
            node.add(failing(config, "ADD"), container_id)
        return None

    with ThreadPoolExecutor(len(ids)) as pool:
        results = {i: r for i, r in zip(ids, pool.map(add, ids), strict=True) if r is not None}
        assert 1 == len({result["interfaces"][0]["mac"] for result in results.values()})
        assert 12 == len(host_ends(node))
        for container_id, result in results.items():
            node.check(dual(EDGE, int(container_id[1:])), result, container_id)
        removals: list[str] = []
        for name in ("remove", "remove_group"):
            count(monkeypatch, name, removals)
        list(pool.map(lambda i: node.delete(dual(EDGE, int(i[1:])), i), results))
    assert [] == host_ends(node)
    assert len(removals) <= 6


def count(monkeypatch: pytest.MonkeyPatch, name: str, calls: list[str]) -> None:
    """Have every call of a method of Links noted."""
    method = getattr(Links, name)

    def counted(self: Links, target: int) -> None:
        calls.append(name)
        method(self, target)

    monkeypatch.setattr(Links, name, counted)


def test_an_address_used_again_has_the_mac_that_neighbours_know(node: Node) -> None:
    """D(f): the neighbours' caches are right before the container sends anything."""
    node.add(dual(EDGE, 2), "c1")
    node.add(dual(EDGE, 3), "c2")
    for address in ("10.1.2.2", "2001:db8:42::2"):
        assert node.pings(address)
        assert node.pings(address, "c2")
    node.delete(dual(EDGE, 2), "c1")
    mac = node.add(dual(EDGE, 2), "c1")["interfaces"][2]["mac"]
    for address in ("10.1.2.2", "2001:db8:42::2"):
        assert mac in node.host("ip", "neighbour", "show", address)
        assert mac in node.inside("ip", "neighbour", "show", address, container_id="c2")
    node.delete(dual(EDGE, 2), "c1")
    node.delete(dual(EDGE, 3), "c2")
