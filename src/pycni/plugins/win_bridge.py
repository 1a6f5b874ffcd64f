# SPDX-License-Identifier: Apache-2.0
"""`win-bridge`: a Windows container on an L2Bridge or L2Tunnel network (flannel host-gw, SDN).

The network exists already; flanneld, Docker or an operator made it. Each container gets an
endpoint named `<container id>_<network>`, as the Go plugin names it, so either can delete what
the other made.
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
    merge_dns,
    parse_gateway,
    parse_masq_network,
    parse_policies,
)
from pycni.plugins.sdk import Call, Config, Plugin
from pycni.windows import service
from pycni.windows.sandbox import Sandbox

KINDS = ("L2Bridge", "L2Tunnel")
STEPS = (Step.EXCEPTIONS, Step.PORTS, Step.LOOPBACK_DSR, Step.BANDWIDTH)


class WinBridgeConfig(Config, frozen=True, kw_only=True):
    """Configuration of a win-bridge network.

    `apiVersion` 2 is HCN, 1 is HNS; left out, it follows CNI_NETNS. `gateway` is `bridge` (the
    subnet's address + 2, where flannel puts the node), `ipam`, `subnet` (the network's own) or an
    address. `ipMasqNetwork` is reached without NAT.
    """

    apiVersion: int | None = None
    policies: tuple[NamedPolicy, ...] = ()
    HcnPolicyArgs: tuple[HcnPolicyArgs, ...] = ()
    loopbackDSR: bool = False
    ipMasqNetwork: str = ""
    gateway: str = ""
    runtimeConfig: HnsRuntimeConfig = HnsRuntimeConfig()


class WinBridge(Plugin[WinBridgeConfig], type="win-bridge", config=WinBridgeConfig):
    """Endpoints on a bridged network."""

    def add(self, call: Call[WinBridgeConfig]) -> Result:
        """Create the endpoint and attach it; attached already is success."""
        spec = make_spec(call.config)
        return hns_attachment.add(service.connect(call.deadline), spec, sandbox(call), call.ipam)

    def delete(self, call: Call[WinBridgeConfig]) -> None:
        """Remove the endpoint, then its addresses."""
        hns_attachment.delete(
            service.connect(call.deadline),
            call.config.apiVersion,
            call.config.name,
            sandbox(call),
            call.ipam,
        )

    def check(self, call: Call[WinBridgeConfig]) -> None:
        """Raise unless the endpoint is what `add` made."""
        hns_attachment.check(
            service.connect(call.deadline),
            make_spec(call.config),
            sandbox(call),
            call.ipam,
            call.prev_result,
        )

    def gc(self, call: Call[WinBridgeConfig]) -> None:
        """Remove the endpoints of containers that are no more."""
        hns_attachment.gc(
            service.connect(call.deadline),
            make_spec(call.config),
            call.ipam,
            call.valid_attachments or (),
        )

    def status(self, call: Call[WinBridgeConfig]) -> None:
        """Raise NotAvailable (50) unless the service answers and has the network."""
        hns_attachment.status(service.connect(call.deadline), make_spec(call.config), call.ipam)

    def validate(self, config: WinBridgeConfig) -> None:
        """Raise InvalidConfig (7) for what `add` would refuse."""
        make_spec(config)


def sandbox(call: Call[WinBridgeConfig]) -> Sandbox:
    """Where the container is."""
    return Sandbox(call.request.netns, call.container_id)


def make_spec(config: WinBridgeConfig) -> Spec:
    """What the configuration wants; raise InvalidConfig (7) before anything is touched."""
    return Spec(
        network=config.name,
        kinds=KINDS,
        plugin="win-bridge",
        version=config.cniVersion,
        steps=STEPS,
        apiVersion=config.apiVersion,
        policies=parse_policies(config.policies, config.HcnPolicyArgs),
        dns=merge_dns(config.dns, config.runtimeConfig.dns),
        ports=config.runtimeConfig.portMappings,
        bandwidth=config.runtimeConfig.bandwidth,
        exceptions=parse_masq_network(config.ipMasqNetwork, key="ipMasqNetwork"),
        loopback_dsr=config.loopbackDSR,
        gateway=parse_gateway(config.gateway, GatewayRule.BRIDGE),
    )
