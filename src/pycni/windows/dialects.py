# SPDX-License-Identifier: Apache-2.0
"""Networks and endpoints without regard to the schema: one model, two ways to talk about it.

`V2` uses host compute namespaces, `V1` plugs endpoints into running containers. What plugins do
with networks and endpoints is written once, in `pycni.net.hns_*`, against `Dialect`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Protocol

from msgspec import Struct, structs

from pycni.errors import InvalidConfig, TryAgain
from pycni.model.addresses import IPAddress, IPInterface, IPNetwork, parse_ip
from pycni.model.result import DNS
from pycni.windows import errors, policies, schemas
from pycni.windows.hcn import Hcn
from pycni.windows.hns import Hns
from pycni.windows.sandbox import Sandbox

OWNER = "pycni"
DEGRADED = (5, "Degraded")
ENABLE_DHCP = 32
_MANAGEMENT_IP_WAIT_S, _MANAGEMENT_IP_PAUSE_S = 5.0, 0.5  # as flannel waits


class Subnet(Struct, frozen=True):
    """A prefix of a network, with its gateway."""

    prefix: IPNetwork
    gateway: IPAddress | None = None


class Network(Struct, frozen=True, kw_only=True):
    """A network of the host networking service."""

    ident: uuid.UUID
    name: str
    kind: str
    subnets: tuple[Subnet, ...] = ()

    def subnet_of(self, address: IPAddress) -> Subnet | None:
        """The subnet that holds `address`."""
        return next((one for one in self.subnets if address in one.prefix), None)


class Endpoint(Struct, frozen=True, kw_only=True):
    """An endpoint: the network card of a container."""

    ident: uuid.UUID
    name: str
    network: uuid.UUID | None
    namespace: uuid.UUID | None = None
    containers: tuple[str, ...] = ()
    mac: str = ""
    interfaces: tuple[IPInterface, ...] = ()
    gateways: tuple[IPAddress, ...] = ()
    dns: DNS = DNS()
    policies: tuple[schemas.Policy, ...] = ()
    degraded: bool = False
    owner: str = ""

    @property
    def addresses(self) -> tuple[IPAddress, ...]:
        """Its addresses, without their prefix lengths."""
        return tuple(one.ip for one in self.interfaces)

    def gateway_for(self, address: IPAddress) -> IPAddress | None:
        """Where the default route of the address's family leads."""
        return next((one for one in self.gateways if one.version == address.version), None)


class Plan(Struct, frozen=True, kw_only=True):
    """An endpoint to be made; without addresses the service chooses one."""

    name: str
    network: uuid.UUID
    addresses: tuple[IPAddress, ...] = ()
    gateways: tuple[IPAddress, ...] = ()
    mac: str = ""
    dns: DNS = DNS()
    policies: tuple[schemas.Policy, ...] = ()
    routes: tuple[schemas.Route, ...] = ()  # beside the default ones; schema 2 only
    dhcp: bool = False  # the address comes from a DHCP server; schema 2 only


class Dialect(Protocol):
    """What the recipes need of a schema."""

    hns: Hns

    def find_networks(self, name: str) -> tuple[Network, ...]:
        """Every network of that name."""

    def find_endpoints(self, name: str) -> tuple[Endpoint, ...]:
        """Every endpoint of that name, on whatever network."""

    def list_endpoints(self, network: uuid.UUID) -> tuple[Endpoint, ...]:
        """Every endpoint of one network."""

    def get_endpoint(self, ident: uuid.UUID) -> Endpoint:
        """The endpoint as it is now."""

    def create_endpoint(self, plan: Plan) -> Endpoint:
        """Make an endpoint, attached to nothing."""

    def add_policies(self, endpoint: Endpoint, added: tuple[schemas.Policy, ...]) -> None:
        """Give an existing endpoint more policies."""

    def is_attached(self, endpoint: Endpoint, sandbox: Sandbox) -> bool:
        """Whether the endpoint is this sandbox's already."""

    def in_use(self, endpoint: Endpoint) -> bool:
        """Whether anything that exists uses the endpoint."""

    def attach(self, endpoint: Endpoint, sandbox: Sandbox) -> None:
        """Attach; attached already is success."""

    def detach(self, endpoint: Endpoint, sandbox: Sandbox) -> None:
        """Detach from wherever it is; absent is success."""

    def remove(self, endpoint: Endpoint) -> None:
        """Delete; absent is success."""

    def management_ip(self, network: Network) -> str:
        """The node's own address on the network, which appears some time after a create."""


class V2:
    """Schema 2: namespaces."""

    def __init__(self, hcn: Hcn, hns: Hns) -> None:
        self.hcn = hcn
        self.hns = hns

    def find_networks(self, name: str) -> tuple[Network, ...]:
        return tuple(_network(found) for found in self.hcn.networks.find_all_named(name))

    def find_endpoints(self, name: str) -> tuple[Endpoint, ...]:
        return tuple(_endpoint(found) for found in self.hcn.endpoints.find_all_named(name))

    def list_endpoints(self, network: uuid.UUID) -> tuple[Endpoint, ...]:
        return tuple(_endpoint(found) for found in self.hcn.endpoints.list_on(network))

    def get_endpoint(self, ident: uuid.UUID) -> Endpoint:
        return _endpoint(self.hcn.endpoints.get(ident))

    def create_endpoint(self, plan: Plan) -> Endpoint:
        made = self.hcn.endpoints.create(
            plan.network,
            schemas.Endpoint(
                Name=plan.name,
                HostComputeNetwork=str(plan.network),
                Policies=plan.policies,
                IpConfigurations=tuple(
                    schemas.IpConfiguration(IpAddress=str(address)) for address in plan.addresses
                ),
                Dns=schemas.DnsSettings(
                    Domain=plan.dns.domain,
                    Search=plan.dns.search,
                    ServerList=plan.dns.nameservers,
                    Options=plan.dns.options,
                ),
                Routes=tuple(
                    schemas.Route(NextHop=str(gateway), DestinationPrefix=default_prefix(gateway))
                    for gateway in plan.gateways
                )
                + plan.routes,
                MacAddress=plan.mac,
                Flags=ENABLE_DHCP if plan.dhcp else None,
                Health=schemas.HEALTH,
                SchemaVersion=schemas.V2,
                Owner=OWNER,
            ),
        )
        return _endpoint(made)

    def add_policies(self, endpoint: Endpoint, added: tuple[schemas.Policy, ...]) -> None:
        self.hcn.endpoints.apply_policies(endpoint.ident, added)

    def is_attached(self, endpoint: Endpoint, sandbox: Sandbox) -> bool:
        return endpoint.namespace is not None and endpoint.namespace == sandbox.namespace

    def in_use(self, endpoint: Endpoint) -> bool:
        """Whether its namespace lives, or a container has it without one (made in schema 1).

        An endpoint may remember a namespace that is gone (antrea 2301).
        """
        namespace = endpoint.namespace
        if namespace is not None and self.hcn.namespaces.find(namespace) is not None:
            return True
        return bool(self.hcn.endpoints.find_containers(endpoint.ident))

    def attach(self, endpoint: Endpoint, sandbox: Sandbox) -> None:
        namespace = sandbox.get_namespace()
        try:
            self.hcn.namespaces.add_endpoint(namespace, endpoint.ident)
        except errors.HnsConflict:
            if self.get_endpoint(endpoint.ident).namespace != namespace:
                raise

    def detach(self, endpoint: Endpoint, sandbox: Sandbox) -> None:
        if endpoint.namespace is not None:
            self.hcn.namespaces.remove_endpoint(endpoint.namespace, endpoint.ident)

    def remove(self, endpoint: Endpoint) -> None:
        self.hcn.endpoints.remove(endpoint.ident)

    def management_ip(self, network: Network) -> str:
        return wait_for_management_ip(lambda: self.hcn.networks.get_v1(network.ident).ManagementIP)


class V1:
    """Schema 1: endpoints are plugged into compute systems."""

    def __init__(self, hns: Hns) -> None:
        self.hns = hns

    def find_networks(self, name: str) -> tuple[Network, ...]:
        found = self.hns.networks.find_named(name)
        return () if found is None else (_network_v1(found),)

    def find_endpoints(self, name: str) -> tuple[Endpoint, ...]:
        return tuple(_endpoint_v1(found) for found in self.hns.endpoints.find_all_named(name))

    def list_endpoints(self, network: uuid.UUID) -> tuple[Endpoint, ...]:
        found = (_endpoint_v1(one) for one in self.hns.endpoints.list())
        return tuple(one for one in found if one.network == network)

    def get_endpoint(self, ident: uuid.UUID) -> Endpoint:
        return _endpoint_v1(self.hns.endpoints.get(ident))

    def create_endpoint(self, plan: Plan) -> Endpoint:
        by_family = {address.version: str(address) for address in plan.addresses}
        gateways = {gateway.version: str(gateway) for gateway in plan.gateways}
        made = self.hns.endpoints.create(
            schemas.EndpointV1(
                Name=plan.name,
                VirtualNetwork=str(plan.network),
                Policies=tuple(policies.to_v1(policy) for policy in plan.policies),
                MacAddress=plan.mac,
                IPAddress=by_family.get(4, ""),
                IPv6Address=by_family.get(6, ""),
                DNSSuffix=",".join(plan.dns.search),
                DNSServerList=",".join(plan.dns.nameservers),
                GatewayAddress=gateways.get(4, ""),
                GatewayAddressV6=gateways.get(6, ""),
            )
        )
        return _endpoint_v1(made)

    def add_policies(self, endpoint: Endpoint, added: tuple[schemas.Policy, ...]) -> None:
        raw = self.hns.endpoints.get(endpoint.ident)
        more = tuple(policies.to_v1(policy) for policy in added)
        self.hns.endpoints.apply_policies(structs.replace(raw, Policies=raw.Policies + more))

    def is_attached(self, endpoint: Endpoint, sandbox: Sandbox) -> bool:
        mine = sandbox.container_id.casefold()
        return mine in (one.casefold() for one in endpoint.containers)

    def in_use(self, endpoint: Endpoint) -> bool:
        return bool(endpoint.containers)

    def attach(self, endpoint: Endpoint, sandbox: Sandbox) -> None:
        self.hns.hot_attach(endpoint.ident, sandbox.container_id)

    def detach(self, endpoint: Endpoint, sandbox: Sandbox) -> None:
        if sandbox.shares:
            self.hns.endpoints.detach(endpoint.ident, sandbox.container_id)
        else:
            self.hns.hot_detach(endpoint.ident, sandbox.container_id)

    def remove(self, endpoint: Endpoint) -> None:
        self.hns.endpoints.remove(endpoint.ident)

    def management_ip(self, network: Network) -> str:
        return wait_for_management_ip(lambda: self.hns.networks.get(network.ident).ManagementIP)


def wait_for_management_ip(
    look: Callable[[], str],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """What `look` finds, looking again for a few seconds; raise TryAgain (11) if it stays empty."""
    end = clock() + _MANAGEMENT_IP_WAIT_S
    while True:
        found = look()
        if found:
            return found
        if clock() >= end:
            raise TryAgain("the network has no management address yet")
        sleep(_MANAGEMENT_IP_PAUSE_S)


def default_prefix(gateway: IPAddress) -> str:
    """The default route's destination in the gateway's family."""
    return "0.0.0.0/0" if gateway.version == 4 else "::/0"


# -- the service's documents as the model ----------------------------------------------------------


def _network(found: schemas.Network) -> Network:
    return Network(
        ident=found.ident,
        name=found.Name,
        kind=found.kind,
        subnets=tuple(
            Subnet(prefix, _first_address(route.NextHop for route in subnet.Routes))
            for subnet in found.subnets
            if (prefix := _prefix(subnet.IpAddressPrefix)) is not None
        ),
    )


def _network_v1(found: schemas.NetworkV1) -> Network:
    return Network(
        ident=found.ident,
        name=found.Name,
        kind=found.Type or "NAT",
        subnets=tuple(
            Subnet(prefix, _first_address([subnet.GatewayAddress]))
            for subnet in found.Subnets
            if (prefix := _prefix(subnet.AddressPrefix)) is not None
        ),
    )


def _endpoint(found: schemas.Endpoint) -> Endpoint:
    dns = found.Dns or schemas.DnsSettings()
    return Endpoint(
        ident=found.ident,
        name=found.Name,
        network=schemas.parse_id(found.HostComputeNetwork),
        namespace=schemas.parse_id(found.HostComputeNamespace),
        mac=found.MacAddress,
        interfaces=_interfaces((one.IpAddress, one.PrefixLength) for one in found.IpConfigurations),
        gateways=_addresses(route.NextHop for route in found.Routes),
        dns=DNS(
            domain=dns.Domain, search=dns.Search, nameservers=dns.ServerList, options=dns.Options
        ),
        policies=found.Policies,
        degraded=found.State in DEGRADED,
        owner=found.Owner,
    )


def _endpoint_v1(found: schemas.EndpointV1) -> Endpoint:
    return Endpoint(
        ident=found.ident,
        name=found.Name,
        network=schemas.parse_id(found.VirtualNetwork),
        namespace=schemas.parse_id(found.Namespace.ID) if found.Namespace else None,
        containers=found.SharedContainers,
        mac=found.MacAddress,
        interfaces=_interfaces(
            (
                (found.IPAddress, found.PrefixLength),
                (found.IPv6Address, found.IPv6PrefixLength),
            )
        ),
        gateways=_addresses((found.GatewayAddress, found.GatewayAddressV6)),
        dns=DNS(search=_split(found.DNSSuffix), nameservers=_split(found.DNSServerList)),
        policies=tuple(policies.from_v1(policy) for policy in found.Policies),
        degraded=found.State in DEGRADED,
    )


def _split(text: str) -> tuple[str, ...]:
    """The parts of a comma list; an empty text has none (the reference finds one empty part)."""
    return tuple(part for part in text.split(",") if part)


def _addresses(texts: Iterable[str]) -> tuple[IPAddress, ...]:
    return tuple(address for text in texts if (address := _address(text)) is not None)


def _interfaces(pairs: Iterable[tuple[str, int | None]]) -> tuple[IPInterface, ...]:
    """Addresses with the length the service shows, a full one where it shows none."""
    return tuple(
        ipaddress.ip_interface((address, length or address.max_prefixlen))
        for text, length in pairs
        if (address := _address(text)) is not None
    )


def _first_address(texts: Iterable[str]) -> IPAddress | None:
    return next(iter(_addresses(texts)), None)


def _address(text: str) -> IPAddress | None:
    """An address the service shows; empty or unusable ones are none."""
    with contextlib.suppress(InvalidConfig):
        return parse_ip(text)
    return None


def _prefix(text: str) -> IPNetwork | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_network(text, strict=False)
    return None
