# SPDX-License-Identifier: Apache-2.0
"""`pycni doctor` on Windows: try everything on this node's host networking service."""

from __future__ import annotations

import subprocess

import msgspec
import typer

from pycni.cli import output
from pycni.errors import CniError


class DoctorFailed(CniError):
    """A step did not work on this node."""


def doctor(context: typer.Context) -> None:
    """Create a network, attach, ping, delete; compare the service with what pycni supposes."""
    from pycni.testing import hns_doctor

    findings = []
    for finding in hns_doctor.examine(ping=ping):
        findings.append(finding)
        if not context.obj.json:
            detail = f"  ({finding.detail})" if finding.detail else ""
            output.console().print(f"{finding.verdict:8}{finding.what}{detail}", highlight=False)
    if context.obj.json:
        output.print_json(msgspec.to_builtins(findings))
    failed = [finding for finding in findings if finding.verdict is hns_doctor.Verdict.FAILED]
    if failed:
        raise DoctorFailed(
            f"{len(failed)} of {len(findings)} steps failed",
            hint="run it as administrator; the service is called 'Host Network Service' (hns)",
        )


def ping(address: str) -> bool:
    """Whether one of three packets is answered."""
    command = ["ping", "-n", "3", "-w", "1000", address]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError:  # no such program: as good as no answer
        return False
    # Windows' ping succeeds on "destination unreachable" too; only a reply names a TTL.
    return done.returncode == 0 and b"TTL=" in done.stdout
