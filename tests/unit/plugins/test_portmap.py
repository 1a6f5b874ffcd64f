# SPDX-License-Identifier: Apache-2.0
"""portmap's configuration: what is refused, by which code and with which words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pycni.errors import CniError
from pycni.kernel.side import Side
from pycni.model.deadline import Deadline
from pycni.model.request import Request, Verb
from pycni.plugins import load
from pycni.runtime.dispatch import dispatch, parse_config

Json = dict[str, Any]

WEB = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
PORTS = "runtimeConfig.portMappings"
FAULTS: list[tuple[Json, int, str]] = [
    (
        {"runtimeConfig": {"portMappings": [WEB, WEB | {"hostPort": 0}]}},
        7,
        f"{PORTS}[1].hostPort: Invalid host port number: 0",
    ),
    (
        {"runtimeConfig": {"portMappings": [WEB | {"hostPort": 65536}]}},
        7,
        f"{PORTS}[0].hostPort: Invalid host port number: 65536",
    ),
    (
        {"runtimeConfig": {"portMappings": [WEB | {"containerPort": -1}]}},
        7,
        f"{PORTS}[0].containerPort: Invalid container port number: -1",
    ),
    (
        {"runtimeConfig": {"portMappings": [WEB | {"protocol": "icmp"}]}},
        7,
        f'{PORTS}[0].protocol: invalid protocol "icmp", not one of tcp, udp, sctp',
    ),
    (
        {"runtimeConfig": {"portMappings": [WEB | {"hostIP": "10.0.0.256"}]}},
        7,
        f'{PORTS}[0].hostIP: not an IP address: "10.0.0.256"',
    ),
    (
        {"RuntimeConfig": {"PortMappings": [{"HostPort": "80", "ContainerPort": 80}]}},
        7,
        "RuntimeConfig.PortMappings[0].HostPort: expected int, got str",
    ),
    ({"markMasqBit": 32}, 7, "markMasqBit: MasqMarkBit must be between 0 and 31"),
    (
        {"markMasqBit": 5, "externalSetMarkChain": "X"},
        7,
        "externalSetMarkChain: Cannot specify externalSetMarkChain and markMasqBit",
    ),
    ({"backend": "x"}, 7, 'backend: unrecognized backend "x"'),
    (
        {"backend": "nftables", "externalSetMarkChain": "X", "conditionsV4": ["!", "-s", "::"]},
        7,
        "externalSetMarkChain: nftables backend was requested but configuration contains "
        "iptables-specific options [externalSetMarkChain conditionsV4]",
    ),
    (
        {"conditionsV4": ["ip saddr 192.0.2.7;", "drop"]},
        7,
        "conditionsV4: one nft expression, without ; or # or line breaks",
    ),
    (
        {"conditionsV6": ["-s", "::1\n-A FORWARD -j ACCEPT"]},
        7,
        "conditionsV6: a line break or another control character",
    ),
    (
        {"externalSetMarkChain": "X -j ACCEPT"},
        7,
        'externalSetMarkChain: not the name of a chain: "X -j ACCEPT"',
    ),
    (
        {"backend": "iptables", "conditionsV6": ["ip6 saddr ::1"]},
        7,
        "conditionsV6: iptables backend was requested but configuration contains "
        "nftables-specific options [conditionsV6]",
    ),
]


def document(keys: Json) -> bytes:
    """A configuration behind a plugin that made an interface."""
    base = {"cniVersion": "1.1.0", "name": "podnet", "type": "portmap"}
    prev_result = {"cniVersion": "1.1.0", "ips": [{"address": "10.1.2.2/24"}]}
    mappings = {"portMappings": [WEB]}
    return msgspec.json.encode(base | {"prevResult": prev_result, "runtimeConfig": mappings} | keys)


@pytest.mark.parametrize(("keys", "code", "message"), FAULTS, ids=[m for _, _, m in FAULTS])
def test_a_wrong_configuration_is_refused_with_its_path(
    keys: Json, code: int, message: str
) -> None:
    """By ADD and CHECK before the kernel is asked anything, and by validation before that."""
    if "RuntimeConfig" in keys:
        keys = {"runtimeConfig": None} | keys
    portmap = load("portmap")
    for verb in (Verb.ADD, Verb.CHECK):
        request = Request(
            verb=verb,
            container_id="c1",
            ifname="eth0",
            netns="/nonexistent",
            config=document(keys),
        )
        with pytest.raises(CniError) as caught, Side() as side:
            dispatch(
                portmap,
                request,
                host=side,
                delegate=None,  # type: ignore[arg-type]  # portmap delegates nothing
                deadline=Deadline(),
            )
        assert (code, message) == (caught.value.wire_code, caught.value.msg)
    with pytest.raises(CniError) as caught:
        portmap.validate(parse_config(portmap, document(keys)))
    assert message == caught.value.msg
