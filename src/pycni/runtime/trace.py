# SPDX-License-Identifier: Apache-2.0
"""The W3C trace context of the current call, handed on to the plugins it executes."""

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
