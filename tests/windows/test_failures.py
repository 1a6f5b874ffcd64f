# SPDX-License-Identifier: Apache-2.0
"""A service that hangs, half fails or answers oddly, function by function and verb by verb."""

from __future__ import annotations

import json
import time

import msgspec
import pytest

from pycni.testing.hns_simulator import NativeCall, refusal
from pycni.windows import calls
from pycni.windows.abi import Reply
from tests.windows.drive import Doc, Node, bridge, overlay, wait_until_clean

NOTHING: tuple[list[Doc], list[str]] = ([], [])


def residue(node: Node, name: str = "c1_cbr0") -> tuple[list[Doc], list[str]]:
    """Endpoints and addresses of one container."""
    return node.simulator.named("Endpoint", name), node.leases()


@pytest.mark.parametrize("verb", ["ADD", "CHECK", "DEL", "GC", "STATUS"])
def test_no_function_can_hang_a_verb(
    node: Node, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Whichever function hangs, closing a handle included, the verb ends near its deadline."""
    monkeypatch.setattr(calls, "_CLOSE_TIMEOUT_S", 0.05)
    conf = bridge(ipam=node.ipam(), loopbackDSR=True)

    def run(function: str = "") -> None:
        keys: Doc = {"cni.dev/valid-attachments": []} if verb == "GC" else {}
        if verb != "ADD":
            result = node.run("ADD", conf).expect()
            keys |= {"prevResult": result} if verb in ("CHECK", "DEL") else {}
        node.simulator.calls.clear()
        release = node.simulator.hang(function)
        started = time.monotonic()
        node.run(verb, conf | keys, timeout_s=0.1 if function else 30)
        assert time.monotonic() - started < 2, function
        release.set()
        wait_until_clean(node.simulator)
        node.simulator._hooks.clear()

    run()
    for function in sorted({name for name in node.functions() if name.startswith("H")}):
        node.run("DEL", conf).expect()
        run(function)


@pytest.mark.parametrize("how", ["not readable", "a record beside success"])
def test_a_failed_create_leaves_no_endpoint(node: Node, how: str) -> None:
    """The endpoint may be there all the same, and its address must not be freed under it."""

    def create_and_complain(call: NativeCall) -> Reply:
        reply = node.simulator._answer(call)
        return msgspec.structs.replace(reply, record=refusal(0x803B000D).record)

    if how == "not readable":
        node.simulator.fail("HcnQueryEndpointProperties", 0x80070057)
    else:
        node.simulator.hook("HcnCreateEndpoint", create_and_complain)
    conf = bridge(ipam=node.ipam())
    assert 999 == node.run("ADD", conf).expect_error().wire_code
    assert NOTHING == residue(node)
    assert node.functions().index("HcnDeleteEndpoint") < node.functions().index("IPAM DEL")


def test_a_failed_create_that_cannot_be_cleaned_up_keeps_the_address(node: Node) -> None:
    """Until DEL."""
    node.simulator.fail("HcnQueryEndpointProperties", 0x80070057)
    node.simulator.fail("HcnDeleteEndpoint", 0x80070057)
    conf = bridge(ipam=node.ipam())
    assert "undo failed" in node.run("ADD", conf).expect_error().details
    assert ["10.244.3.10"] == node.leases()
    node.run("DEL", conf).expect()
    assert NOTHING == residue(node)


def test_a_failed_create_leaves_no_endpoint_in_schema_1(node: Node) -> None:
    """The same, with an answer that says nothing."""
    node.simulator.compute_systems.add("p")

    def create_and_mumble(call: NativeCall) -> Reply | None:
        if call.texts[:2] != ("POST", "/endpoints/"):
            return None
        node.simulator._answer(call)
        return Reply(text='{"Success":true,"Output":7}')

    node.simulator.hook("HNSCall", create_and_mumble, times=100)
    conf = bridge(ipam=node.ipam())
    assert node.run("ADD", conf, container_id="p", netns="none").expect_error()
    assert NOTHING == residue(node, "p_cbr0")
    node.simulator._hooks.clear()


@pytest.mark.parametrize(
    ("noun", "keys"),
    [
        ("Network", {"Flags": "NonPersistent", "Policies": None, "Owner": None, "Dns": None}),
        ("Network", {"Ipams": None}),
        ("Endpoint", {"Flags": "None", "State": "Created", "Owner": None, "Policies": None}),
        ("Endpoint", {"Dns": None, "Routes": None, "Health": None}),
    ],
)
def test_null_is_absent_and_numbers_come_by_name(node: Node, noun: str, keys: Doc) -> None:
    """The documentation has names where the service has numbers, and Go's clients take null."""

    def answer(call: NativeCall) -> Reply:
        reply = node.simulator._answer(call)
        return msgspec.structs.replace(reply, text=json.dumps(json.loads(reply.text) | keys))

    node.simulator.hook(f"HcnQuery{noun}Properties", answer, times=100)
    conf = bridge(ipam=node.ipam())
    node.run("ADD", conf).expect()
    node.run("DEL", conf).expect()
    node.simulator._hooks.clear()
    assert NOTHING == residue(node)


def test_a_network_type_that_nobody_knows_is_named(node: Node) -> None:
    """By its number."""

    def answer(call: NativeCall) -> Reply:
        reply = node.simulator._answer(call)
        return msgspec.structs.replace(
            reply, text=json.dumps(json.loads(reply.text) | {"Type": 99})
        )

    node.simulator.hook("HcnQueryNetworkProperties", answer)
    assert "network cbr0 is of unexpected type: 99" == node.run("ADD", bridge()).expect_error().msg


def test_gc_spares_what_schema_1_plugged_in(node: Node) -> None:
    """A container without a namespace has the endpoint, though schema 2 shows no user of it."""
    node.simulator.compute_systems.add("p")
    conf = bridge(ipam=node.ipam())
    node.run("ADD", conf, container_id="p", netns="none").expect()
    gc = conf | {"cni.dev/valid-attachments": []}
    node.run("GC", gc, netns="").expect()
    assert ["p"] == node.endpoint("p_cbr0")["SharedContainers"]
    error = node.run("ADD", conf, container_id="p").expect_error()
    assert "it is attached to a container without a namespace" in error.msg
    node.endpoint("p_cbr0")["SharedContainers"].clear()
    node.run("GC", gc, netns="").expect()
    assert NOTHING == residue(node, "p_cbr0")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, "10.244.3.3"),
        ({"gateway": "subnet"}, "10.244.3.2"),
        ({"gateway": "ipam"}, "10.244.3.2"),
    ],
)
def test_ipam_is_asked_again_if_it_gave_the_gateways_address(
    node: Node, keys: Doc, expected: str
) -> None:
    """host-local keeps the subnet's first address free, and the gateway may be the second."""
    ipam = node.ipam(start="")
    result = node.run("ADD", bridge(ipam=ipam, **keys)).expect()
    assert (f"{expected}/24", [expected]) == (result["ips"][0]["address"], node.leases())


def test_an_encapsulated_network_has_its_policies_in_the_reference_order(node: Node) -> None:
    """That of the schema in use, whether it was configured or follows from CNI_NETNS."""
    for number, keys in enumerate(({}, {"apiVersion": 2})):
        ipam = node.ipam("10.245.3.0/24", "10.245.3.10")
        conf = overlay(ipam=ipam, loopbackDSR=True, ipMasq=True, **keys)
        node.run("ADD", conf, container_id=f"o{number}", netns=node.new_namespace()).expect()
        found = [next(iter(policy["Settings"])) for policy in node.policies()]
        assert ["Destinations", "ProviderAddress", "Exceptions"] == found
