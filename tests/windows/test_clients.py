# SPDX-License-Identifier: Apache-2.0
"""The typed clients: what they ask for and how they take the answers."""

from __future__ import annotations

import uuid

import pytest

from pycni.errors import CniError
from pycni.testing.hns_simulator import NativeCall
from pycni.windows import errors, schemas
from pycni.windows.abi import Reply
from pycni.windows.dialects import wait_for_management_ip
from pycni.windows.schemas import Endpoint, IpConfiguration, Modify, Network, Policy
from tests.windows.drive import CBR0, Doc, Node, bridge


def network_doc(**keys: object) -> Network:
    """An L2Bridge network as a client writes it."""
    route = schemas.Route(NextHop="10.9.0.1", DestinationPrefix="0.0.0.0/0")
    subnet = schemas.Subnet(IpAddressPrefix="10.9.0.0/24", Routes=(route,))
    fields = {"Name": "n", "Type": "L2Bridge", "Ipams": (schemas.Ipam(Subnets=(subnet,)),)}
    return Network(**(fields | keys))  # type: ignore[arg-type] # keys of the test's choice


def cbr0(node: Node) -> uuid.UUID:
    (found,) = node.simulator.named("Network", "cbr0")
    return uuid.UUID(found["ID"])


def test_a_network_is_created_read_and_removed(node: Node) -> None:
    """And the handle of the create is closed."""
    networks = node.service.hcn.networks
    made = networks.create(network_doc())
    assert ("n", "L2Bridge", "10.9.0.0/24") == (
        made.Name,
        made.kind,
        made.subnets[0].IpAddressPrefix,
    )
    assert made == networks.find(made.ident)
    networks.remove(made.ident)
    assert None is networks.find(made.ident)


def test_removing_what_is_absent_is_success(node: Node) -> None:
    """For every type of object, in both schemas."""
    service, nobody = node.service, uuid.uuid4()
    for objects in (
        service.hcn.networks,
        service.hcn.endpoints,
        service.hcn.namespaces,
        service.hcn.load_balancers,
        service.hns.networks,
        service.hns.endpoints,
    ):
        objects.remove(nobody)


def test_getting_what_is_absent_is_an_error(node: Node) -> None:
    """`get` raises where `find` answers None; only not-found codes mean that."""
    with pytest.raises(errors.HnsNotFound):
        node.service.hcn.networks.get(uuid.uuid4())
    with pytest.raises(errors.HnsNotFound):
        node.service.hns.networks.get(uuid.uuid4())
    node.simulator.fail("HcnOpenNetwork", 0x80070005)
    with pytest.raises(errors.HnsDenied):
        node.service.hcn.networks.find(cbr0(node))


def test_queries_filter_by_name(node: Node) -> None:
    """The filter is JSON inside the JSON."""
    found = node.service.hcn.networks.find_all_named("cbr0")
    assert ["cbr0"] == [one.Name for one in found]
    expected = '{"SchemaVersion":{"Major":2,"Minor":0},"Filter":"{\\"Name\\":\\"cbr0\\"}"}'
    assert expected == node.simulator.calls[0].texts[0]


def test_a_network_without_gateway_is_refused_before_the_service(node: Node) -> None:
    """Its own error names nothing."""
    subnet = schemas.Subnet(IpAddressPrefix="10.9.0.0/24")
    with pytest.raises(errors.HnsError, match="has address prefix but no gateway specified"):
        node.service.hcn.networks.create(network_doc(Ipams=(schemas.Ipam(Subnets=(subnet,)),)))
    assert [] == node.functions()


def test_nat_is_the_type_that_is_left_out(node: Node) -> None:
    """Its number is 0, so the service omits it."""
    made = node.service.hcn.networks.create(network_doc(Type="NAT"))
    assert "NAT" == made.kind
    assert "Transparent" == Network(Type=2).kind


def test_the_schema_1_view_tells_the_management_address(node: Node) -> None:
    """Asked of the schema 2 call, so one DLL is enough."""
    assert "192.168.1.10" == node.service.hcn.networks.get_v1(cbr0(node)).ManagementIP
    assert "HNSCall" not in node.functions()


def test_the_management_address_is_waited_for(node: Node) -> None:
    """It appears some time after the network."""
    node.simulator.management_ip_delay = 3
    networks, ident = node.service.hcn.networks, cbr0(node)
    pauses: list[float] = []
    found = wait_for_management_ip(
        lambda: networks.get_v1(ident).ManagementIP, clock=lambda: sum(pauses), sleep=pauses.append
    )
    assert ("192.168.1.10", [0.5, 0.5, 0.5]) == (found, pauses)


def test_an_absent_management_address_is_worth_trying_again() -> None:
    """Code 11 after five seconds."""
    pauses: list[float] = []
    with pytest.raises(CniError, match="no management address yet") as caught:
        wait_for_management_ip(lambda: "", clock=lambda: sum(pauses), sleep=pauses.append)
    assert (11, 5.0) == (caught.value.wire_code, sum(pauses))


def test_endpoints_are_created_attached_and_listed(node: Node) -> None:
    """By network, with the key schema 1 has for it."""
    hcn, network = node.service.hcn, cbr0(node)
    made = hcn.endpoints.create(network, Endpoint(Name="e", HostComputeNetwork=str(network)))
    assert schemas.ZERO == made.namespace
    namespace = uuid.UUID(node.namespace)
    hcn.namespaces.add_endpoint(namespace, made.ident)
    assert namespace == hcn.endpoints.get(made.ident).namespace
    assert (made.ident,) == hcn.namespaces.get(namespace).endpoints
    assert ["e"] == [one.Name for one in hcn.endpoints.list_on(network)]
    hcn.namespaces.remove_endpoint(namespace, made.ident)
    hcn.namespaces.remove_endpoint(namespace, made.ident)
    assert () == hcn.namespaces.get(namespace).endpoints


def test_policies_can_come_later(node: Node) -> None:
    """As a modification of the endpoint."""
    hcn, network = node.service.hcn, cbr0(node)
    made = hcn.endpoints.create(network, Endpoint(Name="e", HostComputeNetwork=str(network)))
    policy = Policy(Type="OutBoundNAT", Settings={"Exceptions": ["10.0.0.0/8"]})
    hcn.endpoints.apply_policies(made.ident, (policy,))
    assert (policy,) == hcn.endpoints.get(made.ident).Policies


def test_namespaces_and_load_balancers_have_the_same_verbs(node: Node) -> None:
    """Create, find, list, remove."""
    hcn = node.service.hcn
    namespace = hcn.namespaces.create(schemas.Namespace(Type="Guest"))
    assert namespace.NamespaceId
    hcn.namespaces.remove(uuid.UUID(namespace.ID))
    mapping = schemas.LoadBalancerPortMapping(Protocol=6, InternalPort=80, ExternalPort=8080)
    balancer = hcn.load_balancers.create(
        schemas.LoadBalancer(
            FrontendVIPs=("10.0.0.1",), PortMappings=(mapping,), SchemaVersion=schemas.V2
        )
    )
    assert (balancer,) == hcn.load_balancers.list()
    assert (mapping,) == balancer.PortMappings
    hcn.load_balancers.remove(uuid.UUID(balancer.ID))
    assert () == hcn.load_balancers.list_ids()


def test_networks_can_be_modified(node: Node) -> None:
    """The same document as for endpoints."""
    policy: Doc = {"Type": "RemoteSubnetRoute", "Settings": {"IsolationId": 4096}}
    change = Modify(ResourceType="Policy", RequestType="Add", Settings={"Policies": [policy]})
    node.service.hcn.networks.modify(cbr0(node), change)
    assert [policy] == node.simulator.named("Network", "cbr0")[0]["Policies"]


def test_a_reply_of_another_shape_is_an_error(node: Node) -> None:
    """It names what it could not read."""
    node.simulator.hook("HcnEnumerateNetworks", lambda _call: Reply(text='{"a":1}'))
    with pytest.raises(errors.HnsError, match="read reply"):
        node.service.hcn.networks.list()


def test_an_empty_listing_may_be_no_text_at_all(node: Node) -> None:
    """NULL and "" both mean none."""
    node.simulator.hook("HcnEnumerateNetworks", lambda _call: Reply())
    assert () == node.service.hcn.networks.list()


def test_schema_1_networks(node: Node) -> None:
    """Listed, looked for by exact name, created."""
    networks = node.service.hns.networks
    assert ["cbr0", "vxlan0"] == [one.Name for one in networks.list()]
    assert networks.find_named("CBR0") is None
    subnet = schemas.SubnetV1(AddressPrefix="10.9.0.0/24", GatewayAddress="10.9.0.1")
    made = networks.create(schemas.NetworkV1(Name="n", Type="L2Bridge", Subnets=(subnet,)))
    assert made.ident == networks.get(made.ident).ident
    networks.remove(made.ident)


def test_schema_1_endpoints_attach_to_the_host(node: Node) -> None:
    """As flannel does for the node's own endpoint on cbr0."""
    endpoints = node.service.hns.endpoints
    made = endpoints.create(
        schemas.EndpointV1(Name="cbr0_ep", VirtualNetwork=str(cbr0(node)), IPAddress="10.244.3.2")
    )
    endpoints.attach_host(made.ident)
    assert ("host",) == endpoints.get(made.ident).SharedContainers


def test_hot_attach_happens_once(node: Node) -> None:
    """The container's id is compared without regard to case."""
    hns = node.service.hns
    node.simulator.compute_systems.add("C1")
    made = hns.endpoints.create(schemas.EndpointV1(Name="e", VirtualNetwork=str(cbr0(node))))
    hns.hot_attach(made.ident, "C1")
    hns.hot_attach(made.ident, "c1")
    assert 1 == node.functions().count("HcsModifyComputeSystem")
    hns.hot_detach(made.ident, "C1")
    hns.hot_detach(made.ident, "C1")
    assert () == hns.endpoints.get(made.ident).SharedContainers


def test_hot_attach_to_what_does_not_run_is_an_error(node: Node) -> None:
    """The compute service's record is another one; detaching from it is success."""
    hns = node.service.hns
    made = hns.endpoints.create(schemas.EndpointV1(Name="e", VirtualNetwork=str(cbr0(node))))
    with pytest.raises(errors.HnsError, match="does not exist") as caught:
        hns.hot_attach(made.ident, "c1")
    assert errors.NO_COMPUTE_SYSTEM == caught.value.hresult
    node.simulator.compute_systems.add("c1")
    hns.hot_attach(made.ident, "c1")
    node.simulator.compute_systems.clear()
    hns.hot_detach(made.ident, "c1")
    hns.hot_detach(uuid.uuid4(), "c1")


def test_a_pending_hot_attach_is_success(node: Node) -> None:
    """0xC0370103: the operation goes on by itself."""
    hns = node.service.hns
    node.simulator.compute_systems.add("c1")
    made = hns.endpoints.create(schemas.EndpointV1(Name="e", VirtualNetwork=str(cbr0(node))))

    def pending(_call: NativeCall) -> Reply:
        return Reply(hresult=errors.PENDING)

    node.simulator.hook("HcsModifyComputeSystem", pending)
    hns.hot_attach(made.ident, "c1")


def test_addresses_of_an_endpoint_as_the_service_shows_them(node: Node) -> None:
    """With the length of their subnet."""
    hcn, network = node.service.hcn, cbr0(node)
    wanted = Endpoint(
        Name="e",
        HostComputeNetwork=str(network),
        IpConfigurations=(IpConfiguration(IpAddress="10.244.3.44"),),
    )
    made = hcn.endpoints.create(network, wanted)
    assert (IpConfiguration(IpAddress="10.244.3.44", PrefixLength=24),) == made.IpConfigurations


def test_two_networks_of_one_name_do_not_come_to_be(node: Node) -> None:
    """The error is a conflict."""
    with pytest.raises(errors.HnsConflict, match="already exists"):
        node.service.hcn.networks.create(network_doc(Name=CBR0["Name"]))


def test_only_missing_destinations_are_added_later(node: Node) -> None:
    """What the service shows of other policies is not sent again."""
    exceptions = ["10.0.0.0/8"], ["172.16.0.0/12"]
    values = [{"Type": "OutBoundNAT", "Settings": {"Exceptions": one}} for one in exceptions]
    conf = bridge(
        loopbackDSR=True,
        policies=[{"name": "EndpointPolicy", "value": value} for value in values],
    )

    def split(_call: NativeCall) -> None:
        endpoint = node.endpoint("c1_cbr0")
        endpoint["Policies"] = list(values)

    node.simulator.hook("HcnQueryEndpointProperties", split)
    node.run("ADD", conf).expect()
    added = {"Type": "OutBoundNAT", "Settings": {"Destinations": ["10.244.3.2"]}}
    assert [*values, added] == node.endpoint("c1_cbr0")["Policies"]
