# SPDX-License-Identifier: Apache-2.0
"""A Windows node for tests: the simulator, the way to reach it, and plugin calls on it.

The same node stands on three levels (see conftest.py): plugins call the simulator directly,
through ctypes and the stand-in ELF library, or, on Windows, through ctypes and the stand-in DLLs.
"""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any

import msgspec

from pycni import plugins
from pycni.errors import CniError
from pycni.kernel.side import Side
from pycni.model.deadline import Deadline
from pycni.model.request import Request, Verb
from pycni.runtime.dispatch import dispatch
from pycni.testing.hns_simulator import HnsSimulator, NativeCall
from pycni.windows import abi, calls
from pycni.windows.service import Service, connect

Doc = dict[str, Any]

CBR0 = {
    "Type": "L2Bridge",
    "Name": "cbr0",
    "Subnets": [{"AddressPrefix": "10.244.3.0/24", "GatewayAddress": "10.244.3.1"}],
}
VXLAN0 = {
    "Type": "Overlay",
    "Name": "vxlan0",
    "Ipams": [
        {
            "Type": "Static",
            "Subnets": [
                {
                    "IpAddressPrefix": "10.245.3.0/24",
                    "Routes": [{"NextHop": "10.245.3.1", "DestinationPrefix": "0.0.0.0/0"}],
                    "Policies": [{"Type": "VSID", "Settings": {"IsolationId": 4096}}],
                }
            ],
        }
    ],
    "SchemaVersion": {"Major": 2, "Minor": 0},
}


class Outcome(msgspec.Struct, frozen=True):
    """What one plugin call came to: a result document, nothing, or an error."""

    result: Doc | None = None
    error: CniError | None = None

    def expect(self) -> Doc:
        """The result; raise the error if it was one."""
        if self.error is not None:
            raise self.error
        return self.result or {}

    def expect_error(self) -> CniError:
        """The error; fail if there was none."""
        assert self.error is not None, f"no error but {self.result}"
        return self.error


class IpamDelegate:
    """Runs built-in IPAM plugins and notes each run among the simulator's calls."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def run(self, plugin_type: str, request: Request, deadline: Deadline) -> bytes:
        self._node.simulator.calls.append(
            NativeCall(f"IPAM {request.verb}", abi.NIL, 0, (request.container_id,))
        )
        if plugin_type == "scripted":
            return self._node.scripted_ipam(request)
        plugin = plugins.load(plugin_type)
        return dispatch(plugin, request, host=self._node.side, delegate=self, deadline=deadline)


class Node:
    """One Windows node under test."""

    def __init__(self, simulator: HnsSimulator, data_dir: pathlib.Path, level: str) -> None:
        self.simulator = simulator
        self.data_dir = data_dir
        self.level = level
        self.side = Side()
        self.ipam_answers: list[Doc | CniError] = []
        self.namespace = ""

    @property
    def service(self) -> Service:
        return connect(Deadline(30))

    def new_namespace(self) -> str:
        """A namespace as containerd makes one for a sandbox."""
        return str(self.simulator.add_namespace())

    def ipam(self, subnet: str = "10.244.3.0/24", start: str = "10.244.3.10") -> Doc:
        """A host-local configuration that keeps its leases in this test's directory."""
        return {
            "type": "host-local",
            "subnet": subnet,
            "rangeStart": start,
            "dataDir": str(self.data_dir),
        }

    def answer_ipam(self, *answers: Doc | CniError) -> Doc:
        """An IPAM that gives these results to successive ADDs."""
        self.ipam_answers = list(answers)
        return {"type": "scripted"}

    def scripted_ipam(self, request: Request) -> bytes:
        if request.verb is not Verb.ADD:
            return b""
        answer = self.ipam_answers.pop(0)
        if isinstance(answer, CniError):
            raise answer
        return json.dumps({"cniVersion": "1.0.0"} | answer).encode()

    def run(
        self,
        verb: str,
        conf: Doc,
        *,
        container_id: str = "c1",
        netns: str | None = None,
        args: str = "",
        timeout_s: float = 30,
    ) -> Outcome:
        """Call the plugin of `conf` as a runtime does."""
        request = Request(
            verb=Verb(verb),
            container_id=container_id,
            netns=self.namespace if netns is None else netns,
            ifname="eth0",
            args=args,
            config=json.dumps(conf).encode(),
        )
        try:
            stdout = dispatch(
                plugins.load(conf["type"]),
                request,
                host=self.side,
                delegate=IpamDelegate(self),
                deadline=Deadline(timeout_s),
            )
        except CniError as error:
            return Outcome(error=error)
        return Outcome(result=json.loads(stdout) if stdout else None)

    # What happened

    def functions(self) -> list[str]:
        """The functions called so far, in order."""
        return [call.function for call in self.simulator.calls]

    def bodies(self, function: str) -> list[Doc]:
        """The documents given to a function, oldest first."""
        return [
            json.loads(call.texts[-1])
            for call in self.simulator.calls
            if call.function == function and call.texts
        ]

    def created(self) -> Doc:
        """The last endpoint asked for in schema 2."""
        return self.bodies("HcnCreateEndpoint")[-1]

    def created_v1(self) -> Doc:
        """The last endpoint asked for in schema 1."""
        bodies = [
            call.texts[2]
            for call in self.simulator.calls
            if call.function == "HNSCall" and call.texts[:2] == ("POST", "/endpoints/")
        ]
        document: Doc = json.loads(bodies[-1])
        return document

    def policies(self) -> list[Doc]:
        """Its policies."""
        return list(self.created().get("Policies") or [])

    def endpoint(self, name: str) -> Doc:
        """The one endpoint of that name in the service."""
        (found,) = self.simulator.named("Endpoint", name)
        return found

    def leases(self, network: str = "cbr0") -> list[str]:
        """Addresses host-local holds."""
        directory = self.data_dir / network
        names = [entry.name for entry in directory.iterdir()] if directory.is_dir() else []
        return sorted(name for name in names if name[0].isdigit())


def bridge(**keys: Any) -> Doc:
    """A win-bridge configuration."""
    return {"cniVersion": "1.1.0", "name": "cbr0", "type": "win-bridge"} | keys


def overlay(**keys: Any) -> Doc:
    """A win-overlay configuration."""
    return {"cniVersion": "1.1.0", "name": "vxlan0", "type": "win-overlay"} | keys


def wait_until_clean(simulator: HnsSimulator) -> None:
    """Late calls close their handles on their own threads."""
    for _ in range(200):
        if not simulator.open_handles and not calls._Hanging.count:
            return
        time.sleep(0.01)
