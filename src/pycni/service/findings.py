# SPDX-License-Identifier: Apache-2.0
"""What is noticed in a network's definition: faults, and what is legal but probably not meant."""

from __future__ import annotations

import difflib
import functools
import re
import typing
from collections.abc import Iterable, Iterator

import msgspec

from pycni import plugins
from pycni.errors import CniError, InvalidConfig
from pycni.model import jsonio
from pycni.model.config import NetworkConfigList, PluginConfig
from pycni.plugins.sdk import Config
from pycni.service import wire
from pycni.service.pb.cni.v2alpha1 import networks_pb2

PATH = re.compile(r'[\w\[\]."/@-]+$')
# Keys that any plugin object may have, whatever the plugin reads.
COMMON = frozenset(
    map(jsonio.fold_key, (*Config.__struct_fields__, "capabilities", "args", "extra"))
)
COMMENT = ("_", "//", "#", "cni.dev/", "$")  # how people write comments into JSON


def finding(severity: networks_pb2.Severity.ValueType, error: CniError) -> networks_pb2.Finding:
    """An error as data, with the JSON path its text begins with, or that of the plugin."""
    path, colon, _ = error.msg.partition(": ")
    if not (colon and PATH.match(path)):
        path = "" if error.plugin_index is None else f"plugins[{error.plugin_index}]"
    return networks_pb2.Finding(
        severity=severity,
        path=path,
        error=wire.error_message(error),
    )


def warnings(network: NetworkConfigList) -> list[networks_pb2.Finding]:
    """What can be used, but probably not as meant."""
    return [finding(networks_pb2.SEVERITY_WARNING, error) for error in _find(network)]


def _find(network: NetworkConfigList) -> Iterator[CniError]:
    for index, plugin in enumerate(network.plugins):
        for error in _find_in_plugin(plugin, f"plugins[{index}]"):
            error.plugin_index, error.plugin_type = index, str(plugin.type)
            yield error


def _find_in_plugin(plugin: PluginConfig, where: str) -> Iterator[CniError]:
    if plugin.endpoint or plugin.type not in plugins.BUILTIN:
        return  # what others understand nobody here knows
    yield from _find_strange_keys(plugin.fields, _keys(plugin.type), where, plugin.type)
    if plugin.ipam_type is not None and plugin.ipam_type not in plugins.BUILTIN:
        return
    understood = set(capabilities(plugin.type))
    if plugin.ipam_type is not None:
        understood.update(capabilities(plugin.ipam_type))
        keys = _ipam_keys(plugin.ipam_type)
        for key, value in plugin.fields.items():
            if jsonio.fold_key(key) == "ipam":
                inner = jsonio.decode_raw_object(value)
                yield from _find_strange_keys(inner, keys, f"{where}.{key}", plugin.ipam_type)
    for name, on in plugin.capabilities.items():
        if on and name not in understood:
            text = f"plugin {plugin.type} makes nothing of it"
            yield InvalidConfig(f"{where}.capabilities.{name}: {text}")


def _find_strange_keys(
    fields: Iterable[str], known: frozenset[str], where: str, plugin_type: str
) -> Iterator[CniError]:
    folded = COMMON.union(map(jsonio.fold_key, known))
    for key in fields:
        if jsonio.fold_key(key) not in folded and not key.startswith(COMMENT):
            close = difflib.get_close_matches(key, known, n=1)
            yield InvalidConfig(
                f"{where}.{key}: plugin {plugin_type} has no such key",
                hint=f'did you mean "{close[0]}"?' if close else "",
            )


@functools.cache
def _keys(plugin_type: str) -> frozenset[str]:
    config = plugins.load(plugin_type).config
    return frozenset(field.encode_name for field in msgspec.structs.fields(config))


@functools.cache
def _ipam_keys(plugin_type: str) -> frozenset[str]:
    kind = typing.get_type_hints(plugins.load(plugin_type).config)["ipam"]
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))


@functools.cache
def capabilities(plugin_type: str) -> tuple[str, ...]:
    """The capabilities a built-in plugin can make use of: what its runtimeConfig has fields for."""
    hints = typing.get_type_hints(plugins.load(plugin_type).config)
    kind = hints.get("runtimeConfig")
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return ()
    return tuple(field.encode_name for field in msgspec.structs.fields(kind))
