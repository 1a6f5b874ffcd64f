# SPDX-License-Identifier: Apache-2.0
"""Requests: CNI_ARGS strict and loose, attachments, capability arguments as runtimes send them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycni.errors import InvalidConfig, InvalidEnvironment
from pycni.model import jsonio
from pycni.model.addresses import IPAddress
from pycni.model.names import ContainerId, IfName, Mac
from pycni.model.request import (
    Attachment,
    Bandwidth,
    CniArgs,
    IpRange,
    PortMapping,
    Request,
    RuntimeConfig,
    RuntimeDns,
    Verb,
)


class Args(CniArgs, frozen=True, kw_only=True):
    """The keys a plugin with addresses knows."""

    IP: IPAddress | None = None
    MAC: Mac | None = None
    K8S_POD_NAME: str = ""


def refused(text: str) -> str:
    """The message CNI_ARGS is refused with."""
    with pytest.raises(InvalidEnvironment) as caught:
        Args.parse(text)
    return caught.value.msg


def test_arguments_are_typed() -> None:
    """A plugin lists its keys with their types."""
    expected = Args(IP=IPv4Address("10.0.0.5"), MAC=Mac("aa:bb:cc:dd:ee:ff"), K8S_POD_NAME="p")
    assert expected == Args.parse("IP=10.0.0.5;MAC=AA-BB-CC-DD-EE-FF;K8S_POD_NAME=p")
    assert Args() == Args.parse("")
    assert Args() == Args.parse("IP=;MAC=")


def test_the_last_of_equal_keys_wins() -> None:
    """As pairs are set one after the other."""
    assert "b" == Args.parse("K8S_POD_NAME=a;K8S_POD_NAME=b").K8S_POD_NAME


@pytest.mark.parametrize("text", ["A=b=c", "IP", "IP=10.0.0.5;", ";", " "])
def test_a_pair_has_exactly_one_equals_sign(text: str) -> None:
    """L18: the pair is named, and so is the variable (E2)."""
    assert refused(text).startswith('CNI_ARGS: invalid pair "')


def test_unknown_keys_are_an_error() -> None:
    """L18: all of them are listed; keys are case-sensitive."""
    assert 'CNI_ARGS: unknown args ["FOO=BAR" "ip=1.2.3.4"]' == refused(
        "FOO=BAR;IP=1.2.3.4;ip=1.2.3.4"
    )


@pytest.mark.parametrize("flag", ["1", "true", "TRUE"])
def test_unknown_keys_can_be_ignored(flag: str) -> None:
    """L18: wherever IgnoreUnknown stands."""
    assert Args(IgnoreUnknown=True) == Args.parse(f"FOO=BAR;IgnoreUnknown={flag}")


def test_ignore_unknown_is_a_boolean() -> None:
    """ "0" and "false" leave the check on."""
    assert 'CNI_ARGS: unknown args ["A=b"]' == refused("A=b;IgnoreUnknown=0")
    assert 'CNI_ARGS: IgnoreUnknown: not a boolean: "yes"' == refused("IgnoreUnknown=yes")


def test_a_bad_value_names_its_key() -> None:
    """Leading zeros are refused here as anywhere."""
    assert 'CNI_ARGS: IP: not an IP address: "10.44.0.010"' == refused("IP=10.44.0.010")


def test_arguments_can_be_read_loosely() -> None:
    """What is no pair is skipped, what follows the first equals sign is the value."""
    assert {"A": "b=c", "D": ""} == CniArgs.pairs("A=b=c;x;D=;")
    assert {} == CniArgs.pairs("")


@given(st.text(alphabet="IPMAC=;1.:x", max_size=30))
def test_no_arguments_raise_anything_but_code_4(text: str) -> None:
    """Whatever the environment holds."""
    CniArgs.pairs(text)
    try:
        Args.parse(text)
    except InvalidEnvironment as error:
        assert error.msg.startswith("CNI_ARGS: ")  # noqa: PT017


def test_an_attachment_has_the_specs_keys() -> None:
    """R20: and either may be compared and put in a set."""
    attachment = Attachment(ContainerId("c1"), IfName("eth0"))
    document = b'{"containerID":"c1","ifname":"eth0"}'
    assert document == jsonio.encode(attachment)
    assert frozenset({attachment}) == frozenset(jsonio.decode(b"[%b]" % document, list[Attachment]))
    with pytest.raises(InvalidConfig, match=r"^v\[0\]\.ifname: interface name contains / or :$"):
        jsonio.decode(b'[{"containerID": "c", "ifname": "a/b"}]', list[Attachment], where="v")


def test_a_request_needs_only_its_verb() -> None:
    """R10: which of the rest must be there depends on the verb."""
    request = Request(verb=Verb.STATUS)
    assert ("STATUS", "", (), None) == (
        f"{request.verb}",
        request.netns,
        request.path,
        request.netns_fd,
    )


def test_capability_arguments_are_read_as_containerd_sends_them() -> None:
    """go-cni's structs have no JSON tags: every key is capitalised, absent addresses are ""."""
    document = (
        b'{"portMappings": ['
        b'   {"HostPort": 80, "ContainerPort": 8080, "Protocol": "tcp", "HostIP": ""}],'
        b' "bandwidth": {"IngressRate": 18446744073709551615, "IngressBurst": 2},'
        b' "ipRanges": [[{"Subnet": "10.0.0.0/8", "RangeStart": "10.0.0.9", "Gateway": ""}]],'
        b' "dns": {"Servers": ["1.1.1.1"], "Searches": null, "Options": []},'
        b' "ips": ["10.0.0.5/8"], "mac": "", "aliases": ["db"], "cgroupPath": "/x", "unknown": {}}'
    )
    expected = RuntimeConfig(
        portMappings=(PortMapping(hostPort=80, containerPort=8080),),
        bandwidth=Bandwidth(ingressRate=2**64 - 1, ingressBurst=2),
        ipRanges=(
            (IpRange(subnet=IPv4Interface("10.0.0.0/8"), rangeStart=IPv4Address("10.0.0.9")),),
        ),
        dns=RuntimeDns(servers=("1.1.1.1",)),
        ips=("10.0.0.5/8",),
        aliases=("db",),
        cgroupPath="/x",
    )
    assert expected == jsonio.decode(document, RuntimeConfig)


def test_rates_are_not_negative() -> None:
    """Go's fields are unsigned."""
    with pytest.raises(InvalidConfig, match=r"^bandwidth\.egressRate: expected int >= 0$"):
        jsonio.decode(b'{"bandwidth": {"egressRate": -1}}', RuntimeConfig)
