# SPDX-License-Identifier: Apache-2.0
"""static: where addresses come from, which source wins, and what is refused."""

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


def config_of(ipam: Json, **keys: Any) -> Json:
    """A network with static addresses."""
    base = {"cniVersion": "1.1.0", "name": "podnet", "type": "bridge"}
    return base | {"ipam": {"type": "static"} | ipam} | keys


def call(verb: Verb, config: Json, args: str = "") -> Json:
    """Run one verb from bytes to bytes."""
    named = verb not in (Verb.GC, Verb.STATUS)
    request = Request(
        verb=verb,
        container_id="c1" if named else "",
        ifname="eth0" if named else "",
        args=args,
        config=msgspec.json.encode(config),
    )
    with Side() as side:
        output = dispatch(
            load("static"),
            request,
            host=side,
            delegate=None,  # type: ignore[arg-type]  # an IPAM plugin delegates nothing
            deadline=Deadline(),
        )
    return msgspec.json.decode(output) if output else {}


def fault(verb: Verb, config: Json, args: str = "") -> tuple[int, str]:
    """Code and message of a call that fails."""
    with pytest.raises(CniError) as caught:
        call(verb, config, args)
    return caught.value.wire_code, caught.value.msg


TWO = {
    "addresses": [
        {"address": "10.10.0.1/24", "gateway": "10.10.0.254"},
        {"address": "3ffe:ffff:0:1ff::1/64", "gateway": "3ffe:ffff:0::1"},
    ],
    "routes": [
        {"dst": "0.0.0.0/0"},
        {"dst": "192.168.0.0/16", "gw": "10.10.5.1"},
        {"dst": "192.168.0.0/16", "gw": "10.10.5.2"},
        {"dst": "3ffe:ffff:0:1ff::1/64", "priority": 5},
    ],
    "dns": {"nameservers": ["8.8.8.8"], "domain": "example.com", "search": ["example.com"]},
}


def test_add_returns_what_is_configured() -> None:
    """Addresses, gateways, routes with equal destinations, dns."""
    result = call(Verb.ADD, config_of(TWO))

    assert {
        "cniVersion": "1.1.0",
        "ips": [
            {"address": "10.10.0.1/24", "gateway": "10.10.0.254"},
            {"address": "3ffe:ffff:0:1ff::1/64", "gateway": "3ffe:ffff::1"},
        ],
        "routes": TWO["routes"],
        "dns": TWO["dns"],
    } == result
    call(Verb.CHECK, config_of(TWO, prevResult=result))
    call(Verb.DEL, config_of(TWO))
    call(Verb.GC, config_of(TWO) | {"cni.dev/valid-attachments": []})
    call(Verb.STATUS, config_of(TWO))


def test_no_address_is_a_result_too() -> None:
    """The Go plugin has it so."""
    assert {"cniVersion": "1.1.0"} == call(Verb.ADD, config_of({}))


SOURCES: list[tuple[Json, str, list[Json]]] = [
    (
        {},
        "IP=10.10.0.1/24, 11.11.0.1/24;GATEWAY=10.10.0.254",
        [
            {"address": "10.10.0.5/24", "gateway": "10.10.0.9"},
            {"address": "10.10.0.1/24", "gateway": "10.10.0.254"},
            {"address": "11.11.0.1/24"},
        ],
    ),
    (
        {},
        "GATEWAY=10.10.0.254;IP=10.10.0.1/24;IgnoreUnknown=1;K8S_POD_NAME=x",
        [
            {"address": "10.10.0.5/24", "gateway": "10.10.0.9"},
            {"address": "10.10.0.1/24", "gateway": "10.10.0.254"},
        ],
    ),
    (
        {"args": {"cni": {"ips": ["10.10.0.2/24", "::ffff:10.10.0.3/120"]}}},
        "IP=10.10.0.1/24",
        [{"address": "10.10.0.2/24"}, {"address": "10.10.0.3/24"}],
    ),
    (
        {"args": {"cni": {"ips": ["10.10.0.2/24"]}}, "runtimeConfig": {"ips": ["10.10.0.4/24"]}},
        "",
        [{"address": "10.10.0.4/24"}],
    ),
]


@pytest.mark.parametrize(("keys", "args", "expected"), SOURCES)
def test_cni_args_add_and_the_other_sources_replace(
    keys: Json, args: str, expected: list[Json]
) -> None:
    """The capability before `args` before configuration and CNI_ARGS."""
    configured = {"addresses": [{"address": "10.10.0.5/24", "gateway": "10.10.0.9"}]}
    config = config_of(configured, **keys)
    result = call(Verb.ADD, config, args)

    assert expected == result["ips"]
    call(Verb.CHECK, config | {"prevResult": result}, args)


FAULTS: list[tuple[Json, Json, str, int, str]] = [
    (
        {"addresses": [{"address": "10.10.0.1/24"}, {"address": "10.10.0.1"}]},
        {},
        "",
        7,
        "ipam.addresses[1].address: the 'address' field is expected to be in CIDR notation, "
        "got: '10.10.0.1'",
    ),
    (
        {"addresses": [{"address": "10.10.0.1/24", "gateway": "x"}]},
        {},
        "",
        7,
        'ipam.addresses[0].gateway: not an IP address: "x"',
    ),
    (
        {},
        {"args": {"cni": {"ips": ["10.10.0.1"]}}},
        "",
        7,
        "args.cni.ips[0]: an entry in the 'ips' field is NOT in CIDR notation, got: '10.10.0.1'",
    ),
    (
        {},
        {"runtimeConfig": {"ips": ["10.10.0.1/24", ""]}},
        "",
        7,
        "runtimeConfig.ips[1]: an entry in the 'ips' field is NOT in CIDR notation, got: ''",
    ),
    (
        {},
        {},
        "IP=10.10.0.1/24,10.10.0.2",
        4,
        "CNI_ARGS: the 'ip' field is expected to be in CIDR notation, got: '10.10.0.2'",
    ),
    ({}, {}, "GATEWAY=10.10.0", 4, "CNI_ARGS: invalid gateway address: 10.10.0"),
    ({}, {}, "FOO=BAR", 4, 'CNI_ARGS: unknown args ["FOO=BAR"]'),
    (
        {"addresses": [{"address": "10.10.0.1/24"}, {"address": "10.10.1.1/24"}]},
        {"cniVersion": "0.2.0"},
        "",
        7,
        "ipam.addresses: CNI version 0.2.0 does not support more than 1 address per family",
    ),
]


@pytest.mark.parametrize(("ipam", "keys", "args", "code", "message"), FAULTS)
def test_what_is_no_address_is_refused_with_its_path(
    ipam: Json, keys: Json, args: str, code: int, message: str
) -> None:
    """The path in front, then the known words; DEL does not care."""
    config = config_of(ipam, **keys)

    assert (code, message) == fault(Verb.ADD, config, args)
    call(Verb.DEL, config, args)
    if not args:
        with pytest.raises(CniError) as caught:
            load("static").validate(parse_config(load("static"), msgspec.json.encode(config)))
        assert message == caught.value.msg
    if not args and config["cniVersion"] == "1.1.0":
        assert (50, message) == fault(Verb.STATUS, config)


def test_check_misses_an_address_and_a_gateway() -> None:
    """Whatever else the result has."""
    config = config_of({"addresses": [{"address": "10.10.0.1/24", "gateway": "10.10.0.254"}]})
    for ips in ([], [{"address": "10.10.0.1/24", "gateway": "10.10.0.253"}]):
        result = {"cniVersion": "1.1.0", "ips": ips}
        assert (
            999,
            "static: the result has no address 10.10.0.1/24 with gateway 10.10.0.254",
        ) == fault(Verb.CHECK, config | {"prevResult": result})
