# SPDX-License-Identifier: Apache-2.0
"""The 24 known defects of the reference plugins and their neighbours, each by its number.

docs/windows.md lists them with their public reports. Each test shows the right behaviour.
"""

from __future__ import annotations

import logging
import uuid

import pytest

from pycni.errors import CniError, InvalidConfig
from pycni.testing import hns_views
from pycni.testing.hns_simulator import NativeCall
from pycni.windows import errors
from pycni.windows.abi import Reply
from tests.windows.drive import CBR0, Node, bridge, overlay, wait_until_clean

PREFERRED = "10.244.3.10"


def v4(address: str = "10.244.3.10/24", gateway: str = "10.244.3.1") -> dict[str, object]:
    """An IPAM result with one IPv4 address."""
    return {"ips": [{"address": address, "gateway": gateway}]}


def dual(node: Node) -> dict[str, object]:
    """Make cbr0 dual stack; an IPAM result with one address of each family."""
    (network,) = node.simulator.named("Network", "cbr0")
    network["Ipams"][0]["Subnets"].append(
        {
            "IpAddressPrefix": "fd00:3::/64",
            "Routes": [{"NextHop": "fd00:3::1", "DestinationPrefix": "::/0"}],
        }
    )
    six = {"address": "fd00:3::a/64", "gateway": "fd00:3::1"}
    return {"ips": [{"address": "10.244.3.10/24", "gateway": "10.244.3.1"}, six]}


def test_defect_01_a_second_add_returns_the_first_result_and_keeps_the_address(node: Node) -> None:
    """It used to fail and to free the living container's address."""
    conf = bridge(ipam=node.ipam())
    first = node.run("ADD", conf).expect()
    assert first == node.run("ADD", conf).expect()
    assert [PREFERRED] == node.leases()
    assert 1 == node.functions().count("IPAM ADD")
    assert "IPAM DEL" not in node.functions()


def test_defect_02_the_endpoint_goes_before_its_address(node: Node) -> None:
    """An address that is still configured must not be given to anyone else."""
    conf = bridge(ipam=node.ipam())
    node.run("ADD", conf).expect()
    node.simulator.fail("HcnDeleteEndpoint", 0x803B0020, times=100)
    error = node.run("DEL", conf, timeout_s=0.3).expect_error()
    assert 11 == error.wire_code
    assert [PREFERRED] == node.leases()
    node.simulator._hooks.clear()
    node.run("DEL", conf).expect()
    assert [] == node.leases()
    assert node.functions().index("HcnDeleteEndpoint") < node.functions().index("IPAM DEL")


def test_defect_02_an_absent_endpoint_still_releases_the_address(node: Node) -> None:
    """Somebody else removed it; the lease must go all the same (containerd 6181, 6135)."""
    conf = bridge(ipam=node.ipam())
    node.run("ADD", conf).expect()
    node.simulator.objects["Endpoint"].clear()
    node.run("DEL", conf).expect()
    assert [] == node.leases()


def test_defect_03_the_api_follows_the_namespace(node: Node) -> None:
    """A GUID means schema 2, whatever the reference's default is."""
    node.run("ADD", bridge(ipam=node.ipam())).expect()
    assert "HcnCreateEndpoint" in node.functions()
    node.simulator.compute_systems.add("pause")
    node.run("ADD", bridge(ipam=node.ipam()), container_id="pause", netns="none").expect()
    assert "HcsModifyComputeSystem" in node.functions()


@pytest.mark.parametrize(("version", "netns"), [(1, ""), (2, "none"), (2, "container:pause")])
def test_defect_03_a_wrong_api_version_is_named(node: Node, version: int, netns: str) -> None:
    """Code 7 with key and value, instead of an endpoint that was not found."""
    conf = bridge(ipam=node.ipam(), apiVersion=version)
    error = node.run("ADD", conf, netns=netns or node.namespace).expect_error()
    assert (7, True) == (error.wire_code, error.msg.startswith(f"apiVersion: {version} "))
    assert [] == node.leases()


def test_defect_04_overlay_maps_ports(node: Node) -> None:
    """The reference ignores them there (plugins 530)."""
    ipam = node.ipam("10.245.3.0/24", "10.245.3.10")
    ports = [{"hostPort": 8080, "containerPort": 80}]
    node.run("ADD", overlay(ipam=ipam, runtimeConfig={"portMappings": ports})).expect()
    assert {
        "Type": "PortMapping",
        "Settings": {"InternalPort": 80, "ExternalPort": 8080, "Protocol": 6, "Flags": 1},
    } in node.policies()


def test_defect_05_a_bridged_port_is_locally_routed(node: Node) -> None:
    """Flag 1, and VIP only when a host address is given."""
    ports = [
        {"hostPort": 1, "containerPort": 2},
        {"hostPort": 3, "containerPort": 4, "hostIP": "192.168.1.10"},
        {"hostPort": 5, "containerPort": 6, "hostIP": "0.0.0.0"},
    ]
    conf = bridge(ipam=node.ipam(), runtimeConfig={"portMappings": ports})
    node.run("ADD", conf).expect()
    found = [policy["Settings"] for policy in node.policies()]
    assert [1, 1, 1] == [settings["Flags"] for settings in found]
    assert [None, "192.168.1.10", None] == [settings.get("VIP") for settings in found]


@pytest.mark.parametrize(
    ("host_ip", "flags"),
    [(None, [1, 3]), ("192.168.1.10", [1]), ("fd00::10", [3]), ("::", [3]), ("0.0.0.0", [1])],
)
def test_defect_06_dual_stack_ports_come_in_both_families(
    node: Node, host_ip: str | None, flags: list[int]
) -> None:
    """A second policy with the IPv6 flag; a host address picks its own family."""
    conf = bridge(ipam=node.answer_ipam(dual(node)))
    port = {"hostPort": 8080, "containerPort": 80} | ({"hostIP": host_ip} if host_ip else {})
    node.run("ADD", conf | {"runtimeConfig": {"portMappings": [port]}}).expect()
    assert flags == [policy["Settings"]["Flags"] for policy in node.policies()]


def test_defect_07_both_addresses_of_a_dual_stack_result_are_used(node: Node) -> None:
    """With both default routes; IPv6 takes IPAM's gateway, there is no .2 custom."""
    result = node.run("ADD", bridge(ipam=node.answer_ipam(dual(node)))).expect()
    assert [{"IpAddress": "10.244.3.10"}, {"IpAddress": "fd00:3::a"}] == node.created()[
        "IpConfigurations"
    ]
    assert [
        {"NextHop": "10.244.3.2", "DestinationPrefix": "0.0.0.0/0"},
        {"NextHop": "fd00:3::1", "DestinationPrefix": "::/0"},
    ] == node.created()["Routes"]
    assert ["10.244.3.10/24", "fd00:3::a/64"] == [ip["address"] for ip in result["ips"]]


def test_defect_07_dual_stack_on_an_old_service_is_an_error(node: Node) -> None:
    """Not an address that stays allocated and unused."""
    node.simulator.version = (11, 9)
    error = node.run("ADD", bridge(ipam=node.answer_ipam(dual(node)))).expect_error()
    assert (2, "platform does not support feature IPv6 dual stack") == (error.wire_code, error.msg)
    assert "IPAM DEL" in node.functions()


@pytest.mark.parametrize(
    ("gateway", "expected"),
    [
        ("", "10.244.3.2"),
        ("bridge", "10.244.3.2"),
        ("ipam", "10.244.3.7"),
        ("subnet", "10.244.3.1"),
        ("10.244.3.9", "10.244.3.9"),
    ],
)
def test_defect_08_the_gateway_can_be_chosen(node: Node, gateway: str, expected: str) -> None:
    """The network's second address is the compatible default, and no more than that."""
    conf = bridge(ipam=node.answer_ipam(v4(gateway="10.244.3.7")), gateway=gateway)
    result = node.run("ADD", conf).expect()
    assert expected == result["ips"][0]["gateway"]


def test_defect_08_a_container_is_not_its_own_gateway(node: Node) -> None:
    """An IPAM that insists fails; the address goes back, and the message says what to do."""
    conf = bridge(ipam=node.answer_ipam(v4("10.244.3.2/24"), v4("10.244.3.2/24")))
    error = node.run("ADD", conf).expect_error()
    assert "gateway: 10.244.3.2 is the address IPAM gave the container" == error.msg
    assert "rangeStart" in error.details
    runs = [name for name in node.functions() if "IPAM" in name]
    assert ["IPAM ADD", "IPAM DEL", "IPAM ADD", "IPAM DEL"] == runs
    assert [] == node.simulator.named("Endpoint", "c1_cbr0")


def test_defect_09_policies_are_translated_both_ways(node: Node) -> None:
    """A flat policy reaches schema 2 with its settings, a nested one schema 1 without."""
    flat = {"Type": "OutBoundNAT", "ExceptionList": ["10.0.0.0/8"]}
    nested = {"Type": "SDNRoute", "Settings": {"DestinationPrefix": "11.0.0.0/8"}}
    policies = [{"name": "EndpointPolicy", "value": value} for value in (flat, nested)]
    conf = bridge(ipam=node.ipam(), policies=policies)
    node.run("ADD", conf).expect()
    assert [{"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.0.0.0/8"]}}, nested] == (
        node.policies()
    )
    node.simulator.compute_systems.add("p")
    node.run("ADD", conf, container_id="p", netns="none").expect()
    assert [flat, {"Type": "ROUTE", "DestinationPrefix": "11.0.0.0/8"}] == (
        node.created_v1()["Policies"]
    )


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"ExceptionList": []}, "policies[0].value: a policy needs a Type"),
        ({"Type": "Bogus", "X": 1}, "policies[0].value: unknown policy type 'Bogus'"),
        ({"Type": "NAT", "Settings": {}}, "policies[0].value: policy type 'NAT' belongs to"),
        ({"Type": "ACL", "Settings": 7}, "policies[0].value.Settings: expected object"),
    ],
)
def test_defect_09_a_policy_in_neither_shape_is_named(
    node: Node, value: dict[str, object], fault: str
) -> None:
    """Code 7 and its place, instead of a policy without settings."""
    policies = [{"name": "EndpointPolicy", "value": value}]
    error = node.run("ADD", bridge(policies=policies)).expect_error()
    assert (7, True) == (error.wire_code, error.msg.startswith(fault)), error.msg


def test_defect_10_host_bits_of_exceptions_are_cleared(node: Node) -> None:
    """Server 2022 refuses them, 2019 took them."""
    value = {"Type": "OutBoundNAT", "Settings": {"Exceptions": ["172.17.0.1/16"]}}
    policies = [{"name": "EndpointPolicy", "value": value}]
    conf = bridge(ipam=node.ipam(), policies=policies, ipMasqNetwork="10.244.5.6/16")
    node.run("ADD", conf).expect()
    assert ["172.17.0.0/16", "10.244.0.0/16"] == node.policies()[0]["Settings"]["Exceptions"]


@pytest.mark.parametrize("key", ["policies", "ipMasqNetwork"])
def test_defect_10_what_is_no_network_never_reaches_the_service(node: Node, key: str) -> None:
    """It made degraded endpoints (containerd 5729)."""
    value = {"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.0.0.0/33"]}}
    keys = {
        "policies": [{"name": "EndpointPolicy", "value": value}],
        "ipMasqNetwork": "10.0.0.0/33",
    }
    error = node.run("ADD", bridge(ipam=node.ipam(), **{key: keys[key]})).expect_error()
    assert (7, True) == (error.wire_code, "not a CIDR" in error.msg)
    assert [] == node.functions()


def test_defect_11_a_configured_provider_address_wins(node: Node) -> None:
    """No second one is added."""
    value = {"Type": "ProviderAddress", "Settings": {"ProviderAddress": "192.168.1.77"}}
    conf = overlay(
        ipam=node.ipam("10.245.3.0/24", "10.245.3.10"),
        policies=[{"name": "EndpointPolicy", "value": value}],
    )
    node.run("ADD", conf).expect()
    assert [value] == node.policies()


def test_defect_11_exceptions_are_merged_by_family(node: Node) -> None:
    """One OutBoundNAT for each, without duplicates."""
    exceptions = ["10.0.0.0/8", "fd00::/8", "10.244.0.0/16"]
    value = {"Type": "OutBoundNAT", "Settings": {"Exceptions": exceptions}}
    conf = bridge(
        ipam=node.ipam(),
        policies=[{"name": "EndpointPolicy", "value": value}],
        ipMasqNetwork="10.244.0.0/16",
    )
    node.run("ADD", conf).expect()
    assert [
        {"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.0.0.0/8", "10.244.0.0/16"]}},
        {"Type": "OutBoundNAT", "Settings": {"Exceptions": ["fd00::/8"]}},
    ] == node.policies()


def test_defect_12_loopback_dsr_without_ipam_uses_the_services_address(node: Node) -> None:
    """The policy is added once the address is known."""
    node.run("ADD", overlay(loopbackDSR=True)).expect()
    assert "<nil>" not in str(node.simulator.calls)
    endpoint = node.endpoint("c1_vxlan0")
    assert {"Type": "OutBoundNAT", "Settings": {"Destinations": ["10.245.3.2"]}} in endpoint[
        "Policies"
    ]


def test_defect_12_unsupported_loopback_dsr_is_said(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """ADD goes on, as in the reference, but not in silence."""
    node.simulator.version = (9, 2)
    with caplog.at_level(logging.WARNING):
        node.run("ADD", bridge(ipam=node.ipam(), loopbackDSR=True)).expect()
    assert "Direct Server Return" in caplog.text
    assert [] == node.policies()


def test_defect_13_without_ipam_no_empty_parts_are_sent(node: Node) -> None:
    """Neither `[{}]` nor a route to nowhere; the service fills both in."""
    result = node.run("ADD", bridge()).expect()
    assert {"IpConfigurations", "Routes"}.isdisjoint(node.created())
    assert [{"address": "10.244.3.2/24", "gateway": "10.244.3.1"}] == result["ips"]


@pytest.mark.parametrize("how", ["zero", "gone", "unknown"])
def test_defect_14_a_missing_namespace_leaks_nothing(node: Node, how: str) -> None:
    """Zero id, deleted before DEL, or one the service does not know: detached all the same."""
    conf = bridge(ipam=node.ipam())
    node.run("ADD", conf).expect()
    match how:
        case "zero":
            endpoint = node.endpoint("c1_cbr0")
            endpoint["HostComputeNamespace"] = hns_views.ZERO
        case "gone":
            node.simulator.objects["Namespace"].clear()
        case "unknown":
            node.endpoint("c1_cbr0")["HostComputeNamespace"] = str(uuid.uuid4())
    node.run("DEL", conf).expect()
    assert ([], []) == (node.simulator.named("Endpoint", "c1_cbr0"), node.leases())


def test_defect_14_a_failing_detach_does_not_stop_the_delete(node: Node) -> None:
    """Deleting detaches too."""
    conf = bridge(ipam=node.ipam())
    node.run("ADD", conf).expect()
    node.simulator.fail("HcnModifyNamespace", 0x80070057)
    node.run("DEL", conf).expect()
    assert [] == node.simulator.named("Endpoint", "c1_cbr0")


@pytest.mark.parametrize("hresult", [0x80070490, 0x803B0002])
def test_defect_15_what_vanishes_during_del_is_gone(node: Node, hresult: int) -> None:
    """Every not-found code means the same."""
    conf = bridge(ipam=node.ipam())
    node.run("ADD", conf).expect()

    def vanish(_call: object) -> None:
        node.simulator.objects["Endpoint"].clear()
        node.simulator.fail("HcnModifyNamespace", hresult)

    node.simulator.hook("HcnOpenNamespace", vanish)
    node.simulator.fail("HcnDeleteEndpoint", hresult)
    node.run("DEL", conf).expect()
    assert [] == node.leases()


def test_defect_15_a_failed_delete_of_something_gone_is_success(node: Node) -> None:
    """The service is asked again before its error is believed."""
    conf = bridge(ipam=node.ipam())
    node.run("ADD", conf).expect()

    def delete_and_fail(_call: object) -> None:
        node.simulator.objects["Endpoint"].clear()
        node.simulator.fail("HcnDeleteEndpoint", 0x80070057)

    node.simulator.hook("HcnModifyNamespace", delete_and_fail)
    node.run("DEL", conf).expect()


def test_defect_15_a_listing_skips_what_vanishes(node: Node) -> None:
    """Between Enumerate and Open; Go's client fails the whole list."""
    service = node.service
    other = node.simulator.add_network(CBR0 | {"Name": "cbr1"})

    def vanish(_call: object) -> None:
        del node.simulator.objects["Network"][other]

    node.simulator.hook("HcnOpenNetwork", vanish)
    assert ["cbr0", "vxlan0"] == [one.Name for one in service.hcn.networks.list()]


def test_defect_16_del_without_netns_removes_the_endpoint(node: Node) -> None:
    """By its name; the reference does nothing in schema 1 and frees the address."""
    conf = bridge(ipam=node.ipam(), apiVersion=1)
    node.simulator.compute_systems.add("p")
    node.run("ADD", conf, container_id="p", netns="none").expect()
    node.run("DEL", conf, container_id="p", netns="").expect()
    assert ([], []) == (node.simulator.named("Endpoint", "p_cbr0"), node.leases())


def test_defect_16_schema_1_failures_of_del_are_reported(node: Node) -> None:
    """They used to be swallowed."""
    conf = bridge(ipam=node.ipam(), apiVersion=1)
    node.simulator.compute_systems.add("p")
    node.run("ADD", conf, container_id="p", netns="none").expect()

    def refuse_delete(call: NativeCall) -> Reply | None:
        if call.texts[0] == "DELETE":
            return Reply(text='{"Success":false,"Error":"The parameter is incorrect. "}')
        return None

    node.simulator.hook("HNSCall", refuse_delete, times=100)
    error = node.run("DEL", conf, container_id="p", netns="none").expect_error()
    assert "hns failed with error : The parameter is incorrect." in error.msg
    assert [PREFERRED] == node.leases()
    node.simulator._hooks.clear()


def test_defect_17_an_error_is_not_taken_for_absence(node: Node) -> None:
    """Else a second endpoint is made beside the first (calico 9142)."""
    conf = bridge(ipam=node.ipam())
    node.run("ADD", conf).expect()
    node.simulator.fail("HcnEnumerateEndpoints", 0x80070057)
    assert node.run("ADD", conf).expect_error()
    assert 1 == node.functions().count("HcnCreateEndpoint")


def test_defect_17_all_endpoints_of_one_name_are_removed(node: Node) -> None:
    """Duplicates exist in the wild."""
    conf = bridge(ipam=node.ipam())
    node.run("ADD", conf).expect()
    (network,) = [
        i for i, doc in node.simulator.objects["Network"].items() if doc["Name"] == "cbr0"
    ]
    node.simulator.add_endpoint(network, {"Name": "c1_cbr0"})
    node.run("DEL", conf).expect()
    assert [] == node.simulator.named("Endpoint", "c1_cbr0")


def test_defect_18_a_failed_add_is_rolled_back_in_reverse(node: Node) -> None:
    """Endpoint first, then its address."""
    node.simulator.fail("HcnModifyNamespace", 0x803B002E)
    error = node.run("ADD", bridge(ipam=node.ipam())).expect_error()
    assert "0x803b002e" in error.msg
    assert "attaching endpoint c1_cbr0" in error.details
    assert ([], []) == (node.simulator.named("Endpoint", "c1_cbr0"), node.leases())
    assert node.functions().index("HcnDeleteEndpoint") < node.functions().index("IPAM DEL")


def test_defect_18_a_failed_roll_back_is_told(node: Node) -> None:
    """What is left is in the error's details."""
    node.simulator.fail("HcnModifyNamespace", 0x803B002E)
    node.simulator.fail("HcnDeleteEndpoint", 0x80070057)
    error = node.run("ADD", bridge(ipam=node.ipam())).expect_error()
    assert "undo failed: hcnDeleteEndpoint" in error.details
    assert [PREFERRED] == node.leases()  # still configured, so not free
    node.run("DEL", bridge(ipam=node.ipam())).expect()


def test_defect_19_an_address_outside_the_network_is_named(node: Node) -> None:
    """The differences, instead of the service's 0x803b001e."""
    conf = bridge(ipam=node.answer_ipam(v4("10.4.0.5/16", "10.4.0.1")))
    error = node.run("ADD", conf).expect_error()
    assert "ipam: 10.4.0.5 is in no subnet of network cbr0 (10.244.3.0/24)" == error.msg
    assert isinstance(error, InvalidConfig)


def test_defect_20_a_network_without_subnets_is_no_crash(node: Node) -> None:
    """It takes any address, and has none to except from masquerading."""
    node.simulator.add_network({"Type": "L2Bridge", "Name": "bare", "Subnets": []})
    node.simulator.add_network({"Type": "L2Bridge", "Name": "bare2", "Subnets": []})
    conf = bridge(ipam=node.answer_ipam(v4()))
    result = node.run("ADD", conf | {"name": "bare"}).expect()
    assert "10.244.3.10/32" == result["ips"][0]["address"]
    (network,) = node.simulator.named("Network", "vxlan0")
    network["Ipams"] = []
    conf = overlay(ipam=node.answer_ipam(v4()), ipMasq=True)
    error = node.run("ADD", conf, netns=node.new_namespace()).expect_error()
    assert "network vxlan0 has no subnet to except from masquerading" == error.msg


def test_defect_20_the_mask_is_that_of_the_addresss_subnet(node: Node) -> None:
    """Not of the network's first one."""
    (network,) = node.simulator.named("Network", "cbr0")
    network["Ipams"][0]["Subnets"].append(
        {
            "IpAddressPrefix": "10.250.0.0/16",
            "Routes": [{"NextHop": "10.250.0.1", "DestinationPrefix": "0.0.0.0/0"}],
        }
    )
    conf = bridge(ipam=node.answer_ipam(v4("10.250.7.8/16", "10.250.0.1")))
    assert "10.250.7.8/16" == node.run("ADD", conf).expect()["ips"][0]["address"]


def test_defect_21_a_hanging_service_is_code_11(node: Node) -> None:
    """Within the verb's deadline, and the address is given back."""
    release = node.simulator.hang("HcnEnumerateNetworks")
    error = node.run("ADD", bridge(ipam=node.ipam()), timeout_s=0.3).expect_error()
    assert 11 == error.wire_code
    assert isinstance(error, errors.HnsTimeout)
    release.set()
    wait_until_clean(node.simulator)


def test_defect_22_a_missing_network_is_code_50(node: Node) -> None:
    """After a reboot, say; STATUS tells before anything is scheduled."""
    node.run("STATUS", bridge(ipam=node.ipam())).expect()
    node.simulator.objects["Network"].clear()
    error = node.run("STATUS", bridge(ipam=node.ipam())).expect_error()
    assert (50, "network cbr0 does not exist") == (error.wire_code, error.msg)


def test_defect_23_gc_removes_nothing_it_cannot_be_sure_of(node: Node) -> None:
    """Only stale `<id>_<network>` on this network; never the node's own endpoints."""
    conf = bridge(ipam=node.ipam())
    for name in ("live", "stale"):
        node.run("ADD", conf, container_id=name, netns=node.new_namespace()).expect()
    networks = {doc["Name"]: ident for ident, doc in node.simulator.objects["Network"].items()}
    foreign = {"cbr0": ["cbr0_ep", "Calico_ep", "sourceVip"], "vxlan0": ["stale_cbr0"]}
    for network, names in foreign.items():
        for name in names:
            node.simulator.add_endpoint(networks[network], {"Name": name})
    mine = node.simulator.add_endpoint(networks["cbr0"], {"Name": "x_cbr0", "Owner": "moby"})
    valid = [{"containerID": "live", "ifname": "eth0"}]
    node.run("GC", conf | {"cni.dev/valid-attachments": valid}, netns="").expect()
    left = sorted(doc["Name"] for doc in node.simulator.objects["Endpoint"].values())
    assert ["Calico_ep", "cbr0_ep", "live_cbr0", "sourceVip", "stale_cbr0", "x_cbr0"] == left
    # A spared endpoint of our naming keeps its address: IPAM's collection waits.
    assert ["10.244.3.10", "10.244.3.11"] == node.leases()
    del node.simulator.objects["Endpoint"][mine]
    node.run("GC", conf | {"cni.dev/valid-attachments": valid}, netns="").expect()
    assert ["10.244.3.10"] == node.leases()


@pytest.mark.parametrize("spelling", ["outboundnat", "OUTBOUNDNAT"])
def test_defect_24_policy_types_are_known_in_any_case(node: Node, spelling: str) -> None:
    """As the service takes them."""
    value = {"Type": spelling, "Settings": {"Exceptions": ["10.0.0.0/8"]}}
    conf = bridge(
        ipam=node.ipam(),
        policies=[{"name": "ENDPOINTPOLICY", "value": value}],
        ipMasqNetwork="10.244.0.0/16",
    )
    node.run("ADD", conf).expect()
    assert [
        {"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.0.0.0/8", "10.244.0.0/16"]}}
    ] == node.policies()


def test_every_defect_has_a_test() -> None:
    """Numbers 1 to 24."""
    numbers = {int(name[12:14]) for name in globals() if name.startswith("test_defect_")}
    assert set(range(1, 25)) == numbers


def test_scripted_failures_of_ipam_pass_through(node: Node) -> None:
    """With the IPAM plugin's own code and text, and nothing left behind."""
    conf = bridge(ipam=node.answer_ipam(CniError("no addresses")))
    error = node.run("ADD", conf).expect_error()
    assert "no addresses" == error.msg
    assert ["IPAM ADD", "IPAM DEL"] == [name for name in node.functions() if "IPAM" in name]
