# SPDX-License-Identifier: Apache-2.0
"""A network configuration list, and the request config each of its plugins is given.

The JSON bytes are authoritative: a plugin object is kept as its members' bytes, so unknown keys,
key order, big integers and the spelling of floats reach the plugin as the operator wrote them.
The typed fields are what the runtime itself must know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Self

from msgspec import Raw, Struct, structs

from pycni.errors import IncompatibleVersion, InvalidConfig, doing
from pycni.model import jsonio
from pycni.model.names import NetworkName, PluginType
from pycni.model.version import parse_version, select_version

# Keys of a plugin object that a request never carries: what the runtime reads itself (SPEC,
# "Deriving request configuration"; Q4, Q8) and what it injects, in any case a user may spell it.
_RUNTIME_ONLY = ("capabilities", "cniVersions", "disableCheck", "disableGC")
_INJECTED = ("cniVersion", "name", "runtimeConfig", "prevResult")
_STRIPPED = frozenset(map(jsonio.fold_key, (*_RUNTIME_ONLY, "loadOnlyInlinedPlugins", *_INJECTED)))
_RESERVED = "cni.dev/"  # SPEC: reserved for the runtime (C11)
ENDPOINT = "cni.dev/endpoint"  # where the plugin's daemon listens; never passed on
# The protobuf package of the built-in plugins' typed configurations.
TYPED_PACKAGE = "pycni.plugins.v1"


def typed_config(plugin_type: str) -> str:
    """The full name of a plugin's typed configuration: that of "host-local" is "….HostLocal"."""
    return f"{TYPED_PACKAGE}.{''.join(word.title() for word in plugin_type.split('-'))}"


class PluginConfig(Struct, frozen=True, kw_only=True):
    """One plugin object of a list: what the runtime reads of it, and all its members verbatim.

    `supplied` are parameters that the object does not have itself and its `extra` member does, in
    the plugin's own typed configuration (proto/cni/v2alpha1/config.proto).
    """

    type: PluginType
    capabilities: dict[str, bool] = {}
    ipam_type: PluginType | None = None
    fields: dict[str, Raw] = {}
    supplied: dict[str, Raw] = {}

    @classmethod
    def parse(cls, data: jsonio.Buffer, *, where: str = "") -> Self:
        """Read one plugin object; `where` is its path in the list, for messages."""
        head = jsonio.decode(data, _PluginHead, where=where)
        fields = jsonio.decode_raw_object(data, where=where)
        return cls(
            type=head.type,
            capabilities=head.capabilities,
            ipam_type=head.ipam.type,
            fields=fields,
            supplied=_supplied(head.type, fields),
        )

    @property
    def endpoint(self) -> str:
        """Where the plugin's daemon listens; empty unless the configuration names a place."""
        found = _folded(self.fields).get(ENDPOINT)
        return "" if found is None else jsonio.decode(found, str, where=ENDPOINT)


def _supplied(plugin_type: str, fields: Mapping[str, Raw]) -> dict[str, Raw]:
    """What the plugin's typed configuration in `extra` says and `fields` do not."""
    extra = _folded(fields).get("extra")
    if extra is None or not bytes(extra).startswith(b"["):
        return {}  # somebody else's key of that name
    supplied: dict[str, Raw] = {}
    for member in jsonio.decode(extra, list[Raw], where="extra"):
        if not bytes(member).startswith(b"{"):
            continue
        values = jsonio.decode_raw_object(member)
        named = jsonio.loads(values.get("@type", Raw(b"null")))
        if isinstance(named, str) and named.rpartition("/")[2] == typed_config(plugin_type):
            supplied |= {key: value for key, value in values.items() if not key.startswith("@")}
    given = set(map(jsonio.fold_key, fields))
    return {key: value for key, value in supplied.items() if jsonio.fold_key(key) not in given}


class _IpamHead(Struct, frozen=True):
    type: PluginType | None = None


class _PluginHead(Struct, frozen=True):
    type: PluginType
    capabilities: dict[str, bool] = {}
    ipam: _IpamHead = _IpamHead()


class _ListHead(Struct, frozen=True):
    name: str = ""
    cniVersion: str = ""
    cniVersions: tuple[str, ...] = ()
    disableCheck: Any = False
    disableGC: Any = False
    loadOnlyInlinedPlugins: Any = False
    plugins: tuple[Raw, ...] | None = None


class NetworkConfigList(Struct, frozen=True, kw_only=True):
    """A network: its name, the version chosen for it, its switches and its chain of plugins.

    `json` holds the bytes as they came; the last `dropins` of `plugins` came from other files and
    are in `resolved` only.
    """

    name: NetworkName
    cniVersion: str
    cniVersions: tuple[str, ...] = ()
    disableCheck: bool = False
    disableGC: bool = False
    loadOnlyInlinedPlugins: bool = False
    plugins: tuple[PluginConfig, ...] = ()
    dropins: int = 0
    json: bytes = b""
    source: str = ""

    @classmethod
    def parse(cls, data: bytes, *, source: str = "") -> Self:
        """Read a configuration list, or a single plugin configuration as a list of one."""
        with _reading(source):
            members = _folded(jsonio.decode_raw_object(data))
            if "type" in members and "plugins" not in members:
                return cls._single(data, source)
            return cls._list(data, source)

    @classmethod
    def parse_single(cls, data: bytes, *, source: str = "") -> Self:
        """Read a single plugin configuration (a `.conf` file) as a list of one."""
        with _reading(source):
            return cls._single(data, source)

    @classmethod
    def _single(cls, data: bytes, source: str) -> Self:
        head = _head(data)
        return cls._build(head, (PluginConfig.parse(data),), data, source)

    @classmethod
    def _list(cls, data: bytes, source: str) -> Self:
        head = _head(data)
        if head.plugins is None:
            if "plugins" in _folded(jsonio.decode_raw_object(data)):
                raise InvalidConfig("plugins: expected array, got null")
            if _flag(head, "loadOnlyInlinedPlugins"):
                # SPEC: MUST NOT be true when `plugins` is absent (C7).
                raise InvalidConfig("plugins: missing, and loadOnlyInlinedPlugins is true")
        elif not head.plugins:
            raise InvalidConfig("plugins: the list is empty")
        plugins = [
            PluginConfig.parse(raw, where=f"plugins[{index}]")
            for index, raw in enumerate(head.plugins or ())
        ]
        return cls._build(head, tuple(plugins), data, source)

    @classmethod
    def _build(
        cls, head: _ListHead, plugins: tuple[PluginConfig, ...], data: bytes, source: str
    ) -> Self:
        return cls(
            name=NetworkName(head.name),
            cniVersion=select_version(head.cniVersion, head.cniVersions),
            cniVersions=head.cniVersions,
            disableCheck=_flag(head, "disableCheck"),
            disableGC=_flag(head, "disableGC"),
            loadOnlyInlinedPlugins=_flag(head, "loadOnlyInlinedPlugins"),
            plugins=plugins,
            json=bytes(data),
            source=source,
        )

    def with_dropins(self, dropins: Iterable[bytes]) -> Self:
        """Append the plugin objects `dropins`, unless only inlined plugins are wanted (C7)."""
        if self.loadOnlyInlinedPlugins:
            return self
        start = len(self.plugins)
        added = [
            PluginConfig.parse(data, where=f"plugins[{index}]")
            for index, data in enumerate(dropins, start)
        ]
        return structs.replace(
            self, plugins=(*self.plugins, *added), dropins=self.dropins + len(added)
        )

    @property
    def resolved(self) -> bytes:
        """The list as JSON with every plugin inlined; `json` itself when nothing was added."""
        if not self.dropins:
            return self.json
        members: dict[str, jsonio.Buffer] = {
            key: value
            for key, value in jsonio.decode_raw_object(self.json).items()
            if jsonio.fold_key(key) != "plugins"
        }
        objects = b",".join(jsonio.join_object(plugin.fields) for plugin in self.plugins)
        return jsonio.join_object({**members, "plugins": b"[" + objects + b"]"})

    @property
    def capabilities(self) -> frozenset[str]:
        """Every capability some plugin of the list declares."""
        return frozenset(
            name for plugin in self.plugins for name, on in plugin.capabilities.items() if on
        )


def _reading(source: str) -> contextlib.AbstractContextManager[None]:
    return doing(f"reading {source}") if source else contextlib.nullcontext()


def _folded(members: Mapping[str, Raw]) -> dict[str, Raw]:
    return {jsonio.fold_key(key): value for key, value in members.items()}


def _head(data: bytes) -> _ListHead:
    """Read the members of the list itself, name and versions checked."""
    head = jsonio.decode(data, _ListHead)
    NetworkName.parse(head.name)
    _check_version("cniVersion", head.cniVersion)
    for index, text in enumerate(head.cniVersions):
        _check_version(f"cniVersions[{index}]", text)
    return head


def _flag(head: _ListHead, key: str) -> bool:
    """Read a switch of the list; libcni also takes the words "true" and "false" (C6)."""
    value = getattr(head, key)
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise InvalidConfig(f"{key}: expected bool, got {jsonio.encode(value).decode()}")


def _check_version(where: str, text: str) -> None:
    try:
        parse_version(text)
    except IncompatibleVersion as exc:
        raise InvalidConfig(f"{where}: {exc.msg}") from exc


def request_config(
    network: NetworkConfigList,
    plugin: PluginConfig,
    *,
    prev_result: bytes | None = None,
    runtime_config: Mapping[str, Raw] | None = None,
    extra: Mapping[str, Raw] | None = None,
    keep_capabilities: bool = False,
) -> bytes:
    """Return the JSON one plugin is given on stdin (SPEC, "Deriving request configuration").

    `runtime_config` is all the runtime supplies; what `plugin` declares as a capability is
    passed on. `extra` members replace those of the same name, such as `cni.dev/…` keys.
    `keep_capabilities` leaves in what the plugin declares, which the SPEC forbids and libcni does.
    """
    injected: dict[str, jsonio.Buffer] = {}
    enabled = {
        name: value
        for name, value in (runtime_config or {}).items()
        if plugin.capabilities.get(name)
    }
    if enabled:
        injected["runtimeConfig"] = jsonio.join_object(enabled)
    if prev_result and prev_result != b"null":
        injected["prevResult"] = prev_result
    for key, value in (extra or {}).items():
        if not key or bytes(value) == b"null":
            raise InvalidConfig(f'cannot inject "{key}": the key or the value is empty')
        injected[key] = value
    replaced = _STRIPPED.union(map(jsonio.fold_key, injected))
    if keep_capabilities:
        replaced -= {"capabilities"}
    head: dict[str, jsonio.Buffer] = {
        "cniVersion": jsonio.encode(network.cniVersion),
        "name": jsonio.encode(network.name),
    }
    for key, value in (plugin.fields | plugin.supplied).items():
        folded = jsonio.fold_key(key)
        if folded not in replaced and not folded.startswith(_RESERVED):
            head[key] = value
    return jsonio.join_object({**head, **injected})
