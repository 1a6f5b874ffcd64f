# SPDX-License-Identifier: Apache-2.0
"""What existing runtimes pay: plugin executables, ours through the shims and Go's, started alike.

Every side is started by `spawn`: no pipes and no threads, whose cost would drown the shim's. The
sides take turns, so that what else the machine does falls on all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.progress import Progress

from bench.world import Container, World
from pycni.cli import install
from pycni.exec import installation, whole_network

IFNAME = "eth0"
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
SHIM, PYTHON_SHIM, ONE_EXEC, ALONE = "shim", "python shim", "one exec", "no service"
WARM_UP = 3
STARTS = 200
VERSION_STDIN = b'{"cniVersion": "1.0.0"}'


class Done(NamedTuple):
    """What an executable printed, how it ended, and how long it took to."""

    status: int
    stdout: bytes
    took_ms: float


def spawn(command: list[str], stdin: bytes, environment: dict[str, str]) -> Done:
    """Start an executable and wait for its end; only that is counted."""
    with contextlib.ExitStack() as closing:
        source, sink, waste = (
            closing.enter_context(open(os.memfd_create(name), "r+b", buffering=0))
            for name in ("stdin", "stdout", "stderr")
        )
        source.write(stdin)
        source.seek(0)
        actions = [
            (os.POSIX_SPAWN_DUP2, file.fileno(), number)
            for number, file in enumerate((source, sink, waste))
        ]
        start = time.perf_counter()
        pid = os.posix_spawn(command[0], command, environment, file_actions=actions)
        _, status = os.waitpid(pid, 0)
        took = (time.perf_counter() - start) * 1000
        sink.seek(0)
        return Done(os.waitstatus_to_exitcode(status), sink.read(), took)


def port_mappings(number: int) -> list[dict[str, Any]]:
    """Two mappings of host ports no other container has."""
    return [
        {"hostPort": 10000 + 2 * number, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 10001 + 2 * number, "containerPort": 443, "protocol": "tcp"},
    ]


class Chain:
    """A network run as libcni does: its plugins exec'd in order with prevResult, DEL in reverse."""

    # What a CHECK may fail with, its time counted; everything else that fails ends the run.
    check_defect = b""

    def __init__(
        self, name: str, world: World, directory: Path, config: dict[str, Any], **env: str
    ) -> None:
        self.name = name
        self.samples: dict[tuple[str, str], list[float]] = {}  # by verb and type
        self._world = world
        self._directory = directory
        self._config = config
        self._env = {"PATH": PATH, "CNI_PATH": str(directory), "CNI_IFNAME": IFNAME, **env}
        self._results: dict[str, Any] = {}

    def _exec(self, plugin: dict[str, Any], verb: str, container: Container, number: int) -> Any:
        head = {key: self._config[key] for key in ("name", "cniVersion")}
        stdin = {**plugin, **head}
        if plugin.get("capabilities", {}).get("portMappings"):
            stdin["runtimeConfig"] = {"portMappings": port_mappings(number)}
        if (previous := self._results.get(container.id)) is not None:
            stdin["prevResult"] = previous
        environment = {
            **self._env,
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container.id,
            "CNI_NETNS": container.netns,
        }
        command = [f"{self._directory}/{plugin['type']}"]
        done = spawn(command, json.dumps(stdin).encode(), environment)
        known = verb == "CHECK" and self.check_defect and self.check_defect in done.stdout
        if done.status and not known:
            raise RuntimeError(f"{self.name}: {plugin['type']} {verb}: {done.stdout.decode()}")
        self.samples.setdefault((verb, plugin["type"]), []).append(done.took_ms)
        return json.loads(done.stdout) if verb == "ADD" else None

    def add(self, container: Container, number: int) -> None:
        """Attach."""

        def chain() -> None:
            for plugin in self._config["plugins"]:
                self._results[container.id] = self._exec(plugin, "ADD", container, number)

        self._world.host.run(chain)

    def check(self, container: Container, number: int) -> None:
        """Check."""

        def chain() -> None:
            for plugin in self._config["plugins"]:
                self._exec(plugin, "CHECK", container, number)

        self._world.host.run(chain)

    def delete(self, container: Container, number: int) -> None:
        """Detach."""

        def chain() -> None:
            for plugin in reversed(self._config["plugins"]):
                self._exec(plugin, "DEL", container, number)

        self._world.host.run(chain)
        del self._results[container.id]

    def close(self) -> None:
        """Nothing is kept but the world, which is its maker's."""


def singles(world: World) -> dict[str, dict[str, Any]]:
    """The plugins that `edge` has no exec of, each as a network of its own."""
    address = {"type": "static", "addresses": [{"address": "10.9.0.5/24"}]}
    leases = {
        "type": "host-local",
        "dataDir": str(world.state / "single-leases"),
        "ranges": [[{"subnet": "10.8.0.0/16"}]],
    }
    plugins: dict[str, dict[str, Any]] = {
        "loopback": {"type": "loopback"},
        "static": {"type": "static", "ipam": address},
        "host-local": {"type": "host-local", "ipam": leases},
    }
    return {
        name: {"name": f"bench-{name}", "cniVersion": "1.0.0", "plugins": [plugin]}
        for name, plugin in plugins.items()
    }


class Executables:
    """Our executables: compiled and in Python for one service's socket, and a world without one."""

    def __init__(self, socket: Path) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="pycni-bench-bin-"))
        self.compiled, self.python = self._root / "compiled", self._root / "python"
        where = {"socket": str(socket), "interpreter": sys.executable}
        where["packages"] = installation.packages()
        binary = installation.prebuilt() or install.compile_shim()
        if binary is None:
            raise SystemExit("a C compiler is missing: install musl-tools or gcc")
        installation.install(self.compiled, installation.compiled_shim(binary, **where))
        installation.install(self.python, installation.python_shim(**where))
        self.alone = World("alone")
        self.alone_env = {"PYCNI_SHIM_SOCKET": str(self._root / "nobody.sock")}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.alone.close()
        shutil.rmtree(self._root)

    def edge(self, world: World) -> list[Chain]:
        """Our ways to run `edge` by execs; `world` is the service's."""
        reference = {"type": whole_network.TYPE, "network": "edge"}
        whole = {
            "name": "edge-runtime",
            "cniVersion": "1.0.0",
            "plugins": [{**reference, "capabilities": {"portMappings": True}}],
        }
        return [
            Chain(SHIM, world, self.compiled, world.edge()),
            Chain(ONE_EXEC, world, self.compiled, whole),
            Chain(PYTHON_SHIM, world, self.python, world.edge()),
            Chain(ALONE, self.alone, self.compiled, self.alone.edge(), **self.alone_env),
        ]

    def singles(self, world: World, go: World, go_plugins: Path, go_name: str) -> list[Chain]:
        """The other plugins on every side."""
        return [
            *(Chain(SHIM, world, self.compiled, c) for c in singles(world).values()),
            *(Chain(PYTHON_SHIM, world, self.python, c) for c in singles(world).values()),
            *(
                Chain(ALONE, self.alone, self.compiled, config, **self.alone_env)
                for config in singles(self.alone).values()
            ),
            *(Chain(go_name, go, go_plugins, config) for config in singles(go).values()),
        ]

    def starts(self, go_plugins: Path, go_name: str, progress: Progress) -> dict[str, list[float]]:
        """VERSION, which is the start and, through a shim, the round trip; and a bare Python."""
        interpreter = [sys.executable, "-IS", "-c", "pass"]
        commands = {
            SHIM: [f"{self.compiled}/loopback"],
            PYTHON_SHIM: [f"{self.python}/loopback"],
            "bare interpreter": interpreter,
            go_name: [f"{go_plugins}/loopback"],
        }
        environment = {"PATH": PATH, "CNI_COMMAND": "VERSION", "CNI_PATH": "/nowhere"}
        samples: dict[str, list[float]] = {name: [] for name in commands}
        task = progress.add_task("starting executables", total=STARTS)
        for number in range(STARTS + WARM_UP):
            for name, command in commands.items():
                done = spawn(command, VERSION_STDIN, environment)
                if done.status:
                    raise RuntimeError(f"{name}: VERSION: {done.stdout.decode()}")
                if number >= WARM_UP:
                    samples[name].append(done.took_ms)
            progress.advance(task)
        return samples
