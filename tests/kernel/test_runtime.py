# SPDX-License-Identifier: Apache-2.0
"""A node with the real plugins: chains, interruptions, crashes, and nothing left behind."""

from __future__ import annotations

import gc
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pycni.errors import CniError, TryAgain
from pycni.exec import shim as shim_module
from pycni.exec import skel
from pycni.exec.endpoint import ShimEndpoint
from pycni.kernel import netns
from pycni.kernel.netns import Netns
from pycni.model import request
from pycni.model.deadline import Deadline
from pycni.model.names import ContainerId, IfName
from pycni.runtime.attachments import AttachmentKey, AttachmentParams, State
from pycni.runtime.node import Node
from pycni.runtime.opening import open_node
from pycni.runtime.outcomes import GcTarget
from tests.fix_netns import run_in
from tests.harness import Node as Machine

VERSION = """
if [ $CNI_COMMAND = VERSION ]; then
  echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}'; exit
fi"""
PASS_ON = """if [ $CNI_COMMAND = ADD ]; then sed 's/.*"prevResult":\\(.*\\)}$/\\1/'; fi"""
KEY = AttachmentKey("net", "c1", "eth0")
Json = dict[str, Any]


@pytest.fixture
def machine(node: Machine) -> Machine:
    """A host and its containers, in namespaces."""
    return node


@pytest.fixture
def opened(machine: Machine, tmp_path: Path) -> Iterator[Callable[[], Node]]:
    """Open the runtime's node on the machine, again and again if need be."""
    (tmp_path / "bin").mkdir()
    nodes: list[Node] = []

    def reopen() -> Node:
        for earlier in nodes:
            earlier.close()
        nodes[:] = [
            open_node(
                str(tmp_path / "state"),
                host=machine.side,
                plugin_path=(str(tmp_path / "bin"), "/usr/lib/cni"),
                neighbours=lambda name: (),
            )
        ]
        return nodes[0]

    yield reopen
    for node in nodes:
        node.close()


@pytest.fixture
def service(opened: Callable[[], Node]) -> Node:
    """The runtime's node."""
    return opened()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str, str], Path]:
    """Put an executable plugin into the plugin path; it passes the chain's result on."""

    def write(name: str, body: str) -> Path:
        file = tmp_path / "bin" / name
        file.write_text(f"#!/bin/sh\n{VERSION}\n{body}\n{PASS_ON}\n")
        file.chmod(0o755)
        return file

    return write


def bridge(tmp_path: Path, **more: Any) -> Json:
    """A bridge with addresses of both families, leased below the test's directory."""
    ipam = {
        "type": "host-local",
        "dataDir": str(tmp_path / "leases"),
        "ranges": [[{"subnet": "10.7.0.0/16"}], [{"subnet": "fd00:7::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": ipam, **more}


def conflist(*plugins: Json, version: str = "1.1.0") -> bytes:
    """A list of these plugins, called `net`."""
    return json.dumps({"cniVersion": version, "name": "net", "plugins": plugins}).encode()


def params(machine: Machine, container_id: str = "c1", **more: Any) -> AttachmentParams:
    """Parameters for a container that exists."""
    return AttachmentParams(
        container_id=container_id,
        **{"ifname": "eth0", "netns": machine.container(container_id).path, **more},
    )


def leases(tmp_path: Path) -> list[str]:
    """The leased addresses."""
    directory = tmp_path / "leases" / "net"
    names = os.listdir(directory) if directory.exists() else []
    return sorted(name for name in names if re.match(r"[0-9a-f]+[.:]", name))


def veths(machine: Machine) -> list[str]:
    """The host ends of the containers' interfaces."""
    links = json.loads(machine.host("ip", "-j", "link", "show", "type", "veth") or "[]")
    return [link["ifname"] for link in links]


def address(added: Any, family: int = 4) -> str:
    """The container's address."""
    ips = [ip["address"] for ip in json.loads(added.attachment.result)["ips"]]
    return str(next(ip for ip in ips if (":" in ip) == (family == 6)).split("/")[0])


def test_a_chain_of_built_in_plugins_connects_containers_and_leaves_nothing(
    machine: Machine, service: Node, tmp_path: Path
) -> None:
    """ADD, traffic, CHECK, replay, drift, DEL, DEL again."""
    service.networks.put(
        conflist(
            bridge(tmp_path),
            {"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}},
        )
    )
    first = service.add("net", params(machine, "c1"))
    second = service.add("net", params(machine, "c2"))
    wait_for(lambda: machine.pings(address(second), "c1"))
    wait_for(lambda: machine.pings(address(second, 6), "c1"))
    assert "500" == machine.inside("cat", "/proc/sys/net/core/somaxconn").strip()
    assert service.add("net", params(machine, "c1")).replayed
    service.check(first.attachment.key)
    machine.inside("ip", "address", "flush", "dev", "eth0")
    with pytest.raises(CniError) as caught:
        service.check(first.attachment.key)
    assert ("CHECK", "bridge", 0) == (
        caught.value.verb,
        caught.value.plugin_type,
        caught.value.plugin_index,
    )
    for _ in range(2):
        service.delete("net", params(machine, "c1"))
        service.delete("net", params(machine, "c2"))
    assert [] == veths(machine) + leases(tmp_path)
    machine.inside("sysctl", "-q", "-w", "net.core.somaxconn=4096")


def test_a_container_whose_namespace_is_gone_is_deleted_from_the_host(
    machine: Machine, service: Node, make_netns: Callable[..., Netns], tmp_path: Path
) -> None:
    """P6: links, addresses and rules on the host go, netns or not."""
    service.networks.put(conflist(bridge(tmp_path, ipMasq=True)))
    gone = make_netns("gone")
    service.add("net", AttachmentParams(container_id="c1", ifname="eth0", netns=gone.path))
    assert 2 == len(leases(tmp_path))
    netns.remove_named(gone.path)
    service.delete("net", AttachmentParams(container_id="c1", ifname="eth0"))
    assert [] == veths(machine) + leases(tmp_path)


def test_a_failing_plugin_at_the_end_unwinds_everything(
    machine: Machine, service: Node, script: Callable[..., Path], tmp_path: Path
) -> None:
    """The error is the plugin's own; nothing is left in the kernel, on disk, in the store."""
    script("fails", '[ $CNI_COMMAND = ADD ] && { echo \'{"code": 111, "msg": "no"}\'; exit 1; }')
    service.networks.put(conflist(bridge(tmp_path), {"type": "fails"}, version="1.0.0"))
    with pytest.raises(CniError, match="no") as caught:
        service.add("net", params(machine))
    assert (111, "fails", 1, "NONE") == (
        caught.value.wire_code,
        caught.value.plugin_type,
        caught.value.plugin_index,
        caught.value.residue,
    )
    assert [] == veths(machine) + leases(tmp_path)
    assert () == service.list().attachments


def test_a_namespace_that_is_none_is_refused_without_a_trace(
    machine: Machine, service: Node, tmp_path: Path
) -> None:
    """Code 8 for a plain file, a missing path, and the host itself."""
    service.networks.put(conflist(bridge(tmp_path)))
    file = tmp_path / "file"
    file.touch()
    for path in (str(file), "/run/netns/missing", machine.netns.path):
        with pytest.raises(CniError) as caught:
            service.add("net", params(machine, netns=path))
        assert 8 == caught.value.wire_code
        assert "NONE" == caught.value.residue
    assert [] == veths(machine) + leases(tmp_path)
    assert () == service.list().attachments


def test_executables_run_on_the_host_side(
    machine: Machine, service: Node, script: Callable[..., Path], tmp_path: Path
) -> None:
    """R3: in the host's namespace, whichever the service's threads are in."""
    script("where", f"readlink /proc/self/ns/net >> {tmp_path}/where")
    service.networks.put(conflist(bridge(tmp_path), {"type": "where"}, version="1.0.0"))
    service.add("net", params(machine))
    service.delete("net", params(machine))
    inode = machine.netns.identity[1]
    assert [f"net:[{inode}]"] * 2 == (tmp_path / "where").read_text().split()


@pytest.mark.parametrize("theirs", [{"bridge"}, {"tuning"}, {"bridge", "tuning"}])
@pytest.mark.go
def test_go_plugins_and_ours_stand_in_one_chain(
    machine: Machine, opened: Callable[[], Node], tmp_path: Path, theirs: set[str]
) -> None:
    """Theirs as binaries, ours as functions: one result, one CHECK, one clean end."""
    for name in theirs | ({"host-local"} if "bridge" in theirs else set()):
        (tmp_path / "bin" / name).symlink_to(f"/usr/lib/cni/{name}")
    service = opened()
    service.runtime.executors._preferred = frozenset(theirs)
    plugins = [bridge(tmp_path), {"type": "tuning", "sysctl": {"net.core.somaxconn": "600"}}]
    if "tuning" in theirs:
        plugins[1]["dataDir"] = str(tmp_path / "tuning")
    service.networks.put(conflist(*plugins, version="1.0.0"))
    added = [service.add("net", params(machine, name)) for name in ("c1", "c2")]
    kinds = ["exec" if plugin["type"] in theirs else "builtin" for plugin in plugins]
    assert kinds == [step.executor for step in added[0].steps]
    assert "1.0.0" == json.loads(added[0].attachment.result or b"")["cniVersion"]
    wait_for(lambda: machine.pings(address(added[1]), "c1"))
    assert "600" == machine.inside("cat", "/proc/sys/net/core/somaxconn").strip()
    for each in added:
        service.check(each.attachment.key)
    for each in added:
        service.delete("net", params(machine, each.attachment.container_id))
    assert [] == veths(machine) + leases(tmp_path)
    for name in ("c1", "c2"):
        machine.inside("sysctl", "-q", "-w", "net.core.somaxconn=4096", container_id=name)


@pytest.mark.go
def test_a_go_plugin_as_delegate_of_ours(
    machine: Machine, opened: Callable[[], Node], tmp_path: Path
) -> None:
    """Our bridge, their `static`: run through the delegate, with the whole configuration."""
    service = opened()
    ipam = {"type": "static", "addresses": [{"address": "10.7.0.9/16", "gateway": "10.7.0.1"}]}
    service.networks.put(conflist(bridge(tmp_path, ipam=ipam), version="1.0.0"))
    if service.runtime.executors.in_process.has("static"):
        service.runtime.executors._preferred = frozenset({"static"})
    added = service.add("net", params(machine))
    assert "10.7.0.9" == address(added)
    wait_for(lambda: machine.pings("10.7.0.9"))
    service.check(KEY)
    service.delete("net", params(machine))


@pytest.mark.parametrize("theirs", ["bridge", "portmap"])
@pytest.mark.go
def test_a_host_port_is_forwarded_by_one_and_bridged_by_the_other(
    machine: Machine, opened: Callable[[], Node], tmp_path: Path, theirs: str
) -> None:
    """Bridge of theirs with portmap of ours, and the reverse: TCP through the host port."""
    for name in {theirs, "host-local"}:
        (tmp_path / "bin" / name).symlink_to(f"/usr/lib/cni/{name}")
    service = opened()
    service.runtime.executors._preferred = frozenset({theirs, "host-local"})
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    service.networks.put(conflist(bridge(tmp_path), portmap, version="1.0.0"))
    mappings = msgspec.Raw(b'[{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]')
    given = params(machine, capability_args={"portMappings": mappings})
    service.add("net", given)
    if theirs != "portmap":  # whose CHECK looks for the rules of one family in the other's tables
        service.check(KEY)
    listener = machine.container().run(lambda: socket.create_server(("0.0.0.0", 80)))

    def connect() -> socket.socket:
        return machine.netns.run(lambda: socket.create_connection(("10.7.0.1", 8080), 5))

    with listener:
        with connect() as client, listener.accept()[0] as server:
            server.sendall(b"hello")
            assert b"hello" == client.recv(5)
        service.delete("net", given)
        with pytest.raises(OSError, match=r"refused|timed out"):
            connect()
    assert [] == veths(machine) + leases(tmp_path)
    if theirs == "portmap":
        machine.host("nft", "flush", "ruleset")  # its empty chains stay, as always


@pytest.mark.go
def test_an_executable_may_delegate_to_our_shim(
    machine: Machine,
    opened: Callable[[], Node],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bridge is theirs, the host-local it finds in the path ours: its call comes back to us."""
    service = opened()
    service.runtime.executors._preferred = frozenset({"bridge"})
    (tmp_path / "bin" / "bridge").symlink_to("/usr/lib/cni/bridge")
    shim = tmp_path / "bin" / "host-local"
    shim.write_text(f"#!{sys.executable} -I\n" + Path(shim_module.__file__).read_text())
    shim.chmod(0o755)
    monkeypatch.setenv("PYCNI_SHIM_SOCKET", str(tmp_path / "shim.sock"))
    endpoint = ShimEndpoint(
        tmp_path / "shim.sock",
        lambda call, netns_fd: skel.answer(
            call, execute=service.run_plugin, versions=service.plugin_versions, netns_fd=netns_fd
        ),
    )
    endpoint.start()
    service.networks.put(conflist(bridge(tmp_path), version="1.0.0"))
    added = service.add("net", params(machine), deadline=Deadline(20))
    assert ["exec"] == [step.executor for step in added.steps]
    wait_for(lambda: machine.pings(address(added)))
    assert ["10.7.0.2", "fd00:7::2"] == leases(tmp_path)
    service.check(KEY)
    service.delete("net", params(machine))
    assert [] == veths(machine) + leases(tmp_path)
    endpoint.stop(5)


def wait_for(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    """Wait until it holds."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def processes(*markers: str) -> list[int]:
    """The processes whose environment has every marker."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            if all(marker.encode() in environ for marker in markers):
                found.append(int(pid))
        except OSError:
            continue
    return found


def test_cancelling_an_add_kills_its_plugin_and_leaves_nothing(
    machine: Machine, service: Node, script: Callable[..., Path], tmp_path: Path
) -> None:
    """The caller is gone: the sleeping plugin and its child die, then the chain is deleted."""
    script("sleeps", f"[ $CNI_COMMAND = ADD ] && {{ touch {tmp_path}/asleep; sleep 100; }}")
    service.networks.put(conflist(bridge(tmp_path, ipMasq=True), {"type": "sleeps"}))
    deadline = Deadline(60)

    def cancel() -> None:
        wait_for((tmp_path / "asleep").exists)
        assert 2 == len(processes("CNI_CONTAINERID=c1", str(tmp_path)))
        assert State.ADDING is service.get(KEY).state
        assert 1 == len(veths(machine))
        deadline.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(TryAgain, match="ADD of plugin sleeps was cancelled") as caught:
        service.add("net", params(machine), deadline=deadline)
    thread.join()
    assert "NONE" == caught.value.residue
    wait_for(lambda: not processes("CNI_CONTAINERID=c1", str(tmp_path)))
    assert [] == veths(machine) + leases(tmp_path)
    assert () == service.list().attachments


CRASHING = """
import json, os, sys, threading, time
from pycni.runtime.attachments import AttachmentParams
from pycni.runtime.opening import open_node

state, bin_dir, config, netns, verb, marker = sys.argv[1:]
node = open_node(state, plugin_path=[bin_dir], neighbours=lambda name: ())
node.networks.put(config.encode())
params = AttachmentParams(container_id="c1", ifname="eth0", netns=netns)
def die():
    while not os.path.exists(marker):
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
threading.Thread(target=die).start()
node.add("net", params)
node.delete("net", params)
"""


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_a_node_killed_in_the_middle_is_repaired_by_the_next(
    machine: Machine,
    opened: Callable[[], Node],
    script: Callable[..., Path],
    tmp_path: Path,
    verb: str,
) -> None:
    """kill -9 mid-ADD and mid-DEL: the plugin it was running is waited for, then DEL runs."""
    marker, done = tmp_path / "marker", tmp_path / "done"
    script(
        "slow", f"if [ $CNI_COMMAND = {verb} ]; then touch {marker}; sleep 0.5; touch {done}; fi"
    )
    config = conflist(bridge(tmp_path, ipMasq=True), {"type": "slow"})
    command = (
        sys.executable,
        *("-c", CRASHING, str(tmp_path / "state"), str(tmp_path / "bin"), config.decode()),
        *(machine.container().path, verb, str(marker)),
    )
    run_in(machine.netns, *command, check=False)
    assert marker.exists()
    assert not done.exists()
    assert 1 == len(veths(machine))
    assert 2 == len(leases(tmp_path))
    service = opened()
    assert done.exists()
    assert {"ADD": State.ADDING, "DEL": State.DELETING}[verb] is service.get(KEY).state
    assert (KEY,) == service.recover().settled
    assert [] == veths(machine) + leases(tmp_path)
    assert () == service.list().attachments
    assert not service.add("net", params(machine)).replayed
    service.delete("net", params(machine))


def test_after_a_reboot_addresses_are_free_again(
    machine: Machine, opened: Callable[[], Node], tmp_path: Path
) -> None:
    """Leases survive a reboot on disk; the containers that held them do not."""
    service = opened()
    service.networks.put(conflist(bridge(tmp_path)))
    service.add("net", params(machine))
    machine.host("ip", "link", "delete", veths(machine)[0])  # the kernel forgets, the disk does not
    assert 2 == len(leases(tmp_path))
    service = opened()
    service.boot_id = "another boot"
    assert (KEY,) == service.recover().settled
    assert [] == leases(tmp_path)


def test_concurrent_calls_share_nothing_but_the_bridge(
    machine: Machine, service: Node, tmp_path: Path
) -> None:
    """P11, R4, R5: sixteen containers at once, garbage collected in between."""
    service.networks.put(conflist(bridge(tmp_path, ipMasq=True)))
    names = [f"c{number}" for number in range(16)]
    given = [params(machine, name) for name in names]
    results: dict[str, str] = {}
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            results[names[number]] = address(service.add("net", given[number]))
            if number % 4 == 0:
                service.gc()
            service.check(AttachmentKey("net", names[number], "eth0"))
        except BaseException as exc:  # noqa: BLE001 - looked at below
            errors.append(exc)

    run_all(work, len(names))
    assert [] == errors
    assert 16 == len(set(results.values())) == len(veths(machine))
    assert 32 == len(leases(tmp_path))
    wait_for(lambda: machine.pings(results["c15"], "c0"))
    run_all(lambda number: service.delete("net", given[number]), len(names))
    assert [] == veths(machine) + leases(tmp_path)


def run_all(work: Callable[[int], object], count: int) -> None:
    """Call `work` with each number at once."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_gc_removes_what_no_valid_attachment_owns(
    machine: Machine, service: Node, tmp_path: Path
) -> None:
    """Also what the store has forgotten: plugins find it by its owner."""
    service.networks.put(conflist(bridge(tmp_path, ipMasq=True)))
    for name in ("c1", "c2", "c3"):
        service.add("net", params(machine, name))
    service.store.delete_attachment(KEY)
    keep = request.Attachment(ContainerId("c3"), IfName("eth0"))
    [collected] = service.gc([GcTarget(network="net", valid=frozenset({keep}))])
    assert ["c2"] == [key.container_id for key in collected.deleted]
    assert 1 == len(veths(machine))
    assert 2 == len(leases(tmp_path))
    service.check(AttachmentKey("net", "c3", "eth0"))
    service.delete("net", params(machine, "c3"))


def test_no_descriptor_and_no_thread_is_left(
    machine: Machine, service: Node, script: Callable[..., Path], tmp_path: Path
) -> None:
    """Twenty rounds, a third of them failing."""
    script("third", f"[ $CNI_COMMAND = ADD ] && [ -e {tmp_path}/fail ] && exit 1")
    service.networks.put(conflist(bridge(tmp_path), {"type": "third"}))

    def once(number: int) -> None:
        (tmp_path / "fail").touch() if number % 3 == 0 else (tmp_path / "fail").unlink(True)
        try:
            service.add("net", params(machine))
        except CniError:
            assert number % 3 == 0
        service.delete("net", params(machine))

    def held() -> tuple[int, int]:
        gc.collect()  # what earlier tests have dropped is not ours to count
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    once(0)
    before = held()
    for number in range(20):
        once(number)
    assert before == held()


def test_a_forced_namespace_descriptor_works_where_the_path_does_not(
    machine: Machine, service: Node, tmp_path: Path
) -> None:
    """A caller in another mount namespace hands over the namespace itself."""
    service.networks.put(conflist(bridge(tmp_path)))
    handle = Netns.open(machine.container().path)
    given = params(machine, netns="/elsewhere/netns")
    with handle:
        service.add("net", msgspec.structs.replace(given, netns_fd=handle.fd))
        assert machine.link("eth0", "c1") is not None
        service.delete("net", msgspec.structs.replace(given, netns_fd=handle.fd))
    assert [] == veths(machine) + leases(tmp_path)
