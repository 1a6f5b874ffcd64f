# SPDX-License-Identifier: Apache-2.0
"""A network configuration list, and the request config each of its plugins is given.

The JSON bytes are authoritative: a plugin object is kept as its members' bytes, so unknown keys,
key order, big integers and the spelling of floats reach the plugin as the operator wrote them.
The typed fields are what the runtime itself must know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from msgspec import Raw, Struct, structs

from pycni.errors import InvalidConfig, doing
from pycni.model import jsonio
from pycni.model.names import NetworkName, PluginType
from pycni.model.version import parse_version, select_version

# Keys of a plugin object that a request never carries: what the runtime reads itself (SPEC,
# "Deriving request configuration"; Q4, Q8) and what it injects, in any case a user may spell it.
_RUNTIME_ONLY = ("capabilities", "cniVersions", "disableCheck", "disableGC")
_INJECTED = ("cniVersion", "name", "runtimeConfig", "prevResult")
_STRIPPED = frozenset(map(jsonio.fold_key, (*_RUNTIME_ONLY, "loadOnlyInlinedPlugins", *_INJECTED)))
_RESERVED = "cni.dev/"  # SPEC: reserved for the runtime (C11)


class PluginConfig(Struct, frozen=True, kw_only=True):
    """One plugin object of a list: what the runtime reads of it, and all its members verbatim."""

    type: PluginType
    capabilities: dict[str, bool] = {}
    ipam_type: PluginType | None = None
    fields: dict[str, Raw] = {}

    @classmethod
    def parse(cls, data: jsonio.Buffer, *, where: str = "") -> Self:
        """Read one plugin object; `where` is its path in the list, for messages."""
        head = jsonio.decode(data, _PluginHead, where=where)
        return cls(
            type=head.type,
            capabilities=head.capabilities,
            ipam_type=head.ipam.type,
            fields=jsonio.decode_raw_object(data, where=where),
        )


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

    `json` holds the bytes as they came, without drop-ins; `resolved` has those too.
    """

    name: NetworkName
    cniVersion: str
    cniVersions: tuple[str, ...] = ()
    disableCheck: bool = False
    disableGC: bool = False
    loadOnlyInlinedPlugins: bool = False
    plugins: tuple[PluginConfig, ...] = ()
    json: bytes = b""
    source: str = ""

    @classmethod
    def parse(cls, data: bytes, *, source: str = "") -> Self:
        """Read a configuration list, or a single plugin configuration as a list of one."""
        with doing(f"reading {source or 'a network configuration'}"):
            members = _folded(jsonio.decode_raw_object(data))
            if "type" in members and "plugins" not in members:
                return cls._single(data, source)
            return cls._list(data, source)

    @classmethod
    def parse_single(cls, data: bytes, *, source: str = "") -> Self:
        """Read a single plugin configuration (a `.conf` file) as a list of one."""
        with doing(f"reading {source or 'a plugin configuration'}"):
            return cls._single(data, source)

    @classmethod
    def _single(cls, data: bytes, source: str) -> Self:
        head = jsonio.decode(data, _ListHead)
        plugin = PluginConfig.parse(data)
        return cls._build(head, (plugin,), data, source)

    @classmethod
    def _list(cls, data: bytes, source: str) -> Self:
        head = jsonio.decode(data, _ListHead)
        if head.plugins is None:
            given = _folded(jsonio.decode_raw_object(data)).get("plugins")
            if given is not None:
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
        _check_version("cniVersion", head.cniVersion)
        for index, text in enumerate(head.cniVersions):
            _check_version(f"cniVersions[{index}]", text)
        return cls(
            name=NetworkName.parse(head.name),
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
        return structs.replace(self, plugins=(*self.plugins, *added))

    @property
    def resolved(self) -> bytes:
        """The list as JSON with every plugin inlined; `json` itself when nothing was added."""
        members = jsonio.decode_raw_object(self.json)
        given = [key for key in members if jsonio.fold_key(key) == "plugins"]
        if not given and _is_single(members):
            return self.json
        if given and len(jsonio.decode(members[given[-1]], tuple[Raw, ...])) == len(self.plugins):
            return self.json
        objects = [jsonio.join_object(plugin.fields) for plugin in self.plugins]
        kept: dict[str, jsonio.Buffer] = {k: v for k, v in members.items() if k not in given}
        return jsonio.join_object({**kept, "plugins": b"[" + b",".join(objects) + b"]"})

    @property
    def capabilities(self) -> frozenset[str]:
        """Every capability some plugin of the list declares."""
        return frozenset(
            name for plugin in self.plugins for name, on in plugin.capabilities.items() if on
        )


def _is_single(members: Mapping[str, Raw]) -> bool:
    return "type" in _folded(members)


def _folded(members: Mapping[str, Raw]) -> dict[str, Raw]:
    return {jsonio.fold_key(key): value for key, value in members.items()}


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
    except InvalidConfig as exc:
        raise InvalidConfig(f"{where}: {exc.msg}") from exc


def request_config(
    network: NetworkConfigList,
    plugin: PluginConfig,
    *,
    prev_result: bytes | None = None,
    runtime_config: Mapping[str, Raw] | None = None,
    extra: Mapping[str, Raw] | None = None,
) -> bytes:
    """Return the JSON one plugin is given on stdin (SPEC, "Deriving request configuration").

    `runtime_config` is all the runtime supplies; what `plugin` declares as a capability is
    passed on. `extra` members replace those of the same name, such as `cni.dev/…` keys.
    """
    injected: dict[str, jsonio.Buffer] = {}
    enabled = {
        name: value
        for name, value in (runtime_config or {}).items()
        if plugin.capabilities.get(name)
    }
    if enabled:
        injected["runtimeConfig"] = jsonio.join_object(enabled)
    if prev_result:
        injected["prevResult"] = prev_result
    for key, value in (extra or {}).items():
        if not key or bytes(value) == b"null":
            raise InvalidConfig(f'cannot inject "{key}": the key or the value is empty')
        injected[key] = value
    replaced = _STRIPPED.union(map(jsonio.fold_key, injected))
    head: dict[str, jsonio.Buffer] = {
        "cniVersion": jsonio.encode(network.cniVersion),
        "name": jsonio.encode(network.name),
    }
    for key, value in plugin.fields.items():
        folded = jsonio.fold_key(key)
        if folded not in replaced and not folded.startswith(_RESERVED):
            head[key] = value
    return jsonio.join_object({**head, **injected})
