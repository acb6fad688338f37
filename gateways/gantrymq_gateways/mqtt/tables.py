"""What is remembered of persistent sessions: tables `mqtt_session` and `mqtt_filter`, in memory and as rows.

`mqtt_session`: client id -> JSON {"s": {filter: [granted (messages/grants.py), light queue, owed]}, "l": when the client left, ms, "g": the gateway that holds
it, "e": [light queue], "n": changes of rows of filters, "o": 1 when it is being ended, "x": seconds that it outlives its connection, absent with 3.x, "u": its user, absent without authentication}. `owed` 1: the filter's retained messages are not acknowledged yet. `e`: queues of filters that ended, where the
session's place may still be. From the 33rd filter on (drafts.py) each has a row of its own in the same table: client id, a line end (no client id
has one) and the filter -> JSON [granted, light queue, owed]. They change in one piece with the session's row, which counts that. `mqtt_filter`: light queue (decimal) -> the filter that feeds it, perhaps U+0000 and a mark. A filter without
sessions is removed after a grace time, not at once: a session of another gateway may just be taking it. Who takes one that has been unused
for a while changes the mark, and who removes one sets it to `-`, each if the row is as they know it: so one of them finds that the other was first.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator, Mapping
from math import inf
from typing import Final

import msgspec

from gantrymq.model.indexes.counts import Counts
from gantrymq.model.indexes.packed import PackedRows, RowMap, packed
from gantrymq.model.limits import TAG_BYTES_MAX
from gantrymq_gateways.mqtt.topics.mapping import filter_route
from gantrymq_gateways.mqtt.topics.shared import bare
from gantrymq_gateways.mqtt.wire.constants import TOPIC_LEVELS_MAX

SESSION_TABLE: Final = "mqtt_session"
FILTER_TABLE: Final = "mqtt_filter"

LINE_END: Final = "\n"
"""Stands in no client id [MQTT-1.5.3] (wire/text.py)."""

FILTER_GRACE_MS: Final = 60_000
"""An unused filter stays for so long; a SUBSCRIBE that takes a part of it stores what it has (lifecycle.py, SAVE_MS)."""


FILTER_FRESH_MS: Final = FILTER_GRACE_MS // 4
"""So long after an unused filter was last taken or left no gateway removes it soon."""

SURELY_FITS: Final = min(TOPIC_LEVELS_MAX, TAG_BYTES_MAX // 12)
"""A filter of fewer characters is not too long and has not too many levels: one escapes to 12 bytes at most. A start reads every row."""

_MARK: Final = b"\0"
"""No filter contains it [MQTT-1.5.3-2]."""


class StoredFilter(msgspec.Struct, array_like=True, gc=False):
    """One subscription of a persistent session as it is stored. `owed`: 0 or 1, a number in the row."""

    granted: int
    light: int
    owed: int = 0

    def encode(self) -> bytes:
        """The value of a row of its own."""
        return _encode(self)


class StoredSession(msgspec.Struct, omit_defaults=True):
    """A session's row of `mqtt_session`, with its first filters. `left_ms` 0: connected, or nobody knows. `gateway`: who may change it (rows.py). `ending`: light queues
    that the session gives its place in back: whoever has it next does what is left of that. `expiry_s`: how long it outlives its
    connection, None: as configured. `user`: whose it is, empty: nobody's. `changes`: another number after each change of a filter with a row of
    its own. `over`: 1 when the session has ended and only some of its filters are left to be ended."""

    filters: dict[str, StoredFilter] = msgspec.field(name="s")
    left_ms: int = msgspec.field(name="l", default=0)
    gateway: str = msgspec.field(name="g", default="")
    expiry_s: int | None = msgspec.field(name="x", default=None)
    user: str = msgspec.field(name="u", default="")
    ending: list[int] = msgspec.field(name="e", default_factory=list)
    changes: int = msgspec.field(name="n", default=0)
    over: int = msgspec.field(name="o", default=0)

    def encode(self) -> bytes:
        """The row's value."""
        return _encode(self)

    @staticmethod
    def decode(value: bytes) -> StoredSession:
        """From a row's value. Raises msgspec.DecodeError."""
        return _decode_session(value)


class Holder(msgspec.Struct):
    """Of a row of `mqtt_session` without its filters, who has it: of a long row this is read in a tenth of the time."""

    gateway: str = msgspec.field(name="g", default="")
    user: str = msgspec.field(name="u", default="")


_encode = msgspec.json.Encoder().encode
_decode_session = msgspec.json.Decoder(StoredSession).decode
decode_filter = msgspec.json.Decoder(StoredFilter).decode
holder_of = msgspec.json.Decoder(Holder).decode


def check_session(key: str, value: bytes) -> None:
    """Raise for a row of `mqtt_session` that cannot be read."""
    client_id, line_end, text = key.partition(LINE_END)
    if not line_end:
        _decode_session(value)
        return
    decode_filter(value)
    if not client_id or not text:
        raise ValueError(f"{key!r} names no client or no filter")


def filter_key(client_id: str, text: str) -> str:
    """Key of a filter's own row."""
    return client_id + LINE_END + text


def check_filter_row(key: str, value: bytes) -> None:
    """Raise for a row of `mqtt_filter` that cannot be read."""
    text = bare(_text(value))
    if len(text) >= SURELY_FITS:
        filter_route(text)
    if int(key) < 1:
        raise ValueError(f"{key} is no light queue")


def marked(value: bytes, mark: str) -> bytes:
    """A row of `mqtt_filter` with another mark."""
    return value.partition(_MARK)[0] + _MARK + mark.encode()


def removed(value: bytes) -> bytes:
    """A row of `mqtt_filter` that says that the filter is being removed: nobody takes it any more."""
    return marked(value, "-")


def expiry_ms_of(session: StoredSession, default_ms: int) -> int:
    """How long it outlives its connection; `default_ms`: where its row says nothing."""
    return default_ms if session.expiry_s is None else session.expiry_s * 1000


class RestingEnds:
    """When sessions expire whose row rests since the start: no more than their places among the rows, by the time of their end."""

    def __init__(self, rows: PackedRows | None = None, start_ms: int = 0, default_ms: int = 0) -> None:
        self._rows = rows
        self._start_ms = start_ms
        self._default_ms = default_ms
        self._places: dict[int, array[int]] = {}
        """By how long a session outlives its connection."""
        self._first_ms: float = inf
        """When the first of all expires."""
        self._others: set[str] = set()
        """Client ids whose row rests, but that are connected, or of which somebody else knows the end."""

    def count(self) -> int:
        """Sessions with an end here."""
        return self._rows.resting - len(self._others) if self._rows is not None else 0

    def add(self, place: int, session: StoredSession) -> None:
        """The row at that place of all rows."""
        expiry_ms = expiry_ms_of(session, self._default_ms)
        places = self._places.get(expiry_ms)
        if places is None:
            places = self._places[expiry_ms] = array("I")
            self._first_ms = min(self._first_ms, self._start_ms + expiry_ms)
        places.append(place)

    def leave(self, client_id: str) -> None:
        """It has none here any more; called before its row changes, too."""
        if self._rows is not None and self._rows.rests(client_id):
            self._others.add(client_id)

    def changes(self, client_id: str) -> None:
        """Its row does not rest any more."""
        self._others.discard(client_id)

    def is_over(self, client_id: str, now_ms: int) -> bool:
        """Its time is over; never if it has no end here."""
        if now_ms < self._first_ms or self._rows is None:
            return False  # as for very long behind a start: nothing is to be read
        if client_id in self._others or not self._rows.rests(client_id):
            return False
        session = StoredSession.decode(self._rows[client_id])
        return self._start_ms + expiry_ms_of(session, self._default_ms) <= now_ms

    def expired(self, now_ms: int) -> Iterator[tuple[int, str]]:
        """Those whose time is over, oldest first, each once."""
        for expiry_ms in sorted([each for each in self._places if self._start_ms + each <= now_ms]):
            for place in self._places.pop(expiry_ms):
                client_id = self._rows.at(place) if self._rows is not None else None
                if client_id is not None and client_id not in self._others:
                    yield self._start_ms + expiry_ms, client_id


class SessionTable:
    """Both tables. Rows change by `changed_session`/`changed_filter`; what this process writes, it also applies at once."""

    def __init__(self, session_expiry_ms: int = 0) -> None:
        self._rows: RowMap = {}
        self._filters: dict[str, dict[str, bytes]] = {}
        """Client id -> filter -> its own row."""
        self._session_expiry_ms = session_expiry_ms
        """Of sessions whose row says nothing."""
        self._ends: dict[str, int] = {}
        """Client id -> when the session expires, its client being away."""
        self._ends_heap: list[tuple[int, str]] = []
        """The same by time; what `_ends` does not have so is of the past."""
        self._resting = RestingEnds()
        """Of sessions whose row rests, as most do after a start."""
        self._users = Counts()
        """Light queue -> number of stored sessions that use it."""
        self._filter_rows: RowMap = {}
        """Rows of `mqtt_filter`."""
        self._light_of: RowMap = {}
        """Filter -> its light queue, decimal."""
        self._unused_since: dict[int, int] = {}
        self._fresh_since: dict[int, int] = {}
        """Of unused light queues, when every gateway began to count its grace time; not known of what was unused at the start."""
        self._echoes: dict[str, list[bytes | None]] = {}
        """Key -> values written here whose change has not come back from the table yet."""

    def __len__(self) -> int:
        return len(self._rows)

    def away(self) -> int:
        """Sessions whose client is not connected, as far as this gateway knows."""
        return len(self._ends) + self._resting.count()

    def subscriptions(self) -> int:
        """Filters of all stored sessions."""
        return self._users.total

    def load(self, sessions: Mapping[str, bytes], filters: Mapping[str, bytes], now_ms: int) -> None:
        """Start from the tables. Nobody is connected yet: every session's expiry counts from now on. Rows of very many sessions stay packed."""
        for known in (self._filters, self._ends, self._users, self._unused_since, self._fresh_since, self._echoes):
            known.clear()
        self._ends_heap.clear()
        self._rows = packed(sessions)
        for key in [key for key in sessions if LINE_END in key]:
            del self._rows[key]
            self._apply(key, sessions[key], now_ms)
        self._load_ends(now_ms)
        for client_id in self._filters:
            if client_id not in self._rows:  # that one cannot be read: its filters would fill their queues for ever
                self._expires(client_id, now_ms + self._session_expiry_ms)
        self._load_filters(filters, now_ms)

    def _load_ends(self, now_ms: int) -> None:
        rows, users = self._rows, self._users
        self._resting = RestingEnds(rows if isinstance(rows, PackedRows) else None, now_ms, self._session_expiry_ms)
        for place, key, value in rows.placed() if isinstance(rows, PackedRows) else ((0, *row) for row in rows.items()):
            session = StoredSession.decode(value)
            for kept in session.filters.values():
                users.add(kept.light, 1)
            if isinstance(rows, PackedRows):
                self._resting.add(place, session)
            else:
                self._away(key, session, now_ms)

    def _load_filters(self, filters: Mapping[str, bytes], now_ms: int) -> None:
        self._filter_rows = packed(filters)
        lights: dict[str, bytes] = {}
        for key, value in filters.items():
            if _MARK not in value or value != removed(value):
                lights.setdefault(_text(value), key.encode())
            if not self._users[int(key)]:
                self._unused_since[int(key)] = now_ms
        self._light_of = packed(lights)

    def row(self, client_id: str) -> bytes | None:
        """The row's value as far as it is known here: another gateway's last change may be on its way."""
        return self._rows.get(client_id)

    def filters_of(self, client_id: str) -> Mapping[str, bytes]:
        """Filters that have rows of their own, with those; it changes with the table."""
        return self._filters.get(client_id, {})

    def writing_session(self, key: str, value: bytes | None) -> None:
        """A row is handed to the table; `wrote_session` or `unwritten_session` follows."""
        self._echoes.setdefault(key, []).append(value)

    def wrote_session(self, key: str, value: bytes | None, now_ms: int) -> None:
        """The table has the row: it counts at once, if the table has not reported it, and perhaps what came after it, before."""
        if value in self._echoes.get(key, ()):
            self._apply(key, value, now_ms)

    def unwritten_session(self, key: str, value: bytes | None) -> None:
        """The table did not take the row."""
        echoes = self._echoes.get(key)
        if echoes is not None and value in echoes:
            echoes.remove(value)
            if not echoes:
                del self._echoes[key]

    def changed_session(self, key: str, value: bytes | None, now_ms: int) -> None:
        """A row of `mqtt_session` changed (None: deleted), a session's or one of a filter."""
        echoes = self._echoes.get(key)
        if echoes is not None and value in echoes:
            echoes.remove(value)
            if echoes:
                return  # Something newer is being written here.
            del self._echoes[key]
        self._apply(key, value, now_ms)

    def _apply_filter(self, client_id: str, text: str, value: bytes | None, now_ms: int) -> None:
        rows = self._filters.get(client_id, {})
        old = rows.get(text)
        if old == value:
            return
        if value is not None:
            self._count(decode_filter(value).light, 1, now_ms)
            self._filters.setdefault(client_id, rows)[text] = value
        if old is not None:
            self._count(decode_filter(old).light, -1, now_ms)
        if value is None:
            del rows[text]
            if not rows:
                del self._filters[client_id]

    def _apply(self, key: str, value: bytes | None, now_ms: int) -> None:
        client_id, line_end, text = key.partition(LINE_END)
        if line_end:
            self._apply_filter(client_id, text, value, now_ms)
            return
        old = self._rows.get(client_id)
        if old == value:
            return
        before = {} if old is None else StoredSession.decode(old).filters
        self._ends.pop(client_id, None)
        self._resting.changes(client_id)
        if value is None:
            del self._rows[client_id]
            self._use(before, {}, now_ms)
            return
        self._rows[client_id] = value
        session = StoredSession.decode(value)
        self._use(before, session.filters, now_ms)
        if session.left_ms:
            self._away(client_id, session, session.left_ms)

    def _away(self, client_id: str, session: StoredSession, left_ms: int) -> None:
        self._expires(client_id, left_ms + expiry_ms_of(session, self._session_expiry_ms))

    def _expires(self, client_id: str, at_ms: int) -> None:
        self._ends[client_id] = at_ms
        heapq.heappush(self._ends_heap, (at_ms, client_id))
        if len(self._ends_heap) > 2 * len(self._ends) + 1_000:
            self._ends_heap = [(at_ms, name) for name, at_ms in self._ends.items()]
            heapq.heapify(self._ends_heap)

    def _use(self, before: dict[str, StoredFilter], after: dict[str, StoredFilter], now_ms: int) -> None:
        """Count what is new before what is gone: a queue that stays in use is not unused in between."""
        for one, other, step in ((after, before, 1), (before, after, -1)):
            for text, kept in one.items():
                known = other.get(text)
                if known is None or known.light != kept.light:
                    self._count(kept.light, step, now_ms)

    def _count(self, light: int, step: int, now_ms: int) -> None:
        if self._users.add(light, step):
            self._not_unused(light)
        elif str(light) in self._filter_rows:
            self._unused(light, now_ms)

    def _unused(self, light: int, now_ms: int) -> None:
        self._unused_since.setdefault(light, now_ms)
        self._fresh_since.setdefault(light, now_ms)

    def _not_unused(self, light: int) -> None:
        self._unused_since.pop(light, None)
        self._fresh_since.pop(light, None)

    def changed_filter(self, key: str, value: bytes | None, now_ms: int) -> None:
        """A row of `mqtt_filter` changed."""
        light = int(key)
        old = self._filter_rows.pop(key, None)
        if old is not None:
            text = _text(old)
            if self._light_of.get(text) == key.encode():
                del self._light_of[text]
        if value != old:
            self._not_unused(light)
        if value is None:
            return
        self._filter_rows[key] = value
        if value != removed(value) and (text := _text(value)) not in self._light_of:
            self._light_of[text] = key.encode()
        if not self._users[light]:
            self._unused(light, now_ms)

    def filter_row(self, light: int) -> bytes:
        """The row of a light queue; empty if there is none."""
        return self._filter_rows.get(str(light), b"")

    def light_of(self, text: str) -> int:
        """The light queue that a filter feeds, 0 if it has none."""
        return int(self._light_of.get(text, b"0"))

    def is_safe(self, light: int, now_ms: int) -> bool:
        """No gateway is about to remove it: it is in use, or was lately."""
        return bool(self._users[light]) or self._fresh_since.get(light, -FILTER_FRESH_MS) > now_ms - FILTER_FRESH_MS

    def is_unused(self, light: int) -> bool:
        """There is such a queue, and no stored session uses it."""
        return not self._users[light] and str(light) in self._filter_rows

    def connected(self, client_id: str) -> None:
        """Its session does not expire."""
        self._ends.pop(client_id, None)
        self._resting.leave(client_id)

    def is_expired(self, client_id: str, now_ms: int) -> bool:
        """Its time is over, though nobody may have come to remove it."""
        at_ms = self._ends.get(client_id)
        return self._resting.is_over(client_id, now_ms) if at_ms is None else at_ms <= now_ms

    def expired(self, now_ms: int) -> Iterator[str]:
        """Client ids whose session's time is over, oldest first; of those whose row rests behind the others."""
        heap = self._ends_heap
        while heap and heap[0][0] <= now_ms:
            at_ms, client_id = heapq.heappop(heap)
            if self._ends.get(client_id) == at_ms:
                yield client_id
        for at_ms, client_id in self._resting.expired(now_ms):
            self._resting.leave(client_id)
            self._ends[client_id] = at_ms
            yield client_id

    def postpone(self, client_id: str, at_ms: int) -> None:
        """Look at it later: it is connected to another gateway."""
        if client_id in self._ends:
            self._expires(client_id, at_ms)

    def unused_filters(self, now_ms: int) -> list[int]:
        """Light queues whose filter had no session for the grace time."""
        found = []
        for light, since_ms in self._unused_since.items():
            if since_ms > now_ms - FILTER_GRACE_MS:
                break
            found.append(light)
        return found


def _text(value: bytes) -> str:
    return value.partition(_MARK)[0].decode()
