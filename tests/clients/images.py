# SPDX-License-Identifier: Apache-2.0
"""The image that containers are made of: busybox, and a page for its web server."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

BUSYBOX = Path("/bin/busybox")
APPLETS = ("sh", "ip", "ping", "ping6", "wget", "httpd", "sleep", "cat", "echo", "grep")
IMAGE = "docker.io/library/bb:1"
PAGE = "hello from inside\n"


def make_rootfs(directory: Path) -> Path:
    """A root file system of busybox."""
    rootfs = directory / "rootfs"
    (rootfs / "bin").mkdir(parents=True)
    shutil.copy(BUSYBOX, rootfs / "bin/busybox")
    for applet in APPLETS:
        (rootfs / "bin" / applet).symlink_to("busybox")
    (rootfs / "index.html").write_text(PAGE)
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
