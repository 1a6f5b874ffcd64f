# SPDX-License-Identifier: Apache-2.0
"""The networks of a node: those put into its store, and those of its conf directory beside them."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from pycni.errors import InvalidConfig
from pycni.model.config import NetworkConfigList
from pycni.model.deadline import Deadline
from pycni.model.names import NetworkName
from pycni.runtime.attachments import AttachmentKey
from pycni.runtime.confdir import REFERENCE_TYPE, Fault, is_reference
from pycni.runtime.errors import EtagMismatch, NetworkInUse, NetworkNotFound, NetworkReadOnly
from pycni.runtime.events import Event, EventLog, Kind
from pycni.runtime.locks import SharedLocks
from pycni.runtime.runtime import Runtime
from pycni.runtime.store import AttachmentFilter, Store, StoredNetwork, etag_of

DELETE_TIMEOUT_S = 30.0
PARSED = 256  # configurations kept parsed


class NetworkSource(Protocol):
    """Definitions kept elsewhere, read-only here: the conf directory."""

    def find(self, name: str) -> NetworkConfigList | None:
        """The network of that name, drop-ins appended, or None."""
        ...

    def list(self) -> Sequence[NetworkConfigList]:
        """Every network that can be read."""
        ...

    def faults(self) -> Sequence[Fault]:
        """What defines no usable network, and why."""
        ...

    def dropins(self, network: NetworkConfigList) -> Sequence[str]:
        """The files whose plugins were appended to a network found here."""
        ...


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """A network the node knows. `source` is the file it is defined in, empty for the store, and
    `dropins` are the files that added plugins to it."""

    name: str
    config: NetworkConfigList
    etag: str
    source: str = ""
    dropins: tuple[str, ...] = ()
    created: float = 0.0
    updated: float = 0.0


class PutOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a put came to: neither `created` nor `unchanged` means replaced."""

    network: Network
    created: bool = False
    unchanged: bool = False


class Networks:
    """Looks networks up by name, changes those of the store; a stored one hides a file's."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        *,
        source: NetworkSource | None,
        events: EventLog,
        locks: SharedLocks,
        retire: Callable[[NetworkConfigList], None] = lambda network: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._retire = retire
        self._store = store
        self._runtime = runtime
        self._source = source
        self._events = events
        self._locks = locks
        self._clock = clock

    def find(self, name: str) -> Network | None:
        """The network of that name, or None."""
        stored = self.find_stored(name)
        if stored is not None:
            return stored
        config = self._find_file(name)
        return None if config is None else self._from_source(config)

    def find_stored(self, name: str) -> Network | None:
        """The network of that name that was put, or None."""
        stored = self._store.get_network(name)
        return None if stored is None else _from_store(stored)

    def get(self, name: str) -> Network:
        """The network of that name; raise NetworkNotFound."""
        network = self.find(NetworkName.parse(name))
        if network is None:
            raise NetworkNotFound(name)
        return network

    def list(self) -> list[Network]:
        """Every network, by name."""
        found: dict[str, Network] = {}
        for config in self._source.list() if self._source is not None else ():
            if not is_reference(config):
                found[config.name] = self._from_source(config)
        for stored in self._store.list_networks():
            found[stored.name] = _from_store(stored)
        return [found[name] for name in sorted(found)]

    def faults(self) -> Sequence[Fault]:
        """The files that define no usable network, or one that was put as well and so is hidden."""
        if self._source is None:
            return ()
        faults = list(self._source.faults())
        for config in self._source.list():
            stored = self._store.get_network(config.name)
            if stored is not None and not is_reference(config):
                hidden = InvalidConfig(
                    f'network "{config.name}" was put as well, which hides this file',
                    hint="delete the network that was put, or remove the file",
                )
                fault = Fault(
                    path=config.source, name=config.name, error=hidden, since=stored.updated
                )
                faults.append(fault)
        return sorted(faults, key=lambda fault: fault.path)

    def put(
        self, data: bytes, *, etag: str | None = None, validate_only: bool = False
    ) -> PutOutcome:
        """Create or replace the network that `data` defines, if it is valid.

        With an `etag` only if that is its present one, "" meaning that it must not exist.
        """
        config = NetworkConfigList.parse(data)
        _refuse_reference(config)
        self._runtime.validate(config)
        present = self._store.get_network(config.name)
        if present is None:
            file = self._find_file(config.name)
            if file is not None:
                raise NetworkReadOnly(config.name, file.source)
        actual = "" if present is None else present.etag
        if etag is not None and etag != actual:  # the store looks again when it writes
            raise EtagMismatch(config.name, expected=etag, actual=actual)
        now = self._clock()
        wanted = StoredNetwork(
            name=config.name,
            json=data,
            etag=etag_of(data),
            created=now if present is None else present.created,
            updated=now,
        )
        unchanged = present is not None and present.json == data
        if unchanged or validate_only:
            stored = present if unchanged and present is not None else wanted
            return PutOutcome(
                network=_network(config, stored), created=present is None, unchanged=unchanged
            )
        stored = self._store.put_network(wanted, etag=etag)
        self._events.publish(Event(kind=Kind.NETWORK_PUT, network=config.name, etag=stored.etag))
        return PutOutcome(network=_network(config, stored), created=present is None)

    def delete(
        self,
        name: str,
        *,
        etag: str | None = None,
        force: bool = False,
        validate_only: bool = False,
    ) -> tuple[AttachmentKey, ...]:
        """Delete a stored network; return the attachments that outlive it, which needs `force`.

        They keep the configuration they were added with. Without any, what they shared goes too.
        """
        NetworkName.parse(name)
        # Alone: no ADD may find the network now and write its attachment after we have looked.
        with self._locks.alone(name, Deadline(DELETE_TIMEOUT_S)):
            stored = self._store.get_network(name)
            if stored is None:
                file = self._find_file(name)
                raise NetworkNotFound(name) if file is None else NetworkReadOnly(name, file.source)
            attachments = self._store.list_attachments(AttachmentFilter(network=name))
            keys = tuple(attachment.key for attachment in attachments)
            if keys and not force:
                raise NetworkInUse(name, keys)
            if not validate_only:
                self._store.delete_network(name, etag=etag)
                self._events.publish(Event(kind=Kind.NETWORK_DELETED, network=name))
                if not keys:
                    self._retire(parse_network(stored.json))
        return keys

    def resolve(self, network: str | NetworkConfigList) -> Network:
        """The network meant: by its name, or the configuration itself."""
        if isinstance(network, str):
            return self.get(network)
        if not network.json:
            raise InvalidConfig(f'network "{network.name}": the configuration has no JSON')
        _refuse_reference(network)
        return Network(name=network.name, config=network, etag="", source=network.source)

    def _from_source(self, config: NetworkConfigList) -> Network:
        assert self._source is not None
        dropins = tuple(self._source.dropins(config))
        times = [changed for file in (config.source, *dropins) if (changed := _changed(file))]
        return Network(
            name=config.name,
            config=config,
            etag=etag_of(config.resolved),
            source=config.source,
            dropins=dropins,
            created=times[0] if times else 0.0,
            updated=max(times, default=0.0),
        )

    def _find_file(self, name: str) -> NetworkConfigList | None:
        config = self._source.find(name) if self._source is not None else None
        return None if config is None or is_reference(config) else config


def _refuse_reference(network: NetworkConfigList) -> None:
    if is_reference(network):
        raise InvalidConfig(
            f'network "{network.name}" refers to a network of this service by the plugin type '
            f'"{REFERENCE_TYPE}", which is for the lists of other runtimes',
            hint="name the network it refers to",
        )


@functools.lru_cache(maxsize=PARSED)
def parse_network(json: bytes, source: str = "") -> NetworkConfigList:
    """The network that `json` defines; parsing it again costs more than finding it here."""
    return NetworkConfigList.parse(json, source=source)


def _from_store(stored: StoredNetwork) -> Network:
    return _network(parse_network(stored.json), stored)


def _network(config: NetworkConfigList, stored: StoredNetwork) -> Network:
    return Network(
        name=stored.name,
        config=config,
        etag=stored.etag,
        created=stored.created,
        updated=stored.updated,
    )


def _changed(path: str) -> float:
    """When a file was changed; 0 if it is gone."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
