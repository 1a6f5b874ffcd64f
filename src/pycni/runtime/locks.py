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
        self._changed = threading.Condition(threading.Lock())

    @contextlib.contextmanager
    def enter(self, deadline: Deadline) -> Iterator[None]:
        """Wait for a place; Overloaded if too many wait already, LockTimeout at the deadline."""
        with self._changed:
            entered = self._take()
            if not entered and self._waiting >= self._queue:
                raise Overloaded(running=self._running, waiting=self._waiting)
            self._waiting += not entered
        if not entered:
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
    """One lock of a `SharedLocks`: how many hold it, how many want it alone, how many know it.

    `changed` is there once somebody had to wait.
    """

    __slots__ = ("alone", "changed", "shared", "users", "wanted_alone")

    def __init__(self) -> None:
        self.shared = 0
        self.alone = False
        self.wanted_alone = 0
        self.users = 0
        self.changed: threading.Condition | None = None

    def take_shared(self) -> bool:
        """Hold it together with other readers, if it can be had now."""
        if self.alone or self.wanted_alone:
            return False
        self.shared += 1
        return True

    def take_alone(self) -> bool:
        """Hold it with nobody else, if it can be had now."""
        if self.alone or self.shared:
            return False
        self.alone = True
        return True


class SharedLocks:
    """Reader/writer locks by name; a waiting writer keeps new readers out, so it gets its turn."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()  # of all entries: nobody keeps it for long

    @contextlib.contextmanager
    def shared(self, name: str, deadline: Deadline) -> Iterator[None]:
        """Hold `name` together with other readers."""
        with self._lock:
            entry = self._know(name)
            taken = entry.take_shared()
        try:
            if not taken:
                self._wait(name, entry, entry.take_shared, deadline)
            try:
                yield
            finally:
                with self._lock:
                    entry.shared -= 1
                    _tell(entry)
        finally:
            self._forget(name, entry)

    @contextlib.contextmanager
    def alone(self, name: str, deadline: Deadline) -> Iterator[None]:
        """Hold `name` with nobody else."""
        with self._lock:
            entry = self._know(name)
            taken = entry.take_alone()
            entry.wanted_alone += not taken
        try:
            if not taken:
                try:
                    self._wait(name, entry, entry.take_alone, deadline)
                finally:
                    with self._lock:
                        entry.wanted_alone -= 1
                        _tell(entry)
            try:
                yield
            finally:
                with self._lock:
                    entry.alone = False
                    _tell(entry)
        finally:
            self._forget(name, entry)

    def __len__(self) -> int:
        """How many names are in use: none are kept that nobody holds or wants."""
        return len(self._entries)

    def _know(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = _Entry()
        entry.users += 1
        return entry

    def _forget(self, name: str, entry: _Entry) -> None:
        with self._lock:
            entry.users -= 1
            if not entry.users:
                del self._entries[name]

    def _wait(self, name: str, entry: _Entry, take: Callable[[], bool], deadline: Deadline) -> None:
        with self._lock:
            changed = entry.changed = entry.changed or threading.Condition(self._lock)
        _wait(changed, take, deadline, f"{self._what} {name}")


def _tell(entry: _Entry) -> None:
    """Have those who wait look again."""
    if entry.changed is not None:
        entry.changed.notify_all()


def _wait(
    changed: threading.Condition, take: Callable[[], bool], deadline: Deadline, what: str
) -> None:
    """Wait until `take`, called under `changed`, succeeds."""

    def wake() -> None:
        with changed:
            changed.notify_all()

    # Registered outside the lock, which `wake` needs.
    forget = deadline.on_cancel(wake)
    try:
        with changed:
            while not take():
                if deadline.expired:
                    raise LockTimeout(what)
                changed.wait(deadline.remaining_s())
    finally:
        forget()
