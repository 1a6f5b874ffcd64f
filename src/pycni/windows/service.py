# SPDX-License-Identifier: Apache-2.0
"""The host networking service as plugins reach it: connect, then ask for a dialect."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from pycni.errors import InvalidConfig
from pycni.model.deadline import Deadline
from pycni.windows import abi
from pycni.windows.calls import CALL_TIMEOUT_S, Calls
from pycni.windows.dialects import V1, V2, Dialect
from pycni.windows.hcn import Hcn
from pycni.windows.hns import Hns
from pycni.windows.sandbox import Sandbox, choose_api

ROLLBACK_S = 30.0

_native: abi.Native | None = None


class Service:
    """Both clients on one deadline."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.hcn = Hcn(calls)
        self.hns = Hns(calls)

    def dialect(self, configured: int | None, sandbox: Sandbox) -> Dialect:
        """The schema for this sandbox; see `choose_api`."""
        api = choose_api(configured, sandbox, self.hns)
        return self.v2 if api == 2 else V1(self.hns)

    def lenient_dialect(self, configured: int | None, sandbox: Sandbox) -> Dialect:
        """The same for DEL, which works even where ADD would complain about the configuration."""
        try:
            return self.dialect(configured, sandbox)
        except InvalidConfig:
            return self.dialect(None, sandbox)

    def own_dialect(self, configured: int | None) -> Dialect:
        """The schema for a call about the network as a whole: GC and STATUS."""
        return self.lenient_dialect(configured, Sandbox("", ""))

    def for_rollback(self, dialect: Dialect) -> Dialect:
        """The same schema with time of its own: a verb out of time must still clean up."""
        fresh = Service(self._calls.until(time.monotonic() + ROLLBACK_S))
        return fresh.v2 if isinstance(dialect, V2) else V1(fresh.hns)

    @property
    def v2(self) -> V2:
        """Schema 2, wanted or not; creating networks needs it."""
        return V2(self.hcn, self.hns)


def connect(deadline: Deadline, *, timeout_s: float = CALL_TIMEOUT_S) -> Service:
    """The service of this machine, every call bound by the verb's deadline."""
    global _native  # one table of loaded functions for the process
    if _native is None:
        _native = abi.Library()
    left = deadline.remaining_s()
    end = None if left is None else time.monotonic() + left
    return Service(Calls(_native, timeout_s=timeout_s, deadline=end))


@contextlib.contextmanager
def standing_in(native: abi.Native) -> Iterator[None]:
    """Let `connect` reach `native` instead of the DLLs; for tests."""
    global _native
    before, _native = _native, native
    try:
        yield
    finally:
        _native = before
