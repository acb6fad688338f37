"""Hashes that were imported give way to ours when their users log in."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from gantrymq.auth import passwords
from gantrymq.auth.audit import Audit
from gantrymq.auth.authority import RENEWING_MAX, Authority
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.failures import Failures
from gantrymq.auth.logins import Logins
from gantrymq.auth.rows import POLICIES, USERS, User, encode
from gantrymq.net.testing import ManualClock, ManualWheel

SALT = b"salt"
FOREIGN = "rabbit_password_hashing_sha256:" + base64.b64encode(SALT + hashlib.sha256(SALT + b"right").digest()).decode()


class HeldLogins(Logins):
    """Hashes when the test says so."""

    def __init__(self) -> None:
        super().__init__(
            ManualWheel(ManualClock()), lambda call, *arguments: call(*arguments), b"seed", verified_ms=1000, waiting_max=10,
            address_waiting_max=10, failures=Failures(0, 0, 100),
        )  # fmt: skip
        self.held: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def hash(self, make: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.held.append((make, done))


class World:
    def __init__(self, *users: User) -> None:
        self.logins = HeldLogins()
        audit = Audit(ManualWheel(ManualClock()), lambda: 0, "test")
        self.authority = Authority(AuthConfig(), self.logins, lambda callback: callback(), audit)
        self.authority.load(USERS, {user.name: encode(user) for user in users})
        self.authority.load(POLICIES, {})
        self.replaced: list[tuple[User, User]] = []
        self.authority.replace_row = lambda before, after: self.replaced.append((before, after))

    def login(self, name: str, password: str) -> str:
        said: list[str] = []
        self.authority.login(name, password, "c", "192.0.2.1:5", lambda identity, why: said.append(why))
        return said[0]

    def hash_all(self) -> None:
        held, self.logins.held = self.logins.held, []
        for make, done in held:
            done(make())


@pytest.fixture
def world() -> World:
    return World(User("alice", password=FOREIGN, groups=("g",)))


def test_an_imported_hash_is_replaced_once(world: World) -> None:
    assert world.login("alice", "right") == ""
    assert world.login("alice", "right") == ""
    assert len(world.logins.held) == 1
    world.hash_all()
    ((before, after),) = world.replaced
    assert (before.password, after.groups) == (FOREIGN, ("g",))
    assert after.password.startswith("$argon2id$")
    assert passwords.verify(after.password, "right")


def test_a_wrong_password_replaces_nothing(world: World) -> None:
    assert world.login("alice", "wrong")
    assert not world.logins.held


def test_a_user_who_changed_meanwhile_stays_as_he_is(world: World) -> None:
    assert world.login("alice", "right") == ""
    world.authority.apply(USERS, "alice", encode(User("alice", password=FOREIGN, enabled=False)))
    world.hash_all()
    assert not world.replaced


def test_a_fleet_that_comes_at_once_does_not_wait_for_its_hashes() -> None:
    world = World(*[User(f"u{number}", password=FOREIGN) for number in range(100)])
    assert {world.login(f"u{number}", "right") for number in range(100)} == {""}
    assert len(world.logins.held) == RENEWING_MAX
    world.hash_all()
    assert {world.login(f"u{number}", "right") for number in range(100)} == {""}
    assert len(world.replaced) == RENEWING_MAX


def test_own_hashes_stay() -> None:
    assert passwords.is_foreign(FOREIGN)
    assert not passwords.is_foreign(passwords.make_hash("x"))
    assert not passwords.is_foreign("")
