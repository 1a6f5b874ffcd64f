# SPDX-License-Identifier: Apache-2.0
"""host-local through its five verbs: configuration, addresses, files, words."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pycni.errors import CniError
from pycni.kernel.side import Side
from pycni.model.deadline import Deadline
from pycni.model.request import Request, Verb
from pycni.plugins import load
from pycni.runtime.dispatch import dispatch, parse_config

NET = "podnet"


class World:
    """One node's host-local: a data directory and calls into the plugin."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directory = path / NET

    def config(self, ipam: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
        """A network configuration with this world's dataDir."""
        ipam = {"type": "host-local", "dataDir": str(self.path)} | (ipam or {})
        return {"cniVersion": "1.1.0", "name": NET, "type": "bridge", "ipam": ipam} | keys

    def call(
        self,
        verb: Verb,
        config: dict[str, Any],
        container_id: str = "dummy",
        *,
        ifname: str = "eth0",
        args: str = "",
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Run one verb from bytes to bytes."""
        gc_or_status = verb in (Verb.GC, Verb.STATUS)
        request = Request(
            verb=verb,
            container_id="" if gc_or_status else container_id,
            ifname="" if gc_or_status else ifname,
            args=args,
            config=msgspec.json.encode(config),
        )
        with Side() as side:
            output = dispatch(
                load("host-local"),
                request,
                host=side,
                delegate=None,  # type: ignore[arg-type]  # an IPAM plugin delegates nothing
                deadline=Deadline(timeout_s),
            )
        return msgspec.json.decode(output) if output else {}

    def add(self, config: dict[str, Any], container_id: str = "dummy", **more: Any) -> list[str]:
        """ADD; the addresses with their prefix lengths."""
        result = self.call(Verb.ADD, config, container_id, **more)
        return [ip["address"] for ip in result.get("ips", ())]

    def fault(self, verb: Verb, config: dict[str, Any], **more: Any) -> tuple[int, str]:
        """Code and message of a call that fails."""
        with pytest.raises(CniError) as caught:
            self.call(verb, config, **more)
        return caught.value.wire_code, caught.value.msg

    def files(self) -> dict[str, bytes]:
        """The lease files."""
        if not self.directory.exists():
            return {}
        return {
            path.name: path.read_bytes()
            for path in self.directory.iterdir()
            if path.name != "lock" and not path.name.startswith("last")
        }


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty data directory."""
    return World(tmp_path)


V4 = {"ranges": [[{"subnet": "10.1.2.0/24"}]]}
SMALL = {"ranges": [[{"subnet": "192.168.1.0/29"}]]}
DUAL = {
    "ranges": [
        [{"subnet": "10.1.2.0/24"}, {"subnet": "10.2.2.0/24"}],
        [{"subnet": "2001:db8:1::0/64"}],
    ]
}


def test_add_gives_one_address_of_each_set_with_routes_and_dns(world: World) -> None:
    """The result and every byte on disk."""
    resolv_conf = world.path / "resolv.conf"
    resolv_conf.write_text(
        "# a comment\n; another\nnameserver 192.0.2.3 ignored\nnameserver 192.0.2.4\n"
        "domain example.com\nsearch a.example b.example\noptions ndots:2 rotate\noptions edns0\n"
        "sortlist 1.2.3.4\n\nnameserver\n"
    )
    config = world.config(
        DUAL
        | {
            "resolvConf": str(resolv_conf),
            "routes": [
                {"dst": "0.0.0.0/0"},
                {"dst": "::/0", "gw": "2001:db8:1::9"},
                {"dst": "192.168.0.0/16", "gw": "1.1.1.1", "mtu": 1400, "priority": 10},
            ],
        }
    )

    assert {
        "cniVersion": "1.1.0",
        "ips": [
            {"address": "10.1.2.2/24", "gateway": "10.1.2.1"},
            {"address": "2001:db8:1::2/64", "gateway": "2001:db8:1::1"},
        ],
        "routes": [
            {"dst": "0.0.0.0/0"},
            {"dst": "::/0", "gw": "2001:db8:1::9"},
            {"dst": "192.168.0.0/16", "gw": "1.1.1.1", "mtu": 1400, "priority": 10},
        ],
        "dns": {
            "nameservers": ["192.0.2.3", "192.0.2.4"],
            "domain": "example.com",
            "search": ["a.example", "b.example"],
            "options": ["ndots:2", "rotate", "edns0"],
        },
    } == world.call(Verb.ADD, config)
    assert {
        "10.1.2.2": b"dummy\r\neth0",
        "2001:db8:1::2": b"dummy\r\neth0",
    } == world.files()
    assert b"10.1.2.2" == (world.directory / "last_reserved_ip.0").read_bytes()
    assert b"2001:db8:1::2" == (world.directory / "last_reserved_ip.1").read_bytes()
    assert {"lock": 0o750, "10.1.2.2": 0o600, "last_reserved_ip.0": 0o600} == {
        name: (world.directory / name).stat().st_mode & 0o777
        for name in ("lock", "10.1.2.2", "last_reserved_ip.0")
    }

    world.call(Verb.DEL, config)
    world.call(Verb.DEL, config)
    assert {} == world.files()


def test_addresses_go_round_and_a_second_add_is_refused(world: World) -> None:
    """No address is reused before the others had their turn; an attachment gets one per set."""
    config = world.config(V4)

    assert ["10.1.2.2/24"] == world.add(config, "first")
    assert (
        999,
        "failed to allocate for range 0: 10.1.2.2 has been allocated to first, "
        "duplicate allocation is not allowed",
    ) == world.fault(Verb.ADD, config, container_id="first")
    assert ["10.1.2.3/24"] == world.add(config, "second")
    world.call(Verb.DEL, config, "first")
    assert ["10.1.2.4/24"] == world.add(config, "third")
    assert ["10.1.2.5/24"] == world.add(config, "second", ifname="eth1")


def test_a_file_of_the_old_format_is_released(world: World) -> None:
    """The container id alone, as written before 2019."""
    config = world.config(V4)
    world.add(config)
    (world.directory / "10.1.2.2").write_bytes(b"dummy")

    world.call(Verb.CHECK, config)
    world.call(Verb.DEL, config)
    assert {} == world.files()


def test_an_exhausted_set_says_so_and_where(world: World) -> None:
    """The known words, then how many leases are where, and what to do."""
    config = world.config(SMALL)
    given = [world.add(config, f"c{number}") for number in range(5)]

    assert [[f"192.168.1.{n}/29"] for n in (2, 3, 4, 5, 6)] == given
    with pytest.raises(CniError) as caught:
        world.add(config, "late")
    assert (
        "failed to allocate for range 0: "
        "no IP addresses available in range set: 192.168.1.1-192.168.1.6"
    ) == caught.value.msg
    assert 999 == caught.value.wire_code
    assert f"5 of its addresses are leased in {world.directory}" in caught.value.details
    assert (
        50,
        "no IP addresses available in range set: 192.168.1.1-192.168.1.6",
    ) == world.fault(Verb.STATUS, config)

    world.call(Verb.DEL, config, "c2")
    world.call(Verb.STATUS, config)
    assert ["192.168.1.4/29"] == world.add(config, "late")


def test_a_failing_add_keeps_nothing_and_takes_nothing_from_others(world: World) -> None:
    """The second set is exhausted: the first set's address goes back, earlier leases stay."""
    config = world.config({"ranges": [*V4["ranges"], *SMALL["ranges"]]})
    only_v4 = world.config(V4)
    for number in range(5):
        world.add(config, f"c{number}")
    before = world.files()

    _, message = world.fault(Verb.ADD, config, container_id="late")
    assert (
        "failed to allocate for range 1: "
        "no IP addresses available in range set: 192.168.1.1-192.168.1.6"
    ) == message
    assert before == world.files()

    world.add(only_v4, "late")
    before = world.files()
    assert "duplicate allocation" in world.fault(Verb.ADD, config, container_id="late")[1]
    assert before == world.files()


REQUESTS: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    (V4, {"args": {"cni": {"ips": ["10.1.2.88"]}}}, ["10.1.2.88/24"]),
    (V4, {"runtimeConfig": {"ips": ["10.1.2.88/8"]}}, ["10.1.2.88/24"]),
    (V4, {"RuntimeConfig": {"IPs": ["10.1.2.88"]}}, ["10.1.2.88/24"]),
    (
        {"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24"}]]},
        {"args": {"cni": {"ips": ["10.1.3.77", "10.1.2.88"]}}},
        ["10.1.2.88/24", "10.1.3.77/24"],
    ),
    (  # of all sources together, and named twice
        {"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24"}]]},
        {
            "args": {"cni": {"ips": ["10.1.3.77"]}},
            "runtimeConfig": {"ips": ["10.1.2.88", "10.1.3.77"]},
        },
        ["10.1.2.88/24", "10.1.3.77/24"],
    ),
    (  # in the second subnet of a set
        {
            "ranges": [
                [{"subnet": "172.16.1.0/24"}, {"subnet": "10.1.2.0/23"}],
                [{"subnet": "2001:db8:1::/48"}],
            ]
        },
        {"args": {"cni": {"ips": ["10.1.2.88", "2001:db8:1::999"]}}},
        ["10.1.2.88/23", "2001:db8:1::999/48"],
    ),
]


@pytest.mark.parametrize(("ipam", "keys", "expected"), REQUESTS)
def test_a_requested_address_is_given(
    world: World, ipam: dict[str, Any], keys: dict[str, Any], expected: list[str]
) -> None:
    """With the subnet's prefix length, in the order of the sets, and remembered as the last."""
    assert expected == world.add(world.config(ipam, **keys))
    last = (world.directory / "last_reserved_ip.0").read_text()
    assert expected[0].split("/")[0] == last


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("IP=10.44.0.77/8", "10.44.0.77/24"),
        ("IP=::ffff:10.44.0.9", "10.44.0.9/24"),
        ("IgnoreUnknown=1;K8S_POD_NAME=web;IP=10.44.0.5", "10.44.0.5/24"),
        ("IgnoreUnknown=true", "10.44.0.2/24"),
    ],
)
def test_cni_args_may_ask_for_an_address(world: World, args: str, expected: str) -> None:
    """IP with or without a length."""
    config = world.config({"subnet": "10.44.0.0/24"})

    assert [expected] == world.add(config, args=args)


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ("IP=10.44.0.010", 4, 'CNI_ARGS: IP: not an IP address: "10.44.0.010"'),
        ("IP=10.44.0.1/33", 4, 'CNI_ARGS: IP: not a CIDR: "10.44.0.1/33"'),
        ("FOO=BAR", 4, 'CNI_ARGS: unknown args ["FOO=BAR"]'),
        (
            "IP=10.44.0.1",
            999,
            "failed to allocate for range 0: requested ip 10.44.0.1 is subnet's gateway",
        ),
        ("IP=10.45.0.1", 999, "failed to allocate all requested IPs: 10.45.0.1"),
        ("IP=10.44.0.0", 999, "failed to allocate all requested IPs: 10.44.0.0"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(
    world: World, args: str, code: int, message: str
) -> None:
    """With the known words, and without a lease."""
    config = world.config({"subnet": "10.44.0.0/24"})

    assert (code, message) == world.fault(Verb.ADD, config, args=args)
    assert {} == world.files()


def test_two_requests_for_one_set_leave_nothing(world: World) -> None:
    """One address a set: the other request fails the call."""
    config = world.config(V4, args={"cni": {"ips": ["10.1.2.88", "10.1.2.77"]}})

    assert (999, "failed to allocate all requested IPs: 10.1.2.77") == world.fault(Verb.ADD, config)
    assert {} == world.files()


def test_the_holder_of_a_requested_address_is_named(world: World) -> None:
    """So that the operator knows whom to ask (podman #19583)."""
    config = world.config(V4)
    world.add(config, "early")
    with pytest.raises(CniError) as caught:
        world.add(config, "late", args="IP=10.1.2.2")

    assert (
        "failed to allocate for range 0: requested IP address 10.1.2.2 is not available in "
        "range set 10.1.2.1-10.1.2.254"
    ) == caught.value.msg
    assert f"held by early eth0 in {world.directory}" == caught.value.details


def test_requested_addresses_are_given_to_an_owner_who_has_others(world: World) -> None:
    """The test for a duplicate is about addresses nobody asked for, as in the Go plugin."""
    config = world.config(V4)
    world.add(config)

    assert ["10.1.2.50/24"] == world.add(config, args="IP=10.1.2.50")
    world.call(Verb.DEL, config)
    assert {} == world.files()


def test_the_sets_are_numbered_capability_first_then_the_old_spelling(world: World) -> None:
    """The number names the last_reserved_ip file, so the order is part of the format."""
    config = world.config(
        {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.50", "gateway": "10.1.0.254"}
        | {"ranges": [[{"subnet": "10.2.0.0/24"}]]},
        runtimeConfig={"ipRanges": [[{"subnet": "10.3.0.0/24"}], [{"subnet": "10.4.0.0/24"}]]},
    )

    assert ["10.3.0.2/24", "10.4.0.2/24", "10.1.0.50/24", "10.2.0.2/24"] == world.add(config)
    assert ["10.3.0.2", "10.4.0.2", "10.1.0.50", "10.2.0.2"] == [
        (world.directory / f"last_reserved_ip.{number}").read_text() for number in range(4)
    ]


def test_without_a_subnet_the_old_spelling_is_no_range(world: World) -> None:
    """A lone rangeStart is ignored, as in the Go plugin."""
    config = world.config({"rangeStart": "10.1.0.50"} | V4)

    assert ["10.1.2.2/24"] == world.add(config)


CONFIG_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({}, "ipam.ranges: no IP ranges specified"),
    (
        {"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.9.0.1/24"}]]},
        "ipam.ranges[1][0].subnet: invalid range set 1: Network has host bits set. "
        "For a subnet mask of length 24 the network address is 10.9.0.0",
    ),
    (
        {"subnet": "10.1.2.0/32"},
        "ipam.subnet: invalid range set 0: Network 10.1.2.0/32 too small to allocate from",
    ),
    ({"ranges": [[{"subnet": 5}]]}, "ipam.ranges[0][0].subnet: expected str, got int"),
]


@pytest.mark.parametrize(("ipam", "message"), CONFIG_FAULTS)
def test_a_wrong_range_is_told_with_its_path(
    world: World, ipam: dict[str, Any], message: str
) -> None:
    """Code 7, before anything is touched."""
    assert (7, message) == world.fault(Verb.ADD, world.config(ipam))
    assert [] == list(world.path.iterdir())


def test_a_network_is_refused_for_its_ranges_before_it_is_used(world: World) -> None:
    """Ranges that only the capability brings are not missed yet."""
    host_local = load("host-local")
    for ipam, message in CONFIG_FAULTS[1:3]:
        with pytest.raises(CniError) as caught:
            host_local.validate(parse_config(host_local, msgspec.json.encode(world.config(ipam))))
        assert message == caught.value.msg
    host_local.validate(parse_config(host_local, msgspec.json.encode(world.config())))


def test_a_configuration_without_ipam_is_told_apart(world: World) -> None:
    """It is not a question of ranges."""
    config = world.config()
    del config["ipam"]

    assert (7, "ipam: IPAM config missing 'ipam' key") == world.fault(Verb.ADD, config)


def test_a_range_of_the_capability_is_told_with_its_path(world: World) -> None:
    """The runtime is to blame, not the operator."""
    config = world.config(V4, runtimeConfig={"ipRanges": [[{"subnet": "10.1.2.7/24"}]]})
    _, message = world.fault(Verb.ADD, config)

    assert message.startswith("runtimeConfig.ipRanges[0][0].subnet: invalid range set 0: Network")


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "0.3.0"])
def test_old_versions_take_one_address_of_a_family(world: World, version: str) -> None:
    """Their results have no place for more; 0.3.0 has."""
    config = world.config(
        {"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24"}]]}, cniVersion=version
    )
    if version == "0.3.0":
        assert ["10.1.2.2/24", "10.1.3.2/24"] == world.add(config)
    else:
        assert (
            7,
            f"ipam.ranges: CNI version {version} does not support more than 1 address per family",
        ) == world.fault(Verb.ADD, config)


def test_del_needs_no_valid_ranges_and_makes_no_directory(world: World) -> None:
    """The owner suffices: what ADD leased is released whatever became of the configuration."""
    world.add(world.config(V4))
    edited = world.config({"ranges": [[]], "resolvConf": "/absent"})

    world.call(Verb.DEL, edited)
    assert {} == world.files()
    world.call(Verb.DEL, edited | {"name": "unknown"})
    assert [NET] == os.listdir(world.path)


def test_check_compares_with_the_result(world: World) -> None:
    """Leased to this attachment, every address of the result that is of our ranges."""
    config = world.config(V4)
    result = world.call(Verb.ADD, config)
    world.call(Verb.CHECK, config | {"prevResult": result})
    foreign = result | {"ips": [*result["ips"], {"address": "203.0.113.5/24"}]}
    world.call(Verb.CHECK, config | {"prevResult": foreign})

    other = result | {"ips": [{"address": "10.1.2.9/24"}]}
    assert (999, "host-local: 10.1.2.9 is not leased to container dummy") == world.fault(
        Verb.CHECK, config | {"prevResult": other}
    )
    world.call(Verb.DEL, config)
    assert (
        999,
        "host-local: Failed to find address added by container dummy",
    ) == world.fault(Verb.CHECK, config | {"prevResult": result})


def test_check_before_any_add_makes_no_directory(world: World) -> None:
    """It only looks."""
    assert 999 == world.fault(Verb.CHECK, world.config(V4))[0]
    assert [] == os.listdir(world.path)


def test_gc_releases_what_is_not_valid(world: World) -> None:
    """Of this network only; other networks have their own directories."""
    config, other = world.config(DUAL), world.config(V4, name="othernet")
    for container_id in ("kept", "gone"):
        world.add(config, container_id)
    world.add(config, "kept", ifname="eth1")
    world.add(other, "gone")
    (world.directory / "10.1.2.99").write_bytes(b"")

    valid = [{"containerID": "kept", "ifname": "eth0"}]
    world.call(Verb.GC, config | {"cni.dev/valid-attachments": valid})
    assert {"10.1.2.2", "2001:db8:1::2"} == set(world.files())
    assert (world.path / "othernet" / "10.1.2.2").exists()

    world.call(Verb.GC, config | {"cni.dev/valid-attachments": []})
    assert {} == world.files()
    world.call(Verb.GC, config | {"name": "absent", "cni.dev/valid-attachments": []})
    assert {NET, "othernet"} == set(os.listdir(world.path))


def test_status_is_quiet_when_add_would_work(world: World) -> None:
    """And makes no directory to find that out."""
    world.call(Verb.STATUS, world.config(DUAL))
    assert [] == os.listdir(world.path)


@pytest.mark.parametrize(
    ("ipam", "message"),
    [
        ({}, "ipam.ranges: no IP ranges specified"),
        (
            V4 | {"resolvConf": "/absent/resolv.conf"},
            "ipam.resolvConf: open /absent/resolv.conf: No such file or directory",
        ),
        (
            V4 | {"dataDir": "/proc/version/networks"},
            "host-local cannot lease addresses: /proc/version is not a directory",
        ),
    ],
)
def test_status_names_what_add_would_stumble_over(
    world: World, ipam: dict[str, Any], message: str
) -> None:
    """Code 50."""
    assert (50, message) == world.fault(Verb.STATUS, world.config(ipam))


def test_a_missing_resolv_conf_fails_before_anything_is_leased(world: World) -> None:
    """Code 5; nothing to roll back."""
    config = world.config(V4 | {"resolvConf": "/absent/resolv.conf"})

    assert (5, "ipam.resolvConf: open /absent/resolv.conf: No such file or directory") == (
        world.fault(Verb.ADD, config)
    )
    assert [] == os.listdir(world.path)


def test_an_empty_lease_file_is_used_again(world: World) -> None:
    """A crash does not use the range up (plugins #498)."""
    config = world.config({"subnet": "10.1.2.0/30"})
    world.directory.mkdir()
    (world.directory / "10.1.2.2").write_bytes(b"")

    assert ["10.1.2.2/30"] == world.add(config)


def test_the_gateway_may_be_elsewhere(world: World) -> None:
    """Then no address is set aside for it."""
    config = world.config({"subnet": "10.1.2.0/24", "gateway": "10.9.9.9"})

    assert ["10.1.2.1/24"] == world.add(config)


def test_a_last_address_of_the_go_plugin_is_continued(world: World) -> None:
    """Whatever was written there, and from the start if it is of no range."""
    config = world.config(V4)
    world.directory.mkdir()
    (world.directory / "last_reserved_ip.0").write_bytes(b"10.1.2.200")
    assert ["10.1.2.201/24"] == world.add(config, "a")
    (world.directory / "last_reserved_ip.0").write_bytes(b"10.9.9.9")
    assert ["10.1.2.2/24"] == world.add(config, "b")
    (world.directory / "last_reserved_ip.0").write_bytes(b"10.1.2.254")
    assert ["10.1.2.3/24"] == world.add(config, "c")
    assert "10.1.2.3" == str(ip_address((world.directory / "last_reserved_ip.0").read_text()))


@pytest.fixture
def without_space(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Make writing the file of a name fail as a full disk does."""
    from pycni.kernel.directory import Directory

    original = Directory.overwrite

    def fill(name: str) -> None:
        def full(self: Directory, target: str, content: bytes) -> None:
            if target == name:
                raise OSError(28, "No space left on device")
            original(self, target, content)

        monkeypatch.setattr(Directory, "overwrite", full)

    return fill


def test_a_full_disk_half_way_leaves_no_lease(
    world: World, without_space: Callable[[str], None]
) -> None:
    """Even between the lease and the note of the last address."""
    without_space("last_reserved_ip.1")

    assert (5, f"lease directory {world.directory}: No space left on device") == world.fault(
        Verb.ADD, world.config(DUAL)
    )
    assert {} == world.files()
