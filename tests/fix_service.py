# SPDX-License-Identifier: Apache-2.0
"""The fixtures `service` and `client`: a service in a process of its own, over its real socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pycni.client import Client
    from pycni.kernel.netns import Netns
    from tests.service_host import Service


@pytest.fixture
def service(host: Netns, tmp_path: Path) -> Iterator[Service]:
    """A service on `host`; it must end by itself, and without an internal error in its log."""
    from tests.service_host import serving

    with serving(host, tmp_path) as service:
        yield service


@pytest.fixture
def client(service: Service) -> Client:
    """A client of the administrators' socket."""
    return service.client
