"""Tokens of ours: what is kept of one, who comes with it, and when it ends."""

from __future__ import annotations

from typing import Any, Final

import pytest

from gantrymq.auth.audit import Audit
from gantrymq.auth.authority import GONE, OVER, WRITE, Authority
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.resources import Action, Kind
from gantrymq.auth.rows import POLICIES, TOKENS, USERS, Policy, Rule, Token, User, encode, read_token
from gantrymq.auth.sasl import exchanges
from gantrymq.auth.tokens import own
from gantrymq.auth.tokens.ending import AGAIN_MS, Ending
from gantrymq.net.testing import ManualClock, ManualWheel

GOOD_MS = 60_000


class World:
    def __init__(self, *users: User) -> None:
        self.clock = ManualClock()
        self.wheel = ManualWheel(self.clock)
        audit = Audit(self.wheel, self.clock.monotonic_ms, "test")
        self.authority = Authority(AuthConfig(), None, lambda callback: callback(), audit)  # type: ignore[arg-type]
        self.authority.load(USERS, {user.name: encode(user) for user in users})
        rule = Rule("topic:own", ("pub",))
        self.authority.load(POLICIES, {"group:devs": encode(Policy("group:devs", (rule,)))})

    def make(self, user: str = "alice", good_ms: int = GOOD_MS) -> tuple[str, str]:
        """Id and text of a token that is known now."""
        name, text = own.make()
        row = Token(name, user, own.parse(text)[1], self.clock.monotonic_ms() + good_ms)
        self.authority.apply(TOKENS, name, encode(row))
        return name, text

    def come(self, text: str) -> tuple[Any, str]:
        """As the doors that take passwords ask."""
        said: list[tuple[Any, str]] = []
        self.authority.login("whoever", text, "c1", "127.0.0.1:1", lambda identity, why: said.append((identity, why)))
        return said[0]


ALICE = User("alice", groups=("devs",), amqp={"/": ("^$", "^jobs", "^$")})


def test_who_comes_with_one_is_its_user() -> None:
    world = World(ALICE, User("root", admin=True))
    name, text = world.make()
    identity, why = world.come(text)
    assert (identity.name, why, identity.came_with) == ("alice", "", f"token {name}")
    assert identity.may(Action.PUB, Kind.TOPIC, "own"), "of its groups"
    assert not identity.may(Action.PUB, Kind.TOPIC, "other")
    assert identity.decide_amqp(WRITE, "/", "jobs1", (Action.PUB, Kind.TOPIC, "jobs1")).allowed, "its expressions"
    assert not identity.is_admin
    assert world.come(world.make("root")[1])[0].is_admin


def test_what_is_kept_tells_nothing() -> None:
    name, text = own.make()
    known = own.parse(text)
    assert known[0] == name
    assert known[1] not in text
    secret = text.rpartition("_")[2]
    assert secret not in encode(Token(name, "alice", known[1], 1)).decode()
    assert own.hash_of("0" * 16, secret) != known[1], "good for no other row"
    assert len({own.make()[1] for _ in range(100)}) == 100


def test_others_are_refused() -> None:
    world = World(ALICE)
    name, text = world.make()
    wrong = text[:-1] + ("0" if text[-1] != "0" else "1")
    assert world.come(wrong) == (None, f"the token is refused: none with id {name} is known")
    assert "is known" in world.come(own.make()[1])[1]
    assert "has expired" in world.come(world.make(good_ms=0)[1])[1]
    assert "deleted or disabled" in world.come(world.make("nobody")[1])[1]
    world.authority.apply(USERS, "alice", encode(User("alice", enabled=False)))
    assert "deleted or disabled" in world.come(text)[1]


TOKEN: Final = "gantry_0123456789abcdef_" + "f" * 64


def test_what_is_made_is_a_token() -> None:
    assert own.looks_like_one(TOKEN)
    assert own.looks_like_one(own.make()[1])


@pytest.mark.parametrize(
    "text",
    ["gantry_", "gantry_0_1", TOKEN.replace("f", "g"), TOKEN + "0", TOKEN + "\n", TOKEN.upper(), " " + TOKEN],
)
def test_what_is_no_token_is_a_password(text: str) -> None:
    assert not own.looks_like_one(text)


def test_it_ends_at_its_time_when_it_is_deleted_and_with_its_user() -> None:
    world = World(ALICE)
    authority = world.authority
    first, second = world.make(), world.make()
    by_first, by_second = world.come(first[1])[0], world.come(second[1])[0]
    authority.apply(TOKENS, first[0], None)
    assert (by_first.alive, by_second.alive) == (False, True)
    assert by_first.decide(Action.PUB, Kind.TOPIC, "own") is OVER
    assert by_first.farewell == "the token of user alice has expired or was deleted"
    ended: list[int] = []
    ending = Ending(world.wheel, lambda: ended.append(world.clock.monotonic_ms()))
    ending.watch(by_second)
    assert by_second.ends_in_ms() == GOOD_MS
    world.wheel.advance(GOOD_MS + AGAIN_MS)
    assert len(ended) == 1
    assert by_second.ends_in_ms() == 0
    assert not by_second.alive
    third = world.come(world.make()[1])[0]
    authority.apply(USERS, "alice", None)
    assert third.decide(Action.PUB, Kind.TOPIC, "own") is GONE


def test_a_connection_may_come_with_another_one() -> None:
    world = World(ALICE, User("bob"))
    identity = world.come(world.make(good_ms=1_000)[1])[0]
    identity.renew(world.come(world.make()[1])[0])
    assert identity.ends_in_ms() == GOOD_MS
    with pytest.raises(PermissionError):
        identity.renew(world.come(world.make("bob")[1])[0])


def test_oauthbearer_is_offered_where_somebody_may_come_with_one() -> None:
    world = World(ALICE)
    assert exchanges.mechanisms(world.authority) == ()
    name, text = world.make()
    assert exchanges.mechanisms(world.authority) == (exchanges.BEARER,)
    login = exchanges.begin(world.authority, exchanges.BEARER, "c", "127.0.0.1:1")
    assert login is not None
    steps: list[exchanges.Step] = []
    login.step(f"n,,\x01auth=Bearer {text}\x01\x01".encode(), steps.append)
    assert steps[0].identity is not None
    assert steps[0].identity.came_with == f"token {name}"


@pytest.mark.parametrize("changes", [{"id": "x"}, {"user": "a/b"}, {"hash": ""}, {"hash": "0" * 63}, {"id": "0" * 17}])
def test_rows_that_are_no_tokens(changes: dict[str, str]) -> None:
    row = {"id": "0" * 16, "user": "alice", "hash": "0" * 64}
    good = Token(**row, expires_ms=1)
    assert read_token("0" * 16, encode(good)) == good
    bad = Token(**{**row, **changes}, expires_ms=1)
    with pytest.raises(ValueError, match=r"token|name"):
        read_token(bad.id, encode(bad))
    with pytest.raises(ValueError, match="in the row of"):
        read_token("1" * 16, encode(good))
