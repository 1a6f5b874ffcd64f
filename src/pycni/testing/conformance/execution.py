# SPDX-License-Identifier: Apache-2.0
"""One execution of a plugin: what goes in, what comes out, and an end to it in any case."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from pycni.kernel import netns
from pycni.kernel.netns import Netns

TIMEOUT_S = 10.0
OUTPUT_LIMIT = 4 << 20
QUOTED_LIMIT = 400


class Outcome(NamedTuple):
    """What an execution came to; a negative status is the signal that ended the plugin.

    `fault` says why there is no status to speak of: it hung, printed without end, did not start.
    """

    status: int
    stdout: bytes
    stderr: bytes
    fault: str = ""
    hung: bool = False

    def __str__(self) -> str:
        if self.fault:
            return f"{self.fault}; stdout {quote(self.stdout)}, stderr {quote(self.stderr)}"
        if self.status < 0:
            end = f"ended by {signal.Signals(-self.status).name}"
        else:
            end = f"exit status {self.status}"
        return f"{end}, stdout {quote(self.stdout)}, stderr {quote(self.stderr)}"


# How a plugin is run: its name, the CNI variables, stdin.
Execute = Callable[[str, Mapping[str, str], bytes], Outcome]


class Exchange(NamedTuple):
    """What one execution was given and what came of it."""

    plugin: str
    env: Mapping[str, str]
    stdin: bytes
    outcome: Outcome

    def command(self, directory: str) -> str:
        """A line for a shell that does the same again."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        program = shlex.quote(os.path.join(directory, self.plugin))
        call = " ".join(["env", *variables, program])
        if not self.stdin:
            return f"{call} </dev/null"
        if len(self.stdin) > QUOTED_LIMIT * 10:
            return f"{call}  # with {len(self.stdin)} bytes on stdin: {quote(self.stdin)}"
        try:
            text = self.stdin.decode()
        except UnicodeDecodeError:
            octal = "".join(f"\\{byte:03o}" for byte in self.stdin)
            return f"printf '{octal}' | {call}"
        return f"printf %s {shlex.quote(text)} | {call}"


class Executables:
    """Runs the executables of a directory as a runtime does, each in a process group of its own."""

    def __init__(
        self, directory: Path, *, timeout_s: float = TIMEOUT_S, host: Netns | None = None
    ) -> None:
        self.directory = directory
        self._timeout_s = timeout_s
        self._host = host

    def __call__(self, plugin: str, env: Mapping[str, str], stdin: bytes) -> Outcome:
        """Run it to its end, or kill it with all it started when the time is over."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("CNI_")}

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [str(self.directory / plugin)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**inherited, **env},
                start_new_session=True,
            )

        try:
            process = netns.run(self._host, start)
        except (OSError, ValueError) as exc:  # ValueError: a NUL in a variable
            return Outcome(-1, b"", b"", f"cannot be executed: {exc}")
        with process:
            try:
                return _converse(process, stdin, time.monotonic() + self._timeout_s)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _converse(process: subprocess.Popen[bytes], stdin: bytes, give_up: float) -> Outcome:
    """Feed and read until every pipe is closed, as Go's os/exec waits: a child may hold them."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    output = {process.stdout: bytearray(), process.stderr: bytearray()}
    unsent = memoryview(stdin)
    fault = ""
    with selectors.DefaultSelector() as selector:
        for stream in output:
            selector.register(stream, selectors.EVENT_READ)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        os.set_blocking(process.stdin.fileno(), False)
        while selector.get_map() and not fault:
            left = give_up - time.monotonic()
            ready = selector.select(max(left, 0))
            if not ready and left <= 0:
                fault = "did not end in time (or left a child that holds its stdout or stderr)"
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    unsent = _feed(process, unsent)
                    if process.stdin.closed:
                        selector.unregister(key.fd)
                    continue
                chunk = os.read(key.fd, 1 << 16)
                buffer = output[key.fileobj]  # type: ignore[index]  # only these two are read
                buffer += chunk
                if not chunk:
                    selector.unregister(key.fileobj)
                elif len(buffer) > OUTPUT_LIMIT:
                    fault = f"printed more than {OUTPUT_LIMIT >> 20} MiB"
    stdout, stderr = (bytes(buffer) for buffer in output.values())
    if not fault:
        try:
            process.wait(max(give_up - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            fault = "closed its output but did not end in time"
    if fault:
        process.kill()
    return Outcome(process.wait(), stdout, stderr, fault, hung="end in time" in fault)


def _feed(process: subprocess.Popen[bytes], unsent: memoryview) -> memoryview:
    """Write what the pipe takes; close it when all is sent or nobody reads."""
    assert process.stdin is not None
    try:
        unsent = unsent[os.write(process.stdin.fileno(), unsent) :]
    except BrokenPipeError:
        unsent = unsent[:0]
    if not unsent:
        process.stdin.close()
    return unsent


def quote(data: bytes) -> str:
    """Bytes for people: text as it is if it can be printed, cut where it is long."""
    if not data:
        return "empty"
    cut = data[:QUOTED_LIMIT]
    text = cut.decode("utf-8", "backslashreplace").strip()
    text = " ".join(text.split()) if text.isprintable() or "\n" in text else repr(text)
    more = f"… ({len(data)} bytes)" if len(data) > QUOTED_LIMIT else ""
    return f"{text}{more}"
