# SPDX-License-Identifier: Apache-2.0
"""Readiness: what plugins say of themselves, remembered for a while."""

from __future__ import annotations

import pytest

from pycni.errors import LimitedConnectivity, NotAvailable, TryAgain
from pycni.model.deadline import Deadline
from pycni.model.request import Verb
from pycni.runtime.events import EventLog
from pycni.runtime.networks import Network
from pycni.runtime.readiness import Readiness
from tests.unit.runtime.fakes import Lab, network


class Clock:
    """Time that passes when told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_answer_is_used_until_it_is_too_old() -> None:
    """Runtimes poll."""
    lab, clock = Lab(), Clock()
    readiness = Readiness(lab.runtime, clock=clock)
    net = Network(name="net", config=network("a", "b"), etag="1")
    assert readiness.get(net).ready
    clock.now += 4
    readiness.get(net, max_age_s=5)
    assert ["STATUS a", "STATUS b"] == lab.log
    readiness.get(net, max_age_s=0)
    readiness.get(net, max_age_s=5)
    assert 4 == len(lab.log)
    readiness.get(Network(name="net", config=network("a"), etag="2"), max_age_s=5)
    assert "STATUS a" == lab.log[-1]
    assert 5 == len(lab.log)


def test_changes_are_dated_and_others_keep_their_time() -> None:
    """Since when a condition holds."""
    lab, clock = Lab(), Clock()
    readiness = Readiness(lab.runtime, clock=clock)
    net = Network(name="net", config=network("a", "b"), etag="1")
    readiness.get(net)
    clock.now = 200.0
    lab.b.failures[Verb.STATUS] = NotAvailable("no addresses")
    answer = readiness.get(net)
    assert (False, 200.0, 200.0) == (answer.ready, answer.since, answer.last_checked)
    assert [(True, 100.0), (False, 200.0)] == [(p.ready, p.since) for p in answer.plugins]
    clock.now = 300.0
    lab.b.failures[Verb.STATUS] = LimitedConnectivity("worse")
    answer = readiness.get(net)
    assert (False, 200.0, 300.0) == (answer.ready, answer.since, answer.last_checked)
    assert [100.0, 300.0] == [plugin.since for plugin in answer.plugins]


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_caller_in_a_hurry_makes_nothing_unready(cancelled: bool) -> None:
    """That his time was over says nothing of the plugins; what was known stays known."""
    lab, events = Lab(), EventLog()
    readiness = Readiness(lab.runtime, events=events)
    net = Network(name="net", config=network("a"), etag="1")
    before = readiness.get(net)
    assert before.ready
    lab.a.failures[Verb.STATUS] = TryAgain("did not finish before its deadline")
    deadline = Deadline() if cancelled else Deadline(0)
    if cancelled:
        deadline.cancel()
    with pytest.raises(TryAgain, match='STATUS of network "net"'):
        readiness.get(net, max_age_s=0, deadline=deadline)
    assert before is readiness.get(net)
    assert events.watch().get(0) is None
    assert not readiness.get(net, max_age_s=0, deadline=Deadline(60)).ready


def test_a_network_without_the_verb_is_ready() -> None:
    """R21: older than 1.1.0 is success."""
    lab = Lab()
    old = Network(name="net", config=network("a", cniVersion="1.0.0"), etag="1")
    answer = Readiness(lab.runtime).get(old)
    assert answer.ready
    assert () == answer.plugins
    assert [] == lab.log
