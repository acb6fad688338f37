"""Numbers, sparklines and tables."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from gantrymq.cli import screen
from gantrymq.cli.screen import (
    SPARK_MAX,
    Trend,
    ago,
    lag_text,
    number,
    plain,
    show_rows,
    size,
    span,
    spark,
    table,
    watch,
)


def test_numbers() -> None:
    assert [size(count) for count in (0, 1023, 1024, 1 << 20, 5 << 40, 9 << 60)] == [
        "0 B", "1023 B", "1.0 KiB", "1.0 MiB", "5.0 TiB", "9437184.0 TiB",
    ]  # fmt: skip
    assert [number(count) for count in (0, 0.0, 1.25, 9, 12.7, 1234567)] == ["0", "0", "1.2", "9", "13", "1,234,567"]
    assert [span(ms) for ms in (-5, 1_999, 119_000, 120_000, 7_200_000, 200_000_000)] == [
        "0 s", "1 s", "119 s", "2 min", "2 h", "2 d",
    ]  # fmt: skip
    assert ago(0, 5_000) == "-"
    assert ago(1_000, 5_000) == "4 s ago"
    assert lag_text(0) == "[green]0[/green]"
    assert lag_text(5, online=False) == "[red]5[/red]"


def test_sparklines() -> None:
    assert spark([]) == ""
    assert spark([0, 0]) == "▁▁"
    assert spark([0, 1, 2, 4, 7]) == "▁▂▃▅█"


def test_trends_of_counters() -> None:
    trend = Trend()
    for second, total in enumerate((100, 110, 130, 20)):
        trend.count(total, float(second))
    assert trend.values == [10, 20, 0]  # a broker that started again counts from nothing
    assert trend.rate() == 10
    trend.count(50, 3.0)
    assert len(trend.values) == 3  # the same moment tells nothing
    for value in range(100):
        trend.add(value)
    assert len(trend.values) == SPARK_MAX


def test_text_of_strangers_has_no_effect() -> None:
    assert plain("[red]x\x1b[31m") == "\\[red]x?[31m"


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_tables_fit(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(width=width, file=StringIO())
    monkeypatch.setattr(screen, "CONSOLE", console)
    made = table("topic", "broker", ">queue", ">messages")
    made.add_row("a-topic-with-a-very-long-name-that-does-not-fit-anywhere", "broker-a", "3", "1,234,567")
    console.print(made)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert all(len(line) <= width for line in lines)
    assert "1,234,567" in "".join(lines)
    assert "a-topic-with-a-very-long-name-that-does-not-fit-anywhere" in "".join(
        [line[: line.find("  ") if width > 80 else 1_000].strip().partition(" ")[0] for line in lines]
    ).replace(" ", "")


def test_rows_as_json_lines_or_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    show_rows([{"a": "ü"}, {"a": 1}], True, str, "nothing")
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"a": "ü"}, {"a": 1}]
    console = Console(file=StringIO())
    monkeypatch.setattr(screen, "CONSOLE", console)
    show_rows([], False, str, "nothing")
    assert console.file.getvalue() == "nothing\n"  # type: ignore[attr-defined]


def test_watching_without_a_terminal_prints_one_below_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    import anyio

    console = screen.Screen(file=StringIO())
    monkeypatch.setattr(screen, "CONSOLE", console)
    rounds = 0

    async def fetch() -> tuple[list[int], str]:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            raise KeyboardInterrupt
        return [rounds], f"look {rounds}"

    with pytest.raises(KeyboardInterrupt):
        anyio.run(watch, fetch, True, 0.001, False)
    assert console.file.getvalue() == "look 1\nlook 2\n"  # type: ignore[attr-defined]


def test_long_lists_are_lines() -> None:
    rows = [("[red]a[/red]", str(number)) for number in range(screen.ROWS_MAX)]
    assert isinstance(screen.listing(("name", ">count"), rows), Table)
    rows.append((screen.plain("[b]日本"), "1,000"))
    console = Console(width=20)
    with console.capture() as capture:
        console.print(screen.listing(("name", ">count"), rows))
    lines = capture.get().splitlines()
    assert len(lines) == screen.ROWS_MAX + 2
    assert lines[:3] == ["name     count", "a            0", "a            1"]
    assert lines[-1] == "[b]日本  1,000"
