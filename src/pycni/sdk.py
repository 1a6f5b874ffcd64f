# SPDX-License-Identifier: Apache-2.0
"""Everything a plugin author imports, and `run`, which makes a program of a plugin.

    from pycni.sdk import Call, Config, Plugin, Result, run

    class Greeter(Plugin[Config], type="greeter"):
        def add(self, call: Call[Config]) -> Result:
            return call.pass_through()

    if __name__ == "__main__":
        run(Greeter)

The same class is an executable of the plugin path, a plugin daemon (`greeter --serve SOCKET`) and,
as an entry point of the group `pycni.plugins`, part of the service. See docs/writing-plugins.md.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pycni.errors import (
    CniError,
    InvalidConfig,
    InvalidEnvironment,
    InvalidNetns,
    IOFailure,
    LimitedConnectivity,
    NotAvailable,
    TryAgain,
    UnknownContainer,
    UnsupportedField,
)
from pycni.model.request import Attachment, CniArgs, Verb
from pycni.model.result import DNS, Interface, IPConfig, Result, Route
from pycni.plugins.sdk import IPAM, Call, Config, Plugin

if TYPE_CHECKING:
    from pycni.service.plugin_server import PluginDaemon

__all__ = [
    "DNS",
    "IPAM",
    "Attachment",
    "Call",
    "CniArgs",
    "CniError",
    "Config",
    "IOFailure",
    "IPConfig",
    "Interface",
    "InvalidConfig",
    "InvalidEnvironment",
    "InvalidNetns",
    "LimitedConnectivity",
    "NotAvailable",
    "Plugin",
    "Result",
    "Route",
    "TryAgain",
    "UnknownContainer",
    "UnsupportedField",
    "Verb",
    "notify",
    "run",
]

SERVICE_VARIABLE = "PYCNI_SOCKET"
DEFAULT_SERVICE = "/run/pycni/cni.sock"
GRACE_S = 30.0

_daemon: PluginDaemon | None = None


def run(*plugins: type[Plugin[Any]]) -> NoReturn:
    """Be the program that its caller wants, and exit.

    With CNI_COMMAND in the environment: one execution of the plugin, by the CNI protocol. With
    `--serve SOCKET`: a daemon that serves all of `plugins` until SIGTERM. With neither: say on
    stderr what this is. An executable of several plugins goes by its own name.
    """
    by_type = {plugin.type: plugin() for plugin in plugins}
    name = os.path.basename(sys.argv[0]).removesuffix(".py")
    if name not in by_type:
        name = plugins[0].type
    if os.environ.get("CNI_COMMAND") or len(sys.argv) < 2:
        from pycni.exec import skel

        skel.main(name, by_type)
    options = _parser(name).parse_args()
    logging.basicConfig(
        stream=sys.stderr,
        level=options.log_level.upper(),
        format="%(levelname)s %(name)s %(message)s",
    )
    try:
        _serve(by_type, options)
    except CniError as error:
        sys.exit(f"{name}: {error}")
    sys.exit(0)


def notify(
    reason: str,
    message: str,
    *,
    plugin_type: str = "",
    network: str = "",
    container_id: str = "",
    ifname: str = "",
) -> bool:
    """Tell whoever watches the service's attachments; False where nobody could be told.

    `reason` is a short word for programs, `message` a line for people. Only a registered daemon
    is heard: an executable's caller reads its result, and in process there is the log.
    """
    daemon = _daemon
    if daemon is None or daemon.service is None:
        return False
    from pycni.service.pb.cni.v2alpha1 import attachments_pb2

    notice = attachments_pb2.PluginNotice(
        plugin_type=plugin_type, network=network, reason=reason, message=message
    )
    if container_id:
        notice.key.network, notice.key.container_id = network, container_id
        notice.key.ifname = ifname
    return daemon.service.notify(notice)


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=name, description="A CNI plugin: an executable, or with --serve a plugin daemon."
    )
    parser.add_argument(
        "--serve", metavar="SOCKET", type=Path, required=True, help="answer calls on this socket"
    )
    parser.add_argument(
        "--service",
        metavar="SOCKET",
        type=Path,
        default=Path(os.environ.get(SERVICE_VARIABLE) or DEFAULT_SERVICE),
        help="the service to register with and to delegate through (default: %(default)s)",
    )
    parser.add_argument(
        "--no-register",
        action="store_true",
        help="only networks that name this daemon's endpoint use it",
    )
    parser.add_argument(
        "--take-over", action="store_true", help="replace another daemon of the same type"
    )
    parser.add_argument(
        "--leave",
        action="store_true",
        help="when stopped, have the service forget the plugin instead of waiting for it",
    )
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"]
    )
    return parser


def _serve(plugins: dict[str, Plugin[Any]], options: argparse.Namespace) -> None:
    global _daemon
    # gRPC costs an executable 60 ms it does not need.
    from pycni.service import systemd
    from pycni.service.plugin_server import PluginDaemon

    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    daemon = _daemon = PluginDaemon(
        plugins,
        options.serve,
        service=options.service,
        register=not options.no_register,
        take_over=options.take_over,
        name=os.path.basename(sys.argv[0]),
    )
    daemon.start()
    systemd.notify("READY=1")
    while not stopped.wait(1.0):
        if daemon.superseded:
            break
    systemd.notify("STOPPING=1")
    daemon.stop(GRACE_S, leaving=options.leave)
