# SPDX-License-Identifier: Apache-2.0
"""A machine of its own for real runtimes: private network and mounts, an image to run, plugins."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BUSYBOX = Path("/bin/busybox")
APPLETS = ("sh", "ip", "ping", "ping6", "wget", "httpd", "sleep", "cat", "echo", "nc")
IMAGE = "docker.io/library/bb:1"
PYCNI = str(Path(sys.executable).with_name("pycni"))
GO_PLUGINS = "/usr/lib/cni"
PRIVATE = ("/run", "/var/lib/cni", "/var/lib/containers", "/opt", "/etc/cni")


class Machine:
    """Commands run in namespaces that a sleeping process holds open until `close`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = Path("/opt/cni/bin")
        self._children: list[subprocess.Popen[bytes]] = []
        # pidof is the process inside: it holds both namespaces.
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation", "private", "sleep", "3600"]
        )
        self._wait_for_namespaces()
        for path in PRIVATE:
            Path(path).mkdir(parents=True, exist_ok=True)
            self.run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", path)
        self.run("mkdir", "-p", "/run/netns", "/run/lock", "/opt/cni/bin", "/etc/cni/net.d")
        self.run("ip", "link", "set", "lo", "up")

    def _wait_for_namespaces(self) -> None:
        own = os.readlink("/proc/self/ns/mnt")
        for _ in range(500):
            if os.readlink(f"/proc/{self._holder.pid}/ns/mnt") != own:
                return
            time.sleep(0.01)
        raise AssertionError("unshare did not make namespaces")

    def _inside(self, command: tuple[str, ...]) -> list[str]:
        pid = str(self._holder.pid)
        return ["nsenter", "--target", pid, "--net", "--mount", "--wdns=/", *command]

    def run(self, *command: str, check: bool = True, timeout_s: float = 60, **env: str) -> str:
        """Run a command on the machine; what it printed."""
        done = subprocess.run(
            self._inside(command),
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
                self._inside(command), stdout=output, stderr=output, env={**os.environ, **env}
            )
        self._children.append(child)
        return child

    def json(self, *command: str) -> Any:
        """Run a command and read the JSON it printed."""
        return json.loads(self.run(*command) or "[]")

    def install_plugins(self) -> None:
        """Our executables in the machine's plugin directory."""
        self.run(PYCNI, "install", "--bin-dir", str(self.bin))

    def serve(self) -> None:
        """Start the service, for the executables to call."""
        log = self.directory / "pycni.log"
        self.start(PYCNI, "serve", "--state-dir", str(self.directory / "state"), log=log)
        wait_until(lambda: "cni.sock" in self.run("ls", "/run/pycni", check=False), "the service")
        wait_until(lambda: "shim.sock" in self.run("ls", "/run/pycni", check=False), "its socket")

    def links(self) -> set[str]:
        """The links of the machine but for lo and what belongs to no container."""
        return {link["ifname"] for link in self.json("ip", "-j", "link")} - {"lo"}

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

    def leases(self, network: str) -> list[str]:
        """The addresses that host-local has given out."""
        listed = self.run("ls", f"/var/lib/cni/networks/{network}", check=False).split()
        return [name for name in listed if name != "lock" and not name.startswith("last_")]

    def close(self) -> None:
        """End everything that was started here, and the namespaces with it."""
        for child in reversed(self._children):
            child.terminate()
        for child in self._children:
            try:
                child.wait(15)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._holder.terminate()
        self._holder.wait()


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    """Wait for a condition, or fail naming what it is."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"{what} did not come within {timeout_s:.0f} s")
        time.sleep(0.05)


def make_rootfs(directory: Path) -> Path:
    """A root file system of busybox."""
    rootfs = directory / "rootfs"
    (rootfs / "bin").mkdir(parents=True)
    shutil.copy(BUSYBOX, rootfs / "bin/busybox")
    for applet in APPLETS:
        (rootfs / "bin" / applet).symlink_to("busybox")
    (rootfs / "index.html").write_text("hello from inside\n")
    return rootfs


def make_image(directory: Path) -> Path:
    """An OCI image archive of that root file system, named `IMAGE`."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        archive.add(make_rootfs(directory), arcname=".")
    blobs: dict[str, bytes] = {}

    def blob(content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"digest": f"sha256:{digest}", "size": len(content)}

    oci = "application/vnd.oci.image"
    layer_blob = blob(layer.getvalue())
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    config = {
        "architecture": machine,
        "os": "linux",
        "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer_blob["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": {"mediaType": f"{oci}.config.v1+json", **blob(json.dumps(config).encode())},
        "layers": [{"mediaType": f"{oci}.layer.v1.tar", **layer_blob}],
    }
    entry = {
        "mediaType": f"{oci}.manifest.v1+json",
        **blob(json.dumps(manifest).encode()),
        "annotations": {"io.containerd.image.name": IMAGE},
    }
    files = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode(),
        **{f"blobs/sha256/{digest}": content for digest, content in blobs.items()},
    }
    path = directory / "image.tar"
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path
