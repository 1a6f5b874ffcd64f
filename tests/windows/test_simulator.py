# SPDX-License-Identifier: Apache-2.0
"""The simulator's rules: each document it refuses, with the code it answers."""

from __future__ import annotations

import json
import pathlib
import uuid
from typing import Any

import pytest

from pycni.testing import hns_rules
from pycni.testing.hns_forwarder import decode_request, encode_reply
from pycni.testing.hns_simulator import HnsSimulator
from pycni.windows.abi import Reply
from tests.windows.drive import CBR0, VXLAN0

Doc = dict[str, Any]
SUBNET = {
    "IpAddressPrefix": "10.9.0.0/24",
    "Routes": [{"NextHop": "10.9.0.1", "DestinationPrefix": "0.0.0.0/0"}],
}
V2 = {"SchemaVersion": {"Major": 2, "Minor": 0}}


@pytest.fixture
def simulator() -> HnsSimulator:
    simulator = HnsSimulator()
    simulator.add_network(CBR0)
    simulator.add_network(VXLAN0)
    return simulator


def create(simulator: HnsSimulator, noun: str, doc: Doc, handle: int = 0) -> Reply:
    return simulator.invoke(f"HcnCreate{noun}", handle=handle, texts=(json.dumps(doc | V2),))


def create_endpoint(simulator: HnsSimulator, network: str, doc: Doc) -> Reply:
    (found,) = simulator.named("Network", network)
    handle = simulator.invoke("HcnOpenNetwork", guid=uuid.UUID(found["ID"])).handle
    return create(simulator, "Endpoint", {"Name": "e"} | doc, handle)


NOBODY = "5f0ad2b4-1c3e-4f7a-9d21-6b8e7c0a9f13"


@pytest.mark.parametrize(
    ("doc", "hresult"),
    [
        ({"Name": "n", "Type": "L2Bridge"}, 0),
        ({"Name": "n"}, 0),
        ({"Name": "n", "Type": "l2bridge"}, 0),
        ({"Name": "n", "Type": "Bridge"}, hns_rules.INVALID_NETWORK_TYPE),
        ({"Name": "n", "Type": 99}, hns_rules.INVALID_NETWORK_TYPE),
        ({"Type": "NAT"}, hns_rules.INVALID_NETWORK),
        ({"Name": "cbr0", "Type": "NAT"}, hns_rules.NETWORK_EXISTS),
        ({"Name": "n", "Policies": [{"Type": "Bogus"}]}, hns_rules.INVALID_POLICY_TYPE),
        (
            {"Name": "n", "Ipams": [{"Subnets": [{"IpAddressPrefix": "10.9.0.7/24"}]}]},
            hns_rules.INVALID_PREFIX,
        ),
        (
            {"Name": "n", "Type": "Overlay", "Ipams": [{"Subnets": [SUBNET]}]},
            hns_rules.INVALID_POLICY,
        ),
        ({"Name": "n", "ID": "not-a-guid"}, hns_rules.INVALID_GUID),
    ],
)
def test_networks(simulator: HnsSimulator, doc: Doc, hresult: int) -> None:
    """Type, name, policies, prefixes, isolation, id."""
    assert hresult == create(simulator, "Network", doc).hresult


@pytest.mark.parametrize(
    ("doc", "hresult"),
    [
        ({}, 0),
        (
            {"HostComputeNamespace": "5f0ad2b4-1c3e-4f7a-9d21-6b8e7c0a9f13"},
            hns_rules.INVALID_ENDPOINT,
        ),
        ({"MacAddress": "00:15:5d:00:00:01"}, hns_rules.INVALID_ENDPOINT),
        ({"MacAddress": "0E-2A-0a-f4-03-0a"}, 0),
        ({"IpConfigurations": [{"IpAddress": "10.244.3.9"}]}, 0),
        ({"IpConfigurations": [{"IpAddress": "10.7.0.9"}]}, hns_rules.INVALID_IP),
        ({"IpConfigurations": [{"IpAddress": "nonsense"}]}, hns_rules.INVALID_IP),
        (
            {"IpConfigurations": [{"IpAddress": "10.244.3.9", "PrefixLength": 300}]},
            hns_rules.INVALID_JSON,
        ),
        ({"IpConfigurations": [{"IpAddress": "10.244.3.0"}]}, hns_rules.RESERVED_ADDRESS),
        ({"IpConfigurations": [{"IpAddress": "10.244.3.1"}]}, hns_rules.RESERVED_ADDRESS),
        ({"IpConfigurations": [{"IpAddress": "10.244.3.255"}]}, hns_rules.RESERVED_ADDRESS),
        (
            {"IpConfigurations": [{"IpAddress": f"10.244.3.{i}"} for i in (8, 9)]},
            hns_rules.INVALID_ENDPOINT,
        ),
        ({"Policies": [{"Type": "Bogus"}]}, hns_rules.INVALID_POLICY_TYPE),
        ({"Policies": [{"Type": "SDNROUTE", "Settings": {"DestinationPrefix": "11.0.0.0/8"}}]}, 0),
        (
            {"Policies": [{"Type": "OutBoundNAT", "Settings": {"Destinations": ["<nil>"]}}]},
            hns_rules.INVALID_POLICY,
        ),
        (
            {"Policies": [{"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.0.0.1/8"]}}]},
            hns_rules.INVALID_POLICY,
        ),
        (
            {"Policies": [{"Type": "PortMapping", "Settings": {"ExternalPort": 1}}]},
            hns_rules.NO_INTERNAL_PORT,
        ),
        (
            {"Policies": [{"Type": "PortMapping", "Settings": {"InternalPort": 70000}}]},
            hns_rules.INVALID_JSON,
        ),
        (
            {"Policies": [{"Type": "ProviderAddress", "Settings": {}}]},
            hns_rules.INVALID_POLICY,
        ),
        (
            {
                "Policies": [
                    {
                        "Type": "PortMapping",
                        "Settings": {"InternalPort": 1, "ExternalPort": 2, "Protocol": 6},
                    }
                ]
                * 2
            },
            hns_rules.PORT_EXISTS,
        ),
    ],
)
def test_endpoints(simulator: HnsSimulator, doc: Doc, hresult: int) -> None:
    """Namespace, MAC, addresses, policies."""
    assert hresult == create_endpoint(simulator, "cbr0", doc).hresult


def test_host_bits_pass_on_server_2019(simulator: HnsSimulator) -> None:
    """The one rule that is known to differ between versions."""
    simulator.version = (9, 3)
    policy = {"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.0.0.1/8"]}}
    assert 0 == create_endpoint(simulator, "cbr0", {"Policies": [policy]}).hresult


def test_addresses_and_ports_are_given_once(simulator: HnsSimulator) -> None:
    """To one endpoint at a time."""
    address = {"IpConfigurations": [{"IpAddress": "10.244.3.9"}]}
    settings = {"InternalPort": 80, "ExternalPort": 8080, "Protocol": 6}
    ports = {"Policies": [{"Type": "PortMapping", "Settings": settings}]}
    assert 0 == create_endpoint(simulator, "cbr0", address | ports).hresult
    assert hns_rules.RESERVED_ADDRESS == create_endpoint(simulator, "cbr0", address).hresult
    assert hns_rules.PORT_EXISTS == create_endpoint(simulator, "vxlan0", ports).hresult


@pytest.mark.parametrize(
    ("version", "schema", "hresult"),
    [
        ((9, 2), (2, 0), 0),
        ((9, 1), (2, 0), hns_rules.UNSUPPORTED),
        ((13, 2), (2, 4), 0),
        ((9, 2), (2, 4), hns_rules.UNSUPPORTED),
        ((13, 2), (3, 0), hns_rules.UNSUPPORTED),
    ],
)
def test_schemas_by_version(
    simulator: HnsSimulator, version: tuple[int, int], schema: tuple[int, int], hresult: int
) -> None:
    """2.0 came with 1809."""
    simulator.version = version
    query = json.dumps({"SchemaVersion": {"Major": schema[0], "Minor": schema[1]}})
    assert hresult == simulator.invoke("HcnEnumerateNetworks", texts=(query,)).hresult


@pytest.mark.parametrize(
    ("function", "texts", "hresult"),
    [
        ("HcnEnumerateNetworks", ("{",), hns_rules.INVALID_JSON),
        ("HcnEnumerateNetworks", ("[]",), hns_rules.INVALID_JSON),
        ("HcnOpenNetwork", (), hns_rules.E_NOTFOUND),
        ("HcnDeleteEndpoint", (), hns_rules.E_NOTFOUND),
        ("HcnCloseNetwork", (), hns_rules.E_HANDLE),
        ("HcnQueryNetworkProperties", ("{}",), hns_rules.E_HANDLE),
        ("HcnCreateNamespace", ('{"Type":"Bogus"}',), hns_rules.E_INVALIDARG),
        ("HcnCreateNamespace", ('{"Type":9}',), hns_rules.E_INVALIDARG),
        ("HcnBogus", (), hns_rules.UNSUPPORTED),
    ],
)
def test_calls(
    simulator: HnsSimulator, function: str, texts: tuple[str, ...], hresult: int
) -> None:
    """Malformed, unknown, invalid."""
    reply = simulator.invoke(function, texts=texts)
    assert hresult == reply.hresult
    assert hresult == json.loads(reply.record)["ErrorCode"]


def test_a_network_in_use_stays(simulator: HnsSimulator) -> None:
    """It has references."""
    create_endpoint(simulator, "cbr0", {})
    (network,) = simulator.named("Network", "cbr0")
    reply = simulator.invoke("HcnDeleteNetwork", guid=uuid.UUID(network["ID"]))
    assert hns_rules.HAS_REFERENCES == reply.hresult


def test_a_restart_takes_what_windows_does_not_keep(simulator: HnsSimulator) -> None:
    """Endpoints, namespaces and NAT networks."""
    simulator.add_network({"Name": "nat", "Type": "NAT"} | V2)
    create_endpoint(simulator, "cbr0", {})
    simulator.restart_node()
    assert ["cbr0", "vxlan0"] == [doc["Name"] for doc in simulator.objects["Network"].values()]
    assert {} == simulator.objects["Endpoint"]


def test_every_rule_says_where_it_comes_from() -> None:
    """Documented or inferred: nobody can check them without Windows."""
    source = pathlib.Path(hns_rules.__file__).read_text(encoding="utf-8")
    for block in source.split("\ndef ")[1:]:
        if block.startswith("check_"):
            assert "[documented" in block or "[inferred" in block or "One schema 2" in block, block


def test_frames_survive_the_wire() -> None:
    """A request as fakehns.c writes it, and a reply."""
    ident = uuid.uuid4()
    frame = (
        b"\x07\0HNSCall"
        + ident.bytes_le
        + (4096).to_bytes(8, "little")
        + b"\2\0"
        + b"\1\0\0\0a\0"
        + b"\0\0\0\0"
    )
    assert ("HNSCall", ident, 4096, ("a", "")) == decode_request(frame)
    reply = encode_reply(Reply(hresult=0x80070490, handle=8, text="é"))
    assert bytes.fromhex("16000000 90040780 0800000000000000 01000000 e900 ffffffff") == reply
