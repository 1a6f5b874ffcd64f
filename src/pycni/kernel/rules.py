# SPDX-License-Identifier: Apache-2.0
"""Policy routing rules: add, remove, list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pycni.kernel.nlsocket import NO_FAILURES, Mutation
from pycni.kernel.nlwire import NLM_F_CREATE, NLM_F_EXCL
from pycni.kernel.nlwire import rule as wire
from pycni.kernel.types import Rule

if TYPE_CHECKING:
    from pycni.kernel.rtnl import Rtnl


class Rules:
    """The policy routing rules of one namespace."""

    __slots__ = ("_rtnl",)

    def __init__(self, rtnl: Rtnl) -> None:
        self._rtnl = rtnl

    def add(self, rule: Rule) -> None:
        """Add a rule; AlreadyExists when an equal one has that priority.

        Without a priority every call adds one more: the kernel gives each a priority of its own.
        """
        flags = NLM_F_CREATE | NLM_F_EXCL
        self._rtnl.mutate(
            Mutation(
                wire.RTM_NEWRULE, flags, wire.change(rule), "add rule", _describe(rule), NO_FAILURES
            )
        )

    def remove(self, rule: Rule) -> None:
        """Remove the first rule that matches what is given; NotFound."""
        self._rtnl.mutate(
            Mutation(
                wire.RTM_DELRULE, 0, wire.change(rule), "remove rule", _describe(rule), NO_FAILURES
            )
        )

    def list(self, family: int | None = None, table: int | None = None) -> list[Rule]:
        """All rules, or those of a family (4 or 6), or that look up one table."""
        rules: list[Rule] = []
        for version in (4, 6) if family is None else (family,):
            for payload in self._rtnl.dump(wire.RTM_GETRULE, wire.dump(version), "list", "rules"):
                rule = wire.parse(payload)
                if (
                    rule is not None
                    and rule.family == version
                    and (table is None or rule.table == table)
                ):
                    rules.append(rule)
        return rules


def _describe(rule: Rule) -> str:
    words = [f"from {rule.src or 'all'}"]
    if rule.dst is not None:
        words.append(f"to {rule.dst}")
    words.append(rule.action if rule.table is None else f"lookup {rule.table}")
    return " ".join(words)
