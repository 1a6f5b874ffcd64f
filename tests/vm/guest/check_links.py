# SPDX-License-Identifier: Apache-2.0
"""Kinds of links and bridge VLANs that slim kernels lack; run inside the virtual machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pycni.errors import LinkExists
from pycni.kernel.netns import Netns
from pycni.kernel.rtnl import Rtnl
from pycni.kernel.types import BridgeVlan, Rule
from tests.fix_netns import json_in, run_in

pytestmark = pytest.mark.root

MakeNetns = Callable[..., Netns]

PARENT, BRIDGE, PORT = 10, 20, 21


@pytest.fixture
def namespace(make_netns: MakeNetns) -> Netns:
    """Where the tests work; it dies with whatever is in it."""
    return make_netns()


@pytest.fixture
def rtnl(namespace: Netns) -> Iterator[Rtnl]:
    """rtnetlink of that namespace, with a dummy to be a parent."""
    with Rtnl(namespace) as opened:
        opened.links.add("parent", "dummy", index=PARENT, up=True)
        yield opened


@pytest.fixture
def filtering(rtnl: Rtnl) -> Rtnl:
    """And with a bridge that filters VLANs, with one port."""
    rtnl.links.add("br0", "bridge", index=BRIDGE, up=True, vlan_filtering=True)
    rtnl.links.add("port", "dummy", index=PORT, master=BRIDGE, up=True)
    return rtnl


def shown(namespace: Netns, name: str) -> dict[str, Any]:
    """The link as `ip` sees it."""
    (link,) = json_in(namespace, "ip", "-j", "-d", "link", "show", "dev", name)
    found: dict[str, Any] = link
    return found


def vlans(namespace: Netns, name: str) -> list[dict[str, Any]]:
    """The VLANs of a port, one by one, as `bridge` sees them."""
    found = json_in(namespace, "bridge", "-j", "vlan", "show", "dev", name)
    return [vlan for port in found for vlan in port["vlans"]]


def test_a_dummy(namespace: Netns, rtnl: Rtnl) -> None:
    """Nothing of its own."""
    rtnl.links.add("d0", "dummy", mtu=1400)
    assert ("dummy", 1400) == (
        shown(namespace, "d0")["linkinfo"]["info_kind"],
        rtnl.links.get("d0").mtu,
    )


@pytest.mark.parametrize("protocol", ["802.1q", "802.1ad"])
def test_a_vlan(namespace: Netns, rtnl: Rtnl, make_netns: MakeNetns, protocol: str) -> None:
    """Born in the container on a parent of the host's."""
    container = make_netns("container")
    rtnl.links.add("eth0", "vlan", link=PARENT, netns=container, id=4094, protocol=protocol)
    info = shown(container, "eth0")["linkinfo"]["info_data"]
    assert (4094, protocol.upper().replace("AD", "ad")) == (info["id"], info["protocol"])
    with Rtnl(container) as inside:
        link = inside.links.get("eth0")
    assert ({"id": 4094, "protocol": protocol}, PARENT) == (link.data, link.peer_index)
    with pytest.raises(LinkExists):
        rtnl.links.add("again", "vlan", link=PARENT, id=4094, protocol=protocol)


@pytest.mark.parametrize("mode", ["l2", "l3", "l3s"])
def test_an_ipvlan(rtnl: Rtnl, make_netns: MakeNetns, mode: str) -> None:
    """In each mode."""
    container = make_netns("container")
    rtnl.links.add("eth0", "ipvlan", link=PARENT, netns=container, mode=mode, flags="private")
    assert mode == shown(container, "eth0")["linkinfo"]["info_data"]["mode"]
    with Rtnl(container) as inside:
        assert {"mode": mode, "flags": "private"} == inside.links.get("eth0").data


def test_a_vrf(namespace: Netns, rtnl: Rtnl) -> None:
    """With its table, its members and the rule that makes it work."""
    rtnl.links.add("vrf0", "vrf", index=30, table=1000, up=True)
    rtnl.links.set(PARENT, master=30)
    assert 1000 == shown(namespace, "vrf0")["linkinfo"]["info_data"]["table"]
    assert {"table": 1000} == rtnl.links.get("vrf0").data
    assert ["parent"] == [link.name for link in rtnl.links.list(master=30)]
    assert ["vrf0"] == [link.name for link in rtnl.links.list(kind="vrf")]
    # The kernel adds `l3mdev` rules with the first VRF of a namespace.
    assert [True, True] == [rule.l3mdev for rule in rtnl.rules.list() if rule.priority == 1000]
    rtnl.rules.remove(Rule(l3mdev=True, table=None, priority=1000))
    rtnl.rules.add(Rule(l3mdev=True, table=None, priority=999))
    assert [True] == [rule.l3mdev for rule in rtnl.rules.list(family=4) if rule.priority == 999]


def test_vlan_filtering_is_set_at_creation_or_later(namespace: Netns, filtering: Rtnl) -> None:
    """And read back."""
    assert {"vlan_filtering": True, "vlan_default_pvid": 1}.items() <= (
        filtering.links.get("br0").data or {}
    ).items()
    filtering.links.set_data(BRIDGE, "bridge", vlan_filtering=False, vlan_default_pvid=0)
    info = shown(namespace, "br0")["linkinfo"]["info_data"]
    assert (0, 0) == (info["vlan_filtering"], info["vlan_default_pvid"])


def test_vlans_of_a_port(namespace: Netns, filtering: Rtnl) -> None:
    """A native one, a range of tagged ones; what it does not carry is passed over on removal."""
    filtering.bridge_vlans.remove(PORT, 1, 4094)
    assert [] == vlans(namespace, "port")
    assert [] == filtering.bridge_vlans.list(PORT)
    with filtering.batch():
        filtering.bridge_vlans.add(PORT, 100, pvid=True, untagged=True)
        filtering.bridge_vlans.add(PORT, 200, 210)
    seen = vlans(namespace, "port")
    assert [{"vlan": 100, "flags": ["PVID", "Egress Untagged"]}] == [
        vlan for vlan in seen if vlan["vlan"] == 100
    ]
    assert [100, *range(200, 211)] == [vlan["vlan"] for vlan in seen]
    assert [
        BridgeVlan(index=PORT, vid=100, vid_end=100, pvid=True, untagged=True),
        BridgeVlan(index=PORT, vid=200, vid_end=210),
    ] == filtering.bridge_vlans.list(PORT)
    filtering.bridge_vlans.remove(PORT, 205)
    assert [(100, 100), (200, 204), (206, 210)] == [
        (vlan.vid, vlan.vid_end) for vlan in filtering.bridge_vlans.list(PORT)
    ]
    filtering.bridge_vlans.add(PORT, 100)
    assert [False] == [vlan.pvid for vlan in filtering.bridge_vlans.list(PORT) if vlan.vid == 100]


def test_vlans_of_the_bridge_itself(namespace: Netns, filtering: Rtnl) -> None:
    """And of everything at once."""
    filtering.bridge_vlans.add(BRIDGE, 100, on_bridge=True)
    assert [1, 100] == [vlan["vlan"] for vlan in vlans(namespace, "br0")]
    assert {(BRIDGE, 1), (BRIDGE, 100), (PORT, 1)} == {
        (vlan.index, vlan.vid) for vlan in filtering.bridge_vlans.list()
    }
    filtering.bridge_vlans.remove(BRIDGE, 100, on_bridge=True)
    assert [1] == [vlan.vid for vlan in filtering.bridge_vlans.list(BRIDGE)]


def test_vlans_made_by_others_are_read(namespace: Netns, filtering: Rtnl) -> None:
    """By `bridge`."""
    for command in ("vlan del dev port vid 1", "vlan add dev port vid 7 pvid untagged"):
        run_in(namespace, "bridge", *command.split())
    assert [(7, True, True)] == [
        (vlan.vid, vlan.pvid, vlan.untagged) for vlan in filtering.bridge_vlans.list(PORT)
    ]
