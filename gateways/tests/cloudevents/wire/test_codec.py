import base64
import json
from datetime import datetime

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http, to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import example, given
from hypothesis import strategies as st

from gantrymq_gateways.cloudevents.wire import codec
from gantrymq_gateways.cloudevents.wire.codec import FormatError, Mode
from gantrymq_gateways.cloudevents.wire.event import (
    DataState,
    Event,
    EventError,
    is_string,
    is_timestamp,
    is_uri_reference,
    media_kind,
)
from tests.cloudevents import vectors
from tests.cloudevents.vectors import ATTRIBUTES, JSON_HEAD, MINIMAL


def ids(rows):
    return [row[0] for row in rows]


def decode_batch(body):
    events = []
    for element in codec.split_batch(body):
        try:
            events.append(codec.decode_element(element))
        except EventError as error:
            events.append(error)
    return events


def with_head(body):
    return body.replace(b"%s", JSON_HEAD, 1)


@pytest.mark.parametrize(
    ("name", "headers", "body", "attributes", "state", "types"), vectors.GOOD_BINARY, ids=ids(vectors.GOOD_BINARY)
)
def test_binary(name, headers, body, attributes, state, types):
    event = codec.decode_binary([*MINIMAL, *headers], body)
    assert event == Event({**ATTRIBUTES, **attributes}, body, DataState(state), types)
    out, data = codec.encode_binary(event)
    # Data without a type gets one on the way out: a webhook has a Content-Type.
    expected = {**event.attributes}
    if event.state is DataState.PRESENT:
        expected.setdefault("datacontenttype", "application/octet-stream")
    assert codec.decode_binary(out, data) == Event(expected, body, DataState(state), types)


@pytest.mark.parametrize(("name", "headers", "words"), vectors.BAD_BINARY, ids=ids(vectors.BAD_BINARY))
def test_binary_refused(name, headers, words):
    with pytest.raises(EventError) as caught:
        codec.decode_binary(headers, b"")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "body", "attributes", "data", "state", "types"), vectors.GOOD_JSON, ids=ids(vectors.GOOD_JSON)
)
def test_structured(name, body, attributes, data, state, types):
    event = codec.decode_structured(with_head(body))
    assert event == Event({**ATTRIBUTES, **attributes}, data, DataState(state), types)
    again = codec.decode_structured(codec.encode_structured(event))
    assert again == event


@pytest.mark.parametrize(("name", "body", "words"), vectors.BAD_JSON, ids=ids(vectors.BAD_JSON))
def test_structured_refused(name, body, words):
    with pytest.raises(EventError) as caught:
        codec.decode_structured(with_head(body))
    assert words in str(caught.value)


@pytest.mark.parametrize("source", vectors.SOURCES)
def test_uri_reference(source):
    assert is_uri_reference(source)


@pytest.mark.parametrize("source", vectors.NOT_SOURCES)
def test_no_uri_reference(source):
    assert not is_uri_reference(source)


def test_timestamps_of_year_zero():
    assert is_timestamp("0000-02-29T00:00:00Z")
    assert not is_timestamp("2100-02-29T00:00:00Z")
    assert not is_timestamp("٢٠٢٤-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("content_type", "mode"),
    [
        ("", Mode.BINARY),
        ("application/json", Mode.BINARY),
        ("application/cloudevents+json", Mode.STRUCTURED),
        ("Application/CloudEvents+JSON ; charset=UTF-8", Mode.STRUCTURED),
        ("application/cloudevents-batch+json", Mode.BATCHED),
        ('APPLICATION/cloudevents-BATCH+json; charset="utf-8"', Mode.BATCHED),
        ("application/json; x=application/cloudevents+json", Mode.BINARY),
    ],
)
def test_mode(content_type, mode):
    assert codec.mode_of(content_type) is mode


@pytest.mark.parametrize(
    "content_type",
    [
        "application/cloudevents",
        "application/cloudevents+xml",
        "application/cloudevents-batch+protobuf",
        "application/cloudevents+json; charset=utf-16",
    ],
)
def test_format_refused(content_type):
    with pytest.raises(FormatError):
        codec.mode_of(content_type)


def test_batch_tells_which_event_is_wrong():
    events = decode_batch(b'[{%s},{"id":"2"}, 7 ,{%s,"data":[1, 2]}]' % (JSON_HEAD, JSON_HEAD))
    assert [type(event) for event in events] == [Event, EventError, EventError, Event]
    assert events[3].data == b"[1, 2]"
    assert decode_batch(b" [] ") == []


@pytest.mark.parametrize("body", [b"", b"{}", b"[", b"[{}]x", b"[\xff]", b"[" * 100_000])
def test_batch_refused(body):
    with pytest.raises(EventError):
        decode_batch(body)


def test_invalid_json_of_a_json_type_travels_as_bytes():
    event = codec.decode_binary([*MINIMAL, (b"content-type", b"application/json")], b'{"a":')
    document = json.loads(codec.encode_structured(event))
    assert base64.b64decode(document["data_base64"]) == b'{"a":'


@pytest.mark.parametrize("content_type", [b"application/json; charset=utf-8", b"application/vnd.x+json"])
def test_a_json_type_without_bytes_has_no_data(content_type):
    event = codec.decode_binary([*MINIMAL, (b"content-type", content_type)], b"")
    document = json.loads(codec.encode_structured(event))
    assert "data" not in document
    assert "data_base64" not in document
    assert document["datacontenttype"] == content_type.decode()
    assert codec.encode_binary(event)[0][0] == (b"content-type", content_type)


def test_empty_text_is_data():
    event = codec.decode_binary([*MINIMAL, (b"content-type", b"text/plain")], b"")
    assert json.loads(codec.encode_structured(event))["data"] == ""


def test_text_of_another_charset_travels_as_bytes():
    event = codec.decode_binary([*MINIMAL, (b"content-type", b"text/plain; charset=latin-1")], b"\xe4")
    assert codec.decode_structured(codec.encode_structured(event)) == event


STRINGS = st.text(max_size=40).filter(lambda text: is_string(text))
NAMES = st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True).filter(
    lambda name: name not in {*ATTRIBUTES, "data", "datacontenttype", "dataschema", "subject", "time"}
)
SOURCE = st.sampled_from(vectors.SOURCES)
EXTENSIONS = st.dictionaries(NAMES, st.one_of(STRINGS, st.booleans(), st.integers(-(2**31), 2**31 - 1)), max_size=5)
CONTENT_TYPES = st.sampled_from(["application/json", "text/plain", "application/xml", "image/png", "a/b+json; c=d"])


def make_event(identity, source, kind, extensions, content_type, data):
    attributes = {"specversion": "1.0", "id": identity, "source": source, "type": kind}
    types = {}
    for name, value in extensions.items():
        if isinstance(value, bool):
            attributes[name], types[name] = str(value).lower(), "b"
        elif isinstance(value, int):
            attributes[name], types[name] = str(value), "i"
        else:
            attributes[name] = value
            if not value:
                types[name] = "e"
    attributes["datacontenttype"] = content_type
    return Event(attributes, data, DataState.PRESENT, types)


EVENTS = st.builds(
    make_event, STRINGS.filter(bool), SOURCE, STRINGS.filter(bool), EXTENSIONS, CONTENT_TYPES, st.binary(max_size=60)
)


@given(EVENTS)
@example(make_event(' a%20"b\\', "/a", "ü", {}, "text/plain", b"%41"))
@example(make_event("1", "/a", "t", {}, "application/json", b""))
def test_binary_round_trip(event):
    headers, body = codec.encode_binary(event)
    for _, value in headers:
        assert value.isascii()
        assert all(0x21 <= byte <= 0x7E for byte in value) or value == b"a/b+json; c=d"
    again = codec.decode_binary(headers, body)
    nothing = not event.data and media_kind(event.attributes["datacontenttype"]) == "json"
    state = DataState.ABSENT if nothing else event.state
    assert (again.attributes, again.data, again.state) == (event.attributes, event.data, state)


@given(EVENTS)
def test_structured_round_trip(event):
    again = codec.decode_structured(codec.encode_structured(event))
    assert again == event


@given(st.lists(EVENTS, max_size=4))
def test_batch_round_trip(events):
    assert decode_batch(b"[" + b",".join([codec.encode_structured(event) for event in events]) + b"]") == events


@given(st.binary(max_size=200))
def test_any_bytes_are_an_event_or_an_error(body):
    for decode in (codec.decode_structured, decode_batch):
        try:
            decode(body)
        except EventError:
            pass


@given(st.lists(st.tuples(st.sampled_from([b"ce-id", b"ce-x", b"content-type", b"ce-source"]), st.binary(max_size=30))))
def test_any_headers_are_an_event_or_an_error(headers):
    try:
        codec.decode_binary(headers, b"")
    except EventError:
        pass


# Where the cloudevents package is right, it must agree with us, both ways. It invents a missing time, does not tell
# types apart in binary mode, and writes non-JSON data its own way, so these events have a time and JSON data.

PRINTABLE = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0x2FFF, exclude_categories=["Cs", "Cc", "Cn"]), min_size=1
)
TIME = "2024-05-06T07:08:09Z"


def package_event(identity, kind, subject, data):
    attributes = {"specversion": "1.0", "id": identity, "source": "/a", "type": kind, "subject": subject}
    attributes |= {"time": TIME, "datacontenttype": "application/json"}
    return attributes, data


JSON_DATA = st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), st.lists, max_leaves=5)
PACKAGE_EVENTS = st.builds(package_event, PRINTABLE, PRINTABLE, PRINTABLE, st.dictionaries(st.text(), JSON_DATA))


@given(PACKAGE_EVENTS)
def test_package_reads_what_we_write(pair):
    attributes, data = pair
    event = Event(attributes, json.dumps(data).encode())
    headers, body = codec.encode_binary(event)
    binary = from_http(HTTPMessage({n.decode(): v.decode() for n, v in headers}, body), JSONFormat(), CloudEvent)
    body = codec.encode_structured(event)
    headers = {"content-type": "application/cloudevents+json"}
    structured = from_http(HTTPMessage(headers, body), JSONFormat(), CloudEvent)
    for read in (binary, structured):
        assert (read.get_id(), read.get_type(), read.get_subject()) == tuple(
            attributes[name] for name in ("id", "type", "subject")
        )
        assert read.get_data() == data


@given(PACKAGE_EVENTS)
def test_we_read_what_the_package_writes(pair):
    attributes, data = pair
    package = CloudEvent(attributes={**attributes, "time": datetime.fromisoformat(TIME)}, data=data)
    message = to_binary(package, JSONFormat())
    binary = codec.decode_binary([(n.encode(), v.encode()) for n, v in message.headers.items()], message.body)
    structured = codec.decode_structured(to_structured(package, JSONFormat()).body)
    for event in (binary, structured):
        for name in ("id", "type", "subject", "source", "datacontenttype"):
            assert event.attributes[name] == attributes[name]
        assert json.loads(event.data) == data
