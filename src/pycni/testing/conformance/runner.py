# SPDX-License-Identifier: Apache-2.0
"""Runs the table against the executables of a directory, one finding for each plugin and case."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from pycni.errors import CniError, InvalidConfig
from pycni.model import jsonio
from pycni.model.version import CURRENT
from pycni.testing.conformance.execution import Exchange, Execute, quote
from pycni.testing.conformance.place import Place
from pycni.testing.conformance.probe import Failure, NotApplicable, Probe, Subject
from pycni.testing.conformance.samples import NONE, SAMPLES, Role, Sample
from pycni.testing.conformance.table import Case

VERSION_CASE = "P10-version"
PATIENCE = 3  # cases that ended in a time-out, until a plugin is given up
NO_PLUGIN = "it does not answer VERSION, so it may be no plugin; --plugin tries all the same"


class Verdict(enum.StrEnum):
    """What a case came to; only the first two were run to their end."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"
    NEEDS_ROOT = "needs root"
    NEEDS_CONFIG = "needs a configuration"


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One case on one plugin. `reproduce` is a line for a shell."""

    plugin: str
    case: str
    rule: str
    verdict: Verdict
    reason: str = ""
    expected: str = ""
    got: str = ""
    env: dict[str, str] = {}
    stdin: str = ""
    reproduce: str = ""
    seconds: float = 0.0


class Suite:
    """The cases to run, the way to run plugins, and the place they may act in."""

    def __init__(
        self,
        cases: Iterable[Case],
        execute: Execute,
        place: Place,
        *,
        directory: Path,
        path: str = "",
        strict: bool = False,
        why_not_isolated: str = "not root",
    ) -> None:
        self.cases = tuple(case for case in cases if strict or not case.strict)
        self._execute = execute
        self._place = place
        self._directory = directory
        # CNI_PATH
        self._path = path or os.pathsep.join((str(directory), str(place.plugins)))
        self._strict = strict
        self._why_not_isolated = why_not_isolated

    def subject(self, name: str, sample: Sample | None = None, *, trusted: bool = True) -> Subject:
        """The plugin of that name, with the versions it says it supports.

        Unless it is `trusted` to be a plugin, it must answer VERSION with a JSON object, a result
        or an error, for anything else to be tried on it.
        """
        env = {"CNI_COMMAND": "VERSION", "CNI_PATH": self._path}
        stdin = json.dumps({"cniVersion": CURRENT}).encode()
        outcome = self._execute(name, env, stdin)
        document: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(outcome.stdout)
        listed = document.get("supportedVersions") if isinstance(document, dict) else None
        versions = listed if isinstance(listed, list) else []
        is_plugin = trusted or isinstance(document, dict)
        return Subject(name, sample or SAMPLES.get(name, NONE), versions, is_plugin=is_plugin)

    def run(self, subject: Subject) -> Iterator[Finding]:
        """Every case on one plugin."""
        for case in self.cases:
            yield self.run_case(subject, case)

    def run_case(self, subject: Subject, case: Case) -> Finding:
        """One case on one plugin."""
        about: dict[str, Any] = {"plugin": subject.name, "case": case.id, "rule": case.rule}
        blocked = self._why_not(subject, case)
        if blocked is not None:
            verdict, reason = blocked
            return Finding(**about, verdict=verdict, reason=reason)
        probe = Probe(subject, self._execute, self._place, path=self._path, strict=self._strict)
        started = time.monotonic()
        try:
            case.run(probe)
        except NotApplicable as exc:
            return Finding(**about, verdict=Verdict.NOT_APPLICABLE, reason=str(exc))
        except Failure as exc:
            sent = exc.exchange or probe.last
            subject.hangs += sent is not None and sent.outcome.hung
            told: dict[str, Any] = {"expected": exc.expected, "got": exc.got, **self._sent(sent)}
            seconds = round(time.monotonic() - started, 3)
            return Finding(**about, verdict=Verdict.FAIL, **told, seconds=seconds)
        except CniError as error:  # ours, of making a container ready
            told = {"expected": "the case to be prepared", "got": error.msg}
            return Finding(**about, verdict=Verdict.FAIL, **told)
        seconds = round(time.monotonic() - started, 3)
        return Finding(**about, verdict=Verdict.PASS, seconds=seconds)

    def _why_not(self, subject: Subject, case: Case) -> tuple[Verdict, str] | None:
        """What keeps the case from being run, if anything."""
        if not subject.is_plugin and case.id != VERSION_CASE:
            return Verdict.NOT_APPLICABLE, NO_PLUGIN
        if subject.hangs >= PATIENCE:
            return Verdict.NOT_APPLICABLE, f"given up: {PATIENCE} cases did not end in time"
        if not case.acts:
            return None
        sample = subject.sample
        if sample.config is None:
            return Verdict.NEEDS_CONFIG, sample.reason
        if (case.isolated or sample.needs_root) and not self._place.isolated:
            return Verdict.NEEDS_ROOT, self._why_not_isolated
        missing = [kind for kind in sample.kinds if not self._place.knows(kind)]
        if missing:
            return Verdict.NOT_APPLICABLE, f"this kernel has no {missing[0]} links"
        return None

    def _sent(self, exchange: Exchange | None) -> dict[str, Any]:
        if exchange is None:
            return {}
        return {
            "env": dict(exchange.env),
            "stdin": quote(exchange.stdin),
            "reproduce": exchange.command(str(self._directory)),
        }


def find_plugins(directory: Path, names: Iterable[str] = ()) -> list[str]:
    """The executables of the directory, or those of the names; raise InvalidConfig if none."""
    try:
        found = sorted(path.name for path in directory.iterdir() if _is_executable(path))
    except OSError as exc:
        raise InvalidConfig(f"cannot read {directory}: {exc.strerror}") from exc
    if not found:
        raise InvalidConfig(f"no executables in {directory}")
    unknown = sorted(set(names) - set(found))
    if unknown:
        raise InvalidConfig(
            f"no executable {unknown[0]} in {directory}; there is {', '.join(found)}"
        )
    return list(names) or found


def read_samples(data: bytes) -> dict[str, Sample]:
    """The plugin objects of a configuration, of a list or alone, by their type.

    A `prevResult` tells that the plugin stands behind others; another one takes its place.
    """
    document = jsonio.loads(data)
    objects = document.get("plugins", [document]) if isinstance(document, dict) else None
    if not isinstance(objects, list) or not objects:
        raise InvalidConfig("not a plugin's configuration, nor a list of them")
    samples = {}
    for number, config in enumerate(objects):
        if not isinstance(config, dict) or not isinstance(config.get("type"), str):
            raise InvalidConfig(f"plugins[{number}] has no type")
        known = SAMPLES.get(config["type"], Sample())
        role = Role.ADJUSTS if number or "prevResult" in config else known.role
        kept = {k: v for k, v in config.items() if k not in _OURS}
        samples[config["type"]] = Sample(config=kept, role=role, ifname=known.ifname)
    return samples


_OURS = ("cniVersion", "name", "type", "prevResult")


def _is_executable(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode) and os.access(path, os.X_OK)
    except OSError:
        return False
