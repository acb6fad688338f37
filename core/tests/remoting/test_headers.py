"""Typed headers: defaults, conversions, and the text of what is wrong."""

import pytest

from gantrymq.remoting import headers
from gantrymq.remoting.headers import HeaderError, fields_of, parse

PULL = {"consumerGroup": "G", "topic": "T", "queueId": "1", "queueOffset": "20", "maxMsgNums": "32",
        "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "1700000000000",
        "subscription": "*"}  # fmt: skip


def test_pull_header() -> None:
    header = parse(PULL | {"unknown": "x"}, headers.PullHeader)
    assert (header.queue_id, header.queue_offset, header.expression_type, header.max_msg_bytes) == (
        1,
        20,
        None,
        None,
    )
    assert parse(fields_of(header), headers.PullHeader) == header


@pytest.mark.parametrize("name", sorted(PULL.keys() - {"subVersion", "subscription"}))
def test_missing_field_is_named(name: str) -> None:
    fields = {key: value for key, value in PULL.items() if key != name}
    with pytest.raises(HeaderError, match=name):
        parse(fields, headers.PullHeader)


@pytest.mark.parametrize("value", ["", "x", "1.5", "1e3x"])
def test_bad_number_is_named(value: str) -> None:
    with pytest.raises(HeaderError, match="queueId"):
        parse(PULL | {"queueId": value}, headers.PullHeader)


def test_booleans_are_text() -> None:
    header = parse({"topic": "T", "acceptStandardJsonOnly": "true"}, headers.RouteHeader)
    assert header.accept_standard_json_only is True
    assert fields_of(header) == {"topic": "T", "acceptStandardJsonOnly": "true"}


def test_odd_names() -> None:
    assert fields_of(headers.UnregisterClientHeader("c1")) == {"clientID": "c1"}
    query = headers.QueryMessageHeader("T", "k", 32, 0, 9, "true")
    assert fields_of(query)["_UNIQUE_KEY_QUERY"] == "true"
    send = headers.SendHeaderV2("T", 1, 0, 5, 0, producer_group="PG")
    assert fields_of(send)["b"] == "T"
    assert "l" not in fields_of(send)


def test_a_send_has_the_same_fields_under_both_names() -> None:
    letters = {
        "a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "5", "h": "2", "i": "K\x01v\x02", "j": "3",
        "k": "false", "l": "16", "m": "true", "n": "broker-a",
    }  # fmt: skip
    names = {name: letters[letter] for name, letter in headers.SEND_NAMES.items()}
    assert headers.parse_send(names | {"unknown": "x"}) == headers.parse(letters, headers.SendHeaderV2)
    assert sorted(headers.SEND_NAMES.values()) == sorted(letters)


@pytest.mark.parametrize(("fields", "named"), [({"topic": "T"}, "`queueId`"), ({"queueId": "x"}, "`queueId`")])
def test_a_wrong_send_is_told_in_the_names_that_it_used(fields: dict[str, str], named: str) -> None:
    whole = {"topic": "T", "sysFlag": "0", "bornTimestamp": "5", "flag": "0"}
    with pytest.raises(headers.HeaderError, match=named):
        headers.parse_send(whole | fields)
