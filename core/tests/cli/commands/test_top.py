"""What `gantry top` keeps from look to look, and what fits on a screen."""

from __future__ import annotations

import asyncio
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from gantrymq.cli.commands.top import FORGET_ROUNDS, SORTS, Figures, Top, connections_of, picture
from gantrymq.model.errors import GantryError


def row(name: str, now: int, topics: dict[str, int], **more: Any) -> dict[str, Any]:
    return {
        "name": name, "address": "a:1", "now": now, "started": 0, "put": sum(topics.values()), "get": 0, "logBegin": 0,
        "logEnd": 1_000 * now, "flushed": 1_000 * now, "draining": False, "lag": 5,
        "topics": [{"topic": topic, "in": count, "rate": 1.5} for topic, count in topics.items()],
        "readers": [], "groups": [{"group": "g", "topic": "t", "lag": 5, "members": 0}], "conflicts": {}, **more,
    }  # fmt: skip


def shown(figures: Figures, width: int, height: int, sort: str = "rate") -> list[str]:
    console = Console(width=width, height=height, file=StringIO(), color_system=None)
    console.print(picture(figures, sort, False, width, height))
    lines: list[str] = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return lines


def test_rates_are_added_over_brokers() -> None:
    figures = Figures()
    figures.take([row("a", 1_000, {"t": 10}), row("b", 1_000, {"t": 100})], {"mqtt": 3})
    assert figures.topics("rate")[0]["rate"] == 3.0  # one look: the brokers' own rates
    figures.take([row("a", 2_000, {"t": 20}), row("b", 2_000, {"t": 130})], {"mqtt": 3})
    (topic,) = figures.topics("rate")
    assert (topic["rate"], topic["total"], topic["lately"]) == (40.0, 150, [40.0])
    (group,) = figures.groups("rate")
    assert (group["lag"], group["members"]) == (10, 0)
    assert figures.connections == {"mqtt": 3}


def test_sorting() -> None:
    figures = Figures()
    figures.take([row("a", 1_000, {"x": 1_000, "y": 10, "z": 5})], {})
    figures.take([row("a", 2_000, {"x": 1_001, "y": 110, "z": 55})], {})
    assert {sort: [each["topic"] for each in figures.topics(sort)] for sort in SORTS} == {
        "rate": ["y", "z", "x"], "total": ["x", "y", "z"], "name": ["x", "y", "z"],
    }  # fmt: skip


def test_what_is_gone_is_forgotten() -> None:
    figures = Figures()
    figures.take([row("a", 0, {"gone": 5})], {})
    for fetch in range(FORGET_ROUNDS + 2):
        figures.take([row("a", 1_000 * (fetch + 1), {"t": fetch})], {})
    assert [each["topic"] for each in figures.topics("rate")] == ["t"]


def test_a_broker_that_does_not_answer_is_shown() -> None:
    figures = Figures()
    figures.take([row("a", 1_000, {"t": 1}), {"name": "b", "address": "b:1", "error": "cannot be reached"}], {})
    assert any("b " in line and "no\u00a0answer" in line for line in shown(figures, 120, 30))


@pytest.mark.parametrize(("width", "height"), [(40, 20), (59, 24), (60, 24), (79, 24), (80, 24), (110, 30), (200, 60)])
def test_it_fits_the_screen(width: int, height: int) -> None:
    figures = Figures()
    topics = {f"a-topic-with-quite-a-long-name-{number}": number * 100_000 for number in range(100)}
    groups = [
        {"group": f"group-{number}", "topic": "t", "lag": number * 1_000, "members": number % 2}
        for number in range(100)
    ]
    for fetch in (1, 2):
        brokers = [row(f"broker-{number}", 1_000 * fetch, topics, groups=groups) for number in range(3)]
        figures.take(brokers, {"mqtt": 12, "amqp": 5})
    lines = shown(figures, width, height)
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= height
    text = "\n".join(lines)
    assert "topics" in text
    assert "groups" in text
    assert "mqtt 12" in text


@pytest.mark.parametrize("width", [50, 60, 79, 80, 110, 140])
def test_names_are_cut_and_numbers_are_whole(width: int) -> None:
    long = "of-a-very-long-name-indeed-longer-than-any-screen-has-columns-for-it"
    figures = Figures()
    for fetch in (1, 2, 3):
        groups = [{"group": f"readers-{long}", "topic": f"topic-{long}", "lag": 1_234_567, "members": 1}]
        topics = {f"topic-{long}": fetch * 7_654_321}
        state = {"refused": "the disk has no room left"} if fetch == 3 else {}
        figures.take([row(f"broker-{long}", 1_000_000 * fetch, topics, groups=groups, **state)], {})
    lines = shown(figures, width, 30)
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    for whole in ("1,234,567", "22,962,963", "2.8 GiB", "7,654"):
        assert whole in text, whole
    assert len([line for line in lines if line.startswith("broker-")]) == 1, "no row is two lines"
    assert not any("…" in line for line in lines if line.startswith(("gantry", "connections")))


def test_keys() -> None:
    async def main() -> None:
        top = Top(None, [], 1.0)  # type: ignore[arg-type]  # nobody is asked
        top.on_key("s")
        assert top._sort == "total"
        top.on_key(" ")
        assert top._paused
        top.on_key("x")
        assert not top._quit
        top.on_key("q")
        assert top._quit

    asyncio.run(main())


def test_connections_of_a_gateway() -> None:
    page = b'HTTP/1.1 200 OK\r\n\r\n# TYPE gantry_protocol_connections gauge\ngantry_protocol_connections{protocol="mqtt"} 7\n'

    async def main() -> dict[str, int]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(page)
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            found = await connections_of(f"127.0.0.1:{port}")
        with pytest.raises(GantryError, match="HOST:PORT of a gateway's metrics"):
            await connections_of(f"127.0.0.1:{port}")
        return found

    assert asyncio.run(main()) == {"mqtt": 7}
