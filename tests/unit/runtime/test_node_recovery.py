# SPDX-License-Identifier: Apache-2.0
"""Node, in the long run: events, crashes, single plugins, the end."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from pycni.errors import (
    CniError,
    TryAgain,
)
from pycni.model.deadline import Deadline
from pycni.model.request import Request, Verb
from pycni.model.version import SUPPORTED
from pycni.runtime import nesting
from pycni.runtime.attachments import State
from pycni.runtime.errors import (
    AttachmentNotFound,
    LockTimeout,
    PluginNotFound,
)
from pycni.runtime.events import Event
from pycni.runtime.node import Node
from pycni.runtime.outcomes import GcTarget, Limits
from tests.unit.runtime.fakes import KEY, Gate, Lab, conflist, params, start, state


def events(node: Node, cursor: str) -> list[Event]:
    """What happened since."""
    watch = node.events.watch(cursor)
    return [event for event in iter(lambda: watch.get(0), None) if event]


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


def test_what_is_of_an_earlier_boot_is_neither_replayed_nor_checked(node: Node) -> None:
    """Even before recovery has come to it."""
    node.add("net", params())
    node.boot_id = "boot-2"
    with pytest.raises(AttachmentNotFound, match="of an earlier boot"):
        node.check(KEY)
    assert not node.add("net", params()).replayed
    node.check(KEY)


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


@pytest.mark.parametrize("verb", [Verb.ADD, Verb.DEL, Verb.GC])
def test_an_executable_that_calls_back_does_not_wait_for_itself(lab: Lab, verb: Verb) -> None:
    """A third-party plugin finds our shim in the path: its call has the locks already."""
    node = lab.node(limits=Limits(running=1, waiting=0))
    node.networks.put(conflist("a", "b"))
    lab.b.before = lambda call: lab.log.append("calling back") or call_back(call)

    def call_back(call: Any) -> None:
        if lab.log.count("calling back") == 1:
            back = start(
                node.run_plugin,
                "a",
                msgspec.structs.replace(call.request, parent=nesting.current()),
            )
            back.join(10)

    match verb:
        case Verb.GC:
            node.gc([GcTarget(network="net", valid=frozenset())])
        case Verb.ADD:
            node.add("net", params())
        case _:
            node.delete("net", params())
    assert 2 == lab.log.count(f"{verb} a")


def test_a_token_is_worth_nothing_for_anything_else(lab: Lab, node: Node) -> None:
    """Another container, another network, a call that has ended."""
    gate, tokens = Gate(), list[str]()
    lab.a.before = lambda call: (tokens.append(nesting.current()), gate())
    running = start(node.add, "net", params())
    gate.wait_for(1)
    covers = node._nesting.covers
    assert covers(tokens[0], "net", "c1")
    assert not covers(tokens[0], "net", "c2")
    assert not covers(tokens[0], "two", "c1")
    assert not covers("", "net", "c1")
    gate.open()
    running.join(10)
    assert not covers(tokens[0], "net", "c1")
    assert "" == nesting.current()


def test_a_call_from_an_executable_starts_no_executable(node: Node) -> None:
    """It may be the very one that would be started."""
    call = Request(verb=Verb.DEL, container_id="c1", ifname="eth0", config=b'{"name": "net"}')
    with pytest.raises(PluginNotFound):
        node.run_plugin("true", call)
    assert SUPPORTED == node.plugin_versions("a")


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
