# SPDX-License-Identifier: Apache-2.0
"""The Node service: what this service is, which plugins it runs, and which types it knows."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence

import grpc
import msgspec

from pycni import __version__, plugins
from pycni.errors import CniError
from pycni.model import jsonio
from pycni.model.config import typed_config
from pycni.model.names import PluginType
from pycni.model.schema import json_schema
from pycni.model.version import SUPPORTED
from pycni.runtime import child
from pycni.runtime.node import Node
from pycni.service import findings, views, wire
from pycni.service.daemons import Daemons
from pycni.service.interceptor import MAX_REQUEST_BYTES
from pycni.service.params import field
from pycni.service.pb.cni.v2alpha1 import attachments_pb2, error_pb2, node_pb2, node_pb2_grpc
from pycni.service.types import Types

VERBS = ("ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION")
FEATURES = (
    "attachments.attach-all",
    "attachments.gc",
    "attachments.watch",
    "attachments.watch.links",
    "networks.conf-dir",
    "networks.status",
    "networks.watch",
    "plugins.daemons",
    "plugins.delegation",
    "plugins.typed-config",
    "types.register",
)
REFRESH_S = 1.0  # callers who may only look cannot have processes started more often


class NodeService(node_pb2_grpc.NodeServicer):
    """Answers for the service itself; see node.proto for what each call promises."""

    def __init__(self, node: Node, types: Types, daemons: Daemons, *, conf_dir: str = "") -> None:
        self._node = node
        self._types = types
        self._plugins = _Plugins(node, types, daemons)
        self._conf_dir = conf_dir
        self._started = time.time()

    def GetInfo(
        self, request: node_pb2.GetInfoRequest, context: grpc.ServicerContext
    ) -> node_pb2.NodeInfo:
        """Versions, verbs, features and limits."""
        limits = self._node.limits
        return node_pb2.NodeInfo(
            implementation="pycni",
            version=__version__,
            cni_versions=SUPPORTED,
            verbs=[error_pb2.Verb.Value(f"VERB_{verb}") for verb in VERBS],
            features=FEATURES,
            limits=node_pb2.Limits(
                max_message_bytes=MAX_REQUEST_BYTES,
                max_json_depth=jsonio.MAX_DEPTH,
                max_concurrent_calls=limits.running,
                max_queued_calls=limits.waiting,
                max_plugin_output_bytes=child.STDOUT_LIMIT,
            ),
            plugin_path=map(wire.text, self._node.runtime.path),
            conf_dir=wire.text(self._conf_dir),
            registered_types=self._types.registered(),
            boot_id=self._node.boot_id,
            start_time=views.timestamp(self._started),
        )

    def RegisterTypes(
        self, request: node_pb2.RegisterTypesRequest, context: grpc.ServicerContext
    ) -> node_pb2.RegisterTypesResponse:
        """Make message types known until the service ends; all of the set, or none."""
        with field("descriptors"):
            registered = self._types.register(request.descriptors)
        return node_pb2.RegisterTypesResponse(added=registered.added, known=registered.known)

    def ListPlugins(
        self, request: node_pb2.ListPluginsRequest, context: grpc.ServicerContext
    ) -> node_pb2.ListPluginsResponse:
        """The plugins by type, in the order of precedence."""
        if request.type:
            with field("type"):
                PluginType.parse(request.type)
        listed = self._plugins.list(request.type, refresh=request.refresh)
        return node_pb2.ListPluginsResponse(plugins=listed)


class _Plugins:
    """Finds and describes what the node's executors can run."""

    def __init__(self, node: Node, types: Types, daemons: Daemons) -> None:
        self._executors = node.runtime.executors
        self._types = types
        self._daemons = daemons
        self._asked: dict[str, tuple[tuple[str, ...], CniError | None]] = {}
        self._asked_at = -REFRESH_S
        self._asking = threading.Lock()

    def list(self, plugin_type: str, *, refresh: bool) -> Sequence[node_pb2.PluginInfo]:
        """All plugins, or those of one type."""
        types = [plugin_type] if plugin_type else self._executors.types()
        if refresh:
            self._refresh(types)
        return [plugin for name in types for plugin in self._of_type(name)]

    def _of_type(self, name: str) -> Iterator[node_pb2.PluginInfo]:
        preferred = self._executors.find(name)
        daemon = self._daemons.find(name)
        if daemon is not None:
            yield node_pb2.PluginInfo(
                type=name,
                executor=attachments_pb2.EXECUTOR_KIND_DAEMON,
                location=daemon.endpoint,
                preferred=preferred is self._daemons,
                cni_versions=daemon.cni_versions,
                verbs=[verb for verb in error_pb2.Verb.values() if verb in daemon.verbs],
                capabilities=daemon.capabilities,
                config_type=daemon.config_types.get(name, ""),
                config_schema=bytes(daemon.config_schemas.get(name, msgspec.Raw(b""))),
                error=self._absence(name),
            )
        built_in = self._executors.in_process
        if built_in.has(name):
            yield self._built_in(name, preferred=preferred is built_in)
        executables = self._executors.executables
        paths = () if executables is None else executables.find_all(name)
        for number, path in enumerate(paths):
            versions, error = self._asked.get(path, ((), None))
            yield node_pb2.PluginInfo(
                type=wire.text(name),
                executor=attachments_pb2.EXECUTOR_KIND_EXEC,
                location=wire.text(path),
                preferred=preferred is executables and not number,
                cni_versions=versions,
                error=None if error is None else wire.error_message(error),
            )

    def _built_in(self, name: str, *, preferred: bool) -> node_pb2.PluginInfo:
        plugin = self._executors.in_process.get(name)
        known = name in plugins.KNOWN
        config_type = typed_config(name)
        return node_pb2.PluginInfo(
            type=name,
            executor=attachments_pb2.EXECUTOR_KIND_BUILTIN,
            location=type(plugin).__module__,
            preferred=preferred,
            cni_versions=plugin.versions,
            verbs=[error_pb2.Verb.Value(f"VERB_{verb}") for verb in VERBS],
            capabilities=findings.capabilities(name) if known else (),
            config_type=config_type if self._types.find(config_type) else "",
            config_schema=jsonio.encode(json_schema(plugin.config)),
        )

    def _absence(self, name: str) -> error_pb2.CniError | None:
        if self._daemons.is_present(name):
            return None
        return wire.error_message(CniError(f'the daemon of plugin "{name}" is not registered'))

    def _refresh(self, types: Sequence[str]) -> None:
        """Ask the executables for their versions, one caller at a time and not too often."""
        executables = self._executors.executables
        with self._asking:
            if executables is None or time.monotonic() - self._asked_at < REFRESH_S:
                return
            asked: dict[str, tuple[tuple[str, ...], CniError | None]] = {}
            for name in types:
                for path in executables.find_all(name):
                    try:
                        asked[path] = executables.ask_versions(name, path), None
                    except CniError as error:
                        asked[path] = (), error
            self._asked |= asked
            for path in [path for path in self._asked if not os.path.exists(path)]:
                del self._asked[path]
            self._asked_at = time.monotonic()
