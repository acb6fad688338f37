"""Rows that no door can read: refused at the wire, put aside at a start, listed and removed; everything else works."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gantrymq.broker.row_checks import check_of, known_tables, readable, refuse_unreadable, why_unreadable
from gantrymq.cli.app import app
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from gateways.tests.mqtt.world import World
from gateways.tests.realport import RealBroker

GARBAGE = {
    "mqtt_session": [("c", b"{"), ("c", b"[]"), ("c", b'{"s":{"f":[1,"x",0]}}'), ("c", b'{"s":1}'), ("c\nf", b"[1]")],
    "mqtt_filter": [("x", b"a"), ("-1", b"a"), ("1", b"\xff"), ("1", b"a" * 5000 + b"/" * 300)],
    "mqtt_retained": [("k", b""), ("k", b"\x01\x00"), ("k", b"\x09\x00\x01tx"), ("other/", b"\x01\x00\x01tx")],
    "mqtt_ban": [("x:y", b"{}"), ("client:", b"{}"), ("client:a", b"[]"), ("address:x", b"{}")],
    "mqtt_console": [("a", b"["), ("a", b"1")],
    "mqtt_exchange": [("k", b"\x00\x01"), ("<k", b"\x00")],
    "mqtt_exclusive": [("k", b"{"), ("k", b"[1,2,3]"), ("k", b'["t","c"]')],
    "mqtt_past": [("g/1", b"{"), ("g/1", b"[1,2]"), ("g/1", b'"t"')],
    "mqtt_over": [("c", b"{"), ("c", b'{"entries":"1"}'), ("c", b"[]")],
    "mqtt_will": [("c", b"{"), ("c", b"[]"), ("c", b"\x00")],
    "mqtt_bridge": [("b", b"{"), ("b", b"{}"), ("b", b"[]")],
    "amqp_exchange": [("e", b"{"), ("e", b'{"type":1}'), ("e", b"{}")],
    "amqp_queue": [("q", b"{"), ("q", b'{"light":"1"}'), ("q", b"{}")],
    "amqp_binding": [("b", b"{"), ("b", b"{}"), ("b", b'{"source":"","to_queue":1}')],
    "amqp_vhost": [("a\nb", b"{}"), ("v", b"{"), ("v", b'{"limits":{"max-songs":1}}')],
    "amqp_user_limits": [("u", b"{"), ("u", b'{"limits":{"max-queues":1}}')],
    "amqp_policy": [("policy/p", b"{"), ("other/p", b'{"pattern":""}'), ("policy/p", b'{"pattern":"("}')],
    "amqp_bridge": [("b", b"{"), ("b", b"{}"), ("a/b", b'{"source":{"url":"amqp://h"},"destination":{},"queue":"q"}')],
    "amqp_bridge_state": [("b", b"{"), ("b", b'{"moved":"many"}')],
    "long_topic": [("t", b"\xff\xfe")],
}


def test_every_table_has_a_reader_and_garbage() -> None:
    assert known_tables() == sorted(GARBAGE)


@pytest.mark.parametrize(("table", "key", "value"), [(t, *row) for t, rows in GARBAGE.items() for row in rows])
def test_garbage_is_refused(table: str, key: str, value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    check = check_of(table)
    assert check is not None
    assert why_unreadable(check, key, value)
    with pytest.raises(GantryError) as raised:
        refuse_unreadable(table, [(key, value)])
    assert raised.value.code is ErrorCode.ILLEGAL_ARGUMENT
    assert table in raised.value.text
    assert readable(table, {key: value}) == {}
    assert [table in record.getMessage() for record in caplog.records] == [True]


def test_unknown_tables_and_deletions_pass() -> None:
    refuse_unreadable("a_strangers", [("k", b"{")])
    refuse_unreadable("amqp_queue", [("k", None)])
    assert readable("a_strangers", {"k": b"{"}) == {"k": b"{"}


def test_the_wire_takes_no_garbage(tmp_path: Path) -> None:
    world = World("remote", directory=tmp_path / "store")
    answers: list[Any] = []
    for table, rows in GARBAGE.items():
        for key, value in rows:
            world.broker_port.put(table, [(key, value)], None, lambda token, result: answers.append(result))
            world.broker_port.put_if(table, [(key, None, value)], None, lambda token, result: answers.append(result))
    world.settle()
    assert {getattr(answer, "code", None) for answer in answers} == {ErrorCode.ILLEGAL_ARGUMENT}
    assert len(answers) == 2 * sum(map(len, GARBAGE.values()))
    world.client("c").publish("t", b"x")
    world.close()


def test_a_directory_with_garbage_of_every_table_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What an older broker took, or a newer version wrote, is in the log."""
    world = World("local", directory=tmp_path / "first")
    client = world.client("good", clean=False)
    client.subscribe("a/#")
    world.client("p").publish("keep", b"kept", retain=True)
    client.disconnect()
    for table, rows in GARBAGE.items():
        world.broker_port.put(table, [(f"{key}", value) for key, value in rows], None, lambda token, result: None)
    world.settle()
    world.client("p").publish("a/b", b"waits")
    again = world.restart()
    found = again.client("good", clean=False)
    assert found.present
    assert found.messages() == [("a/b", b"waits")]
    replaced = again.client("c", clean=False)  # its row is one of those that nobody sees: a new one takes its place
    replaced.subscribe("a/#")
    again.client("p").publish("a/c", b"later")
    assert replaced.messages() == [("a/c", b"later")]
    reader = again.client("r")
    reader.subscribe("keep")
    assert reader.messages() == [("keep", b"kept")]
    reported = [record for record in caplog.records if "put aside" in record.getMessage()]
    assert {record.args[1] for record in reported if isinstance(record.args, tuple)} >= {
        "mqtt_session",
        "mqtt_filter",
    }
    assert all(record.levelno == logging.ERROR for record in reported)
    world.close()


def test_rows_are_listed_and_removed(tmp_path: Path) -> None:
    shell = (ManualClock(), ManualTurn(), ManualWheel(ManualClock()))
    broker = RealBroker("local", tmp_path / "data", shell, {})
    answers: list[Any] = []
    rows = [(f"q{number}", value) for number, (_, value) in enumerate(GARBAGE["amqp_queue"])]
    broker.port.put("amqp_queue", rows, None, lambda token, result: answers.append(result))
    good = b'{"type":"topic","durable":true,"auto_delete":false,"internal":false,"arguments":""}'
    broker.port.put("amqp_exchange", [("fine", good)], None, lambda token, result: answers.append(result))
    while broker.run():
        shell[1].run_until_quiet()
    shell[1].run_until_quiet()
    broker.close()
    runner = CliRunner()
    listed = runner.invoke(app, ["store", "rows", str(tmp_path / "data"), "--json"])
    assert listed.exit_code == 0, listed.output
    lines = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [(line["table"], line["key"]) for line in lines] == [("amqp_queue", key) for key, _ in rows]
    removed = runner.invoke(app, ["store", "rows", str(tmp_path / "data"), "--remove"])
    assert removed.exit_code == 0, removed.output
    after = runner.invoke(app, ["store", "rows", str(tmp_path / "data")])
    assert "every row can be read" in after.stdout
