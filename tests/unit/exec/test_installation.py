# SPDX-License-Identifier: Apache-2.0
"""`pycni install` and `uninstall`: what they write, keep, refuse and give back."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from pycni.errors import InvalidConfig, IOFailure
from pycni.exec import installation, shim_build
from pycni.exec.installation import PLUGINS
from pycni.model.config import NetworkConfigList

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has launchers")

SHIM = installation.python_shim(socket="/run/s", interpreter="/usr/bin/python3")
OTHER = installation.python_shim(socket="/run/other", interpreter="/usr/bin/python3")


def files(directory: Path) -> dict[str, bytes]:
    """What is in the directory."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_every_plugin_becomes_an_executable(tmp_path: Path) -> None:
    """The built-in ones of this system, and the type that runs a whole network."""
    changes = installation.install(tmp_path / "bin", SHIM)
    assert {name: SHIM for name in PLUGINS} == files(tmp_path / "bin")
    assert {"bridge", "host-local", "portmap", "loopback", "pycni"} <= set(PLUGINS)
    assert "win-bridge" not in PLUGINS
    assert 0o755 == stat.S_IMODE((tmp_path / "bin/bridge").stat().st_mode)
    assert [tmp_path / "bin" / name for name in PLUGINS] == list(changes.written)


def test_a_second_time_nothing_is_written(tmp_path: Path) -> None:
    """Unless something differs: the shim's fields, its mode, a file that is gone."""
    installation.install(tmp_path, SHIM)
    assert installation.Changes() == installation.install(tmp_path, SHIM)
    (tmp_path / "bridge").chmod(0o700)
    (tmp_path / "tuning").unlink()
    changes = installation.install(tmp_path, SHIM)
    assert {"bridge", "tuning"} == {path.name for path in changes.written}
    assert len(PLUGINS) == len(installation.install(tmp_path, OTHER).written)
    assert () == installation.install(tmp_path, OTHER).backed_up


def test_foreign_files_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    """All of them are named at once."""
    for name in ("tuning", "bridge"):
        (tmp_path / name).write_bytes(b"\x7fELF")
    (tmp_path / "portmap").symlink_to("/nowhere")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(IOFailure) as caught:
        installation.install(tmp_path, SHIM)
    for name in ("tuning", "bridge", "portmap"):
        assert str(tmp_path / name) in caught.value.msg
    assert "--force" in caught.value.details
    assert before == sorted(path.name for path in tmp_path.iterdir())


def test_forced_foreign_files_are_kept_and_given_back(tmp_path: Path) -> None:
    """With their content and mode; links as links; files of no plugin's name are not touched."""
    (tmp_path / "bridge").write_bytes(b"\x7fELF")
    (tmp_path / "bridge").chmod(0o711)
    (tmp_path / "portmap").symlink_to("bridge")
    (tmp_path / "custom").write_bytes(b"mine")
    changes = installation.install(tmp_path, SHIM, force=True)
    assert {"bridge.pycni-backup", "portmap.pycni-backup"} == {p.name for p in changes.backed_up}
    assert SHIM == (tmp_path / "bridge").read_bytes()
    assert () == installation.install(tmp_path, OTHER, force=True).backed_up
    changes = installation.uninstall(tmp_path)
    assert {"bridge", "portmap"} == {path.name for path in changes.restored}
    assert {"bridge", "portmap", "custom"} == {path.name for path in tmp_path.iterdir()}
    assert (b"\x7fELF", 0o711) == (
        (tmp_path / "bridge").read_bytes(),
        stat.S_IMODE((tmp_path / "bridge").stat().st_mode),
    )
    assert "bridge" == os.readlink(tmp_path / "portmap")
    assert installation.Changes() == installation.uninstall(tmp_path)


def test_a_file_that_was_replaced_since_is_not_uninstalled(tmp_path: Path) -> None:
    """The distribution's package has put its own there: that one is wanted now."""
    installation.install(tmp_path, SHIM)
    (tmp_path / "bridge").write_bytes(b"\x7fELF")
    installation.uninstall(tmp_path)
    assert {"bridge": b"\x7fELF"} == files(tmp_path)


def test_a_directory_in_the_way_is_an_error_even_by_force(tmp_path: Path) -> None:
    """Nothing sensible can be done about it."""
    (tmp_path / "bridge").mkdir()
    with pytest.raises(IOFailure, match="bridge"):
        installation.install(tmp_path, SHIM, force=True)


def test_uninstalling_where_nothing_is_does_nothing(tmp_path: Path) -> None:
    """Nor does it create anything."""
    assert installation.Changes() == installation.uninstall(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_read_only_directory_is_an_error(tmp_path: Path) -> None:
    """Here: a file where the directory should be."""
    (tmp_path / "bin").write_text("")
    with pytest.raises(IOFailure, match="bin"):
        installation.install(tmp_path / "bin" / "cni", SHIM)


# -- shims -----------------------------------------------------------------------------------------


def binary() -> bytes:
    """What a compiled shim looks like to us."""
    marks = (
        installation.SOCKET_MARK,
        installation.INTERPRETER_MARK,
        installation.PACKAGES_MARK,
    )
    return b"\x7fELF" + b"".join(mark + b"/default".ljust(1008, b"\0") for mark in marks) + b"end"


def test_the_fields_of_a_compiled_shim_are_filled_in() -> None:
    """In place: the size stays, and what was there before is gone."""
    filled = installation.compiled_shim(
        binary(), socket="/s", interpreter="/usr/bin/python3", packages="/a:/b"
    )
    assert len(binary()) == len(filled)
    assert b"/default" not in filled
    assert installation.SOCKET_MARK + b"/s\0\0" in filled
    assert installation.INTERPRETER_MARK + b"/usr/bin/python3\0" in filled
    assert installation.PACKAGES_MARK + b"/a:/b\0" in filled
    assert filled.endswith(b"end")


@pytest.mark.parametrize("content", [b"", binary()[:500], binary() + binary()])
def test_a_binary_without_its_fields_is_refused(content: bytes) -> None:
    """Stripped to death, or not a shim at all."""
    with pytest.raises(InvalidConfig):
        installation.compiled_shim(content, socket="/s", interpreter="/p")


def test_what_does_not_fit_is_refused() -> None:
    """A field has 1007 bytes; a socket's path 107; a first line 127, without spaces."""
    with pytest.raises(InvalidConfig, match="too long for the shim"):
        installation.compiled_shim(binary(), socket="/s", interpreter="/" * 1008)
    for make in (partial(installation.compiled_shim, binary()), installation.python_shim):
        make(socket="/" * 107, interpreter="/p")
        with pytest.raises(InvalidConfig, match="too long for a socket"):
            make(socket="/" * 108, interpreter="/p")
    for interpreter in ("/" + "p" * 130, "/with space/python"):
        with pytest.raises(InvalidConfig, match="first line"):
            installation.python_shim(socket="/s", interpreter=interpreter)


def test_the_python_shim_has_its_values_and_compiles() -> None:
    """Quotes in a path are no way into the code."""
    text = installation.python_shim(
        socket="/a'\"b", interpreter="/usr/bin/python3", packages="/p"
    ).decode()
    assert text.startswith("#!/usr/bin/python3 -IS\n# A plugin executable of pycni.\n")
    names: dict[str, object] = {"__name__": "shim"}
    exec(compile(text, "shim", "exec"), names)
    assert ("/a'\"b", "/p") == (names["SOCKET"], names["PACKAGES"])


def test_the_compilers_are_tried_best_first() -> None:
    """musl makes the quickest; every one links statically."""
    commands = shim_build.commands("shim.c", "out")
    assert "musl-gcc" == commands[0][0]
    assert all("-static" in command for command in commands)


# -- configurations --------------------------------------------------------------------------------


def test_a_reference_runs_a_network_whole(tmp_path: Path) -> None:
    """For old runtimes 1.0.0, for newer ones 1.1.0, with every capability there is."""
    changes = installation.write_reference(tmp_path, "dbnet")
    (path,) = changes.written
    assert "10-dbnet.conflist" == path.name
    network = NetworkConfigList.parse(path.read_bytes())
    assert ("dbnet", "1.1.0") == (network.name, network.cniVersion)
    assert "1.0.0" == json.loads(path.read_bytes())["cniVersion"]
    assert ["pycni"] == [plugin.type for plugin in network.plugins]
    assert {"portMappings", "bandwidth", "ips", "mac"} <= network.capabilities
    assert installation.Changes() == installation.write_reference(tmp_path, "dbnet")


def test_a_foreign_configuration_is_kept_too(tmp_path: Path) -> None:
    """Refused, or with force kept and given back; one edited since is left alone."""
    path = tmp_path / "10-dbnet.conflist"
    path.write_text("{}")
    with pytest.raises(IOFailure, match="not pycni's"):
        installation.write_reference(tmp_path, "dbnet")
    assert 1 == len(installation.write_reference(tmp_path, "dbnet", force=True).backed_up)
    assert (path,) == installation.remove_references(tmp_path).restored
    assert "{}" == path.read_text()
    installation.write_reference(tmp_path, "other")
    (tmp_path / "10-other.conflist").write_text("edited")
    assert installation.Changes() == installation.remove_references(tmp_path)


def test_a_networks_name_is_no_way_out_of_the_directory(tmp_path: Path) -> None:
    """It is checked before a path is made of it."""
    with pytest.raises(InvalidConfig):
        installation.write_reference(tmp_path, "../x")


# -- the command -----------------------------------------------------------------------------------


def pycni(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run(
        [sys.executable, "-m", "pycni.cli.main", "--json", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )


def test_a_relative_path_is_made_absolute_in_an_executable(tmp_path: Path) -> None:
    """A runtime starts it in another directory than that of the installation."""
    options = ("--bin-dir", "bin", "--python", "--shim-socket", "s", "--interpreter", "p")
    done = pycni("install", *options, cwd=tmp_path)
    assert 0 == done.returncode, done.stderr
    text = (tmp_path / "bin" / "static").read_text()
    assert text.startswith(f"#!{tmp_path}/p -IS\n")
    assert f"\nSOCKET = '{tmp_path}/s'\n" in text


@pytest.mark.parametrize("network", ["dbnet", "../x"])
def test_a_refused_configuration_leaves_no_executables(tmp_path: Path, network: str) -> None:
    """Another's file, or what is no name: all that stands in the way is seen first."""
    (tmp_path / "10-dbnet.conflist").write_text("{}")
    where = ("--bin-dir", str(tmp_path / "bin"), "--conf-dir", str(tmp_path))
    done = pycni("install", *where, "--python", "--network", network)
    assert (1, "") == (done.returncode, done.stdout)
    assert ["10-dbnet.conflist"] == [path.name for path in tmp_path.iterdir()]


def test_without_a_service_no_network_gets_a_configuration_by_itself(tmp_path: Path) -> None:
    """The executables are installed, and it is said why there is nothing else."""
    where = ("--bin-dir", str(tmp_path / "bin"), "--conf-dir", str(tmp_path / "net.d"))
    done = pycni("--socket", str(tmp_path / "s"), "install", *where, "--python")
    assert (0, len(PLUGINS)) == (done.returncode, len(json.loads(done.stdout)["written"]))
    assert f"no service listens on {tmp_path / 's'}" in done.stderr
    assert not (tmp_path / "net.d").exists()


def test_the_command_installs_and_uninstalls(tmp_path: Path) -> None:
    """With the Python shim, which needs no compiler; JSON says what was done."""
    bin_dir, conf_dir = tmp_path / "bin", tmp_path / "net.d"
    where = ("--bin-dir", str(bin_dir), "--conf-dir", str(conf_dir))
    options = ("--python", "--interpreter", "/usr/bin/python3", "--network", "dbnet")
    done = pycni("install", *where, *options)
    assert 0 == done.returncode, done.stderr
    written = json.loads(done.stdout)
    assert ("python", len(PLUGINS) + 1) == (written["shim"], len(written["written"]))
    assert [] == json.loads(pycni("install", *where, *options).stdout)["written"]
    done = pycni("uninstall", *where)
    assert len(PLUGINS) + 1 == len(json.loads(done.stdout)["removed"])
    assert [] == [*bin_dir.iterdir(), *conf_dir.iterdir()]
    assert 2 == pycni("install", "--bin-dir", str(bin_dir), "--network", "n").returncode
