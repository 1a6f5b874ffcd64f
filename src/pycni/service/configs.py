# SPDX-License-Identifier: Apache-2.0
"""Network configurations of requests as JSON: byte for byte, or rendered once from typed fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pycni.errors import InvalidConfig, UnsupportedField
from pycni.model import jsonio
from pycni.model.config import NetworkConfigList
from pycni.model.version import CURRENT
from pycni.service import views
from pycni.service.pb.cni.v2alpha1 import config_pb2, result_pb2


def parse_config(message: config_pb2.NetworkConfig) -> NetworkConfigList:
    """The configuration a request carries; raise InvalidConfig (7) with the path of the fault.

    With `json`, typed fields that are set must agree with it.
    """
    if message.json:
        network = NetworkConfigList.parse(message.json)
        _expect_agreement(message, views.config_message(network))
        return network
    return NetworkConfigList.parse(render_config(message))


def parse_ref(ref: config_pb2.NetworkRef) -> str | NetworkConfigList:
    """The network a call is about: its name, or the caller's own configuration."""
    match ref.WhichOneof("ref"):
        case "name":
            return ref.name
        case "inline":
            return parse_config(ref.inline)
    raise InvalidConfig("network: neither name nor inline is set")


def render_config(message: config_pb2.NetworkConfig) -> bytes:
    """Render typed fields as a configuration list, the same bytes for the same message."""
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
    plugins = [_render_plugin(plugin, f"plugins[{i}]") for i, plugin in enumerate(message.plugins)]
    document["plugins"] = b"[" + b",".join(plugins) + b"]"
    _refuse_extra(message.extra, "extra")
    return jsonio.join_object(document)


def _render_plugin(message: config_pb2.PluginConfig, where: str) -> bytes:
    if message.json:
        return message.json
    document: dict[str, jsonio.Buffer] = {"type": jsonio.encode(message.type)}
    if message.capabilities:
        capabilities = {key: message.capabilities[key] for key in sorted(message.capabilities)}
        document["capabilities"] = jsonio.encode(capabilities)
    if message.HasField("ipam"):
        document["ipam"] = message.ipam.json or jsonio.encode({"type": message.ipam.type})
    if message.HasField("dns"):
        document["dns"] = jsonio.encode(_dns_document(message.dns))
    _refuse_extra(message.extra, f"{where}.extra")
    return jsonio.join_object(document)


def _dns_document(dns: result_pb2.Dns) -> dict[str, Any]:
    pairs = (
        ("nameservers", list(dns.nameservers)),
        ("domain", dns.domain),
        ("search", list(dns.search)),
        ("options", list(dns.options)),
    )
    return {key: value for key, value in pairs if value}


def _refuse_extra(extra: Iterable[object], where: str) -> None:
    if any(True for _ in extra):
        raise UnsupportedField(f"{where}: typed messages need json beside them")


def _expect_agreement(
    given: config_pb2.NetworkConfig, view: config_pb2.NetworkConfig, where: str = ""
) -> None:
    for field, value in given.ListFields():
        if field.name == "json":
            continue
        if field.name == "plugins":
            for index, (one, other) in enumerate(zip(given.plugins, view.plugins, strict=False)):
                if one.type and one.type != other.type:
                    raise InvalidConfig(f"plugins[{index}].type: differs from the JSON beside it")
            if len(given.plugins) != len(view.plugins):
                raise InvalidConfig("plugins: their number differs from the JSON's")
        elif value != getattr(view, field.name):
            raise InvalidConfig(f"{field.name}: differs from the JSON beside it")
