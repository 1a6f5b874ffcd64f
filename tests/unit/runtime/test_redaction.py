# SPDX-License-Identifier: Apache-2.0
"""Redaction: secrets do not leave by way of logs."""

from __future__ import annotations

import pytest

from pycni.runtime.redaction import redact

CONFIG = b"""{"name": "net", "etcd_password": "pa55word", "auth": {"Token": "t0ken", "user": "bob"},
 "credentials": ["one-two", {"deep": "three"}], "apiKey": "k3y", "passthru": "visible", "pin": 1}"""


@pytest.mark.parametrize("secret", ["pa55word", "t0ken", "one-two", "three", "k3y"])
def test_values_under_telling_keys_are_masked(secret: str) -> None:
    """At any depth, in any case, wherever they appear in the text."""
    assert "error near ***, sorry" == redact(f"error near {secret}, sorry", CONFIG)


@pytest.mark.parametrize("text", ["net", "bob", "visible", "1"])
def test_other_values_stay(text: str) -> None:
    """A log must still say something."""
    assert text == redact(text, CONFIG)


def test_json_that_is_not_the_configurations_is_masked_by_its_keys() -> None:
    """A plugin may print what it made of it."""
    text = 'req {"db_password": "a\\"b", "Token":"x", "name": "y"} failed'
    assert 'req {"db_password": "***", "Token":"***", "name": "y"} failed' == redact(text, b"{}")


@pytest.mark.parametrize("config", [b"", b"{", b"\xff", b'"x"', b"null"])
def test_a_configuration_that_is_no_json_is_no_obstacle(config: bytes) -> None:
    """The error is told elsewhere."""
    assert "text" == redact("text", config)


def test_a_secret_too_short_to_mask_does_not_hide_the_text() -> None:
    """Nor does an empty one."""
    assert "a banana" == redact("a banana", b'{"password": "a", "token": ""}')
