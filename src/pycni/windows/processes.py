# SPDX-License-Identifier: Apache-2.0
"""Running a plugin executable on Windows: to its end, or killed with all it started.

What a process group is on Linux is a job here: the child is put into one, whatever it starts joins
it, and when the job's last handle closes, its processes are ended, even if this process dies. A
child that ended by itself may leave a daemon behind, so then the job lets go of what is in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO, Any

from pycni.errors import IOFailure
from pycni.model.deadline import Deadline
from pycni.windows.abi import load_system32

_CREATE_NO_WINDOW = 0x08000000
_EXTENDED_LIMIT_INFORMATION = 9
_KILL_ON_JOB_CLOSE = 0x2000
# JOBOBJECT_EXTENDED_LIMIT_INFORMATION on 64-bit systems: its size, and where LimitFlags lies.
_LIMITS_SIZE, _LIMIT_FLAGS_AT = 144, 16
_POLL_S = 0.05
_END_S = 10.0


class Job:
    """A job object; closing it ends its processes unless `release` was called."""

    def __init__(self) -> None:
        self._kernel32: Any = load_system32("kernel32.dll")
        create = self._kernel32["CreateJobObjectW"]
        create.restype = ctypes.c_void_p
        create.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._handle: int | None = create(None, None)
        if not self._handle:
            raise IOFailure("cannot create a job object")
        self._set_flags(_KILL_ON_JOB_CLOSE)

    def assign(self, process_handle: int) -> None:
        """Put a process into the job."""
        function = self._kernel32["AssignProcessToJobObject"]
        function.restype = ctypes.c_int32
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        if not function(self._handle, process_handle):
            raise IOFailure("cannot put the plugin into a job object")

    def release(self) -> None:
        """Let the processes in the job live on."""
        self._set_flags(0)

    def close(self) -> None:
        """Close the job."""
        function = self._kernel32["CloseHandle"]
        function.restype = ctypes.c_int32
        function.argtypes = [ctypes.c_void_p]
        function(self._handle)
        self._handle = None

    def _set_flags(self, flags: int) -> None:
        limits = bytearray(_LIMITS_SIZE)
        limits[_LIMIT_FLAGS_AT : _LIMIT_FLAGS_AT + 4] = flags.to_bytes(4, "little")
        function = self._kernel32["SetInformationJobObject"]
        function.restype = ctypes.c_int32
        function.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint32]
        buffer = (ctypes.c_char * _LIMITS_SIZE).from_buffer(limits)
        if not function(self._handle, _EXTENDED_LIMIT_INFORMATION, buffer, _LIMITS_SIZE):
            raise IOFailure("cannot set the limits of a job object")


class _Stream:
    """One output stream, read by a thread of its own up to a limit."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self.content = b""
        self.too_much = False
        self._stream = stream
        self._limit = limit
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._stream:
            while chunk := self._stream.read1(1 << 16):  # type: ignore[attr-defined] # a BufferedReader
                self.content = (self.content + chunk)[: self._limit + 1]
                self.too_much = len(self.content) > self._limit

    def finish(self) -> bytes:
        """What was read. A daemon left behind may hold the pipe: do not wait for its end long."""
        self._thread.join(1.0)
        return self.content[: self._limit]


def run(
    executable: str,
    stdin: bytes,
    env: Mapping[str, str],
    deadline: Deadline,
    *,
    what: str,
    stdout_limit: int,
    stderr_limit: int,
) -> tuple[int, bytes, bytes]:
    """Exit status, standard output and standard error; raise what `deadline.check` does."""
    job = Job()
    process: subprocess.Popen[bytes] | None = None
    try:
        try:
            process = subprocess.Popen(  # noqa: S603 -- a file of a configured directory, no shell
                [executable],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                creationflags=_CREATE_NO_WINDOW,
            )
        except OSError as exc:
            raise IOFailure(f"cannot execute {executable}: {exc.strerror}") from exc
        job.assign(_handle_of(process))
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        feeder = threading.Thread(target=_feed, args=(process.stdin, stdin), daemon=True)
        feeder.start()
        stdout = _Stream(process.stdout, stdout_limit)
        stderr = _Stream(process.stderr, stderr_limit)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
                break
            deadline.check(what)
            if stdout.too_much:
                break
        if stdout.too_much:
            raise IOFailure(f"{what}: more than {stdout_limit} bytes on stdout")
        job.release()
        return process.returncode, stdout.finish(), stderr.finish()
    finally:
        job.close()
        if process is not None:
            process.wait(_END_S)


def _feed(pipe: IO[bytes], content: bytes) -> None:
    """Write the configuration; a plugin that does not read it is not at fault."""
    with contextlib.suppress(OSError), pipe:
        pipe.write(content)


def _handle_of(process: subprocess.Popen[bytes]) -> int:
    if sys.platform == "win32":
        return int(process._handle)
    raise IOFailure("jobs exist on Windows only")
