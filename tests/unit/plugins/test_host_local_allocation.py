# SPDX-License-Identifier: Apache-2.0
"""host-local's choice of address against the plain algorithm, over random histories."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pycni.errors import CniError
from pycni.kernel.side import Side
from pycni.model.deadline import Deadline
from pycni.model.request import Request, Verb
from pycni.plugins import load
from pycni.runtime.dispatch import dispatch

# (subnet, start, end, gateway); None is the default.
Range = tuple[str, str | None, str | None, str | None]
SETS: list[list[Range]] = [
    [("10.0.0.0/29", None, None, None)],
    [
        ("10.0.1.0/30", None, None, None),
        ("10.0.2.0/28", "10.0.2.5", "10.0.2.7", "10.0.2.6"),
        ("10.0.3.0/29", None, "10.0.3.2", "10.9.9.9"),
    ],
]

containers = st.sampled_from([f"c{number}" for number in range(12)])
addresses = st.sampled_from(
    ["10.0.0.1", "10.0.0.3", "10.0.0.6", "10.0.1.2", "10.0.2.5", "10.0.3.1", "10.0.4.1"]
)


def members(each: Range, *, gateway: bool = False) -> Iterator[IPv4Address]:
    """The addresses of a range one by one, its gateway only if asked for."""
    subnet, start, end, given = each
    network = IPv4Network(subnet)
    first = IPv4Address(start) if start else network[1]
    last = IPv4Address(end) if end else network[-2]
    for value in range(int(first), int(last) + 1):
        if gateway or IPv4Address(value) != (IPv4Address(given) if given else network[1]):
            yield IPv4Address(value)


def config() -> dict[str, Any]:
    """The ranges as a network configuration."""
    keys = ("subnet", "rangeStart", "rangeEnd", "gateway")
    ranges = [
        [{k: v for k, v in zip(keys, each, strict=True) if v} for each in texts] for texts in SETS
    ]
    return {"type": "host-local", "ranges": ranges}


class Histories(RuleBasedStateMachine):
    """ADD, DEL, GC and other people's changes; the model walks the addresses one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.data_dir = Path(tempfile.mkdtemp())
        self.directory = self.data_dir / "net"
        self.ipam = config() | {"dataDir": str(self.data_dir)}
        self.held: dict[str, str] = {}
        self.last: dict[int, IPv4Address] = {}

    def teardown(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.data_dir)

    def call(self, verb: Verb, container_id: str = "", args: str = "", **keys: Any) -> list[str]:
        """Run the plugin; the addresses it gives."""
        document = {"cniVersion": "1.1.0", "name": "net", "ipam": self.ipam, **keys}
        request = Request(
            verb=verb,
            container_id=container_id,
            ifname="eth0",
            args=args,
            config=msgspec.json.encode(document),
        )
        with Side() as side:
            output = dispatch(
                load("host-local"),
                request,
                host=side,
                delegate=None,  # type: ignore[arg-type]  # an IPAM plugin delegates nothing
                deadline=Deadline(10),
            )
        result = msgspec.json.decode(output) if output else {}
        return [ip["address"].partition("/")[0] for ip in result.get("ips", ())]

    def choose(self, number: int, container_id: str, wanted: IPv4Address | None) -> str | None:
        """What the plain algorithm leases of a set; None if it refuses."""
        everything = [address for each in SETS[number] for address in members(each)]
        inside = [ip for each in SETS[number] for ip in members(each, gateway=True)]
        if wanted in inside:
            free = wanted in everything and str(wanted) not in self.held
            return str(wanted) if free else None
        if any(self.held.get(str(address)) == container_id for address in inside):
            return None
        last = self.last.get(number)
        if last in everything:
            start = everything.index(last) + 1
            everything = everything[start:] + everything[:start]
        return next((str(each) for each in everything if str(each) not in self.held), None)

    def add(self, container_id: str, wanted: str | None = None) -> None:
        """ADD in the model and in the plugin."""
        request = IPv4Address(wanted) if wanted else None
        expected: list[str] = []
        for number in range(len(SETS)):
            chosen = self.choose(number, container_id, request)
            if chosen is None:
                break
            self.last[number] = IPv4Address(chosen)  # which a rollback does not take back
            expected.append(chosen)
        fits = not wanted or wanted in expected
        try:
            given = self.call(Verb.ADD, container_id, f"IP={wanted}" if wanted else "")
        except CniError:
            assert len(expected) < len(SETS) or not fits
        else:
            assert expected == given
            self.held.update(dict.fromkeys(given, container_id))

    @rule(container_id=containers)
    def add_any(self, container_id: str) -> None:
        """An attachment takes what comes."""
        self.add(container_id)

    @rule(container_id=containers, wanted=addresses)
    def add_requested(self, container_id: str, wanted: str) -> None:
        """An attachment asks for an address, of our ranges or not."""
        self.add(container_id, wanted)

    @rule(container_id=containers)
    def delete(self, container_id: str) -> None:
        """An attachment goes."""
        self.call(Verb.DEL, container_id)
        self.held = {ip: holder for ip, holder in self.held.items() if holder != container_id}

    @rule(valid=st.sets(containers))
    def collect(self, valid: set[str]) -> None:
        """All but some attachments are gone."""
        attachments = [{"containerID": each, "ifname": "eth0"} for each in sorted(valid)]
        self.call(Verb.GC, **{"cni.dev/valid-attachments": attachments})
        self.held = {ip: holder for ip, holder in self.held.items() if holder in valid}

    @rule(container_id=containers, address=addresses)
    def somebody_leases(self, container_id: str, address: str) -> None:
        """The Go plugin leases an address, known to us or not."""
        self.directory.mkdir(exist_ok=True)
        if address not in self.held:
            (self.directory / address).unlink(missing_ok=True)  # both make lease files anew
            (self.directory / address).write_bytes(f"{container_id}\r\neth0".encode())
            self.held[address] = container_id

    @rule(address=addresses)
    def somebody_releases(self, address: str) -> None:
        """The Go plugin, or an operator, releases one."""
        if self.held.pop(address, None):
            (self.directory / address).unlink()

    @rule(address=addresses, content=st.sampled_from([b"", b"\0"]))
    def the_power_fails(self, address: str, content: bytes) -> None:
        """A lease file of nobody's is left behind."""
        self.directory.mkdir(exist_ok=True)
        if address not in self.held:
            (self.directory / address).write_bytes(content)

    @invariant()
    def the_directory_says_what_the_model_says(self) -> None:
        """Every lease, its holder, and nothing else that is somebody's."""
        files = self.directory.iterdir() if self.directory.exists() else ()
        found = {
            path.name: path.read_bytes().decode().removesuffix("\r\neth0")
            for path in files
            if path.name[0].isdigit() and path.stat().st_size > 1
        }
        assert found == self.held


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase
