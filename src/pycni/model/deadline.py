# SPDX-License-Identifier: Apache-2.0
"""One call's time limit and its caller's change of mind, checked wherever a call may wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pycni.errors import TryAgain


class Deadline:
    """A point in monotonic time after which, or a cancellation upon which, a call must stop."""

    def __init__(self, timeout_s: float | None = None) -> None:
        self._at = None if timeout_s is None else time.monotonic() + timeout_s
        self._cancelled = threading.Event()
        self._wakers: dict[object, Callable[[], None]] = {}
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """Make every present and future wait on this deadline end at once."""
        with self._lock:
            self._cancelled.set()
            for wake in self._wakers.values():
                wake()
            self._wakers.clear()

    def on_cancel(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Have `cancel` call `wake`, at once if it has come already; returns how to take it back.

        For waits on something this class knows nothing of: a child process, a lock. `wake` runs
        on the canceller's thread, must not raise and never runs after it was taken back; take it
        back without holding a lock that `wake` needs.
        """
        token = object()
        with self._lock:
            self._wakers[token] = wake
            if self._cancelled.is_set():
                wake()
        return lambda: self._forget(token)

    def _forget(self, token: object) -> None:
        with self._lock:
            self._wakers.pop(token, None)

    @property
    def cancelled(self) -> bool:
        """Whether the caller has given up."""
        return self._cancelled.is_set()

    @property
    def expired(self) -> bool:
        """Whether the call must stop, for lack of time or of a caller."""
        return self.cancelled or self.remaining_s() == 0

    def remaining_s(self) -> float | None:
        """Seconds left, 0 when over, None when unlimited."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def sleep(self, seconds: float) -> None:
        """Sleep `seconds`, less if the deadline comes first; then raise as `check` does."""
        left = self.remaining_s()
        self._cancelled.wait(seconds if left is None else min(seconds, left))
        self.check()

    def check(self, what: str = "the call") -> None:
        """Raise TryAgain (11) naming `what` if the call must stop."""
        if self.cancelled:
            raise TryAgain(f"{what} was cancelled by the caller")
        if self.remaining_s() == 0:
            raise TryAgain(f"{what} did not finish before its deadline")
