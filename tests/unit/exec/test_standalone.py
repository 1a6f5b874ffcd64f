# SPDX-License-Identifier: Apache-2.0
"""A plugin without a service: what it loads, because loading is most of what it costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import alone


@pytest.mark.parametrize("plugin", ["bridge", "host-local", "loopback", "portmap", "tuning"])
def test_version_loads_no_more_than_it_needs(plugin: str) -> None:
    """The plugin itself it does, whose versions are asked for."""
    reply, loaded = alone.execute(plugin, {"cniVersion": "1.0.0"}, command="VERSION")
    assert "1.0.0" == reply["cniVersion"]
    assert set() == alone.NOT_NEEDED & loaded


@pytest.mark.parametrize("verb", ["ADD", "CHECK", "DEL"])
def test_an_ipam_plugin_loads_no_more_than_it_needs(tmp_path: Path, verb: str) -> None:
    """Nothing of sockets either."""
    ranges = [[{"subnet": "10.1.0.0/24"}]]
    config = {
        "cniVersion": "1.0.0",
        "name": "n",
        "type": "host-local",
        "ipam": {"type": "host-local", "dataDir": str(tmp_path), "ranges": ranges},
    }
    attachment = {"containerid": "c", "ifname": "eth0", "netns": "/absent"}
    result, loaded = alone.execute("host-local", config, command="ADD", **attachment)
    if verb != "ADD":
        later = {**config, "prevResult": result}
        _, loaded = alone.execute("host-local", later, command=verb, **attachment)
    assert set() == (alone.NOT_NEEDED | {"_socket", "ctypes"}) & loaded
