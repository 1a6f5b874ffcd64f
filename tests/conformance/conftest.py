# SPDX-License-Identifier: Apache-2.0
"""The `face` fixture: every test that takes it runs once for each way to execute a plugin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycni.exec.endpoint import ShimEndpoint
from pycni.runtime.confdir import ConfDir
from pycni.runtime.libcni_cache import LibcniCache
from pycni.runtime.opening import open_node
from pycni.service.daemon import answer_shims
from tests import faces
from tests.faces import FACES, Face


class Places:
    """The directories of a module's tests, and the socket of its service."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plugins = root / "plugins"
        self.networks = root / "net.d"
        self.state = root / "state"
        self.cache = root / "cache"
        self.socket = root / "shim.sock"
        for directory in (self.plugins, self.networks, self.state):
            directory.mkdir()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """Directories the executions without a service use too."""
    places = Places(tmp_path_factory.mktemp("exec"))
    variables = {
        "PYCNI_STATE_DIR": places.root / "alone",
        "PYCNI_CONF_DIR": places.networks,
        "PYCNI_CACHE_DIR": places.cache,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, str(value))
        yield places


@pytest.fixture(scope="module")
def service(places: Places) -> Iterator[Places]:
    """A node behind a shims' endpoint, in this process."""
    node = open_node(
        str(places.state),
        plugin_path=(str(places.plugins),),
        source=ConfDir(str(places.networks)),
        cache=LibcniCache(str(places.cache), durable=False),
    )
    endpoint = ShimEndpoint(places.socket, answer_shims(node))
    endpoint.start()
    yield places
    endpoint.stop(5)
    node.close()


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest, places: Places) -> Face:
    """One way to execute plugins."""
    name = request.param
    if name == "in-process":
        return Face(name, faces.in_process, places.plugins)
    if name == "socket":
        path = request.getfixturevalue("service").socket
        return Face(name, faces.over_socket(path), places.plugins)
    directories = request.getfixturevalue("bin_dirs")
    if name == "alone":
        execute = faces.executables(directories["compiled"], None)
        return Face(name, execute, places.plugins)
    path = request.getfixturevalue("service").socket
    return Face(name, faces.executables(directories[name], path), places.plugins)


@pytest.fixture
def own_netns() -> str:
    """The namespace the plugins themselves work from."""
    return f"/proc/{os.getpid()}/ns/net"


def on(*names: str) -> pytest.MarkDecorator:
    """Run the test on these ways only: it makes no sense on the others."""
    return pytest.mark.parametrize("face", names, indirect=True)
