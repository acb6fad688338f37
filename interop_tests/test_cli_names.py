"""What a newcomer types first: messages followed while they come, names that are nearly right, what belongs to the system."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gantrymq.cli.app import run_app
from gantrymq.client import BlockingAdmin, OutMessage, Producer, PullConsumer
from interop_tests import guard
from interop_tests.running import Gantry
from interop_tests.waiting import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gantry]:
    made = Gantry(tmp_path_factory.mktemp("names"))
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture
def nameserver(server: Gantry, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("NAMESRV_ADDR", server.doors["nameserver"])
    monkeypatch.setenv("COLUMNS", "100")
    return server.doors["nameserver"]


def make(nameserver: str, *topics: str) -> None:
    with BlockingAdmin(nameserver) as admin:
        for topic in topics:
            admin.create_topic(topic)


@contextmanager
def never_pausing(nameserver: str, *topics: str) -> Iterator[None]:
    """A publisher that has always some messages under way, until the end of the block."""
    stop = threading.Event()

    async def main() -> None:
        async with Producer(nameserver) as producer:
            number = 0
            while not stop.is_set():
                await producer.send_many(
                    [
                        OutMessage(topic, b"%d" % (number + row), tag="ab"[row % 2])
                        for row in range(16)
                        for topic in topics
                    ]
                )
                number += 16

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def tailing(nameserver: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "gantrymq", "message", "tail", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "NAMESRV_ADDR": nameserver} | guard.mark(),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines(process: subprocess.Popen[bytes], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().decode().rstrip("\n") for _ in range(count)]


def test_messages_are_shown_while_they_come_without_a_pause(nameserver: str) -> None:
    make(nameserver, "busy1")
    with never_pausing(nameserver, "busy1"), tailing(nameserver, "busy1", "-n", "0", "-F", "%p %o %b") as process:
        shown = lines(process, 500)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)  # what is on its way is read: a full pipe would hold it
        assert process.returncode == 130
    offsets: dict[str, list[int]] = {}
    for line in shown:
        queue, offset, _ = line.split()
        offsets.setdefault(queue, []).append(int(offset))
    for seen in offsets.values():
        assert seen == list(range(seen[0], seen[0] + len(seen))), "none is missed, none comes twice"


def test_the_newest_of_a_busy_topic_and_no_more(nameserver: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    make(nameserver, "busy2")
    with never_pausing(nameserver, "busy2"):
        with tailing(nameserver, "busy2", "-n", "0") as process:
            lines(process, 50)
        capfdbinary.readouterr()
        assert run_app(["message", "tail", "busy2", "-n", "7", "--no-follow", "--json"]) == 0
        rows = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert len(rows) == 7
    assert [row["stored"] for row in rows] == sorted(row["stored"] for row in rows)


def test_several_topics_patterns_and_tags(nameserver: str) -> None:
    make(nameserver, "wild_a", "wild_b", "tame")
    with (
        never_pausing(nameserver, "wild_a", "wild_b", "tame"),
        tailing(nameserver, "wild*", "tame", "-n", "0", "--tag", "a", "-F", "%t %g") as process,
    ):
        wanted = {"wild_a a", "wild_b a", "tame a"}
        seen: set[str] = set()
        until(lambda: seen.update(lines(process, 1)) or seen >= wanted)  # type: ignore[func-returns-value]
    assert seen == wanted


def test_a_topic_that_is_made_meanwhile_is_followed_from_its_first_message_on(nameserver: str) -> None:
    make(nameserver, "later_1")
    with tailing(nameserver, "later*", "-n", "0", "-F", "%t %b") as process:
        with never_pausing(nameserver, "later_1"):
            lines(process, 1)  # it runs
        make(nameserver, "later_2")

        async def send() -> None:
            async with Producer(nameserver) as producer:
                await producer.send("later_2", b"first")

        asyncio.run(send())
        until(lambda: lines(process, 1) == ["later_2 first"])


def test_a_reader_that_goes_away_ends_it_quietly(nameserver: str) -> None:
    make(nameserver, "busy3")
    with never_pausing(nameserver, "busy3"), tailing(nameserver, "busy3", "-n", "0") as process:
        lines(process, 1)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""


def test_output_to_a_full_disk_ends_it_with_one_line(nameserver: str) -> None:
    make(nameserver, "full1")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gantrymq", "topic", "list", "--nameserver", nameserver],
            stdout=full, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1,
        b"gantry: what it prints cannot be written: No space left on device\n",
    )


# Names.


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()
    code = run_app(list(words))
    return code, capsys.readouterr().err


def test_names_that_are_nearly_right_are_guessed(nameserver: str, capsys: pytest.CaptureFixture[str]) -> None:
    make(nameserver, "orders", "payments")

    async def read() -> None:
        async with PullConsumer(nameserver, group="reports") as consumer:
            await consumer.assign("orders")
            await consumer.commit()

    asyncio.run(read())
    for words in (
        ("topic", "show", "order"), ("topic", "route", "order"), ("topic", "stats", "oders"), ("pull", "order"),
        ("topic", "delete", "order", "--yes"), ("topic", "update", "order", "--perm", "r"), ("query", "--topic", "order", "--key", "k"),
        ("message", "tail", "Orders", "--no-follow"), ("offset", "reset", "reports", "--topic", "order", "--to", "latest", "--yes"),
        ("message", "get", "--topic", "order", "--at", "broker-a/0/0"),
    ):  # fmt: skip
        code, err = complaint(capsys, *words)
        assert code == 3, words
        assert "there is no topic" in err
        assert "did you mean 'orders'?" in err, words
        assert "answered" not in err, "no words of the wire"
    for words in (
        ("group", "show", "report"),
        ("group", "delete", "report", "--yes"),
        ("offset", "clone", "report", "copy"),
    ):
        code, err = complaint(capsys, *words)
        assert (code, "did you mean 'reports'?" in err) == (3, True), words
    for words in (
        ("broker", "show", "broker-b"),
        ("broker", "config", "broker_a"),
        ("topic", "create", "t", "--broker", "brokera"),
    ):
        code, err = complaint(capsys, *words)
        assert (code, "did you mean 'broker-a'?" in err) == (3, True), words
    code, err = complaint(capsys, "message", "get", "--topic", "orders", "--at", "broker-a/9/0")
    assert code == 3
    assert "topic 'orders' has no queue broker-a/9; it has broker-a/0 to broker-a/3" in err


def test_what_belongs_to_the_system_is_shown_when_it_is_asked_for(
    nameserver: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(nameserver, "mine", "%RETRY%mine", "%DLQ%mine")

    def out(*words: str) -> str:
        capsys.readouterr()
        assert run_app(list(words)) == 0
        return capsys.readouterr().out

    listed = out("topic", "list")
    assert "mine" in listed
    assert "%RETRY%mine" not in listed
    assert "of the system hidden (--all shows them)" in listed
    assert "%DLQ%mine" in out("topic", "list", "--all")
    assert "%DLQ%mine" not in out("topic", "list", "--names")
    assert "%DLQ%mine" in out("topic", "list", "--names", "--all")
    assert "hidden" not in out("topic", "list", "--names"), "names alone are for programs"


def test_a_first_message_that_makes_its_topic_says_so(nameserver: str, capsys: pytest.CaptureFixture[str]) -> None:
    make(nameserver, "invoices")
    capsys.readouterr()
    assert run_app(["send", "invoice", "hi"]) == 0
    out = capsys.readouterr().out
    assert "created topic invoice with 4 queues; did you mean 'invoices'?" in out
    assert "stored" in out
    assert run_app(["send", "invoice", "hi"]) == 0
    assert "created" not in capsys.readouterr().out
    code, err = complaint(capsys, "send", "invoice", "hi", "--tag", "a || b")
    assert code == 2
    assert "a message has one tag" in err


def test_a_snapshot_of_top_has_true_rates(nameserver: str, capsys: pytest.CaptureFixture[str]) -> None:
    make(nameserver, "steady")

    def check() -> tuple[float, float]:
        capsys.readouterr()
        assert run_app(["top", "--json"]) == 0
        seen = json.loads(capsys.readouterr().out)
        topic = next((row["rate"] for row in seen["topics"] if row["topic"] == "steady"), 0.0)
        return topic, seen["brokers"][0]["in_rate"]

    with never_pausing(nameserver, "steady"):
        until(lambda: check()[0] > 0)
        topic, broker = check()
        assert 0.4 * broker < topic < 2.5 * broker, "nearly everything goes to this topic"
