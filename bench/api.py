# SPDX-License-Identifier: Apache-2.0
"""What the API itself costs: an Add of `loopback` over the socket beside a bare unary echo.

The echo is a method of the same server that returns the bytes it gets: what gRPC itself costs in
Python. To it comes the plugin's own time, as the steps of the answer tell it. The figure is how
many times that sum an Add takes. `make bench` has it as a case; `python -m bench.api` prints it
alone (root, in namespaces of its own).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer
from rich.console import Console
from rich.table import Table

from bench.world import Container, World
from pycni.runtime.opening import open_node
from pycni.service.access import Rate, Rates
from pycni.service.pb.cni.v2alpha1 import attachments_pb2, attachments_pb2_grpc, config_pb2
from pycni.service.server import Server

ECHO = "/bench.Echo/Echo"
LIMIT = 1.5
WARM_UP = 200
ROUNDS = 1000
START_TIMEOUT_S = 15.0
NETWORK = {"cniVersion": "1.1.0", "name": "lo", "plugins": [{"type": "loopback"}]}
FREE = Rate(per_second=0, burst=0)


class Echo(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic only in the stubs
    """One method that returns what it is given."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler, for the one method there is."""
        if handler_call_details.method != ECHO:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda data, _context: data, bytes, bytes)


def serve(directory: Path) -> None:
    """A service with an echo, until its stdin ends; run in a process and a namespace of its own."""
    node = open_node(str(directory))
    node.networks.put(json.dumps(NETWORK).encode())
    server = Server(node, rates=Rates(admin=FREE, read_only=FREE))
    server.listen(directory / "cni.sock")
    for one in server._servers:
        one.add_generic_rpc_handlers((Echo(),))
    server.start()
    sys.stdin.read()
    server.stop(5)
    node.close()


def milliseconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """How long a call takes, and its answer."""
    start = time.perf_counter()
    answer = call()
    return (time.perf_counter() - start) * 1000, answer


def measure(socket: Path, netns: str, rounds: int) -> dict[str, list[float]]:
    """Echo and Add in turn; the plugin's own time is a part of the Add beside it."""
    samples: dict[str, list[float]] = {"echo": [], "plugin": [], "add": []}
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        grpc.channel_ready_future(channel).result(START_TIMEOUT_S)
        attachments = attachments_pb2_grpc.AttachmentsStub(channel)
        echo: Callable[[bytes], bytes] = channel.unary_unary(ECHO, bytes, bytes)
        ref = config_pb2.NetworkRef(name="lo")
        for number in range(rounds + WARM_UP):
            named: dict[str, Any] = {
                "network": ref,
                "container_id": f"c{number}",
                "ifname": "lo",
                "netns": netns,
            }
            add = attachments_pb2.AddRequest(**named)
            payload = add.SerializeToString()
            echoed, _ = milliseconds(lambda data=payload: echo(data))  # type: ignore[misc]  # its default binds it
            added, answer = milliseconds(lambda request=add: attachments.Add(request))  # type: ignore[misc]  # so does this
            attachments.Del(attachments_pb2.DelRequest(**named))
            if number >= WARM_UP:
                samples["echo"].append(echoed)
                samples["add"].append(added)
                samples["plugin"].append(sum(s.duration.nanos for s in answer.steps) / 1e6)
    return samples


def run(rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Start a service on a fresh host, measure, stop it."""
    with World("api") as world:
        container = Container()
        command = [sys.executable, "-m", "bench.api", "--serve", str(world.state)]
        process = world.host.run(lambda: subprocess.Popen(command, stdin=subprocess.PIPE))
        try:
            return measure(world.state / "cni.sock", container.netns, rounds)
        finally:
            process.communicate()
            container.remove()


def ratio(samples: dict[str, list[float]]) -> float:
    """How many times an echo and the plugin's own time an Add takes, by the medians."""
    medians = {name: statistics.median(values) for name, values in samples.items()}
    return medians["add"] / (medians["echo"] + medians["plugin"])


def main(
    serve_in: Annotated[Path | None, typer.Option("--serve", hidden=True)] = None,
    rounds: Annotated[int, typer.Option("-n", "--rounds", help="Counted rounds.")] = ROUNDS,
) -> None:
    """Measure what the API costs beyond gRPC and the plugin."""
    if serve_in is not None:
        serve(serve_in)
        return
    samples = run(rounds)
    table = Table(title=f"milliseconds, {rounds} rounds")
    for heading in ("", "median", "p90", "min"):
        table.add_column(heading, justify="right")
    for name, values in samples.items():
        figures = statistics.median(values), statistics.quantiles(values, n=10)[-1], min(values)
        table.add_row(name, *(f"{figure:.3f}" for figure in figures))
    console = Console()
    console.print(table)
    console.print(f"add / (echo + plugin) = {ratio(samples):.2f}, at most {LIMIT} is wanted")


if __name__ == "__main__":
    typer.run(main)
