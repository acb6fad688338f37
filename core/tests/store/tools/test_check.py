"""`Checker` and `dump`: a real broker's store is sound, each kind of damage is found, nothing is written."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gantrymq.cli.main import main
from gantrymq.model.errors import StoreCorruptError
from gantrymq.model.message import Message
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore
from gantrymq.store.tools.check import Checker, StoreTimes
from gantrymq.store.tools.dump import HIDDEN, dump, hide, shown_body
from gantrymq.store.tools.inspect import StoreImage
from gantrymq.store.tools.report import Report
from tests.store.rocketmq_fixture import STATES, unpack


class FixedClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic_ms(self) -> int:
        return 0


def silent(what: str, done: int, total: int) -> None:
    """No progress."""


def checked(root: Path, slots: int = 0) -> Report:
    image = StoreImage(root)
    try:
        return Checker(image, slots).run()
    finally:
        image.close()


def state_of(root: Path) -> dict[str, tuple[int, int, bytes]]:
    found = {}
    for path in sorted(root.rglob("*")):
        stat = path.stat()
        found[str(path)] = (stat.st_mtime_ns, stat.st_size, path.read_bytes() if path.is_file() else b"")
    return found


def damage(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def ours(root: Path, count: int = 300, clean: bool = True) -> list[Message]:
    config = StoreConfig(commitlog_file_size=65536, consumequeue_file_size=400, index_slots=50, index_entries=80)
    store = MessageStore(OsFileSystem(), root, config, FixedClock())
    store.load()
    batch = [
        Message("T", b"x" * 200, f"UNIQ_KEY\x01K{n}\x02TAGS\x01t{n % 3}\x02".encode(), f"t{n % 3}", (f"K{n}",), n % 2)
        for n in range(count)
    ]
    for first in range(0, count, 10):
        store.append(batch[first : first + 10], [()] * len(batch[first : first + 10]))
        store.run_background(100_000)
    if clean:
        store.close()
    else:
        store.flush()
    return batch


@pytest.mark.parametrize("state", STATES)
def test_a_real_brokers_store_is_sound_and_untouched(tmp_path: Path, state: str) -> None:
    rows = unpack(state, tmp_path)
    before = state_of(tmp_path)
    report = checked(tmp_path)
    assert report.damage == []
    assert report.records == len(rows)
    assert report.log_end == rows[-1]["commitLogOffset"] + rows[-1]["storeSize"]
    assert not [note for note in report.notes if "geometry" in note]
    assert state_of(tmp_path) == before


@pytest.mark.parametrize("clean", [True, False])
def test_our_own_store_is_sound(tmp_path: Path, clean: bool) -> None:
    ours(tmp_path, clean=clean)
    before = state_of(tmp_path)
    for directory in (tmp_path, tmp_path / "store"):
        report = checked(directory)
        assert (report.damage, report.records, report.clean) == ([], 300, clean)
    assert state_of(tmp_path) == before


FIRST = "commitlog/00000000000000000000"
Break = Callable[[Path], object]
KINDS: list[tuple[str, Break]] = [
    ("log", lambda store: damage(store / FIRST, (store / FIRST).read_bytes().index(b"one40:"), b"X")),
    ("queue", lambda store: damage(store / "consumequeue/Plain/0/00000000000000000000", 20 * 7 + 3, b"\x09")),
    ("queue", lambda store: damage(store / "consumequeue/Plain/0/00000000000000000000", 20 * 7 + 12, b"\x09")),
    ("queue", lambda store: (store / "consumequeue/Plain/1/00000000000000000000").unlink()),
    ("queue", lambda store: damage(store / "consumequeue/Plain/0/00000000000000000000", 20 * 51, (9).to_bytes(8, "big") + b"\0\0\0\x99" + bytes(8))),
    ("checkpoint", lambda store: damage(store / "checkpoint", 0, (1 << 60).to_bytes(8, "big"))),
    ("config", lambda store: (store / "config/topics.json").write_text('{"a": ')),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change"), KINDS)
def test_damage_is_found(tmp_path: Path, kind: str, change: Break) -> None:
    unpack("clean", tmp_path)
    change(tmp_path)
    report = checked(tmp_path)
    assert kind in {row["kind"] for row in report.damage}


def test_a_damaged_index_is_found_where_its_geometry_is_known(tmp_path: Path) -> None:
    ours(tmp_path, 50)
    (path,) = (tmp_path / "store" / "index").iterdir()
    damage(path, 40 + 50 * 4 + 20 * 5, b"\x7f\x00\x00\x01")
    assert {row["kind"] for row in checked(tmp_path).damage} == {"index"}


def test_an_unknown_geometry_is_no_damage(tmp_path: Path) -> None:
    unpack("clean", tmp_path)
    (path,) = (tmp_path / "index").iterdir()
    damage(path, 40 + 100 * 4 + 20 * 5, b"\x7f\x00\x00\x01")
    report = checked(tmp_path)
    assert report.damage == []
    assert [note for note in report.notes if "geometry unknown" in note]
    assert {row["kind"] for row in checked(tmp_path, slots=100).damage} == {"index"}


def test_a_torn_tail_is_no_damage(tmp_path: Path) -> None:
    ours(tmp_path, clean=False)
    end = checked(tmp_path).log_end
    name = f"{end - end % 65536:020d}"
    damage(tmp_path / "store" / "commitlog" / name, end % 65536, b"\0\0\1\0\xda\xa3\x20\xa7torn")
    report = checked(tmp_path)
    assert (report.damage, report.log_end) == ([], end)
    assert "torn tail" in report.notes[0]


def test_damage_below_the_flushed_position_of_a_killed_broker(tmp_path: Path) -> None:
    ours(tmp_path, clean=False)
    damage(tmp_path / "store" / "commitlog" / f"{0:020d}", 10_100, b"\xff")
    report = checked(tmp_path)
    assert next(row["kind"] for row in report.damage) == "log"
    assert report.records == 299


def test_a_quarantined_place_is_no_damage(tmp_path: Path) -> None:
    ours(tmp_path, clean=False)
    damage(tmp_path / "store" / "commitlog" / f"{0:020d}", 10_100, b"\xff")
    ours(tmp_path, 1)
    assert checked(tmp_path).damage == []


def lines_of(root: Path, topic: str, queue: int, start: int) -> list[dict[str, object]]:
    image = StoreImage(root)
    try:
        return list(dump(image, topic, queue, start, silent))
    finally:
        image.close()


@pytest.mark.parametrize("state", STATES)
def test_dump_lists_what_the_real_broker_wrote(tmp_path: Path, state: str) -> None:
    rows = unpack(state, tmp_path)
    for topic, queue in {(row["topic"], row["queueId"]) for row in rows} - {("Gone", 0)}:
        expected = [row for row in rows if (row["topic"], row["queueId"]) == (topic, queue)]
        lines = lines_of(tmp_path, topic, queue, 0)
        assert [base64.b64decode(str(line.pop("body"))) for line in lines] == [row["body"] for row in expected]
        for row in expected:
            row["properties"].pop("__CRC32#", None)  # the record's own, no property of the message
        assert lines == [{key: row[key] for key in lines[0]} for row in expected]
    assert [line["queueOffset"] for line in lines_of(tmp_path, "%LMQ%beta", 0, 1)] == [1]


def test_dump_goes_beyond_the_queue_of_a_killed_broker(tmp_path: Path) -> None:
    batch = ours(tmp_path, clean=False)
    lines = lines_of(tmp_path, "T", 0, 5)
    assert [line["queueOffset"] for line in lines] == list(range(5, 150))
    assert lines[0]["properties"] == {"UNIQ_KEY": "K10", "TAGS": "t1"}
    assert len(batch) == 300


def test_credentials_are_hidden() -> None:
    assert hide({"userName": "a", "password": "b", "list": [{"accessToken": "c"}]}) == {
        "userName": "a", "password": HIDDEN, "list": [{"accessToken": HIDDEN}],
    }  # fmt: skip
    row = Message("rmq_sys_gantry_ce_subscription", b'{"sinkcredential":{"token":"t"},"id":"1"}')
    assert json.loads(shown_body(row)) == {"sinkcredential": HIDDEN, "id": "1"}
    assert shown_body(Message("Orders", b'{"password":"p"}')) == b'{"password":"p"}'


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unpack("clean", tmp_path)
    assert main(["store", "check", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert main(["store", "dump", str(tmp_path), "--topic", "Plain", "--queue", "1", "--from", "50", "--json"]) == 0
    assert [json.loads(line)["queueOffset"] for line in capsys.readouterr().out.splitlines()] == [50, 51, 52, 53, 54]
    assert main(["store", "dump", str(tmp_path), "--topic", "Big", "--queue", "0", "--from", "0"]) == 0
    capsys.readouterr()
    assert main(["store", "dump", str(tmp_path), "--topic", "Nope"]) == 0
    assert "no records of Nope/0 from offset 0 on" in " ".join(capsys.readouterr().out.split())
    assert main(["store", "stats", str(tmp_path)]) == 0
    assert "SCHEDULE_TOPIC_XXXX" in capsys.readouterr().out
    damage(tmp_path / FIRST, (tmp_path / FIRST).read_bytes().index(b"one40:"), b"X")
    assert main(["store", "check", str(tmp_path)]) == 1
    assert main(["store", "check", str(tmp_path / "nowhere")]) == 1
    assert "commitlog" in capsys.readouterr().err


def test_queues_that_a_real_broker_made_for_our_light_queues(tmp_path: Path) -> None:
    unpack("clean", tmp_path)
    directory = tmp_path / "consumequeue" / "%LMQ%~1" / "0"
    directory.mkdir(parents=True)
    (directory / f"{0:020d}").write_bytes((tmp_path / "consumequeue/Plain/0" / f"{0:020d}").read_bytes())
    assert checked(tmp_path).damage == []


def test_an_index_that_is_gone(tmp_path: Path) -> None:
    ours(tmp_path)
    shutil.rmtree(tmp_path / "store" / "index")
    report = checked(tmp_path)
    assert [row["kind"] for row in report.damage] == ["index"]
    assert "300 records with keys" in report.damage[0]["text"]


@pytest.mark.parametrize("which", ["first", "middle", "last", "all"])
def test_segments_that_are_gone(tmp_path: Path, which: str) -> None:
    ours(tmp_path, 1500)
    log = sorted((tmp_path / "store" / "commitlog").iterdir())
    assert len(log) > 2
    for path in {"first": log[:1], "middle": log[1:2], "last": log[-1:], "all": log}[which]:
        path.unlink()
    found = [row["text"] for row in checked(tmp_path).damage if row["kind"] == "log"]
    assert any("missing" in text for text in found), found
    assert len(found) == 1, "what is there is sound"


def test_a_real_brokers_segment_that_is_gone(tmp_path: Path) -> None:
    ours(tmp_path, 1500)
    shutil.rmtree(tmp_path / "gantry")  # nobody knows how far the log went
    log = sorted((tmp_path / "store" / "commitlog").iterdir())
    for path in log[1:3]:
        path.unlink()
    report = checked(tmp_path)
    first, second = int(log[1].name), int(log[2].name)
    assert [row["text"] for row in report.damage if row["kind"] == "log"] == [
        f"segment {first:020d} is missing; segment {second:020d} is missing"
    ]
    (tmp_path / "store" / "commitlog" / f"{1 << 60:020d}").write_bytes(bytes(65536))
    with pytest.raises(StoreCorruptError, match="does not follow"):
        checked(tmp_path)


def test_a_broker_at_work_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours(tmp_path)
    assert checked(tmp_path).running == 0
    hold = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX, 1, 0);"
        "print('held', flush=True); sys.stdin.read()"
    )
    broker = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / "store" / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == b"held\n"
        report = checked(tmp_path)
        assert report.running == broker.pid
        assert report.as_dict()["running"] == broker.pid
        assert main(["store", "check", str(tmp_path)]) == 0
        assert f"process {broker.pid} is at work" in " ".join(capsys.readouterr().out.split())
        assert main(["store", "rebuild", str(tmp_path)]) == 1
        assert "in use by another process" in " ".join(capsys.readouterr().err.split())
        broker.communicate()


def test_rebuild_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours(tmp_path)
    for path in (tmp_path / "store" / "consumequeue").rglob("0*"):
        if path.is_file():
            damage(path, 40, b"\xff" * 30)
    assert checked(tmp_path).damage_count
    assert main(["store", "rebuild", "--queues", str(tmp_path / "store")]) == 0
    assert "300 records" in " ".join(capsys.readouterr().out.split())
    assert checked(tmp_path).damage == []
    assert main(["store", "rebuild", str(tmp_path / "nowhere")]) == 1
    assert "no data directory of gantry" in " ".join(capsys.readouterr().err.split())


def test_backup_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours(tmp_path / "d", clean=False)
    assert main(["store", "backup", str(tmp_path / "copy"), "--data", str(tmp_path / "d")]) == 0
    assert "bytes copied" in " ".join(capsys.readouterr().out.split())
    assert checked(tmp_path / "copy").records == 300
    assert main(["store", "backup", str(tmp_path / "copy"), "--data", str(tmp_path / "d")]) == 1
    assert "exists" in capsys.readouterr().err
    segment = min((tmp_path / "d" / "store" / "commitlog").iterdir())
    segment.unlink()
    assert main(["store", "backup", str(tmp_path / "other"), "--data", str(tmp_path / "d")]) == 1
    assert f"segment {segment.name} is missing" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "other" / "gantry").is_dir()


def test_import_config_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours(tmp_path)
    assert main(["store", "import-config", str(tmp_path)]) == 0
    assert not (tmp_path / "gantry" / "import-delete").exists()
    assert main(["store", "import-config", "--delete", str(tmp_path)]) == 0
    assert (tmp_path / "gantry" / "import-delete").exists()
    assert main(["store", "import-config", "--delete", str(tmp_path / "x")]) == 1
    assert "no data directory" in " ".join(capsys.readouterr().err.split())


def test_store_times_off_both_neighbours_are_noted() -> None:
    hour = 3_600_000
    times = StoreTimes()
    for at, ms in enumerate([0, 5, 5 + 2 * hour, 6, 7, 8, 9 + 5 * hour, 10 + 5 * hour, 11, 12]):
        times.saw(at, ms)
    assert (times.count, times.first) == (1, 2), "a clock that stays where it was set is none"
    times = StoreTimes()
    for at, ms in enumerate([9 * hour, 9 * hour, 1, 9 * hour, 9 * hour + hour, 9 * hour]):
        times.saw(at, ms)
    assert (times.count, times.first) == (1, 2)


def test_impossible_fields_are_damage_and_odd_times_a_note(tmp_path: Path) -> None:
    messages = ours(tmp_path)
    log = tmp_path / "store" / FIRST
    for message, field in ((messages[5], 36), (messages[9], 60)):  # sysFlag; store time, by 12 days
        damage(log, message.physical_offset + field, b"\x40")
    report = checked(tmp_path)
    place = messages[5].physical_offset
    assert [(row["kind"], row["where"]) for row in report.damage] == [("log", f"position {place}")]
    assert "sysFlag 0x40000000" in report.damage[0]["text"]
    assert any(f"the first at {messages[9].physical_offset}" in note for note in report.notes)
