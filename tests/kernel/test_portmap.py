# SPDX-License-Identifier: Apache-2.0
"""portmap with real traffic: from outside, from the node, from the container itself."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pycni.errors import CniError, Unsupported
from pycni.kernel import netns
from pycni.kernel.netns import Netns
from pycni.kernel.nftmaps import Maps
from pycni.net import hostports
from tests.fix_netns import json_in, run_in
from tests.harness import Node

pytestmark = pytest.mark.nft

Json = dict[str, Any]

CONTAINER, CONTAINER6 = "10.1.2.2", "2001:db8:1::2"
HOST, HOST6 = "192.0.2.1", "2001:db8:2::1"
OTHER_HOST = "192.0.2.9"
CLIENT, CLIENT6 = "192.0.2.2", "2001:db8:2::2"

# Two ends with one index make the kernel wait a second before it takes the link for up (it asks
# whether index and peer's index differ); and until the link-local address has passed duplicate
# address detection, it does not ask for the neighbour of a packet that comes from elsewhere.
WIRES = f"""
ip link add vethc1 index 1001 type veth peer name eth0 netns {{container}}
sysctl -qw net.ipv6.conf.vethc1.accept_dad=0
ip addr add 10.1.2.1/24 dev vethc1
ip addr add 2001:db8:1::1/64 dev vethc1 nodad
ip link set vethc1 up
ip link add uplink index 1002 type veth peer name eth0 netns {{client}}
sysctl -qw net.ipv6.conf.uplink.accept_dad=0
ip addr add {HOST}/24 dev uplink
ip addr add {OTHER_HOST}/24 dev uplink
ip addr add {HOST6}/64 dev uplink nodad
ip link set uplink up
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
"""
CONTAINER_WIRES = f"""
ip link set lo up
sysctl -qw net.ipv6.conf.eth0.accept_dad=0
ip addr add {CONTAINER}/24 dev eth0
ip addr add {CONTAINER6}/64 dev eth0 nodad
ip link set eth0 up
ip route add default via 10.1.2.1
ip route add default via 2001:db8:1::1
"""
CLIENT_WIRES = f"""
sysctl -qw net.ipv6.conf.eth0.accept_dad=0
ip addr add {CLIENT}/24 dev eth0
ip addr add {CLIENT6}/64 dev eth0 nodad
ip link set eth0 up
"""


class Town:
    """A container with an address of each family, a node with an uplink, a client beyond it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.container = node.container("c1")
        self.client = node.container("client")
        self._sockets: list[socket.socket] = []
        places = {"container": self.container.path, "client": self.client.path}
        for where, script in (
            (node.netns, WIRES),
            (self.container, CONTAINER_WIRES),
            (self.client, CLIENT_WIRES),
        ):
            for line in script.format(**places).strip().splitlines():
                run_in(where, *line.split())
        for where, link in (
            (self.container, "eth0"),
            (self.client, "eth0"),
            (node.netns, "uplink"),
        ):
            wait_until_up(where, link)

    def close(self) -> None:
        """Take the wires away."""
        for each in self._sockets:
            each.close()
        self.node.host("ip", "link", "delete", "vethc1")
        self.node.host("ip", "link", "delete", "uplink")
        run_in(self.container, "ip", "link", "set", "lo", "down")
        run_in(self.container, "ip", "address", "flush", "dev", "lo")

    def config(self, *mappings: Json, **keys: Any) -> Json:
        """A configuration behind a plugin that made eth0."""
        prev_result = {
            "cniVersion": "1.1.0",
            "interfaces": [{"name": "vethc1"}, {"name": "eth0", "sandbox": self.container.path}],
            "ips": [
                {"address": f"{CONTAINER}/24", "interface": 1},
                {"address": f"{CONTAINER6}/64", "interface": 1},
            ],
        }
        base: Json = {"type": "portmap", "prevResult": prev_result}
        if mappings:
            base["runtimeConfig"] = {"portMappings": mappings}
        return base | keys

    def fault(self, config: Json, verb: str = "add", **call: Any) -> tuple[int, str]:
        """Code and message of a call that fails."""
        with pytest.raises(CniError) as caught:
            if verb == "check":
                self.node.check(config, config["prevResult"], **call)
            else:
                getattr(self.node, verb)(config, **call)
        return caught.value.wire_code, caught.value.msg

    def open_socket(self, where: Netns, kind: int, address: str = "0.0.0.0") -> socket.socket:
        """A socket of a namespace, with a short patience."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = netns.run(where, lambda: socket.socket(family, kind))
        self._sockets.append(made)
        made.settimeout(0.4)
        return made

    def server(self, where: Netns, kind: int, port: int, address: str = "::") -> socket.socket:
        """A socket that listens on a port of every address, of both families."""
        made = self.open_socket(where, kind, address)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        if kind == socket.SOCK_STREAM:
            made.listen()
        return made

    def calls(self, where: Netns, address: str, port: int, server: socket.socket) -> str | None:
        """Connect from `where`; who the server says is calling, None if there is no answer."""
        client = self.open_socket(where, socket.SOCK_STREAM, address)
        try:
            client.connect((address, port))
            connection, peer = server.accept()
        except OSError:
            return None
        with connection:
            connection.sendall(b"hello")
            assert b"hello" == client.recv(5)
        return str(peer[0]).removeprefix("::ffff:")


def wait_until_up(where: Netns, link: str) -> None:
    """Until the kernel takes the link for up it drops what is sent there."""
    for _ in range(200):
        if json_in(where, "ip", "-j", "link", "show", link)[0]["operstate"] == "UP":
            return
        time.sleep(0.01)
    raise AssertionError(f"{link} does not come up")


TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM
WEB = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
DNS = {"hostPort": 5353, "containerPort": 53, "protocol": "udp"}


@pytest.fixture
def town(node: Node) -> Iterator[Town]:
    """The wires, and no trace of them afterwards."""
    town = Town(node)
    yield town
    town.close()


def ruleset(town: Town) -> str:
    """What nft lists, without the counters of handles."""
    return town.node.host("nft", "list", "ruleset")


def test_a_port_is_reached_from_everywhere(town: Town) -> None:
    """From outside with its own address, from the node and the container masqueraded."""
    web = town.server(town.container, TCP, 80)
    config = town.config(WEB)
    result = town.node.add(config)

    assert config["prevResult"] == {"cniVersion": "1.1.0", **result}
    host = town.node.netns
    assert {
        "outside": CLIENT,
        "outside, IPv6": CLIENT6,
        "node by its address": HOST,
        "node by 127.0.0.1": "10.1.2.1",
        "node, IPv6": HOST6,
        "node by ::1": "2001:db8:1::1",
        "itself": "10.1.2.1",
        "itself, IPv6": "2001:db8:1::1",
    } == {
        "outside": town.calls(town.client, HOST, 8080, web),
        "outside, IPv6": town.calls(town.client, HOST6, 8080, web),
        "node by its address": town.calls(host, HOST, 8080, web),
        "node by 127.0.0.1": town.calls(host, "127.0.0.1", 8080, web),
        "node, IPv6": town.calls(host, HOST6, 8080, web),
        "node by ::1": town.calls(host, "::1", 8080, web),
        "itself": town.calls(town.container, HOST, 8080, web),
        "itself, IPv6": town.calls(town.container, HOST6, 8080, web),
    }
    town.node.check(config, config["prevResult"])

    town.node.delete(config)
    assert [None, None] == [
        town.calls(town.client, HOST, 8080, web),
        town.calls(host, "127.0.0.1", 8080, web),
    ]
    town.node.delete(config)


def test_without_snat_the_node_itself_does_not_get_through(town: Town) -> None:
    """Not by 127.0.0.1; others do, and are not masqueraded."""
    web = town.server(town.container, TCP, 80)
    config = town.config(WEB, snat=False)
    town.node.add(config)

    assert CLIENT == town.calls(town.client, HOST, 8080, web)
    assert town.calls(town.node.netns, "127.0.0.1", 8080, web) is None
    assert "0" == town.node.host("cat", "/proc/sys/net/ipv4/conf/vethc1/route_localnet").strip()
    town.node.delete(config)


def test_masq_all_hides_every_caller(town: Town) -> None:
    """The container sees the node."""
    web = town.server(town.container, TCP, 80)
    config = town.config(WEB, masqAll=True)
    town.node.add(config)

    assert "10.1.2.1" == town.calls(town.client, HOST, 8080, web)
    town.node.delete(config)


@pytest.mark.parametrize(
    ("host_ip", "reached"),
    [
        (HOST, [HOST]),
        ("0.0.0.0", [HOST, OTHER_HOST]),
        ("::", [HOST6]),
        (HOST6, [HOST6]),
        ("", [HOST, OTHER_HOST, HOST6]),
    ],
)
def test_a_host_address_limits_the_mapping(town: Town, host_ip: str, reached: list[str]) -> None:
    """To itself; the unspecified address to its family; none to nothing."""
    web = town.server(town.container, TCP, 80)
    config = town.config(WEB | {"hostIP": host_ip})
    town.node.add(config)
    town.node.check(config, config["prevResult"])

    assert reached == [
        address
        for address in (HOST, OTHER_HOST, HOST6)
        if town.calls(town.client, address, 8080, web) is not None
    ]
    town.node.delete(config)


def test_conditions_choose_who_is_served(town: Town) -> None:
    """Each family has its own; those of one container are nobody else's."""
    web = town.server(town.container, TCP, 80)
    config = town.config(WEB, conditionsV4=["ip saddr", CLIENT], conditionsV6=["ip6 saddr ::9"])
    town.node.add(config)
    town.node.check(config, config["prevResult"])

    assert CLIENT == town.calls(town.client, HOST, 8080, web)
    assert town.calls(town.client, HOST6, 8080, web) is None
    assert town.calls(town.node.netns, HOST, 8080, web) is None
    town.node.delete(config)


def test_a_condition_nft_does_not_understand_is_told_with_its_key(town: Town) -> None:
    """Code 7, and nothing is mapped."""
    code, message = town.fault(town.config(WEB, conditionsV4=["nonsense"]))

    assert 7 == code
    assert message.startswith("conditionsV4: ")
    assert "8080" not in ruleset(town)


def say(caller: socket.socket, address: str, port: int, server: socket.socket) -> bool:
    """Send a datagram; did the server get it?"""
    caller.sendto(b"hello", (address, port))
    try:
        server.recv(5)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("known", [True, False], ids=["with mappings", "without mappings"])
def test_a_udp_flow_follows_the_mapping(town: Town, known: bool) -> None:
    """The same socket is heard by the node, then by the container, then by the node again."""
    node_server = town.server(town.node.netns, UDP, 5353)
    container_server = town.server(town.container, UDP, 53)
    caller = town.open_socket(town.client, UDP)
    config = town.config(DNS)

    assert say(caller, HOST, 5353, node_server)
    town.node.add(config)
    assert say(caller, HOST, 5353, container_server)
    town.node.delete(config if known else town.config())
    assert say(caller, HOST, 5353, node_server)


@pytest.mark.parametrize("netns_path", ["", "/run/netns/absent"])
def test_del_needs_neither_mappings_nor_result_nor_namespace(town: Town, netns_path: str) -> None:
    """It goes by the owner."""
    before = ruleset(town)
    town.node.add(town.config(WEB, DNS | {"hostIP": HOST}, conditionsV6=["ip6 saddr ::9"]))
    assert before != ruleset(town)
    town.node.delete({"type": "portmap"}, netns=netns_path)

    assert "8080" not in ruleset(town)
    assert "5353" not in ruleset(town)
    assert "owner-" not in ruleset(town)


def test_del_is_served_whatever_the_options_are_now(town: Town) -> None:
    """What no ADD would take must not keep mappings alive."""
    town.node.add(town.config(WEB))
    wrong = {"hostPort": 0, "containerPort": 99999, "protocol": "x"}
    town.node.delete(town.config(WEB, wrong, backend="iptables", conditionsV4=["-s", "::"]))

    assert "8080" not in ruleset(town)

    town.node.add(town.config(WEB))
    town.node.delete(town.config(WEB, conditionsV4=["ip saddr ::;", "drop"]))

    assert "8080" not in ruleset(town)


@pytest.mark.parametrize("known", [True, False], ids=["with result", "without result"])
def test_del_removes_what_gos_nftables_backend_left(town: Town, known: bool) -> None:
    """Recognised by the container id in the comment; other containers' rules stay."""
    for line in (
        "add table ip cni_hostport",
        "add chain ip cni_hostport hostports",
        'add rule ip cni_hostport hostports tcp dport 8080 dnat to 10.1.2.2:80 comment "c1"',
        'add rule ip cni_hostport hostports tcp dport 8081 dnat to 10.1.2.3:80 comment "c2"',
    ):
        town.node.host("nft", line)
    config = town.config(WEB)
    town.node.delete(config if known else {"type": "portmap"})

    left = ruleset(town)
    assert "8080" not in left
    assert "8081" in left
    town.node.host("nft", "delete", "table", "ip", "cni_hostport")


def test_a_node_without_nftables_still_deletes_containers(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There nothing can be mapped; ADD and STATUS say so."""

    def refuse(maps: Maps) -> int:
        raise Unsupported("read", "ruleset generation", 22, "no nf_tables")

    with monkeypatch.context() as patch:
        patch.setattr(Maps, "generation", refuse)
        town.node.delete(town.config(WEB))
        town.node.gc(town.config(WEB), [])
        message = "read ruleset generation: no nf_tables"
        assert (999, message) == town.fault(town.config(WEB))
        assert (50, f"portmap cannot map ports: {message}") == town.fault(town.config(), "status")


def test_a_repeated_add_changes_nothing(town: Town) -> None:
    """Byte for byte the same ruleset; the Go plugin's nftables backend duplicates its rules."""
    config = town.config(WEB, DNS)
    town.node.add(config)
    before = ruleset(town)
    town.node.add(config)

    assert before == ruleset(town)
    town.node.delete(config)


def test_one_container_on_two_networks_keeps_the_other_when_one_goes(town: Town) -> None:
    """The Go plugin's nftables backend deletes by container id alone."""
    web = town.server(town.container, TCP, 80)
    first, second = town.config(WEB), town.config(WEB | {"hostPort": 8081}, name="othernet")
    town.node.add(first)
    town.node.add(second)
    town.node.delete(first)

    assert town.calls(town.client, HOST, 8080, web) is None
    assert CLIENT == town.calls(town.client, HOST, 8081, web)
    town.node.delete(second)


def test_one_container_on_two_networks_has_its_port_while_it_is_on_one(town: Town) -> None:
    """podman asks every network for the same ports; leaving the first must not cost the port."""
    web = town.server(town.container, TCP, 80)
    run_in(town.container, "ip", "link", "add", "eth1", "type", "veth", "peer", "name", "idle")
    first, second = town.config(WEB), town.config(WEB, name="othernet")
    second["prevResult"]["interfaces"][1]["name"] = "eth1"
    town.node.add(first)
    town.node.add(second, ifname="eth1")
    town.node.check(second, second["prevResult"], ifname="eth1")
    for config, ifname in ((first, "eth0"), (second, "eth1")):
        assert CLIENT == town.calls(town.client, HOST, 8080, web)
        town.node.delete(config, ifname=ifname)
    assert town.calls(town.client, HOST, 8080, web) is None
    run_in(town.container, "ip", "link", "delete", "eth1")


def test_a_port_in_use_is_refused_before_anything_is_changed(town: Town) -> None:
    """Also not the free port that was asked for with it."""
    config = town.config(WEB)
    town.node.add(config)
    before = ruleset(town)
    code, message = town.fault(town.config(DNS, WEB), container_id="c2")

    assert (101, "host port 8080/tcp is in use") == (code, message)
    assert before == ruleset(town)
    town.node.check(config, config["prevResult"])
    town.node.delete(config)


def test_check_is_about_this_attachments_mappings(town: Town) -> None:
    """False before ADD, true after it, false after DEL or when somebody took an element away."""
    config = town.config(WEB)
    assert 999 == town.fault(config, "check")[0]
    town.node.add(config)
    town.node.check(config, config["prevResult"])
    assert 999 == town.fault(config, "check", container_id="c2")[0]
    more = town.config(WEB, DNS)
    assert "5353/udp" in town.fault(more, "check")[1]

    town.node.delete(config)
    assert 999 == town.fault(config, "check")[0]
    town.node.check(town.config(), config["prevResult"])


def test_the_first_address_of_the_containers_interface_is_used(town: Town) -> None:
    """Addresses of other interfaces are not; those without an index are."""
    web = town.server(town.container, TCP, 80)
    config = town.config(WEB)
    config["prevResult"]["ips"][0:0] = [{"address": "203.0.113.5/24", "interface": 0}]
    town.node.add(config)
    assert CLIENT == town.calls(town.client, HOST, 8080, web)
    town.node.delete(config)

    config["prevResult"]["ips"] = [{"address": f"{CONTAINER}/24"}]
    town.node.add(config)
    assert CLIENT == town.calls(town.client, HOST, 8080, web)
    assert town.calls(town.client, HOST6, 8080, web) is None
    town.node.delete(config)


@pytest.mark.parametrize("keys", [{}, {"runtimeConfig": {"portMappings": []}}])
def test_without_mappings_nothing_is_done(town: Town, keys: Json) -> None:
    """Not even a table is made."""
    config = town.config(**keys)
    assert config["prevResult"] == {"cniVersion": "1.1.0", **town.node.add(config)}
    town.node.check(config, config["prevResult"])
    town.node.delete(config)
    town.node.gc(config, [])

    assert "" == ruleset(town)


def test_an_add_that_fails_late_leaves_no_mapping(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mapping was there already when the connection table could not be changed."""

    def fail(*_: object) -> None:
        raise CniError("no connection table")

    with monkeypatch.context() as patch:
        patch.setattr(hostports, "forget_flows", fail)
        assert (999, "no connection table") == town.fault(town.config(WEB))
    assert "8080" not in ruleset(town)


def at(config: Json, address: str) -> Json:
    """The configuration for a container with another address."""
    prev_result = config["prevResult"] | {"ips": [{"address": f"{address}/24", "interface": 1}]}
    return config | {"prevResult": prev_result}


def test_gc_unmaps_what_is_not_valid(town: Town) -> None:
    """Of this network; whatever the configuration says."""
    kept, gone = town.config(WEB), at(town.config(WEB | {"hostPort": 8081}), "10.1.2.3")
    other = at(town.config(WEB | {"hostPort": 8082}, name="othernet"), "10.1.2.4")
    town.node.add(kept)
    town.node.add(gone, container_id="c2")
    town.node.add(other, container_id="c2")
    town.node.gc(town.config(), [("c1", "eth0")])

    town.node.check(kept, kept["prevResult"])
    town.node.check(other, other["prevResult"], container_id="c2")
    assert "8081" not in ruleset(town)
    town.node.gc(town.config(), [])
    town.node.gc(town.config(name="othernet"), [])
    assert "8080" not in ruleset(town)


def test_status_asks_nftables(town: Town) -> None:
    """Works here; wrong options are 50 like anything ADD would fail for."""
    town.node.status(town.config())
    code, message = town.fault(town.config(backend="x"), "status")

    assert (50, 'portmap cannot map ports: backend: unrecognized backend "x"') == (code, message)


def test_it_must_be_chained(town: Town) -> None:
    """Without a result there is nothing to lead to."""
    code, message = town.fault({"type": "portmap", "runtimeConfig": {"portMappings": [WEB]}})

    assert 7 == code
    assert "must be called as a chained plugin" in message


def test_a_wrong_configuration_is_refused_before_the_kernel_is_touched(town: Town) -> None:
    """Though the first mapping was right."""
    code, message = town.fault(town.config(WEB, WEB | {"hostPort": 0}))

    assert (7, "runtimeConfig.portMappings[1].hostPort: Invalid host port number: 0") == (
        code,
        message,
    )
    assert "" == ruleset(town)


def test_a_marking_bit_is_accepted(town: Town) -> None:
    """It has no meaning for maps, and configurations carry it."""
    config = town.config(WEB, markMasqBit=5)
    town.node.add(config)
    town.node.delete(config)


def test_a_hundred_containers_at_once(town: Town) -> None:
    """Each its own port, each gone again, and no error on the way (plugins #418)."""
    from concurrent.futures import ThreadPoolExecutor

    def both(number: int) -> None:
        config = town.config(WEB | {"hostPort": 9000 + number})
        where = town.container.path
        town.node.add(config, container_id=f"p{number}", netns=where)
        town.node.delete(config, container_id=f"p{number}", netns=where)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(both, range(100)))
    assert "90" not in "".join(ruleset(town).split("elements")[1:])
