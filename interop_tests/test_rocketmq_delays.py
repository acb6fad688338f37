"""Delayed messages on one directory, two brokers in turn: what the one owes the other delivers, once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import pytest

from gantrymq.client.admin import Admin
from gantrymq.client.consuming.consumer import PullConsumer
from gantrymq.client.messages import OutMessage
from gantrymq.client.producing.producer import Producer
from gantrymq.model.errors import GantryError
from interop_tests.real_broker import REAL_BROKER, SIZES, RealBroker, check, read_config
from interop_tests.running import Gantry
from interop_tests.waiting import LIMIT_S, until

pytestmark = REAL_BROKER

DAY_MS = 86_400_000
QUICK_NOTES = "flushDelayOffsetInterval=500"
"""By itself a real broker writes down how far it is in the delay levels every ten seconds: what is pending would have to wait for longer."""


LONG = ((30_000, 4), (180_000, 7))
"""Delays of what must be pending when the one broker is gone, and the level of that delay."""
ARRIVAL_S = 400.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Waiting:
    """What was sent: body to the earliest time when it may come. `recalled` must never come."""

    def __init__(self, nameserver: str) -> None:
        self.nameserver = nameserver
        self.due: dict[bytes, int] = {}
        self.timers: set[bytes] = set()
        self.recalled: set[bytes] = set()

    def level(self, number: int, delay_ms: int, *bodies: bytes) -> None:
        self._send([(body, {"DELAY": str(number)}, now_ms() + delay_ms) for body in bodies])

    def timer(self, delay_ms: int, *bodies: bytes) -> None:
        at_ms = now_ms() + delay_ms
        self.timers.update(bodies)
        self._send([(body, {"TIMER_DELIVER_MS": str(at_ms)}, at_ms) for body in bodies])

    def recall(self, body: bytes) -> None:
        """As clients of before the handles do it: an order with the key, for the same second."""
        order = {"TIMER_DELIVER_MS": str(self.due[body]), "TIMER_DEL_UNIQKEY": f"Later+KEY{body.decode()}"}
        self.recalled.add(body)
        self._send([(b"order", order, 0)], "order")

    def _send(self, items: list[tuple[bytes, dict[str, str], int]], key: str = "") -> None:
        async def send() -> None:
            async with Producer(self.nameserver, timeout_s=LIMIT_S) as producer:
                for body, properties, due_ms in items:
                    unique = f"KEY{key or body.decode()}"
                    result = await producer.send(
                        OutMessage("Later", body, properties={**properties, "UNIQ_KEY": unique})
                    )
                    assert result.queue.topic == "Later"
                    if due_ms:
                        self.due[body] = due_ms

        asyncio.run(send())


def delivered(nameserver: str) -> list[Any]:
    """Messages of topic Later, as our client sees them at either broker."""

    async def pull() -> list[Any]:
        found: list[Any] = []
        async with PullConsumer(nameserver, group="lookers") as consumer:
            for queue in await consumer.queues("Later"):
                offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
                while offset < end:
                    result = await consumer.pull_queue(queue, offset, 32)
                    found += result.messages
                    offset = result.next_offset
        return found

    return asyncio.run(pull())


def counts(nameserver: str) -> Counter[bytes]:
    return Counter([message.body for message in delivered(nameserver)])


def expect(nameserver: str, sent: Waiting, bodies: set[bytes], twice: Set[bytes] = frozenset()) -> list[Any]:
    """These have come and nothing that was not due, none early and each once; of `twice` each once or twice. Gives all that came."""
    until(lambda: set(counts(nameserver)) >= bodies, ARRIVAL_S, (GantryError,))
    found = until(lambda: delivered(nameserver), ignored=(GantryError,))
    now = now_ms()  # what came due while they were asked for may be among them
    times = Counter([message.body for message in found])
    assert {body for body, count in times.items() if count > (2 if body in twice else 1)} == set()
    assert set(times) - bodies <= {body for body, due in sent.due.items() if due <= now} - sent.recalled
    for message in found:
        assert message.store_ms >= sent.due[message.body], message.body
    return found


def due(sent: Waiting) -> set[bytes]:
    """What may have been delivered without a note of that, when a broker is killed now: nothing on a machine that does not stand still. An
    order that was being carried out just then may have come too late."""
    found = {body for body, at_ms in sent.due.items() if at_ms <= now_ms()}
    sent.recalled -= found
    return found


def until_timers_are_noted(directory: Path) -> int:
    """Until the real broker's timercheck says that it has looked at its wheel up to now; the time."""
    path, now = directory / "store" / "config" / "timercheck", now_ms()
    until(lambda: int.from_bytes(path.read_bytes()[:8], "big") > now)
    return now


Turn = Callable[[RealBroker, Gantry, Path, str, int, int], bool]


def until_something_waits(turn: Turn, tmp_path: Path, how: str) -> None:
    """`turn` on new directories, until timers and messages of a level were pending when the one broker was gone: on a machine where that takes
    longer than their delays there is nothing to hand over."""
    for number, (long_ms, level) in enumerate(LONG):
        directory = tmp_path / str(number)
        directory.mkdir()
        real, gantry = RealBroker(directory / "data"), Gantry(directory, settings=SIZES)
        try:
            if turn(real, gantry, directory, how, long_ms, level):
                return
        finally:
            real.kill()
            for process in gantry.processes:
                process.kill()
    raise AssertionError("nothing was pending at any hand-over")


def handed_over(found: list[Any], since_ms: int) -> bool:
    """Something of each kind came from the broker that was started then."""
    later = {message.body for message in found if message.store_ms >= since_ms}
    return b"long2" in later and not later.isdisjoint({b"la", b"lb"})


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_what_a_real_broker_owes_is_delivered_by_ours(tmp_path: Path, how: str) -> None:
    until_something_waits(real_to_ours, tmp_path, how)


def real_to_ours(real: RealBroker, gantry: Gantry, directory: Path, how: str, long_ms: int, level: int) -> bool:
    """False if ours had nothing to deliver."""
    real.extra = QUICK_NOTES
    real.start()
    real.topic("Later", queues=1)
    sent = Waiting(real.address)
    sent.timer(long_ms + 4_000, b"long4")
    sent.timer(
        2 * DAY_MS + DAY_MS // 2, b"far"
    )  # on the real broker's wheel it stands at a time before its own: it rolls
    sent.level(1, 1_000, b"l1")
    sent.level(level, long_ms, b"la", b"lb")
    sent.timer(2_000, b"t2a", b"t2b")
    sent.timer(long_ms + 2_000, b"long2", b"never")
    sent.recall(b"never")
    sent.timer(long_ms + 5_000, b"long5")
    expect(real.address, sent, {b"l1", b"t2a", b"t2b"})
    # The real broker writes down what it has delivered of timers every second.
    until(lambda: read_config(directory / "data", "delayOffset.json")["offsetTable"].get("1") == 1)
    noted_ms = until_timers_are_noted(directory / "data")
    (real.stop if how == "stop" else real.kill)()
    late = due(sent) - {b"l1", b"t2a", b"t2b"}
    # A real broker that is stopped while it delivers timers does not note that either (TimerMessageStore.dequeue).
    twice = late if how == "kill" else {body for body in late & sent.timers if sent.due[body] > noted_ms}
    since_ms = now_ms()
    gantry.start()
    nameserver = gantry.doors["nameserver"]
    everything = {b"l1", b"t2a", b"t2b", b"long2", b"long4", b"long5", b"la", b"lb"}
    found = expect(nameserver, sent, everything, twice)
    pending = gantry.process("up").log()
    assert "timers of another broker" in pending
    gantry.stop()
    gantry.processes.clear()
    check(directory / "data" / "store")
    gantry.start()
    expect(gantry.doors["nameserver"], sent, everything, twice)
    gantry.stop()
    gantry.processes.clear()
    return handed_over(found, since_ms)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_what_ours_owes_is_delivered_by_a_real_broker(tmp_path: Path, how: str) -> None:
    until_something_waits(ours_to_real, tmp_path, how)


def ours_to_real(real: RealBroker, gantry: Gantry, directory: Path, how: str, long_ms: int, level: int) -> bool:
    """False if the real broker had nothing to deliver."""
    real.extra = QUICK_NOTES
    gantry.start()
    nameserver = gantry.doors["nameserver"]

    async def create() -> None:
        async with Admin(nameserver) as admin:
            await admin.create_topic("Later", 1)

    asyncio.run(create())
    sent = Waiting(nameserver)
    sent.timer(2_000, b"t2a")
    sent.timer(2 * DAY_MS + DAY_MS // 2, b"far")
    sent.timer(long_ms + 2_000, b"long2", b"never")
    sent.level(1, 1_000, b"l1")
    sent.level(level, long_ms, b"la", b"lb")
    if how == "stop":
        sent.timer(2_000, b"t2b")  # behind pending ones: a clean stop appends those again
        sent.recall(b"never")
    expect(nameserver, sent, {b"l1", b"t2a"} | ({b"t2b"} if how == "stop" else set()))

    def noted() -> bool:
        table = read_config(directory / "data", "delayOffset.json")["offsetTable"]
        return table.get("1") == 1 and str(level) in table

    until(noted)
    timercheck = directory / "data" / "store" / "config" / "timercheck"
    until(lambda: timercheck.exists() and int.from_bytes(timercheck.read_bytes()[16:24], "big") >= 1)
    if how == "stop":
        gantry.stop()
    else:
        gantry.processes[0].kill()
    late = due(sent) - {b"l1", b"t2a"}
    twice = late if how == "kill" else set()
    gantry.processes.clear()
    check(directory / "data" / "store")
    since_ms = now_ms()
    real.start()
    everything = {b"l1", b"t2a", b"long2", b"la", b"lb"} | ({b"t2b"} if how == "stop" else {b"never"})
    found = expect(real.address, sent, everything, twice)
    until(lambda: read_config(directory / "data", "delayOffset.json")["offsetTable"].get(str(level)) == 2)
    until_timers_are_noted(directory / "data")
    real.stop()
    gantry.start()
    expect(gantry.doors["nameserver"], sent, everything, twice)
    log = gantry.process("up").log()
    assert "1 entries go on" in log  # the far one, once
    gantry.stop()
    gantry.processes.clear()
    check(directory / "data" / "store")
    return handed_over(found, since_ms)
