# SPDX-License-Identifier: Apache-2.0
"""The built-in plugins: CNI type to class, loaded on first use."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from pycni.plugins.sdk import Plugin

# A literal table: nothing is imported before it is used, and `pycni --help` needs none of it.
BUILTIN: dict[str, str] = {
    "loopback": "pycni.plugins.loopback:Loopback",
    "bridge": "pycni.plugins.bridge:Bridge",
    "host-local": "pycni.plugins.host_local:HostLocal",
    "static": "pycni.plugins.static:Static",
    "tuning": "pycni.plugins.tuning:Tuning",
    "portmap": "pycni.plugins.portmap:Portmap",
    "win-bridge": "pycni.plugins.win_bridge:WinBridge",
    "win-overlay": "pycni.plugins.win_overlay:WinOverlay",
}

# Windows networks under the names of microsoft/windows-container-networking: modes of one plugin
# file with one configuration, beside the plugins that have a file each.
MODES: dict[str, str] = {
    "nat": "pycni.plugins.win_networks:Nat",
    "sdnbridge": "pycni.plugins.win_networks:SdnBridge",
    "sdnoverlay": "pycni.plugins.win_networks:SdnOverlay",
    "transparent": "pycni.plugins.win_networks:Transparent",
    "l2tunnel": "pycni.plugins.win_networks:L2Tunnel",
}

KNOWN = BUILTIN | MODES


@functools.cache
def load(plugin_type: str) -> Plugin[Any]:
    """Return the built-in plugin `plugin_type`; raise KeyError if there is none."""
    module, _, name = KNOWN[plugin_type].partition(":")
    plugin: Plugin[Any] = getattr(importlib.import_module(module), name)()
    return plugin
