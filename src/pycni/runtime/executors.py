# SPDX-License-Identifier: Apache-2.0
"""How one plugin is run: a function call for a built-in one, a child process for any other.

`Executors` is what the rest of the runtime sees: it knows who runs which type, and hands every
plugin a `Delegation` through which it can run another one (SPEC section 4).
"""

from __future__ import annotations

import itertools
import os
import stat
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from pycni import plugins
from pycni.errors import CniError, DecodeFailure, InvalidConfig
from pycni.kernel.side import Side
from pycni.model import jsonio
from pycni.model.deadline import Deadline
from pycni.model.names import PluginType
from pycni.model.request import PARENT_VARIABLE, Request, Verb
from pycni.model.result import Result
from pycni.model.version import CURRENT, DEFAULT
from pycni.plugins.sdk import Container, Delegate, Plugin
from pycni.runtime import nesting, trace
from pycni.runtime.dispatch import dispatch, fold, parse_config, text_field
from pycni.runtime.errors import PluginFailed, PluginNotFound

if TYPE_CHECKING:
    from pycni.model.config import PluginConfig

CLEANUP_TIMEOUT_S = 60.0

# What may follow a plugin's type in the name of its file, in libcni's order (cni #360).
SUFFIXES = (".exe", "") if os.name == "nt" else ("",)

ExecutorKind = Literal["builtin", "exec", "daemon", "unknown"]


class Executor(Protocol):
    """Runs plugins of the types it has."""

    @property
    def kind(self) -> ExecutorKind:
        """How it runs them."""
        ...

    def has(self, plugin_type: str) -> bool:
        """Whether a plugin of that type is here."""
        ...

    def run(self, plugin_type: str, request: Request, deadline: Deadline) -> bytes:
        """Run one verb; return the result JSON on ADD and nothing otherwise; raise its CniError."""
        ...

    def versions(self, plugin_type: str) -> tuple[str, ...]:
        """The CNI versions the plugin supports."""
        ...

    def types(self) -> list[str]:
        """Every type that is here, sorted."""
        ...

    def validate(self, plugin_type: str, config: bytes) -> tuple[str, ...]:
        """Raise InvalidConfig (7) if the plugin would refuse `config`, as far as can be told.

        Returns the types of the plugins it will delegate to.
        """
        ...


class Runner(Protocol):
    """What `Delegation` needs: somebody who runs one plugin."""

    def run(self, plugin_type: str, request: Request, deadline: Deadline) -> bytes:
        """Run one verb of one plugin."""
        ...


class Delegation:
    """A plugin's way to run another one, with the same parameters and the whole configuration."""

    def __init__(self, executor: Runner) -> None:
        self._executor = executor

    def run(self, plugin_type: str, request: Request, deadline: Deadline) -> bytes:
        """Run the delegate; if its ADD fails, DEL it before the failure is returned (SPEC D5)."""
        try:
            return self._executor.run(plugin_type, request, deadline)
        except PluginNotFound:
            raise
        except CniError as error:
            if request.verb is Verb.ADD:
                undo = msgspec.structs.replace(request, verb=Verb.DEL)
                try:
                    # The caller's time may be over; what was begun is cleaned up all the same.
                    self._executor.run(plugin_type, undo, Deadline(CLEANUP_TIMEOUT_S))
                except CniError as failure:
                    error.add_note(f"DEL of delegate {plugin_type} failed too: {failure}")
            raise


class InProcess:
    """The built-in plugins, working from the namespace `host` stands in.

    `extra` adds plugins of the embedding program to the built-in ones, or replaces some.
    """

    kind: ExecutorKind = "builtin"

    def __init__(
        self,
        host: Side,
        *,
        delegate: Delegate | None = None,
        extra: Mapping[str, Plugin[Any]] | None = None,
    ) -> None:
        self.host = host
        self.delegate: Delegate = delegate or Delegation(self)
        self._extra = dict(extra or {})
        self._thread = threading.local()

    def has(self, plugin_type: str) -> bool:
        """Whether the type is built in."""
        return plugin_type in self._extra or plugin_type in plugins.KNOWN

    def run(self, plugin_type: str, request: Request, deadline: Deadline) -> bytes:
        """Call the verb in this thread."""
        container: Container | None = getattr(self._thread, "container", None)
        if container and (container.netns, container.netns_fd) != (request.netns, request.netns_fd):
            container = None
        return dispatch(
            self.get(plugin_type),
            request,
            host=self.host,
            delegate=self.delegate,
            deadline=deadline,
            container=container,
        )

    @contextmanager
    def staying_in(self, netns: str, netns_fd: int | None = None) -> Iterator[None]:
        """Have all plugins that this thread runs on one container share its open namespace."""
        outer = getattr(self._thread, "container", None)
        self._thread.container = container = Container(netns, netns_fd)
        try:
            yield
        finally:
            self._thread.container = outer
            container.close()

    def versions(self, plugin_type: str) -> tuple[str, ...]:
        """What the plugin's class says."""
        return self.get(plugin_type).versions

    def types(self) -> list[str]:
        """The built-in types."""
        return sorted({*plugins.KNOWN, *self._extra})

    def validate(self, plugin_type: str, config: bytes) -> tuple[str, ...]:
        """Have the plugin look at its typed configuration; its delegate is the IPAM plugin."""
        plugin = self.get(plugin_type)
        typed = parse_config(plugin, config)
        plugin.validate(typed)
        return (typed.ipam.type,) if typed.ipam.type else ()

    def get(self, plugin_type: str) -> Plugin[Any]:
        """The plugin; raise PluginNotFound."""
        if plugin_type in self._extra:
            return self._extra[plugin_type]
        if plugin_type not in plugins.KNOWN:
            raise PluginNotFound(plugin_type, (), self.types())
        return plugins.load(plugin_type)


class Exec:
    """Executables in the directories of `path`, started in the namespace `host` stands in.

    `lifeline` is a descriptor every child inherits: whoever waits for its lock waits for plugins
    that outlived a killed service.
    """

    kind: ExecutorKind = "exec"

    def __init__(self, path: Sequence[str], host: Side, *, lifeline: int | None = None) -> None:
        self.path = tuple(path)
        self.host = host
        self.lifeline = lifeline
        self._versions: dict[tuple[str, int, int, int], tuple[str, ...]] = {}

    def find(self, plugin_type: str) -> str | None:
        """The first regular file of that name in path order (SPEC L5), or None."""
        return next(self.find_all(plugin_type), None)

    def find_all(self, plugin_type: str) -> Iterator[str]:
        """Every regular file of that name in path order."""
        PluginType.parse(plugin_type)
        for directory, suffix in itertools.product(self.path, SUFFIXES):
            candidate = os.path.join(directory, plugin_type + suffix)
            try:
                if stat.S_ISREG(os.stat(candidate).st_mode):
                    yield candidate
            except (OSError, ValueError):
                continue

    def has(self, plugin_type: str) -> bool:
        """Whether the path has such an executable."""
        return self.find(plugin_type) is not None

    def run(self, plugin_type: str, request: Request, deadline: Deadline) -> bytes:
        """Run the executable to its end, or kill it and all it started at the deadline."""
        executable = self._get(plugin_type)
        with netns_path(request) as netns:
            env = self._environment(request, netns)
            stdout = self._run(plugin_type, executable, request, env, deadline)
        return canonical_result(plugin_type, stdout, request) if request.verb is Verb.ADD else b""

    def versions(self, plugin_type: str) -> tuple[str, ...]:
        """What the plugin answers to VERSION; asked again only when the file changes."""
        executable = self._get(plugin_type)
        found = os.stat(executable)
        key = (executable, found.st_mtime_ns, found.st_ino, found.st_size)
        if key not in self._versions:
            self._versions[key] = self.ask_versions(plugin_type, executable)
        return self._versions[key]

    def types(self) -> list[str]:
        """The names of the executable files in the path."""
        found: set[str] = set()
        for directory in self.path:
            try:
                entries = list(os.scandir(directory))
            except OSError:
                continue
            names = (e.name for e in entries if e.is_file() and os.access(e.path, os.X_OK))
            found.update(name.removesuffix(SUFFIXES[0]) for name in names)
        return sorted(found)

    def validate(self, plugin_type: str, config: bytes) -> tuple[str, ...]:
        """Nothing can be said of an executable's configuration before it runs."""
        return ()

    def _get(self, plugin_type: str) -> str:
        executable = self.find(plugin_type)
        if executable is None:
            raise PluginNotFound(plugin_type, self.path, ())
        return executable

    def ask_versions(self, plugin_type: str, executable: str) -> tuple[str, ...]:
        """What the executable answers to VERSION now."""
        # Plugins built against an old skel refuse VERSION without these (libcni sends the same).
        request = Request(
            verb=Verb.VERSION,
            netns="dummy",
            ifname="dummy",
            config=msgspec.json.encode({"cniVersion": CURRENT}),
        )
        env = self._environment(request, request.netns)
        try:
            reply = self._run(plugin_type, executable, request, env, Deadline(10))
        except CniError as error:
            if error.msg == "unknown CNI_COMMAND: VERSION":  # SPEC R23: 0.1.0 had no VERSION
                return (DEFAULT,)
            raise
        return parse_versions(plugin_type, reply)

    def _environment(self, request: Request, netns: str) -> dict[str, str]:
        """All six variables whatever the verb, the rest inherited (SPEC R10 to R12).

        CNI_PATH is this executor's own: a caller's must not bring in other directories.
        """
        env = {
            **os.environ,
            **trace.current(),
            "CNI_COMMAND": str(request.verb),
            "CNI_CONTAINERID": request.container_id,
            "CNI_NETNS": netns,
            "CNI_IFNAME": request.ifname,
            "CNI_ARGS": request.args,
            "CNI_PATH": os.pathsep.join(self.path),
        }
        env.pop("CNI_NETNS_OVERRIDE", None)
        env.pop(PARENT_VARIABLE, None)
        if parent := nesting.current():
            env[PARENT_VARIABLE] = parent
        if request.netns_override:
            env["CNI_NETNS_OVERRIDE"] = "true"
        return env

    def _run(
        self,
        plugin_type: str,
        executable: str,
        request: Request,
        env: dict[str, str],
        deadline: Deadline,
    ) -> bytes:
        from pycni.runtime import child

        return child.run(
            plugin_type, executable, request, env, deadline, host=self.host, lifeline=self.lifeline
        )


class Executors:
    """All plugins of a node: registered ones first, then built-in ones, then executables.

    For the types in `prefer_executables` an executable, if there is one, comes before the
    built-in plugin. `registered` holds executors whose types come and go, as plugin daemons do;
    `endpoints` finds the one for a daemon that a configuration itself gives the address of.
    """

    def __init__(
        self,
        in_process: InProcess,
        executables: Exec | None = None,
        *,
        prefer_executables: Collection[str] = (),
        registered: Sequence[Executor] = (),
        endpoints: Callable[[str], Executor] | None = None,
    ) -> None:
        self.endpoints = endpoints
        self.in_process = in_process
        self.executables = executables
        self.registered = tuple(registered)
        self.path = executables.path if executables is not None else ()
        self._preferred = frozenset(prefer_executables)
        self.delegate = Delegation(self)
        in_process.delegate = self.delegate

    def find(self, plugin_type: str) -> Executor | None:
        """Who runs that type, or None."""
        PluginType.parse(plugin_type)
        return next((e for e in self._order(plugin_type) if e.has(plugin_type)), None)

    def get(self, plugin_type: str) -> Executor:
        """Who runs that type; raise PluginNotFound naming where was looked."""
        executor = self.find(plugin_type)
        if executor is None:
            raise PluginNotFound(plugin_type, self.path, self.in_process.types())
        return executor

    def choose(self, plugin: PluginConfig) -> Executor:
        """Who runs that plugin of a network: the daemon whose endpoint it names, else its type."""
        if not plugin.endpoint:
            return self.get(plugin.type)
        if self.endpoints is None:
            raise InvalidConfig("cni.dev/endpoint: no plugin daemons are reached from here")
        return self.endpoints(plugin.endpoint)

    def has(self, plugin_type: str) -> bool:
        """Whether anyone runs that type."""
        return self.find(plugin_type) is not None

    def run(self, plugin_type: str, request: Request, deadline: Deadline) -> bytes:
        """Run one verb of one plugin, wherever it is."""
        return self.get(plugin_type).run(plugin_type, request, deadline)

    def versions(self, plugin_type: str) -> tuple[str, ...]:
        """The CNI versions the plugin supports."""
        return self.get(plugin_type).versions(plugin_type)

    def get_own(self, plugin_type: str) -> Executor:
        """Who runs that type without starting an executable; raise PluginNotFound.

        For calls that an executable makes: it may be the very one that would be started.
        """
        PluginType.parse(plugin_type)
        for executor in (*self.registered, self.in_process):
            if executor.has(plugin_type):
                return executor
        raise PluginNotFound(plugin_type, (), self.in_process.types())

    def types(self) -> list[str]:
        """Every type known, sorted."""
        return sorted({name for executor in self._all() for name in executor.types()})

    def validate(self, plugin_type: str, config: bytes) -> tuple[str, ...]:
        """Raise InvalidConfig (7) if the plugin would refuse `config`, as far as can be told."""
        return self.get(plugin_type).validate(plugin_type, config)

    def _all(self) -> list[Executor]:
        executables = () if self.executables is None else (self.executables,)
        return [*self.registered, self.in_process, *executables]

    def _order(self, plugin_type: str) -> list[Executor]:
        order = self._all()
        if plugin_type in self._preferred and self.executables is not None:
            order.insert(len(self.registered), self.executables)
        return order


class VersionReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a plugin prints on VERSION."""

    cniVersion: str = ""
    supportedVersions: tuple[str, ...] | None = None


def parse_versions(plugin_type: str, reply: bytes) -> tuple[str, ...]:
    """The versions a VERSION reply lists (SPEC R25)."""
    try:
        decoded = jsonio.decode(reply, VersionReply)
    except (DecodeFailure, InvalidConfig) as error:
        raise PluginFailed(f"plugin {plugin_type}: decoding version info: {error.msg}") from error
    if not decoded.cniVersion:
        raise PluginFailed(f"plugin {plugin_type}: decoding version info: missing field cniVersion")
    if decoded.supportedVersions is not None:
        return decoded.supportedVersions
    if decoded.cniVersion == "0.2.0":
        return ("0.1.0", "0.2.0")
    raise PluginFailed(
        f"plugin {plugin_type}: decoding version info: missing field supportedVersions"
    )


def canonical_result(plugin_type: str, stdout: bytes, request: Request) -> bytes:
    """A foreign plugin's result in the layout and version of the request's configuration.

    SPEC V5: a result without cniVersion has the configuration's; `null` is an empty result.
    """
    version = text_field(fold(jsonio.decode_raw_object(request.config)), "cniVersion") or DEFAULT
    try:
        return Result.parse(stdout, default_version=version).encode(version)
    except CniError as error:
        raise PluginFailed(
            f"plugin {plugin_type} printed an unusable result: {error.msg}", error.details
        ) from error


@contextmanager
def netns_path(request: Request) -> Iterator[str]:
    """A path of the container's namespace that a child can open.

    A caller in another mount namespace sends a descriptor, and its path may mean nothing here.
    """
    if request.netns_fd is None or _same_file(request.netns, request.netns_fd):
        yield request.netns
    else:
        yield f"/proc/{os.getpid()}/fd/{request.netns_fd}"


def _same_file(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError:
        return False
