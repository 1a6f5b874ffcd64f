# SPDX-License-Identifier: Apache-2.0
"""Who may call what, and how often.

Each listener has its own policy. On a unix socket the file's mode decides who gets in, and the
socket decides the role. On TCP the client's certificate does: its common name or one of its
subject alternative names stands in the list of one role. `READ_ONLY` says what the lesser role
may do; whatever is not in it, tomorrow's methods included, it may not.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar

import msgspec

from pycni.errors import CniError, InvalidEnvironment, TryAgain


class NotPermitted(CniError):
    """The caller may not make this call."""


class NoSuchMethod(CniError):
    """The service has no such method, or does not serve it."""


class TooManyCalls(TryAgain):
    """The caller makes more calls than it may."""


class AlreadyRegistered(InvalidEnvironment):
    """Another daemon serves the plugin type."""


class Role(enum.StrEnum):
    """What a caller is to the service."""

    ADMIN = "admin"
    READ_ONLY = "read-only"


# Of the call that this thread is serving. A method of READ_ONLY can have a part that is not.
caller: ContextVar[Role] = ContextVar("caller", default=Role.ADMIN)


def expect_admin(what: str) -> None:
    """Raise NotPermitted for `what` unless the caller is an administrator."""
    if caller.get() is not Role.ADMIN:
        raise NotPermitted(f"{what} is for administrators", hint=LOOK)


READ_ONLY = frozenset(
    {
        "/cni.v2alpha1.Networks/List",
        "/cni.v2alpha1.Networks/Get",
        "/cni.v2alpha1.Networks/Status",
        "/cni.v2alpha1.Networks/Watch",
        "/cni.v2alpha1.Attachments/List",
        "/cni.v2alpha1.Attachments/Get",
        "/cni.v2alpha1.Attachments/Watch",
        "/cni.v2alpha1.Node/GetInfo",
        "/cni.v2alpha1.Node/ListPlugins",
    }
)
# Harmless for every role: they show the API and whether it works, nothing of the node.
PUBLIC = ("/grpc.health.v1.", "/grpc.reflection.")
# Part of a call that has been let in, which must not fail half way; `Operations` bounds them.
UNCOUNTED = ("/cni.v2alpha1.Delegate/", "/cni.v2alpha1.Registry/")

EVERYBODY = "*"

LOOK = "read-only callers may list, get and watch"

# What gRPC knows of a peer: lists of values by property.
Identity = Mapping[str, Iterable[bytes]]


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """How many calls a caller may make: so many at once, then so many a second; 0 is no limit."""

    per_second: float
    burst: int


def rate_of(per_second: float) -> Rate:
    """So many calls a second, and twice as many at once."""
    return Rate(per_second=per_second, burst=max(1, int(2 * per_second)))


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of one caller in each role."""

    admin: Rate = Rate(per_second=2000, burst=4000)
    read_only: Rate = Rate(per_second=100, burst=200)


DEFAULT_RATES = Rates()

PEERS = 1024  # callers remembered; the one heard of longest ago is forgotten


class RateLimiter:
    """A token bucket for each peer."""

    def __init__(self, rate: Rate, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, peer: str) -> None:
        """Count one call of `peer`; raise TooManyCalls (11) if its bucket is empty."""
        rate = self._rate
        if not rate.per_second:
            return
        now = self._clock()
        with self._lock:
            tokens, since = self._buckets.get(peer, (float(rate.burst), now))
            tokens = min(rate.burst, tokens + (now - since) * rate.per_second)
            self._buckets[peer] = (max(tokens - 1, 0.0) if tokens >= 1 else tokens, now)
            self._buckets.move_to_end(peer)
            while len(self._buckets) > PEERS:
                self._buckets.popitem(last=False)
        if tokens < 1:
            raise TooManyCalls(
                f"more than {rate.per_second:g} calls a second",
                hint="slow down, or ask the administrator for a higher rate",
            )


class Roles(msgspec.Struct, frozen=True, kw_only=True):
    """The names of certificates that have each role; "*" is every certificate of the authority.

    Without any name every certificate of the client authority is an administrator's: then that
    authority should sign for nobody else.
    """

    admin: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()

    def find(self, names: Iterable[str]) -> Role | None:
        """The role of a certificate with these names; None if it has none."""
        if not self.admin and not self.read_only:
            return Role.ADMIN
        held = {EVERYBODY, *names}
        if held.intersection(self.admin):
            return Role.ADMIN
        return Role.READ_ONLY if held.intersection(self.read_only) else None


class Policy:
    """What a listener lets its callers do."""

    def __init__(
        self,
        role: Role | None,
        *,
        roles: Roles | None = None,
        rates: Rates = DEFAULT_RATES,
    ) -> None:
        """`role` is everybody's; without it `roles` finds that of each certificate."""
        self._role = role
        self._roles = roles or Roles()
        self._limiters = {
            Role.ADMIN: RateLimiter(rates.admin),
            Role.READ_ONLY: RateLimiter(rates.read_only),
        }

    def check(self, method: str, identity: Identity) -> Role:
        """The caller's role; raise NotPermitted, or TooManyCalls, unless it may make this call."""
        names = certificate_names(identity)
        role = self._role or self._roles.find(names)
        if role is None:
            raise NotPermitted(
                f"certificate of {', '.join(names) or 'nobody'} has no role",
                hint="name it with --tls-admin or --tls-read-only",
            )
        if role is Role.READ_ONLY and method not in READ_ONLY and not method.startswith(PUBLIC):
            raise NotPermitted(f"{method} is for administrators", hint=LOOK)
        if not method.startswith(UNCOUNTED):
            self._limiters[role].take(names[0] if names else "")
        return role


def certificate_names(identity: Identity) -> list[str]:
    """The common name and the alternative names of the peer's certificate, in this order."""
    return [
        name.decode("utf-8", "replace")
        for key in ("x509_common_name", "x509_subject_alternative_name")
        for name in identity.get(key, ())
    ]
