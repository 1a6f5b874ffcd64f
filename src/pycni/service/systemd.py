# SPDX-License-Identifier: Apache-2.0
"""What a service tells systemd and takes over from it: its readiness, and listening sockets.

Both protocols are small enough to speak without a library: sd_notify(3) is one datagram, and
sd_listen_fds(3) is three environment variables about descriptors from 3 on.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

FIRST_DESCRIPTOR = 3


def notify(state: str, *, environ: MutableMapping[str, str] = os.environ) -> bool:
    """Send `state` ("READY=1", "STOPPING=1") to the service manager; False if there is none."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    # "@" stands for the NUL byte that begins an abstract address.
    target = address.replace("@", "\0", 1) if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto(state.encode(), target)
    return True


def take_listeners(
    *, environ: MutableMapping[str, str] = os.environ, first: int = FIRST_DESCRIPTOR
) -> dict[str, socket.socket]:
    """The listening sockets handed over, by their FileDescriptorName; none on a second call.

    The variables are removed, so that no plugin we start mistakes our sockets for its own.
    """
    pid, count, names = (
        environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
    )
    if pid != str(os.getpid()) or not count.isdecimal():
        return {}
    found: dict[str, socket.socket] = {}
    for offset, name in enumerate((names.split(":") + [""] * int(count))[: int(count)]):
        os.set_inheritable(first + offset, False)
        found[name or f"unnamed-{offset}"] = socket.socket(fileno=first + offset)
    return found
