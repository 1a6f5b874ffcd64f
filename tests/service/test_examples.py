# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/: the same file as an executable, as a plugin daemon and in process."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pycni.errors import CniError
from pycni.kernel.netns import Netns
from pycni.service.pb.cni.v2alpha1 import attachments_pb2, networks_pb2
from tests.fix_netns import json_in, run_in
from tests.service import daemon_helpers as helpers
from tests.service.daemon_helpers import EXAMPLES, World, add, network, spawn_here

WAYS = {
    "exec": attachments_pb2.EXECUTOR_KIND_EXEC,
    "daemon": attachments_pb2.EXECUTOR_KIND_DAEMON,
    "in process": attachments_pb2.EXECUTOR_KIND_BUILTIN,
}
PLUGINS = {"set-mtu": EXAMPLES / "set_mtu.py", "pool": EXAMPLES / "pool_ipam.py"}
KEY = {"network": "net", "container_id": "c1", "ifname": "eth0"}


def install_package(directory: Path) -> str:
    """A directory for PYTHONPATH in which the examples look installed."""
    metadata = directory / "examples-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: examples\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[pycni.plugins]\nset-mtu = set_mtu:SetMtu\npool = pool_ipam:Pool\n"
        "broken = no_such_module:Nothing\nbridge = set_mtu:SetMtu\n"
    )
    return f"{directory}:{EXAMPLES}"


@pytest.fixture(params=WAYS)
def world(request: pytest.FixtureRequest, host: Netns, tmp_path: Path) -> Iterator[World]:
    """A service on a host of its own that has the examples in one of the ways."""

    def spawn(command: list[str], environ: dict[str, str]) -> Any:
        return host.run(lambda: spawn_here(command, environ))

    with helpers.world(tmp_path, spawn) as made:
        environ = {}
        if request.param == "in process":
            environ["PYTHONPATH"] = install_package(tmp_path)
        if request.param == "exec":
            for plugin_type, script in PLUGINS.items():
                made.install(plugin_type, script)
        made.serve(**environ)
        if request.param == "daemon":
            for plugin_type, script in PLUGINS.items():
                made.daemon(script, socket=f"{plugin_type}.sock")
        yield made


def chain(world: World, subnet: str = "10.66.0.0/29") -> dict[str, Any]:
    """A bridge with addresses of one example and the MTU of the other."""
    database = str(world.directory / "pool.db")
    ipam = {"type": "pool", "subnet": subnet, "database": database}
    bridge = {"type": "bridge", "bridge": "cni0", "ipam": ipam}
    return network(bridge, {"type": "set-mtu", "mtu": 1300})


def await_accepted(client: Any, config: dict[str, Any]) -> None:
    """Until every plugin of the network is there."""
    request = networks_pb2.PutNetworkRequest(validate_only=True)
    request.config.json = json.dumps(config).encode()

    def accepted() -> bool:
        try:
            client.networks.Put(request, timeout=5)
        except CniError:
            return False
        return True

    helpers.eventually(accepted, "the plugins")


@pytest.mark.nft
def test_the_examples_work(
    world: World, make_netns: Callable[..., Netns], request: pytest.FixtureRequest
) -> None:
    """All five verbs of both plugins, whichever way they are run."""
    client = world.client()
    config = chain(world)
    await_accepted(client, config)
    first, second = make_netns("c1"), make_netns("c2")

    added = add(client, config, first.path)
    assert WAYS[request.node.callspec.params["world"]] == added.steps[1].executor
    assert ["10.66.0.2/29"] == [one.address for one in added.attachment.result.ips]
    link = json_in(first, "ip", "-j", "-4", "address", "show", "eth0")[0]
    assert (1300, "10.66.0.2") == (link["mtu"], link["addr_info"][0]["local"])
    add(client, config, second.path, container_id="c2")
    client.attachments.Check(attachments_pb2.CheckRequest(**KEY))

    run_in(first, "ip", "link", "set", "eth0", "mtu", "1200")
    with pytest.raises(CniError, match="eth0 has MTU 1200, not 1300"):
        client.attachments.Check(attachments_pb2.CheckRequest(**KEY))

    assert ["c1"] == collected(client, config, keep="c2")
    again = add(client, config, first.path)  # its address was given back
    assert ["10.66.0.2/29"] == [one.address for one in again.attachment.result.ips]
    assert ["c1", "c2"] == sorted(collected(client, config, keep=""))


def collected(client: Any, config: dict[str, Any], *, keep: str) -> list[str]:
    """The containers a GC that keeps one, or none, has detached."""
    request = attachments_pb2.GcRequest()
    target = request.networks.add()
    target.network.inline.json = json.dumps(config).encode()
    target.valid_attachments.SetInParent()
    if keep:
        target.valid_attachments.attachments.add(container_id=keep, ifname="eth0")
    return [one.container_id for one in client.attachments.Gc(request).networks[0].deleted]


@pytest.mark.nft
def test_a_full_pool_says_so(world: World, make_netns: Callable[..., Netns]) -> None:
    """The plugin's own code reaches the caller."""
    client = world.client()
    config = chain(world, "10.66.0.0/30")
    await_accepted(client, config)
    add(client, config, make_netns("c1").path)
    with pytest.raises(CniError, match=r"no address of 10\.66\.0\.0/30 is free") as failed:
        add(client, config, make_netns("c2").path, container_id="c2")
    assert 100 == failed.value.wire_code
    assert ["c1"] == collected(client, config, keep="")  # and with it the bridge


def test_the_meta_plugin_is_short() -> None:
    """A plugin in under 30 lines."""
    assert len(PLUGINS["set-mtu"].read_text().splitlines()) < 30


@pytest.mark.parametrize("script", PLUGINS.values(), ids=lambda path: path.stem)
def test_examples_import_the_sdk_alone(script: Path) -> None:
    """An author needs one module of ours."""
    tree = ast.parse(script.read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {"pycni.sdk"} == {name for name in modules if name and name.startswith("pycni")}
