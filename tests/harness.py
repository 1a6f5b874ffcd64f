# SPDX-License-Identifier: Apache-2.0
"""A node in a nutshell: built-in plugins run through `dispatch` between fresh namespaces."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pycni import plugins
from pycni.errors import CniError
from pycni.kernel.netns import Netns, remove_named
from pycni.kernel.side import Side
from pycni.kernel.sysctl import Sysctl
from pycni.model.deadline import Deadline
from pycni.model.request import Request, Verb
from pycni.model.result import DNS, IPConfig, Result, Route
from pycni.net.owner import Owner
from pycni.plugins.sdk import IPAM, Call, Config, Plugin
from pycni.runtime.dispatch import dispatch
from pycni.testing.world import World, snapshot
from tests.fix_netns import json_in, run_in

Json = dict[str, Any]

_fresh_container_world: list[World] = []


class FixedIPAM(IPAM, frozen=True, kw_only=True):
    """What to answer, and which verbs to fail."""

    ips: tuple[IPConfig, ...] = ()
    routes: tuple[Route, ...] = ()
    dns: DNS = DNS()
    fail: tuple[str, ...] = ()


class FixedConfig(Config, frozen=True, kw_only=True):
    """The configuration as the fixed IPAM plugin reads it."""

    ipam: FixedIPAM = FixedIPAM()


class Fixed(Plugin[FixedConfig], type="fixed", config=FixedConfig):
    """An IPAM plugin that answers what its configuration says and remembers what it was asked.

    `meanwhile` runs while it is asked, for what happens elsewhere in the middle of a call.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def add(self, call: Call[FixedConfig]) -> Result:
        """Hand out the configured addresses."""
        self._asked(call)
        ipam = call.config.ipam
        return Result(ips=ipam.ips, routes=ipam.routes, dns=ipam.dns)

    def delete(self, call: Call[FixedConfig]) -> None:
        """Remember the question."""
        self._asked(call)

    def check(self, call: Call[FixedConfig]) -> None:
        """Remember the question."""
        self._asked(call)

    def gc(self, call: Call[FixedConfig]) -> None:
        """Remember the question."""
        self._asked(call)

    def status(self, call: Call[FixedConfig]) -> None:
        """Remember the question."""
        self._asked(call)

    def _asked(self, call: Call[FixedConfig]) -> None:
        self.asked.append(f"{call.verb} {call.container_id}".strip())
        self.meanwhile()
        if call.verb in call.config.ipam.fail:
            raise CniError(f"fixed: {call.verb} fails as configured")


class Node:
    """A host, its containers, and calls to plugins; a container is made when first spoken of."""

    def __init__(self, host: Netns, make_netns: Callable[..., Netns], directory: Path) -> None:
        self.netns = host
        self.side = Side(host)
        self.directory = directory
        self.ipam = Fixed()
        self.path = "/nonexistent"
        self._make_netns = make_netns
        self._containers: dict[str, Netns] = {}

    # -- calls ---------------------------------------------------------------------------------

    def add(self, config: Json, container_id: str = "c1", **call: Any) -> Json:
        """ADD; the result as the caller reads it."""
        result: Json = json.loads(self.call(Verb.ADD, config, container_id, **call))
        return result

    def delete(self, config: Json, container_id: str = "c1", **call: Any) -> None:
        """DEL, which prints nothing."""
        assert b"" == self.call(Verb.DEL, config, container_id, **call)

    def check(self, config: Json, prev_result: Json, container_id: str = "c1", **call: Any) -> None:
        """CHECK, which prints nothing."""
        config = {**config, "prevResult": prev_result}
        assert b"" == self.call(Verb.CHECK, config, container_id, **call)

    def gc(self, config: Json, valid: Sequence[tuple[str, str]]) -> None:
        """GC that keeps the (container id, interface name) pairs, which prints nothing."""
        kept = [{"containerID": container_id, "ifname": ifname} for container_id, ifname in valid]
        config = {**config, "cni.dev/valid-attachments": kept}
        assert b"" == self.call(Verb.GC, config, "", ifname="", netns="")

    def status(self, config: Json) -> None:
        """STATUS, which prints nothing."""
        assert b"" == self.call(Verb.STATUS, config, "", ifname="", netns="")

    def call(
        self,
        verb: Verb,
        config: Json,
        container_id: str,
        *,
        ifname: str = "eth0",
        netns: str | None = None,
        args: str = "",
        deadline: Deadline | None = None,
    ) -> bytes:
        """One verb of the plugin `config` names; `netns` defaults to the container's."""
        request = Request(
            verb=verb,
            container_id=container_id,
            netns=self.container(container_id).path if netns is None else netns,
            ifname=ifname,
            args=args,
            path=(self.path,),
            config=json.dumps({"cniVersion": "1.1.0", "name": "testnet", **config}).encode(),
        )
        return self.run(config["type"], request, deadline or Deadline(30))

    def run(self, plugin_type: str, request: Request, deadline: Deadline) -> bytes:
        """Run a plugin; the node is its own delegate."""
        try:
            plugin = self.ipam if plugin_type == self.ipam.type else plugins.load(plugin_type)
        except KeyError:
            raise CniError(f'failed to find plugin "{plugin_type}" in path [{self.path}]') from None
        return dispatch(plugin, request, host=self.side, delegate=self, deadline=deadline)

    # -- the world -----------------------------------------------------------------------------

    def container(self, container_id: str = "c1") -> Netns:
        """The container's namespace."""
        if container_id not in self._containers:
            namespace = self._containers[container_id] = self._make_netns(container_id)
            if not _fresh_container_world:
                _fresh_container_world.append(snapshot(namespace))
        return self._containers[container_id]

    def forget_container(self, container_id: str) -> None:
        """Have the container's namespace die, and wait until its links are gone from the host."""
        namespace = self._containers.pop(container_id)
        remove_named(namespace.path)
        namespace.close()
        while "link-netns" in self.host("ip", "-o", "link", "show", "type", "veth"):
            time.sleep(0.001)

    def host(self, *command: str, check: bool = True) -> str:
        """Run a command on the host."""
        return run_in(self.netns, *command, check=check)

    def inside(self, *command: str, container_id: str = "c1", check: bool = True) -> str:
        """Run a command in a container."""
        return run_in(self.container(container_id), *command, check=check)

    def link(self, name: str, container_id: str | None = None) -> Json | None:
        """What `ip -j -d link` says of a link, on the host or in a container."""
        where = self.netns if container_id is None else self.container(container_id)
        links = json_in(where, "ip", "-j", "-d", "link", "show")
        return next((link for link in links if link["ifname"] == name), None)

    def addresses(self, name: str, container_id: str | None = None) -> list[str]:
        """The addresses of a link without the kernel's link-local ones."""
        where = self.netns if container_id is None else self.container(container_id)
        [link] = json_in(where, "ip", "-j", "address", "show", "dev", name)
        return [
            f"{address['local']}/{address['prefixlen']}"
            for address in link["addr_info"]
            if not address["local"].startswith("fe80:")
        ]

    def read_sysctl(self, key: str, container_id: str | None = None) -> str:
        """A parameter of the host, or of a container."""
        where = self.netns if container_id is None else self.container(container_id)
        return Sysctl(where).read(key)

    def owner(self, config: Json, container_id: str = "c1", ifname: str = "eth0") -> Owner:
        """The owner of what a call makes."""
        return Owner(config["name"], container_id, ifname)

    def outside(self) -> tuple[str, str]:
        """The IPv4 and IPv6 address of a machine that knows nothing of the containers."""
        machine = self._make_netns("outside", loopback=True)
        self.host("ip", "link", "add", "up0", "type", "veth", "peer", "up0", "netns", machine.path)
        for where, number in ((self.netns, 1), (machine, 2)):
            run_in(where, *f"ip address add 192.0.2.{number}/24 dev up0".split())
            run_in(where, *f"ip address add 2001:db8:ff::{number}/64 dev up0 nodad".split())
            # The kernel's own address would be tentative for a second and unable to ask for others.
            Sysctl(where).write("net/ipv6/conf/up0/accept_dad", "0")
            run_in(where, "ip", "link", "set", "up0", "up")
        # The first solicitation gets lost while the link settles.
        assert any(self.pings("2001:db8:ff::2") for _ in range(5))
        return "192.0.2.2", "2001:db8:ff::2"

    def pings(self, address: str, container_id: str | None = None) -> bool:
        """Does the address answer the host, or a container?"""
        where = self.netns if container_id is None else self.container(container_id)
        printed = run_in(where, "ping", "-c1", "-W1", address, check=False)
        return re.search(r"\b1 (packets )?received", printed) is not None

    def world(self) -> World:
        """The host as it is now."""
        return snapshot(self.netns, directories=[self.directory])

    def close(self) -> None:
        """Take away what plugins leave on purpose; complain about the rest of a container.

        Left on purpose are bridges with their addresses, forwarding, and an empty nft table. The
        host's world is compared by the `world_unchanged` fixture after this.
        """
        for link in json_in(self.netns, "ip", "-j", "-d", "link", "show"):
            kind = link.get("linkinfo", {}).get("info_kind")
            if kind == "bridge" or link["ifname"] == "up0":
                self.host("ip", "link", "delete", link["ifname"])
        self.side.sysctl.write_all(
            {"net/ipv4/ip_forward": "0", "net/ipv6/conf/all/forwarding": "0"}
        )
        self._remove_empty_nft_table()
        self.side.close()
        for container_id, namespace in self._containers.items():
            left = _fresh_container_world[0].diff(snapshot(namespace))
            assert not left, f"{container_id} is not as it was:\n" + "\n".join(left)

    def _remove_empty_nft_table(self) -> None:
        ruleset = json.loads(self.host("nft", "-j", "list", "ruleset"))["nftables"]
        tables = [item["table"]["name"] for item in ruleset if "table" in item]
        contents = [
            item for item in ruleset for kind in ("map", "set") if item.get(kind, {}).get("elem")
        ]
        if tables == ["pycni"] and not contents:
            self.host("nft", "delete", "table", "inet", "pycni")
