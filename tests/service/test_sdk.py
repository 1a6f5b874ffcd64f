# SPDX-License-Identifier: Apache-2.0
"""`pycni.sdk.run` as a program: which of its faces it shows, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.service.daemon_helpers import EXAMPLES

POOL = EXAMPLES / "pool_ipam.py"
TWO = """
from pycni.sdk import Call, Config, Interface, Plugin, Result, run
class One(Plugin[Config], type="one"):
    def add(self, call): return Result(interfaces=(Interface(name=self.type),))
class Two(One, type="two"):
    pass
run(One, Two)
"""


def execute(
    script: Path, *arguments: str, stdin: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the script to its end."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CNI_")}
    return subprocess.run(
        [sys.executable, script, *arguments],
        input=stdin,
        env=clean | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_says_what_it_is() -> None:
    """Without CNI_COMMAND and arguments; and how to make it a daemon."""
    done = execute(POOL)
    assert (0, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith("CNI pool plugin")
    assert "--serve SOCKET" in execute(POOL, "--help").stdout
    assert 2 == execute(POOL, "--no-register").returncode


def test_it_answers_version() -> None:
    """As every CNI executable does."""
    done = execute(POOL, stdin='{"cniVersion": "1.0.0"}', CNI_COMMAND="VERSION")
    assert 0 == done.returncode
    assert "1.0.0" == json.loads(done.stdout)["cniVersion"]


def test_it_fails_as_a_plugin() -> None:
    """The error's JSON on stdout, with the path of the fault, and status 1."""
    config = {"cniVersion": "1.1.0", "name": "n", "ipam": {"type": "pool", "subnet": 5}}
    environ = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_IFNAME": "e", "CNI_NETNS": "/x"}
    done = execute(POOL, stdin=json.dumps(config), **environ)
    assert 1 == done.returncode
    error = json.loads(done.stdout)
    assert (7, "ipam.subnet: ") == (error["code"], error["msg"][:13])


def test_one_file_can_be_several_plugins(tmp_path: Path) -> None:
    """Then its own name says which one is meant."""
    config = json.dumps({"cniVersion": "1.1.0", "name": "n", "type": "two"})
    environ = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_IFNAME": "e", "CNI_NETNS": "/x"}
    for name, expected in (("one", "one"), ("two", "two"), ("plugin.py", "one")):
        script = tmp_path / name
        script.write_text(TWO)
        result = json.loads(execute(script, stdin=config, **environ).stdout)
        assert [expected] == [one["name"] for one in result["interfaces"]]


def test_an_executable_does_not_pay_for_grpc(tmp_path: Path) -> None:
    """It costs more to import than the rest together."""
    script = tmp_path / "look.py"
    script.write_text("import sys, pycni.sdk\nprint('grpc' in sys.modules)\n")
    assert "False\n" == execute(script).stdout


def test_a_taken_socket_is_named(tmp_path: Path) -> None:
    """One line, no traceback."""
    (tmp_path / "file").touch()
    done = execute(POOL, "--serve", str(tmp_path / "file"))
    assert 1 == done.returncode
    assert "exists and is not a socket" in done.stderr
    assert "Traceback" not in done.stderr
