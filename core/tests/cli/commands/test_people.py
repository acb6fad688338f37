"""What people see: bodies, times, starting points."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from gantrymq.cli.commands import people
from gantrymq.cli.commands.people import BODY_SHOWN_MAX, body_text, moment, parse_start
from gantrymq.cli.options import EXIT_UNREACHABLE, exit_code_of, explain
from gantrymq.client.errors import BrokerError
from gantrymq.client.producing.producer import PartialSendError
from gantrymq.launch.exit_codes import EXIT_FAILED, EXIT_USAGE
from gantrymq.model.errors import ConfigError, ErrorCode, GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import ResponseCode


def test_bodies_on_one_line() -> None:
    assert body_text(b"") == ""
    assert body_text("grüße\nzwei".encode()) == "grüße zwei"
    assert body_text(b"\xff\x00\x01") == "3 bytes: ff 00 01"
    assert body_text(b"\x1b[31mred") == "8 bytes: 1b 5b 33 31 6d 72 65 64"  # no escape codes from strangers
    assert body_text("ü".encode() * 1000).endswith("...")


@given(st.binary(max_size=2000) | st.text(max_size=1000).map(str.encode))
def test_any_body_is_shown_printable_and_short(body: bytes) -> None:
    text = body_text(body)
    assert len(text) <= BODY_SHOWN_MAX + 20
    assert all(char.isprintable() or char == "\t" for char in text)


def test_starting_points() -> None:
    assert parse_start("earliest") == "earliest"
    assert parse_start("1700000000000") == 1_700_000_000_000
    assert parse_start("2026-01-31T12:00+00:00") == 1_769_860_800_000
    for text in ("", "now", "2026-13-01", "99999999999999999999"):
        with pytest.raises(ConfigError, match="--from"):
            parse_start(text)


def test_times_of_any_record_can_be_shown() -> None:
    assert "2023-11-1" in moment(1_700_000_000_000)
    assert moment(1 << 62) == f"{1 << 62} ms"


def test_errors_say_what_to_do() -> None:
    unavailable = GantryError(ErrorCode.UNAVAILABLE, "no nameserver answers")
    assert explain(unavailable) == ("no nameserver answers (is `gantry up` running there?)")
    assert "topic list" in explain(GantryError(ErrorCode.TOPIC_NOT_FOUND, "no topic x"))
    assert explain(GantryError(ErrorCode.BUSY, "busy")) == "busy"
    assert exit_code_of(unavailable) == EXIT_UNREACHABLE
    full = BrokerError(Command(ResponseCode.SERVICE_NOT_AVAILABLE, remark="no space left"), "send", "a:1")
    assert (
        explain(full) == "send: a:1 answered SERVICE_NOT_AVAILABLE (14): no space left"
    )  # it runs: that is no question
    assert exit_code_of(full) == EXIT_FAILED
    assert exit_code_of(GantryError(ErrorCode.NAME_INVALID, "bad name")) == EXIT_USAGE
    refused = PartialSendError([full, unavailable])
    assert explain(refused) == f"2 of 2 messages were not stored; number 0: {full.text}"
    assert exit_code_of(refused) == EXIT_FAILED
    unsent = PartialSendError([unavailable, full])
    assert "is `gantry up` running there?" in explain(unsent)
    assert exit_code_of(unsent) == EXIT_UNREACHABLE


def test_one_table_that_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(width=80, record=True, file=StringIO())
    monkeypatch.setattr(people, "CONSOLE", console)
    messages = [
        SimpleNamespace(topic="factory", broker="broker-a", queue_id=queue, queue_offset=12_345, tag="line1.temp", keys="k1",
                        store_ms=1_700_000_000_000, body=b"21.5 degrees and more of it")
        for queue in (0, 3)
    ]  # fmt: skip
    people.show(messages, False)  # type: ignore[arg-type]
    text = console.export_text(clear=True)
    title, head, _, first, *_ = text.splitlines()
    assert title.strip() == "factory"
    assert head.split() == ["queue", "offset", "tag", "keys", "time", "body"]
    assert [word.strip() for word in first.split()[:2]] == ["0", "12345"]
    assert text.count("queue") == 1
    assert moment(1_700_000_000_000, "seconds") in first  # as in the details of one message, but for the milliseconds
    messages[0].broker = "broker-b"
    people.show(messages, False)  # type: ignore[arg-type]
    assert "broker-b/0" in console.export_text()


@pytest.mark.parametrize(
    "body", [b"x" * 400, b"some words " * 40, b"a\tb" * 100, "漢字".encode() * 100, bytes(range(256))]
)
@pytest.mark.parametrize("width", [60, 80, 120, 300])
def test_the_rule_is_as_wide_as_the_table(body: bytes, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(width=width, record=True, file=StringIO())
    monkeypatch.setattr(people, "CONSOLE", console)
    message = SimpleNamespace(
        topic="t", broker="b", queue_id=0, queue_offset=1, tag="", keys="", store_ms=1_700_000_000_000, body=body
    )
    people.show([message], False)  # type: ignore[list-item]
    lines = console.export_text().splitlines()[1:]  # without the title
    (rule,) = [line for line in lines if set(line) == {"─"}]
    assert {cell_len(rule)} == {cell_len(line) for line in lines}
