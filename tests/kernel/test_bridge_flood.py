# SPDX-License-Identifier: Apache-2.0
"""bridge: what a new container has every other container receive, which is next to nothing."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pycni.errors import Exhausted
from pycni.kernel import links
from pycni.kernel.nlsocket import failure
from pycni.net.bridges import BridgeFull
from tests.harness import Node
from tests.kernel.test_bridge import DBNET, EDGE, dual, l3

MAC_ASKED_FOR = {"args": {"cni": {"mac": "02:00:00:00:00:0a"}}}
ETH_P_ALL, ETH_P_ARP, ETH_P_IPV6 = 0x0003, 0x0806, 0x86DD
LISTEN_S = 0.3
# ICMPv6 types: reports of multicast groups, which a bridge wants to hear.
REPORTS = {131, 143}
ROUTER_SOLICITATION, NEIGHBOUR_ADVERTISEMENT = 133, 136


def kind(frame: bytes) -> str | int:
    """What a frame is: "arp", an ICMPv6 type, or its EtherType."""
    ethertype = int.from_bytes(frame[12:14], "big")
    if ethertype == ETH_P_ARP:
        return "arp"
    if ethertype == ETH_P_IPV6:
        # A hop-by-hop header of eight bytes stands before group reports.
        return frame[62] if frame[20] == 0 else frame[54]
    return f"{ethertype:#06x}"


@contextmanager
def overheard(node: Node, container_id: str, mac: str = "") -> Iterator[list[str | int]]:
    """The kinds of frames that reach a container meanwhile and shortly after, from `mac` or all."""
    time.sleep(LISTEN_S)  # what came before is not meant
    kinds: list[str | int] = []
    with node.container(container_id).run(
        lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    ) as tap:
        tap.bind(("eth0", ETH_P_ALL))
        yield kinds
        time.sleep(LISTEN_S)
        tap.setblocking(False)
        while True:
            try:
                frame, address = tap.recvfrom(2048)
            except BlockingIOError:
                break
            if address[2] != socket.PACKET_OUTGOING and frame[6:12].hex(":").startswith(mac):
                kinds.append(kind(frame))


def test_neighbours_hear_nothing_of_a_new_container(node: Node) -> None:
    """Each broadcast is delivered to every container: no announcement, no router solicitation."""
    node.add(dual(EDGE, 2), "c1")
    with overheard(node, "c1", "0a:58:0a:01:02:03") as kinds:
        mac = node.add(dual(EDGE, 3), "c2")["interfaces"][2]["mac"]
    assert "0a:58:0a:01:02:03" == mac
    assert set() == set(kinds) - REPORTS
    assert "1" == node.read_sysctl("net/ipv6/conf/eth0/ndisc_notify", "c2")
    assert "0" == node.read_sysctl("net/ipv6/conf/eth0/force_mld_version", "c2")
    for container_id, number in (("c1", 2), ("c2", 3)):
        node.delete(dual(EDGE, number), container_id)


def test_a_mac_asked_for_is_announced(node: Node) -> None:
    """Neighbours may know the address by another MAC."""
    node.add(dual(EDGE, 2), "c1")
    config = dual({**EDGE, **MAC_ASKED_FOR}, 3)
    with overheard(node, "c1", "02:00:00:00:00:0a") as kinds:
        node.add(config, "c2")
    assert {"arp", NEIGHBOUR_ADVERTISEMENT} <= set(kinds)
    node.delete(dual(EDGE, 2), "c1")
    node.delete(config, "c2")


def test_the_heir_of_a_mac_asked_for_is_announced(node: Node) -> None:
    """Who knew the address's last owner hears of the new one: the gateway remembers that MAC."""
    asked = dual({**EDGE, **MAC_ASKED_FOR}, 3)
    node.add(dual(EDGE, 2), "c1")
    node.add(asked, "c2")
    for address in ("10.1.2.3", "2001:db8:42::3"):
        assert node.pings(address)
        assert node.pings(address, "c1")
    node.delete(asked, "c2")
    mac = node.add(dual(EDGE, 3), "c2")["interfaces"][2]["mac"]
    assert "0a:58:0a:01:02:03" == mac
    for address in ("10.1.2.3", "2001:db8:42::3"):
        assert mac in node.host("ip", "neighbour", "show", address)
        assert mac in node.inside("ip", "neighbour", "show", address)
    node.delete(dual(EDGE, 2), "c1")
    node.delete(dual(EDGE, 3), "c2")


def test_routers_outside_are_asked_where_the_host_is_none(node: Node) -> None:
    """A layer 2 network may get its addresses and routes by router advertisements."""
    node.add(DBNET, "c1")
    with overheard(node, "c1") as kinds:
        node.inside("sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad")
        node.inside(
            "sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad", container_id="c2"
        )
        node.add(DBNET, "c2")
    assert ROUTER_SOLICITATION in kinds
    assert "-1" == node.read_sysctl("net/ipv6/conf/eth0/router_solicitations", "c2")
    for container_id in ("c1", "c2"):
        node.delete(DBNET, container_id)
        node.inside(
            *("sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/default/accept_dad"),
            container_id=container_id,
        )


@pytest.mark.parametrize(
    ("addresses", "mac"),
    [
        (("10.1.2.2/24",), "0a:58:0a:01:02:02"),
        (("2001:db8:42::2/64", "10.1.2.2/24"), "0a:58:0a:01:02:02"),
        (("2001:db8:42::2/64",), "de:15:aa:32:eb:b7"),
    ],
)
def test_a_mac_goes_with_the_address(node: Node, addresses: tuple[str, ...], mac: str) -> None:
    """The same whoever has it; the port is open when ADD returns, and CHECK knows the MAC."""
    for container_id in ("c1", "c2"):
        result = node.add(l3(EDGE, *addresses), container_id)
        link = node.link("eth0", container_id)
        port = node.link(result["interfaces"][1]["name"])
        assert link is not None
        assert port is not None
        assert mac == result["interfaces"][2]["mac"] == link["address"]
        assert port["linkinfo"]["info_slave_data"]["locked"] is False
        node.check(l3(EDGE, *addresses), result, container_id)
        node.delete(l3(EDGE, *addresses), container_id)


def test_an_ipam_plugin_that_has_used_the_interface_keeps_its_mac(node: Node) -> None:
    """dhcp has the interface up to ask for a lease, and the lease is that MAC's."""
    node.ipam.meanwhile = lambda: node.inside("ip", "link", "set", "eth0", "up") and None
    mac = node.add(dual(EDGE, 2))["interfaces"][2]["mac"]
    link = node.link("eth0", "c1")
    assert link is not None
    assert not mac.startswith("0a:58:")
    assert mac == link["address"]
    node.ipam.meanwhile = lambda: None
    node.delete(dual(EDGE, 2))


def test_who_looks_for_duplicates_has_a_mac_of_its_own(node: Node) -> None:
    """enabledad: with the other's MAC the bridge would take the other's frames to the newcomer."""
    config = dual({**EDGE, "enabledad": True}, 2)
    assert not node.add(config)["interfaces"][2]["mac"].startswith("0a:58:")
    node.delete(config)


def test_the_first_ping_is_answered(node: Node) -> None:
    """Both families, between host and container both ways, and between containers."""
    node.add(dual(EDGE, 2), "c1")
    ids = [f"c{number}" for number in range(3, 9)]
    for container_id in ids:
        config = dual(EDGE, int(container_id[1:]))
        ips = node.add(config, container_id)["ips"]
        addresses = [ip["address"].split("/")[0] for ip in ips]
        for where in (None, "c1"):
            assert [True, True] == [node.pings(address, where) for address in addresses]
        for target in ("10.1.2.1", "2001:db8:42::1", "10.1.2.2", "2001:db8:42::2"):
            assert node.pings(target, container_id)
    for container_id in ("c1", *ids):
        number = 2 if container_id == "c1" else int(container_id[1:])
        node.delete(dual(EDGE, number), container_id)


def test_a_full_bridge_says_so(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's words are "Exchange full"; ours name the bridge, the limit and a way out."""

    def refuse(*_: object, **__: object) -> None:
        raise failure("add veth", "veth0", links.EXFULL, "", links._FAILURES)

    with monkeypatch.context() as patched:
        patched.setattr(links.Links, "add_veth", refuse)
        with pytest.raises(BridgeFull, match=r"^bridge edge0 has no free port") as caught:
            node.add(dual(EDGE, 2))
    assert isinstance(caught.value.__cause__, Exhausted)
    assert "at most 1023" in caught.value.details
    assert "another `bridge`" in caught.value.details
    assert node.link("edge0") is None
