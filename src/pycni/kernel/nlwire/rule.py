# SPDX-License-Identifier: Apache-2.0
"""RTM_*RULE bodies: policy routing rules."""

from __future__ import annotations

import ipaddress
from struct import Struct

from pycni.kernel import nlwire
from pycni.kernel.nlwire import as_text, as_u8, as_u32
from pycni.kernel.nlwire.address import FAMILIES, VERSIONS
from pycni.kernel.types import Rule
from pycni.model.addresses import IPNetwork

RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34

FRA_DST = 1
FRA_SRC = 2
FRA_IIFNAME = 3
FRA_PRIORITY = 6
FRA_FWMARK = 10
FRA_SUPPRESS_PREFIXLEN = 14
FRA_TABLE = 15
FRA_FWMASK = 16
FRA_OIFNAME = 17
FRA_L3MDEV = 19
FRA_PROTOCOL = 21

FIB_RULE_INVERT = 2
_NOT_SUPPRESSED = 0xFFFFFFFF

ACTIONS = {"lookup": 1, "goto": 2, "nop": 3, "blackhole": 6, "unreachable": 7, "prohibit": 8}
_ACTION_NAMES = {number: name for name, number in ACTIONS.items()}

_RULE = Struct("=BBBBBBBBI")


def change(rule: Rule) -> bytes:
    """RTM_NEWRULE or RTM_DELRULE."""
    table = rule.table or 0
    parts = [
        _RULE.pack(
            FAMILIES[rule.family],
            rule.dst.prefixlen if rule.dst else 0,
            rule.src.prefixlen if rule.src else 0,
            0,
            table if table < 256 else 0,
            0,
            0,
            ACTIONS[rule.action],
            FIB_RULE_INVERT if rule.invert else 0,
        )
    ]
    for kind, network in ((FRA_DST, rule.dst), (FRA_SRC, rule.src)):
        if network is not None:
            parts.append(nlwire.attr(kind, network.network_address.packed))
    for kind, name in ((FRA_IIFNAME, rule.iif), (FRA_OIFNAME, rule.oif)):
        if name is not None:
            parts.append(nlwire.text(kind, name))
    for kind, number in (
        (FRA_PRIORITY, rule.priority),
        (FRA_FWMARK, rule.fwmark),
        (FRA_FWMASK, rule.fwmask),
        (FRA_SUPPRESS_PREFIXLEN, rule.suppress_prefixlen),
    ):
        if number is not None:
            parts.append(nlwire.u32(kind, number))
    if table > 255:
        parts.append(nlwire.u32(FRA_TABLE, table))
    if rule.l3mdev:
        parts.append(nlwire.u8(FRA_L3MDEV, 1))
    if rule.protocol is not None:
        parts.append(nlwire.u8(FRA_PROTOCOL, rule.protocol))
    return b"".join(parts)


def dump(family: int) -> bytes:
    """RTM_GETRULE of a family (4 or 6)."""
    return _RULE.pack(FAMILIES[family], 0, 0, 0, 0, 0, 0, 0, 0)


def parse(payload: bytes) -> Rule | None:
    """The Rule in an RTM_NEWRULE message; None when it is of another family than IP."""
    family, dst_len, src_len, _, table, _, _, action, flags = _RULE.unpack_from(payload)
    if family not in VERSIONS:
        return None
    found = nlwire.attributes(payload, _RULE.size)
    if FRA_TABLE in found:
        table = as_u32(found[FRA_TABLE])
    suppressed = found.get(FRA_SUPPRESS_PREFIXLEN)
    number = {kind: as_u32(found[kind]) for kind in (FRA_FWMARK, FRA_FWMASK) if kind in found}
    return Rule(
        family=VERSIONS[family],
        src=_network(found.get(FRA_SRC), src_len),
        dst=_network(found.get(FRA_DST), dst_len),
        iif=as_text(found[FRA_IIFNAME]) if FRA_IIFNAME in found else None,
        oif=as_text(found[FRA_OIFNAME]) if FRA_OIFNAME in found else None,
        fwmark=number.get(FRA_FWMARK),
        fwmask=number.get(FRA_FWMASK),
        table=table or None,
        # The first rule of all (lookup local) has priority 0 and does not say so.
        priority=as_u32(found.get(FRA_PRIORITY, b"")),
        action=_ACTION_NAMES.get(action, str(action)),
        invert=bool(flags & FIB_RULE_INVERT),
        l3mdev=FRA_L3MDEV in found and as_u8(found[FRA_L3MDEV]) != 0,
        protocol=as_u8(found[FRA_PROTOCOL]) if FRA_PROTOCOL in found else None,
        suppress_prefixlen=(
            None
            if suppressed is None or as_u32(suppressed) == _NOT_SUPPRESSED
            else as_u32(suppressed)
        ),
    )


def _network(packed: bytes | None, prefix: int) -> IPNetwork | None:
    if packed is None:
        return None
    if len(packed) == 4:
        return ipaddress.IPv4Network((packed, prefix))
    return ipaddress.IPv6Network((packed, prefix))
