# SPDX-License-Identifier: Apache-2.0
"""What surrounds the current call: its W3C trace context, which the plugins it executes are given,
and what those plugins say on stderr, which its caller is given (SPEC section 4)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType

# libcni's pkg/invoke passes the same three.
VARIABLES = ("TRACEPARENT", "TRACESTATE", "BAGGAGE")

_current: ContextVar[Mapping[str, str]] = ContextVar("trace", default=MappingProxyType({}))


def current() -> Mapping[str, str]:
    """The trace variables of this call; empty when it is not traced."""
    return _current.get()


@contextlib.contextmanager
def bound(variables: Mapping[str, str]) -> Iterator[None]:
    """Give the calls made inside the block this trace context; other variables are dropped."""
    token = _current.set({name: variables[name] for name in VARIABLES if variables.get(name)})
    try:
        yield
    finally:
        _current.reset(token)


_overheard: ContextVar[list[str] | None] = ContextVar("overheard", default=None)


@contextlib.contextmanager
def overhearing() -> Iterator[list[str]]:
    """Collect what plugins executed inside the block say on stderr."""
    said: list[str] = []
    token = _overheard.set(said)
    try:
        yield said
    finally:
        _overheard.reset(token)


def overhear(text: str) -> None:
    """Pass on what a plugin has said, if anybody listens."""
    said = _overheard.get()
    if said is not None:
        said.append(text)
