# SPDX-License-Identifier: Apache-2.0
"""Plugins of installed packages: the entry points of the group `pycni.plugins`, run in process.

    [project.entry-points."pycni.plugins"]
    greeter = "greeter.plugin:Greeter"

The name is the CNI type. Only `pycni serve` looks here, once, when it starts.
"""

from __future__ import annotations

import logging
from importlib import metadata
from typing import Any

from pycni import plugins
from pycni.errors import CniError
from pycni.model.names import PluginType
from pycni.plugins.sdk import Plugin

log = logging.getLogger(__name__)

GROUP = "pycni.plugins"


class UnusablePlugin(CniError):
    """A package's plugin cannot be loaded, or may not have the type it claims."""


def find_plugins() -> dict[str, Plugin[Any]]:
    """The installed plugins by type; one that cannot be used is logged, and its type is unknown.

    A network that names such a type is refused, so nothing is skipped; a package that somebody
    forgot to remove does not keep every other network down.
    """
    found: dict[str, Plugin[Any]] = {}
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda one: one.name):
        package = entry.dist.name if entry.dist is not None else "?"
        try:
            if entry.name in found:
                raise UnusablePlugin("another package has a plugin of this type")
            found[entry.name] = load_plugin(entry)
        except Exception:  # the author's code runs here, and may raise anything
            log.exception("plugin %s of package %s cannot be used", entry.name, package)
        else:
            log.info("plugin %s of package %s", entry.name, package)
    return found


def load_plugin(entry: metadata.EntryPoint) -> Plugin[Any]:
    """The plugin an entry point names: a class or an instance; raise UnusablePlugin otherwise."""
    PluginType.parse(entry.name)
    if entry.name in plugins.KNOWN:
        raise UnusablePlugin(f"{entry.name} is built in; give the plugin another type")
    value = entry.load()
    plugin = value() if isinstance(value, type) else value
    if not isinstance(plugin, Plugin):
        raise UnusablePlugin(f"{entry.value} is no pycni.sdk.Plugin")
    if plugin.type != entry.name:
        raise UnusablePlugin(f'{entry.value} is of the type "{plugin.type}", not "{entry.name}"')
    return plugin
