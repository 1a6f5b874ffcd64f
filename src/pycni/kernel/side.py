# SPDX-License-Identifier: Apache-2.0
"""One side of a call, the host's or the container's: everything the kernel offers there.

Nothing is opened, or even imported, before it is used: a plugin that only reads a sysctl makes no
netlink socket, and the class can be named on systems that have none of this.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from pycni.kernel.addresses import Addresses
    from pycni.kernel.bridge_vlans import BridgeVlans
    from pycni.kernel.conntrack import Conntrack
    from pycni.kernel.links import Links
    from pycni.kernel.neighbours import Neighbours
    from pycni.kernel.netns import Netns
    from pycni.kernel.nft import Nft
    from pycni.kernel.routes import Routes
    from pycni.kernel.rtnl import Rtnl
    from pycni.kernel.rules import Rules
    from pycni.kernel.shaping import Filters, Qdiscs
    from pycni.kernel.sysctl import Sysctl

T = TypeVar("T")


class Side:
    """A namespace (None: the process's own) and what can be done there, from any thread.

    A Side owns the namespace's handle only if `open` made it; otherwise `close` closes the sockets
    and leaves `netns` to whoever opened it, and the next use opens anew.
    """

    def __init__(self, netns: Netns | None = None) -> None:
        self.netns = netns
        self._owns_netns = False
        self._identity: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._rtnl: Rtnl | None = None
        self._nft: Nft | None = None
        self._conntrack: Conntrack | None = None
        self._sysctl: Sysctl | None = None

    @classmethod
    def open(cls, path: str, *, fd: int | None = None) -> Self:
        """The namespace at `path`, or behind `fd`, which stays the caller's; NamespaceGone.

        With `fd`, `path` is only what errors call it. InvalidNetns (8) when it is something else.
        """
        from pycni.kernel.netns import Netns

        side = cls(Netns.open(path) if fd is None else Netns.from_fd(os.dup(fd), path))
        side._owns_netns = True
        return side

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the namespace; a process's own is the same for its whole life."""
        if self._identity is None:
            from pycni.kernel.netns import Netns

            if self.netns is not None:
                return self.netns.identity
            with Netns.current() as own:
                self._identity = own.identity
        return self._identity

    @property
    def rtnl(self) -> Rtnl:
        """The rtnetlink socket; its facets are attributes of the Side too."""
        if self._rtnl is None:
            from pycni.kernel.rtnl import Rtnl

            with self._lock:
                if self._rtnl is None:
                    self._rtnl = Rtnl(self.netns)
        return self._rtnl

    @property
    def nft(self) -> Nft:
        """nftables."""
        if self._nft is None:
            from pycni.kernel.nft import Nft

            with self._lock:
                if self._nft is None:
                    self._nft = Nft(self.netns)
        return self._nft

    @property
    def conntrack(self) -> Conntrack:
        """The connection tracking table."""
        if self._conntrack is None:
            from pycni.kernel.conntrack import Conntrack

            with self._lock:
                if self._conntrack is None:
                    self._conntrack = Conntrack(self.netns)
        return self._conntrack

    @property
    def sysctl(self) -> Sysctl:
        """Kernel parameters."""
        if self._sysctl is None:
            from pycni.kernel.sysctl import Sysctl

            self._sysctl = Sysctl(self.netns)
        return self._sysctl

    @property
    def links(self) -> Links:
        """Network interfaces."""
        return self.rtnl.links

    @property
    def addresses(self) -> Addresses:
        """IP addresses of links."""
        return self.rtnl.addresses

    @property
    def routes(self) -> Routes:
        """Routes."""
        return self.rtnl.routes

    @property
    def rules(self) -> Rules:
        """Policy routing rules."""
        return self.rtnl.rules

    @property
    def neighbours(self) -> Neighbours:
        """ARP and NDP entries."""
        return self.rtnl.neighbours

    @property
    def qdiscs(self) -> Qdiscs:
        """Queueing disciplines."""
        return self.rtnl.qdiscs

    @property
    def filters(self) -> Filters:
        """Traffic filters."""
        return self.rtnl.filters

    @property
    def bridge_vlans(self) -> BridgeVlans:
        """VLANs of bridge ports."""
        return self.rtnl.bridge_vlans

    def batch(self) -> AbstractContextManager[None]:
        """Send this thread's rtnetlink mutations together; see `Rtnl.batch`."""
        return self.rtnl.batch()

    def run(self, fn: Callable[[], T]) -> T:
        """Call `fn` inside the namespace."""
        return fn() if self.netns is None else self.netns.run(fn)

    def close(self) -> None:
        """Close what was opened."""
        with self._lock:
            opened = (self._rtnl, self._nft, self._conntrack, self._sysctl)
            self._rtnl = self._nft = self._conntrack = self._sysctl = None
        for resource in opened:
            if resource is not None:
                resource.close()
        if self._owns_netns and self.netns is not None:
            self.netns.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
