"""What was sent, promised, delivered and consumed in a simulation, and the invariants over it (docs/operations/crash-tests.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gantrymq.model import names
from gantrymq.store.schedule import PRECISION_MS
from interop_tests.sim.world import Violation

if TYPE_CHECKING:
    from interop_tests.sim.node import Node
    from interop_tests.sim.world import World

Place = tuple[str, int, int]
"""Topic, queue id, queue offset."""

PLAIN, DELAYED, TIMED, HALF = "plain", "delayed", "timed", "half"
COMMIT, ROLLBACK = "commit", "rollback"

LEVEL_SLACK_MS = 150
"""A level's clock has anchors 100 ms apart."""


@dataclass(slots=True)
class Sent:
    """One message of a producer. `begun`: when its first attempt left."""

    uid: str
    topic: str
    queue_id: int
    tag: str
    kind: str
    body: bytes
    pairs: dict[str, str]
    poison: bool = False
    """Members that pull without order never get done with it: it ends in the dead letters of their groups."""
    begun: int = -1
    attempts: int = 0
    acked: bool = False
    position_max: int = 0
    """Log position below which it lies, if it was acknowledged."""
    excused: bool = False
    """A power loss was allowed to take it."""
    due_wall_ms: int = 0
    delay_ms: int = 0
    life: int = 0
    fate: str = ""
    """A transaction's, as its producer decided."""
    promised: str = ""
    """...and as the broker confirmed it."""
    commit_asked: bool = False
    places: dict[Place, int] = field(default_factory=dict)
    """Where it was seen in its own topic, and its log position."""


@dataclass(slots=True)
class Group:
    """A consumer group. `tag`: what it wants, or `*`."""

    name: str
    topics: tuple[str, ...]
    tag: str
    pops: bool
    ordered: bool = False
    """Pops: a batch of a queue comes when the one before it is acknowledged."""
    asked: dict[tuple[str, int], dict[int, None]] = field(default_factory=dict)
    """Ordered pops: offsets whose acknowledgement some member has sent."""
    consumed: dict[str, None] = field(default_factory=dict)
    excused: dict[str, None] = field(default_factory=dict)
    high: dict[tuple[str, int], int] = field(default_factory=dict)
    """First offset of a queue that no member asked for yet."""
    shadows: list[tuple[str, int, int, int]] = field(default_factory=list)
    """(topic, queue, from, to): offsets that members had passed when a power loss took them."""
    sent_back: dict[str, int] = field(default_factory=dict)
    """Position below which the newest copy of a message in the retry topic lies."""
    back_due: dict[tuple[str, int], list[tuple[int, int, int]]] = field(default_factory=dict)
    """(when, delay, life) of messages sent back, by the number of the attempt that they ask for."""
    done: dict[tuple[Place, str], tuple[int, int]] = field(default_factory=dict)
    """Pops: acknowledged entries, and where the log was then."""
    leased: dict[Place, tuple[int, str, int]] = field(default_factory=dict)
    """Pops: nobody else gets it before that time."""

    def shadowed(self, place: Place) -> bool:
        """It stands where members had been before a power loss."""
        return any(
            topic == place[0] and queue == place[1] and first <= place[2] < end
            for topic, queue, first, end in self.shadows
        )


class Ledger:
    """See the module."""

    def __init__(self, world: World, sync: bool) -> None:
        self.world = world
        self.sync = sync
        self.sent: dict[str, Sent] = {}
        self.groups: dict[str, Group] = {}
        self.node: Node | None = None
        self.crashes = self.losses = 0
        self.loss_ends: list[tuple[int, int]] = []
        """The process that came after a power loss, and how much of the log it found."""
        self.seen: dict[Place, tuple[str, int]] = {}
        """What was seen at a place, and where in the log."""
        self.loss_queues: list[tuple[int, dict[tuple[str, int], int]]] = []
        """...and the ends of its queues."""
        self.acked_high: dict[tuple[str, int], tuple[int, int]] = {}
        """Highest acknowledged offset of a queue, and its position."""
        self.holders: dict[tuple[str, str, int], tuple[str, int]] = {}
        """Who works on an orderly queue just now, and the broker's life in which it was locked."""
        self.orderly_done: dict[tuple[str, str, int], int] = {}
        self.deliveries = self.acks = self.dead = 0

    def check(self, holds: bool, invariant: str, text: str) -> None:
        """Raise if not."""
        if not holds:
            raise Violation(invariant, text)

    # Producers.

    def attempt(self, sent: Sent) -> None:
        """It leaves, once more."""
        assert self.node is not None
        if sent.begun < 0:
            sent.begun = self.world.now
            sent.life = self.node.life
            self.sent[sent.uid] = sent
        sent.attempts += 1

    def high_of(self, topic: str, queue_id: int) -> int:
        """For `acked`: before the attempt left."""
        return self.acked_high.get((topic, queue_id), (-1, 0))[0]

    def acked(self, sent: Sent, queue_id: int, offset: int, position: int, high: int, life: int) -> None:
        """SEND_OK, from the broker's process `life`."""
        assert self.node is not None
        self.acks += 1
        if life != self.node.life or not self.node.up:
            # The answer was on its way when the broker died. What it promises holds; where the log was then is not known any more.
            sent.acked = True
            sent.position_max = max(sent.position_max, position + 1)
            for since, end in self.loss_ends:
                if since > life:
                    self.check(
                        not self.sync or position < end,
                        "I1",
                        f"{sent.uid} was acknowledged at {position}, and the log ended at {end}",
                    )
                    sent.excused = not self.sync
            return
        sent.acked = True
        sent.excused = False
        sent.position_max = max(sent.position_max, self.node.store.written_position if not self.sync else position + 1)
        if sent.kind == PLAIN:
            self.observe(sent, (sent.topic, queue_id, offset), position)
            self.check(
                offset > high,
                "I4",
                f"{sent.uid} was acknowledged at {sent.topic}/{queue_id}@{offset}, and {high} before it was sent",
            )
            before = self.acked_high.get((sent.topic, queue_id), (-1, 0))
            self.acked_high[sent.topic, queue_id] = max(before, (offset, position))

    def decided(self, sent: Sent, fate: str) -> None:
        """The broker confirmed a decision."""
        self.check(sent.promised in ("", fate), "I8", f"{sent.uid}: the broker confirmed {fate} after {sent.promised}")
        sent.promised = fate

    # Consumers.

    def observe(self, sent: Sent, place: Place, position: int) -> None:
        """A message stands at a place: nothing else ever did, and it stands nowhere else that it was not sent to."""
        before = self.seen.get(place)
        self.check(
            before is None or before == (sent.uid, position), "I4", f"{place} shows {sent.uid}, before it was {before}"
        )
        self.seen[place] = (sent.uid, position)
        if place not in sent.places:
            sent.places[place] = position
            # A delayed message is delivered at least once: a crash between its delivery and the note of it repeats it.
            allowed = sent.attempts * (1 + (self.crashes if sent.kind in (DELAYED, TIMED) else 0))
            self.check(
                len(sent.places) <= allowed,
                "I3",
                f"{sent.uid} stands at {sorted(sent.places)} after {sent.attempts} attempts",
            )

    def message_of(self, body: bytes, topic: str, group: str) -> Sent:
        """Whose body that is."""
        uid = body.partition(b"|")[0].decode("utf-8", "replace")
        sent = self.sent.get(uid)
        if sent is None:
            raise Violation("I2", f"{topic}: {body[:40]!r} was never sent")
        self.check(sent.body == body, "I2", f"{uid} has another body")
        own = (sent.topic, names.RETRY_PREFIX + group, names.DLQ_PREFIX + group)
        self.check(topic in own, "I2", f"{uid} was sent to {sent.topic} and came from {topic}")
        return sent

    def delivered(self, group: Group, place: Place, body: bytes, position: int, pairs: dict[str, str] | None) -> Sent:
        """A member got it."""
        self.deliveries += 1
        sent = self.message_of(body, place[0], group.name)
        if pairs is not None:
            for name, value in sent.pairs.items():
                self.check(
                    pairs.get(name) == value, "I2", f"{sent.uid}: property {name} is {pairs.get(name)!r}, not {value!r}"
                )
        self.check(
            group.tag in ("*", sent.tag), "I2", f"{group.name} wants {group.tag} and got {sent.uid} with {sent.tag}"
        )
        if place[0] == sent.topic:
            fresh = place not in sent.places
            if position >= 0:
                self.observe(sent, place, position)
            if fresh:
                self._check_first(sent)
        return sent

    def _check_first(self, sent: Sent) -> None:
        """Nothing comes before its time or its commit."""
        clock = self.world.clock
        if sent.kind == HALF:
            self.check(sent.commit_asked, "I8", f"{sent.uid} is visible, and nobody committed it")
            self.check(sent.promised != ROLLBACK, "I8", f"{sent.uid} is visible, and was rolled back")
        elif sent.kind == TIMED:
            highest = clock.highest_wall_ms(sent.begun)
            self.check(
                highest >= sent.due_wall_ms - PRECISION_MS,
                "delay",
                f"{sent.uid} came {sent.due_wall_ms - highest} ms before its time",
            )
        elif sent.kind == DELAYED:
            waited = self.world.now - sent.begun
            self.check(
                self._has_waited(sent.begun, sent.delay_ms, sent.life),
                "delay",
                f"{sent.uid} came after {waited} ms, its delay is {sent.delay_ms} ms",
            )

    def _has_waited(self, begun: int, delay_ms: int, life: int) -> bool:
        """A level's delay is kept however the wall clock jumps, but of a record from before a start only the wall time is known."""
        assert self.node is not None
        if life != self.node.life and self.world.clock.jumped_since(begun):
            return True
        return self.world.now - begun >= delay_ms - LEVEL_SLACK_MS

    def consumed(self, group: Group, sent: Sent) -> None:
        """A member is done with it."""
        group.consumed[sent.uid] = None

    def passed(self, group: Group, topic: str, queue_id: int, following: int, life: int) -> None:
        """A member asks next for that offset, by an answer of the broker's process `life`."""
        assert self.node is not None
        key = (topic, queue_id)
        if life == self.node.life:
            group.high[key] = max(group.high.get(key, 0), following)
            return
        for since, ends in self.loss_queues:  # the answer came later than the loss of what it tells
            left = ends.get(key, 0)
            if since > life and following > left:
                group.shadows.append((topic, queue_id, left, following))

    def came_back(self, group: Group, sent: Sent, times: int) -> None:
        """A member got it from the retry topic."""
        asked = group.back_due.get((sent.uid, times))
        if asked is None:
            raise Violation("I2", f"{sent.uid} came to {group.name} for the attempt {times}, and nobody sent it back")
        self.check(
            any(self._has_waited(*one) for one in asked),
            "delay",
            f"{sent.uid} came back to {group.name} at {self.world.now} ms, sent back (when, delay, process): {asked}",
        )

    def sent_back(self, group: Group, sent: Sent) -> None:
        """The broker took it for another attempt."""
        assert self.node is not None
        position = self.node.store.written_position if self.node.up else 1 << 60
        group.sent_back[sent.uid] = max(group.sent_back.get(sent.uid, 0), position)

    # Orderly consumers.

    def hold(self, group: str, topic: str, queue_id: int, member: str, life: int) -> None:
        """A member begins to work on a message of that queue."""
        key = (group, topic, queue_id)
        other = self.holders.get(key)
        # Locks live in memory: one that a broker gave before it died does not bind the next process.
        if other is not None and other[0] != member and other[1] == life:
            raise Violation("I5", f"{member} and {other[0]} work on {topic}/{queue_id} of {group} at once")
        self.holders[key] = (member, life)

    def release(self, group: str, topic: str, queue_id: int, member: str) -> None:
        """It is done with the message, or gone."""
        if self.holders.get((group, topic, queue_id), ("", 0))[0] == member:
            del self.holders[group, topic, queue_id]

    def orderly(self, group: str, topic: str, queue_id: int, offset: int, same_life: bool) -> None:
        """An orderly group is done with an offset: with all before it, too. `same_life`: the broker's is that of the delivery."""
        key = (group, topic, queue_id)
        done = self.orderly_done.get(key, -1)
        while self.groups[group].shadowed((topic, queue_id, done + 1)):
            done += 1
        self.check(
            offset <= done + 1 or not same_life, "I5", f"{group} went from {done} to {offset} in {topic}/{queue_id}"
        )
        self.orderly_done[key] = max(done, offset)

    # Pops.

    def popped(self, group: Group, sent: Sent, place: Place, asked: int, until: int, member: str) -> None:
        """Given out, invisible to others until then at least. `asked`: when the pop was sent; one that was on its way already when
        another ended may have been answered before it, and its answer been late."""
        done = group.done.get((place, sent.uid))
        self.check(
            done is None or asked < done[1],
            "I3",
            f"{sent.uid} came again from {place} to {group.name}, which had acknowledged it",
        )
        leased = group.leased.get(place)
        if leased is not None and asked >= leased[2]:
            self.check(
                self.world.now >= leased[0],
                "I3",
                f"{sent.uid} at {place} went to {member} {leased[0] - self.world.now} ms before {leased[1]}'s lease ended",
            )
        group.leased[place] = (until, member, self.world.now)

    def popped_in_order(self, group: Group, topic: str, queue_id: int, offset: int) -> None:
        """An ordered pop began there: all before it is acknowledged."""
        asked = group.asked.get((topic, queue_id), {})
        missing = [earlier for earlier in range(offset) if earlier not in asked]
        self.check(
            not missing, "I5", f"{group.name} got {topic}/{queue_id}@{offset}, and nobody acknowledged {missing[:5]}"
        )

    def pop_asked(self, group: Group, place: Place) -> None:
        """A member acknowledges it."""
        group.asked.setdefault(place[:2], {})[place[2]] = None

    def pop_done(self, group: Group, sent: Sent, place: Place) -> None:
        """Its acknowledgement was answered."""
        assert self.node is not None
        group.leased.pop(place, None)
        position = self.node.store.written_position if self.node.up else 1 << 60
        group.done[place, sent.uid] = (position, self.world.now)

    # Crashes.

    def started(self) -> None:
        """See `node.Watcher`. Leases outlast a clean restart by the wall clock, which jumps here, and a crash not at all."""
        for group in self.groups.values():
            group.leased.clear()

    def recovered(self, node: Node, end: int, before: int, power: bool) -> None:
        """See `node.Watcher`."""
        self.crashes += 1
        if not power:
            self.check(end >= before, "I1", f"a killed process left the log up to {end}, it was written up to {before}")
            return
        self.losses += 1
        self.loss_ends.append((node.life, end))
        ends = {
            (topic, queue): node.store.max_offset(topic, queue)
            for topic in node.store.topics()
            for queue in node.store.queues_of(topic)
        }
        self.loss_queues.append((node.life, ends))
        for sent in self.sent.values():
            if sent.acked and sent.position_max > end:
                self.check(
                    not self.sync,
                    "I1",
                    f"{sent.uid} was acknowledged below {sent.position_max}, and the log ends at {end}",
                )
                sent.excused = True
            sent.places = {place: position for place, position in sent.places.items() if position < end}
        self.seen = {place: found for place, found in self.seen.items() if found[1] < end}
        self.acked_high = {queue: self._highest_below(queue, end) for queue, found in sorted(self.acked_high.items())}
        for key, done in list(self.orderly_done.items()):
            self.orderly_done[key] = min(done, node.store.max_offset(key[1], key[2]) - 1)
        for group in self.groups.values():
            self._cut_group(group, node, end)

    def _highest_below(self, queue: tuple[str, int], end: int) -> tuple[int, int]:
        found = [
            (place[2], position) for place, (_, position) in self.seen.items() if place[:2] == queue and position < end
        ]
        return max(found, default=(-1, 0))

    def _cut_group(self, group: Group, node: Node, end: int) -> None:
        group.done = {key: found for key, found in group.done.items() if found[0] <= end}
        for uid, position in list(group.sent_back.items()):
            if position > end and not self.sync:
                group.excused[uid] = None
        for (topic, queue_id), asked in group.asked.items():
            left = node.store.max_offset(topic, queue_id)
            group.asked[topic, queue_id] = {offset: None for offset in asked if offset < left}
        if group.pops:
            return
        for (topic, queue_id), high in group.high.items():
            left = node.store.max_offset(topic, queue_id)
            if high > left:
                # What others were given and a disk then lost is a gap in the group's own count: later messages at these offsets
                # are behind members that go on where they were, as with every broker that counts offsets.
                group.shadows.append((topic, queue_id, left, high))
                group.high[topic, queue_id] = left

    # The end.

    def owed(self, group: Group, dead: dict[str, None]) -> list[str]:
        """Messages that the group must still get."""
        found = []
        for sent in self.sent.values():
            if not sent.acked or sent.excused or sent.topic not in group.topics or group.tag not in ("*", sent.tag):
                continue
            if sent.kind == HALF and sent.fate != COMMIT:
                continue
            if sent.uid in group.consumed or sent.uid in dead or sent.uid in group.excused:
                continue
            if any(group.shadowed(place) for place in sent.places):
                continue
            found.append(sent.uid)
        return found

    def audit(self, topic: str, queue_id: int, records: list[Any]) -> None:
        """All that a queue holds at the end: dense, known, and where it was seen before."""
        offsets = [record.queue_offset for record in records]
        self.check(offsets == list(range(len(offsets))), "I4", f"{topic}/{queue_id} has offsets {offsets}")
        standing = {}
        for record in records:
            group = topic.partition("%")[2].partition("%")[2] if topic.startswith("%") else ""
            sent = self.message_of(record.body, topic, group)
            if topic == sent.topic:
                standing[topic, queue_id, record.queue_offset] = sent.uid
                fresh = (topic, queue_id, record.queue_offset) not in sent.places
                self.observe(sent, (topic, queue_id, record.queue_offset), record.physical_offset)
                if fresh:
                    self._check_first(sent)
        for place, (uid, _) in self.seen.items():
            if place[:2] == (topic, queue_id):
                self.check(standing.get(place) == uid, "I1", f"{uid} was seen at {place} and is not there at the end")
