"""Push delivery of one subscription: from the queues of its topic to its sink.

A subscription without filters has a place (cursor) in every queue of its topic, one with filters in a queue of its own, which holds what they match
(`routes.py`); while it begins in the past, in every queue of its topic, and filters are applied here (`places.py`). What it acquires goes into lanes, one
per sharding key: a lane has one event in flight, in order; lanes go on in parallel up to a limit. What waits behind an event that failed is parked: it is leased, and
its message is read again when its turn comes, so that it takes no room from other keys. A sink that asks for a pause gets one, and fewer requests at a time (`Pace`). After the last attempt the event goes to `%DLQ%<id>` and the lane goes on.
No I/O of its own: the port, the sender, time and chance are arguments.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol

from gantrymq.broker.port import POSITION_MASK, BrokerPort, Delivery, Outcome
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq_gateways.cloudevents.long_topics import LongTopics
from gantrymq_gateways.cloudevents.mapping import dead_letter, from_message, lane_of
from gantrymq_gateways.cloudevents.numbers import Came, EventNumbers, LastAttempt
from gantrymq_gateways.cloudevents.push.pace import Pace
from gantrymq_gateways.cloudevents.push.retry import RetryPolicy, Verdict, retry_after_ms, verdict_of
from gantrymq_gateways.cloudevents.rules.filters import Attributes
from gantrymq_gateways.cloudevents.subscription import Past, Sink, Subscription
from gantrymq_gateways.cloudevents.surroundings import Surroundings
from gantrymq_gateways.cloudevents.wire.client_connection import Answer
from gantrymq_gateways.cloudevents.wire.codec import encode_request
from gantrymq_gateways.cloudevents.wire.constants import ACQUIRE_MAX, PROCESS_WINDOW_BYTES, WINDOW_BYTES, WINDOW_EVENTS
from gantrymq_gateways.cloudevents.wire.event import Event

log = logging.getLogger(__name__)

HOLDER_BASE: Final = 0xCE << 40
"""Holders of this door, apart from the numbers of other doors at the same port."""
OWN: Final = -1
"""Instead of a queue id of the topic: the subscription's own queue."""
OVERLOADED: Final = frozenset({429, 503})
"""Statuses of a sink that has too much to do."""
OFFSET: Final = "/offset"
"""See `Subscription.seen`."""
ATTRIBUTES_MAX: Final = 256
"""Events whose attributes are remembered, of bodies below 4 KiB: subscriptions of one topic look at the same ones, one after the other."""
REMEMBERED_BYTES_MAX: Final = 4096
PARKED_MAX: Final = 100_000
"""Entries of one subscription that wait behind events that failed: some 200 bytes each. More of them hold up other keys."""
UNPARKED_AT_ONCE: Final = 16
"""Messages of a lane that are read again at once."""
ACQUIRES_PER_TURN: Final = 8
"""A subscription that skips a long backlog gives way to the sockets after so many batches."""


_NOTHING: Final = Message("", b"")
"""In place of a message that is not kept."""


class Attempt(Protocol):
    """A request on its way."""

    def cancel(self) -> None:
        """Nobody waits for its answer any more."""


class Sender(Protocol):
    """The HTTP client."""

    def send(
        self, sink: Sink, headers: list[tuple[bytes, bytes]], body: bytes, on_answer: Callable[[Answer], None]
    ) -> Attempt:
        """POST; `on_answer` once, later."""


@dataclass(frozen=True, slots=True)
class DeliveryConfig:
    """What all subscriptions share. Limits count requests in flight."""

    source: str
    policy: RetryPolicy
    per_subscription_max: int = 16
    process_max: int = 256


class PushHost:
    """What the pushes of one process share: settlements in batches, and the number of requests in flight."""

    def __init__(
        self, port: BrokerPort, topics: LongTopics, sender: Sender, around: Surroundings, config: DeliveryConfig
    ) -> None:
        self.port = port
        self.topics = topics
        self.sender = sender
        self.around = around
        self.config = config
        self.numbers = EventNumbers()
        self.in_flight = 0
        self.held_bytes = 0
        """Bodies acquired by all pushes."""
        self.waiting: deque[Push] = deque()
        self._offering = False
        self._holders = HOLDER_BASE
        self._settled: list[tuple[int, int, Outcome]] = []
        self._attributes: dict[int, Attributes] = {}

    def attributes_of(self, message: Message) -> Attributes:
        """Of its event; what one subscription has just looked at is not worked out again for the others. Raises GantryError."""
        found = self._attributes.get(message.physical_offset)
        if found is None:
            found = self.event_of(message).attributes
            if message.size < REMEMBERED_BYTES_MAX:
                if len(self._attributes) >= ATTRIBUTES_MAX:
                    self._attributes.clear()
                self._attributes[message.physical_offset] = found
        return found

    def event_of(self, message: Message) -> Event:
        """See `from_message`."""
        return from_message(message, self.config.source, self.topics.foreign)

    def new_holder(self) -> int:
        """A holder number for one push."""
        self._holders += 1
        return self._holders

    def settle(self, cursor: int, offset: int, outcome: Outcome) -> None:
        """Settle with the others of this turn: one record of the log for all."""
        if not self._settled:
            self.around.turn.at_append(self.flush)
        self._settled.append((cursor, offset, outcome))

    def flush(self) -> None:
        """Hand the settlements over now."""
        settled, self._settled = self._settled, []
        if settled:
            self.port.settle(settled)

    def begin(self, push: Push) -> bool:
        """Room for one more request? Every subscription may always have one, so that slow sinks cannot use up all."""
        if self.in_flight >= self.config.process_max and push.in_flight:
            if not push.queued:
                push.queued = True
                self.waiting.append(push)
            return False
        self.in_flight += 1
        return True

    def end(self) -> None:
        """A request is over; who waited longest goes on."""
        self.in_flight -= 1
        if self.waiting and not self._offering:
            self._offering = True
            self.around.turn.at_deliver(self._offer)

    def _offer(self) -> None:
        self._offering = False
        while self.waiting and self.in_flight < self.config.process_max:
            push = self.waiting.popleft()
            push.queued = False
            push.go_on()


class _Place:
    """A cursor in one queue of the topic, or in the subscription's own (`OWN`)."""

    __slots__ = ("acquiring", "asked", "at_end", "cursor", "queue", "ready")

    def __init__(self, queue: int, cursor: int) -> None:
        self.queue = queue
        self.cursor = cursor
        self.ready = True
        self.acquiring = False
        self.at_end = False
        """It is read no further."""
        self.asked = 0
        """Entries that the last acquire asked for."""


class _Entry:
    """One acquired message on its way to the sink."""

    __slots__ = ("attempts", "body", "cursor", "cuts", "headers", "message", "offset", "parked", "since_ms", "spared")

    def __init__(self, cursor: int, delivery: Delivery) -> None:
        self.cursor = cursor
        self.offset = delivery.offset
        self.message: Message = delivery.message
        self.parked: tuple[int, int] | None = None
        """Position and size of its record, if the message is not kept: then `message` is an empty one."""
        self.attempts = 0
        self.spared = 0
        """Attempts that the sink refused for its load; they are not held against the event."""
        self.since_ms = 0
        """Of the first attempt."""
        self.cuts = 0
        """See `Pace.cuts`."""
        self.headers: list[tuple[bytes, bytes]] | None = None
        self.body = b""


class _Lane:
    """Entries of one sharding key; the first is at work unless the lane is idle, and never parked but while it is read again."""

    __slots__ = ("attempt", "burials", "due_ms", "entries", "failing", "key", "parked", "timer")

    def __init__(self, key: str) -> None:
        self.key = key
        self.entries: deque[_Entry] = deque()
        self.attempt: Attempt | None = None
        self.timer = 0
        self.due_ms = 0
        """When the timer fires."""
        self.burials = 0
        self.failing = False
        """Its first entry waits for another attempt."""
        self.parked = 0


def _queue_of(message: Message) -> str:
    """The broker that stored it first, and its queue there: offsets in one such queue ascend."""
    return f"{message.store_host.hex()}/{message.queue_id}"


class Push:
    """Deliveries of one subscription, from `run` to `stop`."""

    def __init__(self, host: PushHost, subscription: Subscription, on_gone: Callable[[str], None]) -> None:
        self.subscription = subscription
        self.in_flight = 0
        self.queued = False
        """In the host's line for a request."""
        self._host = host
        self._on_gone = on_gone
        self._holder = host.new_holder()
        self._places: dict[int, _Place] = {}
        self._lanes: dict[str, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        self._held = 0
        self._held_bytes = 0
        self._parked = 0
        self._pace = Pace(host.config.per_subscription_max)
        self._paused = 0
        self._paused_until_ms = 0
        self._buried = 0
        self.last = LastAttempt()
        self.lag = 0
        """Events that wait in the queues or for their answer, when somebody last counted (registry)."""
        self._running = False
        self._filling = False
        self._continuing = False
        self._on_end: Callable[[], None] | None = None
        """While the queues of its topic are read to their end: called there."""
        self.seen = dict(subscription.seen)
        """See `Subscription.seen`."""

    @property
    def held(self) -> int:
        """Entries acquired and not settled, those left out that are parked."""
        return self._held

    @property
    def parked(self) -> int:
        """Entries whose messages are read again later."""
        return self._parked

    @property
    def cursors(self) -> list[int]:
        """Its places."""
        return list(self._places)

    def next_attempt_ms(self) -> int:
        """On the wheel's clock, when a sink that failed is tried again; 0: nothing waits for a time."""
        waiting = [lane.due_ms for lane in self._lanes.values() if lane.timer]
        if self._paused:
            return max(self._paused_until_ms, min(waiting, default=0) if not self._ready else 0)
        return 0 if self._ready else min(waiting, default=0)

    @property
    def queues(self) -> frozenset[int]:
        """Queue ids that have a place."""
        return frozenset(place.queue for place in self._places.values() if place.queue != OWN)

    @property
    def has_own_queue(self) -> bool:
        """Whether nothing is to be opened in the queues of its topic."""
        return self.subscription.light > 0 and self.subscription.past in (Past.NONE, Past.CLOSING)

    def add_own_place(self, cursor: int) -> None:
        """Deliver from its own queue, and from it alone."""
        self._places.clear()
        self.add_place(OWN, cursor)

    def read_to_end(self, on_end: Callable[[], None]) -> None:
        """Read the queues of the topic only to where they end; `on_end` once, when all of that is delivered."""
        self._on_end = on_end

    def add_place(self, queue: int, cursor: int) -> None:
        """Deliver from one more queue."""
        if queue != OWN and self.has_own_queue:  # It was opened while the last ones came to their end.
            self._host.port.delete_cursor(cursor, None, lambda token, result: None)
            return
        self._places[cursor] = _Place(queue, cursor)
        if self._running:
            self._host.port.watch(cursor, self._on_ready)
            self._fill()

    def run(self) -> None:
        """Begin to deliver."""
        self._running = True
        for cursor in list(self._places):
            self._host.port.watch(cursor, self._on_ready)
        self._fill()

    # -- acquiring -----------------------------------------------------------------------------------------------

    def _on_ready(self, cursor: int) -> None:
        place = self._places.get(cursor)
        if place is not None and not place.at_end:
            place.ready = True
            self._fill()

    def _fill(self) -> None:
        """Acquire while there is room and something ready."""
        if self._filling or not self._running:
            return
        self._filling = True
        budget = ACQUIRES_PER_TURN
        for place in list(self._places.values()):
            while budget and self._wants(place):
                budget -= 1
                place.acquiring = True
                full = self._host.held_bytes >= PROCESS_WINDOW_BYTES
                count = place.asked = 1 if full else ACQUIRE_MAX
                room = WINDOW_BYTES - self._held_bytes
                self._host.port.acquire(place.cursor, self._holder, count, room, place, self._acquired)
        self._filling = False
        if not budget and not self._continuing and any(self._wants(place) for place in self._places.values()):
            self._continuing = True
            self._host.around.turn.at_deliver(self._continue)
        self._send_ready()
        if self._on_end is not None and not self._lanes and all(place.at_end for place in self._places.values()):
            on_end, self._on_end = self._on_end, None
            on_end()

    def _wants(self, place: _Place) -> bool:
        return (
            place.ready
            and not place.acquiring
            and self._running
            and self._held <= WINDOW_EVENTS - ACQUIRE_MAX  # or each answer would fetch one entry
            and self._held_bytes < WINDOW_BYTES
            and (not self._held or self._host.held_bytes < PROCESS_WINDOW_BYTES)
        )

    def _continue(self) -> None:
        self._continuing = False
        self._fill()

    def _acquired(self, place: _Place, result: list[Delivery] | GantryError) -> None:
        place.acquiring = False
        if isinstance(result, GantryError):
            place.ready = False
            if result.code in (ErrorCode.NOT_FOUND, ErrorCode.QUEUE_NOT_FOUND, ErrorCode.TOPIC_NOT_FOUND):
                self._places.pop(place.cursor, None)  # The topic is gone; its return is seen by the registry.
                self._fill()
            elif result.code is not ErrorCode.UNAVAILABLE:
                self._later(self._host.config.policy.first_ms, lambda: self._on_ready(place.cursor))
            return
        if not self._running:
            for delivery in result:
                self._host.settle(place.cursor, delivery.offset, Outcome.RELEASE)
            return
        if len(result) < place.asked:
            place.ready = False  # The next entry calls the watcher, at once if there is one.
            if self._on_end is not None:
                place.at_end = True
                self._host.port.watch(place.cursor, None)
        for delivery in result:
            if not self._is_wanted(place, delivery.message):
                self._host.settle(place.cursor, delivery.offset, Outcome.ACK)
                continue
            self._held += 1
            self._held_bytes += len(delivery.message.body)
            self._host.held_bytes += len(delivery.message.body)
            key = lane_of(delivery.message)
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = _Lane(key)
                self._ready.append(lane)
            lane.entries.append(_Entry(place.cursor, delivery))
            if lane.failing or lane.parked:
                self._park(lane, lane.entries[-1])
        self._fill()

    def _is_wanted(self, place: _Place, message: Message) -> bool:
        subscription = self.subscription
        if place.queue == OWN:
            if self.seen and self._was_seen(message):
                return False  # It was delivered from there.
            return not subscription.is_late or self._matches(message)
        if self._on_end is not None:
            self.seen[_queue_of(message) + OFFSET] = message.queue_offset
        return subscription.matches_all or self._matches(message)

    def _was_seen(self, message: Message) -> bool:
        queue = _queue_of(message)
        offset = self.seen.get(queue + OFFSET)
        if offset is not None:
            return message.queue_offset <= offset
        return message.physical_offset & POSITION_MASK <= self.seen.get(queue, -1)

    def _matches(self, message: Message) -> bool:
        try:
            return self.subscription.matches(self._host.attributes_of(message))
        except GantryError:
            return True  # It cannot be read; the lane sends it to the dead letters, with the reason.

    # -- parking -------------------------------------------------------------------------------------------------

    def _park(self, lane: _Lane, entry: _Entry) -> None:
        """Keep its place alone, while there is room for that."""
        if entry.parked is not None or self._parked >= PARKED_MAX:
            return
        message = entry.message
        self._let_go(message)
        entry.parked = (message.physical_offset, message.size)
        entry.message = _NOTHING
        lane.parked += 1
        self._parked += 1

    def _let_go(self, message: Message) -> None:
        self._held -= 1
        self._held_bytes -= len(message.body)
        self._host.held_bytes -= len(message.body)

    def _fails(self, lane: _Lane) -> None:
        """The lane's first entry waits: those behind it take no room."""
        if not lane.failing:
            lane.failing = True
            for entry in islice(lane.entries, 1, None):
                self._park(lane, entry)
            self._fill()

    def _unpark(self, lane: _Lane) -> None:
        """Read the next messages of a lane whose first entry is parked, and go on with it."""
        wanted = [entry for entry in islice(lane.entries, UNPARKED_AT_ONCE) if entry.parked is not None]

        def read(token: Any, result: list[Message | None] | GantryError) -> None:
            if not self._running:
                return
            if isinstance(result, GantryError) or (None in result and self._is_acquiring()):
                self._wait(lane, self._host.config.policy.first_ms, lambda: self._unpark(lane))
                return
            if None in result:
                self._give_back(lane)
                return
            for entry, message in zip(wanted, result, strict=True):
                assert message is not None
                entry.message, entry.parked = message, None
                lane.parked -= 1
                self._parked -= 1
                self._held += 1
                self._held_bytes += len(message.body)
                self._host.held_bytes += len(message.body)
            self._ready.append(lane)
            self._send_ready()

        self._host.port.read([entry.parked for entry in wanted if entry.parked is not None], None, read)

    def _is_acquiring(self) -> bool:
        return any(place.acquiring for place in self._places.values())

    def _give_back(self, lane: _Lane) -> None:
        """Its records lie elsewhere by now (retention moves what is alive): all of the lane is acquired again, in order. Nothing of it may be on its
        way meanwhile, and it is given back before more is asked for."""
        for entry in lane.entries:
            self._host.settle(entry.cursor, entry.offset, Outcome.RELEASE)
            if entry.parked is None:
                self._let_go(entry.message)
        self._parked -= lane.parked
        del self._lanes[lane.key]
        self._host.flush()
        for place in self._places.values():
            place.ready = not place.at_end
        self._fill()

    # -- sending -------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """The host has room again."""
        self._send_ready()

    def _send_ready(self) -> None:
        ready = self._ready
        while ready and self._running and not self._paused and self.in_flight < self._pace.limit:
            if not self._host.begin(self):
                return
            self.in_flight += 1
            self._send(ready.popleft())

    def _send(self, lane: _Lane) -> None:
        entry = lane.entries[0]
        entry.attempts += 1
        entry.cuts = self._pace.cuts
        entry.since_ms = entry.since_ms or self._host.around.wheel.now_ms()
        if entry.headers is None:
            try:
                event = self._host.event_of(entry.message)
                entry.headers, entry.body = encode_request(event, self.subscription.structured)
            except GantryError as error:
                self._finished()
                self._bury(lane, entry, Answer(0, failure=error.text))
                return
        headers = [
            *entry.headers,
            (b"gantry-subscription", self.subscription.id.encode()),
            (b"gantry-attempt", b"%d" % entry.attempts),
        ]
        lane.attempt = self._host.sender.send(
            self.subscription.sink, headers, entry.body, lambda answer: self._answered(lane, entry, answer)
        )

    def _finished(self) -> None:
        self.in_flight -= 1
        self._host.end()

    def _answered(self, lane: _Lane, entry: _Entry, answer: Answer) -> None:
        lane.attempt = None
        self._finished()
        if not self._running:
            return
        verdict = Verdict.RETRY if not answer.status else verdict_of(answer.status)
        asked_ms = self._asked_ms(answer) if verdict is Verdict.RETRY else None
        self.last = LastAttempt(answer.status, answer.failure, self._host.around.clock.now_ms())
        if answer.unsent:
            entry.attempts -= 1
        elif answer.status in OVERLOADED:
            entry.spared += asked_ms is not None
            self._pace.refused(entry.cuts)
        else:
            self._pace.answered(200 <= answer.status < 300)
        count = self._host.numbers.attempts
        if verdict is Verdict.DONE:
            count[Came.DELIVERED] += 1
            self._advance(lane, entry, Outcome.ACK)
        elif verdict is Verdict.GONE:
            count[Came.GONE] += 1
            self._on_gone(f"the sink answered {answer.status} Gone")
        elif verdict is Verdict.FINAL or self._is_given_up(entry, answer, asked_ms):
            count[Came.GIVEN_UP] += 1
            self._bury(lane, entry, answer)
        else:
            overloaded = Came.OVERLOADED if answer.status in OVERLOADED else Came.RETRIED
            count[Came.UNSENT if answer.unsent else overloaded] += 1
            self._retry(lane, entry, answer, asked_ms)
        self._send_ready()

    def _asked_ms(self, answer: Answer) -> int | None:
        now_ms = self._host.around.clock.now_ms()
        return retry_after_ms(answer.retry_after, now_ms, self._host.config.policy.retry_after_max_ms)

    def _is_given_up(self, entry: _Entry, answer: Answer, asked_ms: int | None) -> bool:
        """By age if the sink only asked to wait, or we had no means to send; by attempts after a failure."""
        if answer.unsent or (asked_ms is not None and answer.status in OVERLOADED):
            return self._host.around.wheel.now_ms() - entry.since_ms >= self.subscription.age_max_ms
        return entry.attempts - entry.spared >= self.subscription.attempts_max

    def _retry(self, lane: _Lane, entry: _Entry, answer: Answer, asked_ms: int | None) -> None:
        policy, around = self._host.config.policy, self._host.around
        delay_ms = policy.delay_ms(max(entry.attempts - entry.spared, 1), around.chance)
        if asked_ms is not None and answer.status in OVERLOADED:
            # webhook 2.2: the target, not only this event, waits; longer each time that it refuses the probe, too.
            delay_ms = max(asked_ms, policy.delay_ms(max(self._pace.refusals, 1), around.chance))
            self._pause(delay_ms)
        elif asked_ms is not None:
            delay_ms = max(delay_ms, asked_ms)
        log.debug("%s: attempt %d: %s", self.subscription.id, entry.attempts, answer)
        self._fails(lane)
        self._wait(lane, delay_ms, lambda: self._ready.append(lane))

    def _wait(self, lane: _Lane, delay_ms: int, then: Callable[[], None]) -> None:
        def due(now_ms: int) -> None:
            lane.timer = 0
            if self._running:
                then()
                self._send_ready()

        wheel = self._host.around.wheel
        lane.due_ms = wheel.now_ms() + delay_ms
        lane.timer = wheel.call_at(lane.due_ms, due)

    def _later(self, delay_ms: int, then: Callable[[], None]) -> None:
        wheel = self._host.around.wheel
        wheel.call_at(wheel.now_ms() + delay_ms, lambda now_ms: then() if self._running else None)

    def _pause(self, delay_ms: int) -> None:
        wheel = self._host.around.wheel
        until_ms = wheel.now_ms() + max(delay_ms, 1)
        if self._paused:
            if until_ms <= self._paused_until_ms:
                return
            wheel.cancel(self._paused)
        self._paused_until_ms = until_ms

        def due(now_ms: int) -> None:
            self._paused = 0
            if self._running:
                self._pace.pause_ended()
                self._send_ready()

        self._paused = wheel.call_at(until_ms, due)

    def _advance(self, lane: _Lane, entry: _Entry, outcome: Outcome) -> None:
        """The lane's first entry is done; the next may go."""
        self._host.settle(entry.cursor, entry.offset, outcome)
        lane.entries.popleft()
        lane.burials = 0
        lane.failing = False
        self._let_go(entry.message)
        if lane.entries and lane.entries[0].parked is not None:
            self._unpark(lane)
        elif lane.entries:
            self._ready.append(lane)
        else:
            del self._lanes[lane.key]
        self._fill()

    # -- dead letters --------------------------------------------------------------------------------------------

    def _bury(self, lane: _Lane, entry: _Entry, answer: Answer) -> None:
        """Store the event in `%DLQ%<id>`; it leaves its queue when that is stored, not before."""
        reason = answer.failure or f"the sink answered {answer.status}"
        letter = dead_letter(entry.message, self.subscription.id, reason, answer.status, entry.attempts)

        def stored(token: Any, result: list[int | ErrorCode] | GantryError) -> None:
            outcome = result if isinstance(result, GantryError) else result[0]
            if not self._running:
                return
            if isinstance(outcome, int):
                self._buried += 1
                self._host.numbers.dead_letters += 1
                if str(self._buried).strip("0") == "1":  # 1, 10, 100, ...: a sink that refuses all fills no log.
                    log.warning(
                        "%s: given up and put into %s: %s (event %d to go there since the start)",
                        self.subscription.id,
                        letter.topic,
                        reason,
                        self._buried,
                    )
                self._advance(lane, entry, Outcome.DROP)
                self._send_ready()
                return
            lane.burials += 1
            self._fails(lane)
            log.warning("%s: %s cannot be written: %s", self.subscription.id, letter.topic, outcome)
            delay_ms = self._host.config.policy.delay_ms(lane.burials, self._host.around.chance)
            self._wait(lane, delay_ms, lambda: self._bury(lane, entry, answer))

        self._host.port.submit((letter,), None, stored)

    # -- the end -------------------------------------------------------------------------------------------------

    def stop(self, port_lost: bool = False) -> list[int]:
        """End at once and give back what is held (not if the port is lost); the cursors in queues of the topic, for who deletes them."""
        cursors = list(self._places)
        of_topic = [place.cursor for place in self._places.values() if place.queue != OWN]
        self._on_end = None
        self._running = False
        wheel = self._host.around.wheel
        if self._paused:
            wheel.cancel(self._paused)
            self._paused = 0
        for lane in self._lanes.values():
            if lane.timer:
                wheel.cancel(lane.timer)
            if lane.attempt is not None:
                lane.attempt.cancel()
                lane.attempt = None
                self._finished()
            if not port_lost:
                for entry in lane.entries:
                    outcome = Outcome.REQUEUE if entry.attempts else Outcome.RELEASE
                    self._host.settle(entry.cursor, entry.offset, outcome)
        if not port_lost:
            self._host.flush()
            for cursor in cursors:
                self._host.port.watch(cursor, None)
        self._lanes.clear()
        self._ready.clear()
        self._places.clear()
        self._host.held_bytes -= self._held_bytes
        self._held = self._held_bytes = self._parked = 0
        return of_topic
