# SPDX-License-Identifier: Apache-2.0
"""Each row of the table can fail: a plugin with the fault it is about does not pass it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pycni.kernel import netns
from pycni.kernel.netns import Netns
from pycni.kernel.side import Side
from pycni.testing.conformance.execution import Executables, Execute, Outcome
from pycni.testing.conformance.place import Place
from pycni.testing.conformance.probe import Subject
from pycni.testing.conformance.runner import Finding, Suite, Verdict
from pycni.testing.conformance.samples import SAMPLES
from pycni.testing.conformance.table import table
from tests import faces

pytestmark = pytest.mark.root

CASES = {case.id: case for case in table()}
EMPTY_RESULT = b'{"cniVersion": "1.1.0"}'

# A fault: what a plugin does instead of `right()`, which is the plugin as it should be.
Env = Mapping[str, str]
Fault = Callable[[Env, Any, Callable[..., Outcome]], Outcome]


def accepts(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """Every error is a success."""
    done = right()
    return Outcome(0, EMPTY_RESULT, b"") if done.status else done


def miscodes(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """Every error has code 100."""
    done = right()
    return done._replace(stdout=re.sub(rb'"code": \d+', b'"code": 100', done.stdout))


def crashes(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """Strange input ends it by a signal."""
    odd = not isinstance(config, dict) or len(env.get("CNI_CONTAINERID", "")) > 200
    if odd or len(str(config.get("name"))) > 200:
        return Outcome(-11, b"", b"")
    return right()


def chats(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """Prints a line for people before everything else."""
    done = right()
    return done._replace(stdout=b"configuring\n" + done.stdout)


def fails(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """No verb but ADD and VERSION works."""
    if env.get("CNI_COMMAND") in ("ADD", "VERSION"):
        return right()
    return Outcome(1, b'{"code": 999, "msg": "no"}', b"")


def idles(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """Says it has done it: no verb does anything."""
    if env.get("CNI_COMMAND") == "ADD":
        inside = {"name": "eth0", "sandbox": env.get("CNI_NETNS", "")}
        return Outcome(0, json.dumps({"cniVersion": "1.1.0", "interfaces": [inside]}).encode(), b"")
    return Outcome(0, b"", b"")


def forgets(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """DEL does nothing."""
    return Outcome(0, b"", b"") if env.get("CNI_COMMAND") == "DEL" else right()


def collects_all(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """GC does not look at what is valid."""
    if env.get("CNI_COMMAND") == "GC" and isinstance(config, dict):
        return right(config={**config, "cni.dev/valid-attachments": []})
    return right()


def takes_over(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """ADD removes what is in its way."""
    if env.get("CNI_COMMAND") == "ADD" and os.path.exists(env.get("CNI_NETNS", "")):
        side = Side.open(env["CNI_NETNS"])
        if side.links.find(env["CNI_IFNAME"]) is not None:
            side.links.remove(env["CNI_IFNAME"])
        side.close()
    return right()


def mislabels(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """Every result says it is of another version."""
    done = right()
    return done._replace(
        stdout=re.sub(rb'"cniVersion": "[^"]*"', b'"cniVersion": "0.9.0"', done.stdout)
    )


def drops_prev_result(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """A chained ADD answers with an empty result."""
    done = right()
    is_add = env.get("CNI_COMMAND") == "ADD" and done.status == 0
    return done._replace(stdout=EMPTY_RESULT) if is_add else done


def refuses_unknown_keys(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """With a code that says something else."""
    if isinstance(config, dict) and "x-conformance" in config:
        return Outcome(1, b'{"code": 7, "msg": "x-conformance"}', b"")
    return right()


def wants_everything(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """VERSION needs what ADD needs."""
    if "CNI_CONTAINERID" not in env:
        return Outcome(1, b'{"code": 4, "msg": "CNI_CONTAINERID"}', b"")
    return right()


def wants_the_namespace(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """DEL opens it."""
    if env.get("CNI_COMMAND") == "DEL" and not os.path.exists(env.get("CNI_NETNS", "")):
        return Outcome(1, b'{"code": 999, "msg": "no namespace"}', b"")
    return right()


def never_checks(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """CHECK succeeds."""
    return Outcome(0, b"", b"") if env.get("CNI_COMMAND") == "CHECK" else right()


def hands_out_one_address(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """To whoever asks."""
    done = right()
    return done._replace(stdout=re.sub(rb"10\.88\.0\.\d+/", b"10.88.0.2/", done.stdout))


def names_no_variable(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """Errors do not say what is wrong."""
    done = right()
    return done._replace(stdout=re.sub(rb'"msg": "[^"]*"', b'"msg": "wrong"', done.stdout))


def swallows_stderr(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """What a delegate says is lost."""
    return right()._replace(stderr=b"")


def keeps_the_order_of_faults(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """Versions are looked at before anything else."""
    if isinstance(config, dict) and config.get("cniVersion") == "9.9.9":
        return Outcome(1, b'{"code": 1, "msg": "incompatible CNI versions"}', b"")
    return right()


def counts_wrongly(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """VERSION lists the versions twice."""
    done = right()
    if env.get("CNI_COMMAND") != "VERSION":
        return done
    document = json.loads(done.stdout)
    document["supportedVersions"] *= 2
    return done._replace(stdout=json.dumps(document).encode())


def leaves_a_link(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """Each ADD leaves one more link on the host."""
    if env.get("CNI_COMMAND") == "ADD":
        side = Side()
        side.links.add(f"left{len(side.links.list())}", "bridge")
        side.close()
    return right()


def runs_the_delegate_itself(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """The delegate gets another container id."""
    return right(env={**env, "CNI_CONTAINERID": "other"} if "CNI_CONTAINERID" in env else env)


def quiet_delegate(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """The delegate is not run."""
    if isinstance(config, dict) and "ipam" in config:
        return right(config={**config, "ipam": {}})
    return right()


def skips_the_delegate(env: Env, config: Any, right: Callable[..., Outcome]) -> Outcome:
    """ADD fails before it has run anything."""
    if env.get("CNI_COMMAND") == "ADD":
        return Outcome(1, b'{"code": 142, "msg": "conformance refuses"}', b"")
    return right()


# Which fault a row is there for, and the plugin it is shown on.
BITES: dict[str, tuple[Fault, str]] = {
    "R10a-add-variables": (names_no_variable, "static"),
    "R10a-check-variables": (names_no_variable, "static"),
    "R10b-del-variables": (names_no_variable, "static"),
    "R9-unknown-command": (miscodes, "static"),
    "P14-no-command": (chats, "static"),
    "R10c-gc-variables": (chats, "static"),
    "R10e-status-variables": (chats, "static"),
    "R8-add-container-id": (accepts, "static"),
    "R8-del-container-id": (accepts, "static"),
    "R8-check-container-id": (accepts, "static"),
    "L3-add-ifname": (accepts, "static"),
    "L3-del-ifname": (accepts, "static"),
    "L3-check-ifname": (accepts, "static"),
    "L1-long-container-id": (crashes, "static"),
    "L2-long-network-name": (crashes, "static"),
    "A0-stdin-huge": (crashes, "static"),
    "A0-stdin-deep-open": (crashes, "static"),
    "A0-stdin-array": (crashes, "static"),
    "A0-stdin-null": (crashes, "static"),
    "A0-stdin-string": (crashes, "static"),
    "A0-stdin-empty": (accepts, "static"),
    "A0-stdin-cut-short": (accepts, "static"),
    "A0-stdin-no-json": (accepts, "static"),
    "A0-stdin-two-documents": (accepts, "static"),
    "A0-stdin-nan": (accepts, "static"),
    "A0-stdin-non-utf-8": (accepts, "static"),
    "A0-stdin-nul": (accepts, "static"),
    "A0-stdin-deep": (accepts, "static"),
    "A0-stdin-name-number": (accepts, "static"),
    "A0-stdin-version-number": (accepts, "static"),
    "A0-stdin-large": (fails, "static"),
    "V9-duplicate-keys": (accepts, "static"),
    "V9-folded-keys": (accepts, "static"),
    "L2-network-name": (accepts, "static"),
    "A0-order": (keeps_the_order_of_faults, "static"),
    "C12-unknown-keys": (refuses_unknown_keys, "static"),
    "P10-version": (counts_wrongly, "static"),
    "R10d-version-variables": (wants_everything, "static"),
    "P12-unknown-version": (accepts, "static"),
    "P14-check-gate": (accepts, "static"),
    "P14-gc-gate": (accepts, "static"),
    "P14-status-gate": (accepts, "static"),
    "P13-no-version": (mislabels, "static"),
    "V5-result-0.1.0": (mislabels, "static"),
    "V5-result-0.2.0": (mislabels, "static"),
    "V5-result-0.3.0": (mislabels, "static"),
    "V5-result-0.3.1": (mislabels, "static"),
    "V5-result-0.4.0": (mislabels, "static"),
    "V5-result-1.0.0": (mislabels, "static"),
    "V5-result-1.1.0": (mislabels, "static"),
    "P3-add-interface": (idles, "bridge"),
    "P4-name-taken": (takes_over, "bridge"),
    "P5b-prev-result": (drops_prev_result, "portmap"),
    "P6-del-undoes": (forgets, "bridge"),
    "P6-del-leaves-nothing": (leaves_a_link, "loopback"),
    "P6-del-twice": (fails, "static"),
    "P6-del-unknown": (fails, "static"),
    "P6-del-no-prev-result": (fails, "static"),
    "P7c-check-after-add": (fails, "static"),
    "P8a-status": (fails, "static"),
    "P9c-gc-empty": (fails, "static"),
    "P6-del-netns-gone": (wants_the_namespace, "bridge"),
    "P6-del-no-netns": (wants_the_namespace, "bridge"),
    "P7d-check-missing": (never_checks, "bridge"),
    "P9a-gc-keeps": (collects_all, "bridge"),
    "P11-parallel": (hands_out_one_address, "host-local"),
    "P14-no-namespace": (accepts, "loopback"),
    "P15-own-namespace": (accepts, "loopback"),
    "D1-delegate-missing": (accepts, "bridge"),
    "D2-delegate-request": (runs_the_delegate_itself, "bridge"),
    "D3-delegate-stderr": (swallows_stderr, "bridge"),
    "D4-delegate-verbs": (quiet_delegate, "bridge"),
    "D4-delegate-fails": (miscodes, "bridge"),
    "D5-delegate-undone": (skips_the_delegate, "bridge"),
}


class Faulty:
    """Our plugins in this process, on a host, with a fault."""

    def __init__(self, host: Netns, place: Place) -> None:
        self._host = host
        self._place = place

    def suite(self, fault: Fault | None) -> Suite:
        """The suite for plugins with the fault."""

        def execute(plugin: str, env: Env, stdin: bytes) -> Outcome:
            def right(env: Env = env, config: Any = None) -> Outcome:
                given = stdin if config is None else json.dumps(config).encode()
                return Outcome(*faces.in_process(plugin, dict(env), given))

            try:
                config = json.loads(stdin)
            except (ValueError, RecursionError):
                config = None
            if fault is None:
                return netns.run(self._host, right)
            return netns.run(self._host, lambda: fault(env, config, right))

        return Suite(table(), execute, self._place, directory=Path("/bin"), strict=True)

    def run(self, fault: Fault | None, plugin: str, case_id: str) -> Finding:
        """One row on one plugin with the fault."""
        subject = self.suite(None).subject(plugin)
        return self.suite(fault).run_case(subject, CASES[case_id])


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    """Them, on a host that ends with the module."""
    path = f"/run/netns/bites-{os.getpid()}"
    netns.create_named(path)
    with Netns.open(path) as host:
        place = Place(tmp_path_factory.mktemp("bites"), isolated=True, host=host)
        yield Faulty(host, place)
        place.close()
    netns.remove_named(path)


def test_every_row_has_a_fault_it_is_there_for() -> None:
    """A row that nothing fails tells nothing."""
    assert CASES.keys() == BITES.keys()


@pytest.mark.parametrize("case_id", BITES)
def test_a_row_fails_on_the_fault_it_is_there_for(faulty: Faulty, case_id: str) -> None:
    """And on the same plugin without the fault it passes."""
    fault, plugin = BITES[case_id]
    assert Verdict.PASS is faulty.run(None, plugin, case_id).verdict
    found = faulty.run(fault, plugin, case_id)
    assert Verdict.FAIL is found.verdict
    assert "the case to be prepared" != found.expected


# -- executions that come to no answer -------------------------------------------------------------

SCRIPTS = {
    "hangs": ("sleep 60", "did not end in time"),
    "leaves a child with its stdout": ("sleep 60 & exit 0", "did not end in time"),
    "prints without end": ("yes", "printed more than 4 MiB"),
    "is killed": ("kill -9 $$", "ended by SIGKILL"),
    "says its error on stderr": ('echo \'{"code": 6, "msg": "x"}\' >&2; exit 1', "stdout empty"),
    "prints garbage": ("echo oops; exit 1", "stdout oops"),
    "fails with success": ('echo \'{"code": 6, "msg": "x"}\'', "exit status 0"),
    "has no message": ("echo '{\"code\": 6}'; exit 1", '{"code": 6}'),
    "has a text for a code": ('echo \'{"code": "6", "msg": "x"}\'; exit 1', '"6"'),
    "prints two documents": ('echo \'{"code": 6, "msg": "x"} {}\'; exit 1', '"x"} {}'),
    "says nothing": ("exit 1", "exit status 1, stdout empty"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_execution_without_an_answer_is_a_failure(tmp_path: Path, name: str) -> None:
    """Soon, with what came back, and with nothing left running."""
    script, told = SCRIPTS[name]
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\n{script}\n")
    plugin.chmod(0o755)
    place = Place(tmp_path, isolated=False)
    patience_s = 0.3 if "in time" in told else 30
    execute: Execute = Executables(tmp_path, timeout_s=patience_s)
    suite = Suite(table(), execute, place, directory=tmp_path)
    found = suite.run_case(Subject("plugin", SAMPLES["static"]), CASES["A0-stdin-empty"])
    assert Verdict.FAIL is found.verdict
    assert told in found.got
    assert found.reproduce.endswith("/plugin </dev/null")


def test_what_cannot_be_executed_is_a_failure(tmp_path: Path) -> None:
    """A file of another machine, a script of a missing interpreter."""
    (tmp_path / "plugin").write_text("#!/nowhere/interpreter\n")
    (tmp_path / "plugin").chmod(0o755)
    done = Executables(tmp_path)("plugin", {"CNI_COMMAND": "VERSION"}, b"")
    assert "cannot be executed" in done.fault


def test_a_plugin_that_hangs_is_given_up(tmp_path: Path) -> None:
    """After three cases; what is left is told, and takes no time."""
    (tmp_path / "plugin").write_text("#!/bin/sh\nsleep 60\n")
    (tmp_path / "plugin").chmod(0o755)
    execute: Execute = Executables(tmp_path, timeout_s=0.1)
    suite = Suite(table(), execute, Place(tmp_path, isolated=False), directory=tmp_path)
    findings = list(suite.run(Subject("plugin", SAMPLES["static"])))
    assert [Verdict.FAIL] * 3 == [one.verdict for one in findings[:3]]
    assert {"given up: 3 cases did not end in time"} == {one.reason for one in findings[3:]}
