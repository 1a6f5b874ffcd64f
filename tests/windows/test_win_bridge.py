# SPDX-License-Identifier: Apache-2.0
"""win-bridge, verb by verb, on both schemas."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from pycni import plugins
from pycni.errors import CniError, InvalidConfig
from pycni.runtime.dispatch import parse_config
from pycni.windows import errors
from tests.windows.drive import Doc, Node, bridge, wait_until_clean


def test_add_makes_an_endpoint_in_the_namespace(node: Node) -> None:
    """ADD creates `<container id>_<network>` and attaches it to CNI_NETNS."""
    result = node.run("ADD", bridge(ipam=node.ipam())).expect()
    assert {
        "cniVersion": "1.1.0",
        "interfaces": [{"mac": "00-15-5D-52-C0-01", "name": "c1_cbr0"}],
        "ips": [{"address": "10.244.3.10/24", "gateway": "10.244.3.2"}],
    } == result
    assert node.namespace == node.endpoint("c1_cbr0")["HostComputeNamespace"]


def test_keys_match_without_regard_to_case(node: Node) -> None:
    """`ApiVersion`, `Policies`, `Name`, `Nameservers`, `Ipam.Type` all occur in the wild."""
    ipam = {key.upper(): value for key, value in node.ipam().items()}
    value = {"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.0.0.0/8"]}}
    conf = bridge(
        ApiVersion=2,
        Ipam=ipam,
        Policies=[{"Name": "EndpointPolicy", "Value": value}],
        Dns={"Nameservers": ["10.96.0.10"], "Search": ["a.b"]},
        LoopbackDSR=True,
        RuntimeConfig={"PortMappings": [{"HostPort": 8080, "ContainerPort": 80}]},
    )
    node.run("ADD", conf).expect()
    assert ["OutBoundNAT", "PortMapping", "OutBoundNAT"] == [p["Type"] for p in node.policies()]
    assert {"Search": ["a.b"], "ServerList": ["10.96.0.10"]} == node.created()["Dns"]


def test_a_policys_own_keys_are_left_alone(node: Node) -> None:
    """They are the service's, not CNI's."""
    settings = {"Exceptions": ["10.0.0.0/8"], "maxPortPoolUsage": 7}
    value = {"Type": "OutBoundNAT", "Settings": settings}
    node.run("ADD", bridge(policies=[{"name": "EndpointPolicy", "value": value}])).expect()
    assert [value] == node.policies()


def test_the_former_key_for_policies_is_read(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """cni.dev still documents HcnPolicyArgs; the reference dropped it in silence."""
    args = [{"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.0.0.0/8"]}}]
    node.run("ADD", bridge(HcnPolicyArgs=args)).expect()
    assert args == node.policies()
    assert "obsolete" in caplog.text


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [
        ({}, {"Domain": "d.l", "Search": ["a"], "ServerList": ["10.0.0.1"], "Options": ["o"]}),
        (
            {"servers": ["10.0.0.2"]},
            {"Domain": "d.l", "Search": ["a"], "ServerList": ["10.0.0.2"], "Options": ["o"]},
        ),
        (
            {"searches": ["b", "c"], "options": ["p"]},
            {"Domain": "d.l", "Search": ["b", "c"], "ServerList": ["10.0.0.1"], "Options": ["p"]},
        ),
    ],
)
def test_each_runtime_dns_list_replaces_the_configured_one(
    node: Node, runtime: Doc, expected: Doc
) -> None:
    """When it is not empty."""
    dns = {"domain": "d.l", "search": ["a"], "nameservers": ["10.0.0.1"], "options": ["o"]}
    node.run("ADD", bridge(dns=dns, runtimeConfig={"dns": runtime})).expect()
    assert expected == node.created()["Dns"]


def test_bandwidth_limits_what_the_container_sends(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """In bytes; the service cannot limit what it receives, and that is said."""
    limits = {"egressRate": 8_000_000, "ingressRate": 8_000_000}
    node.run("ADD", bridge(runtimeConfig={"bandwidth": limits})).expect()
    settings = {"MaximumOutgoingBandwidthInBytes": 1_000_000}
    assert [{"Type": "QOS", "Settings": settings}] == node.policies()
    assert "outgoing traffic only" in caplog.text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vxlan0", "network vxlan0 is of unexpected type: Overlay"),
        ("nonet", 'error while getting network nonet: Network name "nonet" not found'),
    ],
)
def test_the_network_must_be_there_and_bridged(node: Node, name: str, message: str) -> None:
    """The reference's words."""
    assert message == node.run("ADD", bridge(name=name)).expect_error().msg


def test_l2tunnel_networks_are_bridged_too(node: Node) -> None:
    """As Azure's are."""
    node.simulator.add_network({"Name": "azure", "Type": "L2Tunnel", "Subnets": []})
    node.run("ADD", bridge(name="azure", ipam=node.ipam())).expect()


def test_an_endpoint_on_a_network_of_the_same_name_before_is_replaced(node: Node) -> None:
    """The network was recreated; nothing leads to the old endpoint any more."""
    other = node.simulator.add_network({"Name": "old", "Type": "L2Bridge", "Subnets": []})
    node.simulator.add_endpoint(other, {"Name": "c1_cbr0"})
    node.run("ADD", bridge(ipam=node.ipam())).expect()
    (network,) = node.simulator.named("Network", "cbr0")
    assert network["ID"] == node.endpoint("c1_cbr0")["HostComputeNetwork"]


def test_what_an_interrupted_add_left_is_replaced(node: Node) -> None:
    """Its address may be another container's by now."""
    (network,) = node.simulator.named("Network", "cbr0")
    left = node.simulator.add_endpoint(uuid.UUID(network["ID"]), {"Name": "c1_cbr0"})
    node.run("ADD", bridge(ipam=node.ipam())).expect()
    assert str(left) != node.endpoint("c1_cbr0")["ID"]


def test_an_endpoint_in_another_living_namespace_is_not_touched(node: Node) -> None:
    """A container id in use twice is the runtime's fault; neither loses its network."""
    conf = bridge(ipam=node.ipam())
    node.run("ADD", conf).expect()
    before = dict(node.endpoint("c1_cbr0"))
    error = node.run("ADD", conf, netns=node.new_namespace()).expect_error()
    assert isinstance(error, errors.HnsConflict)
    assert f"attached to namespace {node.namespace}" in error.msg
    assert before == node.endpoint("c1_cbr0")
    assert ["10.244.3.10"] == node.leases()


def test_a_timed_out_create_keeps_the_address_until_del(node: Node) -> None:
    """The endpoint may still appear; DEL finds it by its name, and frees the address then."""
    release = node.simulator.hang("HcnCreateEndpoint", after=True)
    conf = bridge(ipam=node.ipam())
    error = node.run("ADD", conf, timeout_s=0.3).expect_error()
    assert (11, ["10.244.3.10"]) == (error.wire_code, node.leases())
    assert "stays reserved until DEL" in error.details
    release.set()
    wait_until_clean(node.simulator)
    assert 1 == len(node.simulator.named("Endpoint", "c1_cbr0"))
    node.run("DEL", conf).expect()
    assert ([], []) == (node.simulator.named("Endpoint", "c1_cbr0"), node.leases())


def test_an_add_out_of_time_still_cleans_up(node: Node) -> None:
    """With time of its own: attaching hung, and nothing is left behind."""
    release = node.simulator.hang("HcnModifyNamespace")
    error = node.run("ADD", bridge(ipam=node.ipam()), timeout_s=0.3).expect_error()
    assert 11 == error.wire_code
    assert ([], []) == (node.simulator.named("Endpoint", "c1_cbr0"), node.leases())
    release.set()
    wait_until_clean(node.simulator)


@pytest.mark.parametrize(
    ("address", "keys", "message"),
    [
        ("10.244.3.10/24", {"gateway": "ipam"}, "gateway: IPAM gave no gateway for 10.244.3.10/24"),
        ("10.244.3.10/32", {}, "ipam: 10.244.3.10/32 is too small for its gateway"),
    ],
)
def test_a_gateway_that_cannot_be_found_is_named(
    node: Node, address: str, keys: Doc, message: str
) -> None:
    """Code 7, and the address goes back."""
    conf = bridge(ipam=node.answer_ipam({"ips": [{"address": address}]}), **keys)
    error = node.run("ADD", conf).expect_error()
    assert (7, True) == (error.wire_code, error.msg.startswith(message)), error.msg
    assert "IPAM DEL" in node.functions()


@pytest.mark.parametrize(
    ("ips", "message"),
    [
        ([], "IPAM plugin return is missing IP config"),
        (
            [{"address": "10.244.3.10/24"}, {"address": "10.244.3.11/24"}],
            "ipam: an endpoint has one IPv4 and one IPv6 address at most",
        ),
    ],
)
def test_an_endpoint_takes_one_address_of_each_family(
    node: Node, ips: list[Doc], message: str
) -> None:
    """None and two of a kind are errors."""
    error = node.run("ADD", bridge(ipam=node.answer_ipam({"ips": ips}))).expect_error()
    assert error.msg.startswith(message)


def test_a_gateway_of_one_family_leaves_the_other_to_ipam(node: Node) -> None:
    """An address configured for IPv4 says nothing of IPv6."""
    (network,) = node.simulator.named("Network", "cbr0")
    network["Ipams"][0]["Subnets"].append({"IpAddressPrefix": "fd00:3::/64"})
    ips = [
        {"address": "10.244.3.10/24", "gateway": "10.244.3.1"},
        {"address": "fd00:3::a/64", "gateway": "fd00:3::1"},
    ]
    conf = bridge(ipam=node.answer_ipam({"ips": ips}), gateway="10.244.3.9")
    result = node.run("ADD", conf).expect()
    assert ["10.244.3.9", "fd00:3::1"] == [ip["gateway"] for ip in result["ips"]]


@pytest.mark.parametrize("plugin", ["win-bridge", "win-overlay", "nat"])
def test_a_network_is_validated_without_touching_anything(node: Node, plugin: str) -> None:
    """Before it is accepted, and before a chain acts."""
    conf = {"name": "n", "type": plugin, "policies": [{"name": "EndpointPolicy", "value": {}}]}
    found = plugins.load(plugin)
    found.validate(parse_config(found, json.dumps(conf | {"policies": []}).encode()))
    with pytest.raises(InvalidConfig, match=r"policies\[0\].value: a policy needs a Type"):
        found.validate(parse_config(found, json.dumps(conf).encode()))
    assert [] == node.functions()


# -- schema 1 --------------------------------------------------------------------------------------


def v1(node: Node) -> Doc:
    """A schema 1 configuration, with its containers running."""
    node.simulator.compute_systems |= {"pause", "work"}
    return bridge(apiVersion=1, ipam=node.ipam())


def test_a_workload_shares_the_pause_containers_endpoint(node: Node) -> None:
    """And leaves it when it goes."""
    conf = v1(node)
    first = node.run("ADD", conf, container_id="pause", netns="none").expect()
    second = node.run("ADD", conf, container_id="work", netns="container:pause").expect()
    assert first == second
    assert ["pause", "work"] == node.endpoint("pause_cbr0")["SharedContainers"]
    node.run("DEL", conf, container_id="work", netns="container:pause").expect()
    assert ["pause"] == node.endpoint("pause_cbr0")["SharedContainers"]
    assert ["10.244.3.10"] == node.leases()
    node.run("DEL", conf, container_id="pause", netns="none").expect()
    assert ([], []) == (node.simulator.named("Endpoint", "pause_cbr0"), node.leases())


def test_a_workload_needs_the_pause_containers_endpoint(node: Node) -> None:
    """It never makes one."""
    error = node.run("ADD", v1(node), container_id="work", netns="container:pause").expect_error()
    expected = "failed to find HNSEndpoint pause_cbr0: Endpoint pause_cbr0 not found"
    assert expected == error.msg


def test_a_workload_may_be_asked_for_before_it_runs(node: Node) -> None:
    """kubelet does; the container is attached when it starts."""
    conf = v1(node)
    node.run("ADD", conf, container_id="pause", netns="none").expect()
    node.run("ADD", conf, container_id="late", netns="container:pause").expect()
    node.run("CHECK", conf, container_id="pause", netns="none").expect()


def test_schema_1_policies_are_flat(node: Node) -> None:
    """With the protocol by name."""
    conf = v1(node) | {"runtimeConfig": {"portMappings": [{"hostPort": 1, "containerPort": 2}]}}
    node.run("ADD", conf, container_id="pause", netns="none").expect()
    flat = {"Type": "NAT", "InternalPort": 2, "ExternalPort": 1, "Protocol": "TCP"}
    assert [flat] == node.created_v1()["Policies"]


def test_dual_stack_in_schema_1(node: Node) -> None:
    """Each family has keys of its own."""
    six = {"address": "fd00:3::a/64", "gateway": "fd00:3::1"}
    ips = [{"address": "10.244.3.10/24", "gateway": "10.244.3.1"}, six]
    (network,) = node.simulator.named("Network", "cbr0")
    network["Ipams"][0]["Subnets"].append({"IpAddressPrefix": "fd00:3::/64"})
    conf = v1(node) | {"ipam": node.answer_ipam({"ips": ips})}
    result = node.run("ADD", conf, container_id="pause", netns="none").expect()
    body = node.created_v1()
    assert ("fd00:3::a", "fd00:3::1") == (body["IPv6Address"], body["GatewayAddressV6"])
    assert ips[1] == result["ips"][1]


def test_schema_1_gc_goes_by_name_and_use(node: Node) -> None:
    """Endpoints carry no owner there."""
    conf = v1(node)
    node.run("ADD", conf, container_id="pause", netns="none").expect()
    gc = conf | {"cni.dev/valid-attachments": []}
    node.run("GC", gc, netns="").expect()
    assert node.simulator.named("Endpoint", "pause_cbr0")
    node.endpoint("pause_cbr0")["SharedContainers"].clear()
    node.run("GC", gc, netns="").expect()
    assert ([], []) == (node.simulator.named("Endpoint", "pause_cbr0"), node.leases())


# -- CHECK -----------------------------------------------------------------------------------------

FULL: Doc = {
    "dns": {
        "nameservers": ["10.96.0.10"],
        "search": ["a.b"],
        "domain": "d.l",
        "options": ["ndots:5"],
    },
    "ipMasqNetwork": "10.244.0.0/16",
    "loopbackDSR": True,
    "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80}]},
}


@pytest.fixture
def checked(node: Node) -> Doc:
    """A container with everything, as CHECK is asked about it."""
    conf = bridge(ipam=node.ipam(), **FULL)
    result = node.run("ADD", conf).expect()
    return conf | {"prevResult": result}


def test_check_passes_on_what_add_made(node: Node, checked: Doc) -> None:
    """And on what others added to it."""
    endpoint = node.endpoint("c1_cbr0")
    endpoint["Policies"].append({"Type": "ACL", "Settings": {"Action": "Allow"}})
    endpoint["Policies"][0]["Settings"]["Added"] = True
    node.run("CHECK", checked).expect()


def drop_policy(kind: str) -> Any:
    def change(endpoint: Doc) -> None:
        endpoint["Policies"] = [p for p in endpoint["Policies"] if p["Type"] != kind]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e.update(State=5), "endpoint c1_cbr0 is degraded"),
        (lambda e: e.update(MacAddress="00-00-00-00-00-00"), "has MAC 00-00-00-00-00-00"),
        (
            lambda e: e["IpConfigurations"][0].update(IpAddress="10.244.3.99"),
            "does not have address 10.244.3.10, but 10.244.3.99",
        ),
        (lambda e: e["Dns"].update(ServerList=[]), "has DNS nameservers []"),
        (lambda e: e["Dns"].update(Search=["x"]), "has DNS search ['x'], not ['a.b']"),
        (lambda e: e["Dns"].update(Domain="x"), "has DNS domain x, not d.l"),
        (lambda e: e["Dns"].update(Options=[]), "has DNS options [], not ['ndots:5']"),
        (
            lambda e: e.update(HostComputeNamespace="00000000-0000-0000-0000-000000000000"),
            "endpoint c1_cbr0 is not attached to",
        ),
        (drop_policy("PortMapping"), "lacks policy PortMapping"),
        (drop_policy("OutBoundNAT"), "lacks policy OutBoundNAT"),
    ],
)
def test_check_names_what_is_different(node: Node, checked: Doc, change: Any, message: str) -> None:
    """State, MAC, addresses, DNS, namespace, policies."""
    change(node.endpoint("c1_cbr0"))
    error = node.run("CHECK", checked).expect_error()
    assert message in error.msg


def test_check_needs_the_endpoint_and_the_network(node: Node, checked: Doc) -> None:
    """Neither may be missing."""
    node.simulator.objects["Endpoint"].clear()
    error = node.run("CHECK", checked).expect_error()
    assert "endpoint c1_cbr0 does not exist on network cbr0" == error.msg
    node.simulator.objects["Network"].clear()
    assert "not found" in node.run("CHECK", checked).expect_error().msg


def test_check_asks_ipam_too(node: Node, checked: Doc) -> None:
    """A lease that is gone is a fault."""
    (node.data_dir / "cbr0" / "10.244.3.10").unlink()
    assert "Failed to find address" in node.run("CHECK", checked).expect_error().msg


# -- STATUS ----------------------------------------------------------------------------------------


def test_status_knows_whether_add_would_work(node: Node) -> None:
    """Service, network, type, IPAM."""
    node.run("STATUS", bridge(ipam=node.ipam())).expect()
    wrong = node.run("STATUS", bridge(name="vxlan0")).expect_error()
    assert (50, "network vxlan0 is of unexpected type: Overlay") == (wrong.wire_code, wrong.msg)
    empty = node.ipam("10.244.3.0/30", "10.244.3.2")
    node.run("ADD", bridge(ipam=empty, gateway="subnet")).expect()
    full = node.run("STATUS", bridge(ipam=empty)).expect_error()
    assert 50 == full.wire_code


@pytest.mark.parametrize("hresult", [0x80070422, 0x800706BA])
def test_status_says_when_the_service_does_not_answer(node: Node, hresult: int) -> None:
    """Code 50 with the reason in its details."""
    for function in ("HNSCall", "HcnEnumerateNetworks"):
        node.simulator.fail(function, hresult, times=1000)
    error = node.run("STATUS", bridge(), timeout_s=0.2).expect_error()
    assert (50, "the host networking service does not answer") == (error.wire_code, error.msg)
    assert error.details
    node.simulator._hooks.clear()


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"apiVersion": "2"}, "apiVersion"),
        ({"policies": [{"name": "EndpointPolicy", "value": []}]}, "policies[0].value"),
        ({"loopbackDSR": "yes"}, "loopbackDSR"),
        ({"gateway": "router"}, "gateway"),
        ({"runtimeConfig": {"portMappings": [{"hostPort": "x"}]}}, "runtimeConfig.portMappings[0]"),
    ],
)
def test_wrong_keys_are_named_before_anything_is_touched(node: Node, keys: Doc, path: str) -> None:
    """Code 7, the path in the user's spelling, and no call."""
    error: CniError = node.run("ADD", bridge(ipam=node.ipam(), **keys)).expect_error()
    assert (7, True) == (error.wire_code, error.msg.startswith(path)), error.msg
    assert [] == node.functions()
