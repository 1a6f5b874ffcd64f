# SPDX-License-Identifier: Apache-2.0
"""What happens on a node, for whoever watches: a bounded ring, read at everyone's own pace.

A watcher holds no events, only its place in the ring: a slow one costs nothing and, when the ring
has moved past it, is told so with one LOST event, after which it should list anew. A cursor names
a place across reconnects; one of an earlier process is a place that is lost.
"""

from __future__ import annotations

import enum
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from pycni.runtime.attachments import Attachment, State, StoredError

CAPACITY = 8192
MAX_DIGITS = 20  # of a cursor; Python refuses to read numbers of some thousand


class Kind(enum.StrEnum):
    """What an event tells."""

    NETWORK_PUT = "NETWORK_PUT"
    NETWORK_DELETED = "NETWORK_DELETED"
    ATTACHMENT = "ATTACHMENT"
    ATTACHMENT_GONE = "ATTACHMENT_GONE"
    NETWORK_READINESS = "NETWORK_READINESS"
    SOURCE_BROKEN = "SOURCE_BROKEN"
    SOURCE_MENDED = "SOURCE_MENDED"
    LINK = "LINK"
    ADDRESS = "ADDRESS"
    LINKS_LOST = "LINKS_LOST"  # events of the kernel are missing; `message` says why
    PLUGIN_NOTICE = "PLUGIN_NOTICE"
    LOST = "LOST"


class LinkChange(msgspec.Struct, frozen=True, kw_only=True):
    """A link of an attachment as the kernel has it now; `sandbox` is empty on the host."""

    name: str
    sandbox: str = ""
    removed: bool = False
    running: bool = False
    up: bool = False
    mtu: int = 0


class AddressChange(msgspec.Struct, frozen=True, kw_only=True):
    """An address of an attachment that came, or is gone."""

    name: str
    sandbox: str = ""
    address: str
    removed: bool = False


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened. `cursor` resumes a watch just behind it.

    `detail` is what it happened to, as it was then: the Attachment (without its configuration), a
    LinkChange, an AddressChange, a NetworkReadiness or a Fault of the conf directory. `missed` says
    how many events a LOST one stands for.
    """

    kind: Kind
    cursor: str = ""
    at: float = 0.0
    network: str = ""
    container_id: str = ""
    ifname: str = ""
    state: State | None = None
    etag: str = ""
    error: StoredError | None = None
    # Of a plugin's notice: who says it, a word for what it is, one line for people.
    plugin_type: str = ""
    reason: str = ""
    message: str = ""
    detail: object = None
    missed: int = 0


def about(attachment: Attachment) -> Event:
    """The event that tells the state `attachment` has come to."""
    return Event(
        kind=Kind.ATTACHMENT,
        network=attachment.network,
        container_id=attachment.container_id,
        ifname=attachment.ifname,
        state=attachment.state,
        error=attachment.error,
        detail=msgspec.structs.replace(attachment, config=b""),
    )


class EventLog:
    """The ring and its watchers."""

    def __init__(
        self,
        capacity: int = CAPACITY,
        *,
        epoch: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._epoch = epoch or os.urandom(4).hex()
        self._clock = clock
        self._ring: deque[Event] = deque(maxlen=capacity)
        self._next = 1
        self._changed = threading.Condition()
        self._closed = False

    def publish(self, event: Event) -> Event:
        """Append `event`, with the time and its cursor; wake the watchers."""
        with self._changed:
            stamped = msgspec.structs.replace(
                event, at=self._clock(), cursor=self._cursor(self._next)
            )
            self._ring.append(stamped)
            self._next += 1
            self._changed.notify_all()
        return stamped

    def watch(self, cursor: str | None = None) -> Watch:
        """Watch from now on, or from just behind the event that had `cursor`."""
        with self._changed:
            return Watch(self, self._next if cursor is None else self._position(cursor))

    def cursor(self) -> str:
        """The place behind the last event: list first, then watch from here."""
        with self._changed:
            return self._cursor(self._next - 1)

    def close(self) -> None:
        """End every watch."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _cursor(self, position: int) -> str:
        return f"{self._epoch}-{position}"

    def _position(self, cursor: str) -> int:
        """The position behind `cursor`; 0, which is never in the ring, if it is not ours."""
        epoch, _, number = cursor.partition("-")
        if epoch != self._epoch or not (number.isascii() and number.isdigit()):
            return 0
        if len(number) > MAX_DIGITS:
            return 0
        position = int(number) + 1
        return position if position <= self._next else 0

    def read(
        self, position: int, timeout_s: float | None, stopped: Callable[[], bool]
    ) -> tuple[Event | None, int]:
        """The event at `position`, waiting for it, and the position after it; None: no event."""
        with self._changed:
            self._changed.wait_for(
                lambda: position < self._next or self._closed or stopped(), timeout_s
            )
            oldest = self._next - len(self._ring)
            if position < oldest:
                # Position 0 is that of a cursor that is not ours: nobody knows how many.
                lost = Event(
                    kind=Kind.LOST,
                    at=self._clock(),
                    cursor=self._cursor(oldest - 1),
                    missed=oldest - position if position else 0,
                )
                return lost, oldest
            if position < self._next and not stopped():
                return self._ring[position - oldest], position + 1
            return None, position

    def wake(self) -> None:
        """Have every waiting watcher look again whether it was stopped."""
        with self._changed:
            self._changed.notify_all()


class Watch:
    """One watcher's place in the ring; iterate over it, or poll it with `get`."""

    def __init__(self, events: EventLog, position: int) -> None:
        self._events = events
        self._position = position
        self._stopped = False

    def get(self, timeout_s: float | None = None) -> Event | None:
        """The next event; None after `timeout_s` without one, or when there will be none."""
        event, self._position = self._events.read(self._position, timeout_s, lambda: self._stopped)
        return event

    def stop(self) -> None:
        """End this watch from another thread, at once."""
        self._stopped = True
        self._events.wake()

    def __iter__(self) -> Iterator[Event]:
        """Every event from here on, until the watch is stopped or the log closed."""
        while (event := self.get()) is not None:
            yield event
