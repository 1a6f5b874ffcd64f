# SPDX-License-Identifier: Apache-2.0
"""containerd and podman on a machine, each with storage and networks of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.clients.images import IMAGE, make_image, make_rootfs
from tests.clients.machine import GO_PLUGINS, Machine, wait_until

EDGE = Path(__file__).parents[2] / "deploy/networks/edge.json"
LOCAL_IMAGE = "localhost/bb:1"
WEB = "exec httpd -f -p 80 -h /"
# What podman says that is built for its own networks alone, as Debian's is since version 5.
WITHOUT_CNI = "cni support is not enabled in this build"


class Containerd:
    """A containerd of the test's own; its containers join the first network of /etc/cni/net.d."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        self.machine = machine
        self._directory = directory
        self._socket = "/run/containerd-test.sock"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        config = directory / "containerd.toml"
        config.write_text(
            "version = 2\n"
            f'root = "{directory}/root"\nstate = "/run/containerd-test"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{self._socket}"\n'
        )
        log = directory / "containerd.log"
        machine.start("containerd", "--config", str(config), log=log)
        wait_until(lambda: bool(self("version", check=False)), f"containerd ({log})")
        self("images", "import", "--no-unpack", str(make_image(directory)))

    def _command(self, *arguments: str) -> tuple[str, ...]:
        return ("ctr", "--address", self._socket, *arguments)

    def __call__(self, *arguments: str, check: bool = True) -> str:
        return self.machine.run(*self._command(*arguments), check=check)

    def run_command(self, name: str, *command: str) -> tuple[str, ...]:
        """The command that runs a container on the network, and removes both afterwards."""
        # The native snapshotter copies: the others need a file system that has what they use.
        return self._command(
            "run", "--rm", "--cni", "--snapshotter", "native",
            "--cgroup", f"{self.machine.cgroup}/{name}", IMAGE, name, *command,
        )  # fmt: skip

    def run(self, name: str, *command: str) -> None:
        """Run a container to its end, which must be a good one."""
        # Not what it printed: ctr does not wait for the last of that when the command has ended.
        self.machine.run(*self.run_command(name, *command))

    def start(self, name: str) -> None:
        """Run a web server; it is attached once this returns."""
        command = self.run_command(name, "sh", "-c", WEB)
        log = self._directory / f"{name}.log"
        self._running[name] = client = self.machine.start(*command, log=log)

        def runs() -> bool:
            assert client.poll() is None, log.read_text()
            return any(
                [name, "RUNNING"] == line.split()[::2]
                for line in self("task", "ls").splitlines()[1:]
            )

        wait_until(runs, f"container {name} ({log})")

    def execute(self, name: str, *command: str) -> None:
        """Run a command in a container; it must succeed."""
        self("task", "exec", "--exec-id", "one", name, *command)

    def stop(self, name: str) -> None:
        """Kill a container; its client detaches and removes it."""
        self("task", "kill", "--signal", "SIGKILL", name)
        self._running.pop(name).wait(30)
        log = self._directory / f"{name}.log"
        assert "" == log.read_text()


class Podman:
    """podman on a machine, with storage and networks of its own."""

    def __init__(
        self, machine: Machine, directory: Path, *, plugin_dirs: tuple[str, ...] = (GO_PLUGINS,)
    ) -> None:
        self.machine = machine
        self.networks = directory / "net.d"
        self.networks.mkdir()
        config, storage = directory / "containers.conf", directory / "storage.conf"
        config.write_text(
            "[network]\n"
            'network_backend = "cni"\n'
            f"cni_plugin_dirs = {json.dumps([str(machine.bin), *plugin_dirs])}\n"
            f'network_config_dir = "{self.networks}"\n'
            "[engine]\n"
            'runtime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
            "[containers]\n"
            'default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
        )
        storage.write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{directory}/storage"\nrunroot = "/run/pod"\n'
        )
        self._env = {"CONTAINERS_CONF": str(config), "CONTAINERS_STORAGE_CONF": str(storage)}
        rootfs = make_rootfs(directory)
        archive = directory / "rootfs.tar"
        machine.run("tar", "-C", str(rootfs), "-cf", str(archive), ".")
        self("import", str(archive), LOCAL_IMAGE)

    def __call__(self, *arguments: str, check: bool = True) -> str:
        return self.machine.run("podman", *arguments, check=check, timeout_s=90, **self._env)

    def start(self, name: str, *options: str, command: str = WEB) -> None:
        """Run a container, a web server if nothing else is wanted."""
        parent = ("--cgroup-parent", self.machine.cgroup)
        self("run", "-d", "--name", name, *parent, *options, LOCAL_IMAGE, "sh", "-c", command)

    def execute(self, name: str, *command: str) -> str:
        """Run a command in a container."""
        return self("exec", name, *command)

    def addresses(self, name: str, interface: str = "eth0") -> str:
        """What the container's interface says."""
        return self.execute(name, "ip", "addr", "show", interface)

    def remove(self, *names: str) -> None:
        """Stop at once and remove."""
        self("rm", "-f", "-t", "0", *names)


def add_network(machine: Machine, name: str, content: dict[str, Any]) -> None:
    """Write a configuration list into /etc/cni/net.d, for all who look there."""
    source = machine.directory / name
    source.write_text(json.dumps(content))
    machine.run("cp", str(source), f"/etc/cni/net.d/{name}")
