# SPDX-License-Identifier: Apache-2.0
"""Fixtures are loaded by topic from tests/fix_*.py; `--fail-on-skip` makes a skip a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = [f"tests.{path.stem}" for path in sorted(Path(__file__).parent.glob("fix_*.py"))]

_skipped = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make test` and CI ask for everything, so what is missing there must not pass unseen."""
    parser.addoption(
        "--fail-on-skip", action="store_true", help="fail the run if any test was skipped"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect the reasons of skipped tests over the run."""
    config.stash[_skipped] = {}
    config.pluginmanager.register(_SkipCollector(config.stash[_skipped]))


class _SkipCollector:
    """Notes each skipped test with its reason; an expected failure is not a skip."""

    def __init__(self, skipped: dict[str, str]) -> None:
        self._skipped = skipped

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skipped[report.nodeid] = _reason(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._skipped[report.nodeid] = _reason(report)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Turn a passing run with skipped tests into a failing one, if asked to."""
    passed = session.exitstatus == pytest.ExitCode.OK
    if passed and session.config.getoption("--fail-on-skip") and session.config.stash[_skipped]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print every skipped test with its reason."""
    skipped = config.stash[_skipped]
    if skipped and config.getoption("--fail-on-skip"):
        terminalreporter.section("skipped tests, none allowed here", red=True)
        for nodeid, reason in skipped.items():
            terminalreporter.line(f"{nodeid}: {reason}")
