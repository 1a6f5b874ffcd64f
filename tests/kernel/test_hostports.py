# SPDX-License-Identifier: Apache-2.0
"""Host ports with real traffic: who reaches what, whom the server sees, and who may hold a port."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface
from time import perf_counter

import pytest

from pycni.errors import CniError, InvalidConfig
from pycni.kernel.nft import Nft
from pycni.kernel.nftmaps import Slot
from pycni.model.request import PortMapping
from pycni.net import hostports, ruleset
from pycni.net.hostports import PortInUse
from pycni.net.owner import Owner
from tests.fix_netns import run_in
from tests.nat import ANSWER_S, BEYOND, HOST, KINDS, OUTSIDE, SILENCE_S, TCP, UDP, World

pytestmark = [pytest.mark.root, pytest.mark.nft]

WEB = PortMapping(hostPort=8080, containerPort=80)
DNS = PortMapping(hostPort=5353, containerPort=53, protocol="udp")
GATEWAY = {4: "10.88.0.1", 6: "fd88::1"}
OTHER_GATEWAY = {4: "10.99.0.1", 6: "fd99::1"}


def map_ports(nat: World, *mappings: PortMapping, name: str = "c1", **options: object) -> None:
    """Map ports to a container, and let the node's loopback addresses in."""
    addresses = nat.addresses(name)
    hostports.ensure(nat.nft, nat.owner(name), mappings, addresses, **options)  # type: ignore[arg-type]  # options by name
    hostports.open_loopback(nat.side, addresses)


# -- traffic ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(("protocol", "mapping"), [("tcp", WEB), ("udp", DNS)])
def test_a_mapped_port_is_reached_from_everywhere(
    nat: World, protocol: str, mapping: PortMapping, version: int
) -> None:
    """From outside and from other subnets as itself, from its own subnet and loopback masked."""
    server = nat.serve("c1", KINDS[protocol], mapping.containerPort)
    map_ports(nat, WEB, DNS)
    loopback = {4: "127.0.0.1", 6: "::1"}[version]
    seen = {
        (client, to): nat.flow(server, client, to, mapping.hostPort).seen_from
        for client, to in (
            ("outside", HOST[version]),
            ("host", HOST[version]),
            ("host", GATEWAY[version]),
            ("host", loopback),
            ("c1", GATEWAY[version]),
            ("c2", GATEWAY[version]),
            ("c2", HOST[version]),
            ("d1", OTHER_GATEWAY[version]),
        )
    }
    assert {
        ("outside", HOST[version]): OUTSIDE[version],
        ("host", HOST[version]): HOST[version],
        # From an address in the container's subnet: also masked, by the same address.
        ("host", GATEWAY[version]): GATEWAY[version],
        ("host", loopback): GATEWAY[version],
        ("c1", GATEWAY[version]): GATEWAY[version],
        ("c2", GATEWAY[version]): GATEWAY[version],
        ("c2", HOST[version]): GATEWAY[version],
        ("d1", OTHER_GATEWAY[version]): nat.address("d1", version),
    } == seen


@pytest.mark.parametrize("version", [4, 6])
def test_neighbours_and_hairpin_work_where_bridged_traffic_is_filtered(
    nat: World, version: int
) -> None:
    """With br_netfilter the bridge itself translates; the hairpin then needs the port's leave."""
    nat.filter_bridged(on=True)
    server = nat.serve("c1", TCP, 80)
    map_ports(nat, WEB)
    assert GATEWAY[version] == nat.flow(server, "c2", GATEWAY[version], 8080).seen_from
    run_in(nat.host, "ip", "link", "set", "c1", "type", "bridge_slave", "hairpin", "on")
    assert GATEWAY[version] == nat.flow(server, "c1", GATEWAY[version], 8080).seen_from


@pytest.mark.parametrize("version", [4, 6])
def test_only_what_is_addressed_to_the_node_is_mapped(nat: World, version: int) -> None:
    """GHSA-jv3w-x3r3-g6rm: a connection passing through to the same port elsewhere passes."""
    nat.serve("c1", TCP, 80)
    beyond = nat.serve("outside", TCP, 8080)
    map_ports(nat, WEB)
    # The machine beyond has no way back to the container, so the host's side asks.
    assert nat.flow(beyond, "host", BEYOND[version], 8080)
    run_in(nat.outside, "ip", "route", "add", "10.88.0.0/24", "via", HOST[4])
    run_in(nat.outside, "ip", "route", "add", "fd88::/64", "via", HOST[6])
    assert nat.address("c2", version) == nat.flow(beyond, "c2", BEYOND[version], 8080).seen_from


def test_a_host_address_limits_the_mapping_to_it(nat: World) -> None:
    """hostIP: the same port of another address is somebody else's, or nobody's."""
    one, two = nat.serve("c1", TCP, 80), nat.serve("c2", TCP, 80)
    map_ports(nat, PortMapping(hostPort=8080, containerPort=80, hostIP=ip_address(HOST[4])))
    assert nat.flow(one, "outside", HOST[4], 8080)
    assert not nat.flow(one, "c2", GATEWAY[4], 8080, timeout_s=SILENCE_S)
    # The entry for all addresses may be another's; the one for a single address goes first.
    map_ports(nat, WEB, name="c2")
    assert nat.flow(one, "outside", HOST[4], 8080)
    assert nat.flow(two, "d1", OTHER_GATEWAY[4], 8080)


@pytest.mark.parametrize(("text", "reached"), [("0.0.0.0", 4), ("::", 6)])
def test_an_unspecified_host_address_means_all_of_its_family(
    nat: World, text: str, reached: int
) -> None:
    """0.0.0.0 maps on every IPv4 address and on no IPv6 address, and the reverse."""
    server = nat.serve("c1", TCP, 80)
    map_ports(nat, PortMapping(hostPort=8080, containerPort=80, hostIP=ip_address(text)))
    other = 10 - reached
    assert nat.flow(server, "outside", HOST[reached], 8080)
    assert not nat.flow(server, "outside", HOST[other], 8080, timeout_s=SILENCE_S)


def test_without_snat_clients_stay_visible_and_the_loopback_stays_out(nat: World) -> None:
    """snat false: nothing is masked, so only clients whose way back passes the node get through."""
    server = nat.serve("c1", TCP, 80)
    map_ports(nat, WEB, snat=False)
    assert OUTSIDE[4] == nat.flow(server, "outside", HOST[4], 8080).seen_from
    assert not nat.flow(server, "host", "127.0.0.1", 8080, timeout_s=SILENCE_S)


@pytest.mark.parametrize("version", [4, 6])
def test_masq_all_masks_every_client(nat: World, version: int) -> None:
    """masqAll: the container only ever sees its gateway."""
    server = nat.serve("c1", TCP, 80)
    map_ports(nat, WEB, masq_all=True)
    for client, to in (("outside", HOST), ("d1", OTHER_GATEWAY), ("c1", GATEWAY)):
        assert GATEWAY[version] == nat.flow(server, client, to[version], 8080).seen_from


@pytest.mark.parametrize("version", [4, 6])
def test_conditions_of_one_container_never_apply_to_another(nat: World, version: int) -> None:
    """In Go's backend the conditions of the last ADD rule over all mappings of the node."""
    one, two = nat.serve("c1", TCP, 80), nat.serve("c2", TCP, 80)
    only_outside = {
        "conditions_v4": ["ip", "saddr", OUTSIDE[4]],
        "conditions_v6": [f"ip6 saddr {OUTSIDE[6]}"],
    }
    map_ports(nat, WEB, **only_outside)
    map_ports(nat, PortMapping(hostPort=8081, containerPort=80), name="c2")
    assert nat.flow(one, "outside", HOST[version], 8080)
    assert not nat.flow(one, "d1", OTHER_GATEWAY[version], 8080, timeout_s=SILENCE_S)
    assert nat.flow(two, "outside", HOST[version], 8081)
    assert nat.flow(two, "d1", OTHER_GATEWAY[version], 8081)


def test_conditions_hold_per_host_address_too(nat: World) -> None:
    """Two containers with conditions share a port on different addresses of the node."""
    one, two = nat.serve("c1", TCP, 80), nat.serve("c2", TCP, 80)
    for name, address in (("c1", HOST[4]), ("c2", GATEWAY[4])):
        mapping = PortMapping(hostPort=8080, containerPort=80, hostIP=ip_address(address))
        map_ports(nat, mapping, name=name, conditions_v4=["ip", "saddr", "!=", "10.88.0.3"])
    assert nat.flow(one, "outside", HOST[4], 8080)
    assert nat.flow(two, "d1", GATEWAY[4], 8080)
    assert not nat.flow(one, "c2", HOST[4], 8080, timeout_s=SILENCE_S)


def test_packets_from_a_container_to_the_nodes_loopback_are_dropped(nat: World) -> None:
    """CVE-2020-8558: what lets 127.0.0.1 out to containers must not let containers in."""
    secret = nat.serve("host", UDP, 9999)
    run_in(nat.containers["c1"], "ip", "route", "add", "127.0.0.9/32", "via", GATEWAY[4])
    run_in(nat.containers["c1"], "ip", "route", "del", "local", "127.0.0.0/8", "dev", "lo")

    def arrives() -> bool:
        secret.settimeout(SILENCE_S)
        with nat.client("c1", UDP, "127.0.0.9", source=nat.address("c1", 4)) as client:
            client.sendto(b"ping", ("127.0.0.9", 9999))
        try:
            return bool(secret.recv(4))
        except TimeoutError:
            return False

    map_ports(nat, WEB)
    assert not arrives()
    # The kernel alone would let it through: the guard is what drops it.
    run_in(nat.host, "nft", "flush", "chain", "inet", "pycni", "loopback-guard")
    assert arrives()
    map_ports(nat, WEB)
    assert not arrives()


def test_loopback_is_opened_only_where_containers_are(nat: World) -> None:
    """An address the node has no way to, and one of its own, change nothing."""
    before = run_in(nat.host, "nft", "list", "ruleset")
    hostports.open_loopback(nat.side, [ip_interface("203.0.113.5/24")])
    hostports.open_loopback(nat.side, [ip_interface("10.88.0.1/24"), ip_interface("fd88::1/64")])
    assert before == run_in(nat.host, "nft", "list", "ruleset")
    assert "0" == nat.side.sysctl.read("net/ipv4/conf/br0/route_localnet")


def test_a_udp_flow_from_before_the_mapping_is_forgotten(nat: World) -> None:
    """Plugins #123: a client that kept sending must reach the container once it is mapped."""
    server = nat.serve("c1", UDP, 53)
    # Tracking begins with the first rule that needs it; that of another container is enough.
    map_ports(nat, WEB, name="c2")
    server.settimeout(SILENCE_S)
    with nat.client("outside", UDP, HOST[4]) as client:
        client.bind(("", 40000))
        client.sendto(b"ping", (HOST[4], 5353))
        map_ports(nat, DNS)
        client.sendto(b"ping", (HOST[4], 5353))
        with pytest.raises(TimeoutError):
            server.recv(4)
        hostports.forget_flows(nat.side.conntrack, map(hostports.host_port, [WEB, DNS]))
        client.sendto(b"ping", (HOST[4], 5353))
        server.settimeout(ANSWER_S)
        assert b"ping" == server.recv(4)


# -- ownership -------------------------------------------------------------------------------------


def test_a_port_of_another_owner_is_refused_before_anything_changes(nat: World) -> None:
    """The message names the port, the protocol and the holder; nothing of the rest is made."""
    map_ports(nat, DNS)
    before = run_in(nat.host, "nft", "list", "ruleset")
    with pytest.raises(PortInUse) as refused:
        hostports.ensure(nat.nft, nat.owner("d1"), [WEB, DNS], nat.addresses("d1"))
    assert 101 == refused.value.code
    assert "host port 5353/udp is in use" == refused.value.msg
    assert nat.owner("c1").tag in refused.value.details
    assert before == run_in(nat.host, "nft", "list", "ruleset")


@pytest.mark.parametrize("first", [(), ("ip saddr 192.0.2.2",)])
@pytest.mark.parametrize("second", [(), ("ip saddr 192.0.2.2",)])
def test_conditions_do_not_make_two_of_one_port(
    nat: World, first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    """A port mapped under conditions is taken, whoever asks for it in whichever way."""
    map_ports(nat, WEB, conditions_v4=first)
    with pytest.raises(PortInUse):
        map_ports(nat, WEB, name="c2", conditions_v4=second)
    assert nat.owner("c2").tag not in "".join(nat.elements())


def test_a_second_ensure_writes_nothing(nat: World) -> None:
    """The same ADD again is no change at all: the ruleset's generation stays."""
    map_ports(nat, WEB, DNS)
    generation = ruleset.table(nat.nft).generation()
    map_ports(nat, WEB, DNS)
    assert generation == ruleset.table(nat.nft).generation()


def test_the_owner_may_change_its_mapping(nat: World) -> None:
    """Another container port, and conditions where there were none: the last word counts."""
    old, new = nat.serve("c1", TCP, 80), nat.serve("c1", TCP, 81)
    map_ports(nat, WEB)
    moved = PortMapping(hostPort=8080, containerPort=81)
    map_ports(nat, moved)
    assert nat.flow(new, "outside", HOST[4], 8080)
    map_ports(nat, moved, conditions_v4=["ip saddr 10.99.0.0/24"])
    assert not nat.flow(old, "outside", HOST[4], 8080, timeout_s=SILENCE_S)
    assert nat.flow(new, "d1", OTHER_GATEWAY[4], 8080)
    map_ports(nat, WEB)
    assert nat.flow(old, "outside", HOST[4], 8080)
    assert [] == [line for line in nat.elements() if "jump" in line]


@pytest.mark.parametrize("hinted", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"snat": False}, {"masq_all": True}, {"conditions_v4": ["ip ttl > 1"]}]
)
def test_remove_leaves_the_table_as_it_was(
    nat: World, options: dict[str, object], hinted: bool
) -> None:
    """With the ADD's parameters at hand or without, everything of the owner goes, and only that."""
    specific = PortMapping(hostPort=8081, containerPort=81, hostIP=ip_address(HOST[4]))
    mappings = [WEB, DNS, specific]
    map_ports(nat, PortMapping(hostPort=1, containerPort=1), name="c2")
    before = run_in(nat.host, "nft", "list", "ruleset")
    map_ports(nat, *mappings, **options)
    if hinted:
        addresses = nat.addresses("c1")
        hostports.remove(nat.nft, nat.owner("c1"), mappings, addresses, **options)  # type: ignore[arg-type]  # options by name
    else:
        hostports.remove(nat.nft, nat.owner("c1"))
    assert before == run_in(nat.host, "nft", "list", "ruleset")
    hostports.remove(nat.nft, nat.owner("c1"))


def test_remove_takes_what_the_hints_do_not_name(nat: World) -> None:
    """Hints that are not all the owner's are not trusted: the maps are read."""
    map_ports(nat, WEB, DNS)
    gone = PortMapping(hostPort=9, containerPort=9)
    hostports.remove(nat.nft, nat.owner("c1"), [WEB, gone], nat.addresses("c1"))
    assert [] == nat.elements()


def test_remove_takes_hints_that_no_ensure_would(nat: World) -> None:
    """A DEL with a broken configuration removes what the ADD with a good one made."""
    map_ports(nat, WEB)
    broken = PortMapping(hostPort=1, containerPort=1, protocol="icmp")
    hostports.remove(nat.nft, nat.owner("c1"), [broken], nat.addresses("c1"))
    assert [] == nat.elements()


def test_a_late_remove_spares_the_next_holder(nat: World) -> None:
    """Plugins #1139: the port and the address are another container's by now."""
    map_ports(nat, WEB)
    late = nat.owner("c1")
    hostports.remove(nat.nft, late)
    heir = Owner("web", "heir", "eth0")
    hostports.ensure(nat.nft, heir, [WEB], nat.addresses("c1"))
    before = nat.elements()
    hostports.remove(nat.nft, late, [WEB], nat.addresses("c1"))
    hostports.remove(nat.nft, late)
    assert before == nat.elements()


def test_an_address_taken_over_is_masked_for_its_new_owner(nat: World) -> None:
    """An element that a container lost without a DEL is replaced, and survives that DEL."""
    map_ports(nat, WEB)
    heir = Owner("web", "heir", "eth0")
    hostports.ensure(nat.nft, heir, [DNS], nat.addresses("c1"))
    hostports.remove(nat.nft, nat.owner("c1"), [WEB], nat.addresses("c1"))
    hostports.expect(nat.nft, heir, [DNS], nat.addresses("c1"))
    assert all(heir.tag in line for line in nat.elements())


def test_gc_keeps_the_valid_and_other_networks(nat: World) -> None:
    """Owners are compared within their network; chains of owners that are gone go too."""
    condition = ["ip ttl > 1"]
    map_ports(nat, WEB, conditions_v4=condition)
    map_ports(nat, DNS, name="c2", conditions_v4=condition)
    other = nat.owner("d1", "othernet")
    hostports.ensure(
        nat.nft, other, [PortMapping(hostPort=7, containerPort=7)], nat.addresses("d1")
    )
    hostports.gc(nat.nft, "web", [nat.owner("c2")])
    hostports.expect(nat.nft, nat.owner("c2"), [DNS], nat.addresses("c2"), conditions_v4=condition)
    left = "".join(nat.elements())
    assert nat.owner("c1").tag not in left
    assert other.tag in left
    chains = ruleset.table(nat.nft).list_chains()
    assert 1 == sum(name.startswith("owner") for name in chains)


# -- check -----------------------------------------------------------------------------------------


def test_expect_names_the_port_that_is_not_mapped(nat: World) -> None:
    """CHECK says which of several is missing, and notices masking and chains as well."""
    addresses, owner = nat.addresses("c1"), nat.owner("c1")
    map_ports(nat, WEB, DNS)
    hostports.expect(nat.nft, owner, [WEB, DNS], addresses)
    run_in(nat.host, *"nft delete element inet pycni hostports6".split(), "{ udp . 5353 }")
    with pytest.raises(CniError, match="not mapped: host port 5353/udp"):
        hostports.expect(nat.nft, owner, [WEB, DNS], addresses)
    with pytest.raises(CniError, match="mapped ports are not masqueraded"):
        hostports.expect(nat.nft, owner, [WEB], addresses, masq_all=True)
    run_in(nat.host, *"nft flush chain inet pycni output".split())
    with pytest.raises(CniError, match="nft chain output is not as it was made"):
        hostports.expect(nat.nft, owner, [WEB], addresses)


# -- configuration ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mappings", "options", "message"),
    [
        ([WEB, PortMapping(hostPort=8080, containerPort=81)], {}, "host port 8080/tcp is mapped"),
        ([PortMapping(hostPort=1, containerPort=1, protocol="icmp")], {}, 'protocol "icmp"'),
        ([WEB], {"conditions_v4": ["ip sadd 10.0.0.0/8"]}, "conditionsV4: syntax error"),
        ([WEB], {"conditions_v6": ["ip6 saddr @none"]}, "conditionsV6: No such file"),
        ([WEB], {"conditions_v4": ["ip ttl 1 accept"]}, "conditionsV4: Statement after"),
        ([WEB], {"conditions_v4": ["ip ttl 1; flush ruleset"]}, "conditionsV4: one nft"),
        ([WEB], {"conditions_v6": ["meta mark 1\nflush ruleset"]}, "conditionsV6: one nft"),
    ],
)
def test_what_cannot_be_mapped_is_an_invalid_configuration(
    nat: World, mappings: list[PortMapping], options: dict[str, list[str]], message: str
) -> None:
    """Code 7 with the key that is wrong; nothing of it stays."""
    with pytest.raises(InvalidConfig, match=message):
        map_ports(nat, *mappings, **options)
    assert [] == nat.elements()
    chains = ruleset.table(nat.nft).list_chains()
    assert not any(name.startswith("owner") for name in chains)


def test_the_same_mapping_twice_is_one(nat: World) -> None:
    """Podman repeats a mapping for each of several names of a container."""
    map_ports(nat, WEB, WEB)
    hostports.expect(nat.nft, nat.owner("c1"), [WEB], nat.addresses("c1"))


def test_sctp_and_thousands_of_ports_are_mapped(nat: World) -> None:
    """A port range is many batches; each is complete, and all go with the owner."""
    mappings = [
        PortMapping(hostPort=10000 + number, containerPort=number + 1, protocol="sctp")
        for number in range(1500)
    ]
    hostports.ensure(nat.nft, nat.owner("c1"), mappings, nat.addresses("c1"))
    hostports.expect(nat.nft, nat.owner("c1"), mappings, nat.addresses("c1"))
    hostports.remove(nat.nft, nat.owner("c1"), mappings, nat.addresses("c1"))
    assert [] == nat.elements()


def test_two_thousand_elements_do_not_slow_an_ensure(host: object, nat: World) -> None:
    """Adding to a table with 2,000 mappings costs what adding to an empty one costs."""

    def best_ms(nft: Nft, number: int) -> float:
        owner, addresses = Owner("web", f"x{number}", "eth0"), nat.addresses("c1")
        mapping = PortMapping(hostPort=60000, containerPort=80)
        times = []
        for _ in range(100):
            start = perf_counter()
            hostports.ensure(nft, owner, [mapping], addresses)
            times.append(perf_counter() - start)
            hostports.remove(nft, owner, [mapping], addresses)
        return min(times) * 1e3

    empty = best_ms(nat.nft, 1)
    many = [PortMapping(hostPort=1 + number, containerPort=80) for number in range(1000)]
    hostports.ensure(nat.nft, nat.owner("c2"), many, nat.addresses("c2"))
    full = best_ms(nat.nft, 2)
    # Reading the maps, as libnftables would, costs ten times as much as all of it.
    assert full < 2 * empty + 0.2
    slot = Slot(ruleset.HOSTPORTS[4], bytes([6, 0, 0, 0, 0, 1, 0, 0]))
    assert [True] == [element is not None for element in ruleset.table(nat.nft).find([slot])]
