"""Subscriptions that begin in the past (`$from/...`): one cursor in each queue of the topic, merged by the time of storing, and read on as live
messages come, so that there is neither a gap nor a repeat in between.

A session that is kept has the subscription in its row, and its cursors go on where the client acknowledged. Those of a clean session end with it, also if the
gateway is killed: a row of `mqtt_past` (gateway `/` number -> JSON [native topic, ...]) says what there is to remove.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection, Generator
from functools import partial
from typing import Any, Final

import msgspec

from gantrymq.broker.port import EARLIEST, FIND, BrokerPort, CursorInfo, Delivery, Outcome, Start, TopicInfo
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Call, Steps, call, run
from gantrymq_gateways.mqtt.messages.will_rows import LEASE
from gantrymq_gateways.mqtt.routes import MqttRoutes
from gantrymq_gateways.mqtt.sessions.sessions import ACQUIRE_BYTES, Session, SessionTools
from gantrymq_gateways.mqtt.sessions.single import qos_of, send_one
from gantrymq_gateways.mqtt.topics.past import is_past, split_past

TABLE: Final = "mqtt_past"

GROUP: Final = "mqtt-from:"
"""Begins the name of each cursor's group."""

HOLDER_BASE: Final = 1 << 42
"""Holders count from here, above those of shared groups."""

ACQUIRE_MAX: Final = 128
"""Messages fetched from one queue at once."""

STEP_MAX: Final = 256
"""Messages looked at in one turn, most of which the filter may not match: a millisecond."""


def check_row(key: str, value: bytes) -> None:
    """Raise for a row of `mqtt_past` that cannot be read."""
    _topics(value)


_topics = msgspec.json.Decoder(list[str]).decode


class _Stream:
    """One queue of the topic."""

    __slots__ = ("asked", "buffer", "cursor", "ready")

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        self.buffer: deque[Delivery] = deque()
        self.ready = True
        """The broker may have something."""
        self.asked = False

    def head(self) -> tuple[int, int]:
        message = self.buffer[0].message
        return message.store_ms, message.physical_offset


class _Taken:
    """A message that the client has not acknowledged."""

    __slots__ = ("cursor", "offset", "tools")

    def __init__(self, tools: SessionTools, cursor: int, offset: int) -> None:
        self.tools = tools
        self.cursor = cursor
        self.offset = offset

    def acknowledged(self) -> None:
        """It is done with."""
        self.tools.settle(self.cursor, self.offset, Outcome.ACK)


class Replay:
    """One such subscription of one connected session. `group`: of its cursors; `row`: key in `mqtt_past`, empty for a session that is kept."""

    def __init__(
        self, text: str, topics: list[str], session: Session, tools: SessionTools, granted: int, group: str
    ) -> None:
        self.text = text
        self.topics = topics
        self.session = session
        self.granted = granted
        self.group = group
        self.row = ""
        self.holder = 0
        self.complete = False
        """Every queue that the topic had is open."""
        self.streams: dict[str, _Stream] = {}
        """By name of the queue."""
        self._tools = tools
        self._filter = MqttRoutes()
        self._filter.add(0, *tools.rules.filter_route(split_past(text)[1]))
        self._marked = False
        self.closed = False

    def open(self, queue: str, cursor: int) -> None:
        """One more queue."""
        stream = self.streams[queue] = _Stream(cursor)
        self._tools.port.watch(cursor, partial(self._ready, stream))
        self.wake()

    def _ready(self, stream: _Stream, cursor: int) -> None:
        stream.ready = True
        self.wake()

    def wake(self) -> None:
        """There is room, perhaps, or something new: look at the end of this turn."""
        if not self._marked:
            self._marked = True
            self._tools.later(self._pump)

    def close(self) -> list[int]:
        """Send nothing more. What was only fetched goes back as if it had not been. Returns the cursors."""
        self.closed = True
        for stream in self.streams.values():
            self._tools.port.watch(stream.cursor, None)
            for delivery in stream.buffer:
                self._tools.settle(stream.cursor, delivery.offset, Outcome.RELEASE)
            stream.buffer.clear()
        return [stream.cursor for stream in self.streams.values()]

    def detach(self, session: Session) -> None:
        """See `Share`: `Replays.detach` does it."""

    def _pump(self) -> None:
        self._marked = False
        for _ in range(STEP_MAX):
            if self.closed or self.session.held or not self.session.is_attached():
                return
            self._ask()
            loaded = [stream for stream in self.streams.values() if stream.buffer]
            if any(stream.asked for stream in self.streams.values()) or not loaded:
                return  # its answer may be older
            if not self._take(min(loaded, key=_Stream.head)):
                return  # an acknowledgement, or a socket that is free again, wakes us
        self.wake()

    def _ask(self) -> None:
        size = ACQUIRE_BYTES // max(1, len(self.streams))
        for stream in self.streams.values():
            if not stream.buffer and stream.ready and not stream.asked:
                stream.asked = True
                self._tools.port.acquire(stream.cursor, self.holder, ACQUIRE_MAX, size, stream, self._acquired)

    def _acquired(self, stream: _Stream, result: Any) -> None:
        stream.asked = False
        if self.closed:
            return  # `close` came after the call; `release` or the end of the cursor gives back
        if isinstance(result, GantryError):
            self.session.fail(f"messages for {self.text!r} cannot be fetched: {result}")
            return
        if not result:
            stream.ready = False  # the watcher tells
        stream.buffer.extend(result)
        self.wake()

    def _take(self, stream: _Stream) -> bool:
        """Send, or pass over, the first of a queue. False: the client has no room."""
        delivery = stream.buffer[0]
        taken = _Taken(self._tools, stream.cursor, delivery.offset)
        if not self._filter.match(delivery.message):
            stream.buffer.popleft()
            taken.acknowledged()
            return True
        outlet = self.session.outlet
        if outlet.blocked or (qos_of(delivery, self.granted) and outlet.room() <= 0):
            return False
        stream.buffer.popleft()
        send_one(self._tools, self.session, delivery, self.granted, taken)
        return True


class Replays:
    """Those of a gateway's connected sessions."""

    def __init__(self, port: BrokerPort, tools: SessionTools, gateway: str) -> None:
        self._port = port
        self._tools = tools
        self._gateway = gateway
        self._number = 0
        self._open: dict[tuple[Session, str], Replay] = {}
        self._rows: dict[str, bytes] = {}
        self._mine: set[str] = set()
        """Keys of rows of sessions that are connected here."""
        self._max = tools.replays_max
        self._sweeping = False
        self._flush_settled = tools.flush_settled

    def __len__(self) -> int:
        return len(self._open)

    def check(self, session: Session, text: str, subscribed: Collection[str]) -> None:
        """Raises GantryError for a new subscription that is none, or one too many. `subscribed`: what the session has, or is about to have."""
        if self._homes(text) is None:
            raise GantryError(
                ErrorCode.NAME_INVALID, f"filter {text[:128]!r}: the levels that name its topic must have no wildcard"
            )
        coming = [one for one in subscribed if is_past(one) and (session, one) not in self._open]
        if self._max and len(self._open) + len(coming) >= self._max:
            raise GantryError(ErrorCode.LIMIT_REACHED, f"mqtt.replays_max ({self._max}) is reached")

    def join(self, session: Session, text: str, granted: int) -> Steps:
        """Begin, go on, or change the QoS."""
        known = self._open.get((session, text))
        if known is not None:
            known.granted = granted
            return
        topics = self._homes(text) or []
        replay = Replay(text, topics, session, self._tools, granted, _group(session.client_id, text))
        self._number += 1
        replay.holder = HOLDER_BASE + self._number
        if not session.remembers:
            replay.row = f"{self._gateway}/{self._number}"
            replay.group = GROUP + replay.row
            self._mine.add(replay.row)
            yield call(self._port.put, TABLE, [(replay.row, msgspec.json.encode(topics))])
        self._open[session, text] = replay
        session.shares[text] = replay
        try:
            yield from self._open_queues(replay, split_past(text)[0])
        except GantryError:
            self._end(replay, True)
            raise
        replay.complete = True
        if not session.is_attached():
            self._end(replay)

    def _homes(self, text: str) -> list[str] | None:
        return self._tools.rules.homes_of(split_past(text)[1])

    def _open_queues(self, replay: Replay, start: Start) -> Steps:
        for topic in replay.topics:
            count = yield from self._queues_of(topic)
            for queue in [f"{topic}/{number}" for number in range(count)]:
                if queue not in replay.streams and not replay.closed:
                    info: CursorInfo = yield call(self._port.open_cursor, queue, replay.group, start)
                    replay.open(queue, info.cursor)

    def leave(self, session: Session, text: str) -> None:
        """UNSUBSCRIBE: its place is forgotten."""
        replay = self._open.get((session, text))
        if replay is not None:
            self._end(replay, True)

    def detach(self, session: Session) -> None:
        """The session's connection is gone."""
        for text in [text for text in session.shares if is_past(text)]:
            replay = self._open.get((session, text))
            if replay is not None:
                self._end(replay)

    def _end(self, replay: Replay, forget: bool = False) -> None:
        self._open.pop((replay.session, replay.text), None)
        replay.session.shares.pop(replay.text, None)
        cursors = replay.close()
        self._flush_settled()
        self._port.release(replay.holder)
        if replay.row:
            self._mine.discard(replay.row)
            run(self._remove(replay.row, replay.topics), _ended)
        elif forget:
            for cursor in cursors:
                self._port.delete_cursor(cursor, None, _ignored)

    def forget(self, client_id: str, text: str) -> Steps:
        """A session that is kept ends: so do its cursors."""
        yield from self._delete(self._homes(text) or [], _group(client_id, text))

    def _queues_of(self, topic: str) -> Generator[Call, Any, int]:
        """How many it has; none if there is no such topic: its cursors went with it."""
        try:
            info: TopicInfo = yield call(self._port.ensure_topic, topic, False)
        except GantryError as error:
            if error.code is ErrorCode.TOPIC_NOT_FOUND:
                return 0
            raise
        return info.read_queues

    def _delete(self, topics: list[str], group: str) -> Steps:
        for topic in topics:
            count = yield from self._queues_of(topic)
            for queue in range(count):
                try:
                    info: CursorInfo = yield call(self._port.open_cursor, f"{topic}/{queue}", group, FIND)
                except GantryError as error:
                    if error.code in (ErrorCode.NOT_FOUND, ErrorCode.QUEUE_NOT_FOUND, ErrorCode.TOPIC_NOT_FOUND):
                        continue
                    raise
                yield call(self._port.delete_cursor, info.cursor)

    # Rows of clean sessions

    def changed(self, key: str, value: bytes | None) -> None:
        """The table reports a row."""
        if value is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = value

    def begin(self) -> Steps:
        """Read the table."""
        self.lost()
        rows = yield call(self._port.watch_table, TABLE, self.changed)
        self._rows.update(rows)

    def sweep(self) -> Steps:
        """Now and then: queues that topics got meanwhile; what killed gateways left."""
        if self._sweeping:
            return
        self._sweeping = True
        try:
            yield from self._sweep()
        finally:
            self._sweeping = False

    def _sweep(self) -> Steps:
        for replay in [replay for replay in self._open.values() if replay.complete]:
            yield from self._open_queues(replay, EARLIEST)
        free: dict[str, bool] = {self._gateway: True}
        for key in [key for key in self._rows if key not in self._mine]:
            gateway = key.partition("/")[0]
            if gateway not in free:
                free[gateway] = yield call(self._port.is_free, LEASE + gateway)
            value = self._rows.get(key)
            if free[gateway] and value is not None and key not in self._mine:
                yield from self._remove(key, _topics(value))

    def _remove(self, key: str, topics: list[str]) -> Steps:
        """The cursors of a clean session, then the row that says that there are any."""
        yield from self._delete(topics, GROUP + key)
        yield call(self._port.put, TABLE, [(key, None)])

    def lost(self) -> None:
        """The broker went away."""
        self._open.clear()
        self._rows.clear()
        self._mine.clear()


def _group(client_id: str, text: str) -> str:
    """Of the cursors of a session that is kept."""
    return f"{GROUP}{client_id}:{hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:12]}"


def _ignored(token: object, result: Any) -> None:
    """A cursor that is gone already is as good."""


def _ended(error: GantryError | None) -> None:
    """What is left of a clean session's row the next look finds."""
