# SPDX-License-Identifier: Apache-2.0
"""A host with two bridges, containers on them and a machine outside; and traffic between them.

    outside 192.0.2.2 ── up0 host ──┬── br0 10.88.0.1/24 ── c1 .2, c2 .3
      198.51.100.1 on its lo        └── br1 10.99.0.1/24 ── d1 .2
    and the same in IPv6: 2001:db8:ff::2 (lo 2001:db8:99::1), fd88::1/64, fd99::1/64

The machine outside knows no way to the containers, so what it answers has been masqueraded.
Nothing here is made by the code under test.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_interface
from typing import NamedTuple

import pytest

from pycni.kernel.netns import Netns
from pycni.kernel.side import Side
from pycni.kernel.sysctl import Sysctl
from pycni.model.addresses import IPInterface
from pycni.net import ruleset
from pycni.net.owner import Owner
from tests.fix_netns import run_in

BRIDGES = {"br0": ("10.88.0.1/24", "fd88::1/64"), "br1": ("10.99.0.1/24", "fd99::1/64")}
CONTAINERS = {"c1": ("br0", 2), "c2": ("br0", 3), "d1": ("br1", 2)}
HOST = {4: "192.0.2.1", 6: "2001:db8:ff::1"}
OUTSIDE = {4: "192.0.2.2", 6: "2001:db8:ff::2"}
BEYOND = {4: "198.51.100.1", 6: "2001:db8:99::1"}

TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM
KINDS = {"tcp": TCP, "udp": UDP}
# Long enough for a machine with other work; a drop costs this much, a refusal nothing.
ANSWER_S = 2.0
SILENCE_S = 0.3


class Flow(NamedTuple):
    """What became of a message: whom the server saw; "" if nothing arrived or came back."""

    seen_from: str

    def __bool__(self) -> bool:
        return bool(self.seen_from)


class World:
    """The namespaces, and what runs on them."""

    def __init__(self, host: Netns, make_netns: Callable[..., Netns]) -> None:
        self.host = host
        self.side = Side(host)
        self.nft = self.side.nft
        self.outside = make_netns("outside", loopback=True)
        self.containers = {name: make_netns(name, loopback=True) for name in CONTAINERS}
        self._servers: list[socket.socket] = []
        self._lay_cables()

    def namespace(self, name: str) -> Netns:
        """`host`, `outside` or a container."""
        return {"host": self.host, "outside": self.outside, **self.containers}[name]

    def addresses(self, name: str) -> list[IPInterface]:
        """A container's addresses."""
        bridge, number = CONTAINERS[name]
        gateways = (ip_interface(text) for text in BRIDGES[bridge])
        return [ip_interface(f"{gw.ip - 1 + number}/{gw.network.prefixlen}") for gw in gateways]

    def address(self, name: str, version: int) -> str:
        """One address of anybody."""
        if name in CONTAINERS:
            found = next(ip for ip in self.addresses(name) if ip.version == version)
            return str(found.ip)
        return (HOST if name == "host" else OUTSIDE)[version]

    def owner(self, name: str, network: str = "web") -> Owner:
        """A container's owner."""
        return Owner(network, name, "eth0")

    def serve(self, name: str, kind: int, port: int, *, at: str = "::") -> socket.socket:
        """A server in somebody's namespace, on all its addresses of both families or on one."""
        if "." in at:
            at = f"::ffff:{at}"

        def bound() -> socket.socket:
            server = socket.socket(socket.AF_INET6, kind)
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((at, port))
            if kind == TCP:
                server.listen()
            return server

        server = self.namespace(name).run(bound)
        self._servers.append(server)
        return server

    def flow(
        self,
        server: socket.socket,
        client: str,
        to: str,
        port: int,
        *,
        source: str = "",
        timeout_s: float = ANSWER_S,
    ) -> Flow:
        """Send a message from `client` to an address, answer it, and wait for the answer."""
        with self.client(client, server.type, to, source=source) as sender:
            sender.settimeout(timeout_s)
            try:
                sender.connect((to, port))
                seen = (_ask_tcp if server.type == TCP else _ask_udp)(sender, server)
            except OSError:
                return Flow("")
        return Flow(seen.removeprefix("::ffff:"))

    def client(self, name: str, kind: int, to: str, *, source: str = "") -> socket.socket:
        """A socket in somebody's namespace, for talking to an address of that family."""
        v6 = isinstance(ip_address(to), IPv6Address)

        def made() -> socket.socket:
            client = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, kind)
            try:
                if source:
                    client.bind((source, 0))
            except OSError:
                client.close()
                raise
            return client

        return self.namespace(name).run(made)

    def filter_bridged(self, *, on: bool) -> None:
        """Does bridged traffic pass through iptables and nftables, as br_netfilter makes it?"""
        sysctl = Sysctl(self.host)
        for key in ("net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"):
            if sysctl.exists(key):
                sysctl.write(key, int(on))
            elif on:
                pytest.skip("this kernel has no br_netfilter")

    def elements(self) -> list[str]:
        """Every line of `nft list ruleset` that shows an element, from nft itself."""
        listed = run_in(self.host, "nft", "list", "ruleset")
        return [line.strip() for line in listed.splitlines() if 'comment "cni:' in line]

    def close(self) -> None:
        """Take everything away again."""
        for server in self._servers:
            server.close()
        ruleset.remove_table(self.nft)
        self.side.close()
        for link in ("up0", *CONTAINERS, *BRIDGES):
            run_in(self.host, "ip", "link", "delete", link)
        Sysctl(self.host).write_all({"net/ipv4/ip_forward": 0, "net/ipv6/conf/all/forwarding": 0})

    def _lay_cables(self) -> None:
        self.filter_bridged(on=False)
        Sysctl(self.host).write_all({"net/ipv4/ip_forward": 1, "net/ipv6/conf/all/forwarding": 1})
        for bridge, addresses in BRIDGES.items():
            run_in(self.host, "ip", "link", "add", bridge, "type", "bridge")
            self._set_up(self.host, bridge, addresses)
        for name, namespace in self.containers.items():
            bridge, _ = CONTAINERS[name]
            self._cable(name, namespace, "eth0", master=bridge)
            self._set_up(namespace, "eth0", [str(address) for address in self.addresses(name)])
            for gateway in BRIDGES[bridge]:
                via = str(ip_interface(gateway).ip)
                run_in(namespace, "ip", "route", "add", "default", "via", via)
        self._cable("up0", self.outside, "up0")
        self._set_up(self.host, "up0", [f"{HOST[4]}/24", f"{HOST[6]}/64"])
        self._set_up(self.outside, "up0", [f"{OUTSIDE[4]}/24", f"{OUTSIDE[6]}/64"])
        for version, prefix in ((4, 32), (6, 128)):
            address = f"{BEYOND[version]}/{prefix}"
            run_in(self.outside, "ip", "address", "add", address, "dev", "lo")
            run_in(self.host, "ip", "route", "add", address, "via", OUTSIDE[version])

    def _cable(self, host_end: str, namespace: Netns, far_end: str, *, master: str = "") -> None:
        attach = ("master", master) if master else ()
        peer = ("type", "veth", "peer", "name", far_end, "netns", namespace.path)
        run_in(self.host, "ip", "link", "add", host_end, "up", *attach, *peer)

    def _set_up(self, namespace: Netns, link: str, addresses: list[str] | tuple[str, ...]) -> None:
        Sysctl(namespace).write(f"net/ipv6/conf/{link}/accept_dad", 0)
        for address in addresses:
            nodad = ("nodad",) if ":" in address else ()
            run_in(namespace, "ip", "address", "add", address, "dev", link, *nodad)
        run_in(namespace, "ip", "link", "set", link, "up")


def _ask_tcp(client: socket.socket, server: socket.socket) -> str:
    server.settimeout(client.gettimeout())
    client.sendall(b"ping")
    connection, peer = server.accept()
    with connection:
        connection.settimeout(client.gettimeout())
        connection.recv(4)
        connection.sendall(b"pong")
    client.recv(4)
    return str(peer[0])


def _ask_udp(client: socket.socket, server: socket.socket) -> str:
    """A datagram may get lost while a cable settles or an address is looked up; ask again."""
    tries = max(1, round((client.gettimeout() or 0) / SILENCE_S))
    for each in (client, server):
        each.settimeout(SILENCE_S)
    for _ in range(tries):
        client.sendall(b"ping")
        with contextlib.suppress(TimeoutError):
            _, peer = server.recvfrom(16)
            server.sendto(b"pong", peer)
            client.recv(4)
            return str(peer[0])
    raise TimeoutError
