# SPDX-License-Identifier: Apache-2.0
"""host-local's ranges: from the configuration's text to intervals an address is drawn from.

A range set holds ranges of one family that serve one request: an attachment gets one address from
each set. Faults carry the path of the range and the Go plugin's words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Address

from msgspec import Struct

from pycni.errors import InvalidConfig
from pycni.model.addresses import IPAddress, IPNetwork, parse_cidr, parse_ip


class RangeText(Struct, frozen=True, kw_only=True):
    """One range as written. Texts, because a DEL must not fail for a range that is wrong."""

    subnet: str = ""
    rangeStart: str = ""
    rangeEnd: str = ""
    gateway: str = ""


class Range(Struct, frozen=True, kw_only=True):
    """The addresses `first` to `last`, both included, less the gateway."""

    subnet: IPNetwork
    first: IPAddress
    last: IPAddress
    gateway: IPAddress

    def __contains__(self, address: IPAddress) -> bool:
        same_family = address.version == self.subnet.version
        return same_family and int(self.first) <= int(address) <= int(self.last)

    def overlaps(self, other: Range) -> bool:
        """Whether an address is in both."""
        return self.first in other or other.first in self

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


Stretch = tuple[Range, IPAddress, IPAddress]  # a range, and the first and last address to try


class RangeSet(Struct, frozen=True):
    """Ranges of one family that stand in for each other."""

    ranges: tuple[Range, ...]

    @property
    def version(self) -> int:
        """4 or 6."""
        return self.ranges[0].subnet.version

    def find_range(self, address: IPAddress) -> Range | None:
        """The range that `address` is in."""
        return next((each for each in self.ranges if address in each), None)

    def overlaps(self, other: RangeSet) -> bool:
        """Whether an address is in both."""
        return any(mine.overlaps(theirs) for mine in self.ranges for theirs in other.ranges)

    def stretches(
        self, last_used: IPAddress | None
    ) -> Iterator[tuple[Range, IPAddress, IPAddress]]:
        """The set in the order it is drawn from, without the gateways.

        Round robin, so that a released address rests as long as possible: from the address after
        `last_used` through all ranges back to it; from the start if it is not in the set.
        """
        start = self.find_range(last_used) if last_used is not None else None
        if start is None or last_used is None:
            for each in self.ranges:
                yield from _around_gateway(each, each.first, each.last)
            return
        if last_used != start.last:
            yield from _around_gateway(start, last_used + 1, start.last)
        at = self.ranges.index(start)
        for each in self.ranges[at + 1 :] + self.ranges[:at]:
            yield from _around_gateway(each, each.first, each.last)
        yield from _around_gateway(start, start.first, last_used)

    def __str__(self) -> str:
        return ",".join(str(each) for each in self.ranges)


# A network's ranges are the same in every call.
@lru_cache(maxsize=256)
def parse_range_sets(texts: tuple[tuple[str, tuple[RangeText, ...]], ...]) -> tuple[RangeSet, ...]:
    """Return the range sets written as `texts`, each with its JSON path; order is their number."""
    sets: list[RangeSet] = []
    for number, (path, ranges) in enumerate(texts):
        parsed = _parse_set(path, ranges, f"invalid range set {number}")
        for other, earlier in enumerate(sets):
            if earlier.overlaps(parsed):
                raise InvalidConfig(f"{path}: range set {other} overlaps with {number}")
        sets.append(parsed)
    return tuple(sets)


def _parse_set(path: str, texts: Sequence[RangeText], fault: str) -> RangeSet:
    if not texts:
        raise InvalidConfig(f"{path}: {fault}: empty range set")
    ranges: list[Range] = []
    for number, text in enumerate(texts):
        # The old single range sits in `ipam` itself and has no number.
        here = path if path == "ipam" else f"{path}[{number}]"
        ranges.append(_parse_range(here, text, fault))
        if ranges[number].subnet.version != ranges[0].subnet.version:
            raise InvalidConfig(f"{here}: {fault}: mixed address families")
    for number, each in enumerate(ranges):
        for earlier in ranges[:number]:
            if each.overlaps(earlier):
                raise InvalidConfig(
                    f"{path}[{number}]: {fault}: subnets {earlier} and {each} overlap"
                )
    return RangeSet(tuple(ranges))


def _parse_range(path: str, text: RangeText, fault: str) -> Range:
    subnet = _parse_subnet(f"{path}.subnet", text.subnet, fault)
    gateway, first, last = (
        _parse_address(f"{path}.{key}", getattr(text, key), fault)
        for key in ("gateway", "rangeStart", "rangeEnd")
    )
    if gateway and gateway.version != subnet.version:
        raise InvalidConfig(f"{path}.gateway: {fault}: {gateway} is not of the family of {subnet}")
    lowest, highest = subnet.network_address + 1, subnet.broadcast_address
    if isinstance(highest, IPv4Address):
        highest -= 1
    start, end = first or lowest, last or highest
    # Go tests the start against the end as well, and says then that it is not in the network.
    if first and (first not in subnet or (end in subnet and int(first) > int(end))):
        raise InvalidConfig(
            f"{path}.rangeStart: {fault}: RangeStart {first} not in network {subnet}"
        )
    if last and (last not in subnet or int(last) < int(start)):
        raise InvalidConfig(f"{path}.rangeEnd: {fault}: RangeEnd {last} not in network {subnet}")
    return Range(subnet=subnet, first=start, last=end, gateway=gateway or lowest)


def _parse_subnet(path: str, text: str, fault: str) -> IPNetwork:
    if not text:
        raise InvalidConfig(f"{path}: {fault}: IP <nil> not v4 nor v6")
    try:
        interface = parse_cidr(text)
    except InvalidConfig as exc:
        raise InvalidConfig(f"{path}: {fault}: {exc.msg}") from exc
    address, network = interface.ip, interface.network
    if network.prefixlen > network.max_prefixlen - 2:
        raise InvalidConfig(f"{path}: {fault}: Network {text} too small to allocate from")
    if ":" in text and address.version == 4:
        raise InvalidConfig(f"{path}: {fault}: IPNet IP and Mask version mismatch")
    if address != network.network_address:
        raise InvalidConfig(
            f"{path}: {fault}: Network has host bits set. For a subnet mask of length "
            f"{network.prefixlen} the network address is {network.network_address}"
        )
    return network


def _parse_address(path: str, text: str, fault: str) -> IPAddress | None:
    try:
        return parse_ip(text) if text else None
    except InvalidConfig as exc:
        raise InvalidConfig(f"{path}: {fault}: {exc.msg}") from exc


def _around_gateway(each: Range, first: IPAddress, last: IPAddress) -> Iterator[Stretch]:
    gateway = each.gateway
    if gateway not in each or not int(first) <= int(gateway) <= int(last):
        yield each, first, last
        return
    if gateway != first:
        yield each, first, gateway - 1
    if gateway != last:
        yield each, gateway + 1, last
