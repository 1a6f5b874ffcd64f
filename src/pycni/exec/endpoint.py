# SPDX-License-Identifier: Apache-2.0
"""The service's second socket, where shims bring plugin calls and namespace descriptors.

gRPC cannot carry file descriptors and costs a shim 60 ms to import, so this socket speaks the
frames of framing.py. A connection is one call; the peer's credentials decide who may make one.
"""

from __future__ import annotations

import array
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pycni.errors import CniError, IOFailure, TryAgain
from pycni.exec import framing
from pycni.exec.framing import Call, Reply
from pycni.model.wire_error import encode_error

log = logging.getLogger(__name__)

Answer = Callable[[Call, "int | None"], Reply]

BACKLOG = 512
READ_TIMEOUT_S = 30.0
PROBE_TIMEOUT_S = 0.5
MAX_CALLS = 256
ACCEPT_PAUSE_S = 0.1  # out of descriptors: give running calls time to end
_UCRED = struct.Struct("3i")


class ShimEndpoint:
    """Accepts shim connections on a unix socket and answers each from a thread of its own."""

    def __init__(
        self,
        path: Path,
        answer: Answer,
        *,
        max_calls: int = MAX_CALLS,
        inherited: socket.socket | None = None,
    ) -> None:
        """Serve `path`, or the socket `inherited` that a service manager listens on already."""
        self._path = path
        self._answer = answer
        self._inherited = inherited
        self._slots = threading.BoundedSemaphore(max_calls)
        self._running: set[threading.Thread] = set()
        self._acceptor: threading.Thread | None = None

    def start(self) -> None:
        """Listen; raise IOFailure (5) when another process listens on the path already."""
        listener = self._inherited or self._bind()
        listener.setblocking(False)
        # Closing one end wakes the acceptor; shutting the listener down would end an inherited one
        # for the service manager too.
        stopped, self._stop = socket.socketpair()
        self._acceptor = threading.Thread(
            target=self._accept, args=(listener, stopped), name="shim-accept", daemon=True
        )
        self._acceptor.start()

    def _bind(self) -> socket.socket:
        claim_socket(self._path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        mask = os.umask(0o177)
        try:
            listener.bind(str(self._path))
        except OSError as exc:
            listener.close()
            raise IOFailure(f"cannot listen on {self._path}: {exc.strerror or exc}") from exc
        finally:
            os.umask(mask)
        listener.listen(BACKLOG)
        return listener

    def stop(self, grace_s: float) -> None:
        """Accept no more, let running calls end for `grace_s`, and remove the socket."""
        if self._acceptor is None:
            return
        if self._inherited is None:
            self._path.unlink(missing_ok=True)
        self._stop.close()
        self._acceptor.join()
        self._acceptor = None
        for thread in list(self._running):
            thread.join(grace_s)

    def _accept(self, listener: socket.socket, stopped: socket.socket) -> None:
        with listener, stopped:
            waiting = select.poll()
            waiting.register(listener, select.POLLIN)
            waiting.register(stopped, select.POLLIN)
            while stopped.fileno() not in dict(waiting.poll()):
                self._accept_one(listener)

    def _accept_one(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return  # the shim went away before it was its turn
        except OSError as exc:
            log.error("cannot accept a shim: %s", exc)
            time.sleep(ACCEPT_PAUSE_S)
            return
        thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
        self._running.add(thread)
        thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            netns_fd: int | None = None
            try:
                connection.settimeout(READ_TIMEOUT_S)
                if not _is_permitted(connection):
                    return
                call, netns_fd = receive_call(connection)
                reply = self._run(call, netns_fd)
            except CniError as error:
                reply = Reply(1, encode_error(error), b"")
            except OSError as exc:
                log.warning("shim connection lost: %s", exc)
                return
            finally:
                if netns_fd is not None:
                    os.close(netns_fd)
                self._running.discard(threading.current_thread())
            _send(connection, framing.encode_reply(reply))

    def _run(self, call: Call, netns_fd: int | None) -> Reply:
        if not self._slots.acquire(blocking=False):
            raise TryAgain("the service already runs as many plugin calls as it may")
        try:
            return self._answer(call, netns_fd)
        finally:
            self._slots.release()


def claim_socket(path: Path) -> None:
    """Make `path` free to bind: its directory exists and no dead socket is in the way.

    Raises IOFailure (5) if a process listens on it or if it is something else than a socket.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            return
    except OSError as exc:
        raise IOFailure(f"cannot listen on {path}: {exc.strerror}") from exc
    if not path.is_socket():
        raise IOFailure(f"{path} exists and is not a socket", hint="move it away or name another")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except OSError:
            pass  # somebody who is too busy to accept, or does not let us in
    raise IOFailure(f"another process listens on {path}", hint="stop it, or name another socket")


def receive_call(connection: socket.socket) -> tuple[Call, int | None]:
    """Read one request and the descriptor that came with it, if one did (yours to close)."""
    header, ancillary, _flags, _address = connection.recvmsg(
        framing.HEADER_SIZE, socket.CMSG_SPACE(struct.calcsize("i"))
    )
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    try:
        header += _receive(connection, framing.HEADER_SIZE - len(header))
        call = framing.decode_call(_receive(connection, framing.body_length(header)))
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    for extra in fds[1:]:
        os.close(extra)
    return call, fds[0] if fds else None


def _receive(connection: socket.socket, length: int) -> bytes:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        got = connection.recv_into(view)
        if got == 0:
            raise ConnectionError("the shim closed the connection inside its request")
        view = view[got:]
    return bytes(data)


def _is_permitted(connection: socket.socket) -> bool:
    """Root, and the user the service runs as, may call plugins; the socket's mode says so too."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _gid = _UCRED.unpack(credentials)
    if uid in (0, os.geteuid()):
        return True
    log.warning("shim call of process %d refused: user %d is not the service's", pid, uid)
    return False


def _send(connection: socket.socket, frame: bytes) -> None:
    try:
        connection.sendall(frame)
    except OSError as exc:
        log.warning("a shim went away before its answer: %s", exc)
