# SPDX-License-Identifier: Apache-2.0
"""The table of `pycni conformance` on our executables, each way they run, and on the Go plugins.

Each row is a test of its own, named by its number. Ours are held to the texts and the layout of
the reference implementation too.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pycni.exec.endpoint import ShimEndpoint
from pycni.kernel import netns
from pycni.kernel.netns import Netns
from pycni.kernel.side import Side
from pycni.runtime.opening import open_node
from pycni.service.daemon import answer_shims
from pycni.testing.conformance.execution import Executables, Execute, Outcome
from pycni.testing.conformance.place import Place
from pycni.testing.conformance.probe import Subject
from pycni.testing.conformance.runner import Finding, Suite, Verdict
from pycni.testing.conformance.table import Case, table
from tests import faces

pytestmark = pytest.mark.root

OURS = ("static", "host-local", "loopback", "bridge", "tuning", "portmap")
GO = Path("/usr/lib/cni")
CASES = {case.id: case for case in table()}

GO_PLUGINS = ("static", "loopback", "host-local", "host-device", "sbr")
# Debian's are 1.1.1, whose texts and layout are older than what `strict` means.
NOT_CONVERTED = "without prevResult the result has the shape of 1.0.0, whatever the version"
NO_UNDO = "what a delegate may have kept when its ADD failed is not given back"
DROPS_WORDS = "stderr of a delegate that fails is dropped when it printed an error"
NO_LINK = "DEL is an error when the interface is back on the host, or the namespace gone"
OPENS = "DEL opens the namespace, and makes an empty file where there is none"
KNOWN: dict[str, dict[str, str]] = {
    "static": {},
    "loopback": {
        f"V5-result-{version}": NOT_CONVERTED
        for version in ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0")
    },
    "host-local": {},
    "host-device": {
        "P6-del-twice": NO_LINK,
        "P6-del-unknown": NO_LINK,
        "P6-del-netns-gone": NO_LINK,
        "D3-delegate-stderr": DROPS_WORDS,
        "D5-delegate-undone": NO_UNDO,
    },
    "sbr": {
        "A0-stdin-large": OPENS,
        "P6-del-netns-gone": OPENS,
        "P6-del-no-netns": OPENS,
    },
}

# What an executable without a service does by itself: the rest is the same code in this process.
ALONE = (
    "R10a-add-variables",
    "P14-no-command",
    "A0-stdin-empty",
    "A0-stdin-huge",
    "A0-stdin-large",
    "V5-result-1.1.0",
    "P6-del-twice",
)


class Ways:
    """The suites of a module's tests: one for each way to run our plugins, in one host."""

    def __init__(self, root: Path, host: Netns, bin_dirs: Mapping[str, Path]) -> None:
        self._root = root
        self._host = host
        plugins = root / "plugins"
        self._place = Place(root, isolated=True, host=host, plugins=plugins)
        state = root / "node"
        state.mkdir()
        node = open_node(str(state), host=Side(host), plugin_path=(str(plugins),))
        self._socket = root / "shim.sock"
        self._endpoint = ShimEndpoint(self._socket, answer_shims(node))
        self._endpoint.start()
        self._node = node
        self._bin_dirs = bin_dirs

    @functools.cache  # noqa: B019 - lives as long as the module's tests
    def suite(self, way: str) -> Suite:
        """The suite that runs plugins in this way."""
        directory = self._bin_dirs["python" if way == "python" else "compiled"]
        execute: Execute
        if way == "in-process":
            execute = self._in_process
        else:
            executables = Executables(directory, host=self._host)
            socket = {} if way == "alone" else {"PYCNI_SHIM_SOCKET": str(self._socket)}

            def execute(plugin: str, env: Mapping[str, str], stdin: bytes) -> Outcome:
                return executables(plugin, {**env, **socket}, stdin)

        # A service looks in its own plugin path, whatever its caller says.
        path = str(self._place.plugins)
        return Suite(table(), execute, self._place, directory=directory, path=path, strict=True)

    def go(self) -> Suite:
        """The suite for the Go plugins."""
        return Suite(table(), Executables(GO, host=self._host), self._place, directory=GO)

    def close(self) -> None:
        """Stop the service."""
        self._endpoint.stop(5)
        self._node.close()
        self._place.close()

    def _in_process(self, plugin: str, env: Mapping[str, str], stdin: bytes) -> Outcome:
        done = netns.run(self._host, lambda: faces.in_process(plugin, dict(env), stdin))
        return Outcome(*done)


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory, bin_dirs: Mapping[str, Path]) -> Iterator[Ways]:
    """Every way, on a host that ends with the module."""
    path = f"/run/netns/table-{os.getpid()}"
    netns.create_named(path)
    with Netns.open(path) as host:
        with contextlib.closing(Side(host)) as side:
            side.links.set("lo", up=True)
        ways = Ways(tmp_path_factory.mktemp("table"), host, bin_dirs)
        yield ways
        ways.close()
    netns.remove_named(path)


def failures(findings: list[Finding]) -> list[str]:
    """What to read when a test fails."""
    return [
        f"{one.plugin} {one.case}: expected {one.expected}; {one.got}\n{one.reproduce}"
        for one in findings
        if one.verdict is Verdict.FAIL
    ]


def check(suite: Suite, plugins: tuple[str, ...], case: Case) -> None:
    """The case fails on none of the plugins, and there is one to try it on."""
    found = [suite.run_case(subject(suite, plugin), case) for plugin in plugins]
    assert [] == failures(found)
    assert any(one.verdict is Verdict.PASS for one in found), "no plugin to try it on"


@functools.cache
def subject(suite: Suite, plugin: str) -> Subject:
    """The plugin; it is asked for its versions once."""
    return suite.subject(plugin)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_our_plugins_pass_without_a_service(ways: Ways, case: Case) -> None:
    """In this process, as an executable runs them when no service listens."""
    check(ways.suite("in-process"), OURS, case)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_our_plugins_pass_through_the_compiled_shim(ways: Ways, case: Case) -> None:
    """With a service behind it; refusals are the same for all of them."""
    check(ways.suite("compiled"), OURS if case.acts else ("static", "bridge"), case)


@pytest.mark.parametrize("name", [case.id for case in CASES.values() if not case.acts])
def test_our_plugins_pass_through_the_python_shim(ways: Ways, name: str) -> None:
    """It forwards as the compiled one does: what it forwards is tested there."""
    check(ways.suite("python"), ("static",), CASES[name])


@pytest.mark.parametrize("name", ALONE)
def test_our_executables_pass_alone(ways: Ways, name: str) -> None:
    """What the executable does itself when no service listens."""
    check(ways.suite("alone"), ("static",), CASES[name])


@pytest.mark.go
@pytest.mark.parametrize("plugin", GO_PLUGINS)
def test_the_go_plugins_fail_where_it_is_known(ways: Ways, plugin: str) -> None:
    """And nowhere else; what they have learned must go from the list."""
    suite = ways.go()
    tried = suite.subject(plugin)
    cases = [case for case in suite.cases if case.acts or plugin == "static"]
    findings = [suite.run_case(tried, case) for case in cases]
    failed = {one.case for one in findings if one.verdict is Verdict.FAIL}
    assert KNOWN[plugin].keys() == failed, failures(findings)
    assert len(findings) - len(failed) > 20
