# SPDX-License-Identifier: Apache-2.0
"""The error family: codes on classes, details with notes and hints, classes rebuilt from codes."""

from __future__ import annotations

import errno

import pytest

from pycni import errors
from pycni.errors import Busy, CniError, InvalidConfig, KernelError, LinkExists, TryAgain, doing

SPEC_CODES = {
    1: errors.IncompatibleVersion,
    2: errors.UnsupportedField,
    3: errors.UnknownContainer,
    4: errors.InvalidEnvironment,
    5: errors.IOFailure,
    6: errors.DecodeFailure,
    7: errors.InvalidConfig,
    8: errors.InvalidNetns,
    11: errors.TryAgain,
    50: errors.NotAvailable,
    51: errors.LimitedConnectivity,
    999: errors.CniError,
}


@pytest.mark.parametrize(("code", "kind"), SPEC_CODES.items())
def test_a_code_from_the_wire_finds_its_class(code: int, kind: type[CniError]) -> None:
    """E2: the client of a service catches the class the service raised."""
    error = CniError.from_wire(code, "m", "d")
    assert (kind, code, "m", "d") == (type(error), error.wire_code, error.msg, error.details)
    assert code == kind.code


def test_a_code_nobody_owns_is_kept() -> None:
    """E2: plugins number their own faults from 100 on."""
    error = CniError.from_wire(31337, "m")
    assert (CniError, 31337) == (type(error), error.wire_code)


def test_the_first_class_to_claim_a_code_is_its_default() -> None:
    """Busy shares 11 with TryAgain and is not what a wire error becomes."""
    assert 11 == Busy.code
    assert TryAgain is type(CniError.from_wire(11, "m"))

    class Own(CniError, code=4242):
        """A plugin's fault."""

    assert Own is type(CniError.from_wire(4242, "m"))


def test_details_hold_notes_and_the_hint() -> None:
    """In the order of what went wrong, where, and what to do."""
    error = InvalidConfig("mtu: too large", "at most 9000", hint="lower it")
    with pytest.raises(InvalidConfig) as caught, doing("making veth"), doing("setting mtu"):
        raise error
    assert error is caught.value
    expected = "at most 9000; while setting mtu; while making veth; lower it"
    assert expected == error.details
    assert f"mtu: too large: {expected}" == str(error)


def test_an_error_without_details_is_its_message() -> None:
    """And nothing is left hanging behind it."""
    assert ("m", "") == (str(CniError("m")), CniError("m").details)


def test_what_passes_without_a_fault_is_left_alone() -> None:
    """doing() is silent on success."""
    with doing("nothing"):
        pass


def test_a_kernel_error_names_operation_target_and_reason() -> None:
    """The kernel's own text is preferred to that of the errno."""
    error = LinkExists("add link", "eth0", errno.EEXIST)
    assert ("add link eth0: File exists", 999) == (error.msg, error.wire_code)
    assert ("add link", "eth0", errno.EEXIST, "") == (
        error.op,
        error.target,
        error.errno,
        error.extack,
    )
    error = KernelError("add route", "::/0", errno.EINVAL, "Nexthop has invalid gateway", hint="h")
    assert ("add route ::/0: Nexthop has invalid gateway", "h") == (error.msg, error.details)
    assert "open socket: failed" == KernelError("open", "socket", 0).msg
