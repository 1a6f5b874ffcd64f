# SPDX-License-Identifier: Apache-2.0
"""Events: in order, resumable, bounded, and honest about what was lost."""

from __future__ import annotations

import threading

import pytest

from pycni.runtime.events import Event, EventLog, Kind


@pytest.fixture
def log() -> EventLog:
    """A ring of three."""
    return EventLog(3, epoch="e", clock=lambda: 7.0)


def put(log: EventLog, *names: str) -> list[str]:
    """Publish one event for each name; return the cursors."""
    return [log.publish(Event(kind=Kind.NETWORK_PUT, network=name)).cursor for name in names]


def test_a_watch_begins_now(log: EventLog) -> None:
    """What was before is in the lists."""
    put(log, "before")
    watch = log.watch()
    assert watch.get(0) is None
    put(log, "a", "b")
    assert [("a", 7.0), ("b", 7.0)] == [
        (e.network, e.at) for e in (watch.get(0), watch.get(0)) if e
    ]
    assert watch.get(0) is None


def test_every_watcher_sees_everything(log: EventLog) -> None:
    """A watcher is a place, not a queue that others empty."""
    one, two = log.watch(), log.watch()
    put(log, "a")
    assert one.get(0) == two.get(0) is not None


def test_a_cursor_resumes_just_behind_its_event(log: EventLog) -> None:
    """After a lost connection."""
    cursors = put(log, "a", "b", "c")
    event = log.watch(cursors[0]).get(0)
    assert event is not None
    assert "b" == event.network
    assert log.watch(cursors[2]).get(0) is None


def test_listing_first_and_watching_from_there_misses_nothing(log: EventLog) -> None:
    """`cursor` is the place behind the last event, also when there was none yet."""
    cursor = log.cursor()
    put(log, "a")
    event = log.watch(cursor).get(0)
    assert event is not None
    assert "a" == event.network


def test_a_slow_watcher_is_told_that_events_are_lost(log: EventLog) -> None:
    """Once; then it goes on with the oldest there is."""
    watch = log.watch()
    put(log, "a", "b", "c", "d", "e")
    lost = watch.get(0)
    assert lost is not None
    assert Kind.LOST == lost.kind
    assert ["c", "d", "e"] == [e.network for e in (watch.get(0), watch.get(0), watch.get(0)) if e]
    again = log.watch(lost.cursor).get(0)
    assert again is not None
    assert "c" == again.network


@pytest.mark.parametrize(
    "cursor", ["other-1", "", "e", "e-", "e-x", "e-99", "e--1", "e-" + "9" * 5000]
)
def test_a_cursor_of_another_life_is_lost(log: EventLog, cursor: str) -> None:
    """A restart, or nonsense."""
    put(log, "a")
    event = log.watch(cursor).get(0)
    assert event is not None
    assert Kind.LOST == event.kind


def test_a_cursor_that_has_left_the_ring_is_lost(log: EventLog) -> None:
    """The client was away for too long."""
    cursors = put(log, "a", "b", "c", "d", "e")
    event = log.watch(cursors[0]).get(0)
    assert event is not None
    assert Kind.LOST == event.kind


def test_waiting_ends_with_an_event_a_stop_or_the_end(log: EventLog) -> None:
    """All from another thread."""
    seen: list[str] = []
    watch = log.watch()
    thread = threading.Thread(target=lambda: seen.extend(e.network for e in watch))
    thread.start()
    put(log, "a", "b")
    while seen != ["a", "b"]:
        assert thread.is_alive()
    watch.stop()
    thread.join(5)
    assert not thread.is_alive()
    closing = log.watch()
    thread = threading.Thread(target=lambda: list(closing))
    thread.start()
    log.close()
    thread.join(5)
    assert not thread.is_alive()


def test_a_closed_log_still_tells_what_is_in_it(log: EventLog) -> None:
    """The last events before a stop are the interesting ones."""
    watch = log.watch()
    put(log, "a")
    log.close()
    assert ["a"] == [event.network for event in watch]
