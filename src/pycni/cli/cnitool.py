# SPDX-License-Identifier: Apache-2.0
"""`pycni cnitool`: attach a namespace to a network by hand, without a service, as cnitool does.

It reads the variables cnitool reads: NETCONFPATH (/etc/cni/net.d), CNI_PATH, CNI_ARGS, CAP_ARGS
(JSON) and CNI_IFNAME (eth0). Plugins in CNI_PATH come before the built-in ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pycni.errors import InvalidEnvironment

if TYPE_CHECKING:
    from pycni.libcni import AttachmentParams, Libcni
    from pycni.model.config import NetworkConfigList

app = typer.Typer(help=__doc__, no_args_is_help=True)

NetworkName = Annotated[str, typer.Argument(metavar="NETWORK", help="Its name in NETCONFPATH.")]
NetnsPath = Annotated[str, typer.Argument(metavar="NETNS", help="Path of the namespace.")]
AnyNetns = Annotated[str, typer.Argument(metavar="[NETNS]", help="Ignored; cnitool wants one.")]
Ifname = Annotated[
    str, typer.Option("--ifname", "-i", envvar="CNI_IFNAME", help="Interface in the namespace.")
]
CacheDir = Annotated[Path, typer.Option(help="libcni's cache of results.")]

DEFAULT_CACHE = Path("/var/lib/cni")
DEFAULT_CONF_DIR = "/etc/cni/net.d"


@app.command("add")
def add(
    network: NetworkName,
    netns: NetnsPath,
    ifname: Ifname = "eth0",
    cache_dir: CacheDir = DEFAULT_CACHE,
) -> None:
    """Attach the namespace and print the result."""
    from pycni.model import jsonio

    with _loaded(network, cache_dir) as (cni, config):
        result = cni.add(config, _params(netns, ifname))
        sys.stdout.write(
            jsonio.go_layout(result.encode(config.cniVersion), indent=4).decode() + "\n"
        )


@app.command("check")
def check(
    network: NetworkName,
    netns: NetnsPath,
    ifname: Ifname = "eth0",
    cache_dir: CacheDir = DEFAULT_CACHE,
) -> None:
    """Fail unless the namespace is attached as it was by add."""
    with _loaded(network, cache_dir) as (cni, config):
        cni.check(config, _params(netns, ifname))


@app.command("del")
def delete(
    network: NetworkName,
    netns: NetnsPath,
    ifname: Ifname = "eth0",
    cache_dir: CacheDir = DEFAULT_CACHE,
) -> None:
    """Detach the namespace."""
    with _loaded(network, cache_dir) as (cni, config):
        cni.delete(config, _params(netns, ifname))


@app.command("gc")
def gc(network: NetworkName, netns: AnyNetns = "", cache_dir: CacheDir = DEFAULT_CACHE) -> None:
    """Detach everything of the network that the cache knows."""
    with _loaded(network, cache_dir) as (cni, config):
        cni.gc(config, None)


@app.command("status")
def status(network: NetworkName, netns: AnyNetns = "") -> None:
    """Fail unless the network's plugins can serve add."""
    with _loaded(network, DEFAULT_CACHE) as (cni, config):
        cni.status(config)


@contextlib.contextmanager
def _loaded(network: str, cache_dir: Path) -> Iterator[tuple[Libcni, NetworkConfigList]]:
    from pycni.libcni import Libcni

    path = [part for part in os.environ.get("CNI_PATH", "").split(os.pathsep) if part]
    with Libcni(path, cache_dir=str(cache_dir)) as cni:
        conf_dir = os.environ.get("NETCONFPATH") or DEFAULT_CONF_DIR
        yield cni, cni.load(conf_dir, network)


def _params(netns: str, ifname: str) -> AttachmentParams:
    import msgspec

    from pycni.libcni import AttachmentParams
    from pycni.model import jsonio

    capability_args: dict[str, msgspec.Raw] = {}
    if text := os.environ.get("CAP_ARGS"):
        capability_args = jsonio.decode_raw_object(text.encode(), where="CAP_ARGS")
    path = os.path.abspath(netns)
    return AttachmentParams(
        container_id=container_id(path),
        ifname=ifname,
        netns=path,
        cni_args=tuple(_pairs(os.environ.get("CNI_ARGS", ""))),
        capability_args=capability_args,
    )


def container_id(netns: str) -> str:
    """The id cnitool makes of an absolute path: each can detach what the other attached."""
    return f"cnitool-{hashlib.sha512(os.fsencode(netns)).hexdigest()[:20]}"


def _pairs(args: str) -> Iterator[tuple[str, str]]:
    for text in args.split(";") if args else ():
        key, equals, value = text.partition("=")
        if not (key and equals and value) or "=" in value:  # as cnitool has it
            raise InvalidEnvironment(f'invalid CNI_ARGS pair "{text}"')
        yield key, value
