# SPDX-License-Identifier: Apache-2.0
"""libcni's part of the conformance list (L, and R17 to R21), of the library and of `cnitool`."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pycni.cli.cnitool import container_id
from pycni.errors import CniError, InvalidConfig
from pycni.libcni import AttachmentParams, Libcni
from pycni.model.config import NetworkConfigList
from pycni.model.names import ContainerId, IfName
from pycni.model.request import Attachment
from pycni.testing.foreign import Foreign

RESULT = {"cniVersion": "1.1.0", "ips": [{"address": "10.7.0.9/24"}]}


class World:
    """Two foreign plugins, a conf directory and a cache."""

    def __init__(self, root: Path) -> None:
        self.bin = root / "bin"
        self.conf = root / "net.d"
        self.cache = root / "cache"
        for directory in (self.bin, self.conf):
            directory.mkdir()
        self.first, self.second = Foreign(self.bin, "first"), Foreign(self.bin, "second")
        self.first.write("result", {"cniVersion": "1.1.0", "dns": {"domain": "first"}})
        self.second.write("result", RESULT)
        self.cni = Libcni([str(self.bin)], cache_dir=str(self.cache))

    def write(self, name: str = "net", file: str = "", **members: Any) -> NetworkConfigList:
        """A network of both plugins, written and loaded."""
        plugins = [{"type": "first", "capabilities": {"ips": True}}, {"type": "second"}]
        content = {"cniVersion": "1.1.0", "name": name, "plugins": plugins, **members}
        (self.conf / (file or f"{name}.conflist")).write_text(json.dumps(content))
        return self.cni.load(str(self.conf), name)

    def entry(self, network: str = "net", container: str = "c1") -> Path:
        """The cache file of an attachment."""
        return self.cache / "results" / f"{network}-{container}-eth0"


def params(container: str = "c1", **more: Any) -> AttachmentParams:
    """The parameters of an attachment."""
    more = {"netns": "/nowhere", **more}
    return AttachmentParams(container_id=container, ifname="eth0", **more)


def entry(container: str) -> Attachment:
    """A valid attachment."""
    return Attachment(ContainerId(container), IfName("eth0"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A fresh one."""
    return World(tmp_path)


# -- verbs -----------------------------------------------------------------------------------------


def test_R14_R15_add_hands_each_result_on(world: World) -> None:
    """In order; the first plugin has no prevResult, the last one's is the network's."""
    result = world.cni.add(world.write(), params())
    assert "10.7.0.9/24" == str(result.ips[0].address)
    assert ["ADD first", "ADD second"] == world.first.order()
    assert "prevResult" not in world.first.stdin(1)
    assert {"domain": "first"} == world.second.stdin(1)["prevResult"]["dns"]


def test_R17_del_goes_backwards_with_the_final_result(world: World) -> None:
    """Every plugin gets it, and the cache file is gone afterwards."""
    network = world.write()
    world.cni.add(network, params())
    world.cni.delete(network, params())
    assert ["DEL second", "DEL first"] == world.first.order()[2:]
    assert RESULT == world.first.stdin(2)["prevResult"] == world.second.stdin(2)["prevResult"]
    assert not world.entry().exists()


def test_R17_del_stops_at_the_first_failure(world: World) -> None:
    """Decision 3.7: as the SPEC has it; the file stays, so that a repetition has the result."""
    network = world.write()
    world.cni.add(network, params())
    world.second.write("fail-DEL", {"code": 140, "msg": "busy"})
    with pytest.raises(CniError, match="busy"):
        world.cni.delete(network, params())
    assert ["ADD"] == world.first.asked()
    assert world.entry().exists()
    world.second.relent("DEL")
    world.cni.delete(network, params())
    assert RESULT == world.first.stdin(-1)["prevResult"]


def test_R17_before_0_4_0_del_has_no_previous_result(world: World) -> None:
    """Even though it is cached."""
    network = world.write(cniVersion="0.3.1")
    world.cni.add(network, params())
    assert world.entry().exists()
    world.cni.delete(network, params())
    assert "prevResult" not in world.second.stdin(2)
    assert not world.entry().exists()


def test_R18_R19_check_goes_forward_with_the_final_result(world: World) -> None:
    """And stops at the first failure; without an ADD there is nothing to check."""
    network = world.write()
    with pytest.raises(CniError) as caught:
        world.cni.check(network, params())
    assert 3 == caught.value.code
    world.cni.add(network, params())
    world.cni.check(network, params())
    assert ["CHECK first", "CHECK second"] == world.first.order()[2:]
    assert RESULT == world.first.stdin(2)["prevResult"]
    world.first.write("fail-CHECK", {"code": 141, "msg": "drift"})
    with pytest.raises(CniError, match="drift"):
        world.cni.check(network, params())
    assert 1 == world.second.asked().count("CHECK")


def test_R19_the_version_counts_before_disable_check(world: World) -> None:
    """0.3.1 has no CHECK, whatever the network says of it; from 0.4.0 on it is a success."""
    for version in ("0.3.1", "0.4.0"):
        network = world.write(cniVersion=version, disableCheck=True)
        if version == "0.3.1":
            with pytest.raises(CniError, match="does not support the CHECK command"):
                world.cni.check(network, params())
        else:
            world.cni.check(network, params())
    assert [] == world.first.asked()


def test_R20_L12_gc_detaches_what_is_stale_then_collects(world: World) -> None:
    """With the parameters of the ADD; both keys are sent (decision 3.7)."""
    network = world.write()
    given = {"ips": msgspec.Raw(b'["10.7.0.9"]')}
    for container in ("keep", "stale"):
        arguments = (("A", "b"), ("C", "d"))
        world.cni.add(
            network, params(container, cni_args=arguments, capability_args=given, netns="/n")
        )
    other = world.write("other")
    world.cni.add(other, params("stale"))
    world.cni.gc(network, [entry("keep")])
    assert ["DEL second", "DEL first", "GC first", "GC second"] == world.first.order()[6:]
    env = world.first.env(4)
    assert ("stale", "/n", "A=b;C=d") == tuple(
        env[name] for name in ("CNI_CONTAINERID", "CNI_NETNS", "CNI_ARGS")
    )
    assert {"ips": ["10.7.0.9"]} == world.first.stdin(4)["runtimeConfig"]
    listed = [{"containerID": "keep", "ifname": "eth0"}]
    config = world.first.stdin(5)
    assert listed == config["cni.dev/valid-attachments"] == config["cni.dev/attachments"]
    assert world.entry("net", "keep").exists()
    assert not world.entry("net", "stale").exists()
    assert world.entry("other", "stale").exists()


def test_R20_gc_goes_on_past_failures_and_reports_them(world: World) -> None:
    """Of the DELs and of the plugins."""
    network = world.write()
    world.cni.add(network, params())
    world.second.write("fail-DEL", {"code": 142, "msg": "stuck"})
    world.first.write("fail-GC", {"code": 143, "msg": "no gc"})
    with pytest.raises(CniError) as caught:
        world.cni.gc(network, [])
    assert {142, 143} == {error.wire_code for error in caught.value.errors}  # type: ignore[attr-defined]  # ChainFailed
    assert "GC" in world.second.asked()


def test_R20_L12_gc_without_a_list_sends_none(world: World) -> None:
    """Every cached attachment is stale, but absent is not empty to the plugins."""
    network = world.write()
    world.cni.add(network, params())
    world.cni.gc(network, None)
    assert not world.entry().exists()
    assert [] == [key for key in world.first.stdin(-1) if key.startswith("cni.dev/")]


def test_C5_L12_disable_gc_rules_all_of_it_out(world: World) -> None:
    """The DELs too."""
    network = world.write(disableGC=True)
    world.cni.add(network, params())
    world.cni.gc(network, [])
    assert world.entry().exists()
    assert ["ADD"] == world.first.asked()


def test_R20_R21_older_networks_have_no_gc_and_no_status(world: World) -> None:
    """Both are a success; stale attachments are detached all the same, as libcni does."""
    network = world.write(cniVersion="1.0.0")
    world.cni.add(network, params())
    world.cni.status(network)
    world.cni.gc(network, [])
    assert ["ADD", "DEL"] == world.first.asked()


def test_R21_status_stops_at_the_first_failure(world: World) -> None:
    """So that its code survives."""
    network = world.write()
    world.cni.status(network)
    world.first.write("fail-STATUS", {"code": 51, "msg": "half dead"})
    with pytest.raises(CniError) as caught:
        world.cni.status(network)
    assert 51 == caught.value.wire_code
    assert 1 == world.second.asked().count("STATUS")


def test_R22_P8d_a_failed_status_gates_no_other_verb(world: World) -> None:
    """Who does not ask, or asks and goes on, is served."""
    network = world.write()
    for plugin in (world.first, world.second):
        plugin.write("fail-STATUS", {"code": 50, "msg": "not now"})
    with pytest.raises(CniError, match="not now"):
        world.cni.status(network)
    world.cni.add(network, params())
    world.cni.check(network, params())
    world.cni.delete(network, params())
    world.cni.gc(network, [])
    assert ["STATUS", "ADD", "CHECK", "DEL", "GC"] == world.first.asked()


def test_Q4_capabilities_are_not_handed_on(world: World) -> None:
    """Decision 3.7: the SPEC's way; libcni leaves them in."""
    world.cni.add(world.write(), params())
    assert {"cniVersion", "name", "type"} == world.first.stdin(1).keys()


def test_Q4_a_switch_hands_them_on_as_libcni_does(world: World) -> None:
    """Decision 3.7; on every verb that gives a plugin its configuration."""
    world.cni = Libcni([str(world.bin)], cache_dir=str(world.cache), keep_capabilities=True)
    network = world.write()
    world.cni.add(network, params())
    world.cni.check(network, params())
    world.cni.status(network)
    world.cni.gc(network, [])
    world.cni.delete(network, params())
    verbs = world.first.asked()
    given = [world.first.stdin(number).get("capabilities") for number in range(1, len(verbs) + 1)]
    assert [None if verb == "VERSION" else {"ips": True} for verb in verbs] == given


# -- the cache -------------------------------------------------------------------------------------


def test_L8_the_file_is_the_one_libcni_writes(world: World) -> None:
    """Name, modes and members; the configuration is the file's bytes."""
    network = world.write()
    given = {"ips": msgspec.Raw(b'["10.7.0.9"]')}
    world.cni.add(network, params(cni_args=(("A", "b"),), capability_args=given))
    path = world.entry()
    assert (0o600, 0o700) == (
        stat.S_IMODE(path.stat().st_mode),
        stat.S_IMODE(path.parent.stat().st_mode),
    )
    written = (world.conf / "net.conflist").read_bytes()
    expected = {
        "kind": "cniCacheV1",
        "containerId": "c1",
        "config": base64.b64encode(written).decode(),
        "ifName": "eth0",
        "networkName": "net",
        "netns": "/nowhere",
        "cniArgs": [["A", "b"]],
        "capabilityArgs": {"ips": ["10.7.0.9"]},
        "result": RESULT,
    }
    assert expected == json.loads(path.read_bytes())


def test_L7_a_cache_is_its_directory_s_alone(world: World, tmp_path: Path) -> None:
    """libcni's own unless another is named; who names another sees nothing of it."""
    assert "/var/lib/cni" == Libcni([]).cache.path
    network = world.write()
    world.cni.add(network, params())
    nested = Libcni([str(world.bin)], cache_dir=str(tmp_path / "nested"))
    assert () == nested.cached_attachments("c1")
    nested.delete(network, params())
    assert 1 == len(world.cni.cached_attachments("c1"))
    assert "prevResult" not in world.first.stdin(-1)


def test_L9_a_failed_add_is_not_cached(world: World) -> None:
    """Nor is it undone: that is the caller's part (decision 3.7)."""
    world.second.write("fail-ADD", {"code": 144, "msg": "no"})
    with pytest.raises(CniError, match="no"):
        world.cni.add(world.write(), params())
    assert not world.entry().exists()
    assert ["ADD"] == world.first.asked()


def test_L9_an_add_that_cannot_be_cached_fails(world: World) -> None:
    """What nobody remembers nobody can check."""
    world.cache.write_text("not a directory")
    with pytest.raises(CniError) as caught:
        world.cni.add(world.write(), params())
    assert 5 == caught.value.code


@pytest.mark.parametrize("content", [b"", b"{", b'{"kind": "cniCacheV1"}', b"\xff", b'{"a": 1}'])
def test_L9_a_file_nobody_can_read_is_removed_by_del(world: World, content: bytes) -> None:
    """Truncated by a power loss, say: the container is detached without it."""
    network = world.write()
    world.cni.add(network, params())
    world.entry().write_bytes(content)
    world.cni.delete(network, params())
    assert "prevResult" not in world.second.stdin(2)
    assert not world.entry().exists()


def test_L9_a_legacy_file_is_a_bare_result(world: World) -> None:
    """From before libcni 0.8."""
    network = world.write()
    world.entry().parent.mkdir(parents=True)
    world.entry().write_text(json.dumps(RESULT))
    world.cni.check(network, params())
    assert RESULT == world.first.stdin(1)["prevResult"]


def test_L9_a_cached_result_is_converted_to_the_networks_version(world: World) -> None:
    """The network was upgraded, or downgraded, while containers ran; DEL ignores what fails."""
    world.cni.add(world.write(), params())
    older = world.write(cniVersion="0.4.0")
    world.cni.check(older, params())
    assert "4" == world.first.stdin(2)["prevResult"]["ips"][0]["version"]
    content = json.loads(world.entry().read_bytes())
    content["result"] = {"cniVersion": "9.9.9"}
    world.entry().write_text(json.dumps(content))
    with pytest.raises(CniError):
        world.cni.check(older, params())
    world.cni.delete(older, params())
    assert "prevResult" not in world.second.stdin(-1)


def test_L10_L15_drop_ins_run_but_are_not_in_the_cached_configuration(world: World) -> None:
    """`config` is the main file's bytes, and DEL runs the configuration passed in."""
    third = Foreign(world.bin, "third")
    third.write("result", RESULT)
    world.write()
    (world.conf / "net").mkdir()
    (world.conf / "net" / "10.conf").write_text('{"type": "third"}')
    network = world.cni.load(str(world.conf), "net")
    world.cni.add(network, params())
    assert (
        "third" not in base64.b64decode(json.loads(world.entry().read_bytes())["config"]).decode()
    )
    world.cni.delete(network, params())
    assert ["ADD", "DEL"] == third.asked()


def test_L11_cached_attachments_are_those_of_a_container(world: World) -> None:
    """Sorted by file name; ids that are parts of others are told apart; foreign files skipped."""
    for name in ("net", "a-b"):
        for container in ("c", "b-c", "c-d"):
            world.cni.add(world.write(name), params(container))
    (world.entry().parent / "x-c-eth0").write_text("{")
    found = [(a.network, a.container_id) for a in world.cni.cached_attachments("c")]
    assert [("a-b", "c"), ("net", "c")] == found
    assert 6 == len(world.cni.cached_attachments())


# -- loading and validating ------------------------------------------------------------------------


def test_L13_validation_tells_the_capabilities(world: World) -> None:
    """Each plugin must exist and support the version."""
    assert {"ips"} == world.cni.validate(world.write())
    with pytest.raises(InvalidConfig, match='failed to find plugin "nonesuch"'):
        world.cni.validate(world.write(plugins=[{"type": "nonesuch"}]))
    Foreign(world.bin, "old", versions=("0.4.0",))
    with pytest.raises(CniError, match=r'does not support config version "1\.1\.0"'):
        world.cni.validate(world.write(plugins=[{"type": "old"}]))


def test_L14_a_network_is_found_by_its_name(world: World) -> None:
    """Or the two errors libcni knows."""
    with pytest.raises(InvalidConfig, match=f"no net configurations found in {world.conf}"):
        world.cni.load(str(world.conf), "net")
    world.write("other")
    with pytest.raises(InvalidConfig, match='no net configuration with name "net"'):
        world.cni.load(str(world.conf), "net")


def test_plugins_of_the_path_come_before_the_built_in_ones(world: World) -> None:
    """CNI_PATH says what to run; only what is not there is built in. Or the other way round."""
    own = Foreign(world.bin, "static")
    own.write("result", RESULT)
    network = world.write(plugins=[{"type": "static"}])
    built_in = {"builtin_first": True}
    for options, expected in (({}, ["ADD"]), (built_in, ["ADD"])):
        Libcni([str(world.bin)], cache_dir=str(world.cache), **options).add(network, params())
        assert expected == own.asked()


# -- cnitool ---------------------------------------------------------------------------------------


def cnitool(
    world: World, *arguments: str, check: bool = True, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run it."""
    done = subprocess.run(
        [sys.executable, "-m", "pycni.cli.main", "cnitool", *arguments],
        env={
            "PATH": os.environ["PATH"],
            "NETCONFPATH": str(world.conf),
            "CNI_PATH": str(world.bin),
            **env,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def test_L19_cnitool_honours_its_environment(world: World) -> None:
    """NETCONFPATH, CNI_PATH, CNI_ARGS, CAP_ARGS, CNI_IFNAME; each verb is one of libcni's."""
    world.write()
    cache = f"--cache-dir={world.cache}"
    env = {
        "CNI_ARGS": "A=b;C=d",
        "CAP_ARGS": '{"ips": ["10.7.0.9"], "mac": "x"}',
        "CNI_IFNAME": "net1",
    }
    done = cnitool(world, "add", "net", "/nowhere", cache, **env)
    assert json.dumps(RESULT, indent=4) + "\n" == done.stdout
    given = world.first.env(1)
    expected = {
        "CNI_CONTAINERID": container_id("/nowhere"),
        "CNI_NETNS": "/nowhere",
        "CNI_IFNAME": "net1",
        "CNI_ARGS": "A=b;C=d",
        "CNI_PATH": str(world.bin),
    }
    assert expected == {name: given[name] for name in expected}
    assert {"ips": ["10.7.0.9"]} == world.first.stdin(1)["runtimeConfig"]
    cnitool(world, "check", "net", "/nowhere", cache, **env)
    cnitool(world, "status", "net", "/nowhere")
    cnitool(world, "del", "net", "/nowhere", cache, "-i", "net1")
    cnitool(world, "gc", "net", "/nowhere", cache)
    assert ["ADD", "CHECK", "STATUS", "DEL", "GC"] == world.first.asked()


def test_L19_the_container_id_is_a_digest_of_the_path() -> None:
    """Known answer, computed with coreutils' sha512sum."""
    digest = subprocess.run(
        ["sha512sum"], input=b"/run/netns/a", capture_output=True, check=True
    ).stdout.decode()
    assert f"cnitool-{digest[:20]}" == container_id("/run/netns/a")


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"CNI_ARGS": "A"}, 'invalid CNI_ARGS pair "A"'),
        ({"CNI_ARGS": "A=b=c"}, 'invalid CNI_ARGS pair "A=b=c"'),
        ({"CNI_ARGS": "A=b;"}, 'invalid CNI_ARGS pair ""'),
        ({"CAP_ARGS": "["}, "CAP_ARGS"),
        ({"NETCONFPATH": "/nowhere"}, "no net configurations found in /nowhere"),
        ({"CNI_IFNAME": "a/b"}, "interface name contains / or :"),
    ],
)
def test_L19_what_is_wrong_is_said_on_stderr(world: World, env: dict[str, str], said: str) -> None:
    """And the exit status is 1."""
    world.write()
    done = cnitool(
        world, "add", "net", "/nowhere", f"--cache-dir={world.cache}", check=False, **env
    )
    assert (1, "") == (done.returncode, done.stdout)
    assert said in done.stderr
