# SPDX-License-Identifier: Apache-2.0
"""`pycni doctor` on the simulator: every step works, and no rule differs."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid

import pytest

from pycni.testing.hns_doctor import NETWORK, PROBES, Verdict, examine
from pycni.testing.hns_simulator import NativeCall, refusal
from pycni.windows.abi import Reply
from tests.windows.drive import Node


def test_the_doctor_finds_nothing_on_the_simulator(node: Node) -> None:
    """And leaves nothing behind."""
    before = [doc["Name"] for doc in node.simulator.objects["Network"].values()]
    pinged: list[str] = []

    def ping(address: str) -> bool:
        pinged.append(address)
        return True

    findings = list(examine(ping=ping))
    assert [] == [finding for finding in findings if finding.verdict is not Verdict.OK]
    assert len(findings) > 20
    assert ["172.31.254.2"] == pinged
    assert before == [doc["Name"] for doc in node.simulator.objects["Network"].values()]
    assert {} == node.simulator.objects["Endpoint"]
    assert [node.namespace] == [str(one) for one in node.simulator.objects["Namespace"]]


def test_the_doctor_says_what_fails_and_goes_on(node: Node) -> None:
    """A failing step is a finding, not the end."""
    node.simulator.fail("HcnCreateEndpoint", 0x803B0006, times=1)
    node.simulator.fail("HcnModifyNamespace", 0x803B002E, times=1)
    findings = list(examine(ping=lambda _address: False))
    failed = [one.what for one in findings if one.verdict is Verdict.FAILED]
    assert ["ADD makes network and endpoint"] == failed
    assert [] == node.simulator.named("Network", NETWORK)


@pytest.mark.parametrize("noun", ["Network", "Endpoint", "Namespace"])
def test_whatever_fails_is_a_finding(node: Node, noun: str) -> None:
    """Each call in turn: no step ends the examination, and what stays behind is told."""
    if node.level != "simulator":
        return  # the way there makes no difference, and takes time
    simulator = node.simulator
    list(examine(ping=lambda _address: True))
    made = [call.function for call in simulator.calls if noun in call.function]
    for function in sorted(set(made) - {f"HcnClose{noun}"}):
        for turn in range(made.count(function)):
            left = [turn]

            def refuse(_call: NativeCall, left: list[int] = left) -> Reply | None:
                left[0] -= 1
                return refusal(0x80070057) if left[0] == -1 else None

            simulator.hook(function, refuse, times=1000)
            findings = list(examine(ping=lambda _address: True))
            simulator._hooks.clear()
            kept = bool(simulator.named("Network", NETWORK))
            kept |= len(simulator.objects["Namespace"]) > 1
            assert kept == (findings[-1].verdict is Verdict.FAILED), (function, turn)
            assert "what was made is removed" == findings[-1].what
            for ident in [i for i in simulator.objects["Namespace"] if str(i) != node.namespace]:
                del simulator.objects["Namespace"][ident]
    assert Verdict.OK is list(examine(ping=lambda _address: True))[-1].verdict


def test_the_doctor_removes_nothing_of_others(node: Node) -> None:
    """An endpoint of the same name on another network."""
    (network,) = node.simulator.named("Network", "cbr0")
    node.simulator.add_endpoint(uuid.UUID(network["ID"]), {"Name": PROBES[0]})
    list(examine(ping=lambda _address: True))
    assert 1 == len(node.simulator.named("Endpoint", PROBES[0]))


if sys.platform == "win32":

    def test_pycni_doctor_prints_the_findings(node: Node) -> None:
        """The command, on the stand-in DLLs: only a real container could answer the ping."""
        if node.level == "simulator":
            return  # another process sees the DLLs only
        command = [sys.executable, "-m", "pycni.cli.main", "--json", "doctor"]
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=True)
        findings = json.loads(done.stdout)
        assert len(findings) > 20
        assert {"ok", "differs"} >= {finding["verdict"] for finding in findings}
        assert [] == node.simulator.named("Network", NETWORK)


def test_the_doctor_stops_when_nobody_answers(node: Node) -> None:
    """One finding says so."""
    node.simulator.fail("HNSCall", 0x80070005)
    (finding,) = examine(ping=lambda _address: True)
    assert Verdict.FAILED is finding.verdict
    assert "(0x5)" in finding.detail
