# SPDX-License-Identifier: Apache-2.0
"""Executors: finding plugins, running them as processes, and telling what went wrong."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pycni.errors import (
    CniError,
    InvalidConfig,
    InvalidEnvironment,
    IOFailure,
    TryAgain,
)
from pycni.kernel.side import Side
from pycni.model.deadline import Deadline
from pycni.model.request import Request, Verb
from pycni.runtime import child, trace
from pycni.runtime.errors import PluginFailed, PluginNotFound
from pycni.runtime.executors import Exec, Executors, InProcess
from tests.unit.runtime.fakes import Lab

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="starts processes as Linux does")

CONFIG = b'{"cniVersion": "1.0.0", "name": "net", "type": "x", "password": "hunter2"}'
Make = Callable[..., str]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write an executable shell script into the plugin path."""

    def make(body: str, name: str = "x") -> str:
        file = tmp_path / name
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)
        return name

    return make


@pytest.fixture
def exec_(tmp_path: Path) -> Exec:
    """Executables of the directory that `make` writes to."""
    return Exec([str(tmp_path / "none"), str(tmp_path)], Side())


def run(executor: Exec, verb: Verb = Verb.DEL, timeout_s: float = 10, **more: Any) -> bytes:
    """Run plugin x."""
    request = Request(
        verb=verb, **{"container_id": "c1", "ifname": "eth0", "config": CONFIG, **more}
    )
    return executor.run("x", request, Deadline(timeout_s))


# -- finding ---------------------------------------------------------------------------------------


def test_the_first_regular_file_of_the_path_is_taken(tmp_path: Path) -> None:
    """L5: directories are passed over, links followed, mode bits not looked at."""
    first, second, third = (tmp_path / name for name in "123")
    for directory in (first, second, third):
        directory.mkdir()
    (first / "x").mkdir()
    (second / "x").symlink_to(third / "x")
    (third / "x").touch(0o600)
    found = Exec([str(first), str(second), str(third)], Side()).find("x")
    assert str(second / "x") == found


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".", "..", "x\0"])
def test_a_type_is_never_a_path(exec_: Exec, make: Make, name: str) -> None:
    """C9, L5."""
    make("exit 0")
    with pytest.raises(InvalidConfig):
        exec_.has(name)


def test_an_unknown_type_names_the_path_and_what_is_built_in(exec_: Exec) -> None:
    """The text is the reference's."""
    both = Executors(Lab().in_process, exec_)
    with pytest.raises(PluginNotFound) as caught:
        both.run("x", Request(verb=Verb.ADD), Deadline(1))
    assert f'failed to find plugin "x" in path [{" ".join(exec_.path)}]' == caught.value.msg
    assert "a, b, bridge, c, " in caught.value.details


def test_a_built_in_plugin_comes_before_an_executable(exec_: Exec, make: Make) -> None:
    """Unless the operator prefers executables of that type."""
    make("exit 0", "a")
    lab = Lab()
    assert lab.in_process is Executors(lab.in_process, exec_).find("a")
    preferring = Executors(lab.in_process, exec_, prefer_executables=["a", "b"])
    assert exec_ is preferring.find("a")
    assert lab.in_process is preferring.find("b")


def test_a_registered_plugin_comes_first(exec_: Exec) -> None:
    """A daemon that says it serves a type does."""
    registered, lab = Lab().in_process, Lab()
    assert registered is Executors(lab.in_process, exec_, registered=[registered]).find("a")


def test_types_are_listed(exec_: Exec, make: Make, tmp_path: Path) -> None:
    """Only what can be executed."""
    make("exit 0", "zz")
    (tmp_path / "README").touch(0o644)
    assert ["zz"] == exec_.types()
    assert {"a", "zz"} <= set(Executors(Lab().in_process, exec_).types())


# -- the protocol ----------------------------------------------------------------------------------


def test_the_environment_is_complete_whatever_the_verb(
    exec_: Exec, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R10 to R12: all six variables, empty if unused; the rest is inherited."""
    monkeypatch.setenv("CNI_IFNAME", "inherited")
    monkeypatch.setenv("CNI_NETNS_OVERRIDE", "1")
    monkeypatch.setenv("FOO", "bar")
    make(f"env > {tmp_path}/env")
    run(exec_, Verb.GC, container_id="", ifname="")
    env = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert {
        "CNI_COMMAND": "GC",
        "CNI_CONTAINERID": "",
        "CNI_NETNS": "",
        "CNI_IFNAME": "",
        "CNI_ARGS": "",
        "CNI_PATH": ":".join(exec_.path),
    } == {key: value for key, value in env.items() if key.startswith("CNI_")}
    assert "bar" == env["FOO"]


def test_parameters_and_trace_context_reach_the_plugin(
    exec_: Exec, make: Make, tmp_path: Path
) -> None:
    """L20; a caller's CNI_PATH does not: plugins are only taken from configured directories."""
    make(f"env > {tmp_path}/env")
    with trace.bound({"TRACEPARENT": "00-1-2-01", "PATH": "/evil"}):
        run(exec_, netns="/run/netns/x", args="A=1;B=2", path=("/tmp",), netns_override=True)
    env = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    expected = {
        "CNI_COMMAND": "DEL",
        "CNI_CONTAINERID": "c1",
        "CNI_NETNS": "/run/netns/x",
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": "A=1;B=2",
        "CNI_PATH": ":".join(exec_.path),
        "CNI_NETNS_OVERRIDE": "true",
        "TRACEPARENT": "00-1-2-01",
        "PATH": os.environ["PATH"],
    }
    assert expected == {key: env[key] for key in expected}


def test_the_configuration_arrives_on_stdin(exec_: Exec, make: Make, tmp_path: Path) -> None:
    """R13; also one larger than any pipe, to a plugin that does not read it."""
    make(f"cat > {tmp_path}/stdin")
    run(exec_)
    assert CONFIG == (tmp_path / "stdin").read_bytes()
    make("exit 0")
    run(exec_, config=CONFIG + b" " * (1 << 20))


def test_a_namespace_only_known_as_a_descriptor_gets_a_path(
    exec_: Exec, make: Make, tmp_path: Path
) -> None:
    """A caller in another mount namespace names a path that means nothing here."""
    make(f'readlink "$CNI_NETNS" > {tmp_path}/link; echo "$CNI_NETNS" > {tmp_path}/path')
    fd = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        run(exec_, netns="/elsewhere/netns", netns_fd=fd)
        assert os.readlink("/proc/self/ns/net") == (tmp_path / "link").read_text().strip()
        run(exec_, netns="/proc/self/ns/net", netns_fd=fd)
        assert "/proc/self/ns/net" == (tmp_path / "path").read_text().strip()
    finally:
        os.close(fd)


def test_a_result_is_read_liberally_and_passed_on_in_the_configs_version(
    exec_: Exec, make: Make
) -> None:
    """V5, V9: missing version, odd case, unknown keys, an older layout."""
    make("""echo '{"IPs": [{"version": "4", "Address": "10.0.0.2/8"}], "foo": 1}'""")
    assert {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/8"}]} == json.loads(
        run(exec_, Verb.ADD)
    )
    make("""echo '{"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.2/8"}}'""")
    assert {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/8"}]} == json.loads(
        run(exec_, Verb.ADD)
    )


def test_a_null_result_is_empty(exec_: Exec, make: Make) -> None:
    """V5 [L]."""
    make("echo null")
    assert b'{"cniVersion":"1.0.0"}' == run(exec_, Verb.ADD)


@pytest.mark.parametrize(
    "printed", ["", "[]", "{} {}", "{", "\\377", '{"ips": [{"address": "10.0.0.300/8"}]}']
)
def test_an_unusable_result_is_the_plugins_fault(exec_: Exec, make: Make, printed: str) -> None:
    """Not the configuration's: code 999."""
    make(f"printf '{printed}'")
    with pytest.raises(PluginFailed, match="plugin x printed an unusable result: ") as caught:
        run(exec_, Verb.ADD)
    assert 999 == caught.value.wire_code


def test_output_of_other_verbs_is_ignored(exec_: Exec, make: Make) -> None:
    """P9: there should be none."""
    make("echo gibberish")
    assert b"" == run(exec_, Verb.DEL)


# -- failures --------------------------------------------------------------------------------------


def test_an_error_document_becomes_its_class(exec_: Exec, make: Make) -> None:
    """E3: code, msg and details are the plugin's."""
    make("""echo '{"cniVersion": "1.0.0", "code": 11, "msg": "later", "details": "d"}'; exit 1""")
    with pytest.raises(TryAgain) as caught:
        run(exec_)
    assert ("later", "d", 11, "1.0.0") == (
        caught.value.msg,
        caught.value.details,
        caught.value.wire_code,
        caught.value.cni_version,
    )


def test_a_code_of_the_plugins_own_is_kept(exec_: Exec, make: Make) -> None:
    """P16: 100 and above are free."""
    make("""echo '{"code": 123, "msg": "own"}'; exit 1""")
    with pytest.raises(CniError, match="own") as caught:
        run(exec_)
    assert 123 == caught.value.wire_code


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("exit 3", "netplugin failed with no error message: exit status 3"),
        ("echo oops >&2; exit 1", 'netplugin failed: "oops": exit status 1'),
        ("kill -9 $$", "netplugin failed with no error message: signal: SIGKILL"),
        ("kill -40 $$", "netplugin failed with no error message: signal: 40"),
        (
            "echo gibberish; exit 1",
            'netplugin failed but error parsing its diagnostic message "gibberish\\n": ',
        ),
        ("echo '{}'; exit 1", "netplugin failed but error parsing its diagnostic message "),
        ("echo '[1]'; exit 1", "netplugin failed but error parsing its diagnostic message "),
    ],
)
def test_a_failure_without_an_error_document_is_told_as_libcni_does(
    exec_: Exec, make: Make, body: str, message: str
) -> None:
    """E3 [L]."""
    make(body)
    with pytest.raises(PluginFailed) as caught:
        run(exec_)
    assert caught.value.msg.startswith(message)


def test_secrets_of_the_configuration_reach_neither_log_nor_error(
    exec_: Exec, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Plugins print their configuration when they fail."""
    make("cat >&2; exit 1")
    with caplog.at_level(logging.DEBUG), pytest.raises(PluginFailed) as caught:
        run(exec_)
    assert "net" in str(caught.value)
    assert "hunter2" not in str(caught.value) + caplog.text
    make("cat; exit 1")
    with pytest.raises(CniError) as caught_too:
        run(exec_, config=b'{"password": "hunter2"} gibberish')
    assert "hunter2" not in str(caught_too.value)


def test_stderr_of_a_successful_plugin_is_logged(
    exec_: Exec, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """P2, D3: free-form logs are passed on."""
    make("echo working >&2")
    with caplog.at_level(logging.INFO):
        run(exec_)
    assert "plugin x DEL: working" in caplog.text


def test_too_much_output_is_cut_off(
    exec_: Exec, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin gone wild does not fill our memory."""
    monkeypatch.setattr(child, "STDOUT_LIMIT", 1 << 16)
    make("exec yes")
    with pytest.raises(IOFailure, match="ADD of plugin x: more than 65536 bytes on stdout"):
        run(exec_, Verb.ADD)


def test_too_much_on_stderr_is_dropped(exec_: Exec, make: Make) -> None:
    """Logs are not worth failing for."""
    make("head -c 1000000 /dev/zero >&2")
    run(exec_)


def test_what_cannot_be_executed_is_told(exec_: Exec, make: Make, tmp_path: Path) -> None:
    """The mode bits are for the kernel to judge."""
    make("exit 0")
    (tmp_path / "x").chmod(0o644)
    with pytest.raises(IOFailure, match=r"cannot execute .*/x: Permission denied"):
        run(exec_)
    (tmp_path / "x").write_bytes(b"\x7fELF")
    (tmp_path / "x").chmod(0o755)
    with pytest.raises(IOFailure, match=r"cannot execute .*/x: Exec format error"):
        run(exec_)


def test_an_executable_being_written_is_tried_again(
    exec_: Exec, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L6: and if it stays busy, that is code 11, not success as in Go."""
    monkeypatch.setattr(child, "BUSY_DELAY_S", 0.01)
    make("exit 0")
    with (tmp_path / "x").open("ab"), pytest.raises(TryAgain, match="text file busy"):
        run(exec_)
    writer = (tmp_path / "x").open("ab")
    threading.Timer(0.02, writer.close).start()
    run(exec_)


# -- the end ---------------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for it, not for long."""
    give_up = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def sleeping(make: Make, tmp_path: Path) -> Path:
    """A plugin that starts a child and waits for it; the file names the two processes."""
    pids = tmp_path / "pids"
    make(f"sleep 100 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; wait")
    return pids


def test_the_deadline_kills_the_plugin_and_all_it_started(
    exec_: Exec, make: Make, tmp_path: Path
) -> None:
    """The group dies, not just its leader."""
    pids = sleeping(make, tmp_path)
    with pytest.raises(TryAgain, match="ADD of plugin x did not finish before its deadline"):
        run(exec_, Verb.ADD, timeout_s=0.3)
    for pid in map(int, pids.read_text().split()):
        wait_until(lambda pid=pid: not alive(pid))  # type: ignore[misc]


def test_cancelling_kills_the_plugin_at_once(exec_: Exec, make: Make, tmp_path: Path) -> None:
    """A caller that goes away does not wait for the deadline."""
    pids = sleeping(make, tmp_path)
    deadline = Deadline(60)

    def cancel() -> None:
        wait_until(pids.exists)
        deadline.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    started = time.monotonic()
    with pytest.raises(TryAgain, match="ADD of plugin x was cancelled by the caller"):
        exec_.run("x", Request(verb=Verb.ADD, config=CONFIG), deadline)
    thread.join()
    assert time.monotonic() - started < 5
    for pid in map(int, pids.read_text().split()):
        wait_until(lambda pid=pid: not alive(pid))  # type: ignore[misc]


def test_a_daemon_the_plugin_leaves_behind_is_not_waited_for(
    exec_: Exec, make: Make, tmp_path: Path
) -> None:
    """It may hold the plugin's stdout for good; the plugin itself has ended."""
    make(f"echo '{{}}'; sleep 100 & echo $! > {tmp_path}/pid")
    started = time.monotonic()
    assert b'{"cniVersion":"1.0.0"}' == run(exec_, Verb.ADD)
    assert time.monotonic() - started < 5
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_a_plugin_that_closes_its_output_is_still_waited_for(
    exec_: Exec, make: Make, tmp_path: Path
) -> None:
    """The end of its output is not its end."""
    make(f"echo '{{}}'; exec >&- 2>&-; sleep 0.2; touch {tmp_path}/done")
    run(exec_, Verb.ADD)
    assert (tmp_path / "done").exists()


def test_no_descriptor_is_left_open(exec_: Exec, make: Make) -> None:
    """Whatever the outcome."""
    make("exit 0")
    before = len(os.listdir("/proc/self/fd"))
    run(exec_)
    make("exit 1")
    with pytest.raises(PluginFailed):
        run(exec_)
    make("sleep 100")
    with pytest.raises(TryAgain):
        run(exec_, timeout_s=0.05)
    assert before == len(os.listdir("/proc/self/fd"))


def test_a_plugin_inherits_the_lifeline_and_nothing_else(
    make: Make, tmp_path: Path, exec_: Exec
) -> None:
    """Whoever waits for the lock on it waits for the plugin."""
    make(f"for fd in /proc/$$/fd/*; do readlink $fd || :; done > {tmp_path}/open")
    with (tmp_path / "lock").open("w") as lock, (tmp_path / "other").open("w") as other:
        os.set_inheritable(other.fileno(), True)
        exec_.lifeline = lock.fileno()
        run(exec_)
    opened = (tmp_path / "open").read_text().splitlines()
    assert str(tmp_path / "lock") in opened
    assert str(tmp_path / "other") not in opened


# -- VERSION ---------------------------------------------------------------------------------------


def test_versions_are_asked_once_until_the_file_changes(
    exec_: Exec, make: Make, tmp_path: Path
) -> None:
    """By path, time, inode and size."""
    log = f"cat >> {tmp_path}/stdin; echo x >> {tmp_path}/log"
    make(f"""{log}; echo '{{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}}'""")
    assert ("1.0.0", "1.1.0") == exec_.versions("x")
    assert ("1.0.0", "1.1.0") == exec_.versions("x")
    assert "x\n" == (tmp_path / "log").read_text()
    assert {"cniVersion": "1.1.0"} == json.loads((tmp_path / "stdin").read_text())
    make("""echo '{"cniVersion": "0.2.0", "supportedVersions": ["0.2.0"]}'""")
    assert ("0.2.0",) == exec_.versions("x")


@pytest.mark.parametrize(
    ("body", "versions"),
    [
        ("""echo '{"cniVersion": "0.2.0"}'""", ("0.1.0", "0.2.0")),
        ("""echo '{"code": 4, "msg": "unknown CNI_COMMAND: VERSION"}'; exit 1""", ("0.1.0",)),
    ],
)
def test_old_plugins_are_understood(
    exec_: Exec, make: Make, body: str, versions: tuple[str, ...]
) -> None:
    """R23, R25."""
    make(body)
    assert versions == exec_.versions("x")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo '{}'", "decoding version info: missing field cniVersion"),
        (
            """echo '{"cniVersion": "1.0.0"}'""",
            "decoding version info: missing field supportedVersions",
        ),
        ("echo gibberish", "decoding version info: not valid JSON"),
        ("exit 1", "netplugin failed with no error message"),
    ],
)
def test_a_wrong_version_reply_is_an_error(
    exec_: Exec, make: Make, body: str, message: str
) -> None:
    """R25."""
    make(body)
    with pytest.raises(PluginFailed, match=message):
        exec_.versions("x")


# -- delegation ------------------------------------------------------------------------------------


def test_a_delegate_that_fails_add_is_deleted_before_the_failure_returns() -> None:
    """D5, D4: same parameters, same configuration."""
    lab = Lab()
    failure = TryAgain("exhausted")
    lab.a.failures[Verb.ADD] = failure
    request = Request(verb=Verb.ADD, container_id="c1", ifname="eth0", config=CONFIG)
    with pytest.raises(TryAgain) as caught:
        lab.executors.delegate.run("a", request, Deadline(5))
    assert failure is caught.value
    assert ["ADD a", "DEL a"] == lab.log
    assert CONFIG == lab.a.last(Verb.DEL).request.config


def test_a_failing_del_of_a_delegate_is_told_beside_the_cause() -> None:
    """The cause stays the error."""
    lab = Lab()
    lab.a.failures |= {Verb.ADD: TryAgain("exhausted"), Verb.DEL: CniError("stuck")}
    with pytest.raises(TryAgain, match="exhausted") as caught:
        lab.executors.delegate.run("a", Request(verb=Verb.ADD, config=CONFIG), Deadline(5))
    assert "DEL of delegate a failed too: stuck" in caught.value.details


@pytest.mark.parametrize("verb", [Verb.DEL, Verb.CHECK, Verb.STATUS])
def test_other_verbs_of_a_delegate_fail_once(verb: Verb) -> None:
    """D5 is about ADD."""
    lab = Lab()
    lab.a.failures[verb] = TryAgain("x")
    config = CONFIG.replace(b"1.0.0", b"1.1.0")
    with pytest.raises(TryAgain):
        lab.executors.delegate.run("a", Request(verb=verb, config=config), Deadline(5))
    assert [f"{verb} a"] == lab.log


def test_a_plugin_reaches_executables_through_its_delegate(
    exec_: Exec, make: Make, tmp_path: Path
) -> None:
    """D1, D2: found in the path, with the same environment and the whole configuration."""
    make(
        f"env > {tmp_path}/env; cat > {tmp_path}/stdin\n"
        """echo '{"ips": [{"address": "10.0.0.9/8"}]}'""",
        "third-party-ipam",
    )
    lab = Lab()
    both = Executors(lab.in_process, exec_)
    seen: list[str] = []

    def delegate(call: Any) -> None:
        if call.verb is Verb.ADD:
            seen.append(str(call.ipam.add().ips[0].address))

    lab.a.before = delegate
    config = json.dumps({**json.loads(CONFIG), "ipam": {"type": "third-party-ipam"}}).encode()
    both.run("a", Request(verb=Verb.ADD, container_id="c1", args="A=1", config=config), Deadline(5))
    assert ["10.0.0.9/8"] == seen
    assert config == (tmp_path / "stdin").read_bytes()
    assert "CNI_ARGS=A=1\n" in (tmp_path / "env").read_text()


def test_an_in_process_executor_is_its_own_delegate() -> None:
    """For a face that has no plugin path."""
    lab = Lab()
    alone = InProcess(Side(), extra={"a": lab.a})
    alone.delegate.run("a", Request(verb=Verb.DEL, config=CONFIG), Deadline(5))
    assert ["DEL a"] == lab.log
    with pytest.raises(PluginNotFound, match=r'failed to find plugin "zz" in path \[\]'):
        alone.run("zz", Request(verb=Verb.DEL, config=CONFIG), Deadline(5))


def test_the_plugins_of_a_chain_share_the_open_namespace_of_their_container() -> None:
    """A call on another one has its own; none outlives what it was opened for."""
    lab = Lab()
    alone = InProcess(Side(), extra={"a": lab.a})
    seen: list[Side] = []
    lab.a.before = lambda call: seen.append(call.container)
    here, elsewhere = (
        Request(verb=Verb.CHECK, netns=f"/proc/{who}/ns/net", netns_override=True, config=CONFIG)
        for who in ("self", "thread-self")
    )
    with alone.staying_in(here.netns):
        for call in (here, elsewhere, here):
            alone.run("a", call, Deadline(5))
        first, other, again = seen
        assert first is again is not other
        opened = [side.netns for side in (first, other) if side.netns]
        assert opened[0].fd >= 0 > opened[1].fd
    assert opened[0].fd < 0


def test_an_unknown_command_of_a_plugin_is_not_a_bug_of_ours(exec_: Exec, make: Make) -> None:
    """Code 4 from a plugin is the plugin's word on what we sent."""
    make("""echo '{"code": 4, "msg": "unknown CNI_COMMAND: GC"}'; exit 1""")
    with pytest.raises(InvalidEnvironment):
        run(exec_, Verb.GC)
