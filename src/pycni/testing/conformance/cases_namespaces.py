# SPDX-License-Identifier: Apache-2.0
"""Cases about CNI_NETNS: what is no namespace, and the plugin's own."""

from __future__ import annotations

import os

from pycni.testing.conformance.probe import NotApplicable, Probe
from pycni.testing.conformance.samples import Role
from pycni.testing.conformance.table import case

SAME = "plugin's netns and netns from CNI_NETNS should not be the same"


@case(
    "P14-no-namespace", "ADD is an error when CNI_NETNS is no namespace", acts=True, isolated=True
)
def no_namespace(probe: Probe) -> None:
    """A missing path, a file, a FIFO, which must not hang it."""
    if probe.subject.sample.role in (Role.ADDRESSES, Role.ADJUSTS):
        raise NotApplicable("it need not open the namespace")
    directory = probe.place.directory / f"no-namespace-{probe.place.number()}"
    directory.mkdir()
    (directory / "file").write_text("")
    os.mkfifo(directory / "fifo")
    with probe.container() as container:
        for name in ("missing", "file", "fifo"):
            reply = container.call("ADD", CNI_NETNS=str(directory / name))
            reply.expect_error(*((8,) if probe.strict else ()))
        container.call("DEL", CNI_NETNS=str(directory / "missing"))


@case(
    "P15-own-namespace",
    "ADD and DEL refuse the plugin's own namespace (error 8), and leave it as it was",
    acts=True,
    isolated=True,
    strict=True,
)
def own_namespace(probe: Probe) -> None:
    """Before they act: a path that was reused must not cost the host its interfaces."""
    own = probe.place.netns
    path = f"/proc/{os.getpid()}/ns/net" if own is None else own.path
    try:
        with probe.container() as container:
            before = probe.place.settled_world()
            for verb in ("ADD", "DEL"):
                reply = container.call(verb, CNI_NETNS=path)
                reply.expect_error(8, msg=SAME)
                if left := before.diff(probe.place.world()):
                    raise reply.fail("the host as it was", "; ".join(left))
    finally:
        probe.place.host.links.set("lo", up=True)  # what a plugin that acts takes down
