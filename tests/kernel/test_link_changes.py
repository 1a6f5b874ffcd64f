# SPDX-License-Identifier: Apache-2.0
"""Links are listened to while somebody watches, and for a while after."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pycni.kernel.netns import Netns
from pycni.kernel.rtnl import Monitor
from pycni.kernel.side import Side
from pycni.kernel.types import Address, Link
from pycni.runtime.attachments import AttachmentParams
from pycni.runtime.events import Event, Kind
from pycni.runtime.link_changes import LinkChanges
from pycni.runtime.node import Node
from pycni.runtime.opening import open_node
from tests.fix_netns import run_in

pytestmark = [pytest.mark.root, pytest.mark.nft]

MakeNetns = Callable[..., Netns]
WAIT_S = 5.0


@pytest.fixture
def node(host: Netns, tmp_path: Path) -> Iterator[Node]:
    """A node with one network of a bridge, which goes with it."""
    node = open_node(str(tmp_path), host=Side(host), plugin_path=())
    ipam = {"type": "host-local", "subnet": "10.6.0.0/24", "dataDir": str(tmp_path / "leases")}
    config = {
        "cniVersion": "1.1.0",
        "name": "net",
        "plugins": [{"type": "bridge", "bridge": "br-l", "ipam": ipam}],
    }
    node.networks.put(json.dumps(config).encode())
    yield node
    node.detach_all("c1")
    node.networks.delete("net")
    node.close()


def attach(node: Node, container: Netns) -> None:
    node.add("net", AttachmentParams(container_id="c1", ifname="eth0", netns=container.path))


def until(events: Callable[[float], Event | None], kind: Kind) -> Event:
    """The next event of a kind."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        event = events(0.1)
        if event is not None and event.kind is kind:
            return event
    raise AssertionError(f"no {kind}")


def test_one_monitor_hears_of_every_container(
    node: Node, host: Netns, make_netns: MakeNetns
) -> None:
    """Events of other namespaces carry the id that this one calls them by."""
    container = make_netns("c1")
    attach(node, container)
    with Side(host) as side:
        number = side.rtnl.namespace_id(container)
    assert number is not None
    with Monitor(host, ["link", "address"], everywhere=True) as monitor:
        run_in(container, "ip", "address", "add", "10.6.0.9/24", "dev", "eth0")
        run_in(host, "ip", "link", "set", "br-l", "mtu", "1400")
        found = []
        while events := monitor.read(0.3):
            found += events
    assert number in {e.nsid for e in found if isinstance(e.subject, Address)}
    assert None in {e.nsid for e in found if isinstance(e.subject, Link)}


def test_listening_goes_on_for_a_while_and_says_when_it_ends(
    node: Node, make_netns: MakeNetns
) -> None:
    """Who reconnects in time misses nothing; who comes later reads that something is missing."""
    container = make_netns("c1")
    attach(node, container)
    links = LinkChanges(node, linger_s=1.5)
    events = node.events.watch()
    with links.watched():
        time.sleep(0.5)  # it is open by then
        run_in(container, "ip", "address", "add", "10.6.0.9/24", "dev", "eth0")
        until(events.get, Kind.ADDRESS)
    run_in(container, "ip", "address", "add", "10.6.0.10/24", "dev", "eth0")
    until(events.get, Kind.ADDRESS)
    lost = until(events.get, Kind.LINKS_LOST)
    assert "not watched" in lost.message
    with links.watched():
        time.sleep(0.5)
        run_in(container, "ip", "link", "set", "eth0", "mtu", "1400")
        assert "c1" == until(events.get, Kind.LINK).container_id
    links.stop()
    links.stop()


def test_a_link_that_is_taken_away_is_told(node: Node, host: Netns, make_netns: MakeNetns) -> None:
    """Once for each end, with what it was."""
    container = make_netns("c1")
    attach(node, container)
    links = LinkChanges(node)
    events = node.events.watch()
    with links.watched():
        time.sleep(0.5)
        run_in(container, "ip", "link", "delete", "eth0")
        gone = set()
        while len(gone) < 2:
            change: Any = until(events.get, Kind.LINK).detail
            if change.removed:
                gone.add((change.name == "eth0", bool(change.sandbox), change.up))
        assert {(True, True, False), (False, False, False)} == gone
    links.stop()
