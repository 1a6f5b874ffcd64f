# SPDX-License-Identifier: Apache-2.0
"""host-local's ranges: what is refused and with which words, and the order of addresses."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address
from typing import Any

import pytest

from pycni.errors import InvalidConfig
from pycni.net.ranges import RangeSet, RangeText, parse_range_sets


def parse(*sets: list[dict[str, str]]) -> tuple[RangeSet, ...]:
    """The range sets under `ipam.ranges`."""
    return parse_range_sets(
        tuple(
            (f"ipam.ranges[{number}]", tuple(RangeText(**each) for each in texts))
            for number, texts in enumerate(sets)
        )
    )


def order(range_set: RangeSet, last: str | None) -> list[str]:
    """Every address of the set in the order it is drawn."""
    stretches = range_set.stretches(ip_address(last) if last else None)
    return [
        str(IPv4Address(value))
        for _, first, final in stretches
        for value in range(int(first), int(final) + 1)
    ]


NET = {"subnet": "10.1.2.0/24"}

FAULTS: list[tuple[list[list[dict[str, str]]], str]] = [
    ([[]], "ipam.ranges[0]: invalid range set 0: empty range set"),
    (
        [[{"rangeStart": "10.1.2.3"}]],
        "ipam.ranges[0][0].subnet: invalid range set 0: IP <nil> not v4 nor v6",
    ),
    (
        [[{"subnet": "10.1.2.0/33"}]],
        'ipam.ranges[0][0].subnet: invalid range set 0: not a CIDR: "10.1.2.0/33"',
    ),
    (
        [[{"subnet": "10.1.2.0/31"}]],
        "ipam.ranges[0][0].subnet: invalid range set 0: "
        "Network 10.1.2.0/31 too small to allocate from",
    ),
    (
        [[{"subnet": "::ffff:10.1.2.0/120"}]],
        "ipam.ranges[0][0].subnet: invalid range set 0: IPNet IP and Mask version mismatch",
    ),
    (
        [[NET], [{"subnet": "192.168.1.5/24"}]],
        "ipam.ranges[1][0].subnet: invalid range set 1: Network has host bits set. "
        "For a subnet mask of length 24 the network address is 192.168.1.0",
    ),
    (
        [[NET | {"rangeStart": "10.1.3.1"}]],
        "ipam.ranges[0][0].rangeStart: invalid range set 0: "
        "RangeStart 10.1.3.1 not in network 10.1.2.0/24",
    ),
    (
        [[NET | {"rangeStart": "2001:db8::1"}]],
        "ipam.ranges[0][0].rangeStart: invalid range set 0: "
        "RangeStart 2001:db8::1 not in network 10.1.2.0/24",
    ),
    (
        [[NET | {"rangeEnd": "10.1.3.1"}]],
        "ipam.ranges[0][0].rangeEnd: invalid range set 0: "
        "RangeEnd 10.1.3.1 not in network 10.1.2.0/24",
    ),
    (
        [[NET | {"rangeEnd": "10.1.2.0"}]],
        "ipam.ranges[0][0].rangeEnd: invalid range set 0: "
        "RangeEnd 10.1.2.0 not in network 10.1.2.0/24",
    ),
    (  # Go tests the start against the end and calls it outside the network
        [[NET | {"rangeStart": "10.1.2.50", "rangeEnd": "10.1.2.40"}]],
        "ipam.ranges[0][0].rangeStart: invalid range set 0: "
        "RangeStart 10.1.2.50 not in network 10.1.2.0/24",
    ),
    (  # nothing is left between it and the last address
        [[NET | {"rangeStart": "10.1.2.255"}]],
        "ipam.ranges[0][0].rangeStart: invalid range set 0: "
        "RangeStart 10.1.2.255 not in network 10.1.2.0/24",
    ),
    (
        [[NET | {"gateway": "10.1.2.01"}]],
        'ipam.ranges[0][0].gateway: invalid range set 0: not an IP address: "10.1.2.01"',
    ),
    (  # Go leaves it to the kernel to refuse a route through it
        [[NET | {"gateway": "2001:db8::1"}]],
        "ipam.ranges[0][0].gateway: invalid range set 0: "
        "2001:db8::1 is not of the family of 10.1.2.0/24",
    ),
    (
        [[NET, {"subnet": "2001:db8::/64"}]],
        "ipam.ranges[0][1]: invalid range set 0: mixed address families",
    ),
    (
        [[NET, {"subnet": "10.2.0.0/16"}, {"subnet": "10.1.0.0/16"}]],
        "ipam.ranges[0][2]: invalid range set 0: "
        "subnets 10.1.2.1-10.1.2.254 and 10.1.0.1-10.1.255.254 overlap",
    ),
    ([[NET], [NET]], "ipam.ranges[1]: range set 0 overlaps with 1"),
]


@pytest.mark.parametrize(("sets", "message"), FAULTS, ids=[m for _, m in FAULTS])
def test_a_wrong_range_is_refused_with_its_path_and_the_known_words(
    sets: list[list[dict[str, str]]], message: str
) -> None:
    """The path in front, then what the Go plugin says."""
    with pytest.raises(InvalidConfig) as caught:
        parse(*sets)

    assert message == caught.value.msg


def test_what_is_not_given_has_its_default() -> None:
    """Gateway and start are the first address; the end is before v4's broadcast, v6's very last."""
    v4, v6 = parse([NET], [{"subnet": "2001:db8::/120"}])

    assert "10.1.2.1-10.1.2.254" == str(v4)
    assert "2001:db8::1-2001:db8::ff" == str(v6)
    assert "10.1.2.1" == str(v4.ranges[0].gateway)


def test_mapped_addresses_are_ipv4() -> None:
    """`::ffff:10.1.2.9` is 10.1.2.9, as in Go."""
    (parsed,) = parse([NET | {"rangeStart": "::ffff:10.1.2.9", "rangeEnd": "10.1.2.10"}])

    assert "10.1.2.9-10.1.2.10" == str(parsed)


THREE = [{"subnet": "10.0.0.0/30"}, {"subnet": "10.0.1.0/30"}, {"subnet": "10.0.2.0/30"}]

ORDERS: list[tuple[list[dict[str, str]], str | None, list[str]]] = [
    ([{"subnet": "10.0.0.0/29"}], None, [f"10.0.0.{n}" for n in (2, 3, 4, 5, 6)]),
    ([{"subnet": "10.0.0.0/30"}], None, ["10.0.0.2"]),
    ([{"subnet": "10.0.0.0/29"}], "10.0.0.4", [f"10.0.0.{n}" for n in (5, 6, 2, 3, 4)]),
    ([{"subnet": "10.0.0.0/29"}], "10.0.0.6", [f"10.0.0.{n}" for n in (2, 3, 4, 5, 6)]),
    ([{"subnet": "10.0.0.0/29"}], "10.9.0.6", [f"10.0.0.{n}" for n in (2, 3, 4, 5, 6)]),
    ([{"subnet": "10.0.0.0/29"}], "2001:db8::1", [f"10.0.0.{n}" for n in (2, 3, 4, 5, 6)]),
    (THREE, "10.0.0.2", ["10.0.1.2", "10.0.2.2", "10.0.0.2"]),
    (THREE, "10.0.2.2", ["10.0.0.2", "10.0.1.2", "10.0.2.2"]),
    (  # the gateway is skipped wherever it is
        [{"subnet": "10.0.0.0/29", "gateway": "10.0.0.4"}],
        None,
        [f"10.0.0.{n}" for n in (1, 2, 3, 5, 6)],
    ),
    (  # ... and outside the subnet it takes no address
        [{"subnet": "10.0.0.0/30", "gateway": "10.9.9.9"}],
        None,
        ["10.0.0.1", "10.0.0.2"],
    ),
    (
        [{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.9"}],
        "10.0.0.9",
        ["10.0.0.9"],
    ),
]


@pytest.mark.parametrize(("texts", "last", "expected"), ORDERS)
def test_addresses_are_drawn_round_robin_from_the_one_after_the_last(
    texts: list[dict[str, str]], last: Any, expected: list[str]
) -> None:
    """From the last one given out through all ranges and back to it, without the gateways."""
    (range_set,) = parse(texts)

    assert expected == order(range_set, last)
