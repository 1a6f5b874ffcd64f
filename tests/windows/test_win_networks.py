# SPDX-License-Identifier: Apache-2.0
"""nat, sdnbridge, sdnoverlay, transparent, l2tunnel: Microsoft's names and keys."""

from __future__ import annotations

from typing import Any

import pytest

from pycni.windows import errors
from tests.windows.drive import Doc, Node

# What nerdctl and containerd's script write.
NAT: Doc = {
    "cniVersion": "1.0.0",
    "name": "nat",
    "type": "nat",
    "master": "Ethernet",
    "ipam": {"subnet": "172.20.0.0/16", "routes": [{"gateway": "172.20.0.1"}]},
    "capabilities": {"portMappings": True, "dns": True},
}


def conf(kind: str, **keys: Any) -> Doc:
    """A configuration of one type."""
    return {"cniVersion": "1.0.0", "name": "net", "type": kind} | keys


def test_nat_works_as_nerdctl_writes_it(node: Node) -> None:
    """The network is made, the service picks an address, the interface has CNI's name."""
    result = node.run("ADD", NAT).expect()
    assert {
        "cniVersion": "1.0.0",
        "interfaces": [{"mac": "00-15-5D-52-C0-01", "name": "eth0"}],
        "ips": [{"address": "172.20.0.2/16", "gateway": "172.20.0.1", "interface": 0}],
    } == result
    (network,) = node.bodies("HcnCreateNetwork")
    assert ("nat", "NAT") == (network["Name"], network["Type"])
    route = {"NextHop": "172.20.0.1", "DestinationPrefix": "0.0.0.0/0"}
    assert [{"IpAddressPrefix": "172.20.0.0/16", "Routes": [route]}] == network["Ipams"][0][
        "Subnets"
    ]


def test_a_network_is_made_once(node: Node) -> None:
    """And stays when its last container goes."""
    node.run("ADD", NAT).expect()
    node.run("ADD", NAT, container_id="c2", netns=node.new_namespace()).expect()
    node.run("DEL", NAT).expect()
    node.run("DEL", NAT, container_id="c2").expect()
    assert 1 == node.functions().count("HcnCreateNetwork")
    assert 1 == len(node.simulator.named("Network", "nat"))


def test_two_first_containers_make_one_network(node: Node) -> None:
    """The slower one finds the faster one's."""

    def faster(_call: object) -> None:
        node.simulator.add_network(
            {
                "Name": "nat",
                "Type": "NAT",
                "Subnets": [{"AddressPrefix": "172.20.0.0/16", "GatewayAddress": "172.20.0.1"}],
            }
        )

    node.simulator.hook("HcnCreateNetwork", faster)
    node.run("ADD", NAT).expect()
    assert 1 == len(node.simulator.named("Network", "nat"))


def test_nat_comes_back_after_a_reboot(node: Node) -> None:
    """STATUS does not complain of it meanwhile (defect 22)."""
    node.run("ADD", NAT).expect()
    node.simulator.restart_node()
    node.run("STATUS", NAT | {"cniVersion": "1.1.0"}).expect()
    node.run("ADD", NAT, netns=node.new_namespace()).expect()


@pytest.mark.parametrize(
    ("existing", "difference"),
    [
        (
            {"Type": "L2Bridge", "Subnets": []},
            "its type is L2Bridge, not NAT",
        ),
        (
            {
                "Type": "NAT",
                "Subnets": [{"AddressPrefix": "10.4.0.0/24", "GatewayAddress": "10.4.0.1"}],
            },
            "its subnet is 10.4.0.0/24, not 172.20.0.0/16",
        ),
        (
            {
                "Type": "NAT",
                "Subnets": [{"AddressPrefix": "172.20.0.0/16", "GatewayAddress": "172.20.0.9"}],
            },
            "its gateway is 172.20.0.9, not 172.20.0.1",
        ),
    ],
)
def test_defect_19_another_network_of_that_name_is_not_used(
    node: Node, existing: Doc, difference: str
) -> None:
    """The differences are named, and nothing is changed."""
    node.simulator.add_network({"Name": "nat"} | existing)
    error = node.run("ADD", NAT).expect_error()
    assert f"network nat is not as configured: {difference}" == error.msg
    assert [] == node.simulator.named("Endpoint", "c1_nat")


def test_ports_behind_nat_need_no_flag_and_may_get_one(node: Node) -> None:
    """`localRoutedPortMapping` asks for it; `allowAclPortMapping` lets the traffic in."""
    ports = {"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80}]}}
    node.run("ADD", NAT | ports).expect()
    settings = {"InternalPort": 80, "ExternalPort": 8080, "Protocol": 6}
    assert [{"Type": "PortMapping", "Settings": settings}] == node.policies()
    node.run("DEL", NAT).expect()
    flags = {"localRoutedPortMapping": True, "allowAclPortMapping": True}
    node.run("ADD", NAT | ports | {"optionalFlags": flags}).expect()
    acl = {
        "Protocols": "6",
        "Action": "Allow",
        "Direction": "In",
        "LocalPorts": "80",
        "Priority": 1000,
    }
    assert [
        {"Type": "ACL", "Settings": acl},
        {"Type": "PortMapping", "Settings": settings | {"Flags": 1}},
    ] == node.policies()


@pytest.mark.parametrize(
    ("kind", "expected"), [("sdnbridge", "L2Bridge"), ("l2tunnel", "L2Tunnel")]
)
def test_bridged_networks_are_made_from_ipam_subnet(node: Node, kind: str, expected: str) -> None:
    """With the first address as gateway unless a route names one; they do not persist."""
    node.run("ADD", conf(kind, ipam={"subnet": "10.9.0.0/24"})).expect()
    (network,) = node.bodies("HcnCreateNetwork")
    assert (expected, 8) == (network["Type"], network["Flags"])
    assert "10.9.0.1" == network["Ipams"][0]["Subnets"][0]["Routes"][0]["NextHop"]


@pytest.mark.parametrize(
    ("keys", "gateway"),
    [
        ({}, "10.9.0.1"),
        ({"optionalFlags": {"forceBridgeGateway": True}}, "10.9.0.2"),
        (
            {
                "optionalFlags": {"gatewayFromAdditionalRoutes": True},
                "additionalRoutes": [{"dst": "0.0.0.0/0", "GW": "10.9.0.77"}],
            },
            "10.9.0.77",
        ),
    ],
)
def test_the_gateway_follows_the_flags(node: Node, keys: Doc, gateway: str) -> None:
    """The network's own unless told otherwise."""
    ipam = node.ipam("10.9.0.0/24", "10.9.0.10")
    result = node.run("ADD", conf("sdnbridge", ipam=ipam, **keys)).expect()
    assert [{"address": "10.9.0.10/24", "gateway": gateway, "interface": 0}] == result["ips"]


def test_additional_routes_reach_the_endpoint(node: Node) -> None:
    """Beside the default one."""
    ipam = node.ipam("10.9.0.0/24", "10.9.0.10")
    routes = [{"dst": "10.50.0.0/16", "GW": "10.9.0.5"}]
    node.run("ADD", conf("sdnbridge", ipam=ipam, additionalRoutes=routes)).expect()
    assert [
        {"NextHop": "10.9.0.1", "DestinationPrefix": "0.0.0.0/0"},
        {"NextHop": "10.9.0.5", "DestinationPrefix": "10.50.0.0/16"},
    ] == node.created()["Routes"]


def test_a_dual_stack_network_is_not_made_here(node: Node) -> None:
    """It needs more than one subnet; as there, it must exist."""
    flags = {"enableDualStack": True}
    error = node.run(
        "ADD", conf("sdnbridge", ipam={"subnet": "10.9.0.0/24"}, optionalFlags=flags)
    ).expect_error()
    assert 'error while getting network net: Network name "net" not found' == error.msg


def test_an_overlay_network_is_not_made_here(node: Node) -> None:
    """Its isolation id is the cluster's business."""
    error = node.run("ADD", conf("sdnoverlay", ipam={"subnet": "10.9.0.0/24"})).expect_error()
    assert 'error while getting network net: Network name "net" not found' == error.msg
    ipam = node.ipam("10.245.3.0/24", "10.245.3.10")
    result = node.run("ADD", conf("sdnoverlay", ipam=ipam) | {"name": "vxlan0"}).expect()
    assert "0E-2A-0a-f5-03-0a" == result["interfaces"][0]["mac"]


def test_transparent_without_ipam_is_addressed_by_dhcp(node: Node) -> None:
    """The network says so, and the endpoint."""
    node.run("ADD", conf("transparent")).expect()
    (network,) = node.bodies("HcnCreateNetwork")
    assert [{"Type": "Dhcp"}] == network["Ipams"]
    assert 32 == node.created()["Flags"]


def test_additional_args_are_policies(node: Node) -> None:
    """Those whose name speaks of one, in any spelling."""
    value = {"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.0.0.0/8"]}}
    args = [{"Name": "EndpointPolicy", "Value": value}, {"Name": "other", "Value": {"Type": "X"}}]
    node.run("ADD", NAT | {"AdditionalArgs": args}).expect()
    assert [value] == node.policies()


@pytest.mark.parametrize(
    "keys", [{"loopbackDSR": True}, {"optionalFlags": {"loopbackDSR": True}}], ids=["ours", "WCN's"]
)
def test_loopback_dsr_and_bandwidth_in_either_place(node: Node, keys: Doc) -> None:
    """The flag of windows-container-networking and the key of win-bridge mean the same."""
    runtime = {"bandwidth": {"egressRate": 8000}}
    node.run("ADD", NAT | keys | {"runtimeConfig": runtime}).expect()
    assert [
        {"Type": "QOS", "Settings": {"MaximumOutgoingBandwidthInBytes": 1000}},
        {"Type": "OutBoundNAT", "Settings": {"Destinations": ["172.20.0.2"]}},
    ] == node.endpoint("c1_nat")["Policies"]


def test_a_service_without_schema_2_is_no_help(node: Node) -> None:
    """Nothing is made in schema 1 instead."""
    node.simulator.version = (9, 1)
    assert node.run("ADD", NAT).expect_error()
    assert [] == node.simulator.named("Endpoint", "c1_nat")
    assert ["HcnEnumerateNetworks"] == node.functions()


def test_the_pods_namespace_leads_the_search_list(node: Node) -> None:
    """K8S_POD_NAMESPACE, unless the runtime gives search domains itself."""
    dns = {"nameservers": ["10.96.0.10"], "search": ["svc.cluster.local", "x"]}
    args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop"
    node.run("ADD", NAT | {"dns": dns}, args=args).expect()
    assert ["shop.svc.cluster.local", "x"] == node.created()["Dns"]["Search"]


def test_del_check_and_gc_work_as_for_win_bridge(node: Node) -> None:
    """The engine is the same."""
    current = NAT | {"cniVersion": "1.1.0"}
    result = node.run("ADD", current).expect()
    node.run("CHECK", current | {"prevResult": result}).expect()
    node.simulator.objects["Namespace"].clear()
    node.run("GC", current | {"cni.dev/valid-attachments": []}, netns="").expect()
    assert [] == node.simulator.named("Endpoint", "c1_nat")
    node.run("DEL", current, netns="").expect()


def test_a_namespace_is_needed(node: Node) -> None:
    """There is no schema 1 here."""
    error = node.run("ADD", NAT, netns="none").expect_error()
    assert 8 == error.wire_code
    assert [] == node.functions()


def test_a_gateway_outside_the_subnet_is_named(node: Node) -> None:
    """Before anything is made."""
    ipam = {"subnet": "172.20.0.0/16", "routes": [{"GW": "10.0.0.1"}]}
    error = node.run("ADD", NAT | {"ipam": ipam}).expect_error()
    assert "ipam.routes[0]: gateway 10.0.0.1 is not in 172.20.0.0/16" == error.msg


def test_a_network_that_cannot_be_made_is_the_services_error(node: Node) -> None:
    """Passed on with its code."""
    node.simulator.fail("HcnCreateNetwork", 0x803B0006, times=1000)
    error = node.run("ADD", NAT, timeout_s=0.2).expect_error()
    assert isinstance(error, errors.HnsTransient)
    node.simulator._hooks.clear()
