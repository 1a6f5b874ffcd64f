# SPDX-License-Identifier: Apache-2.0
"""Listening beyond a unix socket: TCP, and there mutual TLS only.

Windows has no unix sockets in gRPC, so its service listens on the loopback address this way. A
client needs a certificate signed by the authority the service was given; nothing else gets in,
from this machine or any other.
"""

from __future__ import annotations

from pathlib import Path

import grpc
import msgspec

from pycni.errors import InvalidEnvironment, IOFailure

DEFAULT_ADDRESS = "127.0.0.1:8472"


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files: the service's certificate and key, and the authority of its clients."""

    certificate: Path
    key: Path
    client_ca: Path

    def server_credentials(self) -> grpc.ServerCredentials:
        """Credentials that ask every client for its certificate."""
        expect_usable(self.certificate, self.key, self.client_ca)
        return grpc.ssl_server_credentials(
            [(read_pem(self.key), read_pem(self.certificate))],
            root_certificates=read_pem(self.client_ca),
            require_client_auth=True,
        )


def client_credentials(*, certificate: Path, key: Path, server_ca: Path) -> grpc.ChannelCredentials:
    """What a client of such a service connects with."""
    expect_usable(certificate, key, server_ca)
    return grpc.ssl_channel_credentials(
        root_certificates=read_pem(server_ca),
        private_key=read_pem(key),
        certificate_chain=read_pem(certificate),
    )


def expect_usable(certificate: Path, key: Path, authority: Path) -> None:
    """Raise InvalidEnvironment (4), naming the file, for what gRPC would refuse without a word."""
    import ssl  # takes long to import, and most clients need none of this

    for path in (certificate, key, authority):
        read_pem(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (ssl.SSLError, OSError) as exc:
        reason = getattr(exc, "reason", None) or exc
        raise InvalidEnvironment(
            f"{certificate} and {key} are no certificate and its key", f"{reason}",
            hint="both are PEM files, and the key has no passphrase",
        ) from exc  # fmt: skip
    try:
        context.load_verify_locations(authority)
    except (ssl.SSLError, OSError) as exc:
        raise InvalidEnvironment(f"{authority} has no certificate of an authority") from exc


def read_pem(path: Path) -> bytes:
    """The file's content; raise IOFailure (5) if it cannot be read, 4 if it holds no PEM."""
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise IOFailure(f"cannot read {path}: {exc.strerror}") from exc
    if b"-----BEGIN " not in content:
        raise InvalidEnvironment(f"{path} is not a PEM file")
    return content
