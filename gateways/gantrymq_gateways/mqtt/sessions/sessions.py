"""Sessions of connected clients: what waits for a client, in which order it goes out, and what its acknowledgements settle.

`VolatileSession` (clean): live messages come straight from the tap; what cannot be sent at once waits as a position in the log.
`PersistentSession`: one cursor per filter in the filter's light queue, merged in log order, an overlap delivered once.
Retained messages wait in front of both. How sessions come and go: lifecycle.py.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from gantrymq.broker.port import Delivery, Outcome
from gantrymq.metrics import Counter
from gantrymq.model.errors import GantryError
from gantrymq.model.message import Message
from gantrymq_gateways.mqtt.messages.deliver import Outlet, body_of, bridge_property
from gantrymq_gateways.mqtt.messages.exchange import AWAITING_RECEIPT, RELEASED, Inbound, Kept, Place, Released, Twice
from gantrymq_gateways.mqtt.messages.facts import facts_of
from gantrymq_gateways.mqtt.messages.grants import PLAIN, QOS, Grant, combine, identifier_of
from gantrymq_gateways.mqtt.messages.receipts import (
    IDS,
    Outbound,
    Receiving,
    identifier_of_place,
    place_of,
)
from gantrymq_gateways.mqtt.retained import Retained, RetainedStore
from gantrymq_gateways.mqtt.routes import MqttRoutes
from gantrymq_gateways.mqtt.sessions.hold import Hold
from gantrymq_gateways.mqtt.topics.exclusive import plain
from gantrymq_gateways.mqtt.topics.mapping import SYS_PREFIX, DeliveryTopics
from gantrymq_gateways.mqtt.topics.rules import NO_RULES, TopicRules
from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.properties import encode_one
from gantrymq_gateways.mqtt.wire.reasons import Reason

log = logging.getLogger(__name__)

READ_MAX: Final = 256
"""Waiting records read back in one call."""

ASK_MAX: Final = 64
"""Filters of one session that are asked for entries in one loop turn, about 2 ms."""

ACQUIRE_BYTES: Final = 1024 * 1024
"""Bodies fetched ahead for one session, all its filters together."""

RETAINED_WAITING_MAX: Final = 500_000
"""Retained messages that wait for one client, some 40 MiB: five filters that all match everything kept by default. Who asks for more
without reading is cut off. Where more is kept, see RETAINED_WAITING_FILTERS."""

RETAINED_WAITING_FILTERS: Final = 5
"""Filters that all match everything which `mqtt.retained_max` allows, and may wait for one client: fewer would refuse one `#`."""

MATCHES_CACHE_MAX: Final = 1_000
"""Topics of one session whose matching filters are kept."""


class SessionPort(Protocol):
    """What a session needs from the broker while it is connected."""

    def read(self, refs: list[tuple[int, int]], token: object, on_done: Callable[[Any, Any], None]) -> None: ...

    def acquire(
        self,
        cursor: int,
        holder: int,
        count_max: int,
        bytes_max: int,
        token: object,
        on_done: Callable[[Any, Any], None],
    ) -> None: ...

    def watch(self, cursor: int, on_ready: Callable[[int], None] | None) -> None: ...

    def release(self, holder: int) -> None: ...


@dataclass(slots=True)
class SessionTools:
    """What all sessions of a gateway share. `settle` collects outcomes; one call to the broker per loop turn."""

    port: SessionPort
    topics: DeliveryTopics
    settle: Callable[[int, int, Outcome], None]
    volatile_entries_max: int
    later: Callable[[Callable[[], None]], None]
    """Hands a callback to the next loop turn."""
    retained_waiting_max: int = RETAINED_WAITING_MAX
    rules: TopicRules = NO_RULES
    now_ms: Callable[[], int] = lambda: 0
    """The wall clock, for messages that expire."""
    volatile_entries_full: str = "disconnect"
    volatile_bytes_max: int = 0
    """Of records that wait for a clean session; 0: no limit."""
    backlog_dropped: Counter = field(default_factory=Counter)
    """Messages that a clean session had no room for."""
    note_receipts: Callable[[Outbound], None] = lambda outbound: None
    """See `Receipts.note`."""
    wants_sys: Callable[[Any], None] = lambda session: None
    """Hears of a session with a filter below `$SYS/`."""
    flush_settled: Callable[[], None] = lambda: None
    """Hands what `settle` collected to the broker now."""
    note_topic: Callable[[str, str], None] = lambda first_level, native: None
    """See `LongTopics.note`."""
    replays_max: int = 0
    """Subscriptions from the past at once; 0: any number."""


class Fail(Protocol):
    """Closes a connection, with the reason."""

    def __call__(self, text: str, reason: Reason = Reason.UNSPECIFIED) -> None: ...


class Owed:
    """Retained messages of one filter on their way to a persistent session."""

    __slots__ = ("left", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.left = 0
        """How many must still be acknowledged."""


class Acknowledged(Protocol):
    """What somebody else wants to know the end of."""

    def acknowledged(self) -> None: ...


class Share(Protocol):
    """A group of which the session is a member (shared_group.py)."""

    text: str

    def wake(self) -> None: ...

    def detach(self, session: Session) -> None: ...


Waiting = tuple[Retained, int, Owed | None, str]
"""A retained message that a new subscription found, what that was granted (grants.py), whom it is owed to, and the filter."""


NOTHING: Final[deque[Any]] = deque(maxlen=0)
"""What waits where nothing has waited yet: a deque of its own takes 760 bytes of every connection. Never added to."""


def _nobody_asks(_told: Any) -> None:
    """Until somebody sets something else."""


class Session:
    """What both kinds have in common."""

    def __init__(self, client_id: str, tools: SessionTools, outlet: Outlet, fail: Fail) -> None:
        self.client_id = client_id
        self.tools = tools
        self.outlet = outlet
        self.fail = fail
        """Close the connection, with the reason."""
        self.retained: deque[Waiting] = NOTHING
        self._found: frozenset[str] = frozenset()
        """Filters that found something since nothing waited last."""
        self.attached = True
        self.held = False
        """Subscriptions are being added: what waits in light queues stays there until their overlaps can be seen."""
        self.check_filter: Callable[[str], None] = _nobody_asks
        """Raises GantryError for a filter that its user may not have."""
        self.user = ""
        """Whose it is; empty without authentication."""
        self.on_owed: Callable[[str], None] = _nobody_asks
        """All retained messages of a filter were acknowledged."""
        self.on_no_local: Callable[[bytes], None] = _nobody_asks
        """A subscription does not want the client's own messages: they need this mark."""
        self.inbound = Inbound()
        """What it publishes with QoS 2."""
        self.expiry_s = 0
        """How long it outlives its connection."""
        self.changed_expiry_s: int | None = None
        """The same, when DISCONNECT said something else."""
        self.shares: dict[str, Share] = {}
        """Its shared subscriptions."""
        self.shared_with: frozenset[Share] = frozenset()
        """...and those that it had before and may have messages of."""

    def subscribed_again(self, filters: Iterable[str]) -> None:
        """Forget what still waits for these: it is sent once more [MQTT-3.8.4-3], but not three times. One pass for a whole packet."""
        again = self._found.intersection(filters)
        if again:
            self._found -= again
            self.retained = deque([entry for entry in self.retained if entry[3] not in again])

    def find_retained(self, store: RetainedStore, text: str, granted: int, found: list[Waiting]) -> Iterator[None]:
        """Look for what a new subscription finds, for `send_retained`: a little per step."""
        owed = Owed(text) if self.remembers else None
        for message in store.walk(plain(text)):
            if message is not None:
                if message.is_over(self.tools.now_ms()):
                    yield
                    continue
                qos = min(message.qos, granted & QOS)
                if qos and owed is not None:
                    owed.left += 1
                found.append((message, granted & ~QOS | qos, owed, text))
            yield

    def subscribed(self, granted: dict[str, int]) -> None:
        """Subscriptions were granted. With no local, this client's messages say from now on who published them."""
        if any(text.startswith(SYS_PREFIX) for text in granted):
            self.tools.wants_sys(self)
        if any(number & c.OPTION_NO_LOCAL for number in granted.values()):
            self.outlet.mark = bridge_property(self.client_id)
            self.on_no_local(self.outlet.mark)

    def filters(self) -> set[str]:
        """Its subscriptions that are not shared."""
        raise NotImplementedError

    def granted_below(self, prefix: str) -> dict[str, int]:
        """Its filters that begin so, with what each was granted."""
        raise NotImplementedError

    def send_retained(self, found: dict[str, list[Waiting]]) -> None:
        """Queue what new subscriptions found, by filter; call `pump` afterwards."""
        if found:
            self._found = self._found.union(found)
            if self.retained is NOTHING:
                self.retained = deque()
        for messages in found.values():
            self.retained.extend(messages)
        self.outlet.direct = False

    @property
    def remembers(self) -> bool:
        return False

    def is_attached(self) -> bool:
        """False once the connection is gone."""
        return self.attached

    def acknowledged(self, packet_id: int) -> None:
        """PUBACK. An unknown packet identifier is ignored: it may be one from before."""
        settles = self.outlet.inflight.pop(packet_id, None)
        if settles is None:
            return
        if isinstance(settles, Twice | Receiving | Released):
            self.outlet.inflight[packet_id] = settles  # A PUBACK is no answer to QoS 2.
            return
        self._done(settles)

    def _done(self, settles: Any) -> None:
        if isinstance(settles, list):
            for cursor, offset in settles:
                self.tools.settle(cursor, offset, Outcome.ACK)
        elif isinstance(settles, Owed):
            self._pay(settles)
        elif settles is not None:
            taken: Acknowledged = settles
            taken.acknowledged()

    def received(self, packet_id: int, reason: int) -> None:
        """PUBREC [MQTT-4.3.3-1] [MQTT5-4.3.3-4]. With a failure the message is done, and its identifier free [MQTT5-4.3.3-3]."""
        inflight = self.outlet.inflight
        state = inflight.get(packet_id)
        if isinstance(state, Twice):
            if reason >= Reason.UNSPECIFIED:
                del inflight[packet_id]
                self._done(state.settles)
            else:
                self._release(packet_id, state)
        elif reason < Reason.UNSPECIFIED and not isinstance(state, Receiving):
            # Sent again, or from before a crash: the client must get rid of it.
            known = isinstance(state, Released)
            self.send_ack(c.PUBREL, packet_id, 0 if known else Reason.PACKET_ID_NOT_FOUND)

    def _release(self, packet_id: int, state: Twice) -> None:
        self.outlet.inflight[packet_id] = RELEASED
        self._done(state.settles)
        self.send_ack(c.PUBREL, packet_id)

    def completed(self, packet_id: int) -> None:
        """PUBCOMP: the identifier is free [MQTT-2.3.1-2]."""
        if isinstance(self.outlet.inflight.get(packet_id), Released):
            del self.outlet.inflight[packet_id]

    def send_ack(self, kind: int, packet_id: int, reason: int = 0) -> None:
        """An acknowledgement of ours; a reason code where the version has one."""
        self.outlet.connection.send(codec.encode_ack(kind, packet_id, reason if self.outlet.five else 0))
        self.outlet.link.mark()

    def _pay(self, owed: Owed) -> None:
        owed.left -= 1
        if not owed.left:
            self.on_owed(owed.text)

    def pump(self) -> None:
        """Send what waits, as far as there is room."""
        raise NotImplementedError

    def wake_shares(self) -> None:
        """There is room, perhaps: its groups look."""
        for share in self.shares.values():
            share.wake()

    def detach(self) -> None:
        """The connection is gone."""
        self.attached = False

    def _pump_retained(self) -> bool:
        """True if nothing retained waits any more."""
        outlet = self.outlet
        while self.retained:
            message, granted, owed, _ = self.retained[0]
            qos = granted & QOS
            if outlet.blocked or (qos and outlet.room() <= 0):
                return False
            self.retained.popleft()
            kept = message.kept and not message.is_over(self.tools.now_ms())
            best = min(qos, message.qos) if kept else -1
            sent = False
            if best >= 0:
                listed = self._listed(message, granted) if outlet.five else b""
                # [MQTT-3.3.1-8] [MQTT5-3.3.1-9]: retain is 1 because the subscription is new.
                settles = Twice(owed) if best == 2 else owed
                sent = outlet.publish(message.topic_bytes, message.payload, best << 1 | 1, settles, 0, listed)
            if qos and owed is not None and not (sent and best):
                self._pay(owed)  # Another message, or none, is retained there by now: no acknowledgement will come.
        self._found = frozenset()
        return True

    def _listed(self, message: Retained, granted: int) -> bytes:
        """Properties of a retained message as they stand in a PUBLISH."""
        listed = identifier_of(granted) + message.listed
        if message.expires_ms:
            left_s = max(0, (message.expires_ms - self.tools.now_ms() + 999) // 1000)
            listed += encode_one(p.MESSAGE_EXPIRY, left_s)  # [MQTT5-3.3.2-6]
        return listed


class VolatileSession(Session):
    """A clean session: it ends with its connection."""

    def __init__(self, client_id: str, tools: SessionTools, outlet: Outlet, fail: Fail) -> None:
        super().__init__(client_id, tools, outlet, fail)
        self.subscriptions: dict[str, int] = {}
        self.backlog: deque[tuple[int, int, Grant]] = NOTHING
        """(position, size, what it was granted)."""
        self._backlog_bytes = 0
        """Their sizes together."""
        self._reading = False
        self._has_dropped = False

    def filters(self) -> set[str]:
        return set(self.subscriptions)

    def granted_below(self, prefix: str) -> dict[str, int]:
        return {text: granted for text, granted in self.subscriptions.items() if text.startswith(prefix)}

    def defer(self, message: Message, grant: Grant) -> None:
        """A live message of QoS 1 or 2 that cannot go out now: keep its place in the log."""
        while text := self._is_full(message.size):
            if not self._make_room(text):
                return
        if self.backlog is NOTHING:
            self.backlog = deque()
        self.backlog.append((message.physical_offset, message.size, grant))
        self._backlog_bytes += message.size
        self.outlet.direct = False

    def _is_full(self, size: int) -> str:
        """Which limit a record of so many bytes would break; empty: none. One is taken, however large."""
        tools = self.tools
        if len(self.backlog) >= tools.volatile_entries_max:
            return f"mqtt.volatile_entries_max ({tools.volatile_entries_max}) messages"
        if self.backlog and 0 < tools.volatile_bytes_max < self._backlog_bytes + size:
            return f"mqtt.volatile_bytes_max ({tools.volatile_bytes_max}) bytes of messages"
        return ""

    def _make_room(self, text: str) -> bool:
        """False: the new message is not kept."""
        if self.tools.volatile_entries_full == "disconnect":
            self.fail(f"more than {text} wait for it", Reason.QUOTA_EXCEEDED)
            return False
        self.tools.backlog_dropped.value += 1
        if not self._has_dropped:
            self._has_dropped = True
            log.warning("client %s: falls behind, messages are dropped: %s", self.client_id, text)
        if self.tools.volatile_entries_full == "drop_newest":
            return False
        self._pop()
        return True

    def _pop(self) -> tuple[int, int, Grant]:
        entry = self.backlog.popleft()
        self._backlog_bytes -= entry[1]
        return entry

    def pump(self) -> None:
        self.wake_shares()
        if not self.attached or self._reading or not self._pump_retained():
            return
        room = self.outlet.room()
        if self.backlog and room > 0:
            refs = self._next_refs(min(room, READ_MAX))
            self._reading = True
            self.tools.port.read([(position, size) for position, size, _ in refs], refs, self._read)
            return
        self.outlet.direct = not self.backlog and not self.outlet.blocked

    def _next_refs(self, count_max: int) -> list[tuple[int, int, Grant]]:
        """At least one, and no more bytes than are held for a session at a time."""
        refs: list[tuple[int, int, Grant]] = []
        size = 0
        while self.backlog and len(refs) < count_max:
            size += self.backlog[0][1]
            if refs and size > ACQUIRE_BYTES:
                break
            refs.append(self._pop())
        return refs

    def _read(self, refs: list[tuple[int, int, Grant]], result: Any) -> None:
        self._reading = False
        if not self.attached:
            return
        if isinstance(result, GantryError):
            self.fail(f"records that wait for it cannot be read: {result}")
            return
        for index, message in enumerate(result):
            if self.outlet.room() <= 0:
                # Blocked by its own size meanwhile: the rest goes back in front.
                self.backlog.extendleft(reversed(refs[index:]))
                self._backlog_bytes += sum([size for _, size, _ in refs[index:]])
                break
            if message is not None:
                self._send(message, refs[index][2])
        self.pump()

    def _send(self, message: Message, grant: Grant) -> None:
        topic = self.tools.topics.get(message.topic, message.tag)
        body = body_of(message)
        facts = facts_of(message)
        now_ms = self.tools.now_ms() if facts.expires_ms else 0
        if topic and body is not None and not facts.is_over(now_ms):
            qos = min(grant.qos, facts.qos)
            flags = qos << 1 | self.outlet.retain_flag(facts, grant.retains)
            listed = grant.listed + facts.listed(now_ms) if self.outlet.five else b""
            self.outlet.publish(topic, body, flags, AWAITING_RECEIPT if qos == 2 else None, 0, listed)

    def detach(self) -> None:
        super().detach()
        self.backlog.clear()
        self.retained.clear()


class Fetch(Enum):
    """Where a cursor's entries are."""

    IDLE = "nothing ready; the watcher will tell"
    WANTED = "to be asked"
    ASKED = "acquire is under way"
    LOADED = "entries in the buffer"


class Subscription:
    """One filter of a persistent session."""

    __slots__ = ("asked_at", "buffer", "cursor", "fetch", "granted", "light", "loaded_at", "number", "text")

    def __init__(self, text: str, granted: int, cursor: int, number: int, light: int) -> None:
        self.text = text
        self.light = light
        """Its queue."""
        self.granted = granted
        """grants.py"""
        self.cursor = cursor
        self.number = number
        """Order of subscribing within the session."""
        self.buffer: deque[Delivery] = deque()
        self.fetch = Fetch.WANTED
        self.asked_at = 0
        self.loaded_at = 0

    def head(self) -> int:
        return self.buffer[0].message.physical_offset


class PersistentSession(Session):
    """A session that outlives its connections: its places in the light queues are the broker's, the rest is here.

    Merging: the entry with the lowest position in the log goes first, so every filter without entries in its buffer must have been
    asked. For a message that several filters match, those found empty *before* the message's batch was fetched are asked
    again, so that all copies are at hand and one delivery settles them together.
    """

    def __init__(self, client_id: str, tools: SessionTools, outlet: Outlet, fail: Fail, holder: int) -> None:
        super().__init__(client_id, tools, outlet, fail)
        self.holder = holder
        self.hold = Hold()
        self.subscriptions: dict[str, Subscription] = {}
        self.resend: dict[tuple[int, int], int] = {}
        """(cursor, offset) -> packet identifier of what was sent with QoS 1 and not acknowledged before [MQTT-4.4.0-1]."""
        self.outbound = Outbound()
        """What it received with QoS 2."""
        outlet.first_id = IDS + 1
        self._by_number: dict[int, Subscription] = {}
        self._by_cursor: dict[int, Subscription] = {}
        self._routes = MqttRoutes()
        self._matches: dict[tuple[str, str], list[Subscription]] = {}
        self._next_number = 1
        self._wanted: list[Subscription] = []
        self._asked = 0
        self._clock = 0
        """Counts answered acquires: orders asking and loading."""
        self._heap: list[tuple[int, int, Subscription]] = []
        self._pumping = False
        self._resting = False
        """Enough was asked in this turn."""
        self._share = (0, 0)
        """Entries and bytes that each of those to be asked may have."""
        outlet.direct = False

    @property
    def remembers(self) -> bool:
        return True

    def filters(self) -> set[str]:
        return set(self.subscriptions)

    def granted_below(self, prefix: str) -> dict[str, int]:
        return {text: found.granted for text, found in self.subscriptions.items() if text.startswith(prefix)}

    def add(self, text: str, granted: int, cursor: int, light: int) -> None:
        """A subscription whose cursor is open, or what is granted anew to one."""
        known = self.subscriptions.get(text)
        if known is not None and known.cursor == cursor:
            known.granted = granted
            return
        if known is not None:
            self.remove(text)  # Its queue was gone and began anew.
        subscription = Subscription(text, granted, cursor, self._next_number, light)
        self._next_number += 1
        self.subscriptions[text] = subscription
        self._by_number[subscription.number] = subscription
        self._by_cursor[cursor] = subscription
        topic, expression = self.tools.rules.filter_route(plain(text))
        self._routes.add(subscription.number, topic, expression)
        self._matches.clear()
        self._wanted.append(subscription)
        self.tools.port.watch(cursor, self._ready)

    def remove(self, text: str) -> int:
        """End a subscription; returns its cursor. What was sent stays to be acknowledged [MQTT-3.10.4-3]."""
        subscription = self.subscriptions.pop(text)
        del self._by_number[subscription.number]
        del self._by_cursor[subscription.cursor]
        self._routes.remove(subscription.number)
        self._matches.clear()
        if subscription.fetch is Fetch.WANTED:
            self._wanted.remove(subscription)
        subscription.buffer.clear()
        self._heap = [entry for entry in self._heap if entry[2] is not subscription]
        heapq.heapify(self._heap)
        self.tools.port.watch(subscription.cursor, None)
        return subscription.cursor

    def _ready(self, cursor: int) -> None:
        subscription = self._by_cursor.get(cursor)
        if subscription is not None and subscription.fetch is Fetch.IDLE:
            self._want(subscription)
            self.pump()

    def _want(self, subscription: Subscription) -> None:
        subscription.fetch = Fetch.WANTED
        self._wanted.append(subscription)

    def pump(self) -> None:
        self.wake_shares()
        if self._pumping or self.held or not self.attached:
            return
        self._pumping = True
        try:
            if self._pump_retained():
                self._pump_queues()
        finally:
            self._pumping = False

    def _pump_queues(self) -> None:
        while self.attached and self.outlet.room() > 0:
            if self._wanted:
                self._ask()
            if self._asked or self._wanted or not self._heap:
                return
            first = self._heap[0][2]
            matching = self._matching(first.buffer[0].message)
            stale = [s for s in matching if s.fetch is Fetch.IDLE and s.asked_at < first.loaded_at]
            if stale:
                for subscription in stale:
                    self._want(subscription)
                continue
            if not self._deliver(matching):
                return

    def _ask(self) -> None:
        """Fetch for those that need it, a few per turn: a session that comes back has all of them to ask."""
        if self._resting:
            return
        wanted, self._wanted = self._wanted[:ASK_MAX], self._wanted[ASK_MAX:]
        count, size = self._share
        if not count:
            asking = len(wanted) + len(self._wanted)
            count, size = max(1, self.outlet.room() // asking), ACQUIRE_BYTES // asking
        self._share = (count, size) if self._wanted else (0, 0)
        if self._wanted:
            self._resting = True
            self.tools.later(self._rested)
        for subscription in wanted:
            subscription.fetch = Fetch.ASKED
            subscription.asked_at = self._clock
            self._asked += 1
            self.tools.port.acquire(subscription.cursor, self.holder, count, size, subscription, self._acquired)

    def _rested(self) -> None:
        self._resting = False
        self.pump()

    def _acquired(self, subscription: Subscription, result: Any) -> None:
        self._asked -= 1
        if not self.attached:
            return  # `detach` released the holder after this call was made, so the entries are back already.
        if isinstance(result, GantryError):
            if subscription.text in self.subscriptions:
                self.fail(f"its messages for {subscription.text!r} cannot be fetched: {result}")
                return
            result = []
        if self.subscriptions.get(subscription.text) is not subscription:
            pass  # It ended meanwhile; the others may have waited for this answer.
        elif result:
            self._clock += 1
            subscription.loaded_at = self._clock
            subscription.fetch = Fetch.LOADED
            subscription.buffer.extend(result)
            heapq.heappush(self._heap, (subscription.head(), subscription.number, subscription))
        else:
            subscription.fetch = Fetch.IDLE
        if not self._asked:
            self.pump()

    def _matching(self, message: Message) -> list[Subscription]:
        key = (message.topic, message.tag)
        found = self._matches.get(key)
        if found is None:
            if len(self._matches) >= MATCHES_CACHE_MAX:
                self._matches.clear()
            numbers = dict.fromkeys(self._routes.match(message))
            found = self._matches[key] = [self._by_number[number] for number in numbers]
        return found

    def _deliver(self, matching: list[Subscription]) -> bool:
        """Send the first entry of the merge and take its copies along. False: its packet identifier is in use."""
        heap = self._heap
        position = heap[0][0]
        delivery = heap[0][2].buffer[0]
        place = (0, 0)
        if facts_of(delivery.message).qos == 2 and any(one.granted & QOS == 2 for one in matching):
            place = self._place(position, heap[0][2], matching)
            if place not in self.outbound.places and self._is_taken(identifier_of_place(place)):
                return False
        settles: list[tuple[int, int]] = []
        granted: list[int] = []
        again = False
        while heap and heap[0][0] == position:
            subscription = heapq.heappop(heap)[2]
            copy = subscription.buffer.popleft()
            settles.append((subscription.cursor, copy.offset))
            if subscription not in matching:
                granted.append(subscription.granted)
            again = again or copy.count > 1
            if subscription.buffer:
                heapq.heappush(heap, (subscription.head(), subscription.number, subscription))
            else:
                self._want(subscription)
        granted += [subscription.granted for subscription in matching]  # [MQTT-3.3.5-1] [MQTT5-3.3.4-2]
        if place[0] and place in self.outbound.places:
            self._settle(settles)  # [MQTT-4.3.3-1]: received before, and the settlement of that was lost
        else:
            self._send(delivery.message, granted, again, settles, place)
        return True

    def _place(self, position: int, first: Subscription, matching: list[Subscription]) -> Place:
        """Of a message, the same each time it is delivered: that in the oldest of its queues."""
        copies = [one for one in matching if one.buffer and one.head() == position] or [first]
        oldest = min(copies, key=lambda one: one.light)
        return place_of(oldest.light, oldest.buffer[0].offset)

    def _is_taken(self, packet_id: int) -> bool:
        """Somebody else has the identifier; the end of that goes on with what waits."""
        if packet_id in self.outlet.inflight:
            return True
        if self.outbound.has(packet_id):
            self.tools.note_receipts(self.outbound)
            return True
        return False

    def _settle(self, settles: list[tuple[int, int]]) -> None:
        for cursor, offset in settles:
            self.tools.settle(cursor, offset, Outcome.ACK)

    def _send(
        self, message: Message, granted: list[int], again: bool, settles: list[tuple[int, int]], place: Place
    ) -> None:
        outlet = self.outlet
        topic = self.tools.topics.get(message.topic, message.tag)
        body = body_of(message)
        facts = facts_of(message)
        now_ms = self.tools.now_ms() if facts.expires_ms else 0
        own = outlet.returns(message)
        highest = max(granted)
        grant = PLAIN[highest] if highest <= QOS and not own else combine(granted, own)
        if not topic or body is None:
            log.warning("record at %d cannot be sent over MQTT: no topic or a broken body", message.physical_offset)
        elif grant is None or (own and outlet.bridge) or (facts.is_over(now_ms) and not (again and place[0])):
            pass  # done, without going back to where it came from, or too late to begin with it [MQTT5-3.3.2-5]
        else:
            qos = min(grant.qos, facts.qos)
            listed = grant.listed + facts.listed(now_ms) if outlet.five else b""
            # [MQTT-3.3.1-1]: DUP on what was possibly delivered before.
            flags = qos << 1 | (8 if again and qos else 0) | outlet.retain_flag(facts, grant.retains)
            packet_id = self.resend.pop(settles[0], 0) if again and self.resend else 0
            state: Kept | list[tuple[int, int]] = settles
            if qos == 2:
                state, packet_id = Kept(settles, place), identifier_of_place(place)
            if outlet.publish(topic, body, flags, state, packet_id, listed) and qos:
                return
        self._settle(settles)

    def _release(self, packet_id: int, state: Twice) -> None:
        if isinstance(state, Kept):
            self.outlet.inflight[packet_id] = Receiving(state.settles)
            self.outbound.receive(packet_id, state.place)
            self.tools.note_receipts(self.outbound)
        else:
            super()._release(packet_id, state)

    def receipts_stored(self, numbers: Iterable[int]) -> None:
        """See `receipts.Owner`."""
        for packet_id in numbers:
            state = self.outlet.inflight.get(packet_id)
            if isinstance(state, Receiving):
                del self.outlet.inflight[packet_id]  # so that those that are released stand in this order, too
                self.outlet.inflight[packet_id] = RELEASED
                self._done(state.settles)
                self.send_ack(c.PUBREL, packet_id)
        self.pump()

    def receipts_failed(self, text: str) -> None:
        """See `receipts.Owner`."""
        self.fail(text)

    def completed(self, packet_id: int) -> None:
        self.outbound.complete(packet_id)
        super().completed(packet_id)

    def detach(self) -> None:
        """Give back what was never written as undelivered, and what was, to be delivered again."""
        super().detach()
        port = self.tools.port
        for subscription in self.subscriptions.values():
            port.watch(subscription.cursor, None)
            for delivery in subscription.buffer:
                self.tools.settle(subscription.cursor, delivery.offset, Outcome.RELEASE)
            subscription.buffer.clear()
        for packet_id, state in self.outlet.inflight.items():
            if isinstance(state, list):
                for place in state:
                    self.resend[place] = packet_id
        self.outbound.leave()
        self.retained.clear()
