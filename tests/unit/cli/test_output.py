# SPDX-License-Identifier: Apache-2.0
"""How a failure reads on the terminal."""

from __future__ import annotations

import pytest

from pycni.cli import output
from pycni.errors import CniError, TryAgain


def failure(network: str, container_id: str) -> CniError:
    """What a plugin raised for an attachment."""
    error = TryAgain("stuck", hint="wait")
    error.network, error.container_id, error.ifname = network, container_id, "eth0"
    error.verb, error.plugin_type, error.plugin_index = "DEL", "bridge", 0
    return error


def test_several_failures_each_say_whom_they_concern(capsys: pytest.CaptureFixture[str]) -> None:
    """A GC over all networks is of little use without."""
    error = CniError("2 failures of GC", "bridge: stuck; bridge: stuck")
    error.verb = "GC"
    error.causes = (failure("net", "c1"), failure("other", "c2"), CniError("and 7 more failures"))
    output.report(error)
    assert [
        "pycni: 2 failures of GC",
        "  in: GC",
        "  net/c1/eth0 plugins[0] bridge DEL: stuck: wait",
        "  other/c2/eth0 plugins[0] bridge DEL: stuck: wait",
        "  and 7 more failures",
        "  CNI error code 999",
    ] == capsys.readouterr().err.splitlines()


def test_one_failure_has_its_details(capsys: pytest.CaptureFixture[str]) -> None:
    """The plugin, the verb, and what to do."""
    output.report(failure("net", "c1"))
    assert [
        "pycni: stuck",
        "  in: plugins[0] bridge DEL",
        "  wait",
        "  CNI error code 11",
    ] == capsys.readouterr().err.splitlines()
