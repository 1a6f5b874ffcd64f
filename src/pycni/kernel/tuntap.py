# SPDX-License-Identifier: Apache-2.0
"""Tap devices: made through /dev/net/tun, as rtnetlink cannot make them."""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from pycni.errors import KernelError, LinkExists, Unsupported
from pycni.kernel.netns import Netns, run

TUN_DEVICE = "/dev/net/tun"

TUNSETIFF = 0x400454CA
TUNSETPERSIST = 0x400454CB
TUNSETOWNER = 0x400454CC
TUNSETGROUP = 0x400454CE

IFF_TAP = 0x0002
IFF_MULTI_QUEUE = 0x0100
IFF_NO_PI = 0x1000
IFF_VNET_HDR = 0x4000
IFF_TUN_EXCL = 0x8000

_IFREQ = struct.Struct("16sH22x")


def add_tap(
    namespace: Netns | None,
    name: str,
    *,
    owner: int | None = None,
    group: int | None = None,
    multi_queue: bool = False,
    vnet_hdr: bool = True,
) -> None:
    """Make a tap device that stays when nobody has it open; LinkExists.

    `owner` and `group` are the numeric ids that may open it besides root.
    """
    flags = IFF_TAP | IFF_NO_PI | IFF_TUN_EXCL
    flags |= IFF_MULTI_QUEUE if multi_queue else 0
    flags |= IFF_VNET_HDR if vnet_hdr else 0
    try:
        # The device is born in the namespace of the thread that opens the file.
        run(namespace, lambda: _make(name, flags, owner, group))
    except OSError as exc:
        code = exc.errno or 0
        if code == errno.EBUSY:
            raise LinkExists("add tap", name, errno.EEXIST) from exc
        if exc.filename == TUN_DEVICE and code in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
            hint = f"load the tun module and provide {TUN_DEVICE}"
            raise Unsupported("add tap", name, code, hint=hint) from exc
        raise KernelError("add tap", name, code) from exc


def _make(name: str, flags: int, owner: int | None, group: int | None) -> None:
    fd = os.open(TUN_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, TUNSETIFF, _IFREQ.pack(name.encode(), flags))
        # Until it is persistent it disappears with the descriptor: no half-made tap stays.
        if owner is not None:
            fcntl.ioctl(fd, TUNSETOWNER, owner)
        if group is not None:
            fcntl.ioctl(fd, TUNSETGROUP, group)
        fcntl.ioctl(fd, TUNSETPERSIST, 1)
    finally:
        os.close(fd)
