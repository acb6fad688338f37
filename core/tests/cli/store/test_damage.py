"""`gantry store damage` against an Admin that is not there, and of a stopped directory."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.cli.app import run_app
from gantrymq.client import admin
from gantrymq.client.admin import ClusterInfo
from gantrymq.remoting.codec import Command
from gantrymq.remoting.overview_codes import DAMAGE_LIST, DAMAGE_SKIP
from gantrymq.store.damage import DamageList
from gantrymq.store.files import OsFileSystem


class FakeAdmin:
    """Two brokers; both list position 900."""

    skipped: list[tuple[str, str]]
    fields: dict[str, str]

    def __init__(self, nameserver: str) -> None:
        self.client = SimpleNamespace(ask=self.ask, links=SimpleNamespace(get=self.link))

    async def __aenter__(self) -> FakeAdmin:
        return self

    async def __aexit__(self, *failure: object) -> None:
        return

    async def cluster(self) -> ClusterInfo:
        return ClusterInfo({"c": ["a", "b"]}, {name: {0: f"{name}:1"} for name in ("a", "b")})

    async def link(self, address: str) -> Any:
        async def request(command: Command) -> None:
            return None

        return SimpleNamespace(request=request)

    async def ask(self, address: str, command: Command, what: str, limit_s: float = 0) -> Any:
        if command.code == DAMAGE_SKIP:
            FakeAdmin.skipped.append((address, command.fields["position"]))
            FakeAdmin.fields = command.fields
            return SimpleNamespace(body=b'{"skipped": 2}')
        assert command.code == DAMAGE_LIST
        positions = {"a:1": (500, 900), "b:1": (900,)}[address]
        rows = [
            {"position": position, "bytes": 300, "queue": "t/0", "offset": 4, "unit": False, "what": "CRC of the body", "found": 1_000,
             "skipped": False, "waits": 1, "waiting": [{"queue": "~3", "group": "mqtt:me", "offset": 7}]}
            for position in positions
        ]  # fmt: skip
        return SimpleNamespace(body=json.dumps({"records": rows}).encode())


@pytest.fixture(autouse=True)
def brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "Admin", FakeAdmin)
    FakeAdmin.skipped = []


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["store", "damage", "list", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["broker"], row["position"]) for row in rows] == [("a", 500), ("a", 900), ("b", 900)]
    assert run_app(["store", "damage", "list", "--broker", "a"]) == 0
    assert "mqtt:me" in capsys.readouterr().out


def test_skipping(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["store", "damage", "skip", "500"]) == 0
    assert FakeAdmin.skipped == [("a:1", "500")]
    assert "2 entries" in capsys.readouterr().out
    assert run_app(["store", "damage", "skip", "900"]) == 1
    assert "a, b" in capsys.readouterr().err
    assert run_app(["store", "damage", "skip", "900", "--broker", "b"]) == 0
    assert run_app(["store", "damage", "skip", "7"]) == 3
    assert run_app(["store", "damage", "skip", "500", "--queue", "t/0", "--offset", "5"]) == 3
    assert FakeAdmin.skipped == [("a:1", "500"), ("b:1", "900")]
    assert run_app(["store", "damage", "skip", "500", "--queue", "t/0", "--offset", "4"]) == 0
    assert FakeAdmin.fields == {"position": "500", "queue": "t/0", "offset": "4"}


def test_the_list_of_a_stopped_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["store", "damage", "list", "--data", str(tmp_path)]) == 1
    assert "no data directory" in capsys.readouterr().err
    (tmp_path / "gantry").mkdir()
    (tmp_path / "gantry" / "positions").touch()
    assert run_app(["store", "damage", "list", "--data", str(tmp_path)]) == 0
    assert "no damaged record" in capsys.readouterr().out
    damage = DamageList(OsFileSystem(), tmp_path / "gantry" / "damage", lambda: 5)
    damage.found(40, 300, "t/0", 4, "magic 0x00000000", False)
    damage.save(damage.text())
    assert run_app(["store", "damage", "list", "--data", str(tmp_path), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["position"], row["what"], row["waits"]) == (40, "magic 0x00000000", None)
