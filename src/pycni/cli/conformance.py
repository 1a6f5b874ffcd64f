# SPDX-License-Identifier: Apache-2.0
"""`pycni conformance`: the table of black-box cases against the executables of any directory.

As root the command starts itself anew where nothing can happen to the machine
(testing/conformance/isolation.py). See docs/conformance.md.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from pycni.cli import output
from pycni.errors import CniError

if TYPE_CHECKING:
    from rich.console import Console

    from pycni.testing.conformance.runner import Finding, Suite
    from pycni.testing.conformance.samples import Sample
    from pycni.testing.conformance.table import Case

STATE = ("/var/lib/cni",)
FAILED = 1


def conformance(
    context: typer.Context,
    bin_dir: Annotated[
        Path | None, typer.Option(help="The plugin executables; the file name is the CNI type.")
    ] = None,
    plugin: Annotated[
        list[str] | None, typer.Option(help="Only this executable; can be repeated.")
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(help="A configuration for plugins of other types: JSON with `type`."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("-k", help="Only cases with this text in number or rule; can be repeated."),
    ] = None,
    strict: Annotated[
        bool, typer.Option(help="Texts, layout and order of the reference implementation too.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds an execution may take.", min=0.1)] = 10.0,
    list_cases: Annotated[bool, typer.Option("--list", help="List the cases, run none.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show passed cases too.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Test plugin executables of any make against the CNI specification.

    Exit status: 0 no case failed, 1 some did, 2 wrong usage.
    """
    from pycni.testing.conformance import isolation
    from pycni.testing.conformance.runner import find_plugins

    as_json = json or context.obj.json
    cases = _select(only or (), strict=strict or list_cases)
    if list_cases:
        _list(cases, as_json=as_json)
        return
    if bin_dir is None:
        raise typer.BadParameter("--bin-dir says where the plugin executables are")
    bin_dir = bin_dir.absolute()
    if not plugin and str(bin_dir) in os.environ.get("PATH", "").split(os.pathsep):
        raise typer.BadParameter(f"{bin_dir} is in PATH, and has more than plugins: use --plugin")
    try:
        names = find_plugins(bin_dir, plugin or ())
        samples = _read(config or ())
        if unknown := sorted(set(samples) - set(names)):
            raise typer.BadParameter(f"--config is for {unknown[0]}, which is not tested")
    except CniError as error:
        raise typer.BadParameter(error.msg) from None
    why = isolation.enter()
    with _suite(bin_dir, cases, strict=strict, timeout_s=timeout, why=why) as suite:
        report = _Report(
            suite, names, samples, as_json=as_json, verbose=verbose, trusted=bool(plugin)
        )
        findings = report.run()
    if any(finding.verdict == "fail" for finding in findings):
        raise typer.Exit(FAILED)


def _select(texts: tuple[str, ...] | list[str], *, strict: bool) -> list[Case]:
    from pycni.testing.conformance.table import table

    chosen = [
        case
        for case in table()
        if (strict or not case.strict) and (not texts or any(case.matches(text) for text in texts))
    ]
    if not chosen:
        raise typer.BadParameter(f"no case has {' or '.join(texts)} in its number or rule")
    return chosen


def _list(cases: list[Case], *, as_json: bool) -> None:
    if as_json:
        output.print_json(
            [{"case": one.id, "rule": one.rule, "strict": one.strict} for one in cases]
        )
        return
    rows = [(one.id, one.rule, "--strict" if one.strict else "") for one in cases]
    output.print_table(("Case", "Rule", ""), rows, empty="")


def _read(paths: list[Path] | tuple[Path, ...]) -> dict[str, Sample]:
    from pycni.testing.conformance.runner import read_samples

    samples: dict[str, Sample] = {}
    for path in paths:
        try:
            samples |= read_samples(path.read_bytes())
        except OSError as exc:
            raise typer.BadParameter(f"cannot read {path}: {exc.strerror}") from None
        except CniError as error:
            raise typer.BadParameter(f"{path}: {error.msg}") from None
    return samples


# -- the place -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _suite(
    bin_dir: Path, cases: list[Case], *, strict: bool, timeout_s: float, why: str
) -> Iterator[Suite]:
    """The suite in a directory of its own and, inside, on a host with nothing but its loopback."""
    from pycni.testing.conformance import isolation
    from pycni.testing.conformance.execution import Executables
    from pycni.testing.conformance.place import Place
    from pycni.testing.conformance.runner import Suite

    if not why and (read_only := isolation.cover(bin_dir)):
        sys.stderr.write(f"read-only for plugins: {', '.join(read_only)}\n")
    with tempfile.TemporaryDirectory(
        prefix="pycni-conformance-", dir=None if why else "/run"
    ) as directory:
        place = Place(Path(directory), isolated=not why, state=() if why else STATE)
        if not why:
            place.host.links.set("lo", up=True)
        try:
            yield Suite(
                cases,
                Executables(bin_dir, timeout_s=timeout_s),
                place,
                directory=bin_dir,
                strict=strict,
                why_not_isolated=why,
            )
        finally:
            place.close()


# -- what is told ----------------------------------------------------------------------------------


class _Report:
    """Progress on stderr, failures as they come, a table at the end; or one JSON document."""

    def __init__(
        self,
        suite: Suite,
        names: list[str],
        samples: dict[str, Sample],
        *,
        as_json: bool,
        verbose: bool,
        trusted: bool,
    ) -> None:
        from rich.console import Console

        self._suite = suite
        self._names = names
        self._samples = samples
        self._as_json = as_json
        self._verbose = verbose
        self._trusted = trusted
        self._progress = Console(stderr=True)
        self._console: Console = output.console()

    def run(self) -> list[Finding]:
        """Every case on every plugin."""
        findings: list[Finding] = []
        documents = []
        for name in self._names:
            subject = self._suite.subject(
                name, self._samples.get(name), trusted=self._trusted or name in self._samples
            )
            found = []
            with self._progress.status(name) as status:
                for number, case in enumerate(self._suite.cases, 1):
                    status.update(f"{name} {number}/{len(self._suite.cases)} {case.id}")
                    finding = self._suite.run_case(subject, case)
                    found.append(finding)
                    if not self._as_json:
                        self._tell(finding)
            versions = list(subject.versions)
            documents.append({"plugin": name, "versions": versions, "findings": found})
            if not self._as_json:
                self._tell_not_run(name, found)
            findings += found
        counts = Counter(str(finding.verdict) for finding in findings)
        if self._as_json:
            plugins = msgspec.to_builtins(documents)
            output.print_json({"plugins": plugins, "summary": dict(counts)})
        else:
            self._summarise(findings)
        return findings

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def _tell(self, finding: Finding) -> None:
        if finding.verdict == "pass":
            if self._verbose:
                self._print(f"pass  {finding.plugin}  {finding.case}: {finding.rule}")
        elif finding.verdict == "fail":
            self._print(f"FAIL  {finding.plugin}  {finding.case}: {finding.rule}", "bold red")
            self._print(f"      expected  {finding.expected}")
            self._print(f"      came      {finding.got.removeprefix('got ')}")
            if finding.reproduce:
                self._print(f"      sent      {finding.reproduce}")

    def _tell_not_run(self, name: str, found: list[Finding]) -> None:
        """Each reason once, with the numbers of its cases."""
        reasons: dict[str, list[str]] = {}
        for finding in found:
            if finding.reason:
                key = f"{finding.verdict}  {name}  ({finding.reason})"
                reasons.setdefault(key, []).append(finding.case)
        for reason, cases in reasons.items():
            self._print(f"{reason}: {', '.join(cases)}", "dim")

    def _summarise(self, findings: list[Finding]) -> None:
        verdicts = ("pass", "fail", "not applicable", "needs root", "needs a configuration")
        rows = []
        for name in self._names:
            counts = Counter(str(one.verdict) for one in findings if one.plugin == name)
            rows.append((name, *(str(counts[verdict] or "") for verdict in verdicts)))
        output.print_table(("Plugin", *verdicts), rows, empty="")
        failed = sum(finding.verdict == "fail" for finding in findings)
        unrun = sum(finding.verdict.startswith("needs") for finding in findings)
        more = f"; {unrun} were not run" if unrun else ""
        told = f"{failed or 'no'} case{'s' if failed > 1 else ''} failed"
        self._print(f"{told}{more}", "bold red" if failed else "bold green")
