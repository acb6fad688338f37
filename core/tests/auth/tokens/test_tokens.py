"""Who a token is, what it may, and until when."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.auth.audit import Audit
from gantrymq.auth.authority import READ, WRITE, Authority
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.resources import Action, Kind
from gantrymq.auth.rows import POLICIES, USERS, Policy, Rule, User, encode
from gantrymq.auth.tokens.ending import Ending
from gantrymq.auth.tokens.key_ring import AGAIN_MS, KeyRing, loader_of
from gantrymq.auth.tokens.scopes import matches, parse_scopes
from gantrymq.auth.tokens.tokens import GROUPS_MAX, Tokens
from gantrymq.net.testing import ManualClock, ManualWheel
from tests.auth.tokens.issuer import AUDIENCE, ISSUER, NOW_S, Issuer

US = Issuer()


class World:
    def __init__(self, *users: User, **settings: Any) -> None:
        config = AuthConfig(jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_leeway_ms=0, **settings)
        self.now_ms = NOW_S * 1000
        self.wheel = ManualWheel(ManualClock())
        ring = KeyRing(US.jwks, self.wheel, lambda callback, *arguments: callback(*arguments), 60_000)
        ring.read_now()
        audit = Audit(self.wheel, lambda: self.now_ms, "test")
        self.authority = Authority(config, None, lambda callback: callback(), audit)  # type: ignore[arg-type]
        self.authority.tokens = Tokens(config, ring, lambda: self.now_ms)
        self.authority.load(USERS, {user.name: encode(user) for user in users})
        rules = {"user:alice": Rule("topic:own", ("pub",)), "group:devs": Rule("topic:dev*", ("sub",))}
        self.authority.load(POLICIES, {name: encode(Policy(name, (rule,))) for name, rule in rules.items()})

    def come(self, **claims: Any) -> Any:
        identity, why = self.authority.by_token(US.token(**claims), "c1", "127.0.0.1:1")
        assert identity is not None, why
        return identity

    def refused(self, **claims: Any) -> str:
        identity, why = self.authority.by_token(US.token(**claims), "c1", "127.0.0.1:1")
        assert identity is None
        return why


def test_user_and_groups() -> None:
    world = World()
    identity = world.come(groups=["devs", "bad/name", 5])
    assert (identity.name, identity.alive, identity.is_admin) == ("alice", True, False)
    assert identity.may(Action.PUB, Kind.TOPIC, "own")
    assert identity.may(Action.SUB, Kind.TOPIC, "dev7")
    assert not identity.may(Action.SUB, Kind.TOPIC, "own")
    assert not world.come().may(Action.SUB, Kind.TOPIC, "dev7")
    assert world.come(groups="a devs").may(Action.SUB, Kind.TOPIC, "dev7")


def test_claims_by_their_names() -> None:
    world = World(jwt_user_claim="preferred_username", jwt_groups_claim="realm_access.roles")
    identity = world.come(preferred_username="bob", realm_access={"roles": ["devs"]})
    assert identity.name == "bob"
    assert identity.may(Action.SUB, Kind.TOPIC, "dev7")
    assert "jwt_user_claim" in world.refused()
    for name in ("", "a/b", "#", "a+b", "a\nb", "x" * 300, 5):
        assert "preferred_username" in world.refused(preferred_username=name)


def test_no_token_makes_an_administrator_and_a_disabled_account_stays_out() -> None:
    world = World(User("alice", admin=True), User("bob", enabled=False))
    assert not world.come().is_admin
    assert not world.come().may(Action.UPDATE, Kind.CLUSTER, "")
    assert "disabled" in world.refused(sub="bob")
    identity = world.come(sub="carol")
    world.authority.apply(USERS, "carol", encode(User("carol", enabled=False)))
    assert not identity.alive
    assert "deleted or disabled" in identity.farewell


def test_it_ends_with_the_token_and_goes_on_with_the_next() -> None:
    world = World()
    identity = world.come(exp=NOW_S + 60)
    ended: list[bool] = []
    ending = Ending(world.wheel, lambda: ended.append(True))
    ending.watch(identity)
    assert identity.ends_in_ms() == 60_000
    world.wheel.advance(59_000)
    identity.renew(world.come(exp=NOW_S + 120))
    ending.watch(identity)
    world.now_ms += 61_000
    world.wheel.advance(2_000)
    assert identity.alive
    assert not ended
    world.now_ms += 60_000
    world.wheel.advance(121_000)
    assert ended == [True]
    assert not identity.alive
    assert not identity.may(Action.PUB, Kind.TOPIC, "own")
    assert identity.decide(Action.PUB, Kind.TOPIC, "own").rule == "the token has expired"
    assert identity.farewell == "the token of user alice has expired"
    with pytest.raises(PermissionError, match="new connection"):
        identity.renew(world.come(sub="bob", exp=NOW_S + 900))


def test_a_wall_clock_that_is_behind_ends_nobody_early() -> None:
    world = World()
    identity = world.come(exp=NOW_S + 60)
    ended: list[bool] = []
    Ending(world.wheel, lambda: ended.append(True)).watch(identity)
    world.wheel.advance(61_000)
    assert not ended
    world.now_ms += 60_000
    world.wheel.advance(200)
    assert ended == [True]


SCOPES = "rabbitmq.read:*/dev* rabbitmq.write:%2F/e/a.* rabbitmq.configure:%2f/own other.write:*/* rabbitmq.tag:administrator rabbitmq.read:bad"


def test_scopes_of_rabbitmq() -> None:
    world = World(jwt_scope_prefix="rabbitmq.")
    identity = world.come(scope=SCOPES, sub="zoe")
    decide = identity.decide_amqp
    native = (Action.SUB, Kind.QUEUE, "dev7")
    assert decide(READ, "/", "dev7", native).rule == "scope rabbitmq.read:*/dev*"
    assert decide(READ, "other", "dev7", (Action.SUB, Kind.QUEUE, "x")).allowed
    assert not decide(WRITE, "/", "dev7", (Action.UPDATE, Kind.QUEUE, "dev7")).allowed
    assert decide(WRITE, "/", "e", (Action.PUB, Kind.TOPIC, "e")).allowed
    assert not decide(WRITE, "other", "e", (Action.PUB, Kind.TOPIC, "e")).allowed
    assert identity.decide_routing_key(WRITE, "/", "e", "a.b").allowed
    assert not identity.decide_routing_key(WRITE, "/", "e", "b.a").allowed
    assert identity.decide_routing_key(WRITE, "/", "elsewhere", "b.a").allowed
    assert identity.may(Action.CREATE, Kind.TOPIC, "own")
    assert identity.may(Action.SUB, Kind.TOPIC, "dev1")
    assert not identity.may(Action.PUB, Kind.TOPIC, "e"), "for some of its keys only"
    assert not identity.may(Action.GET, Kind.CLUSTER, "")
    assert not identity.decide_mqtt(Action.SUB, "#", None).allowed
    assert identity.decide_mqtt(Action.SUB, "dev1/#", "dev1").allowed
    assert world.come(scope=["rabbitmq.read:*/*"], sub="zoe").decide_mqtt(Action.SUB, "#", None).allowed
    assert not World().come(scope=SCOPES, sub="zoe").may(Action.SUB, Kind.TOPIC, "dev1"), (
        "scopes are not read without a prefix"
    )


def test_a_deny_wins_over_a_scope() -> None:
    world = World(jwt_scope_prefix="rabbitmq.")
    denied = Policy("user:zoe", (Rule("topic:dev1", ("all",), allow=False),))
    world.authority.apply(POLICIES, "user:zoe", encode(denied))
    identity = world.come(scope=SCOPES, sub="zoe")
    assert not identity.may(Action.SUB, Kind.TOPIC, "dev1")
    assert not identity.decide_amqp(READ, "/", "dev1", (Action.SUB, Kind.TOPIC, "dev1")).allowed


@pytest.mark.parametrize(
    ("pattern", "text", "good"),
    [
        ("*", "", True), ("*", "x", True), ("a*", "a", True), ("a*b", "ab", True), ("a*b", "axb", True), ("a*b", "abc", False),
        ("ab*ba", "aba", False), ("*a*b*", "xaxbx", True), ("*a*b*", "ba", False), ("", "", True), ("", "a", False),
        ("a.*", "axb", False), ("[a]", "a", False), ("*" * 1000, "x" * 1000, True), ("*a" * 500, "a" * 499 + "b", False),
    ],
)  # fmt: skip
def test_stars(pattern: str, text: str, good: bool) -> None:
    assert matches(pattern, text) is good


def test_scopes_that_cannot_be_read_are_none() -> None:
    assert parse_scopes(["p.read:", "p.read:x", "p.x:a/b", "read:a/b", "p.read:a/b/c/d", ""], "p.") == ()


def test_keys_are_read_again_for_one_that_is_not_known_and_kept_when_they_cannot_be() -> None:
    wheel = ManualWheel(ManualClock())
    reads: list[bytes | OSError] = []

    def load() -> bytes:
        reads.append(source[0])
        if isinstance(source[0], OSError):
            raise source[0]
        return source[0]

    source: list[bytes | OSError] = [US.jwks()]
    ring = KeyRing(load, wheel, lambda callback, *arguments: callback(*arguments), 60_000)
    ring.read_now()
    known = ring.keys
    for bad in (OSError("away"), b"{", b'{"keys": []}'):
        source[0] = bad
        ring._in_thread()
        assert ring.keys is known
    count = len(reads)
    source[0] = Issuer().jwks()
    for _ in range(100):
        ring.ask_again()
    assert len(reads) == count
    ring._in_thread()
    assert ring.keys is not known
    assert wheel.now_ms() + AGAIN_MS > 0


@pytest.mark.parametrize(
    "source", ["http://issuer.example/keys", "ftp://127.0.0.1/x", "file:///etc/passwd", "https://me:pw@issuer.example/"]
)
def test_sources_that_are_not_asked(source: str) -> None:
    with pytest.raises((ValueError, OSError)):
        loader_of(source)


def test_more_groups_than_are_read() -> None:
    token = World().come(groups=[f"g{number}" for number in range(GROUPS_MAX + 5)]).token
    assert len(token.groups) == GROUPS_MAX
