# SPDX-License-Identifier: Apache-2.0
"""Plugin daemons as executors: those that registered, and those a configuration has the address of.

A registration is a lease: it lasts as long as the stream it came on. When that ends the type is
not forgotten, for its attachments are still there: calls wait for the daemon up to their deadline
and fail with code 11, and nobody else's plugin of that type runs in its place. What is known of a
type is kept in a file, so that a restarted service waits for its daemons too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path

import msgspec

from pycni.errors import (
    CniError,
    InvalidConfig,
    IOFailure,
    NotAvailable,
    TryAgain,
)
from pycni.model.deadline import Deadline
from pycni.model.names import PluginType
from pycni.model.request import Request, Verb
from pycni.runtime.errors import PluginNotFound
from pycni.runtime.executors import ExecutorKind
from pycni.service.access import AlreadyRegistered
from pycni.service.operations import Operations
from pycni.service.pb.cni.v2alpha1 import registry_pb2
from pycni.service.plugin_client import ConnectionLost, PluginConnection, parse_endpoint

log = logging.getLogger(__name__)

RETRY_S = 0.1  # after a connection broke, until the lease has ended too or the daemon is back
ENDPOINTS = 64  # connections kept to daemons that did not register


_impatient: ContextVar[bool] = ContextVar("impatient", default=False)


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """What this thread runs inside the block does not wait for daemons that are away."""
    token = _impatient.set(True)
    try:
        yield
    finally:
        _impatient.reset(token)


class DaemonAway(TryAgain):
    """The plugin's daemon is not there now, and did not come back in time."""


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a type's daemon, also while it is away.

    `verbs` are numbers of the API's enum; `config_types` and `config_schemas` go by CNI type.
    """

    endpoint: str
    cni_versions: tuple[str, ...] = ()
    daemon: str = ""
    verbs: tuple[int, ...] = ()
    capabilities: tuple[str, ...] = ()
    config_types: dict[str, str] = {}
    config_schemas: dict[str, msgspec.Raw] = {}


class Lease:
    """One registration while its stream lasts; `outbox` is what the stream still has to say."""

    def __init__(
        self, types: Iterable[str], registration: Registration, connection: PluginConnection
    ) -> None:
        self.types = set(types)
        self.registration = registration
        self.connection = connection
        self.draining = False
        self.leaving = False
        self.outbox: queue.SimpleQueue[registry_pb2.RegisterResponse | None] = queue.SimpleQueue()


class Daemons:
    """The registered daemons, as an executor of their types."""

    kind: ExecutorKind = "daemon"

    def __init__(self, operations: Operations, *, file: Path | None = None) -> None:
        """`file` remembers the types across restarts; without it they are forgotten."""
        self.operations = operations
        self._file = file
        self._known = _load(file) if file is not None else {}
        self._leases: dict[str, Lease] = {}
        self._changed = threading.Condition()
        self._endpoints: OrderedDict[str, Endpoint] = OrderedDict()

    # -- the executor ------------------------------------------------------------------------------

    def has(self, plugin_type: str) -> bool:
        """Whether a daemon of that type is registered, or was and has not left for good."""
        return plugin_type in self._known

    def run(self, plugin_type: str, request: Request, deadline: Deadline) -> bytes:
        """Run one verb, as soon as the daemon is there.

        A verb that can be repeated is, if the connection breaks; ADD cannot (SPEC R7). STATUS
        does not wait: that the daemon is away is the answer.
        """
        if request.verb is Verb.STATUS and not self.is_present(plugin_type):
            raise NotAvailable(f'the daemon of plugin "{plugin_type}" is not registered')
        while True:
            lease = self._wait(plugin_type, deadline)
            try:
                return lease.connection.run(plugin_type, request, deadline, wait=False)
            except ConnectionLost:
                if request.verb is Verb.ADD:
                    raise
            deadline.sleep(RETRY_S)

    def versions(self, plugin_type: str) -> tuple[str, ...]:
        """What the daemon said when it registered."""
        known = self._known.get(plugin_type)
        if known is None:
            raise PluginNotFound(plugin_type, (), ())
        return known.cni_versions

    def types(self) -> list[str]:
        """Every type a daemon serves, or will serve again."""
        return sorted(self._known)

    def validate(self, plugin_type: str, config: bytes) -> tuple[str, ...]:
        """Nothing can be said of a daemon's configuration before a verb runs."""
        return ()

    def at(self, endpoint: str) -> Endpoint:
        """The daemon a configuration names the address of."""
        parse_endpoint(endpoint)
        with self._changed:
            found = self._endpoints.get(endpoint)
            if found is None:
                connection = PluginConnection(endpoint, self.operations)
                found = self._endpoints[endpoint] = Endpoint(connection)
            self._endpoints.move_to_end(endpoint)
            while len(self._endpoints) > ENDPOINTS:
                self._endpoints.popitem(last=False)[1].connection.close()
            return found

    # -- registration ------------------------------------------------------------------------------

    def register(
        self, types: Iterable[str], registration: Registration, *, take_over: bool = False
    ) -> Lease:
        """Have the daemon serve `types` until its lease is given to `release`.

        The daemon must answer at its endpoint. Raises AlreadyRegistered unless `take_over` while
        another one serves a type; the same daemon, by its endpoint, replaces itself.
        """
        wanted = {PluginType.parse(name) for name in types}
        if not wanted:
            raise InvalidConfig("registration.types: a daemon must serve a type")
        connection = PluginConnection(registration.endpoint, self.operations)
        try:
            answered = connection.versions(min(wanted), wait=False)
            if not registration.cni_versions:
                registration = msgspec.structs.replace(registration, cni_versions=answered)
            lease = Lease(wanted, registration, connection)
            with self._changed:
                self._take(lease, take_over)
                self._changed.notify_all()
        except CniError:
            connection.close()
            raise
        log.info("registered %s at %s", ", ".join(sorted(wanted)), registration.endpoint)
        return lease

    def drain(self, lease: Lease, *, leaving: bool) -> None:
        """Give the daemon no new calls; if it is `leaving`, forget its types afterwards."""
        with self._changed:
            lease.draining = True
            lease.leaving = leaving

    def release(self, lease: Lease) -> None:
        """The lease's stream has ended: calls wait from now on."""
        lease.connection.close()
        with self._changed:
            mine = [name for name in lease.types if self._leases.get(name) is lease]
            for name in mine:
                del self._leases[name]
                if lease.leaving:
                    del self._known[name]
            if lease.leaving and mine:
                self._save()
            self._changed.notify_all()
        if mine:
            log.info("%s of %s ended", ", ".join(sorted(mine)), lease.registration.endpoint)

    def find(self, plugin_type: str) -> Registration | None:
        """What is known of a type's daemon."""
        return self._known.get(plugin_type)

    def is_present(self, plugin_type: str) -> bool:
        """Whether the type's daemon takes calls now."""
        lease = self._leases.get(plugin_type)
        return lease is not None and not lease.draining

    def await_return(self, timeout_s: float) -> bool:
        """Wait until every daemon that is known has registered; whether they all have."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(self.is_present(name) for name in self._known), timeout_s
            )

    def close(self) -> None:
        """End every stream, and the connections; no call may be running."""
        with self._changed:
            for lease in {id(lease): lease for lease in self._leases.values()}.values():
                lease.outbox.put(None)
            for endpoint in self._endpoints.values():
                endpoint.connection.close()
            self._endpoints.clear()

    def _take(self, lease: Lease, take_over: bool) -> None:
        others = {n: held for n in lease.types if (held := self._leases.get(n)) is not None}
        for name, held in others.items():
            same = held.registration.endpoint == lease.registration.endpoint
            if not (take_over or same or held.draining):
                raise AlreadyRegistered(
                    f'plugin "{name}" is registered at {held.registration.endpoint}',
                    hint="stop that daemon, or register with take_over",
                )
        before = dict(self._known)
        for name in lease.types:
            self._known[name] = lease.registration
        try:
            self._save()
        except IOFailure:
            self._known = before
            raise
        for name, held in others.items():
            held.types.discard(name)
            if not held.types:
                held.outbox.put(
                    registry_pb2.RegisterResponse(
                        superseded=registry_pb2.Superseded(endpoint=lease.registration.endpoint)
                    )
                )
                held.outbox.put(None)
        self._leases.update(dict.fromkeys(lease.types, lease))

    def _wait(self, plugin_type: str, deadline: Deadline) -> Lease:
        """The lease of a daemon that takes calls, waiting for it up to the deadline."""
        lease = self._leases.get(plugin_type)
        if lease is not None and not lease.draining:
            return lease

        def wake() -> None:
            with self._changed:
                self._changed.notify_all()

        forget = deadline.on_cancel(wake)
        try:
            with self._changed:
                while True:
                    lease = self._leases.get(plugin_type)
                    if lease is not None and not lease.draining:
                        return lease
                    known = self._known.get(plugin_type)
                    if known is None:
                        raise PluginNotFound(plugin_type, (), ())
                    if deadline.expired or _impatient.get():
                        raise DaemonAway(
                            f'the daemon of plugin "{plugin_type}" is not registered',
                            f"it was last at {known.endpoint}",
                            hint="start it; what waits for it goes on then",
                        )
                    self._changed.wait(deadline.remaining_s())
        finally:
            forget()

    def _save(self) -> None:
        if self._file is None:
            return
        draft = self._file.with_suffix(".new")
        try:
            draft.write_bytes(msgspec.json.encode(self._known))
            os.replace(draft, self._file)
        except OSError as exc:
            raise IOFailure(f"cannot write {self._file}: {exc.strerror}") from exc


class Endpoint:
    """The executor of a daemon whose address stands in a configuration; it need not register."""

    kind: ExecutorKind = "daemon"

    def __init__(self, connection: PluginConnection) -> None:
        self.connection = connection
        self._versions: dict[str, tuple[str, ...]] = {}

    def has(self, plugin_type: str) -> bool:
        """Whatever the configuration says the daemon serves."""
        return True

    def run(self, plugin_type: str, request: Request, deadline: Deadline) -> bytes:
        """Run one verb, as soon as the daemon answers; ADD is not repeated (SPEC R7)."""
        wait = request.verb is not Verb.STATUS
        while True:
            try:
                return self.connection.run(plugin_type, request, deadline, wait=wait)
            except ConnectionLost as lost:
                if request.verb is Verb.STATUS:
                    raise NotAvailable(lost.msg, lost.details) from lost
                if request.verb is Verb.ADD:
                    raise
            deadline.sleep(RETRY_S)

    def versions(self, plugin_type: str) -> tuple[str, ...]:
        """What the daemon answers to VERSION, asked once."""
        if plugin_type not in self._versions:
            self._versions[plugin_type] = self.connection.versions(plugin_type, wait=True)
        return self._versions[plugin_type]

    def types(self) -> list[str]:
        """None that are known without their configuration."""
        return []

    def validate(self, plugin_type: str, config: bytes) -> tuple[str, ...]:
        """Nothing can be said of a daemon's configuration before a verb runs."""
        return ()


def _load(file: Path) -> dict[str, Registration]:
    """The types of earlier; an unreadable file is put aside with a warning, for we must start."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Registration])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as exc:
        log.error("the plugin daemons of earlier are unknown: %s: %s", file, exc)
        with contextlib.suppress(OSError):
            file.rename(file.with_suffix(".bad"))
        return {}
