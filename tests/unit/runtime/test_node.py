# SPDX-License-Identifier: Apache-2.0
"""Node: what it remembers of an attachment, when it repeats, what it owes."""

from __future__ import annotations

import json
import os
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
from pycni.model.deadline import Deadline
from pycni.model.request import Verb
from pycni.net.owner import Owner
from pycni.runtime.attachments import AttachmentKey, State
from pycni.runtime.errors import (
    AttachmentConflict,
    AttachmentNotFound,
    ChainFailed,
    NetworkNotFound,
    PluginNotFound,
)
from pycni.runtime.node import Node
from pycni.runtime.store import AttachmentFilter
from tests.unit.runtime.fakes import KEY, Lab, conflist, network, params, state

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


def test_a_failed_add_is_told_although_it_cannot_be_remembered(
    lab: Lab, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin's failure is what matters; that of the disk is told beside it."""
    lab.b.failures[Verb.ADD] = InvalidConfig("b refuses")
    lab.b.failures[Verb.DEL] = CniError("b stuck")
    lab.b.before = lambda call: fill_disk(node, monkeypatch)
    with pytest.raises(InvalidConfig, match="b refuses") as caught:
        node.add("net", params())
    assert "not remembered: disk full" in caught.value.details
    assert State.ADDING == state(node)  # a debt, which recovery settles


def test_an_error_names_the_attachment_whose_tag_it_has(lab: Lab, node: Node) -> None:
    """A tag is a hash, which helps nobody to find who has the port."""
    node.add("net", params())
    holder, stranger = Owner(*msgspec.structs.astuple(KEY)).tag, Owner("net", "c9", "eth0").tag
    lab.b.failures[Verb.ADD] = CniError("in use", f"held by {holder} and {stranger}")
    with pytest.raises(CniError, match="in use") as caught:
        node.add("net", params(container_id="c2"))
    assert f"; {holder} is attachment {KEY}" in caught.value.details
    assert f"{stranger} is" not in caught.value.details


# -- delete ----------------------------------------------------------------------------------------


def fill_disk(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the store can write nothing."""

    def refuse(*_: Any) -> None:
        raise IOFailure("disk full")

    monkeypatch.setattr(node.store, "put_attachment", refuse)
    monkeypatch.setattr(node.store, "delete_attachment", refuse)


def test_a_full_disk_keeps_no_container_from_being_deleted(
    lab: Lab, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain runs; what could not be forgotten is said, and can be deleted again."""
    node.add("net", params())
    with monkeypatch.context() as full:
        fill_disk(node, full)
        with pytest.raises(IOFailure, match="disk full") as caught:
            node.delete("net", params())
    assert "all of it is deleted" in caught.value.details
    assert ["DEL b", "DEL a"] == lab.log[-2:]
    assert node.delete("net", params()).existed
    assert state(node) is None


def test_a_failed_delete_is_told_although_it_cannot_be_remembered(
    lab: Lab, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the disk's failure in its place."""
    node.add("net", params())
    lab.b.failures[Verb.DEL] = CniError("b stuck")
    with monkeypatch.context() as full:
        fill_disk(node, full)
        with pytest.raises(CniError, match="b stuck") as caught:
            node.delete("net", params())
    assert "not remembered: disk full" in caught.value.details
    assert State.READY == state(node)


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
