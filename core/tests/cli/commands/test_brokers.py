"""`gantry cluster`: what fits is shown whole."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from gantrymq.cli import screen
from gantrymq.cli.commands import brokers
from gantrymq.cli.mqtt import reach
from gantrymq.cluster.join import _REMEDY, NOT_USED, reasons

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


def test_what_a_drain_waits_for_names_the_tables() -> None:
    left = brokers.left_of(
        {"backlog": {"ready": 3, "unacked": 0, "rows": 7, "tables": {"amqp_queue": 2, "mqtt_session": 5}}}
    )
    assert sum(left.values()) == 10
    assert brokers.left_text(left) == (
        "3 ready in queues and sessions, 7 rows of tables for gateways to move (amqp_queue 2, mqtt_session 5)"
    )
    assert brokers.left_text(brokers.left_of({"backlog": {"rows": 0, "tables": {}}})) == "nothing is left"


class Unused:
    """A port of which brokers are not in use."""

    def why(self) -> str:
        return reasons(
            [
                f"broker group {one} has no table of slots, nor has {other}, which is in use{_REMEDY}"
                for one, other in ("ab", "bc")
            ]
        )


def test_brokers_that_are_not_used_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    port: Any = Unused()
    reach._tell(port, "no broker group is in use: give all brokers the same broker.metadata_group")
    assert not caplog.records
    reach._tell(port, "queue q does not exist")
    assert caplog.text.count("give all brokers the same broker.metadata_group") == 1
    assert "group a has" in caplog.text
    assert "group b has" in caplog.text
    reach.port_log.addFilter(reach._is_no_complaint)
    try:
        reach.port_log.warning(NOT_USED, "a", "why")
    finally:
        reach.port_log.removeFilter(reach._is_no_complaint)
    assert "not used yet" not in caplog.text
