# SPDX-License-Identifier: Apache-2.0
"""RTM_*NEIGH bodies: the neighbour (ARP, NDP) tables."""

from __future__ import annotations

from struct import Struct

from pycni.kernel import nlwire
from pycni.kernel.nlwire.address import FAMILIES, VERSIONS, address
from pycni.kernel.types import Neighbour
from pycni.model.addresses import IPAddress
from pycni.model.names import Mac

RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30

NDA_DST = 1
NDA_LLADDR = 2
NDA_IFINDEX = 8

_NDMSG = Struct("=BxxxiHBB")


def change(neighbour: Neighbour) -> bytes:
    """RTM_NEWNEIGH or RTM_DELNEIGH."""
    body = _NDMSG.pack(
        FAMILIES[neighbour.address.version], neighbour.index, neighbour.state, 0, 0
    ) + nlwire.attr(NDA_DST, neighbour.address.packed)
    if neighbour.mac is not None:
        body += nlwire.attr(NDA_LLADDR, neighbour.mac.packed)
    return body


def find(index: int, wanted: IPAddress) -> bytes:
    """RTM_GETNEIGH of one entry."""
    head = _NDMSG.pack(FAMILIES[wanted.version], index, 0, 0, 0)
    return head + nlwire.attr(NDA_DST, wanted.packed)


def dump(*, index: int | None = None, family: int | None = None) -> bytes:
    """RTM_GETNEIGH of all entries, or those of a link or a family (4 or 6)."""
    head = _NDMSG.pack(FAMILIES[family], 0, 0, 0, 0)
    return head if index is None else head + nlwire.u32(NDA_IFINDEX, index)


def parse(payload: bytes) -> Neighbour | None:
    """The Neighbour in an RTM_NEWNEIGH message; None when it is of another family than IP."""
    family, index, state, _, _ = _NDMSG.unpack_from(payload)
    found = nlwire.attributes(payload, _NDMSG.size)
    if family not in VERSIONS or NDA_DST not in found:
        return None
    return Neighbour(
        index=index,
        address=address(found[NDA_DST]),
        mac=Mac.from_bytes(found[NDA_LLADDR]) if NDA_LLADDR in found else None,
        state=state,
    )
