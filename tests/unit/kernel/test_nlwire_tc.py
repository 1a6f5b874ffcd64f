# SPDX-License-Identifier: Apache-2.0
"""Traffic control and bridge VLANs on the wire, against pyroute2's codec."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from pycni.kernel import nlwire
from pycni.kernel.nlwire import tc, vlan
from pycni.kernel.types import BridgeVlan, Filter, Qdisc
from tests.unit.kernel.oracle import indexes, path, relaxed, theirs, u32

U32_MAX = 0xFFFFFFFF
ROOT, INGRESS = 0xFFFFFFFF, 0xFFFFFFF1

# Token buckets


def tbf_options(body: bytes) -> dict[int, bytes]:
    found = nlwire.attributes(body, 20)
    return nlwire.attributes(found[tc.TCA_OPTIONS])


@relaxed
@given(
    indexes,
    st.integers(1, U32_MAX),
    st.integers(1, U32_MAX),
    st.integers(0, U32_MAX),
)
def test_a_token_bucket_is_written_in_ticks(index: int, rate: int, burst: int, limit: int) -> None:
    """The burst becomes the time it takes at the rate, in ticks of 64 ns."""
    body = tc.set_tbf(index, rate=rate, burst=burst, limit=limit, handle=0x10000)
    message = theirs(tcmsg, tc.RTM_NEWQDISC, body)
    assert (index, 0x10000, ROOT, "tbf") == (
        message["index"],
        message["handle"],
        message["parent"],
        message.get_attr("TCA_KIND"),
    )
    parms = path(message, "TCA_OPTIONS", "TCA_TBF_PARMS")
    ticks = tc.cap_burst(rate, burst) * 15_625_000 // rate
    assert (rate, limit, ticks) == (parms["rate"], parms["limit"], parms["buffer"])


def test_the_go_plugins_numbers() -> None:
    """1 Mbit/s with a burst of 2 Mbit: what the reference bandwidth plugin sends."""
    body = tc.set_tbf(5, rate=125_000, burst=250_000, limit=253_125, handle=0x10000)
    parms = path(theirs(tcmsg, tc.RTM_NEWQDISC, body), "TCA_OPTIONS", "TCA_TBF_PARMS")
    assert (125_000, 253_125, 31_250_000) == (parms["rate"], parms["limit"], parms["buffer"])


def test_a_rate_beyond_32_bits_has_an_attribute_of_its_own() -> None:
    """34 Gbit/s and more; the old field is then full."""
    body = tc.set_tbf(5, rate=5_000_000_000, burst=1_000_000, limit=1 << 40, handle=0x10000)
    parms = path(theirs(tcmsg, tc.RTM_NEWQDISC, body), "TCA_OPTIONS", "TCA_TBF_PARMS")
    assert (U32_MAX, U32_MAX) == (parms["rate"], parms["limit"])
    # TCA_TBF_RATE64 is 4 (linux/pkt_sched.h); pyroute2 does not know it.
    assert struct.pack("=Q", 5_000_000_000) == tbf_options(body)[4]
    assert 5_000_000_000 == tc.parse_qdisc(body).rate


def test_a_burst_of_more_than_four_seconds_is_sent_in_bytes() -> None:
    """In ticks the kernel would cut it; more than it can say again is cut here."""

    def burst_attribute(rate: int, burst: int) -> Any:
        body = tc.set_tbf(5, rate=rate, burst=burst, limit=1, handle=0x10000)
        # TCA_TBF_BURST is 6 (linux/pkt_sched.h); pyroute2 does not know it.
        return tbf_options(body).get(6)

    expected = [None, struct.pack("=I", 5000), struct.pack("=I", 274_877)]
    assert expected == [burst_attribute(1000, b) for b in (4000, 5000, 2_000_000)]


@relaxed
@given(st.integers(1, 10**10), st.integers(1, U32_MAX), st.integers(0, U32_MAX))
def test_a_token_bucket_reads_as_it_was_written(rate: int, burst: int, limit: int) -> None:
    """The burst within the precision of a tick."""
    qdisc = tc.parse_qdisc(tc.set_tbf(5, rate=rate, burst=burst, limit=limit, handle=0x10000))
    assert (5, "tbf", 0x10000, ROOT, rate, limit) == (
        qdisc.index,
        qdisc.kind,
        qdisc.handle,
        qdisc.parent,
        qdisc.rate,
        qdisc.limit,
    )
    assert qdisc.burst is not None
    assert abs(tc.cap_burst(rate, burst) - qdisc.burst) <= rate / 15_625_000 + 1


def test_other_qdiscs_have_no_numbers() -> None:
    """Ingress, and whatever else there is; a tbf without options too."""
    ingress = tc.parse_qdisc(tc.add_ingress(7))
    assert Qdisc(index=7, kind="ingress", handle=0xFFFF0000, parent=INGRESS) == ingress
    assert (True, False) == (ingress.ingress, ingress.root)
    bare = tc.parse_qdisc(tc.remove_qdisc(7, ROOT) + nlwire.text(tc.TCA_KIND, "tbf"))
    assert (None, True) == (bare.rate, bare.root)
    assert "" == tc.parse_qdisc(tc.dump_qdiscs()).kind


def test_qdiscs_are_added_and_removed_by_parent() -> None:
    """The ingress qdisc has its own."""
    added = theirs(tcmsg, tc.RTM_NEWQDISC, tc.add_ingress(7))
    assert (7, 0xFFFF0000, INGRESS, "ingress") == (
        added["index"],
        added["handle"],
        added["parent"],
        added.get_attr("TCA_KIND"),
    )
    removed = theirs(tcmsg, tc.RTM_DELQDISC, tc.remove_qdisc(7, ROOT))
    assert (7, ROOT, []) == (removed["index"], removed["parent"], removed["attrs"])


# Filters


@relaxed
@given(indexes, indexes, st.integers(1, 0xFFFF), u32)
def test_a_redirection_matches_everything(index: int, to: int, priority: int, handle: int) -> None:
    """One u32 key without a mask, one mirred action that steals the packet."""
    body = tc.add_redirect(index, to, parent=0xFFFF0000, priority=priority, handle=handle)
    message = theirs(tcmsg, tc.RTM_NEWTFILTER, body)
    # pyroute2 shows tcm_info as it is: priority << 16 | htons(ETH_P_ALL)
    assert (index, handle, 0xFFFF0000, priority << 16 | 0x0300) == (
        message["index"],
        message["handle"],
        message["parent"],
        message["info"],
    )
    selector = path(message, "TCA_OPTIONS", "TCA_U32_SEL")
    assert (1, 1) == (selector["flags"], selector["nkeys"])
    assert [0, 0, 0, 0] == list(selector["keys"][0].values())
    action = path(message, "TCA_OPTIONS", "TCA_U32_ACT", "TCA_ACT_PRIO_1")
    parms = path(action, "TCA_ACT_OPTIONS", "TCA_MIRRED_PARMS")
    assert ("mirred", 4, 1, to) == (
        action.get_attr("TCA_ACT_KIND"),
        parms["action"],
        parms["eaction"],
        parms["ifindex"],
    )
    expected = Filter(
        index=index,
        kind="u32",
        parent=0xFFFF0000,
        priority=priority,
        protocol=3,
        handle=handle,
        redirect_to=to,
    )
    assert expected == tc.parse_filter(body)


def action(kind: str, *, direction: int = 1, to: int = 9) -> bytes:
    parms = struct.pack("=IIiiiiI", 0, 0, 4, 0, 0, direction, to)
    return nlwire.nest(
        1, nlwire.text(1, kind), nlwire.nest(2, nlwire.attr(2, parms) if direction else b"")
    )


def filtering(kind: str, actions_attribute: int, *actions: bytes) -> bytes:
    return (
        tc.dump_filters(7, 0xFFFF0000)
        + nlwire.text(tc.TCA_KIND, kind)
        + nlwire.nest(tc.TCA_OPTIONS, nlwire.nest(actions_attribute, *actions))
    )


def test_a_redirection_is_found_among_actions() -> None:
    """By matchall as well; a mirror, another action or an empty one redirects nowhere."""
    assert [9, 9, None, None, None, None] == [
        tc.parse_filter(payload).redirect_to
        for payload in (
            filtering("matchall", 2, action("mirred")),
            filtering("u32", 7, action("gact")[:2] + action("gact")[2:], action("mirred")),
            filtering("u32", 7, action("mirred", direction=2)),
            filtering("u32", 7, action("mirred", direction=0)),
            filtering("u32", 7, action("gact")),
            filtering("flower", 7, action("mirred")),
        )
    ]


def test_filters_are_asked_for_and_removed_by_place() -> None:
    """By qdisc; by priority, where 0 is all."""
    asked = theirs(tcmsg, tc.RTM_GETTFILTER, tc.dump_filters(7, 0xFFFF0000))
    assert (7, 0xFFFF0000, 0) == (asked["index"], asked["parent"], asked["info"])
    some = tc.remove_filters(7, parent=0xFFFF0000, priority=1)
    assert 1 << 16 | 0x0300 == theirs(tcmsg, tc.RTM_DELTFILTER, some)["info"]
    every = tc.remove_filters(7, parent=0xFFFF0000, priority=0)
    assert 0 == theirs(tcmsg, tc.RTM_DELTFILTER, every)["info"]


# Bridge VLANs

vids = st.integers(1, 4094)


@relaxed
@given(indexes, vids, st.booleans(), st.booleans())
def test_one_vlan_is_one_entry(index: int, vid: int, pvid: bool, untagged: bool) -> None:
    """Family AF_BRIDGE, with the flags of the entry."""
    wanted = BridgeVlan(index=index, vid=vid, vid_end=vid, pvid=pvid, untagged=untagged)
    message = theirs(ifinfmsg, 19, vlan.change(wanted))
    assert (7, index) == (message["family"], message["index"])
    entries = message.get_attr("IFLA_AF_SPEC")["attrs"]
    assert [("IFLA_BRIDGE_VLAN_INFO", {"flags": 2 * pvid | 4 * untagged, "vid": vid})] == [
        tuple(entry) for entry in entries
    ]


def test_a_range_has_a_beginning_and_an_end() -> None:
    """Two entries, with the same flags otherwise."""
    wanted = BridgeVlan(index=3, vid=200, vid_end=210, untagged=True)
    entries = theirs(ifinfmsg, 19, vlan.change(wanted)).get_attr("IFLA_AF_SPEC")["attrs"]
    assert [{"flags": 0x0C, "vid": 200}, {"flags": 0x14, "vid": 210}] == [
        dict(value) for _, value in entries
    ]


def test_the_bridge_itself_is_told_by_a_flag() -> None:
    """BRIDGE_FLAGS_SELF, before the entries."""
    wanted = BridgeVlan(index=3, vid=5, vid_end=5)
    ((_, spec),) = nlwire.attribute_list(vlan.change(wanted, on_bridge=True), 16)
    assert struct.pack("=H", 2) == nlwire.attributes(spec)[vlan.IFLA_BRIDGE_FLAGS]


def entry(vid: int, flags: int, last: int | None = None) -> bytes:
    parts = [nlwire.attr(vlan.BRIDGE_VLANDB_ENTRY_INFO, struct.pack("=HH", flags, vid))]
    if last is not None:
        parts.append(nlwire.u16(vlan.BRIDGE_VLANDB_ENTRY_RANGE, last))
    return nlwire.nest(vlan.BRIDGE_VLANDB_ENTRY, *parts)


def test_vlans_are_read_with_their_ranges() -> None:
    """RTM_NEWVLAN is repeated entries; attributes of no interest are passed over."""
    payload = vlan.dump(9) + entry(1, 0x06) + entry(200, 0, 210) + nlwire.nest(2) + nlwire.nest(1)
    assert [
        BridgeVlan(index=9, vid=1, vid_end=1, pvid=True, untagged=True),
        BridgeVlan(index=9, vid=200, vid_end=210),
    ] == vlan.parse(payload)


def test_vlans_are_asked_for_by_port() -> None:
    """struct br_vlan_msg: the family, and the index or 0 for all."""
    assert [struct.pack("=BxxxI", 7, index) for index in (9, 0)] == [vlan.dump(9), vlan.dump()]
