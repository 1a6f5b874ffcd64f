# SPDX-License-Identifier: Apache-2.0
"""`pycni demo`: the service at work from start to finish, in namespaces of its own.

The command starts itself anew inside fresh network and mount namespaces with an empty /run, so
it cannot disturb the machine or be disturbed by it. What it calls "outside" is one more namespace
on the far end of a link, which has no route back to the containers: only masquerading gets an
answer home.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pycni.errors import CniError, InvalidEnvironment

if TYPE_CHECKING:
    from rich.console import Console

    from pycni.client import Client

INSIDE = "PYCNI_DEMO_INSIDE"
ROOT = Path("/run/pycni-demo")
SOCKET = ROOT / "cni.sock"
NETWORKS = Path(__file__).parent / "networks"
START_TIMEOUT_S = 15.0

HOST_V4, OUTSIDE_V4 = "198.51.100.1", "198.51.100.2"
HOST_V6, OUTSIDE_V6 = "2001:db8:51::1", "2001:db8:51::2"
# Prints the address each visitor comes from: what masquerading must have changed.
WEB = """
import http.server, socket, socketserver, sys
class Visitor(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(f"{sys.argv[1]} greets {self.client_address[0]}".encode())
    def log_message(self, *_): pass
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
    server_bind = socketserver.TCPServer.server_bind  # HTTPServer's asks the DNS for our name
server = Server(("::", 80), Visitor)
print("listening", flush=True)
server.serve_forever()
"""


class DemoFailed(CniError):
    """A step of the demo did not show what it should."""


def demo() -> None:
    """Attach containers, ping, map ports, masquerade, delete, and prove that nothing is left."""
    if os.environ.get(INSIDE) != "1":
        _enter_namespaces()
    from rich.console import Console

    console = Console(highlight=False)
    started = time.monotonic()
    _prepare_host()
    demonstration = Demonstration(console)
    try:
        demonstration.run()
    finally:
        demonstration.stop()
    console.print(f"\n[green]all of it worked[/], in {time.monotonic() - started:.1f} s")


def _enter_namespaces() -> None:
    """Become this command again, inside."""
    if os.geteuid() != 0:
        raise InvalidEnvironment(
            "the demo makes network namespaces and must run as root", hint="sudo pycni demo"
        )
    program = shutil.which("unshare", path=_search_path())
    if program is None:
        raise InvalidEnvironment("unshare is missing", hint="install util-linux")
    command = [program, "--net", "--mount", "--propagation", "private", sys.executable, "-m"]
    environment = {**os.environ, INSIDE: "1", "PATH": _search_path()}
    os.execve(program, [*command, "pycni.cli.main", "demo"], environment)


def _search_path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin"


def _run(command: str) -> str:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise DemoFailed(f"{command}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def _prepare_host() -> None:
    """An empty /run and /var/lib/cni, a host that routes, and an outside world."""
    from pycni.kernel.sysctl import Sysctl

    for directory in ("/run", "/var/lib/cni"):
        Path(directory).mkdir(parents=True, exist_ok=True)
        _run(f"mount -t tmpfs -o mode=755 tmpfs {directory}")
    ROOT.mkdir()
    for line in (
        "ip link set lo up",
        "ip netns add outside",
        "ip link add uplink type veth peer name eth0 netns outside",
        f"ip addr add {HOST_V4}/24 dev uplink",
        f"ip addr add {HOST_V6}/64 dev uplink nodad",
        "ip link set uplink up",
        "ip -n outside link set lo up",
        f"ip -n outside addr add {OUTSIDE_V4}/24 dev eth0",
        f"ip -n outside addr add {OUTSIDE_V6}/64 dev eth0 nodad",
        "ip -n outside link set eth0 up",
    ):
        _run(line)
    # Of a node that routes; the plugins set them too and, as everywhere, leave them on.
    Sysctl().write_all({"net/ipv4/ip_forward": 1, "net/ipv6/conf/all/forwarding": 1})


class Demonstration:
    """The steps, each of which prints one line and fails loudly."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._children: list[subprocess.Popen[bytes]] = []
        self._service: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """All steps in order."""
        from pycni.client import Client
        from pycni.testing.world import snapshot

        before = snapshot()
        self._step(f"the service listens on {SOCKET}", self._start_service)
        with Client(str(SOCKET)) as client:
            self._attach()
            self._show_traffic()
            self._show_topology(client)
            self._detach()
        self._step("the service has stopped", self._stop_service)

        def compare() -> None:
            if differences := before.diff(snapshot()):
                raise DemoFailed("something is left behind", "; ".join(differences))

        self._step("links, addresses, routes, rules, nftables and sysctls are as before", compare)

    def stop(self) -> None:
        """End every process the demo started; the namespaces go with the last of them."""
        self._stop_service()
        for child in self._children:
            child.kill()
            child.wait()
        self._children.clear()

    def _step(self, done: str, action: Callable[[], object]) -> None:
        with self._console.status(done):
            start = time.monotonic()
            action()
        took = (time.monotonic() - start) * 1000
        self._console.print(f"[green]✓[/] {done} [dim]{took:.0f} ms[/]")

    def _pycni(self, arguments: str) -> str:
        """Run the command line as a user would."""
        return _run(f"{sys.executable} -m pycni.cli.main --socket {SOCKET} {arguments}")

    def _start_service(self) -> None:
        from pycni.client import Client

        log = (ROOT / "log").open("wb")
        command = f"{sys.executable} -m pycni.cli.main --socket {SOCKET} serve"
        options = f"--state-dir {ROOT}/state --shim-socket {ROOT}/shim.sock --conf-dir {ROOT}/net.d"
        self._service = subprocess.Popen([*command.split(), *options.split()], stderr=log)
        with Client(str(SOCKET)) as client:
            try:
                client.wait_ready(START_TIMEOUT_S)
            except CniError as error:
                raise DemoFailed(error.msg, (ROOT / "log").read_text()) from error

    def _stop_service(self) -> None:
        if self._service is not None:
            self._service.terminate()
            self._service.wait(START_TIMEOUT_S)
            self._service = None

    def _attach(self) -> None:
        for file in ("dbnet.jsonc", "edge.json"):
            path = NETWORKS / file
            self._step(f"network put {file}", partial(self._pycni, f"network put {path}"))
        for network, name, more in (
            ("dbnet", "db1", ""),
            ("dbnet", "db2", ""),
            ("edge", "web1", "-p 8080:80 -p 8081:80/tcp"),
            ("edge", "web2", ""),
        ):
            _run(f"ip netns add {name}")
            arguments = f"add {network} {name} --netns /run/netns/{name} {more}"
            self._step(arguments, partial(self._pycni, arguments))

    def _show_traffic(self) -> None:
        db2, web2 = self._addresses("db2"), self._addresses("web2")
        ping = f"ip netns exec db1 ping -c1 -W2 {db2[0]}"
        self._step(f"db1 pings db2 at {db2[0]}", partial(_run, ping))
        for address in web2:
            ping = f"ip netns exec web1 ping -c1 -W2 {address}"
            self._step(f"web1 pings web2 at {address}", partial(_run, ping))
        self._start_web("web1")
        self._start_web("outside")
        for address in (HOST_V4, f"[{HOST_V6}]"):
            url = f"http://{address}:8080/"
            self._expect_page("outside", url, "web1 greets")
        for address, host in ((OUTSIDE_V4, HOST_V4), (f"[{OUTSIDE_V6}]", HOST_V6)):
            self._expect_page("web2", f"http://{address}/", f"outside greets {host}", f" as {host}")

    def _expect_page(self, visitor: str, url: str, expected: str, how: str = "") -> None:
        def fetch() -> None:
            page = _run(f"ip netns exec {visitor} {sys.executable} -c {_fetcher(url)}")
            if expected not in page.replace("::ffff:", ""):
                raise DemoFailed(f"{url} answered {page!r}", f"expected {expected!r}")

        self._step(f"{visitor} fetches {url}{how}", fetch)

    def _start_web(self, name: str) -> None:
        command = ["ip", "netns", "exec", name, sys.executable, "-c", WEB, name]
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._children.append(child)
        assert child.stdout is not None
        if not child.stdout.readline():
            raise DemoFailed(f"the web server of {name} did not start")

    def _addresses(self, container: str) -> list[str]:
        import json

        listed = json.loads(
            _run(
                f"{sys.executable} -m pycni.cli.main --socket {SOCKET} --json"
                f" list --container {container}"
            )
        )
        return [ip["address"].partition("/")[0] for ip in listed[0]["result"]["ips"]]

    def _show_topology(self, client: Client) -> None:
        from pycni.cli.tree import build_tree

        self._console.print()
        self._console.print(self._pycni("network list").rstrip())
        self._console.print(self._pycni("list").rstrip(), soft_wrap=True)
        self._console.print(build_tree(client))
        self._console.print()

    def _detach(self) -> None:
        for network, name in (("edge", "web1"), ("edge", "web2"), ("dbnet", "db1")):
            arguments = f"del {network} {name}"
            self._step(arguments, partial(self._pycni, arguments))
        for child in self._children:
            child.kill()
            child.wait()
        self._children.clear()
        _run("ip netns del db2")
        self._step("del dbnet db2, whose namespace is gone", partial(self._pycni, "del dbnet db2"))
        for name in ("db1", "web1", "web2"):
            _run(f"ip netns del {name}")
        self._step("gc", partial(self._pycni, "gc"))
        for network in ("dbnet", "edge"):
            arguments = f"network delete {network}"
            self._step(arguments, partial(self._pycni, arguments))


def _fetcher(url: str) -> str:
    """A program without blanks, for a command that is split at them."""
    return (
        "__import__('sys').stdout.write("
        f"__import__('urllib.request').request.urlopen('{url}',timeout=3).read().decode())"
    )
