# SPDX-License-Identifier: Apache-2.0
"""Links on the wire, as pyroute2 reads what we write and we read what pyroute2 writes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from pycni.kernel import nlwire
from pycni.kernel.nlwire import link as wire
from pycni.model.names import Mac
from tests.unit.kernel.oracle import indexes, macs, names, ours, path, relaxed, theirs, u16, u32

NEW, SET = wire.RTM_NEWLINK, wire.RTM_SETLINK


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


common = st.fixed_dictionaries(
    {},
    optional={
        "mtu": u32,
        "mac": macs.map(lambda mac: mac.packed),
        "master": u32,
        "txqlen": u32,
        "group": u32,
        "netns_fd": u32,
    },
)
ATTRIBUTES = {
    "mtu": "IFLA_MTU",
    "mac": "IFLA_ADDRESS",
    "master": "IFLA_MASTER",
    "txqlen": "IFLA_TXQLEN",
    "group": "IFLA_GROUP",
    "netns_fd": "IFLA_NET_NS_FD",
}


def expect_common(given_: dict[str, Any], message: Any) -> None:
    for name, attribute in ATTRIBUTES.items():
        value = given_.get(name)
        expected = value.hex(":") if isinstance(value, bytes) else value
        assert expected == message.get_attr(attribute)


@relaxed
@given(names, optional(indexes), st.booleans(), optional(u32), common)
def test_a_new_link_says_what_was_asked(
    name: str, index: int | None, up: bool, parent: int | None, attributes: dict[str, Any]
) -> None:
    """Every attribute given, and none that was not."""
    body = wire.create(name, "ifb", index=index, up=up, link=parent, **attributes)
    message = theirs(ifinfmsg, NEW, body)
    assert name == message.get_attr("IFLA_IFNAME")
    assert (index or 0) == message["index"]
    assert ("up" if up else "down") == message["state"]
    assert parent == message.get_attr("IFLA_LINK")
    assert "ifb" == path(message, "IFLA_LINKINFO", "IFLA_INFO_KIND")
    assert path(message, "IFLA_LINKINFO", "IFLA_INFO_DATA") is None
    expect_common(attributes, message)


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("bridge", {"vlan_filtering": True}, {"IFLA_BR_VLAN_FILTERING": 1}),
        ("bridge", {"vlan_default_pvid": 0}, {"IFLA_BR_VLAN_DEFAULT_PVID": 0}),
        ("bridge", {"stp_state": 1}, {"IFLA_BR_STP_STATE": 1}),
        ("bridge", {"mcast_snooping": False}, {"IFLA_BR_MCAST_SNOOPING": 0}),
        ("macvlan", {"mode": "private"}, {"IFLA_MACVLAN_MODE": "private"}),
        ("macvlan", {"mode": "vepa"}, {"IFLA_MACVLAN_MODE": "vepa"}),
        ("macvlan", {"mode": "bridge"}, {"IFLA_MACVLAN_MODE": "bridge"}),
        ("macvlan", {"mode": "passthru"}, {"IFLA_MACVLAN_MODE": "passthru"}),
        ("macvlan", {"mode": 16}, {"IFLA_MACVLAN_MODE": "source"}),
        ("macvtap", {"mode": "bridge"}, {"IFLA_MACVTAP_MODE": "bridge"}),
        ("ipvlan", {"mode": "l2"}, {"IFLA_IPVLAN_MODE": 0}),
        ("ipvlan", {"mode": "l3"}, {"IFLA_IPVLAN_MODE": 1}),
        ("ipvlan", {"mode": "l3s", "flags": "vepa"}, {"IFLA_IPVLAN_MODE": 2}),
        ("vlan", {"id": 4094}, {"IFLA_VLAN_ID": 4094}),
        ("vlan", {"protocol": "802.1ad"}, {"IFLA_VLAN_PROTOCOL": 0x88A8}),
        ("vrf", {"table": 1000}, {"IFLA_VRF_TABLE": 1000}),
    ],
)
def test_a_kind_has_its_own_attributes(
    kind: str, data: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Names of modes are translated; a number passes as it is."""
    message = theirs(ifinfmsg, NEW, wire.create("x", kind, data=data))
    info = path(message, "IFLA_LINKINFO", "IFLA_INFO_DATA")
    assert expected == {name: info.get_attr(name) for name in expected}


def test_what_a_kind_does_not_know_is_a_bug() -> None:
    """A misspelt attribute must not be lost silently; None is one not given."""
    with pytest.raises(TypeError, match="a bridge has no attribute 'vlan_filter'"):
        wire.create("x", "bridge", data={"vlan_filter": True})
    with pytest.raises(TypeError, match="a dummy has no attribute"):
        wire.create("x", "dummy", data={"mode": None})
    assert wire.create("x", "macvlan") == wire.create("x", "macvlan", data={"mode": None})


def test_a_macvlan_queue_length_is_sent_by_the_kernels_number() -> None:
    """IFLA_MACVLAN_BC_QUEUE_LEN is 7 (linux/if_link.h); pyroute2 does not know it."""
    message = wire.create("x", "macvlan", data={"bcqueuelen": 500})
    assert nlwire.nest(wire.IFLA_INFO_DATA, nlwire.u32(7, 500)) in message


@relaxed
@given(
    names,
    names,
    st.fixed_dictionaries(
        {"peer_netns_fd": optional(u32)},
        optional={
            "index": indexes,
            "peer_index": indexes,
            "up": st.booleans(),
            "mtu": u32,
            "mac": macs.map(lambda mac: mac.packed),
            "peer_mac": macs.map(lambda mac: mac.packed),
            "master": u32,
        },
    ),
)
def test_a_veth_pair_is_one_message(name: str, peer_name: str, asked: dict[str, Any]) -> None:
    """Both ends with their own names, indexes and MACs; the MTU is shared; only one end is up."""
    message = theirs(ifinfmsg, NEW, wire.create_veth(name, peer_name=peer_name, **asked))
    peer = path(message, "IFLA_LINKINFO", "IFLA_INFO_DATA", "VETH_INFO_PEER")
    assert "veth" == path(message, "IFLA_LINKINFO", "IFLA_INFO_KIND")
    assert [name, peer_name] == [end.get_attr("IFLA_IFNAME") for end in (message, peer)]
    assert [asked.get("index", 0), asked.get("peer_index", 0)] == [
        message["index"],
        peer["index"],
    ]
    assert [int(asked.get("up", False)), 0] == [message["flags"], peer["flags"]]
    mine = {key: asked.get(key) for key in ("mtu", "mac", "master")}
    expect_common(mine, message)
    expect_common(
        {
            "mtu": asked.get("mtu"),
            "mac": asked.get("peer_mac"),
            "netns_fd": asked["peer_netns_fd"],
        },
        peer,
    )


@relaxed
@given(
    indexes | names,
    optional(st.booleans()),
    optional(st.booleans()),
    optional(st.booleans()),
    common,
)
def test_a_change_says_what_was_asked(
    link: int | str,
    up: bool | None,
    promisc: bool | None,
    allmulti: bool | None,
    attributes: dict[str, Any],
) -> None:
    """A flag that was not mentioned is not in the mask, so the kernel leaves it alone."""
    body = wire.change(link, up=up, promisc=promisc, allmulti=allmulti, **attributes)
    message = theirs(ifinfmsg, SET, body)
    assert (link if isinstance(link, str) else None) == message.get_attr("IFLA_IFNAME")
    assert (link if isinstance(link, int) else 0) == message["index"]
    for flag, bit in ((up, 0x1), (promisc, 0x100), (allmulti, 0x200)):
        assert (flag is not None) == bool(message["change"] & bit)
        assert bool(flag) == bool(message["flags"] & bit)
    expect_common(attributes, message)


def test_a_link_is_renamed_by_index_only() -> None:
    """One attribute cannot carry the old and the new name."""
    message = theirs(ifinfmsg, SET, wire.change(7, name="eth0"))
    assert (7, "eth0") == (message["index"], message.get_attr("IFLA_IFNAME"))
    with pytest.raises(ValueError, match="renamed by index"):
        wire.change("old", name="new")


def test_an_alias_is_sent_without_a_terminator() -> None:
    """The kernel takes the length as the alias', and length 0 as its removal."""
    ((_, _), (kind, payload)) = nlwire.attribute_list(wire.change("x", alias="cni:a"), 16)
    assert (wire.IFLA_IFALIAS, b"cni:a") == (kind, payload)
    assert wire.change(1, alias="").endswith(nlwire.attr(wire.IFLA_IFALIAS, b""))


def test_port_and_kind_attributes_change_by_index_or_name() -> None:
    """Both go in IFLA_LINKINFO, one as the link's own, one as its master's."""
    port = theirs(ifinfmsg, NEW, wire.change_port("v0", {"hairpin": True, "isolated": False}))
    info = path(port, "IFLA_LINKINFO")
    assert "bridge" == info.get_attr("IFLA_INFO_SLAVE_KIND")
    assert [("IFLA_BRPORT_MODE", 1), ("IFLA_BRPORT_ISOLATED", 0)] == [
        tuple(attribute) for attribute in info.get_attr("IFLA_INFO_SLAVE_DATA")["attrs"]
    ]
    data = theirs(ifinfmsg, NEW, wire.change_data(3, "bridge", {"vlan_filtering": True}))
    assert 3 == data["index"]
    assert 1 == path(data, "IFLA_LINKINFO", "IFLA_INFO_DATA", "IFLA_BR_VLAN_FILTERING")


def test_questions_ask_for_no_statistics() -> None:
    """By index, by name, and for all with the kernel's filters."""
    by_index = theirs(ifinfmsg, wire.RTM_GETLINK, wire.find(7))
    by_name = theirs(ifinfmsg, wire.RTM_GETLINK, wire.find("eth0"))
    every = theirs(ifinfmsg, wire.RTM_GETLINK, wire.dump())
    some = theirs(ifinfmsg, wire.RTM_GETLINK, wire.dump(kind="veth", master=3))
    assert [8] * 4 == [m.get_attr("IFLA_EXT_MASK") for m in (by_index, by_name, every, some)]
    assert (7, 0) == (by_index["index"], by_name["index"])
    assert "eth0" == by_name.get_attr("IFLA_IFNAME")
    assert 3 == some.get_attr("IFLA_MASTER")
    assert "veth" == path(some, "IFLA_LINKINFO", "IFLA_INFO_KIND")
    assert every.get_attr("IFLA_LINKINFO") is None


def test_removals_name_a_link_or_a_group() -> None:
    """By index, by name, by group."""
    by_index, by_name, by_group = (
        theirs(ifinfmsg, wire.RTM_DELLINK, body)
        for body in (wire.delete(7), wire.delete("eth0"), wire.delete_group(99))
    )
    assert 7 == by_index["index"]
    assert "eth0" == by_name.get_attr("IFLA_IFNAME")
    assert 99 == by_group.get_attr("IFLA_GROUP")


@relaxed
@given(
    names,
    indexes,
    optional(macs),
    st.sets(st.sampled_from([0x1, 0x8, 0x100, 0x200])),
    st.fixed_dictionaries(
        {},
        optional={
            "IFLA_MTU": u32,
            "IFLA_LINK": u32,
            "IFLA_MASTER": u32,
            "IFLA_TXQLEN": u32,
            "IFLA_GROUP": u32,
            "IFLA_IFALIAS": names,
            "IFLA_LINK_NETNSID": st.integers(0, 0x7FFFFFFF),
        },
    ),
)
def test_a_link_reads_as_it_was_written(
    name: str, index: int, mac: Mac | None, flags: set[int], attributes: dict[str, Any]
) -> None:
    """What is absent is 0, "" or None."""
    attrs = [("IFLA_IFNAME", name), *attributes.items()]
    if mac is not None:
        attrs.append(("IFLA_ADDRESS", str(mac)))
    payload = ours(ifinfmsg, NEW, index=index, flags=sum(flags), attrs=attrs)
    link = wire.parse(payload)
    assert (name, index, mac) == (link.name, link.index, link.mac)
    assert flags == {
        bit
        for bit, on in (
            (0x1, link.up),
            (0x8, link.loopback),
            (0x100, link.promisc),
            (0x200, link.allmulti),
        )
        if on
    }
    assert attributes.get("IFLA_MTU", 0) == link.mtu
    assert attributes.get("IFLA_LINK", 0) == link.peer_index
    assert attributes.get("IFLA_MASTER", 0) == link.master
    assert attributes.get("IFLA_TXQLEN", 0) == link.txqlen
    assert attributes.get("IFLA_GROUP", 0) == link.group
    assert attributes.get("IFLA_IFALIAS", "") == link.alias
    assert attributes.get("IFLA_LINK_NETNSID") == link.peer_netnsid
    assert (None, None, None) == (link.kind, link.data, link.port)


KIND_DATA: list[tuple[str, dict[str, Any]]] = [
    ("bridge", {"stp_state": 1, "vlan_filtering": True, "mcast_snooping": False}),
    ("bridge", {"vlan_default_pvid": 7}),
    ("macvlan", {"mode": "vepa", "bcqueuelen": 77}),
    ("macvlan", {"mode": 1000}),
    ("macvtap", {"mode": "passthru"}),
    ("ipvlan", {"mode": "l3s", "flags": "private"}),
    ("vlan", {"id": 100, "protocol": "802.1q"}),
    ("vrf", {"table": 4_000_000_000}),
    ("tun", {"owner": 1000, "group": 2, "type": "tap", "pi": False, "vnet_hdr": True}),
    ("tun", {"persist": True, "multi_queue": False}),
]


@pytest.mark.parametrize(("kind", "data"), KIND_DATA)
def test_kind_attributes_read_as_they_were_written(kind: str, data: dict[str, Any]) -> None:
    """The same names in both directions; what we have no name for is passed over."""
    unknown = nlwire.u32(200, 5)
    encoded = wire.create("x", kind, data=data)
    link = wire.parse(encoded)
    assert (kind, data) == (link.kind, link.data)
    ((info_kind, info), *_) = [
        (number, payload)
        for number, payload in nlwire.attribute_list(encoded, 16)
        if number == wire.IFLA_LINKINFO
    ]
    parts = nlwire.attributes(info)
    more = nlwire.nest(
        info_kind,
        nlwire.text(wire.IFLA_INFO_KIND, kind),
        nlwire.attr(wire.IFLA_INFO_DATA, parts[wire.IFLA_INFO_DATA] + unknown),
    )
    assert data == wire.parse(encoded + more).data


def test_a_kind_of_no_interest_has_no_data() -> None:
    """Its data is not ours to read; a kind we know may come without data."""
    vxlan = nlwire.nest(
        wire.IFLA_LINKINFO,
        nlwire.text(wire.IFLA_INFO_KIND, "vxlan"),
        nlwire.nest(wire.IFLA_INFO_DATA, nlwire.u32(1, 42)),
    )
    assert ("vxlan", None) == (
        wire.parse(wire.find(1) + vxlan).kind,
        wire.parse(wire.find(1) + vxlan).data,
    )
    assert wire.parse(wire.create("x", "bridge")).data is None


@pytest.mark.parametrize(
    ("master", "expected"), [("bridge", {"hairpin": True, "isolated": False}), ("vrf", None)]
)
def test_port_attributes_are_a_bridges(master: str, expected: dict[str, Any] | None) -> None:
    """Other masters put something else there."""
    info = nlwire.nest(
        wire.IFLA_LINKINFO,
        nlwire.text(wire.IFLA_INFO_SLAVE_KIND, master),
        nlwire.nest(wire.IFLA_INFO_SLAVE_DATA, nlwire.u8(4, 1), nlwire.u8(33, 0)),
    )
    link = wire.parse(wire.find(1) + info)
    assert (None, expected) == (link.kind, link.port)


def test_an_address_that_is_no_mac_is_none() -> None:
    """A tunnel shows its IPv4 address there, a tun device nothing; InfiniBand has 20 bytes."""
    macs_seen = [
        wire.parse(wire.find(1) + nlwire.attr(wire.IFLA_ADDRESS, raw)).mac
        for raw in (b"", b"\x0a\0\0\1", bytes(8), bytes(20))
    ]
    assert [None, None, ":".join(["00"] * 8), ":".join(["00"] * 20)] == macs_seen


@pytest.mark.parametrize(
    ("number", "expected"),
    [*enumerate(wire.OPERSTATES), (7, "unknown")],
)
def test_operational_states_have_names(number: int, expected: str) -> None:
    """A number from the future is unknown."""
    state = nlwire.u8(wire.IFLA_OPERSTATE, number)
    assert expected == wire.parse(wire.find(1) + state).operstate


@relaxed
@given(u16)
def test_a_vlan_id_survives(vid: int) -> None:
    """Sixteen bits, host order."""
    assert {"id": vid} == wire.parse(wire.create("x", "vlan", data={"id": vid})).data
