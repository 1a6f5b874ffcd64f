# SPDX-License-Identifier: Apache-2.0
"""RTM_*QDISC and RTM_*TFILTER bodies: token buckets, ingress, redirection.

Rates and sizes are bytes per second and bytes. The kernel counts a token bucket's depth in
scheduler ticks of 64 ns (/proc/net/psched has said so on every kernel with high resolution
timers): the time the burst takes at the rate.
"""

from __future__ import annotations

from struct import Struct

from pycni.kernel import nlwire
from pycni.kernel.nlwire import as_text
from pycni.kernel.types import Filter, Qdisc

RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 44, 45, 46

TC_H_ROOT = 0xFFFFFFFF
TC_H_INGRESS = 0xFFFFFFF1
INGRESS_HANDLE = 0xFFFF0000

TCA_KIND = 1
TCA_OPTIONS = 2

TCA_TBF_PARMS = 1
TCA_TBF_RATE64 = 4
TCA_TBF_BURST = 6
TC_LINKLAYER_ETHERNET = 1

TCA_U32_CLASSID = 1
TCA_U32_SEL = 5
TCA_U32_ACT = 7
TCA_MATCHALL_ACT = 2
TC_U32_TERMINAL = 1

TCA_ACT_KIND = 1
TCA_ACT_OPTIONS = 2
TCA_MIRRED_PARMS = 2
TC_ACT_STOLEN = 4
TCA_EGRESS_REDIR = 1

ETH_P_ALL = 3

TICKS_PER_SECOND = 15_625_000
_NS_PER_TICK = 64
_U32_MAX = 0xFFFFFFFF

_TCMSG = Struct("=BxxxiIII")
# struct tc_tbf_qopt: rate and peak rate (each a struct tc_ratespec), limit, buffer, mtu.
_RATESPEC = Struct("=BBHhHI")
_TBF_TAIL = Struct("=III")
# struct tc_u32_sel with one key that matches everything.
_U32_SEL = Struct("=BBBxHHhhI IIii")
# struct tc_mirred: index, capab, action, refcnt, bindcnt, eaction, ifindex.
_MIRRED = Struct("=IIiiiiI")

_ACTIONS_OF = {"u32": TCA_U32_ACT, "matchall": TCA_MATCHALL_ACT}


def cap_burst(rate: int, burst: int) -> int:
    """The largest burst up to `burst` that the kernel can say again: 32 bits of bytes or ticks."""
    return min(burst, _U32_MAX, _U32_MAX * rate // TICKS_PER_SECOND)


def set_tbf(
    index: int, *, rate: int, burst: int, limit: int, handle: int, parent: int = TC_H_ROOT
) -> bytes:
    """RTM_NEWQDISC of a token bucket filter."""
    burst = cap_burst(rate, burst)
    ticks = burst * TICKS_PER_SECOND // rate
    parms = (
        _RATESPEC.pack(0, TC_LINKLAYER_ETHERNET, 0, 0, 0, min(rate, _U32_MAX))
        + _RATESPEC.pack(0, 0, 0, 0, 0, 0)
        + _TBF_TAIL.pack(min(limit, _U32_MAX), ticks, 0)
    )
    options = [nlwire.attr(TCA_TBF_PARMS, parms)]
    if rate > _U32_MAX:
        options.append(nlwire.u64(TCA_TBF_RATE64, rate))
    if ticks * _NS_PER_TICK > _U32_MAX:
        # The kernel cuts a buffer given in ticks at 4.3 s; given in bytes it does not.
        options.append(nlwire.u32(TCA_TBF_BURST, burst))
    return b"".join(
        (
            _TCMSG.pack(0, index, handle, parent, 0),
            nlwire.text(TCA_KIND, "tbf"),
            nlwire.nest(TCA_OPTIONS, *options),
        )
    )


def add_ingress(index: int) -> bytes:
    """RTM_NEWQDISC of the ingress qdisc, the place for filters on what arrives."""
    return _TCMSG.pack(0, index, INGRESS_HANDLE, TC_H_INGRESS, 0) + nlwire.text(TCA_KIND, "ingress")


def remove_qdisc(index: int, parent: int) -> bytes:
    """RTM_DELQDISC of the qdisc at TC_H_ROOT or TC_H_INGRESS."""
    return _TCMSG.pack(0, index, 0, parent, 0)


def dump_qdiscs() -> bytes:
    """RTM_GETQDISC of all links: the kernel does not filter."""
    return _TCMSG.pack(0, 0, 0, 0, 0)


def parse_qdisc(payload: bytes) -> Qdisc:
    """The Qdisc in an RTM_NEWQDISC message."""
    _, index, handle, parent, _ = _TCMSG.unpack_from(payload)
    found = nlwire.attributes(payload, _TCMSG.size)
    kind = as_text(found.get(TCA_KIND, b""))
    rate = burst = limit = None
    if kind == "tbf" and TCA_OPTIONS in found:
        options = nlwire.attributes(found[TCA_OPTIONS])
        parms = options[TCA_TBF_PARMS]
        rate = _RATESPEC.unpack_from(parms)[5]
        if TCA_TBF_RATE64 in options:
            rate = int.from_bytes(options[TCA_TBF_RATE64], nlwire.BYTE_ORDER)
        limit, ticks, _ = _TBF_TAIL.unpack_from(parms, 2 * _RATESPEC.size)
        burst = round(ticks * rate / TICKS_PER_SECOND)
    return Qdisc(
        index=index, kind=kind, handle=handle, parent=parent, rate=rate, burst=burst, limit=limit
    )


def add_redirect(index: int, to: int, *, parent: int, priority: int, handle: int) -> bytes:
    """RTM_NEWTFILTER: a u32 filter that sends every packet out of interface `to`."""
    mirred = _MIRRED.pack(0, 0, TC_ACT_STOLEN, 0, 0, TCA_EGRESS_REDIR, to)
    action = nlwire.nest(
        1,
        nlwire.text(TCA_ACT_KIND, "mirred"),
        nlwire.nest(TCA_ACT_OPTIONS, nlwire.attr(TCA_MIRRED_PARMS, mirred)),
    )
    everything = _U32_SEL.pack(TC_U32_TERMINAL, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    return b"".join(
        (
            _TCMSG.pack(0, index, handle, parent, _info(priority, ETH_P_ALL)),
            nlwire.text(TCA_KIND, "u32"),
            nlwire.nest(
                TCA_OPTIONS,
                nlwire.u32(TCA_U32_CLASSID, 0x10001),
                nlwire.attr(TCA_U32_SEL, everything),
                nlwire.nest(TCA_U32_ACT, action),
            ),
        )
    )


def remove_filters(index: int, *, parent: int, priority: int) -> bytes:
    """RTM_DELTFILTER of all filters of a priority (0: of all priorities)."""
    return _TCMSG.pack(0, index, 0, parent, _info(priority, ETH_P_ALL if priority else 0))


def dump_filters(index: int, parent: int) -> bytes:
    """RTM_GETTFILTER of the filters on one qdisc."""
    return _TCMSG.pack(0, index, 0, parent, 0)


def parse_filter(payload: bytes) -> Filter:
    """The Filter in an RTM_NEWTFILTER message."""
    _, index, handle, parent, info = _TCMSG.unpack_from(payload)
    found = nlwire.attributes(payload, _TCMSG.size)
    kind = as_text(found.get(TCA_KIND, b""))
    options = nlwire.attributes(found.get(TCA_OPTIONS, b""))
    return Filter(
        index=index,
        kind=kind,
        parent=parent,
        priority=info >> 16,
        protocol=nlwire.swap16(info & 0xFFFF),
        handle=handle,
        redirect_to=_redirection(options.get(_ACTIONS_OF.get(kind, 0), b"")),
    )


def _redirection(actions: bytes) -> int | None:
    """The interface the first mirred redirect among the actions sends to."""
    for raw in nlwire.attributes(actions).values():
        action = nlwire.attributes(raw)
        if as_text(action.get(TCA_ACT_KIND, b"")) != "mirred":
            continue
        options = nlwire.attributes(action.get(TCA_ACT_OPTIONS, b""))
        if TCA_MIRRED_PARMS in options:
            *_, direction, index = _MIRRED.unpack_from(options[TCA_MIRRED_PARMS])
            if direction == TCA_EGRESS_REDIR:
                return int(index)
    return None


def _info(priority: int, protocol: int) -> int:
    """`tcm_info`: the priority, and the EtherType in network order."""
    return priority << 16 | nlwire.swap16(protocol)
