# SPDX-License-Identifier: Apache-2.0
"""Who may work at the same time: the queue in front of a node, and the locks behind it.

Locks are always taken in this order, which is why they cannot deadlock:

1. a place in the queue (`Admission`);
2. the networks, in the order of their names: shared by ADD, DEL and CHECK, alone for GC (SPEC R5);
3. the containers, in the order of their ids: one operation at a time for each (SPEC R4).

Every wait ends at the caller's deadline or cancellation, with an error that says what was busy.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from pycni.model.deadline import Deadline
from pycni.runtime.errors import LockTimeout, Overloaded


class Admission:
    """At most `running` calls at once; at most `waiting` more wait, the next one is turned away."""

    def __init__(self, *, running: int, waiting: int) -> None:
        self._limit = running
        self._queue = waiting
        self._running = 0
        self._waiting = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def enter(self, deadline: Deadline) -> Iterator[None]:
        """Wait for a place; Overloaded if too many wait already, LockTimeout at the deadline."""
        with self._changed:
            if self._running >= self._limit and self._waiting >= self._queue:
                raise Overloaded(running=self._running, waiting=self._waiting)
            self._waiting += 1
        try:
            _wait(self._changed, self._take, deadline, "the node")
        finally:
            with self._changed:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify()

    def _take(self) -> bool:
        if self._running >= self._limit:
            return False
        self._running += 1
        return True


class _Entry:
    """One lock of a `SharedLocks`: how many hold it, how many want it alone, how many know it."""

    __slots__ = ("alone", "changed", "shared", "users", "wanted_alone")

    def __init__(self) -> None:
        self.shared = 0
        self.alone = False
        self.wanted_alone = 0
        self.users = 0
        self.changed = threading.Condition()


class SharedLocks:
    """Reader/writer locks by name; a waiting writer keeps new readers out, so it gets its turn."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def shared(self, name: str, deadline: Deadline) -> Iterator[None]:
        """Hold `name` together with other readers."""
        with self._entry(name) as entry:

            def take() -> bool:
                if entry.alone or entry.wanted_alone:
                    return False
                entry.shared += 1
                return True

            _wait(entry.changed, take, deadline, f"{self._what} {name}")
            try:
                yield
            finally:
                with entry.changed:
                    entry.shared -= 1
                    entry.changed.notify_all()

    @contextlib.contextmanager
    def alone(self, name: str, deadline: Deadline) -> Iterator[None]:
        """Hold `name` with nobody else."""
        with self._entry(name) as entry:

            def take() -> bool:
                if entry.alone or entry.shared:
                    return False
                entry.alone = True
                return True

            with entry.changed:
                entry.wanted_alone += 1
            try:
                _wait(entry.changed, take, deadline, f"{self._what} {name}")
            finally:
                with entry.changed:
                    entry.wanted_alone -= 1
                    entry.changed.notify_all()
            try:
                yield
            finally:
                with entry.changed:
                    entry.alone = False
                    entry.changed.notify_all()

    def __len__(self) -> int:
        """How many names are in use: none are kept that nobody holds or wants."""
        return len(self._entries)

    @contextlib.contextmanager
    def _entry(self, name: str) -> Iterator[_Entry]:
        with self._lock:
            entry = self._entries.setdefault(name, _Entry())
            entry.users += 1
        try:
            yield entry
        finally:
            with self._lock:
                entry.users -= 1
                if not entry.users:
                    del self._entries[name]


def _wait(
    changed: threading.Condition, take: Callable[[], bool], deadline: Deadline, what: str
) -> None:
    """Wait until `take`, called under `changed`, succeeds."""
    with changed:
        if take():
            return

    def wake() -> None:
        with changed:
            changed.notify_all()

    # Registered only when there is something to wait for, and outside the lock `wake` needs.
    forget = deadline.on_cancel(wake)
    try:
        with changed:
            while not take():
                if deadline.expired:
                    raise LockTimeout(what)
                changed.wait(deadline.remaining_s())
    finally:
        forget()
