# SPDX-License-Identifier: Apache-2.0
"""`pycni conformance` as its users run it: what it tells, how it exits, what it leaves alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from pycni.cli.main import app
from pycni.testing.conformance import isolation
from pycni.testing.conformance.table import table
from pycni.testing.world import snapshot

GO = "/usr/lib/cni"
# A plugin in shell that supports one version, and does not look at names.
SHELL = """#!/bin/sh
test "$CNI_COMMAND" = VERSION && echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}'
test "$CNI_COMMAND" = ADD && echo '{"cniVersion": "1.0.0"}'
exit 0
"""
HARM = """#!/bin/sh
cd /; echo harm > {file}; rm -rf {directory}/keep; echo harm > /run/harm
ip link add harm type bridge
sleep 1000 &
exit 0
"""


# Nobody, who may yet read this checkout wherever it is: below /root, say.
AS_NOBODY = (
    "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search", "--",
)  # fmt: skip


def run(*arguments: str, through: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The command, from a process of its own."""
    return subprocess.run(
        [*through, sys.executable, "-m", "pycni.cli.main", "conformance", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200", "HOME": "/nonexistent"},
        timeout=60,
    )


def invoke(*arguments: str) -> Result:
    """The command in this process, for what needs no namespaces."""
    return CliRunner().invoke(app, ["conformance", *arguments], env={"COLUMNS": "200"})


def runs(command: str) -> bool:
    """Whether a process of that command line is running."""
    return not subprocess.run(
        ["pgrep", "-fx", command], capture_output=True, check=False
    ).returncode


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command does not go into namespaces."""
    monkeypatch.setattr(isolation, "enter", lambda: "not root")


def write(directory: Path, name: str, text: str) -> Path:
    """An executable."""
    directory.mkdir(exist_ok=True, parents=True)
    path = directory / name
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.root
@pytest.mark.go
def test_a_plugin_that_passes_exits_0() -> None:
    """With a table for people; every case that was not run is named with its reason."""
    done = run("--bin-dir", GO, "--plugin", "static", "-k", "GC", "-k", "P10", "-k", "P6")
    assert 0 == done.returncode, done.stdout
    assert "no case failed" in done.stdout
    assert "not applicable  static  (the plugin supports no version that has GC): " in done.stdout
    for case in ("R10c-gc-variables", "P14-gc-gate", "P9a-gc-keeps"):
        assert case in done.stdout


def test_failures_say_what_was_sent_and_what_came(as_user: None, tmp_path: Path) -> None:
    """In words and as a line for a shell; the exit status is 1."""
    write(tmp_path, "shelly", SHELL)
    done = invoke("--bin-dir", str(tmp_path), "-k", "R8-add", "-k", "P10")
    assert 1 == done.exit_code
    assert "FAIL  shelly  R8-add-container-id: ADD refuses a bad CNI_CONTAINERID" in done.stdout
    assert "expected  a non-zero exit status and error code 4 as JSON on stdout" in done.stdout
    assert 'came      exit status 0, stdout {"cniVersion": "1.0.0"}, stderr empty' in done.stdout
    assert "CNI_COMMAND=ADD CNI_CONTAINERID=-c" in done.stdout
    assert f"{tmp_path}/shelly" in done.stdout
    assert "1 case failed" in done.stdout


def test_json_has_every_finding(as_user: None, tmp_path: Path) -> None:
    """For programs: nothing else is on stdout."""
    write(tmp_path, "shelly", SHELL)
    done = invoke("--bin-dir", str(tmp_path), "--json", "-k", "P10", "-k", "L3-add", "-k", "P6-del")
    assert 1 == done.exit_code
    document = json.loads(done.stdout)
    [plugin] = document["plugins"]
    assert ("shelly", ["1.0.0"]) == (plugin["plugin"], plugin["versions"])
    verdicts = {one["case"]: one["verdict"] for one in plugin["findings"]}
    assert ("pass", "fail") == (verdicts["P10-version"], verdicts["L3-add-ifname"])
    assert "needs a configuration" == verdicts["P6-del-twice"]
    failed = next(one for one in plugin["findings"] if one["verdict"] == "fail")
    assert "ADD" == failed["env"]["CNI_COMMAND"]
    assert {"expected", "got", "stdin", "reproduce"} <= failed.keys()
    assert 1 == document["summary"]["fail"]


@pytest.mark.root
def test_another_type_is_tested_with_a_configuration(tmp_path: Path) -> None:
    """A plugin object, or a list of them; its verbs are then called."""
    write(tmp_path / "bin", "shelly", SHELL)
    config = tmp_path / "net.conflist"
    config.write_text(json.dumps({"name": "n", "plugins": [{"type": "shelly", "key": 1}]}))
    given = ("--bin-dir", str(tmp_path / "bin"), "--config", str(config), "--json")
    document = json.loads(run(*given, "-k", "P6-del-twice", "-k", "P3-add").stdout)
    verdicts = {one["case"]: one["verdict"] for one in document["plugins"][0]["findings"]}
    assert {"P6-del-twice": "pass", "P3-add-interface": "fail"} == verdicts


@pytest.mark.root
def test_nothing_happens_to_the_machine(tmp_path: Path) -> None:
    """To its links, to its files, to /run; and no process stays."""
    kept = write(tmp_path, "keep", SHELL)
    touched = tmp_path / "touched"
    write(tmp_path, "harm", HARM.format(file=touched, directory=tmp_path))
    before = snapshot()
    done = run("--bin-dir", str(tmp_path), "--timeout", "0.5")
    assert 1 == done.returncode
    assert kept.exists()
    assert not touched.exists()
    assert not Path("/run/harm").exists()
    assert [] == before.diff(snapshot())
    assert not runs("sleep 1000")


def test_what_does_not_answer_as_a_plugin_is_left_alone(as_user: None, tmp_path: Path) -> None:
    """One call told; named by --plugin it gets all of them."""
    write(tmp_path, "other", "#!/bin/sh\necho called >&2\n")
    done = invoke("--bin-dir", str(tmp_path), "--json")
    counts = json.loads(done.stdout)["summary"]
    assert (1, 1) == (done.exit_code, counts["fail"])
    named = invoke("--bin-dir", str(tmp_path), "--json", "--plugin", "other")
    assert json.loads(named.stdout)["summary"]["fail"] > 20


@pytest.mark.root
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_it_is_told_to(tmp_path: Path, signum: signal.Signals) -> None:
    """At once, with the plugin that is running."""
    write(tmp_path / "bin", "slow", "#!/bin/sh\nexec sleep 2000\n")
    arguments = ["conformance", "--bin-dir", str(tmp_path / "bin"), "--timeout", "60"]
    # A shell gives what it starts in the background, these tests perhaps, no SIGINT.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "pycni.cli.main", *arguments]
    process = subprocess.Popen(command)
    while not runs("sleep 2000"):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signum)
    assert 128 + signum == process.wait(10)
    assert not runs("sleep 2000")


@pytest.mark.root
def test_plugins_below_run_are_found_there(tmp_path: Path) -> None:
    """Although the command empties it."""
    directory = Path("/run/conformance-bin")
    write(directory, "shelly", SHELL)
    try:
        done = run("--bin-dir", str(directory), "-k", "P10", "--verbose")
    finally:
        shutil.rmtree(directory)
    assert (0, True) == (done.returncode, "pass  shelly  P10-version" in done.stdout), done.stderr


@pytest.mark.root
def test_without_root_what_needs_it_is_listed(tmp_path: Path) -> None:
    """And the rest is run: refusals, and plugins that need no namespace."""
    write(tmp_path / "bin", "bridge", SHELL)
    for path in (tmp_path, *tmp_path.parents):
        if os.stat(path).st_mode & 0o005 != 0o005 and path != Path("/"):
            path.chmod(0o755)
    done = run("--bin-dir", str(tmp_path / "bin"), "-k", "P6-del", "-k", "P10", through=AS_NOBODY)
    assert 0 == done.returncode, done.stderr
    assert "needs root  bridge  (not root: try sudo, or unshare --map-root-user): P6" in done.stdout
    assert "7 were not run" in done.stdout


def test_the_cases_are_listed() -> None:
    """Number, rule, and which are the reference implementation's alone."""
    done = invoke("--list")
    assert 0 == done.exit_code
    assert all(case.id in done.stdout for case in table())
    listed = json.loads(invoke("--list", "--json", "-k", "D5").stdout)
    assert ["D5-delegate-undone"] == [one["case"] for one in listed]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "--bin-dir says where"),
        (("--bin-dir", "EMPTY"), "no executables in"),
        (("--bin-dir", "/nowhere"), "cannot read /nowhere"),
        (("--bin-dir", "/usr/bin"), "is in PATH"),
        (("--bin-dir", "BIN", "--plugin", "nonesuch"), "no executable nonesuch"),
        (("--bin-dir", "BIN", "-k", "nonesuch"), "no case has nonesuch"),
        (("--bin-dir", "BIN", "--config", "/nowhere"), "cannot read /nowhere"),
        (("--bin-dir", "BIN", "--config", "BIN/shelly"), "not valid JSON"),
        (("--bin-dir", "BIN", "--config", "CONF"), "--config is for ghost"),
    ],
)
def test_wrong_usage_exits_2(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    """Before anything is executed."""
    write(tmp_path / "bin", "shelly", SHELL)
    (tmp_path / "empty").mkdir()
    (tmp_path / "conf").write_text('{"type": "ghost"}')
    places = {"EMPTY": "empty", "BIN": "bin", "BIN/shelly": "bin/shelly", "CONF": "conf"}
    given = [str(tmp_path / places[one]) if one in places else one for one in arguments]
    done = invoke(*given)
    assert 2 == done.exit_code
    assert told in " ".join(done.stderr.replace("│", " ").split())
