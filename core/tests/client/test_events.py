"""Events of the `cloudevents` package as messages, and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from cloudevents.core.v03.event import CloudEvent as OldEvent
from hypothesis import given
from hypothesis import strategies as st

from core.tests.client.fake_cluster import make_record
from gantrymq.client import GantryError, ReceivedMessage, decode_records
from gantrymq.client.events import CloudEvent, event_of, message_of
from gantrymq.client.messages import encode_properties
from gantrymq.client.producing.checks import check_message

HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
REQUIRED = {"id": "1", "source": "/s", "type": "line1.temp", "specversion": "1.0"}


def stored(event: CloudEvent, topic: str = "orders") -> ReceivedMessage:
    """What a consumer gets of it."""
    message = message_of(event, topic)
    check_message(message)
    return received(message.body, encode_properties(message, "U1"), topic)


def received(body: bytes, properties: str, topic: str = "orders") -> ReceivedMessage:
    record = make_record(
        topic, 0, 0, body, properties.encode(), physical=0, born_ms=5, store_ms=1_700_000_000_123, second=False,
        born_host=HOST, store_host=HOST,
    )  # fmt: skip
    (message,) = decode_records(record)
    return message


def text(**more: Any) -> st.SearchStrategy[str]:
    return st.text(st.characters(min_codepoint=0x20, exclude_categories=("Cs", "Cc", "Cn")), **more)


@given(
    identity=text(min_size=1, max_size=20),
    extensions=st.dictionaries(
        st.from_regex(r"ext[a-z0-9]{0,9}", fullmatch=True),
        text(max_size=20) | st.booleans() | st.integers(-(2**31), 2**31 - 1),
        max_size=4,
    ),
    data=st.none() | st.binary(min_size=1).map(lambda data: b"\xff" + data) | st.dictionaries(text(), st.integers()),
    at=st.none() | st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45))])),
)
def test_an_event_comes_back_as_it_was(
    identity: str, extensions: dict[str, Any], data: Any, at: datetime | None
) -> None:
    attributes: dict[str, Any] = {**REQUIRED, "id": identity, **extensions}
    event = CloudEvent(attributes | ({"time": at} if at else {}), data)
    if at is None:
        event.get_attributes().pop("time")  # the package says now; events of others have none
    back = event_of(stored(event))
    wanted = dict(event.get_attributes())
    if isinstance(data, dict):
        wanted["datacontenttype"] = "application/json"
    assert back.get_attributes() == wanted
    assert {name: type(value) for name, value in back.get_attributes().items()} == {
        name: type(value) for name, value in wanted.items()
    }
    assert back.get_data() == data


def test_type_id_and_partition_key_are_tag_key_and_sharding_key() -> None:
    event = CloudEvent({**REQUIRED, "id": "a b", "partitionkey": "p7", "datacontenttype": "text/plain"}, "21,5 °C")
    message = message_of(event, "orders")
    assert (message.tag, message.keys, message.sharding_key) == ("line1.temp", "a%20b", "p7")
    assert message.body == "21,5 °C".encode()
    back = stored(event)
    assert back.property("CE_id") == "a b"
    assert event_of(back).get_data() == "21,5 °C"


@pytest.mark.parametrize(
    ("origin", "topic", "tag", "subject", "kind"),
    [
        ("mqtt", "plant", "line1.temp", "plant/line1/temp", "line1.temp"),
        ("mqtt", "plant", "", "plant", "message"),
        ("amqp", "orders", "eu.created", "eu.created", "eu.created"),
        ("", "orders", "TagA", None, "TagA"),
    ],
)
def test_messages_of_other_doors_become_events(
    origin: str, topic: str, tag: str, subject: str | None, kind: str
) -> None:
    pairs = {"GANTRY_ORIGIN": origin, "TAGS": tag, "UNIQ_KEY": "U7", "__SHARDINGKEY": "s"}
    message = received(b"\xff", "".join([f"{name}\x01{value}\x02" for name, value in pairs.items() if value]), topic)
    event = event_of(message, "/here")
    assert (event.get_id(), event.get_source(), event.get_type()) == ("U7", "/here", kind)
    assert event.get_subject() == subject
    assert event.get_time() == datetime.fromtimestamp(1_700_000_000.123, UTC)
    assert event.get_datacontenttype() == "application/octet-stream"
    assert (event.get_extension("partitionkey"), event.get_data()) == ("s", b"\xff")


def test_what_cloudevents_does_not_have_is_refused() -> None:
    with pytest.raises(GantryError, match="extbig = 2147483648: allowed are"):
        message_of(CloudEvent({**REQUIRED, "extbig": 2**31}), "orders")
    with pytest.raises(GantryError, match=r"specversion '0.3'"):
        message_of(OldEvent({**REQUIRED, "specversion": "0.3"}), "orders")
    pairs = {f"CE_{name}": value for name, value in REQUIRED.items()} | {"CE_time": "yesterday"}
    with pytest.raises(GantryError, match=r"is no event of CloudEvents 1\.0"):
        event_of(received(b"", "".join([f"{name}\x01{value}\x02" for name, value in pairs.items()])))
