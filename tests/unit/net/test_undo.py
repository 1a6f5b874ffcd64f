# SPDX-License-Identifier: Apache-2.0
"""ADD unwinds completely, DEL and GC run every step and report every failure."""

from __future__ import annotations

import pytest

from pycni.errors import Busy, CniError, InvalidConfig, TryAgain
from pycni.net.undo import Gather, Undo


def fail(error: Exception) -> None:
    raise error


def test_undo_runs_the_inverses_last_to_first_on_an_error() -> None:
    """Steps are undone in the reverse of the order they were done in."""
    done: list[str] = []
    with pytest.raises(InvalidConfig), Undo() as undo:
        undo.push(done.append, "first")
        undo.push(done.append, "second")
        raise InvalidConfig("ipam: wrong")
    assert ["second", "first"] == done


def test_undo_keeps_everything_after_commit() -> None:
    """A committed call leaves what it made."""
    done: list[str] = []
    with Undo() as undo:
        undo.push(done.append, "first")
        undo.commit()
    assert [] == done


def test_undo_without_commit_unwinds_even_without_an_error() -> None:
    """Only `commit` keeps: a forgotten one shows at once."""
    done: list[str] = []
    with Undo() as undo:
        undo.push(done.append, "first")
    assert ["first"] == done


def test_undo_notes_its_own_failures_on_the_first_error_and_goes_on() -> None:
    """The caller reads the cause as msg and what stayed behind in details."""
    done: list[str] = []
    with pytest.raises(InvalidConfig) as caught, Undo() as undo:
        undo.push(done.append, "first")
        undo.push(fail, Busy("remove link", "cni0", 16))
        undo.push(fail, ValueError("a bug"))
        raise InvalidConfig("ipam: wrong")
    assert "ipam: wrong" == caught.value.msg
    assert (
        "undo failed: ValueError: a bug; "
        "undo failed: remove link cni0: Device or resource busy" == caught.value.details
    )
    assert ["first"] == done


def test_undo_raises_its_failures_when_there_was_no_error() -> None:
    """A failed inverse is never silent."""
    with pytest.raises(CniError, match="undo: 1 steps failed"), Undo() as undo:
        undo.push(fail, ValueError("a bug"))


def test_undo_unwinds_on_an_interrupt() -> None:
    """A KeyboardInterrupt leaves no half-made attachment either."""
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), Undo() as undo:
        undo.push(done.append, "first")
        raise KeyboardInterrupt
    assert ["first"] == done


def test_gather_is_silent_when_every_step_succeeds() -> None:
    """No failure, no error; the value of a step is handed through."""
    with Gather("delete") as gather:
        assert 3 == gather.run(len, "abc")


def test_gather_raises_a_single_failure_as_it_is() -> None:
    """One failing step keeps its class and code."""
    error = TryAgain("later")
    with pytest.raises(TryAgain) as caught, Gather("delete") as gather:
        gather.run(fail, error)
    assert error is caught.value


def test_gather_runs_every_step_and_lists_every_failure() -> None:
    """Two failures become one CniError; the code is 999 when they differ."""
    done: list[str] = []
    with pytest.raises(CniError) as caught, Gather("delete eth0") as gather:
        gather.run(fail, TryAgain("later"))
        gather.run(done.append, "last")
        gather.run(fail, OSError("disk"))
    assert ["last"] == done
    assert 999 == caught.value.wire_code
    assert "delete eth0: 2 steps failed" == caught.value.msg
    assert "later; OSError: disk" == caught.value.details
    assert isinstance(caught.value.__cause__, ExceptionGroup)


def test_gather_keeps_the_code_its_failures_agree_on() -> None:
    """Two transient failures stay transient (11)."""
    with pytest.raises(TryAgain) as caught, Gather("delete") as gather:
        gather.run(fail, TryAgain("a"))
        gather.run(fail, Busy("remove link", "veth0", 16))
    assert 11 == caught.value.wire_code


def test_gather_counts_an_error_of_its_own_block() -> None:
    """What is raised between steps is gathered with the rest, alone it passes as it is."""
    with pytest.raises(CniError, match="2 steps failed"), Gather("delete") as gather:
        gather.run(fail, TryAgain("a"))
        raise ValueError("b")
    with pytest.raises(ValueError, match=r"^b$"), Gather("delete"):
        raise ValueError("b")


def test_gather_lets_an_interrupt_pass() -> None:
    """KeyboardInterrupt is not a failed step."""
    with pytest.raises(KeyboardInterrupt), Gather("delete") as gather:
        gather.run(fail, TryAgain("a"))
        raise KeyboardInterrupt
