# SPDX-License-Identifier: Apache-2.0
"""Roles and rates, without a socket."""

from __future__ import annotations

import pytest

from pycni.service.access import (
    NotPermitted,
    Policy,
    Rate,
    RateLimiter,
    Rates,
    Role,
    Roles,
    TooManyCalls,
    certificate_names,
    rate_of,
)

ADD = "/cni.v2alpha1.Attachments/Add"
LIST = "/cni.v2alpha1.Attachments/List"


def identity(name: str, *alternative: str) -> dict[str, list[bytes]]:
    """What gRPC knows of a peer with such a certificate."""
    return {
        "transport_security_type": [b"ssl"],
        "x509_common_name": [name.encode()],
        "x509_subject_alternative_name": [one.encode() for one in alternative],
    }


def test_a_bucket_empties_and_fills() -> None:
    """A burst at once, then the rate; one peer's calls are not another's."""
    now = 100.0
    limiter = RateLimiter(Rate(per_second=2, burst=3), clock=lambda: now)
    for _ in range(3):
        limiter.take("a")
    with pytest.raises(TooManyCalls, match="more than 2 calls a second"):
        limiter.take("a")
    limiter.take("b")
    now += 0.5
    limiter.take("a")
    with pytest.raises(TooManyCalls):
        limiter.take("a")
    now += 3600
    for _ in range(3):  # no more than the burst is saved up
        limiter.take("a")
    with pytest.raises(TooManyCalls):
        limiter.take("a")


def test_refused_calls_cost_nothing() -> None:
    """Who keeps knocking gets in at the rate all the same."""
    now = 0.0
    limiter = RateLimiter(Rate(per_second=1, burst=1), clock=lambda: now)
    limiter.take("a")
    for _ in range(9):
        now += 0.1
        with pytest.raises(TooManyCalls):
            limiter.take("a")
    now += 0.11
    limiter.take("a")


def test_no_rate_is_no_limit() -> None:
    """0 switches it off."""
    limiter = RateLimiter(rate_of(0))
    for _ in range(10_000):
        limiter.take("a")


def test_peers_are_forgotten() -> None:
    """Inventing names does not fill the memory."""
    limiter = RateLimiter(Rate(per_second=1, burst=1), clock=lambda: 0.0)
    for number in range(3000):
        limiter.take(str(number))
    assert 1024 == len(limiter._buckets)


@pytest.mark.parametrize(
    ("roles", "names", "expected"),
    [
        (Roles(), ["anybody"], Role.ADMIN),
        (Roles(admin=("a",)), ["a"], Role.ADMIN),
        (Roles(admin=("a",)), ["x", "a"], Role.ADMIN),
        (Roles(admin=("a",)), ["b"], None),
        (Roles(admin=("a",)), [], None),
        (Roles(read_only=("b",)), ["a"], None),
        (Roles(read_only=("b",)), ["b"], Role.READ_ONLY),
        (Roles(admin=("a",), read_only=("a",)), ["a"], Role.ADMIN),
        (Roles(admin=("a",), read_only=("*",)), ["c"], Role.READ_ONLY),
        (Roles(admin=("a",)), ["*"], None),
    ],
)
def test_roles_go_by_name(roles: Roles, names: list[str], expected: Role | None) -> None:
    """The greater role wins; with any list at all, nobody has one by default."""
    assert expected is roles.find(names)


def test_names_of_a_certificate() -> None:
    """The common name first, then the alternative ones."""
    assert ["ops", "ops.example"] == certificate_names(identity("ops", "ops.example"))
    assert [] == certificate_names({})


def test_a_policy_knows_its_listener() -> None:
    """The socket's role is everybody's; with certificates it is each one's own."""
    Policy(Role.ADMIN).check(ADD, {})
    reader = Policy(Role.READ_ONLY)
    reader.check(LIST, {})
    reader.check("/grpc.health.v1.Health/Check", {})
    with pytest.raises(NotPermitted, match="is for administrators"):
        reader.check(ADD, {})
    tls = Policy(None, roles=Roles(admin=("ops",), read_only=("eye",)))
    tls.check(ADD, identity("ops"))
    tls.check(LIST, identity("eye"))
    for method, who in ((ADD, "eye"), (LIST, "other")):
        with pytest.raises(NotPermitted):
            tls.check(method, identity(who))


def test_delegations_are_not_counted() -> None:
    """A call that was let in must not fail half way for its caller's having made many."""
    one = Rate(per_second=0.001, burst=1)
    policy = Policy(Role.ADMIN, rates=Rates(admin=one))
    policy.check(ADD, {})
    policy.check("/cni.v2alpha1.Delegate/Exec", {})
    with pytest.raises(TooManyCalls):
        policy.check(ADD, {})
