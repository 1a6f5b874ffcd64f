# SPDX-License-Identifier: Apache-2.0
"""Snapshots: equal worlds are equal, and every kind of leftover is seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pycni.kernel.netns import Netns
from pycni.testing.world import World, snapshot
from tests.fix_netns import run_in

pytestmark = pytest.mark.root

MakeNetns = Callable[..., Netns]

SETUP = (
    "ip link add br0 type bridge",
    "ip link set br0 up",
    "ip address add 10.0.0.1/24 dev br0",
    "ip link add {veth} type veth peer name eth0",
    "ip link set {veth} master br0 up",
    "ip link set eth0 up",
    "ip route add 10.9.0.0/16 via 10.0.0.9",
    "tc qdisc add dev br0 ingress",
    "nft add table inet x",
    "nft add chain inet x c {{ type nat hook postrouting priority 100 ; }}",
    "nft add rule inet x c counter oifname {veth} masquerade",
)


def build(namespace: Netns, veth: str) -> None:
    for command in SETUP:
        run_in(namespace, *command.format(veth=veth).split())


def test_two_worlds_built_alike_are_equal(make_netns: MakeNetns) -> None:
    """MACs, indexes, handles and random names do not count."""
    ours, theirs = make_netns("ours"), make_netns("theirs")
    run_in(theirs, "ip", "link", "add", "other", "type", "ifb")
    run_in(theirs, "ip", "link", "delete", "other")
    run_in(theirs, "nft", "add", "table", "ip", "other")
    run_in(theirs, "nft", "delete", "table", "ip", "other")
    build(ours, "veth0123abcd")
    build(theirs, "vethdeadbeef")
    assert [] == snapshot(ours).diff(snapshot(theirs))
    assert snapshot(ours) == snapshot(theirs)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("ip link add i0 type ifb", '[+] link {.*"ifname": "i0"'),
        ("ip link set br0 promisc on", '[+] link {.*"PROMISC"'),
        ("ip link set eth0 alias x", '[+] link {.*"ifalias": "x"'),
        ("ip address add 10.0.0.7/24 dev br0", '[+] address {.*"local": "10.0.0.7"'),
        ("ip address add fd00::1/64 dev br0", '[+] address {.*"local": "fd00::1"'),
        ("ip route add 10.8.0.0/16 dev br0", '[+] route {.*"dst": "10.8.0.0/16"'),
        ("ip route add default via 10.0.0.9 table 77", '[+] route {.*"table": "77"'),
        ("ip -6 rule add from fd00::1 lookup 7", "[+] rule6 {.*fd00::1"),
        ("ip neighbour add 10.0.0.3 lladdr 2:0:0:0:0:1 dev br0", "[+] neighbour {.*10.0.0.3"),
        ("tc qdisc add dev eth0 root tbf rate 1mbit burst 9kb limit 9kb", "[+] qdisc {.*tbf"),
        ("tc filter add dev br0 ingress u32 match u32 0 0 flowid 1:1", '[+] filter {.*"u32"'),
        ("nft add rule inet x c accept", "[+] nft {.*accept"),
        ("nft add table ip y", '[+] nft {.*"name": "y"'),
        ("sysctl -qw net.ipv4.ip_forward=1", "[+] sysctl net/ipv4/ip_forward = 1"),
        ("sysctl -qw net.ipv4.conf.br0.route_localnet=1", "[+] sysctl .*br0/route_localnet = 1"),
        ("iptables-legacy -t nat -A OUTPUT -j RETURN", "[+] iptables ip -A OUTPUT -j RETURN"),
    ],
)
def test_whatever_is_left_is_seen(make_netns: MakeNetns, command: str, expected: str) -> None:
    """Each kind of fact, by the command that makes one."""
    namespace = make_netns()
    build(namespace, "veth0123abcd")
    before = snapshot(namespace)
    run_in(namespace, *command.split())
    lines = before.diff(snapshot(namespace))
    assert [] != [line for line in lines if re.search(expected, line)], lines


def test_directories_are_part_of_the_world_if_asked(make_netns: MakeNetns, tmp_path: Path) -> None:
    """Names and contents, whatever the bytes."""
    namespace = make_netns()
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "10.0.0.2").write_bytes(b"c1\r\neth0")
    before = snapshot(namespace, directories=[tmp_path])
    (tmp_path / "net" / "10.0.0.2").write_bytes(b"c2\r\neth0")
    (tmp_path / "net" / "lock").write_bytes(b"\xff")
    assert [
        f"- file {tmp_path}/net/10.0.0.2 'c1\\r\\neth0'",
        f"+ file {tmp_path}/net/10.0.0.2 'c2\\r\\neth0'",
        f"+ file {tmp_path}/net/lock '\\\\xff'",
    ] == before.diff(snapshot(namespace, directories=[tmp_path]))


def test_the_same_fact_twice_counts_twice() -> None:
    """A second rule like the first is a difference."""
    once = World((("nft", "rule"),))
    twice = World((("nft", "rule"), ("nft", "rule")))
    assert (["+ nft rule"], ["- nft rule"]) == (once.diff(twice), twice.diff(once))
    assert (["rule", "rule"], []) == (twice.about("nft"), twice.about("link"))


def test_the_process_own_namespace_can_be_looked_at() -> None:
    """None is where we are."""
    assert any('"ifname": "lo"' in fact for fact in snapshot().about("link"))
