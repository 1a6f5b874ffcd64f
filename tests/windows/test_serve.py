# SPDX-License-Identifier: Apache-2.0
"""The service as Windows has it: on TCP with mutual TLS, attaching through the Windows plugins.

The certificates in tls/ were made for these tests with openssl: a server and a client of one
authority, a stranger of another, valid for a century. The authorities' keys were thrown away.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pycni.client import Client, ServiceUnavailable
from pycni.errors import CniError, InvalidEnvironment, IOFailure
from pycni.runtime.opening import open_node
from pycni.service.pb.cni.v2alpha1 import attachments_pb2, networks_pb2
from pycni.service.server import Server
from pycni.service.tls import TlsFiles, client_credentials
from tests.windows.drive import Node

TLS = pathlib.Path(__file__).parent / "tls"
FILES = TlsFiles(certificate=TLS / "server.pem", key=TLS / "server.key", client_ca=TLS / "ca.pem")
NAT = {
    "cniVersion": "1.1.0",
    "name": "nat",
    "plugins": [
        {
            "type": "nat",
            "ipam": {"subnet": "172.20.0.0/16", "routes": [{"GW": "172.20.0.1"}]},
            "capabilities": {"portMappings": True},
        }
    ],
}


def connect(port: int, who: str = "client", ca: str = "ca") -> Client:
    """A client with one of the test certificates."""
    credentials = client_credentials(
        certificate=TLS / f"{who}.pem", key=TLS / f"{who}.key", server_ca=TLS / f"{ca}.pem"
    )
    return Client(f"127.0.0.1:{port}", credentials=credentials)


def add_request(netns: str) -> attachments_pb2.AddRequest:
    """Attach to the network nat, given inline."""
    request = attachments_pb2.AddRequest(container_id="c1", netns=netns, ifname="eth0")
    request.network.inline.json = json.dumps(NAT).encode()
    return request


def work(client: Client, node: Node) -> None:
    """Add, check, list, delete: what any client does."""
    added = client.attachments.Add(add_request(node.namespace))
    assert ["172.20.0.2/16"] == [ip.address for ip in added.attachment.result.ips]
    assert client.attachments.Add(add_request(node.namespace)).replayed
    key = {"network": "nat", "container_id": "c1", "ifname": "eth0"}
    client.attachments.Check(attachments_pb2.CheckRequest(**key))
    listed = client.attachments.List(attachments_pb2.ListAttachmentsRequest())
    assert ["c1"] == [one.key.container_id for one in listed.attachments]
    request = attachments_pb2.DelRequest(container_id="c1", ifname="eth0")
    request.network.name = "nat"
    client.attachments.Del(request)
    assert [] == node.simulator.named("Endpoint", "c1_nat")


@contextlib.contextmanager
def serving(state: pathlib.Path) -> Iterator[int]:
    """A service of this process; its port."""
    state.mkdir()
    opened = open_node(str(state))
    server = Server(opened)
    port = server.listen_tls("127.0.0.1:0", FILES)
    server.start()
    try:
        yield port
    finally:
        server.stop(1)
        opened.close()


def test_the_service_attaches_through_hns(node: Node, tmp_path: pathlib.Path) -> None:
    """A client with a certificate does everything over TCP."""
    with serving(tmp_path / "state") as port, connect(port) as client:
        work(client, node)


def test_strangers_get_nothing(node: Node, tmp_path: pathlib.Path) -> None:
    """No certificate of our authority, no service; and a client does not trust another's."""
    with serving(tmp_path / "state") as port:
        for who, ca in (("stranger", "ca"), ("client", "other-ca")):
            with connect(port, who, ca) as client, pytest.raises(ServiceUnavailable):
                client.networks.List(networks_pb2.ListNetworksRequest(), timeout=5)


def test_unusable_files_are_named(tmp_path: pathlib.Path) -> None:
    """Before anything listens."""
    with pytest.raises(IOFailure, match="cannot read"):
        TlsFiles(
            certificate=tmp_path / "none", key=FILES.key, client_ca=FILES.client_ca
        ).server_credentials()
    (tmp_path / "empty").write_text("")
    with pytest.raises(InvalidEnvironment, match="is not a PEM file"):
        TlsFiles(
            certificate=FILES.certificate, key=tmp_path / "empty", client_ca=FILES.client_ca
        ).server_credentials()


def test_a_taken_port_is_named(tmp_path: pathlib.Path) -> None:
    """Not a traceback."""
    (tmp_path / "state").mkdir()
    opened = open_node(str(tmp_path / "state"))
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(IOFailure, match=f"cannot listen on {address}"):
                Server(opened).listen_tls(address, FILES)
    finally:
        opened.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def test_pycni_serve_listens_with_mutual_tls(node: Node, tmp_path: pathlib.Path) -> None:
    """The command itself, as a process of its own; on Windows it reaches the stand-in DLLs."""
    if node.level != "dll":
        return  # elsewhere another process has no host networking service
    port = free_port()
    command = [
        *(sys.executable, "-m", "pycni.cli.main", "serve"),
        *("--listen", f"127.0.0.1:{port}", "--state-dir", str(tmp_path / "state")),
        *("--tls-cert", str(FILES.certificate), "--tls-key", str(FILES.key)),
        *("--tls-client-ca", str(FILES.client_ca), "--conf-dir", ""),
    ]
    log = subprocess.PIPE
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        with connect(port) as client:
            while True:
                try:
                    client.networks.List(networks_pb2.ListNetworksRequest(), timeout=2)
                    break
                except CniError:
                    assert process.poll() is None, process.communicate()
                    assert time.monotonic() < end
                    time.sleep(0.2)
            work(client, node)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_serve_needs_somewhere_to_listen(tmp_path: pathlib.Path) -> None:
    """Windows has no unix socket, so the three TLS options are needed there."""
    if os.name == "posix":
        return
    command = [sys.executable, "-m", "pycni.cli.main", "serve", "--state-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    assert 1 == done.returncode
    assert b"--tls-client-ca" in done.stderr
