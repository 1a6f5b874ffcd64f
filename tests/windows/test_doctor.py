# SPDX-License-Identifier: Apache-2.0
"""`pycni doctor` on the simulator: every step works, and no rule differs."""

from __future__ import annotations

from pycni.testing.hns_doctor import NETWORK, Verdict, examine
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


def test_the_doctor_stops_when_nobody_answers(node: Node) -> None:
    """One finding says so."""
    node.simulator.fail("HNSCall", 0x80070005)
    (finding,) = examine(ping=lambda _address: True)
    assert Verdict.FAILED is finding.verdict
    assert "(0x5)" in finding.detail
