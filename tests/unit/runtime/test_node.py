# SPDX-License-Identifier: Apache-2.0
"""Node: what it remembers, when it repeats, whom it lets wait, and what it owes."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pycni.errors import (
    CniError,
    InvalidConfig,
    InvalidEnvironment,
    InvalidNetns,
    IOFailure,
    TryAgain,
)
from pycni.model import request
from pycni.model.deadline import Deadline
from pycni.model.names import ContainerId, IfName
from pycni.model.request import Request, Verb
from pycni.runtime.attachments import AttachmentKey, State
from pycni.runtime.errors import (
    AttachmentConflict,
    AttachmentNotFound,
    ChainFailed,
    LockTimeout,
    NetworkNotFound,
    Overloaded,
    PluginNotFound,
)
from pycni.runtime.events import Event
from pycni.runtime.node import Node
from pycni.runtime.outcomes import GcTarget, Join, Limits
from pycni.runtime.store import AttachmentFilter
from tests.unit.runtime.fakes import Gate, Lab, conflist, network, params

KEY = AttachmentKey("net", "c1", "eth0")


@pytest.fixture
def lab() -> Lab:
    """Fake plugins a, b and c."""
    return Lab()


@pytest.fixture
def node(lab: Lab) -> Iterator[Node]:
    """A node that has the network `net` of a and b."""
    node = lab.node()
    node.networks.put(conflist("a", "b"))
    yield node
    node.close()


def state(node: Node, key: AttachmentKey = KEY) -> State | None:
    """Where the attachment stands."""
    found = node.store.get_attachment(key)
    return None if found is None else found.state


def valid(*container_ids: str) -> frozenset[request.Attachment]:
    """Valid attachments."""
    return frozenset(
        request.Attachment(ContainerId(name), IfName("eth0")) for name in container_ids
    )


def events(node: Node, cursor: str) -> list[Event]:
    """What happened since."""
    watch = node.events.watch(cursor)
    return [event for event in iter(lambda: watch.get(0), None) if event]


# -- add -------------------------------------------------------------------------------------------


def test_an_attachment_is_remembered_with_all_that_made_it(node: Node, tmp_path: Path) -> None:
    """R16, C16: configuration, parameters, result."""
    netns = tmp_path / "netns"
    netns.touch()
    added = node.add(
        "net",
        params(
            netns=str(netns),
            cni_args=(("A", "1"),),
            capability_args={"x": msgspec.Raw(b"1")},
            labels={"app": "db"},
        ),
    )
    found = node.get(KEY)
    assert added.attachment == found
    assert not added.replayed
    assert ["a", "b"] == [step.plugin_type for step in added.steps]
    assert State.READY == found.state
    assert conflist("a", "b") == found.config
    assert node.networks.get("net").etag == found.network_etag
    assert (("A", "1"),) == found.cni_args
    assert {"app": "db"} == found.labels
    assert "boot-1" == found.boot_id
    assert found.netns_id
    assert ["a", "b"] == [i["name"] for i in json.loads(found.result or b"")["interfaces"]]


def test_the_intent_is_written_before_a_plugin_acts(lab: Lab, node: Node) -> None:
    """A crash in between leaves a trace to follow."""
    seen: list[State | None] = []
    lab.a.before = lambda call: seen.append(state(node))
    node.add("net", params())
    node.delete("net", params())
    assert [State.ADDING, State.DELETING] == seen


def test_the_same_add_again_is_answered_from_memory(lab: Lab, node: Node) -> None:
    """Idempotency at the service: no plugin runs."""
    first = node.add("net", params(capability_args={"x": msgspec.Raw(b'{"a": 1}')}))
    ran = list(lab.log)
    again = node.add("net", params(capability_args={"x": msgspec.Raw(b'{"a":1}')}))
    assert again.replayed
    assert first.attachment == again.attachment
    assert ran == lab.log


def test_the_same_add_by_name_is_the_same_after_the_network_was_edited(node: Node) -> None:
    """The caller asks for the same thing; C16 forbids changing it underneath."""
    node.add("net", params())
    node.networks.put(conflist("c"))
    assert node.add("net", params()).replayed
    node.networks.delete("net", force=True)
    assert node.add("net", params()).replayed


@pytest.mark.parametrize(
    ("given", "difference"),
    [
        ({"netns": "/other"}, "netns"),
        ({"cni_args": (("A", "1"),)}, "cni_args"),
        ({"capability_args": {"x": msgspec.Raw(b"1")}}, "capability_args"),
        ({"labels": {"app": "web"}}, "labels"),
    ],
)
def test_another_add_of_an_existing_attachment_is_refused(
    lab: Lab, node: Node, given: dict[str, Any], difference: str
) -> None:
    """R7; the error names what differs."""
    node.add("net", params(netns="/one"))
    ran = list(lab.log)
    with pytest.raises(AttachmentConflict, match=f"different: .*{difference}") as caught:
        node.add("net", params(**{"netns": "/one", **given}))
    assert "NONE" == caught.value.residue
    assert ran == lab.log
    assert State.READY == state(node)


def test_an_inline_add_is_the_same_if_its_configuration_is(node: Node) -> None:
    """By name or inline, the bytes decide."""
    node.add(network("a", "b"), params())
    assert node.add(network("a", "b"), params()).replayed
    with pytest.raises(AttachmentConflict, match="network configuration"):
        node.add(network("a"), params())


def test_another_namespace_at_the_same_path_is_another_add(node: Node, tmp_path: Path) -> None:
    """A replay would say that the new one has the interface."""
    netns = tmp_path / "netns"
    netns.touch()
    node.add("net", params(netns=str(netns)))
    (tmp_path / "other").touch()
    (tmp_path / "other").rename(netns)
    with pytest.raises(AttachmentConflict, match="netns"):
        node.add("net", params(netns=str(netns)))


def test_the_same_namespace_by_another_path_is_the_same_add(node: Node, tmp_path: Path) -> None:
    """/proc/PID/ns/net and a bind mount of it are one namespace."""
    netns = tmp_path / "netns"
    netns.touch()
    (tmp_path / "alias").symlink_to(netns)
    node.add("net", params(netns=str(netns)))
    assert node.add("net", params(netns=str(tmp_path / "alias"))).replayed


def test_replace_deletes_and_adds_anew(lab: Lab, node: Node) -> None:
    """R7: ADD, DEL, ADD."""
    node.add("net", params())
    added = node.add("net", params(labels={"app": "db"}), replace=True)
    assert not added.replayed
    assert ["ADD a", "ADD b", "DEL b", "DEL a", "ADD a", "ADD b"] == lab.log
    assert {"app": "db"} == node.get(KEY).labels


def test_validate_only_touches_nothing(lab: Lab, node: Node) -> None:
    """No plugin, no memory."""
    node.add("net", params(), validate_only=True)
    with pytest.raises(PluginNotFound):
        node.add(network("nonesuch"), params(), validate_only=True)
    assert [] == lab.log
    assert state(node) is None


def test_a_failed_add_that_was_undone_leaves_no_attachment(lab: Lab, node: Node) -> None:
    """Nothing is owed."""
    lab.b.failures[Verb.ADD] = TryAgain("busy")
    with pytest.raises(TryAgain) as caught:
        node.add("net", params())
    assert "NONE" == caught.value.residue
    assert ["ADD a", "ADD b", "DEL b", "DEL a"] == lab.log
    assert state(node) is None


def test_a_failed_add_that_was_not_undone_stays_as_a_debt(lab: Lab, node: Node) -> None:
    """FAILED keeps the duty to delete, and why."""
    lab.b.failures |= {Verb.ADD: TryAgain("busy"), Verb.DEL: CniError("stuck")}
    with pytest.raises(TryAgain):
        node.add("net", params())
    found = node.get(KEY)
    assert State.FAILED == found.state
    assert found.error is not None
    assert (11, "busy", "ADD", "b", 1) == (
        found.error.code,
        found.error.msg,
        found.error.verb,
        found.error.plugin_type,
        found.error.plugin_index,
    )
    assert "stuck" in found.error.details


def test_the_next_add_pays_the_debt_first(lab: Lab, node: Node) -> None:
    """R7: no second ADD without a DEL."""
    lab.b.failures[Verb.ADD] = TryAgain("busy")
    with pytest.raises(TryAgain):
        node.add("net", params(), cleanup_on_failure=False)
    assert State.FAILED == state(node)
    lab.b.failures.clear()
    lab.log.clear()
    assert not node.add("net", params()).replayed
    assert ["DEL b", "DEL a", "ADD a", "ADD b"] == lab.log


def test_a_debt_that_cannot_be_paid_refuses_the_next_add(lab: Lab, node: Node) -> None:
    """It says what it was doing."""
    lab.b.failures |= {Verb.ADD: TryAgain("busy"), Verb.DEL: CniError("stuck")}
    for _ in range(2):
        with pytest.raises(CniError) as caught:
            node.add("net", params())
    assert "while deleting the FAILED attachment net/c1/eth0" in caught.value.details
    assert State.FAILED == state(node)


@pytest.mark.parametrize(
    ("what", "given", "error"),
    [
        ("nonesuch", {}, NetworkNotFound),
        ("../net", {}, InvalidConfig),
        ("net", {"container_id": "a/b"}, InvalidEnvironment),
        ("net", {"ifname": "0123456789abcdef"}, InvalidEnvironment),
    ],
)
def test_a_users_fault_leaves_no_trace(
    lab: Lab, node: Node, what: str, given: dict[str, Any], error: type[CniError]
) -> None:
    """Neither in the kernel nor in the store."""
    with pytest.raises(error):
        node.add(what, params(**given))
    assert [] == lab.log
    assert () == node.list().attachments


def test_an_add_that_cannot_be_remembered_is_undone(
    lab: Lab, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk must not leave a container that nobody will delete."""
    put = node.store.put_attachment

    def fail_when_ready(attachment: Any) -> None:
        if attachment.state is State.READY:
            raise IOFailure("disk full")
        put(attachment)

    monkeypatch.setattr(node.store, "put_attachment", fail_when_ready)
    with pytest.raises(IOFailure, match="disk full"):
        node.add("net", params())
    assert ["ADD a", "ADD b", "DEL b", "DEL a"] == lab.log


# -- delete ----------------------------------------------------------------------------------------


def test_delete_uses_what_add_used(lab: Lab, node: Node) -> None:
    """C16, R17: configuration, parameters and result, whatever the network is now."""
    node.add("net", params(netns="/gone", cni_args=(("A", "1"),)))
    node.networks.put(conflist("c"))
    deleted = node.delete("net", params())
    assert deleted.existed
    assert ["b", "a"] == [step.plugin_type for step in deleted.steps]
    call = lab.a.last(Verb.DEL)
    assert "A=1" == call.request.args
    assert ["a", "b"] == [i["name"] for i in lab.a.given(Verb.DEL)["prevResult"]["interfaces"]]
    assert state(node) is None


def test_deleting_again_runs_the_chain_without_a_result_and_succeeds(lab: Lab, node: Node) -> None:
    """P6: repeated DEL is fine."""
    deleted = node.delete("net", params(netns="/x"))
    assert not deleted.existed
    assert ["DEL b", "DEL a"] == lab.log
    assert "prevResult" not in lab.a.given(Verb.DEL)
    assert "/x" == lab.a.last(Verb.DEL).request.netns


def test_deleting_from_an_unknown_network_is_an_error(node: Node) -> None:
    """There is nothing to run; a typo must not look like success."""
    with pytest.raises(NetworkNotFound):
        node.delete("nonesuch", params())


def test_a_failed_delete_stays_as_a_debt_and_can_be_repeated(lab: Lab, node: Node) -> None:
    """Every failure is reported; the attachment keeps its result for the next try."""
    node.add("net", params())
    lab.a.failures[Verb.DEL] = CniError("a stuck")
    lab.b.failures[Verb.DEL] = CniError("b stuck")
    with pytest.raises(ChainFailed) as caught:
        node.delete("net", params())
    assert ["b stuck", "a stuck"] == [error.msg for error in caught.value.errors]
    assert State.FAILED == state(node)
    lab.a.failures.clear()
    lab.b.failures.clear()
    assert node.delete("net", params()).existed
    assert "prevResult" in lab.a.given(Verb.DEL)


def test_a_delete_that_has_begun_does_not_end_with_its_caller(lab: Lab, node: Node) -> None:
    """It has time of its own."""
    node.add("net", params())
    deadline = Deadline(60)
    lab.b.before = lambda call: deadline.cancel()
    node.delete("net", params(), deadline=deadline)
    assert ["DEL b", "DEL a"] == lab.log[-2:]
    assert not lab.a.last(Verb.DEL).deadline.expired


@pytest.fixture
def namespaces(tmp_path: Path) -> list[str]:
    """Two files to stand for namespaces."""
    paths = [str(tmp_path / name) for name in ("one", "two")]
    for path in paths:
        Path(path).touch()
    return paths


def test_a_path_that_leads_to_another_namespace_by_now_is_not_used(
    lab: Lab, node: Node, namespaces: list[str]
) -> None:
    """plugins #714: PIDs, and so /proc/PID/ns/net, are reused."""
    one, two = namespaces
    node.add("net", params(netns=one))
    os.rename(two, one)
    node.delete("net", params(netns=one))
    assert "" == lab.a.last(Verb.DEL).request.netns


def test_a_new_path_of_the_same_namespace_is_used(
    lab: Lab, node: Node, namespaces: list[str]
) -> None:
    """The old one may be gone."""
    one, _ = namespaces
    node.add("net", params(netns=one))
    os.rename(one, one + "-moved")
    node.delete("net", params(netns=one + "-moved"))
    assert one + "-moved" == lab.a.last(Verb.DEL).request.netns


def test_a_descriptor_of_the_namespace_is_used(lab: Lab, node: Node, namespaces: list[str]) -> None:
    """And one of another is not."""
    one, two = namespaces
    for path, used in ((one, True), (two, False)):
        node.add("net", params(netns=one))
        fd = os.open(path, os.O_RDONLY)
        node.delete("net", params(netns="/elsewhere", netns_fd=fd))
        os.close(fd)
        assert (fd if used else None) == lab.a.last(Verb.DEL).request.netns_fd


# -- check, get, list ------------------------------------------------------------------------------


def test_check_uses_what_add_used(lab: Lab, node: Node) -> None:
    """R18."""
    node.add("net", params())
    node.networks.delete("net", force=True)
    outcome = node.check(KEY)
    assert ["CHECK a", "CHECK b"] == lab.log[-2:]
    assert ["a", "b"] == [step.plugin_type for step in outcome.steps]
    assert "prevResult" in lab.a.given(Verb.CHECK)


def test_there_is_no_check_before_add_or_after_a_failure(lab: Lab, node: Node) -> None:
    """R19: code 3."""
    with pytest.raises(AttachmentNotFound) as caught:
        node.check(KEY)
    assert 3 == caught.value.wire_code
    lab.b.failures[Verb.ADD] = TryAgain("busy")
    with pytest.raises(TryAgain):
        node.add("net", params(), cleanup_on_failure=False)
    with pytest.raises(AttachmentNotFound, match="its state is FAILED"):
        node.check(KEY)
    with pytest.raises(AttachmentNotFound):
        node.get(AttachmentKey("net", "c2", "eth0"))


def test_check_of_a_namespace_that_was_replaced_fails(node: Node, namespaces: list[str]) -> None:
    """Whatever is in the new one, it is not ours."""
    one, two = namespaces
    node.add("net", params(netns=one))
    os.rename(two, one)
    with pytest.raises(InvalidNetns, match="is not the namespace of attachment"):
        node.check(KEY)


def test_lists_are_read_in_pages(node: Node) -> None:
    """The token is opaque to the caller, and checked."""
    for number in range(5):
        node.add("net", params(f"c{number}"))
    first = node.list(page_size=2)
    second = node.list(page_size=2, page_token=first.next_page_token)
    third = node.list(page_size=2, page_token=second.next_page_token)
    pages = [[a.container_id for a in page.attachments] for page in (first, second, third)]
    assert [["c0", "c1"], ["c2", "c3"], ["c4"]] == pages
    assert "" == third.next_page_token
    assert ["c3"] == [
        a.container_id for a in node.list(AttachmentFilter(container_id="c3")).attachments
    ]
    with pytest.raises(InvalidConfig, match="page_token"):
        node.list(page_token="x")


# -- several at once -------------------------------------------------------------------------------


def test_attach_all_attaches_in_order_and_detach_all_in_reverse(lab: Lab, node: Node) -> None:
    """One container, several networks."""
    node.networks.put(conflist("c", name="two"))
    added = node.attach_all(
        "c1",
        [
            Join(network="two", params=params(ifname="eth0")),
            Join(network="net", params=params(ifname="eth1")),
        ],
    )
    assert ["two", "net"] == [each.attachment.network for each in added]
    assert ["ADD c", "ADD a", "ADD b"] == lab.log
    node.add("net", params("c2"))
    lab.log.clear()
    assert ["net", "two"] == [key.network for key in node.detach_all("c1")]
    assert ["DEL b", "DEL a", "DEL c"] == lab.log
    assert ["c2"] == [a.container_id for a in node.list().attachments]


def test_attach_all_is_all_or_nothing(lab: Lab, node: Node) -> None:
    """What this call has attached is detached; what was there before stays."""
    node.networks.put(conflist("c", name="two"))
    node.add("net", params(ifname="eth0"))
    lab.b.before = lambda call: lab.b.failures.update({Verb.ADD: TryAgain("busy")})
    with pytest.raises(TryAgain) as caught:
        node.attach_all(
            "c1",
            [
                Join(network="net", params=params(ifname="eth0")),
                Join(network="two", params=params(ifname="eth1")),
                Join(network="net", params=params(ifname="eth2")),
                Join(network="net", params=params(ifname="eth3")),
            ],
        )
    assert "NONE" == caught.value.residue
    assert ["eth0"] == [a.ifname for a in node.list().attachments]


def test_attach_all_is_for_one_container(node: Node) -> None:
    """The lock is the container's."""
    with pytest.raises(InvalidConfig, match="same container"):
        node.attach_all("c1", [Join(network="net", params=params("c2"))])


def test_detach_all_goes_on_past_failures(lab: Lab, node: Node) -> None:
    """And reports them."""
    node.add("net", params(ifname="eth0"))
    node.add(network("c", name="two"), params(ifname="eth1"))
    lab.c.failures[Verb.DEL] = CniError("stuck")
    with pytest.raises(CniError, match="stuck"):
        node.detach_all("c1")
    assert [("two", State.FAILED)] == [(a.network, a.state) for a in node.list().attachments]


# -- gc --------------------------------------------------------------------------------------------


def test_gc_deletes_what_is_not_valid_and_tells_the_plugins(lab: Lab, node: Node) -> None:
    """L12: stale attachments get a DEL, then GC runs."""
    for name in ("c1", "c2"):
        node.add("net", params(name))
    lab.log.clear()
    [collected] = node.gc([GcTarget(network="net", valid=valid("c2", "c9"))])
    assert ["DEL b", "DEL a", "GC a", "GC b"] == lab.log
    assert [KEY] == list(collected.deleted)
    assert valid("c2", "c9") == lab.a.last(Verb.GC).valid_attachments
    assert ["c2"] == [a.container_id for a in node.list().attachments]


def test_gc_without_a_list_keeps_what_the_node_and_its_neighbours_know(lab: Lab) -> None:
    """Absent is not empty: debts are paid, the rest is valid."""
    node = lab.node(neighbours=lambda name: valid("theirs") if name == "net" else valid())
    node.networks.put(conflist("a"))
    node.add("net", params("c1"))
    lab.a.failures[Verb.ADD] = TryAgain("busy")
    with pytest.raises(TryAgain):
        node.add("net", params("c2"), cleanup_on_failure=False)
    [collected] = node.gc()
    assert ["c2"] == [key.container_id for key in collected.deleted]
    assert valid("c1", "theirs") == lab.a.last(Verb.GC).valid_attachments


def test_gc_with_an_empty_list_removes_everything(lab: Lab, node: Node) -> None:
    """None is valid."""
    node.add("net", params())
    node.gc([GcTarget(network="net", valid=frozenset())])
    assert frozenset() == lab.a.last(Verb.GC).valid_attachments
    assert () == node.list().attachments


def test_gc_of_a_network_that_disables_it_does_nothing(lab: Lab, node: Node) -> None:
    """C5, L12: not even DEL."""
    node.networks.put(conflist("a", name="two", disableGC=True))
    node.add("two", params())
    lab.log.clear()
    [collected] = node.gc([GcTarget(network="two", valid=frozenset())])
    assert collected.skipped
    assert [] == lab.log


def test_gc_that_only_looks_changes_nothing(lab: Lab, node: Node) -> None:
    """It says what would go."""
    node.add("net", params())
    lab.log.clear()
    [collected] = node.gc([GcTarget(network="net", valid=frozenset())], validate_only=True)
    assert (KEY,) == collected.deleted
    assert [] == lab.log
    assert State.READY == state(node)


def test_gc_reaches_networks_that_were_deleted(lab: Lab, node: Node) -> None:
    """Their attachments know what they were."""
    node.add("net", params())
    node.networks.delete("net", force=True)
    assert ["net"] == [collected.network for collected in node.gc()]
    assert "GC b" == lab.log[-1]
    assert State.READY == state(node)


def test_gc_goes_on_past_failures_and_reports_them_all(lab: Lab, node: Node) -> None:
    """R20, over attachments, plugins and networks."""
    node.networks.put(conflist("c", name="two"))
    node.add("net", params())
    lab.b.failures |= {Verb.DEL: CniError("del b"), Verb.GC: CniError("gc b")}
    lab.c.failures[Verb.GC] = CniError("gc c")
    with pytest.raises(ChainFailed) as caught:
        node.gc([GcTarget(network=name, valid=frozenset()) for name in ("net", "two", "nonesuch")])
    assert ["del b", "gc b", "gc c", 'no net configuration with name "nonesuch"'] == [
        error.msg for error in caught.value.errors
    ]
    assert "GC a" in lab.log


# -- concurrency -----------------------------------------------------------------------------------


def start(work: Any, *arguments: Any, **more: Any) -> threading.Thread:
    """Run it beside us."""
    thread = threading.Thread(target=work, args=arguments, kwargs=more)
    thread.start()
    return thread


def test_one_container_is_worked_on_by_one_call_at_a_time(lab: Lab, node: Node) -> None:
    """R4; other containers are not kept waiting."""
    gate = Gate()
    lab.a.before = lambda call: gate() if call.container_id == "c1" else None
    first = start(node.add, "net", params("c1", "eth0"))
    gate.wait_for(1)
    node.add("net", params("c2"))
    with pytest.raises(LockTimeout, match="container c1 is busy"):
        node.add("net", params("c1", "eth1"), deadline=Deadline(0.05))
    assert 1 == gate.arrived
    gate.open()
    first.join(10)
    node.add("net", params("c1", "eth1"))


def test_gc_is_alone_on_its_network(lab: Lab, node: Node) -> None:
    """R5; other networks are not kept waiting."""
    gate = Gate()
    lab.a.before = lambda call: gate() if call.verb is Verb.GC else None
    node.networks.put(conflist("b", name="two"))
    collecting = start(node.gc, [GcTarget(network="net", valid=frozenset())])
    gate.wait_for(1)
    node.add("two", params("c2"))
    with pytest.raises(LockTimeout, match="network net is busy"):
        node.add("net", params(), deadline=Deadline(0.05))
    gate.open()
    collecting.join(10)


def test_gc_waits_for_running_calls(lab: Lab, node: Node) -> None:
    """R5: none in progress before it begins."""
    gate = Gate()
    lab.a.before = lambda call: gate() if call.verb is Verb.ADD else None
    adding = start(node.add, "net", params())
    gate.wait_for(1)
    with pytest.raises(LockTimeout):
        node.gc([GcTarget(network="net", valid=frozenset())], deadline=Deadline(0.05))
    gate.open()
    adding.join(10)
    assert "GC a" not in lab.log


def test_too_many_calls_are_turned_away(lab: Lab) -> None:
    """The queue is bounded."""
    gate = Gate()
    lab.a.before = gate
    node = lab.node(limits=Limits(running=1, waiting=0))
    node.networks.put(conflist("a"))
    running = start(node.add, "net", params("c1"))
    gate.wait_for(1)
    with pytest.raises(Overloaded) as caught:
        node.add("net", params("c2"))
    assert "NONE" == caught.value.residue
    gate.open()
    running.join(10)


def test_many_adds_and_deletes_at_once_end_as_they_should(node: Node) -> None:
    """Different containers, two interfaces each, from eight threads."""

    def work(thread: int) -> None:
        for number in range(10):
            container_id = f"c{thread}-{number}"
            node.add("net", params(container_id, "eth0"))
            node.add("net", params(container_id, "eth1"))
            node.check(AttachmentKey("net", container_id, "eth0"))
            node.delete("net", params(container_id, "eth0"))

    threads = [start(work, number) for number in range(8)]
    for thread in threads:
        thread.join(30)
    assert ["eth1"] * 80 == [a.ifname for a in node.list().attachments]


# -- events, recovery, single plugins --------------------------------------------------------------


def test_watchers_see_every_state(lab: Lab, node: Node) -> None:
    """Also of an add that fails and is undone."""
    cursor = node.events.cursor()
    node.add("net", params())
    node.delete("net", params())
    lab.a.failures[Verb.ADD] = TryAgain("busy")
    with pytest.raises(TryAgain):
        node.add("net", params())
    assert [
        ("ATTACHMENT", "ADDING"),
        ("ATTACHMENT", "READY"),
        ("ATTACHMENT", "DELETING"),
        ("ATTACHMENT_GONE", None),
        ("ATTACHMENT", "ADDING"),
        ("ATTACHMENT_GONE", None),
    ] == [(event.kind, event.state) for event in events(node, cursor)]


def test_recovery_settles_what_was_interrupted(lab: Lab, node: Node) -> None:
    """ADDING is rolled back, DELETING finished, FAILED tried again, READY left alone."""
    for name in ("adding", "deleting", "failed", "ready"):
        added = node.add("net", params(name)).attachment
        left = msgspec.structs.replace(added, state=State(name.upper()))
        node.store.put_attachment(left)
    lab.log.clear()
    recovered = node.recover()
    assert ["adding", "deleting", "failed"] == [key.container_id for key in recovered.settled]
    assert () == recovered.failed
    assert ["DEL b", "DEL a"] * 3 == lab.log
    assert ["ready"] == [a.container_id for a in node.list().attachments]


def test_after_a_reboot_everything_is_reaped_without_a_namespace(
    lab: Lab, node: Node, namespaces: list[str]
) -> None:
    """Addresses are released; a path from before the reboot leads to somebody else."""
    node.add("net", params(netns=namespaces[0]))
    rebooted = Lab(store=node.store)
    later = rebooted.node(boot_id="boot-2")
    assert (KEY,) == later.recover().settled
    assert ["DEL b", "DEL a"] == rebooted.log
    assert "" == rebooted.a.last(Verb.DEL).request.netns
    assert state(later) is None


def test_what_cannot_be_settled_stays_owed(lab: Lab, node: Node) -> None:
    """And keeps nothing else from being settled."""
    for name in ("c1", "c2"):
        added = node.add("net", params(name)).attachment
        node.store.put_attachment(msgspec.structs.replace(added, state=State.ADDING))
    lab.a.before = lambda call: lab.a.failures.update(
        {Verb.DEL: CniError("stuck")} if call.container_id == "c1" else {}
    )
    lab.b.before = lambda call: lab.a.failures.clear()
    recovered = node.recover()
    assert ["c2"] == [key.container_id for key in recovered.settled]
    assert [(KEY, "stuck")] == [(key, error.msg) for key, error in recovered.failed]
    assert State.FAILED == state(node)


def test_recovery_leaves_running_calls_alone(lab: Lab, node: Node) -> None:
    """What is ADDING while its call runs is no debt."""
    gate = Gate()
    lab.a.before = gate
    adding = start(node.add, "net", params())
    gate.wait_for(1)
    recovering = start(node.recover)
    gate.open()
    adding.join(10)
    recovering.join(10)
    assert State.READY == state(node)


def test_an_attachment_whose_configuration_cannot_be_read_stays_owed(node: Node) -> None:
    """A release that is stricter than the one before."""
    added = node.add("net", params()).attachment
    broken = msgspec.structs.replace(added, state=State.ADDING, config=b"{")
    node.store.put_attachment(broken)
    [(key, _)] = node.recover().failed
    assert KEY == key


def run_plugin(node: Node, verb: Verb, container_id: str = "c1", **more: Any) -> bytes:
    """One exec of plugin a, as a shim sends it."""
    config = json.dumps({"cniVersion": "1.1.0", "name": "net", "type": "a"}).encode()
    call = Request(verb=verb, container_id=container_id, ifname="eth0", config=config)
    return node.run_plugin("a", call, **more)


def test_a_single_plugin_runs_under_the_same_locks(lab: Lab, node: Node) -> None:
    """R4 and R5 hold whoever runs the chain."""
    assert json.loads(run_plugin(node, Verb.ADD))["interfaces"]
    assert () == node.list().attachments
    gate = Gate()
    lab.a.before = gate
    running = start(run_plugin, node, Verb.DEL)
    gate.wait_for(1)
    for attempt in (
        lambda: run_plugin(node, Verb.CHECK, deadline=Deadline(0.05)),
        lambda: run_plugin(node, Verb.GC, deadline=Deadline(0.05)),
    ):
        with pytest.raises(LockTimeout):
            attempt()
    gate.open()
    running.join(10)
    assert b"" == run_plugin(node, Verb.STATUS)


def test_a_single_del_that_has_begun_does_not_end_with_its_caller(lab: Lab, node: Node) -> None:
    """As one of a chain."""
    deadline = Deadline(60)
    lab.a.before = lambda call: deadline.cancel()
    run_plugin(node, Verb.DEL, deadline=deadline)
    assert not lab.a.last(Verb.DEL).deadline.expired


def test_closing_ends_the_watches_and_releases_what_it_holds(lab: Lab) -> None:
    """In reverse order."""
    node, released = lab.node(), list[int]()
    node.on_close(lambda: released.append(1))
    node.on_close(lambda: released.append(2))
    watch = node.events.watch()
    node.close()
    assert watch.get() is None
    assert [2, 1] == released
