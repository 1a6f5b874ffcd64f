# SPDX-License-Identifier: Apache-2.0
"""Twin worlds: the same chain run by the Go plugins on one node and by ours on another."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pycni.errors import CniError
from pycni.model.deadline import Deadline
from pycni.model.request import Request, Verb
from pycni.model.version import at_least
from pycni.model.wire_error import parse_error
from pycni.testing.world import World, snapshot
from tests.harness import Json, Node

N = TypeVar("N", bound=Node)

GO_PLUGINS = next(
    (d for d in map(Path, ("/usr/lib/cni", "/usr/libexec/cni", "/opt/cni/bin")) if d.is_dir()),
    Path("/usr/lib/cni"),
)
CNI_VERSION = "1.0.0"  # the newest that Debian's Go plugins speak
NETWORK = "twinnet"
MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
DEVIATIONS = Path(__file__).with_name("deviations.toml")

NOTHING: Json = {}


class GoNode(Node):
    """A node whose plugins are the Go binaries, exec'd on its host."""

    search_path = os.environ.get("PATH", os.defpath)

    def run(self, plugin_type: str, request: Request, deadline: Deadline) -> bytes:
        """Exec one; a failure is the CniError on its stdout."""
        environment = {
            **os.environ,
            "PATH": self.search_path,
            "CNI_COMMAND": str(request.verb),
            "CNI_CONTAINERID": request.container_id,
            "CNI_NETNS": request.netns,
            "CNI_IFNAME": request.ifname,
            "CNI_ARGS": request.args,
            "CNI_PATH": str(GO_PLUGINS),
        }
        done = self.netns.run(
            lambda: subprocess.run(
                [GO_PLUGINS / plugin_type],
                input=request.config,
                env=environment,
                capture_output=True,
                timeout=60,
                check=False,
            )
        )
        if done.returncode:
            raise parse_error(done.stdout)
        return done.stdout


class Case(NamedTuple):
    """A chain, and what a runtime would supply for it."""

    name: str
    chain: tuple[Json, ...]
    runtime_config: Json = NOTHING
    args: str = ""
    version: str = CNI_VERSION

    @property
    def has_check(self) -> bool:
        """Whether CHECK exists at its version."""
        return at_least(self.version, "0.4.0")


def switched(node: Node, kind: type[N]) -> N:
    """The same node with the other plugins: the switch-over, or the way back."""
    other = kind(node.netns, node._make_netns, node.directory)
    other.side, other._containers = node.side, node._containers
    return other


# -- calls -----------------------------------------------------------------------------------------


def run_chain(node: Node, case: Case, verb: Verb, result: Json | None = None, **call: Any) -> Json:
    """Run every plugin of the case as libcni does; the last result of an ADD."""
    chain = case.chain if verb is not Verb.DEL else tuple(reversed(case.chain))
    for plugin in chain:
        config = request_config(node, plugin, case, result)
        stdout = node.call(verb, config, "c1", args=case.args, **call)
        if verb is Verb.ADD:
            result = json.loads(stdout)
    return result or {}


def request_config(node: Node, plugin: Json, case: Case, result: Json | None) -> Json:
    """What libcni writes to the plugin's stdin; paths of state are the node's own."""
    config = {"cniVersion": case.version, "name": NETWORK, **plugin}
    if plugin.get("ipam", {}).get("type") == "host-local":
        config["ipam"] = {**plugin["ipam"], "dataDir": str(node.directory / "leases")}
    if plugin["type"] == "tuning":
        config["dataDir"] = str(node.directory / "tuning")
    declared = {name for name, on in plugin.get("capabilities", {}).items() if on}
    supplied = {name: case.runtime_config[name] for name in declared & set(case.runtime_config)}
    if supplied:
        config["runtimeConfig"] = supplied
    if result is not None:
        config["prevResult"] = result
    return config


def delete(node: Node, case: Case, result: Json | None, **call: Any) -> str:
    """DEL, and once more if it fails, as runtimes do; what the first said, if it failed."""
    try:
        run_chain(node, case, Verb.DEL, result if case.has_check else None, **call)
    except CniError as exc:
        run_chain(node, case, Verb.DEL, result if case.has_check else None, **call)
        return str(exc)
    return ""


def complaint(node: Node, case: Case, result: Json) -> str:
    """What CHECK says; nothing if all is well."""
    try:
        run_chain(node, case, Verb.CHECK, result)
    except CniError as exc:
        return str(exc)
    return ""


def collect(node: Node, case: Case) -> None:
    """GC that keeps no attachment of the network."""
    for plugin in case.chain:
        config = request_config(node, plugin, case, None)
        node.gc({**config, "cniVersion": "1.1.0"}, [])


# -- the world -------------------------------------------------------------------------------------


def look(node: Node, *, container: bool = True) -> World:
    """The node's host, its container and its files, each fact as small as it can be."""
    worlds = [("host", snapshot(node.netns, directories=[node.directory]))]
    if container:
        worlds.append(("container", snapshot(node.container())))
    facts = [
        (f"{place} {topic}", text.replace(str(node.directory), "DIR"))
        for place, world in worlds
        for topic, fact in world.facts
        for text in _parts(topic, fact)
    ]
    return World(tuple(sorted(facts)))


def _parts(topic: str, fact: str) -> Iterator[str]:
    """One line for each property of a link or address and each element: judged one by one."""
    match topic:
        case "link" | "address":
            properties = json.loads(fact)
            name = properties.pop("ifname", None) or properties["dev"]
            if topic == "address":
                name += f" {properties.pop('local')}/{properties.pop('prefixlen')}"
            yield f"{name}"
            for key, value in properties.items():
                yield f"{name} {key} = {json.dumps(value, sort_keys=True)}"
        case "nft":
            [(kind, content)] = json.loads(fact).items()
            elements = content.pop("elem", [])
            table = content["name"] if kind == "table" else content["table"]
            where = f"{content['family']} {table} {kind}"
            yield f"{where} {json.dumps(content, sort_keys=True)}"
            for element in elements:
                yield f"{where} element of {content['name']}: {json.dumps(element, sort_keys=True)}"
        case "file":
            yield MAC.sub("MAC", fact)
        case _:
            yield fact


def result_lines(node: Node, result: Json) -> set[str]:
    """A result's items without what is random or names the node: MACs, host names, paths."""
    text = MAC.sub(
        "MAC", json.dumps(result, sort_keys=True).replace(node.container().path, "NETNS")
    )
    normal: Json = json.loads(re.sub(r"\bveth[0-9a-f]{8}\b", "veth*", text))
    # Go plugins before 1.2 print it empty in every version; later ones and ours leave it out.
    if not normal.get("dns"):
        normal.pop("dns", None)
    return {
        f"result {key}{number}: {json.dumps(item, sort_keys=True)}"
        for key, value in normal.items()
        for number, item in enumerate(value if isinstance(value, list) else [value])
    }


# -- what may differ -------------------------------------------------------------------------------


class Deviation(NamedTuple):
    """One entry of deviations.toml."""

    id: str
    pattern: str
    reason: str
    reference: str


class Deviations:
    """The differences that are meant, from deviations.toml; each must be seen by some test."""

    def __init__(self) -> None:
        entries = tomllib.loads(DEVIATIONS.read_text())["deviation"]
        self.entries = [Deviation(**entry) for entry in entries]
        self.seen: set[str] = set()

    def unexplained(self, lines: Iterable[str]) -> list[str]:
        """The lines that no deviation explains."""
        left = []
        for line in lines:
            found = [entry.id for entry in self.entries if re.search(entry.pattern, line)]
            self.seen.update(found)
            if not found:
                left.append(line)
        return left

    def stale(self) -> list[str]:
        """The entries that nothing has shown."""
        return [entry.id for entry in self.entries if entry.id not in self.seen]
