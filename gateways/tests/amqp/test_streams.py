"""Frames by chance for the connection: what a stream means does not depend on how the network cut it, and holds bounded memory."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq_gateways.amqp.wire import assembling
from gantrymq_gateways.amqp.wire import connection as connection_module
from gantrymq_gateways.amqp.wire.assembling import Assembling, Total
from gantrymq_gateways.amqp.wire.codec import FRAME, HEADER, HEARTBEAT_FRAME, content_frames
from gantrymq_gateways.amqp.wire.connection import EVENT_WORK, WORK_MAX, Connection
from gantrymq_gateways.amqp.wire.constants import PROTOCOL_HEADER
from gantrymq_gateways.amqp.wire.events import ChannelFailed, Event, Publish, Settings
from gateways.tests.amqp.peer import call, parse, publish

FRAME_MAX = 4096
OPENING = (
    PROTOCOL_HEADER
    + call(0, "connection.start-ok", [], "PLAIN", b"\0guest\0guest", "en_US")
    + call(0, "connection.tune-ok", 2047, FRAME_MAX, 0)
    + call(0, "connection.open", "/", "", False)
)


def new(total: Total | None = None) -> Connection:
    settings = Settings([], body_bytes_max=10_000, assembling=total or Total())
    connection = Connection(settings, lambda mechanism, response, answer: answer("guest"), 0)
    connection.receive_data(OPENING, 0)
    assert connection.running
    connection.data_to_send()
    return connection


def everything(connection: Connection, data: bytes) -> list[Event]:
    """Hand over what was left until nothing is."""
    events: list[Event] = []
    while data:
        events += connection.receive_data(data, 0)
        assert 0 < connection.taken <= len(data)
        data = data[connection.taken :]
    return events


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return FRAME.pack(kind, channel, len(payload)) + payload + b"\xce"


def header(channel: int, size: int, properties: bytes = b"\0\0", class_id: int = 60, weight: int = 0) -> bytes:
    return HEADER.pack(2, channel, 12 + len(properties), class_id, weight, size) + properties + b"\xce"


def message(channel: int, size: int) -> bytes:
    """In frames as large as they may be."""
    begin = call(channel, "basic.publish", 0, "e", "k", False, False)
    return begin + content_frames(channel, b"\0\0", bytes(size), FRAME_MAX)


CHANNEL = st.sampled_from([1, 1, 1, 2, 0])
SIZE = st.sampled_from([0, 1, 5, 4088, 4089, 5000, 10_000, 10_001])
PIECES = st.one_of(
    CHANNEL.map(lambda channel: call(channel, "channel.open", "")),
    CHANNEL.map(lambda channel: call(channel, "channel.close", 200, "", 0, 0)),
    CHANNEL.map(lambda channel: call(channel, "channel.close-ok")),
    CHANNEL.map(lambda channel: call(channel, "basic.publish", 0, "e", "k", True, False)),
    CHANNEL.map(lambda channel: call(channel, "basic.ack", 1, False)),
    st.builds(publish, CHANNEL, st.just("e"), st.just("k"), SIZE.map(bytes)),
    st.builds(message, CHANNEL, SIZE),
    st.builds(header, CHANNEL, SIZE, st.sampled_from([b"\0\0", b"", b"\0" * 5000]), st.sampled_from([60, 60, 10]), st.sampled_from([0, 1])),
    st.builds(frame, st.sampled_from([3, 3, 3, 1, 2, 8, 9]), CHANNEL, SIZE.map(bytes)),
    st.sampled_from([HEARTBEAT_FRAME, b"\xce", b"GET / HTTP/1.1\r\n", call(0, "connection.close", 200, "", 0, 0)]),
)  # fmt: skip


@settings(max_examples=400)
@given(
    st.lists(PIECES, min_size=1, max_size=8),
    st.lists(st.integers(0, 30_000), max_size=6),
    st.sampled_from([1, 9, 1 << 20]),
)
def test_cuts_mean_nothing(pieces: list[bytes], cuts: list[int], work: int) -> None:
    """Neither those of the network nor what is too much at once."""
    stream = call(1, "channel.open", "") + b"".join(pieces)
    whole = new()
    expected = everything(whole, stream)
    connection = new()
    events: list[Event] = []
    places = sorted({0, len(stream), *[cut for cut in cuts if cut < len(stream)]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection_module, "WORK_MAX", work)
        for start, end in itertools.pairwise(places):
            events += everything(connection, stream[start:end])
    assert events == expected
    assert connection.data_to_send() == whole.data_to_send()


@pytest.mark.parametrize(
    ("request_", "most"),
    [
        (message(1, 5), WORK_MAX // EVENT_WORK),
        (call(1, "basic.get", 0, "q", False), WORK_MAX // EVENT_WORK),
        (call(1, "basic.ack", 1, False), WORK_MAX),
        (HEARTBEAT_FRAME, WORK_MAX),
    ],
)
def test_what_is_handled_at_once_is_bounded(request_: bytes, most: int) -> None:
    """32 KiB of requests of 17 bytes would take the others' time."""
    connection = new()
    connection.receive_data(call(1, "channel.open", ""), 0)
    many = request_ * 1000
    connection.receive_data(many[:3], 0)
    connection.receive_data(many[3:], 0)
    assert connection.taken == most * len(request_) - 3
    connection.receive_data(many[3 + connection.taken :], 0)
    assert connection.taken == most * len(request_)


def test_a_publish_that_is_cut_off_is_one_event_when_it_is_whole() -> None:
    """It is not begun: that, and its frames one by one, cost twice as much. A larger one is, as its bytes must count."""
    connection = new()
    connection.receive_data(call(1, "channel.open", ""), 0)
    small, large = message(1, 4088), message(1, 10_000)
    for cut in (20, 30, 60, len(small) - 1):
        assert connection.receive_data(small[:cut], 0) == []
        assert connection._channels[1].publish is None
        assert connection.receive_data(small[cut:], 0) == [Publish(1, small[11:18], b"\0\0", bytes(4088))]
    assert connection.receive_data(large[:5_000], 0) == []
    assert connection._assembling.size == 4088


def test_a_header_over_the_frame_limit_is_refused_also_in_one_piece() -> None:
    """AMQP 4.2.3: frame-max binds content headers too."""
    connection = new()
    connection.receive_data(call(1, "channel.open", ""), 0)
    connection.data_to_send()
    begin = call(1, "basic.publish", 0, "e", "k", False, False)
    assert connection.receive_data(begin + header(1, 0, b"\0" * 5000), 0) == []
    ((_, name, arguments),) = parse(connection.data_to_send())
    assert (name, arguments[1]) == (
        "connection.close",
        "FRAME_ERROR - type 2, all octets = <<>>: {frame_too_large,5012,4088}",
    )


def test_bodies_that_are_begun_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """On many channels at once; the one that goes too far is closed, and what it held is free."""
    monkeypatch.setattr(assembling, "ASSEMBLING_BYTES_MAX", 10_000)
    monkeypatch.setattr(assembling, "ASSEMBLING_BODIES_MAX", 1)
    connection = new()
    for channel in (1, 2, 3):
        connection.receive_data(call(channel, "channel.open", ""), 0)
    connection.data_to_send()
    begin = [
        call(n, "basic.publish", 0, "e", "k", False, False) + header(n, 8000) + frame(3, n, bytes(4000))
        for n in (1, 2, 3)
    ]
    assert connection.receive_data(begin[0] + begin[1], 0) == []
    assert connection.receive_data(begin[2], 0) == [ChannelFailed(3)]
    ((channel, name, arguments),) = parse(connection.data_to_send())
    assert (channel, name, arguments[0]) == (3, "channel.close", 506)
    (event,) = connection.receive_data(frame(3, 2, bytes(4000)), 0)
    assert isinstance(event, Publish)
    assert len(event.body) == 8000
    for _ in range(5):
        assert len(connection.receive_data(message(2, 6000), 0)) == 1
    connection.receive_data(frame(3, 1, bytes(4000)), 0)
    assert connection._assembling.size == 0


def begun(channel: int, size: int) -> bytes:
    """A message without the second half of its body."""
    method = call(channel, "basic.publish", 0, "e", "k", False, False)
    return method + header(channel, size) + frame(3, channel, bytes(size // 2))


def test_many_channels_may_send_large_bodies_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the Java client and amqp091-go do: frame by frame, so that all bodies are begun at a time."""
    monkeypatch.setattr(assembling, "ASSEMBLING_BYTES_MAX", 10_000)
    connection = new()
    channels = range(1, assembling.ASSEMBLING_BODIES_MAX + 1)
    for channel in channels:
        connection.receive_data(call(channel, "channel.open", ""), 0)
    parts = [call(n, "basic.publish", 0, "e", "k", False, False) + header(n, 10_000) for n in channels]
    assert connection.receive_data(b"".join(parts), 0) == []
    for size in (4_000, 4_000, 1_999):
        assert connection.receive_data(b"".join([frame(3, n, bytes(size)) for n in channels]), 0) == []
    events = everything(connection, b"".join([frame(3, n, b"x") for n in channels]))
    assert [len(event.body) for event in events if isinstance(event, Publish)] == [10_000] * len(channels)
    assert connection._assembling.size == 0


@pytest.mark.parametrize("body_bytes_max", [65_536, 4 << 20, 15 << 20])
def test_bodies_begun_are_limited_by_their_largest_size(body_bytes_max: int) -> None:
    limit = max(64 << 20, 64 * body_bytes_max)
    held = Assembling(Total(), body_bytes_max)
    held.add(limit)
    assert held.exceeded() == 0
    held.add(1)
    assert held.exceeded() == limit


def test_a_full_process_closes_channels_of_those_that_hold_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembling, "ASSEMBLING_BYTES_MAX", 10_000)
    monkeypatch.setattr(assembling, "PROCESS_BYTES_MAX", 20_000)
    total = Total()
    large, small = new(total), new(total)
    for channel in (1, 2, 3, 4, 5):
        large.receive_data(call(channel, "channel.open", ""), 0)
        small.receive_data(call(channel, "channel.open", ""), 0)
    for channel in (1, 2, 3, 4):
        assert large.receive_data(begun(channel, 8_000), 0) == []
    assert small.receive_data(begun(1, 8_000), 0) == []
    assert small.receive_data(begun(2, 4_000), 0) == []
    assert large.receive_data(begun(5, 8_000), 0) == [ChannelFailed(5)]
    large.forget_contents()
    assert total.size == small._assembling.size == 6_000
    assert small.receive_data(begun(3, 8_000), 0) == []


def test_empty_body_frames_take_no_memory() -> None:
    connection = new()
    connection.receive_data(
        call(1, "channel.open", "") + call(1, "basic.publish", 0, "e", "k", False, False) + header(1, 5), 0
    )
    for _ in range(1000):
        assert connection.receive_data(frame(3, 1, b""), 0) == []
    assert len(connection._channels[1].body) == 0
    assert connection.receive_data(content_frames(1, b"\0\0", b"12345", 4096)[-13:], 0)[0].body == b"12345"  # type: ignore[union-attr]
