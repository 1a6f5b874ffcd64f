# SPDX-License-Identifier: Apache-2.0
"""A plugin executed as the compiled shim does it without a service, and what that loads.

Loading is most of what it costs: docs/executables.md has the times. So modules are counted, which
gives the same on every machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from pycni.exec import installation

# What the node, the service, other verbs or an error need; inspect is typing_extensions' alone.
NOT_NEEDED = frozenset(
    """
    asyncio concurrent.futures dataclasses google.protobuf grpc hashlib http inspect json logging
    pycni.cli pycni.client pycni.libcni pycni.model.config pycni.runtime.child pycni.runtime.node
    pycni.runtime.redaction pycni.runtime.runtime pycni.runtime.store pycni.service pycni.windows
    random rich secrets selectors signal site socket sqlite3 subprocess tempfile typer
    """.split()
)
CODE = """
import sys
sys.path += sys.argv[2].split(":")
from pycni.exec.start import main
main(sys.argv[1])
"""


def execute(plugin: str, stdin: Mapping[str, Any], **env: str) -> tuple[Any, set[str]]:
    """What the plugin prints, and the modules it loads; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-ISX", "importtime", "-c", CODE, plugin, installation.packages()],
        input=json.dumps(stdin),
        env={f"CNI_{name.upper()}": value for name, value in env.items()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    lines = (line for line in done.stderr.splitlines() if line.startswith("import time:"))
    return json.loads(done.stdout or "null"), {line.rpartition("|")[2].strip() for line in lines}
