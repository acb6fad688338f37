"""A client's own light queues (`%LMQ%name`): entered at append, read as topics, rebuilt after a crash, limited."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gantrymq.broker import topics
from gantrymq.broker.port import Route
from gantrymq.model.message import DELAYED, Message
from gantrymq.net.testing import FakeLink
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.json_bodies import ConsumerData, Heartbeat, encode
from gantrymq.store.files import OsFileSystem
from gantrymq.store.log import record
from gantrymq.store.message_store import MessageStore
from gantrymq.store.tools.check import Checker
from gantrymq.store.tools.inspect import StoreImage
from tests.broker.test_port import PrefixRoutes
from tests.remoting.bench import SUSPEND, Bench, answers, ask, pull, pull_frame, send, send_frame
from tests.remoting.server.sending.test_sends import batch_body, stored

A, B = "%LMQ%a", "%LMQ%b"


def to(*names: str, rest: str = "UNIQ_KEY\x01U\x02TAGS\x01red\x02") -> str:
    return f"{rest}INNER_MULTI_DISPATCH\x01{','.join(names)}\x02"


def bodies(link: FakeLink, topic: str, offset: int = 0) -> list[bytes]:
    answer = pull(link, topic=topic, queueOffset=offset)
    found, at = [], 0
    while at < len(answer.body):
        message = record.decode(answer.body, at)
        found.append(message.body)
        at += message.size
    return found


def test_one_record_in_several_queues(bench: Bench) -> None:
    link = bench.connect()
    assert send(link, b"one", to(A, B)).code == 0
    assert send(link, b"two", to(B, rest="")).code == 0
    assert send(link, b"none").code == 0
    assert [bodies(link, name) for name in (A, B, "T")] == [[b"one"], [b"one", b"two"], [b"one", b"two", b"none"]]
    first, second, _ = stored(bench)
    assert first.dispatch == b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02INNER_MULTI_QUEUE_OFFSET\x010,0\x02"
    assert second.dispatch == b"INNER_MULTI_DISPATCH\x01%LMQ%b\x02INNER_MULTI_QUEUE_OFFSET\x011\x02"
    assert "INNER_MULTI_DISPATCH" not in first.property_map()
    assert bench.store.units(A, 0, 0, 9) == bench.store.units("T", 0, 0, 1)


def test_offsets_within_one_append(bench: Bench) -> None:
    link = bench.connect()
    send(link)
    link.feed(b"".join(send_frame(b"%d" % i, to(A, B, rest=""), i) for i in range(5)))
    assert bodies(link, A) == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.dispatch.rpartition(b"\x01")[2] for message in stored(bench)[1:]] == [
        b"%d,%d\x02" % (i, i) for i in range(5)
    ]


def test_batch_message_enters_light_queues(bench: Bench) -> None:
    link = bench.connect()
    body = batch_body((b"x", to(A, rest="")), (b"y", ""), (b"z", to(A, B, rest="")))
    assert send(link, body, code=320, m="true").code == 0
    assert [bodies(link, name) for name in (A, B)] == [[b"x", b"z"], [b"z"]]


def test_send_straight_to_a_light_queue(bench: Bench) -> None:
    link = bench.connect()
    send(link, b"one", to(A))
    assert send(link, b"two", b=A).code == 0
    assert send(link, b"three", to(A, B), b=A).code == 0
    assert bodies(link, A) == [b"one", b"two", b"three"]
    assert bodies(link, B) == [b"three"]
    assert send(link, b=A, e="1").code == Answer.INVALID_PARAMETER


def test_long_poll_on_a_light_queue_that_does_not_exist_yet(bench: Bench) -> None:
    reader, writer = bench.connect(), bench.connect()
    assert reader.feed(pull_frame(topic=A, **SUSPEND)) == b""
    send(writer, b"now", to(A))
    (answer,) = answers(reader.take())
    assert (answer.code, record.decode(answer.body).body) == (0, b"now")


def test_tag_filter_on_a_light_queue(bench: Bench) -> None:
    link = bench.connect()
    send(link, b"red", to(A))
    send(link, b"blue", to(A, rest="TAGS\x01blue\x02"))
    answer = pull(link, topic=A, subscription="blue")
    assert record.decode(answer.body).body == b"blue"


def test_offsets_and_groups(bench: Bench) -> None:
    link = bench.connect()
    send(link, b"one", to(A))
    beat = encode(Heartbeat("c", [], [ConsumerData("%LMQ%g")]))
    assert ask(link, Code.HEART_BEAT, beat).code == 0
    assert "%LMQ%g" not in bench.doors.groups.configs
    assert bench.broker.topics.get("%RETRY%%LMQ%g") is None
    where = {"consumerGroup": "%LMQ%g", "topic": A, "queueId": 0}
    assert ask(link, Code.UPDATE_CONSUMER_OFFSET, **where, commitOffset=1).code == 0
    assert ask(link, Code.QUERY_CONSUMER_OFFSET, **where).fields["offset"] == "1"
    assert ask(link, Code.GET_MAX_OFFSET, topic=A, queueId=0).fields["offset"] == "1"
    assert all(config.name != A for config in bench.broker.topics.configs())


@pytest.mark.parametrize("clean", [True, False])
def test_start_rebuilds_the_same_queues(tmp_path: Path, clean: bool) -> None:
    before = Bench(tmp_path / "before")
    link = before.connect()
    for i in range(10):
        send(link, b"%d" % i, to(*((A, B) if i % 2 else (A,))))
    names = ("T", A, B)
    units = [before.store.units(name, 0, 0, 99) for name in names]
    if clean:
        before.close()
        shutil.copytree(tmp_path / "before", tmp_path / "after")
    else:
        shutil.copytree(tmp_path / "before", tmp_path / "after")  # as kill -9 leaves it: the queues were never written
        before.close()
    after = Bench(tmp_path / "after")
    assert [after.store.units(name, 0, 0, 99) for name in names] == units
    link = after.connect()
    assert send(link, b"more", to(B)).code == 0
    assert bodies(link, B) == [b"1", b"3", b"5", b"7", b"9", b"more"]
    after.close()
    image = StoreImage(tmp_path / "after")
    report = Checker(image).run()
    assert report.damage == []


def test_beside_light_queues_of_our_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path, routes={"prefix": PrefixRoutes()})
    link = bench.connect()
    send(link)
    lights: list[int] = []
    for number in range(70):
        bench.broker.create_light(None, lambda token, light: lights.append(light))
        bench.turn.run_until_quiet()
        route = Route(f"r{number}", "prefix", "T", "red", lights[-1])
        bench.broker.add_route(route, None, lambda token, result: None)
    bench.turn.run_until_quiet()
    for i in range(3):
        assert send(link, b"%d" % i, to(A, B)).code == 0
    message = stored(bench)[-1]
    pairs, more = record.dispatch_of(message.dispatch)
    assert (pairs[:2], len(pairs), more) == ([(A, 2), (B, 2)], 64, 8)
    units = bench.store.units(A, 0, 0, 9)
    for light in lights:
        assert [unit[:2] for unit in bench.store.light_units(light, 0, 9)] == [unit[:2] for unit in units]
    shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    bench.close()
    again = MessageStore(OsFileSystem(), tmp_path.with_name("copy"), bench.store.config, bench.clock)
    again.load()
    assert again.units(A, 0, 0, 9) == again.units(B, 0, 0, 9) == units
    for light in lights:
        assert [unit[:2] for unit in again.light_units(light, 0, 9)] == [unit[:2] for unit in units]
    again.close()


def test_delayed_message_keeps_its_light_queues_for_later(bench: Bench) -> None:
    seen: list[Message] = []

    def redirect(message: Message) -> None:
        seen.append(message)

    bench.broker.redirects[DELAYED] = redirect  # type: ignore[assignment]
    assert send(bench.connect(), b"x", to(A, rest="DELAY\x013\x02")).code == 0
    assert (seen[0].lmq, seen[0].property("INNER_MULTI_DISPATCH")) == ((), A)
    assert bench.store.max_offset(A, 0) == 0
    (message,) = stored(bench)
    assert message.dispatch.split(b"\x02")[0] == record.DISPATCH_MARK + A.encode()


def test_properties_of_a_record_that_was_read_can_be_sent_again(bench: Bench) -> None:
    link = bench.connect()
    text = "INNER_MULTI_DISPATCH\x01%LMQ%~1,%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x017,8\x02GANTRY_DISPATCH_MORE\x013\x02"
    assert send(link, b"x", text).code == 0
    (message,) = stored(bench)
    assert message.dispatch == b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x010\x02"
    assert send(link, b"y", "INNER_MULTI_DISPATCH\x01%LMQ%~1\x02").code == 0
    assert stored(bench)[1].dispatch == b""


def test_limits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    link = bench.connect()
    many = [f"%LMQ%{i}" for i in range(65)]
    answer = send(link, b"x", to(*many))
    assert (answer.code, "at most 64" in (answer.remark or "")) == (Answer.MESSAGE_ILLEGAL, True)
    long = [f"%LMQ%{i:0>122}" for i in range(64)]
    assert send(link, b"x", to(*long)).code == 0
    filler = "p\x01" + "x" * 24_000 + "\x02"
    answer = send(link, b"x", to(*long, rest=filler))
    assert (answer.code, "light queues and their offsets" in (answer.remark or "")) == (Answer.MESSAGE_ILLEGAL, True)
    monkeypatch.setattr(topics, "LIGHT_QUEUES_MAX", 64)
    assert send(link, b"x", to(*long)).code == 0
    before = bench.store.written_position
    answer = send(link, b"x", to(A))
    assert (answer.code, "LMQ_CONSUME_QUEUE_NUM_EXCEEDED" in (answer.remark or "")) == (Answer.SYSTEM_ERROR, True)
    assert pull(link, topic=A).code == Answer.TOPIC_NOT_EXIST
    assert bench.store.written_position == before


def test_the_limit_counts_what_earlier_lives_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    send(bench.connect(), b"x", to(A, B))
    bench.close()
    monkeypatch.setattr(topics, "LIGHT_QUEUES_MAX", 2)
    bench = Bench(tmp_path)
    assert send(bench.connect(), b"x", to(A, B)).code == 0
    assert send(bench.connect(), b"x", to("%LMQ%c")).code == Answer.SYSTEM_ERROR
    bench.close()


def test_light_queues_of_the_broker_are_closed(bench: Bench) -> None:
    link = bench.connect()
    assert send(link, b="%LMQ%~1").code == Answer.NO_PERMISSION
    assert pull(link, topic="%LMQ%~1").code == Answer.TOPIC_NOT_EXIST
    rows = "%LMQ%rmq_sys_gantry_user"
    assert send(link, b=rows).code == Answer.NO_PERMISSION
    assert pull(link, topic=rows).code != 0
    assert send(link, b"x", to(rows, rest="GANTRY_ROW\x01QQ== root\x02")).code == 0
    assert bench.store.max_offset(rows, 0) == 0
    assert bench.broker.tables.rows("user") == {}


def test_a_batch_that_cannot_be_written_takes_its_entries_back(bench: Bench) -> None:
    link = bench.connect()
    send(link, b"one", to(A))
    queue = bench.store._queues.find(A, 0)
    assert queue is not None
    bench.files.full = True
    assert send(link, b"two", to(A, B)).code == Answer.SERVICE_NOT_AVAILABLE
    bench.files.full = False
    assert queue.next_offset == 1
    assert send(link, b"three", to(A, B)).code == 0
    assert [bodies(link, name) for name in (A, B)] == [[b"one", b"three"], [b"three"]]


def test_half_message_enters_its_light_queues_with_its_commit(bench: Bench) -> None:
    link = bench.connect()
    answer = send(link, b"x", to(A, rest="UNIQ_KEY\x01U\x02TRAN_MSG\x01true\x02PGROUP\x01PG\x02"), f="4")
    assert answer.code == 0, answer.remark
    assert bench.store.max_offset(A, 0) == 0
    end = ask(
        link, Code.END_TRANSACTION, producerGroup="PG", tranStateTableOffset=answer.fields["queueOffset"],
        commitLogOffset=int(answer.fields["msgId"][-16:], 16), commitOrRollback=8, msgId="U", transactionId="U",
    )  # fmt: skip
    assert end.code == 0, end.remark
    assert bodies(link, A) == bodies(link, "T") == [b"x"]
    assert bench.store.units(A, 0, 0, 1) == bench.store.units("T", 0, 0, 1)
