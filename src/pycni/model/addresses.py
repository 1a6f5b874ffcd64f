# SPDX-License-Identifier: Apache-2.0
"""IP addresses and CIDRs as `ipaddress` objects, read by Go's rules.

No leading zeros, no zone, no dotted netmask, and `::ffff:10.0.0.1` *is* 10.0.0.1: the text of an
address names lease files and chains, so both implementations must agree on it.

`IPAddress`, `IPInterface` and `IPNetwork` are unions to the type checker. At run time they are
abstract bases over the same classes, because msgspec takes one custom type per union.
"""

from __future__ import annotations

from abc import ABC
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
)
from typing import TYPE_CHECKING, TypeAlias

from pycni.errors import InvalidConfig

if TYPE_CHECKING:
    IPAddress: TypeAlias = IPv4Address | IPv6Address
    IPInterface: TypeAlias = IPv4Interface | IPv6Interface
    IPNetwork: TypeAlias = IPv4Network | IPv6Network
else:

    class IPAddress(ABC):  # noqa: B024 -- for isinstance only
        """An IPv4Address or an IPv6Address."""

    class IPInterface(ABC):  # noqa: B024 -- for isinstance only
        """An IPv4Interface or an IPv6Interface: an address with its prefix length."""

    class IPNetwork(ABC):  # noqa: B024 -- for isinstance only
        """An IPv4Network or an IPv6Network."""

    for _base, _classes in (
        (IPAddress, (IPv4Address, IPv6Address)),
        (IPInterface, (IPv4Interface, IPv6Interface)),
        (IPNetwork, (IPv4Network, IPv6Network)),
    ):
        for _class in _classes:
            _base.register(_class)

_MAPPED_BITS = 96  # the length of ::ffff:0:0/96, the IPv4-mapped prefix


# Addresses are immutable and one ADD reads the same few of them in every plugin's prevResult.
@lru_cache(maxsize=4096)
def parse_ip(text: str) -> IPAddress:
    """Return the address `text` spells, or raise InvalidConfig."""
    address = _address(text)
    if address is None:
        raise InvalidConfig(f'not an IP address: "{text}"')
    return _unmapped(address)


@lru_cache(maxsize=4096)
def parse_cidr(text: str) -> IPInterface:
    """Return the address with prefix length `text` spells, host bits kept."""
    head, _, tail = text.partition("/")
    address = _address(head)
    if address is None or not (tail.isascii() and tail.isdigit()) or len(tail) > len("128"):
        raise InvalidConfig(f'not a CIDR: "{text}"')
    length, plain = int(tail), _unmapped(address)
    if plain.version != address.version:
        length -= _MAPPED_BITS
    if not 0 <= length <= plain.max_prefixlen:
        raise InvalidConfig(f'not a CIDR: "{text}"')
    if isinstance(plain, IPv4Address):
        return IPv4Interface((int(plain), length))
    return IPv6Interface((int(plain), length))


def parse_network(text: str) -> IPNetwork:
    """Return the network `text` spells; an address inside the network is refused."""
    interface = parse_cidr(text)
    network = interface.network
    if network.network_address != interface.ip:
        raise InvalidConfig(f'not a network: "{text}" has host bits set, did you mean {network}?')
    return network


def _address(text: str) -> IPAddress | None:
    if "%" in text:
        return None
    try:
        return ip_address(text)
    except ValueError:
        return None


def _unmapped(address: IPAddress) -> IPAddress:
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
