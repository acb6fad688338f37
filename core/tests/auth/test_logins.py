"""Passwords of every kind, in threads, remembered, and slowed."""

from __future__ import annotations

import asyncio
import base64
import hashlib

import pytest

from gantrymq.auth import passwords
from gantrymq.auth.failures import Failures
from gantrymq.auth.keys import KeyFileError, add_key, read_keys
from gantrymq.auth.logins import BUSY, NOBODY, WRONG, Logins
from gantrymq.net.testing import ManualClock, ManualWheel


def rabbit(password: str) -> str:
    salt = b"salt"
    return (
        "rabbit_password_hashing_sha256:"
        + base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
    )


def mosquitto(password: str, iterations: int = 101) -> str:
    salt = b"0123456789ab"
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations)
    return f"$7${iterations}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def old_mosquitto(password: str) -> str:
    salt = b"0123456789ab"
    digest = hashlib.sha512(password.encode() + salt).digest()
    return f"$6${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


@pytest.mark.parametrize("make", [passwords.make_hash, rabbit, mosquitto, old_mosquitto])
def test_hashes(make: object) -> None:
    known = make("päss")  # type: ignore[operator]
    passwords.check_hash(known)
    assert passwords.verify(known, "päss")
    assert not passwords.verify(known, "pass")
    assert not passwords.verify(known, "")
    assert not passwords.verify(known, "x" * 2000)


@pytest.mark.parametrize(
    "known", ["", "plain", "$argon2id$", "$argon2i$v=19$m=8,t=1,p=1$YQ$YQ", "$7$x$y$z", "$6$$", "rabbit_password_hashing_sha256:",
              "rabbit_password_hashing_md5:AAAA", "$7$99999999999$YQ==$YQ==", mosquitto("a")[:-8]],
)  # fmt: skip
def test_what_is_no_hash_lets_nobody_in(known: str) -> None:
    for password in ("", "a", "plain"):
        assert not passwords.verify(known, password)


def test_an_expensive_hash_is_refused() -> None:
    with pytest.raises(passwords.HashError, match="more than this server does"):
        passwords.check_hash("$argon2id$v=19$m=4194304,t=3,p=1$c2FsdHNhbHQ$aGFzaGhhc2g")


def test_unknown_users_cost_as_much() -> None:
    assert passwords.is_slow(NOBODY)
    passwords.check_hash(NOBODY)
    assert not passwords.verify(NOBODY, "anything")


class Bench:
    def __init__(self, waiting_max: int = 10, delay_ms: int = 0, address_waiting_max: int = 10) -> None:
        self.wheel = ManualWheel(ManualClock())
        loop = asyncio.get_running_loop()
        self.logins = Logins(
            self.wheel, loop.call_soon_threadsafe, b"seed", verified_ms=60_000, waiting_max=waiting_max,
            address_waiting_max=address_waiting_max, failures=Failures(delay_ms, 1000, 20),
        )  # fmt: skip

    async def check(self, known: str, password: str, user: str = "u") -> str:
        answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.logins.check(user, known, password, "1.2.3.4", answered.set_result)
        return await asyncio.wait_for(answered, 30)


def test_what_was_right_is_known_for_a_while() -> None:
    async def main() -> None:
        bench = Bench()
        known = passwords.make_hash("right")
        assert await bench.check(known, "right") == ""
        said: list[str] = []
        bench.logins.check("u", known, "right", "1.2.3.4", said.append)
        assert said == [""]  # at once
        bench.logins.check("u", passwords.make_hash("right"), "right", "1.2.3.4", said.append)
        bench.logins.check("u", known, "right2", "1.2.3.4", said.append)
        assert said == [""]  # another hash, another password: not known
        bench.wheel.advance(60_001)
        bench.logins.check("u", known, "right", "1.2.3.4", said.append)
        assert said == [""]
        bench.logins.close()

    asyncio.run(main())


def test_failures_are_slowed_by_user_and_address() -> None:
    async def main() -> None:
        bench = Bench(delay_ms=100)
        known = old_mosquitto("right")
        assert await bench.check(known, "wrong") == WRONG
        assert await bench.check(known, "right", "other") == ""
        for delay_ms in (100, 200, 400, 800, 1000, 1000):
            said: list[str] = []
            bench.logins.check("u", known, "wrong", "1.2.3.4", said.append)
            bench.wheel.advance(delay_ms - 60)
            assert not said, delay_ms
            bench.wheel.advance(120)
            assert said == [WRONG]
        said = []
        bench.logins.check("u", known, "right", "1.2.3.4", said.append)
        bench.wheel.advance(1060)
        assert said == [""]
        bench.logins.check("u", known, "wrong", "1.2.3.4", said.append)
        assert said == ["", WRONG]  # the first failure again
        bench.logins.close()

    asyncio.run(main())


def test_what_waits_is_bounded() -> None:
    async def main() -> None:
        bench = Bench(waiting_max=2)
        known = passwords.make_hash("right")
        said: list[str] = []
        for number in range(4):
            bench.logins.check(f"u{number}", known, "right", "1.2.3.4", said.append)
        assert said == [BUSY, BUSY]
        bench.logins.close()

    asyncio.run(main())


def test_secrets_are_sealed_for_one_user(tmp_path: object) -> None:
    path = tmp_path / "auth.key"  # type: ignore[operator]
    add_key(path)
    sealed = read_keys(path).seal("alice", "secret")
    assert "secret" not in sealed
    add_key(path)  # a new key in front: what the old one sealed stays readable
    keys = read_keys(path)
    assert keys.open("alice", sealed) == "secret"
    assert keys.seal("alice", "secret").partition(".")[0] != sealed.partition(".")[0]
    for user, text in (("bob", sealed), ("alice", sealed[:-4] + "AAA="), ("alice", "x." + sealed)):
        with pytest.raises(KeyFileError):
            keys.open(user, text)
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="others may read it"):
        read_keys(path)
