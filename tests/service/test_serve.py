# SPDX-License-Identifier: Apache-2.0
"""A service that cannot start says why, and leaves alone what is not its own."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pycni.cli.main import app
from pycni.client import Client, ServiceUnavailable
from pycni.errors import CniError, InvalidEnvironment, IOFailure
from pycni.service import daemon
from pycni.service.pb.cni.v2alpha1 import networks_pb2

pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The signal handlers of the test run come back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def refuse(directory: Path, **settings: Any) -> CniError:
    """The error of a service that cannot start, all of whose other things are in `directory`."""
    nothing: dict[str, Any] = {"shim_socket": None, "conf_dir": None}
    own = {"socket": directory / "cni.sock", "state_dir": directory / "state"}
    with pytest.raises(CniError) as caught:
        daemon.serve(daemon.Settings(**nothing | own | settings), ready=lambda: pytest.fail("up"))
    return caught.value


@pytest.mark.parametrize("which", ["socket", "read_only_socket", "shim_socket"])
def test_a_refused_service_leaves_the_socket_of_the_running_one(tmp_path: Path, which: str) -> None:
    """Whoever starts a second service by mistake must not cut off the first."""
    path = tmp_path / "taken.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        for _ in ("found by a connection", "now too busy to accept another one"):
            error = refuse(tmp_path, **{which: path})
            assert f"another process listens on {path}" == error.msg
            assert path.is_socket()
    assert not (tmp_path / "cni.sock").exists()


@pytest.mark.parametrize("which", ["socket", "read_only_socket", "shim_socket"])
def test_a_file_in_the_place_of_a_socket_stays(tmp_path: Path, which: str) -> None:
    """It is not ours to remove."""
    path = tmp_path / "notes"
    path.write_text("precious")
    assert "is not a socket" in refuse(tmp_path, **{which: path}).msg
    assert "precious" == path.read_text()


@pytest.mark.parametrize("which", ["state_dir", "socket", "read_only_socket", "shim_socket"])
def test_a_path_that_cannot_be_is_an_error_with_its_name(tmp_path: Path, which: str) -> None:
    """Code 5, not a traceback: below a file, in /proc, too long for a socket."""
    (tmp_path / "file").touch()
    paths = [tmp_path / "file/below", Path("/proc/nothing/here")]
    if which != "state_dir":
        paths.append(tmp_path / ("x" * 120))
    for path in paths:
        error = refuse(tmp_path, **{which: path})
        assert isinstance(error, IOFailure)
        assert str(path) in error.msg


def test_an_unknown_group_leaves_no_socket(tmp_path: Path) -> None:
    """The socket that could not be given to it is removed."""
    path = tmp_path / "look.sock"
    error = refuse(tmp_path, read_only_socket=path, read_only_group="no-such-group")
    assert "there is no group no-such-group" == error.msg
    assert [] == [file.name for file in tmp_path.iterdir() if file.is_socket()]


def test_an_unknown_log_level_is_wrong_usage() -> None:
    """Exit status 2 and the list of those there are."""
    done = CliRunner().invoke(app, ["serve", "--log-level", "loud"])
    assert 2 == done.exit_code
    assert "warning" in done.output


def test_whoever_may_not_use_the_socket_is_told(tmp_path: Path) -> None:
    """Not that no service answers."""
    path = tmp_path / "cni.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0)
        child = os.fork()
        if not child:
            os._exit(_ask_as_nobody(path))
        _, status = os.waitpid(child, 0)
    assert 0 == os.waitstatus_to_exitcode(status)


def _ask_as_nobody(path: Path) -> int:
    for directory in path.parents:
        if directory.stat().st_uid == os.geteuid() and str(directory).startswith("/tmp/"):
            directory.chmod(0o755)
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    try:
        with Client(str(path)) as client:
            client.networks.List(networks_pb2.ListNetworksRequest())
    except ServiceUnavailable as error:
        return 0 if "permission denied" in error.msg else 2
    return 3


def test_a_path_too_long_for_a_socket_is_refused_by_the_client(tmp_path: Path) -> None:
    """With the length there may be, instead of gRPC's own words."""
    with pytest.raises(InvalidEnvironment, match="too long") as caught:
        Client(str(tmp_path / ("x" * 120)))
    assert caught.value.details.endswith("of 107")


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        (["--tls-listen", "127.0.0.1:0"], "--tls-listen needs --tls-cert"),
        (["--tls-admin", "ops"], "--tls-admin needs --tls-cert"),
        (["--tls-read-only", "*"], "--tls-read-only needs --tls-cert"),
        (["--read-only-group", "root"], "--read-only-group needs --read-only-socket"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    tmp_path: Path, options: list[str], needed: str
) -> None:
    """Nobody may believe in a listener that is not there."""
    place = ["--socket", str(tmp_path / "cni.sock"), "serve", "--state-dir", str(tmp_path)]
    result = CliRunner().invoke(app, [*place, *options])
    assert 2 == result.exit_code
    assert needed in " ".join(result.output.replace("│", " ").split())
