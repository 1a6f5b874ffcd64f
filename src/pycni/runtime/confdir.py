# SPDX-License-Identifier: Apache-2.0
"""The networks of a conf directory, found as libcni finds them.

`*.conflist` files hold networks, to which the plugin objects in `<dir>/<network name>/*.conf` are
appended; `*.conf` and `*.json` files hold a single plugin each and come after every list. Names
sort by their bytes; subdirectories are no candidates. Where two files define one name, the first
one counts, and what only refers to a network of the node does so where there is no other.

`get` is as strict as libcni: a broken list stands in the way of all that sort after it. `load`,
which `find` and `list` answer from, lets no broken file hide a good one.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from pycni.errors import CniError, InvalidConfig, IOFailure, doing
from pycni.log import Log
from pycni.model import jsonio
from pycni.model.config import NetworkConfigList

log = Log(__name__)

DEFAULT_DIR = "/etc/cni/net.d"
# The plugin type by which another runtime's list refers to a network of a node. To the node such a
# list is no network: running it would be to call itself, and to wait for itself.
REFERENCE_TYPE = "pycni"
MAX_BYTES = 4 << 20  # of one file
# A file written this recently may be written again without a visible change of its times.
RACY_NS = 50_000_000

_LISTS = (".conflist",)
_SINGLES = (".conf", ".json")
_DROPINS = (".conf",)


class Fault(Struct, frozen=True, kw_only=True):
    """A file that defines no usable network; `name` is the network's, where it can be read.

    `since` is when it was first seen so, in seconds since the epoch.
    """

    path: str
    name: str
    error: CniError
    since: float = 0.0


class Loaded(Struct, frozen=True, kw_only=True):
    """What a conf directory holds: networks, each name once, and what is wrong with the rest."""

    networks: tuple[NetworkConfigList, ...] = ()
    faults: tuple[Fault, ...] = ()


class ConfDir:
    """A conf directory; its files are read again only when one of them has changed."""

    def __init__(self, path: str = DEFAULT_DIR) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._marks: dict[str, _Mark | None] = {}
        self._loaded = Loaded()

    def find(self, name: str) -> NetworkConfigList | None:
        """The network of that name, drop-ins appended, or None; raise if it is there but broken."""
        loaded = self.load()
        for network in loaded.networks:
            if network.name == name:
                return network
        for fault in loaded.faults:
            if fault.name == name:
                return read_network(fault.path)  # an error raised twice would gather notes
        return None

    def list(self) -> tuple[NetworkConfigList, ...]:
        """Every network that can be read, in the order libcni would look at them."""
        return self.load().networks

    def faults(self) -> tuple[Fault, ...]:
        """What is wrong with the files that define no usable network."""
        return self.load().faults

    def dropins(self, network: NetworkConfigList) -> tuple[str, ...]:
        """The files whose plugins were appended to a network of the directory, in order."""
        directory = os.path.join(self.path, network.name)
        return tuple(_dropins(directory)) if network.dropins else ()

    def get(self, name: str) -> NetworkConfigList:
        """The network libcni loads for `name`, or its error (L14)."""
        found = False
        for path in self._candidates():
            found = True
            network = read_network(path)
            if network.name == name:
                return network
        if not found:
            raise InvalidConfig(f"no net configurations found in {self.path}")
        raise InvalidConfig(f'no net configuration with name "{name}" in {self.path}')

    def defaults(self, count: int = 1) -> tuple[NetworkConfigList, ...]:
        """The first `count` usable networks of all files sorted together (L16, as go-cni picks)."""
        networks = sorted(self.load().networks, key=lambda network: os.fsencode(network.source))
        return tuple(networks[:count])

    def load(self) -> Loaded:
        """Everything the directory holds, good and bad; raise IOFailure if it cannot be listed."""
        with self._lock:
            if self._marks and all(_mark(path) == mark for path, mark in self._marks.items()):
                return self._loaded
            # Marked before they are read: what changes meanwhile is seen by the next call.
            marks = {path: _mark(path) for path in self._watched()}
            before = {(f.path, f.error.msg): f.since for f in self._loaded.faults}
            self._loaded = self._load(before)
            for fault in self._loaded.faults:
                if (fault.path, fault.error.msg) not in before:
                    log.warning("ignored %s: %s", fault.path, fault.error)
            settled = time.time_ns() - RACY_NS
            times = (max(mark.mtime_ns, mark.ctime_ns) for mark in marks.values() if mark)
            self._marks = marks if max(times, default=0) <= settled else {}
            return self._loaded

    def _load(self, before: Mapping[tuple[str, str], float]) -> Loaded:
        """Read everything; `before` tells since when the faults there were have lasted."""
        networks: dict[str, NetworkConfigList] = {}
        faults = []
        now = time.time()

        def note(path: str, name: str, error: CniError) -> None:
            since = before.get((path, error.msg), now)
            faults.append(Fault(path=path, name=name, error=error, since=since))

        for path in self._candidates():
            try:
                network = read_network(path)
            except CniError as error:
                note(path, _peek_name(path), error)
                continue
            first = networks.setdefault(network.name, network)
            if first is not network and is_reference(first):
                networks[network.name] = network  # what refers to the network hides it from nobody
            elif first is not network and not is_reference(network):
                hidden = InvalidConfig(f'network "{network.name}" is defined by {first.source}')
                # Without a name: the one who asks for it gets the first.
                note(path, "", hidden)
        return Loaded(networks=tuple(networks.values()), faults=tuple(faults))

    def _candidates(self) -> Iterator[str]:
        names = _names(self.path)
        for endings in (_LISTS, _SINGLES):
            for name in names:
                if _ending(name) in endings:
                    yield os.path.join(self.path, name)

    def _watched(self) -> Iterator[str]:
        """Everything whose change may change what is loaded: files, and the directories of them."""
        yield self.path
        yield from self._candidates()
        for name in _names(self.path, directories=True):
            directory = os.path.join(self.path, name)
            yield directory
            # One that cannot be listed is reported with the network it belongs to, if any.
            with contextlib.suppress(IOFailure):
                yield from _dropins(directory)


class _Mark(NamedTuple):
    """What tells a file from another one at its place, or from itself at another time."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def _mark(path: str) -> _Mark | None:
    try:
        state = os.stat(path)
    except OSError:
        return None
    return _Mark(state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


def is_reference(network: NetworkConfigList) -> bool:
    """Whether the list refers to a network of a node instead of being one."""
    return any(plugin.type == REFERENCE_TYPE for plugin in network.plugins)


def read_network(path: str) -> NetworkConfigList:
    """Read the network of one file of a conf directory, with its drop-ins (L15)."""
    data = _read(path)
    if _ending(path) not in _LISTS:
        return NetworkConfigList.parse_single(data, source=path)
    network = NetworkConfigList.parse(data, source=path)
    if not network.loadOnlyInlinedPlugins:
        for dropin in _dropins(os.path.join(os.path.dirname(path), network.name)):
            with doing(f"reading {dropin}"):
                network = network.with_dropins([_read(dropin)])
    if not network.plugins:
        raise InvalidConfig(f"no plugin configs found in {path}")
    return network


def _dropins(directory: str) -> list[str]:
    names = [name for name in _names(directory) if _ending(name) in _DROPINS]
    return [os.path.join(directory, name) for name in names]


def _names(directory: str, *, directories: bool = False) -> list[str]:
    """The names of the files in `directory`, or of the directories; none if it does not exist."""
    try:
        with os.scandir(directory) as entries:
            # As in Go, a link to a directory counts as a file, and is a fault when it is read.
            names = [e.name for e in entries if e.is_dir(follow_symlinks=False) == directories]
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise IOFailure(f"cannot list {directory}: {exc.strerror}") from exc
    return sorted(names, key=os.fsencode)


def _ending(name: str) -> str:
    """The part of a file name from its last dot on; unlike splitext's, ".conf" has one."""
    _, dot, ending = name.rpartition(".")
    return dot + ending if dot else ""


def _read(path: str) -> bytes:
    try:
        # Not to wait for the other end of a pipe somebody has put there.
        with open(path, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidConfig(f"{path} is not a regular file")
            data = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise IOFailure(f"cannot read {path}: {exc.strerror}") from exc
    if len(data) > MAX_BYTES:
        raise InvalidConfig(f"{path} is larger than {MAX_BYTES >> 20} MiB")
    return data


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


class _Named(Struct, frozen=True):
    name: str = ""


def _peek_name(path: str) -> str:
    """The network name in a file that is otherwise broken, "" if that cannot be told."""
    try:
        return jsonio.decode(_read(path), _Named).name
    except CniError:
        return ""
