# SPDX-License-Identifier: Apache-2.0
"""A plugin without a service: what it loads, because loading is most of what it costs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Each of these costs more than a plugin's own work. docs/executables.md has the times.
HEAVY = {
    "asyncio",
    "dataclasses",
    "grpc",
    "google.protobuf",
    "http",
    "pycni.cli",
    "pycni.runtime.node",
    "pycni.service",
    "rich",
    "sqlite3",
    "typer",
}
# A measurement of coverage loads modules of its own, before anything else.
CODE = """
import sys
before = set(sys.modules)
from pycni.exec import skel, standalone
from pycni.exec.framing import Call
env = {"CNI_COMMAND": sys.argv[2], "CNI_CONTAINERID": "c", "CNI_IFNAME": "eth0"}
reply = standalone.run(Call(sys.argv[1], env, sys.argv[3].encode()))
print(reply.exit_status, *sorted(sys.modules.keys() - before))
"""


@pytest.mark.parametrize(
    ("plugin", "command"), [("static", "VERSION"), ("static", "DEL"), ("bridge", "VERSION")]
)
def test_a_plugin_loads_nothing_heavy(plugin: str, command: str) -> None:
    """Neither the node nor the service, nor what only they need."""
    config = json.dumps({"cniVersion": "1.0.0", "name": "n", "type": plugin})
    done = subprocess.run(
        [sys.executable, "-I", "-c", CODE, plugin, command, config],
        capture_output=True,
        text=True,
        check=True,
    )
    status, *loaded = done.stdout.split()
    assert "0" == status
    assert set() == HEAVY & set(loaded)
