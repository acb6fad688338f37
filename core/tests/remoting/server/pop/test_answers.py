"""What a pop answers where a record is damaged."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.topics import TopicConfig
from tests.remoting.bench import TOPIC, Bench, send_frame
from tests.remoting.pop_client import GROUP, ack, pop


def test_a_damaged_record_of_a_retry_topic_is_left_out_and_the_others_come(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.connect().feed(send_frame(b"m0"))
    retry = f"%RETRY%{GROUP}_{TOPIC}"
    bench.broker.topics.create(TopicConfig(retry, 1, 1))
    link = bench.connect()
    link.feed(b"".join([send_frame(b"again%d" % n, b=retry, j="1") for n in range(3)]))
    real = bench.store.read_units

    def damaged(*wanted: Any) -> Any:
        pieces, taken = real(*wanted)
        return [piece.replace(b"again1", b"gaian1") for piece in pieces], taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.store, "read_span", lambda *_: None)
        patch.setattr(bench.store, "read_units", damaged)
        found = pop(link, queueId=-1)
    assert sorted([one.body for one in found]) == [b"again0", b"again2", b"m0"]
    for one in found:  # with the receipt of its own offset
        assert ack(link, one).code == 0
    assert f"{retry}/0, offset 1: the record is damaged" in caplog.text
    place = bench.broker.pops.known(GROUP, retry, 0)
    assert place is not None
    assert [place.cursor.window.is_done(offset) for offset in range(3)] == [True, False, True]
