# SPDX-License-Identifier: Apache-2.0
"""Policies in both spellings, merged once; pure functions, so on one level."""

from __future__ import annotations

import ipaddress
import logging
from typing import Any

import pytest

from pycni.testing import hns_views
from pycni.windows import policies
from pycni.windows.policies import PolicyList, parse_policy, parse_protocol, to_v1
from pycni.windows.schemas import Policy

Doc = dict[str, Any]

# Schema 1 beside schema 2.
PAIRS: list[tuple[Doc, Doc]] = [
    (
        {"Type": "OutBoundNAT", "ExceptionList": ["10.0.0.0/8"], "VIP": "10.1.2.3"},
        {
            "Type": "OutBoundNAT",
            "Settings": {"Exceptions": ["10.0.0.0/8"], "VirtualIP": "10.1.2.3"},
        },
    ),
    (
        {"Type": "OutBoundNAT", "Destinations": ["10.244.3.10"]},
        {"Type": "OutBoundNAT", "Settings": {"Destinations": ["10.244.3.10"]}},
    ),
    (
        {"Type": "ROUTE", "DestinationPrefix": "11.0.0.0/8", "NextHop": "", "NeedEncap": True},
        {
            "Type": "SDNRoute",
            "Settings": {"DestinationPrefix": "11.0.0.0/8", "NextHop": "", "NeedEncap": True},
        },
    ),
    (
        {"Type": "PA", "PA": "192.168.1.10"},
        {"Type": "ProviderAddress", "Settings": {"ProviderAddress": "192.168.1.10"}},
    ),
    (
        {"Type": "NAT", "InternalPort": 80, "ExternalPort": 8080, "Protocol": "TCP"},
        {
            "Type": "PortMapping",
            "Settings": {"InternalPort": 80, "ExternalPort": 8080, "Protocol": 6},
        },
    ),
    (
        {"Type": "NAT", "InternalPort": 53, "Protocol": "UDP", "ExternalPortReserved": True},
        {"Type": "PortMapping", "Settings": {"InternalPort": 53, "Protocol": 17, "Flags": 4}},
    ),
    ({"Type": "VLAN", "VLAN": 7}, {"Type": "VLAN", "Settings": {"IsolationId": 7}}),
    (
        {"Type": "QOS", "MaximumOutgoingBandwidthInBytes": 125000},
        {"Type": "QOS", "Settings": {"MaximumOutgoingBandwidthInBytes": 125000}},
    ),
    (
        {"Type": "ACL", "Action": "Block", "Direction": "In", "Protocol": "6", "LocalPort": "80"},
        {
            "Type": "ACL",
            "Settings": {
                "Action": "Block",
                "Direction": "In",
                "Protocols": "6",
                "LocalPorts": "80",
            },
        },
    ),
]


@pytest.mark.parametrize(("flat", "nested"), PAIRS, ids=lambda pair: str(pair["Type"]))
def test_both_spellings_are_one_policy(flat: Doc, nested: Doc) -> None:
    """Either is understood, and schema 1 gets back what it was given."""
    expected = Policy(Type=nested["Type"], Settings=nested["Settings"])
    assert expected == parse_policy(flat, where="p")
    assert expected == parse_policy(nested, where="p")
    assert flat == to_v1(expected)
    assert expected == policies.from_v1(flat)


@pytest.mark.parametrize(
    ("flat", "nested"), [pair for pair in PAIRS if pair[0]["Type"] in ("PA", "ROUTE", "NAT")]
)
def test_the_simulator_translates_alike(flat: Doc, nested: Doc) -> None:
    """It has its own translation, so that the two check each other."""
    assert nested == hns_views.policy_from_v1(flat)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("tcp", 6),
        ("TCP", 6),
        ("udp", 17),
        ("icmpv4", 1),
        ("igmp", 2),
        ("ICMPv6", 58),
        ("6", 6),
        ("0x11", 17),
        ("0b110", 6),
        ("0o21", 17),
        ("021", 17),
        ("00", 0),
        ("09", None),
        ("1023", 1023),
        ("1024", None),
        ("sctp", None),
        ("-6", None),
        ("6.0", None),
        ("", None),
    ],
)
def test_protocols_are_read_as_the_reference_reads_them(text: str, number: int | None) -> None:
    """A number in any of Go's bases and ten bits wide, or a known name in any case."""
    assert number == parse_protocol(text)


def test_an_unknown_protocol_is_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The service has no SCTP; the reference skips it in silence."""
    with caplog.at_level(logging.WARNING):
        found = policies.port_mappings(
            host_port=9,
            container_port=9,
            protocol="sctp",
            host_ip=None,
            families=[4],
            local_routed=True,
        )
    assert [] == found
    assert "protocol=sctp hostPort=9" in caplog.text


def test_a_host_address_is_lost_in_schema_1_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The port is then open on every address of the node."""
    settings = {"InternalPort": 1, "ExternalPort": 2, "Protocol": 6, "VIP": "192.168.1.10"}
    with caplog.at_level(logging.WARNING):
        flat = to_v1(Policy(Type="PortMapping", Settings=settings))
    assert "VIP" not in flat
    assert "open on all" in caplog.text


def test_a_plain_outbound_nat_takes_the_exceptions() -> None:
    """Settings of its own survive the merge."""
    mine = Policy(Type="OutBoundNAT", Settings={"VirtualIP": "10.1.2.3"})
    found = PolicyList([mine])
    found.add_exceptions([ipaddress.ip_network("10.0.0.0/8")])
    expected = {"VirtualIP": "10.1.2.3", "Exceptions": ["10.0.0.0/8"]}
    assert (Policy(Type="OutBoundNAT", Settings=expected),) == found.freeze()


def test_destinations_and_exceptions_stay_apart() -> None:
    """One says what to NAT, the other what not to."""
    found = PolicyList()
    found.add_destinations([ipaddress.ip_address("10.244.3.10")] * 2)
    found.add_exceptions([ipaddress.ip_network("10.0.0.0/8")])
    assert [["10.244.3.10"], ["10.0.0.0/8"]] == [
        next(iter(policy.Settings.values())) for policy in found.freeze()
    ]


@pytest.mark.parametrize(
    ("actual", "wanted", "found"),
    [
        ({"Exceptions": ["a", "b"]}, {"Exceptions": ["b"]}, True),
        ({"Exceptions": ["a"]}, {"Exceptions": ["b"]}, False),
        ({"Protocol": 6, "Extra": 1}, {"Protocol": 6}, True),
        ({"Protocol": "6"}, {"Protocol": 6}, True),
        ({}, {"VIP": ""}, True),
        ({}, {"VIP": "10.0.0.1"}, False),
        ({"Id": "ABC"}, {"Id": "abc"}, True),
        ({"Ports": [{"b": 1, "a": 2}]}, {"Ports": [{"a": 2, "b": 1}]}, True),
        ({"Exceptions": "a"}, {"Exceptions": ["a"]}, False),
    ],
)
def test_a_policy_is_found_among_what_the_service_shows(
    actual: Doc, wanted: Doc, found: bool
) -> None:
    """It adds settings, turns numbers into texts and orders lists as it likes."""
    shown = [Policy(Type="portMAPPING", Settings=actual)]
    assert found == policies.contains(shown, Policy(Type="PortMapping", Settings=wanted))
