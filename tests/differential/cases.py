# SPDX-License-Identifier: Apache-2.0
"""The chains that both implementations run, and what may happen to their work."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pycni.kernel.sysctl import Sysctl
from tests.differential.twins import NETWORK, Case
from tests.fix_netns import json_in
from tests.harness import Node

V4 = {"type": "host-local", "subnet": "10.77.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]}
DUAL = {
    "type": "host-local",
    "ranges": [[{"subnet": "10.77.0.0/16"}], [{"subnet": "fd00:77::/64"}]],
}
STATIC = {
    "type": "static",
    "addresses": [{"address": "10.77.0.50/24", "gateway": "10.77.0.1"}],
    "routes": [{"dst": "192.0.2.0/24", "gw": "10.77.0.7"}],
    "dns": {"nameservers": ["10.77.0.53"]},
}
PORTS = {
    "portMappings": [
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 5353, "containerPort": 53, "protocol": "udp"},
    ]
}
HOST_IP = {
    "portMappings": [
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1"},
        {"hostPort": 8081, "containerPort": 81, "protocol": "tcp", "hostIP": "0.0.0.0"},
    ]
}
TUNING = {
    "type": "tuning",
    "capabilities": {"mac": True},
    "sysctl": {"net.core.somaxconn": "500", "net.ipv4.conf.IFNAME.arp_filter": "1"},
}
PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}
ASKED_ADDRESS = "IgnoreUnknown=1;IP=10.77.0.99"


def bridge(ipam: dict[str, object], **keys: object) -> dict[str, object]:
    """A bridge plugin object."""
    return {"type": "bridge", "bridge": "twin0", "ipam": ipam, **keys}


# By name, which the Go plugins take for what they do anyhow.
BY_IPTABLES = {"ipMasq": True, "ipMasqBackend": "iptables"}
FORWARDED = {**PORTMAP, "backend": "iptables"}
CONDITIONS = {"conditionsV4": ["!", "-d", "192.0.2.0/24", "-i", "lo"]}
MANY_PORTS = {
    "portMappings": [
        {"hostPort": 8000 + number, "containerPort": number, "protocol": protocol}
        for number in range(1, 18)
        for protocol in ("tcp", "sctp")
    ]
}
GATEWAY = bridge(V4, isGateway=True)
EDGE = Case("edge", (bridge(V4, isGateway=True, ipMasq=True), TUNING, PORTMAP), PORTS)
PLAIN = Case("bridge, one subnet", (bridge(V4),))
DUAL_GATEWAY = Case(
    "bridge, default gateway, dual stack", (bridge(DUAL, isDefaultGateway=True, ipMasq=True),)
)
PROMISCUOUS = Case("bridge, promiscuous", (bridge(V4, promiscMode=True),))
SIZED = Case(
    "tuning, mtu and all multicast",
    (bridge(V4), {"type": "tuning", "mtu": 1300, "allmulti": True}),
)
HAIRPIN = Case("bridge, hairpin and mtu", (bridge(V4, hairpinMode=True, mtu=1400),))
# Without an interface's: CHECK of the Go plugins before 1.2 does not find those.
TUNED = Case(
    "tuning, a sysctl", (bridge(V4), {"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}})
)
IPTABLES = (
    Case("iptables", (bridge(DUAL, isGateway=True, **BY_IPTABLES), FORWARDED), PORTS),
    Case("iptables, ports of one address", (GATEWAY, FORWARDED), HOST_IP),
    Case("iptables, no snat", (GATEWAY, {**FORWARDED, "snat": False}), PORTS),
    Case("iptables, another mark", (GATEWAY, {**FORWARDED, "markMasqBit": 10}), PORTS),
    Case("iptables, conditions", (GATEWAY, {**FORWARDED, **CONDITIONS}), PORTS),
    Case("iptables, many ports", (GATEWAY, FORWARDED), MANY_PORTS),
)

CASES = (
    Case("loopback", ({"type": "loopback"},)),
    Case("bridge, layer 2", (bridge({}),)),
    PLAIN,
    Case("bridge, gateway", (GATEWAY,)),
    DUAL_GATEWAY,
    Case("bridge, masquerade", (bridge(V4, isGateway=True, ipMasq=True),)),
    Case("bridge, static address", (bridge(STATIC, isGateway=True),)),
    HAIRPIN,
    PROMISCUOUS,
    Case("bridge, a MAC asked for", (bridge(V4),), args="IgnoreUnknown=1;MAC=02:11:22:33:44:55"),
    Case("bridge, an address asked for", (bridge(V4),), args=ASKED_ADDRESS),
    Case("tuning", (bridge(V4), TUNING)),
    TUNED,
    Case("tuning, mac by capability", (bridge(V4), TUNING), {"mac": "02:66:77:88:99:aa"}),
    SIZED,
    Case("ports", (GATEWAY, PORTMAP), PORTS),
    Case("ports of one address", (GATEWAY, PORTMAP), HOST_IP),
    Case("ports, no snat", (GATEWAY, {**PORTMAP, "snat": False}), PORTS),
    Case("ports, dual stack", (bridge(DUAL, isGateway=True), PORTMAP), PORTS),
    EDGE,
    *IPTABLES,
    Case("edge, version 0.4.0", EDGE.chain, PORTS, version="0.4.0"),
    Case("edge, version 0.3.1", EDGE.chain, PORTS, version="0.3.1"),
    Case(
        "edge, version 0.2.0",
        (bridge(V4, isGateway=True, ipMasq=True), PORTMAP),
        PORTS,
        "",
        "0.2.0",
    ),
)


# -- what may happen -------------------------------------------------------------------------------


class Mutation(NamedTuple):
    """One thing that is not any more as ADD left it."""

    name: str
    case: Case
    happen: Callable[[Node], None]


def inside(*commands: str) -> Callable[[Node], None]:
    """Run commands in the container."""

    def happen(node: Node) -> None:
        for command in commands:
            node.inside(*command.split())

    return happen


def on_host(command: str) -> Callable[[Node], None]:
    """Run a command on the host; HOSTVETH is the port's name."""

    def happen(node: Node) -> None:
        [port] = json_in(node.netns, "ip", "-j", "link", "show", "type", "veth")
        node.host(*command.replace("HOSTVETH", port["ifname"]).split())

    return happen


def write(key: str, value: str) -> Callable[[Node], None]:
    """Set a parameter in the container."""
    return lambda node: Sysctl(node.container()).write(key, value)


def lose_lease(node: Node) -> None:
    """An administrator empties the directory."""
    (node.directory / "leases" / NETWORK / "10.77.0.2").unlink()


def lose_nat(node: Node) -> None:
    """Somebody reloads a firewall: everything of nftables is gone, iptables' too."""
    node.host("nft", "flush", "ruleset")


def lose_masquerade(node: Node) -> None:
    """What hides the container's address, and no other rule, is gone."""
    for members in ("masquerade4-16", "local4-16"):
        node.host("nft", "flush", "set", "inet", "pycni", members, check=False)
    node.host("iptables", "-t", "nat", "-F", "POSTROUTING")


MUTATIONS = (
    Mutation("address removed", PLAIN, inside("ip addr flush dev eth0")),
    Mutation(
        "prefix changed",
        PLAIN,
        inside("ip addr delete 10.77.0.2/16 dev eth0", "ip addr add 10.77.0.2/24 dev eth0"),
    ),
    Mutation("route removed", PLAIN, inside("ip route delete default")),
    Mutation("IPv6 address removed", DUAL_GATEWAY, inside("ip -6 addr flush scope global")),
    Mutation("container's link down", PLAIN, inside("ip link set eth0 down")),
    Mutation("container's link renamed", PLAIN, inside("ip link set eth0 down name eth7")),
    Mutation("container's link deleted", PLAIN, inside("ip link delete eth0")),
    Mutation("container's MAC changed", PLAIN, inside("ip link set eth0 address 02:0:0:0:0:1")),
    Mutation("port detached", PLAIN, on_host("ip link set HOSTVETH nomaster")),
    Mutation("port down", PLAIN, on_host("ip link set HOSTVETH down")),
    Mutation("bridge deleted", PLAIN, on_host("ip link delete twin0")),
    Mutation("bridge not promiscuous", PROMISCUOUS, on_host("ip link set twin0 promisc off")),
    Mutation("hairpin off", HAIRPIN, on_host("bridge link set dev HOSTVETH hairpin off")),
    Mutation("gateway's address removed", DUAL_GATEWAY, on_host("ip addr flush dev twin0")),
    Mutation("sysctl changed", TUNED, write("net/core/somaxconn", "501")),
    Mutation("interface's sysctl changed", EDGE, write("net/ipv4/conf/eth0/arp_filter", "0")),
    Mutation("mtu changed", SIZED, inside("ip link set eth0 mtu 1299")),
    Mutation("all multicast off", SIZED, inside("ip link set eth0 allmulticast off")),
    Mutation("lease lost", PLAIN, lose_lease),
    Mutation("ports lost", EDGE, lose_nat),
    Mutation("masquerading lost", DUAL_GATEWAY, lose_masquerade),
)
