# SPDX-License-Identifier: Apache-2.0
"""RTM_*ROUTE bodies: add, remove, list and look up routes."""

from __future__ import annotations

import ipaddress
from struct import Struct

from pycni.kernel import nlwire
from pycni.kernel.nlwire import as_u32
from pycni.kernel.nlwire.address import FAMILIES, VERSIONS, address
from pycni.kernel.types import PROTOCOL_BOOT, SCOPE_HOST, SCOPE_LINK, SCOPE_UNIVERSE, Route
from pycni.model.addresses import IPAddress, IPNetwork

RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26

RTA_DST = 1
RTA_OIF = 4
RTA_GATEWAY = 5
RTA_PRIORITY = 6
RTA_PREFSRC = 7
RTA_METRICS = 8
RTA_MULTIPATH = 9
RTA_TABLE = 15
RTA_VIA = 18

RTAX_MTU = 2
RTAX_ADVMSS = 8

RTNH_F_ONLINK = 4
RT_SCOPE_NOWHERE = 255

TYPES = {
    "unicast": 1,
    "local": 2,
    "broadcast": 3,
    "anycast": 4,
    "multicast": 5,
    "blackhole": 6,
    "unreachable": 7,
    "prohibit": 8,
    "throw": 9,
}
_TYPE_NAMES = {number: name for name, number in TYPES.items()}

_RTMSG = Struct("=BBBBBBBBI")
_NEXTHOP = Struct("=HBBi")
_U16 = Struct("=H")


def add(route: Route) -> bytes:
    """RTM_NEWROUTE; what the route leaves open becomes what `ip route add` would choose."""
    scope = route.scope
    if scope is None:
        scope = _default_scope(route)
    protocol = PROTOCOL_BOOT if route.protocol is None else route.protocol
    parts = [_head(route, scope, protocol), *_selectors(route)]
    metrics = []
    if route.mtu:
        metrics.append(nlwire.u32(RTAX_MTU, route.mtu))
    if route.advmss:
        metrics.append(nlwire.u32(RTAX_ADVMSS, route.advmss))
    if metrics:
        parts.append(nlwire.nest(RTA_METRICS, *metrics))
    return b"".join(parts)


def remove(route: Route) -> bytes:
    """RTM_DELROUTE; what the route leaves open matches anything."""
    scope = RT_SCOPE_NOWHERE if route.scope is None else route.scope
    return b"".join((_head(route, scope, route.protocol or 0), *_selectors(route)))


def dump(family: int, *, table: int | None = None, index: int | None = None) -> bytes:
    """RTM_GETROUTE of a family (4 or 6), or of a table or an interface."""
    parts = [_RTMSG.pack(FAMILIES[family], 0, 0, 0, 0, 0, 0, 0, 0)]
    if table is not None:
        parts.append(nlwire.u32(RTA_TABLE, table))
    if index is not None:
        parts.append(nlwire.u32(RTA_OIF, index))
    return b"".join(parts)


def lookup(dst: IPAddress) -> bytes:
    """RTM_GETROUTE: which route would a packet to `dst` take?"""
    head = _RTMSG.pack(FAMILIES[dst.version], dst.max_prefixlen, 0, 0, 0, 0, 0, 0, 0)
    return head + nlwire.attr(RTA_DST, dst.packed)


def parse(payload: bytes) -> list[Route]:
    """The routes in an RTM_NEWROUTE message: one per next hop; none if it is not IP."""
    family, prefix, _, _, table, protocol, scope, kind, flags = _RTMSG.unpack_from(payload)
    if family not in VERSIONS:
        return []
    found = nlwire.attributes(payload, _RTMSG.size)
    if RTA_TABLE in found:
        table = as_u32(found[RTA_TABLE])
    metrics = nlwire.attributes(found.get(RTA_METRICS, b""))
    source = found.get(RTA_PREFSRC)
    priority = found.get(RTA_PRIORITY)
    hops: list[tuple[IPAddress | None, int | None, int]] = [
        (
            _gateway(found),
            as_u32(found[RTA_OIF]) if RTA_OIF in found else None,
            flags,
        )
    ]
    if RTA_MULTIPATH in found:
        hops = _nexthops(found[RTA_MULTIPATH])
    return [
        Route(
            dst=_network(family, found.get(RTA_DST, b""), prefix),
            gateway=gateway,
            index=index,
            table=table,
            priority=None if priority is None else as_u32(priority),
            scope=scope,
            protocol=protocol,
            source=None if source is None else address(source),
            mtu=as_u32(metrics[RTAX_MTU]) if RTAX_MTU in metrics else None,
            advmss=as_u32(metrics[RTAX_ADVMSS]) if RTAX_ADVMSS in metrics else None,
            type=_TYPE_NAMES.get(kind, str(kind)),
            onlink=bool(hop_flags & RTNH_F_ONLINK),
        )
        for gateway, index, hop_flags in hops
    ]


def _head(route: Route, scope: int, protocol: int) -> bytes:
    return _RTMSG.pack(
        FAMILIES[route.dst.version],
        route.dst.prefixlen,
        0,
        0,
        route.table if route.table < 256 else 0,
        protocol,
        scope,
        TYPES[route.type],
        RTNH_F_ONLINK if route.onlink else 0,
    )


def _selectors(route: Route) -> list[bytes]:
    """The attributes that tell one route from another."""
    parts = []
    if route.dst.prefixlen:
        parts.append(nlwire.attr(RTA_DST, route.dst.network_address.packed))
    if route.gateway is not None:
        if route.gateway.version == route.dst.version:
            parts.append(nlwire.attr(RTA_GATEWAY, route.gateway.packed))
        else:
            via = _U16.pack(FAMILIES[route.gateway.version]) + route.gateway.packed
            parts.append(nlwire.attr(RTA_VIA, via))
    if route.index is not None:
        parts.append(nlwire.u32(RTA_OIF, route.index))
    if route.table > 255:
        parts.append(nlwire.u32(RTA_TABLE, route.table))
    if route.priority is not None:
        parts.append(nlwire.u32(RTA_PRIORITY, route.priority))
    if route.source is not None:
        parts.append(nlwire.attr(RTA_PREFSRC, route.source.packed))
    return parts


def _default_scope(route: Route) -> int:
    if route.type == "local":
        return SCOPE_HOST
    if route.type == "unicast" and route.gateway is None:
        return SCOPE_LINK
    return SCOPE_UNIVERSE


def _gateway(found: dict[int, bytes]) -> IPAddress | None:
    if RTA_GATEWAY in found:
        return address(found[RTA_GATEWAY])
    if RTA_VIA in found:
        return address(found[RTA_VIA][2:])
    return None


def _nexthops(payload: bytes) -> list[tuple[IPAddress | None, int | None, int]]:
    """(gateway, interface, flags) of each `struct rtnexthop` in an RTA_MULTIPATH."""
    hops: list[tuple[IPAddress | None, int | None, int]] = []
    offset = 0
    while len(payload) - offset >= _NEXTHOP.size:
        length, flags, _, index = _NEXTHOP.unpack_from(payload, offset)
        if length < _NEXTHOP.size or length > len(payload) - offset:
            raise nlwire.MalformedMessage(f"next hop of {length} bytes")
        hop = payload[offset + _NEXTHOP.size : offset + length]
        hops.append((_gateway(nlwire.attributes(hop)), index, flags))
        offset += (length + 3) & -4
    return hops


def _network(family: int, packed: bytes, prefix: int) -> IPNetwork:
    if VERSIONS[family] == 4:
        return ipaddress.IPv4Network((packed.ljust(4, b"\0"), prefix))
    return ipaddress.IPv6Network((packed.ljust(16, b"\0"), prefix))
