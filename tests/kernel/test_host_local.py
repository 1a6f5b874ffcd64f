# SPDX-License-Identifier: Apache-2.0
"""host-local beside the Go plugin: one directory, two implementations, many processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pycni.errors import CniError
from tests.harness import Node

GO = Path("/usr/lib/cni/host-local")
NET = "testnet"

needs_go = [
    pytest.mark.go,
    pytest.mark.skipif(not GO.exists(), reason=f"{GO} is not installed"),
]
pytestmark = pytest.mark.root

# What one process of ours does in the concurrent tests: eight attachments, one thread each.
OURS = """
import sys, threading
from pycni.kernel.side import Side
from pycni.model.deadline import Deadline
from pycni.model.request import Request, Verb
from pycni.plugins import load
from pycni.runtime.dispatch import dispatch

verb, prefix, config = Verb(sys.argv[1]), sys.argv[2], sys.argv[3].encode()
def call(number):
    request = Request(verb=verb, container_id=f"{prefix}{number}", ifname="eth0", config=config)
    dispatch(load("host-local"), request, host=Side(), delegate=None, deadline=Deadline(30))
threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def config_of(node: Node, **ipam: Any) -> dict[str, Any]:
    """A dual-stack network in the node's directory, of a version the Go plugin speaks."""
    ranges = [[{"subnet": "10.1.2.0/24"}], [{"subnet": "2001:db8::/64"}]]
    return {
        "cniVersion": "1.0.0",
        "name": NET,
        "type": "host-local",
        "ipam": {"type": "host-local", "dataDir": str(node.directory), "ranges": ranges} | ipam,
    }


def go_environment(verb: str, container_id: str) -> dict[str, str]:
    """The environment of the Go plugin."""
    return {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": container_id,
        "CNI_NETNS": "/nonexistent",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": str(GO.parent),
    }


def go(verb: str, config: dict[str, Any], container_id: str) -> dict[str, Any]:
    """Run the Go plugin; what it prints, an error too."""
    done = subprocess.run(
        [GO],
        input=json.dumps(config),
        env=go_environment(verb, container_id),
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout) if done.stdout else {}


def addresses(result: dict[str, Any]) -> list[str]:
    """The addresses of a result."""
    return [ip["address"] for ip in result["ips"]]


def leases(node: Node) -> dict[str, str]:
    """Who holds which address."""
    return {
        path.name: path.read_bytes().decode()
        for path in (node.directory / NET).iterdir()
        if path.name != "lock" and not path.name.startswith("last_reserved_ip")
    }


def go_add(node: Node, config: dict[str, Any], container_id: str) -> dict[str, Any]:
    """ADD by the Go plugin."""
    return go("ADD", config, container_id)


def our_add(node: Node, config: dict[str, Any], container_id: str) -> dict[str, Any]:
    """ADD by ours."""
    return node.add(config, container_id, netns="")


Add = Callable[[Node, dict[str, Any], str], dict[str, Any]]


@pytest.mark.parametrize("order", [(our_add, go_add), (go_add, our_add)])
class TestBesideGo:
    """Whoever comes first, the other goes on where it stopped."""

    pytestmark = needs_go

    def test_both_give_the_same_answers_in_turn(self, node: Node, order: tuple[Add, Add]) -> None:
        """The next address, however fast the calls follow each other."""
        config = config_of(node)
        given = [addresses(order[number % 2](node, config, f"c{number}")) for number in range(20)]

        assert [[f"10.1.2.{n}/24", f"2001:db8::{n:x}/64"] for n in range(2, 22)] == given

    def test_results_are_equal(self, node: Node, order: tuple[Add, Add]) -> None:
        """Key for key but for the address: gateway, routes, dns, in the layout of 0.4.0.

        (That of 1.0.0 differs between versions of the Go plugin.)
        """
        routes = [{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "2001::1"}]
        config = config_of(node, routes=routes) | {"cniVersion": "0.4.0"}
        first, second = (add(node, config, f"c{n}") for n, add in enumerate(order))

        assert json.dumps(first).replace("10.1.2.2/", "10.1.2.3/").replace(
            "::2/", "::3/"
        ) == json.dumps(second)

    def test_a_duplicate_is_seen_across(self, node: Node, order: tuple[Add, Add]) -> None:
        """And refused with the same words."""
        first, second = order
        config = config_of(node)
        first(node, config, "c1")
        try:
            refusal = second(node, config, "c1")["msg"]
        except CniError as exc:
            refusal = exc.msg

        assert (
            "failed to allocate for range 0: 10.1.2.2 has been allocated to c1, "
            "duplicate allocation is not allowed"
        ) == refusal


@pytest.mark.parametrize("first", [our_add, go_add])
class TestEachDeletesTheOthers:
    """DEL and CHECK work on what the other implementation made."""

    pytestmark = needs_go

    def test_del(self, node: Node, first: Add) -> None:
        """Both families go, the neighbour stays."""
        config = config_of(node)
        for container_id in ("c1", "c2"):
            first(node, config, container_id)
        if first is our_add:
            assert {} == go("DEL", config, "c1")
        else:
            node.delete(config, "c1", netns="")

        assert {"10.1.2.3": "c2\r\neth0", "2001:db8::3": "c2\r\neth0"} == leases(node)

    def test_check(self, node: Node, first: Add) -> None:
        """Succeeds for what the other leased, fails after it was released."""
        config = config_of(node)
        result = first(node, config, "c1")
        checked = config | {"prevResult": result}
        if first is our_add:
            assert {} == go("CHECK", checked, "c1")
            node.delete(config, "c1", netns="")
            assert "Failed to find address" in go("CHECK", checked, "c1")["msg"]
        else:
            node.check(config, result, "c1")
            go("DEL", config, "c1")
            with pytest.raises(CniError, match="Failed to find address"):
                node.check(config, result, "c1")


def start_ours(verb: str, prefix: str, config: dict[str, Any]) -> subprocess.Popen[bytes]:
    """A process of ours that works on eight attachments at once."""
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", OURS, verb, prefix, json.dumps(config)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


def finish(*processes: subprocess.Popen[bytes]) -> None:
    """Wait; nobody may have complained."""
    errors = [process.communicate()[1] for process in processes]
    assert [b""] * len(processes) == errors


def test_two_processes_at_once_give_sixteen_addresses(node: Node) -> None:
    """No address twice, none lost, and all released again."""
    config = config_of(node)
    finish(*(start_ours("ADD", prefix, config) for prefix in "ab"))

    assert {f"{p}{n}\r\neth0": 2 for p in "ab" for n in range(8)} == {
        holder: list(leases(node).values()).count(holder) for holder in leases(node).values()
    }
    finish(*(start_ours("DEL", prefix, config) for prefix in "ab"))
    assert {} == leases(node)


@pytest.mark.go
@pytest.mark.skipif(not GO.exists(), reason=f"{GO} is not installed")
def test_ours_and_the_go_plugin_at_once_give_each_its_own(node: Node) -> None:
    """Two processes of ours and eight of Go, adding and then deleting together."""
    config = config_of(node)
    for verb, held in (("ADD", 48), ("DEL", 0)):
        others = [
            subprocess.Popen(
                [GO],
                env=go_environment(verb, f"go{number}"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for number in range(8)
        ]
        ours = [start_ours(verb, prefix, config) for prefix in "ab"]
        for other in others:
            _, errors = other.communicate(json.dumps(config).encode())
            assert (0, b"") == (other.returncode, errors)
        finish(*ours)
        assert held == len(leases(node))


@pytest.mark.go
@pytest.mark.skipif(not GO.exists(), reason=f"{GO} is not installed")
def test_a_foreign_change_between_two_of_our_calls_is_seen(node: Node) -> None:
    """The index of a running service against releases and leases by Go, a hundred times."""
    config = config_of(node, ranges=[[{"subnet": "10.1.2.0/30"}]])
    for _ in range(25):
        node.add(config, "ours", netns="")
        go("DEL", config, "ours")
        go("ADD", config, "theirs")
        with pytest.raises(CniError, match="no IP addresses available in range set"):
            node.add(config, "ours", netns="")
        node.delete(config, "theirs", netns="")
        assert {} == leases(node)
