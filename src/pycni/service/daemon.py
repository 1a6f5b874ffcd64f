# SPDX-License-Identifier: Apache-2.0
"""The process `pycni serve`: a node, its gRPC server and the shims' socket, from start to stop."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from pycni.errors import InvalidEnvironment
from pycni.exec import skel, whole_network
from pycni.exec.endpoint import ShimEndpoint
from pycni.exec.framing import Call, Reply
from pycni.kernel.directory import io_faults
from pycni.model.request import Request
from pycni.model.version import SUPPORTED
from pycni.runtime import trace
from pycni.runtime.confdir import ConfDir
from pycni.runtime.libcni_cache import LibcniCache
from pycni.runtime.node import Node
from pycni.runtime.opening import DEFAULT_PLUGIN_PATH, DEFAULT_STATE_DIR, open_node
from pycni.service import systemd
from pycni.service.access import DEFAULT_RATES, Rates, Roles
from pycni.service.daemons import Daemons, impatient
from pycni.service.entry_points import find_plugins
from pycni.service.operations import Operations
from pycni.service.relay import Relay
from pycni.service.server import Server
from pycni.service.tls import DEFAULT_ADDRESS, TlsFiles
from pycni.service.types import Types

log = logging.getLogger(__name__)

DEFAULT_SOCKET = Path("/run/pycni/cni.sock")
DEFAULT_SHIM_SOCKET = Path("/run/pycni/shim.sock")
DEFAULT_CONF_DIR = Path("/etc/cni/net.d")
GRACE_S = 30.0
DAEMONS_WAIT_S = 5.0
DAEMONS = "daemons.json"  # in the state directory: the plugin daemons there were

# The FileDescriptorName of the sockets that a service manager may listen on for us.
ADMIN, READ_ONLY, SHIM = "cni", "read-only", "shim"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a service keeps its things; None switches a part off."""

    socket: Path | None = DEFAULT_SOCKET
    shim_socket: Path | None = DEFAULT_SHIM_SOCKET
    state_dir: Path = Path(DEFAULT_STATE_DIR)
    conf_dir: Path | None = DEFAULT_CONF_DIR
    types_dir: Path | None = None
    cache_dir: Path | None = None
    plugin_path: tuple[str, ...] = DEFAULT_PLUGIN_PATH
    keep_capabilities: bool = False
    read_only_socket: Path | None = None
    read_only_group: str = ""
    listen: str = DEFAULT_ADDRESS  # used with `tls` only
    tls: TlsFiles | None = None
    roles: Roles = Roles()
    rates: Rates = DEFAULT_RATES


def serve(settings: Settings, *, ready: Callable[[], None] = lambda: None) -> None:
    """Run a service until SIGTERM or SIGINT; running calls end, readiness is flipped first.

    Raises NodeBusy when another process owns the state directory, IOFailure when a socket is
    taken. `ready` is called once calls are answered.
    """
    with io_faults(f"state directory {settings.state_dir}"):
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    stopped = threading.Event()
    listeners = systemd.take_listeners()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with contextlib.ExitStack() as closing:
        daemons = Daemons(Operations(), file=settings.state_dir / DAEMONS)
        node = _open(settings, daemons)
        closing.callback(node.close)
        types = Types()
        if settings.types_dir is not None:
            types.load_directory(settings.types_dir)
        server = Server(
            node,
            daemons=daemons,
            types=types,
            conf_dir=str(settings.conf_dir or ""),
            rates=settings.rates,
        )
        relays = [
            Relay(listeners[name], target)
            for name, target in _listen(server, settings, listeners, closing)
        ]
        # Before the recovery: what it settles may need daemons, and these must register first.
        server.start(ready=False)
        closing.callback(server.stop, GRACE_S)
        for relay in relays:
            relay.start()
            closing.callback(relay.stop)
        _recover(node, daemons)
        server.set_ready()
        if settings.shim_socket is not None:
            shims = ShimEndpoint(
                settings.shim_socket, answer_shims(node), inherited=listeners.get(SHIM)
            )
            shims.start()
            closing.callback(shims.stop, GRACE_S)
        closing.callback(server.retire)
        ready()
        systemd.notify("READY=1")
        while not stopped.wait(1.0):
            pass  # Windows handles Ctrl-C between waits only
        systemd.notify("STOPPING=1")
        log.info("stopping: running calls have %.0f s to end", GRACE_S)


def _recover(node: Node, daemons: Daemons) -> None:
    """Settle what was interrupted; daemons get a moment to come back, and then are not waited for.

    Each attachment of a daemon that is gone would otherwise take its minute, one after the other.
    """
    if node.store.list_attachments(limit=1):
        daemons.await_return(DAEMONS_WAIT_S)
    with impatient():
        recovered = node.recover()
    log.info(
        "recovered attachments settled=%d failed=%d",
        len(recovered.settled),
        len(recovered.failed),
    )


def _open(settings: Settings, daemons: Daemons) -> Node:
    source = ConfDir(str(settings.conf_dir)) if settings.conf_dir is not None else None
    # Not synced: the store is what we rely on, and after a power loss no container is left.
    cache = LibcniCache(str(settings.cache_dir), durable=False) if settings.cache_dir else None
    return open_node(
        str(settings.state_dir),
        plugin_path=settings.plugin_path,
        keep_capabilities=settings.keep_capabilities,
        registered=[daemons],
        endpoints=daemons.at,
        plugins=find_plugins(),
        source=source,
        cache=cache,
    )


def _listen(
    server: Server,
    settings: Settings,
    inherited: Mapping[str, socket.socket],
    closing: contextlib.ExitStack,
) -> list[tuple[str, Path]]:
    """Bind what the settings name; raise InvalidEnvironment (4) if nothing is.

    In the place of an inherited socket one beside it is bound. Returns, by the name of the
    inherited one, where its connections are to be relayed to.
    """
    relayed: list[tuple[str, Path]] = []
    addresses: list[str] = []

    def place(name: str, path: Path) -> Path:
        addresses.append(str(path))
        if name in inherited:
            path = path.with_name(f"{path.name}.direct")
            relayed.append((name, path))
        return path

    if settings.socket is not None:
        path = place(ADMIN, settings.socket)
        server.listen(path)
        closing.callback(path.unlink, missing_ok=True)  # not before it is ours
    if settings.read_only_socket is not None:
        path = place(READ_ONLY, settings.read_only_socket)
        server.listen_read_only(path, group=settings.read_only_group)
        closing.callback(path.unlink, missing_ok=True)
    if settings.tls is not None:
        port = server.listen_tls(settings.listen, settings.tls, roles=settings.roles)
        addresses.append(f"{settings.listen.rpartition(':')[0]}:{port}")
    if not addresses:
        raise InvalidEnvironment(
            "the service would listen nowhere",
            hint="Windows needs --tls-cert, --tls-key and --tls-client-ca",
        )
    log.info("listening on %s", ", ".join(addresses))
    return relayed


def answer_shims(node: Node) -> Callable[[Call, int | None], Reply]:
    """What the shims' endpoint does with a call: the node's plugins, or a network of the node."""

    def execute(plugin: str, request: Request) -> bytes:
        if plugin == whole_network.TYPE:
            return whole_network.run(node, request)
        return node.run_plugin(plugin, request)

    def versions(plugin: str) -> tuple[str, ...]:
        return SUPPORTED if plugin == whole_network.TYPE else node.plugin_versions(plugin)

    def answer(call: Call, netns_fd: int | None) -> Reply:
        with trace.bound(call.env):
            return skel.answer(call, execute=execute, versions=versions, netns_fd=netns_fd)

    return answer
