"""Filters over a real store: what passes, where to go on, waiting polls, retry topics, limits, the cache."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.administration.reading import Reading
from gantrymq.model.message import Message
from gantrymq.model.names import java_hash
from gantrymq.remoting.codec import Command, encode
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.server import filters
from gantrymq.remoting.server.filters import ALL, FilterError, compile_filter, select
from gantrymq.remoting.server.pulling import subscription_calls
from gantrymq.remoting.server.pulling.pulls import find as inspect
from gantrymq.store.cold import Cold
from gantrymq.store.log import record
from gantrymq.store.queues.consume_queue import HOLE, UNIT
from gantrymq.store.queues.unit_words import tag_words
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.test_cold_reads import Node
from tests.remoting.bench import SUSPEND, Bench, answers, ask, pull, pull_frame, send, send_frame
from tests.remoting.server.pulling.test_pulls import bodies_of, offsets
from tests.store.queues.test_consume_queue import queue_on

SQL = {"expressionType": "SQL92"}


def fill(bench: Bench, count: int, body: int = 0) -> None:
    """`n` counts up, TAGS is `even` or `odd`, every third message has a `third`."""
    link = bench.connect()
    frames = []
    for i in range(count):
        properties = f"n\x01{i}\x02TAGS\x01{'odd' if i % 2 else 'even'}\x02" + (
            "third\x01true\x02" if i % 3 == 0 else ""
        )
        frames.append(send_frame(b"%d" % i + b"." * body, properties, opaque=i))
    link.feed(b"".join(frames))


def numbers(answer: Any) -> list[int]:
    return [int(body.partition(b".")[0]) for body in bodies_of(answer.body)]


CASES = {
    "n > 3": [4, 5, 6, 7, 8, 9],
    "n BETWEEN 2 AND 4": [2, 3, 4],
    "third = TRUE AND TAGS = 'odd'": [3, 9],
    "third IS NULL": [1, 2, 4, 5, 7, 8],
    "TAGS IN ('even') OR n = 1": [0, 1, 2, 4, 6, 8],
    "n = 4": [4],
}


@pytest.mark.parametrize("text", CASES)
def test_sql_in_the_request(bench: Bench, text: str) -> None:
    fill(bench, 10)
    answer = pull(bench.connect(), subscription=text, **SQL)
    assert (answer.code, answer.remark, numbers(answer), offsets(answer)) == (0, "FOUND", CASES[text], (10, 0, 10))


def test_sql_limits_of_one_answer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bench, 100)
    link = bench.connect()
    answer = pull(link, subscription="third = TRUE", maxMsgNums=3, **SQL)
    assert (numbers(answer), offsets(answer)[0]) == ([0, 3, 6], 7)
    size = len(pull(link, maxMsgNums=1).body)
    answer = pull(link, subscription="third = TRUE", maxMsgBytes=size * 2 + 5, **SQL)
    assert (numbers(answer), offsets(answer)[0]) == ([0, 3], 6)
    assert numbers(pull(link, subscription="n = 90", maxMsgBytes=1, **SQL)) == [90]
    monkeypatch.setattr(filters, "SQL_SCAN_MAX", 20)
    answer = pull(link, subscription="n = 90", queueOffset=2, **SQL)
    assert (answer.code, offsets(answer)[0]) == (Answer.PULL_RETRY_IMMEDIATELY, 22)
    monkeypatch.setattr(filters, "SQL_SCAN_MAX", 256)
    monkeypatch.setattr(filters, "SQL_BYTES_MAX", size * 10)
    answer = pull(link, subscription="n = 90", **SQL)
    assert answer.code == Answer.PULL_RETRY_IMMEDIATELY
    assert 5 < offsets(answer)[0] < 20


def test_a_record_over_the_limit_is_evaluated(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "SQL_BYTES_MAX", 1000)
    fill(bench, 3, body=5000)
    assert numbers(pull(bench.connect(), subscription="n = 1", queueOffset=1, **SQL)) == [1]
    assert offsets(pull(bench.connect(), subscription="n = 2", **SQL))[0] == 1


def heartbeat(
    link: Any, client: str, expressions: dict[str, str], version: int = 1, kind: str = "TAG", group: str = "CG"
) -> None:
    subscriptions = [
        {"topic": topic, "subString": text, "subVersion": version, "expressionType": kind}
        for topic, text in expressions.items()
    ]
    data = [{"groupName": group, "subscriptionDataSet": subscriptions}] if expressions is not None else []
    body = json.dumps({"clientID": client, "consumerDataSet": data}).encode()
    assert ask(link, Code.HEART_BEAT, body).code == 0


def test_sql_of_the_heartbeat(bench: Bench) -> None:
    fill(bench, 10)
    link = bench.connect()
    heartbeat(link, "c", {"T": "n < 3"}, kind="SQL92")
    assert numbers(pull(link, sysFlag=0, subVersion=1, **SQL)) == [0, 1, 2]


def running_info(link: Any, asked: Command, subscriptions: Any) -> list[Command]:
    """The client answers, as fastjson writes it (keys of maps may be objects); what the broker answers then, without notices."""
    body = '{"mqTable":{{"topic":"T","queueId":0}:{"locked":true}},"subscriptionSet":' + json.dumps(subscriptions) + "}"
    found = answers(link.feed(encode(Command(0, {}, body.encode(), asked.opaque, 1, language=0))))
    return [command for command in found if command.is_response]


def newer_pull(bench: Bench, count: int = 1) -> tuple[Any, Command]:
    """A client whose heartbeat with the new version was lost pulls, and is asked what it subscribed to."""
    fill(bench, 10)
    link = bench.connect()
    heartbeat(link, "c", {"T": "n < 3"}, kind="SQL92")
    frames = b"".join(pull_frame(opaque, sysFlag=0, subVersion=2, **SQL) for opaque in range(count))
    (asked,) = answers(link.feed(frames))
    assert (asked.code, asked.is_response) == (Code.GET_CONSUMER_RUNNING_INFO, False)
    assert (asked.fields["consumerGroup"], asked.fields["clientId"]) == ("CG", "c")
    return link, asked


def subscribed(text: str, version: int) -> dict[str, Any]:
    return {"topic": "T", "subString": text, "subVersion": version, "expressionType": "SQL92"}


def test_a_client_that_knows_better_is_asked(bench: Bench) -> None:
    link, asked = newer_pull(bench, 2)
    first, second = running_info(link, asked, [subscribed("n < 2", 2)])
    assert (numbers(first), numbers(second)) == ([0, 1], [0, 1])
    assert numbers(pull(link, sysFlag=0, subVersion=2, **SQL)) == [0, 1]


@pytest.mark.parametrize("said", [[subscribed("n < 2", 1)], [], "nonsense"])
def test_a_client_that_knows_nothing_newer_is_refused(bench: Bench, said: Any) -> None:
    link, asked = newer_pull(bench)
    (answer,) = running_info(link, asked, said)
    assert (answer.code, "not latest" in (answer.remark or "")) == (Answer.SUBSCRIPTION_NOT_LATEST, True)
    assert pull(link, sysFlag=0, subVersion=2, **SQL).code == Answer.SUBSCRIPTION_NOT_LATEST  # it is not asked again
    heartbeat(link, "c", {"T": "n < 1"}, version=2, kind="SQL92")
    assert numbers(pull(link, sysFlag=0, subVersion=2, **SQL)) == [0]


def test_a_client_that_does_not_answer_is_refused(bench: Bench) -> None:
    link, _ = newer_pull(bench)
    bench.wheel.advance(3100)
    bench.turn.run_until_quiet()
    (answer,) = answers(link.take())
    assert answer.code == Answer.SUBSCRIPTION_NOT_LATEST
    other = bench.connect()  # whoever has sent no heartbeat cannot be asked
    assert pull(other, sysFlag=0, subVersion=2, **SQL).code == Answer.SUBSCRIPTION_NOT_LATEST


def test_a_client_that_leaves_while_it_is_asked(bench: Bench) -> None:
    link, _ = newer_pull(bench)
    link.lose()
    bench.turn.run_until_quiet()
    assert bench.doors.pulls.calls._waiting == {}


def test_pulls_that_wait_for_an_answer_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_calls, "WAITING_MAX", 1)
    link, asked = newer_pull(bench)
    assert pull(link, sysFlag=0, subVersion=2, **SQL).code == Answer.SUBSCRIPTION_NOT_LATEST
    assert len(running_info(link, asked, [subscribed("n < 2", 2)])) == 1


def test_tags_newer_than_the_heartbeat(bench: Bench) -> None:
    fill(bench, 10)
    link = bench.connect()
    heartbeat(link, "c", {"T": "even"}, version=3)
    assert len(numbers(pull(link, sysFlag=0, subVersion=3))) == 5
    assert len(numbers(pull(link, sysFlag=0, subVersion=4))) == 10  # the client compares tags itself


def test_a_broken_expression_in_the_heartbeat(bench: Bench) -> None:
    fill(bench, 1)
    link = bench.connect()
    heartbeat(link, "c", {"T": "n <"}, kind="SQL92")
    assert pull(link, sysFlag=0).code == Answer.SUBSCRIPTION_PARSE_FAILED


def test_the_retry_topic_of_the_group_is_not_filtered(bench: Bench) -> None:
    link = bench.connect()
    retry = "%RETRY%CG"
    heartbeat(link, "c", {"T": "n = 1"}, kind="SQL92")
    assert send(link, b"again", "TAGS\x01x\x02", b=retry, e="0").code == 0
    for wanted in ({"subscription": "n = 1", **SQL}, {"subscription": "y"}, {"sysFlag": 0}):
        assert bodies_of(pull(link, topic=retry, **wanted).body) == [b"again"]
    other = pull(link, topic=retry, consumerGroup="another", subscription="y")
    assert other.code == Answer.PULL_RETRY_IMMEDIATELY


def test_waiting_poll_with_sql(bench: Bench) -> None:
    fill(bench, 3)
    link, producer = bench.connect(), bench.connect()
    link.feed(pull_frame(queueOffset=3, subscription="price > 10", **SQL, **SUSPEND))
    for price in (5, 10, 7):
        send(producer, b"cheap", f"price\x01{price}\x02")
    send(producer, b"none")
    assert link.take() == b""
    assert bench.doors.pulls.waiting == 1
    send(producer, b"dear", "price\x0111\x02")
    (answer,) = answers(link.take())
    assert (answer.code, bodies_of(answer.body), offsets(answer)) == (0, [b"dear"], (8, 0, 8))
    link.feed(pull_frame(queueOffset=8, subscription="price > 10", **SQL, **SUSPEND))
    send(producer, b"cheap", "price\x015\x02")
    bench.wheel.advance(16_000)
    bench.turn.run_until_quiet()
    (answer,) = answers(link.take())
    assert (answer.code, offsets(answer)[0]) == (Answer.PULL_RETRY_IMMEDIATELY, 9)


def test_a_batch_beyond_the_scan_wakes_the_poll(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "SQL_SCAN_MAX", 4)
    fill(bench, 1)
    link, producer = bench.connect(), bench.connect()
    link.feed(pull_frame(queueOffset=1, subscription="n = 8", **SQL, **SUSPEND))
    producer.feed(b"".join(send_frame(b"%d" % i, f"n\x01{i}\x02", opaque=i) for i in range(10)))
    (answer,) = answers(link.take())
    assert (answer.code, offsets(answer)[0]) == (Answer.PULL_RETRY_IMMEDIATELY, 5)
    answer = pull(link, queueOffset=5, subscription="n = 8", **SQL)
    assert (answer.code, offsets(answer)[0]) == (Answer.PULL_RETRY_IMMEDIATELY, 9)
    assert numbers(pull(link, queueOffset=9, subscription="n = 8", **SQL)) == [8]


def test_ipv6_born_hosts_and_long_topics(bench: Bench) -> None:
    link = bench.connect("[2001:db8::1]:4711")
    send(link, b"six", "n\x011\x02")
    send(link, b"two", "n\x012\x02")
    assert bodies_of(pull(link, subscription="n = 2", **SQL).body) == [b"two"]
    data = pull(link, maxMsgNums=1).body
    message = record.decode(data)
    assert record.properties_of(data, 0, len(data)) == message.properties + message.dispatch


@pytest.mark.parametrize(
    ("kind", "text"), [("TAG", "a"), ("TAG", "a || c"), ("SQL92", "TAGS IN ('a')"), ("SQL92", "TAGS = 'a' OR x > 1")]
)
def test_on_a_cold_disk(tmp_path: Path, kind: str, text: str) -> None:
    """Nothing is in memory: every read comes from a thread, and the look is begun anew after each round."""
    node = Node(tmp_path)
    messages = [
        Message("T", b"%d" % i, f"TAGS\x01{'ab'[i % 2]}\x02".encode(), "ab"[i % 2], queue_id=0) for i in range(300)
    ]
    node.wait(node.ask("submit", messages))
    node.stop()
    node = Node(tmp_path)
    reading = Reading(node.broker)
    found: list[Any] = []

    def find(token: object) -> None:
        try:
            found.append(
                inspect(reading, node.broker.topics.topics["T"], 0, 5, 20, 1 << 20, compile_filter(kind, text))
            )
        except Cold as cold:
            node.store.fetch(cold, token, find)

    find(object())
    assert found == []
    answer = node.wait(found)
    assert [int(record.decode(piece).body) for piece in answer.pieces] == list(range(6, 46, 2))
    assert answer.next_offset == 45
    node.stop()


# The cache


def test_the_same_text_gives_the_same_filter() -> None:
    assert compile_filter(None, None) is compile_filter("TAG", "*") is compile_filter("", "") is ALL
    assert compile_filter("TAG", "a||b") is compile_filter(None, "a||b")
    assert compile_filter("SQL92", "a = 7") is compile_filter("SQL92", "a = 7")
    assert compile_filter("TAG", "a = 7") is not compile_filter("SQL92", "a = 7")
    assert compile_filter("TAG", "a || * ") is ALL


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = filters._Cache()
    monkeypatch.setattr(filters, "_cache", cache)
    monkeypatch.setattr(filters, "CACHED_MAX", 3)
    for tag in "abcd":
        compile_filter(None, tag)
    assert [text for _, text in cache.entries] == ["b", "c", "d"]
    monkeypatch.setattr(filters, "CACHED_CHARS_MAX", 100)
    with pytest.raises(FilterError):
        compile_filter("SQL92", "#" * 95)  # what is wrong is kept, too
    assert [text[0] for _, text in cache.entries] == ["c", "d", "#"]
    compile_filter(None, "x" * 200)
    assert (cache.entries, cache.chars) == ({}, 0)


REFUSED = {
    "LIKE": ("SQL92", "a LIKE 'x%'", "LIKE"),
    "arithmetic": ("SQL92", "a + 1 > 2", "arithmetic"),
    "empty": ("SQL92", None, "needs an expression"),
    "type": ("XPATH", "/a", "known are TAG and SQL92"),
    "no tag": ("TAG", "||", "names no tag"),
    "many tags": ("TAG", "||".join(map(str, range(filters.TAGS_MAX + 1))), "at most 4096 tags"),
    "long tags": ("TAG", "x" * (filters.TAG_CHARS_MAX + 1), "at most 262144"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    kind, text, problem = REFUSED[name]
    for _ in range(2):  # the second time out of the cache
        with pytest.raises(FilterError, match=problem):
            compile_filter(kind, text)


def test_what_is_ignored_is_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "_cache", filters._Cache())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            compile_filter("SQL92", "a = 7 LIMIT 5")
    assert [entry.getMessage().count("LIMIT 5") for entry in caplog.records] == [2]


# Tags


TAGS = [
    "a",
    "b",
    "c",
    "Aa",
    "BB",
    "",
    "x" * 40,
    "f5a5a608",
]  # `Aa` and `BB` share a hash, the last one's is 0 as of no tag


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(TAGS), st.none()), max_size=40),
    st.integers(0, 40),
    st.sets(st.sampled_from([tag for tag in TAGS if tag]), min_size=1, max_size=4),
    st.integers(0, 42),
    st.integers(1, 45),
)
def test_select_of_a_queue(tags: list[str | None], written: int, chosen: set[str], offset: int, count: int) -> None:
    """Written units over several files, pending ones and holes: as a comparison unit by unit."""
    wanted = compile_filter("TAG", "||".join(sorted(chosen)))
    assert wanted.codes is not None
    units = [HOLE if tag is None else (100 * place, 100, java_hash(tag)) for place, tag in enumerate(tags)]
    queue = queue_on(MemoryFileSystem())
    for place, unit in enumerate(units):
        if place == written:
            queue.write_pending()
        queue.pending.extend(unit)
        queue.next_offset += 1
    found = queue.select(offset, count, wanted.codes, wanted.words)
    places = [place for place, unit in enumerate(units) if wanted.takes_unit(unit) and offset <= place < offset + count]
    assert found == (places, [units[place][0] for place in places], [units[place][1] for place in places])


def test_tag_words_are_what_stands_in_the_file() -> None:
    for code in (0, 1, -1, java_hash("x" * 40), -(2**31), 2**31 - 1):
        (word,) = tag_words(frozenset({code}))
        assert UNIT.pack(0, 0, code)[16:] == word.to_bytes(4, sys.byteorder)


@pytest.mark.parametrize("text", ["even", "even || odd", "odd || nothing", "nothing"])
@pytest.mark.parametrize("flushed", [False, True])
def test_select_goes_on_where_it_stopped(bench: Bench, text: str, flushed: bool) -> None:
    fill(bench, 300)
    if flushed:
        bench.store.flush()
        fill(bench, 11)
    wanted = compile_filter("TAG", text)
    high = bench.store.max_offset("T", 0)
    for count, bytes_max in ((1, 1 << 20), (7, 1 << 20), (1000, 1 << 20), (1000, 700)):
        at, found = 0, []
        while at < high:
            part = select(bench.store, "T", 0, at, wanted, count, bytes_max)
            assert len(part.offsets) <= count
            assert part.next_offset > at
            data, place, stored = b"".join(part.pieces), 0, []
            while place < len(data):
                message = record.decode(data, place)
                stored.append(message.queue_offset)
                place += message.size
            assert (stored, part.size) == (part.offsets, len(data))
            found += part.offsets
            at = part.next_offset
        units = bench.store.units("T", 0, 0, high)
        assert found == [place for place, unit in enumerate(units) if wanted.takes_unit(unit)]


def test_what_is_looked_at_first_follows_what_passed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in ten passes: after the first answer a pull looks at ten units for each record that it wants, and no more."""
    link = bench.connect()
    frames = [send_frame(b"m", f"TAGS\x01{'one' if i % 10 == 9 else 'other'}\x02", opaque=i) for i in range(900)]
    link.feed(b"".join(frames))
    wanted = compile_filter("TAG", "one")
    looked: list[int] = []
    select_units = bench.store.select_units

    def counted(topic: str, queue_id: int, offset: int, count: int, *rest: Any) -> Any:
        looked.append(count)
        return select_units(topic, queue_id, offset, count, *rest)

    monkeypatch.setattr(bench.store, "select_units", counted)
    at = 0
    for _ in range(3):
        at = select(bench.store, "T", 0, at, wanted, 20, 1 << 20).next_offset
    assert (at, looked) == (600, [160, 40, 200, 200])
