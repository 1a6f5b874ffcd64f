# SPDX-License-Identifier: Apache-2.0
"""A plugin that does what its configuration says, and writes down what it did."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from pycni.errors import CniError
from pycni.sdk import Call, Config, Plugin, Result, Verb, notify, run


class Script(Config, frozen=True, kw_only=True):
    """`script` has the steps of each verb; `log` is where they are written down."""

    log: str = ""
    script: dict[str, list[dict[str, Any]]] = {}  # noqa: RUF012 - a Struct copies it


class Scripted(Plugin[Script], type="scripted", config=Script):
    """All five verbs from the script."""

    def add(self, call: Call[Script]) -> Result:
        """Play ADD; the result is the delegate's, or what came before."""
        return self.play(call) or call.pass_through()

    def delete(self, call: Call[Script]) -> None:
        """Play DEL."""
        self.play(call)

    def check(self, call: Call[Script]) -> None:
        """Play CHECK."""
        self.play(call)

    def gc(self, call: Call[Script]) -> None:
        """Play GC."""
        self.play(call)

    def status(self, call: Call[Script]) -> None:
        """Play STATUS."""
        self.play(call)

    def play(self, call: Call[Script]) -> Result | None:
        """Every step, between two lines of the log."""
        note(call, "begins")
        try:
            return self.steps(call)
        finally:
            note(call, "ends")

    def steps(self, call: Call[Script]) -> Result | None:
        """The steps of the verb."""
        result = None
        for step in call.config.script.get(call.verb, ()):
            match step:
                case {"sleep": seconds}:
                    call.deadline.sleep(seconds)
                case {"stubborn": seconds}:
                    time.sleep(seconds)
                case {"fail": [code, msg, details]}:
                    raise CniError.from_wire(code, msg, details)
                case {"crash": text}:
                    raise ZeroDivisionError(text)
                case {"delegate": plugin_type}:
                    result = self.delegate(call, plugin_type)
                case {"notify": reason}:
                    notify(reason, "as the script says", network=call.config.name)
                case {"trace": _}:
                    from pycni.runtime import trace

                    note(call, json.dumps(dict(trace.current())))
        return result

    def delegate(self, call: Call[Script], plugin_type: str) -> Result | None:
        """Have another plugin run with this call's configuration."""
        ipam = call.use_ipam(plugin_type)
        if call.verb is Verb.ADD:
            return ipam.add()
        {"DEL": ipam.delete, "CHECK": ipam.check, "GC": ipam.gc, "STATUS": ipam.status}[call.verb]()
        return None


def note(call: Call[Script], what: str) -> None:
    """A line in the log."""
    if call.config.log:
        with Path(call.config.log).open("a") as log:
            log.write(f"{call.verb} {call.container_id} {what}\n")


if __name__ == "__main__":
    run(Scripted)
