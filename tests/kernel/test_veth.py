# SPDX-License-Identifier: Apache-2.0
"""Veth pairs: made whole or not at all, found by owner, leftovers replaced, removals shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pycni.errors import CniError, KernelError, LinkNotFound
from pycni.kernel.links import Links
from pycni.kernel.netns import Netns, remove_named
from pycni.kernel.side import Side
from pycni.model.names import Mac
from pycni.net import reaper, veth
from pycni.net.owner import Owner
from pycni.net.veth import BridgePort
from tests.fix_netns import json_in, run_in

pytestmark = pytest.mark.root

MakeNetns = Callable[..., Netns]

OWNER = Owner("dbnet", "c1", "eth0")
FIRST, SECOND = OWNER.host_veth_names()[:2]


@pytest.fixture
def host_side(host: Netns) -> Iterator[Side]:
    """The host's side."""
    with Side(host) as side:
        yield side


@pytest.fixture
def container(make_netns: MakeNetns) -> Iterator[Side]:
    """A container's side."""
    with Side(make_netns("c1")) as side:
        yield side


def names(side: Side) -> set[str]:
    """The names of a side's links, as `ip` sees them."""
    return {link["ifname"] for link in json_in(side.netns, "ip", "-j", "link", "show")} - {"lo"}


def test_a_pair_is_as_asked_for(host_side: Side, container: Side) -> None:
    """Names, MACs, MTU, alias, master and port modes; the container's end is down."""
    host_side.links.add("br0", "bridge", up=True)
    bridge = host_side.links.get("br0")
    pair = veth.make(
        host_side,
        container,
        OWNER,
        mtu=1400,
        mac=Mac.parse("02:00:00:00:00:05"),
        port=BridgePort(master=bridge.index, hairpin=True, isolated=True),
    )
    [host_end] = json_in(host_side.netns, "ip", "-j", "-d", "link", "show", "dev", FIRST)
    [inside] = json_in(container.netns, "ip", "-j", "-d", "link", "show", "dev", "eth0")
    assert (pair.host.index, "br0", 1400, OWNER.tag) == tuple(
        host_end[key] for key in ("ifindex", "master", "mtu", "ifalias")
    )
    assert {"hairpin": True, "isolated": True}.items() <= host_end["linkinfo"][
        "info_slave_data"
    ].items()
    assert (pair.container_index, 1400, "02:00:00:00:00:05") == tuple(
        inside[key] for key in ("ifindex", "mtu", "address")
    )
    assert host_end["address"] == pair.host.mac
    assert "UP" in host_end["flags"]
    assert "UP" not in inside["flags"]
    veth.remove(host_side, OWNER)
    host_side.links.remove("br0")


def test_a_pair_needs_no_bridge(host_side: Side, container: Side) -> None:
    """ptp makes one too; remove says whether there was one."""
    veth.make(host_side, container, OWNER)
    assert veth.find_host(host_side.links, OWNER) is not None
    assert veth.find_host(host_side.links, OWNER._replace(ifname="eth1")) is None
    assert veth.remove(host_side, OWNER) is True
    assert veth.remove(host_side, OWNER) is False
    assert set() == names(container)


def test_a_foreign_link_of_the_first_name_is_left_alone(host_side: Side, container: Side) -> None:
    """The alias tells: the owner takes its next name, and both verbs find it there."""
    run_in(host_side.netns, "ip", "link", "add", FIRST, "type", "veth", "peer", "foreign")
    pair = veth.make(host_side, container, OWNER)
    assert SECOND == pair.host.name
    assert "ifalias" not in run_in(host_side.netns, "ip", "-j", "link", "show", "dev", FIRST)
    run_in(host_side.netns, "ip", "link", "delete", FIRST)
    found = veth.find_host(host_side.links, OWNER)
    assert found is not None
    assert SECOND == found.name
    veth.remove(host_side, OWNER)
    assert set() == names(host_side)


def test_no_name_left_is_an_error(host_side: Side, container: Side) -> None:
    """Ten foreign links of ten names; nothing is made."""
    for name in OWNER.host_veth_names():
        run_in(host_side.netns, "ip", "link", "add", name, "type", "ifb")
    with pytest.raises(CniError, match="already exists"):
        veth.make(host_side, container, OWNER)
    assert set() == names(container)
    for name in OWNER.host_veth_names():
        run_in(host_side.netns, "ip", "link", "delete", name)


def test_a_taken_interface_name_is_an_error(host_side: Side, container: Side) -> None:
    """SPEC P4: whatever has the name in the container stays; the host has nothing more."""
    run_in(container.netns, "ip", "link", "add", "eth0", "type", "ifb")
    with pytest.raises(CniError, match=r'container veth name \("eth0"\)'):
        veth.make(host_side, container, OWNER)
    assert set() == names(host_side)
    assert {"eth0"} == names(container)
    run_in(container.netns, "ip", "link", "delete", "eth0")


def test_a_half_made_pair_is_replaced(host_side: Side, container: Side) -> None:
    """A crash left the pair; its end in the container never came up."""
    first = veth.make(host_side, container, OWNER)
    second = veth.make(host_side, container, OWNER)
    assert (FIRST, FIRST) == (first.host.name, second.host.name)
    assert first.host.index != second.host.index
    veth.remove(host_side, OWNER)


def test_a_pair_into_another_namespace_is_replaced(
    host_side: Side, container: Side, make_netns: MakeNetns
) -> None:
    """The container was started again with its id in a new namespace, before the old one died."""
    old = Side(make_netns("old"))
    veth.make(host_side, old, OWNER)
    old.links.set("eth0", up=True)
    veth.make(host_side, container, OWNER)
    assert set() == names(old)
    assert {"eth0"} == names(container)
    veth.remove(host_side, OWNER)
    old.close()


@pytest.mark.parametrize("keep_down", [False, True])
def test_a_finished_attachment_is_not_a_leftover(
    host_side: Side, container: Side, keep_down: bool
) -> None:
    """SPEC P4: an interface that is up, or is meant to be down, is in use."""
    veth.make(host_side, container, OWNER)
    container.links.set("eth0", up=not keep_down)
    with pytest.raises(CniError, match="already exists"):
        veth.make(host_side, container, OWNER, keep_down=keep_down)
    assert {"eth0"} == names(container)
    veth.remove(host_side, OWNER)


def test_a_failure_half_way_leaves_no_pair(
    host_side: Side, container: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host end cannot be tagged: a pair without its tag would never be found again."""

    def fail(*_: object, **__: object) -> None:
        raise KernelError("set link", "veth", 22)

    monkeypatch.setattr(Links, "set", fail)
    host_side.links.add("br0", "bridge", up=True)
    master = host_side.links.get("br0").index
    with pytest.raises(KernelError):
        veth.make(host_side, container, OWNER, port=BridgePort(master=master))
    assert {"br0"} == names(host_side)
    assert set() == names(container)
    host_side.links.remove("br0")


def test_stale_pairs_of_one_network_go_together(host_side: Side, container: Side) -> None:
    """GC: by the network's prefix, except the valid owners, and nobody else's."""
    owners = [Owner("dbnet", "c1", f"eth{number}") for number in range(4)]
    other = Owner("other", "c1", "eth9")
    for owner in (*owners, other):
        veth.make(host_side, container, owner)
    run_in(host_side.netns, "ip", "link", "add", "foreign", "type", "veth", "peer", "foreign2")
    veth.remove_stale(host_side, "dbnet", frozenset(owners[:1]))
    assert {"eth0", "eth9"} == names(container)
    veth.remove_stale(host_side, "dbnet", frozenset())
    veth.remove_stale(host_side, "dbnet", frozenset())
    veth.remove(host_side, other)
    run_in(host_side.netns, "ip", "link", "delete", "foreign")


def test_a_dying_namespace_takes_its_pair_along(host_side: Side, make_netns: MakeNetns) -> None:
    """Removing what the kernel is about to remove is success, whoever is first."""
    namespace = make_netns("dying")
    with Side(namespace) as dying:
        veth.make(host_side, dying, OWNER)
    remove_named(namespace.path)
    namespace.close()
    veth.remove(host_side, OWNER)
    assert set() == names(host_side)


def test_concurrent_removals_share_kernel_waits(
    host_side: Side, container: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 at once take three removing messages at most, where one wait is 15 ms each."""
    owners = [Owner("dbnet", "c1", f"eth{number}") for number in range(32)]
    for owner in owners:
        veth.make(host_side, container, owner)
    messages: list[str] = []
    for method in ("remove", "remove_group"):
        _count(monkeypatch, method, messages)
    with ThreadPoolExecutor(len(owners)) as pool:
        assert all(pool.map(lambda owner: veth.remove(host_side, owner), owners))
    assert set() == names(host_side)
    assert set() == names(container)
    assert len(messages) <= 6


def test_the_reaper_does_not_hold_up_the_shared_socket(host_side: Side) -> None:
    """A namespace has one reaper, on a socket of its own."""
    assert reaper.of(host_side) is reaper.of(host_side)
    assert reaper.of(host_side)._socket is not host_side.rtnl


def test_removing_what_is_not_there_is_success(host_side: Side) -> None:
    """The reaper's contract: when it returns, the link is gone."""
    reaper.of(host_side).remove(4711)
    reaper.of(host_side).remove(4711, 4712)
    with pytest.raises(LinkNotFound):
        host_side.links.get(4711)


def _count(monkeypatch: pytest.MonkeyPatch, name: str, calls: list[str]) -> None:
    """Have every call of a method of Links noted."""
    method = getattr(Links, name)

    def counted(self: Links, target: int) -> None:
        calls.append(name)
        method(self, target)

    monkeypatch.setattr(Links, name, counted)
