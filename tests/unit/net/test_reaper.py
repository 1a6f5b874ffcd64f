# SPDX-License-Identifier: Apache-2.0
"""Link removals that arrive together share one kernel wait."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pycni.errors import Busy, KernelError, LinkNotFound
from pycni.net.reaper import Reaper


class FakeKernel:
    """Links with groups; a batch goes on after a failing message and raises the first failure."""

    def __init__(self, *indexes: int) -> None:
        self.groups = dict.fromkeys(indexes, 0)
        self.busy: set[int] = set()
        self.log: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self._failures: list[KernelError] | None = None

    @property
    def links(self) -> FakeKernel:
        return self

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        self._failures = failures = []
        yield
        self._failures = None
        if failures:
            raise failures[0]

    def set(self, index: int, *, group: int) -> None:
        if index in self.groups:
            self.groups[index] = group
        else:
            self._fail(LinkNotFound("set link", str(index), errno.ENODEV))

    def remove(self, index: int) -> None:
        self._wait(f"one {index}")
        if index in self.busy:
            self._fail(Busy("remove link", str(index), errno.EBUSY))
        elif self.groups.pop(index, None) is None:
            self._fail(LinkNotFound("remove link", str(index), errno.ENODEV))

    def remove_group(self, group: int) -> None:
        members = sorted(index for index, g in self.groups.items() if g == group)
        self._wait(f"group of {len(members)}")
        if self.busy.intersection(members):
            self._fail(Busy("remove group", str(group), errno.EBUSY))
            return
        for index in members:
            del self.groups[index]

    def _wait(self, what: str) -> None:
        self.log.append(what)
        self.entered.release()
        assert self.gate.wait(10)

    def _fail(self, failure: KernelError) -> None:
        if self._failures is None:
            raise failure
        self._failures.append(failure)


def wait_until_queued(reaper: Reaper, count: int) -> None:
    while len(reaper._waiting) < count:
        threading.Event().wait(0.001)


def remove_while_first_is_in_the_kernel(
    kernel: FakeKernel, reaper: Reaper, first: int, others: list[int]
) -> list[BaseException | None]:
    """Start removing `first`, let all `others` queue behind it, then open the gate."""
    kernel.gate.clear()
    with ThreadPoolExecutor(len(others) + 1) as pool:
        futures = [pool.submit(reaper.remove, first)]
        assert kernel.entered.acquire(timeout=10)
        futures += [pool.submit(reaper.remove, index) for index in others]
        wait_until_queued(reaper, len(others))
        kernel.gate.set()
        return [future.exception(10) for future in futures]


def test_a_lone_removal_is_one_plain_message() -> None:
    """Nothing to group, no group."""
    kernel = FakeKernel(7)
    Reaper(kernel).remove(7)
    assert {} == kernel.groups
    assert ["one 7"] == kernel.log


def test_an_absent_link_is_removed_already() -> None:
    """Absent is success, alone or with others."""
    kernel = FakeKernel(7)
    Reaper(kernel).remove(8)
    Reaper(kernel).remove(8, 7)
    Reaper(kernel).remove()
    assert {} == kernel.groups


def test_all_that_queue_during_one_removal_go_with_the_next() -> None:
    """32 concurrent removals take two waits: the first one's, and one for the 31 behind it."""
    kernel = FakeKernel(*range(1, 33))
    reaper = Reaper(kernel)
    failures = remove_while_first_is_in_the_kernel(kernel, reaper, 1, list(range(2, 33)))
    assert [None] * 32 == failures
    assert ["one 1", "group of 31"] == kernel.log
    assert {} == kernel.groups


def test_the_lead_passes_on_until_nobody_waits() -> None:
    """A leader serves one batch; a second round starts afresh."""
    kernel = FakeKernel(*range(1, 9))
    reaper = Reaper(kernel)
    remove_while_first_is_in_the_kernel(kernel, reaper, 1, [2, 3, 4])
    remove_while_first_is_in_the_kernel(kernel, reaper, 5, [6, 7, 8])
    assert ["one 1", "group of 3", "one 5", "group of 3"] == kernel.log


def test_each_batch_has_a_group_of_its_own() -> None:
    """A group number is used once, so that a batch never takes links it was not given."""
    numbers = iter([0x40000001, 0x40000002])
    kernel = FakeKernel(1, 2, 3, 4)
    reaper = Reaper(kernel, new_group=lambda: next(numbers))
    reaper.remove(1, 2)
    reaper.remove(3, 4)
    assert ["group of 2", "group of 2"] == kernel.log


def test_a_failing_batch_is_taken_apart_and_only_the_guilty_fails() -> None:
    """One busy link does not fail the removals that happened to share its batch."""
    kernel = FakeKernel(*range(1, 6))
    kernel.busy = {3}
    reaper = Reaper(kernel)
    failures = remove_while_first_is_in_the_kernel(kernel, reaper, 1, [2, 3, 4, 5])
    assert {3: 0}.keys() == kernel.groups.keys()
    assert [None, None, Busy, None, None] == [f if f is None else type(f) for f in failures]


def test_a_link_that_vanishes_on_its_own_does_not_spoil_the_batch() -> None:
    """A namespace that dies takes its veth along; the others are removed all the same."""
    kernel = FakeKernel(1, 2, 4)
    reaper = Reaper(kernel)
    failures = remove_while_first_is_in_the_kernel(kernel, reaper, 1, [2, 3, 4])
    assert [None] * 4 == failures
    assert {} == kernel.groups


def test_a_bug_in_the_leader_wakes_everybody() -> None:
    """No caller waits for ever; all of the batch see the error, and the next batch works."""
    kernel = FakeKernel(1, 2, 3)
    reaper = Reaper(kernel, new_group=lambda: 1 // 0)
    failures = remove_while_first_is_in_the_kernel(kernel, reaper, 1, [2, 3])
    assert [type(None), ZeroDivisionError, ZeroDivisionError] == [type(f) for f in failures]
    reaper.remove(2)
    assert {3: 0} == kernel.groups


def test_all_links_of_one_call_go_together() -> None:
    """GC hands over everything stale at once."""
    kernel = FakeKernel(1, 2, 3)
    Reaper(kernel).remove(1, 2, 3)
    assert ["group of 3"] == kernel.log


def test_the_first_failure_of_a_call_is_raised_after_all_its_links() -> None:
    """The remaining links of a call are removed although one refuses."""
    kernel = FakeKernel(1, 2, 3)
    kernel.busy = {1, 2}
    with pytest.raises(Busy, match="remove link 1"):
        Reaper(kernel).remove(1, 2, 3)
    assert {1, 2} == kernel.groups.keys()
