# SPDX-License-Identifier: Apache-2.0
"""Deadlines, retries, typed errors, and what becomes of calls nobody waits for."""

from __future__ import annotations

import time
import uuid

import pytest

from pycni.testing.hns_simulator import NativeCall, refusal
from pycni.windows import abi, calls, errors, hcn, hns, schemas
from pycni.windows.calls import Calls
from tests.windows.conftest import Bench
from tests.windows.drive import CBR0, wait_until_clean


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_a_hanging_call_ends_at_its_deadline(bench: Bench) -> None:
    """Code 11, promptly, and the handle that comes too late is closed."""
    ident = bench.simulator.add_network(CBR0)
    release = bench.simulator.hang("HcnOpenNetwork")
    started = time.monotonic()
    with pytest.raises(errors.HnsTimeout, match=r"no answer within 0\.2 s") as caught:
        Calls(bench.native, timeout_s=0.2).run("HcnOpenNetwork", guid=ident)
    assert time.monotonic() - started < 2
    assert 11 == caught.value.wire_code
    assert 1 == calls._Hanging.count
    release.set()
    wait_until_clean(bench.simulator)
    assert 0 == calls._Hanging.count


def test_a_hanging_call_holds_up_no_other(bench: Bench) -> None:
    """There is no lock around the service."""
    ident = bench.simulator.add_network(CBR0)
    release = bench.simulator.hang("HcnOpenNetwork")
    with pytest.raises(errors.HnsTimeout):
        Calls(bench.native, timeout_s=0.1).run("HcnOpenNetwork", guid=ident)
    assert "cbr0" == hcn.Hcn(Calls(bench.native)).networks.get(ident).Name
    release.set()
    wait_until_clean(bench.simulator)


def test_threads_do_not_pile_up_on_a_dead_service(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a number of hanging calls new ones are refused at once."""
    monkeypatch.setattr(calls, "MOST_HANGING", 2)
    native = Calls(bench.native, timeout_s=0.05)
    releases = [bench.simulator.hang("HNSCall") for _ in range(2)]
    for _ in releases:
        with pytest.raises(errors.HnsTimeout):
            hns.Hns(native).networks.list()
    with pytest.raises(errors.HnsUnavailable, match="hangs: 2 calls"):
        hns.Hns(native).networks.list()
    for release in releases:
        release.set()
    wait_until_clean(bench.simulator)
    assert () == hns.Hns(Calls(bench.native)).networks.list()


def test_the_verbs_deadline_bounds_every_call(bench: Bench) -> None:
    """A call gets what is left of it, and none is started after it."""
    release = bench.simulator.hang("HNSCall")
    native = Calls(bench.native, deadline=time.monotonic() + 0.1)
    with pytest.raises(errors.HnsTimeout):
        hns.Hns(native).networks.list()
    before = len(bench.simulator.calls)
    with pytest.raises(errors.HnsTimeout, match=r"within 0\.0 s"):
        hns.Hns(native).networks.list()
    assert before == len(bench.simulator.calls)
    release.set()
    wait_until_clean(bench.simulator)


@pytest.mark.parametrize("hresult", sorted(errors.TRANSIENT))
def test_transient_failures_are_repeated(bench: Bench, hresult: int) -> None:
    """With growing pauses, until it works."""
    ident = bench.simulator.add_network(CBR0)
    bench.simulator.fail("HcnOpenNetwork", hresult, times=3)
    clock = Clock()
    native = Calls(bench.native, clock=clock, sleep=clock.sleep)
    assert "cbr0" == hcn.Hcn(native).networks.get(ident).Name
    assert [0.05, 0.1, 0.2] == clock.pauses


def test_transient_failures_end_at_the_deadline(bench: Bench) -> None:
    """Then the failure itself is raised, as one worth trying again."""
    bench.simulator.fail("HNSCall", 0x800706BA, times=1000)
    clock = Clock()
    native = Calls(bench.native, timeout_s=10, clock=clock, sleep=clock.sleep)
    with pytest.raises(errors.HnsTransient, match="RPC server") as caught:
        hns.Hns(native).networks.list()
    assert 11 == caught.value.wire_code
    assert 5 < clock.now <= 10
    bench.simulator._hooks.clear()


def test_other_failures_are_not_repeated(bench: Bench) -> None:
    """A refusal is an answer."""
    bench.simulator.fail("HNSCall", 0x803B000D)
    with pytest.raises(errors.HnsError):
        hns.Hns(Calls(bench.native)).networks.list()
    assert 1 == len(bench.simulator.calls)


def test_a_record_beside_a_success_code_is_a_failure(bench: Bench) -> None:
    """And the handle that came with it is closed."""
    ident = bench.simulator.add_network(CBR0)

    def answer(call: NativeCall) -> abi.Reply:
        handle = bench.simulator._new_handle("Network", call.guid)
        return abi.Reply(handle=handle, record=refusal(0x803B0017).record)

    bench.simulator.hook("HcnOpenNetwork", answer)
    clock = Clock()
    native = Calls(bench.native, timeout_s=0.01, clock=clock, sleep=clock.sleep)
    with pytest.raises(errors.HnsTransient, match="degraded"):
        native.run("HcnOpenNetwork", guid=ident)


def test_a_handle_is_closed_when_the_query_fails(bench: Bench) -> None:
    """Go's client leaks it there."""
    ident = bench.simulator.add_network(CBR0)
    bench.simulator.fail("HcnQueryNetworkProperties", 0x80070057)
    with pytest.raises(errors.HnsError, match="parameter is incorrect"):
        hcn.Hcn(Calls(bench.native)).networks.get(ident)
    assert 0 == bench.simulator.open_handles


@pytest.mark.parametrize(
    ("hresult", "kind", "code"),
    [
        (0x80070490, errors.HnsNotFound, 999),
        (0x803B0001, errors.HnsNotFound, 999),
        (0x803B0002, errors.HnsNotFound, 999),
        (0x803B0010, errors.HnsConflict, 999),
        (0x803B002B, errors.HnsConflict, 999),
        (0x80070005, errors.HnsDenied, 999),
        (0x800706BA, errors.HnsTransient, 11),
        (0x80070422, errors.HnsUnavailable, 11),
        (0x803B000D, errors.HnsError, 999),
        (0x8BADF00D, errors.HnsError, 999),
    ],
)
def test_hresults_are_typed(hresult: int, kind: type[errors.HnsError], code: int) -> None:
    """By the code, in one table."""
    error = errors.from_hresult("hcnOpenNetwork", hresult, refusal(hresult).record)
    assert kind is type(error)
    assert code == error.wire_code


def test_the_message_is_the_one_go_prints() -> None:
    """Function, text, Win32 code, record: what people search for."""
    record = refusal(0x80070490).record
    error = errors.from_hresult("hcnOpenNamespace", 0x80070490, record)
    assert f"hcnOpenNamespace failed in Win32: Element not found. (0x490) {record}" == error.msg


def test_a_taken_port_says_what_may_hold_it() -> None:
    """The service names neither the port nor its holder."""
    assert "holds the host port" in errors.from_hresult("x", 0x803B0013).hint
    assert "holds the host port" in errors.from_hresult("x", 0x80070020).hint


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The endpoint was not found. ", errors.HnsNotFound),
        ("The specified port already exists. ", errors.HnsConflict),
        ("Something else. ", errors.HnsError),
        ("The gadget was not found.", errors.HnsNotFound),
    ],
)
def test_schema_1_failures_are_told_by_their_text(
    bench: Bench, text: str, kind: type[errors.HnsError]
) -> None:
    """They come under a success code and carry none."""
    said = schemas.encode({"Success": False, "Error": text})
    bench.simulator.hook("HNSCall", lambda _call: abi.Reply(text=said))
    with pytest.raises(kind, match="hns failed with error : " + text.strip()) as caught:
        hns.Hns(Calls(bench.native)).networks.get(uuid.uuid4())
    assert kind is type(caught.value)


def test_schema_1_failures_of_newer_builds_are_hresults(bench: Bench) -> None:
    """With no response at all."""
    bench.simulator.hook("HNSCall", lambda _call: abi.Reply(hresult=0x803B0013))
    with pytest.raises(errors.HnsConflict, match=r"\(0x803b0013\)"):
        hns.Hns(Calls(bench.native)).networks.list()


def test_a_response_that_is_not_json_is_an_error(bench: Bench) -> None:
    """Not a crash."""
    bench.simulator.hook("HNSCall", lambda _call: abi.Reply(text="<html>"))
    with pytest.raises(errors.HnsError, match="not JSON"):
        hns.Hns(Calls(bench.native)).networks.list()
