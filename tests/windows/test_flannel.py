# SPDX-License-Identifier: Apache-2.0
"""The configurations flannel's delegate hands on for host-gw and vxlan, as they are.

flannel's CNI plugin takes the `delegate` object of its own configuration and adds name,
cniVersion, ipam (host-local with this node's lease) and, for its backend, ipMasq or ipMasqNetwork.
"""

from __future__ import annotations

import uuid

import pytest

from tests.windows.drive import Doc, Node

# kube-flannel's cni-conf.json for Windows, delegate part, with what the plugin adds.
HOST_GW: Doc = {
    "name": "cbr0",
    "cniVersion": "0.3.0",
    "type": "win-bridge",
    "apiVersion": 2,
    "ipMasqNetwork": "10.244.0.0/16",
    "ipam": {"type": "host-local", "subnet": "10.244.3.0/24", "routes": [{"dst": "10.244.0.0/16"}]},
    "dns": {"Nameservers": ["10.96.0.10"], "Search": ["svc.cluster.local"]},
    "policies": [
        {
            "name": "EndpointPolicy",
            "value": {
                "Type": "OutBoundNAT",
                "Settings": {"Exceptions": ["10.96.0.0/12", "10.244.0.0/16"]},
            },
        },
        {
            "name": "EndpointPolicy",
            "value": {
                "Type": "SDNROUTE",
                "Settings": {"DestinationPrefix": "10.96.0.0/12", "NeedEncap": True},
            },
        },
        {
            "name": "EndpointPolicy",
            "value": {
                "Type": "ProviderAddress",
                "Settings": {"ProviderAddress": "192.168.1.10"},
            },
        },
    ],
}
VXLAN: Doc = {
    "name": "vxlan0",
    "cniVersion": "0.3.0",
    "type": "win-overlay",
    "apiVersion": 2,
    "ipMasq": True,
    "endpointMacPrefix": "0E-2A",
    "loopbackDSR": True,
    "isDefaultGateway": True,
    "hairpinMode": True,
    "ipam": {"type": "host-local", "subnet": "10.245.3.0/24"},
    "dns": {"Nameservers": ["10.96.0.10"], "Search": ["svc.cluster.local"]},
    "policies": [
        {
            "Name": "EndpointPolicy",
            "Value": {
                "Type": "OutBoundNAT",
                "Settings": {"Exceptions": ["10.96.0.0/12", "10.245.0.0/16"]},
            },
        },
        {
            "Name": "EndpointPolicy",
            "Value": {
                "Type": "SDNROUTE",
                "Settings": {"DestinationPrefix": "10.96.0.0/12", "NeedEncap": True},
            },
        },
    ],
}
# The same in the older spelling, which dockershim's nodes have.
HOST_GW_V1 = HOST_GW | {
    "apiVersion": 1,
    "policies": [
        {
            "name": "EndpointPolicy",
            "value": {"Type": "OutBoundNAT", "ExceptionList": ["10.96.0.0/12"]},
        },
        {
            "name": "EndpointPolicy",
            "value": {"Type": "ROUTE", "DestinationPrefix": "10.96.0.0/12", "NeedEncap": True},
        },
    ],
}


def prepare(node: Node, conf: Doc) -> Doc:
    """A node where flanneld has run: with host-gw it has an endpoint of its own, at .2.

    The configuration is used as it is, but for the directory of the leases.
    """
    (network,) = node.simulator.named("Network", "cbr0")
    node.simulator.add_endpoint(
        uuid.UUID(network["ID"]),
        {"Name": "cbr0_ep", "IpConfigurations": [{"IpAddress": "10.244.3.2"}]},
    )
    return conf | {"ipam": conf["ipam"] | {"dataDir": str(node.data_dir)}}


@pytest.mark.parametrize("conf", [HOST_GW, VXLAN], ids=["host-gw", "vxlan"])
def test_flannels_configuration_works_as_it_is(node: Node, conf: Doc) -> None:
    """ADD, DEL and DEL again."""
    ready = prepare(node, conf)
    result = node.run("ADD", ready).expect()
    prefix = conf["ipam"]["subnet"].removesuffix("0/24")
    address, gateway = ("3", "2") if conf is HOST_GW else ("2", "1")
    assert [
        {"version": "4", "address": f"{prefix}{address}/24", "gateway": f"{prefix}{gateway}"}
    ] == result["ips"]
    assert ["10.96.0.10"] == result["dns"]["nameservers"]
    node.run("DEL", ready).expect()
    node.run("DEL", ready).expect()
    assert [] == node.leases(conf["name"])


def test_host_gw_policies(node: Node) -> None:
    """In order and without duplicates; 10.244.0.0/16 is there already."""
    node.run("ADD", prepare(node, HOST_GW)).expect()
    assert ["OutBoundNAT", "SDNRoute", "ProviderAddress"] == [p["Type"] for p in node.policies()]
    assert ["10.96.0.0/12", "10.244.0.0/16"] == node.policies()[0]["Settings"]["Exceptions"]


def test_vxlan_policies(node: Node) -> None:
    """Loopback DSR, provider address and the subnet's exception join the configured ones."""
    node.run("ADD", prepare(node, VXLAN)).expect()
    assert [
        {
            "Type": "OutBoundNAT",
            "Settings": {"Exceptions": ["10.96.0.0/12", "10.245.0.0/16", "10.245.3.0/24"]},
        },
        {
            "Type": "SDNRoute",
            "Settings": {"DestinationPrefix": "10.96.0.0/12", "NeedEncap": True},
        },
        {"Type": "OutBoundNAT", "Settings": {"Destinations": ["10.245.3.2"]}},
        {"Type": "ProviderAddress", "Settings": {"ProviderAddress": "192.168.1.10"}},
    ] == node.policies()


def test_the_older_spelling_on_schema_1(node: Node) -> None:
    """For nodes that still run it."""
    node.simulator.compute_systems.add("p")
    conf = prepare(node, HOST_GW_V1)
    node.run("ADD", conf, container_id="p", netns="none").expect()
    assert [
        {"Type": "OutBoundNAT", "ExceptionList": ["10.96.0.0/12", "10.244.0.0/16"]},
        {"Type": "ROUTE", "DestinationPrefix": "10.96.0.0/12", "NeedEncap": True},
    ] == node.created_v1()["Policies"]
    node.run("DEL", conf, container_id="p", netns="none").expect()


def test_gc_spares_flannels_own_endpoints(node: Node) -> None:
    """cbr0_ep is how the node itself is reached."""
    conf = prepare(node, HOST_GW) | {"cniVersion": "1.1.0"}
    node.run("ADD", conf).expect()
    node.run("GC", conf | {"cni.dev/valid-attachments": []}, netns="").expect()
    assert ([], 1) == (
        node.simulator.named("Endpoint", "c1_cbr0"),
        len(node.simulator.named("Endpoint", "cbr0_ep")),
    )
