"""C12: what of authentication cannot be read lets nobody start, and nobody in."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from gantrymq.auth.audit import Audit
from gantrymq.auth.authority import Authority
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.keys import KeyFileError, add_key, read_keys
from gantrymq.auth.rows import USERS, User, encode
from gantrymq.launch.authentication import _admin_of, _tokens_of, follow
from gantrymq.model.errors import ConfigError
from gantrymq.net.testing import ManualClock, ManualWheel


def authority(tmp_path: Path, **settings: bool) -> Authority:
    audit = Audit(ManualWheel(ManualClock()), lambda: 0, "test")
    made = Authority(AuthConfig(**settings), None, lambda callback: callback(), audit)  # type: ignore[arg-type]
    add_key(tmp_path / "keys")
    made.keys = read_keys(tmp_path / "keys")
    return made


BROKEN_ADMINS = (
    "", "root", ":password", "a/b:password", "root:", "root:one\nother:two", "root:$6$broken", "root:$7$0$AAAA$AAAA", "root:$argon2id$v=19",
    "root:$1$md5crypt$x", "root:$7$101$AAAA$" + base64.b64encode(b"x" * 63).decode(), "root:" + "x" * 2000,
)  # fmt: skip


@pytest.mark.parametrize("content", BROKEN_ADMINS)
def test_an_administrator_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    """Mosquitto CVE-2018-12551: a broken line was a user."""
    (tmp_path / "admin").write_text(content)
    with pytest.raises(ConfigError, match=r"auth\.admin_file"):
        _admin_of(tmp_path / "admin", authority(tmp_path))
    with pytest.raises(ConfigError, match="No such file"):
        _admin_of(tmp_path / "nothing", authority(tmp_path))


def test_one_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "admin").write_text("root:s3kret-word\n")
    user = _admin_of(tmp_path / "admin", authority(tmp_path, scram=True))
    assert user.admin
    assert user.scram.startswith("SCRAM-SHA-256$")
    assert "s3kret-word" not in str(user)
    (tmp_path / "admin").write_text("root:$7$101$AAAA$" + base64.b64encode(b"x" * 64).decode())
    assert _admin_of(tmp_path / "admin", authority(tmp_path)).secret == ""


@pytest.mark.parametrize(
    ("content", "mode"), [("", 0o600), ("a AAAA\n", 0o600), ("a " + "A" * 43 + "=\n", 0o644), ("x", 0o600)]
)
def test_key_files_that_are_none(tmp_path: Path, content: str, mode: int) -> None:
    (tmp_path / "key").write_text(content)
    (tmp_path / "key").chmod(mode)
    with pytest.raises(KeyFileError):
        read_keys(tmp_path / "key")


@pytest.mark.parametrize(
    ("content", "settings", "why"),
    [
        ("{}", {}, "no JWK set"),
        ('{"keys":[]}', {}, "no key for"),
        (None, {}, "No such file"),
        ("{}", {"jwt_issuer": ""}, "auth.jwt_issuer is needed"),
        ("{}", {"jwt_audience": ""}, "auth.jwt_audience is needed"),
    ],
)
def test_key_sets_that_are_none(tmp_path: Path, content: str | None, settings: dict[str, str], why: str) -> None:
    if content is not None:
        (tmp_path / "set").write_text(content)
    names = {"jwt_issuer": "i", "jwt_audience": "a", "jwt_keys": str(tmp_path / "set"), **settings}
    config = AuthConfig(**names)  # type: ignore[arg-type]

    async def main() -> None:
        _tokens_of(config, ManualWheel(ManualClock()), lambda: 0)

    with pytest.raises(ConfigError, match=why):
        asyncio.run(main())


def test_a_user_who_is_deleted_as_the_tables_come_stays_deleted(tmp_path: Path) -> None:
    made = authority(tmp_path, enabled=True)

    class Port:
        def watch_table(self, table: str, on_change: Any, token: object, on_done: Any) -> None:
            def arrive() -> None:
                """Both in one read of a connection."""
                on_done(token, {"bob": encode(User("bob"))} if table == USERS else {})
                on_change("bob", None)

            asyncio.get_running_loop().call_soon(arrive)

    asyncio.run(follow(made, Port()))  # type: ignore[arg-type]
    assert made.loaded
    assert not made._rows[USERS]
