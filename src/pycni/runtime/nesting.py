# SPDX-License-Identifier: Apache-2.0
"""Calls inside calls: a node runs an executable, and the executable calls the node.

A third-party plugin that delegates to `host-local` or `bridge` finds our shim in the plugin path,
and the shim comes to the node that is waiting for that plugin. Such a call belongs to the one that
waits: it must not queue behind it for the container, the network or a place. A token in the
environment says so; it is worth nothing once the outer call has ended.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from contextvars import ContextVar

_current: ContextVar[str] = ContextVar("nesting", default="")


def current() -> str:
    """The token of the call this thread works for; empty outside of one."""
    return _current.get()


@contextlib.contextmanager
def bound(token: str) -> Iterator[None]:
    """Work inside the call `token`, on a thread of its own."""
    before = _current.set(token)
    try:
        yield
    finally:
        _current.reset(before)


class Nesting:
    """The calls of a node that hold its locks now, and what each holds."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[frozenset[str], str | None]] = {}

    @contextlib.contextmanager
    def holding(self, networks: Collection[str], container_id: str | None) -> Iterator[None]:
        """Around a call that holds these networks and this container; None: all of them."""
        token = os.urandom(8).hex()
        self._held[token] = frozenset(networks), container_id
        before = _current.set(token)
        try:
            yield
        finally:
            _current.reset(before)
            del self._held[token]

    def covers(self, token: str, network: str, container_id: str) -> bool:
        """Whether the call `token` is still running and holds what this one needs."""
        networks, container = self._held.get(token, (frozenset[str](), ""))
        return network in networks and container in (None, container_id)
