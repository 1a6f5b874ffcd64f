# SPDX-License-Identifier: Apache-2.0
"""What others build on: adding to it is free, taking from it or changing it is a decision."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

import pycni.sdk
from pycni import client, errors
from pycni.errors import CniError
from pycni.plugins import sdk
from pycni.plugins.sdk import Call, Plugin

CODES = {
    "CniError": 999,
    "IncompatibleVersion": 1,
    "UnsupportedField": 2,
    "UnknownContainer": 3,
    "InvalidEnvironment": 4,
    "IOFailure": 5,
    "DecodeFailure": 6,
    "InvalidConfig": 7,
    "InvalidNetns": 8,
    "TryAgain": 11,
    "NotAvailable": 50,
    "LimitedConnectivity": 51,
    "KernelError": 999,
    "LinkExists": 999,
    "LinkNotFound": 999,
    "NamespaceGone": 999,
    "Unsupported": 999,
    "Busy": 11,
}
NAMES = {
    sdk: {"Call", "Config", "Delegate", "IPAM", "Plugin"},
    pycni.sdk: {
        "Call",
        "CniArgs",
        "CniError",
        "Config",
        "DNS",
        "IPAM",
        "IPConfig",
        "Interface",
        "InvalidConfig",
        "NotAvailable",
        "Plugin",
        "Result",
        "Route",
        "TryAgain",
        "notify",
        "run",
    },
    client: {"CallFailed", "Client", "ServiceUnavailable"},
}
CALL = {
    "attributes": {
        "config", "request", "verb", "container_id", "ifname", "owner", "prev_result",
        "valid_attachments", "host", "delegate", "deadline",
    },
    "members": {
        "container", "find_container", "ipam", "use_ipam", "get_prev_result", "pass_through",
        "close",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CODES)
def test_an_error_class_keeps_its_code(name: str) -> None:
    """Codes are the wire contract: clients and runtimes tell errors apart by them."""
    error: type[CniError] = getattr(errors, name)
    assert CODES[name] == error.code


@pytest.mark.parametrize("module", NAMES, ids=lambda module: module.__name__)
def test_a_public_module_keeps_its_names(module: ModuleType) -> None:
    """What plugin authors and clients import stays importable."""
    assert set() == NAMES[module] - set(vars(module))


def test_a_call_keeps_its_members() -> None:
    """What a plugin's verb is given."""
    source = inspect.getsource(Call.__init__)
    assert set() == {name for name in CALL["attributes"] if f"self.{name} = " not in source}
    assert set() == CALL["members"] - set(dir(Call))


def test_a_plugin_may_leave_verbs_out() -> None:
    """All five exist on the base class and take the call alone."""
    for verb in ("add", "delete", "check", "gc", "status"):
        assert ["self", "call"] == list(inspect.signature(getattr(Plugin, verb)).parameters)
