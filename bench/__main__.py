# SPDX-License-Identifier: Apache-2.0
"""`make bench`: ADD, CHECK and DEL of one container on `edge`, all sides in turn, one table."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench import api
from bench.execs import Chain, Executables
from bench.sides import GoChain, InProcess, Service, Subject, milliseconds
from bench.world import Container

VERBS = ("ADD", "CHECK", "DEL")
WARM_UP = 3
CROWD = 1000
SETTLE_S = 0.3
WIDTH = 140


def measure(
    subjects: list[Subject], singles: list[Chain], runs: int, progress: Progress
) -> list[dict[str, Any]]:
    """Run every verb of every side in turn, `runs` times after a warm-up.

    The rows of a chain's plugins, which are cases of their own, come after those of `edge`.
    """
    samples: dict[tuple[str, str], list[float]] = {}
    task = progress.add_task("edge, one container", total=runs + WARM_UP)
    for number in range(runs + WARM_UP):
        for subject in (*subjects, *singles):
            container = Container()
            actions = (subject.add, subject.check, subject.delete)
            for verb, action in zip(VERBS, actions, strict=True):
                took = milliseconds(action, container, number)
                if number >= WARM_UP and subject not in singles:
                    samples.setdefault((verb, subject.name), []).append(took)
            container.remove()
        progress.advance(task)
    rows = [row("edge", verb, side, values) for (verb, side), values in samples.items()]
    for chain in (*(s for s in subjects if isinstance(s, Chain)), *singles):
        for (verb, plugin), values in chain.samples.items():
            rows.append(row(plugin, verb, chain.name, values[WARM_UP:]))
    return rows


def row(case: str, verb: str, side: str, values: list[float]) -> dict[str, Any]:
    """One line of the table."""
    return {
        "case": case,
        "verb": verb,
        "side": side,
        "median_ms": round(statistics.median(values), 3),
        "p90_ms": round(statistics.quantiles(values, n=10)[-1], 3),
        "min_ms": round(min(values), 3),
        "max_ms": round(max(values), 3),
        "n": len(values),
    }


def measure_crowd(service: Service, runs: int, progress: Progress) -> list[dict[str, Any]]:
    """ADD with an empty node and with `CROWD` attachments, and the service's memory then."""
    empty = _adds(service, runs, first=2000)
    task = progress.add_task(f"{CROWD} attachments", total=2 * CROWD)
    crowd = []
    for number in range(CROWD):
        crowd.append(container := Container())
        service.add(container, number)
        progress.advance(task)
    full = _adds(service, runs, first=2000)
    memory = service.resident_mb()

    def leave(number: int) -> None:
        service.delete(crowd[number], number)
        crowd[number].remove()
        progress.advance(task)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(leave, range(CROWD)))
    return [
        row("edge, empty node", "ADD", service.name, empty),
        row(f"edge, {CROWD} attachments", "ADD", service.name, full),
        {"case": f"resident memory, {CROWD} attachments", "side": service.name, "mb": memory},
    ]


def _adds(service: Service, runs: int, *, first: int) -> list[float]:
    values = []
    for number in range(first, first + runs):
        container = Container()
        # The kernel takes the namespace of the run before apart in its own time, and under the
        # lock of all of networking: that would be measured otherwise.
        time.sleep(SETTLE_S)
        values.append(milliseconds(service.add, container, number))
        service.delete(container, number)
        container.remove()
    return values


def measure_api() -> tuple[list[dict[str, Any]], float]:
    """An Add of `loopback` beside an echo and the plugin's own time, and the ratio of them."""
    samples = api.run()
    sides = {"add": "service", "echo": "grpc alone", "plugin": "loopback alone"}
    rows = [row("loopback", "ADD", sides[name], values) for name, values in samples.items()]
    return rows, api.ratio(samples)


def measure_help(runs: int) -> dict[str, Any]:
    """`pycni --help` as a process."""
    values = []
    for _ in range(runs):
        start = time.perf_counter()
        program = Path(sys.executable).with_name("pycni")
        subprocess.run([program, "--help"], stdout=subprocess.DEVNULL, check=True)
        values.append((time.perf_counter() - start) * 1000)
    return row("pycni --help", "", "cli", values)


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many times slower the Go plugins are, by the medians, where both did the same."""
    medians = {(r["case"], r["verb"], r["side"]): r["median_ms"] for r in rows if "median_ms" in r}
    return [
        {
            "case": case,
            "verb": verb,
            "side": side,
            "times_faster_than_go": round(medians[case, verb, GoChain.NAME] / median, 2),
        }
        for (case, verb, side), median in medians.items()
        if side != GoChain.NAME and (case, verb, GoChain.NAME) in medians
    ]


def print_table(console: Console, rows: list[dict[str, Any]], faster: list[dict[str, Any]]) -> None:
    """The rows and ratios for people."""
    times = {(r["case"], r["verb"], r["side"]): r["times_faster_than_go"] for r in faster}
    table = Table(title="milliseconds; ratio of medians against the Go plugins in this run")
    for heading in ("case", "verb", "side"):
        table.add_column(heading, no_wrap=True)
    for heading in ("median", "p90", "min", "max", "n", "times faster"):
        table.add_column(heading, justify="right")
    for r in rows:
        if "mb" in r:
            table.add_row(r["case"], "", r["side"], f"{r['mb']:.1f} MB")
            continue
        ratio = times.get((r["case"], r["verb"], r["side"]))
        table.add_row(
            r["case"], r["verb"], r["side"],
            *(f"{r[key]:.2f}" for key in ("median_ms", "p90_ms", "min_ms", "max_ms")),
            str(r["n"]), "" if ratio is None else f"{ratio}",
        )  # fmt: skip
    console.print(table)


def main(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows here.")] = None,
    runs: Annotated[int, typer.Option("-n", "--runs", help="Counted runs of each side.")] = 30,
    crowd: Annotated[bool, typer.Option(help="Measure with 1,000 attachments as well.")] = True,
) -> None:
    """Compare pycni with the Go plugins on this machine."""
    # A file or a pipe has no width of its own, and the default folds every number away.
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    with contextlib.ExitStack() as closing:
        subjects: list[Subject] = []
        for side in (Service, InProcess, GoChain):
            subjects.append(subject := side())
            closing.callback(subject.close)
        service, _, go = subjects
        assert isinstance(service, Service)
        assert isinstance(go, GoChain)
        ours = closing.enter_context(Executables(service.shim_socket))
        subjects += ours.edge(service.world)
        singles = ours.singles(service.world, go.world, go.directory, go.name)
        with Progress(console=Console(stderr=True)) as progress:
            rows = measure(subjects, singles, runs, progress)
            starts = ours.starts(go.directory, go.name, progress)
            rows += [row("start", "VERSION", side, values) for side, values in starts.items()]
            faster = ratios(rows)
            if crowd:
                rows += measure_crowd(service, runs, progress)
            more, api_ratio = measure_api()
            rows += [*more, measure_help(10)]
    print_table(console, rows, faster)
    console.print(f"loopback: ADD takes {api_ratio:.2f} times an echo and the plugin's own time")
    if json_file is not None:
        figures = {"rows": rows, "ratios": faster, "api_ratio": round(api_ratio, 2)}
        json_file.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
