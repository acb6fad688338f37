"""A real broker's directory is read back entirely, goes on, and is refused where it cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, StoreCorruptError
from gantrymq.model.limits import BODY_BYTES_CEILING, BODY_BYTES_ROCKETMQ
from gantrymq.model.message import Message
from gantrymq.model.names import SCHEDULE_TOPIC
from gantrymq.model.properties import OWN_CRC, has_own_crc, own_crc_is_right
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.log import record
from gantrymq.store.message_store import MessageStore
from gantrymq.store.schedule import DELAYS_MS, schedule_code
from gantrymq.store.start.takeover import refuse_unreadable
from gantrymq.store.testing import MemoryFileSystem
from tests.store.rocketmq_fixture import STATES, unpack, with_large_segments


class FixedClock:
    def now_ms(self) -> int:
        return 1_900_000_000_000

    def monotonic_ms(self) -> int:
        return 0


def opened(root: Path) -> MessageStore:
    store = MessageStore(OsFileSystem(), root, StoreConfig(), FixedClock())
    store.report = store.load()  # type: ignore[attr-defined]
    return store


def tree(root: Path, *parts: str) -> dict[str, bytes]:
    base = root.joinpath(*parts)
    return {str(path.relative_to(base)): path.read_bytes() for path in base.rglob("*") if path.is_file()}


def described(message: Message) -> dict[str, Any]:
    pairs = props.decode(message.properties)
    pairs.update(props.decode(message.dispatch))
    return {
        "topic": message.topic, "queueId": message.queue_id, "queueOffset": message.queue_offset,
        "commitLogOffset": message.physical_offset, "storeSize": message.size, "sysFlag": message.sys_flag,
        "flag": message.flag, "bornTimestamp": message.born_ms, "bornHost": message.born_host.hex(),
        "storeTimestamp": message.store_ms, "storeHost": message.store_host.hex(),
        "reconsumeTimes": message.reconsume_times, "preparedTransactionOffset": message.prepared_offset,
        "properties": pairs, "body": message.body,
    }  # fmt: skip


def in_queues(rows: list[dict[str, Any]], store: MessageStore) -> list[dict[str, Any]]:
    return [row for row in rows if row["topic"] in store.topics() and row["sysFlag"] & 12 not in (4, 12)]


@pytest.mark.parametrize("state", STATES)
def test_every_message_reads_back(tmp_path: Path, state: str) -> None:
    rows = unpack(state, tmp_path / "store")
    store = opened(tmp_path)
    assert store.report.clean == (state == "clean")  # type: ignore[attr-defined]
    last = rows[-1]
    assert store.written_position == last["commitLogOffset"] + last["storeSize"]
    checked = 0
    for row in in_queues(rows, store):
        (unit,) = store.units(row["topic"], row["queueId"], row["queueOffset"], 1)
        assert unit[:2] == (row["commitLogOffset"], row["storeSize"])
        (message,) = store.get_many([unit[:2]])
        assert message is not None
        expected = {key: value for key, value in row.items() if key != "propertiesString"}
        expected["properties"].pop(OWN_CRC, None)
        assert described(message) == expected
        checked += 1
    assert checked >= len(rows) - 3  # those of the deleted topic
    for topic in store.topics():
        for queue in store.queues_of(topic):
            count = len([row for row in rows if (row["topic"], row["queueId"]) == (topic, queue)])
            if not topic.startswith("%LMQ%"):
                assert store.max_offset(topic, queue) == count
    store.close()


@pytest.mark.parametrize("state", STATES)
def test_every_key_is_found(tmp_path: Path, state: str) -> None:
    rows = unpack(state, tmp_path / "store")
    store = opened(tmp_path)
    for row in in_queues(rows, store):
        pairs = row["properties"]
        for key in {pairs.get("UNIQ_KEY", ""), *pairs.get("KEYS", "").split(" ")} - {""}:
            found = [message.physical_offset for message in store.query(row["topic"], key, 200, 0, 1 << 60)]
            assert row["commitLogOffset"] in found
    store.close()


@pytest.mark.parametrize("state", STATES)
def test_the_light_queues_of_the_real_broker_keep_their_names(tmp_path: Path, state: str) -> None:
    rows = unpack(state, tmp_path / "store")
    store = opened(tmp_path)
    light = [row["commitLogOffset"] for row in rows if row["topic"] == "Light"]
    assert [unit[0] for unit in store.units("%LMQ%alpha", 0, 0, 9)] == light
    assert [unit[0] for unit in store.units("%LMQ%beta", 0, 0, 9)] == light[::2]
    store.close()


def without_timer_codes(*trees: dict[str, bytes]) -> None:
    """Units of the timer topic name the time when it is due instead of the tag's hash, which a real broker never reads there."""
    for files in trees:
        data = files.pop("rmq_sys_wheel_timer/0/00000000000000000000", b"")
        files["timer units"] = b"".join([data[at : at + 12] for at in range(0, len(data), 20)])


@pytest.mark.parametrize("state", STATES)
def test_its_files_stay_as_they_are(tmp_path: Path, state: str) -> None:
    """Queues that recovery made again from the log have the very bytes that the real broker wrote."""
    unpack(state, tmp_path / "store")
    before = {part: tree(tmp_path, "store", part) for part in ("commitlog", "consumequeue", "config")}
    opened(tmp_path).close()
    for part, files in before.items():
        after = tree(tmp_path, "store", part)
        after.pop("Gone/0/00000000000000000000", None)  # a deleted topic whose records are replayed
        without_timer_codes(files, after)
        assert after == files


def test_queues_and_index_can_be_made_again_from_the_log(tmp_path: Path) -> None:
    rows = unpack("clean", tmp_path / "store")
    before = tree(tmp_path, "store", "consumequeue")
    for path in sorted((tmp_path / "store" / "consumequeue").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (tmp_path / "store" / "config" / "topics.json").unlink()  # then it may have been ours: all is replayed
    store = MessageStore(OsFileSystem(), tmp_path, StoreConfig(consumequeue_file_size=2000), FixedClock())
    store.load()
    assert store.max_offset("Gone", 0) == 3
    store.close()
    after = tree(tmp_path, "store", "consumequeue")
    after.pop("Gone/0/00000000000000000000")
    without_timer_codes(before, after)
    assert after == before
    assert len(rows) > 100


def test_going_on_and_coming_back(tmp_path: Path) -> None:
    unpack("killed", tmp_path / "store")
    store = opened(tmp_path)
    first = store.max_offset("Plain", 0)
    retry = next(name for name in store.topics() if name.startswith("%RETRY%"))
    batch = [
        Message("Plain", b"ours", b"KEYS\x01mine\x02", queue_id=0, keys=("mine",)),
        Message(retry, b"long", queue_id=0),
    ]
    assert [store.check(message) for message in batch] == [None, None]
    store.append(batch, [(), ()])
    store.close()
    again = opened(tmp_path)
    assert again.report.clean
    assert again.report.records == 0
    assert again.max_offset("Plain", 0) == first + 1
    assert [message.body for message in again.query("Plain", "mine", 9, 0, 1 << 60)] == [b"ours"]
    units = again.units(retry, 0, 1, 1)
    (message,) = again.get_many([units[0][:2]])
    assert message is not None
    assert (message.topic, message.body) == (retry, b"long")
    again.close()


def test_records_are_written_as_the_real_broker_writes_them(tmp_path: Path) -> None:
    rows = unpack("killed", tmp_path / "store")
    segments = tree(tmp_path, "store", "commitlog")
    log = b"".join([segments[name] for name in sorted(segments)])
    for row in rows:
        data = log[row["commitLogOffset"] : row["commitLogOffset"] + row["storeSize"]]
        message = record.decode(data)
        if has_own_crc(data):
            assert own_crc_is_right(data)
        elif not message.dispatch:
            assert record.encode(message) == data


def test_schedule_units_hold_the_time_of_delivery(tmp_path: Path) -> None:
    unpack("clean", tmp_path / "store")
    store = opened(tmp_path)
    for queue in store.queues_of(SCHEDULE_TOPIC):
        for position, size, code in store.units(SCHEDULE_TOPIC, queue, 0, 9):
            (message,) = store.get_many([(position, size)])
            assert message is not None
            assert message.store_ms + DELAYS_MS[queue] == code == schedule_code(message)
    store.close()


def test_a_real_broker_went_on_in_the_meantime(tmp_path: Path) -> None:
    """First seen after the clean stop; then the real broker worked on and was killed."""
    unpack("clean", tmp_path / "store")
    opened(tmp_path).close()
    rows = unpack("killed", tmp_path / "store")
    store = opened(tmp_path)
    last = rows[-1]
    assert store.written_position == last["commitLogOffset"] + last["storeSize"]
    for row in in_queues(rows, store):
        assert store.units(row["topic"], row["queueId"], row["queueOffset"], 1)[0][0] == row["commitLogOffset"]
    store.close()


def test_a_real_broker_deleted_segments(tmp_path: Path) -> None:
    rows = unpack("clean", tmp_path / "store")
    opened(tmp_path).close()
    (tmp_path / "store" / "commitlog" / "00000000000000000000").unlink()
    with pytest.raises(StoreCorruptError, match="--accept-loss"):  # nothing tells it from an accident
        opened(tmp_path)
    store = MessageStore(OsFileSystem(), tmp_path, StoreConfig(), FixedClock())
    store.load(accept_loss=True)
    assert store.log_min_position == 65536
    kept = [
        row["queueOffset"]
        for row in rows
        if (row["topic"], row["queueId"]) == ("Plain", 1) and row["commitLogOffset"] >= 65536
    ]
    assert store.min_offset("Plain", 1) == kept[0]
    assert store.max_offset("Plain", 1) == kept[-1] + 1
    store.close()


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("consumequeue/CURRENT", "RocksDB"),
        ("consumequeue_r/CURRENT", "RocksDB"),
        ("config/topics/CURRENT", "RocksDB"),
        ("config/rdb/CURRENT", "RocksDB"),
        ("dledger-n0/data/00000000000000000000", "DLedger"),
        ("batchconsumequeue/T/0/00000000000000000000", "batch"),
        ("consumequeue_ext/T/0/00000000000000000000", "extension"),
    ],
)
def test_what_cannot_be_read_is_refused_untouched(tmp_path: Path, path: str, named: str) -> None:
    unpack("clean", tmp_path / "store")
    file = tmp_path / "store" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("MANIFEST-000005\n")
    if file.name == "CURRENT":
        (file.parent / "MANIFEST-000005").write_text("")
    before = tree(tmp_path)
    with pytest.raises(StoreCorruptError, match=named) as caught:
        opened(tmp_path)
    assert str(tmp_path / "store" / Path(path).parts[0]) in caught.value.text
    assert tree(tmp_path) == before


def test_users_in_rocksdb_are_no_reason() -> None:
    files = MemoryFileSystem()
    for name in ("CURRENT", "MANIFEST-000005"):
        files.make_dirs(Path("/d/store/config/users"))
        files.close(files.open(Path("/d/store/config/users") / name, True))
    refuse_unreadable(files, Path("/d/store"))


def test_bodies_stay_as_small_as_rocketmqs_for_good(tmp_path: Path) -> None:
    with_large_segments(tmp_path)
    for _ in range(3):
        store = opened(tmp_path)
        assert store.body_bytes_max == BODY_BYTES_ROCKETMQ
        larger = Message("Plain", bytes(BODY_BYTES_ROCKETMQ + 1), b"", queue_id=0)
        assert store.check(larger) is ErrorCode.MESSAGE_TOO_LARGE
        store.close()


def test_a_taken_over_directory_takes_what_its_operator_says(tmp_path: Path) -> None:
    with_large_segments(tmp_path)
    config = StoreConfig(body_bytes_max=BODY_BYTES_CEILING)
    store = MessageStore(OsFileSystem(), tmp_path, config, FixedClock())
    store.load()
    assert store.body_bytes_max == BODY_BYTES_CEILING
    store.close()
    assert opened(tmp_path).body_bytes_max == BODY_BYTES_ROCKETMQ, "the mark was made though a limit was set"


def test_the_mark_is_there_before_any_position_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_large_segments(tmp_path)

    def killed(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(MessageStore, "_recover", killed)
    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path)
    monkeypatch.undo()
    assert opened(tmp_path).body_bytes_max == BODY_BYTES_ROCKETMQ


def test_a_directory_of_ours_takes_the_largest(tmp_path: Path) -> None:
    for _ in range(2):
        store = opened(tmp_path)
        assert store.body_bytes_max == BODY_BYTES_CEILING
        store.close()
    small = StoreConfig(commitlog_file_size=1 << 20)
    store = MessageStore(OsFileSystem(), tmp_path / "small", small, FixedClock())
    store.load()
    assert 900_000 < store.body_bytes_max < 1 << 20, "a record fits a segment"
    store.close()
