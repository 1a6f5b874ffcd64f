# SPDX-License-Identifier: Apache-2.0
"""Deadlines: time that runs out, callers that give up, and the waits that end with them."""

from __future__ import annotations

import threading
import time

import pytest

from pycni.errors import TryAgain
from pycni.model.deadline import Deadline


def test_a_call_without_a_limit_goes_on() -> None:
    """Nothing is left, nothing is over."""
    deadline = Deadline()
    assert deadline.remaining_s() is None
    assert not deadline.expired
    deadline.sleep(0)
    deadline.check()


def test_time_left_is_told() -> None:
    """It shrinks to 0 and stays there."""
    left = Deadline(60).remaining_s()
    assert left is not None
    assert 59 < left <= 60
    assert 0 == Deadline(-1).remaining_s()
    assert not Deadline(60).expired


def test_a_call_out_of_time_is_code_11() -> None:
    """The message names what did not finish."""
    deadline = Deadline(0)
    assert deadline.expired
    assert not deadline.cancelled
    with pytest.raises(TryAgain, match=r"^the ADD did not finish before its deadline$"):
        deadline.check("the ADD")


def test_a_cancelled_call_is_code_11() -> None:
    """Whatever time it had left."""
    deadline = Deadline(60)
    deadline.cancel()
    assert deadline.expired
    assert deadline.cancelled
    with pytest.raises(TryAgain, match=r"^the call was cancelled by the caller$"):
        deadline.check()


@pytest.mark.parametrize("timeout_s", [None, 60])
def test_a_sleep_ends_with_a_cancellation(timeout_s: float | None) -> None:
    """Of another thread."""
    deadline = Deadline(timeout_s)
    timer = threading.Timer(0.01, deadline.cancel)
    timer.start()
    started = time.monotonic()
    with pytest.raises(TryAgain, match="cancelled"):
        deadline.sleep(30)
    timer.join()
    assert 10 > time.monotonic() - started


def test_a_sleep_ends_with_the_deadline() -> None:
    """Not later."""
    with pytest.raises(TryAgain, match="deadline"):
        Deadline(0.01).sleep(30)


def test_foreign_waits_are_woken_once() -> None:
    """At the cancellation, at once if that has come already, and not after they were taken back."""
    woken: list[str] = []
    deadline = Deadline()
    deadline.on_cancel(lambda: woken.append("first"))
    take_back = deadline.on_cancel(lambda: woken.append("taken back"))
    take_back()
    take_back()
    assert [] == woken
    deadline.cancel()
    deadline.cancel()
    assert ["first"] == woken
    deadline.on_cancel(lambda: woken.append("late"))
    assert ["first", "late"] == woken
