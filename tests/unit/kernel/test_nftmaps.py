# SPDX-License-Identifier: Apache-2.0
"""Map keys as the kernel stores them, and a kernel that has no maps."""

from __future__ import annotations

import errno
from ipaddress import ip_address
from typing import Any, cast

import pytest

from pycni.errors import KernelError, Unsupported
from pycni.kernel import nftmaps
from pycni.kernel.nfnetlink import NfSocket
from pycni.kernel.nftmaps import Maps, Protocol


@pytest.mark.parametrize("text", [None, "192.0.2.1", "2001:db8::1"])
def test_a_port_key_is_read_back(text: str | None) -> None:
    """With and without an address in front, of both families."""
    address = ip_address(text) if text else None
    key = nftmaps.protocol(Protocol.UDP) + nftmaps.port(5353)
    key = (nftmaps.address(address) if address else b"") + key

    assert (address, Protocol.UDP, 5353) == nftmaps.read_port_key(key)


class Refusing:
    """A socket whose every question is refused."""

    def __init__(self, code: int) -> None:
        self.code = code

    def query(self, kind: int, body: bytes, op: str, target: str) -> bytes:
        """Refuse."""
        raise KernelError(op, target, self.code)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nobody asked for {name}")


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EINVAL, Unsupported), (errno.EPERM, KernelError)]
)
def test_a_kernel_without_nf_tables_is_told_apart(code: int, kind: type[KernelError]) -> None:
    """nfnetlink answers EINVAL for a subsystem that is not there."""
    maps = Maps(cast(NfSocket, Refusing(code)), family="inet", table="pycni")
    with pytest.raises(KernelError) as caught:
        maps.generation()

    assert kind is type(caught.value)
