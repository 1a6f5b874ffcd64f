# SPDX-License-Identifier: Apache-2.0
"""Addresses, routes, rules and neighbours on the wire, against pyroute2's codec."""

from __future__ import annotations

import struct
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.fibmsg import fibmsg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from pycni.kernel import nlwire
from pycni.kernel.nlwire import address, neighbour, route, rule
from pycni.kernel.types import Neighbour, Route, Rule
from pycni.model.names import Mac
from tests.unit.kernel.oracle import (
    indexes,
    interfaces,
    macs,
    names,
    networks,
    ours,
    relaxed,
    theirs,
    u8,
    u32,
)

FAMILY = {4: 2, 6: 10}


def parsed(text: str | None) -> Any:
    """pyroute2 spells addresses its own way (::ffff:0.0.0.0)."""
    return None if text is None else ip_address(text)


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


# Addresses


@relaxed
@given(indexes, interfaces(), st.sampled_from([0, 200, 253, 254]), st.booleans(), st.booleans())
def test_an_address_is_written_as_asked(
    index: int, cidr: Any, scope: int, nodad: bool, noprefixroute: bool
) -> None:
    """Local and far end are the same; the broadcast address is ours to compute."""
    body = address.change(index, cidr, scope=scope, nodad=nodad, noprefixroute=noprefixroute)
    message = theirs(ifaddrmsg, address.RTM_NEWADDR, body)
    assert (FAMILY[cidr.version], cidr.network.prefixlen, scope, index) == (
        message["family"],
        message["prefixlen"],
        message["scope"],
        message["index"],
    )
    assert [cidr.ip] * 2 == [
        parsed(message.get_attr("IFA_LOCAL")),
        parsed(message.get_attr("IFA_ADDRESS")),
    ]
    flags = 0x02 * nodad | 0x200 * noprefixroute
    assert (flags or None) == message.get_attr("IFA_FLAGS")
    assert flags & 0xFF == message["flags"]
    wide = cidr.version == 4 and cidr.network.prefixlen < 31
    expected = str(cidr.network.broadcast_address) if wide else None
    assert expected == message.get_attr("IFA_BROADCAST")


def test_a_peer_is_the_far_end() -> None:
    """The prefix is the peer's; a point to point address has no broadcast."""
    body = address.change(3, ip_interface("10.0.0.1/32"), peer=ip_interface("10.9.0.0/24"))
    message = theirs(ifaddrmsg, address.RTM_NEWADDR, body)
    assert 24 == message["prefixlen"]
    assert ("10.0.0.1", "10.9.0.0", None) == tuple(
        message.get_attr(name) for name in ("IFA_LOCAL", "IFA_ADDRESS", "IFA_BROADCAST")
    )


@relaxed
@given(indexes, interfaces(), u8, u32, st.booleans())
def test_an_address_reads_as_it_was_written(
    index: int, cidr: Any, scope: int, flags: int, long: bool
) -> None:
    """Flags are 8 bits in the header unless the attribute says 32."""
    attrs: list[tuple[str, Any]] = [("IFA_ADDRESS", str(cidr.ip))]
    if long:
        attrs.append(("IFA_FLAGS", flags))
    payload = ours(
        ifaddrmsg,
        address.RTM_NEWADDR,
        family=FAMILY[cidr.version],
        prefixlen=cidr.network.prefixlen,
        flags=flags & 0xFF,
        scope=scope,
        index=index,
        attrs=attrs,
    )
    found = address.parse(payload)
    assert found is not None
    assert (index, cidr, scope, None, None) == (
        found.index,
        found.address,
        found.scope,
        found.peer,
        found.broadcast,
    )
    assert (flags if long else flags & 0xFF) == found.flags
    assert [bool(flags & bit) for bit in (0x80, 0x40, 0x08)] == [
        found.permanent,
        found.tentative,
        found.dad_failed,
    ]


def test_a_far_end_of_its_own_is_the_peer() -> None:
    """IFA_LOCAL is the address where it differs from IFA_ADDRESS."""
    body = address.change(3, ip_interface("10.0.0.1/32"), peer=ip_interface("10.9.0.2/24"))
    found = address.parse(body)
    assert found is not None
    assert (ip_interface("10.0.0.1/24"), ip_interface("10.9.0.2/24")) == (
        found.address,
        found.peer,
    )


def test_a_broadcast_address_is_read() -> None:
    """As an address, not as text."""
    found = address.parse(address.change(3, ip_interface("10.0.0.1/24")))
    assert found is not None
    assert ip_address("10.0.0.255") == found.broadcast


def test_what_is_no_ip_address_is_none() -> None:
    """Another family, or nothing in it."""
    assert address.parse(struct.pack("=BBBBI", 7, 0, 0, 0, 1)) is None
    assert address.parse(struct.pack("=BBBBI", 2, 0, 0, 0, 1)) is None


@pytest.mark.parametrize(("family", "number"), [(None, 0), (4, 2), (6, 10)])
def test_addresses_are_asked_for_by_link_and_family(family: int | None, number: int) -> None:
    """None is all of them."""
    message = theirs(ifaddrmsg, address.RTM_GETADDR, address.dump(index=7, family=family))
    assert (number, 7) == (message["family"], message["index"])
    assert 0 == theirs(ifaddrmsg, address.RTM_GETADDR, address.dump(family=family))["index"]


# Routes


@st.composite
def routes(draw: st.DrawFn) -> Route:
    """Routes with gateways of their own family, and of the other."""
    dst = draw(networks())
    return Route(
        dst=dst,
        gateway=draw(optional(st.ip_addresses())),
        index=draw(optional(indexes)),
        table=draw(st.integers(1, 0xFFFFFFFF)),
        priority=draw(optional(u32)),
        scope=draw(optional(u8)),
        protocol=draw(optional(st.integers(1, 255))),
        source=draw(optional(st.ip_addresses(v=dst.version))),
        mtu=draw(optional(st.integers(1, 0xFFFFFFFF))),
        advmss=draw(optional(st.integers(1, 0xFFFFFFFF))),
        type=draw(st.sampled_from(sorted(route.TYPES))),
        onlink=draw(st.booleans()),
    )


def expect_selectors(wanted: Route, message: Any) -> None:
    default = wanted.dst.prefixlen == 0
    assert (FAMILY[wanted.dst.version], wanted.dst.prefixlen) == (
        message["family"],
        message["dst_len"],
    )
    assert (None if default else wanted.dst.network_address) == parsed(message.get_attr("RTA_DST"))
    same = wanted.gateway is not None and wanted.gateway.version == wanted.dst.version
    assert (wanted.gateway if same else None) == parsed(message.get_attr("RTA_GATEWAY"))
    via = message.get_attr("RTA_VIA")
    if wanted.gateway is not None and not same:
        assert (FAMILY[wanted.gateway.version], wanted.gateway) == (
            via["family"],
            parsed(via["addr"]),
        )
    else:
        assert via is None
    assert wanted.index == message.get_attr("RTA_OIF")
    assert wanted.priority == message.get_attr("RTA_PRIORITY")
    assert wanted.table == (message.get_attr("RTA_TABLE") or message["table"])
    assert wanted.source == parsed(message.get_attr("RTA_PREFSRC"))
    assert route.TYPES[wanted.type] == message["type"]
    assert (4 if wanted.onlink else 0) == message["flags"]


@relaxed
@given(routes())
def test_a_route_is_written_as_asked(wanted: Route) -> None:
    """What is left open becomes what `ip route add` chooses."""
    message = theirs(rtmsg, route.RTM_NEWROUTE, route.add(wanted))
    expect_selectors(wanted, message)
    if wanted.scope is not None:
        assert wanted.scope == message["scope"]
    assert (3 if wanted.protocol is None else wanted.protocol) == message["proto"]
    metrics = message.get_attr("RTA_METRICS")
    found = {} if metrics is None else {name: value for name, value in metrics["attrs"]}
    expected = {"RTAX_MTU": wanted.mtu, "RTAX_ADVMSS": wanted.advmss}
    assert {name: value for name, value in expected.items() if value is not None} == found


@pytest.mark.parametrize(
    ("kind", "gateway", "scope"),
    [
        ("unicast", None, 253),
        ("unicast", "10.0.0.1", 0),
        ("local", None, 254),
        ("blackhole", None, 0),
    ],
)
def test_the_scope_of_a_route_follows_from_it(kind: str, gateway: str | None, scope: int) -> None:
    """Link without a gateway, host for local addresses, else universe."""
    wanted = Route(
        dst=ip_network("10.0.0.0/8"),
        gateway=None if gateway is None else ip_address(gateway),
        type=kind,
    )
    assert scope == theirs(rtmsg, route.RTM_NEWROUTE, route.add(wanted))["scope"]


@relaxed
@given(routes())
def test_removing_a_route_leaves_open_what_was_not_said(wanted: Route) -> None:
    """Scope nowhere and protocol 0 match anything; metrics do not select."""
    message = theirs(rtmsg, route.RTM_DELROUTE, route.remove(wanted))
    expect_selectors(wanted, message)
    assert (255 if wanted.scope is None else wanted.scope) == message["scope"]
    assert (wanted.protocol or 0) == message["proto"]
    assert message.get_attr("RTA_METRICS") is None


@relaxed
@given(routes().filter(lambda found: found.scope is not None and found.protocol is not None))
def test_a_route_reads_as_it_was_written(wanted: Route) -> None:
    """Our writing, proved against pyroute2 above, is what the kernel would say."""
    assert [wanted] == route.parse(route.add(wanted))


def test_a_multipath_route_is_read_as_one_per_next_hop() -> None:
    """pyroute2 writes the next hops, gateways by RTA_GATEWAY and by RTA_VIA."""
    payload = ours(
        rtmsg,
        route.RTM_NEWROUTE,
        family=2,
        dst_len=0,
        table=254,
        proto=3,
        scope=0,
        type=1,
        flags=0,
        attrs=[
            ("RTA_PRIORITY", 7),
            (
                "RTA_MULTIPATH",
                [
                    {"oif": 3, "hops": 0, "attrs": [("RTA_GATEWAY", "10.0.0.1")]},
                    {"oif": 4, "hops": 0, "flags": 4, "attrs": []},
                ],
            ),
        ],
    )
    hops = route.parse(payload)
    assert [(ip_address("10.0.0.1"), 3, False), (None, 4, True)] == [
        (hop.gateway, hop.index, hop.onlink) for hop in hops
    ]
    assert [(ip_network("0.0.0.0/0"), 7, 254, True)] * 2 == [
        (hop.dst, hop.priority, hop.table, hop.default) for hop in hops
    ]


def test_a_next_hop_with_a_wrong_length_is_refused() -> None:
    """Nothing is read outside of the attribute."""
    head = route.dump(4)
    for length in (4, 40):
        hop = struct.pack("=HBBi", length, 0, 0, 3)
        with pytest.raises(nlwire.MalformedMessage, match="next hop"):
            route.parse(head + nlwire.attr(route.RTA_MULTIPATH, hop))


def test_a_route_type_without_a_name_is_a_number() -> None:
    """And a route of another family is none."""
    assert ["11"] == [
        found.type for found in route.parse(struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 0, 0, 11, 0))
    ]
    assert [] == route.parse(struct.pack("=BBBBBBBBI", 128, 0, 0, 0, 254, 0, 0, 1, 0))


def test_routes_are_asked_for_by_table_and_link() -> None:
    """The kernel filters; a lookup asks about one address."""
    some = theirs(rtmsg, route.RTM_GETROUTE, route.dump(6, table=1000, index=7))
    assert (10, 1000, 7) == (some["family"], some.get_attr("RTA_TABLE"), some.get_attr("RTA_OIF"))
    every = theirs(rtmsg, route.RTM_GETROUTE, route.dump(4))
    assert (2, []) == (every["family"], every["attrs"])
    one = theirs(rtmsg, route.RTM_GETROUTE, route.lookup(ip_address("fd00::1")))
    assert (10, 128, "fd00::1") == (one["family"], one["dst_len"], one.get_attr("RTA_DST"))


# Rules


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    """Rules for one family, selectors present or not."""
    version: Literal[4, 6] = draw(st.sampled_from([4, 6]))
    return Rule(
        family=version,
        src=draw(optional(networks(version))),
        dst=draw(optional(networks(version))),
        iif=draw(optional(names)),
        oif=draw(optional(names)),
        fwmark=draw(optional(u32)),
        fwmask=draw(optional(u32)),
        table=draw(optional(st.integers(1, 0xFFFFFFFF))),
        priority=draw(u32),
        action=draw(st.sampled_from(sorted(rule.ACTIONS))),
        invert=draw(st.booleans()),
        l3mdev=draw(st.booleans()),
        protocol=draw(optional(u8)),
        suppress_prefixlen=draw(optional(st.integers(0, 128))),
    )


@relaxed
@given(rules())
def test_a_rule_is_written_as_asked_and_reads_so(wanted: Rule) -> None:
    """Every selector by its attribute; a table beyond 255 by an attribute too."""
    body = rule.change(wanted)
    message = theirs(fibmsg, rule.RTM_NEWRULE, body)
    assert (FAMILY[wanted.family], rule.ACTIONS[wanted.action]) == (
        message["family"],
        message["action"],
    )
    assert 2 * wanted.invert == message["flags"]
    for network, attribute, length in (
        (wanted.src, "FRA_SRC", "src_len"),
        (wanted.dst, "FRA_DST", "dst_len"),
    ):
        assert (network.prefixlen if network else 0) == message[length]
        assert (network.network_address if network else None) == parsed(message.get_attr(attribute))
    for value, attribute in (
        (wanted.iif, "FRA_IIFNAME"),
        (wanted.oif, "FRA_OIFNAME"),
        (wanted.fwmark, "FRA_FWMARK"),
        (wanted.fwmask, "FRA_FWMASK"),
        (wanted.priority, "FRA_PRIORITY"),
        (wanted.suppress_prefixlen, "FRA_SUPPRESS_PREFIXLEN"),
        (wanted.protocol, "FRA_PROTOCOL"),
        (1 if wanted.l3mdev else None, "FRA_L3MDEV"),
    ):
        assert value == message.get_attr(attribute)
    assert (wanted.table or 0) == (message.get_attr("FRA_TABLE") or message["table"])
    assert wanted == rule.parse(body)


def test_the_family_of_a_rule_follows_from_its_networks() -> None:
    """It need not be said twice."""
    assert [6, 6, 4, 6] == [
        Rule(src=ip_network("fd00::/8")).family,
        Rule(dst=ip_network("fd00::/8")).family,
        Rule().family,
        Rule(family=6).family,
    ]


def test_a_rule_without_suppression_says_so_with_all_bits() -> None:
    """The kernel always sends the attribute; -1 is none. A rule without a priority has 0."""
    body = rule.change(Rule()) + nlwire.u32(rule.FRA_SUPPRESS_PREFIXLEN, 0xFFFFFFFF)
    found = rule.parse(body)
    assert found is not None
    assert (None, 0) == (found.suppress_prefixlen, found.priority)


def test_a_rule_of_another_family_is_none() -> None:
    """Multicast routing has rules too."""
    assert rule.parse(struct.pack("=BBBBBBBBI", 128, 0, 0, 0, 253, 0, 0, 1, 0)) is None
    assert [2, 10] == [theirs(fibmsg, 34, rule.dump(family))["family"] for family in (4, 6)]


def test_a_rule_action_without_a_name_is_a_number() -> None:
    """As read."""
    found = rule.parse(struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 0, 0, 99, 0))
    assert found is not None
    assert "99" == found.action


# Neighbours


@relaxed
@given(indexes, st.ip_addresses(), optional(macs), st.integers(0, 0xFFFF))
def test_a_neighbour_is_written_as_asked_and_reads_so(
    index: int, ip: Any, mac: Mac | None, state: int
) -> None:
    """The address by family, the MAC where there is one."""
    wanted = Neighbour(index=index, address=ip, mac=mac, state=state)
    body = neighbour.change(wanted)
    message = theirs(ndmsg, neighbour.RTM_NEWNEIGH, body)
    assert (FAMILY[ip.version], index, state) == (
        message["family"],
        message["ifindex"],
        message["state"],
    )
    assert (ip, mac) == (parsed(message.get_attr("NDA_DST")), message.get_attr("NDA_LLADDR"))
    assert wanted == neighbour.parse(body)
    assert bool(state & 0x80) == wanted.permanent


def test_neighbours_are_asked_for_by_link_and_family() -> None:
    """By attribute: strict parsing refuses the index in the header."""
    some = theirs(ndmsg, neighbour.RTM_GETNEIGH, neighbour.dump(index=7, family=6))
    assert (10, 0, 7) == (some["family"], some["ifindex"], some.get_attr("NDA_IFINDEX"))
    every = theirs(ndmsg, neighbour.RTM_GETNEIGH, neighbour.dump())
    assert (0, []) == (every["family"], every["attrs"])


def test_one_neighbour_is_asked_for_by_link_and_address() -> None:
    """Link in the header, address as attribute; strict parsing refuses anything more."""
    body = neighbour.find(7, ip_address("2001:db8::2"))
    message = theirs(ndmsg, neighbour.RTM_GETNEIGH, body)
    assert (10, 7, 0, 0) == tuple(message[key] for key in ("family", "ifindex", "state", "flags"))
    assert "2001:db8::2" == message.get_attr("NDA_DST")
    assert 1 == len(message["attrs"])


def test_what_is_no_ip_neighbour_is_none() -> None:
    """A bridge's forwarding entry, an entry without an address."""
    fdb = struct.pack("=BxxxiHBB", 7, 3, 0x80, 2, 0) + nlwire.attr(1, bytes(4))
    empty = struct.pack("=BxxxiHBB", 2, 3, 0x80, 0, 0)
    assert [None, None] == [neighbour.parse(fdb), neighbour.parse(empty)]
