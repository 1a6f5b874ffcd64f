# SPDX-License-Identifier: Apache-2.0
"""A plugin executable without a service: the same plugin, run in this process.

The state on disk is the service's (leases, backups, and the node's store where a whole network is
run), so the two can take turns. Starting up is most of what this costs: modules that only some
calls need are imported by those.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pycni.exec import skel
from pycni.exec.framing import Call, Reply
from pycni.kernel.side import Side
from pycni.model.deadline import Deadline
from pycni.model.request import Request
from pycni.model.version import SUPPORTED
from pycni.plugins.sdk import Plugin
from pycni.runtime.executors import Exec, Executors, InProcess

if TYPE_CHECKING:
    from pycni.runtime.node import Node

META_TYPE = "pycni"  # whole_network.TYPE, which costs an import of the whole runtime

# For the type "pycni": where a service of this machine would keep its things.
STATE_DIR_VARIABLE = "PYCNI_STATE_DIR"
CONF_DIR_VARIABLE = "PYCNI_CONF_DIR"
CACHE_DIR_VARIABLE = "PYCNI_CACHE_DIR"
STORE_WAIT_S = 60.0
POLL_S = 0.02


def run(call: Call, plugins: Mapping[str, Plugin[Any]] | None = None) -> Reply:
    """Answer one call, with `plugins` beside the built-in ones.

    It is as long as its caller waits: a runtime ends what it gives up.
    """
    path = tuple(part for part in call.env.get("CNI_PATH", "").split(os.pathsep) if part)
    host = Side()
    executors = Executors(InProcess(host, extra=plugins), Exec(path, host))

    def execute(plugin: str, request: Request) -> bytes:
        if plugin == META_TYPE:
            return _run_network(request)
        return executors.get_own(plugin).run(plugin, request, Deadline())

    def versions(plugin: str) -> tuple[str, ...]:
        return SUPPORTED if plugin == META_TYPE else executors.get_own(plugin).versions(plugin)

    try:
        return skel.answer(call, execute=execute, versions=versions)
    finally:
        host.close()


def _run_network(request: Request) -> bytes:
    from pycni.exec import whole_network

    with contextlib.closing(_open_node(request.path)) as node:
        return whole_network.run(node, request)


def _open_node(plugin_path: tuple[str, ...]) -> Node:
    """The node of this machine, once the executions that came before have let go of it."""
    from pycni.runtime.confdir import DEFAULT_DIR, ConfDir
    from pycni.runtime.errors import NodeBusy
    from pycni.runtime.libcni_cache import DEFAULT_DIR as CACHE_DIR
    from pycni.runtime.libcni_cache import LibcniCache
    from pycni.runtime.opening import DEFAULT_STATE_DIR, open_node

    waiting = Deadline(STORE_WAIT_S)
    while True:
        try:
            return open_node(
                os.environ.get(STATE_DIR_VARIABLE) or DEFAULT_STATE_DIR,
                plugin_path=plugin_path,
                source=ConfDir(os.environ.get(CONF_DIR_VARIABLE) or DEFAULT_DIR),
                cache=LibcniCache(os.environ.get(CACHE_DIR_VARIABLE) or CACHE_DIR, durable=False),
            )
        except NodeBusy:
            if waiting.expired:
                raise
            waiting.sleep(POLL_S)
