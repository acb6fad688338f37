"""`gantry transactions` against an Admin that is not there."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.cli.app import run_app
from gantrymq.client import admin
from gantrymq.client.admin import ClusterInfo
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode


class FakeAdmin:
    """Two brokers with undecided transactions; `decided`: what it was told."""

    rows: dict[str, list[str]]
    decided: list[dict[str, str]]
    page = 2

    def __init__(self, nameserver: str) -> None:
        self.client = SimpleNamespace(ask=self.ask)

    async def __aenter__(self) -> FakeAdmin:
        return self

    async def __aexit__(self, *failure: object) -> None:
        return

    async def cluster(self) -> ClusterInfo:
        return ClusterInfo({"c": ["a", "b"]}, {name: {0: f"{name}:1"} for name in ("a", "b")})

    async def ask(self, address: str, command: Command, what: str) -> Any:
        if command.code == RequestCode.END_TRANSACTION:
            if command.fields["transactionId"] == "late":
                raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "half message 0 is decided already: committed")
            FakeAdmin.decided.append(command.fields)
            return SimpleNamespace(body=b"")
        names = FakeAdmin.rows[address[0]]
        start = int(command.fields["start"])
        shown = [
            {"transactionId": name, "group": "g", "topic": "t", "offset": number, "position": 100 + number, "born": 1, "stored": 1_000,
             "checks": 3, "producers": 0}
            for number, name in enumerate(names)
            if start <= number < start + self.page and command.fields["transactionId"] in ("", name)
        ]  # fmt: skip
        following = start + self.page
        body = {
            "pending": len(names),
            "next": following if following < len(names) else -1,
            "now": 200_000,
            "transactions": shown,
        }
        return SimpleNamespace(body=json.dumps(body).encode())


@pytest.fixture(autouse=True)
def brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "Admin", FakeAdmin)
    FakeAdmin.rows = {"a": ["u0", "u1", "late"], "b": ["v0"]}
    FakeAdmin.decided = []


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["transactions", "list", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["transaction_id"], row["broker"]) for row in rows] == [
        ("u0", "a"),
        ("u1", "a"),
        ("late", "a"),
        ("v0", "b"),
    ]
    assert run_app(["transactions", "list", "--json", "--broker", "b"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert run_app(["transactions", "list", "--json", "--max", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert run_app(["transactions", "list", "--broker", "z"]) == 4
    assert "the nameserver knows no broker z" in capsys.readouterr().err


@pytest.mark.parametrize(("word", "bits"), [("commit", "8"), ("rollback", "12")])
def test_decisions(word: str, bits: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["transactions", word, "u1"]) == 0
    (fields,) = FakeAdmin.decided
    assert (fields["commitOrRollback"], fields["fromTransactionCheck"], fields["producerGroup"]) == (bits, "true", "g")
    assert (fields["tranStateTableOffset"], fields["commitLogOffset"]) == ("1", "101")
    assert run_app(["transactions", word, "nobody"]) == 3
    assert "no undecided transaction nobody (see `gantry transactions list`)" in capsys.readouterr().err
    assert run_app(["transactions", word, "late"]) == 1
    assert "decided already" in capsys.readouterr().err
    assert run_app(["transactions", word, "u1", "--nameserver", "x"]) == 2
