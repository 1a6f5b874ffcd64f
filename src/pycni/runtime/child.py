# SPDX-License-Identifier: Apache-2.0
"""One process of a plugin executable: started, fed, heard out, and killed when its time is over.

This is the only module outside `kernel/` and `windows/` that starts processes. It is imported with
the first one: a plugin run without a service mostly starts none, and this is 3 ms of its time.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from pycni.errors import CniError, DecodeFailure, IOFailure, TryAgain
from pycni.kernel.side import Side
from pycni.log import Log
from pycni.model.deadline import Deadline
from pycni.model.request import Request
from pycni.model.wire_error import parse_error
from pycni.runtime import trace
from pycni.runtime.errors import PluginFailed
from pycni.runtime.redaction import redact

log = Log(__name__)

STDOUT_LIMIT = 4 << 20
STDERR_LIMIT = 64 << 10
QUOTED_LIMIT = 2 << 10  # of a plugin's stderr or stdout in one error message

# An executable still open for writing, as just after an upgrade (libcni: 5 retries, 1 s apart).
BUSY_TRIES = 6
BUSY_DELAY_S = 1.0


def run(
    plugin_type: str,
    executable: str,
    request: Request,
    env: dict[str, str],
    deadline: Deadline,
    *,
    host: Side,
    lifeline: int | None = None,
) -> bytes:
    """What the executable, started in the namespace of `host`, prints; else its error is raised.

    It inherits the descriptor `lifeline`.
    """
    what = f"{request.verb} of plugin {plugin_type}"
    if os.name == "nt":
        from pycni.windows import processes

        limits = {"stdout_limit": STDOUT_LIMIT, "stderr_limit": STDERR_LIMIT}
        status, stdout, stderr = processes.run(
            executable, request.config, env, deadline, what=what, **limits
        )
    else:
        process = _start(executable, request.config, env, deadline, host=host, lifeline=lifeline)
        stdout, stderr = _supervise(process, what, deadline)
        status = process.returncode
    said = redact(stderr.decode("utf-8", "replace"), request.config).strip()
    if said:
        log.info("plugin %s %s: %s", plugin_type, request.verb, said)
        trace.overhear(said)
    if status:
        raise _failure(status, stdout, said, request.config)
    return stdout


def _start(
    executable: str,
    stdin: bytes,
    env: dict[str, str],
    deadline: Deadline,
    *,
    host: Side,
    lifeline: int | None,
) -> subprocess.Popen[bytes]:
    inherited = () if lifeline is None else (lifeline,)
    with _as_file(stdin) as stdin_fd:

        def start() -> subprocess.Popen[bytes]:
            # Its own session: a group to kill, and no terminal to be stopped by.
            return subprocess.Popen(  # a file of a configured directory, and no shell
                [executable],
                stdin=stdin_fd,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                start_new_session=True,
                pass_fds=inherited,
            )

        for attempt in range(BUSY_TRIES):
            if attempt:
                deadline.sleep(BUSY_DELAY_S)
            try:
                return host.run(start)
            except OSError as exc:
                if exc.errno != errno.ETXTBSY:
                    reason = exc.strerror
                    raise IOFailure(f"cannot execute {executable}: {reason}") from exc
    # Go returns success here, with nothing on stdout.
    raise TryAgain(f"{executable} is being written to (text file busy)")


@contextmanager
def _as_file(content: bytes) -> Iterator[int]:
    """`content` as a readable descriptor: however slowly a plugin reads, nobody has to feed it."""
    fd = os.memfd_create("cni-config", os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _supervise(
    process: subprocess.Popen[bytes], what: str, deadline: Deadline
) -> tuple[bytes, bytes]:
    """Collect the output until the process exits; kill its whole group if it must not go on.

    The end is the exit of the process, not of its pipes: a daemon it leaves behind may hold them.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    stdout, stderr = bytearray(), bytearray()
    streams = {process.stdout.fileno(): stdout, process.stderr.fileno(): stderr}
    pidfd = os.pidfd_open(process.pid)
    wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    forget = deadline.on_cancel(lambda: os.eventfd_write(wake, 1))
    try:
        poller = select.poll()
        for fd in (*streams, pidfd, wake):
            poller.register(fd, select.POLLIN)
        for fd in streams:
            os.set_blocking(fd, False)
        exited = False
        while not exited:
            left = deadline.remaining_s()
            ready = {fd for fd, _ in poller.poll(None if left is None else left * 1000 + 1)}
            exited = pidfd in ready
            if not exited:
                deadline.check(what)
            for fd in streams if exited else streams.keys() & ready:
                if _drain(fd, streams[fd]) and not exited:
                    poller.unregister(fd)
            if len(stdout) > STDOUT_LIMIT:
                raise IOFailure(f"{what}: more than {STDOUT_LIMIT} bytes on stdout")
            del stderr[STDERR_LIMIT:]
        process.wait()
        return bytes(stdout), bytes(stderr)
    finally:
        forget()
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for fd in (pidfd, wake):
            os.close(fd)
        process.stdout.close()
        process.stderr.close()


def _drain(fd: int, into: bytearray) -> bool:
    """Read what is there, up to one limit's worth; return whether the stream has ended."""
    start = len(into)
    while len(into) - start <= STDOUT_LIMIT:
        try:
            chunk = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if not chunk:
            return True
        into += chunk
    return False


def _failure(status: int, stdout: bytes, stderr: str, config: bytes) -> CniError:
    """What a plugin that exited with `status` meant to say (SPEC E3)."""
    exit_text = f"exit status {status}" if status > 0 else f"signal: {_signal_name(-status)}"
    if not stdout.strip():
        if not stderr:
            return PluginFailed(f"netplugin failed with no error message: {exit_text}")
        return PluginFailed(f"netplugin failed: {_quote(stderr)}: {exit_text}")
    try:
        return parse_error(stdout)
    except DecodeFailure as exc:
        said = _quote(redact(stdout.decode("utf-8", "replace"), config))
        return PluginFailed(
            f"netplugin failed but error parsing its diagnostic message {said}: {exc.msg}",
            exit_text,
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name of its own
        return str(number)


def _quote(text: str) -> str:
    if len(text) > QUOTED_LIMIT:
        text = text[:QUOTED_LIMIT] + "…"
    return msgspec.json.encode(text).decode()
