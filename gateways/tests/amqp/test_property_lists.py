"""Property lists in a record: each header once, the same bytes back, nothing that a forged property could break, bounded memory."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sized
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gantrymq.model import properties as props
from gantrymq.model.message import Message
from gantrymq_gateways.amqp.properties import reading, residue, writing
from gantrymq_gateways.amqp.properties.mapping import native_target
from gantrymq_gateways.amqp.properties.reading import PropertyReader
from gantrymq_gateways.amqp.properties.writing import Renderer
from gantrymq_gateways.amqp.wire.constants import AmqpError
from gantrymq_gateways.amqp.wire.content import Properties, decode_properties, encode_properties
from gantrymq_gateways.amqp.wire.values import Field, Table, shortstr
from gateways.tests.amqp.wire.test_codec import properties_

TARGET = native_target("", "", "")
CELERY: Table = [
    ("lang", Field("S", b"py")),
    ("id", Field("S", b"f290ab36-b80b-4754-a7d2-61531e064434")),
    ("shadow", Field("V", None)),
    ("retries", Field("I", 0)),
    ("timelimit", Field("A", [Field("V", None), Field("V", None)])),
    ("root_id", Field("S", b"0a6e2f0e-58b1-4c1b-9a3f-4f2a4f4f9c51")),
    ("ignore_result", Field("t", True)),
    ("stamps", Field("F", [("a", Field("d", 0.5))])),
]


def stored(native: bytes) -> Message:
    made = Message("jobs", b"", TARGET + native)
    made.exchange = "(default)"
    return made


def shown(native: bytes, renderer: Renderer | None = None) -> bytes:
    return (renderer or Renderer({})).render(stored(native)).properties


def read(raw: bytes) -> bytes:
    return PropertyReader("guest").read(raw).native


@given(properties_)
def test_lists_come_back_byte_for_byte(properties: Properties) -> None:
    """Caches full of other lists change nothing: reader and renderer are shared by all examples."""
    properties.user_id = properties.expiration = None
    properties.headers = [pair for pair in properties.headers or () if pair[0] not in ("CC", "BCC")]
    raw = encode_properties(properties)
    assert shown(_READER.read(raw).native, _RENDERER) == raw


_READER = PropertyReader("guest")
_RENDERER = Renderer({})


@given(properties_, st.data())
def test_damaged_lists_are_refused_like_before(properties: Properties, data: st.DataObject) -> None:
    """The walk compares ends late; it must take exactly what the plain decoder takes."""
    properties.expiration = None
    raw = bytearray(encode_properties(properties))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    refused, native = outcome(damaged)
    try:
        decode_properties(damaged)
    except ValueError as error:
        wrong: str | None = str(error)
    else:
        wrong = None
    if refused is None:
        assert wrong is None
        assert shown(native, _RENDERER) == damaged
    elif refused.connection:
        assert wrong is not None
        assert refused.text.endswith(wrong)
    # else a user, an expiration, CC: refused for what it says


def outcome(raw: bytes) -> tuple[AmqpError | None, bytes]:
    try:
        return None, _READER.read(raw).native
    except AmqpError as error:
        return error, b""


marks = st.lists(st.sampled_from([b"S", b"\0", b"S\0\0\0", b"\x01", b"\x02", b"a", b"\xc3\xa9", b"n" * 300])).map(
    b"".join
)
"""What begins, ends and divides texts in the list and in native properties."""
odd_fields = st.one_of(
    marks.map(lambda data: Field("S", data)),
    marks.map(lambda data: Field("x", data)),
    marks.map(lambda data: Field("F", [("k", Field("S", data))])),
    st.sampled_from([0, 1, 0x53000000, 0x5300000001, 0x0153000000]).map(lambda number: Field("l", number)),
    st.just(Field("V", None)),
)
short_names = st.sampled_from(["", "a", "b", "S", "S\0\0\0", "KEYS"])
odd_lists = st.builds(
    Properties,
    content_type=st.sampled_from([None, "", "a/b", "\x01"]),
    content_encoding=st.sampled_from([None, "", "utf-8"]),
    headers=st.none() | st.lists(st.tuples(short_names, odd_fields), max_size=5),
    delivery_mode=st.none() | st.integers(0, 3),
    priority=st.none() | st.integers(0, 9),
    correlation_id=st.sampled_from([None, "", "c1", "c2"]),
    reply_to=st.sampled_from([None, "r", "amq.rabbitmq.reply-to"]),
    expiration=st.sampled_from([None, "1000", "01000", "-1", "x", ""]),
    message_id=st.sampled_from([None, "m1", "m\x02"]),
    timestamp=st.none() | st.integers(0, 2),
    type=st.sampled_from([None, "guest", "t"]),
    user_id=st.sampled_from([None, "guest", "admin"]),
    app_id=st.sampled_from([None, "guest", "admin"]),
)


@given(odd_lists, st.data())
def test_by_stretches_or_by_fields_is_all_the_same(properties: Properties, data: st.DataObject) -> None:
    """What was remembered of other lists never makes a list another one, or accepts what is refused."""
    raw = encode_properties(properties)
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(raw) - 1))
        changed = bytearray(raw)
        changed[at] = data.draw(st.integers(0, 255))
        raw = bytes(changed[: data.draw(st.integers(1, len(raw)))])
    try:
        expected: reading.Content | str = PropertyReader("guest")._by_fields(raw)
    except (AmqpError, reading.SpecialListError) as error:
        expected = repr(error)
    for _ in range(2):
        try:
            found: reading.Content | str = _READER.read(raw)
        except (AmqpError, reading.SpecialListError) as error:
            found = repr(error)
        assert found == expected


def test_a_user_is_not_taken_for_a_type() -> None:
    """Both are texts at the end of a list."""
    reader = PropertyReader("guest")
    reader.read(encode_properties(Properties(type="admin", app_id="x")))
    with pytest.raises(AmqpError, match="user_id property set to 'admin'"):
        reader.read(encode_properties(Properties(user_id="admin", app_id="x")))


def test_a_last_text_over_the_end_of_its_table_is_refused() -> None:
    reader = PropertyReader("guest")
    reader.read(encode_properties(Properties(headers=[("a", Field("S", b"ab"))])))
    table = b"\x01aS\0\0\0\x05ab"
    with pytest.raises(AmqpError, match="longstr over the end"):
        reader.read(b"\x20\x00" + struct.pack(">I", len(table)) + table)


def test_only_texts_that_need_a_careful_look_are_walked_field_by_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also new numbers, new names and texts of over 255 bytes are read by stretches."""
    reader = PropertyReader("guest")
    walked: list[bytes] = []

    def by_fields(raw: bytes) -> reading.Content:
        walked.append(raw)
        return PropertyReader("guest")._by_fields(raw)

    monkeypatch.setattr(reader, "_by_fields", by_fields)
    headers = [*CELERY, ("long", Field("S", b"v" * 300)), ("more", Field("S", b"w")), ("after", Field("B", 1))]
    common = Properties("a/b", "utf-8", headers, 2, 3, "c", "r", "1000", "m", 5, "t", "guest", "app", "cluster")
    for number in range(3):
        for change in (
            {},
            {"headers": [*CELERY, ("n", Field("l", number))]},
            {"timestamp": number},
            {"type": f"t{number}"},
        ):
            raw = encode_properties(replace(common, correlation_id=f"c{number}", **change))
            assert reader.read(raw) == PropertyReader("guest")._by_fields(raw)
    assert not walked
    reader.read(encode_properties(replace(common, headers=[("empty", Field("S", b""))])))
    assert len(walked) == 1


def test_each_header_stands_once() -> None:
    raw = encode_properties(
        Properties(content_type="application/json", headers=CELERY, correlation_id="c-1", timestamp=7)
    )
    native = read(raw)
    pairs = props.decode(native)
    form, values = [base64.b64decode(part) for part in pairs[props.AMQP_REST].split(".")]
    assert shown(native) == raw
    for name, field in CELERY:
        if field.kind == "S":
            assert pairs[name].encode() == field.value
            assert name.encode() not in form
            assert field.value not in values
        else:
            assert name not in pairs
            assert form.count(shortstr(name)) == 1


def test_the_form_is_the_same_for_lists_in_which_ids_differ() -> None:
    def form(number: int) -> str:
        headers = [
            ("id", Field("S", b"%d" % number)),
            ("at", Field("T", number)),
            ("who", Field("x", bytes(number % 9))),
        ]
        raw = encode_properties(Properties(headers=headers, message_id=f"m{number}", timestamp=number))
        return props.decode(read(raw))[props.AMQP_REST].split(".")[0]

    assert len({form(number) for number in range(100)}) == 1


@pytest.mark.parametrize(
    "name",
    ["INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "TRAN_MSG", "REAL_TOPIC", "REAL_QID", "REAL_TAGS", "__CRC32#", "KEYS", "TAGS",
     "UNIQ_KEY", "DELAY", "TIMER_DELIVER_MS", "RETRY_TOPIC", "POP_CK", "GANTRY_EXCHANGE", "GANTRY_AMQP_REST", "GANTRY_H_x", "CE_id", ""],
)  # fmt: skip
def test_names_with_a_meaning_are_escaped(name: str) -> None:
    raw = encode_properties(Properties(headers=[(name, Field("S", b"mine"))], delivery_mode=2))
    native = read(raw)
    assert props.decode(native) == {"GANTRY_H_" + name: "mine"}
    assert shown(native) == raw


def test_records_of_earlier_versions() -> None:
    """They hold the whole list beside native properties."""
    raw = encode_properties(Properties(headers=CELERY, timestamp=5))
    native = props.encode({"lang": "py", props.AMQP_HEADER: base64.b64encode(raw).decode()})
    assert shown(native) == raw


def test_what_others_did_to_the_properties() -> None:
    """A client of another door may send a record's properties again: in another order, with one more, without one."""
    headers: Table = [("a", Field("S", b"1")), ("n", Field("B", 5)), ("b", Field("S", b"2"))]
    pairs = props.decode(read(encode_properties(Properties(headers=headers, message_id="m"))))

    def seen(changed: dict[str, str]) -> tuple[Table | None, str | None]:
        properties = decode_properties(shown(props.encode(changed)))
        return properties.headers, properties.message_id

    a, n, b = headers
    assert seen(dict(reversed(pairs.items()))) == ([b, n, a], "m")
    assert seen(pairs | {"z": "9"}) == ([a, n, b, ("z", Field("S", b"9"))], "m")
    assert seen({name: value for name, value in pairs.items() if name != "a"}) == ([b, n], "m")
    assert seen({name: value for name, value in pairs.items() if name != props.MESSAGE_ID}) == (headers, None)


def rest(form: bytes, values: bytes) -> bytes:
    return props.encode(
        {"a": "1", props.AMQP_REST: (base64.b64encode(form) + b"." + base64.b64encode(values)).decode()}
    )


ALONE = encode_properties(Properties(headers=[("a", Field("S", b"1"))], delivery_mode=2))


@pytest.mark.parametrize(
    ("form", "values"),
    [
        (b"", b""),
        (b"\x10", b""),
        (b"\x10\x01\x00\x00", b"\x02"),  # an unused flag
        (b"\x10\x00\x80\x00", b"\x02"),  # a native field that the list has not
        (b"\x10\x00\x10\x00", b""),  # delivery mode is not kept natively
        (b"\x10\x00\x00\x00", b""),  # no value
        (b"\x10\x00\x00\x00", b"\x02\x02"),  # one too many
        (b"\x10\x00\x00\x00N", b"\x02"),  # a header without a table
        (b"\x20\x00\x00\x00?\x01n", b""),  # a type that nobody knows
        (b"\x20\x00\x00\x00I\x05n", b"\0\0\0\0"),  # a name over the end
        (b"\x20\x00\x00\x00I\x01\xff", b"\0\0\0\0"),  # a name that is no text
        (b"\x20\x00\x00\x00I\x01n", b"\0\0\0"),
        (b"\x20\x00\x00\x00x\x01n", b"\0\0\0\x05abc"),
        (b"\x20\x00\x00\x00A\x01n", b"\0\0\0\x01?"),
        (b"\x20\x00\x00\x00F\x01n", b"\xff\xff\xff\xff"),
        (b"\x00\x20\x00\x00", b"\x02\xff\xff"),  # a shortstr that is no text
        (b"\x00\x20\x00\x00", b"\x05a"),
    ],
)
def test_a_forged_residue_does_not_count(form: bytes, values: bytes) -> None:
    """AMQP 4.2.6.1: no client could read what it asks for."""
    assert shown(rest(form, values)) == ALONE


@given(st.binary(max_size=30), st.binary(max_size=30))
@example(b"\x20\x00\x00\x00V\x01n", b"")
def test_whatever_a_residue_says_the_list_can_be_read(form: bytes, values: bytes) -> None:
    decode_properties(shown(rest(form, values)))
    decode_properties(
        shown(props.encode({props.AMQP_REST: form.decode("latin-1").replace("\x01", "").replace("\x02", "")}))
    )


def test_many_headers_that_need_a_careful_look_cost_no_square() -> None:
    """Repeated names are told apart with a set: 8,000 of them take no seconds (65 million comparisons with a list)."""
    headers = b"".join([shortstr(f"n{number % 2000}") + b"S\0\0\0\0" for number in range(8000)])
    with pytest.raises(AmqpError, match="is larger than"):
        read(b"\x20\x00" + struct.pack(">I", len(headers)) + headers)


def test_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (reading, "NAMES_MAX"), (reading, "FLAGS_MAX"), (reading, "STRETCHES_MAX"), (reading, "ENDS_MAX"), (residue, "FORMS_MAX"), (residue, "NESTED_MAX"), (writing, "LAYOUTS_MAX"),
        (writing, "FORMS_MAX"), (writing, "TEMPLATES_MAX"), (writing, "TAILS_MAX"), (writing, "RENDERED_MAX"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 5)
    reader, renderer = PropertyReader("guest"), Renderer({})
    for number in range(40):
        headers = [(f"n{number}", Field("F", [("k", Field("B", number))])), (f"s{number}", Field("S", b"1"))]
        raw = encode_properties(
            Properties(
                content_type=f"a/{number}",
                headers=headers,
                type=f"t{number}" if number % 2 else None,
                priority=number if number % 3 else None,
            )
        )
        made = stored(reader.read(raw).native)
        made.tag = f"tag{number}"
        assert renderer.render(made).properties == raw
        for native in (b"same\x011\x02", b"same\x012\x02"):
            pair = reader.read(encode_properties(Properties(headers=[(f"n{number}", Field("B", 1))]))).native
            renderer.render(stored(native + pair))
    caches: list[Sized] = [
        reader._names,
        reader._shapes,
        reader._heads,
        reader._gaps,
        reader._tails,
        reader._ends,
        reader._forms,
    ]
    caches += [
        reader._nested._good,
        renderer._layouts,
        renderer._templates,
        renderer._tails,
        renderer._cache,
        renderer._nested._good,
    ]
    assert [len(cache) for cache in caches if len(cache) > 5] == []
    assert max(len(layout.forms) for layout in renderer._layouts.values()) <= 5


def test_long_things_are_not_remembered() -> None:
    reader, renderer = PropertyReader("guest"), Renderer({})
    many: Table = [(f"n{number}", Field("B", 1)) for number in range(writing.LAYOUT_NAMES_MAX + 1)]
    texts: Table = [(f"n{number}", Field("S", b"1")) for number in range(writing.LAYOUT_NAMES_MAX + 1)]
    large: Table = [("t", Field("F", [("k", Field("S", bytes(residue.NESTED_BYTES_MAX)))]))]
    blob: Table = [("b", Field("x", bytes(writing.TEMPLATE_KEY_BYTES_MAX)))]
    for headers in (many * 2, texts, large, blob):
        raw = encode_properties(Properties(headers=headers, message_id="1"))
        assert shown(reader.read(raw).native, renderer) == raw
    long = Properties(content_type="c" * 200, content_encoding="e" * 200, type="t" * 200, app_id="a" * 200)
    reader.read(encode_properties(long))
    assert not reader._nested._good
    assert all(len(data) <= reading.STRETCH_BYTES_MAX for data in [*reader._heads, *reader._gaps])
    assert all(len(data) <= reading.STRETCH_BYTES_MAX for _, data in reader._tails)
    assert all(len(end.native) <= reading.END_BYTES_MAX for end in reader._ends.values())
    assert all(len(path) <= reading.END_BYTES_MAX for path in reader._ends)
    assert all(len(form) <= residue.FORM_BYTES_MAX for form in reader._forms)
    assert all(len(names) <= writing.LAYOUT_NAMES_MAX for names in renderer._layouts)
    assert all(layout.kept and len(rest) <= writing.TEMPLATE_KEY_BYTES_MAX for layout, rest in renderer._templates)
    assert not renderer._cache  # each has an id
