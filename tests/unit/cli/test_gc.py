# SPDX-License-Identifier: Apache-2.0
"""`pycni gc` says what it did, also where the plugins were not asked."""

from __future__ import annotations

import pytest

from pycni.cli.attachment import collected
from pycni.service.pb.cni.v2alpha1 import attachments_pb2

STALE = attachments_pb2.AttachmentKey(network="net", container_id="c1", ifname="eth0")


@pytest.mark.parametrize(
    ("deleted", "skipped", "dry_run", "words"),
    [
        ([], False, False, "nothing stale"),
        ([STALE], False, False, "deleted c1 eth0"),
        ([STALE, STALE], False, True, "would delete c1 eth0, c1 eth0"),
        ([], True, False, "nothing stale; its plugins were not asked"),
        ([STALE], True, False, "deleted c1 eth0; its plugins were not asked"),
    ],
)
def test_what_was_collected_is_named(
    deleted: list[attachments_pb2.AttachmentKey], skipped: bool, dry_run: bool, words: str
) -> None:
    """An attachment that was deleted is never hidden behind a word like "skipped"."""
    one = attachments_pb2.GcResult(network="net", deleted=deleted, skipped=skipped)
    assert words == collected(one, dry_run=dry_run)
