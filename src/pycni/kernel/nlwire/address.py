# SPDX-License-Identifier: Apache-2.0
"""RTM_*ADDR bodies: add, remove and list the addresses of links."""

from __future__ import annotations

import ipaddress
from struct import Struct

from pycni.kernel import nlwire
from pycni.kernel.types import Address
from pycni.model.addresses import IPAddress, IPInterface

RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22

AF_UNSPEC, AF_INET, AF_INET6 = 0, 2, 10
FAMILIES = {None: AF_UNSPEC, 4: AF_INET, 6: AF_INET6}
VERSIONS = {AF_INET: 4, AF_INET6: 6}

IFA_ADDRESS = 1
IFA_LOCAL = 2
IFA_BROADCAST = 4
IFA_FLAGS = 8

IFA_F_NODAD = 0x02
IFA_F_NOPREFIXROUTE = 0x200

_IFADDR = Struct("=BBBBI")


def change(
    index: int,
    cidr: IPInterface,
    *,
    peer: IPInterface | None = None,
    scope: int = 0,
    nodad: bool = False,
    noprefixroute: bool = False,
) -> bytes:
    """RTM_NEWADDR or RTM_DELADDR; IPv4 networks wider than /31 get their broadcast address."""
    other = cidr if peer is None else peer
    flags = (IFA_F_NODAD if nodad else 0) | (IFA_F_NOPREFIXROUTE if noprefixroute else 0)
    parts = [
        _IFADDR.pack(FAMILIES[cidr.version], other.network.prefixlen, flags & 0xFF, scope, index),
        nlwire.attr(IFA_LOCAL, cidr.packed),
        nlwire.attr(IFA_ADDRESS, other.packed),
    ]
    if flags:
        parts.append(nlwire.u32(IFA_FLAGS, flags))
    if peer is None and isinstance(cidr, ipaddress.IPv4Interface) and cidr.network.prefixlen < 31:
        parts.append(nlwire.attr(IFA_BROADCAST, cidr.network.broadcast_address.packed))
    return b"".join(parts)


def dump(*, index: int | None = None, family: int | None = None) -> bytes:
    """RTM_GETADDR of all addresses, or those of a link or a family (4 or 6)."""
    return _IFADDR.pack(FAMILIES[family], 0, 0, 0, index or 0)


def parse(payload: bytes) -> Address | None:
    """The Address in an RTM_NEWADDR message; None when it is of another family than IP."""
    family, prefix, flags, scope, index = _IFADDR.unpack_from(payload)
    if family not in VERSIONS:
        return None
    found = nlwire.attributes(payload, _IFADDR.size)
    far = found.get(IFA_ADDRESS)
    local = found.get(IFA_LOCAL, far)
    if local is None:
        return None
    broadcast = found.get(IFA_BROADCAST)
    return Address(
        index=index,
        address=interface(local, prefix),
        flags=nlwire.as_u32(found[IFA_FLAGS]) if IFA_FLAGS in found else flags,
        scope=scope,
        broadcast=None if broadcast is None else address(broadcast),
        peer=None if far is None or far == local else interface(far, prefix),
    )


def address(packed: bytes) -> IPAddress:
    """The address that 4 or 16 bytes are."""
    return ipaddress.IPv4Address(packed) if len(packed) == 4 else ipaddress.IPv6Address(packed)


def interface(packed: bytes, prefix: int) -> IPInterface:
    """The address that 4 or 16 bytes are, with its prefix length."""
    if len(packed) == 4:
        return ipaddress.IPv4Interface((packed, prefix))
    return ipaddress.IPv6Interface((packed, prefix))
