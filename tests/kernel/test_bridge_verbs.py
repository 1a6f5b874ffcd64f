# SPDX-License-Identifier: Apache-2.0
"""bridge: failing ADDs leave nothing, DEL always ends, CHECK tells the truth, GC and STATUS."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pycni.errors import (
    CniError,
    InvalidConfig,
    InvalidNetns,
    KernelError,
    NotAvailable,
    TryAgain,
    Unsupported,
)
from pycni.kernel import nft
from pycni.kernel.types import Link
from pycni.model.deadline import Deadline
from pycni.net import bridges, masquerade
from tests.harness import Json, Node
from tests.kernel.test_bridge import DBNET, EDGE, FORCED, dual, l3


def host_ends(node: Node) -> list[str]:
    """The veth links of the host."""
    listed = node.host("ip", "-o", "link", "show", "type", "veth")
    return [line.split(": ")[1].partition("@")[0] for line in listed.splitlines()]


def masqueraded(node: Node) -> set[str]:
    """The tags of the owners somebody is masqueraded for."""
    return set(re.findall(r'comment "(cni:[^"]+)"', node.host("nft", "list", "ruleset")))


def failing(config: Json, *verbs: str) -> Json:
    """The configuration with an IPAM plugin that fails these verbs."""
    return {**config, "ipam": {**config["ipam"], "fail": verbs}}


# -- ADD that fails ------------------------------------------------------------------------------


def test_a_failing_ipam_plugin_leaves_nothing(node: Node) -> None:
    """P#29: nothing stays, not even the bridge, and the lease is released; a retry works."""
    before = node.world()
    with pytest.raises(CniError, match="fixed: ADD fails as configured"):
        node.add(failing(dual(EDGE, 2), "ADD"))
    assert [] == before.diff(node.world())
    assert ["ADD c1", "DEL c1"] == node.ipam.asked
    node.add(dual(EDGE, 2))
    node.delete(dual(EDGE, 2))


def test_a_failing_release_is_noted_on_the_error(node: Node) -> None:
    """The caller reads the cause first, and what could not be undone after it."""
    with pytest.raises(CniError) as caught:
        node.add(failing(dual(EDGE, 2), "ADD", "DEL"))
    assert "fixed: ADD fails as configured" == caught.value.msg
    assert "undo failed: fixed: DEL fails as configured" in caught.value.details
    assert [] == host_ends(node)


@pytest.mark.parametrize("bridge", ["new", "existing", "in use"])
def test_a_late_failure_takes_everything_back(
    node: Node, bridge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 28: veth, gateway address, bridge and lease; but not what others had or rely on."""
    if bridge == "existing":
        node.host("ip", "link", "add", "edge0", "up", "type", "bridge")
    elif bridge == "in use":
        node.add(dual(EDGE, 3), "c2")
    node.side.sysctl.write_all({"net/ipv4/ip_forward": 1, "net/ipv6/conf/all/forwarding": 1})
    before = node.world()

    def fail(*_: object, **__: object) -> None:
        raise CniError("no masquerading today")

    with monkeypatch.context() as patched:
        patched.setattr(masquerade, "ensure", fail)
        with pytest.raises(CniError, match="no masquerading today"):
            node.add(dual(EDGE, 2))
    assert [] == before.diff(node.world())
    assert node.link("eth0", "c1") is None
    assert ["ADD c1", "DEL c1"] == node.ipam.asked[-2:]
    if bridge == "in use":
        assert node.pings("10.1.2.1", "c2")
        node.delete(dual(EDGE, 3), "c2")


def test_a_failure_gives_replaced_addresses_and_promiscuity_back(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """forceAddress and promiscMode changed a bridge that was there; the failure undoes both."""
    node.host("ip", "link", "add", "db0", "up", "type", "bridge")
    node.host("ip", "address", "add", "10.9.9.9/24", "brd", "+", "dev", "db0")
    node.side.sysctl.write_all({"net/ipv4/ip_forward": 1})
    before = node.world()

    def fail(*_: object, **__: object) -> None:
        raise CniError("port stays down")

    monkeypatch.setattr(bridges, "wait_for_port", fail)
    with pytest.raises(CniError, match="port stays down"):
        node.add(l3({**FORCED, "promiscMode": True}, "10.1.2.2/24"))
    assert [] == before.diff(node.world())


def test_a_gateway_conflict_releases_the_lease_and_removes_eth0(node: Node) -> None:
    """Case 28: where the reference leaves eth0 and no retry ever succeeds."""
    node.host("ip", "link", "add", "edge0", "up", "type", "bridge")
    node.host("ip", "address", "add", "10.9.9.9/24", "dev", "edge0")
    before = node.world()
    with pytest.raises(CniError, match="already has an IP address different from"):
        node.add(dual(EDGE, 2))
    assert [] == before.diff(node.world())
    assert ["ADD c1", "DEL c1"] == node.ipam.asked


def test_a_bridge_taken_away_before_the_port_is_there_is_made_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that had made it failed; whoever had found it meanwhile must not fail too."""
    ensure = bridges.ensure
    made: list[Link] = []

    def ensure_and_lose(*args: Any, **kwargs: Any) -> Link:
        made.append(ensure(*args, **kwargs))
        if len(made) <= losses:
            node.host("ip", "link", "delete", "db0")
        return made[-1]

    monkeypatch.setattr(bridges, "ensure", ensure_and_lose)
    losses = 2
    result = node.add(DBNET)
    assert 3 == len(made)
    node.check(DBNET, result)
    node.delete(DBNET)
    losses = 99
    with pytest.raises(KernelError):
        node.add(DBNET)
    assert [] == host_ends(node)


def test_a_cancelled_add_leaves_nothing(node: Node) -> None:
    """The caller gave up in the middle: code 11, and nobody is left with an attachment."""
    before = node.world()
    deadline = Deadline(30)
    node.ipam.meanwhile = deadline.cancel
    with pytest.raises(TryAgain, match="cancelled"):
        node.add(l3(DBNET, "10.1.2.2/24"), deadline=deadline)
    assert ["ADD c1", "DEL c1"] == node.ipam.asked
    assert [] == before.diff(node.world())


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_wrong_namespace_costs_nothing(node: Node, tmp_path: Path, kind: str) -> None:
    """A1: code 8 before the bridge is made; the reference leaves it."""
    path = tmp_path / "netns"
    if kind == "file":
        path.touch()
    with pytest.raises(InvalidNetns):
        node.add(DBNET, netns=str(path))
    assert node.link("db0") is None


def test_the_plugin_s_own_namespace_is_refused_before_anything_is_made(node: Node) -> None:
    """E9: the reference changes the host first and then complains (code 8)."""
    with pytest.raises(InvalidNetns, match="should not be the same"):
        node.add(DBNET, netns=node.netns.path)
    assert node.link("db0") is None


def test_a_second_add_is_refused_and_the_first_stays(node: Node) -> None:
    """SPEC P4: an interface of that name exists; its lease is not touched."""
    result = node.add(dual(EDGE, 2))
    host_end = result["interfaces"][1]["name"]
    message = rf'^container veth name \("eth0"\) peer provided \("{host_end}"\) already exists'
    with pytest.raises(CniError, match=message):
        node.add(dual(EDGE, 3))
    assert ["ADD c1"] == node.ipam.asked
    node.check(dual(EDGE, 2), result)
    node.delete(dual(EDGE, 2))


def test_a_disabled_interface_is_no_leftover(node: Node) -> None:
    """SPEC P4 also where being down is what the configuration wants."""
    config = {**DBNET, "disableContainerInterface": True}
    node.add(config)
    with pytest.raises(CniError, match="already exists"):
        node.add(config)
    node.delete(config)


# -- DEL -----------------------------------------------------------------------------------------


def gone(node: Node, tmp_path: Path) -> str:
    """The path of a namespace whose container, and all in it, is gone."""
    node.forget_container("c1")
    return str(tmp_path / "gone")


def lost_mount(node: Node, tmp_path: Path) -> str:
    """A path where the mount was lost and a plain file is left (#69)."""
    path = tmp_path / "lost"
    path.touch()
    return str(path)


def renamed(node: Node, tmp_path: Path) -> str:
    """The right namespace, in which somebody renamed the interface."""
    node.inside("ip", "link", "set", "eth0", "down")
    node.inside("ip", "link", "set", "eth0", "name", "eth7")
    return node.container().path


@pytest.mark.parametrize(
    "find_path",
    [
        lambda node, tmp_path: node.container().path,
        lambda node, tmp_path: "",
        lambda node, tmp_path: str(tmp_path / "missing"),
        gone,
        lost_mount,
        renamed,
    ],
    ids=["there", "empty", "missing", "gone", "lost mount", "renamed"],
)
@pytest.mark.parametrize("remembered", [False, True], ids=["no prevResult", "prevResult"])
def test_delete_needs_no_namespace(
    node: Node, tmp_path: Path, find_path: Callable[[Node, Path], str], remembered: bool
) -> None:
    """P#810, P#69, case 27: address, host end and masquerading go, whatever CNI_NETNS says."""
    config = dual(EDGE, 2)
    result = node.add(config)
    path = find_path(node, tmp_path)
    if remembered:
        config["prevResult"] = result
    node.delete(config, netns=path)
    assert [] == host_ends(node)
    assert not masqueraded(node)
    assert ["ADD c1", "DEL c1"] == node.ipam.asked
    node.delete(config, netns=path)


def test_delete_of_what_never_was_is_success(node: Node) -> None:
    """SPEC P6: the IPAM plugin is told all the same."""
    before = node.world()
    node.delete(dual(EDGE, 2))
    assert ["DEL c1"] == node.ipam.asked
    assert [] == before.diff(node.world())


def test_delete_goes_on_past_a_failing_ipam_plugin(node: Node) -> None:
    """Every step runs; the failure is reported as it is."""
    node.add(dual(EDGE, 2))
    with pytest.raises(CniError, match=r"^fixed: DEL fails as configured") as caught:
        node.delete(failing(dual(EDGE, 2), "DEL"))
    assert "" == caught.value.details
    assert [] == host_ends(node)
    assert not masqueraded(node)
    node.delete(dual(EDGE, 2))


def test_delete_reports_every_failure(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two failures are one error whose details list both."""
    node.add(dual(EDGE, 2))

    def fail(*_: object) -> None:
        raise CniError("no nftables today")

    with monkeypatch.context() as patched:
        patched.setattr(masquerade, "remove", fail)
        with pytest.raises(CniError, match=r"^delete eth0 of c1: 2 steps failed") as caught:
            node.delete(failing(dual(EDGE, 2), "DEL"))
    assert "no nftables today; fixed: DEL fails as configured" == caught.value.details
    assert [] == host_ends(node)
    node.delete(dual(EDGE, 2))


def test_delete_keeps_the_bridge_its_address_and_its_other_ports(node: Node) -> None:
    """The bridge outlives its containers, so that the next ADD finds the same gateway."""
    first = node.add(dual(EDGE, 2), "c1")
    node.add(dual(EDGE, 3), "c2")
    node.delete(dual(EDGE, 2), "c1")
    assert node.pings("10.1.2.3")
    node.delete(dual(EDGE, 3), "c2")
    assert ["10.1.2.1/24", "2001:db8:42::1/64"] == node.addresses("edge0")
    again = node.add(dual(EDGE, 2), "c1")
    assert first["interfaces"][0] == again["interfaces"][0]
    node.delete(dual(EDGE, 2), "c1")


def test_delete_leaves_a_stranger_in_a_recycled_namespace_alone(node: Node) -> None:
    """#714: CNI_NETNS went through a process id that is another container's by now."""
    node.add(dual(EDGE, 2), "c1")
    result = node.add(dual(EDGE, 3), "c2")
    stranger = node.container("c2").path
    for _ in range(2):
        node.delete(dual(EDGE, 2), "c1", netns=stranger)
    node.check(dual(EDGE, 3), result, "c2")
    node.delete(dual(EDGE, 3), "c2")


def make_untagged_pair(node: Node, bridge: str) -> None:
    """What the reference plugin makes: a random name, no alias."""
    path = node.container().path
    node.host("ip", "link", "add", bridge, "up", "type", "bridge")
    command = ["ip", "link", "add", "veth00000001", "master", bridge, "up", "type", "veth"]
    node.host(*command, "peer", "eth0", "netns", path)
    node.inside("ip", "link", "set", "eth0", "up")


def test_delete_removes_what_the_reference_plugin_made(node: Node) -> None:
    """A node can be switched over with its containers running."""
    make_untagged_pair(node, "db0")
    node.delete(DBNET)
    assert [] == host_ends(node)


def test_delete_leaves_other_untagged_pairs_alone(node: Node) -> None:
    """A pair on another bridge was made by, or for, somebody else."""
    node.host("ip", "link", "add", "db0", "type", "bridge")
    make_untagged_pair(node, "other0")
    node.delete(DBNET)
    assert ["veth00000001"] == host_ends(node)
    node.host("ip", "link", "delete", "veth00000001")


# -- CHECK ---------------------------------------------------------------------------------------


def test_check_of_a_layer_2_network(node: Node) -> None:
    """E7: without ipam there is no IPAM plugin to ask; the reference always fails here."""
    result = node.add(DBNET)
    node.check(DBNET, result)
    node.delete(DBNET)


def test_check_accepts_what_the_reference_plugin_made(node: Node) -> None:
    """CHECK follows the pair's peers, not only our tag."""
    make_untagged_pair(node, "db0")
    link = node.link("eth0", "c1")
    assert link is not None
    made = {"name": "eth0", "mac": link["address"], "sandbox": node.container().path}
    node.check(DBNET, {"cniVersion": "1.1.0", "interfaces": [{"name": "db0"}, made]})
    node.delete(DBNET)


CHANGES_OF_LATER_PLUGINS = {
    "tuning mtu": ["ip link set eth0 mtu 1280"],
    "tuning mac": ["ip link set eth0 address 02:00:00:00:00:77"],
    "sbr": [
        "ip route flush dev eth0",
        "ip route add 10.1.2.0/24 dev eth0 table 100",
        "ip route add default via 10.1.2.1 dev eth0 table 100",
        "ip -6 route add default via 2001:db8:42::1 dev eth0 table 100",
    ],
    "another default gateway": [
        "ip route replace default via 10.1.2.77 dev eth0",
        "ip -6 route replace default via 2001:db8:42::77 dev eth0",
    ],
}


@pytest.mark.parametrize("change", CHANGES_OF_LATER_PLUGINS)
def test_check_tolerates_later_plugins(node: Node, change: str) -> None:
    """SPEC P7b, P#886: what tuning, sbr and the like do is not drift."""
    config = dual({**EDGE, "isDefaultGateway": True}, 2)
    result = node.add(config)
    for command in CHANGES_OF_LATER_PLUGINS[change]:
        node.inside(*command.split())
    if change == "tuning mac":  # which says so in the result
        result["interfaces"][2]["mac"] = "02:00:00:00:00:77"
    if change == "sbr":
        node.inside("ip", "-6", "route", "flush", "table", "main", "dev", "eth0")
    result["interfaces"].append({"name": "bwp0123456789a"})
    result["ips"].append({"address": "192.0.2.9/24", "interface": 3})
    node.check(config, result)
    node.delete(config)


DRIFTS = {
    "container end gone": (None, "ip link delete eth0", "interface eth0 is missing in "),
    "container end down": (None, "ip link set eth0 down", "interface eth0 is down"),
    "other MAC": (None, "ip link set eth0 address 02:00:00:00:00:77", "interface eth0 has MAC"),
    "address lost": (None, "ip address del 10.1.2.2/24 dev eth0", r"address 10\.1\.2\.2/24"),
    "address 6 lost": (None, "ip address del 2001:db8:42::2/64 dev eth0", "2001:db8:42::2/64"),
    "route lost": (None, "ip route del default", r"the route to 0\.0\.0\.0/0 via 10\.1\.2\.1"),
    "host end down": ("{port}", "ip link set {port} down", "is down"),
    "not a port": ("{port}", "ip link set {port} nomaster", "is not a port of bridge edge0"),
    "bridge down": ("edge0", "ip link set edge0 down", "bridge edge0 is down"),
    "bridge gone": ("edge0", "ip link delete edge0", "bridge edge0 is missing"),
    "bridge MAC": ("edge0", "ip link set edge0 address 02:00:00:00:00:78", "bridge edge0 has MAC"),
    "gateway lost": ("edge0", "ip address del 10.1.2.1/24 dev edge0", r"address 10\.1\.2\.1/24"),
    "rules lost": ("nft", "nft flush ruleset", "masquerading is"),
}


@pytest.mark.parametrize("drift", DRIFTS)
def test_check_fails_on_drift(node: Node, drift: str) -> None:
    """SPEC P7d, P7e: each part of the path that is gone or changed is named."""
    config = dual({**EDGE, "isDefaultGateway": True}, 2)
    result = node.add(config)
    where, command, message = DRIFTS[drift]
    run: Callable[..., Any] = node.inside if where is None else node.host
    run(*command.format(port=result["interfaces"][1]["name"]).split())
    with pytest.raises(CniError, match=message):
        node.check(config, result)
    node.delete(config)


def test_check_fails_when_the_pair_is_another(node: Node) -> None:
    """A pair of the same name that leads elsewhere is not the attachment."""
    result = node.add(DBNET)
    node.inside("ip", "link", "set", "eth0", "name", "gone0")
    node.inside(*"ip link add eth0 address 02:00:00:00:00:01 type veth peer other0".split())
    node.inside("ip", "link", "set", "eth0", "up")
    result["interfaces"][2]["mac"] = "02:00:00:00:00:01"
    with pytest.raises(CniError, match="the host end of eth0 is missing"):
        node.check(DBNET, result)
    node.inside("ip", "link", "delete", "eth0")
    node.inside(*"ip link add eth0 type ifb".split())
    with pytest.raises(CniError, match="interface eth0 is not of type veth but ifb"):
        node.check(DBNET, result)
    node.inside("ip", "link", "delete", "eth0")
    node.delete(DBNET)


def test_check_passes_the_ipam_plugin_s_verdict_on(node: Node) -> None:
    """SPEC P7f."""
    result = node.add(dual(EDGE, 2))
    with pytest.raises(CniError, match=r"^fixed: CHECK fails as configured"):
        node.check(failing(dual(EDGE, 2), "CHECK"), result)
    node.delete(dual(EDGE, 2))


def test_check_needs_the_result(node: Node) -> None:
    """SPEC P7a: expectations come from prevResult."""
    node.add(DBNET)
    with pytest.raises(InvalidConfig, match=r"^prevResult: missing"):
        node.call("CHECK", DBNET, "c1")
    with pytest.raises(InvalidConfig, match=r"^prevResult.interfaces: eth0 is not among them"):
        node.check(DBNET, {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0"}]})
    node.delete(DBNET)


# -- GC ------------------------------------------------------------------------------------------


def test_gc_removes_what_has_no_owner_any_more(node: Node) -> None:
    """P#1047, P#1013: pairs, masquerading and, through the IPAM plugin, addresses."""
    other = {**EDGE, "name": "other", "bridge": "other0"}
    for number, container_id in enumerate(("c1", "c2", "c3"), 2):
        node.add(dual(EDGE, number), container_id)
    kept = node.add(dual(EDGE, 9), "c3", ifname="net1")
    foreign = node.add(l3(other, "10.7.7.2/24"), "c1", ifname="eth7")
    node.gc(EDGE, [("c2", "eth0"), ("c3", "net1"), ("never", "eth0")])
    assert node.link("eth0", "c1") is None
    assert node.link("eth0", "c3") is None
    assert node.pings("10.1.2.3")
    node.check(dual(EDGE, 9), kept, "c3", ifname="net1")
    node.check(l3(other, "10.7.7.2/24"), foreign, "c1", ifname="eth7")
    assert masqueraded(node) == {
        node.owner(EDGE, "c2").tag,
        node.owner(EDGE, "c3", "net1").tag,
        node.owner(other, "c1", "eth7").tag,
    }
    node.gc(dual(EDGE, 2), [])
    node.gc(other, [])
    assert "GC" == node.ipam.asked[-1]
    assert [] == host_ends(node)
    assert not masqueraded(node)


def test_gc_goes_on_past_failures(node: Node) -> None:
    """SPEC P9b: what can be removed is removed, and the failure reported."""
    node.add(dual(EDGE, 2))
    with pytest.raises(CniError, match=r"^fixed: GC fails as configured"):
        node.gc(failing(dual(EDGE, 2), "GC"), [])
    assert [] == host_ends(node)


# -- STATUS --------------------------------------------------------------------------------------


def test_status_changes_nothing_and_asks_the_ipam_plugin(node: Node) -> None:
    """SPEC P8: success when ADD can be served."""
    before = node.world()
    node.status(dual(EDGE, 2))
    node.status(DBNET)
    assert ["STATUS"] == node.ipam.asked
    assert [] == before.diff(node.world())


def test_status_passes_the_ipam_plugin_s_verdict_on(node: Node) -> None:
    """SPEC P8c."""
    with pytest.raises(CniError, match=r"^fixed: STATUS fails as configured"):
        node.status(failing(dual(EDGE, 2), "STATUS"))


def test_status_is_50_when_another_link_has_the_bridge_s_name(node: Node) -> None:
    """ADD would fail."""
    node.host("ip", "link", "add", "db0", "type", "ifb")
    with pytest.raises(NotAvailable, match=r'^"db0" already exists but is not a bridge'):
        node.status(DBNET)
    node.host("ip", "link", "delete", "db0")


def test_status_is_50_without_libnftables(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ipMasq needs it; the hint names the package."""
    monkeypatch.setattr(nft, "SONAME", "libnftables.so.0")
    nft._library.cache_clear()
    with pytest.raises(NotAvailable, match="libnftables") as caught:
        node.status(dual(EDGE, 2))
    assert "install the package" in caught.value.details
    node.status(dual({**EDGE, "ipMasq": False}, 2))
    nft._library.cache_clear()


def test_status_is_50_when_the_kernel_cannot_make_the_links(node: Node) -> None:
    """Asked without making any."""
    before = node.world()
    bridges.expect_kinds(node.side.links, "bridge", "veth")
    with pytest.raises(Unsupported, match=r"^make a flying-bridge"):
        bridges.expect_kinds(node.side.links, "bridge", "flying-bridge")
    assert [] == before.diff(node.world())
