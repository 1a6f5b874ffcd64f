# SPDX-License-Identifier: Apache-2.0
"""From a configuration and IPAM's answer to the endpoint a Windows container gets; pure.

`Spec` is what one network configuration wants, in terms all Windows plugins share; `plan` works
out addresses, gateways, MAC, DNS and policies.
"""

from __future__ import annotations

import enum
import ipaddress
import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct, structs

from pycni.errors import CniError, InvalidConfig
from pycni.model.addresses import IPAddress, IPInterface, IPNetwork, parse_cidr, parse_ip
from pycni.model.request import Bandwidth, PortMapping, RuntimeDns
from pycni.model.result import DNS, Interface, IPConfig, Result
from pycni.windows import policies
from pycni.windows.dialects import Endpoint, Network, Plan, Subnet
from pycni.windows.features import Feature, Features
from pycni.windows.schemas import Policy, Route

log = logging.getLogger(__name__)

ENDPOINT_POLICY = "endpointpolicy"
_MAC_PREFIX = re.compile(r"[0-9A-Fa-f]{2}-[0-9A-Fa-f]{2}")
# Network types on the virtual filtering platform. There a port of the node's own address must be
# marked as locally routed (Azure PR 1922); for Overlay that is inferred from L2Bridge.
_FILTERED = ("L2Bridge", "L2Tunnel", "Overlay")


class GatewayRule(enum.StrEnum):
    """Which gateway a container gets."""

    BRIDGE = "bridge"  # host address + 2: where flannel host-gw puts the node's own endpoint
    IPAM = "ipam"
    SUBNET = "subnet"  # the one of the network in HNS


class Step(enum.Enum):
    """The policies a plugin adds, in the order it adds them."""

    EXCEPTIONS = enum.auto()
    PORTS = enum.auto()
    LOOPBACK_DSR = enum.auto()
    PROVIDER_ADDRESS = enum.auto()
    BANDWIDTH = enum.auto()


# -- configuration keys the Windows plugins share --------------------------------------------------


class NamedPolicy(Struct, frozen=True, kw_only=True):
    """An entry of `policies`; only those named EndpointPolicy are used."""

    name: str = ""
    value: dict[str, Any] = {}


class HcnPolicyArgs(Struct, frozen=True, kw_only=True):
    """An entry of the former key `HcnPolicyArgs`, which cni.dev still documents."""

    Type: str = ""
    Settings: dict[str, Any] = {}


class HnsRuntimeConfig(Struct, frozen=True, kw_only=True):
    """`runtimeConfig`: the capabilities dns, portMappings and bandwidth."""

    dns: RuntimeDns = RuntimeDns()
    portMappings: tuple[PortMapping, ...] = ()
    bandwidth: Bandwidth | None = None


class Spec(Struct, frozen=True, kw_only=True):
    """What one network configuration wants of an endpoint."""

    network: str
    kinds: tuple[str, ...]
    plugin: str
    version: str
    steps: tuple[Step, ...]
    apiVersion: int | None = None
    policies: tuple[Policy, ...] = ()
    dns: DNS = DNS()
    ports: tuple[PortMapping, ...] = ()
    bandwidth: Bandwidth | None = None
    exceptions: tuple[IPNetwork, ...] = ()
    except_own_subnet: bool = False
    loopback_dsr: bool = False
    mac_prefix: str = ""
    gateway: GatewayRule | IPAddress = GatewayRule.SUBNET
    ipv6: bool = True
    local_routed: bool | None = None  # None: as the network's type needs it
    interface_name: str = ""  # what the result calls the interface; empty: as the endpoint
    routes: tuple[Route, ...] = ()  # beside the default ones
    dhcp: bool = False


def parse_policies(
    named: Iterable[NamedPolicy], old: Iterable[HcnPolicyArgs] = (), *, key: str = "policies"
) -> tuple[Policy, ...]:
    """The endpoint policies of a configuration; raise InvalidConfig (7) naming a bad one."""
    found = [
        policies.parse_policy(policy.value, where=f"{key}[{i}].value")
        for i, policy in enumerate(named)
        if policy.name.casefold() == ENDPOINT_POLICY
    ]
    for i, policy in enumerate(old):
        log.warning("the key HcnPolicyArgs is obsolete: use policies with name EndpointPolicy")
        value = {"Type": policy.Type, "Settings": policy.Settings}
        found.append(policies.parse_policy(value, where=f"HcnPolicyArgs[{i}]"))
    return tuple(found)


def parse_gateway(text: str, default: GatewayRule) -> GatewayRule | IPAddress:
    """The key `gateway`: a rule by name, or an address."""
    if not text:
        return default
    try:
        return GatewayRule(text.casefold())
    except ValueError:
        pass
    try:
        return parse_ip(text)
    except InvalidConfig:
        names = ", ".join(GatewayRule)
        raise InvalidConfig(f"gateway: expected {names} or an address, got {text!r}") from None


def parse_masq_network(text: str, *, key: str) -> tuple[IPNetwork, ...]:
    """The network of an exception from masquerading, host bits cleared; none if not given."""
    if not text:
        return ()
    try:
        return (parse_cidr(text).network,)
    except InvalidConfig as exc:
        raise InvalidConfig(f"{key}: {exc.msg}") from exc


def check_mac_prefix(prefix: str) -> str:
    """The prefix; raise InvalidConfig (7) unless it is two bytes."""
    if not _MAC_PREFIX.fullmatch(prefix):
        raise InvalidConfig(
            f"endpointMacPrefix [{prefix}] is invalid, value must be of the format xx-xx"
        )
    return prefix


def merge_dns(configured: DNS, runtime: RuntimeDns) -> DNS:
    """Each list the runtime gives replaces the configured one."""
    return structs.replace(
        configured,
        nameservers=runtime.servers or configured.nameservers,
        search=runtime.searches or configured.search,
        options=runtime.options or configured.options,
    )


# -- the plan --------------------------------------------------------------------------------------


def plan(
    spec: Spec,
    network: Network,
    name: str,
    *,
    ipam: Result | None,
    features: Features | None,
    management_ip: str = "",
) -> Plan:
    """The endpoint for `spec` on `network`. `ipam` None: the service chooses the address.

    `features` may be None if `needs_features` says so.
    """
    interfaces = _choose_addresses(spec, ipam, features) if ipam is not None else ()
    addresses = tuple(interface.ip for interface in interfaces)
    for address in addresses:
        if network.subnets and network.subnet_of(address) is None:
            prefixes = ", ".join(str(subnet.prefix) for subnet in network.subnets)
            raise InvalidConfig(
                f"ipam: {address} is in no subnet of network {network.name} ({prefixes})"
            )
    gateways = tuple(_gateways(spec, network, interfaces, ipam)) if ipam is not None else ()
    for gateway in gateways:
        if gateway in addresses:
            raise InvalidConfig(
                f"gateway: {gateway} is the address IPAM gave the container",
                hint="let ipam's rangeStart spare it, or set the key gateway",
            )
    return Plan(
        name=name,
        network=network.ident,
        addresses=addresses,
        gateways=gateways,
        mac=_mac(spec.mac_prefix, addresses),
        dns=spec.dns,
        policies=plan_policies(spec, network, addresses, features, management_ip),
        routes=spec.routes,
        dhcp=spec.dhcp and not addresses,
    )


def takes_gateway(spec: Spec, network: Network, ipam: Result) -> bool:
    """Whether IPAM gave the container the address of its gateway."""
    interfaces = tuple(ip.address for ip in ipam.ips)
    gateways = set(_gateways(spec, network, interfaces, ipam))
    return any(interface.ip in gateways for interface in interfaces)


def needs_features(spec: Spec, ipam: Result | None) -> bool:
    """Whether the plan depends on what the service can do."""
    six = any(ip.address.version == 6 for ip in ipam.ips) if ipam is not None else False
    return spec.loopback_dsr or six


def plan_policies(
    spec: Spec,
    network: Network,
    addresses: tuple[IPAddress, ...],
    features: Features | None,
    management_ip: str,
) -> tuple[Policy, ...]:
    """The configured policies and those the plugin adds, merged, in the plugin's order."""
    found = policies.PolicyList(spec.policies)
    for step in spec.steps:
        match step:
            case Step.EXCEPTIONS:
                own = _own_subnets(network, addresses) if spec.except_own_subnet else ()
                found.add_exceptions((*spec.exceptions, *own))
            case Step.PORTS:
                found.add(_port_policies(spec, network, addresses))
            case Step.LOOPBACK_DSR:
                if spec.loopback_dsr and has_dsr(features):
                    found.add_destinations(addresses)
            case Step.PROVIDER_ADDRESS:
                if management_ip:
                    found.add_provider_address(management_ip)
            case Step.BANDWIDTH:
                found.add(_bandwidth_policies(spec.bandwidth))
    return found.freeze()


def has_dsr(features: Features | None) -> bool:
    """Whether loopback DSR can be had; if not, say so and go on without, as the reference does."""
    if features is not None and features.has(Feature.DSR):
        return True
    log.warning("loopbackDSR left out: the service does not support %s", Feature.DSR.value)
    return False


def _choose_addresses(
    spec: Spec, ipam: Result, features: Features | None
) -> tuple[IPInterface, ...]:
    """IPAM's addresses: one IPv4, one IPv6, or both where the service can."""
    interfaces = tuple(ip.address for ip in ipam.ips)
    if not interfaces:
        raise CniError("IPAM plugin return is missing IP config")
    versions = [interface.version for interface in interfaces]
    if 6 in versions:
        if not spec.ipv6:
            raise InvalidConfig(f"ipam: {spec.plugin} doesn't support IPv6 now")
        assert features is not None
        features.expect(Feature.IPV6_DUAL_STACK)
    if len(versions) != len(set(versions)):
        given = ", ".join(str(interface) for interface in interfaces)
        raise InvalidConfig(
            f"ipam: an endpoint has one IPv4 and one IPv6 address at most, got {given}"
        )
    return interfaces


def _gateways(
    spec: Spec, network: Network, interfaces: tuple[IPInterface, ...], ipam: Result
) -> Iterator[IPAddress]:
    """The default gateway of each address's family."""
    given = {ip.address.version: ip.gateway for ip in ipam.ips if ip.gateway is not None}
    for interface in interfaces:
        subnet = network.subnet_of(interface.ip) or Subnet(interface.network)
        match spec.gateway:
            case GatewayRule.BRIDGE if interface.version == 4:
                yield _second_address(interface)
                continue
            case GatewayRule.SUBNET:
                chosen = subnet.gateway or given.get(interface.version)
            case GatewayRule.BRIDGE | GatewayRule.IPAM:
                chosen = given.get(interface.version)
                if chosen is None and spec.gateway is GatewayRule.BRIDGE:
                    chosen = subnet.gateway
            case address:
                chosen = given.get(interface.version)
                chosen = address if address.version == interface.version else chosen
        if chosen is not None:
            yield chosen
        elif spec.gateway is GatewayRule.IPAM:
            raise InvalidConfig(f"gateway: IPAM gave no gateway for {interface}")


def _second_address(interface: IPInterface) -> IPAddress:
    """The network's address plus two. IPv6 has no such custom; IPAM's gateway is used there."""
    found = ipaddress.ip_address(int(interface.network.network_address) + 2)
    if found not in interface.network:
        raise InvalidConfig(
            f"ipam: {interface.network} is too small for its gateway at {found}",
            hint="set the key gateway",
        )
    return found


def _mac(prefix: str, addresses: tuple[IPAddress, ...]) -> str:
    """Two bytes of prefix and the IPv4 address, spelled as the reference does: 0E-2A-0a-…"""
    four = next((address for address in addresses if address.version == 4), None)
    if not prefix or four is None:
        return ""
    return "-".join([prefix, *(f"{byte:02x}" for byte in four.packed)])


def _own_subnets(network: Network, addresses: tuple[IPAddress, ...]) -> tuple[IPNetwork, ...]:
    """The subnets the addresses are in; all of them while no address is known."""
    if not network.subnets:
        raise CniError(f"network {network.name} has no subnet to except from masquerading")
    if not addresses:
        return tuple(subnet.prefix for subnet in network.subnets)
    found = (network.subnet_of(address) for address in addresses)
    return tuple(subnet.prefix for subnet in found if subnet is not None)


def _port_policies(
    spec: Spec, network: Network, addresses: tuple[IPAddress, ...]
) -> Iterator[Policy]:
    families = sorted({address.version for address in addresses}) or [4]
    local = network.kind in _FILTERED if spec.local_routed is None else spec.local_routed
    for port in spec.ports:
        yield from policies.port_mappings(
            host_port=port.hostPort,
            container_port=port.containerPort,
            protocol=port.protocol,
            host_ip=port.hostIP,
            families=families,
            local_routed=local,
        )


def _bandwidth_policies(bandwidth: Bandwidth | None) -> Iterator[Policy]:
    """The service limits what a container sends, in bytes; what it receives it cannot limit."""
    if bandwidth is None:
        return
    if bandwidth.ingressRate:
        log.warning("bandwidth.ingressRate left out: the service limits outgoing traffic only")
    if bandwidth.egressRate:
        settings = {"MaximumOutgoingBandwidthInBytes": bandwidth.egressRate // 8}
        yield Policy(Type=policies.QOS, Settings=settings)


# -- the result ------------------------------------------------------------------------------------


def result_of(spec: Spec, network: Network, endpoint: Endpoint) -> Result:
    """The CNI result of an endpoint, with the mask of the subnet each address is in."""
    named = bool(spec.interface_name)
    ips = []
    for interface in endpoint.interfaces:
        subnet = network.subnet_of(interface.ip)
        length = subnet.prefix.prefixlen if subnet else interface.network.prefixlen
        ips.append(
            IPConfig(
                address=ipaddress.ip_interface((interface.ip, length)),
                gateway=endpoint.gateway_for(interface.ip),
                interface=0 if named else None,
            )
        )
    return Result(
        cniVersion=spec.version,
        interfaces=(Interface(name=spec.interface_name or endpoint.name, mac=endpoint.mac),),
        ips=tuple(ips),
        dns=endpoint.dns,
    )
