# SPDX-License-Identifier: Apache-2.0
"""rtnetlink for one namespace: links, addresses, routes, rules, neighbours, shaping, VLANs.

`Rtnl` owns the socket and the batch; each kind of object has its own module and stands here as
an attribute::

    rtnl = Rtnl(namespace)
    with rtnl.batch():                       # one send
        rtnl.links.set(eth0.index, up=True)
        rtnl.addresses.add(eth0.index, cidr)
        rtnl.routes.add(default)

Everything is safe to call from any thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from struct import Struct
from types import TracebackType
from typing import Self

from pycni.errors import KernelError
from pycni.kernel import nlwire
from pycni.kernel.addresses import Addresses
from pycni.kernel.bridge_vlans import BridgeVlans
from pycni.kernel.links import Links
from pycni.kernel.monitor import Monitor
from pycni.kernel.neighbours import Neighbours
from pycni.kernel.netns import Netns
from pycni.kernel.nlsocket import NO_FAILURES, Failures, Mutation, NetlinkSocket, Target
from pycni.kernel.routes import Routes
from pycni.kernel.rules import Rules
from pycni.kernel.shaping import Filters, Qdiscs

__all__ = ["Monitor", "Rtnl"]

RTM_GETNSID = 90
NETNSA_NSID, NETNSA_FD = 1, 3
_RTGEN = Struct("=B3x")


class Rtnl:
    """One rtnetlink socket in `namespace` (None: the process's own), with a facet per object."""

    def __init__(self, namespace: Netns | None = None) -> None:
        self.namespace = namespace
        self._socket = NetlinkSocket(namespace)
        # Per thread: two requests that share the host's Rtnl must not see each other's queue.
        self._local = threading.local()
        self.links = Links(self)
        self.addresses = Addresses(self)
        self.routes = Routes(self)
        self.rules = Rules(self)
        self.neighbours = Neighbours(self)
        self.qdiscs = Qdiscs(self)
        self.filters = Filters(self)
        self.bridge_vlans = BridgeVlans(self)

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Queue this thread's mutations and send them together when the block ends.

        The kernel works through all of them, also past one it refuses: after an error, those
        before it and perhaps some behind it *have been applied*; undo by the object. The first
        refusal is raised, named by its own operation and target, the others are its notes.
        Nothing is sent when the block itself raises. Reads inside the block are not queued and
        do not see what is. A block inside a block joins it.
        """
        if self.batching:
            yield
            return
        queue: list[Mutation] = []
        self._local.queue = queue
        try:
            yield
        finally:
            self._local.queue = None
        if queue:
            self._socket.mutate(queue)

    @property
    def batching(self) -> bool:
        """Is this thread inside a `batch` block?"""
        return getattr(self._local, "queue", None) is not None

    def mutate(self, *mutations: Mutation) -> None:
        """Send now, or with the batch this thread is in."""
        queue: list[Mutation] | None = getattr(self._local, "queue", None)
        if queue is None:
            self._socket.mutate(mutations)
        else:
            queue.extend(mutations)

    def apply(self, *mutations: Mutation) -> list[KernelError | None]:
        """Send now and tell what became of each; in a batch they are queued and all None."""
        queue: list[Mutation] | None = getattr(self._local, "queue", None)
        if queue is None:
            return self._socket.apply(mutations)
        queue.extend(mutations)
        return [None] * len(mutations)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Have other threads' requests wait; the block must make none.

        For parameters the kernel changes under the lock that requests take too: whoever finds it
        taken tries again at once, and again, on a processor the holder may need.
        """
        with self._socket.alone():
            yield

    def query(
        self, kind: int, body: bytes, op: str, target: Target, failures: Failures = NO_FAILURES
    ) -> bytes:
        """The payload of the one answer."""
        return self._socket.query(kind, body, op, target, failures)

    def dump(
        self, kind: int, body: bytes, op: str, target: Target, failures: Failures = NO_FAILURES
    ) -> list[bytes]:
        """The payloads of all answers."""
        return self._socket.dump(kind, body, op, target, failures)

    def namespace_id(self, namespace: Netns) -> int | None:
        """The id by which this namespace calls another (`Link.peer_netnsid`), if it has one."""
        body = _RTGEN.pack(0) + nlwire.u32(NETNSA_FD, namespace.fd)
        payload = self.query(RTM_GETNSID, body, "get the id of namespace", namespace.path)
        found = nlwire.attributes(payload, _RTGEN.size)
        number = nlwire.as_s32(found[NETNSA_NSID])
        return None if number < 0 else number

    def close(self) -> None:
        """Close the socket; a second call does nothing."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
