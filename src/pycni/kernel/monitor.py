# SPDX-License-Identifier: Apache-2.0
"""Listen to what changes in a namespace."""

from __future__ import annotations

import _socket
import errno
import os
import select
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from pycni.errors import KernelError
from pycni.kernel import nlwire
from pycni.kernel.netns import Netns
from pycni.kernel.nlsocket import NETLINK_ROUTE, SOL_NETLINK, failure, open_socket
from pycni.kernel.nlwire import address, link, neighbour, route, rule
from pycni.kernel.types import Event, Subject

# Bits of the bind mask: RTNLGRP_x is bit x - 1.
GROUPS = {
    "link": 1 << 0,
    "neighbour": 1 << 2,
    "address": 1 << 4 | 1 << 8,
    "route": 1 << 6 | 1 << 10,
    "rule": 1 << 7 | 1 << 18,
}

SO_RCVBUFFORCE = 33
NETLINK_LISTEN_ALL_NSID = 8
_RECEIVE_QUEUE = 1 << 22
_RECEIVE_SIZE = 1 << 16
_ANCILLARY_SIZE = 64

_REMOVALS = {
    link.RTM_DELLINK,
    address.RTM_DELADDR,
    route.RTM_DELROUTE,
    rule.RTM_DELRULE,
    neighbour.RTM_DELNEIGH,
}


class Monitor:
    """Changes in one namespace (None: the process's own) from now on, as they happen.

    Iterate in one thread, `close` from any: the iteration then ends::

        with Monitor(namespace, ("link", "address")) as monitor:
            for event in monitor: ...

    With `everywhere` also in every namespace that has an id in this one, as each has into which a
    veth pair leads from here: one socket hears of all containers.
    """

    def __init__(
        self,
        namespace: Netns | None = None,
        groups: Sequence[str] = ("link", "address"),
        *,
        everywhere: bool = False,
    ) -> None:
        mask = 0
        for group in groups:
            mask |= GROUPS[group]
        self._closed = False
        # Held while the descriptors are in use, so that close() does not pull them away.
        self._reading = threading.Lock()
        self._socket = open_socket(namespace, NETLINK_ROUTE)
        try:
            self._grow_queue()
            if everywhere:
                self._socket.setsockopt(SOL_NETLINK, NETLINK_LISTEN_ALL_NSID, 1)
            self._socket.bind((0, mask))
        except OSError as exc:
            self._socket.close()
            raise failure("listen on", "netlink socket", exc.errno or errno.EIO, "") from exc
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._poll.register(self._socket.fileno(), select.POLLIN)

    def __iter__(self) -> Iterator[Event]:
        """Wait for events until the monitor is closed."""
        while not self._closed:
            yield from self.read()

    def read(self, timeout_s: float | None = None) -> list[Event]:
        """Wait for the next events; none when the time is over or the monitor closed."""
        with self._reading:
            if self._closed:
                return []
            ready = dict(self._poll.poll(None if timeout_s is None else timeout_s * 1000))
            if self._wake in ready or self._socket.fileno() not in ready:
                return []
            try:
                received, ancillary, _, _ = self._socket.recvmsg(_RECEIVE_SIZE, _ANCILLARY_SIZE)
            except OSError as exc:
                if exc.errno == errno.ENOBUFS:
                    return [Event(subject=None)]
                raise KernelError("listen on", "netlink socket", exc.errno or errno.EIO) from exc
        nsid = _namespace_id(ancillary)
        return [
            Event(subject=subject, removed=kind in _REMOVALS, nsid=nsid)
            for kind, _, _, payload in nlwire.messages(received)
            for subject in _subjects(kind, payload)
            if subject is not None
        ]

    def close(self) -> None:
        """End the iteration and close the socket; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._wake, 1)
        with self._reading:
            self._socket.close()
            os.close(self._wake)

    def _grow_queue(self) -> None:
        try:
            self._socket.setsockopt(_socket.SOL_SOCKET, SO_RCVBUFFORCE, _RECEIVE_QUEUE)
        except PermissionError:  # without CAP_NET_ADMIN the machine's limit holds
            self._socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVBUF, _RECEIVE_QUEUE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _namespace_id(ancillary: Sequence[tuple[int, int, bytes]]) -> int | None:
    """The namespace a message came from; the kernel says nothing of the socket's own."""
    for level, kind, data in ancillary:
        if (level, kind) == (SOL_NETLINK, NETLINK_LISTEN_ALL_NSID):
            return nlwire.as_s32(data)
    return None


def _subjects(kind: int, payload: bytes) -> Sequence[Subject | None]:
    """What a notification is about; nothing when it is none of ours."""
    match kind:
        case link.RTM_NEWLINK | link.RTM_DELLINK:
            # Bridges speak of their ports in messages of family AF_BRIDGE: RTM_DELLINK is then a
            # port that left, not a link that is gone.
            return (link.parse(payload),) if payload[0] == address.AF_UNSPEC else ()
        case address.RTM_NEWADDR | address.RTM_DELADDR:
            return (address.parse(payload),)
        case route.RTM_NEWROUTE | route.RTM_DELROUTE:
            return route.parse(payload)
        case rule.RTM_NEWRULE | rule.RTM_DELRULE:
            return (rule.parse(payload),)
        case neighbour.RTM_NEWNEIGH | neighbour.RTM_DELNEIGH:
            return (neighbour.parse(payload),)
        case _:
            return ()
