# SPDX-License-Identifier: Apache-2.0
"""What a namespace looks like from outside, for comparing: before and after, ours and theirs.

The witnesses are `ip -j`, `bridge -j`, `tc -j` and `nft -j`, not our own netlink code. What
differs between two equal worlds is taken out: interface indexes, MAC addresses and what derives
from them, random interface names, handles, counters, timers, and states that need a moment
(operational state, duplicate address detection)::

    before = snapshot(namespace)
    ...
    assert before.diff(snapshot(namespace)) == []
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from pycni.kernel import netns
from pycni.kernel.netns import Netns

# Below /proc/sys; the star stands for every interface.
WATCHED_SYSCTLS = (
    "net/ipv4/ip_forward",
    "net/ipv4/conf/*/arp_notify",
    "net/ipv4/conf/*/route_localnet",
    "net/ipv4/conf/*/rp_filter",
    "net/ipv6/conf/*/accept_dad",
    "net/ipv6/conf/*/accept_ra",
    "net/ipv6/conf/*/disable_ipv6",
    "net/ipv6/conf/*/enhanced_dad",
    "net/ipv6/conf/*/forwarding",
    "net/ipv6/conf/*/keep_addr_on_down",
    "net/ipv6/conf/*/ndisc_notify",
)

_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "link": ("ip", "-j", "-d", "link"),
    "address": ("ip", "-j", "address"),
    "route": ("ip", "-j", "-d", "route", "show", "table", "all"),
    "rule4": ("ip", "-j", "-4", "rule"),
    "rule6": ("ip", "-j", "-6", "rule"),
    "neighbour": ("ip", "-j", "neighbour", "show", "nud", "permanent"),
    "bridge vlan": ("bridge", "-j", "vlan", "show"),
    "qdisc": ("tc", "-j", "qdisc", "show"),
    "nft": ("nft", "-j", "list", "ruleset"),
}

_RANDOM_NAME = re.compile(r"\bveth[0-9a-f]{8}\b")
_COUNTERS = re.compile(r" \[\d+:\d+\]")
_EUI64 = re.compile(r"^fe80::.*ff:fe")
_PASSING_FLAGS = {"NO-CARRIER", "LOWER_UP", "RUNNING", "DORMANT"}
_PASSING_INFO = re.compile(
    r"_timer$|_id$|^root_|^designated_|^topology_change|^(id|no|state|config_pending|group_addr)$"
)
_LINK_FIELDS = ("ifname", "mtu", "master", "link", "group", "txqlen", "ifalias")
_PASSING_ADDRESS_FIELDS = {"tentative", "valid_life_time", "preferred_life_time", "dynamic"}
_FIRST_CONTENT = 200


class World(Struct, frozen=True):
    """The facts of one namespace: topic and text, sorted; a fact may occur more than once."""

    facts: tuple[tuple[str, str], ...]

    def diff(self, other: World) -> list[str]:
        """`- topic fact` for what only this world has, `+ topic fact` for what only `other` has."""
        mine, theirs = Counter(self.facts), Counter(other.facts)
        gone = [f"- {topic} {fact}" for topic, fact in sorted((mine - theirs).elements())]
        come = [f"+ {topic} {fact}" for topic, fact in sorted((theirs - mine).elements())]
        return gone + come

    def about(self, topic: str) -> list[str]:
        """The facts of one topic."""
        return [fact for name, fact in self.facts if name == topic]


def snapshot(
    namespace: Netns | None = None,
    *,
    directories: Iterable[str | os.PathLike[str]] = (),
    sysctls: Iterable[str] = WATCHED_SYSCTLS,
) -> World:
    """Look at a namespace (None: the process's own) and, if given, at directories."""
    patterns = tuple(sysctls)
    facts = list(netns.run(namespace, lambda: list(_look(patterns))))
    for directory in directories:
        facts += (("file", fact) for fact in _files(os.fspath(directory)))
    return World(tuple(sorted((topic, _RANDOM_NAME.sub("veth*", fact)) for topic, fact in facts)))


def _look(patterns: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Every fact, seen from a thread inside the namespace; its child processes are inside too."""
    running = {
        topic: subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for topic, command in _COMMANDS.items()
        if shutil.which(command[0])
    }
    outputs = {topic: process.communicate() for topic, process in running.items()}
    for topic, (stdout, stderr) in outputs.items():
        # The kernel or the tool may lack the subject (bridge vlan, nft): that is then a fact.
        if running[topic].returncode:
            yield topic, f"unavailable: {stderr.decode(errors='replace').strip()}"
        elif stdout.strip():
            for fact in _NORMALISERS[topic](json.loads(stdout)):
                yield topic, _text(fact)
    for device in _ingress_devices(outputs.get("qdisc", (b"", b""))[0]):
        command = ("tc", "-j", "filter", "show", "dev", device, "ingress")
        listed = subprocess.run(command, capture_output=True, check=True)
        for fact in json.loads(listed.stdout or b"[]"):
            yield "filter", _text({"dev": device, **_without_handles(fact)})
    yield from (("iptables", line) for line in _legacy_iptables())
    yield from (("sysctl", fact) for fact in _sysctls(patterns))


def _links(links: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for link in links:
        fact = {field: link[field] for field in _LINK_FIELDS if field in link}
        fact["flags"] = sorted(set(link["flags"]) - _PASSING_FLAGS)
        info = link.get("linkinfo", {})
        for field in ("info_kind", "info_slave_kind"):
            if field in info:
                fact[field] = info[field]
        for field in ("info_data", "info_slave_data"):
            if field in info:
                fact[field] = {
                    key: value
                    for key, value in info[field].items()
                    if not _PASSING_INFO.search(key)
                }
        yield fact


def _addresses(links: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for link in links:
        for address in link.get("addr_info", []):
            if _EUI64.match(address.get("local", "")):
                continue  # made by the kernel out of the MAC
            kept = {k: v for k, v in address.items() if k not in _PASSING_ADDRESS_FIELDS}
            yield {"dev": link["ifname"], **kept}


def _routes(routes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for route in routes:
        kernel = route.get("protocol") == "kernel"
        if kernel and (route.get("table") == "local" or route["dst"] in ("fe80::/64", "ff00::/8")):
            continue  # follows from addresses and links
        flags = sorted(set(route.get("flags", [])) & {"onlink"})
        yield {**{k: v for k, v in route.items() if k != "expires"}, "flags": flags}


def _neighbours(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        yield {key: value for key, value in entry.items() if key != "lladdr"}


def _qdiscs(qdiscs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for qdisc in qdiscs:
        if qdisc["handle"] != "0:":  # 0: is what a link has when nobody gave it one
            yield {key: value for key, value in qdisc.items() if key not in ("handle", "refcnt")}


def _ruleset(document: dict[str, Any]) -> Iterator[Any]:
    for item in document["nftables"]:
        if "metainfo" not in item:
            yield _without_handles(item)


def _as_is(facts: list[Any]) -> Iterator[Any]:
    yield from facts


_NORMALISERS: Mapping[str, Callable[[Any], Iterator[Any]]] = {
    "link": _links,
    "address": _addresses,
    "route": _routes,
    "rule4": _as_is,
    "rule6": _as_is,
    "neighbour": _neighbours,
    "bridge vlan": _as_is,
    "qdisc": _qdiscs,
    "nft": _ruleset,
}


def _without_handles(value: Any) -> Any:
    """The same without what the kernel numbers and counts."""
    if isinstance(value, dict):
        return {
            key: _without_handles(item)
            for key, item in value.items()
            if key not in ("handle", "fh", "index", "ref", "bind", "packets", "bytes", "expires")
        }
    if isinstance(value, list):
        return [_without_handles(item) for item in value]
    return value


def _ingress_devices(listed: bytes) -> list[str]:
    qdiscs = json.loads(listed or b"[]")
    return [qdisc["dev"] for qdisc in qdiscs if qdisc["kind"] in ("ingress", "clsact")]


def _legacy_iptables() -> Iterator[str]:
    """Rules of the old iptables, which nft does not show; only where a table exists already."""
    for family, tool in (("ip", "iptables-legacy-save"), ("ip6", "ip6tables-legacy-save")):
        try:
            # /proc/net would be the main thread's.
            with open(f"/proc/thread-self/net/{family}_tables_names", encoding="ascii") as names:
                tables = names.read().split()
        except OSError:
            continue
        if not tables or shutil.which(tool) is None:
            continue
        saved = subprocess.run((tool,), capture_output=True, text=True, check=True).stdout
        yield from (
            f"{family} {_COUNTERS.sub('', line)}"
            for line in saved.splitlines()
            if line.startswith(("*", ":", "-"))
        )


def _sysctls(patterns: Iterable[str]) -> Iterator[str]:
    """Values; of an interface only those that are not the default for a new one."""
    for pattern in patterns:
        default = _parameter(f"/proc/sys/{pattern.replace('*', 'default')}")
        for path in glob.glob(f"/proc/sys/{pattern}"):
            value = _parameter(path)
            ordinary = "*" in pattern and not re.search("/conf/(all|default)/", path)
            if value is not None and not (ordinary and value == default):
                yield f"{path.removeprefix('/proc/sys/')} = {value}"


def _parameter(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as parameter:
            return parameter.read().strip()
    except OSError:
        return None  # the interface went away


def _files(directory: str) -> Iterator[str]:
    for parent, _, names in os.walk(directory):
        yield f"{parent}/"
        for name in names:
            path = os.path.join(parent, name)
            with open(path, "rb") as file:
                content = file.read(_FIRST_CONTENT)
            yield f"{path} {content.decode(errors='backslashreplace')!r}"


def _text(fact: Any) -> str:
    return json.dumps(fact, sort_keys=True)
