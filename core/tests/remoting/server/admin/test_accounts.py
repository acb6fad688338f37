"""A user is deleted with its tokens and policy, or stays, and whoever asked is told."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.auth.audit import Audit
from gantrymq.auth.authority import Authority
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.rows import POLICIES, TOKENS, USERS, Token, User, encode
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.testing import ManualClock, ManualWheel
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.server.admin.accounts import Accounts, delete_user

ALICE = User("alice")
TOKEN = Token("0123456789abcdef", "alice", "f" * 64, 1_000)


class Store:
    """Takes rows of all tables but one; answers are given by hand."""

    def __init__(self, refused: str) -> None:
        self.refused = refused
        self.tables: list[str] = []

    def put(self, table: str, rows: list[tuple[str, bytes | None]], token: Any, done: Any) -> None:
        self.tables.append(table)
        done(token, GantryError(ErrorCode.STORE_FULL, "no room") if table == self.refused else None)


class Said:
    """The reply."""

    def __init__(self) -> None:
        self.all: list[int] = []

    def respond(self, command: Command) -> None:
        self.all.append(ResponseCode.SUCCESS)

    def refuse(self, command: Command, code: int, remark: str) -> None:
        assert remark == "no room"
        self.all.append(code)


@pytest.mark.parametrize(
    ("refused", "tables", "answer"),
    [
        ("", [TOKENS, POLICIES, USERS], ResponseCode.SUCCESS),
        (TOKENS, [TOKENS], ResponseCode.SYSTEM_ERROR),
        (POLICIES, [TOKENS, POLICIES], ResponseCode.SYSTEM_ERROR),
        (USERS, [TOKENS, POLICIES, USERS], ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_user_goes_after_its_tokens_and_its_policy(refused: str, tables: list[str], answer: int) -> None:
    clock = ManualClock()
    audit = Audit(ManualWheel(clock), clock.monotonic_ms, "test")
    authority = Authority(AuthConfig(), None, lambda callback: callback(), audit)  # type: ignore[arg-type]
    authority.load(USERS, {"alice": encode(ALICE)})
    authority.load(TOKENS, {TOKEN.id: encode(TOKEN)})
    store, said = Store(refused), Said()
    command = Command(RequestCode.AUTH_DELETE_USER, {"username": "alice"})
    delete_user(command, said, Accounts(authority, store.put, clock.now_ms))  # type: ignore[arg-type]
    assert (store.tables, said.all) == (tables, [answer])
