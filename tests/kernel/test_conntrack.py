# SPDX-License-Identifier: Apache-2.0
"""Forgetting tracked flows, with `conntrack -L` as the witness."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from ipaddress import ip_address
from time import perf_counter

import pytest

from pycni.kernel import conntrack as conntrack_module
from pycni.kernel.conntrack import Conntrack
from pycni.kernel.netns import Netns
from pycni.kernel.nlwire import nest
from tests.fix_netns import run_in

pytestmark = pytest.mark.root

UDP, TCP = socket.IPPROTO_UDP, socket.IPPROTO_TCP


@pytest.fixture
def tracking(host: Netns) -> Iterator[Netns]:
    """The host, tracking what it sends; twelve flows: six addresses, two ports."""
    run_in(host, *"ip address add 2001:db8::1/128 dev lo nodad".split())
    run_in(
        host, "nft", "add table inet t; add chain inet t c { type filter hook output priority 0; }"
    )
    run_in(host, "nft", "add rule inet t c ct state new accept")
    for address in ("127.0.0.1", "127.0.0.2", "127.0.0.3", "::1", "2001:db8::1", "127.0.0.4"):
        for port in (5000, 5001):
            send(host, address, port)
    yield host
    run_in(host, "nft", "delete table inet t")
    run_in(host, *"ip address delete 2001:db8::1/128 dev lo".split())


@pytest.fixture(params=[True, False], ids=["kernel filters", "dump"])
def conntrack(request: pytest.FixtureRequest, host: Netns) -> Iterator[Conntrack]:
    """Both ways: as recent kernels do it and as older ones need it."""
    conntrack = Conntrack(host)
    if not request.param:
        conntrack._kernel_filters_deletes = False
    yield conntrack
    conntrack.close()


def send(namespace: Netns, address: str, port: int) -> None:
    """One datagram to where nobody listens."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with namespace.run(lambda: socket.socket(family, socket.SOCK_DGRAM)) as sender:
        sender.sendto(b"x", (address, port))


def flows(namespace: Netns) -> set[tuple[str, int]]:
    """Original destination and port of every tracked UDP flow."""
    listed = "".join(
        run_in(namespace, "conntrack", "-L", "-p", "udp", "-f", family)
        for family in ("ipv4", "ipv6")
    )
    lines = re.findall(r"udp +17 .*?dst=(\S+) sport=\d+ dport=(\d+)", listed)
    return {(address, int(port)) for address, port in lines}


def test_flows_to_a_port_are_forgotten_in_both_families(
    tracking: Netns, conntrack: Conntrack
) -> None:
    """Every address; other ports and other protocols stay."""
    before = flows(tracking)
    assert 12 == len(before)
    conntrack.remove(TCP, 5000)
    assert before == flows(tracking)
    conntrack.remove(UDP, 5000)
    assert {flow for flow in before if flow[1] != 5000} == flows(tracking)


@pytest.mark.parametrize("address", ["127.0.0.2", "::1"])
def test_flows_to_one_address_are_forgotten(
    tracking: Netns, conntrack: Conntrack, address: str
) -> None:
    """With a destination only its flows go."""
    before = flows(tracking)
    conntrack.remove(UDP, 5001, destination=ip_address(address))
    assert before - {(address, 5001)} == flows(tracking)


def test_the_destination_is_the_one_before_translation(
    tracking: Netns, conntrack: Conntrack
) -> None:
    """A flow that was translated is known by what the client asked for."""
    run_in(tracking, "nft", "add chain inet t n { type nat hook output priority -100; }")
    run_in(tracking, "nft", "add rule inet t n udp dport 6000 redirect to :6001")
    send(tracking, "127.0.0.1", 6000)
    conntrack.remove(UDP, 6001)
    assert ("127.0.0.1", 6000) in flows(tracking)
    conntrack.remove(UDP, 6000)
    assert ("127.0.0.1", 6000) not in flows(tracking)


def test_an_empty_table_is_not_asked(host: Netns) -> None:
    """Nothing tracked: no socket is opened, and a call costs microseconds."""
    conntrack = Conntrack(host)
    descriptors = len(os.listdir("/proc/self/fd"))
    start = perf_counter()
    conntrack.remove(UDP, 5000)
    assert perf_counter() - start < 0.05
    assert descriptors == len(os.listdir("/proc/self/fd"))


def test_a_kernel_without_conntrack_has_nothing_to_forget(
    tracking: Netns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sysctl is absent until the module is loaded; asking would load it."""
    monkeypatch.setattr(conntrack_module, "COUNT", "/proc/sys/net/netfilter/none")
    before = flows(tracking)
    Conntrack(tracking).remove(UDP, 5000)
    assert before == flows(tracking)


def test_a_kernel_that_cannot_filter_is_asked_once(
    tracking: Netns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EINVAL to the filtered request (here: without its filter, which 6.1 ignores) means dump."""
    whole = conntrack_module._Filter.request
    refused: list[int] = []

    def without_filter(wanted: conntrack_module._Filter) -> bytes:
        refused.append(1)
        return whole(wanted)[: -len(nest(0, b"12345678"))]

    conntrack = Conntrack(tracking)
    monkeypatch.setattr(conntrack_module._Filter, "request", without_filter)
    wanted = conntrack_module._Filter(UDP, 5000, None)
    assert not conntrack._remove_filtered(socket.AF_INET, wanted)
    assert not conntrack._remove_filtered(socket.AF_INET, wanted)
    assert [1] == refused
    monkeypatch.undo()
    conntrack.remove(UDP, 5000)
    assert not any(port == 5000 for _, port in flows(tracking))
    conntrack.close()
