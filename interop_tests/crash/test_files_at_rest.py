"""What operators do to the files of a stopped server, looked at through every door: RocketMQ's usual repair, a log that is not mounted, a copy."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from interop_tests.crash.promises import compare
from interop_tests.crash.raw_load import PUBLISHERS, LogReader, QueueReader, SessionReader
from interop_tests.crash.test_kill_cycles import SMALL_FILES, Cycles, store_is_sound
from interop_tests.running import Gantry
from interop_tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.crash


def gantry(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gantrymq", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


class Repaired(Cycles):
    """Between two lives `consumequeue` and `index` are deleted, as one repairs a RocketMQ broker."""

    clean = False

    def between(self) -> None:
        if self.clean:
            self.server.process("up").start()
            self.server.process("up").stop()
        for name in ("consumequeue", "index"):
            shutil.rmtree(self.directory / "data" / "store" / name)
        self.clean = not self.clean


def test_queues_and_index_are_deleted(tmp_path: Path) -> None:
    work = Repaired(tmp_path, SMALL_FILES, 4)
    try:
        work.prepare()
        for _ in range(4):
            work.cycle()
        work.finish()
        work.server.process("up").kill()
        store_is_sound(tmp_path / "data" / "store")
        done = gantry("store", "rebuild", str(tmp_path / "data"))
        assert done.returncode == 0, done.stderr
        work.server.process("up").start()
        work.finish()
    finally:
        work.server.stop()


def test_the_log_is_not_there(tmp_path: Path) -> None:
    work = Cycles(tmp_path, SMALL_FILES, 5)
    log_ = tmp_path / "data" / "store" / "commitlog"
    try:
        work.prepare()
        work.cycle()
        work.server.process("up").stop()
        log_.rename(tmp_path / "elsewhere")
        done = gantry("up", "--data", str(tmp_path / "data"), "--free-ports")
        assert done.returncode == 1
        assert "commitlog: segment" in done.stderr
        assert "--accept-loss" in done.stderr
        (tmp_path / "elsewhere").rename(log_)
        work.server.process("up").start()
        work.finish()
        work.server.process("up").stop()
        log_.rename(tmp_path / "elsewhere")
        done = gantry("store", "check", str(tmp_path / "data"))
        assert done.returncode == 1, done.stdout
        anew = subprocess.Popen(
            [sys.executable, "-m", "gantrymq", "up", "--data", str(tmp_path / "data"), "--free-ports", "--accept-loss",
             "--ready-file", str(tmp_path / "ready")]
        )  # fmt: skip
        try:
            until(lambda: anew.poll() is not None or (tmp_path / "ready").exists())
            assert anew.poll() is None
        finally:
            anew.terminate()
            assert anew.wait(LIMIT_S) == 0
    finally:
        work.server.stop()


def test_a_copy_of_a_running_server_starts(tmp_path: Path) -> None:
    for name in ("first", "copy"):
        (tmp_path / name).mkdir()
    work = Cycles(tmp_path / "first", SMALL_FILES, 6)
    copy = Gantry(tmp_path / "copy", "combined", SMALL_FILES)
    try:
        work.prepare()
        publishers = [kind(work.server, work.numbers[kind]) for kind in PUBLISHERS]
        for publisher in publishers:
            publisher.start()
        until(lambda: all(len(one.ledger.acknowledged) >= 500 for one in publishers))
        before = set(itertools.chain.from_iterable([set(one.ledger.acknowledged) for one in publishers]))
        done = gantry("store", "backup", str(tmp_path / "copy" / "data"), "--data", str(tmp_path / "first" / "data"))
        assert done.returncode == 0, done.stderr
        assert all(one.is_alive() for one in publishers), "nobody noticed"
        work.server.process("up").kill()
        for publisher in publishers:
            publisher.join(LIMIT_S)
        sent = set(itertools.chain.from_iterable([set(one.ledger.sent) for one in publishers]))
        copy.start()
        got = LogReader().read(copy)
        findings = compare(before, sent, got, "the copy's log")
        for name, found in (
            ("queue", QueueReader(copy, "kill").take(len(got))),
            ("session", SessionReader(copy).take(len(got))),
        ):
            findings += compare(set(got), set(got), found, name)
        assert not findings, findings[:10]
        copy.process("up").kill()
        store_is_sound(tmp_path / "copy" / "data" / "store")
    finally:
        copy.stop()
        work.server.stop()
