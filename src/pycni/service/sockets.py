# SPDX-License-Identifier: Apache-2.0
"""Unix sockets of gRPC servers: made with their final mode, so nobody gets in before it is set."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import grpc

from pycni.errors import InvalidEnvironment, IOFailure
from pycni.exec.endpoint import claim_socket

OWNER_ONLY = 0o600
OWNER_AND_GROUP = 0o660


def bind(server: grpc.Server, path: Path, *, mode: int = OWNER_ONLY, group: str = "") -> None:
    """Have `server` listen on `path`; raise IOFailure (5) if that is taken or impossible."""
    claim_socket(path)
    mask = os.umask(0o777 & ~(OWNER_ONLY if group else mode))
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as exc:
        raise IOFailure(f"cannot listen on {path}: {exc}") from exc
    finally:
        os.umask(mask)
    if group:
        # The group first: until then its members have no access.
        try:
            shutil.chown(path, group=group)
            path.chmod(mode)
        except LookupError:
            path.unlink()
            raise InvalidEnvironment(f"there is no group {group}") from None
        except OSError as exc:
            path.unlink(missing_ok=True)
            raise IOFailure(f"cannot give {path} to group {group}: {exc.strerror}") from exc
