# SPDX-License-Identifier: Apache-2.0
"""dispatch: everything is checked before a plugin acts, in the order plugins are known to check."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

import pytest

from pycni.errors import (
    CniError,
    DecodeFailure,
    IncompatibleVersion,
    InvalidConfig,
    InvalidNetns,
    TryAgain,
)
from pycni.kernel.side import Side
from pycni.model.deadline import Deadline
from pycni.model.request import Attachment, Request, Verb
from pycni.runtime.dispatch import InternalError, dispatch
from pycni.runtime.executors import InProcess
from tests.unit.runtime.fakes import Noop

ALL = '["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]'


@pytest.fixture
def noop() -> Noop:
    """A plugin that remembers its calls."""
    return Noop("noop", [])


def call(noop: Noop, verb: Verb, config: Any = None, **more: Any) -> bytes:
    """Dispatch one verb; `config` is merged into a good one, or sent as it is if it is bytes."""
    if not isinstance(config, bytes):
        good = {"cniVersion": "1.1.0", "name": "net", "type": "noop"}
        config = json.dumps({**good, **(config or {})}).encode()
    request = Request(
        verb=verb, config=config, **{"container_id": "c1", "ifname": "eth0", "netns": "", **more}
    )
    host = Side()
    return dispatch(
        noop, request, host=host, delegate=InProcess(host).delegate, deadline=Deadline(5)
    )


def test_a_result_is_encoded_in_the_configs_version(noop: Noop) -> None:
    """SPEC V5: the result's cniVersion is the request's, and so is its layout."""
    result = json.loads(call(noop, Verb.ADD, {"cniVersion": "0.4.0"}))
    assert "0.4.0" == result["cniVersion"]
    assert "4" == result["ips"][0]["version"]


@pytest.mark.parametrize("verb", [Verb.DEL, Verb.STATUS])
def test_other_verbs_print_nothing(noop: Noop, verb: Verb) -> None:
    """Only ADD has a result."""
    assert b"" == call(noop, verb)


@pytest.mark.parametrize("config", [b"", b"{", b"[1]", b"\xff", b'{"name": NaN}', b"{} {}"])
def test_what_is_not_a_json_object_is_refused(noop: Noop, config: bytes) -> None:
    """P14: decoding comes first."""
    with pytest.raises((DecodeFailure, InvalidConfig)):
        call(noop, Verb.ADD, config)
    assert [] == noop.calls


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "missing network name"),
        (None, "missing network name"),
        ("../x", "invalid characters found in network name"),
        ("net\n", "invalid characters found in network name"),
    ],
)
@pytest.mark.parametrize("verb", [Verb.ADD, Verb.DEL, Verb.GC, Verb.STATUS])
def test_the_name_is_checked_for_every_verb_before_the_version(
    noop: Noop, verb: Verb, name: str | None, message: str
) -> None:
    """P14: name (7) comes before the version gate (1)."""
    with pytest.raises(InvalidConfig, match=message):
        call(noop, verb, {"name": name, "cniVersion": "9.9.9"})


@pytest.mark.parametrize(
    ("verb", "version"), [(Verb.CHECK, "0.3.1"), (Verb.GC, "1.0.0"), (Verb.STATUS, "1.0.0")]
)
def test_a_verb_the_config_version_does_not_have_is_refused(
    noop: Noop, verb: Verb, version: str
) -> None:
    """3.8: CHECK needs 0.4.0, GC and STATUS need 1.1.0."""
    with pytest.raises(IncompatibleVersion) as caught:
        call(noop, verb, {"cniVersion": version})
    assert f"config version does not allow {verb}" == caught.value.msg
    assert 1 == caught.value.wire_code


@pytest.mark.parametrize("version", ["0.5.0", "1.0", "latest", "2.0.0"])
@pytest.mark.parametrize("verb", [Verb.ADD, Verb.CHECK, Verb.STATUS])
def test_an_unsupported_version_names_both_sides(noop: Noop, verb: Verb, version: str) -> None:
    """P12: the match is exact, and the details name what is supported."""
    with pytest.raises(IncompatibleVersion) as caught:
        call(noop, verb, {"cniVersion": version})
    assert "incompatible CNI versions" == caught.value.msg
    assert f'config is "{version}", plugin supports {ALL}' == caught.value.details


def test_a_missing_version_is_0_1_0(noop: Noop) -> None:
    """P13, also for what the plugin sees."""
    result = json.loads(call(noop, Verb.ADD, b'{"name": "net"}'))
    assert "0.1.0" == result["cniVersion"]
    assert "0.1.0" == noop.last(Verb.ADD).config.cniVersion


def test_an_empty_version_is_0_1_0(noop: Noop) -> None:
    """Go's zero value."""
    call(noop, Verb.DEL, {"cniVersion": ""})
    assert "0.1.0" == noop.last(Verb.DEL).config.cniVersion


def test_a_wrong_type_is_refused_with_its_path(noop: Noop) -> None:
    """User faults come before the plugin."""
    with pytest.raises(InvalidConfig) as caught:
        call(noop, Verb.ADD, {"size": "big"})
    assert "size: expected int, got str" == caught.value.msg
    assert "1.1.0" == caught.value.cni_version
    assert [] == noop.calls


def test_keys_match_without_regard_to_case(noop: Noop) -> None:
    """Go decodes like that, and configurations in the wild rely on it."""
    call(noop, Verb.ADD, b'{"CNIVersion": "1.0.0", "NAME": "net", "Size": 3}')
    assert 3 == noop.last(Verb.ADD).config.size
    assert "1.0.0" == noop.last(Verb.ADD).config.cniVersion


def test_prev_result_without_a_version_has_the_configs(noop: Noop) -> None:
    """A0: the config's version is injected."""
    call(noop, Verb.ADD, {"prevResult": {"interfaces": [{"name": "x"}]}})
    before = noop.last(Verb.ADD).prev_result
    assert before is not None
    assert ["x"] == [interface.name for interface in before.interfaces]


@pytest.mark.parametrize(
    ("config", "result"), [("1.1.0", "1.0.0"), ("1.0.0", "1.1.0"), ("0.3.0", "0.4.0")]
)
def test_versions_of_one_family_stand_for_each_other(noop: Noop, config: str, result: str) -> None:
    """A0: 1.0.0 and 1.1.0 are interchangeable, and so are 0.3.0 to 0.4.0."""
    call(noop, Verb.ADD, {"cniVersion": config, "prevResult": {"cniVersion": result, "ips": []}})
    assert noop.last(Verb.ADD).prev_result is not None


def test_prev_result_of_another_family_is_refused(noop: Noop) -> None:
    """A0, with the reference's text."""
    with pytest.raises(InvalidConfig) as caught:
        call(noop, Verb.ADD, {"prevResult": {"cniVersion": "0.4.0"}})
    assert (
        "prevResult: result type supports [1.0.0 1.1.0] "
        'but unmarshalled CNIVersion is "0.4.0"' == caught.value.msg
    )


def test_a_wrong_prev_result_is_a_fault_of_the_config_with_its_path(noop: Noop) -> None:
    """It arrives inside the configuration."""
    with pytest.raises(InvalidConfig, match=r"^prevResult\.ips\[0\]\.address: "):
        call(noop, Verb.ADD, {"prevResult": {"ips": [{"address": "10.0.0.300/8"}]}})


def test_del_does_without_a_prev_result_it_cannot_read(
    noop: Noop, caplog: pytest.LogCaptureFixture
) -> None:
    """P6: DEL is best effort; and nothing is ignored silently."""
    call(noop, Verb.DEL, {"prevResult": {"cniVersion": "7.0.0"}})
    assert noop.last(Verb.DEL).prev_result is None
    assert "unusable prevResult ignored" in caplog.text


def test_null_is_no_prev_result(noop: Noop) -> None:
    """Null is Go's default."""
    call(noop, Verb.ADD, {"prevResult": None})
    assert noop.last(Verb.ADD).prev_result is None


C1 = Attachment(container_id="c1", ifname="eth0")
C2 = Attachment(container_id="c2", ifname="eth0")
LISTS = {
    "cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}],
    "cni.dev/attachments": [{"containerID": "c2", "ifname": "eth0"}],
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LISTS, {C1}),
        ({"cni.dev/attachments": LISTS["cni.dev/attachments"]}, {C2}),
        ({"cni.dev/valid-attachments": []}, set()),
        ({"cni.dev/valid-attachments": None}, set()),
    ],
)
def test_either_key_lists_the_valid_attachments(
    noop: Noop, config: dict[str, Any], expected: set[Attachment]
) -> None:
    """3.7: the key changed its name; valid- comes first. Null is Go's empty slice."""
    call(noop, Verb.GC, config, container_id="", ifname="")
    assert expected == noop.last(Verb.GC).valid_attachments


def test_gc_without_a_list_does_nothing(noop: Noop, caplog: pytest.LogCaptureFixture) -> None:
    """Absent is not empty: nothing can be told to be stale."""
    assert b"" == call(noop, Verb.GC)
    assert [] == noop.calls
    assert "nothing removed" in caplog.text


def test_a_wrong_list_names_its_path(noop: Noop) -> None:
    """The key is part of the path."""
    with pytest.raises(InvalidConfig, match=r"^cni\.dev/valid-attachments\[0\]\.ifname: missing"):
        call(noop, Verb.GC, {"cni.dev/valid-attachments": [{"containerID": "c1"}]})


@pytest.mark.parametrize("verb", [Verb.ADD, Verb.DEL, Verb.CHECK])
def test_the_plugins_own_namespace_is_refused_before_it_acts(noop: Noop, verb: Verb) -> None:
    """P15 and plugins #714: code 8, and nothing has happened."""
    with pytest.raises(InvalidNetns) as caught:
        call(noop, verb, netns="/proc/self/ns/net")
    assert "plugin's netns and netns from CNI_NETNS should not be the same" == caught.value.msg
    assert 8 == caught.value.wire_code
    assert [] == noop.calls


def test_the_plugins_own_namespace_is_refused_as_a_descriptor(noop: Noop) -> None:
    """A handle is a namespace like any other."""
    fd = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        with pytest.raises(InvalidNetns):
            call(noop, Verb.ADD, netns="/does/not/exist", netns_fd=fd)
        os.fstat(fd)  # it is still the caller's
    finally:
        os.close(fd)


def test_the_override_permits_the_own_namespace(noop: Noop) -> None:
    """CNI_NETNS_OVERRIDE."""
    call(noop, Verb.ADD, netns="/proc/self/ns/net", netns_override=True)
    assert 1 == len(noop.calls)


def test_a_path_that_cannot_be_opened_is_left_to_the_verb(noop: Noop) -> None:
    """DEL must tolerate it, and other verbs have their own words for it."""
    call(noop, Verb.DEL, netns="/run/netns/gone")
    assert 1 == len(noop.calls)


def test_a_bug_becomes_999_with_a_log_id_and_no_traceback(
    noop: Noop, caplog: pytest.LogCaptureFixture
) -> None:
    """P16: what the caller gets is an id; the log has the rest under it."""
    noop.failures[Verb.ADD] = ZeroDivisionError("secret")
    with caplog.at_level(logging.ERROR), pytest.raises(InternalError) as caught:
        call(noop, Verb.ADD)
    assert 999 == caught.value.wire_code
    assert "secret" not in str(caught.value)
    assert caught.value.log_id in caught.value.msg
    assert caught.value.log_id in caplog.text
    assert "ZeroDivisionError: secret" in caplog.text


def test_a_plugins_error_passes_unchanged(noop: Noop) -> None:
    """Its class, code and text are the plugin's."""
    failure = TryAgain("later")
    noop.failures[Verb.ADD] = failure
    with pytest.raises(TryAgain) as caught:
        call(noop, Verb.ADD)
    assert failure is caught.value


def test_a_result_that_cannot_be_encoded_is_undone(noop: Noop) -> None:
    """V8: a layer 2 result has no 0.2.0 form; the ADD fails, so it leaves nothing."""
    empty = {"prevResult": {"cniVersion": "0.2.0"}}
    with pytest.raises(CniError, match="cannot convert: no valid IP addresses"):
        call(noop, Verb.ADD, {"cniVersion": "0.2.0", **empty})
    assert ["ADD noop", "DEL noop"] == noop.log


def test_an_undo_that_fails_is_told_beside_the_cause(noop: Noop) -> None:
    """The cause stays the error."""
    noop.failures[Verb.DEL] = TryAgain("stuck")
    config = {"cniVersion": "0.2.0", "prevResult": {"cniVersion": "0.2.0"}}
    with pytest.raises(CniError, match="cannot convert") as caught:
        call(noop, Verb.ADD, config)
    assert "DEL failed too: stuck" in caught.value.details


def test_an_add_whose_caller_is_gone_does_not_begin(noop: Noop) -> None:
    """The deadline is looked at before anything is touched."""
    deadline = Deadline(5)
    deadline.cancel()
    host = Side()
    request = Request(verb=Verb.ADD, config=b'{"name": "net", "cniVersion": "1.0.0"}')
    with pytest.raises(TryAgain, match="cancelled"):
        dispatch(noop, request, host=host, delegate=InProcess(host).delegate, deadline=deadline)
    assert [] == noop.calls
