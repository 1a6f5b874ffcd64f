# SPDX-License-Identifier: Apache-2.0
"""Locks: who may work beside whom, who waits, and how waiting ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from pycni.model.deadline import Deadline
from pycni.runtime.errors import LockTimeout, Overloaded
from pycni.runtime.locks import Admission, SharedLocks

Lock = Callable[[Deadline], AbstractContextManager[None]]


class Holder:
    """A thread that takes a lock, and holds it until told to let go."""

    def __init__(self, lock: Lock, deadline: Deadline | None = None) -> None:
        self.deadline = deadline or Deadline(10)
        self.held = threading.Event()
        self.error: Exception | None = None
        self._release = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(lock,))
        self._thread.start()

    def _run(self, lock: Lock) -> None:
        try:
            with lock(self.deadline):
                self.held.set()
                self._release.wait(10)
        except Exception as exc:  # noqa: BLE001 - looked at by the test
            self.error = exc

    def holds(self, wait_s: float = 0.05) -> bool:
        """Whether it has the lock, or gets it soon."""
        return self.held.wait(wait_s)

    def release(self) -> None:
        """Let go and end."""
        self._release.set()
        self._thread.join(10)

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join(10)


def shared(locks: SharedLocks, name: str = "net") -> Lock:
    """A reader's lock."""
    return lambda deadline: locks.shared(name, deadline)


def alone(locks: SharedLocks, name: str = "net") -> Lock:
    """A writer's lock."""
    return lambda deadline: locks.alone(name, deadline)


def test_readers_share_and_a_writer_waits_for_them() -> None:
    """R5: none in progress before it begins."""
    locks = SharedLocks("network")
    readers = [Holder(shared(locks)) for _ in range(2)]
    assert all(reader.holds(5) for reader in readers)
    writer = Holder(alone(locks))
    assert not writer.holds()
    readers[0].release()
    assert not writer.holds()
    readers[1].release()
    assert writer.holds(5)
    writer.release()


def test_nobody_starts_beside_a_writer_or_before_a_waiting_one() -> None:
    """R5: none started until it ends; and a stream of ADDs does not starve a GC."""
    locks = SharedLocks("network")
    reader = Holder(shared(locks))
    assert reader.holds(5)
    writer = Holder(alone(locks))
    assert not writer.holds()
    late = Holder(shared(locks))
    assert not late.holds()
    reader.release()
    assert writer.holds(5)
    assert not late.holds()
    writer.release()
    assert late.holds(5)
    late.release()


def test_names_are_independent() -> None:
    """Networks do not wait for each other."""
    locks = SharedLocks("network")
    one, two = Holder(alone(locks, "one")), Holder(alone(locks, "two"))
    assert one.holds(5)
    assert two.holds(5)
    one.release()
    two.release()
    assert 0 == len(locks)


def test_a_wait_ends_at_the_deadline() -> None:
    """With a word on what was busy; a writer that gave up keeps nobody out."""
    locks = SharedLocks("container")
    holder = Holder(shared(locks, "c1"))
    assert holder.holds(5)
    with (
        pytest.raises(LockTimeout, match="container c1 is busy with another call"),
        locks.alone("c1", Deadline(0.02)),
    ):
        pass
    other = Holder(shared(locks, "c1"))
    assert other.holds(5)
    other.release()
    holder.release()
    assert 0 == len(locks)


def test_a_wait_ends_when_the_caller_gives_up() -> None:
    """At once, not at the deadline."""
    locks = SharedLocks("container")
    holder = Holder(alone(locks))
    assert holder.holds(5)
    waiter = Holder(alone(locks))
    assert not waiter.holds()
    started = time.monotonic()
    waiter.deadline.cancel()
    waiter.join()
    assert time.monotonic() - started < 2
    assert isinstance(waiter.error, LockTimeout)
    holder.release()
    assert 0 == len(locks)


def test_a_failing_call_lets_go() -> None:
    """Whatever happens inside."""
    locks, admission = SharedLocks("network"), Admission(running=1, waiting=0)
    for _ in range(2):
        with (
            pytest.raises(ZeroDivisionError),
            admission.enter(Deadline(1)),
            locks.alone("net", Deadline(1)),
        ):
            raise ZeroDivisionError
    assert 0 == len(locks)


def test_the_queue_is_bounded() -> None:
    """The next one is turned away at once, so that the node does not collapse under a storm."""
    admission = Admission(running=1, waiting=1)
    running = Holder(admission.enter)
    assert running.holds(5)
    waiting = Holder(admission.enter)
    assert not waiting.holds()
    with pytest.raises(Overloaded) as caught, admission.enter(Deadline(5)):
        pass
    assert (1, 1, 11) == (caught.value.running, caught.value.waiting, caught.value.wire_code)
    running.release()
    assert waiting.holds(5)
    waiting.release()
    with admission.enter(Deadline(1)):
        pass


def test_waiting_in_the_queue_ends_at_the_deadline() -> None:
    """And gives the place back."""
    admission = Admission(running=1, waiting=1)
    running = Holder(admission.enter)
    assert running.holds(5)
    for _ in range(2):
        with (
            pytest.raises(LockTimeout, match="the node is busy"),
            admission.enter(Deadline(0.02)),
        ):
            pass
    running.release()
