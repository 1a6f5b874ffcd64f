# SPDX-License-Identifier: Apache-2.0
"""Who gets in, and what they may do there: sockets, certificates, limits."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from pycni.client import Client, ServiceUnavailable
from pycni.errors import CniError, DecodeFailure, InvalidConfig
from pycni.kernel.netns import Netns
from pycni.service import access, wire
from pycni.service.pb.cni.v2alpha1 import (
    attachments_pb2,
    networks_pb2,
    node_pb2,
    registry_pb2,
    registry_pb2_grpc,
)
from pycni.service.tls import TlsFiles
from tests.service import daemon_helpers as helpers
from tests.service.certificates import Authority
from tests.service.daemon_helpers import SCRIPTED, World, add, await_plugin, eventually, network

pytestmark = pytest.mark.root

LOOPBACK = {"type": "loopback"}
LIST = networks_pb2.ListNetworksRequest()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Nothing started yet."""
    with helpers.world(tmp_path) as made:
        yield made


@contextlib.contextmanager
def status(expected: grpc.StatusCode) -> Iterator[None]:
    """Expect a call to fail with that status, and with a CniError in it."""
    with pytest.raises(CniError) as failed:
        yield
    cause = failed.value.__cause__
    assert isinstance(cause, grpc.RpcError), failed.value
    assert expected is cause.code()
    assert wire.find_error(cause) is not None


DENIED = grpc.StatusCode.PERMISSION_DENIED


def every_other_call(client: Client, netns: str) -> list[Callable[[], Any]]:
    """A call of each method that changes something or runs a plugin."""
    key = {"network": "net", "container_id": "c1", "ifname": "eth0"}
    register = registry_pb2_grpc.RegistryStub(client.channel)
    delegate = registry_pb2_grpc.DelegateStub(client.channel)
    networks, attachments = client.networks, client.attachments
    return [
        lambda: networks.Put(networks_pb2.PutNetworkRequest()),
        lambda: networks.Delete(networks_pb2.DeleteNetworkRequest(name="net")),
        lambda: networks.Validate(networks_pb2.ValidateNetworkRequest()),
        lambda: add(client, network(LOOPBACK), netns),
        lambda: attachments.Del(helpers.del_request()),
        lambda: attachments.Check(attachments_pb2.CheckRequest(**key)),
        lambda: attachments.Gc(attachments_pb2.GcRequest()),
        lambda: attachments.AttachAll(attachments_pb2.AttachAllRequest()),
        lambda: attachments.DetachAll(attachments_pb2.DetachAllRequest()),
        lambda: client.node.RegisterTypes(node_pb2.RegisterTypesRequest()),
        lambda: delegate.Exec(registry_pb2.DelegateExecRequest()),
        lambda: _first(register.Register(iter([registry_pb2.RegisterRequest()]))),
    ]


def _first(stream: Any) -> Any:
    with wire.cni_errors():
        return next(iter(stream))


# -- unix sockets ----------------------------------------------------------------------------------


def test_the_sockets_are_their_owners(world: World) -> None:
    """The administrators' is 0600; the read-only one too, unless a group is named."""
    read_only = world.directory / "look.sock"
    world.serve("--read-only-socket", str(read_only))
    assert 0o600 == stat.S_IMODE(world.socket.stat().st_mode)
    assert 0o600 == stat.S_IMODE(read_only.stat().st_mode)


def test_the_read_only_socket_may_have_a_group(world: World) -> None:
    """Then its members may look."""
    group = next(entry for entry in grp.getgrall() if entry.gr_gid != os.getegid())
    read_only = world.directory / "look.sock"
    world.serve("--read-only-socket", str(read_only), "--read-only-group", group.gr_name)
    found = read_only.stat()
    assert (0o660, group.gr_gid) == (stat.S_IMODE(found.st_mode), found.st_gid)


def test_readers_look_and_do_not_touch(world: World, make_netns: Callable[..., Netns]) -> None:
    """List and Get, health and reflection; everything else is denied, with a CniError."""
    netns = make_netns("c1").path
    read_only = world.directory / "look.sock"
    world.serve("--read-only-socket", str(read_only))
    add(world.client(), network(LOOPBACK), netns)
    with Client(str(read_only)) as client:
        listed = client.attachments.List(attachments_pb2.ListAttachmentsRequest())
        assert ["c1"] == [one.key.container_id for one in listed.attachments]
        got = client.attachments.Get(
            attachments_pb2.GetAttachmentRequest(network="net", container_id="c1", ifname="eth0")
        )
        assert "net" == got.key.network
        client.networks.List(LIST)
        with pytest.raises(InvalidConfig, match="no net configuration"):
            client.networks.Get(networks_pb2.GetNetworkRequest(name="other"))
        for call in every_other_call(client, netns):
            with status(DENIED):
                call()
        health = health_pb2_grpc.HealthStub(client.channel)
        answer = health.Check(health_pb2.HealthCheckRequest(service="cni.v2alpha1.Attachments"))
        assert health_pb2.HealthCheckResponse.SERVING == answer.status
    with grpc.insecure_channel(f"unix:{read_only}") as channel:
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
        assert "cni.v2alpha1.Networks" in services


def test_readers_have_nothing_run(world: World, tmp_path: Path) -> None:
    """No plugin with a configuration of theirs, no endpoint they choose, no storm of questions."""
    read_only, spy = world.directory / "look.sock", tmp_path / "spy.sock"
    asked = tmp_path / "asked"
    noted = world.plugin_path / "noted"
    noted.write_text(
        f"#!/bin/sh\necho $CNI_COMMAND >>{asked}\n"
        """echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.1.0"]}'\n"""
    )
    noted.chmod(0o755)
    world.serve("--read-only-socket", str(read_only))
    asker = networks_pb2.NetworkStatusRequest()
    asker.max_age.SetInParent()  # now
    with socket.socket(socket.AF_UNIX) as listener, Client(str(read_only)) as client:
        listener.bind(str(spy))
        listener.listen()
        listener.settimeout(0.5)
        for plugin in ({"type": "noted"}, {"type": "x", "cni.dev/endpoint": f"unix://{spy}"}):
            request = networks_pb2.NetworkStatusRequest()
            request.networks.add().inline.json = json.dumps(network(plugin)).encode()
            request.max_age.SetInParent()
            with status(DENIED):
                client.networks.Status(request, timeout=10)
        with pytest.raises(TimeoutError):
            listener.accept()
        assert not asked.exists()

        put = networks_pb2.PutNetworkRequest()
        put.config.json = json.dumps(network({"type": "noted"})).encode()
        world.client().networks.Put(put)
        for _ in range(20):
            assert client.networks.Status(asker).networks[0].ready
        assert asked.read_text().splitlines().count("STATUS") <= 2


def test_a_method_there_is_not_is_denied_or_unimplemented(world: World) -> None:
    """Whatever fails, fails with a CniError; and nobody learns what he may not call."""
    read_only = world.directory / "look.sock"
    world.serve("--read-only-socket", str(read_only))
    for client, expected in (
        (world.client(), grpc.StatusCode.UNIMPLEMENTED),
        (Client(str(read_only)), DENIED),
    ):
        for method in ("/cni.v2alpha1.Networks/Polish", "/no.Such/Service"):
            with status(expected):
                client.channel.unary_unary(method, bytes, bytes)(b"", timeout=10)
            with status(expected):
                list(client.channel.unary_stream(method, bytes, bytes)(b"", timeout=10))
        client.close()


def test_every_method_has_been_judged() -> None:
    """A method that is new is for administrators until somebody decides otherwise."""
    methods = {
        f"/{service.full_name}/{method.name}"
        for module in (attachments_pb2, networks_pb2, node_pb2, registry_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert access.READ_ONLY <= methods
    verbs = ("/List", "/Get", "/Status", "/Watch", "/GetInfo", "/ListPlugins")
    assert all(method.endswith(verbs) for method in access.READ_ONLY)


# -- limits ----------------------------------------------------------------------------------------


def test_too_many_calls_are_turned_away(world: World) -> None:
    """RESOURCE_EXHAUSTED says it is for the moment; others are served meanwhile."""
    read_only = world.directory / "look.sock"
    world.serve("--read-only-socket", str(read_only), "--read-only-rate", "5")
    with Client(str(read_only)) as client:
        for _ in range(10):
            client.networks.List(LIST)
        with status(grpc.StatusCode.RESOURCE_EXHAUSTED):
            for _ in range(10):
                client.networks.List(LIST)
        world.client().networks.List(LIST)
        with pytest.raises(CniError, match="more than 5 calls a second") as failed:
            for _ in range(10):
                client.networks.List(LIST)
        assert 11 == failed.value.wire_code

        def served() -> bool:
            try:
                client.networks.List(LIST)
            except CniError:
                return False
            return True

        eventually(served, "the next second")


def test_large_and_deep_requests_are_refused(world: World) -> None:
    """Before they cost anything; the service goes on."""
    world.serve()
    client = world.client()
    put = networks_pb2.PutNetworkRequest()
    put.config.json = b'{"x": "' + b"y" * (17 << 20) + b'"}'
    with status(grpc.StatusCode.RESOURCE_EXHAUSTED):
        client.networks.Put(put)
    put.config.json = b'{"x":' * 100_000 + b"1" + b"}" * 100_000
    with pytest.raises(DecodeFailure, match="nested too deep"):
        client.networks.Put(put)
    client.networks.List(LIST)


def test_silent_streams_keep_nobody_waiting(world: World) -> None:
    """Registrations that never say what they are do not take the threads of the calls."""
    world.serve()
    release = futures.Future[None]()

    def silent() -> Iterator[Any]:
        release.result()
        yield from ()

    with grpc.insecure_channel(f"unix:{world.socket}") as channel:
        stub = registry_pb2_grpc.RegistryStub(channel)
        streams = [stub.Register(silent()) for _ in range(100)]
        world.client().networks.List(LIST, timeout=10)
        release.set_result(None)
        for stream in streams:
            stream.cancel()


# -- TLS -------------------------------------------------------------------------------------------


def free_address() -> str:
    """An address that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Tls:
    """A service with TLS and the certificates of its clients."""

    def __init__(self, world: World, *options: str) -> None:
        self.world = world
        self.authority = Authority(world.directory)
        certificate, key = self.authority.sign("server", "IP:127.0.0.1")
        self.address = free_address()
        world.serve(
            *("--tls-listen", self.address, "--tls-cert", str(certificate)),
            *("--tls-key", str(key), "--tls-client-ca", str(self.authority.certificate)),
            *options,
        )

    def client(self, name: str, *alternative: str, authority: Authority | None = None) -> Client:
        """A client with a certificate."""
        certificate, key = (authority or self.authority).sign(name, *alternative)
        client: Client = self.world.stack.enter_context(
            Client.with_tls(
                self.address,
                certificate=certificate,
                key=key,
                server_ca=self.authority.certificate,
            )
        )
        return client


@pytest.fixture
def loopback_up() -> None:
    """TCP to this machine needs it; the test run's own namespace has it up."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


@pytest.mark.usefixtures("loopback_up")
def test_certificates_have_roles(world: World, make_netns: Callable[..., Netns]) -> None:
    """By common name or alternative name; without a role there is nothing, not even health."""
    netns = make_netns("c1").path
    tls = Tls(world, "--tls-admin", "ops", "--tls-admin", "root.example", "--tls-read-only", "eye")
    for who in (("ops",), ("anybody", "DNS:root.example")):
        client = tls.client(*who)
        add(client, network(LOOPBACK), netns)
        client.attachments.Del(helpers.del_request())
    reader = tls.client("eye")
    reader.networks.List(LIST)
    for call in every_other_call(reader, netns):
        with status(DENIED):
            call()
    stranger = tls.client("someone")
    with status(DENIED):
        stranger.networks.List(LIST)
    with pytest.raises(CniError, match="certificate of someone has no role"):
        stranger.networks.List(LIST)
    health, anything = health_pb2_grpc.HealthStub(stranger.channel), health_pb2.HealthCheckRequest()
    with status(DENIED):
        health.Check(anything)
    with status(DENIED):
        next(iter(health.Watch(anything, timeout=10)))
    watching = health_pb2_grpc.HealthStub(reader.channel).Watch(anything, timeout=10)
    assert health_pb2.HealthCheckResponse.SERVING == next(iter(watching)).status
    watching.cancel()


def test_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    """By the service and by the client, before anybody connects."""
    authority = Authority(tmp_path)
    certificate, key = authority.sign("one")
    other = authority.sign("two")[1]
    empty = tmp_path / "empty.pem"
    empty.write_text("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    missing = tmp_path / "missing.pem"
    for files, reason in (
        ((certificate, other, authority.certificate), f"{certificate} and {other} are no"),
        ((certificate, key, empty), f"{empty} has no certificate"),
        ((certificate, key, missing), f"cannot read {missing}"),
    ):
        one, two, three = files
        with pytest.raises(CniError, match=reason):
            TlsFiles(certificate=one, key=two, client_ca=three).server_credentials()
        with pytest.raises(CniError, match=reason):
            Client.with_tls("127.0.0.1:1", certificate=one, key=two, server_ca=three)
    with Client.with_tls(
        "127.0.0.1:1", certificate=certificate, key=key, server_ca=authority.certificate
    ) as client:
        with pytest.raises(ServiceUnavailable, match="know each other's authority"):
            client.networks.List(LIST, timeout=5)


@pytest.mark.usefixtures("loopback_up")
def test_everybody_certified_may_look(world: World) -> None:
    """ "*" stands for every certificate of the authority; the more powerful role wins."""
    tls = Tls(world, "--tls-admin", "ops", "--tls-read-only", "*")
    tls.client("someone").networks.List(LIST)
    with status(DENIED):
        tls.client("other").networks.Put(networks_pb2.PutNetworkRequest())
    with pytest.raises(InvalidConfig):  # let in, and then it is an empty configuration
        tls.client("ops").networks.Delete(networks_pb2.DeleteNetworkRequest(name="none"))


@pytest.mark.usefixtures("loopback_up")
def test_no_certificate_no_service(world: World, tmp_path: Path) -> None:
    """Neither without one, nor with another authority's, nor in plain text."""
    tls = Tls(world)
    other = tmp_path / "other"
    other.mkdir()
    strange = tls.client("ops", authority=Authority(other, "other-ca"))
    with pytest.raises(ServiceUnavailable):
        strange.networks.List(LIST, timeout=5)
    root = grpc.ssl_channel_credentials(tls.authority.certificate.read_bytes())
    for channel in (grpc.secure_channel(tls.address, root), grpc.insecure_channel(tls.address)):
        with channel, pytest.raises(grpc.RpcError) as failed:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert grpc.StatusCode.UNAVAILABLE is failed.value.code()
    tls.client("root").networks.List(LIST)  # without lists of names it is an administrator's


# -- activation ------------------------------------------------------------------------------------


def activated(world: World, *listeners: tuple[str, socket.socket]) -> Any:
    """Start the service as systemd does: with sockets that are listening already."""
    descriptors = [one.fileno() for _, one in listeners]
    moves = " ".join(f"{3 + n}<&{fd}" for n, fd in enumerate(descriptors))
    script = f'exec {moves}; export LISTEN_PID=$$; exec "$@"'
    names = ":".join(name for name, _ in listeners)

    def spawn(command: list[str], environ: dict[str, str]) -> Any:
        given = {"LISTEN_FDS": str(len(descriptors)), "LISTEN_FDNAMES": names}
        return subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=descriptors,
            env=os.environ | environ | given,
            stderr=subprocess.PIPE,
        )

    world.spawn = spawn
    return world


def test_the_grpc_socket_is_activated(world: World) -> None:
    """A call that came before the service is answered; the socket stays when the service stops."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(world.socket))
        listener.listen()
        activated(world, ("cni", listener))
        with Client(str(world.socket)) as early, futures.ThreadPoolExecutor() as pool:
            waiting = pool.submit(early.networks.List, LIST, timeout=20)
            world.serve()
            waiting.result(20)
            assert Path(f"{world.socket}.direct").is_socket()
            world.processes[0].terminate()
            assert 0 == world.processes[0].wait(20)
            assert world.socket.is_socket()
            again = pool.submit(early.networks.List, LIST, timeout=20)
            world.serve()
            with contextlib.suppress(CniError):  # its connection may have ended under it
                again.result(20)
            early.networks.List(LIST, timeout=20)


def test_daemons_register_over_an_activated_socket(
    world: World, make_netns: Callable[..., Netns]
) -> None:
    """Long streams and many calls pass the relay."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(world.socket))
        listener.listen()
        activated(world, ("cni", listener)).serve()
        world.spawn = helpers.spawn_here
        world.daemon(SCRIPTED)
        client = world.client()
        await_plugin(client, "scripted")
        netns = make_netns("c1").path
        config = network(LOOPBACK, world.scripted())
        with futures.ThreadPoolExecutor(16) as pool:
            ids = [f"c{number}" for number in range(40)]
            list(pool.map(lambda one: add(client, config, netns, container_id=one), ids))
        page = client.attachments.List(attachments_pb2.ListAttachmentsRequest())
        assert len(ids) == len(page.attachments)
