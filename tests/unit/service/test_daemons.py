# SPDX-License-Identifier: Apache-2.0
"""Leases and waiting, with a plugin daemon in the same process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pycni.errors import CniError, InvalidConfig, InvalidEnvironment, NotAvailable, TryAgain
from pycni.model.deadline import Deadline
from pycni.model.request import Request, Verb
from pycni.model.result import Result
from pycni.runtime import nesting
from pycni.runtime.errors import PluginNotFound
from pycni.sdk import Call, Config, Interface, Plugin
from pycni.service.access import AlreadyRegistered, NotPermitted
from pycni.service.daemons import DaemonAway, Daemons, Lease, Registration, impatient
from pycni.service.operations import MAX_DEPTH, Operations
from pycni.service.pb.cni.v2alpha1 import params_pb2, result_pb2
from pycni.service.plugin_client import (
    join_args,
    model_result,
    parse_args,
    parse_endpoint,
    result_document,
)
from pycni.service.plugin_server import PluginDaemon
from pycni.service.registry import _registration
from pycni.service.views import result_message


class Noop(Plugin[Config], type="noop"):
    """Says which interface it was asked for."""

    def add(self, call: Call[Config]) -> Result:
        """One interface."""
        return Result(interfaces=(Interface(name=call.ifname),))


CONFIG = json.dumps({"cniVersion": "1.1.0", "name": "net", "type": "noop"}).encode()


def request(verb: Verb = Verb.ADD) -> Request:
    """A call of the plugin."""
    return Request(verb=verb, container_id="c1", ifname="eth0", config=CONFIG)


Start = Callable[..., str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a daemon; returns its endpoint."""
    running: list[PluginDaemon] = []

    def make(name: str = "one") -> str:
        daemon = PluginDaemon({"noop": Noop()}, tmp_path / name)
        daemon.start()
        running.append(daemon)
        return f"unix://{tmp_path / name}"

    yield make
    for daemon in running:
        daemon.stop(0)


def register(daemons: Daemons, endpoint: str, **options: Any) -> Lease:
    """Register the daemon for its type."""
    return daemons.register(["noop"], Registration(endpoint=endpoint), **options)


def test_a_lease_lasts_as_long_as_it_is_held(start: Start) -> None:
    """Before it the type is unknown, during it calls run, after it they wait for the next."""
    daemons = Daemons(Operations())
    assert not daemons.has("noop")
    with pytest.raises(PluginNotFound):
        daemons.run("noop", request(), Deadline(1))
    lease = register(daemons, start())
    assert ["noop"] == daemons.types()
    assert "1.1.0" in daemons.versions("noop")
    result = Result.parse(daemons.run("noop", request(), Deadline(10)))
    assert ["eth0"] == [one.name for one in result.interfaces]
    daemons.release(lease)
    assert daemons.has("noop")
    with pytest.raises(DaemonAway, match="is not registered"):
        daemons.run("noop", request(), Deadline(0.05))
    with pytest.raises(NotAvailable):
        daemons.run("noop", request(Verb.STATUS), Deadline(10))


def test_a_cancelled_call_waits_no_longer(start: Start) -> None:
    """The caller's departure ends the wait at once."""
    daemons = Daemons(Operations())
    daemons.release(register(daemons, start()))
    deadline = Deadline(60)
    threading.Timer(0.1, deadline.cancel).start()
    started = time.monotonic()
    with pytest.raises(TryAgain):
        daemons.run("noop", request(), deadline)
    assert time.monotonic() - started < 10


def test_recovery_does_not_wait(start: Start) -> None:
    """It would take a minute for each attachment; it has given the daemons a moment before."""
    daemons = Daemons(Operations())
    assert daemons.await_return(0)
    endpoint = start()
    lease = register(daemons, endpoint)
    assert daemons.await_return(0)
    daemons.release(lease)
    assert not daemons.await_return(0.05)
    with impatient(), pytest.raises(DaemonAway):
        daemons.run("noop", request(Verb.DEL), Deadline(60))


def test_types_are_remembered_in_a_file(start: Start, tmp_path: Path) -> None:
    """Across restarts, until the daemon leaves for good; a broken file is put aside."""
    file = tmp_path / "daemons.json"
    daemons = Daemons(Operations(), file=file)
    endpoint = start()
    register(daemons, endpoint)
    later = Daemons(Operations(), file=file)
    assert ["noop"] == later.types()
    known = later.find("noop")
    assert known is not None
    assert endpoint == known.endpoint
    lease = register(later, endpoint)
    later.drain(lease, leaving=True)
    assert not later.is_present("noop")
    later.release(lease)
    assert [] == Daemons(Operations(), file=file).types()
    file.write_text("{")
    assert [] == Daemons(Operations(), file=file).types()
    assert "{" == (tmp_path / "daemons.bad").read_text()


def test_a_daemon_says_what_it_is(start: Start, tmp_path: Path) -> None:
    """Its schema and verbs are remembered as well."""
    daemon = PluginDaemon({"noop": Noop()}, tmp_path / "x")
    daemon.stop(0)
    message = daemon._registration
    message.endpoint = start()
    file = tmp_path / "daemons.json"
    Daemons(Operations(), file=file).register(["noop"], _registration(message))
    known = Daemons(Operations(), file=file).find("noop")
    assert known is not None
    assert "cniVersion" in bytes(known.config_schemas["noop"]).decode()
    assert 6 == len(known.verbs)


def test_one_daemon_for_each_type(start: Start) -> None:
    """Unless it takes over, or is the same, or the other is on its way out."""
    daemons = Daemons(Operations())
    first = register(daemons, start("one"))
    other = start("two")
    with pytest.raises(AlreadyRegistered):
        register(daemons, other)
    second = register(daemons, other, take_over=True)
    superseded = first.outbox.get_nowait()
    assert superseded is not None
    assert other == superseded.superseded.endpoint
    assert None is first.outbox.get_nowait()
    daemons.release(first)
    assert daemons.is_present("noop")
    same = register(daemons, other)
    daemons.drain(same, leaving=False)
    register(daemons, start("three"))
    daemons.release(second)
    daemons.release(same)
    assert daemons.is_present("noop")


@pytest.mark.parametrize(
    ("types", "endpoint"),
    [([], "unix:///x"), (["a/b"], "unix:///x"), (["a"], "tcp:1"), (["a"], "unix:///nowhere")],
)
def test_false_registrations_are_refused(types: list[str], endpoint: str) -> None:
    """And leave nothing behind."""
    daemons = Daemons(Operations())
    with pytest.raises(CniError):
        daemons.register(types, Registration(endpoint=endpoint))
    assert [] == daemons.types()


def test_a_named_endpoint_needs_no_registration(start: Start, tmp_path: Path) -> None:
    """It is waited for, too; the connection is shared."""
    daemons = Daemons(Operations())
    endpoint = daemons.at(f"unix://{tmp_path}/one")
    assert endpoint is daemons.at(f"unix://{tmp_path}/one")
    with pytest.raises(TryAgain, match="deadline"):
        endpoint.run("noop", request(), Deadline(0.2))
    with pytest.raises(NotAvailable):
        endpoint.run("noop", request(Verb.STATUS), Deadline(10))
    start()
    assert b"eth0" in endpoint.run("noop", request(), Deadline(10))
    assert "1.1.0" in endpoint.versions("noop")
    daemons.close()


def test_endpoints_do_not_pile_up(tmp_path: Path) -> None:
    """A client that names ever new ones does not use up descriptors."""
    daemons = Daemons(Operations())
    for number in range(100):
        daemons.at(f"unix://{tmp_path}/{number}")
    assert 64 == len(daemons._endpoints)
    daemons.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("unix:///run/x.sock", "unix:/run/x.sock"), ("unix:/run/x.sock", "unix:/run/x.sock")],
)
def test_endpoints_are_unix_sockets(text: str, expected: str) -> None:
    """By their absolute path."""
    assert expected == parse_endpoint(text)


@pytest.mark.parametrize(
    "text", ["", "/run/x", "unix:run/x", "unix-abstract:x", "127.0.0.1:1", "dns:///a", "unix:/%00"]
)
def test_other_endpoints_are_refused(text: str) -> None:
    """TCP, abstract sockets, relative paths."""
    with pytest.raises(InvalidConfig, match="is not a unix socket"):
        parse_endpoint(text)


def test_operations_end_with_their_calls() -> None:
    """A token works while the call runs; the delegate's own call is one deeper."""
    operations = Operations()
    with operations.running(request(), Deadline()) as (token, outer):
        assert () == outer
        operation = operations.get(token)
        with (
            operation.joined(),
            operations.running(request(), Deadline()) as (inner, around),
        ):
            assert (token.partition(".")[0],) == around
            assert inner != token
        assert 1 == len(operations)
    for gone in (token, "", "x"):
        with pytest.raises(NotPermitted):
            operations.get(gone)


def test_delegation_is_part_of_the_nodes_call() -> None:
    """The locks of the outer call cover what the daemon's delegates do."""
    operations = Operations()
    with nesting.bound("outer"), operations.running(request(), Deadline()) as (token, _):
        pass_on = operations.get(token)
    with pass_on.joined():
        assert "outer" == nesting.current()
    assert "" == nesting.current()


def test_delegation_has_a_bottom() -> None:
    """A plugin that delegates to itself comes to an end."""
    operations = Operations()

    def descend(depth: int) -> int:
        with operations.running(request(), Deadline()) as (token, _):
            with operations.get(token).joined():
                return descend(depth + 1)

    with pytest.raises(InvalidConfig, match=f"more than {MAX_DEPTH} deep"):
        descend(0)
    assert 0 == len(operations)


def test_args_come_through_in_order() -> None:
    """Duplicates and empty values included; what cannot be said is refused."""
    for text in ("", "A=1;B=;A=2;C=x=y"):
        assert text == join_args(parse_args(text))
    with pytest.raises(InvalidEnvironment, match='invalid pair "B"'):
        parse_args("A=1;B")
    with pytest.raises(InvalidEnvironment, match="invalid pair"):
        join_args([params_pb2.CniArg(key="A", value="1;B=2")])


RESULT = {
    "cniVersion": "1.1.0",
    "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 1400, "sandbox": "/ns"}],
    "ips": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 0}],
    "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "priority": 5, "table": 0}],
    "dns": {"nameservers": ["10.1.0.1"]},
}


def test_typed_results_are_rendered_once() -> None:
    """In the config's version; 0 differs from absent."""
    message = result_message(json.dumps(RESULT).encode())
    assert RESULT == json.loads(model_result(message).encode("1.1.0"))
    message.ClearField("json")
    document = json.loads(result_document("noop", message, request(), "0.4.0"))
    assert "0.4.0" == document["cniVersion"]
    assert "4" == document["ips"][0]["version"]


def test_json_results_are_passed_on_byte_for_byte() -> None:
    """Unless they are in another version than the configuration."""
    spaced = b'{ "cniVersion": "1.1.0",  "own": 1 }'
    document = result_document("noop", result_pb2.Result(json=spaced), request(), "1.1.0")
    assert spaced == document
    older = b'{"cniVersion": "1.0.0", "own": 1}'
    document = result_document("noop", result_pb2.Result(json=older), request(), "1.1.0")
    assert "1.1.0" == json.loads(document)["cniVersion"]


@pytest.mark.parametrize(
    "message",
    [
        result_pb2.Result(json=b"{"),
        result_pb2.Result(json=b"[]"),
        result_pb2.Result(ips=[result_pb2.IpConfig(address="nowhere")]),
    ],
)
def test_unusable_results_are_the_plugins_fault(message: result_pb2.Result) -> None:
    """Code 999, naming the plugin."""
    with pytest.raises(CniError, match="noop") as failed:
        result_document("noop", message, request(), "1.1.0")
    assert 999 == failed.value.wire_code
