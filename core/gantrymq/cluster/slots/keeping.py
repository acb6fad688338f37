"""A broker group's part in the table of slots: the metadata group founds and keeps it, every other one says there that it started, and follows.

What a group knows later than the metadata group (whose disk may be an older one) it gives back as it says so, and the metadata group answers for no
slot before every group has. A new group gets half of the metadata group's slots of which nothing is held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.tables.group_tables import METADATA_GROUP, STATE_TABLE
from gantrymq.broker.tables.slot_table import (
    GROUP,
    HEAD,
    SLOTS_TABLE,
    Items,
    RandomBits,
    Seen,
    Slot,
    SlotTable,
    group_row,
    head_row,
    slot_row,
)
from gantrymq.cluster.slots.changes import TRIES, Readable, SlotPort, change, move
from gantrymq.cluster.slots.founding import Said, Survey, foundation, nobody
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Steps, pause, run

if TYPE_CHECKING:
    from gantrymq.broker.broker import Broker

log = logging.getLogger(__name__)

STOPPED_MS: Final = 5_000
"""What was stopped so long ago and is nobody else's goes back to its owner: who moved it is gone."""
AGAIN_MS: Final = 1_000
"""Before the next attempt, where one failed."""


def tell_gateways(broker: Broker) -> None:
    """Note whether this broker is to have the table: gateways that find it before it has that wait."""
    keeper = broker.config.metadata_group.encode() or None
    if broker.tables.rows(STATE_TABLE).get(METADATA_GROUP) != keeper:
        broker.put(STATE_TABLE, [(METADATA_GROUP, keeper)], None, None)


class SlotKeeper:
    """See the module. `metadata`: the way to the metadata group; None: this group is it. `share_after_ms`: a new group takes its slots so late.
    `survey`: how the metadata group asks others when it has no table."""

    def __init__(
        self,
        broker: Broker,
        metadata: SlotPort | None,
        random_bits: RandomBits,
        share_after_ms: int = 0,
        survey: Survey = nobody,
    ) -> None:
        self._broker = broker
        self._slots = broker.slots
        self._wheel = broker.wheel
        self._local = LocalBrokerPort(broker)
        self._metadata = metadata
        self._random_bits = random_bits
        self._share_after_ms = share_after_ms
        self._survey = survey
        self._readable = Readable(f"broker group {broker.config.metadata_group}")
        self._on_tried: Callable[[], None] = lambda: None
        self._attempt = 0
        self._is_new = False
        """The metadata group did not know this group, which has no share of the slots yet."""
        self._met = ""
        """The start of the metadata group that has heard of this group."""
        self._armed: dict[int, int] | None = None
        """What was stopped when it was decided to look again."""
        self._slots.begin(f"{random_bits(64):016x}", self._arm)

    @property
    def _keeper(self) -> SlotPort:
        return self._local if self._metadata is None else self._metadata

    def start(self, on_tried: Callable[[], None] = lambda: None) -> None:
        """Take part from now on; `on_tried` is called at the end of each attempt, also of one that failed."""
        self._on_tried = on_tried
        if self._metadata is None:
            self._attempt = 1
            self._run(1)
        else:
            self._metadata.watch_state(self._state)

    def _state(self, up: bool) -> None:
        self._attempt += 1
        if up:
            self._run(self._attempt)

    def _run(self, attempt: int) -> None:
        if attempt == self._attempt:
            steps = self._found() if self._metadata is None else self._greet(self._metadata, attempt)
            run(steps, partial(self._ran, attempt))

    def _ran(self, attempt: int, result: Any) -> None:
        if not isinstance(result, GantryError):
            self._slots.waits = ""
        elif attempt == self._attempt:
            if result.text != self._slots.waits:
                log.warning("slots: %s; trying again", result.text)
            self._slots.waits = result.text
            self._wheel.call_at(self._wheel.now_ms() + AGAIN_MS, lambda now_ms: self._run(attempt))
        self._on_tried()

    def _found(self) -> Steps:
        """The metadata group's start: its table, of a new life. Where its disk has none the others are asked first."""
        slots = self._slots
        rows: dict[str, bytes] = yield partial(self._local.watch_table, SLOTS_TABLE, None)
        table = SlotTable(rows)
        if table.head is not None and table.head.keeper != slots.name:
            raise GantryError(
                ErrorCode.ILLEGAL_ARGUMENT,
                f"broker.metadata_group is {slots.name}, and the table of slots here is one that {table.head.keeper} keeps",
            )
        if table.head is None:
            said: Said = yield self._survey
            items, source = foundation(slots.name, slots.life, said, self._random_bits)
            if source:
                log.warning("slots: there is no table here; it goes on from the copy of broker group %s", source)
        else:
            items = [head_row(table.next_head(slots.life))]
        done: bool = yield partial(self._local.put_together, SLOTS_TABLE, HEAD, rows.get(HEAD), items)
        if not done:
            raise GantryError(ErrorCode.BUSY, "the table of slots changed while this group started")

    def _greet(self, metadata: SlotPort, attempt: int) -> Steps:
        """Another group's start, or its return: say so, give back what is known later here, and take over the rest."""
        slots = self._slots

        def heard(key: str, value: bytes | None) -> None:
            if attempt != self._attempt:
                return
            self._copy(self._readable.rows([(key, value)]))
            head = slots.table.head
            if (
                key == HEAD and head is not None and head.life != self._met
            ):  # it was starting when it heard of this group
                self._state(True)

        def decide(table: SlotTable) -> Items:
            if table.head is None:
                raise GantryError(
                    ErrorCode.UNAVAILABLE,
                    f"broker group {slots.keeper} keeps no table of slots yet; does it have broker.metadata_group={slots.keeper}?",
                )
            self._refuse_forgotten(table)
            unknown = {name: seen for name, seen in slots.table.groups.items() if name not in table.groups}
            is_later = slots.table.is_later_than(table)
            forgotten[:] = [] if is_later else [GROUP + name for name in unknown]
            seen = Seen(slots.life, table.head.life)
            self._met = table.head.life
            self._is_new = self._is_new or slots.name not in table.groups
            newer = slots.table.newer_than(table)
            if table.groups.get(slots.name) == seen and not newer:
                return []
            head = table.next_head()
            mine = slots.table.head
            if newer and mine is not None and mine.version >= head.version:  # versions are not used twice
                head = head._replace(version=mine.version + 1)
            rows = [slot_row(number, slot) for number, slot in sorted(newer.items())]
            if is_later:  # its disk is an older one, and has not heard of them
                rows += [group_row(name, known) for name, known in unknown.items() if name != slots.name]
            return [head_row(head), group_row(slots.name, seen), *rows]

        forgotten: list[str] = []
        yield from change(metadata, decide, self._readable)
        rows: dict[str, bytes] = yield partial(metadata.watch_table, SLOTS_TABLE, heard)
        gone = [(key, None) for key in forgotten if key not in rows and key != GROUP + slots.name]
        self._copy([*self._readable.known(rows).items(), *gone])
        # Behind the copy: what this group knows is what it answers by.
        yield self._broker.when_stored
        slots.known = True
        if self._is_new and not slots.table.owned_by(slots.name):
            if self._share_after_ms:
                yield pause(self._when_found)
            yield from self._take_a_share(metadata)
        self._is_new = False

    def _refuse_forgotten(self, table: SlotTable) -> None:
        """A group that the metadata group knew once, and was told to forget."""
        slots = self._slots
        mine = slots.table
        if slots.name in mine.groups and slots.name not in table.groups and not mine.is_later_than(table):
            slots.known = False
            raise GantryError(
                ErrorCode.NOT_OWNER,
                f"broker group {slots.name} was forgotten (gantry cluster forget): it gets no slots; start it with an empty directory",
            )

    def _copy(self, rows: Items) -> None:
        """Rows of the metadata group, heeded at once, and written into this group's table. Its own start there it keeps: see above."""
        own = GROUP + self._slots.name
        if (own, None) in rows:
            self._slots.known = False
            log.warning("slots: this group was forgotten (gantry cluster forget): it decides about nothing any more")
        rows = [row for row in rows if row != (own, None)]
        for key, value in rows:
            self._slots.learn(key, value)
        self._broker.put(SLOTS_TABLE, rows, None, None)

    def _when_found(self, go_on: Callable[[], None]) -> None:
        self._wheel.call_at(self._wheel.now_ms() + self._share_after_ms, lambda now_ms: go_on())

    def _take_a_share(self, metadata: SlotPort) -> Steps:
        """A new group: half of what the metadata group has, where nothing is held of it. Where another new group was faster, half of the rest."""
        slots = self._slots
        before: dict[int, Slot] = {}
        for _ in range(TRIES):
            rows: dict[str, bytes] = yield partial(metadata.watch_table, SLOTS_TABLE, None)
            table = self._readable.table(rows)
            if table.slots == before:
                return
            before = table.slots
            targets = dict.fromkeys(table.owned_by(slots.keeper)[::2], slots.name)
            went = yield from move(metadata, metadata, table, targets, self._random_bits, True)
            if went:
                log.info("slots: %d of %d are this group's", len(went), len(table.slots))
                return
        raise GantryError(ErrorCode.BUSY, f"other groups took the slots that this one wanted, {TRIES} times")

    def _arm(self) -> None:
        if self._armed is None:
            self._armed = self._slots.stopped()
            self._wheel.call_at(self._wheel.now_ms() + STOPPED_MS, lambda now_ms: self._check())

    def _check(self) -> None:
        """Slots that are still stopped after so long get a new epoch, so that a late change of who moved them finds nothing."""
        before, self._armed = self._armed or {}, None
        stopped = self._slots.stopped()
        if stopped:
            self._arm()
        left = {slot: epoch for slot, epoch in before.items() if stopped.get(slot) == epoch}
        if left:
            run(self._take_back(left), lambda result: None)

    def _take_back(self, stopped: dict[int, int]) -> Steps:
        name = self._slots.name

        def decide(table: SlotTable) -> Items:
            left = {number: name for number, epoch in stopped.items() if table.slots.get(number) == (name, epoch)}
            return table.gives(left, self._random_bits) if left else []

        yield from change(self._keeper, decide, self._readable)
