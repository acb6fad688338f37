"""One connection cannot have the loop for itself: chunks of a byte and long pipelines are worked off turn by turn."""

import pytest

from gantrymq.net.http import server_connection
from gantrymq.net.http.limits import (
    CHUNK_BYTES_MIN,
    CHUNKS_PER_TURN,
    PIPELINE_MAX,
    REQUESTS_PER_TURN,
)
from gantrymq.net.http.server_connection import ServerConnection
from tests.cloudevents.rig import Rig, parse

HEAD = (
    b"POST /topics/t HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n"
    b"ce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\nce-type: a\r\n\r\n"
)
GET = b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n"
COUNT = CHUNKS_PER_TURN * 5 + 7
TINY = HEAD + b"1\r\nx\r\n" * COUNT + b"0\r\n\r\n"


@pytest.mark.parametrize("ending", [False, True])
def test_a_body_in_tiny_chunks_takes_turns(ending):
    rig = Rig()
    rig.link.door.received(TINY + GET)
    assert not rig.link.reading
    assert rig.port.submitted == []
    if ending:
        assert rig.link.door.eof()
    rig.run()
    assert [message.body for message in rig.port.log] == [b"x" * COUNT]
    out = rig.link.take()
    assert [line for line in out.split(b"\r\n") if line.startswith(b"HTTP")] == [
        b"HTTP/1.1 202 Accepted",
        b"HTTP/1.1 200 OK",
    ]
    assert (rig.link.closed_by is not None) == ending
    assert ending or rig.link.reading


def test_a_body_that_ends_within_a_chunk_is_dropped_at_the_end_of_the_stream():
    rig = Rig()
    rig.link.door.received(TINY[:-5])
    rig.link.door.eof()
    rig.run()
    assert rig.port.log == []
    assert rig.link.closed_by is not None


def test_a_long_pipeline_takes_turns_and_is_answered_in_full():
    rig = Rig()
    count = PIPELINE_MAX * 5
    rig.link.door.received(GET * count)
    begun = rig.link.door.data_to_send().count(b"200 OK")
    assert 0 < begun <= REQUESTS_PER_TURN
    rig.run()
    assert begun + rig.link.take().count(b"200 OK") == count
    assert rig.link.reading
    assert parse(rig.link.feed(GET))[0] == 200


def test_chunks_of_one_body_are_bounded(monkeypatch):
    monkeypatch.setattr(server_connection, "CHUNKS_MAX", 320)
    for size, allowed in ((1, 325), (CHUNK_BYTES_MIN, 2000)):
        connection = ServerConnection(1 << 24)
        connection.receive_data(HEAD, 0)
        chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
        for _ in range(allowed):
            connection.receive_data(chunk, 0)
        assert connection.refused == ""
        for _ in range(5 if size == 1 else 0):
            connection.receive_data(chunk, 0)
        assert ("chunks of under" in connection.refused) == (size == 1)
