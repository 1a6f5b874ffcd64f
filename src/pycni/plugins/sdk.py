# SPDX-License-Identifier: Apache-2.0
"""What a plugin author imports: the five verbs to write and the call they receive.

A plugin is a class with a typed configuration and up to five verbs; it runs unchanged in the
service, as an executable and as a plugin daemon::

    class Greeter(Plugin[Greeting], type="greeter", config=Greeting):
        def add(self, call: Call[Greeting]) -> Result:
            return call.pass_through()

Verbs a plugin leaves out do what an absent verb does in CNI: succeed and change nothing.
"""

from __future__ import annotations

import builtins
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from pycni.errors import InvalidConfig, InvalidNetns, NamespaceGone
from pycni.kernel.side import Side
from pycni.model.deadline import Deadline
from pycni.model.request import Attachment, Request, Verb
from pycni.model.result import DNS, Result
from pycni.model.version import SUPPORTED
from pycni.net.owner import Owner


class IPAM(msgspec.Struct, frozen=True, kw_only=True):
    """The `ipam` key as a main plugin sees it: the type; the rest belongs to the IPAM plugin."""

    type: str = ""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of every plugin configuration (SPEC section 1); plugins add their own by subclassing."""

    name: str
    cniVersion: str = "0.1.0"
    type: str = ""
    ipam: IPAM = IPAM()
    dns: DNS = DNS()


C = TypeVar("C", bound=Config)


class Delegate(Protocol):
    """Runs another plugin with this call's own environment and configuration (SPEC section 4)."""

    def run(self, plugin_type: str, request: Request, deadline: Deadline) -> bytes:
        """Return the other plugin's stdout; raise its CniError unchanged."""
        ...


class Ipam:
    """The delegated IPAM plugin of one call; each verb runs it with the call's configuration."""

    def __init__(
        self,
        plugin_type: str,
        request: Request,
        *,
        version: str,
        delegate: Delegate,
        deadline: Deadline,
    ) -> None:
        self.type = plugin_type
        self._request = request
        self._version = version
        self._delegate = delegate
        self._deadline = deadline

    def add(self) -> Result:
        """Reserve addresses; the result has no interfaces (SPEC V6)."""
        return Result.parse(self._run(Verb.ADD), default_version=self._version)

    def delete(self) -> None:
        """Release what `add` reserved; absent is success."""
        self._run(Verb.DEL)

    def check(self) -> None:
        """Raise if the reservation is gone."""
        self._run(Verb.CHECK)

    def gc(self) -> None:
        """Release everything not in the call's valid attachments."""
        self._run(Verb.GC)

    def status(self) -> None:
        """Raise 50 or 51 if the plugin cannot serve `add`."""
        self._run(Verb.STATUS)

    def _run(self, verb: Verb) -> bytes:
        request = msgspec.structs.replace(self._request, verb=verb)
        return self._delegate.run(self.type, request, self._deadline)


class Container:
    """A container's namespace, opened when it is first asked for and kept until it is closed."""

    def __init__(self, netns: str, netns_fd: int | None = None) -> None:
        self.netns = netns
        self.netns_fd = netns_fd
        self._side: Side | None = None

    def open(self) -> Side:
        """Its side; InvalidNetns (8) when the path is missing or not a network namespace."""
        if self._side is None:
            try:
                self._side = Side.open(self.netns, fd=self.netns_fd)
            except NamespaceGone as gone:
                raise InvalidNetns(
                    f"network namespace {self.netns!r} does not exist",
                    hint="create the namespace before ADD and keep it until DEL",
                ) from gone
        return self._side

    def close(self) -> None:
        """Close it if it was opened."""
        if self._side is not None:
            self._side.close()
            self._side = None


class Call(Generic[C]):
    """One verb on one attachment: its parsed input and the two sides it may work on.

    `host` is the namespace the service runs in, `container` the one of CNI_NETNS; nothing depends
    on the calling thread's namespace. `prev_result` is the chain's result so far (None when
    absent). `valid_attachments` is None outside GC.
    """

    def __init__(
        self,
        config: C,
        request: Request,
        *,
        prev_result: Result | None,
        valid_attachments: frozenset[Attachment] | None,
        host: Side,
        delegate: Delegate,
        deadline: Deadline,
        container: Container | None = None,
    ) -> None:
        """A `container` given is whoever's who gave it; without one the call opens its own."""
        self.config = config
        self.request = request
        self.verb = request.verb
        self.container_id = request.container_id
        self.ifname = request.ifname
        self.owner = Owner(config.name, request.container_id, request.ifname)
        self.prev_result = prev_result
        self.valid_attachments = valid_attachments
        self.host = host
        self.delegate = delegate
        self.deadline = deadline
        self._container = container or Container(request.netns, request.netns_fd)
        self._owns_container = container is None

    @property
    def container(self) -> Side:
        """The container's namespace, opened on first use.

        Raises InvalidNetns (8) when the path is missing or not a network namespace.
        """
        return self._container.open()

    def find_container(self) -> Side | None:
        """The container's namespace, or None when it is gone, as DEL must tolerate (SPEC P6)."""
        if not self.request.netns and self.request.netns_fd is None:
            return None
        try:
            return self.container
        except InvalidNetns:
            # The path is missing, or its mount was lost and a plain file is left: nothing of
            # the container remains to clean up in there (containernetworking/plugins #69).
            return None

    @property
    def ipam(self) -> Ipam | None:
        """The delegated IPAM plugin, or None when the configuration names none (layer 2 only)."""
        return self.use_ipam(self.config.ipam.type) if self.config.ipam.type else None

    def use_ipam(self, plugin_type: str) -> Ipam:
        """Bind the plugin `plugin_type` as IPAM delegate of this call."""
        return Ipam(
            plugin_type,
            self.request,
            version=self.config.cniVersion,
            delegate=self.delegate,
            deadline=self.deadline,
        )

    def get_prev_result(self) -> Result:
        """The chain's result so far; raise InvalidConfig (7) for a plugin that must be chained."""
        if self.prev_result is None:
            raise InvalidConfig(
                f"prevResult: missing; {self.config.type} must be called as a chained plugin",
                hint="put it after an interface-creating plugin in the plugins list",
            )
        return self.prev_result

    def pass_through(self) -> Result:
        """The chain's result so far, or an empty one: what a plugin that adds nothing returns."""
        return self.prev_result or Result(cniVersion=self.config.cniVersion)

    def close(self) -> None:
        """Close the container side if this call opened it."""
        if self._owns_container:
            self._container.close()


class Plugin(Generic[C]):
    """The five verbs; subclass with ``type=`` (the CNI type) and ``config=`` (a Config class)."""

    type: ClassVar[str]
    config: ClassVar[builtins.type[Config]] = Config
    versions: ClassVar[tuple[str, ...]] = SUPPORTED

    def __init_subclass__(
        cls, *, type: str = "", config: builtins.type[Any] = Config, **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        if type:
            cls.type = type
            cls.config = config

    def add(self, call: Call[C]) -> Result:
        """Attach the container; return the result for the next plugin."""
        return call.pass_through()

    def delete(self, call: Call[C]) -> None:
        """Undo `add`; absent is success, and every step runs."""

    def check(self, call: Call[C]) -> None:
        """Raise if what `add` made, as told by `prev_result`, is not there any more."""

    def gc(self, call: Call[C]) -> None:
        """Remove everything of this network whose owner is not in `call.valid_attachments`."""

    def status(self, call: Call[C]) -> None:
        """Raise NotAvailable (50) or LimitedConnectivity (51) if `add` cannot be served."""

    def validate(self, config: C) -> None:
        """Raise InvalidConfig (7) for what the types of `config` cannot express.

        Runs before a network is accepted and before the first plugin of a chain acts; what only
        a call's capability arguments bring may be missing.
        """
