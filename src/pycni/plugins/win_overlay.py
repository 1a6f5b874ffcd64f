# SPDX-License-Identifier: Apache-2.0
"""`win-overlay`: a Windows container on an Overlay network (flannel vxlan).

The network exists already. What leaves the node is encapsulated and sent from the network's
management address, and the endpoint's MAC is made from its IPv4 address, because the other nodes
work it out the same way.
"""

from __future__ import annotations

from pycni.model.result import Result
from pycni.net import hns_attachment
from pycni.net.hns_plan import (
    GatewayRule,
    HcnPolicyArgs,
    HnsRuntimeConfig,
    NamedPolicy,
    Spec,
    Step,
    check_mac_prefix,
    merge_dns,
    parse_gateway,
    parse_policies,
)
from pycni.plugins.sdk import Call, Config, Plugin
from pycni.windows import service
from pycni.windows.sandbox import Sandbox

KINDS = ("Overlay",)
# The reference's orders, which differ between the schemas for no reason; kept for comparison.
STEPS_V1 = (Step.PROVIDER_ADDRESS, Step.EXCEPTIONS, Step.LOOPBACK_DSR, Step.PORTS, Step.BANDWIDTH)
STEPS_V2 = (Step.LOOPBACK_DSR, Step.PROVIDER_ADDRESS, Step.EXCEPTIONS, Step.PORTS, Step.BANDWIDTH)


class WinOverlayConfig(Config, frozen=True, kw_only=True):
    """Configuration of a win-overlay network.

    `apiVersion` 2 is HCN, 1 is HNS; left out, it follows CNI_NETNS. `ipMasq` leaves traffic to
    the network's own subnet without NAT. `endpointMacPrefix` are the first two bytes of MACs.
    """

    apiVersion: int | None = None
    policies: tuple[NamedPolicy, ...] = ()
    HcnPolicyArgs: tuple[HcnPolicyArgs, ...] = ()
    loopbackDSR: bool = False
    ipMasq: bool = False
    endpointMacPrefix: str = "0E-2A"
    gateway: str = ""
    runtimeConfig: HnsRuntimeConfig = HnsRuntimeConfig()


class WinOverlay(Plugin[WinOverlayConfig], type="win-overlay", config=WinOverlayConfig):
    """Endpoints on an overlay network."""

    def add(self, call: Call[WinOverlayConfig]) -> Result:
        """Create the endpoint and attach it; attached already is success."""
        place = sandbox(call)
        spec = make_spec(call.config, place)
        return hns_attachment.add(service.connect(call.deadline), spec, place, call.ipam)

    def delete(self, call: Call[WinOverlayConfig]) -> None:
        """Remove the endpoint, then its addresses."""
        hns_attachment.delete(
            service.connect(call.deadline),
            call.config.apiVersion,
            call.config.name,
            sandbox(call),
            call.ipam,
        )

    def check(self, call: Call[WinOverlayConfig]) -> None:
        """Raise unless the endpoint is what `add` made."""
        hns_attachment.check(
            service.connect(call.deadline),
            make_spec(call.config),
            sandbox(call),
            call.ipam,
            call.prev_result,
        )

    def gc(self, call: Call[WinOverlayConfig]) -> None:
        """Remove the endpoints of containers that are no more."""
        hns_attachment.gc(
            service.connect(call.deadline),
            make_spec(call.config),
            call.ipam,
            call.valid_attachments or (),
        )

    def status(self, call: Call[WinOverlayConfig]) -> None:
        """Raise NotAvailable (50) unless the service answers and has the network."""
        hns_attachment.status(service.connect(call.deadline), make_spec(call.config), call.ipam)

    def validate(self, config: WinOverlayConfig) -> None:
        """Raise InvalidConfig (7) for what `add` would refuse."""
        make_spec(config)


def sandbox(call: Call[WinOverlayConfig]) -> Sandbox:
    """Where the container is."""
    return Sandbox(call.request.netns, call.container_id)


def make_spec(config: WinOverlayConfig, place: Sandbox | None = None) -> Spec:
    """What the configuration wants; raise InvalidConfig (7) before anything is touched."""
    namespace = place.namespace if place is not None else None
    api = config.apiVersion or (1 if namespace is None else 2)
    return Spec(
        network=config.name,
        kinds=KINDS,
        plugin="win-overlay",
        version=config.cniVersion,
        steps=STEPS_V2 if api == 2 else STEPS_V1,
        apiVersion=config.apiVersion,
        policies=parse_policies(config.policies, config.HcnPolicyArgs),
        dns=merge_dns(config.dns, config.runtimeConfig.dns),
        ports=config.runtimeConfig.portMappings,
        bandwidth=config.runtimeConfig.bandwidth,
        except_own_subnet=config.ipMasq,
        loopback_dsr=config.loopbackDSR,
        mac_prefix=check_mac_prefix(config.endpointMacPrefix or "0E-2A"),
        gateway=parse_gateway(config.gateway, GatewayRule.SUBNET),
        ipv6=False,
    )
