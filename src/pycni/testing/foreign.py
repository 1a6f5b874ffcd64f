# SPDX-License-Identifier: Apache-2.0
"""A plugin executable of somebody else: it notes what it is given, and does what it is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

_SCRIPT = """#!/bin/sh
here='{notes}'
if test "$CNI_COMMAND" = VERSION; then
    echo '{{"cniVersion": "1.1.0", "supportedVersions": {versions}}}'; exit
fi
n=$(cat "$here/count" 2>/dev/null || echo 0); n=$((n + 1)); echo $n > "$here/count"
env > "$here/$n.env"; cat > "$here/$n.stdin"; echo "$CNI_COMMAND {name}" >> "$here/../order"
test -f "$here/say" && cat "$here/say" >&2
if test -f "$here/fail-$CNI_COMMAND"; then cat "$here/fail-$CNI_COMMAND"; exit 1; fi
if test "$CNI_COMMAND" = ADD; then cat "$here/result"; fi
"""
VERSIONS = ("0.3.1", "0.4.0", "1.0.0", "1.1.0")


class Foreign:
    """The plugin `name` in a plugin directory; its notes are in a directory beside that one."""

    def __init__(self, directory: Path, name: str, *, versions: tuple[str, ...] = VERSIONS) -> None:
        self.notes = directory.with_name(f"{directory.name}-notes") / name
        self.notes.mkdir(parents=True)
        self.executable = directory / name
        self.executable.write_text(
            _SCRIPT.format(notes=self.notes, name=name, versions=json.dumps(versions))
        )
        self.executable.chmod(0o755)
        self.write("result", {})

    def asked(self) -> list[str]:
        """The commands, in order."""
        return [self.env(number)["CNI_COMMAND"] for number in self._numbers()]

    def order(self) -> list[str]:
        """The commands and names of every such plugin of this directory, in order."""
        return (self.notes.parent / "order").read_text().splitlines()

    def env(self, number: int) -> dict[str, str]:
        """The environment of one execution, counted from 1; -1 is the last."""
        text = (self.notes / f"{self._number(number)}.env").read_text()
        return dict(line.partition("=")[::2] for line in text.splitlines())

    def stdin(self, number: int) -> Any:
        """The configuration of one execution."""
        return json.loads((self.notes / f"{self._number(number)}.stdin").read_bytes())

    def write(self, name: str, content: Any) -> None:
        """Tell it what to answer: `result`, `fail-VERB`, or `say` on stderr."""
        text = content if isinstance(content, str) else json.dumps(content)
        (self.notes / name).write_text(text)

    def relent(self, verb: str) -> None:
        """Have it fail on the verb no longer."""
        (self.notes / f"fail-{verb}").unlink(missing_ok=True)

    def forget(self) -> None:
        """Begin the notes anew."""
        for path in (*self.notes.glob("*.env"), *self.notes.glob("*.stdin")):
            path.unlink()
        for path in (self.notes / "count", self.notes.parent / "order"):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the plugin with its notes."""
        self.executable.unlink()
        shutil.rmtree(self.notes)

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self.notes.glob("*.env"))

    def _number(self, number: int) -> int:
        return self._numbers()[-1] if number < 0 else number
