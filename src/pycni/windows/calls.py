# SPDX-License-Identifier: Apache-2.0
"""Native calls with a deadline, retries and typed errors.

The service hangs now and then: minutes inside one call, with no way to interrupt it. So each call
runs on a thread of its own, and the caller stops waiting at the deadline. The thread cannot be
stopped. It goes on, and when its call returns late it closes the handle nobody waits for. Callers
hanging on a dead service must not pile up threads without end, so beyond `MOST_HANGING` of them
new calls are refused at once.

Transient failures are repeated with growing pauses until the deadline. A call that timed out is
not repeated: it may still be at work. There is no lock: a hanging call must hold up no other.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator

import msgspec

from pycni.errors import CniError
from pycni.windows import abi, errors

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 120.0  # what Azure's plugin allows (azure-container-networking PR 1369)
MOST_HANGING = 32
_CLOSE_TIMEOUT_S = 2.0  # nobody needs the answer, and the thread goes on without us
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


class _Hanging:
    """How many calls run on though their callers gave up, in the whole process."""

    lock = threading.Lock()
    count = 0


class _Running:
    """One call on its thread: the outcome, or the knowledge that nobody waits any more."""

    def __init__(self, native: abi.Native, function: str) -> None:
        self._native = native
        self._function = function
        self._abandoned = False
        self._done = threading.Event()
        self._reply: abi.Reply | None = None
        self._error: Exception | None = None

    def run(self, guid: uuid.UUID, handle: int, texts: tuple[str, ...]) -> None:
        """Make the call; if its caller gave up meanwhile, close the handle it returned."""
        try:
            self._reply = self._native.invoke(self._function, guid=guid, handle=handle, texts=texts)
        except Exception as exc:  # noqa: BLE001 - carried to the waiting thread and raised there
            self._error = exc
        with _Hanging.lock:
            self._done.set()
            late = self._abandoned
            _Hanging.count -= late
        closer = abi.SIGNATURES[self._function].closer
        if late and closer and self._reply is not None and self._reply.handle:
            log.warning("hns call returned late: function=%s", self._function)
            with contextlib.suppress(CniError):
                self._native.invoke(closer, handle=self._reply.handle)

    def wait(self, timeout_s: float) -> abi.Reply | None:
        """The reply, or None when the time is over."""
        self._done.wait(timeout_s)
        with _Hanging.lock:
            if not self._done.is_set():
                self._abandoned = True
                _Hanging.count += 1
                return None
        if self._error is not None:
            raise self._error
        return self._reply


class Calls:
    """Native functions for the typed clients; safe to share between threads.

    `deadline` (on `clock`) bounds all calls of one verb together, `timeout_s` each call.
    """

    def __init__(
        self,
        native: abi.Native,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.native = native
        self.timeout_s = timeout_s
        self._deadline = deadline
        self._clock = clock
        self._sleep = sleep

    def until(self, deadline: float | None) -> Calls:
        """The same functions under another deadline."""
        return Calls(
            self.native,
            timeout_s=self.timeout_s,
            deadline=deadline,
            clock=self._clock,
            sleep=self._sleep,
        )

    def run(
        self,
        function: str,
        *,
        guid: uuid.UUID = abi.NIL,
        handle: int = 0,
        texts: tuple[str, ...] = (),
        judge: Callable[[abi.Reply], CniError | None] | None = None,
    ) -> abi.Reply:
        """Call until it succeeds, fails for good, or the deadline is near."""
        judge = judge or (lambda reply: judge_reply(function, reply))
        end = self._clock() + self.timeout_s
        if self._deadline is not None:
            end = min(end, self._deadline)
        pause = _FIRST_PAUSE_S
        while True:
            reply = self._once(function, guid, handle, texts, end)
            error = judge(reply)
            if error is None:
                return reply
            if reply.handle:  # a record beside a success code: the handle is open all the same
                self.close(abi.SIGNATURES[function].closer, reply.handle)
            if not isinstance(error, errors.HnsTransient) or self._clock() + pause >= end:
                raise error
            log.info("hns call repeated: function=%s error=%s", function, error.msg)
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def close(self, closer: str, handle: int) -> None:
        """Close a handle; a failure is logged, for the caller's work is done either way.

        With a little time of its own: handles are closed after the deadline too.
        """
        end = self._clock() + min(self.timeout_s, _CLOSE_TIMEOUT_S)
        try:
            self._once(closer, abi.NIL, handle, (), end)
        except CniError as exc:
            log.warning("hns handle not closed: function=%s error=%s", closer, exc)

    @contextlib.contextmanager
    def opened(self, noun: str, ident: uuid.UUID) -> Iterator[int]:
        """A handle on an existing object, closed at the end."""
        handle = self.run(f"HcnOpen{noun}", guid=ident).handle
        try:
            yield handle
        finally:
            self.close(f"HcnClose{noun}", handle)

    def _once(
        self, function: str, guid: uuid.UUID, handle: int, texts: tuple[str, ...], end: float
    ) -> abi.Reply:
        wait_s = end - self._clock()
        if wait_s <= 0:
            raise errors.HnsTimeout(function, 0)
        if _Hanging.count >= MOST_HANGING:
            raise errors.HnsUnavailable(
                f"the host networking service hangs: {_Hanging.count} calls without an answer"
            )
        running = _Running(self.native, function)
        threading.Thread(
            target=running.run, args=(guid, handle, texts), name=f"hns-{function}", daemon=True
        ).start()
        reply = running.wait(wait_s)
        if reply is None:
            raise errors.HnsTimeout(function, wait_s)
        return reply


def judge_reply(function: str, reply: abi.Reply) -> CniError | None:
    """What is wrong with a reply of computenetwork.dll, if anything.

    A record that speaks of failure counts even beside a success code.
    """
    if reply.hresult & 0x80000000:
        return errors.from_hresult(_title(function), reply.hresult, reply.record)
    if reply.record:
        code = errors.read_record(reply.record).ErrorCode & 0xFFFFFFFF
        return errors.from_hresult(_title(function), code or reply.hresult, reply.record)
    return None


def judge_response(method: str, path: str, reply: abi.Reply) -> CniError | None:
    """What is wrong with a reply of HNSCall: a failing HRESULT, or a response that says so."""
    op = f"HNSCall {method} {path}"
    if reply.hresult & 0x80000000:
        return errors.from_hresult(op, reply.hresult, reply.text)
    try:
        said = msgspec.json.decode(reply.text, type=errors.Record)
    except msgspec.DecodeError as exc:
        return errors.HnsError(op, 0x803B001B, detail=f"the response is not JSON: {exc}")
    return None if said.Success else errors.from_response(op, reply.text)


def judge_compute(function: str, reply: abi.Reply) -> CniError | None:
    """What is wrong with a reply of the compute service; "pending" is no error."""
    if reply.hresult == errors.PENDING or not reply.hresult & 0x80000000:
        return None
    return errors.from_hresult(_title(function), reply.hresult, reply.record)


def _title(function: str) -> str:
    """Go's spelling, known from many a bug report: hcnOpenNamespace."""
    return function[0].lower() + function[1:]
