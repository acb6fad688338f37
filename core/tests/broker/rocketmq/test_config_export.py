"""`config/*.json`: exported within a second, taken back in when another broker wrote it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.broker.consuming.offsets import FLUSH_MS
from gantrymq.broker.rocketmq import config_files as cf
from gantrymq.broker.rocketmq.config_export import DELETE_NAME, EXPORT_MS, ConfigExport, Ends
from gantrymq.broker.tables.tables import Rows, Tables
from gantrymq.broker.topics import TopicConfig
from gantrymq.model.dialect import read_json
from gantrymq.model.errors import StoreCorruptError
from gantrymq.store.testing import MemoryFileSystem

ROOT = Path("/d")
CONFIG = ROOT / "store" / "config"


class FakeWheel:
    def __init__(self) -> None:
        self.ms = 0
        self.calls: list[tuple[int, Callable[[int], None]]] = []

    def now_ms(self) -> int:
        return self.ms

    def call_at(self, at_ms: int, callback: Callable[[int], None]) -> None:
        self.calls.append((at_ms, callback))

    def run(self, until_ms: int) -> None:
        self.ms = until_ms
        due, self.calls = (
            [call for call in self.calls if call[0] <= until_ms],
            [c for c in self.calls if c[0] > until_ms],
        )
        for _, callback in due:
            callback(until_ms)


class FixedClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic_ms(self) -> int:
        return 0


class Bench:
    """One directory and broker processes on it, one after the other."""

    def __init__(self) -> None:
        self.files = MemoryFileSystem()
        for directory in (CONFIG, ROOT / "gantry"):
            self.files.make_dirs(directory)
        self.tables = Tables()
        self.ends: dict[tuple[str, int], int] = {}

    def start(self) -> Rows:
        self.wheel = FakeWheel()
        self.export = ConfigExport(self.files, ROOT, FixedClock())  # type: ignore[arg-type]
        topics = sorted({topic for topic, _ in self.ends})
        ends = Ends(topics, lambda t: [q for n, q in self.ends if n == t], lambda t, q: self.ends.get((t, q), 0))
        rows = self.export.import_rows(self.tables, ends)
        for row in rows:
            self.tables.apply(*row)
        self.export.start(self.tables, self.wheel, lambda work: work())  # type: ignore[arg-type]
        self.wheel.run(0)
        return rows

    def restart(self) -> Rows:
        fresh = Tables()
        for table in ("topic", "group", "offset"):
            for key, row in self.tables.rows(table).items():
                fresh.apply(table, key, row)
        self.tables = fresh
        return self.start()

    def read(self, name: str) -> Any:
        return read_json(self.files.snapshot()[CONFIG / name])

    def write(self, name: str, data: str) -> None:
        handle = self.files.open(CONFIG / name, True)
        self.files.truncate(handle, 0)
        self.files.pwrite(handle, data.encode(), 0)
        self.files.datasync(handle)
        self.files.close(handle)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def topic(queues: int = 4, **more: Any) -> bytes:
    return TopicConfig("x", queues, queues, **more).to_bytes()


def test_commits_and_exports_stay_under_a_second() -> None:
    assert FLUSH_MS + EXPORT_MS < 1000


def test_everything_is_exported(bench: Bench) -> None:
    bench.start()
    bench.tables.apply("topic", "Orders", topic(3, attributes={"message.type": "FIFO"}))
    bench.tables.apply("topic", "Dead", topic(deleted=True))
    bench.tables.apply("group", "g", b'{"groupName":"g","retryMaxTimes":3}')
    bench.tables.apply("offset", "Orders@g", b'{"0":7,"2":9}')
    bench.tables.apply("offset", "%LMQ%a@%LMQ%g", b'{"0":5}')
    bench.wheel.run(EXPORT_MS)
    (entry,) = bench.read(cf.TOPICS)["topicConfigTable"].values()
    assert entry == {
        "attributes": {"message.type": "FIFO"}, "order": False, "perm": 6, "topicName": "Orders", "readQueueNums": 3,
        "writeQueueNums": 3, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
    }  # fmt: skip
    assert bench.read(cf.GROUPS)["subscriptionGroupTable"] == {"g": {"groupName": "g", "retryMaxTimes": 3}}
    assert bench.read(cf.OFFSETS)["offsetTable"] == {"Orders@g": {"0": 7, "2": 9}, "%LMQ%a@%LMQ%g": {"0": 5}}
    assert bench.read(cf.LMQ_OFFSETS)["offsetTable"] == {"Orders@g": {"0": 7, "2": 9}}
    assert bench.read(cf.LMQ_OFFSETS)["lmqOffsetTable"] == {"%LMQ%a@%LMQ%g": 5}
    assert bench.read(cf.DELAYS)["offsetTable"] == {}
    assert b'"Orders@g":{0:7,2:9\n\t\t}' in bench.files.snapshot()[CONFIG / cf.OFFSETS]


def test_a_topic_is_exported_at_once_and_many_together(bench: Bench) -> None:
    bench.start()
    written: list[Path] = []
    rename = bench.files.rename
    bench.files.rename = lambda source, target: (written.append(target), rename(source, target))[1]  # type: ignore[method-assign]
    bench.tables.apply("topic", "Orders", topic())
    bench.wheel.run(0)
    assert set(bench.read(cf.TOPICS)["topicConfigTable"]) == {"Orders"}
    for number in range(100):
        bench.tables.apply("topic", f"T{number}", topic())
        bench.wheel.run(1)
    assert written.count(CONFIG / cf.TOPICS) == 1
    bench.wheel.run(EXPORT_MS)
    assert len(bench.read(cf.TOPICS)["topicConfigTable"]) == 101
    assert written.count(CONFIG / cf.TOPICS) == 2


def test_an_export_keeps_the_one_before_and_counts_on(bench: Bench) -> None:
    bench.start()
    first = bench.files.snapshot()[CONFIG / cf.TOPICS]
    version = cf.version_of(cf.parse(first))
    bench.tables.apply("topic", "Orders", topic())
    bench.export.finish()
    assert bench.files.snapshot()[CONFIG / "topics.json.bak"] == first
    assert cf.version_of(bench.read(cf.TOPICS)) == (version.timestamp + 1, version.counter + 1, 0)


def test_our_own_export_is_not_taken_in(bench: Bench) -> None:
    bench.start()
    bench.tables.apply("topic", "Orders", topic())
    bench.wheel.run(EXPORT_MS)
    bench.tables.apply("topic", "Late", topic())  # its record is in the log, its export is not on disk
    assert bench.restart() == []
    assert set(bench.read(cf.TOPICS)["topicConfigTable"]) == {"Orders", "Late"}


def test_a_crash_between_note_and_rename_is_no_import(bench: Bench) -> None:
    bench.start()
    bench.tables.apply("topic", "Orders", topic())

    def fault(operation: str, path: Path) -> OSError | None:
        return OSError(5, "broken") if operation == "rename" and path.name in (cf.TOPICS, "topics.json.tmp") else None

    bench.files.fault = fault
    bench.wheel.run(EXPORT_MS)
    bench.files.fault = lambda operation, path: None
    assert bench.read(cf.TOPICS)["topicConfigTable"] == {}
    assert bench.restart() == []


def test_what_another_broker_wrote_is_taken_in(bench: Bench) -> None:
    bench.write(
        cf.TOPICS, '{"topicConfigTable":{"A":{"readQueueNums":8,"writeQueueNums":2,"perm":4,"attributes":null}}}'
    )
    bench.write(
        cf.GROUPS,
        '{"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":2,"groupRetryPolicy":{"type":"CUSTOMIZED"}}}}',
    )
    bench.write(cf.LMQ_OFFSETS, '{"offsetTable":{"A@g":{0:3,1:4}},"lmqOffsetTable":{"%LMQ%a@%LMQ%g":6}}')
    bench.ends[("%LMQ%a", 0)] = 9
    bench.start()
    config = TopicConfig.from_bytes("A", bench.tables.rows("topic")["A"])
    assert (config.read_queues, config.write_queues, config.perm, config.attributes) == (8, 2, 4, {})
    assert "%LMQ%a" in bench.tables.rows("topic")
    assert bench.tables.rows("offset") == {"A@g": b'{"0":3,"1":4}', "%LMQ%a@%LMQ%g": b'{"0":6}'}
    assert bench.read(cf.GROUPS)["subscriptionGroupTable"]["g"]["groupRetryPolicy"] == {"type": "CUSTOMIZED"}
    assert bench.restart() == []


def test_what_another_broker_removed_is_removed(bench: Bench) -> None:
    bench.tables.apply("topic", "Gone", topic())
    bench.tables.apply("topic", "Kept", topic())
    bench.tables.apply("group", "gone", b'{"groupName":"gone"}')
    bench.tables.apply("offset", "Gone@gone", b'{"0":1}')
    bench.ends[("Gone", 1)] = 12
    bench.start()
    bench.write(cf.TOPICS, '{"topicConfigTable":{"Kept":{"readQueueNums":4,"writeQueueNums":4,"perm":6}}}')
    bench.write(cf.GROUPS, "{}")
    bench.write(cf.OFFSETS, "{}")
    bench.files.close(bench.files.open(ROOT / "gantry" / DELETE_NAME, True))
    rows = bench.restart()
    assert not bench.files.exists(ROOT / "gantry" / DELETE_NAME), "once"
    config = TopicConfig.from_bytes("Gone", bench.tables.rows("topic")["Gone"])
    assert config.deleted
    assert config.first_offsets == {"1": 12}
    assert {(table, key) for table, key, _ in rows} == {("topic", "Gone"), ("group", "gone"), ("offset", "Gone@gone")}


def test_a_file_that_names_less_deletes_nothing_by_itself(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("A", "B", "C"):
        bench.tables.apply("topic", name, topic())
    bench.tables.apply("group", "g", b'{"groupName":"g"}')
    bench.tables.apply("offset", "A@g", b'{"0":1}')
    bench.start()
    bench.write(cf.TOPICS, '{"topicConfigTable":{"A":{"readQueueNums":8,"writeQueueNums":8,"perm":6}}}')
    bench.write(cf.GROUPS, "{}")
    bench.write(cf.OFFSETS, "{}")
    rows = bench.restart()
    assert [(table, key) for table, key, _ in rows] == [("topic", "A")]
    assert TopicConfig.from_bytes("A", bench.tables.rows("topic")["A"]).read_queues == 8
    assert "names 2 fewer than it did (B, C)" in caplog.text
    assert "gantry store import-config --delete /d" in caplog.text
    assert set(bench.read(cf.TOPICS)["topicConfigTable"]) == {"A", "B", "C"}, "the next export has them again"


@pytest.mark.parametrize(
    "body",
    [
        '"readQueueNums":-1', '"writeQueueNums":1000000000', '"readQueueNums":0', '"perm":8', '"perm":-1',
        '"readQueueNums":"x"', '"readQueueNums":null',
    ],
)  # fmt: skip
def test_values_out_of_range_are_left_out(bench: Bench, body: str, caplog: pytest.LogCaptureFixture) -> None:
    bench.tables.apply("topic", "A", topic())
    before = bench.tables.rows("topic")["A"]
    bench.start()
    bench.write(cf.TOPICS, '{"topicConfigTable":{"A":{' + body + '},"B":{"readQueueNums":4}}}')
    assert [(table, key) for table, key, _ in bench.restart()] == [("topic", "B")]
    assert bench.tables.rows("topic")["A"] == before
    assert "topic 'A' is left out: 1 to 1024 queues, perm 0 to 7" in caplog.text


OTHERS = {
    cf.TOPICS: '{"topicConfigTable":{"A":{"readQueueNums":4,"writeQueueNums":4,"perm":6}}}',
    cf.GROUPS: '{"subscriptionGroupTable":{"g":{"groupName":"g"}}}',
    cf.OFFSETS: '{"offsetTable":{"A@g":{0:1}}}',
}


def test_what_another_broker_never_saw_stays(bench: Bench) -> None:
    """Killed less than a second after it was made: our last export lacks it, and so does what the other broker made of that."""
    late = {("topic", "B"): topic(), ("group", "late"): b'{"groupName":"late"}', ("offset", "B@late"): b'{"0":7}'}
    bench.tables.apply("topic", "A", topic())
    bench.tables.apply("group", "g", b'{"groupName":"g"}')
    bench.tables.apply("offset", "A@g", b'{"0":1}')
    bench.start()
    for (table, key), row in late.items():
        bench.tables.apply(table, key, row)
    for name, text in OTHERS.items():
        bench.write(name, text)
    assert [row for row in bench.restart() if row[2] is None or b'"deleted":true' in row[2]] == []
    assert {place: bench.tables.rows(place[0])[place[1]] for place in late} == late
    # It is exported now: the next broker that lacks it has deleted it.
    for name, text in OTHERS.items():
        bench.write(name, text + " ")
    bench.files.close(bench.files.open(ROOT / "gantry" / DELETE_NAME, True))
    bench.restart()
    assert TopicConfig.from_bytes("B", bench.tables.rows("topic")["B"]).deleted
    assert [bench.tables.rows(table).get(key) for table, key in list(late)[1:]] == [None, None]


def test_keys_are_noted_behind_their_export(bench: Bench) -> None:
    """A crash in between: what may or may not have been exported stays."""
    bench.start()

    def fault(operation: str, path: Path) -> OSError | None:
        return OSError(5, "cut off") if path.name.startswith("exported_") else None

    bench.files.fault = fault
    bench.tables.apply("group", "late", b'{"groupName":"late"}')
    bench.wheel.run(EXPORT_MS)
    bench.files.fault = lambda operation, path: None
    assert "late" in bench.read(cf.GROUPS)["subscriptionGroupTable"]
    bench.write(cf.GROUPS, "{}")
    bench.restart()
    assert "late" in bench.tables.rows("group")


def test_offsets_of_the_file_that_is_not_ours(bench: Bench) -> None:
    bench.tables.apply("offset", "A@g", b'{"0":1}')
    bench.start()
    bench.write(cf.OFFSETS, '{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"offsetTable":{"A@g":{0:2}}}')
    assert bench.restart() == [("offset", "A@g", b'{"0":2}')]
    bench.write(cf.LMQ_OFFSETS, '{"offsetTable":{"A@g":{0:3}}}')
    assert bench.restart() == [("offset", "A@g", b'{"0":3}')]


@pytest.mark.parametrize(
    ("ours", "lmq", "expected"),
    [((10, 5), (10, 6), 3), ((10, 6), (10, 5), 2), ((11, 1), (10, 6), 2), ((9, 9), (10, 0), 3)],
)
def test_of_two_strange_files_of_offsets_the_newer_counts(
    bench: Bench, ours: tuple[int, int], lmq: tuple[int, int], expected: int
) -> None:
    for name, (timestamp, counter), offset in ((cf.OFFSETS, ours, 2), (cf.LMQ_OFFSETS, lmq, 3)):
        version = f'{{"counter":{counter},"stateVersion":0,"timestamp":{timestamp}}}'
        bench.write(name, f'{{"dataVersion":{version},"offsetTable":{{"A@g":{{0:{offset}}}}}}}')
    assert bench.start() == [("offset", "A@g", b'{"0":%d}' % expected)]


def test_a_torn_file_gives_way_to_its_bak(bench: Bench) -> None:
    bench.write(cf.TOPICS, '{"topicConfigTable":{"A')
    with pytest.raises(StoreCorruptError, match=r"topics\.json"):
        bench.start()
    bench.write("topics.json.bak", '{"topicConfigTable":{"A":{}}}')
    assert [key for _, key, _ in bench.start()] == ["A"]


def test_all_files_that_cannot_be_read_are_named_at_once(bench: Bench) -> None:
    torn = (cf.TOPICS, "topics.json.bak", cf.GROUPS, cf.MODES, cf.LMQ_OFFSETS, cf.OFFSETS, cf.DELAYS)
    for name in torn:
        bench.write(name, '{"')
    with pytest.raises(StoreCorruptError) as refused:
        bench.start()
    assert [name for name in torn if f"config/{name} is no JSON" in str(refused.value)] == list(torn)
    assert "or remove them" in str(refused.value)


def test_a_full_disk_is_tried_again(bench: Bench) -> None:
    bench.start()
    bench.files.fault = lambda operation, path: OSError(28, "full") if operation == "pwrite" else None
    bench.tables.apply("topic", "A", topic())
    bench.wheel.run(EXPORT_MS)
    bench.files.fault = lambda operation, path: None
    bench.tables.apply("offset", "A@g", b'{"0":1}')
    bench.wheel.run(2 * EXPORT_MS)
    assert set(bench.read(cf.TOPICS)["topicConfigTable"]) == {"A"}


def test_a_real_brokers_delay_offsets_stay(bench: Bench) -> None:
    bench.write(cf.DELAYS, '{"offsetTable":{1:2,18:0}}')
    bench.start()
    bench.export.finish()
    assert bench.read(cf.DELAYS) == {"offsetTable": {"1": 2, "18": 0}}


def test_queues_that_began_anew_hide_nothing(bench: Bench) -> None:
    bench.tables.apply("topic", "A", topic(first_offsets={"0": 50, "1": 3}))
    bench.ends.update({("A", 0): 7, ("A", 1): 9})
    bench.start()
    bench.write(cf.TOPICS, '{"topicConfigTable":{"A":{"readQueueNums":4,"writeQueueNums":4,"perm":6}}}')
    bench.restart()
    assert TopicConfig.from_bytes("A", bench.tables.rows("topic")["A"]).first_offsets == {"1": 3}


def test_the_notes_hold_two_hashes(bench: Bench) -> None:
    bench.start()
    for number in range(4):
        bench.tables.apply("topic", f"T{number}", topic())
        bench.wheel.run((number + 1) * EXPORT_MS)
    notes = json.loads(bench.files.snapshot()[ROOT / "gantry" / "exports"])
    snapshot = bench.files.snapshot()
    assert notes[cf.TOPICS] == [
        hashlib.sha256(snapshot[CONFIG / name]).hexdigest() for name in ("topics.json", "topics.json.bak")
    ]


@given(st.dictionaries(st.text(min_size=1), st.dictionaries(st.integers(0, 2000), st.integers(0, 1 << 62), min_size=1)))
def test_offsets_come_back(places: dict[str, dict[int, int]]) -> None:
    fragments = [
        cf.offset_fragment(key, json.dumps({str(q): n for q, n in row.items()}).encode()) for key, row in places.items()
    ]
    back = cf.offsets_of(cf.parse(cf.document(cf.Version(), {"offsetTable": fragments})))
    assert back == {key: {str(queue): offset for queue, offset in row.items()} for key, row in places.items()}


MODE = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 2}


def test_request_modes_go_out_and_come_back(bench: Bench) -> None:
    bench.start()
    bench.tables.apply("request_mode", "T@G", json.dumps(MODE).encode())
    bench.tables.apply("request_mode", "T@H", json.dumps(MODE | {"consumerGroup": "H", "mode": "PULL"}).encode())
    bench.wheel.run(EXPORT_MS)
    written = bench.files.snapshot()[CONFIG / cf.MODES].decode()
    assert bench.read(cf.MODES)["messageRequestModeMap"] == {
        "T": {"G": MODE, "H": MODE | {"consumerGroup": "H", "mode": "PULL"}}
    }
    assert not [row for row in bench.start() if row[0] == "request_mode"]
    bench.write(cf.MODES, written.replace("POP", "PULL").replace('"H"', '"I"'))
    rows = {key: row and json.loads(row) for table, key, row in bench.start() if table == "request_mode"}
    assert rows == {
        "T@G": MODE | {"mode": "PULL"}, "T@H": None, "T@I": MODE | {"consumerGroup": "I", "mode": "PULL"},
    }  # fmt: skip
    bench.write(cf.MODES, '{"messageRequestModeMap":{"T":{"G":{"mode":"X"}}}}')
    assert not [row for row in bench.start() if row[0] == "request_mode"]
