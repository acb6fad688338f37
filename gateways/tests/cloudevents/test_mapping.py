import zlib

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.model import names, sysflag
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import BODY_BYTES_CEILING, PROPERTIES_BYTES_MAX
from gantrymq.model.message import Message
from gantrymq_gateways.cloudevents import mapping
from gantrymq_gateways.cloudevents.wire.event import DataState, Event, is_string
from tests.cloudevents.wire.test_codec import EVENTS, STRINGS

SOURCE = "//test"


def stored(message):
    """The message as a record gives it back: properties alone tell what it is."""
    copy = Message(message.topic, message.body, message.properties, message.tag, message.keys)
    copy.physical_offset = 0x1234
    copy.store_ms = 1_700_000_000_123
    return copy


@given(EVENTS, st.sampled_from(list(DataState)))
def test_round_trip(event, state):
    if state is not DataState.PRESENT:
        event = Event(event.attributes, b"", state, event.types)
    message = mapping.to_message(event, "t", 1)
    assert mapping.from_message(stored(message), SOURCE) == event


@given(STRINGS.filter(bool))
def test_type_and_tag(event_type):
    tag = mapping.tag_of(event_type)
    assert mapping.type_of_tag(tag) == event_type
    assert "\x02" not in tag


@given(st.lists(st.text(max_size=8), min_size=1, max_size=5))
def test_any_tag_is_a_type(words):
    if any("\0" in word for word in words):
        return
    event_type = mapping.type_of_tag(names.encode_tag(words))
    assert event_type
    assert is_string(event_type)


@given(STRINGS.filter(bool), STRINGS.filter(bool))
def test_tags_tell_types_apart(one, other):
    assert (mapping.tag_of(one) == mapping.tag_of(other)) == (one == other)


def foreign(origin, topic="factory", tag="line1.temp", **pairs):
    pairs = {"TAGS": tag, "GANTRY_ORIGIN": origin, **pairs}
    return stored(Message(topic, b"21", props.encode(pairs), tag))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (foreign("mqtt"), {"type": "line1.temp", "subject": "factory/line1/temp"}),
        (foreign("mqtt", "%00", "a%2Eb.%2Fc"), {"type": "a%2Eb./c", "subject": "/a.b/%2Fc"}),
        (foreign("mqtt", tag=""), {"type": "message", "subject": "factory"}),
        (foreign("amqp"), {"type": "line1.temp", "subject": "line1.temp"}),
        (foreign("amqp", tag=""), {"type": "message"}),
        (foreign("amqp", tag="a%01b"), {"type": "a%01b", "subject": "a%01b"}),
        (foreign(""), {"type": "line1.temp"}),
        (foreign("", UNIQ_KEY="ABC"), {"type": "line1.temp", "id": "ABC"}),
        (foreign("", GANTRY_CONTENT_TYPE="text/plain"), {"type": "line1.temp", "datacontenttype": "text/plain"}),
        (foreign("", GANTRY_CONTENT_TYPE="x"), {"type": "line1.temp"}),
        (foreign("", __SHARDINGKEY="k"), {"type": "line1.temp", "partitionkey": "k"}),
        (foreign("", CE_id="7", CE_type="t"), {"type": "line1.temp"}),
    ],
)
def test_message_of_another_door(message, expected):
    event = mapping.from_message(message, SOURCE)
    assert event.attributes == {
        "specversion": "1.0",
        "id": "7F000001000000000000000000001234",
        "source": SOURCE,
        "time": "2023-11-14T22:13:20.123Z",
        "datacontenttype": "application/octet-stream",
        **expected,
    }
    assert (event.data, event.state) == (b"21", DataState.PRESENT)


def test_content_type_of_a_native_event_cannot_break_headers():
    event = Event({"specversion": "1.0", "id": "1", "source": "/", "type": "t"}, b"x")
    message = mapping.to_message(event, "t", 0)
    message.properties += props.encode({"CE_datacontenttype": "a/b\r\nx: y"})
    assert "datacontenttype" not in mapping.from_message(stored(message), SOURCE).attributes


def test_attributes_too_long():
    attributes = {"specversion": "1.0", "id": "1", "source": "/", "type": "t", "ext": "x" * PROPERTIES_BYTES_MAX}
    with pytest.raises(GantryError) as caught:
        mapping.to_message(Event(attributes), "t", 0)
    assert caught.value.code is ErrorCode.PROPERTIES_TOO_LARGE


def compressed(body, kind=sysflag.COMPRESSION_ZLIB):
    message = stored(Message("t", body))
    message.sys_flag = sysflag.COMPRESSED | kind
    return message


def test_compressed_bodies():
    assert mapping.from_message(compressed(zlib.compress(b"x" * 1000)), SOURCE).data == b"x" * 1000
    assert mapping.from_message(compressed(zlib.compress(b"x"), 0), SOURCE).data == b"x"
    packed = compressed(lz4.frame.compress(b"x"), sysflag.COMPRESSION_LZ4)
    assert mapping.from_message(packed, SOURCE).data == b"x"
    for message, code in [
        (compressed(b"nonsense"), ErrorCode.MESSAGE_ILLEGAL),
        (compressed(b"x", sysflag.COMPRESSION_LZ4), ErrorCode.MESSAGE_ILLEGAL),
        (compressed(zlib.compress(bytes(BODY_BYTES_CEILING + 1))), ErrorCode.MESSAGE_TOO_LARGE),
    ]:
        with pytest.raises(GantryError) as caught:
            mapping.from_message(message, SOURCE)
        assert caught.value.code is code


def test_dead_letter():
    message = foreign("amqp", GANTRY_EXCHANGE="factory", GANTRY_RETAIN="1", other="x")
    letter = mapping.dead_letter(message, "id1", "no\nanswer", 503, 7)
    assert (letter.topic, letter.body, letter.tag) == ("%DLQ%id1", b"21", "line1.temp")
    assert letter.property_map() == {
        "TAGS": "line1.temp",
        "GANTRY_ORIGIN": "amqp",
        "other": "x",
        "DLQ_ORIGIN_TOPIC": "factory",
        "DLQ_ORIGIN_MESSAGE_ID": "7F000001000000000000000000001234",
        "GANTRY_DLQ_REASON": "noanswer",
        "GANTRY_DLQ_STATUS": "503",
        "GANTRY_DLQ_ATTEMPTS": "7",
    }


def test_a_dead_letter_is_found_by_the_keys_of_its_original():
    """A record that was read says its keys in its properties alone; the index must hold the copy all the same."""
    message = foreign("cloudevents", KEYS="one two", UNIQ_KEY="AC11")
    assert message.keys == ()
    assert mapping.dead_letter(message, "id1", "r", 500, 1).keys == ("AC11", "one", "two")


def test_dead_letter_of_a_full_message():
    message = foreign("", big="x" * (PROPERTIES_BYTES_MAX - 50))
    assert len(message.properties) <= PROPERTIES_BYTES_MAX
    letter = mapping.dead_letter(message, "id1", "r", 400, 1)
    assert letter.properties == message.properties
