# SPDX-License-Identifier: Apache-2.0
"""`make bench-clients`: what `edge` costs where it is felt, in the start of a container.

Each side is a machine with a containerd of its own; the sides take turns. The clock runs from the
start of `ctr run --cni` to the first line that the container prints, so it holds containerd, runc
and all: some hundred milliseconds, which differ from run to run by more than our plugins take.
Therefore each run is also compared with that of the plugin that does nothing in the same round.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.__main__ import WARM_UP, WIDTH, row
from tests.clients.machine import PYCNI, Machine
from tests.clients.runtimes import EDGE, Containerd, add_network

CASE, VERB = "container start, edge", "ADD"
NOTHING, SHIM, ONE_EXEC, GO = "does nothing", "shim", "one exec", "go plugins"
SOURCE = Path(__file__).with_name("nothing.c")
TIMEOUT_S = 30
# What the last container leaves to the kernel must not fall on the next one.
PAUSE_S = 0.2


def nothing(machine: Machine) -> None:
    """A plugin that does nothing."""
    binary = machine.directory / "nothing"
    subprocess.run(["gcc", "-O2", "-static", "-o", str(binary), str(SOURCE)], check=True)
    machine.run("cp", str(binary), str(machine.bin / "nothing"))
    network = {"cniVersion": "1.0.0", "name": "nothing", "plugins": [{"type": "nothing"}]}
    add_network(machine, "10-nothing.conflist", network)


def shim(machine: Machine) -> None:
    """Our executables, one for each plugin, and the service."""
    machine.install_plugins()
    add_network(machine, "10-edge.conflist", json.loads(EDGE.read_text()))
    machine.serve()


def one_exec(machine: Machine) -> None:
    """Our executable that runs the whole network, and the service."""
    machine.install_plugins()
    add_network(machine, "50-edge.conflist", json.loads(EDGE.read_text()))
    machine.run(PYCNI, "install", "--conf-dir", "/etc/cni/net.d", "--network", "edge")
    machine.serve()


def go(machine: Machine) -> None:
    """Debian's plugins."""
    machine.install_go_plugins()
    add_network(machine, "10-edge.conflist", json.loads(EDGE.read_text()))


SIDES: dict[str, Callable[[Machine], None]] = {
    NOTHING: nothing,
    SHIM: shim,
    ONE_EXEC: one_exec,
    GO: go,
}


@contextlib.contextmanager
def containerds() -> Iterator[dict[str, Containerd]]:
    """A machine with containerd for each side."""
    with contextlib.ExitStack() as closing:
        made = {}
        for name, prepare in SIDES.items():
            directory = closing.enter_context(tempfile.TemporaryDirectory(prefix="pycni-bench-"))
            machine = Machine(Path(directory))
            closing.callback(machine.close)
            prepare(machine)
            made[name] = Containerd(machine, machine.directory)
        yield made


def start(containerd: Containerd, name: str) -> float:
    """Run a container to its end; the milliseconds until it spoke."""
    # It stays for a moment: ctr may lose what a container says as it ends.
    speak = containerd.run_command(name, "sh", "-c", "echo here; exec sleep 0.1")
    command = containerd.machine.inside(speak)
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as client:
        assert client.stdout is not None
        line = client.stdout.readline()
        took = (time.perf_counter() - began) * 1000
        _, complaint = client.communicate(timeout=TIMEOUT_S)
    if line != b"here\n" or client.returncode:
        raise SystemExit(f"ctr run: {complaint.decode()}")
    return took


def measure(runs: int) -> dict[str, list[float]]:
    """Start a container on every side in turn, in another order each time."""
    samples: dict[str, list[float]] = {name: [] for name in SIDES}
    with containerds() as made:
        order = random.Random(0)
        rounds = range(runs + WARM_UP)
        for number in track(rounds, "starting containers", console=Console(stderr=True)):
            for name in order.sample(list(made), len(made)):
                time.sleep(PAUSE_S)
                took = start(made[name], f"bench{number}")
                if number >= WARM_UP:
                    samples[name].append(took)
    return samples


def compare(samples: dict[str, list[float]]) -> list[dict[str, Any]]:
    """A row for each side, with what it takes more than doing nothing does in the same round."""
    rows = []
    for name, values in samples.items():
        pairs = zip(values, samples[NOTHING], strict=True)
        low, middle, high = statistics.quantiles((mine - least for mine, least in pairs), n=4)
        more = {"more_ms": middle, "more_q1_ms": low, "more_q3_ms": high}
        rows.append(
            row(CASE, VERB, name, values)
            | ({} if name == NOTHING else {key: round(value, 3) for key, value in more.items()})
        )
    return rows


def print_table(console: Console, rows: list[dict[str, Any]]) -> None:
    """The rows for people."""
    table = Table(title=f"{CASE}: milliseconds; more than a plugin that does nothing")
    table.add_column("side", no_wrap=True)
    headings = (
        "median",
        "p90",
        "min",
        "max",
        "n",
        "more: median",
        "quartiles",
        "times less than Go",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    of_go = next(r["more_ms"] for r in rows if r["side"] == GO)
    for r in rows:
        numbers = [f"{r[key]:.1f}" for key in ("median_ms", "p90_ms", "min_ms", "max_ms")]
        compared = ["", "", ""]
        if "more_ms" in r:
            quartiles = f"{r['more_q1_ms']:.1f} to {r['more_q3_ms']:.1f}"
            compared = [f"{r['more_ms']:.1f}", quartiles, f"{of_go / r['more_ms']:.1f}"]
        table.add_row(r["side"], *numbers, str(r["n"]), *compared)
    console.print(table)


def main(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows here.")] = None,
    runs: Annotated[int, typer.Option("-n", "--runs", help="Counted runs of each side.")] = 40,
) -> None:
    """Time the starts of containers in containerd on this machine."""
    rows = compare(measure(runs))
    print_table(Console(width=None if sys.stdout.isatty() else WIDTH), rows)
    if json_file is not None:
        json_file.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
