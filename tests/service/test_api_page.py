# SPDX-License-Identifier: Apache-2.0
"""docs/api.md: its examples run, and it answers every ask."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pycni.kernel.netns import Netns
from tests.service_host import Service

pytestmark = pytest.mark.root

PAGE = Path(__file__).parents[2] / "docs/api.md"


def test_the_examples_run_as_one_program(
    service: Service, make_netns: Callable[..., Netns], capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other, with the paths of this test."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = "\n".join(blocks)
    program = program.replace("/run/pycni/cni.sock", str(service.socket))
    program = program.replace("/run/netns/web", make_netns("web").path)
    names: dict[str, Any] = {}
    exec(compile(program, str(PAGE), "exec"), names)
    said = capsys.readouterr().out
    assert "'127.0.0.1/8'" in said
    assert '"isGateway":true,"ipam":{"type":"host-local","subnet":"10.7.0.0/24"}' in said
    assert "4 interface name is too long\nifname NONE\nNone None ()\n" in said
    names["client"].close()
    service.delete("c1", network="web", ifname="lo")


def test_every_ask_is_answered() -> None:
    """A1 to A26, each once, each with an answer."""
    rows = re.findall(r"^\| A(\d+) \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    assert list(range(1, 27)) == [int(number) for number, _, _ in rows]
