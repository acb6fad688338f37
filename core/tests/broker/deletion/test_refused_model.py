"""Random histories on a disk that is full now and then, against dictionaries.

What was settled or deleted while nothing could be written holds a restart once there was room for a few seconds; what a caller was told is
stored holds at once; nothing else is done, and no message is lost or made up.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gantrymq.broker.port import EARLIEST, Delivery, Outcome, Route
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from tests.broker.node import Node
from tests.broker.tables.test_snapshots import SnapshotNode
from tests.store.crash_states import CrashFiles

TAGS = ("a", "b", "c")
GROUPS = ("g", "h")
LATER_MS = 5_000


@dataclass
class Place:
    """A cursor. `done` may be forgotten by a crash where it is not in `safe`."""

    cursor: int
    done: set[int] = field(default_factory=set)
    safe: set[int] = field(default_factory=set)
    inflight: set[int] = field(default_factory=set)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.node: Node = SnapshotNode(CrashFiles())
        self.full = False
        self.number = 0
        self.lights: dict[str, int] = {}
        """Light queue by tag; none: deleted."""
        self.sent: dict[str, list[int]] = {tag: [] for tag in TAGS}
        self.places: dict[tuple[str, str], Place] = {}

    @initialize()
    def queues(self) -> None:
        for tag in TAGS:
            self.lights[tag] = light = self.node.call("create_light")
            self.node.call("add_route", Route(f"r{light}", "prefix", None, tag, light))
            self.open(tag, "g")

    def _ask(self, method: str, *args: Any) -> Any:
        """The result; None where the full disk refused it."""
        box: list[Any] = []
        getattr(self.node.port, method)(*args, None, lambda token, result: box.append(result))
        self.node.turn.run_until_quiet()
        (result,) = box
        if isinstance(result, GantryError):
            assert self.full, result
            assert result.code is ErrorCode.STORE_FULL
            return None
        return result if result is not None else True

    @rule(tag=st.sampled_from(TAGS), count=st.integers(1, 4))
    def send(self, tag: str, count: int) -> None:
        numbers = list(range(self.number, self.number + count))
        self.number += count
        batch = [Message("t", b"%d" % n, b"TAGS\x01%b\x02" % tag.encode(), tag, queue_id=0) for n in numbers]
        (results,) = self.node.start("submit", batch)
        assert all(isinstance(result, ErrorCode) is self.full for result in results), results
        if not self.full and tag in self.lights:
            self.sent[tag] += numbers

    @rule(tag=st.sampled_from(TAGS), group=st.sampled_from(GROUPS))
    def open(self, tag: str, group: str) -> None:
        if tag not in self.lights:
            return
        found = self._ask("open_cursor", f"~{self.lights[tag]}", group, EARLIEST)
        if found is None:
            assert (tag, group) not in self.places, "what is there needs no room"
        else:
            assert self.places.setdefault((tag, group), Place(found.cursor)).cursor == found.cursor

    @precondition(lambda self: self.places)
    @rule(data=st.data(), count=st.integers(1, 6))
    def acquire(self, data: st.DataObject, count: int) -> None:
        tag, group = data.draw(st.sampled_from(sorted(self.places)))
        place = self.places[tag, group]
        found: list[Delivery] = self.node.call("acquire", place.cursor, 1, count, 1 << 30)
        for delivery in found:
            assert int(delivery.message.body) == self.sent[tag][delivery.offset]
            assert delivery.offset not in place.done | place.inflight
            place.inflight.add(delivery.offset)

    @precondition(lambda self: any(place.inflight for place in self.places.values()))
    @rule(data=st.data(), outcome=st.sampled_from([Outcome.ACK, Outcome.ACK, Outcome.REQUEUE]))
    def settle(self, data: st.DataObject, outcome: Outcome) -> None:
        place = self.places[data.draw(st.sampled_from(sorted(k for k, place in self.places.items() if place.inflight)))]
        offsets = data.draw(st.lists(st.sampled_from(sorted(place.inflight)), min_size=1, max_size=4, unique=True))
        self.node.port.settle([(place.cursor, offset, outcome) for offset in offsets])
        self.node.turn.run_until_quiet()
        place.inflight.difference_update(offsets)
        if outcome is Outcome.ACK:
            self._done(place, set(offsets))

    def _done(self, place: Place, offsets: set[int]) -> None:
        place.done |= offsets
        if not self.full:
            place.safe |= offsets

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        tag, group = data.draw(st.sampled_from(sorted(self.places)))
        place = self.places[tag, group]
        ready = set(range(len(self.sent[tag]))) - place.done - place.inflight
        assert self.node.call("purge", place.cursor) == len(ready)
        self._done(place, ready)

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def delete_cursor(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.places)))
        self._ask("delete_cursor", self.places.pop(key).cursor)
        self.room_for_a_while(self.full)  # what a crash may bring back is not what this model is about

    @precondition(lambda self: len(self.lights) > 1)
    @rule(data=st.data())
    def delete_light(self, data: st.DataObject) -> None:
        tag = data.draw(st.sampled_from(sorted(self.lights)))
        self._ask("delete_light", self.lights.pop(tag))
        self.sent[tag] = []
        self.places = {key: place for key, place in self.places.items() if key[0] != tag}
        self.room_for_a_while(self.full)

    @rule(full=st.booleans())
    def disk(self, full: bool) -> None:
        def fault(operation: str, path: Path) -> OSError | None:
            return (
                OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if operation == "pwrite" and "commitlog" in path.parts
                else None
            )

        self.full = full
        self.node.files.fault = fault if full else lambda operation, path: None

    @rule(full=st.booleans())
    def room_for_a_while(self, full: bool) -> None:
        self.disk(False)
        self.node.wheel.advance(LATER_MS)
        self.node.turn.run_until_quiet()
        for place in self.places.values():
            place.safe = set(place.done)
        self.disk(full)

    @rule()
    def rest(self) -> None:
        """As retention does now and then."""
        cursors = self.node.broker.cursors
        for cursor in list(cursors.by_id.values()):
            cursors.rest(cursor)

    @precondition(lambda self: not self.full)
    @rule()
    def snapshot(self) -> None:
        assert isinstance(self.node, SnapshotNode)
        self.node.make()

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.disk(False)
        node = self.node
        assert isinstance(node, SnapshotNode)
        if clean:
            node.broker.close()
            node.snapshots.write_now()
            node.store.close()
        node = self.node = SnapshotNode(node.disk.after_process_crash())
        ids = {place.cursor for place in self.places.values()}
        known = {cursor.id for cursor in node.broker.cursors.views()}
        assert ids <= known
        for cursor in known - ids:  # its opener was told that it could not be
            node.call("delete_cursor", cursor)
        for (tag, _), place in self.places.items():
            place.inflight.clear()
            window = node.broker.cursors.get(place.cursor).window
            done = {offset for offset in range(len(self.sent[tag])) if window.is_done(offset)}
            assert place.safe <= done <= place.done
            assert window.next_offset <= len(self.sent[tag])
            place.done, place.safe = done, set(done)
        assert {int(key) for key in node.broker.tables.rows("light") if key != "next"} == set(self.lights.values())
        assert set(node.broker.router.routes) == {f"r{light}" for light in self.lights.values()}
        assert set(node.store.light_ids()) <= set(self.lights.values())

    @invariant()
    def agrees(self) -> None:
        for tag, light in self.lights.items():
            assert self.node.store.light_visible_end(light) == len(self.sent[tag])
        for place in self.places.values():
            window = self.node.broker.cursors.get(place.cursor).window
            assert set(window.inflight) == place.inflight
            assert all(window.is_done(offset) for offset in place.done)


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
