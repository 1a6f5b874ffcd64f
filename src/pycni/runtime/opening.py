# SPDX-License-Identifier: Apache-2.0
"""Putting a node together on a state directory, once its predecessor and its plugins are gone."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pycni.errors import IOFailure, Unsupported
from pycni.kernel.side import Side
from pycni.log import Log
from pycni.model import request
from pycni.plugins.sdk import Plugin
from pycni.runtime.executors import Exec, Executor, Executors, InProcess
from pycni.runtime.libcni_cache import LibcniCache
from pycni.runtime.networks import NetworkSource
from pycni.runtime.node import DEFAULT_LIMITS, Node
from pycni.runtime.outcomes import Limits
from pycni.runtime.runtime import Runtime
from pycni.runtime.store import SqliteStore
from pycni.windows import boot

log = Log(__name__)

DEFAULT_STATE_DIR = "/var/lib/pycni"
DEFAULT_PLUGIN_PATH = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")
STORE = "node.db"
LIFELINE = "plugins.lock"
ORPHAN_WAIT_S = 10.0
POLL_S = 0.05


def open_node(
    state_dir: str = DEFAULT_STATE_DIR,
    *,
    host: Side | None = None,
    plugin_path: Sequence[str] = DEFAULT_PLUGIN_PATH,
    prefer_executables: Collection[str] = (),
    registered: Sequence[Executor] = (),
    endpoints: Callable[[str], Executor] | None = None,
    plugins: Mapping[str, Plugin[Any]] | None = None,
    source: NetworkSource | None = None,
    neighbours: Callable[[str], Collection[request.Attachment]] | None = None,
    cache: LibcniCache | None = None,
    limits: Limits = DEFAULT_LIMITS,
    keep_capabilities: bool = False,
) -> Node:
    """The node whose state is in `state_dir`; call `recover` on it, then use it, then close it.

    `registered` and `endpoints` run plugin daemons. `plugins` adds to the built-in ones or replaces
    some. `neighbours` tells the attachments other runtimes hold on a network; without it, those in
    libcni's cache. `cache` is where results are written for them, too. `keep_capabilities` leaves
    that key in what plugins are given, as libcni does. Raises NodeBusy while another process has
    the state directory.
    """
    host = host or Side()
    store = SqliteStore.open(os.path.join(state_dir, STORE))
    lifeline: int | None = None
    if os.name == "posix":
        try:
            lifeline = take_lifeline(os.path.join(state_dir, LIFELINE))
        except BaseException:
            store.close()
            raise
    executors = Executors(
        InProcess(host, extra=plugins),
        Exec(plugin_path, host, lifeline=lifeline),
        prefer_executables=prefer_executables,
        registered=registered,
        endpoints=endpoints,
    )
    node = Node(
        store,
        Runtime(executors, keep_capabilities=keep_capabilities),
        source=source,
        limits=limits,
        boot_id=read_boot_id(),
        neighbours=neighbours or (cache or LibcniCache()).attachments,
        cache=cache,
    )
    if lifeline is not None:
        node.on_close(functools.partial(os.close, lifeline))
    node.on_close(host.close)
    return node


def read_boot_id() -> str:
    """The kernel's name for this boot; empty where there is none."""
    if os.name == "nt":
        return boot.read_boot_id()
    try:
        return Side().sysctl.read("kernel/random/boot_id")
    except Unsupported:
        return ""


def take_lifeline(path: str, *, wait_s: float = ORPHAN_WAIT_S) -> int:
    """A descriptor for every exec'd plugin to inherit, once no earlier one is alive any more.

    A service that is killed leaves the plugins it was running; whoever settles its attachments
    must not do so beside them. Each holds a lock on this file through the descriptor it got, and
    lets go of it when it ends, however it ends. A daemon that a plugin has left behind holds it
    for good: after `wait_s` we go on.
    """
    import fcntl  # Windows has none

    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise IOFailure(f"cannot open {path}: {exc.strerror}") from exc
    give_up = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= give_up:
                log.warning("plugins of an earlier process are still running; going on")
                break
            time.sleep(POLL_S)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd
