# SPDX-License-Identifier: Apache-2.0
"""host-local's leases: the Go plugin's directory on disk, an index of it in memory.

On disk, in `<dataDir>/<network>/`: one file per address, named by it, holding
`<container id> CR LF <ifname>` (the container id alone if written before 2019); the file
`last_reserved_ip.<N>`, the last address given out of range set N; the file `lock`, held with
flock(2) by whoever reads or changes the rest. Both implementations may use it side by side.

The Go plugin reads every file of the network for every call. Here each process keeps an index of
a directory, and knows that nobody else changed it by the directory's own modification time: after
each call, still under the lock, the time is set to a value that nobody else will produce (one to
two seconds ago, to a random nanosecond). Any file that comes or goes puts the present time in its
place, and the next call reads the directory anew. File systems that round the time are not
believed at all. So timestamps need no settling time, and are never older than two seconds.

The index proposes, the disk decides: a lease is taken by link(2), which fails if the name exists,
and every refusal (taken, duplicate, none free) is confirmed on disk before it is pronounced.

A lease file appears with its content, so a crash of the process leaves no empty file. A power
loss may, because nothing is fsync'ed: it takes the containers with it, and files without an owner
count as free (containernetworking/plugins #498).
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Self

from msgspec import Struct

from pycni.errors import InvalidConfig, TryAgain, doing
from pycni.kernel.directory import Directory, Draft, Identity, io_faults
from pycni.model.addresses import IPAddress, parse_ip
from pycni.model.deadline import Deadline
from pycni.net.addrset import AddressSet

DEFAULT_DATA_DIR = "/var/lib/cni/networks"

_LOCK = "lock"
_LAST = "last_reserved_ip."
# A first line that can be a container id; anything else in an address's file is not a lease.
_OWNED = re.compile(rb"\s*[a-zA-Z0-9][a-zA-Z0-9_.\-]*[ \t]*(?:\r?\n.*)?", re.DOTALL)
_WINDOWS = os.name == "nt"
_DIRECTORY = b"a-directory-of-this-name"  # takes the address as a lease would
_LOCK_POLL_S = (0.0005, 0.005)  # first and longest pause between two tries for the lock
_THREAD_POLL_S = 0.1  # how long to wait for another thread without looking at the deadline
_TRIES = 3  # a foreign file in the way is removed once; more means somebody ignores the lock


class Holder(Struct, frozen=True):
    """Who holds a lease; `ifname` is empty in files of the old format."""

    container_id: str
    ifname: str = ""

    @property
    def content(self) -> bytes:
        """The lease file's content: CR LF on every platform, no newline at the end."""
        tail = f"\r\n{self.ifname}" if self.ifname else ""
        return f"{self.container_id}{tail}".encode()

    @classmethod
    def read(cls, content: bytes) -> Self | None:
        """The holder named by a file's content, None if it names none and the address is free."""
        if _OWNED.fullmatch(content) is None:
            return None
        container_id, _, ifname = content.decode(errors="replace").strip().partition("\n")
        return cls(container_id.strip(), ifname.strip())

    def __str__(self) -> str:
        return f"{self.container_id} {self.ifname}".rstrip()


class _Index:
    """What the files of one directory said when `identity` was the directory's."""

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.owned: dict[bytes, tuple[str, ...]] = {}  # content of lease files → their names
        self.content: dict[str, bytes] = {}
        self.vacant: set[str] = set()  # files of addresses without an owner
        self.taken: dict[int, AddressSet] = {4: AddressSet(), 6: AddressSet()}

    def put(self, name: str, content: bytes, address: IPAddress) -> None:
        """Enter the lease file of `address`."""
        self.vacant.discard(name)
        self.content[name] = content
        self.owned[content] = (*self.owned.get(content, ()), name)
        self.taken[address.version].add(int(address))

    def drop(self, name: str) -> None:
        """Forget a file."""
        self.vacant.discard(name)
        content = self.content.pop(name, None)
        if content is None:
            return
        left = tuple(other for other in self.owned[content] if other != name)
        if left:
            self.owned[content] = left
        else:
            del self.owned[content]
        address = _address_of(name)
        assert address is not None
        self.taken[address.version].discard(int(address))


class _Shared:
    """One directory's index and the lock that lets one thread of this process in at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.index = _Index()


_shared: dict[str, _Shared] = {}
_shared_lock = threading.Lock()


class Leases:
    """The leases of one network while its lock is held; see `locked`."""

    def __init__(self, directory: Directory, shared: _Shared) -> None:
        self._directory = directory
        self._shared = shared
        self._index = shared.index
        self._fresh = False  # read from disk by this call
        self._changed = False  # by this call
        self._draft: tuple[bytes, Draft] | None = None
        if self._index.identity != directory.identity():
            self._scan()

    @property
    def path(self) -> str:
        """The directory."""
        return self._directory.path

    def count(self, first: IPAddress, last: IPAddress) -> int:
        """How many addresses from `first` to `last` are leased."""
        return self._index.taken[first.version].count(int(first), int(last))

    def find_holder(self, address: IPAddress) -> Holder | None:
        """Who holds `address` according to its file, None if it is free."""
        name = _name_of(address)
        content = self._read(name)
        self._correct(name, content, address)
        return None if content is None else Holder.read(content)

    def find_owned(self, container_id: str, ifname: str) -> tuple[IPAddress, ...]:
        """The addresses leased to the attachment, or to its container by id alone."""
        exact, old = self._owned(container_id, ifname)
        return exact + old

    def find_free(self, first: IPAddress, last: IPAddress) -> IPAddress | None:
        """The lowest address from `first` to `last` that the index believes to be free."""
        free = self._index.taken[first.version].first_absent(int(first), int(last))
        return None if free is None else type(first)(free)

    def take(self, address: IPAddress, container_id: str, ifname: str) -> bool:
        """Lease `address`; False, and the index corrected, if somebody else holds it."""
        name, content = _name_of(address), Holder(container_id, ifname).content
        for _ in range(_TRIES):
            try:
                self._directory.publish(self._draft_of(content), name)
            except FileExistsError:
                if self.find_holder(address) is not None:
                    return False
                self._remove(name)  # empty or foreign: nobody's
            else:
                self._changed = True
                self._index.put(name, content, address)
                return True
        raise TryAgain(f"{self.path}/{name} is being changed by a process that ignores the lock")

    def release(self, address: IPAddress) -> None:
        """Remove the lease of `address`, whoever holds it; absent is fine."""
        self._remove(_name_of(address))

    def release_owned(self, container_id: str, ifname: str) -> tuple[IPAddress, ...]:
        """Remove every lease of the attachment and return the addresses.

        Leases of the old format are its own only if it has no others, as in the Go plugin.
        """
        exact, old = self._owned(container_id, ifname)
        released = exact or old
        for address in released:
            self.release(address)
        return released

    def release_stale(self, valid: Iterable[tuple[str, str]]) -> tuple[IPAddress, ...]:
        """Remove the leases that none of `valid` (container id, ifname) holds, and ownerless files.

        A lease of the old format is kept while any interface of its container is valid.
        """
        self._rescan()
        keep = set(valid)
        containers = {container_id for container_id, _ in keep}
        stale = list(self._index.vacant)
        for content, names in self._index.owned.items():
            holder = Holder.read(content)
            assert holder is not None
            known = (holder.container_id, holder.ifname) in keep
            if not known and (holder.ifname or holder.container_id not in containers):
                stale.extend(names)
        for name in stale:
            self._remove(name)
        return tuple(address for name in stale if (address := _address_of(name)) is not None)

    def confirm(self) -> bool:
        """Whether the directory's names are those of the index; if not, read everything anew."""
        names = {name for name in self._directory.names() if _address_of(name) is not None}
        if names == self._index.content.keys() | self._index.vacant:
            return True
        self._rescan()
        return False

    def get_last(self, range_set: int) -> IPAddress | None:
        """The address range set number `range_set` gave out last."""
        content = self._read(f"{_LAST}{range_set}")
        return None if content is None else _parse(content.decode(errors="replace").strip())

    def set_last(self, range_set: int, address: IPAddress) -> None:
        """Remember the address given out last."""
        self._changed = True  # the first time, it is a new entry
        self._directory.overwrite(f"{_LAST}{range_set}", str(address).encode())

    def _draft_of(self, content: bytes) -> Draft:
        """The nameless file with `content`: the leases of one ADD are links to one file.

        Making a file is what an ADD on ext4 takes longest for.
        """
        if self._draft is None or self._draft[0] != content:
            self._discard_draft()
            self._draft = content, self._directory.draft(content)
        return self._draft[1]

    def _discard_draft(self) -> None:
        if self._draft is not None:
            _, draft = self._draft
            self._draft = None
            self._directory.discard(draft)

    def _owned(self, container_id: str, ifname: str) -> Iterator[tuple[IPAddress, ...]]:
        """The leases of the attachment, then those of its container in the old format."""
        for holder in (Holder(container_id, ifname), Holder(container_id)):
            addresses = map(_address_of, self._confirmed(holder.content))
            yield tuple(address for address in addresses if address is not None)

    def _confirmed(self, content: bytes) -> tuple[str, ...]:
        """The names of the files that hold `content`, on disk and not only in the index."""
        names = self._index.owned.get(content, ())
        if not self._fresh and any(self._read(name) != content for name in names):
            self._rescan()
            names = self._index.owned.get(content, ())
        return names

    def _correct(self, name: str, content: bytes | None, address: IPAddress) -> None:
        """Make the index say what the file says."""
        if content != self._index.content.get(name):
            self._index.drop(name)
            if content is not None and _OWNED.fullmatch(content) is not None:
                self._index.put(name, content, address)

    def _read(self, name: str) -> bytes | None:
        try:
            return self._directory.read(name).strip()
        except FileNotFoundError:
            return None
        except IsADirectoryError:
            return _DIRECTORY

    def _remove(self, name: str) -> None:
        self._changed = True
        self._discard_draft()  # a file whose only name goes cannot be given another one
        with contextlib.suppress(IsADirectoryError):  # not ours to empty
            self._directory.remove(name)
            self._index.drop(name)

    def _rescan(self) -> None:
        if not self._fresh:
            self._scan()

    def _scan(self) -> None:
        """Read the whole directory into a new index.

        Not its subdirectories, as the Go plugin does: they can only be other networks' (a dataDir
        inside another network's), whose leases must not be released by this network's DEL.
        """
        index = self._index = self._shared.index = _Index()
        for name in self._directory.names():
            address = _address_of(name)
            content = None if address is None else self._read(name)
            if address is None or content is None:
                continue
            if _OWNED.fullmatch(content) is None:
                index.vacant.add(name)
            else:
                index.put(name, content, address)
        self._fresh = True

    def seal(self) -> None:
        """Stamp the directory, so that the next call can tell whether the index still holds."""
        self._discard_draft()
        if not (self._fresh or self._changed):
            return
        stamp = time.time_ns() - 10**9 - int.from_bytes(os.urandom(4)) % 10**9
        try:
            identity = self._directory.stamp(stamp)
        except OSError:  # not our directory, or a read-only one: read it again every time
            self._index.identity = None
            return
        self._index.identity = identity if identity.mtime_ns == stamp else None


@contextlib.contextmanager
def locked(
    data_dir: str, network: str, deadline: Deadline, *, create: bool
) -> Iterator[Leases | None]:
    """Yield the network's leases with the lock held; None if it has none and `create` is false.

    TryAgain (11) when the lock cannot be had before `deadline`; any failing file operation inside
    is an IOFailure (5).
    """
    path = directory_of(data_dir, network)
    shared = _get_shared(path)
    with doing(f"waiting for the lock of {path}"):
        _acquire(shared.lock, deadline)
    try:
        with io_faults(f"lease directory {path}"):
            directory = _open_locked(path, deadline, create=create)
            if directory is None:
                yield None
                return
            with directory:
                leases = Leases(directory, shared)
                try:
                    yield leases
                finally:
                    leases.seal()
    finally:
        shared.lock.release()


def directory_of(data_dir: str, network: str) -> str:
    """Where the leases of the network are."""
    return os.path.join(data_dir or DEFAULT_DATA_DIR, network)


def _open_locked(path: str, deadline: Deadline, *, create: bool) -> Directory | None:
    while True:
        try:
            directory = Directory(path, create_missing=create)
        except FileNotFoundError:
            if create:
                continue  # removed between mkdir and open
            return None
        except NotADirectoryError:
            if create:
                raise
            return None  # no lease was ever made there
        try:
            with doing(f"waiting for the lock of {path}"):
                _flock(directory, deadline)
        except FileNotFoundError:
            directory.close()  # removed between open and lock
        except BaseException:
            directory.close()
            raise
        else:
            return directory


def _flock(directory: Directory, deadline: Deadline) -> None:
    pause, longest = _LOCK_POLL_S
    while not directory.try_lock(_LOCK):
        deadline.sleep(pause)
        pause = min(pause * 2, longest)


def _acquire(lock: threading.Lock, deadline: Deadline) -> None:
    while not lock.acquire(timeout=min(_THREAD_POLL_S, deadline.remaining_s() or _THREAD_POLL_S)):
        deadline.check()


def _get_shared(path: str) -> _Shared:
    path = os.path.abspath(path)
    with _shared_lock:
        shared = _shared.get(path)
        if shared is None:
            shared = _shared[path] = _Shared()
        return shared


def _name_of(address: IPAddress) -> str:
    return str(address).replace(":", "_") if _WINDOWS else str(address)


def _address_of(name: str) -> IPAddress | None:
    return _parse(name.replace("_", ":") if _WINDOWS else name)


def _parse(text: str) -> IPAddress | None:
    if not text[:1].isalnum() and text[:1] != ":":
        return None
    try:
        return parse_ip(text)
    except InvalidConfig:
        return None
