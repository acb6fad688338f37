"""AMQP to native and back: byte for byte between AMQP clients, readable for every other door."""

from __future__ import annotations

import base64
import zlib

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.model import properties as props
from gantrymq.model import sysflag
from gantrymq.model.message import Message
from gantrymq_gateways.amqp.origin import DIRECT_TOPIC, tag_of
from gantrymq_gateways.amqp.properties.mapping import body_of, native_target
from gantrymq_gateways.amqp.properties.reading import Content, PropertyReader
from gantrymq_gateways.amqp.properties.residue import HEADER_BYTES_MAX
from gantrymq_gateways.amqp.properties.writing import Rendered, Renderer
from gantrymq_gateways.amqp.wire.constants import AmqpError
from gantrymq_gateways.amqp.wire.content import Properties, decode_properties, encode_properties
from gantrymq_gateways.amqp.wire.values import Field, read_shortstr
from gateways.tests.amqp.wire.test_codec import properties_


def read_content(raw: bytes, user: str = "guest") -> Content:
    return PropertyReader(user).read(raw)


def render(message: Message, exchange_of: dict[str, str]) -> Rendered:
    return Renderer(exchange_of).render(message)


def message(exchange: str, key: str, raw: bytes) -> Message:
    tag = tag_of(key)
    content = read_content(raw, "guest")
    made = Message(exchange, b"", native_target(exchange, tag, "") + content.native, tag)
    made.exchange = exchange
    return made


def shown(made: Message) -> tuple[str, str, Properties]:
    rendered = render(made, {})
    exchange, at = read_shortstr(rendered.tail, 0)
    key, _ = read_shortstr(rendered.tail, at)
    return exchange, key, decode_properties(rendered.properties)


@given(properties_)
def test_property_lists_come_back_byte_for_byte(properties: Properties) -> None:
    properties.user_id = None
    properties.expiration = None
    properties.headers = [pair for pair in properties.headers or () if pair[0] not in ("CC", "BCC")] or None
    raw = encode_properties(properties)
    assert render(message("e", "k", raw), {}).properties == raw


def keys() -> st.SearchStrategy[str]:
    alphabet = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    return st.text(alphabet | st.sampled_from("./%+#*"), max_size=40).filter(lambda key: len(key.encode()) < 256)


@given(keys())
def test_routing_keys_come_back(key: str) -> None:
    assert shown(message("e", key, b"\0\0"))[:2] == ("e", key)


def test_a_record_read_from_the_log_shows_its_exchange() -> None:
    stored = Message(DIRECT_TOPIC, b"", native_target("", "my%20queue", ""), "my%20queue")
    assert shown(stored)[:2] == ("", "my queue")
    stored = Message("e%2E1", b"", native_target("e.1", "k", ""), "k")
    assert shown(stored)[:2] == ("e.1", "k")


def test_shared_properties_and_text_headers_are_native() -> None:
    raw = encode_properties(
        Properties(
            content_type="text/plain",
            headers=[("device", Field("S", b"d1")), ("KEYS", Field("S", b"mine"))],
            delivery_mode=2,
            priority=5,
            correlation_id="c",
            reply_to="r",
            message_id="m",
        )
    )
    native = message("factory", "line1.temp", raw).property_map()
    assert native == {
        props.TAGS: "line1.temp",
        props.EXCHANGE: "factory",
        props.ORIGIN: "amqp",
        props.CONTENT_TYPE: "text/plain",
        props.CORRELATION_ID: "c",
        props.REPLY_TO: "r",
        props.MESSAGE_ID: "m",
        props.PRIORITY: "5",
        "device": "d1",
        "GANTRY_H_KEYS": "mine",
    }


@pytest.mark.parametrize(
    "properties",
    [
        Properties(),
        Properties(delivery_mode=1, timestamp=5),
        Properties(delivery_mode=2, headers=[("n", Field("I", 5))]),
        Properties(delivery_mode=2, headers=[("n", Field("S", b"\xff"))]),
        Properties(delivery_mode=2, headers=[("n", Field("S", b"\x01\x02"))]),
        Properties(delivery_mode=2, headers=[]),
        Properties(delivery_mode=2, headers=[("a", Field("S", b"1")), ("a", Field("S", b"2"))]),
        Properties(delivery_mode=2, content_type=""),
    ],
)
def test_residue_is_kept_only_where_it_is_needed(properties: Properties) -> None:
    raw = encode_properties(properties)
    made = message("e", "k", raw)
    assert made.property(props.AMQP_REST)
    assert render(made, {}).properties == raw
    assert (made.property(props.QOS) == "0") == (properties.delivery_mode == 1)


def test_usual_list_needs_no_residue() -> None:
    raw = encode_properties(
        Properties(content_type="a/b", headers=[("x", Field("S", b"y"))], delivery_mode=1, message_id="1")
    )
    assert not message("e", "k", raw).property(props.AMQP_REST)


def test_header_limit() -> None:
    def raw(size: int) -> bytes:
        return encode_properties(Properties(headers=[("n", Field("x", bytes(size)))]))

    form = len(b"....x.n")
    room = HEADER_BYTES_MAX - form - len(b"size")
    assert render(message("e", "k", raw(room)), {}).properties == raw(room)
    with pytest.raises(AmqpError, match="is larger than 16384"):
        read_content(raw(room + 1), "guest")


def test_native_limit() -> None:
    raw = encode_properties(Properties(delivery_mode=2, headers=[("n", Field("S", b"x" * 30_000))]))
    with pytest.raises(AmqpError, match="message properties of"):
        read_content(raw, "guest")


@pytest.mark.parametrize("expiration", ["1500", "01500"])
def test_expiry_is_absolute_and_comes_back_as_it_was(expiration: str) -> None:
    raw = encode_properties(Properties(delivery_mode=2, expiration=expiration))
    content = read_content(raw, "guest")
    assert content.ttl_ms == 1500
    made = Message("e", b"", content.native + props.encode({props.EXPIRES_AT: "11500"}), born_ms=10_000)
    made.exchange = "e"
    rendered = render(made, {})
    assert (rendered.properties, rendered.expires_at_ms) == (raw, 11_500)


def test_a_message_of_mqtt() -> None:
    made = Message(
        "fac%2Ftory",
        b"",
        props.encode({"TAGS": "line%2E1.temp", "GANTRY_QOS": "0", "GANTRY_ORIGIN": "mqtt"}),
        "line%2E1.temp",
    )
    assert shown(made) == ("fac/tory", "line%2E1.temp", Properties(delivery_mode=1))


def test_an_event() -> None:
    pairs = {
        "TAGS": "com.example.made", "KEYS": "id1", "CE_id": "id1", "CE_type": "com.example.made", "CE_source": "/x",
        "CE_specversion": "1.0", "CE_datacontenttype": "application/json", "GANTRY_ORIGIN": "cloudevents",
    }  # fmt: skip
    exchange, key, properties = shown(Message("shop", b"{}", props.encode(pairs), "com.example.made"))
    assert (exchange, key, properties.content_type, properties.delivery_mode) == (
        "shop",
        "com.example.made",
        "application/json",
        2,
    )
    headers = {name: field.value for name, field in properties.headers or ()}
    assert headers["ce-id"] == b"id1"
    assert headers["ce-source"] == b"/x"
    assert not {"KEYS", "TAGS"} & set(headers)


def test_a_native_message() -> None:
    made = Message("orders", b"", props.encode({"TAGS": "a", "UNIQ_KEY": "u", "region": "eu"}), "a")
    exchange, key, properties = shown(made)
    assert (exchange, key, properties.headers) == ("orders", "a", [("region", Field("S", b"eu"))])


def test_long_keys_of_other_doors_are_cut_to_a_shortstr() -> None:
    made = Message("t", b"", b"", "%C3%A4" * 300)
    assert shown(made)[1] == "ä" * 127


def test_compressed_bodies() -> None:
    made = Message("t", zlib.compress(b"x" * 1000))
    made.sys_flag = sysflag.COMPRESSED
    assert body_of(made) == b"x" * 1000
    made.sys_flag = sysflag.COMPRESSED | sysflag.COMPRESSION_ZLIB
    assert body_of(made) == b"x" * 1000
    assert body_of(made, 999) == made.body
    made.body = b"no zlib"
    assert body_of(made) == b"no zlib"
    made.sys_flag = sysflag.COMPRESSED | sysflag.COMPRESSION_LZ4
    assert body_of(made) == b"no zlib"
    made.body = lz4.frame.compress(b"x" * 1000)
    assert body_of(made) == b"x" * 1000


def native(*pairs: tuple[str, str]) -> Message:
    return Message("orders", b"x", props.encode(list(pairs)), "")


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 300, "٣", "²", "-1", "1e3"])
def test_numbers_of_native_producers_that_are_none(text: str) -> None:
    """A producer of another door writes what it likes: such a record must not end every connection that it is delivered to."""
    rendered = render(native((props.EXPIRES_AT, text), (props.PRIORITY, text)), {})
    properties = decode_properties(rendered.properties)
    assert (properties.expiration, properties.priority, rendered.expires_at_ms) == (None, None, 0)


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff",
        b"\xff\xff",
        b"\x80\x00\x05abc",
        b"\x80\x00\x02\xff\xff",
        b"\x20\x00\x00\x00\x00\x03\x01a?",
        b"\x00\x00" + b"x" * HEADER_BYTES_MAX,
    ],
)
def test_a_forged_property_list_is_not_passed_on(raw: bytes) -> None:
    """AMQP 4.2.6.1: no client could read these."""
    forged = native((props.AMQP_HEADER, base64.b64encode(raw).decode()), ("device", "d1"))
    assert decode_properties(render(forged, {}).properties).headers == [("device", Field("S", b"d1"))]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    props.EXPIRES_AT,
                    props.PRIORITY,
                    props.AMQP_HEADER,
                    props.AMQP_REST,
                    props.CONTENT_TYPE,
                    props.EXCHANGE,
                    props.QOS,
                    "GANTRY_AMQP_KEY",
                    "h",
                ]
            ),
            st.text(max_size=40),
        ),
        max_size=6,
    ),
    st.text(max_size=300),
)
def test_every_native_record_can_be_shown(pairs: list[tuple[str, str]], tag: str) -> None:
    made = Message(
        "orders", b"", "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode("utf-8", "replace"), tag
    )
    rendered = render(made, {})
    decode_properties(rendered.properties)
    _, at = read_shortstr(rendered.tail, 0)
    _, end = read_shortstr(rendered.tail, at)
    assert end == len(rendered.tail)
