# SPDX-License-Identifier: Apache-2.0
"""Plugins that touch nothing and remember everything, and a node made of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from pycni.kernel.side import Side
from pycni.model import request
from pycni.model.addresses import parse_cidr
from pycni.model.config import NetworkConfigList
from pycni.model.names import ContainerId, IfName
from pycni.model.request import Verb
from pycni.model.result import Interface, IPConfig, Result
from pycni.plugins.sdk import Call, Config, Plugin
from pycni.runtime.attachments import AttachmentKey, AttachmentParams, State
from pycni.runtime.executors import Exec, Executors, InProcess
from pycni.runtime.node import Node
from pycni.runtime.outcomes import Limits
from pycni.runtime.runtime import Runtime
from pycni.runtime.store import SqliteStore, Store

Json = dict[str, Any]


class NoopConfig(Config, frozen=True, kw_only=True):
    """A typed key to be wrong in, and a capability."""

    size: int = 0
    runtimeConfig: dict[str, int] = msgspec.field(default_factory=dict)


class Noop(Plugin[NoopConfig], type="noop", config=NoopConfig):
    """Returns the chain's result with one more interface; fails and waits as it is told."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.type = name  # type: ignore[misc]  # one class plays several plugins
        self.log = log
        self.calls: list[Call[NoopConfig]] = []
        self.failures: dict[Verb, BaseException] = {}
        self.before: Callable[[Call[NoopConfig]], None] = lambda call: None

    def add(self, call: Call[NoopConfig]) -> Result:
        """Add an interface named after the plugin."""
        self._called(call)
        made = Interface(name=self.type, sandbox=call.request.netns)
        before = call.prev_result or Result(ips=(IPConfig(address=parse_cidr("10.1.0.2/24")),))
        return Result(interfaces=(*before.interfaces, made), ips=before.ips)

    def delete(self, call: Call[NoopConfig]) -> None:
        """Remember the call."""
        self._called(call)

    def check(self, call: Call[NoopConfig]) -> None:
        """Remember the call."""
        self._called(call)

    def gc(self, call: Call[NoopConfig]) -> None:
        """Remember the call."""
        self._called(call)

    def status(self, call: Call[NoopConfig]) -> None:
        """Remember the call."""
        self._called(call)

    def last(self, verb: Verb) -> Call[NoopConfig]:
        """The last call of a verb."""
        return [call for call in self.calls if call.verb is verb][-1]

    def given(self, verb: Verb) -> Json:
        """The configuration the last call of a verb came with."""
        given: Json = json.loads(self.last(verb).request.config)
        return given

    def _called(self, call: Call[NoopConfig]) -> None:
        self.calls.append(call)
        self.log.append(f"{call.verb} {self.type}")
        self.before(call)
        if call.verb in self.failures:
            raise self.failures[call.verb]


# Stores in memory to be closed after the test, whoever holds them by then.
OPENED: list[SqliteStore] = []


class Lab:
    """Three fake plugins called a, b and c, and what is built on them."""

    def __init__(self, *, path: tuple[str, ...] = (), store: Store | None = None) -> None:
        self.log: list[str] = []
        self.a, self.b, self.c = (Noop(name, self.log) for name in "abc")
        self.in_process = InProcess(Side(), extra={p.type: p for p in (self.a, self.b, self.c)})
        self.executors = Executors(self.in_process, Exec(path, Side()))
        self.runtime = Runtime(self.executors, plugin_timeout_s=5)
        self._store = store

    @property
    def store(self) -> Store:
        """The store, in memory unless one was given."""
        if self._store is None:
            self._store = SqliteStore.open(":memory:")
            OPENED.append(self._store)
        return self._store

    def node(self, *, boot_id: str = "boot-1", limits: Limits | None = None, **more: Any) -> Node:
        """A node on this lab's plugins and store."""
        return Node(self.store, self.runtime, boot_id=boot_id, limits=limits or Limits(), **more)


def conflist(*plugins: str | Json, **members: Any) -> bytes:
    """A list called `net` of these plugins, given by type or whole."""
    objects = [{"type": plugin} if isinstance(plugin, str) else plugin for plugin in plugins]
    document = {"cniVersion": "1.1.0", "name": "net", **members, "plugins": objects}
    return json.dumps(document).encode()


def network(*plugins: str | Json, **members: Any) -> NetworkConfigList:
    """The same, parsed."""
    return NetworkConfigList.parse(conflist(*plugins, **members))


def params(container_id: str = "c1", ifname: str = "eth0", **more: Any) -> AttachmentParams:
    """Parameters of an attachment."""
    return AttachmentParams(container_id=container_id, ifname=ifname, **more)


class Gate:
    """Holds whoever comes through until it is opened; says how many have come."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._changed = threading.Condition()
        self.arrived = 0

    def __call__(self, *_: object) -> None:
        with self._changed:
            self.arrived += 1
            self._changed.notify_all()
        assert self._open.wait(10)

    def wait_for(self, count: int) -> None:
        """Wait until that many have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.arrived >= count, 10)

    def open(self) -> None:
        """Let everyone through from now on."""
        self._open.set()


KEY = AttachmentKey("net", "c1", "eth0")


def state(node: Node, key: AttachmentKey = KEY) -> State | None:
    """Where an attachment stands."""
    found = node.store.get_attachment(key)
    return None if found is None else found.state


def valid(*container_ids: str) -> frozenset[request.Attachment]:
    """Valid attachments."""
    return frozenset(
        request.Attachment(ContainerId(name), IfName("eth0")) for name in container_ids
    )


def start(work: Callable[..., object], *arguments: Any, **more: Any) -> threading.Thread:
    """Run `work` beside us."""
    thread = threading.Thread(target=work, args=arguments, kwargs=more)
    thread.start()
    return thread
