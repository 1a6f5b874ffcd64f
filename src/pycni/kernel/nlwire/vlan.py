# SPDX-License-Identifier: Apache-2.0
"""Bridge VLAN bodies: which VLANs a port carries.

Changing goes through RTM_SETLINK and RTM_DELLINK of family AF_BRIDGE, which every kernel with
VLAN filtering has; reading through RTM_GETVLAN (Linux 5.6), which can be asked about one port.
"""

from __future__ import annotations

from struct import Struct

from pycni.kernel import nlwire
from pycni.kernel.types import BridgeVlan

RTM_GETVLAN = 114

AF_BRIDGE = 7
IFLA_AF_SPEC = 26
IFLA_BRIDGE_FLAGS = 0
IFLA_BRIDGE_VLAN_INFO = 2
BRIDGE_FLAGS_SELF = 2

BRIDGE_VLAN_INFO_PVID = 0x02
BRIDGE_VLAN_INFO_UNTAGGED = 0x04
BRIDGE_VLAN_INFO_RANGE_BEGIN = 0x08
BRIDGE_VLAN_INFO_RANGE_END = 0x10

BRIDGE_VLANDB_ENTRY = 1
BRIDGE_VLANDB_ENTRY_INFO = 1
BRIDGE_VLANDB_ENTRY_RANGE = 2

_IFINFO = Struct("=BxHiII")
_VLAN_INFO = Struct("=HH")
_VLAN_MSG = Struct("=BxxxI")


def change(vlan: BridgeVlan, *, on_bridge: bool = False) -> bytes:
    """RTM_SETLINK (add) or RTM_DELLINK (remove); `on_bridge`: `index` is the bridge itself."""
    flags = (BRIDGE_VLAN_INFO_PVID if vlan.pvid else 0) | (
        BRIDGE_VLAN_INFO_UNTAGGED if vlan.untagged else 0
    )
    parts = [nlwire.u16(IFLA_BRIDGE_FLAGS, BRIDGE_FLAGS_SELF)] if on_bridge else []
    if vlan.vid_end == vlan.vid:
        parts.append(_info(flags, vlan.vid))
    else:
        parts.append(_info(flags | BRIDGE_VLAN_INFO_RANGE_BEGIN, vlan.vid))
        parts.append(_info(flags | BRIDGE_VLAN_INFO_RANGE_END, vlan.vid_end))
    return _IFINFO.pack(AF_BRIDGE, 0, vlan.index, 0, 0) + nlwire.nest(IFLA_AF_SPEC, *parts)


def dump(index: int | None = None) -> bytes:
    """RTM_GETVLAN of all bridges and ports, or of one."""
    return _VLAN_MSG.pack(AF_BRIDGE, index or 0)


def parse(payload: bytes) -> list[BridgeVlan]:
    """The VLANs in one RTM_NEWVLAN message; equal neighbours come as ranges."""
    _, index = _VLAN_MSG.unpack_from(payload)
    vlans = []
    for kind, raw in nlwire.attribute_list(payload, _VLAN_MSG.size):
        entry = nlwire.attributes(raw)
        if kind != BRIDGE_VLANDB_ENTRY or BRIDGE_VLANDB_ENTRY_INFO not in entry:
            continue
        flags, vid = _VLAN_INFO.unpack_from(entry[BRIDGE_VLANDB_ENTRY_INFO])
        last = entry.get(BRIDGE_VLANDB_ENTRY_RANGE)
        vlans.append(
            BridgeVlan(
                index=index,
                vid=vid,
                vid_end=vid if last is None else nlwire.as_u16(last),
                pvid=bool(flags & BRIDGE_VLAN_INFO_PVID),
                untagged=bool(flags & BRIDGE_VLAN_INFO_UNTAGGED),
            )
        )
    return vlans


def _info(flags: int, vid: int) -> bytes:
    return nlwire.attr(IFLA_BRIDGE_VLAN_INFO, _VLAN_INFO.pack(flags, vid))
