# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests, made with the openssl command: an authority and whom it signs for."""

from __future__ import annotations

import subprocess
from pathlib import Path

CURVE = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2".split()


class Authority:
    """A certificate authority with its files in `directory`."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.directory = directory
        self.certificate = directory / f"{name}.pem"
        self._key = directory / f"{name}.key"
        self._openssl(
            "req", "-x509", *CURVE, "-subj", f"/CN={name}",
            "-keyout", self._key, "-out", self.certificate,
        )  # fmt: skip

    def sign(self, name: str, *alternative: str) -> tuple[Path, Path]:
        """The certificate of `name` and its key; `alternative` names as in "DNS:localhost"."""
        certificate = self.directory / f"{name}.pem"
        key = self.directory / f"{name}.key"
        extension = ["-addext", f"subjectAltName={','.join(alternative)}"] if alternative else []
        self._openssl(
            "req", "-x509", *CURVE, "-subj", f"/CN={name}", *extension,
            "-CA", self.certificate, "-CAkey", self._key, "-keyout", key, "-out", certificate,
            "-addext", "basicConstraints=critical,CA:FALSE",
        )  # fmt: skip
        return certificate, key

    def _openssl(self, *arguments: str | Path) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
