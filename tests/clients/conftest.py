# SPDX-License-Identifier: Apache-2.0
"""The machine that a client runs on: with our service, or with our executables alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.machine import Machine


@pytest.fixture(params=["executables alone", "service"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    """A machine with our plugins installed."""
    machine = Machine(tmp_path)
    try:
        machine.install_plugins()
        if request.param == "service":
            machine.serve()
        yield machine
    finally:
        machine.close()
