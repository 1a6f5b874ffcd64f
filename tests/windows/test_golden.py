# SPDX-License-Identifier: Apache-2.0
"""The reference plugins' recorded requests and results, field by field.

golden.json holds what Go's win-bridge.exe and win-overlay.exe asked of the service and answered,
for each step of 13 cases. Ours go through the same steps. Compared are the results, the errors,
every document that changes something, and the order of the changes. Look-ups are not compared:
how often a client looks is its own business.

Where we differ on purpose, deviations.json says so, with the number of the defect in the reference
(docs/windows.md has the list). A deviation that does not occur fails the test as well.
"""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import msgspec
import pytest

from pycni.windows.errors import TEXTS
from tests.windows.conftest import Bench
from tests.windows.drive import Doc, Node, Outcome

HERE = pathlib.Path(__file__).parent
CASES = json.loads((HERE / "golden.json").read_text(encoding="utf-8"))
CHANGING = re.compile(r"Hcn(Create|Modify|Delete)|HcsModify")
ZERO = "00000000-0000-0000-0000-000000000000"
_GUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)
_WINE_TEXT = re.compile(r"winapi error #(\d+)")


ABSENT = "(absent)"


class Deviation(msgspec.Struct, frozen=True):
    """Where one step of a case differs: the reference's value, ours, and why."""

    case: str
    step: int
    path: str
    theirs: Any
    ours: Any
    why: str


DEVIATIONS = msgspec.json.decode(
    (HERE / "deviations.json").read_bytes(), type=tuple[Deviation, ...]
)


class Trace:
    """Ids turned into names, so that two runs can be compared."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._names: dict[str, str] = {}
        self._at = 0

    def changes(self) -> list[Doc]:
        """What was changed since the last look, in the reference's notation."""
        objects = self._node.simulator.objects
        for noun, prefix in (("Network", "NET"), ("Endpoint", "EP")):
            for ident, doc in objects[noun].items():
                self._names[str(ident)] = f"{{{prefix}:{doc['Name']}}}"
        self._names[self._node.namespace] = "{NS}"
        calls, self._at = self._node.simulator.calls[self._at :], len(self._node.simulator.calls)
        found = []
        for call in calls:
            texts = [self.named(text) for text in call.texts]
            entry: Doc = {"fn": call.function, "in": [_document(text) for text in texts]}
            if call.guid.int:
                entry["guid"] = self.named(str(call.guid))
            if call.hresult:
                entry["hr"] = f"{call.hresult:#x}"
            if is_change(entry):
                found.append(entry)
        return found

    def named(self, text: str) -> str:
        """The text with known ids as names and unknown ones as {ID}."""
        for ident, name in self._names.items():
            text = text.replace(ident, name)
        return _GUID.sub(lambda m: m[0] if m[0] == ZERO else "{ID}", text)


def is_change(entry: Doc) -> bool:
    """Whether a call changes something in the service."""
    if entry["fn"] == "HNSCall":
        return bool(entry["in"][0] != "GET")
    return CHANGING.match(entry["fn"]) is not None


def _document(text: str) -> Any:
    return json.loads(text) if text.startswith("{") and '"' in text else text


def theirs_of(step: Doc) -> list[Doc]:
    """The reference's changes, ids that nobody names spelled {ID}."""
    found = [entry for entry in step["calls"] if is_change(entry)]
    text = re.sub(r"\{ID\d+\}", "{ID}", json.dumps(found))
    changes: list[Doc] = json.loads(text)
    for change in changes:
        if change.get("guid") == ZERO:
            del change["guid"]
    return changes


def diff(theirs: Any, ours: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Where two documents differ. Policies are compared as sets: their number may differ."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = [*theirs, *(key for key in ours if key not in theirs)]
        return [
            difference
            for key in keys
            for difference in diff(
                theirs.get(key, ABSENT), ours.get(key, ABSENT), f"{path}.{key}".lstrip(".")
            )
        ]
    if isinstance(theirs, list) and isinstance(ours, list):
        if path.endswith("Policies"):
            gone = [(f"{path}", one, ABSENT) for one in theirs if one not in ours]
            return gone + [(f"{path}", ABSENT, one) for one in ours if one not in theirs]
        longest = max(len(theirs), len(ours))
        return [
            difference
            for i in range(longest)
            for difference in diff(
                theirs[i] if i < len(theirs) else ABSENT,
                ours[i] if i < len(ours) else ABSENT,
                f"{path}[{i}]",
            )
        ]
    return [] if theirs == ours else [(path, theirs, ours)]


def answer_of(outcome: Outcome, trace: Trace) -> Any:
    """What a plugin prints: the result, the error, or nothing."""
    if outcome.error is not None:
        return {"code": outcome.error.wire_code, "msg": trace.named(outcome.error.msg)}
    return outcome.result if outcome.result is not None else ""


def known_text(answer: Any) -> Any:
    """Wine has no texts for the service's codes, and the reference then prints the number."""
    if isinstance(answer, dict) and "msg" in answer:
        text = _WINE_TEXT.sub(lambda m: TEXTS.get(int(m[1]), m[0]), answer["msg"])
        return answer | {"msg": re.sub(r"\{ID\d+\}", "{ID}", text)}
    return answer


def run_step(node: Node, trace: Trace, step: Doc) -> list[tuple[str, Any, Any]]:
    """One step on our plugin; where it differs from the reference."""
    text = json.dumps(step["conf"]).replace("{DATADIR}", node.data_dir.as_posix())
    for function, hresult in (step.get("inject") or {}).items():
        node.simulator.fail(function, int(hresult, 16))
    outcome = node.run(
        step["cmd"],
        json.loads(text),
        container_id=step["containerid"],
        netns=step["netns"].replace("{NS}", node.namespace),
    )
    changes = trace.changes()
    return diff(known_text(step["stdout"]), answer_of(outcome, trace), "stdout") + diff(
        theirs_of(step), changes, "changes"
    )


@pytest.mark.parametrize("case", CASES, ids=[case["title"] for case in CASES])
def test_requests_and_results_are_the_references_but_for_listed_deviations(
    case: Doc, bench: Bench, tmp_path: pathlib.Path
) -> None:
    """Every difference is listed with its reason, and every listed one occurs."""
    node = Node(bench.simulator, tmp_path / "leases", bench.level)
    for network in case["networks"]:
        node.simulator.add_network(network)
    node.namespace = node.new_namespace()
    node.simulator.compute_systems = {s["containerid"] for s in case["steps"]} - {"px"}
    trace = Trace(node)
    found = [
        (number, *difference)
        for number, step in enumerate(case["steps"])
        for difference in run_step(node, trace, step)
    ]
    listed = [(d.step, d.path, d.theirs, d.ours) for d in DEVIATIONS if d.case == case["title"]]
    assert listed == found


def test_each_deviation_has_a_reason() -> None:
    """A reason names a defect of the reference, or our rule that asks for the difference."""
    for deviation in DEVIATIONS:
        assert deviation.why.startswith(("defect ", "error handling:")), deviation
