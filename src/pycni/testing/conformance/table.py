# SPDX-License-Identifier: Apache-2.0
"""The table of cases: each has a number of the specification's checklist, and a rule.

The letters: C configuration, R runtime (what it hands over), P plugin, V versions and results,
E errors, D delegation, L what libcni adds, A the common layer of the reference plugins. The
modules `cases_*` fill the table; `table()` has them all in order.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import NamedTuple

from pycni.testing.conformance.probe import Probe

MODULES = ("environment", "stdin", "versions", "verbs", "namespaces", "delegation")

Run = Callable[[Probe], None]

_cases: list[Case] = []


class Case(NamedTuple):
    """One row: `id` is the number and a few words, `rule` what must hold.

    `acts`: it needs a configuration that is valid, and the privileges the verbs take.
    `isolated`: it needs namespaces even so. `strict`: it is the reference implementation's rule,
    not the specification's.
    """

    id: str
    rule: str
    run: Run
    acts: bool = False
    isolated: bool = False
    strict: bool = False

    def matches(self, text: str) -> bool:
        """Whether the text stands in the number, the words or the rule."""
        return text.lower() in f"{self.id} {self.rule}".lower()


def case(
    case_id: str, rule: str, *, acts: bool = False, isolated: bool = False, strict: bool = False
) -> Callable[[Run], Run]:
    """Make a row of the function."""

    def register(run: Run) -> Run:
        _cases.append(Case(case_id, rule, run, acts, isolated, strict))
        return run

    return register


@functools.cache
def table() -> tuple[Case, ...]:
    """Every case, in the order they are run in."""
    for module in MODULES:
        importlib.import_module(f"pycni.testing.conformance.cases_{module}")
    return tuple(_cases)
