"""Bytes of log and queues that changed while the server was stopped: every whole message comes through every door, the damaged one is named, nothing
else comes; what somebody has to acknowledge waits until the file is restored, or somebody skips it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import EARLIEST, CursorInfo, Delivery, Outcome, Route
from gantrymq.remoting.overview_codes import DAMAGE_LIST, DAMAGE_SKIP
from gantrymq.store.log import record
from gantrymq.store.queues.consume_queue import UNIT
from tests.broker.test_port import PrefixRoutes
from tests.remoting.bench import TOPIC, Bench, ask, pull, send_frame
from tests.remoting.pop_client import ack, pop
from tests.remoting.server.pulling.test_pulls import bodies_of

COUNT = 40
HURT = 7
"""Offset of the message that is damaged."""
LOG = Path("store/commitlog") / ("0" * 20)
QUEUE = Path("store/consumequeue") / TOPIC / "0" / ("0" * 20)


class Site:
    """A broker that is stopped and started again on one directory. Queue 0 of the topic and light queue `light` hold all messages."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cursors: dict[str, int] = {}
        self.start()
        self.light = self.call("create_light")
        self.call("add_route", Route("r", "prefix", None, "", self.light))
        self.bench.connect().feed(
            b"".join([send_frame(b"%d" % n + bytes(200), "TAGS\x01a\x02k\x01v\x02", opaque=n) for n in range(COUNT)])
        )
        self.cursors = {
            "light": self.open(f"~{self.light}", "mqtt:c"),
            "native": self.open(f"{TOPIC}/0", "push"),
        }
        self.units = self.bench.store.units(TOPIC, 0, 0, COUNT)

    def start(self) -> None:
        self.bench = Bench(self.root, routes={"prefix": PrefixRoutes()})
        self.port = LocalBrokerPort(self.bench.broker)
        self.got: list[Delivery] = []

    def call(self, method: str, *args: Any) -> Any:
        box: list[Any] = []
        getattr(self.port, method)(*args, None, lambda token, result: box.append(result))
        self.bench.turn.run_until_quiet()
        return box[0]

    def open(self, queue: str, group: str) -> int:
        info: CursorInfo = self.call("open_cursor", queue, group, EARLIEST)
        return info.cursor

    def stopped(self, change: Callable[[], None]) -> None:
        """What happens between a clean stop and the next start."""
        self.bench.close()
        change()
        self.start()

    def flip(self, path: Path, at: int, data: bytes | int) -> None:
        """Other bytes at a place; a number: that many are inverted."""
        with (self.root / path).open("r+b") as file:
            file.seek(at)
            if isinstance(data, int):
                data = bytes([byte ^ 0xFF for byte in file.read(data)])
                file.seek(at)
            file.write(data)

    def listed(self) -> list[int]:
        return sorted(entry.position for entry in self.bench.store.damage.entries.values())


@pytest.fixture
def site(tmp_path: Path) -> Any:
    made = Site(tmp_path)
    yield made
    made.bench.close()


def numbers(bodies: list[bytes]) -> list[int]:
    return [int(body.rstrip(b"\0")) for body in bodies]


def pulled(site: Site, **fields: Any) -> list[int]:
    link, offset, found = site.bench.connect(), 0, []
    while True:
        answer = pull(link, queueOffset=offset, maxMsgNums=32, **fields)
        if answer.code == 19:
            return numbers(found)
        assert answer.code in (0, 20), answer
        found += bodies_of(answer.body)
        offset = int(answer.fields["nextBeginOffset"])


def popped(site: Site, **fields: Any) -> list[int]:
    link, found = site.bench.connect(), []
    while messages := pop(link, pollTime=0, **fields):
        found += [message.body for message in messages]
        for message in messages:
            ack(link, message)
    return numbers(found)


def acquired(site: Site, cursor: int) -> list[int]:
    found = []
    while deliveries := site.call("acquire", cursor, 1, 9, 1 << 20):
        found += [delivery.message.body for delivery in deliveries]
        site.port.settle([(cursor, delivery.offset, Outcome.ACK) for delivery in deliveries])
    return numbers(found)


DOORS: dict[str, Callable[[Site], list[int]]] = {
    "pull": pulled,
    "pull by tag": lambda site: pulled(site, subscription="a"),
    "pull by SQL": lambda site: pulled(site, subscription="k = 'v'", expressionType="SQL92"),
    "pop": popped,
    "pop by tag": lambda site: popped(site, exp="a", expType="TAG"),
    "pop by SQL": lambda site: popped(site, exp="k = 'v'", expType="SQL92"),
    "light queue": lambda site: acquired(site, site.cursors["light"]),
    "topic queue": lambda site: acquired(site, site.cursors["native"]),
}
PLACES: dict[str, tuple[int, bytes | int]] = {
    "size field": (1, 1),
    "magic": (4, 1),
    "body": (100, 1),
    "length of the body": (86, 1),
    "topic": (290, 1),
    "length of the properties": (291, 1),
    "zeros": (0, bytes(4096)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("door", DOORS)
def test_a_damaged_record_is_left_out_alone_and_named(site: Site, door: str, place: str) -> None:
    at, data = PLACES[place]
    position = site.units[HURT][0]
    end = position + (len(data) if isinstance(data, bytes) else 1)
    site.stopped(lambda: site.flip(LOG, position + at, data))
    hurt = [number for number in range(COUNT) if number == HURT or position <= site.units[number][0] < end]
    assert DOORS[door](site) == [number for number in range(COUNT) if number not in hurt]
    assert site.listed() == [site.units[number][0] for number in hurt]


def other_position(units: list[tuple[int, int, int]]) -> bytes:
    return UNIT.pack(units[3][0], *units[HURT][1:])


WRONG: dict[str, Callable[[list[tuple[int, int, int]]], bytes]] = {
    "of another record": other_position,
    "in the middle of a record": lambda units: UNIT.pack(units[HURT][0] + 5, *units[HURT][1:]),
    "behind the log": lambda units: UNIT.pack(1 << 40, *units[HURT][1:]),
    "beyond every position": lambda units: UNIT.pack(-1, *units[HURT][1:]),
    "of a huge size": lambda units: UNIT.pack(units[HURT][0], 0x7FFFFFFE, units[HURT][2]),
    "of a negative size": lambda units: UNIT.pack(units[HURT][0], -5, units[HURT][2]),
    "of another size": lambda units: UNIT.pack(units[HURT][0], units[HURT][1] + 1, units[HURT][2]),
}


@pytest.mark.parametrize("unit", WRONG)
@pytest.mark.parametrize("door", [door for door in DOORS if door != "light queue"])
def test_a_wrong_unit_hides_its_message_alone(site: Site, door: str, unit: str) -> None:
    site.stopped(lambda: site.flip(QUEUE, HURT * UNIT.size, WRONG[unit](site.units)))
    assert DOORS[door](site) == [number for number in range(COUNT) if number != HURT]
    assert len(site.listed()) == 1


@pytest.mark.parametrize("door", ["pop", "pop by tag", "pop by SQL"])
def test_what_a_blanked_unit_named_waits_until_it_is_restored(site: Site, door: str) -> None:
    site.stopped(lambda: site.flip(QUEUE, HURT * UNIT.size, bytes(UNIT.size)))
    assert DOORS[door](site) == [number for number in range(COUNT) if number != HURT]
    site.stopped(lambda: site.flip(QUEUE, HURT * UNIT.size, UNIT.pack(*site.units[HURT])))
    assert DOORS[door](site) == [HURT]


@pytest.mark.parametrize("door", ["pop", "pop by tag", "pop by SQL", "light queue", "topic queue"])
def test_what_is_damaged_is_delivered_when_the_file_is_restored(site: Site, door: str) -> None:
    position = site.units[HURT][0]
    site.stopped(lambda: site.flip(LOG, position + 100, 1))
    others = [number for number in range(COUNT) if number != HURT]
    assert DOORS[door](site) == others
    site.stopped(lambda: None)
    assert (DOORS[door](site), site.listed()) == ([], [position])
    site.stopped(lambda: site.flip(LOG, position + 100, 1))
    assert DOORS[door](site) == [HURT]


@pytest.mark.parametrize("door", ["pop", "light queue", "topic queue"])
def test_what_is_skipped_is_done_for_ever(site: Site, door: str) -> None:
    position = site.units[HURT][0]
    site.stopped(lambda: site.flip(LOG, position + 100, 1))
    cursors = site.bench.broker.cursors
    assert len(DOORS[door](site)) == COUNT - 1
    ((cursor, offset),) = cursors.waiting_for((position, "", -1))
    assert (offset, cursor.window.floor) == (HURT, HURT)
    assert cursors.end_waiting((position, "", -1), deliver=False) == 1
    assert cursors.waiting_for((position, "", -1)) == []
    assert cursor.window.floor == COUNT
    site.bench.turn.run_until_quiet()
    site.stopped(lambda: site.flip(LOG, position + 100, 1))
    assert DOORS[door](site) == []


def test_what_is_damaged_goes_with_its_queue_and_with_a_purge(site: Site) -> None:
    position = site.units[HURT][0]
    site.stopped(lambda: site.flip(LOG, position + 100, 1))
    cursors = site.bench.broker.cursors
    for cursor in site.cursors.values():
        acquired(site, cursor)
    assert len(cursors.waiting_for((position, "", -1))) == cursors.quarantined.count == 2
    site.call("delete_cursor", site.cursors["native"])
    assert cursors.quarantined.count == 1
    assert site.call("purge", site.cursors["light"]) == 1
    assert cursors.quarantined.count == 0
    assert cursors.get(site.cursors["light"]).window.floor == COUNT


def test_first_reads_are_looked_at_and_later_ones_are_not(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record costs its look once."""
    site.stopped(lambda: None)
    looked = []
    is_at = record.is_at
    monkeypatch.setattr(record, "is_at", lambda *given: looked.append(given) or is_at(*given))
    for _ in range(3):
        assert pulled(site) == list(range(COUNT))
    assert len(looked) == COUNT


def test_a_commit_of_somebody_who_pulls_passes_over_what_is_kept_aside(site: Site) -> None:
    position = site.units[HURT][0]
    site.stopped(lambda: site.flip(LOG, position + 100, 1))
    popped(site)
    cursors = site.bench.broker.cursors
    assert cursors.quarantined.count == 1
    site.bench.broker.commits.commit("CG", TOPIC, 0, COUNT)
    assert popped(site) == []
    assert cursors.waiting_for((position, "", -1)) == []
    assert cursors.quarantined.count == 0


def test_the_list_names_who_waits_and_a_skip_ends_it(site: Site) -> None:
    position = site.units[HURT][0]
    site.stopped(lambda: site.flip(LOG, position + 100, 1))
    link = site.bench.connect()
    assert json.loads(ask(link, DAMAGE_LIST).body) == {"records": []}
    popped(site)
    acquired(site, site.cursors["light"])
    (row,) = json.loads(ask(link, DAMAGE_LIST).body)["records"]
    assert (row["position"], row["queue"], row["offset"], row["what"]) == (
        position,
        f"{TOPIC}/0",
        HURT,
        "CRC of the body",
    )
    assert [(one["queue"], one["group"], one["offset"]) for one in row["waiting"]] == [
        (f"{TOPIC}/0", "pop:CG", HURT),
        (f"~{site.light}", "mqtt:c", HURT),
    ]
    assert ask(link, DAMAGE_SKIP, position=position + 1).code != 0
    assert json.loads(ask(link, DAMAGE_SKIP, position=position).body) == {"skipped": 2}
    (row,) = json.loads(ask(link, DAMAGE_LIST).body)["records"]
    assert (row["skipped"], row["waiting"]) == (True, [])


def test_what_is_restored_in_place_is_delivered_by_a_look_at_the_list(site: Site) -> None:
    position = site.units[HURT][0]
    site.stopped(lambda: site.flip(LOG, position + 100, 1))
    link = site.bench.connect()
    assert HURT not in popped(site)
    assert HURT not in acquired(site, site.cursors["light"])
    site.flip(LOG, position + 100, 1)
    assert json.loads(ask(link, DAMAGE_LIST).body) == {"records": []}
    assert popped(site) == acquired(site, site.cursors["light"]) == [HURT]


def test_a_unit_that_is_restored_in_place_too(site: Site) -> None:
    site.stopped(lambda: site.flip(QUEUE, HURT * UNIT.size, 7))
    assert HURT not in acquired(site, site.cursors["native"])
    assert len(json.loads(ask(site.bench.connect(), DAMAGE_LIST).body)["records"]) == 1
    site.flip(QUEUE, HURT * UNIT.size, 7)
    assert json.loads(ask(site.bench.connect(), DAMAGE_LIST).body)["records"] == []
    assert acquired(site, site.cursors["native"]) == [HURT]
