# SPDX-License-Identifier: Apache-2.0
"""win-overlay: what differs from win-bridge."""

from __future__ import annotations

import pytest

from tests.windows.drive import Doc, Node, overlay


def ipam(node: Node) -> Doc:
    return node.ipam("10.245.3.0/24", "10.245.3.10")


def test_add_makes_an_encapsulated_endpoint(node: Node) -> None:
    """The MAC from prefix and address, the node's address as provider, the network's gateway."""
    result = node.run("ADD", overlay(ipam=ipam(node), ipMasq=True)).expect()
    assert {
        "cniVersion": "1.1.0",
        "interfaces": [{"mac": "0E-2A-0a-f5-03-0a", "name": "c1_vxlan0"}],
        "ips": [{"address": "10.245.3.10/24", "gateway": "10.245.3.1"}],
    } == result
    assert [
        {"Type": "ProviderAddress", "Settings": {"ProviderAddress": "192.168.1.10"}},
        {"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.245.3.0/24"]}},
    ] == node.policies()


def test_the_provider_address_is_waited_for(node: Node) -> None:
    """Right after flanneld made the network it has none yet."""
    node.simulator.management_ip_delay = 1
    node.run("ADD", overlay(ipam=ipam(node))).expect()
    assert "192.168.1.10" in str(node.policies())


@pytest.mark.parametrize("prefix", ["0A1B", "0A:1B", "ZZ-ZZ", "0A-1B-2C"])
def test_a_mac_prefix_is_two_bytes(node: Node, prefix: str) -> None:
    """The reference checks no more than the length and one hyphen."""
    error = node.run("ADD", overlay(endpointMacPrefix=prefix)).expect_error()
    expected = f"endpointMacPrefix [{prefix}] is invalid, value must be of the format xx-xx"
    assert (7, expected) == (error.wire_code, error.msg)


@pytest.mark.parametrize("plugin", ["win-overlay", "sdnoverlay"])
def test_ipv6_is_refused(node: Node, plugin: str) -> None:
    """Overlay networks carry IPv4 only; the address is given back."""
    (network,) = node.simulator.named("Network", "vxlan0")
    network["Ipams"][0]["Subnets"].append({"IpAddressPrefix": "fd00::/64"})
    answer = {"ips": [{"address": "fd00::5/64", "gateway": "fd00::1"}]}
    error = node.run("ADD", overlay(ipam=node.answer_ipam(answer), type=plugin)).expect_error()
    assert (7, f"ipam: {plugin} doesn't support IPv6 now") == (error.wire_code, error.msg)
    assert "IPAM DEL" in node.functions()


@pytest.mark.parametrize(("version", "netns"), [(1, ""), (2, "none")])
def test_a_wrong_api_version_is_named(node: Node, version: int, netns: str) -> None:
    """As with win-bridge."""
    conf = overlay(ipam=ipam(node), apiVersion=version)
    error = node.run("ADD", conf, netns=netns or node.namespace).expect_error()
    assert (7, True) == (error.wire_code, error.msg.startswith(f"apiVersion: {version} "))


def test_the_keys_it_shares_with_win_bridge_work(node: Node) -> None:
    """DNS at run time, bandwidth, policies in the old key, the gateway."""
    dns = {"nameservers": ["10.0.0.1"], "search": ["a"], "domain": "d.l", "options": ["o"]}
    acl = {"Type": "ACL", "Settings": {"Action": "Allow"}}
    conf = overlay(
        ipam=ipam(node),
        dns=dns,
        HcnPolicyArgs=[acl],
        gateway="10.245.3.7",
        runtimeConfig={
            "dns": {"servers": ["10.0.0.2"], "searches": ["b"]},
            "bandwidth": {"egressRate": 8000},
        },
    )
    result = node.run("ADD", conf).expect()
    assert dns | {"nameservers": ["10.0.0.2"], "search": ["b"]} == result["dns"]
    assert "10.245.3.7" == result["ips"][0]["gateway"]
    assert acl == node.policies()[0]
    assert "QOS" == node.policies()[-1]["Type"]


def test_all_verbs_work(node: Node) -> None:
    """CHECK, STATUS, GC and DEL on what ADD made."""
    conf = overlay(ipam=ipam(node), ipMasq=True, loopbackDSR=True)
    result = node.run("ADD", conf).expect()
    node.run("CHECK", conf | {"prevResult": result}).expect()
    node.run("STATUS", conf).expect()
    valid = [{"containerID": "c1", "ifname": "eth0"}]
    node.run("GC", conf | {"cni.dev/valid-attachments": valid}, netns="").expect()
    node.run("CHECK", conf | {"prevResult": result}).expect()
    node.run("DEL", conf).expect()
    assert ([], []) == (node.simulator.named("Endpoint", "c1_vxlan0"), node.leases("vxlan0"))


def test_schema_1_works_too(node: Node) -> None:
    """For dockershim's containers."""
    node.simulator.compute_systems.add("p")
    conf = overlay(ipam=ipam(node))
    result = node.run("ADD", conf, container_id="p", netns="none").expect()
    assert "0E-2A-0a-f5-03-0a" == result["interfaces"][0]["mac"]
    assert [{"Type": "PA", "PA": "192.168.1.10"}] == node.created_v1()["Policies"]
    node.run("CHECK", conf | {"prevResult": result}, container_id="p", netns="none").expect()
    node.run("DEL", conf, container_id="p", netns="none").expect()
