# SPDX-License-Identifier: Apache-2.0
"""Read and write kernel parameters under /proc/sys, in a namespace or in the process's own."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping

from pycni.errors import KernelError, Unsupported
from pycni.kernel import netns, procfs
from pycni.kernel.netns import Netns

ROOT = "/proc/sys"
_opening = threading.Lock()


class Sysctl:
    """Parameters as one namespace sees them; keys are slash paths: `net/ipv4/ip_forward`.

    Slashes, not dots: an interface may be called `eth0.100`.
    """

    __slots__ = ("_netns", "_root")

    def __init__(self, namespace: Netns | None = None) -> None:
        self._netns = namespace
        self._root: int | None = None

    def close(self) -> None:
        """Close what was opened; the next use opens anew."""
        root, self._root = self._root, None
        if root is not None:
            os.close(root)

    def __del__(self) -> None:
        """Close one that was not closed."""
        self.close()

    def read(self, key: str) -> str:
        """The value without its newline; Unsupported when there is no such parameter."""
        return netns.run(self._netns, lambda: self._read(key))

    def find(self, key: str) -> str | None:
        """The value, or None when there is no such parameter."""
        try:
            return self.read(key)
        except Unsupported:
            return None

    def read_all(self, *keys: str) -> dict[str, str]:
        """Several values with one visit to the namespace; Unsupported if any is missing."""
        return netns.run(self._netns, lambda: {key: self._read(key) for key in keys})

    def write(self, key: str, value: str | int) -> None:
        """Set a parameter; Unsupported when there is no such parameter."""
        netns.run(self._netns, lambda: self._write(key, value))

    def write_all(self, values: Mapping[str, str | int]) -> None:
        """Set several in order with one visit; the first failure leaves the rest unset."""

        def body() -> None:
            for key, value in values.items():
                self._write(key, value)

        netns.run(self._netns, body)

    def exists(self, key: str) -> bool:
        """Is there such a parameter?"""
        path = _path(key)
        return netns.run(self._netns, lambda: os.path.exists(path))

    def _read(self, key: str) -> str:
        try:
            fd = self._open(_path(key), os.O_RDONLY)
            try:
                return os.read(fd, 65536).decode("utf-8", "replace").strip()
            finally:
                os.close(fd)
        except OSError as exc:
            raise _failure("read sysctl", key, exc) from exc

    def _write(self, key: str, value: str | int) -> None:
        try:
            fd = self._open(_path(key), os.O_WRONLY)
            try:
                os.write(fd, f"{value}\n".encode())
            finally:
                os.close(fd)
        except OSError as exc:
            raise _failure(f"write {value} to sysctl", key, exc) from exc

    def _open(self, path: str, flags: int) -> int:
        """Open a file, from within the namespace."""
        if self._root is None:
            with _opening:
                if self._root is None:
                    self._root = procfs.open_root()
        return os.open(
            path.removeprefix(f"{procfs.PROC}/"), flags | os.O_CLOEXEC, dir_fd=self._root
        )


def _path(key: str) -> str:
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise Unsupported("use sysctl", key, errno.EINVAL, "not a relative path below /proc/sys")
    return f"{ROOT}/{key}"


def _failure(op: str, key: str, exc: OSError) -> KernelError:
    code = exc.errno or 0
    if code in (errno.ENOENT, errno.ENOTDIR):
        return Unsupported(op, key, code)
    return KernelError(op, key, code)
