# SPDX-License-Identifier: Apache-2.0
"""Node, many at once: batches, garbage, locks."""

from __future__ import annotations

import msgspec
import pytest

from pycni.errors import (
    CniError,
    InvalidConfig,
    TryAgain,
)
from pycni.model.config import NetworkConfigList
from pycni.model.deadline import Deadline
from pycni.model.request import Verb
from pycni.runtime.attachments import AttachmentKey, State
from pycni.runtime.errors import (
    ChainFailed,
    LockTimeout,
    Overloaded,
)
from pycni.runtime.node import Node
from pycni.runtime.outcomes import GcTarget, Join, Limits
from tests.unit.runtime.fakes import KEY, Gate, Lab, conflist, network, params, start, state, valid

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


def test_what_attach_all_cannot_take_back_is_told_and_stays_owed(lab: Lab, node: Node) -> None:
    """The cause stays the error."""
    node.networks.put(conflist("c", name="two"))
    lab.c.failures |= {Verb.ADD: TryAgain("busy")}
    lab.a.failures |= {Verb.DEL: CniError("stuck")}
    joins = [
        Join(network="net", params=params(ifname="eth0")),
        Join(network="two", params=params(ifname="eth1")),
    ]
    with pytest.raises(TryAgain, match="busy") as caught:
        node.attach_all("c1", joins)
    assert "detach attachment net/c1/eth0: stuck" in caught.value.details
    assert "UNKNOWN" == caught.value.residue
    assert State.FAILED == state(node)


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


def test_gc_without_a_list_spares_networks_that_other_runtimes_use(lab: Lab) -> None:
    """A conf directory is read by all of them; only our own debts are paid there."""
    shared = NetworkConfigList.parse(conflist("a"), source="/etc/cni/net.d/net.conflist")
    node = lab.node()
    for name in ("c1", "c2"):
        node.add(shared, params(name))
    failed = msgspec.structs.replace(node.get(KEY), state=State.FAILED)
    node.store.put_attachment(failed)
    lab.log.clear()
    [collected] = node.gc([GcTarget(network=shared)])
    assert collected.skipped
    assert (KEY,) == collected.deleted
    assert ["DEL a"] == lab.log
    [collected] = node.gc([GcTarget(network=shared, valid=valid("c2"))])
    assert ["DEL a", "GC a"] == lab.log


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
