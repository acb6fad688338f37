"""Dead letters that are sent again, and traces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.cli.messages import decode_trace, letter
from gantrymq.model.errors import ErrorCode, GantryError


def dead(**pairs: str) -> Any:
    return SimpleNamespace(
        topic="%DLQ%g",
        broker="b",
        queue_id=0,
        queue_offset=7,
        tag="t",
        keys="k1 k2",
        body=b"x",
        property_map=lambda: pairs,
    )


def test_a_dead_letter_goes_back_as_it_was_sent() -> None:
    made = letter(dead(RETRY_TOPIC="orders", UNIQ_KEY="u", RECONSUME_TIME="16", colour="red", __SHARDINGKEY="s"), "")
    assert (made.topic, made.body, made.tag, made.keys) == ("orders", b"x", "t", ["k1", "k2"])
    assert made.properties is not None
    assert made.properties["colour"] == "red"
    assert not {"RETRY_TOPIC", "UNIQ_KEY", "RECONSUME_TIME"} & set(made.properties)
    assert letter(dead(RETRY_TOPIC="orders", DLQ_ORIGIN_TOPIC="first"), "").topic == "first"
    assert letter(dead(RETRY_TOPIC="orders"), "elsewhere").topic == "elsewhere"
    with pytest.raises(GantryError, match="--to TOPIC") as caught:
        letter(dead(), "")
    assert caught.value.code is ErrorCode.NOT_FOUND


def test_traces_of_rocketmqs_clients() -> None:
    sent = [
        "Pub",
        "1700",
        "region",
        "producers",
        "orders",
        "ID",
        "tag",
        "k1",
        "host",
        "5",
        "12",
        "0",
        "offid",
        "true",
        "1.2.3.4",
    ]
    before = ["SubBefore", "1800", "region", "readers", "req", "ID", "2", "k1", "client"]
    after = ["SubAfter", "req", "ID", "33", "false", "k1", "1", "1900", "readers"]
    text = "".join(["\x01".join(record) + "\x02" for record in (sent, before, after, ["Pub", "x"], ["Unknown", "1"])])
    rows = list(decode_trace(text))
    assert [row["what"] for row in rows] == ["sent", "delivered again (2)", "consumed"]
    assert [row["time"] for row in rows] == [1700, 1800, 1900]
    assert [(row["took"], row["ok"]) for row in rows] == [(12, True), (None, None), (33, False)]
    assert {row["id"] for row in rows} == {"ID"}
    assert rows[0]["topic"] == "orders"
