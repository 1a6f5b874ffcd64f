# SPDX-License-Identifier: Apache-2.0
"""Both shims against services that misbehave: whatever happens, they end, and say what it was."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pycni.exec import endpoint as endpoints
from pycni.exec import framing, installation, shim
from pycni.exec.endpoint import ShimEndpoint
from pycni.exec.framing import Call, Reply
from tests.fix_shims import SHIMS

CONFIG = json.dumps({"cniVersion": "1.0.0", "name": "n", "type": "static"}).encode()
OK = framing.encode_reply(Reply(0, b"done", b""))

Behaviour = Callable[[socket.socket], None]


@pytest.fixture(params=SHIMS)
def bin_dir(request: pytest.FixtureRequest, bin_dirs: dict[str, Path]) -> Path:
    """The directory of one shim's executables."""
    return bin_dirs[request.param]


def run(
    bin_dir: Path, path: Path | str = "", *, stdin: bytes = CONFIG, name: str = "static", **env: str
) -> subprocess.CompletedProcess[bytes]:
    """Execute a plugin."""
    variables = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c1",
        "CNI_IFNAME": "eth0",
        "CNI_NETNS": "/nowhere",
        **({"PYCNI_SHIM_SOCKET": str(path)} if path else {}),
        **env,
    }
    return subprocess.run(
        [str(bin_dir / name)],
        input=stdin,
        env=variables,
        capture_output=True,
        timeout=30,
        check=False,
    )


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Callable[[Behaviour], Path]]:
    """A service of one connection that behaves as told."""
    path = tmp_path / "shim.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        threads = []

        def start(behave: Behaviour) -> Path:
            listener.bind(str(path))
            listener.listen(1)

            def serve() -> None:
                connection, _ = listener.accept()
                with connection:
                    behave(connection)

            threads.append(threading.Thread(target=serve, daemon=True))
            threads[-1].start()
            return path

        yield start
        for thread in threads:
            thread.join(10)


def receive_request(connection: socket.socket) -> Call:
    """Read the request as the service does."""
    call, fd = endpoints.receive_call(connection)
    if fd is not None:
        os.close(fd)
    return call


def hang_up(connection: socket.socket) -> None:
    """Read the request and die."""
    receive_request(connection)


def hang_up_early(connection: socket.socket) -> None:
    """Die after the first byte."""
    connection.recv(1)


def assert_try_again(done: subprocess.CompletedProcess[bytes], msg: str) -> None:
    """Code 11 with this message, exit status 1, nothing on stderr."""
    document = json.loads(done.stdout)
    assert (1, 11, msg, b"") == (done.returncode, document["code"], document["msg"], done.stderr)


def test_a_reply_is_printed_as_it_comes(bin_dir: Path, listen: Callable[[Behaviour], Path]) -> None:
    """stdout, stderr and the exit status."""

    def behave(connection: socket.socket) -> None:
        receive_request(connection)
        connection.sendall(framing.encode_reply(Reply(7, b"out\0\xff", b"err")))

    done = run(bin_dir, listen(behave))
    assert (7, b"out\0\xff", b"err") == (done.returncode, done.stdout, done.stderr)


def test_a_request_carries_what_the_service_needs(
    bin_dir: Path, listen: Callable[[Behaviour], Path]
) -> None:
    """The name, CNI's and the trace's variables with stray bytes, stdin; and nothing else."""
    calls: list[Call] = []

    def behave(connection: socket.socket) -> None:
        calls.append(receive_request(connection))
        connection.sendall(OK)

    args = os.fsdecode(b"A=\xff")
    env = {"CNI_ARGS": args, "TRACEPARENT": "00-1", "SECRET": "x", "CNI_PYCNI_PARENT": "t"}
    run(bin_dir, listen(behave), name="bridge", **env)
    (call,) = calls
    expected = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c1",
        "CNI_IFNAME": "eth0",
        "CNI_NETNS": "/nowhere",
        "CNI_ARGS": args,
        "TRACEPARENT": "00-1",
        "CNI_PYCNI_PARENT": "t",
    }
    assert Call("bridge", expected, CONFIG) == call


def test_the_namespace_travels_as_a_descriptor(bin_dir: Path, tmp_path: Path) -> None:
    """What the service gets is what the shim could open, in whatever mount namespace it is."""
    there = tmp_path / "netns"
    there.write_text("")
    found: list[tuple[int, int]] = []

    def answer(_call: Call, fd: int | None) -> Reply:
        assert fd is not None
        state = os.fstat(fd)
        found.append((state.st_dev, state.st_ino))
        return Reply(0, b"", b"")

    endpoint = ShimEndpoint(tmp_path / "s", answer)
    endpoint.start()
    try:
        run(bin_dir, tmp_path / "s", CNI_NETNS=str(there))
    finally:
        endpoint.stop(5)
    assert [(there.stat().st_dev, there.stat().st_ino)] == found


def test_a_fifo_in_place_of_a_namespace_does_not_hang(
    bin_dir: Path, listen: Callable[[Behaviour], Path], tmp_path: Path
) -> None:
    """Opening one for reading waits for a writer, unless told not to."""
    os.mkfifo(tmp_path / "fifo")

    def behave(connection: socket.socket) -> None:
        receive_request(connection)
        connection.sendall(OK)

    assert b"done" == run(bin_dir, listen(behave), CNI_NETNS=str(tmp_path / "fifo")).stdout


# -- no service ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["absent", "file", "dead", "long"])
def test_without_a_service_the_plugin_runs_by_itself(
    bin_dir: Path, tmp_path: Path, kind: str
) -> None:
    """No socket, a file in its place, one nobody listens on, a path no socket can have."""
    path = tmp_path / ("s" * 200 if kind == "long" else "s")
    if kind == "file":
        path.write_text("")
    elif kind == "dead":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    done = run(bin_dir, path)
    assert (0, {"cniVersion": "1.0.0"}) == (done.returncode, json.loads(done.stdout))


@pytest.mark.parametrize("kind", SHIMS)
def test_an_interpreter_looks_for_its_packages_when_nobody_has_told_it(
    tmp_path: Path, shims: dict[str, Callable[..., bytes]], kind: str
) -> None:
    """Installed for another interpreter than the one that installs."""
    shim = shims[kind](socket=str(tmp_path / "s"), interpreter=sys.executable)
    installation.install(tmp_path, shim, names=["static"])
    done = run(tmp_path)
    assert (0, {"cniVersion": "1.0.0"}) == (done.returncode, json.loads(done.stdout))


def test_without_an_interpreter_the_fallback_says_so(
    tmp_path: Path, shims: dict[str, Callable[..., bytes]]
) -> None:
    """The virtual environment was removed, say; the Python shim would not even start."""
    gone = str(tmp_path / "gone")
    shim = shims["compiled"](socket=str(tmp_path / "s"), interpreter=gone)
    installation.install(tmp_path, shim, names=["static"])
    done = run(tmp_path)
    assert_try_again(done, "no pycni service listens and its interpreter cannot be run")
    assert gone == json.loads(done.stdout)["details"]


@pytest.mark.parametrize("kind", SHIMS)
def test_without_packages_the_fallback_says_so(
    tmp_path: Path, shims: dict[str, Callable[..., bytes]], kind: str
) -> None:
    """pycni has moved, say, or was installed for another interpreter."""
    shim = shims[kind](
        socket=str(tmp_path / "s"), interpreter=sys.executable, packages=str(tmp_path / "gone")
    )
    installation.install(tmp_path, shim, names=["static"])
    done = run(tmp_path)
    assert_try_again(done, "no pycni service listens and the interpreter has no pycni")


def test_a_path_in_an_error_is_escaped(
    tmp_path: Path, shims: dict[str, Callable[..., bytes]]
) -> None:
    """Whatever an interpreter's path holds, the error is JSON."""
    gone = str(tmp_path / 'a"b\\c\td')
    shim = shims["compiled"](socket=str(tmp_path / "s"), interpreter=gone)
    installation.install(tmp_path, shim, names=["static"])
    assert gone == json.loads(run(tmp_path).stdout)["details"]


# -- descriptors that are closed -------------------------------------------------------------------


def run_closed(bin_dir: Path, descriptor: int, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Execute a plugin that finds a standard descriptor closed."""
    return subprocess.run(
        ["sh", "-c", f'exec "$0" {descriptor}>&-', str(bin_dir / "static")],
        input=CONFIG,
        env={"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "e", "CNI_NETNS": "/n"}
        | env,
        capture_output=True,
        timeout=15,
        check=False,
    )


def say_done(connection: socket.socket) -> None:
    """Answer with something on both streams."""
    receive_request(connection)
    connection.sendall(framing.encode_reply(Reply(0, b"done", b"said")))
    assert b"" == connection.recv(1)  # and nothing comes back but the end


@pytest.mark.parametrize("service", [True, False])
def test_a_closed_stdin_is_code_5(
    bin_dir: Path, listen: Callable[[Behaviour], Path], service: bool
) -> None:
    """It is not mistaken for the socket, which would have the number next."""
    path = str(listen(lambda connection: connection.recv(1) and None)) if service else ""
    done = run_closed(bin_dir, 0, PYCNI_SHIM_SOCKET=path)
    error = json.loads(done.stdout)
    assert (1, 5) == (done.returncode, error["code"])
    assert error["msg"].startswith("error reading from stdin")


@pytest.mark.parametrize("service", [True, False])
def test_a_closed_stdout_is_a_failure(
    bin_dir: Path, listen: Callable[[Behaviour], Path], service: bool
) -> None:
    """The result went nowhere, least of all to the service."""
    path = str(listen(say_done)) if service else ""
    assert 1 == run_closed(bin_dir, 1, PYCNI_SHIM_SOCKET=path).returncode


def test_a_closed_stderr_is_none(bin_dir: Path, listen: Callable[[Behaviour], Path]) -> None:
    """What is only for a log fails no call."""
    done = run_closed(bin_dir, 2, PYCNI_SHIM_SOCKET=str(listen(say_done)))
    assert (0, b"done", b"") == (done.returncode, done.stdout, done.stderr)


# -- a service that fails --------------------------------------------------------------------------


def test_a_service_that_dies_in_a_call_is_code_11(
    bin_dir: Path, listen: Callable[[Behaviour], Path]
) -> None:
    """It is not run a second time by the shim: what the service has done, nobody knows."""
    done = run(bin_dir, listen(hang_up))
    assert_try_again(done, "the pycni service closed the connection before it answered")


def test_a_service_that_closes_at_once_is_code_11(
    bin_dir: Path, listen: Callable[[Behaviour], Path]
) -> None:
    """As it does to users that may not call it; whether the request still left or not."""
    done = run(bin_dir, listen(lambda _: None), stdin=b"x" * (4 << 20))
    assert (1, 11) == (done.returncode, json.loads(done.stdout)["code"])


@pytest.mark.parametrize(
    ("frame", "msg"),
    [
        (b"\0\0", "the pycni service closed the connection before it answered"),
        (OK[:-2], "the pycni service closed the connection before it answered"),
        (b"\0\0\0\x04....", "the pycni service answered with an unusable frame"),
        (b"\xff\xff\xff\xff", "the pycni service answered with an unusable frame"),
        (
            b"\0\0\0\x06\0\0\0\0\x09x",
            "the pycni service answered with a frame cut short",
        ),
    ],
)
def test_a_broken_reply_is_code_11(
    bin_dir: Path, listen: Callable[[Behaviour], Path], frame: bytes, msg: str
) -> None:
    """Cut short, too short, too long, or with a length inside that leads out of it."""

    def behave(connection: socket.socket) -> None:
        receive_request(connection)
        connection.sendall(frame)

    assert_try_again(run(bin_dir, listen(behave)), msg)


@pytest.mark.parametrize("limit", ["4294967296", "9" * 5000, "0", "-1", "1.5", "soon", ""])
def test_a_strange_time_limit_is_no_end(
    bin_dir: Path, listen: Callable[[Behaviour], Path], limit: str
) -> None:
    """A day at most, and what is no number of seconds is as if it were not there."""

    def behave(connection: socket.socket) -> None:
        receive_request(connection)
        connection.sendall(OK)

    done = run(bin_dir, listen(behave), PYCNI_SHIM_TIMEOUT=limit)
    assert (0, b"done", b"") == (done.returncode, done.stdout, done.stderr)


def test_a_blocked_alarm_does_not_move_the_time_limit(
    bin_dirs: dict[str, Path], listen: Callable[[Behaviour], Path]
) -> None:
    """A runtime's signal mask is inherited."""

    def trickle(connection: socket.socket) -> None:
        receive_request(connection)
        with contextlib.suppress(OSError):
            for byte in b"\0\0\x10\0" + bytes(30):
                connection.sendall(bytes((byte,)))
                time.sleep(0.2)

    path = listen(trickle)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        done = run(bin_dirs["compiled"], path, PYCNI_SHIM_TIMEOUT="1")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert_try_again(done, "the pycni service did not answer in time")


@pytest.mark.parametrize("trickle", [False, True])
def test_a_service_that_does_not_answer_in_time_is_code_11(
    bin_dir: Path, listen: Callable[[Behaviour], Path], trickle: bool
) -> None:
    """The deadline is one for the whole answer: a byte now and then does not move it."""

    def behave(connection: socket.socket) -> None:
        receive_request(connection)
        connection.sendall(b"\0\0\x10\0")
        try:
            while trickle:
                connection.sendall(b".")
                time.sleep(0.3)
            connection.recv(1)
        except OSError:
            pass  # the shim has given up

    start = time.monotonic()
    done = run(bin_dir, listen(behave), PYCNI_SHIM_TIMEOUT="1")
    assert_try_again(done, "the pycni service did not answer in time")
    assert 0.9 < time.monotonic() - start < 5


def test_a_service_that_reads_nothing_is_code_11(
    bin_dir: Path, listen: Callable[[Behaviour], Path]
) -> None:
    """A request larger than the socket's buffer waits for its reader."""
    path = listen(lambda connection: time.sleep(2))
    done = run(bin_dir, path, stdin=b"x" * (8 << 20), PYCNI_SHIM_TIMEOUT="1")
    assert (1, 11) == (done.returncode, json.loads(done.stdout)["code"])


def test_a_service_that_accepts_nothing_is_code_11(bin_dir: Path, tmp_path: Path) -> None:
    """Its queue is full: it is there, but it hangs."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        waiting = []
        for _ in range(2):
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].setblocking(False)
            try:
                waiting[-1].connect(str(path))
            except BlockingIOError:
                break
        done = run(bin_dir, path, PYCNI_SHIM_TIMEOUT="1")
        for connection in waiting:
            connection.close()
    assert_try_again(done, "the pycni service accepts no connection in time")


# -- stdin -----------------------------------------------------------------------------------------


def test_sixteen_mebibytes_of_stdin_arrive(
    bin_dir: Path, listen: Callable[[Behaviour], Path]
) -> None:
    """All a request may have, environment included."""
    sizes: list[int] = []

    def behave(connection: socket.socket) -> None:
        sizes.append(len(receive_request(connection).stdin))
        connection.sendall(OK)

    stdin = b"x" * (framing.MAX_REQUEST - 4096)
    assert b"done" == run(bin_dir, listen(behave), stdin=stdin).stdout
    assert [len(stdin)] == sizes


def test_more_is_refused_before_it_is_sent(
    bin_dir: Path, listen: Callable[[Behaviour], Path]
) -> None:
    """Code 6, and it does not wait for the end of an endless stdin."""
    path = listen(hang_up_early)
    with open("/dev/zero", "rb") as endless:
        done = subprocess.run(
            [str(bin_dir / "static")],
            stdin=endless,
            env={"CNI_COMMAND": "ADD", "PYCNI_SHIM_SOCKET": str(path)},
            capture_output=True,
            timeout=30,
            check=False,
        )
    assert 6 == json.loads(done.stdout)["code"]


@pytest.mark.parametrize("service", [True, False])
def test_without_a_command_stdin_is_not_read(
    bin_dir: Path, listen: Callable[[Behaviour], Path], service: bool
) -> None:
    """Somebody who types the plugin's name at a terminal sees what it is."""

    def behave(connection: socket.socket) -> None:
        receive_request(connection)
        connection.sendall(framing.encode_reply(Reply(0, b"", b"CNI static plugin")))

    path = str(listen(behave)) if service else ""
    reader, writer = os.pipe()
    with open(reader, "rb") as silent, open(writer, "wb"):
        done = subprocess.run(
            [str(bin_dir / "static")],
            stdin=silent,
            env={"PYCNI_SHIM_SOCKET": path} if path else {},
            capture_output=True,
            timeout=30,
            check=False,
        )
    assert 0 == done.returncode
    assert done.stderr.startswith(b"CNI static plugin")


# -- who may call ----------------------------------------------------------------------------------


@pytest.mark.root
def test_only_root_and_the_services_user_may_call(bin_dir: Path) -> None:
    """By SO_PEERCRED, even where the socket's mode would let others in."""
    directory = Path("/tmp") / f"pycni-{os.getpid()}"
    directory.mkdir(mode=0o755)
    path = directory / "s"
    endpoint = ShimEndpoint(path, lambda call, fd: Reply(0, b"done", b""))
    endpoint.start()
    frame = framing.encode_call("static", {"CNI_COMMAND": "ADD"}, CONFIG)
    code = (
        "import socket,sys\n"
        "c = socket.socket(socket.AF_UNIX); c.connect(sys.argv[1])\n"
        "try:\n    c.sendall(bytes.fromhex(sys.argv[2])); print(c.recv(9))\n"
        "except OSError as e:\n    print(b'')\n"
    )
    try:
        path.chmod(0o666)
        command = ["/usr/bin/python3", "-I", "-c", code, str(path), frame.hex()]
        stranger = subprocess.run(
            command, user=65534, group=65534, extra_groups=[], capture_output=True, check=True
        )
        assert b"b''\n" == stranger.stdout
        assert b"done" == run(bin_dir, path).stdout
    finally:
        endpoint.stop(5)
        directory.rmdir()


# -- budget ----------------------------------------------------------------------------------------


def test_the_python_shim_imports_three_modules() -> None:
    """Its start is its cost: each must be in the interpreter or a C module, and no other is."""
    tree = ast.parse(Path(shim.__file__).read_text())
    imports = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    assert {"_socket", "posix", "sys"} == {alias.name for n in imports for alias in n.names}


def test_the_python_shim_loads_nothing_else(bin_dirs: dict[str, Path], tmp_path: Path) -> None:
    """Whatever path it takes: what the interpreter loads by itself, and `_socket`."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen(1)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            receive_request(connection)
            connection.sendall(OK)

    thread = threading.Thread(target=serve)
    thread.start()
    python = sys.executable
    env = {"CNI_COMMAND": "ADD", "PYCNI_SHIM_SOCKET": str(tmp_path / "s")}

    def loaded(*what: str) -> set[str]:
        done = subprocess.run(
            [python, "-IS", "-X", "importtime", *what], input=b"", env=env, capture_output=True
        )
        return {
            line.rpartition("|")[2].strip()
            for line in done.stderr.decode().splitlines()
            if line.startswith("import time:")
        }

    extra = loaded(str(bin_dirs["python"] / "static")) - loaded("-c", "pass")
    thread.join()
    listener.close()
    assert {"_socket"} >= extra
