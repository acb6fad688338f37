"""A sender that is no MQTT client has a message retained: it is stored as the row that a gateway's would be."""

from __future__ import annotations

import pytest

from gantrymq.model.tables import retained_rows
from gantrymq.net.testing import FakeLink
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.overview_codes import SEND_HALF_ROWS, SEND_ROWS_ONCE
from tests.remoting.bench import Bench, send
from tests.remoting.server.sending.test_sends import batch_body, stored

WANTED = "UNIQ_KEY\x01U\x02TAGS\x01line%201.temp\x02GANTRY_MQTT_RETAIN\x011\x02"
KEY = "T/line%201.temp"


def rows(bench: Bench) -> dict[str, bytes]:
    return dict(bench.broker.tables.rows(retained_rows.TABLE))


@pytest.fixture
def link(bench: Bench) -> FakeLink:
    return bench.connect()


def test_the_row_of_its_topic(bench: Bench, link: FakeLink) -> None:
    assert send(link, b"21", WANTED + "GANTRY_QOS\x012\x02GANTRY_EXPIRES_AT\x015000\x02").code == 0
    head = retained_rows.row_head("T/line 1/temp", 2, b"", 5000)
    assert rows(bench) == {KEY: head + b"21"}
    (message,) = stored(bench)
    pairs = message.property_map()
    assert pairs["GANTRY_RETAIN"] == "1"
    assert "GANTRY_MQTT_RETAIN" not in pairs
    assert send(link, b"22", WANTED).code == 0
    assert rows(bench) == {KEY: retained_rows.row_head("T/line 1/temp", 1) + b"22"}
    assert send(link, b"", WANTED).code == 0
    assert rows(bench) == {}


def test_what_a_reader_sends_again_is_not_retained(bench: Bench, link: FakeLink) -> None:
    send(link, b"21", WANTED)
    (message,) = stored(bench)
    text = message.properties.decode() + message.dispatch.decode()
    assert send(link, b"old", text).code == 0
    assert rows(bench)[KEY].endswith(b"21")
    assert send(link, b"no", WANTED.replace("RETAIN\x011", "RETAIN\x010")).code == 0
    assert rows(bench)[KEY].endswith(b"21")


def test_some_of_a_batch(bench: Bench, link: FakeLink) -> None:
    body = batch_body((b"x", WANTED), (b"y", "TAGS\x01a\x02"), (b"z", WANTED.replace("temp", "rpm")))
    assert send(link, body, code=320, m="true").code == 0
    assert {key: value[-1:] for key, value in rows(bench).items()} == {KEY: b"x", "T/line%201.rpm": b"z"}
    assert [message.body for message in stored(bench)] == [b"x", b"y", b"z"]


def test_it_is_there_after_a_restart(bench: Bench, link: FakeLink) -> None:
    send(link, b"21", WANTED)
    before = rows(bench)
    assert before
    again = type(bench.broker.tables)()
    again.replay(bench.store, [retained_rows.TABLE])
    assert again.rows(retained_rows.TABLE) == before


@pytest.mark.parametrize(
    ("more", "fields", "text"),
    [
        ("TIMER_DELAY_SEC\x015\x02", {}, "what is delayed, of a transaction"),
        ("TRAN_MSG\x01true\x02PGROUP\x01g\x02", {}, "what is delayed, of a transaction"),
        ("INNER_MULTI_DISPATCH\x01%LMQ%a\x02", {}, "in light queues"),
        ("TAGS\x01a+b\x02", {}, "no topic of MQTT"),
        ("TAGS\x01a b\x02", {}, "no topic of MQTT"),
        ("", {"f": "1"}, "not compressed"),
        ("site\x01" + "x" * 31_700 + "\x02", {}, "properties and what retains it exceed"),
    ],
)
def test_what_cannot_be_retained_is_refused(
    bench: Bench, link: FakeLink, more: str, fields: dict[str, str], text: str
) -> None:
    answer = send(link, b"x", WANTED + more, **fields)
    assert answer.code in (Answer.MESSAGE_ILLEGAL, Answer.INVALID_PARAMETER), answer
    assert text in (answer.remark or "")
    assert rows(bench) == {}
    assert stored(bench) == []


@pytest.mark.parametrize("code", [SEND_ROWS_ONCE, SEND_HALF_ROWS])
def test_rows_of_other_modes_are_not_retained(bench: Bench, link: FakeLink, code: int) -> None:
    answer = send(link, batch_body((b"x", WANTED)), "TRAN_MSG\x01true\x02PGROUP\x01g\x02", code=code, m="true")
    assert "no property with a meaning for the broker" in (answer.remark or "")
    assert rows(bench) == {}
