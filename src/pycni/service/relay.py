# SPDX-License-Identifier: Apache-2.0
"""From a socket that a service manager listens on to the gRPC server.

gRPC for Python listens on addresses only and cannot take over a descriptor. So the server binds a
socket of its own beside the inherited one, and connections that come to the inherited one are
passed on, byte by byte. This keeps what activation is for: connections that come while the service
is down wait for it, and the socket belongs to the service manager all the time. Who does not need
that connects to the server's own socket.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from pathlib import Path

log = logging.getLogger(__name__)

CHUNK = 256 * 1024
ACCEPT_PAUSE_S = 0.1  # out of descriptors: give connections time to end


class Relay:
    """Passes connections from `listener` on to the server at `target`."""

    def __init__(self, listener: socket.socket, target: Path) -> None:
        self._listener = listener
        self._target = target
        self._acceptor: threading.Thread | None = None

    def start(self) -> None:
        """Accept from now on; the server at the target must be listening."""
        self._listener.setblocking(False)
        # Closing one end wakes the acceptor; shutting the listener down would end the service
        # manager's too.
        stopped, self._stop = socket.socketpair()
        self._acceptor = threading.Thread(
            target=self._accept, args=(stopped,), name="relay", daemon=True
        )
        self._acceptor.start()

    def stop(self) -> None:
        """Accept no more: new connections wait for a successor. Open ones end with the server."""
        if self._acceptor is None:
            return
        self._stop.close()
        self._acceptor.join()
        self._acceptor = None

    def _accept(self, stopped: socket.socket) -> None:
        with self._listener, stopped:
            waiting = select.poll()
            waiting.register(self._listener, select.POLLIN)
            waiting.register(stopped, select.POLLIN)
            while stopped.fileno() not in dict(waiting.poll()):
                try:
                    self._accept_one()
                except OSError as exc:
                    log.error("cannot relay a connection: %s", exc)
                    time.sleep(ACCEPT_PAUSE_S)

    def _accept_one(self) -> None:
        try:
            client, _ = self._listener.accept()
        except BlockingIOError:
            return  # the client went away before it was its turn
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            client.setblocking(True)
            server.connect(str(self._target))
        except OSError:
            client.close()
            server.close()
            raise
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    """One direction of a connection until it ends; the second to end closes both sockets."""
    buffer = memoryview(bytearray(CHUNK))
    try:
        while count := source.recv_into(buffer):
            sink.sendall(buffer[:count])
    except OSError:
        pass  # one side went away: so does the other
    # Both halves, not only this direction's: gRPC has no use for a connection half open.
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    # Closed by whoever drops the last reference, so that no descriptor is reused under the other.
