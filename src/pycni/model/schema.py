# SPDX-License-Identifier: Apache-2.0
"""JSON Schema of the model's types, and of any plugin configuration built from them."""

from __future__ import annotations

from typing import Any

import msgspec

from pycni.model.addresses import IPAddress, IPInterface, IPNetwork
from pycni.model.names import ContainerId, IfName, Mac, NetworkName, PluginType

_NAME = r"^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$"
_CUSTOM: dict[Any, dict[str, Any]] = {
    IPAddress: {"description": "an IPv4 or IPv6 address"},
    IPInterface: {"description": "an address with its prefix length, such as 10.1.0.5/16"},
    IPNetwork: {"description": "a network, such as 10.1.0.0/16"},
    ContainerId: {"description": "a container id", "pattern": _NAME},
    NetworkName: {"description": "a network name", "pattern": _NAME},
    IfName: {"description": "an interface name", "minLength": 1, "maxLength": 15},
    PluginType: {"description": "a plugin type, the name of its executable", "minLength": 1},
    Mac: {"description": "a hardware address, such as 0a:58:0a:01:00:05"},
}


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of `kind`; custom types are strings with a description."""
    return msgspec.json.schema(kind, schema_hook=_schema_of)


def _schema_of(kind: Any) -> dict[str, Any]:
    return {"type": "string", **_CUSTOM.get(kind, {"description": kind.__name__})}
