# SPDX-License-Identifier: Apache-2.0
"""Events are what happened, in order, until the monitor is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from ipaddress import ip_address, ip_interface, ip_network

import pytest

from pycni.errors import KernelError
from pycni.kernel.netns import Netns
from pycni.kernel.rtnl import Monitor
from pycni.kernel.types import Address, Event, Link, Neighbour, Route, Rule
from tests.fix_netns import run_in

pytestmark = pytest.mark.root

MakeNetns = Callable[..., Netns]


@pytest.fixture
def namespace(make_netns: MakeNetns) -> Netns:
    """Where the tests work; it dies with whatever is in it."""
    return make_netns()


def ip(namespace: Netns, command: str) -> None:
    run_in(namespace, "ip", *command.split())


def read_all(monitor: Monitor) -> Iterator[Event]:
    """Everything that is there."""
    while events := monitor.read(timeout_s=0.2):
        yield from events


def test_links_come_change_and_go(namespace: Netns) -> None:
    """With the link as it was at that moment."""
    with Monitor(namespace, ["link"]) as monitor:
        ip(namespace, "link add i0 type ifb")
        ip(namespace, "link set i0 up")
        ip(namespace, "link delete i0")
        events = [e for e in read_all(monitor) if isinstance(e.subject, Link)]
    seen = [
        (e.subject.name, e.subject.up, e.removed) for e in events if isinstance(e.subject, Link)
    ]
    assert ("i0", False, False) == seen[0]
    assert ("i0", True, False) in seen
    assert ("i0", False, True) == seen[-1]
    assert 1 == sum(event.removed for event in events)


def test_a_port_that_leaves_its_bridge_is_not_gone(namespace: Netns) -> None:
    """The bridge tells of it with the message that otherwise means removal."""
    for command in ("link add br0 type bridge", "link add i0 type ifb", "link set i0 master br0"):
        ip(namespace, command)
    with Monitor(namespace, ["link"]) as monitor:
        ip(namespace, "link set i0 nomaster")
        events = list(read_all(monitor))
    assert events
    assert not any(event.removed for event in events)


def test_every_group_tells_of_its_own(namespace: Netns) -> None:
    """Addresses, routes, rules and neighbours of both families."""
    ip(namespace, "link add br0 type bridge")
    ip(namespace, "link set br0 up")
    with Monitor(namespace, ["address", "route", "rule", "neighbour"]) as monitor:
        for command in (
            "address add 10.0.0.1/24 dev br0",
            "route add 10.9.0.0/16 dev br0",
            "-6 rule add from fd00::/64 lookup 100",
            "neighbour add 10.0.0.2 lladdr 02:00:00:00:00:01 dev br0 nud permanent",
            "address delete 10.0.0.1/24 dev br0",
        ):
            ip(namespace, command)
        events = list(read_all(monitor))
    subjects = {(type(e.subject), e.removed) for e in events}
    assert {(Address, False), (Address, True), (Route, False), (Rule, False)} <= subjects
    assert (Neighbour, False) in subjects
    assert Link not in {type(e.subject) for e in events}
    networks = {e.subject.dst for e in events if isinstance(e.subject, Route)}
    assert ip_network("10.9.0.0/16") in networks
    assert ip_interface("10.0.0.1/24") in {
        e.subject.address for e in events if isinstance(e.subject, Address)
    }
    assert ip_address("10.0.0.2") in {
        e.subject.address for e in events if isinstance(e.subject, Neighbour)
    }


def test_closing_ends_the_iteration(namespace: Netns) -> None:
    """From another thread, while the iterating one waits; and again does nothing."""
    monitor = Monitor(namespace)
    seen: list[Event] = []
    started = threading.Event()

    def follow() -> None:
        started.set()
        seen.extend(monitor)

    thread = threading.Thread(target=follow)
    thread.start()
    started.wait()
    ip(namespace, "link add i0 type ifb")
    monitor.close()
    thread.join(timeout=5)
    assert not thread.is_alive()
    monitor.close()
    assert [] == monitor.read()
    assert [] == list(monitor)


def test_waiting_may_have_an_end(namespace: Netns) -> None:
    """Nothing happened: nothing is returned."""
    with Monitor(namespace) as monitor:
        assert [] == monitor.read(timeout_s=0.01)


def test_an_overflow_is_an_event(namespace: Netns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever follows must then read the tables again; what follows is told as always."""
    monkeypatch.setattr("pycni.kernel.monitor._RECEIVE_QUEUE", 1)
    with Monitor(namespace, ["link"]) as monitor:
        for number in range(20):
            ip(namespace, f"link add i{number} type ifb")
        events = list(read_all(monitor))
        assert any(event.lost for event in events)
        assert not all(event.lost for event in events)
        ip(namespace, "link delete i0")
        assert [True] == [event.removed for event in read_all(monitor) if event.removed]


def test_a_group_nobody_knows_is_a_bug(namespace: Netns) -> None:
    """Before any socket is opened."""
    with pytest.raises(KeyError):
        Monitor(namespace, ["links"])


def test_a_namespace_that_is_closed_cannot_be_watched(make_netns: MakeNetns) -> None:
    """The error names its path."""
    with Netns.open(make_netns().path) as handle:
        path = handle.path
    with pytest.raises(KernelError, match=path):
        Monitor(handle)
