# SPDX-License-Identifier: Apache-2.0
"""Many at once: clients of their own connections, watchers who miss nothing, flat memory."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pycni.client import Client
from pycni.kernel.netns import Netns
from pycni.service.pb.cni.v2alpha1 import attachments_pb2, config_pb2
from tests.service_host import LOOPBACK, Service

pytestmark = [pytest.mark.root, pytest.mark.slow]

CLIENTS = 32
ROUNDS = 2000
WATCHED = 1000
GROWTH_KB = 6 * 1024

ADDING = attachments_pb2.ATTACHMENT_STATE_ADDING
READY = attachments_pb2.ATTACHMENT_STATE_READY
DELETING = attachments_pb2.ATTACHMENT_STATE_DELETING


def add(client: Client, container_id: str, netns: str) -> None:
    client.attachments.Add(
        attachments_pb2.AddRequest(
            network=config_pb2.NetworkRef(name="lo"),
            container_id=container_id,
            netns=netns,
            ifname="lo",
        ),
        timeout=60,
    )


def delete(client: Client, container_id: str) -> None:
    client.attachments.Del(
        attachments_pb2.DelRequest(
            network=config_pb2.NetworkRef(name="lo"), container_id=container_id, ifname="lo"
        ),
        timeout=60,
    )


def resident_kb(service: Service) -> int:
    """What the service holds in memory."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


def open_files(service: Service) -> int:
    """How many descriptors the service has open."""
    return len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))


def rounds(service: Service, netns: list[str], first: int, count: int) -> None:
    """`count` times Add and Del, by `CLIENTS` clients at once, each with its own connection."""

    def work(number: int) -> None:
        with Client(str(service.socket)) as client:
            for round_ in range(first + number, first + count, CLIENTS):
                add(client, f"c{round_}", netns[number])
                delete(client, f"c{round_}")

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(work, range(CLIENTS)))


def test_many_clients_at_once(service: Service, make_netns: Callable[..., Netns]) -> None:
    """2,000 Adds and Dels without an error; memory and descriptors stay where they were."""
    service.put(LOOPBACK)
    netns = [make_netns(f"c{number}").path for number in range(CLIENTS)]
    rounds(service, netns, 0, ROUNDS)  # fills the ring of events, the threads and the caches
    memory, files = resident_kb(service), open_files(service)
    rounds(service, netns, ROUNDS, ROUNDS)
    assert resident_kb(service) - memory < GROWTH_KB
    assert open_files(service) <= files + 2
    assert [] == service.attachments()


def test_a_watcher_sees_every_event_in_order(
    service: Service, make_netns: Callable[..., Netns]
) -> None:
    """1,000 attachments made and deleted by eight clients; each one's steps are all there."""
    service.put(LOOPBACK)
    netns = make_netns("c").path
    watch_all = attachments_pb2.WatchAttachmentsRequest()
    stream: Any = service.client.attachments.Watch(watch_all, timeout=120)
    assert "synced" == next(stream).WhichOneof("event")

    def work(number: int) -> None:
        with Client(str(service.socket)) as client:
            for one in range(number, WATCHED, 8):
                add(client, f"c{one}", netns)
                delete(client, f"c{one}")

    with ThreadPoolExecutor(9) as pool:
        working = [pool.submit(work, number) for number in range(8)]
        events = list(itertools.islice(stream, 4 * WATCHED))
        for done in working:
            done.result()
    seen: dict[str, list[Any]] = defaultdict(list)
    for event in events:
        if event.WhichOneof("event") == "changed":
            seen[event.changed.key.container_id].append(event.changed.state)
        else:
            seen[event.deleted.container_id].append("gone")
    assert WATCHED == len(seen)
    assert all([ADDING, READY, DELETING, "gone"] == steps for steps in seen.values())
    positions = [int(event.cursor.rpartition("-")[2]) for event in events]
    assert sorted(set(positions)) == positions
    # From any place of it the same again.
    resume = attachments_pb2.WatchAttachmentsRequest(cursor=events[99].cursor)
    again: Any = service.client.attachments.Watch(resume, timeout=60)
    assert events[100:300] == list(itertools.islice(again, 200))
