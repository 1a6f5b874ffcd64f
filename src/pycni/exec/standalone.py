# SPDX-License-Identifier: Apache-2.0
"""A plugin executable without a service: the same plugin, run in this process.

The state on disk is the service's (leases, backups), so the two can take turns.
"""

from __future__ import annotations

import os

from pycni.exec import skel
from pycni.exec.framing import Call, Reply
from pycni.kernel.side import Side
from pycni.model.deadline import Deadline
from pycni.model.request import Request
from pycni.runtime.executors import Exec, Executors, InProcess


def run(call: Call) -> Reply:
    """Answer one call. It is as long as its caller waits: a runtime ends what it gives up."""
    path = tuple(part for part in call.env.get("CNI_PATH", "").split(os.pathsep) if part)
    host = Side()
    executors = Executors(InProcess(host), Exec(path, host))

    def execute(plugin: str, request: Request) -> bytes:
        return executors.get_own(plugin).run(plugin, request, Deadline())

    def versions(plugin: str) -> tuple[str, ...]:
        return executors.get_own(plugin).versions(plugin)

    try:
        return skel.answer(call, execute=execute, versions=versions)
    finally:
        host.close()
