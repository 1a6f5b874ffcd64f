# SPDX-License-Identifier: Apache-2.0
"""A machine of its own for real runtimes: private network, mounts and processes; our plugins."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PYCNI = str(Path(sys.executable).with_name("pycni"))
GO_PLUGINS = "/usr/lib/cni"
PATIENCE_S = 30
BROWSER = """
import sys, urllib.request as u
opener = u.build_opener(u.ProxyHandler({}))
print(opener.open(sys.argv[1], timeout=2).read().decode(), end="")
"""
# Chains of a container, of its ports, and the rules of `firewall` for its addresses.
OF_A_CONTAINER = re.compile(r"\bCNI-(DN-)?[0-9a-f]{16,}|^-A CNI-FORWARD .*-[sd] ")
# What clients and plugins keep there is the machine's own, and gone with it.
PRIVATE = (
    "/run", "/dev/shm", "/etc/cni", "/opt/cni", "/var/lib/cni", "/var/lib/containers",
    "/var/lib/pycni",
)  # fmt: skip
CGROUPS = Path("/sys/fs/cgroup")

_numbers = itertools.count(1)


class Machine:
    """Commands run in network, mount and process namespaces that are gone after `close`.

    Process 1 in there is a `cat` of a pipe: when the pipe is closed, by us or by our end, it ends,
    and the kernel ends what else runs in there, daemons of daemons included. It ignores SIGCHLD so
    that orphans leave no zombies.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = Path("/opt/cni/bin")
        # Clients keep their containers' cgroups below it, which no namespace of ours does.
        self.cgroup = f"/pycni-test-{os.getpid()}-{next(_numbers)}"
        self._children: list[subprocess.Popen[bytes]] = []
        self._served = False
        for name in PRIVATE:
            Path(name).mkdir(parents=True, exist_ok=True)
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation", "private", "--pid", "--fork",
             "--mount-proc", "sh", "-c", "echo ready; exec env --ignore-signal=CHLD cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._holder.stdout is not None
        assert b"ready\n" == self._holder.stdout.readline()
        for name in PRIVATE:
            self.run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", name)
        self.run("mkdir", "-p", "/run/netns", "/run/lock", str(self.bin), "/etc/cni/net.d")
        self.run("ip", "link", "set", "lo", "up")

    def inside(self, command: tuple[str, ...]) -> list[str]:
        """What runs a command on the machine, for those who start it themselves."""
        # unshare is outside of the process namespace it has made, and in the others.
        spaces = {"net": "net", "mount": "mnt", "pid": "pid_for_children"}
        ns = f"/proc/{self._holder.pid}/ns"
        enter = [f"--{option}={ns}/{name}" for option, name in spaces.items()]
        return ["nsenter", *enter, "--wdns=/", "--", *command]

    def run(self, *command: str, check: bool = True, timeout_s: float = 60, **env: str) -> str:
        """Run a command on the machine; what it printed."""
        done = subprocess.run(
            self.inside(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**os.environ, **env},
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done.stdout

    def start(self, *command: str, log: Path, **env: str) -> subprocess.Popen[bytes]:
        """Start a daemon on the machine; it ends with the machine at the latest."""
        with log.open("wb") as output:
            child = subprocess.Popen(
                self.inside(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **env},
            )
        self._children.append(child)
        return child

    def json(self, *command: str) -> Any:
        """Run a command and read the JSON it printed."""
        return json.loads(self.run(*command) or "[]")

    def install_plugins(self, *options: str) -> None:
        """Our executables in the machine's plugin directory."""
        self.run(PYCNI, "install", "--bin-dir", str(self.bin), *options)

    def install_go_plugins(self, *names: str) -> None:
        """Debian's plugins in the plugin directory: these, or all."""
        for name in names or os.listdir(GO_PLUGINS):
            self.run("cp", f"{GO_PLUGINS}/{name}", f"{self.bin}/{name}")

    def serve(self) -> None:
        """Start the service, for the executables to call."""
        log = self.directory / "pycni.log"
        self.start(PYCNI, "serve", "--state-dir", str(self.directory / "state"), log=log)
        wait_until(self._is_served, f"the service ({log})")
        self._served = True

    def _is_served(self) -> bool:
        sockets = self.run("ls", "/run/pycni", check=False).split()
        return {"cni.sock", "shim.sock"} <= set(sockets)

    def add_outside(self) -> None:
        """Another machine, beside this one: the namespace `outside`, which knows no containers."""
        self.run("ip", "netns", "add", "outside")
        self.run("ip", "link", "add", "uplink", "type", "veth", "peer", "eth0", "netns", "outside")
        for number, where in enumerate(((), ("ip", "netns", "exec", "outside")), 1):
            device = "eth0" if where else "uplink"
            self.run(*where, "ip", "addr", "add", f"192.0.2.{number}/24", "dev", device)
            address = f"2001:db8::{number}/64"
            self.run(*where, "ip", "addr", "add", address, "dev", device, "nodad")
            self.run(*where, "ip", "link", "set", device, "up")
        self.run(*where, "ip", "link", "set", "lo", "up")

    def fetch(self, url: str, *, outside: bool = False) -> str:
        """The page that a browser here, or outside, sees once the server is up; "" if never."""
        where = ("ip", "netns", "exec", "outside") if outside else ()
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            if page := self.run(*where, sys.executable, "-c", BROWSER, url, check=False):
                return page
            time.sleep(0.1)
        return ""

    def refuses(self, url: str) -> bool:
        """Whether nobody answers there."""
        return not self.run(sys.executable, "-c", BROWSER, url, check=False)

    def veths(self) -> list[str]:
        """The host ends of containers' links."""
        found = self.json("ip", "-j", "link", "show", "type", "veth")
        return sorted({link["ifname"] for link in found if link} - {"uplink"})

    def nft_elements(self) -> list[Any]:
        """Every element of our nftables table."""
        ruleset = self.json("nft", "-j", "list", "ruleset").get("nftables", [])
        found = []
        for entry in ruleset:
            for kind in ("map", "set"):
                item = entry.get(kind, {})
                if item.get("table") == "pycni":
                    found += item.get("elem", [])
        return found

    def iptables_rules(self) -> list[str]:
        """The rules and chains of either family that the Go plugins made for one container."""
        printed = self.run("iptables-save") + self.run("ip6tables-save")
        return [line for line in printed.splitlines() if OF_A_CONTAINER.search(line)]

    def leases(self) -> list[str]:
        """The addresses that host-local has given out, as network/address."""
        root = "/var/lib/cni/networks"
        listed = self.run("find", root, "-type", "f", "-printf", "%P\\n", check=False).split()
        return sorted(name for name in listed if not re.search("/(lock|last_reserved_ip.*)$", name))

    def results(self) -> list[str]:
        """What libcni has cached."""
        return self.run("ls", "/var/lib/cni/results", check=False).split()

    def left(self) -> list[Any]:
        """Whatever belongs to a container; nothing, when there is none."""
        namespaces = set(self.run("ls", "/run/netns").split()) - {"outside"}
        attachments = self.json(PYCNI, "--json", "list") if self._served else []
        return [
            *self.veths(), *self.nft_elements(), *self.iptables_rules(), *self.leases(),
            *self.results(), *sorted(namespaces), *attachments,
        ]  # fmt: skip

    def close(self) -> None:
        """End everything that runs on the machine, and the machine."""
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.wait(30)
        self._holder.stdout.close()
        for child in self._children:
            child.wait(30)
        # The name is at the top of the one hierarchy, or of each of the old kind.
        for top in (CGROUPS, *CGROUPS.iterdir()):
            for directory, _, _ in os.walk(top / self.cgroup.strip("/"), topdown=False):
                os.rmdir(directory)  # its files are the kernel's


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition, or fail naming what it is."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"{what} did not come within {timeout_s:.0f} s")
        time.sleep(0.05)
