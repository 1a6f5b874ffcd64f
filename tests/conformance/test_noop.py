# SPDX-License-Identifier: Apache-2.0
"""The noop plugin: the Go one's file format, and our runtime that drives either.

PYCNI_NOOP names another executable to drive, such as the Go one; see docs/conformance.md.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pycni.errors import CniError
from pycni.exec.framing import Call, Reply
from pycni.libcni import AttachmentParams, Libcni
from pycni.model.version import SUPPORTED
from pycni.testing import noop
from pycni.testing.noop import Debug

CONFIG = {"cniVersion": "1.0.0", "name": "net", "type": "noop", "mark": "<&>"}
PREVIOUS = {"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.3/24"}]}

# What the Go plugin of libcni 1.1.2 writes for the call of the first test, byte for byte. Later
# ones have two fields more.
GOLDEN = (
    '{"ReportResult":"{\\"dns\\": {\\"domain\\": \\"\\u003cx\\u003e\\"}}","ReportError":"",'
    '"ReportStderr":"","ReportVersionSupport":["1.0.0"],"ExitWithCode":0,"Command":"ADD",'
    '"CmdArgs":{"ContainerID":"c1","Netns":"/some/netns","IfName":"eth0",'
    '"Args":"DEBUG=PATH;FOO=BAR","Path":"/bin:/x","StdinData":"STDIN"}}'
)
NEWER = (
    ('"ReportError":"",', '"ReportError":"","ReportErrorCode":0,'),
    ('"Path":"/bin:/x",', '"Path":"/bin:/x","NetnsOverride":"",'),
)


def call(verb: str, config: Any = None, args: str | None = None, **env: str | None) -> Reply:
    """The plugin's answer, in this process."""
    variables = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": "c1",
        "CNI_NETNS": "/some/netns",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/bin:/x",
        "CNI_ARGS": args,
        **env,
    }
    given = {name: value for name, value in variables.items() if value is not None}
    stdin = config if isinstance(config, bytes) else json.dumps(config or CONFIG).encode()
    return noop.run(Call("noop", given, stdin))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the debug file is."""
    return tmp_path / "debug.json"


def test_the_file_is_gos_byte_for_byte(file: Path) -> None:
    """Keys, order, base64, null, escapes; it is readable by its owner alone."""
    Debug(ReportResult='{"dns": {"domain": "<x>"}}', ReportVersionSupport=["1.0.0"]).write(file)
    assert 0o600 == file.stat().st_mode & 0o777
    reply = call("ADD", args=f"DEBUG={file};FOO=BAR")
    assert (0, b'{"dns": {"domain": "<x>"}}', b"") == reply
    stdin = base64.b64encode(json.dumps(CONFIG).encode()).decode()
    expected = GOLDEN.replace("PATH", str(file)).replace("STDIN", stdin)
    for old, new in NEWER:
        expected = expected.replace(old, new)
    assert expected == file.read_text()


def test_a_file_that_go_wrote_is_read(file: Path) -> None:
    """With or without the later fields; keys in any case, as Go reads them."""
    file.write_text(GOLDEN.replace("STDIN", "e30=").replace("ReportResult", "reportresult"))
    debug = Debug.read(file)
    assert ("ADD", "c1", b"{}") == (
        debug.Command,
        debug.CmdArgs.ContainerID,
        debug.CmdArgs.StdinData,
    )
    assert '{"dns": {"domain": "<x>"}}' == debug.ReportResult
    assert ["1.0.0"] == debug.ReportVersionSupport
    file.write_text('{"ReportVersionSupport": null, "CmdArgs": {"StdinData": null}}')
    assert None is Debug.read(file).ReportVersionSupport


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
def test_every_verb_is_recorded_and_prints_the_report(file: Path, verb: str) -> None:
    """As it is, JSON or not; the words on stderr too."""
    Debug(ReportResult="no <JSON>", ReportStderr="words\n").write(file)
    config = {**CONFIG, "cniVersion": "1.1.0"}
    assert (0, b"no <JSON>", b"words\n") == call(verb, config, f"DEBUG={file}")
    debug = Debug.read(file)
    assert (verb, config) == (debug.Command, json.loads(debug.CmdArgs.StdinData or b""))


def test_an_error_is_reported_before_a_result(file: Path) -> None:
    """Code 999 unless it says another one; stderr as well."""
    for code, expected in ((0, 999), (140, 140)):
        report = Debug(ReportError="banana", ReportErrorCode=code, ReportStderr="s")
        report.write(file)
        reply = call("ADD", args=f"DEBUG={file}")
        assert (1, b"s") == (reply.exit_status, reply.stderr)
        assert {"code": expected, "msg": "banana"} == json.loads(reply.stdout)
        assert "ADD" == Debug.read(file).Command


def test_it_exits_as_it_is_told(file: Path) -> None:
    """After it has printed its report."""
    Debug(ReportResult="x", ExitWithCode=7).write(file)
    assert (7, b"x", b"") == call("ADD", args=f"DEBUG={file}")


def test_prev_result_is_passed_through(file: Path) -> None:
    """Or given a name server; without one it is an error."""
    config = {**CONFIG, "prevResult": PREVIOUS}
    for report, more in (
        ("PASSTHROUGH", {}),
        ("INJECT-DNS", {"dns": {"nameservers": ["1.2.3.4"]}}),
    ):
        Debug(ReportResult=report).write(file)
        assert {**PREVIOUS, **more} == json.loads(call("ADD", config, f"DEBUG={file}").stdout)
        assert 999 == json.loads(call("ADD", args=f"DEBUG={file}").stdout)["code"]


def test_the_file_may_stand_in_the_configuration(file: Path) -> None:
    """DEBUG in CNI_ARGS comes first; with neither an empty object is printed."""
    config = {**CONFIG, "debugFile": str(file)}
    for args in (None, "FOO=BAR"):
        Debug(ReportResult="here").write(file)
        assert b"here" == call("ADD", config, args).stdout
    assert (0, b"{}", noop.NO_DEBUG.encode()) == call("ADD")
    Debug(ReportResult="there").write(file.with_name("other"))
    assert b"there" == call("ADD", config, f"DEBUG={file.with_name('other')}").stdout
    missing = call("ADD", {**CONFIG, "debugFile": "/nowhere"})
    assert "open /nowhere: no such file or directory" == json.loads(missing.stdout)["msg"]


@pytest.mark.parametrize("args", ["FOO=BAR", "DEBUG=/nowhere", "DEBUG=a=b", "DEBUG"])
def test_a_test_that_is_set_up_wrongly_ends_in_a_panic(args: str) -> None:
    """As in Go: exit status 2, nothing on stdout."""
    reply = call("ADD", args=args)
    assert (2, b"") == reply[:2]
    assert reply.stderr.startswith(b"panic: test setup error: ")


def test_it_supports_the_versions_it_is_told(file: Path) -> None:
    """VERSION says so, and others are refused; by default there is one that is none."""
    Debug(ReportVersionSupport=["0.123.0", "0.2.0"]).write(file)
    told = json.loads(call("VERSION", {"cniVersion": "1.0.0"}, f"DEBUG={file}").stdout)
    assert ["0.123.0", "0.2.0"] == told["supportedVersions"]
    assert 0 == call("ADD", {**CONFIG, "cniVersion": "0.123.0"}, f"DEBUG={file}").exit_status
    assert 1 == json.loads(call("ADD", args=f"DEBUG={file}").stdout)["code"]
    told = json.loads(call("VERSION", {"cniVersion": "1.0.0"}).stdout)
    assert ["0.-42.0", *SUPPORTED] == told["supportedVersions"]
    assert 1 == json.loads(call("CHECK", {**CONFIG, "cniVersion": "0.3.1"}).stdout)["code"]
    assert 7 == json.loads(call("ADD", {**CONFIG, "name": "../x"}).stdout)["code"]


def test_a_command_log_has_every_call(tmp_path: Path, file: Path) -> None:
    """In order, whatever the debug file is."""
    log = tmp_path / "log.json"
    assert [] == noop.read_log(log)
    config = {**CONFIG, "commandLog": str(log)}
    Debug(ReportError="x").write(file)
    call("ADD", config)
    call("DEL", config, f"DEBUG={file}")
    assert [("ADD", ""), ("DEL", f"DEBUG={file}")] == [
        (one.Command, one.CmdArgs.Args) for one in noop.read_log(log)
    ]
    log.write_text("{")
    assert 6 == json.loads(call("ADD", config).stdout)["code"]


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """A directory is no file."""
    with pytest.raises(CniError, match="is a directory"):
        Debug().write(tmp_path)


# -- driven by our runtime -------------------------------------------------------------------------


@pytest.fixture
def cni(tmp_path: Path) -> Libcni:
    """Our runtime with the executable in its plugin path."""
    directory = tmp_path / "bin"
    directory.mkdir()
    if other := os.environ.get("PYCNI_NOOP"):
        shutil.copy(other, directory / "noop")
    else:
        noop.place(directory)
    return Libcni([str(directory)], cache_dir=str(tmp_path / "cache"))


def test_our_runtime_drives_the_executable(cni: Libcni, file: Path) -> None:
    """ADD, CHECK and DEL with what each of them is given; its error is ours."""
    listed = {"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "noop", "some": "key"}]}
    network = cni.parse(json.dumps(listed).encode())
    params = AttachmentParams(
        container_id="c1", ifname="eth0", netns="/some/netns", cni_args=(("DEBUG", str(file)),)
    )
    result = {"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.3/24"}]}
    Debug(ReportResult=json.dumps(result)).write(file)
    assert "10.1.2.3/24" == str(cni.add(network, params).ips[0].address)
    added = Debug.read(file)
    assert ("ADD", "c1", "/some/netns", "eth0", f"DEBUG={file}") == (
        added.Command,
        added.CmdArgs.ContainerID,
        added.CmdArgs.Netns,
        added.CmdArgs.IfName,
        added.CmdArgs.Args,
    )
    stdin = json.loads(added.CmdArgs.StdinData or b"")
    assert ("net", "1.0.0", "key") == (stdin["name"], stdin["cniVersion"], stdin["some"])
    assert "prevResult" not in stdin
    Debug().write(file)
    cni.check(network, params)
    checked = Debug.read(file)
    assert "CHECK" == checked.Command
    assert result == json.loads(checked.CmdArgs.StdinData or b"")["prevResult"]
    Debug(ReportError="banana", ReportStderr="words").write(file)
    with pytest.raises(CniError, match="banana"):
        cni.delete(network, params)
    Debug().write(file)
    cni.delete(network, params)
    assert "DEL" == Debug.read(file).Command
    cni.close()


def test_the_executable_is_the_plugin(cni: Libcni, tmp_path: Path, file: Path) -> None:
    """A program of any other language starts it as any plugin."""
    Debug(ReportResult='{"a": 1}', ReportStderr="words").write(file)
    done = subprocess.run(
        [str(tmp_path / "bin" / "noop")],
        input=json.dumps(CONFIG).encode(),
        env={
            "PATH": os.environ["PATH"],
            "CNI_COMMAND": "ADD",
            "CNI_CONTAINERID": "c1",
            "CNI_NETNS": "/some/netns",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/bin",
            "CNI_ARGS": f"DEBUG={file}",
        },
        capture_output=True,
        check=False,
    )
    assert (0, b'{"a": 1}', b"words") == (done.returncode, done.stdout, done.stderr)
    cni.close()
