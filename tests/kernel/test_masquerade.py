# SPDX-License-Identifier: Apache-2.0
"""Masquerading with real traffic: what leaves masked, what does not, and whose each address is."""

from __future__ import annotations

import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_interface
from time import perf_counter

import pytest

from pycni.errors import CniError
from pycni.kernel.nft import Nft
from pycni.net import masquerade, ruleset
from pycni.net.owner import Owner
from tests.fix_netns import run_in
from tests.nat import ANSWER_S, BEYOND, HOST, KINDS, OUTSIDE, SILENCE_S, TCP, UDP, World

pytestmark = [pytest.mark.root, pytest.mark.nft]

MULTICAST = {4: "239.1.2.3", 6: "ff05::1:2:3"}


def masked(nat: World, name: str = "c1") -> None:
    """Masquerade a container's traffic."""
    masquerade.ensure(nat.nft, nat.owner(name), nat.addresses(name))


# -- traffic ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_traffic_out_of_the_subnet_leaves_with_the_nodes_address(
    nat: World, protocol: str, version: int
) -> None:
    """The next machine and one beyond see the node; who is not in the set gets no answer."""
    kind, far = KINDS[protocol], (OUTSIDE[version], BEYOND[version])
    servers = {to: nat.serve("outside", kind, 7, at=to) for to in far}
    # The machine outside knows no way to the container's own address.
    assert not nat.flow(servers[far[0]], "c1", far[0], 7, timeout_s=SILENCE_S)
    masked(nat)
    for to, server in servers.items():
        assert HOST[version] == nat.flow(server, "c1", to, 7).seen_from
    assert not nat.flow(servers[far[0]], "c2", far[0], 7, timeout_s=SILENCE_S)


@pytest.mark.parametrize("filter_bridged", [False, True])
@pytest.mark.parametrize("version", [4, 6])
def test_traffic_inside_the_subnet_keeps_its_address(
    nat: World, version: int, filter_bridged: bool
) -> None:
    """Neighbours and the gateway see the container itself, bridged traffic filtered or not."""
    nat.filter_bridged(on=filter_bridged)
    masked(nat)
    own = nat.address("c1", version)
    for server_name, to in (
        ("c2", nat.address("c2", version)),
        ("host", {4: "10.88.0.1", 6: "fd88::1"}[version]),
    ):
        server = nat.serve(server_name, TCP, 7)
        assert own == nat.flow(server, "c1", to, 7).seen_from


@pytest.mark.parametrize("version", [4, 6])
def test_another_subnet_of_the_node_is_outside(nat: World, version: int) -> None:
    """A container of another network sees the gateway, as with the Go plugins."""
    masked(nat)
    server = nat.serve("d1", TCP, 7)
    gateway = {4: "10.99.0.1", 6: "fd99::1"}[version]
    assert gateway == nat.flow(server, "c1", nat.address("d1", version), 7).seen_from


def test_incoming_connections_are_answered_as_they_came(nat: World) -> None:
    """Masquerading concerns connections the container opens, not those it accepts."""
    masked(nat)
    run_in(nat.outside, "ip", "route", "add", "10.88.0.0/24", "via", HOST[4])
    server = nat.serve("c1", TCP, 7)
    assert OUTSIDE[4] == nat.flow(server, "outside", nat.address("c1", 4), 7).seen_from


@pytest.mark.parametrize("version", [4, 6])
def test_multicast_is_not_masked(nat: World, version: int) -> None:
    """A group's member outside sees the container's address, where a single machine would not."""
    masked(nat)
    # The node forwards multicast only with a routing daemon; so it lends itself the address.
    own = nat.address("c1", version)
    length, nodad = {4: (32, ""), 6: (128, "nodad")}[version]
    run_in(nat.host, *f"ip address add {own}/{length} dev up0 {nodad}".split())
    member = nat.serve("outside", UDP, 7)
    member.settimeout(ANSWER_S)
    with nat.client("host", UDP, MULTICAST[version], source=own) as sender:
        if version == 4:
            group = socket.inet_aton(MULTICAST[4])
            local = socket.inet_aton(OUTSIDE[4])
            member.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group + local)
            interface = socket.inet_aton(HOST[4])
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
        else:
            group = socket.inet_pton(socket.AF_INET6, MULTICAST[6])
            at = nat.outside.run(lambda: socket.if_nametoindex("up0"))
            member.setsockopt(
                socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group + struct.pack("@I", at)
            )
            index = nat.host.run(lambda: socket.if_nametoindex("up0"))
            sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        sender.sendto(b"ping", (MULTICAST[version], 7))
        assert own == member.recvfrom(4)[1][0].removeprefix("::ffff:")
        sender.sendto(b"ping", (OUTSIDE[version], 7))
        assert HOST[version] == member.recvfrom(4)[1][0].removeprefix("::ffff:")


# -- ownership -------------------------------------------------------------------------------------


def test_remove_leaves_the_table_as_it_was(nat: World) -> None:
    """With the addresses at hand or without; a second DEL is fine."""
    masked(nat, "c2")
    before = run_in(nat.host, "nft", "list", "ruleset")
    for hints in (nat.addresses("c1"), []):
        masked(nat)
        masquerade.remove(nat.nft, nat.owner("c1"), hints)
        assert before == run_in(nat.host, "nft", "list", "ruleset")
    masquerade.remove(nat.nft, nat.owner("c1"), nat.addresses("c1"))
    assert before == run_in(nat.host, "nft", "list", "ruleset")


def test_remove_reads_the_sets_when_the_hints_are_wrong(nat: World) -> None:
    """The address changed between ADD and DEL: the owner is found all the same."""
    masked(nat)
    masquerade.remove(nat.nft, nat.owner("c1"), [ip_interface("10.88.0.77/24")])
    assert [] == nat.elements()


def test_a_late_remove_spares_the_next_holder_of_the_address(nat: World) -> None:
    """Plugins #1139: the address went to another container before the DEL came."""
    masked(nat)
    heir = Owner("web", "heir", "eth0")
    masquerade.ensure(nat.nft, heir, nat.addresses("c1"))
    before = nat.elements()
    assert all(heir.tag in line for line in before)
    masquerade.remove(nat.nft, nat.owner("c1"), nat.addresses("c1"))
    assert before == nat.elements()
    masquerade.expect(nat.nft, heir, nat.addresses("c1"))
    with pytest.raises(CniError, match=r"masquerading is missing for 10\.88\.0\.2, fd88::2"):
        masquerade.expect(nat.nft, nat.owner("c1"), nat.addresses("c1"))


def test_gc_keeps_the_valid_and_other_networks(nat: World) -> None:
    """Only owners of the named network that are not valid lose their elements."""
    for name in ("c1", "c2"):
        masked(nat, name)
    other = nat.owner("d1", "othernet")
    masquerade.ensure(nat.nft, other, nat.addresses("d1"))
    masquerade.gc(nat.nft, "web", [nat.owner("c2")])
    tags = {nat.owner("c1").tag: False, nat.owner("c2").tag: True, other.tag: True}
    left = "".join(nat.elements())
    assert tags == {tag: tag in left for tag in tags}


def test_one_family_can_be_left_alone(nat: World) -> None:
    """Plugins #398: ipMasq for IPv4 only."""
    owner, addresses = nat.owner("c1"), nat.addresses("c1")
    masquerade.ensure(nat.nft, owner, addresses, families=(4,))
    server = nat.serve("outside", TCP, 7)
    assert nat.flow(server, "c1", OUTSIDE[4], 7)
    assert not nat.flow(server, "c1", OUTSIDE[6], 7, timeout_s=SILENCE_S)
    masquerade.expect(nat.nft, owner, addresses, families=(4,))
    masquerade.remove(nat.nft, owner, addresses, families=(4,))
    assert [] == nat.elements()


# -- the table -------------------------------------------------------------------------------------


def test_a_second_ensure_writes_nothing(nat: World) -> None:
    """The same ADD again is no change at all: the ruleset's generation stays."""
    masked(nat)
    generation = ruleset.table(nat.nft).generation()
    masked(nat)
    assert generation == ruleset.table(nat.nft).generation()


@pytest.mark.parametrize(
    "damage",
    ["flush ruleset", "flush table inet pycni", "flush chain inet pycni postrouting4-24"],
)
def test_the_next_change_heals_what_somebody_flushed(nat: World, damage: str) -> None:
    """CHECK sees the damage; the ADD of any container of that size mends it."""
    masked(nat)
    whole = run_in(nat.host, "nft", "list", "ruleset")
    run_in(nat.host, *f"nft {damage}".split())
    with pytest.raises(CniError, match="masquerading is"):
        masquerade.expect(nat.nft, nat.owner("c1"), nat.addresses("c1"))
    masked(nat, "c2")
    masked(nat)
    masquerade.remove(nat.nft, nat.owner("c2"), nat.addresses("c2"))
    assert sorted(whole.split()) == sorted(run_in(nat.host, "nft", "list", "ruleset").split())
    server = nat.serve("outside", TCP, 7)
    assert HOST[4] == nat.flow(server, "c1", OUTSIDE[4], 7).seen_from


def test_two_processes_share_the_table(nat: World) -> None:
    """Each Nft stands for a process: neither trusts its memory after the other's change."""
    other = Nft(nat.host)
    try:
        for number in range(10):
            one = Owner("web", f"one{number}", "eth0")
            two = Owner("web", f"two{number}", "eth0")
            address = ip_interface(f"10.88.1.{number}/24")
            masquerade.ensure(nat.nft, one, [address])
            masquerade.ensure(other, two, [address])
            masquerade.remove(nat.nft, one, [address])
            masquerade.expect(nat.nft, two, [address])
            masquerade.remove(other, two, [address])
        assert [] == nat.elements()
    finally:
        other.close()


def test_many_threads_change_the_table_at_once(nat: World) -> None:
    """Through one Nft and through several: every element is there at the end, and none after."""
    handles = [Nft(nat.host) for _ in range(3)]

    def attach(number: int) -> None:
        address = ip_interface(f"10.88.{number}.2/24")
        masquerade.ensure(handles[number % 3], Owner("web", f"x{number}", "eth0"), [address])

    def detach(number: int) -> None:
        masquerade.remove(handles[number % 3], Owner("web", f"x{number}", "eth0"))

    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(attach, range(60)))
            assert 120 == sum(line.count("cni:") for line in nat.elements())
            list(pool.map(detach, range(60)))
            assert [] == nat.elements()
    finally:
        for handle in handles:
            handle.close()


def test_ten_thousand_containers_do_not_slow_an_ensure(nat: World) -> None:
    """One more costs the same as the first, and so does its removal by hint."""

    def best_ms(number: int) -> float:
        owner, address = Owner("web", f"x{number}", "eth0"), ip_interface("10.88.0.9/16")
        times = []
        for _ in range(100):
            start = perf_counter()
            masquerade.ensure(nat.nft, owner, [address])
            masquerade.remove(nat.nft, owner, [address])
            times.append(perf_counter() - start)
        return min(times) * 1e3

    empty = best_ms(1)
    addresses = [ip_interface(f"10.88.{10 + n // 250}.{n % 250}/16") for n in range(10_000)]
    masquerade.ensure(nat.nft, Owner("web", "crowd", "eth0"), addresses)
    assert best_ms(2) < 2 * empty + 0.2
