# SPDX-License-Identifier: Apache-2.0
"""tuning on real interfaces: each knob set by ADD, told by CHECK, given back by DEL."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from pycni.errors import CniError
from pycni.model.deadline import Deadline
from pycni.model.request import Request, Verb
from pycni.plugins import load, tuning
from pycni.runtime.dispatch import parse_config
from tests.fix_netns import run_in
from tests.harness import Node

GO = Path("/usr/lib/cni/tuning")

MAC, NEW_MAC = "c2:11:22:33:44:55", "c2:11:22:33:44:66"
Json = dict[str, Any]


class Tuned:
    """A container with an interface, and calls to the plugin about it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.backups = node.directory / "tuning"
        self.file = self.backups / "c1_eth0.json"

    def config(self, **keys: Any) -> Json:
        """A configuration behind a plugin that made eth0."""
        interfaces = [
            {"name": "vethc1", "mac": MAC},
            {"name": "eth0", "mac": MAC, "sandbox": self.node.container().path},
        ]
        prev_result = {"cniVersion": "1.1.0", "interfaces": interfaces}
        base = {"type": "tuning", "dataDir": str(self.backups), "prevResult": prev_result}
        return base | keys

    def link(self) -> Json:
        """What tuning can change, as `ip` tells it."""
        found = self.node.link("eth0", "c1")
        assert found is not None
        return {
            "mac": found["address"],
            "mtu": found["mtu"],
            "promisc": "PROMISC" in found["flags"],
            "allmulti": "ALLMULTI" in found["flags"],
            "txQLen": found.get("txqlen", 0),
        }

    def sysctl(self, name: str) -> str:
        """A sysctl inside the container."""
        return self.node.inside("cat", f"/proc/sys/net/{name}").strip()

    def fault(self, config: Json, verb: str = "add", **call: Any) -> tuple[int, str]:
        """Code and message of a call that fails."""
        with pytest.raises(CniError) as caught:
            if verb == "check":
                self.node.check(config, config["prevResult"], **call)
            else:
                getattr(self.node, verb)(config, **call)
        return caught.value.wire_code, caught.value.msg


@pytest.fixture
def tuned(node: Node) -> Iterator[Tuned]:
    """A container c1 with eth0, and nothing changed on it at the end."""
    node.inside(
        *f"ip link add eth0 mtu 1500 address {MAC} txqueuelen 500 type veth peer name peer0".split()
    )
    tuned = Tuned(node)
    before = tuned.link()
    yield tuned
    assert before == tuned.link()
    node.inside("ip", "link", "delete", "eth0")


KNOBS: list[tuple[Json, Json]] = [
    ({"mac": NEW_MAC}, {"mac": NEW_MAC}),
    ({"mtu": 1400}, {"mtu": 1400}),
    ({"promisc": True}, {"promisc": True}),
    ({"allmulti": True}, {"allmulti": True}),
    ({"allmulti": False}, {"allmulti": False}),
    ({"txQLen": 20000}, {"txQLen": 20000}),
    ({"txQLen": 0}, {"txQLen": 0}),
    (
        {"mac": NEW_MAC, "mtu": 1400, "promisc": True, "allmulti": True, "txQLen": 9},
        {"mac": NEW_MAC, "mtu": 1400, "promisc": True, "allmulti": True, "txQLen": 9},
    ),
]


@pytest.mark.parametrize(("keys", "expected"), KNOBS, ids=[str(keys) for keys, _ in KNOBS])
class TestKnobs:
    """One attribute at a time, and all together."""

    def test_from_the_configuration(self, tuned: Tuned, keys: Json, expected: Json) -> None:
        """Set by ADD, true for CHECK, given back by DEL, and DEL again is fine."""
        before = tuned.link()
        config = tuned.config(**keys)

        result = tuned.node.add(config)
        assert before | expected == tuned.link()
        assert [expected.get("mac", MAC)] == [
            each["mac"] for each in result["interfaces"] if each["name"] == "eth0"
        ]
        tuned.node.check(config, config["prevResult"])
        assert {key: before[key] for key in keys} | {"network": "testnet"} == json.loads(
            tuned.file.read_text()
        )
        tuned.node.delete(config)
        assert before == tuned.link()
        assert not tuned.file.exists()
        tuned.node.delete(config)

    def test_from_args(self, tuned: Tuned, keys: Json, expected: Json) -> None:
        """`args.cni` overrides the configuration."""
        before = tuned.link()
        other = {"mac": "c2:11:22:33:44:77", "mtu": 1300, "txQLen": 8, "allmulti": True}
        config = tuned.config(**{key: other[key] for key in keys if key in other})
        config["args"] = {"cni": keys}

        tuned.node.add(config)
        assert before | expected == tuned.link()
        tuned.node.check(config, config["prevResult"])
        tuned.node.delete(config)
        assert before == tuned.link()

    def test_check_sees_it_changed(self, tuned: Tuned, keys: Json, expected: Json) -> None:
        """Each attribute on its own is enough."""
        config = tuned.config(**keys)
        tuned.node.add(config)
        for key, value in keys.items():
            change = {
                "mac": ["address", "c2:00:00:00:00:01"],
                "mtu": ["mtu", "1280"],
                "promisc": ["promisc", "off"],
                "allmulti": ["allmulticast", "off" if value else "on"],
                "txQLen": ["txqueuelen", "7"],
            }[key]
            tuned.node.inside("ip", "link", "set", "eth0", *change)
            code, message = tuned.fault(config, "check")
            assert 999 == code
            assert message.startswith(f"{key} of eth0 is ")
            back = {"promisc": "on", "allmulti": "on" if value else "off"}.get(key, str(value))
            tuned.node.inside("ip", "link", "set", "eth0", change[0], back)
        tuned.node.check(config, config["prevResult"])
        tuned.node.delete(config)


def test_the_mac_is_taken_from_args_then_capability_then_cni_args(tuned: Tuned) -> None:
    """And from the configuration last; each with one more source switched on."""
    macs = [f"c2:00:00:00:00:0{number}" for number in range(4)]
    config = tuned.config(mac=macs[3])
    sources: list[tuple[Json, str]] = [
        ({}, ""),
        ({}, f"MAC={macs[2]}"),
        ({"runtimeConfig": {"mac": macs[1]}}, f"MAC={macs[2]};IgnoreUnknown=1;K8S_POD=x"),
        ({"runtimeConfig": {"mac": macs[1]}, "args": {"cni": {"mac": macs[0]}}}, ""),
    ]
    for expected, (keys, args) in zip(reversed(macs), sources, strict=True):
        tuned.node.add(config | keys, args=args)
        assert expected == tuned.link()["mac"]
        tuned.node.delete(config | keys, args=args)
        assert tuned.link()["mac"] == MAC


def test_sysctls_are_written_in_the_containers_namespace(tuned: Tuned) -> None:
    """With IFNAME replaced; `args.cni` wins; the host's own stay."""
    tuned.node.host("sh", "-c", "cat /proc/sys/net/ipv4/ip_forward > /dev/null")
    host_before = tuned.node.host("cat", "/proc/sys/net/core/somaxconn")
    config = tuned.config(
        sysctl={
            "net.core.somaxconn": "555",
            "net.ipv4.conf.IFNAME.log_martians": "1",
            "net/ipv4/ip_local_port_range": "20000 30000",
        },
        args={"cni": {"sysctl": {"net.core.somaxconn": "666"}}},
    )

    result = tuned.node.add(config)
    assert config["prevResult"] == {"cniVersion": "1.1.0", **result}
    assert ["666", "1", "20000\t30000"] == [
        tuned.sysctl(name)
        for name in (
            "core/somaxconn",
            "ipv4/conf/eth0/log_martians",
            "ipv4/ip_local_port_range",
        )
    ]
    assert host_before == tuned.node.host("cat", "/proc/sys/net/core/somaxconn")
    assert not tuned.backups.exists()
    tuned.node.check(config, config["prevResult"])
    tuned.node.inside("sh", "-c", "echo 777 > /proc/sys/net/core/somaxconn")
    assert (999, "sysctl net/core/somaxconn is 777, not 666") == tuned.fault(config, "check")
    tuned.node.delete(config)
    # They die with the namespace; here it lives on and is compared.
    reset = "echo 4096 > core/somaxconn; echo 32768 60999 > ipv4/ip_local_port_range"
    tuned.node.inside("sh", "-c", f"cd /proc/sys/net; {reset}")


def test_a_write_only_sysctl_is_written(tuned: Tuned) -> None:
    """Reading it first, for the undo or the CHECK, may fail."""
    config = tuned.config(sysctl={"net.ipv4.route.flush": "1"})

    tuned.node.add(config)
    tuned.node.check(config, config["prevResult"])
    tuned.node.delete(config)


def test_ifname_may_contain_dots(node: Node) -> None:
    """It is put in after the dots became slashes."""
    assert {"net/ipv4/conf/eth0.100/arp_filter": "1"} == tuning.parse_sysctls(
        tuning_config({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}), "eth0.100"
    )


def tuning_config(keys: Json) -> tuning.TuningConfig:
    """A typed configuration."""
    data = msgspec.json.encode({"name": "testnet", "type": "tuning"} | keys)
    config = parse_config(load("tuning"), data)
    assert isinstance(config, tuning.TuningConfig)
    return config


@pytest.mark.parametrize(
    ("sysctl", "message"),
    [
        (
            '{"kernel.hostname": "x"}',
            'sysctl.kernel.hostname: invalid net sysctl key: "kernel.hostname"',
        ),
        (
            '{"net.core.\\u0000": "x"}',
            'sysctl.net.core.\0: invalid net sysctl key: "net.core.\0"',
        ),
        ('{"net": "x"}', 'sysctl.net: invalid net sysctl key: "net"'),
        (
            '{"net/../kernel/hostname": "x", "netx.a": "x"}',
            'sysctl.netx.a: invalid net sysctl key: "netx.a"',
        ),
        (
            '{"net.core.somaxconn": "1", "net.core.somaxconn": "2"}',
            "sysctl: duplicated sysctl keys are not allowed",
        ),
        ('{"net.core.somaxconn": 1}', "sysctl.net.core.somaxconn: expected str, got int"),
        ('["net.core.somaxconn"]', "sysctl: expected object, got array"),
    ],
)
def test_a_wrong_sysctl_is_refused_before_anything_is_changed(
    tuned: Tuned, sysctl: str, message: str
) -> None:
    """Code 7 with the path; also in `args.cni`; and validation says so beforehand."""
    before = tuned.link()
    text = json.dumps(tuned.config(mtu=1400, sysctl="SYSCTL")).replace('"SYSCTL"', sysctl)
    with pytest.raises(CniError) as caught:
        add_text(tuned, text)
    assert (7, message) == (caught.value.wire_code, caught.value.msg)
    assert before == tuned.link()

    with pytest.raises(CniError) as caught:
        load("tuning").validate(tuning_config({"sysctl": Raw(sysctl.encode())}))
    assert message == caught.value.msg

    text = json.dumps(tuned.config(args={"cni": {"sysctl": "SYSCTL"}}))
    with pytest.raises(CniError) as caught:
        add_text(tuned, text.replace('"SYSCTL"', sysctl))
    assert f"args.cni.{message}" == caught.value.msg


def add_text(tuned: Tuned, text: str) -> None:
    """ADD with a configuration that no dict can hold: equal keys."""
    request = Request(
        verb=Verb.ADD,
        container_id="c1",
        netns=tuned.node.container().path,
        ifname="eth0",
        config=text.replace("{", '{"name": "testnet", "cniVersion": "1.1.0", ', 1).encode(),
    )
    tuned.node.run("tuning", request, Deadline(30))


def test_del_is_served_whatever_the_sysctls_are(tuned: Tuned) -> None:
    """The configuration may have been edited since."""
    config = tuned.config(mtu=1400)
    tuned.node.add(config)
    tuned.node.delete(config | {"sysctl": {"kernel.hostname": "x"}, "mtu": 1300})


def test_a_repeated_add_keeps_the_first_backup(tuned: Tuned) -> None:
    """Otherwise DEL would give back what the first ADD had set."""
    config = tuned.config(mtu=1400, mac=NEW_MAC)
    tuned.node.add(config)
    tuned.node.add(config)

    assert {"mac": MAC, "mtu": 1500, "network": "testnet"} == json.loads(tuned.file.read_text())
    tuned.node.delete(config)


def test_a_failing_add_changes_nothing(tuned: Tuned) -> None:
    """The kernel refuses the MTU after sysctl and MAC were set: all goes back, no backup stays."""
    somaxconn = tuned.sysctl("core/somaxconn")
    config = tuned.config(sysctl={"net.core.somaxconn": "555"}, mac=NEW_MAC, mtu=1_000_000)
    before = tuned.link()

    code, message = tuned.fault(config)
    assert 999 == code
    assert message.startswith("change link eth0: ")
    assert before == tuned.link()
    assert somaxconn == tuned.sysctl("core/somaxconn")
    assert [] == os.listdir(tuned.backups)


def test_a_failing_sysctl_takes_the_others_back(tuned: Tuned) -> None:
    """Also those written before it."""
    somaxconn = tuned.sysctl("core/somaxconn")
    config = tuned.config(sysctl={"net.core.somaxconn": "555", "net.core.nonsense": "1"})

    code, message = tuned.fault(config)
    assert (999, "write 1 to sysctl net/core/nonsense: No such file or directory") == (
        code,
        message,
    )
    assert somaxconn == tuned.sysctl("core/somaxconn")


def test_add_needs_a_result_to_work_on(tuned: Tuned) -> None:
    """tuning is chained, never first."""
    config = tuned.config(mtu=1400)
    del config["prevResult"]

    code, message = tuned.fault(config)
    assert 7 == code
    assert message.startswith("prevResult: missing")


def test_an_absent_interface_is_named(tuned: Tuned) -> None:
    """ADD and CHECK fail, DEL does not."""
    config = tuned.config(mtu=1400)
    for verb in ("add", "check"):
        code, message = tuned.fault(config, verb, ifname="eth9")
        assert (999, "find link eth9: No such device") == (code, message)
    tuned.node.delete(config, ifname="eth9")


@pytest.mark.parametrize("netns", ["", "/run/netns/absent"])
def test_del_without_a_namespace_removes_the_backup(tuned: Tuned, netns: str) -> None:
    """There is nothing to give back to."""
    config = tuned.config(mtu=1400)
    tuned.node.add(config)
    tuned.node.delete(config, netns=netns)

    assert [] == os.listdir(tuned.backups)
    tuned.node.inside("ip", "link", "set", "eth0", "mtu", "1500")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"mtu": "x"}'])
def test_del_survives_an_unreadable_backup(tuned: Tuned, content: str) -> None:
    """It is removed; what it may have said is lost."""
    tuned.backups.mkdir()
    tuned.file.write_text(content)
    tuned.node.delete(tuned.config(mtu=1400))

    assert [] == os.listdir(tuned.backups)


def test_del_is_served_where_no_backup_could_ever_be(tuned: Tuned) -> None:
    """Below a file: ADD fails, and DEL must not, or nobody gets rid of the attachment."""
    tuned.backups.touch()
    config = tuned.config(mtu=1400, dataDir=f"{tuned.backups}/below")
    with pytest.raises(CniError) as caught:
        tuned.node.add(config)
    assert 5 == caught.value.wire_code
    tuned.node.delete(config)
    tuned.node.gc(config, [])
    tuned.backups.unlink()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mac": "01:00:5e:00:00:01"}, 'mac: not a MAC address of one host: "01:00:5e:00:00:01"'),
        ({"args": {"cni": {"mac": "0:0"}}}, 'args.cni.mac: not a MAC address: "0:0"'),
        ({"mtu": 2**31}, "mtu: expected int <= 2147483647"),
        ({"txQLen": 2**32}, "txQLen: expected int <= 4294967295"),
        ({"dataDir": "/run\0/x"}, "dataDir: a path contains a NUL byte"),
    ],
)
def test_an_impossible_attribute_is_refused_with_its_path(
    tuned: Tuned, keys: Json, message: str
) -> None:
    """Code 7, by ADD and by validation."""
    for attempt in (
        lambda: tuned.node.add(tuned.config(**keys)),
        lambda: load("tuning").validate(tuning_config(keys)),
    ):
        with pytest.raises(CniError) as caught:
            attempt()
        assert 7 == caught.value.wire_code
        assert caught.value.msg.startswith(message)


def test_del_gives_back_what_it_can(tuned: Tuned) -> None:
    """A value the kernel refuses keeps the others from nothing."""
    tuned.backups.mkdir()
    tuned.file.write_text('{"mac": "01:00:5e:00:00:01", "mtu": 1500, "promisc": false}')
    tuned.node.inside("ip", "link", "set", "eth0", "mtu", "1400", "promisc", "on")
    tuned.node.delete(tuned.config(mtu=1400))


def test_gc_removes_the_backups_of_its_network_only(tuned: Tuned) -> None:
    """Those of attachments that are not valid; files that name no network may be anybody's."""
    tuned.backups.mkdir()
    for name, network in (
        ("kept_eth0", "testnet"),
        ("kept_eth1", "testnet"),
        ("gone_eth0", "testnet"),
        ("gone_eth1", "othernet"),
        ("gone_eth2", ""),
    ):
        owner = {"network": network} if network else {}
        (tuned.backups / f"{name}.json").write_text(json.dumps({"mtu": 1500} | owner))
    (tuned.backups / "notes.txt").write_text('{"network": "testnet"}')
    (tuned.backups / "empty.json").write_text("")

    tuned.node.gc(tuned.config(), [("kept", "eth0")])
    assert {"kept_eth0.json", "gone_eth1.json", "gone_eth2.json", "notes.txt", "empty.json"} == set(
        os.listdir(tuned.backups)
    )
    tuned.node.gc(tuned.config(dataDir=str(tuned.backups / "absent")), [])


def test_status_names_what_add_would_stumble_over(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code 50: a sysctl outside net, an unusable directory, an allowlist that forbids."""
    tuned.node.status(tuned.config(sysctl={"net.core.somaxconn": "1"}))
    assert 50 == tuned.fault(tuned.config(sysctl={"vm.x": "1"}), "status")[0]
    assert (50, "tuning cannot save interface attributes: /proc/version is not a directory") == (
        tuned.fault(tuned.config(dataDir="/proc/version/x"), "status")
    )


class TestAllowlist:
    """The node's administrator decides which sysctls a network may set."""

    @pytest.fixture(autouse=True)
    def allowlist(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A list of two patterns between blank lines."""
        path = tmp_path / "allowlist.conf"
        path.write_text("\n  ^net.ipv4.conf.IFNAME.[a-z_]*$  \n\ntcp_window_scaling\n")
        monkeypatch.setattr(tuning, "ALLOWLIST", str(path))
        return path

    def test_what_matches_is_written(self, tuned: Tuned) -> None:
        """Patterns are searched for in the key as it is spelled, IFNAME and all."""
        config = tuned.config(
            sysctl={
                "net.ipv4.conf.IFNAME.arp_filter": "1",
                "net.ipv4.tcp_window_scaling": "1",
            }
        )
        tuned.node.add(config)
        assert "1" == tuned.sysctl("ipv4/conf/eth0/arp_filter")
        tuned.node.status(config)
        tuned.node.delete(config)

    def test_what_does_not_match_is_refused(self, tuned: Tuned, allowlist: Path) -> None:
        """With the known words; an empty list allows nothing."""
        config = tuned.config(sysctl={"net.core.somaxconn": "555"})
        message = (
            "sysctl.net.core.somaxconn: Sysctl net.core.somaxconn is not allowed. Only the "
            "following sysctls are allowed: [^net.ipv4.conf.IFNAME.[a-z_]*$ tcp_window_scaling]"
        )
        assert (7, message) == tuned.fault(config)
        assert (50, message) == tuned.fault(config, "status")
        allowlist.write_text("\n")
        assert (7, message.partition("[^")[0] + "[]") == tuned.fault(config)
        tuned.node.check(tuned.config(), config["prevResult"])

    def test_a_pattern_that_is_none_is_named(self, tuned: Tuned, allowlist: Path) -> None:
        """The administrator's fault, not the network's."""
        allowlist.write_text("net.(")
        code, message = tuned.fault(tuned.config(sysctl={"net.core.somaxconn": "555"}))

        assert 999 == code
        assert message.startswith(f'{allowlist}: not a regular expression: "net.("')

        allowlist.write_bytes(b"\xff\n")
        code, message = tuned.fault(tuned.config(sysctl={"net.core.somaxconn": "555"}))
        assert (999, f"{allowlist}: not UTF-8 text: invalid start byte") == (code, message)


@pytest.mark.go
@pytest.mark.skipif(not GO.exists(), reason=f"{GO} is not installed")
class TestBesideGo:
    """Each takes back what the other has set."""

    def go(self, tuned: Tuned, verb: str, config: Json) -> Json:
        """Run the Go plugin on the host."""
        config = config | {"cniVersion": "1.0.0", "name": "testnet"}
        config["prevResult"] = config["prevResult"] | {"cniVersion": "1.0.0"}
        command = [
            "env",
            f"CNI_COMMAND={verb}",
            "CNI_CONTAINERID=c1",
            "CNI_IFNAME=eth0",
            f"CNI_NETNS={tuned.node.container().path}",
            f"CNI_PATH={GO.parent}",
            str(GO),
        ]
        done: list[subprocess.CompletedProcess[str]] = []
        tuned.node.side.run(
            lambda: done.append(
                subprocess.run(
                    command, input=json.dumps(config), capture_output=True, text=True, check=False
                )
            )
        )
        return json.loads(done[0].stdout) if done[0].stdout else {}

    def test_go_takes_back_ours(self, tuned: Tuned) -> None:
        """Its DEL reads our file and ignores the key it does not know."""
        config = tuned.config(mac=NEW_MAC, mtu=1400, promisc=True, allmulti=True)
        tuned.node.add(config)
        assert {} == self.go(tuned, "CHECK", config)
        assert {} == self.go(tuned, "DEL", config)

        assert [] == os.listdir(tuned.backups)

    def test_we_take_back_gos(self, tuned: Tuned) -> None:
        """Our DEL reads its file; our CHECK agrees with its ADD; our GC leaves it alone."""
        config = tuned.config(mac=NEW_MAC, mtu=1400, promisc=True, allmulti=True)
        assert "interfaces" in self.go(tuned, "ADD", config)
        tuned.node.check(config, config["prevResult"])
        tuned.node.gc(config, [])
        tuned.node.delete(config)

        assert [] == os.listdir(tuned.backups)


def test_the_host_is_not_touched(tuned: Tuned) -> None:
    """Everything happens in the container's namespace; here is an interface of the same name."""
    tuned.backups.mkdir()
    host = tuned.node.netns
    run_in(host, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "peer0")
    before = tuned.node.world()
    config = tuned.config(mtu=1400, sysctl={"net.ipv4.conf.IFNAME.log_martians": "1"})
    tuned.node.add(config)
    tuned.node.delete(config)

    assert not before.diff(tuned.node.world())
    run_in(host, "ip", "link", "delete", "eth0")
