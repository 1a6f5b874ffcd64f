# SPDX-License-Identifier: Apache-2.0
"""`nat`, `sdnbridge`, `sdnoverlay`, `transparent`, `l2tunnel`: Windows networks by their type.

The names and keys of microsoft/windows-container-networking, whose configurations work as they
are (containerd and nerdctl write one for `nat`). What differs from win-bridge: a missing network
is created from `ipam.subnet`, `ipam` without a type leaves addresses to the host networking
service, the result names the interface as CNI_IFNAME does, and containers are always in a host
compute namespace (schema 2). `master` is accepted and ignored, as it is there.
"""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct, structs

from pycni.errors import InvalidConfig
from pycni.model.addresses import IPAddress, IPInterface
from pycni.model.request import CniArgs
from pycni.model.result import DNS, Result
from pycni.net import hns_attachment, hns_network
from pycni.net.hns_network import NetworkWish
from pycni.net.hns_plan import (
    GatewayRule,
    HnsRuntimeConfig,
    NamedPolicy,
    Spec,
    Step,
    merge_dns,
    parse_policies,
)
from pycni.plugins.sdk import IPAM, Call, Config, Plugin
from pycni.windows import policies, schemas, service
from pycni.windows.policies import parse_protocol
from pycni.windows.sandbox import Sandbox

STEPS = (Step.PORTS, Step.LOOPBACK_DSR, Step.BANDWIDTH)
_ACL_PRIORITY = 1000


class WinRoute(Struct, frozen=True, kw_only=True):
    """A route; the gateway is `GW`, but nerdctl and the project's own example write `gateway`."""

    dst: IPInterface | None = None
    GW: IPAddress | None = None
    gateway: IPAddress | None = None

    @property
    def via(self) -> IPAddress | None:
        """The gateway in either spelling."""
        return self.GW or self.gateway


class WinIPAM(IPAM, frozen=True, kw_only=True):
    """`ipam`: `subnet` describes the network; without a `type` the service gives the addresses."""

    subnet: IPInterface | None = None
    routes: tuple[WinRoute, ...] = ()


class OptionalFlags(Struct, frozen=True, kw_only=True):
    """`optionalFlags`: departures from the defaults."""

    localRoutedPortMapping: bool = False
    allowAclPortMapping: bool = False
    forceBridgeGateway: bool = False
    enableDualStack: bool = False
    loopbackDSR: bool = False
    gatewayFromAdditionalRoutes: bool = False


class WinNetworkConfig(Config, frozen=True, kw_only=True):
    """Configuration of a Windows network by type.

    Policies stand in `AdditionalArgs`, with a name that contains "Policy", or in `policies` as
    for win-bridge. `additionalRoutes` become routes of the endpoint.
    """

    ipam: WinIPAM = WinIPAM()
    policies: tuple[NamedPolicy, ...] = ()
    AdditionalArgs: tuple[NamedPolicy, ...] = ()
    additionalRoutes: tuple[WinRoute, ...] = ()
    optionalFlags: OptionalFlags = OptionalFlags()
    loopbackDSR: bool = False
    runtimeConfig: HnsRuntimeConfig = HnsRuntimeConfig()


class WinNetwork(Plugin[WinNetworkConfig]):
    """The five verbs, for one network type."""

    kind: ClassVar[str]

    def add(self, call: Call[WinNetworkConfig]) -> Result:
        """Create the network if it is missing, then the endpoint; attached already is success."""
        sandbox = place(call)
        sandbox.get_namespace()
        spec = self.make_spec(call)
        connected = service.connect(call.deadline)
        hns_network.ensure_network(connected, self.make_wish(call.config))
        return hns_attachment.add(connected, spec, sandbox, call.ipam)

    def delete(self, call: Call[WinNetworkConfig]) -> None:
        """Remove the endpoint, then its addresses; the network stays."""
        connected = service.connect(call.deadline)
        hns_attachment.delete(connected, 2, call.config.name, place(call), call.ipam)

    def check(self, call: Call[WinNetworkConfig]) -> None:
        """Raise unless the endpoint is what `add` made."""
        connected = service.connect(call.deadline)
        spec = self.make_spec(call)
        hns_attachment.check(connected, spec, place(call), call.ipam, call.prev_result)

    def gc(self, call: Call[WinNetworkConfig]) -> None:
        """Remove the endpoints of containers that are no more."""
        connected = service.connect(call.deadline)
        valid = call.valid_attachments or ()
        hns_attachment.gc(connected, self.make_spec(call), call.ipam, valid)

    def status(self, call: Call[WinNetworkConfig]) -> None:
        """Raise NotAvailable (50) unless the service answers and has or can get the network."""
        connected = service.connect(call.deadline)
        creates = self.make_wish(call.config).creatable
        hns_attachment.status(connected, self.make_spec(call), call.ipam, creates=creates)

    def validate(self, config: WinNetworkConfig) -> None:
        """Raise InvalidConfig (7) for what `add` would refuse."""
        self.make_wish(config)
        configured_policies(config)
        gateway_rule(config)

    def make_wish(self, config: WinNetworkConfig) -> NetworkWish:
        """The network the configuration describes. A dual-stack one must exist already."""
        subnet = config.ipam.subnet
        gateway = next((route.via for route in config.ipam.routes if route.via), None)
        if config.optionalFlags.enableDualStack:
            return NetworkWish(name=config.name, kind=self.kind)
        if subnet is None:
            dhcp = self.kind == "Transparent" and not config.ipam.type
            return NetworkWish(name=config.name, kind=self.kind, dhcp=dhcp)
        if gateway is not None and gateway not in subnet.network:
            raise InvalidConfig(f"ipam.routes[0]: gateway {gateway} is not in {subnet.network}")
        return NetworkWish(name=config.name, kind=self.kind, subnet=subnet.network, gateway=gateway)

    def make_spec(self, call: Call[WinNetworkConfig]) -> Spec:
        """What the configuration wants; raise InvalidConfig (7) before anything is touched."""
        config, flags = call.config, call.config.optionalFlags
        overlay = self.kind == "Overlay"
        added = tuple(acl_policies(config)) if flags.allowAclPortMapping else ()
        return Spec(
            network=config.name,
            kinds=(self.kind,),
            plugin=self.type,
            version=config.cniVersion,
            steps=(*STEPS, Step.PROVIDER_ADDRESS) if overlay else STEPS,
            apiVersion=2,
            policies=configured_policies(config) + added,
            dns=pod_dns(call),
            ports=config.runtimeConfig.portMappings,
            bandwidth=config.runtimeConfig.bandwidth,
            loopback_dsr=config.loopbackDSR or flags.loopbackDSR,
            mac_prefix="0E-2A" if overlay else "",
            gateway=gateway_rule(config),
            ipv6=not overlay,
            local_routed=True if flags.localRoutedPortMapping else None,
            interface_name=call.ifname,
            routes=tuple(endpoint_routes(config)),
            dhcp=self.kind == "Transparent" and not config.ipam.type and not config.ipam.subnet,
        )


class Nat(WinNetwork, type="nat", config=WinNetworkConfig):
    """Containers behind the node's addresses; after a reboot the network is made anew."""

    kind = "NAT"


class SdnBridge(WinNetwork, type="sdnbridge", config=WinNetworkConfig):
    """Containers on the node's own network, with the node's MAC."""

    kind = "L2Bridge"


class SdnOverlay(WinNetwork, type="sdnoverlay", config=WinNetworkConfig):
    """Containers on an encapsulated network, which exists already."""

    kind = "Overlay"


class Transparent(WinNetwork, type="transparent", config=WinNetworkConfig):
    """Containers on the node's own network with MACs of their own, addressed by its DHCP server."""

    kind = "Transparent"


class L2Tunnel(WinNetwork, type="l2tunnel", config=WinNetworkConfig):
    """As sdnbridge, with all traffic sent to the virtualisation host for policies (Azure)."""

    kind = "L2Tunnel"


def place(call: Call[WinNetworkConfig]) -> Sandbox:
    """Where the container is."""
    return Sandbox(call.request.netns, call.container_id)


def configured_policies(config: WinNetworkConfig) -> tuple[schemas.Policy, ...]:
    """Those of `policies`, then those of `AdditionalArgs`."""
    named = tuple(
        structs.replace(one, name="EndpointPolicy" if "policy" in one.name.casefold() else "")
        for one in config.AdditionalArgs
    )
    return parse_policies(config.policies) + parse_policies(named, key="AdditionalArgs")


def gateway_rule(config: WinNetworkConfig) -> GatewayRule | IPAddress:
    """The network's own gateway, unless a flag says otherwise."""
    flags = config.optionalFlags
    if flags.gatewayFromAdditionalRoutes:
        for route in config.additionalRoutes:
            if route.via is not None:
                return route.via
        raise InvalidConfig("additionalRoutes: no gateway for gatewayFromAdditionalRoutes")
    return GatewayRule.BRIDGE if flags.forceBridgeGateway else GatewayRule.SUBNET


def pod_dns(call: Call[Any]) -> DNS:
    """DNS with the pod's namespace before the first configured search domain.

    A runtime that gives search domains itself (kubelet) has put the namespace in already.
    """
    config = call.config
    merged = merge_dns(config.dns, config.runtimeConfig.dns)
    namespace = CniArgs.pairs(call.request.args).get("K8S_POD_NAMESPACE", "")
    if not namespace or not merged.search or config.runtimeConfig.dns.searches:
        return merged
    first, *rest = merged.search
    return structs.replace(merged, search=(f"{namespace}.{first}", *rest))


def acl_policies(config: WinNetworkConfig) -> list[schemas.Policy]:
    """Let in what the port mappings lead to, where other rules block it."""
    found = []
    for port in config.runtimeConfig.portMappings:
        number = parse_protocol(port.protocol)
        if number is not None:
            settings = {
                "Protocols": str(number),
                "Action": "Allow",
                "Direction": "In",
                "LocalPorts": str(port.containerPort),
                "Priority": _ACL_PRIORITY,
            }
            found.append(schemas.Policy(Type=policies.TYPES["acl"], Settings=settings))
    return found


def endpoint_routes(config: WinNetworkConfig) -> list[schemas.Route]:
    """The additional routes that name a destination."""
    if config.optionalFlags.gatewayFromAdditionalRoutes:
        return []
    return [
        schemas.Route(NextHop=str(route.via or ""), DestinationPrefix=str(route.dst.network))
        for route in config.additionalRoutes
        if route.dst is not None
    ]
