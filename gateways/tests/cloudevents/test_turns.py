"""One connection cannot have the loop for itself: chunks of a byte and long pipelines are worked off turn by turn."""

import gc
from itertools import pairwise

import pytest

from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import Message
from gantrymq.net.http import server_connection
from gantrymq.net.http.limits import (
    CHUNK_BYTES_MIN,
    CHUNKS_PER_TURN,
    PIPELINE_MAX,
    REQUESTS_PER_TURN,
)
from gantrymq.net.http.server_connection import ServerConnection
from gantrymq_gateways.cloudevents.publish import DECODE_SLICE, SUBMIT_SLICE, BatchJob
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


COUNT_OF_BATCH = SUBMIT_SLICE * 10
EVENT = b'{"specversion":"1.0","id":"%d","source":"/s","type":"a","data":1}'


def alive():
    """Messages that something holds."""
    return sum(type(thing) is Message for thing in gc.get_objects())


def most_let_go(body, monkeypatch, answer=None):
    """Messages that one slice of a batch lets go of, at most; and the status of the answer."""
    rig = Rig()
    waiting, status = [], []
    monkeypatch.setattr(rig.port, "submit", lambda batch, token, done, sender: waiting.append((batch, token, done)))
    job = BatchJob(rig.publisher, "t", body, lambda code, *_: status.append(code))
    gc.collect()  # what other tests left
    most, before, more = 0, alive(), True
    while more or waiting:
        more = more and not job.step()
        while waiting:
            batch, token, done = waiting.pop()
            done(token, answer or list(range(len(batch))))
            del batch
        now = alive()
        most, before = max(most, before - now), now
    assert len(status) == 1
    del job
    return max(most, before - alive()), status[0]


def batch_of(*events):
    return b"[" + b",".join(events) + b"]"


GOOD = [EVENT % number for number in range(COUNT_OF_BATCH)]


def test_a_large_batch_lets_go_of_its_messages_slice_by_slice(monkeypatch):
    """Ten thousand that end together took 6 ms of one turn."""
    assert most_let_go(batch_of(*GOOD), monkeypatch) == (SUBMIT_SLICE, 202)


def test_so_does_one_that_is_refused_at_its_last_event(monkeypatch):
    assert most_let_go(batch_of(*GOOD, b"{}"), monkeypatch) == (SUBMIT_SLICE, 400)


def test_so_does_one_that_the_broker_refuses(monkeypatch):
    assert most_let_go(batch_of(*GOOD), monkeypatch, [ErrorCode.BUSY] * SUBMIT_SLICE) == (SUBMIT_SLICE, 503)


def test_texts_of_a_batch_go_as_they_are_decoded():
    rig = Rig()
    job = BatchJob(rig.publisher, "t", batch_of(*GOOD), lambda *_: None)
    left = []
    while not rig.port.submitted:
        left.append(len(job._elements))
        job.step()
    assert left[0] == COUNT_OF_BATCH
    assert max(a - b for a, b in pairwise(left)) == DECODE_SLICE
    assert left[-1] == 0


def test_a_large_batch_of_a_connection_that_is_lost_goes_slice_by_slice():
    rig = Rig()
    body = batch_of(*GOOD)
    head = b"POST /topics/t HTTP/1.1\r\nhost: h\r\ncontent-type: application/cloudevents-batch+json\r\n"
    rig.link.door.received(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    for _ in range(COUNT_OF_BATCH // DECODE_SLICE - 2):
        rig.turn.run()
    gc.collect()  # what other tests left
    rig.link.door.closed("reset")
    left = [alive()]
    for _ in range(COUNT_OF_BATCH // SUBMIT_SLICE):
        rig.turn.run()
        left.append(alive())
    assert left[0] - left[-1] == COUNT_OF_BATCH - DECODE_SLICE
    assert rig.port.submitted == []
    assert max(a - b for a, b in pairwise(left)) == SUBMIT_SLICE
