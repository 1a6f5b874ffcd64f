# SPDX-License-Identifier: Apache-2.0
"""The .exe files of the plugins: made anywhere, run on Windows as libcni runs them."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from pycni.errors import IOFailure
from pycni.windows import launchers
from tests.windows.drive import Doc, Node, bridge


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """A stand-in for distlib's program where distlib is not installed: everywhere but Windows."""
    if sys.platform != "win32":
        (tmp_path / "t64.exe").write_bytes(b"MZ stub ")
        monkeypatch.setattr("importlib.resources.files", lambda _package: tmp_path)


pytestmark = pytest.mark.usefixtures("stubs")


def test_installing_twice_changes_nothing(tmp_path: pathlib.Path) -> None:
    """The second time nothing is written."""
    directory = tmp_path / "cni" / "bin"
    written = launchers.install(directory, ["win-bridge", "nat"])
    assert ["win-bridge.exe", "nat.exe"] == [path.name for path in written]
    assert [] == launchers.install(directory, ["win-bridge", "nat"])
    assert ["nat", "win-bridge"] == [
        launchers.read_plugin_type(path) for path in sorted(directory.iterdir())
    ]


def test_another_interpreter_is_an_update(tmp_path: pathlib.Path) -> None:
    """Our own files may be replaced."""
    launchers.install(tmp_path / "bin", ["nat"], python=r"C:\old\python.exe")
    assert launchers.install(tmp_path / "bin", ["nat"], python=r"C:\Program Files\python.exe")
    content = (tmp_path / "bin" / "nat.exe").read_bytes()
    assert b'#!"C:\\Program Files\\python.exe" -E\r\n' in content


def test_somebody_elses_file_is_kept(tmp_path: pathlib.Path) -> None:
    """Refused, or backed up if forced; never removed."""
    theirs = tmp_path / "bin" / "nat.exe"
    theirs.parent.mkdir()
    theirs.write_bytes(b"MZ theirs")
    with pytest.raises(IOFailure, match="exists and is not pycni's"):
        launchers.install(theirs.parent, ["nat"])
    assert [] == launchers.uninstall(theirs.parent)
    launchers.install(theirs.parent, ["nat"], force=True)
    assert b"MZ theirs" == theirs.with_suffix(".exe.bak").read_bytes()
    assert [theirs] == launchers.uninstall(theirs.parent)
    assert [] == launchers.uninstall(tmp_path / "nowhere")


if sys.platform == "win32":

    def call(
        executable: pathlib.Path, verb: str, conf: Doc | None, node: Node, **env: str
    ) -> tuple[int, str, str]:
        """Start a plugin as libcni does; exit status, standard output, standard error."""
        variables = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": "c1",
            "CNI_NETNS": node.namespace,
            "CNI_IFNAME": "eth0",
            "CNI_PATH": f"{executable.parent};C:\\nowhere",
        }
        done = subprocess.run(
            [str(executable)],
            input=json.dumps(conf).encode() if conf else b"",
            capture_output=True,
            env=dict(os.environ) | variables | env,
            check=False,
            timeout=60,
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    @pytest.fixture
    def bin_dir(tmp_path: pathlib.Path) -> pathlib.Path:
        """A directory with a blank in its name, and launchers for this interpreter."""
        directory = tmp_path / "cni bin"
        launchers.install(directory, ["win-bridge", "host-local"])
        return directory

    def test_the_executable_speaks_the_protocol(node: Node, bin_dir: pathlib.Path) -> None:
        """VERSION, ADD, CHECK, a failing ADD, DEL: status, JSON and nothing else on stdout."""
        if node.level == "simulator":
            return  # another process sees the DLLs only
        plugin = bin_dir / "win-bridge.exe"
        conf = bridge(ipam=node.ipam())
        status, stdout, _ = call(plugin, "VERSION", None, node)
        assert (0, "1.1.0") == (status, json.loads(stdout)["supportedVersions"][-1])
        status, stdout, stderr = call(plugin, "ADD", conf, node)
        assert (0, "") == (status, stderr)
        result = json.loads(stdout)
        assert "10.244.3.10/24" == result["ips"][0]["address"]
        assert (0, "") == call(plugin, "CHECK", conf | {"prevResult": result}, node)[:2]
        status, stdout, _ = call(plugin, "ADD", conf | {"name": "nonet"}, node)
        assert (1, 999) == (status, json.loads(stdout)["code"])
        assert (0, "") == call(plugin, "DEL", conf, node)[:2]
        assert ([], []) == (node.simulator.named("Endpoint", "c1_cbr0"), node.leases())

    def test_two_executables_share_host_locals_directory(node: Node, bin_dir: pathlib.Path) -> None:
        """The lock is Windows' own, and names have no colon."""
        if node.level == "simulator":
            return
        six = {"type": "host-local", "subnet": "fd00:3::/64", "dataDir": str(node.data_dir)}
        conf = {"cniVersion": "1.0.0", "name": "net", "type": "host-local", "ipam": six}
        started = [
            subprocess.Popen(
                [str(bin_dir / "host-local.exe")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(os.environ)
                | {
                    "CNI_COMMAND": "ADD",
                    "CNI_CONTAINERID": f"c{number}",
                    "CNI_NETNS": "none",
                    "CNI_IFNAME": "eth0",
                    "CNI_PATH": str(bin_dir),
                },
            )
            for number in range(4)
        ]
        answers = [process.communicate(json.dumps(conf).encode(), 60)[0] for process in started]
        addresses = {json.loads(answer)["ips"][0]["address"] for answer in answers}
        assert {f"fd00:3::{number}/64" for number in range(2, 6)} == addresses
        names = {path.name for path in (node.data_dir / "net").iterdir()}
        assert {"fd00_3__2", "fd00_3__5", "lock"} <= names

    def test_pycni_install_and_uninstall(tmp_path: pathlib.Path) -> None:
        """Where containerd looks unless told otherwise; twice changes nothing."""

        def pycni(*arguments: str) -> dict[str, list[str]]:
            command = [sys.executable, "-m", "pycni.cli.main", "--json", *arguments]
            done = subprocess.run(
                command, capture_output=True, stdin=subprocess.DEVNULL, check=True
            )
            answer: dict[str, list[str]] = json.loads(done.stdout)
            return answer

        program_files = pathlib.Path(os.environ["PROGRAMFILES"])
        assert program_files / "containerd" / "cni" / "bin" == launchers.default_bin_dir()
        assert program_files / "containerd" / "cni" / "conf" == launchers.default_conf_dir()
        bin_dir = tmp_path / "cni" / "bin"
        option = ("--bin-dir", str(bin_dir))
        installed = pycni("install", *option)["installed"]
        assert sorted(installed) == sorted(str(path) for path in bin_dir.iterdir())
        assert str(bin_dir / "win-bridge.exe") in installed
        assert [] == pycni("install", *option)["installed"]
        assert sorted(installed) == pycni("uninstall", *option)["removed"]
        assert [] == list(bin_dir.iterdir())
