# SPDX-License-Identifier: Apache-2.0
"""Links: what we make is what `ip -d link` shows, and what it shows we read."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pycni.errors import AlreadyExists, KernelError, LinkExists, LinkNotFound, Unsupported
from pycni.kernel.netns import Netns
from pycni.kernel.rtnl import Rtnl
from pycni.model.names import Mac
from tests.fix_netns import json_in, run_in

pytestmark = pytest.mark.root

MakeNetns = Callable[..., Netns]
MAC = Mac.parse("02:00:00:00:00:01")
OTHER_MAC = Mac.parse("02:00:00:00:00:02")


@pytest.fixture
def namespace(make_netns: MakeNetns) -> Netns:
    """Where the tests work; it dies with whatever is in it."""
    return make_netns()


@pytest.fixture
def rtnl(namespace: Netns) -> Iterator[Rtnl]:
    """rtnetlink of that namespace."""
    with Rtnl(namespace) as opened:
        yield opened


def shown(namespace: Netns, name: str) -> dict[str, Any]:
    """The link as `ip` sees it."""
    (link,) = json_in(namespace, "ip", "-j", "-d", "link", "show", "dev", name)
    found: dict[str, Any] = link
    return found


def names(namespace: Netns) -> set[str]:
    return {link["ifname"] for link in json_in(namespace, "ip", "-j", "link")}


def test_a_bridge_is_made_as_asked(namespace: Netns, rtnl: Rtnl) -> None:
    """Every common attribute in one creation."""
    rtnl.links.add(
        "br0", "bridge", mtu=1400, mac=MAC, up=True, group=7, txqlen=50, alias="cni:x", index=44
    )
    link = shown(namespace, "br0")
    assert {
        "ifindex": 44,
        "mtu": 1400,
        "address": MAC,
        "group": "7",
        "txqlen": 50,
        "ifalias": "cni:x",
    }.items() <= link.items()
    assert "UP" in link["flags"]
    assert "bridge" == link["linkinfo"]["info_kind"]


def test_a_link_is_read_as_ip_shows_it(namespace: Netns, rtnl: Rtnl) -> None:
    """Made by `ip`, read by us."""
    for command in (
        "link add br0 type bridge mcast_snooping 0",
        "link add v0 address 02:00:00:00:00:01 mtu 1400 type veth peer name v1",
        "link set v0 master br0 up promisc on allmulticast on txqueuelen 9 alias hello group 5",
        "link set v0 type bridge_slave hairpin on isolated on",
    ):
        run_in(namespace, "ip", *command.split())
    bridge, link, peer = (rtnl.links.get(name) for name in ("br0", "v0", "v1"))
    seen = shown(namespace, "v0")
    assert (seen["ifindex"], MAC, 1400, "veth") == (link.index, link.mac, link.mtu, link.kind)
    assert (True, True, True) == (link.up, link.promisc, link.allmulti)
    assert (9, "hello", 5) == (link.txqlen, link.alias, link.group)
    assert (bridge.index, peer.index, None) == (link.master, link.peer_index, link.peer_netnsid)
    modes = {"hairpin": True, "isolated": True, "learning": True, "locked": False}
    assert modes == link.port
    assert bridge.data is not None
    assert {"mcast_snooping": False}.items() <= bridge.data.items()
    assert link.operstate in ("down", "lowerlayerdown")  # the kernel takes a moment
    assert not peer.up
    assert rtnl.links.get("lo").loopback


def test_finding_what_is_not_there(rtnl: Rtnl) -> None:
    """`find` says None, `get` raises."""
    assert rtnl.links.find("none") is None
    assert rtnl.links.find_index(999) is None
    with pytest.raises(LinkNotFound, match=r"^find link none: No such device"):
        rtnl.links.get("none")


def test_finding_by_index(rtnl: Rtnl) -> None:
    """The loopback is always the first."""
    found = rtnl.links.find_index(1)
    assert found is not None
    assert found == rtnl.links.find("lo")


def test_links_are_listed_by_kind_master_and_group(rtnl: Rtnl) -> None:
    """Alone and together."""
    rtnl.links.add("br0", "bridge", index=10)
    rtnl.links.add("i0", "ifb", index=11, group=5)
    rtnl.links.add("i1", "ifb", index=12, master=10)
    assert {"lo", "br0", "i0", "i1"} == {link.name for link in rtnl.links.list()}
    assert ["i0", "i1"] == [link.name for link in rtnl.links.list(kind="ifb")]
    assert ["i1"] == [link.name for link in rtnl.links.list(master=10)]
    assert ["i0"] == [link.name for link in rtnl.links.list(group=5)]
    assert [] == rtnl.links.list(kind="ifb", master=10, group=5)
    assert [] == rtnl.links.list(kind="no-such-kind")


def test_a_veth_pair_has_each_end_at_home(
    namespace: Netns, rtnl: Rtnl, make_netns: MakeNetns
) -> None:
    """One call: names, MACs, indexes, MTU, master, state of the host end, alias."""
    container = make_netns("container")
    rtnl.links.add("br0", "bridge", index=10)
    rtnl.links.add_veth(
        "veth0",
        "eth0",
        container_netns=container,
        mtu=1300,
        host_mac=MAC,
        container_mac=OTHER_MAC,
        host_index=20,
        container_index=30,
        master=10,
        alias="cni:a:b",
    )
    host_end, container_end = shown(namespace, "veth0"), shown(container, "eth0")
    assert {
        "ifindex": 20,
        "address": MAC,
        "mtu": 1300,
        "master": "br0",
        "ifalias": "cni:a:b",
    }.items() <= host_end.items()
    assert {"ifindex": 30, "address": OTHER_MAC, "mtu": 1300}.items() <= container_end.items()
    assert "UP" in host_end["flags"]
    assert "UP" not in container_end["flags"]


def test_a_veth_end_knows_where_its_peer_is(rtnl: Rtnl, make_netns: MakeNetns) -> None:
    """By the id this namespace has for the other; a stranger has none."""
    container, stranger = make_netns("container"), make_netns("stranger")
    assert rtnl.namespace_id(container) is None
    rtnl.links.add_veth("veth0", "eth0", container_netns=container, host_up=False)
    host_end = rtnl.links.get("veth0")
    with Rtnl(container) as inside:
        container_end = inside.links.get("eth0")
    assert (container_end.index, host_end.index) == (
        host_end.peer_index,
        container_end.peer_index,
    )
    assert host_end.peer_netnsid is not None
    assert host_end.peer_netnsid == rtnl.namespace_id(container)
    assert rtnl.namespace_id(stranger) is None
    assert not host_end.up


@pytest.mark.parametrize("taken", ["host", "container"])
def test_a_veth_pair_is_made_whole_or_not_at_all(
    namespace: Netns, rtnl: Rtnl, make_netns: MakeNetns, taken: str
) -> None:
    """Either name may be taken already; nothing new is left then."""
    container = make_netns("container")
    place = namespace if taken == "host" else container
    run_in(place, "ip", "link", "add", "same", "type", "ifb")
    with pytest.raises(LinkExists, match=r"^add veth same: "):
        rtnl.links.add_veth("same", "same", container_netns=container, alias="cni:a")
    assert [{"lo", "same"}, {"lo"}] == [
        names(ns) for ns in (place, container if place is namespace else namespace)
    ]
    assert "ifalias" not in shown(place, "same")


@pytest.mark.parametrize("index", [None, 77])
def test_an_alias_that_is_refused_undoes_the_creation(
    namespace: Netns, rtnl: Rtnl, index: int | None
) -> None:
    """255 bytes are the most; with and without an index of the caller's."""
    with pytest.raises(KernelError, match=r"^set alias of i0: "):
        rtnl.links.add("i0", "ifb", index=index, alias="x" * 256)
    assert {"lo"} == names(namespace)


@pytest.mark.parametrize("index", [None, 77])
def test_somebody_elses_link_does_not_get_our_alias(
    namespace: Netns, rtnl: Rtnl, index: int | None
) -> None:
    """The name is taken: the link that has it stays as it is."""
    rtnl.links.add("i0", "ifb", alias="theirs")
    with pytest.raises(LinkExists) as caught:
        rtnl.links.add("i0", "ifb", index=index, alias="ours")
    assert isinstance(caught.value, AlreadyExists)
    assert "theirs" == shown(namespace, "i0")["ifalias"]


def test_an_alias_that_cannot_be_undone_says_so(rtnl: Rtnl) -> None:
    """The second failure is a note on the first; here the second message asks the impossible."""
    error = KernelError("set alias of", "i0", errno.ERANGE)
    rtnl.links._undo("i0", error)
    assert "and then: remove link i0: No such device" in error.details


def test_an_alias_wants_the_link_here(rtnl: Rtnl, make_netns: MakeNetns) -> None:
    """In a batch by index, and never for a link that is born elsewhere."""
    with pytest.raises(ValueError, match="namespace the link lives in"):
        rtnl.links.add("i0", "ifb", netns=make_netns(), alias="x")
    with pytest.raises(ValueError, match="needs an index"), rtnl.batch():
        rtnl.links.add("i0", "ifb", alias="x")


def test_a_macvlan_is_born_in_the_container(
    namespace: Netns, rtnl: Rtnl, make_netns: MakeNetns
) -> None:
    """Its parent is looked up here; no temporary name is needed."""
    container = make_netns("container")
    rtnl.links.add("parent", "ifb", index=10)
    rtnl.links.add(
        "eth0", "macvlan", link=10, netns=container, mode="bridge", bcqueuelen=500, mtu=1400
    )
    link = shown(container, "eth0")
    assert {"mode": "bridge", "bcqueuelen": 500}.items() <= link["linkinfo"]["info_data"].items()
    assert (10, 1400) == (link["link_index"], link["mtu"])
    assert {"lo", "parent"} == names(namespace)
    with Rtnl(container) as inside:
        found = inside.links.get("eth0")
    assert ({"mode": "bridge", "bcqueuelen": 500}, 10) == (found.data, found.peer_index)


@pytest.mark.parametrize("mode", ["private", "vepa", "bridge", "passthru"])
def test_macvlan_modes(namespace: Netns, rtnl: Rtnl, mode: str) -> None:
    """As `ip` calls them."""
    rtnl.links.add("parent", "ifb", index=10)
    rtnl.links.add("m0", "macvlan", link=10, mode=mode)
    assert mode == shown(namespace, "m0")["linkinfo"]["info_data"]["mode"]
    assert {"mode": mode}.items() <= (rtnl.links.get("m0").data or {}).items()


def test_a_tap_is_made_as_asked(namespace: Netns, rtnl: Rtnl) -> None:
    """Owner, group and queues; it stays when nobody has it open."""
    rtnl.links.add_tap("tap0", owner=1000, group=1001, multi_queue=True)
    rtnl.links.add_tap("tap1", vnet_hdr=False)
    data = shown(namespace, "tap0")["linkinfo"]["info_data"]
    assert {
        "type": "tap",
        "pi": False,
        "vnet_hdr": True,
        "multi_queue": True,
        "persist": True,
    }.items() <= data.items()
    expected = {
        "type": "tap",
        "owner": 1000,
        "group": 1001,
        "pi": False,
        "vnet_hdr": True,
        "persist": True,
        "multi_queue": True,
    }
    assert expected == rtnl.links.get("tap0").data
    other = rtnl.links.get("tap1").data or {}
    assert {"vnet_hdr": False, "multi_queue": False}.items() <= other.items()
    assert "owner" not in other


@pytest.mark.parametrize("name", ["tap0", "br0"])
def test_a_taken_name_is_no_tap(rtnl: Rtnl, name: str) -> None:
    """Whether the other is a tap or anything else."""
    rtnl.links.add_tap("tap0")
    rtnl.links.add("br0", "bridge")
    with pytest.raises(LinkExists, match=f"^add tap {name}: "):
        rtnl.links.add_tap(name)


def test_changes_are_made_as_asked(namespace: Netns, rtnl: Rtnl) -> None:
    """Several in one message, by index and by name, and back again."""
    rtnl.links.add("br0", "bridge", index=10)
    rtnl.links.add("i0", "veth", index=11)
    rtnl.links.set(
        11,
        up=True,
        mtu=1280,
        mac=MAC,
        master=10,
        alias="a",
        promisc=True,
        allmulti=True,
        txqlen=3,
        group=9,
    )
    link = shown(namespace, "i0")
    assert {
        "mtu": 1280,
        "address": MAC,
        "master": "br0",
        "ifalias": "a",
        "txqlen": 3,
        "group": "9",
    }.items() <= link.items()
    assert {"UP", "PROMISC", "ALLMULTI"} <= set(link["flags"])
    rtnl.links.set("i0", up=False, master=0, alias="", promisc=False, allmulti=False)
    link = shown(namespace, "i0")
    assert not {"UP", "PROMISC", "ALLMULTI"} & set(link["flags"])
    assert ("master" not in link, "ifalias" not in link) == (True, True)
    rtnl.links.set(11, name="renamed")
    assert {"lo", "br0", "renamed", "veth0"} == names(namespace)


def test_a_link_moves_and_is_renamed_on_the_way(
    namespace: Netns, rtnl: Rtnl, make_netns: MakeNetns
) -> None:
    """The new name may be taken in the old namespace."""
    container = make_netns("container")
    rtnl.links.add("eth0", "ifb")
    rtnl.links.add("i0", "ifb", index=11)
    rtnl.links.set(11, netns=container, name="eth0", up=True)
    assert [{"lo", "eth0"}] * 2 == [names(namespace), names(container)]
    assert "UP" in shown(container, "eth0")["flags"]


def test_bridge_port_attributes_change(namespace: Netns, rtnl: Rtnl) -> None:
    """Each on its own; what was not said stays."""
    rtnl.links.add("br0", "bridge", index=10)
    rtnl.links.add("i0", "ifb", index=11, master=10)
    rtnl.links.set_port(11, hairpin=True, isolated=True)
    rtnl.links.set_port("i0", hairpin=False, learning=False)
    port = shown(namespace, "i0")["linkinfo"]["info_slave_data"]
    assert {"hairpin": False, "isolated": True, "learning": False}.items() <= port.items()
    with pytest.raises(KernelError, match="change bridge port index 10: ") as caught:
        rtnl.links.set_port(10, hairpin=True)
    assert KernelError is type(caught.value)


def test_kind_attributes_change(namespace: Netns, rtnl: Rtnl) -> None:
    """Of a link that exists."""
    rtnl.links.add("br0", "bridge")
    rtnl.links.set_data("br0", "bridge", mcast_snooping=False, stp_state=1)
    data = shown(namespace, "br0")["linkinfo"]["info_data"]
    assert {"mcast_snooping": 0, "stp_state": 1}.items() <= data.items()


def test_removal_by_index_name_and_group(namespace: Netns, rtnl: Rtnl) -> None:
    """The link is gone when the call returns; a second removal finds nothing."""
    for number in range(4):
        rtnl.links.add(f"i{number}", "ifb", index=10 + number, group=7 if number > 1 else None)
    rtnl.links.remove(10)
    rtnl.links.remove("i1")
    assert {"lo", "i2", "i3"} == names(namespace)
    rtnl.links.remove_group(7)
    assert {"lo"} == names(namespace)
    with pytest.raises(LinkNotFound, match=r"^remove link index 10: No such device"):
        rtnl.links.remove(10)
    with pytest.raises(LinkNotFound, match=r"^remove link i1: No such device"):
        rtnl.links.remove("i1")
    with pytest.raises(LinkNotFound, match=r"^remove link group 7: No such device"):
        rtnl.links.remove_group(7)


def test_removing_the_default_group_is_refused(namespace: Netns, rtnl: Rtnl) -> None:
    """Group 0 is every link nobody put into another."""
    rtnl.links.add("i0", "ifb")
    with pytest.raises(KernelError, match="remove link group 0"):
        rtnl.links.remove_group(0)
    assert "i0" in names(namespace)


def test_an_unknown_kind_is_unsupported(rtnl: Rtnl) -> None:
    """With the kernel's words for it."""
    with pytest.raises(Unsupported, match=r"^add nonsense x: Unknown device type"):
        rtnl.links.add("x", "nonsense")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"mtu": 10}, "mtu less than device minimum"),
        ({"master": 999}, "Invalid argument"),
    ],
)
def test_a_refused_change_says_why(rtnl: Rtnl, change: dict[str, Any], text: str) -> None:
    """The extended acknowledgement where there is one, else the errno."""
    rtnl.links.add("br0", "bridge")
    with pytest.raises(KernelError, match=f"^change link br0: {text}"):
        rtnl.links.set("br0", **change)
