# SPDX-License-Identifier: Apache-2.0
"""A chain without a service: each of its executions loads no more than it needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pycni.kernel.netns import Netns
from tests import alone
from tests.fix_netns import run_in
from tests.meta.source import ROOT


@pytest.mark.world_allows("nft", "forward")
def test_the_plugins_of_edge_load_no_more_than_they_need(
    host: Netns, make_netns: Callable[..., Netns], tmp_path: Path
) -> None:
    """In the second round, when the bridge and the rules are there."""
    network = json.loads((ROOT / "deploy/networks/edge.json").read_text())
    network["plugins"][0]["ipam"]["dataDir"] = network["plugins"][1]["dataDir"] = str(tmp_path)
    network["plugins"][2]["runtimeConfig"] = {
        "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]
    }
    container = make_netns("c")
    loaded: dict[tuple[str, str], set[str]] = {}
    result: Any = None

    def execute(verb: str, plugin: dict[str, Any]) -> Any:
        config = {**plugin, "name": "edge", "cniVersion": "1.0.0"}
        config |= {"prevResult": result} if result else {}
        env = {"command": verb, "containerid": "c", "ifname": "eth0", "netns": container.path}
        printed, modules = host.run(lambda: alone.execute(plugin["type"], config, **env))
        loaded[plugin["type"], verb] = alone.NOT_NEEDED & modules
        return printed

    for _ in range(2):
        for plugin in network["plugins"]:
            result = execute("ADD", plugin)
        for plugin in network["plugins"]:
            execute("CHECK", plugin)
        for plugin in reversed(network["plugins"]):
            execute("DEL", plugin)
        result = None
    assert set() == set().union(*loaded.values()), loaded
    run_in(host, "ip", "link", "del", "cni1")
