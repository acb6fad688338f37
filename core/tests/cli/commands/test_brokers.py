"""`gantry cluster`: what fits is shown whole."""

from __future__ import annotations

from io import StringIO

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
