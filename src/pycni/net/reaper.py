# SPDX-License-Identifier: Apache-2.0
"""Group commit for link removals: those that arrive together cost one wait, not one each.

Removing a link makes the kernel wait 15 to 20 ms until nobody can still be looking at it (RCU),
whatever the link. Removing a link *group* waits once: 32 links take 24 ms, where 32 messages take
half a second. So the first caller removes its link at once; whoever arrives meanwhile queues, and
the first of the queue then leads: it puts all that are waiting into a group with a random number
and removes that group with one message. Nobody waits for a timer, and every caller returns only
when its own link is gone.

The reaper has a socket of its own: the wait happens in the thread that sends, under that socket's
lock, and an ADD on the shared socket must not stand behind it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from pycni.errors import KernelError, LinkNotFound
from pycni.kernel.rtnl import Rtnl
from pycni.kernel.side import Side


class Links(Protocol):
    """What the reaper asks of a namespace's links."""

    def set(self, index: int, *, group: int) -> object: ...
    def remove(self, index: int) -> object: ...
    def remove_group(self, group: int) -> object: ...


class Socket(Protocol):
    """A netlink socket nobody else uses."""

    @property
    def links(self) -> Links: ...
    def batch(self) -> AbstractContextManager[Any]: ...


def random_group() -> int:
    """A link group nobody has put a link in: not 0, the default, nor a small hand-picked one."""
    return 0x40000000 | int.from_bytes(os.urandom(4)) >> 2


class Reaper:
    """Removes links of one namespace; safe to share between threads."""

    def __init__(self, socket: Socket, *, new_group: Callable[[], int] = random_group) -> None:
        self._socket = socket
        self._new_group = new_group
        self._lock = threading.Lock()
        self._waiting: list[_Removal] = []
        self._led = False

    def remove(self, *indexes: int) -> None:
        """Remove links and return when they are gone; absent is fine."""
        if not indexes:
            return
        removal = _Removal(indexes)
        with self._lock:
            self._waiting.append(removal)
            leads = not self._led
            self._led = True
        if not leads:
            removal.turn.wait()
            leads = not removal.over
        if leads:
            self._lead()
        if removal.failure is not None:
            raise removal.failure

    def _lead(self) -> None:
        """Remove everything that waits, then hand the lead to the first that came meanwhile."""
        with self._lock:
            batch, self._waiting = self._waiting, []
        try:
            self._remove_together(batch)
        except BaseException as exc:
            for removal in batch:
                removal.failure = exc
            raise
        finally:
            for removal in batch:
                removal.over = True
                removal.turn.set()
            with self._lock:
                self._led = bool(self._waiting)
                if self._waiting:
                    self._waiting[0].turn.set()

    def _remove_together(self, batch: list[_Removal]) -> None:
        indexes = {index for removal in batch for index in removal.indexes}
        if len(indexes) > 1 and self._remove_group(indexes):
            return
        for removal in batch:
            removal.failure = self._remove_singly(removal.indexes)

    def _remove_group(self, indexes: Iterable[int]) -> bool:
        group = self._new_group()
        try:
            with self._socket.batch():
                for index in indexes:
                    self._socket.links.set(index, group=group)
                self._socket.links.remove_group(group)
        except KernelError:
            # One link was gone before us, or cannot be removed: find out which, one by one.
            return False
        return True

    def _remove_singly(self, indexes: Iterable[int]) -> KernelError | None:
        failure: KernelError | None = None
        for index in indexes:
            try:
                self._socket.links.remove(index)
            except LinkNotFound:
                pass
            except KernelError as exc:
                failure = failure or exc
        return failure


class _Removal:
    """One caller's links; `turn` wakes it when they are gone, or when it is to lead."""

    __slots__ = ("failure", "indexes", "over", "turn")

    def __init__(self, indexes: tuple[int, ...]) -> None:
        self.indexes = indexes
        self.turn = threading.Event()
        self.over = False
        self.failure: BaseException | None = None


_reapers: weakref.WeakKeyDictionary[Side, Reaper] = weakref.WeakKeyDictionary()
_reapers_lock = threading.Lock()


def of(side: Side) -> Reaper:
    """The reaper of a namespace, made on first use and kept as long as `side`."""
    with _reapers_lock:
        reaper = _reapers.get(side)
        if reaper is None:
            socket = Rtnl(side.netns)
            weakref.finalize(side, socket.close)
            reaper = _reapers[side] = Reaper(socket)
        return reaper
