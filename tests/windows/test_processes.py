# SPDX-License-Identifier: Apache-2.0
"""Plugin executables on Windows: found with .exe, fed, limited, ended with all they started."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time

import pytest

from pycni.errors import CniError, IOFailure, TryAgain
from pycni.kernel.side import Side
from pycni.model.deadline import Deadline
from pycni.model.request import Request, Verb
from pycni.runtime.executors import Exec
from pycni.windows import launchers, processes
from tests.windows.drive import Node, bridge

CONFIG = b'{"cniVersion":"1.0.0","name":"net","type":"probe"}'


def test_jobs_are_windows_own() -> None:
    """Elsewhere there is no DLL to ask, and the error says so."""
    if os.name == "posix":
        with pytest.raises(OSError, match="kernel32"):
            processes.Job()


if sys.platform == "win32":

    @pytest.fixture
    def path(tmp_path: pathlib.Path) -> pathlib.Path:
        directory = tmp_path / "bin"
        directory.mkdir()
        return directory

    def run(path: pathlib.Path, code: str, verb: Verb = Verb.DEL, timeout_s: float = 30) -> bytes:
        """Run `code` as the plugin probe.exe."""
        (path / "probe.exe").write_bytes(launchers.pack(code))
        executor = Exec((str(path / "nowhere"), str(path)), Side())
        request = Request(verb=verb, container_id="c1", netns="none", ifname="eth0", config=CONFIG)
        return executor.run("probe", request, Deadline(timeout_s))

    def test_a_plugin_is_found_fed_and_heard(path: pathlib.Path) -> None:
        """`.exe` is not part of the type; CNI_PATH is a list by semicolons."""
        code = (
            "import json, os, sys\n"
            "conf = json.load(sys.stdin)\n"
            "assert os.environ['CNI_PATH'].split(';')[1].endswith('bin')\n"
            "print(json.dumps({'interfaces': [{'name': conf['name']}]}))\n"
        )
        expected = b'{"cniVersion":"1.0.0","interfaces":[{"name":"net"}]}'
        assert expected == run(path, code, Verb.ADD)
        assert ["probe"] == Exec((str(path),), Side()).types()

    def test_a_plugins_error_is_passed_on(path: pathlib.Path) -> None:
        """Code and message."""
        code = 'print(\'{"code": 107, "msg": "no luck"}\'); raise SystemExit(1)'
        with pytest.raises(CniError, match="no luck") as caught:
            run(path, code)
        assert 107 == caught.value.wire_code

    def test_a_plugin_that_does_not_read_is_not_at_fault(path: pathlib.Path) -> None:
        """Its pipe just breaks."""
        assert b"" == run(path, "pass")

    def test_too_much_output_ends_the_plugin(path: pathlib.Path) -> None:
        """Before it fills our memory."""
        with pytest.raises(IOFailure, match="bytes on stdout"):
            run(path, "import sys\nwhile True: sys.stdout.write('x' * 65536)")

    def test_the_deadline_ends_a_plugin_and_its_children(
        path: pathlib.Path, tmp_path: pathlib.Path
    ) -> None:
        """The child would write for ever."""
        beat = tmp_path / "beat"
        child = f"import time\nwhile True: open({str(beat)!r}, 'a').write('x'); time.sleep(0.05)"
        code = (
            "import subprocess, sys, time\n"
            f"subprocess.Popen([sys.executable, '-c', {child!r}])\n"
            "time.sleep(60)\n"
        )
        with pytest.raises(TryAgain):
            run(path, code, timeout_s=3)
        size = beat.stat().st_size
        time.sleep(0.5)
        assert size > 0
        assert size == beat.stat().st_size

    def test_a_daemon_a_plugin_leaves_lives_on(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
        """The plugin ended by itself, so the job lets go."""
        beat = tmp_path / "beat"
        child = (
            "import time\n"
            f"for _ in range(40): open({str(beat)!r}, 'a').write('x'); time.sleep(0.05)"
        )
        code = (
            "import subprocess, sys\n"
            f"subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.DEVNULL,"
            " stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)\n"
        )
        run(path, code)
        time.sleep(1.5)
        assert beat.stat().st_size > 5

    def test_a_foreign_ipam_plugin_is_delegated_to(node: Node, path: pathlib.Path) -> None:
        """win-bridge.exe starts other-ipam.exe, which is in CNI_PATH."""
        if node.level == "simulator":
            return  # another process sees the DLLs only
        (path / "win-bridge.exe").write_bytes(launchers.build("win-bridge"))
        (path / "other-ipam.exe").write_bytes(launchers.build("host-local"))
        conf = bridge(ipam=node.ipam() | {"type": "other-ipam"}, cniVersion="1.0.0")
        request = Request(
            verb=Verb.ADD,
            container_id="c1",
            netns=node.namespace,
            ifname="eth0",
            config=json.dumps(conf).encode(),
        )
        executor = Exec((str(path),), Side())
        assert b"10.244.3.10/24" in executor.run("win-bridge", request, Deadline(60))
        assert ["10.244.3.10"] == node.leases()
