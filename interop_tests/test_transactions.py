"""Transactions with RocketMQ's own TransactionMQProducer, and half messages that go from a real broker to ours and back."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.client.admin import Admin
from gantrymq.model.errors import GantryError
from interop_tests.commands import gantry
from interop_tests.java import official
from interop_tests.real_broker import JAVA, REAL_BROKER, SIZES, RealBroker, all_of, check
from interop_tests.running import Gantry
from interop_tests.waiting import LIMIT_S, until

QUICK = ("transactions.check_interval_ms=500", "transactions.timeout_ms=4000", "transactions.check_max=1000000")
"""Long enough that no client is asked about what it is just deciding, unless it says itself that it was slow."""

pytestmark = REAL_BROKER


class Transact:
    """Transact.java in a process of its own. `states`: key to what its local transaction says."""

    def __init__(self, nameserver: str, group: str, answer: str, directory: Path, **states: str) -> None:
        classpath = official.classes_of(JAVA / "Transact.java", official.needed(official.peer_jars))
        self.path = directory / f"transact-{group}-{answer}-{'-'.join(states)}.out"
        triples = [word for key, state in states.items() for word in ("Orders", key, state)]
        with self.path.open("wb") as out:
            self.process = subprocess.Popen(
                ["java", *official.PATIENT, "-cp", classpath, "Transact", nameserver, group, answer, *triples],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
            )

    def says(self, text: str) -> None:
        def said() -> bool:
            assert self.process.poll() in (None, 0, 9), self.path.read_text()[-3000:]
            return text in self.path.read_text()

        until(said, 300)

    def halted(self, key: str) -> None:
        """It sent that message and was gone."""
        self.says(f"sent {key}")
        self.close()

    def count(self, text: str) -> int:
        return self.path.read_text().count(text)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Gantry]:
    server = Gantry(tmp_path, settings=(*SIZES, *QUICK))
    try:
        yield server
    finally:
        for process in server.processes:
            process.kill()


def make_topic(server: Gantry) -> str:
    nameserver = server.doors["nameserver"]

    async def create() -> None:
        async with Admin(nameserver) as admin:
            await admin.create_topic("Orders", 2)

    asyncio.run(create())
    return nameserver


def keys(nameserver: str) -> list[str]:
    found, _ = asyncio.run(all_of(nameserver, "Orders"))
    return sorted(body.decode().removeprefix("body of ") for body in found.values())


def test_the_java_client_commits_rolls_back_and_is_asked(quick: Gantry, tmp_path: Path) -> None:
    quick.start()
    nameserver = make_topic(quick)
    first = Transact(nameserver, "givers", "COMMIT", tmp_path, yes="COMMIT", no="ROLLBACK", maybe="UNKNOWN")
    try:
        first.says("ready")
        first.says("checked maybe Orders body of maybe")
        until(lambda: keys(nameserver) == ["maybe", "yes"], ignored=(GantryError,))
    finally:
        first.close()
    assert [key for key in ("yes", "no") if first.count(f"checked {key} ") and not first.count(f"slow {key}")] == []
    quick.processes[0].kill()
    quick.processes[0].start()
    assert keys(nameserver) == ["maybe", "yes"]
    quick.stop()
    check(tmp_path / "data" / "store")


def test_a_lost_decision_is_another_producers(quick: Gantry, tmp_path: Path) -> None:
    quick.start()
    nameserver = make_topic(quick)
    gone = Transact(nameserver, "givers", "COMMIT", tmp_path, lost="HALT")
    gone.halted("lost")
    quick.processes[0].kill()  # and the broker is killed before anybody can be asked
    quick.processes[0].start()
    assert keys(nameserver) == []
    listed = json.loads(gantry("transactions", "list", "--json", "--nameserver", nameserver).stdout.splitlines()[0])
    assert (listed["group"], listed["topic"], listed["checks"], listed["producers"]) == ("givers", "Orders", 0, 0)
    other = Transact(nameserver, "givers", "COMMIT", tmp_path, other="ROLLBACK")
    try:
        other.says("checked lost")
        until(lambda: keys(nameserver) == ["lost"], ignored=(GantryError,))
    finally:
        other.close()
    quick.stop()


def test_people_decide(quick: Gantry, tmp_path: Path) -> None:
    quick.start()
    nameserver = make_topic(quick)
    gone = Transact(nameserver, "givers", "UNKNOWN", tmp_path, one="UNKNOWN", two="UNKNOWN", three="HALT")
    gone.halted("three")
    where = ("--nameserver", nameserver)
    rows = [json.loads(line) for line in gantry("transactions", "list", "--json", *where).stdout.splitlines()]
    assert [row["topic"] for row in rows] == ["Orders"] * 3
    assert gantry("transactions", "commit", rows[0]["transaction_id"], *where).returncode == 0
    assert gantry("transactions", "rollback", rows[1]["transaction_id"], *where).returncode == 0
    again = gantry("transactions", "rollback", rows[0]["transaction_id"], *where)
    assert again.returncode == 3  # not found
    assert "no undecided transaction" in again.stderr
    assert keys(nameserver) == ["one"]
    assert "three" not in gantry("transactions", "list", *where, "--group", "others").stdout
    quick.stop()


def test_a_real_brokers_half_messages_are_taken_over(real: RealBroker, tmp_path: Path) -> None:
    real.start()
    real.topic("Orders", queues=2)
    first = Transact(
        real.address,
        "givers",
        "UNKNOWN",
        tmp_path,
        yes="COMMIT",
        no="ROLLBACK",
        open="UNKNOWN",
        late="COMMIT",
        end="HALT",
    )
    first.halted("end")
    until(lambda: keys(real.address) == ["late", "yes"], ignored=(GantryError,))  # decisions have no answer
    real.kill()  # op records are written up to 3 s late: those of the last decisions are missing
    server = Gantry(tmp_path, settings=(*SIZES, *QUICK))
    try:
        server.start()
        nameserver = server.doors["nameserver"]
        assert keys(nameserver) == ["late", "yes"]
        listed = gantry("transactions", "list", "--json", "--nameserver", nameserver).stdout.splitlines()
        second = Transact(nameserver, "givers", "COMMIT", tmp_path, more="COMMIT")
        try:
            second.says("ready")
            until(lambda: {"end", "open"} <= set(keys(nameserver)), ignored=(GantryError,))
        finally:
            second.close()
        until(lambda: not gantry("transactions", "list", "--json", "--nameserver", nameserver).stdout)
        found = keys(nameserver)
        assert [key for key in found if key not in ("no",)] == ["end", "late", "more", "open", "yes"]
        assert (
            2 <= len(listed) <= 3
        )  # a rollback that the real broker had not noted is asked about again, as it would do itself
        server.stop()
        check(tmp_path / "data" / "store")
    finally:
        for process in server.processes:
            process.kill()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_real_broker_goes_on_with_ours_and_gives_them_back(real: RealBroker, tmp_path: Path, how: str) -> None:
    server = Gantry(tmp_path, settings=(*SIZES, "transactions.check_interval_ms=60000"))
    try:
        server.start()
        nameserver = make_topic(server)
        first = Transact(
            nameserver,
            "givers",
            "COMMIT",
            tmp_path,
            yes="COMMIT",
            open="UNKNOWN",
            no="ROLLBACK",
            late="COMMIT",
            end="HALT",
        )
        first.halted("end")
        until(lambda: keys(nameserver) == ["late", "yes"], ignored=(GantryError,))  # decisions have no answer
        path = tmp_path / "data/store/config/lmqConsumerOffset.json"
        until(lambda: path.exists() and "RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS" in path.read_text())
        if how == "stop":
            server.stop()
        else:
            server.processes[0].kill()
        server.processes.clear()
        # A real broker counts a check that finds no producer, too, and gives a message up after 15: less than a slow JVM takes to start.
        real.extra = "transactionCheckInterval=3000;transactionTimeOut=3000;transactionOpBatchInterval=200;transactionCheckMax=10000"
        real.start()
        second = Transact(real.address, "givers", "COMMIT", tmp_path, more="COMMIT", left="UNKNOWN")
        try:
            second.says("checked end")
            second.says("checked open")
            second.says("checked left")
            until(
                lambda: set(keys(real.address)) >= {"end", "late", "left", "more", "open", "yes"}, 300, (GantryError,)
            )
            assert second.count("checked yes") == second.count("checked no") == second.count("checked late") == 0
        finally:
            second.close()
        everything = {"end", "late", "left", "more", "open", "yes"}
        assert set(real_keys(real)) == everything
        last = Transact(real.address, "givers", "UNKNOWN", tmp_path, back="HALT")
        last.halted("back")
        (real.stop if how == "stop" else real.kill)()
        server.settings = [f"--set={setting}" for setting in (*SIZES, *QUICK)]
        server.start()
        nameserver = server.doors["nameserver"]
        found = keys(nameserver)  # no producer is there that could be asked
        # A real broker that asks once more while a decision is under way stores the message again; what ours had decided it never asked about.
        most = {key: (key in ("late", "more", "yes")) + second.count(f"checked {key} ") for key in everything}
        assert set(found) == everything
        assert {key: count for key, count in Counter(found).items() if count > most[key]} == {}
        third = Transact(nameserver, "givers", "COMMIT", tmp_path, home="COMMIT")
        try:
            third.says("checked back")
            until(lambda: "back" in keys(nameserver), ignored=(GantryError,))
        finally:
            third.close()
        assert keys(nameserver) == sorted([*found, "back", "home"])  # nothing is repeated, the rest goes on
        server.stop()
        check(tmp_path / "data" / "store")
    finally:
        for process in server.processes:
            process.kill()


def real_keys(real: RealBroker) -> list[str]:
    """A reader of its own each time: RocketMQ's client, as our nameserver is not there."""
    rows, _ = real.consume("lookers", "Orders")
    return sorted(row["keys"] for row in rows)
