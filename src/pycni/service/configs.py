# SPDX-License-Identifier: Apache-2.0
"""Network configurations as messages and as JSON, both ways.

JSON stays as it came, byte for byte. Typed fields are rendered once, the same bytes for the same
message, and are JSON from then on (docs/decisions/0007-json-is-authoritative.md).
"""

from __future__ import annotations

from typing import Any, NoReturn

from google.protobuf.message import Message
from msgspec import Raw, Struct

from pycni.errors import CniError, InvalidConfig, InvalidEnvironment
from pycni.model import jsonio
from pycni.model.config import ENDPOINT, NetworkConfigList, PluginConfig
from pycni.model.result import DNS
from pycni.model.version import CURRENT
from pycni.service import views
from pycni.service.extras import Extras
from pycni.service.pb.cni.v2alpha1 import config_pb2, result_pb2
from pycni.service.types import Types

# Keys of a plugin object that have fields of their own in PluginConfig and IpamConfig.
PLUGIN_KEYS = ("type", "capabilities", "ipam", "dns", ENDPOINT, "extra")
IPAM_KEYS = ("type",)


class Configs:
    """Reads and shows configurations with the message types of a node."""

    def __init__(self, types: Types) -> None:
        self._extras = Extras(types)

    # -- requests ----------------------------------------------------------------------------------

    def parse(self, message: config_pb2.NetworkConfig, *, where: str) -> NetworkConfigList:
        """The configuration a request carries; raise InvalidConfig (7) with the path of the fault.

        With `json`, typed fields that are set must agree with it. `where` is the message's own
        path in the request.
        """
        try:
            if message.json:
                network = NetworkConfigList.parse(message.json)
                if len(message.ListFields()) > 1:
                    self._expect_agreement(message, self.view(network), "", message.json)
            else:
                network = NetworkConfigList.parse(self.render(message))
            self.check(network)
        except CniError as error:
            error.field = f"{where}.{error.field}" if error.field else ""
            error.network = error.network or message.name
            raise
        return network

    def parse_ref(
        self, ref: config_pb2.NetworkRef, *, where: str = "network"
    ) -> str | NetworkConfigList:
        """The network a call is about: its name, or the caller's own configuration."""
        match ref.WhichOneof("ref"):
            case "name":
                return ref.name
            case "inline":
                return self.parse(ref.inline, where=f"{where}.inline")
        error = InvalidEnvironment(f"{where}: neither name nor inline is set")
        error.field = where
        raise error

    def check(self, network: NetworkConfigList) -> None:
        """Raise InvalidConfig (7) for a member of `extra` that its registered type refuses."""
        members = _members(network.json)
        if "type" not in members or "plugins" in members:  # a single plugin has one extra only
            self._extras.view(members.get("extra"), where="extra", strict=True)
        for index, plugin in enumerate(network.plugins):
            extra = _fold(plugin.fields).get("extra")
            self._extras.view(extra, where=f"plugins[{index}].extra", strict=True)

    # -- typed fields to JSON ----------------------------------------------------------------------

    def render(self, message: config_pb2.NetworkConfig) -> bytes:
        """Render typed fields as a configuration list."""
        document: dict[str, jsonio.Buffer] = {
            "cniVersion": jsonio.encode(message.cni_version or CURRENT),
        }
        if message.cni_versions:
            document["cniVersions"] = jsonio.encode(list(message.cni_versions))
        document["name"] = jsonio.encode(message.name)
        switches = {
            "disableCheck": message.disable_check,
            "disableGC": message.disable_gc,
            "loadOnlyInlinedPlugins": message.load_only_inlined_plugins,
        }
        document |= {key: b"true" for key, on in switches.items() if on}
        plugins = [
            self._render_plugin(plugin, f"plugins[{index}]")
            for index, plugin in enumerate(message.plugins)
        ]
        document["plugins"] = b"[" + b",".join(plugins) + b"]"
        if message.extra:
            document["extra"] = self._extras.render(message.extra, where="extra")
        return jsonio.join_object(document)

    def _render_plugin(self, message: config_pb2.PluginConfig, where: str) -> bytes:
        if message.json:
            plugin = PluginConfig.parse(message.json, where=where)
            if len(message.ListFields()) > 1:
                view = self._view_plugin(plugin, message.json, where)
                self._expect_agreement(message, view, f"{where}.", message.json)
            return message.json
        document: dict[str, jsonio.Buffer] = {"type": jsonio.encode(message.type)}
        if message.HasField("config"):
            document |= self._extras.render_config(
                message.type, message.config, reserved=PLUGIN_KEYS, where=f"{where}.config"
            )
        if message.capabilities:
            names = sorted(message.capabilities, key=str.encode)
            capabilities = {name: message.capabilities[name] for name in names}
            document["capabilities"] = jsonio.encode(capabilities)
        if message.HasField("ipam"):
            document["ipam"] = self._render_ipam(message.ipam, f"{where}.ipam")
        if message.HasField("dns"):
            document["dns"] = jsonio.encode(_dns_document(message.dns))
        if message.endpoint:
            document[ENDPOINT] = jsonio.encode(message.endpoint)
        if message.extra:
            document["extra"] = self._extras.render(message.extra, where=f"{where}.extra")
        return jsonio.join_object(document)

    def _render_ipam(self, message: config_pb2.IpamConfig, where: str) -> bytes:
        if message.json:
            if len(message.ListFields()) > 1:
                view = self._view_ipam(message.json, where)
                self._expect_agreement(message, view, f"{where}.", message.json)
            return message.json
        document = {"type": jsonio.encode(message.type)}
        if message.HasField("config"):
            document |= self._extras.render_config(
                message.type, message.config, reserved=IPAM_KEYS, where=f"{where}.config"
            )
        return jsonio.join_object(document)

    # -- JSON to messages --------------------------------------------------------------------------

    def view(self, network: NetworkConfigList) -> config_pb2.NetworkConfig:
        """A configuration list byte for byte, with its typed view."""
        members = _members(network.json)
        single = "type" in members and "plugins" not in members
        texts = [network.json] if single else _items(members.get("plugins"))
        plugins = [
            self._view_plugin(
                plugin,
                # What came from a drop-in stands in no list.
                texts[index] if index < len(texts) else jsonio.join_object(plugin.fields),
                f"plugins[{index}]",
            )
            for index, plugin in enumerate(network.plugins)
        ]
        extra = None if single else members.get("extra")
        return config_pb2.NetworkConfig(
            json=network.json,
            name=network.name,
            cni_version=network.cniVersion,
            cni_versions=network.cniVersions,
            disable_check=network.disableCheck,
            disable_gc=network.disableGC,
            load_only_inlined_plugins=network.loadOnlyInlinedPlugins,
            plugins=plugins,
            extra=self._extras.view(extra, where="extra", strict=False),
        )

    def _view_plugin(
        self, plugin: PluginConfig, document: bytes, where: str
    ) -> config_pb2.PluginConfig:
        fields = _fold(plugin.fields)
        message = config_pb2.PluginConfig(
            json=document,
            type=plugin.type,
            capabilities=plugin.capabilities,
            endpoint=plugin.endpoint,
            config=self._extras.view_config(plugin.type, document),
            extra=self._extras.view(fields.get("extra"), where=f"{where}.extra", strict=False),
        )
        ipam, dns = fields.get("ipam"), fields.get("dns")
        if ipam is not None and bytes(ipam) != b"null":
            message.ipam.CopyFrom(self._view_ipam(bytes(ipam), f"{where}.ipam"))
        if dns is not None and bytes(dns) != b"null":
            place = f"{where}.dns"
            message.dns.CopyFrom(views.dns_message(jsonio.decode(dns, DNS, where=place)))
        return message

    def _view_ipam(self, document: bytes, where: str) -> config_pb2.IpamConfig:
        kind = jsonio.decode(document, _Type, where=where).type
        config = self._extras.view_config(kind, document) if kind else None
        return config_pb2.IpamConfig(json=document, type=kind, config=config)

    # -- both at once ------------------------------------------------------------------------------

    def _expect_agreement(
        self, given: Message, view: Message, where: str, document: jsonio.Buffer
    ) -> None:
        """Raise InvalidConfig (7) for a typed field that says something else than the JSON."""
        for field, value in given.ListFields():
            place, other = f"{where}{field.name}", getattr(view, field.name)
            if field.name == "json":
                if jsonio.loads(value, where=place) != jsonio.loads(document):
                    _disagree(place)
            elif field.name == "plugins":
                if len(value) != len(other):
                    _disagree(place)
                for index, (one, shown) in enumerate(zip(value, other, strict=True)):
                    self._expect_agreement(one, shown, f"{place}[{index}].", shown.json)
            elif field.name == "ipam":
                self._expect_agreement(value, other, f"{place}.", other.json or b"null")
            elif field.name == "config":
                if not self._extras.agrees(value, document, where=place):
                    _disagree(place)
            elif value != other:
                _disagree(place)


def _disagree(place: str) -> NoReturn:
    error = InvalidConfig(f"{place}: differs from the JSON beside it")
    error.field = place
    raise error


class _Type(Struct, frozen=True):
    type: str = ""


def _members(document: bytes) -> dict[str, Raw]:
    return _fold(jsonio.decode_raw_object(document))


def _fold(members: dict[str, Raw]) -> dict[str, Raw]:
    return {jsonio.fold_key(key): value for key, value in members.items()}


def _items(document: Raw | None) -> list[bytes]:
    return [] if document is None else [bytes(item) for item in jsonio.decode(document, list[Raw])]


def _dns_document(dns: result_pb2.Dns) -> dict[str, Any]:
    pairs = (
        ("nameservers", list(dns.nameservers)),
        ("domain", dns.domain),
        ("search", list(dns.search)),
        ("options", list(dns.options)),
    )
    return {key: value for key, value in pairs if value}
