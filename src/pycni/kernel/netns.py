# SPDX-License-Identifier: Apache-2.0
"""Network namespaces: handles on them, work inside them, names for them.

A network namespace belongs to a *thread*, not to a process: `setns` moves only the thread that
calls it. `Netns.run` moves the calling thread, calls the function and moves it back; nothing else
can run on that thread meanwhile. A thread that could not be moved back would poison whatever runs
on it next, which in a pool is somebody else's request: then the process ends itself at once, and
its successor settles what was under way. A thread made for each visit would never have to return,
but on a node that is not busy waking it takes 0.5 ms where a visit takes 0.06
(docs/decisions/0008-visit-namespaces-in-place.md).

What the visitor leaves behind stays where it was made:

* a socket keeps the namespace it was created in, whichever thread uses it later; this is how
  `kernel.nlsocket` gets a netlink socket into a container without anybody living there;
* a child process or a thread started during the visit lives in the namespace;
* `/proc/sys/net` shows the namespace of the thread that opens a file below it.

What must not outlive the visit is anything that looks the namespace up again by "the current
thread". This is the only module that calls `setns` and `unshare`. Python has them since 3.12;
on 3.11 they are reached through ctypes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, TypeVar

from pycni.errors import InvalidNetns, KernelError, NamespaceGone
from pycni.log import Log

T = TypeVar("T")

CLONE_NEWNET = 0x40000000
NS_GET_NSTYPE = 0xB703  # _IO(0xb7, 3), linux/nsfs.h

MS_BIND, MS_REC, MS_SHARED = 0x1000, 0x4000, 0x100000
MNT_DETACH = 2

RETURN_TRIES, RETURN_PAUSE_S = 50, 0.02

log = Log(__name__)
_libc = ctypes.CDLL(None, use_errno=True)
# Which namespace `Netns.run` moved a thread into.
_thread = threading.local()


class Netns:
    """An open handle on a network namespace; keeps the namespace alive until closed."""

    __slots__ = ("_identity", "fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path
        self._identity: tuple[int, int] | None = None

    @classmethod
    def open(cls, path: str) -> Self:
        """Open the namespace at `path`; NamespaceGone when there is none, else InvalidNetns."""
        try:
            # O_NONBLOCK: a FIFO at that path must not hang us.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except FileNotFoundError as exc:
            raise NamespaceGone("open network namespace", path, errno.ENOENT) from exc
        except (OSError, ValueError) as exc:
            raise InvalidNetns(f'cannot open network namespace "{path}"', str(exc)) from exc
        return cls.from_fd(fd, path)

    @classmethod
    def from_fd(cls, fd: int, path: str) -> Self:
        """Own `fd` after seeing that it is a network namespace; `path` is what errors call it."""
        try:
            kind = fcntl.ioctl(fd, NS_GET_NSTYPE)
        except OSError as exc:
            magic = _fs_magic(fd)
            os.close(fd)
            raise InvalidNetns(f'unknown FS magic on "{path}": {magic:x}') from exc
        if kind != CLONE_NEWNET:
            os.close(fd)
            raise InvalidNetns(f'"{path}" is a namespace, but not a network namespace')
        return cls(fd, path)

    @classmethod
    def current(cls) -> Self:
        """The namespace of the calling thread."""
        return cls.open("/proc/thread-self/ns/net")

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode: equal for two handles exactly when they are one namespace."""
        if self._identity is None:
            status = os.fstat(self.fd)
            self._identity = status.st_dev, status.st_ino
        return self._identity

    def same_as(self, other: Netns) -> bool:
        """Are the two handles on one and the same namespace?"""
        return self.identity == other.identity

    def run(self, fn: Callable[[], T]) -> T:
        """Call `fn` inside the namespace; its result, or its exception.

        On a thread that is inside already it is a plain call, so that work can be put together.
        """
        outer = getattr(_thread, "inside", None)
        if outer is self:
            return fn()
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            setns(self)
            _thread.inside = self
            try:
                return fn()
            finally:
                _thread.inside = outer
                _return_to(home)
        finally:
            os.close(home)

    def close(self) -> None:
        """Let go of the namespace; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Netns({self.path!r}, fd={self.fd})"


def run(namespace: Netns | None, fn: Callable[[], T]) -> T:
    """Call `fn` inside `namespace`; None is the process's own namespace: a plain call."""
    return fn() if namespace is None else namespace.run(fn)


def setns(namespace: Netns) -> None:
    """Move the calling thread for good. For processes that live there; see `Netns.run`."""
    if _libc.setns(namespace.fd, CLONE_NEWNET):
        raise KernelError("enter network namespace", namespace.path, ctypes.get_errno())


def _return_to(home: int) -> None:
    """Move the calling thread back; it can fail only when the kernel has no memory left."""
    for _ in range(RETURN_TRIES):
        if not _libc.setns(home, CLONE_NEWNET):
            return
        time.sleep(RETURN_PAUSE_S)
    log.critical("a thread cannot leave a container's network namespace: ending the process")
    os.abort()


def create_named(path: str) -> None:
    """Make a new namespace and bind it to `path`, as `ip netns add` does for /run/netns/NAME."""
    directory = os.path.dirname(path) or "."
    os.makedirs(directory, mode=0o755, exist_ok=True)
    with _flock(directory):
        _make_shared_mount(directory)
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0))
    except OSError as exc:
        raise KernelError("create network namespace", path, exc.errno or 0) from exc
    try:
        _bind_new_namespace(path)
    except BaseException:
        os.unlink(path)
        raise


def remove_named(path: str) -> None:
    """Unbind and delete `path`; absent is fine. The namespace dies with its last user."""
    if _libc.umount2(os.fsencode(path), MNT_DETACH):
        code = ctypes.get_errno()
        if code == errno.ENOENT:
            return
        if code != errno.EINVAL:  # EINVAL: no mount there any more, only the file
            raise KernelError("unmount network namespace", path, code)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as exc:
        raise KernelError("remove network namespace", path, exc.errno or 0) from exc


def _bind_new_namespace(path: str) -> None:
    """Make a namespace, give it its name, and come back."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.unshare(CLONE_NEWNET):
            raise KernelError("create", "network namespace", ctypes.get_errno())
        try:
            _mount("/proc/thread-self/ns/net", path, MS_BIND)
        finally:
            _return_to(home)
    finally:
        os.close(home)


def _mount(source: str, target: str, flags: int) -> None:
    if _libc.mount(os.fsencode(source), os.fsencode(target), b"none", ctypes.c_ulong(flags), None):
        raise KernelError("mount", target, ctypes.get_errno())


def _make_shared_mount(directory: str) -> None:
    """Make `directory` a shared mount, so that unmounting a name reaches every mount namespace.

    Only a mount point can be shared (EINVAL otherwise); a plain directory is first bound onto
    itself. `ip netns` does the same, so the two can share /run/netns.
    """
    try:
        _mount("", directory, MS_SHARED | MS_REC)
    except KernelError as exc:
        if exc.errno != errno.EINVAL:
            raise
        _mount(directory, directory, MS_BIND | MS_REC)
        _mount("", directory, MS_SHARED | MS_REC)


@contextlib.contextmanager
def _flock(directory: str) -> Iterator[None]:
    """Hold the lock `ip netns` takes while it makes the directory a mount point."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _fs_magic(fd: int) -> int:
    """The `f_type` of the file's filesystem (the first word of struct statfs)."""
    buffer = (ctypes.c_long * 32)()
    if _libc.fstatfs(fd, ctypes.byref(buffer)):
        return 0
    return int(buffer[0])
