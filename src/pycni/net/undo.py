# SPDX-License-Identifier: Apache-2.0
"""How a verb of several steps fails: ADD unwinds (`Undo`), DEL and GC go on (`Gather`).

::

    with Undo() as undo:                    with Gather("delete the attachment") as gather:
        links.add(bridge)                       gather.run(remove_veth)
        undo.push(links.remove, bridge)         gather.run(ipam.delete)
        ...
        undo.commit()
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from pycni.errors import CniError

P = ParamSpec("P")
T = TypeVar("T")


class Undo:
    """Inverses of the steps done so far, run last to first unless `commit` was reached.

    Every inverse runs, whatever the others do; what they raise becomes a note on the error that
    made them necessary, so that the caller reads the cause first and the residue after it.
    """

    def __init__(self) -> None:
        self._inverses: list[Callable[[], object]] = []

    def push(self, inverse: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Remember `inverse`; call this on the line after the step it undoes."""
        self._inverses.append(partial(inverse, *args, **kwargs))

    def commit(self) -> None:
        """Keep what was done: forget every inverse."""
        self._inverses.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        failures: list[Exception] = []
        while self._inverses:
            try:
                self._inverses.pop()()
            except Exception as failure:  # noqa: BLE001 - the remaining inverses must run too
                failures.append(failure)
        if exc is None and failures:
            raise fold("undo", failures)
        for each in failures:
            assert exc is not None
            exc.add_note(f"undo failed: {_describe(each)}")


class Gather:
    """Run every step; at the end raise what failed, as it is if it was one, folded if more."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failures: list[Exception] = []

    def run(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Run `step` and return its value, or None if it failed."""
        try:
            return step(*args, **kwargs)
        except Exception as failure:  # noqa: BLE001 - the remaining steps must run too
            self._failures.append(failure)
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None and not isinstance(exc, Exception):
            return  # an interrupt is nobody's failed step
        if isinstance(exc, Exception):
            self._failures.append(exc)
        match self._failures:
            case []:
                return
            case [only]:
                if only is not exc:
                    raise only
            case failures:
                raise fold(self._what, failures)


def fold(what: str, failures: list[Exception]) -> CniError:
    """Make one error of several: their code if they agree on it, else 999; details list all."""
    codes = {failure.wire_code if isinstance(failure, CniError) else 999 for failure in failures}
    error = CniError.from_wire(
        codes.pop() if len(codes) == 1 else CniError.code,
        f"{what}: {len(failures)} steps failed",
        "; ".join(_describe(failure) for failure in failures),
    )
    error.__cause__ = ExceptionGroup(what, failures)
    return error


def _describe(failure: Exception) -> str:
    """A CniError in its own words; a bug with its class, which is half of what it says."""
    return str(failure) if isinstance(failure, CniError) else f"{type(failure).__name__}: {failure}"
