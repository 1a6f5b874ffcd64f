# SPDX-License-Identifier: Apache-2.0
"""The calls that plugin daemons are serving now, by the token each was given.

A daemon that wants another plugin run (its IPAM plugin, for one) asks for it in the name of the
call it serves: the delegate gets that call's container, namespace and time, and runs under the
locks that call holds. The token is worth nothing once the call has ended.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from contextvars import ContextVar

import msgspec

from pycni.errors import InvalidConfig
from pycni.model.deadline import Deadline
from pycni.model.request import Request
from pycni.runtime import nesting
from pycni.service.access import NotPermitted

MAX_DEPTH = 8  # a daemon that delegates to itself must not take every thread there is

_outer: ContextVar[tuple[str, ...]] = ContextVar("outer operations", default=())


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A call a daemon serves: what it was given, and what it is part of.

    `parent` is the call of the node that holds the locks, `outer` the operations in whose name
    this one was delegated.
    """

    request: Request
    deadline: Deadline
    parent: str
    name: str
    outer: tuple[str, ...]

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Work inside this call, on a thread of its own."""
        token = _outer.set((*self.outer, self.name))
        try:
            with nesting.bound(self.parent):
                yield
        finally:
            _outer.reset(token)


class Operations:
    """The operations that are running."""

    def __init__(self) -> None:
        self._running: dict[str, Operation] = {}

    @contextlib.contextmanager
    def running(
        self, request: Request, deadline: Deadline
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Around one call to a daemon: the token it may delegate with, and the outer operations."""
        outer = _outer.get()
        if len(outer) >= MAX_DEPTH:
            raise InvalidConfig(f"plugins delegate to each other more than {MAX_DEPTH} deep")
        name = secrets.token_hex(8)
        token = f"{name}.{secrets.token_urlsafe(16)}"
        self._running[token] = Operation(
            request=request,
            deadline=deadline,
            parent=nesting.current() or request.parent,
            name=name,
            outer=outer,
        )
        try:
            yield token, outer
        finally:
            del self._running[token]

    def get(self, token: str) -> Operation:
        """The operation of that token; raise NotPermitted if there is none, or none any more."""
        operation = self._running.get(token)
        if operation is None:
            raise NotPermitted(
                "delegation outside of an operation",
                hint="give the operation of the call being served, while it is being served",
            )
        return operation

    def __len__(self) -> int:
        """How many are running."""
        return len(self._running)
