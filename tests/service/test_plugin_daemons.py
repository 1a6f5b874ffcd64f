# SPDX-License-Identifier: Apache-2.0
"""Plugin daemons: how they come and go, who is preferred, what they may ask of the service."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycni.client import CallFailed
from pycni.errors import CniError, InvalidConfig, TryAgain
from pycni.kernel.netns import Netns
from pycni.service import wire
from pycni.service.pb.cni.v2alpha1 import (
    attachments_pb2,
    error_pb2,
    networks_pb2,
    plugin_pb2,
    plugin_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
)
from tests.service import daemon_helpers as helpers
from tests.service.daemon_helpers import EXAMPLES, SCRIPTED, World, add, await_plugin, eventually
from tests.service.daemon_helpers import network as net

pytestmark = pytest.mark.root

MakeNetns = Callable[..., Netns]
LIST = attachments_pb2.ListAttachmentsRequest()
DAEMON = attachments_pb2.EXECUTOR_KIND_DAEMON
LOOPBACK = {"type": "loopback"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A running service."""
    with helpers.world(tmp_path) as made:
        made.serve()
        yield made


@pytest.fixture
def container(make_netns: MakeNetns) -> str:
    """A container's namespace."""
    return make_netns("c1").path


def kinds(response: Any) -> list[int]:
    """How each plugin of a chain was run."""
    return [step.executor for step in response.steps]


# -- registration ----------------------------------------------------------------------------------


def test_a_registered_daemon_is_part_of_a_chain(world: World, container: str) -> None:
    """Add, Check, Gc, Status and Del reach it, with the result of the plugin before it."""
    world.daemon(SCRIPTED)
    client = world.client()
    await_plugin(client, "scripted")
    config = net(LOOPBACK, world.scripted(), name="net")
    response = add(client, config, container)
    assert DAEMON == kinds(response)[1]
    assert ["lo"] == [one.name for one in response.attachment.result.interfaces]
    key = {"network": "net", "container_id": "c1", "ifname": "eth0"}
    client.attachments.Check(attachments_pb2.CheckRequest(**key))
    gc = attachments_pb2.GcRequest()
    gc.networks.add().network.inline.json = json.dumps(config).encode()
    client.attachments.Gc(gc)
    client.attachments.Del(helpers.del_request())
    verbs = [line.split()[0] for line in world.lines() if line.endswith("begins")]
    assert ["ADD", "CHECK", "GC", "DEL"] == [verb for verb in verbs if verb != "STATUS"]


def test_calls_wait_for_a_daemon_that_died(world: World, container: str) -> None:
    """Nothing is skipped: the Add goes on as soon as the daemon is back."""
    daemon = world.daemon(SCRIPTED)
    client = world.client()
    await_plugin(client, "scripted")
    helpers.kill(daemon)
    helpers.await_absence(client, "scripted")
    with futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(add, client, net(world.scripted()), container)
        time.sleep(0.5)
        assert not waiting.done()
        world.daemon(SCRIPTED)
        assert [DAEMON] == kinds(waiting.result(20))


def test_a_call_gives_up_at_its_deadline(world: World, container: str) -> None:
    """No other plugin of the type runs instead; the clean-up waits, and reaches the daemon."""
    daemon = world.daemon(SCRIPTED)
    client = world.client()
    await_plugin(client, "scripted")
    world.install("scripted", SCRIPTED)
    helpers.kill(daemon)
    helpers.await_absence(client, "scripted")
    with pytest.raises(CallFailed, match="DEADLINE_EXCEEDED"):
        add(client, net(world.scripted()), container, timeout=1)
    assert [] == world.lines()
    world.daemon(SCRIPTED)
    eventually(lambda: ["DEL c1 begins", "DEL c1 ends"] == world.lines(), "the clean-up")
    eventually(lambda: not client.attachments.List(LIST).attachments, "the end of the attachment")


def test_a_restarted_service_waits_for_its_daemons(world: World, container: str) -> None:
    """The type is not unknown because the service was quicker than the daemon."""
    daemon = world.daemon(SCRIPTED)
    client = world.client()
    await_plugin(client, "scripted")
    service = world.processes[0]
    daemon.send_signal(signal.SIGSTOP)
    service.terminate()
    service.wait(20)
    world.serve()
    with futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(add, world.client(), net(world.scripted()), container)
        time.sleep(0.5)
        assert not waiting.done()
        daemon.send_signal(signal.SIGCONT)
        assert [DAEMON] == kinds(waiting.result(20))


def test_a_type_has_one_daemon(world: World, container: str) -> None:
    """A second one is refused until it is told to take over; then the first one goes."""
    first = world.daemon(SCRIPTED)
    client = world.client()
    await_plugin(client, "scripted")
    second = world.daemon(SCRIPTED, socket="second.sock")
    assert second.stderr is not None
    assert b'plugin "scripted" is registered at unix://' in second.stderr.readline()
    assert None is first.poll()
    world.daemon(SCRIPTED, "--take-over", socket="third.sock")
    assert 0 == first.wait(20)
    assert [DAEMON] == kinds(add(client, net(world.scripted()), container))


def test_a_daemon_that_stops_finishes_what_it_does(world: World, container: str) -> None:
    """SIGTERM: the running Add ends well, the next one waits for a successor."""
    daemon = world.daemon(SCRIPTED)
    client = world.client()
    await_plugin(client, "scripted")
    with futures.ThreadPoolExecutor() as pool:
        running = pool.submit(add, client, net(world.scripted(ADD=[{"sleep": 1.5}])), container)
        eventually(lambda: "ADD c1 begins" in world.lines(), "the Add")
        daemon.terminate()
        time.sleep(0.2)
        late = pool.submit(add, client, net(world.scripted()), container, container_id="c2")
        assert [DAEMON] == kinds(running.result(20))
        assert 0 == daemon.wait(20)
        assert not late.done()
        world.daemon(SCRIPTED)
        assert [DAEMON] == kinds(late.result(20))


def test_a_daemon_that_leaves_is_forgotten(world: World, container: str) -> None:
    """With --leave its type is unknown again, so the next in the order runs."""
    daemon = world.daemon(SCRIPTED, "--leave")
    client = world.client()
    await_plugin(client, "scripted")
    daemon.terminate()
    assert 0 == daemon.wait(20)

    def refused() -> bool:
        try:
            add(client, net(world.scripted()), container, timeout=5)
        except InvalidConfig as error:
            return 'failed to find plugin "scripted"' in error.msg
        return False

    eventually(refused, "the daemon's being forgotten")


def test_a_registration_must_be_true(world: World) -> None:
    """What cannot be, or where nothing answers, is refused at once, and the field is named."""
    stub = registry_pb2_grpc.RegistryStub(grpc.insecure_channel(f"unix:{world.socket}"))
    own = f"unix://{world.socket}"
    for change, reason, field in (
        ({"endpoint": "unix:///nowhere/cni.sock"}, "no answer from the daemon", ""),
        ({"endpoint": own}, "does not serve it: a plugin daemon serves", ""),
        ({"endpoint": "127.0.0.1:80"}, "is not a unix socket", "endpoint"),
        ({"endpoint": "unix-abstract:cni"}, "is not a unix socket", "endpoint"),
        ({"endpoint": "unix:///" + "x" * 300}, "is too long for a socket", "endpoint"),
        ({"types": ["x", "../x"]}, "invalid plugin name: ../x", "types"),
        ({"cni_versions": ["1.0.0", "soon"]}, 'not a version: "soon"', "cni_versions[1]"),
        ({"config_schemas": {"x": b"{"}}, "not valid JSON", 'config_schemas["x"]'),
    ):
        registration = registry_pb2.Registration(**{"types": ["x"], "endpoint": own} | change)
        request = registry_pb2.RegisterRequest(registration=registration)
        with pytest.raises(CniError) as failed, wire.cni_errors():
            next(iter(stub.Register(iter([request]), timeout=20)))
        assert re.search(reason, str(failed.value))
        assert (f"registration.{field}" if field else "") == failed.value.field
    with pytest.raises(CniError, match="first message"), wire.cni_errors():
        next(iter(stub.Register(iter([registry_pb2.RegisterRequest()]), timeout=20)))


# -- who runs --------------------------------------------------------------------------------------


def test_the_order_of_discovery(world: World, container: str) -> None:
    """Endpoint in the configuration, then registered, then built-in, then binary."""
    client = world.client()
    world.install("scripted", SCRIPTED)
    exec_kind = attachments_pb2.EXECUTOR_KIND_EXEC

    def kind(plugin: dict[str, Any]) -> int:
        found = kinds(add(client, net(plugin), container))[0]
        client.attachments.Del(helpers.del_request())
        return found

    assert exec_kind == kind(world.scripted())
    assert attachments_pb2.EXECUTOR_KIND_BUILTIN == kind(LOOPBACK)
    world.daemon(SCRIPTED)
    eventually(lambda: DAEMON == kind(world.scripted()), "the registration")
    world.daemon(SCRIPTED, "--no-register", socket="other.sock")
    endpoint = f"unix://{world.directory}/other.sock"
    chosen = world.scripted(ADD=[{"delegate": "loopback"}]) | {"cni.dev/endpoint": endpoint}
    helpers.kill(world.processes[1])
    assert DAEMON == kind(chosen)


def test_an_endpoint_must_be_a_unix_socket(world: World, container: str) -> None:
    """There is no plain TCP, not even to this machine."""
    plugin = world.scripted() | {"cni.dev/endpoint": "127.0.0.1:4242"}
    with pytest.raises(InvalidConfig, match="is not a unix socket"):
        add(world.client(), net(plugin), container)


# -- calls -----------------------------------------------------------------------------------------


def test_errors_keep_their_identity(world: World, container: str) -> None:
    """Code, message and details are the plugin's; of a bug only a log id is told."""
    world.daemon(SCRIPTED)
    client = world.client()
    await_plugin(client, "scripted")
    with pytest.raises(CniError) as failed:
        add(client, net(world.scripted(ADD=[{"fail": [142, "no", "because"]}])), container)
    error = failed.value
    assert (142, "no", "because") == (error.wire_code, error.msg, error.details)
    assert ("ADD", "scripted", 0) == (error.verb, error.plugin_type, error.plugin_index)
    with pytest.raises(CniError, match=r"internal error in .* \(log id") as bug:
        add(client, net(world.scripted(ADD=[{"crash": "secret"}])), container)
    assert 999 == bug.value.wire_code
    assert "secret" not in str(bug.value)
    with pytest.raises(InvalidConfig, match="script: expected"):
        add(client, net(world.scripted() | {"script": 1}), container)


def test_a_deadline_reaches_the_plugin(world: World, container: str) -> None:
    """A plugin that heeds its deadline stops; the clean-up comes after it, never beside it."""
    world.daemon(SCRIPTED)
    client = world.client()
    await_plugin(client, "scripted")
    with pytest.raises(CniError):
        add(client, net(world.scripted(ADD=[{"sleep": 60}])), container, timeout=1)
    ended = ["ADD c1 begins", "ADD c1 ends", "DEL c1 begins", "DEL c1 ends"]
    eventually(lambda: ended == world.lines(), "the clean-up")
    with pytest.raises(CniError):
        script = world.scripted(ADD=[{"stubborn": 2}])
        add(client, net(script), container, timeout=1, container_id="c2")
    ended += [line.replace("c1", "c2") for line in ended]
    eventually(lambda: ended == world.lines(), "the clean-up after the stubborn one")


def test_optional_verbs_are_unimplemented(world: World) -> None:
    """A daemon says so, which the service takes as nothing to do."""
    world.daemon(SCRIPTED, "--no-register")
    socket = world.directory / "plugin.sock"
    eventually(socket.exists)
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stub = plugin_pb2_grpc.PluginStub(channel)
        for call, request in (
            (stub.Init, plugin_pb2.PluginInitRequest()),
            (stub.Deinit, plugin_pb2.PluginDeinitRequest()),
            (stub.Finalize, plugin_pb2.PluginFinalizeRequest()),
            (stub.Update, plugin_pb2.PluginUpdateRequest()),
            (stub.Capacity, plugin_pb2.PluginCapacityRequest()),
        ):
            with pytest.raises(grpc.RpcError) as failed:
                call(request, timeout=20)
            assert grpc.StatusCode.UNIMPLEMENTED is failed.value.code()
            assert wire.find_error(failed.value) is not None
        versions = stub.Version(plugin_pb2.PluginVersionRequest(), timeout=20)
        assert "1.1.0" in versions.supported_versions


def test_trace_context_reaches_the_plugin(world: World, container: str) -> None:
    """What the caller of an executable has in its environment, a daemon finds as well."""
    world.daemon(SCRIPTED)
    client = world.client()
    await_plugin(client, "scripted")
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    request = helpers.add_request(net(world.scripted(ADD=[{"trace": True}])), container)
    client.attachments.Add(request, metadata=(("traceparent", parent),))
    assert any(parent in line for line in world.lines())


# -- delegation ------------------------------------------------------------------------------------


def ipam(world: World, **more: Any) -> dict[str, Any]:
    """An `ipam` object that fits host-local as well as the example."""
    return {
        "subnet": "10.77.0.0/24",
        "dataDir": str(world.directory / "leases"),
        "database": str(world.directory / "pool.db"),
        **more,
    }


@pytest.mark.parametrize("delegate", ["host-local", "pool"])
def test_a_daemon_delegates(world: World, container: str, delegate: str) -> None:
    """To a built-in plugin, and to another daemon: in the context of the call it serves."""
    world.daemon(SCRIPTED)
    world.daemon(EXAMPLES / "pool_ipam.py", socket="pool.sock")
    client = world.client()
    await_plugin(client, "scripted")
    steps = [{"delegate": delegate}]
    script = world.scripted(ADD=steps, DEL=steps, CHECK=steps)
    config = net(script | {"ipam": ipam(world, type="host-local")})
    if delegate == "pool":
        eventually(lambda: has_pool(client, world), "the pool")
    response = add(client, config, container)
    assert ["10.77.0.2/24"] == [one.address for one in response.attachment.result.ips]
    key = {"network": "net", "container_id": "c1", "ifname": "eth0"}
    client.attachments.Check(attachments_pb2.CheckRequest(**key))
    client.attachments.Del(helpers.del_request())
    again = add(client, config, container, container_id="c2")
    # host-local goes round, the pool takes the lowest.
    expected = {"host-local": "10.77.0.3/24", "pool": "10.77.0.2/24"}[delegate]
    assert [expected] == [one.address for one in again.attachment.result.ips]


def has_pool(client: Any, world: World) -> bool:
    """Whether the example has registered."""
    config = net({"type": "pool", "ipam": ipam(world, type="pool")}, name="probe")
    request = networks_pb2.PutNetworkRequest(validate_only=True)
    request.config.json = json.dumps(config).encode()
    try:
        client.networks.Put(request, timeout=5)
    except CniError:
        return False
    return True


def test_a_delegates_failure_is_undone_and_told(world: World, container: str) -> None:
    """The delegate's own error comes through two processes; its DEL has run (SPEC D5)."""
    world.daemon(SCRIPTED)
    client = world.client()
    await_plugin(client, "scripted")
    config = net(world.scripted(ADD=[{"delegate": "host-local"}]) | {"ipam": ipam(world, subnet=7)})
    with pytest.raises(InvalidConfig, match="subnet"):
        add(client, config, container)


def test_delegation_needs_a_running_call(world: World, container: str) -> None:
    """Nobody may have plugins run in the name of a call that is over or never was."""
    channel = grpc.insecure_channel(f"unix:{world.socket}")
    stub = registry_pb2_grpc.DelegateStub(channel)
    for operation in ("", "made up"):
        request = registry_pb2.DelegateExecRequest(
            operation=operation, type="host-local", verb=error_pb2.VERB_ADD, config=b"{}"
        )
        with pytest.raises(grpc.RpcError) as failed:
            stub.Exec(request, timeout=20)
        assert grpc.StatusCode.PERMISSION_DENIED is failed.value.code()


def test_endless_delegation_ends(world: World, container: str) -> None:
    """A plugin that delegates to itself is told so before it has every thread."""
    world.daemon(SCRIPTED)
    client = world.client()
    await_plugin(client, "scripted")
    with pytest.raises(InvalidConfig, match="more than 8 deep"):
        add(client, net(world.scripted(ADD=[{"delegate": "scripted"}])), container)


def test_many_calls_that_delegate_get_through(world: World, container: str) -> None:
    """More calls than the service has threads for, each of which needs one more to end."""
    world.daemon(SCRIPTED)
    client = world.client()
    await_plugin(client, "scripted")
    steps = [{"delegate": "host-local"}]
    script = world.scripted(ADD=steps, DEL=steps)
    config = net(script | {"ipam": ipam(world, type="host-local", subnet="10.78.0.0/16")})
    ids = [f"c{number}" for number in range(120)]
    with futures.ThreadPoolExecutor(len(ids)) as pool:
        added = list(
            pool.map(lambda one: add(client, config, container, 60, container_id=one), ids)
        )
        addresses = {one.attachment.result.ips[0].address for one in added}
        assert len(ids) == len(addresses)
        deleted = pool.map(
            lambda one: client.attachments.Del(helpers.del_request(container_id=one)), ids
        )
        assert all(one.existed for one in deleted)
    assert [] == [p.name for p in (world.directory / "leases/net").glob("10.78.*")]


def test_the_service_stops_while_daemons_work(world: World, container: str) -> None:
    """SIGTERM: an Add that is still to delegate ends well before the service does."""
    world.daemon(SCRIPTED)
    client = world.client()
    await_plugin(client, "scripted")
    script = world.scripted(ADD=[{"sleep": 1.0}, {"delegate": "host-local"}])
    config = net(script | {"ipam": ipam(world, type="host-local")})
    with futures.ThreadPoolExecutor() as pool:
        running = pool.submit(add, client, config, container)
        eventually(lambda: "ADD c1 begins" in world.lines(), "the Add")
        world.processes[0].terminate()
        time.sleep(0.2)
        with pytest.raises(TryAgain, match="the service is stopping"):
            add(client, net(LOOPBACK), container, container_id="c2")
        assert 1 == len(running.result(20).attachment.result.ips)
    assert 0 == world.processes[0].wait(20)
