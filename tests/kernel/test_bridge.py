# SPDX-License-Identifier: Apache-2.0
"""bridge: what ADD makes on the wire and in the kernel, in every shape of the configuration."""

from __future__ import annotations

from ipaddress import ip_interface
from typing import Any

import pytest

from pycni.errors import CniError, InvalidConfig, InvalidEnvironment, UnsupportedField
from pycni.model.version import SUPPORTED
from tests.fix_netns import json_in
from tests.harness import Json, Node

# A database's own switch: no gateway, nothing leaves it.
DBNET: Json = {"type": "bridge", "bridge": "db0", "name": "dbnet"}
EDGE: Json = {
    "type": "bridge",
    "bridge": "edge0",
    "name": "edge",
    "isGateway": True,
    "ipMasq": True,
}


def l3(config: Json, *addresses: str, **ipam: Any) -> Json:
    """The configuration with an IPAM plugin that hands out these addresses."""
    ips = [{"address": address} for address in addresses]
    return {**config, "ipam": {"type": "fixed", "ips": ips, **ipam}}


def dual(config: Json, number: int) -> Json:
    """The configuration with the number-th address of both families."""
    return l3(config, f"10.1.2.{number}/24", f"2001:db8:42::{number:x}/64")


# -- layer 2 -------------------------------------------------------------------------------------


def test_layer_2_is_an_interface_that_is_up_and_nothing_else(node: Node) -> None:
    """Case 16: without ipam eth0 is up, without addresses, a port of the bridge."""
    result = node.add(DBNET)
    assert {"cniVersion", "interfaces"} == result.keys()
    bridge, host_end, container_end = result["interfaces"]
    assert ("db0", "eth0") == (bridge["name"], container_end["name"])
    assert node.container().path == container_end["sandbox"]
    assert "sandbox" not in bridge
    assert "sandbox" not in host_end
    assert [] == node.addresses("eth0", "c1")
    assert [] == node.addresses("db0")
    for made, link in (
        (bridge, node.link("db0")),
        (host_end, node.link(host_end["name"])),
        (container_end, node.link("eth0", "c1")),
    ):
        assert link is not None
        assert made["mac"] == link["address"]
        assert "UP" == link["operstate"]
    node.delete(DBNET)
    assert node.link("eth0", "c1") is None
    assert node.link(host_end["name"]) is None
    node.delete(DBNET)


def test_containers_of_a_layer_2_network_reach_each_other(node: Node) -> None:
    """What they call themselves is theirs to decide; the bridge carries it."""
    for number, container_id in enumerate(("c1", "c2"), 1):
        node.add(DBNET, container_id)
        for address in (f"192.0.2.{number}/24", f"2001:db8::{number}/64"):
            node.inside("ip", "address", "add", address, "dev", "eth0", container_id=container_id)
    assert node.pings("192.0.2.2", "c1")
    assert not node.pings("192.0.2.2")
    for container_id in ("c1", "c2"):
        node.delete(DBNET, container_id)


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_layer_2_has_no_result_before_0_3(node: Node, version: str) -> None:
    """Case 16: `cannot convert: no valid IP addresses`; unlike the reference nothing stays."""
    with pytest.raises(CniError, match=r"^cannot convert: no valid IP addresses"):
        node.add({**DBNET, "cniVersion": version})
    assert node.link("eth0", "c1") is None


# -- layer 3 -------------------------------------------------------------------------------------


def test_an_edge_network_serves_both_families(node: Node) -> None:
    """Case 15: gateway on the bridge, forwarding, masquerade; both families answer at once."""
    result = node.add(dual(EDGE, 2))
    assert ["10.1.2.1", "2001:db8:42::1"] == [ip["gateway"] for ip in result["ips"]]
    assert [2, 2] == [ip["interface"] for ip in result["ips"]]
    assert ["10.1.2.2/24", "2001:db8:42::2/64"] == node.addresses("eth0", "c1")
    assert ["10.1.2.1/24", "2001:db8:42::1/64"] == node.addresses("edge0")
    assert node.pings("10.1.2.1", "c1")
    assert node.pings("2001:db8:42::1", "c1")
    assert node.pings("10.1.2.2")
    assert node.pings("2001:db8:42::2")
    assert "1" == node.side.sysctl.read("net/ipv4/ip_forward")
    assert "1" == node.side.sysctl.read("net/ipv6/conf/all/forwarding")
    assert "masquerade" in node.host("nft", "list", "ruleset")
    node.check(dual(EDGE, 2), result)
    node.delete(dual(EDGE, 2))
    assert ["ADD c1", "CHECK c1", "DEL c1"] == node.ipam.asked


def test_containers_of_an_edge_network_reach_each_other(node: Node) -> None:
    """Two containers on one bridge, both families."""
    node.add(dual(EDGE, 2), "c1")
    node.add(dual(EDGE, 3), "c2")
    assert node.pings("10.1.2.3", "c1")
    assert node.pings("2001:db8:42::3", "c1")
    node.delete(dual(EDGE, 2), "c1")
    node.delete(dual(EDGE, 3), "c2")


def test_a_masqueraded_container_reaches_a_network_that_does_not_know_it(node: Node) -> None:
    """ipMasq: a host that has no route back answers all the same, because it sees the node."""
    config = dual({**EDGE, "isDefaultGateway": True}, 2)
    ipv4, ipv6 = node.outside()
    node.add(config)
    assert node.pings(ipv4, "c1")
    assert node.pings(ipv6, "c1")
    node.delete(config)
    unmasqueraded = dual({**EDGE, "isDefaultGateway": True, "ipMasq": False}, 2)
    node.add(unmasqueraded)
    assert not node.pings(ipv4, "c1")
    node.delete(unmasqueraded)


def test_a_default_gateway_is_the_result_s_default_route(node: Node) -> None:
    """Case 15: isDefaultGateway implies isGateway; one default route per family, with its gateway.

    Two IPv6 subnets beside an IPv4 one: both get an address on the bridge, the first the route.
    """
    config = l3(
        {**DBNET, "isDefaultGateway": True},
        "10.1.2.2/24",
        "2001:db8:1::2/64",
        "2001:db8:2::2/64",
    )
    result = node.add(config)
    assert [
        {"dst": "0.0.0.0/0", "gw": "10.1.2.1"},
        {"dst": "::/0", "gw": "2001:db8:1::1"},
    ] == result["routes"]
    assert ["10.1.2.1/24", "2001:db8:1::1/64", "2001:db8:2::1/64"] == sorted(node.addresses("db0"))
    assert "default via 10.1.2.1 dev eth0" in node.inside("ip", "route")
    assert "default via 2001:db8:1::1 dev eth0" in node.inside("ip", "-6", "route")
    node.check(config, result)
    node.delete(config)


def test_a_default_route_of_the_ipam_plugin_is_kept(node: Node) -> None:
    """isDefaultGateway adds no second default route beside one that names its gateway."""
    config = l3(
        {**DBNET, "isDefaultGateway": True},
        "10.1.2.2/24",
        routes=[{"dst": "0.0.0.0/0", "gw": "10.1.2.9"}],
    )
    assert [{"dst": "0.0.0.0/0", "gw": "10.1.2.9"}] == node.add(config)["routes"]
    node.delete(config)


def test_the_ipam_plugin_may_choose_the_gateway(node: Node) -> None:
    """A gateway in the result is the one the bridge gets."""
    config = {**EDGE, "ipam": {"type": "fixed"}}
    config["ipam"]["ips"] = [{"address": "10.1.2.2/24", "gateway": "10.1.2.254"}]
    assert "10.1.2.254" == node.add(config)["ips"][0]["gateway"]
    assert ["10.1.2.254/24"] == node.addresses("edge0")
    node.delete(config)


@pytest.mark.parametrize("version", SUPPORTED)
def test_the_result_is_in_the_layout_of_its_version(node: Node, version: str) -> None:
    """Every version is served, ADD and DEL, and CHECK where it has one."""
    config = {**l3(DBNET, "10.1.2.2/24"), "cniVersion": version}
    result = node.add(config)
    assert version == result["cniVersion"]
    if version in ("0.1.0", "0.2.0"):
        assert "10.1.2.2/24" == result["ip4"]["ip"]
    else:
        assert ["db0", "eth0"] == [result["interfaces"][at]["name"] for at in (0, 2)]
    if version >= "0.4.0":
        node.check(config, result)
    node.delete(config)


def test_dns_of_the_configuration_wins_as_a_whole(node: Node) -> None:
    """A2/A1: dns is the configuration's if it sets any field, else the IPAM plugin's."""
    config = l3(DBNET, "10.1.2.2/24", dns={"nameservers": ["192.0.2.53"], "domain": "ipam"})
    assert {"nameservers": ["192.0.2.53"], "domain": "ipam"} == node.add(config)["dns"]
    node.delete(config)
    config["dns"] = {"search": ["example.org"]}
    assert {"search": ["example.org"]} == node.add(config)["dns"]
    node.delete(config)


def test_an_ipam_plugin_without_addresses_is_an_error(node: Node) -> None:
    """`IPAM plugin returned missing IP config`, and what it might hold is released."""
    with pytest.raises(CniError, match=r"^IPAM plugin returned missing IP config"):
        node.add(l3(DBNET))
    assert ["ADD c1", "DEL c1"] == node.ipam.asked


def test_sysctls_of_the_container_and_the_bridge(node: Node) -> None:
    """Case 15: accept_dad off, arp_notify on; router advertisements are not for the bridge."""
    result = node.add(dual(EDGE, 2))
    host_end = result["interfaces"][1]["name"]
    settings = {
        "net/ipv4/conf/eth0/arp_notify": "1",
        "net/ipv6/conf/eth0/accept_dad": "0",
        "net/ipv6/conf/eth0/keep_addr_on_down": "1",
        "net/ipv6/conf/eth0/disable_ipv6": "0",
        "net/ipv6/conf/eth0/router_solicitations": "0",
    }
    for key, value in settings.items():
        assert f"{key} = {value}" == f"{key} = {node.read_sysctl(key, 'c1')}"
    for name in ("edge0", host_end):
        assert "0" == node.read_sysctl(f"net/ipv6/conf/{name}/accept_ra")
    # Else nothing is forwarded to containers over IPv6 for the first second.
    assert "0" == node.read_sysctl(f"net/ipv6/conf/{result['interfaces'][0]['name']}/accept_dad")
    assert "1" == node.read_sysctl(f"net/ipv6/conf/{host_end}/disable_ipv6")
    node.delete(dual(EDGE, 2))


def test_enabledad_has_the_network_asked_first(node: Node) -> None:
    """enabledad: accept_dad and enhanced_dad are on and ADD returns with no tentative address."""
    config = dual({**EDGE, "enabledad": True}, 2)
    node.add(config)
    assert "1" == node.read_sysctl("net/ipv6/conf/eth0/accept_dad", "c1")
    assert "1" == node.read_sysctl("net/ipv6/conf/eth0/enhanced_dad", "c1")
    assert "tentative" not in node.inside("ip", "address", "show", "dev", "eth0")
    node.delete(config)


def test_a_container_with_ipv6_disabled_gets_its_address(node: Node) -> None:
    """P#102: disable_ipv6 is lifted on lo and the interface when there is an IPv6 address."""
    node.inside("sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6")
    node.add(dual(EDGE, 2))
    assert ["10.1.2.2/24", "2001:db8:42::2/64"] == node.addresses("eth0", "c1")
    node.delete(dual(EDGE, 2))
    node.inside("sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/default/disable_ipv6")


def test_a_host_with_ipv6_disabled_serves_both_families(node: Node) -> None:
    """P#102: the bridge gets its IPv6 gateway address although new links have IPv6 disabled."""
    node.host("sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6")
    node.add(dual(EDGE, 2))
    assert ["10.1.2.1/24", "2001:db8:42::1/64"] == node.addresses("edge0")
    assert node.pings("2001:db8:42::1", "c1")
    node.delete(dual(EDGE, 2))
    node.host("sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/default/disable_ipv6")


def test_routes_keep_their_metrics(node: Node) -> None:
    """P#971: mtu and advmss of a route are honoured, and so are priority, table and ECMP."""
    routes = [
        {"dst": "192.0.2.0/24", "gw": "10.1.2.1", "mtu": 1400, "advmss": 1360, "priority": 50},
        {"dst": "198.51.100.0/24", "gw": "10.1.2.1"},
        {"dst": "198.51.100.0/24", "gw": "10.1.2.7"},
        {"dst": "203.0.113.0/24", "table": 77},
    ]
    config = l3(EDGE, "10.1.2.2/24", routes=routes)
    result = node.add(config)
    main = node.inside("ip", "route")
    assert "192.0.2.0/24 via 10.1.2.1 dev eth0 metric 50 mtu 1400 advmss 1360" in main
    assert "198.51.100.0/24 via 10.1.2.1 dev eth0" in main
    assert "198.51.100.0/24 via 10.1.2.7 dev eth0" in main
    # Without a gateway of its own a route takes its family's.
    other = node.inside("ip", "route", "show", "table", "77")
    assert "203.0.113.0/24 via 10.1.2.1 dev eth0" in other
    node.check(config, result)
    node.delete(config)


# -- the bridge device ---------------------------------------------------------------------------


def test_an_existing_bridge_is_used_as_it_is(node: Node) -> None:
    """Case 17: same index after ADD and DEL, MTU and flags untouched."""
    node.host("ip", "link", "add", "db0", "mtu", "1400", "type", "bridge")
    before = node.link("db0")
    result = node.add({**DBNET, "mtu": 1300})
    link = node.link("db0")
    assert before is not None
    assert link is not None
    # A bridge without a MAC of its own takes a port's; the result has it as it is then.
    assert result["interfaces"][0]["mac"] == link["address"]
    assert (before["ifindex"], 1400) == (link["ifindex"], 1400)
    assert "UP" in link["flags"]
    node.delete(DBNET)
    assert node.link("db0") is not None


@pytest.mark.parametrize("existing", [False, True])
def test_the_bridge_keeps_its_mac(node: Node, existing: bool) -> None:
    """Case 17: ports that come and go, with whatever MAC, do not change a gateway's.

    One that exists follows its ports until it becomes a gateway (net/bridge/br_stp_if.c).
    """
    if existing:
        node.host("ip", "link", "add", "edge0", "type", "bridge")
    mac = node.add(dual(EDGE, 2))["interfaces"][0]["mac"]
    lowest = dual({**EDGE, "args": {"cni": {"mac": "02:00:00:00:00:01"}}}, 3)
    result = node.add(lowest, "c2")
    node.host("ip", "link", "add", "low", "address", "02:00:00:00:00:00", "type", "veth")
    node.host("ip", "link", "set", "low", "master", "edge0")
    node.host("ip", "link", "delete", "low")
    link = node.link("edge0")
    assert link is not None
    assert mac == result["interfaces"][0]["mac"] == link["address"]
    node.delete(dual(EDGE, 2))
    node.delete(lowest, "c2")


def test_a_bridge_without_a_mac_becomes_a_gateway(node: Node) -> None:
    """One that lost its last port has the MAC 00:00:00:00:00:00, which cannot be pinned."""
    node.host("ip", "link", "add", "edge0", "up", "type", "bridge")
    node.host("ip", "link", "add", "port", "up", "type", "veth")
    node.host("ip", "link", "set", "port", "master", "edge0")
    node.host("ip", "link", "delete", "port")
    before = node.link("edge0")
    assert before is not None
    assert "00:00:00:00:00:00" == before["address"]
    config = dual(EDGE, 2)
    result = node.add(config)
    node.check(config, result)
    after = node.link("edge0")
    assert after is not None
    assert result["interfaces"][0]["mac"] == after["address"] != before["address"]
    node.delete(config)


def test_a_name_taken_by_another_kind_of_link_is_an_error(node: Node) -> None:
    """Case 18: the link is left alone, and nothing is made."""
    node.host("ip", "link", "add", "db0", "type", "ifb")
    with pytest.raises(CniError, match=r'^"db0" already exists but is not a bridge'):
        node.add(DBNET)
    node.host("ip", "link", "delete", "db0")


def test_the_mtu_is_that_of_bridge_and_both_ends(node: Node) -> None:
    """mtu: 0 is the kernel's default."""
    result = node.add({**DBNET, "mtu": 1400})
    for link in (
        node.link("db0"),
        node.link(result["interfaces"][1]["name"]),
        node.link("eth0", "c1"),
    ):
        assert link is not None
        assert 1400 == link["mtu"]
    node.delete(DBNET)


def test_promiscuous_mode(node: Node) -> None:
    """Case 20: IFF_PROMISC on the bridge."""
    result = node.add({**DBNET, "promiscMode": True})
    link = node.link("db0")
    assert link is not None
    assert "PROMISC" in link["flags"]
    node.check({**DBNET, "promiscMode": True}, result)
    node.host("ip", "link", "set", "db0", "promisc", "off")
    with pytest.raises(CniError, match="not in promiscuous mode"):
        node.check({**DBNET, "promiscMode": True}, result)
    node.delete(DBNET)


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize(
    ("key", "mode"), [("hairpinMode", "hairpin"), ("portIsolation", "isolated")]
)
def test_port_modes(node: Node, key: str, mode: str, wanted: bool) -> None:
    """Cases 20, 21: hairpin and isolation are set on the port as configured, and checked."""
    config = {**DBNET, key: wanted}
    result = node.add(config)
    port = result["interfaces"][1]["name"]
    link = node.link(port)
    assert link is not None
    assert wanted is link["linkinfo"]["info_slave_data"][mode]
    node.check(config, result)
    node.host("ip", "link", "set", port, "type", "bridge_slave", mode, "off" if wanted else "on")
    with pytest.raises(CniError, match=f"in {mode} mode"):
        node.check(config, result)
    node.delete(config)


def test_isolated_ports_do_not_reach_each_other(node: Node) -> None:
    """Case 21: portIsolation, seen by ping; the gateway is reached all the same."""
    isolated = {**EDGE, "portIsolation": True}
    node.add(dual(isolated, 2), "c1")
    node.add(dual(isolated, 3), "c2")
    assert not node.pings("10.1.2.3", "c1")
    assert node.pings("10.1.2.1", "c1")
    node.delete(dual(isolated, 2), "c1")
    node.delete(dual(isolated, 3), "c2")


# -- gateway addresses ---------------------------------------------------------------------------

FORCED: Json = {**DBNET, "isGateway": True, "forceAddress": True}
UNFORCED: Json = {**DBNET, "isGateway": True}


@pytest.mark.parametrize(
    ("first", "second"),
    [("10.0.0.2/8", "10.1.2.4/16"), ("2001:db8:1::2/48", "2001:db8:1:2::2/64")],
    ids=["v4", "v6 overlapping"],
)
def test_a_gateway_address_in_the_way(node: Node, first: str, second: str) -> None:
    """Case 19: an error that names what is there, or with forceAddress replaced."""
    node.add(l3(UNFORCED, first))
    gateway = ip_interface(second).network.network_address + 1
    with pytest.raises(
        CniError, match=f'^"db0" already has an IP address different from {gateway}'
    ):
        node.add(l3(UNFORCED, second), "c2")
    assert node.link("eth0", "c2") is None
    node.add(l3(FORCED, second), "c2")
    assert [f"{gateway}/{ip_interface(second).network.prefixlen}"] == node.addresses("db0")
    node.delete(l3(UNFORCED, first))
    node.delete(l3(FORCED, second), "c2")


def test_disjoint_ipv6_gateways_live_together(node: Node) -> None:
    """Case 19: IPv6 subnets that do not overlap share a bridge."""
    node.add(l3(UNFORCED, "2001:db8:1::2/64"))
    node.add(l3(UNFORCED, "2001:db8:2::2/64"), "c2")
    assert ["2001:db8:1::1/64", "2001:db8:2::1/64"] == sorted(node.addresses("db0"))
    node.delete(l3(UNFORCED, "2001:db8:1::2/64"))
    node.delete(l3(UNFORCED, "2001:db8:2::2/64"), "c2")


# -- MAC, interface ------------------------------------------------------------------------------

FROM_ARGS: Json = {"args": {"cni": {"mac": "02:00:00:00:00:0a"}}}
FROM_RUNTIME: Json = {"runtimeConfig": {"mac": "02:00:00:00:00:0b"}}


@pytest.mark.parametrize(
    ("keys", "args", "mac"),
    [
        ({}, "MAC=02-00-00-00-00-0C", "02:00:00:00:00:0c"),
        (FROM_ARGS, "MAC=02:00:00:00:00:0c", "02:00:00:00:00:0a"),
        (FROM_ARGS | FROM_RUNTIME, "MAC=02:00:00:00:00:0c", "02:00:00:00:00:0b"),
        ({"RuntimeConfig": {"MAC": "0200.0000.000d"}}, "", "02:00:00:00:00:0d"),
    ],
    ids=["CNI_ARGS", "args.cni", "runtimeConfig", "case folded"],
)
def test_who_chooses_the_mac(node: Node, keys: Json, args: str, mac: str) -> None:
    """Case 22: runtimeConfig before args.cni before CNI_ARGS."""
    result = node.add({**DBNET, **keys}, args=args)
    link = node.link("eth0", "c1")
    assert link is not None
    assert mac == result["interfaces"][2]["mac"] == link["address"]
    node.delete({**DBNET, **keys}, args=args)


def test_unknown_args_are_refused_unless_ignored(node: Node) -> None:
    """A0: CNI_ARGS are read strictly on ADD, with IgnoreUnknown loosely; DEL never minds."""
    with pytest.raises(InvalidEnvironment, match="unknown args"):
        node.add(DBNET, args="FOO=BAR")
    node.add(DBNET, args="IgnoreUnknown=1;K8S_POD_NAME=web")
    node.delete(DBNET, args="FOO=BAR;;")


def test_a_disabled_container_interface_stays_down(node: Node) -> None:
    """Case 25: eth0 exists, is down, and ADD does not wait for it."""
    config = {**DBNET, "disableContainerInterface": True}
    result = node.add(config)
    link = node.link("eth0", "c1")
    assert link is not None
    assert "UP" not in link["flags"]
    node.check(config, result)
    node.delete(config)


def test_a_second_interface_of_the_same_container(node: Node) -> None:
    """Owners differ by interface name; DEL of one leaves the other."""
    node.add(dual(EDGE, 2), ifname="eth0")
    result = node.add(dual(EDGE, 3), ifname="net1")
    node.delete(dual(EDGE, 2), ifname="eth0")
    assert node.link("eth0", "c1") is None
    node.check(dual(EDGE, 3), result, ifname="net1")
    node.delete(dual(EDGE, 3), ifname="net1")


def test_the_host_end_carries_its_owner(node: Node) -> None:
    """The alias is the owner's tag, on a name derived from it: found without a list."""
    name = node.add(DBNET)["interfaces"][1]["name"]
    [link] = json_in(node.netns, "ip", "-j", "link", "show", "dev", name)
    owner = node.owner(DBNET)
    assert owner.tag == link["ifalias"]
    assert owner.host_veth_names()[0] == name
    node.delete(DBNET)


# -- what is refused before the kernel is touched ------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"vlan": 100}, "vlan: 100"),
        ({"vlanTrunk": [{"id": 101}]}, r'vlanTrunk: \[{"id":101}\]'),
        ({"preserveDefaultVlan": True}, "preserveDefaultVlan: true"),
        ({"macspoofchk": True}, "macspoofchk: true"),
    ],
)
def test_unsupported_keys_are_named_with_their_value(node: Node, keys: Json, message: str) -> None:
    """Code 2, before anything is made; DEL of such a network still works."""
    config = {**DBNET, **keys}
    with pytest.raises(UnsupportedField, match=message):
        node.add(config)
    with pytest.raises(UnsupportedField, match=message):
        node.status(config)
    assert node.link("db0") is None
    node.delete(config)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"vlan": -100}, r"invalid VLAN ID -100 \(must be between 0 and 4094\)"),
        ({"vlan": 5000}, r"invalid VLAN ID 5000 \(must be between 0 and 4094\)"),
        (
            {"hairpinMode": True, "promiscMode": True},
            "cannot set hairpin mode and promiscuous mode at the same time",
        ),
        (
            {"ipam": {"type": "fixed"}, "disableContainerInterface": True},
            "cannot use IPAM when DisableContainerInterface flag is set",
        ),
        ({"ipMasqBackend": "pf"}, 'unknown ipmasq backend "pf"'),
        ({"mtu": "1500"}, "mtu: "),
        ({"mtu": -1}, "mtu: "),
        ({"mtu": 67}, "mtu: expected at least 68"),
        ({"mtu": 65536}, "mtu: expected int <= 65535"),
        ({"bridge": "br%d"}, "bridge: interface name contains %"),
        ({"args": {"cni": {"mac": "01:00:5e:00:00:01"}}}, "args.cni.mac: not a MAC address of one"),
        ({"runtimeConfig": {"mac": "00:00:00:00:00:00"}}, "runtimeConfig.mac: not a MAC address"),
        ({"runtimeConfig": {"mac": "02:00:00:00:00:00:00:01"}}, "runtimeConfig.mac: not a MAC"),
        ({"bridge": "much-too-long-name"}, "bridge: interface name is too long"),
        ({"args": {"cni": {"mac": "nonsense"}}}, 'args.cni.mac: not a MAC address: "nonsense"'),
    ],
)
def test_wrong_configurations(node: Node, keys: Json, message: str) -> None:
    """Cases 20, 24, 25: code 7 before anything is made, with the reference's words or the path."""
    with pytest.raises(InvalidConfig, match=f"^{message}"):
        node.add({**DBNET, **keys})
    assert node.link("db0") is None
    assert [] == node.ipam.asked


@pytest.mark.parametrize("keys", [{"vlan": 0}, {"vlanTrunk": []}, {"vlanTrunk": None}])
def test_keys_that_ask_for_nothing_are_fine(node: Node, keys: Json) -> None:
    """Generators write every key they know; only what is asked for is refused."""
    config = {**DBNET, **keys, "preserveDefaultVlan": False, "ipMasqBackend": "nftables"}
    node.add(config)
    node.delete(config)
