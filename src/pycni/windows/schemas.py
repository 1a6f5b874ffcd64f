# SPDX-License-Identifier: Apache-2.0
"""The JSON documents of the host networking service, schema 2 (HCN) and schema 1 (HNS).

Field names are the service's. A field that is None or empty is left out of a request. Replies
carry much more than is read here; what is unknown is ignored, null is the same as absent, and what
has a number may come by name. Ids come back in either case, and compare as `uuid.UUID`s do.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

ZERO = uuid.UUID(int=0)


class Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A document or a part of one."""


class Schema(Document, frozen=True, kw_only=True, omit_defaults=False):
    Major: int = 2
    Minor: int = 0


V1 = Schema(Major=1)
V2 = Schema(Major=2)


HEALTH: dict[str, Any] = {"Extra": {}}  # Go clients cannot leave it out; it means nothing


class Query(Document, frozen=True, kw_only=True):
    """The document of Enumerate and Query; `Filter` is JSON inside a string."""

    SchemaVersion: Schema
    Filter: str = ""
    Flags: int | None = None


def query(version: Schema = V2, **matches: str) -> str:
    """A query for the objects whose fields equal `matches`."""
    wanted = msgspec.json.encode(matches).decode() if matches else ""
    return encode(Query(SchemaVersion=version, Filter=wanted))


class Policy(Document, frozen=True, kw_only=True, omit_defaults=False):
    """A schema 2 policy; `Settings` differ from type to type."""

    Type: str = ""
    Settings: dict[str, Any] = {}


class DnsSettings(Document, frozen=True, kw_only=True):
    Domain: str = ""
    Search: tuple[str, ...] = ()
    ServerList: tuple[str, ...] = ()
    Options: tuple[str, ...] = ()


class Route(Document, frozen=True, kw_only=True):
    NextHop: str = ""
    DestinationPrefix: str = ""
    Metric: int | None = None


class IpConfiguration(Document, frozen=True, kw_only=True):
    IpAddress: str = ""
    PrefixLength: int | None = None


class Subnet(Document, frozen=True, kw_only=True):
    IpAddressPrefix: str = ""
    Policies: tuple[Policy, ...] = ()
    Routes: tuple[Route, ...] = ()


class Ipam(Document, frozen=True, kw_only=True):
    Type: str | int = "Static"
    Subnets: tuple[Subnet, ...] = ()


class Network(Document, frozen=True, kw_only=True):
    """A schema 2 network. The service leaves `Type` out for NAT, its number 0."""

    ID: str = ""
    Name: str = ""
    Type: str | int | None = None
    Policies: tuple[Policy, ...] = ()
    Dns: DnsSettings | None = None
    Ipams: tuple[Ipam, ...] = ()
    Flags: int | str | None = None
    SchemaVersion: Schema | None = None
    Owner: str = ""

    @property
    def ident(self) -> uuid.UUID:
        return uuid.UUID(self.ID)

    @property
    def kind(self) -> str:
        """The type by name."""
        if isinstance(self.Type, int):
            known = 0 <= self.Type < len(NETWORK_TYPES)
            return NETWORK_TYPES[self.Type] if known else str(self.Type)
        return self.Type or "NAT"

    @property
    def subnets(self) -> tuple[Subnet, ...]:
        return tuple(subnet for ipam in self.Ipams for subnet in ipam.Subnets)


NETWORK_TYPES = (
    "NAT",
    "ICS",
    "Transparent",
    "L2Bridge",
    "L2Tunnel",
    "Overlay",
    "Private",
    "Internal",
    "Mirrored",
    "Infiniband",
    "ConstrainedICS",
)


class Endpoint(Document, frozen=True, kw_only=True):
    """A schema 2 endpoint; the order of fields is the one Go clients send."""

    ID: str = ""
    Name: str = ""
    HostComputeNetwork: str = ""
    HostComputeNamespace: str = ""
    Policies: tuple[Policy, ...] = ()
    IpConfigurations: tuple[IpConfiguration, ...] = ()
    Dns: DnsSettings | None = None
    Routes: tuple[Route, ...] = ()
    MacAddress: str = ""
    Flags: int | str | None = None
    Health: dict[str, Any] | None = None
    SchemaVersion: Schema | None = None
    Owner: str = ""
    State: int | str | None = None

    @property
    def ident(self) -> uuid.UUID:
        return uuid.UUID(self.ID)

    @property
    def namespace(self) -> uuid.UUID:
        """The namespace it is attached to; the zero id, like none, means not attached."""
        return parse_id(self.HostComputeNamespace) or ZERO


class ResourceData(Document, frozen=True, kw_only=True):
    ID: str = ""


class Resource(Document, frozen=True, kw_only=True):
    Type: str = ""
    Data: ResourceData = ResourceData()


class Namespace(Document, frozen=True, kw_only=True):
    """A schema 2 namespace with what is attached to it."""

    ID: str = ""
    NamespaceId: int | None = None
    Type: str | int = ""
    Resources: tuple[Resource, ...] = ()
    SchemaVersion: Schema | None = None

    @property
    def endpoints(self) -> tuple[uuid.UUID, ...]:
        """The endpoints attached, though their ids come in upper case here."""
        return tuple(
            found
            for resource in self.Resources
            if resource.Type == "Endpoint" and (found := parse_id(resource.Data.ID))
        )


class LoadBalancerPortMapping(Document, frozen=True, kw_only=True):
    Protocol: int | str | None = None
    InternalPort: int | None = None
    ExternalPort: int | None = None
    DistributionType: int | str | None = None
    Flags: int | str | None = None


class LoadBalancer(Document, frozen=True, kw_only=True):
    ID: str = ""
    HostComputeEndpoints: tuple[str, ...] = ()
    SourceVIP: str = ""
    FrontendVIPs: tuple[str, ...] = ()
    PortMappings: tuple[LoadBalancerPortMapping, ...] = ()
    Policies: tuple[Policy, ...] = ()
    Flags: int | str | None = None
    SchemaVersion: Schema | None = None


class Modify(Document, frozen=True, kw_only=True):
    """A change to a network, endpoint, namespace or load balancer."""

    ResourceType: str
    RequestType: str
    Settings: dict[str, Any] = {}


class SubnetV1(Document, frozen=True, kw_only=True):
    AddressPrefix: str = ""
    GatewayAddress: str = ""
    Policies: tuple[dict[str, Any], ...] = ()


class NetworkV1(Document, frozen=True, kw_only=True):
    """A schema 1 network; the only schema that tells the management address."""

    ID: str = ""
    Name: str = ""
    Type: str = ""
    Policies: tuple[dict[str, Any], ...] = ()
    Subnets: tuple[SubnetV1, ...] = ()
    ManagementIP: str = ""

    @property
    def ident(self) -> uuid.UUID:
        return uuid.UUID(self.ID)


class NamespaceV1(Document, frozen=True, kw_only=True):
    ID: str = ""


class EndpointV1(Document, frozen=True, kw_only=True):
    """A schema 1 endpoint; the order of fields is the one Go clients send."""

    ID: str = ""
    Name: str = ""
    VirtualNetwork: str = ""
    VirtualNetworkName: str = ""
    Policies: tuple[dict[str, Any], ...] = ()
    MacAddress: str = ""
    IPAddress: str = ""
    IPv6Address: str = ""
    PrefixLength: int | None = None
    IPv6PrefixLength: int | None = None
    DNSSuffix: str = ""
    DNSServerList: str = ""
    GatewayAddress: str = ""
    GatewayAddressV6: str = ""
    Namespace: NamespaceV1 | None = None
    SharedContainers: tuple[str, ...] = ()
    State: int | str | None = None

    @property
    def ident(self) -> uuid.UUID:
        return uuid.UUID(self.ID)


class ContainerAttach(Document, frozen=True, kw_only=True):
    """The body of /endpoints/{id}/attach and …/detach."""

    ContainerId: str = ""
    SystemType: str
    CompartmentId: int | None = None


class ComputeModify(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The change that plugs an endpoint into a running compute system, or pulls it out."""

    ResourceType: str = "Network"
    Settings: str = ""
    RequestType: str = "Add"


class Version(Document, frozen=True, kw_only=True):
    """The service's API version, the answer of /globals/version."""

    Major: int = 0
    Minor: int = 0


def encode(document: object) -> str:
    """Compact JSON text."""
    return msgspec.json.encode(document).decode()


def decode(text: str | bytes, document: Any) -> Any:
    """The service's JSON as `document`; raise `msgspec.DecodeError` for what is not one."""
    return msgspec.convert(_without_nulls(msgspec.json.decode(text)), document)


def _without_nulls(value: Any) -> Any:
    match value:
        case dict():
            return {key: _without_nulls(one) for key, one in value.items() if one is not None}
        case list():
            return [_without_nulls(one) for one in value if one is not None]
    return value


def parse_id(text: str) -> uuid.UUID | None:
    """A non-zero id, or None; the service writes the zero id where there is none."""
    try:
        parsed = uuid.UUID(text)
    except ValueError:
        return None
    return parsed if parsed.int else None
