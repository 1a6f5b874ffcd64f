# SPDX-License-Identifier: Apache-2.0
"""The process protocol where namespaces and other people's executables are part of it.

As in test_exec.py, each test runs on every way to execute a plugin and is named by its line.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pycni.kernel.netns import Netns, remove_named
from pycni.testing.foreign import Foreign
from tests.conformance.conftest import Places, on
from tests.faces import Face
from tests.fix_netns import json_in, run_in

pytestmark = pytest.mark.root

LOOPBACK = {"cniVersion": "1.1.0", "name": "net", "type": "loopback"}


@pytest.fixture
def container(make_netns: Callable[..., Netns]) -> Netns:
    """A container without anything."""
    return make_netns("c")


@pytest.fixture
def foreign(places: Places) -> Iterator[Foreign]:
    """The foreign plugin in the plugin path, and the bridge it is used with removed afterwards."""
    foreign = Foreign(places.plugins, "foreign")
    foreign.write("result", {"cniVersion": "1.1.0", "ips": [{"address": "10.7.0.9/24"}]})
    yield foreign
    foreign.remove()
    subprocess.run(["ip", "link", "del", "br-face"], check=False, capture_output=True)


def bridge(**members: Any) -> dict[str, Any]:
    """A bridge whose addresses come from the foreign plugin."""
    return {
        "cniVersion": "1.1.0",
        "name": "net",
        "type": "bridge",
        "bridge": "br-face",
        "ipam": {"type": "foreign", "unknown": [1.50, 12345678901234567890]},
        **members,
    }


# -- namespaces ------------------------------------------------------------------------------------


def test_R1_R2_a_namespace_is_made_and_removed_by_the_runtime_alone(
    face: Face, container: Netns, tmp_path: Path
) -> None:
    """One that is missing is error 8 and stays missing, and one that is there outlives a DEL."""
    missing = tmp_path / "missing"
    assert 8 == face("loopback", "ADD", LOOPBACK, CNI_NETNS=str(missing), CNI_IFNAME="lo").error[0]
    assert not missing.exists()
    identity = os.stat(container.path).st_ino
    for verb in ("ADD", "DEL"):
        done = face("loopback", verb, LOOPBACK, CNI_NETNS=container.path, CNI_IFNAME="lo")
        assert 0 == done.status, done.stdout
    assert identity == os.stat(container.path).st_ino


def test_P3_P5a_add_works_in_the_namespace_and_returns_a_result(
    face: Face, container: Netns
) -> None:
    """Interfaces with name, MAC and sandbox, addresses that point at them."""
    done = face("loopback", "ADD", LOOPBACK, CNI_NETNS=container.path, CNI_IFNAME="lo")
    expected = {
        "cniVersion": "1.1.0",
        "interfaces": [{"mac": "00:00:00:00:00:00", "name": "lo", "sandbox": container.path}],
        "ips": [
            {"address": "127.0.0.1/8", "interface": 0},
            {"address": "::1/128", "interface": 0},
        ],
    }
    assert expected == done.document
    assert "UP" in json_in(container, "ip", "-j", "link", "show", "lo")[0]["flags"]
    gone = face("loopback", "DEL", LOOPBACK, CNI_NETNS=container.path, CNI_IFNAME="lo")
    assert (0, b"") == gone[:2]


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0"])
def test_V2_interfaces_before_1_0_0_come_in_their_own_order(
    face: Face, container: Netns, version: str
) -> None:
    """name, mac, sandbox; version, interface, address."""
    config = {**LOOPBACK, "cniVersion": version}
    done = face("loopback", "ADD", config, CNI_NETNS=container.path, CNI_IFNAME="lo")
    assert ["cniVersion", "interfaces", "ips", "dns"] == list(done.document)
    assert ["name", "mac", "sandbox"] == list(done.document["interfaces"][0])
    assert ["version", "interface", "address"] == list(done.document["ips"][0])


@pytest.mark.parametrize("override", [None, "", "0", "yes"])
@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_P15_the_plugins_own_namespace_is_refused_before_it_acts(
    face: Face, own_netns: str, command: str, override: str | None
) -> None:
    """Decision 3.7: code 8, and lo is not touched. The reference looks after it has acted."""
    env = {"CNI_NETNS": own_netns, "CNI_IFNAME": "lo", "CNI_NETNS_OVERRIDE": override}
    before = json_in(None, "ip", "-j", "addr")
    done = face("loopback", command, LOOPBACK, **env)
    msg = "plugin's netns and netns from CNI_NETNS should not be the same"
    assert (8, msg) == done.error
    assert before == json_in(None, "ip", "-j", "addr")


@pytest.mark.parametrize("override", ["1", "true", "TRUE"])
def test_P15_netns_override_permits_it(face: Face, own_netns: str, override: str) -> None:
    """Three spellings; lo is up here already."""
    env = {"CNI_NETNS": own_netns, "CNI_IFNAME": "lo", "CNI_NETNS_OVERRIDE": override}
    assert "ips" in face("loopback", "ADD", LOOPBACK, **env).document


@pytest.mark.parametrize("command", ["ADD", "CHECK"])
def test_P14_a_namespace_that_is_none_is_code_8(face: Face, tmp_path: Path, command: str) -> None:
    """A missing path, a file, a FIFO: told, and not hung up on."""
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "fifo")
    config = {**LOOPBACK, "prevResult": {"cniVersion": "1.1.0"}} if command == "CHECK" else LOOPBACK
    for name in ("missing", "file", "fifo"):
        env = {"CNI_NETNS": str(tmp_path / name), "CNI_IFNAME": "lo"}
        assert 8 == face("loopback", command, config, **env).error[0]


def test_P5b_a_previous_result_is_passed_through(face: Face, container: Netns) -> None:
    """In the configuration's version, nothing lost."""
    previous = {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "sandbox": container.path}],
        "ips": [{"address": "10.1.0.5/16", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}],
        "dns": {"domain": "x"},
    }
    config = {**LOOPBACK, "prevResult": previous}
    document = face("loopback", "ADD", config, CNI_NETNS=container.path, CNI_IFNAME="lo").document
    assert {**previous, "cniVersion": "1.1.0"} == document


def test_P12_a_previous_result_of_another_family_is_refused(face: Face, container: Netns) -> None:
    """Code 7, by the reference's text."""
    config = {**LOOPBACK, "prevResult": {"cniVersion": "0.4.0"}}
    code, msg = face("loopback", "ADD", config, CNI_NETNS=container.path, CNI_IFNAME="lo").error
    assert 7 == code
    assert 'result type supports [1.0.0 1.1.0] but unmarshalled CNIVersion is "0.4.0"' in msg


def test_P6_del_overlooks_a_previous_result_nobody_can_read(face: Face) -> None:
    """libcni #1171: a broken cache must not keep a container alive."""
    config = {**LOOPBACK, "prevResult": {"cniVersion": "9.9.9", "ips": 3}}
    assert 0 == face("loopback", "DEL", config, CNI_IFNAME="lo").status


# -- delegation ------------------------------------------------------------------------------------


def test_D1_a_delegate_that_is_nowhere_is_told(face: Face, container: Netns) -> None:
    """With the path that was searched."""
    config = bridge(ipam={"type": "nonesuch"})
    code, msg = face("bridge", "ADD", config, CNI_NETNS=container.path).error
    assert 0 != code
    assert f'failed to find plugin "nonesuch" in path [{face.path}]' in msg
    run_in(None, "ip", "link", "del", "br-face", check=False)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("", "netplugin failed with no error message: exit status 1"),
        ("oops", 'netplugin failed but error parsing its diagnostic message "oops"'),
        ('{"some": "JSON"}', "netplugin failed but error parsing its diagnostic message"),
    ],
)
def test_E3_a_delegate_without_a_readable_error_is_quoted(
    face: Face, container: Netns, foreign: Foreign, output: str, expected: str
) -> None:
    """As libcni words it."""
    foreign.write("fail-ADD", output)
    _, msg = face("bridge", "ADD", bridge(), CNI_NETNS=container.path).error
    assert msg.startswith(expected)


def test_E3_stderr_stands_in_for_an_empty_stdout(
    face: Face, container: Netns, foreign: Foreign
) -> None:
    """The last resort."""
    foreign.write("fail-ADD", "")
    foreign.write("say", "segmentation fault\n")
    _, msg = face("bridge", "ADD", bridge(), CNI_NETNS=container.path).error
    assert 'netplugin failed: "segmentation fault": exit status 1' == msg


def test_V5_V6_a_delegates_result_without_a_version_has_the_configurations(
    face: Face, container: Netns, foreign: Foreign
) -> None:
    """Interfaces it should not have are not taken for ours."""
    foreign.write("result", {"ips": [{"address": "10.7.0.9/24"}]})
    env = {"CNI_NETNS": container.path}
    document = face("bridge", "ADD", bridge(cniVersion="0.4.0"), **env).document
    assert "0.4.0" == document["cniVersion"]
    assert 2 == document["ips"][0]["interface"]
    assert 0 == face("bridge", "DEL", bridge(cniVersion="0.4.0"), **env).status


# -- the whole network -----------------------------------------------------------------------------


def write_network(places: Places, name: str = "inner", **members: Any) -> None:
    """A network of the node: a bridge and the foreign plugin."""
    plugin = {k: v for k, v in bridge().items() if k not in ("name", "cniVersion")}
    network = {"cniVersion": "1.1.0", "name": name, "plugins": [plugin], **members}
    (places.networks / f"{name}.conflist").write_text(json.dumps(network))


@pytest.fixture
def inner(places: Places, foreign: Foreign) -> Iterator[Foreign]:
    """The network `inner`, and no other."""
    write_network(places)
    yield foreign
    for path in places.networks.iterdir():
        path.unlink()


def outer(**members: Any) -> dict[str, Any]:
    """The configuration of a runtime that runs `inner` whole."""
    return {"cniVersion": "1.1.0", "name": "outer", "type": "pycni", "network": "inner", **members}


def test_a_whole_network_runs_in_one_execution(
    face: Face, container: Netns, inner: Foreign
) -> None:
    """Every verb; the result is in the version of the runtime's configuration."""
    env = {"CNI_NETNS": container.path}
    for version in ("0.4.0", "1.1.0"):
        config = outer(cniVersion=version)
        document = face("pycni", "ADD", config, **env).document
        assert (version, "10.7.0.9/24") == (document["cniVersion"], document["ips"][0]["address"])
        assert "eth0" in [link["ifname"] for link in json_in(container, "ip", "-j", "link")]
        assert document == face("pycni", "ADD", config, **env).document
        assert (0, b"") == face("pycni", "CHECK", {**config, "prevResult": document}, **env)[:2]
        for _ in range(2):
            assert (0, b"") == face("pycni", "DEL", {**config, "prevResult": document}, **env)[:2]
        assert ["lo"] == [link["ifname"] for link in json_in(container, "ip", "-j", "link")]
    assert (0, b"") == face("pycni", "STATUS", outer())[:2]
    assert 1 == inner.asked().count("STATUS")


def test_a_whole_network_is_detached_by_what_add_used(
    face: Face, container: Netns, inner: Foreign, places: Places
) -> None:
    """Even if the network is gone meanwhile; what nobody knows of is no error."""
    env = {"CNI_NETNS": container.path}
    assert 0 == face("pycni", "ADD", outer(), **env).status
    (places.networks / "inner.conflist").unlink()
    remove_named(container.path)
    assert 0 == face("pycni", "DEL", outer(), **env).status
    assert "DEL" in inner.asked()
    assert 0 == face("pycni", "DEL", outer(), **env).status
    assert (50, 'there is no network "inner"') == face("pycni", "STATUS", outer()).error
    code, msg = face("pycni", "ADD", outer(), **env).error
    assert (7, 'no net configuration with name "inner"') == (code, msg)
    write_network(places)


def test_gc_of_a_whole_network_judges_what_its_runtime_attached(
    face: Face, make_netns: Callable[..., Netns], inner: Foreign
) -> None:
    """Another runtime's containers on the same network are not in its list, and stay."""
    kept, stale, others = make_netns("k"), make_netns("s"), make_netns("o")
    names = {"kept": kept, "stale": stale, "others": others}
    for name, netns in names.items():
        config = outer(name="second") if name == "others" else outer()
        inner.write("result", {"ips": [{"address": f"10.7.0.{10 + len(name)}/24"}]})
        done = face("pycni", "ADD", config, CNI_CONTAINERID=name, CNI_NETNS=netns.path)
        assert 0 == done.status, done.stdout
    listed = {"cni.dev/valid-attachments": [{"containerID": "kept", "ifname": "eth0"}]}
    assert (0, b"") == face("pycni", "GC", outer(**listed))[:2]
    ends = {
        name: "eth0" in [link["ifname"] for link in json_in(netns, "ip", "-j", "link")]
        for name, netns in names.items()
    }
    assert {"kept": True, "stale": False, "others": True} == ends
    assert (0, b"") == face("pycni", "GC", outer())[:2], "no list is not an empty one"
    for name, netns in names.items():
        config = outer(name="second") if name == "others" else outer()
        done = face("pycni", "DEL", config, CNI_CONTAINERID=name, CNI_NETNS=netns.path)
        assert 0 == done.status


@pytest.mark.usefixtures("inner")
def test_check_of_a_whole_network_notices_another_namespace(
    face: Face, make_netns: Callable[..., Netns]
) -> None:
    """And one that was never attached is code 3."""
    there, elsewhere = make_netns("t"), make_netns("e")
    assert 3 == face("pycni", "CHECK", outer(), CNI_NETNS=there.path).error[0]
    assert 0 == face("pycni", "ADD", outer(), CNI_NETNS=there.path).status
    assert 8 == face("pycni", "CHECK", outer(), CNI_NETNS=elsewhere.path).error[0]
    run_in(there, "ip", "link", "del", "eth0")
    assert 1 == face("pycni", "CHECK", outer(), CNI_NETNS=there.path).status
    assert 0 == face("pycni", "DEL", outer(), CNI_NETNS=there.path).status


def test_capability_arguments_reach_the_plugins_that_declare_them(
    face: Face, container: Netns, inner: Foreign, places: Places
) -> None:
    """The runtime hands over what it has; the network's plugins say what they take."""
    plugin = {"type": "bridge", "bridge": "br-face", "ipam": {"type": "foreign"}}
    write_network(places, plugins=[{**plugin, "capabilities": {"ips": True}}])
    given = {"ips": ["10.7.0.9"], "bandwidth": {"ingressRate": 8}}
    env = {"CNI_NETNS": container.path, "CNI_ARGS": "IgnoreUnknown=1;A=b"}
    assert 0 == face("pycni", "ADD", outer(runtimeConfig=given), **env).status
    assert {"ips": ["10.7.0.9"]} == inner.stdin(1)["runtimeConfig"]
    assert "IgnoreUnknown=1;A=b" == inner.env(1)["CNI_ARGS"]
    assert 0 == face("pycni", "DEL", outer(runtimeConfig=given), **env).status


@pytest.mark.usefixtures("inner")
def test_a_whole_network_stands_first_and_names_a_network(
    face: Face, container: Netns, places: Places
) -> None:
    """Not behind another plugin; not itself; not without a network."""
    env = {"CNI_NETNS": container.path}
    chained = outer(prevResult={"cniVersion": "1.1.0"})
    assert face("pycni", "ADD", chained, **env).error[1].startswith("prevResult: ")
    assert 7 == face("pycni", "ADD", outer(network=""), **env).error[0]
    assert 7 == face("pycni", "ADD", outer(network="../x"), **env).error[0]
    itself = {"cniVersion": "1.1.0", "name": "loop", "plugins": [outer(network="loop")]}
    (places.networks / "loop.conflist").write_text(json.dumps(itself))
    code, msg = face("pycni", "ADD", outer(network="loop"), **env).error
    assert (7, 'no net configuration with name "loop"') == (code, msg)


@on("alone")
def test_without_a_service_executions_take_turns(
    face: Face, make_netns: Callable[..., Netns], inner: Foreign
) -> None:
    """The node's store has one owner at a time; whoever comes waits, and none is refused."""
    containers = {f"many{number}": make_netns("m") for number in range(6)}

    def attach(command: str) -> list[int]:
        def run(item: tuple[str, Netns]) -> int:
            name, netns = item
            return face(
                "pycni", command, outer(), CNI_CONTAINERID=name, CNI_NETNS=netns.path
            ).status

        with ThreadPoolExecutor(6) as pool:
            return list(pool.map(run, containers.items()))

    assert [0] * 6 == attach("ADD")
    assert 6 == inner.asked().count("ADD")
    assert [0] * 6 == attach("DEL")


@pytest.mark.parametrize("printed", ["", "done", "[]", '{"ips": [{"address": "none"}]}'])
def test_D6_a_delegate_succeeds_with_a_result_on_stdout(
    face: Face, container: Netns, foreign: Foreign, printed: str
) -> None:
    """Exit status 0 alone is none; what it may have done is undone (D5), and no interface is left.

    Nothing at all is a result without addresses to Go, which a bridge does not take either.
    """
    foreign.write("result", printed)
    done = face("bridge", "ADD", bridge(), CNI_NETNS=container.path)
    assert (1, True) == (done.status, done.document["code"] > 0)
    first, *others = foreign.asked()
    assert ("ADD", {"DEL"}) == (first, set(others))
    assert ["lo"] == [link["ifname"] for link in json_in(container, "ip", "-j", "link")]
