"""`gantry cluster`: what fits is shown whole."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from gantrymq.cli import screen
from gantrymq.cli.commands import brokers

ROWS = [("DefaultCluster", "broker-a", "0", "127.0.0.1:10911", "ok", "1,200", "59", "422.3 KiB", "208")]


def shown(width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    console = Console(width=width, file=StringIO())
    monkeypatch.setattr(brokers, "CONSOLE", console)
    monkeypatch.setattr(screen, "CONSOLE", console)
    with console.capture() as captured:
        console.print(brokers._at_a_glance(ROWS))
    return [line for line in captured.get().splitlines() if line.strip()]


def test_clusters_and_addresses_are_left_out_rather_than_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    head, _, row = shown(120, monkeypatch)
    assert head.split()[:4] == ["cluster", "broker", "id", "address"]
    assert row.split()[:4] == ["DefaultCluster", "broker-a", "0", "127.0.0.1:10911"]
    for width in (60, 80):
        head, _, row = shown(width, monkeypatch)
        assert head.split()[:3] == ["broker", "id", "state"]
        assert row.split() == ["broker-a", "0", "ok", "1,200", "59", "422.3", "KiB", "208"]


def overview(slots: dict[str, Any]) -> dict[str, Any]:
    return {"name": "b", "slots": slots, "logBegin": 0, "logEnd": 10, "put": 1, "get": 2}


def test_what_a_broker_waits_for_is_said() -> None:
    waits = overview({"keeper": "a", "owned": 3, "silent": "broker b has not reached [its] metadata group a"})
    serves = overview({"keeper": "a", "owned": 3, "silent": ""})
    without = overview({"keeper": "", "owned": 0, "silent": "broker b has no broker.metadata_group"})
    assert [brokers.state_text(row) for row in (waits, serves, without)] == [
        "[red]waits[/red]",
        "[green]ok[/green]",
        "[green]ok[/green]",
    ]
    (line,) = brokers.waiting_lines([serves, waits, without, {"name": "c", "error": "away"}])
    console = Console(width=120, file=StringIO())
    with console.capture() as captured:
        console.print(line)
    assert captured.get().strip() == "broker b has not reached [its] metadata group a"
    assert brokers._figures(waits, {})["silent"] == "broker b has not reached [its] metadata group a"
    assert brokers._figures(without, {})["silent"] == ""
