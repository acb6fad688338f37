"""Tables: keyed records of a system topic each, held in memory; the log is their truth.

Table `x` is topic `rmq_sys_gantry_x`, one queue, one record per change: property GANTRY_KEY is the key, the body the value, and
property GANTRY_DELETED marks a deletion. A message may be a row, too (model/tables/message_rows.py). Replayed from the first record at start.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import chain
from operator import itemgetter
from typing import Final, Protocol

from gantrymq.broker.row_checks import RowCheck, report, why_unreadable
from gantrymq.broker.tables.keys import TableKeys
from gantrymq.model import names
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.indexes.packed import PackedRows, RowMap, packed
from gantrymq.model.message import Message
from gantrymq.model.tables.message_rows import row_of as row_of_message
from gantrymq.model.tables.message_rows import table_of_message
from gantrymq.store.log.record import HEAD, is_entry
from gantrymq.store.queues.consume_queue import HOLE_SIZE

Rows = list[tuple[str, str, bytes | None]]
"""(table, key, value); None deletes."""


log = logging.getLogger(__name__)

KEY_PROPERTY = "GANTRY_KEY"
DELETED_PROPERTY = "GANTRY_DELETED"
KEY_BYTES_MAX = 4096
"""Keys are names (topics, client ids, filters); the longest legal one is a tag of 4 KiB."""
ROWS_MAX = 2_000_000
"""Rows of one table: a million sessions or retained messages and room to spare; at some 200 bytes each still below a gigabyte."""
RESTING: Final = frozenset({"route", "light", "cursor", "mqtt_session", "mqtt_filter"})
"""Tables of which a million rows may lie still, and whose readers keep no row: a start packs them (model/indexes/packed.py)."""
REPLAY_STEP = 1024
"""Records read at once while replaying."""
QUARANTINED_LINES_MAX = 100
"""Rows of one table that are put aside with a line of their own."""

_KEY_MARK = KEY_PROPERTY.encode() + b"\x01"
_DELETED_PAIR = DELETED_PROPERTY.encode() + b"\x011\x02"
_DELETED_AND_CRC = _DELETED_PAIR + props.OWN_CRC_MARK
_TABLE = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_NOT_IN_KEYS = re.compile("[\0\x01\x02]")
"""U+0000 in properties is a sector that did not reach the disk, to a recovery, which ends the log there; the others separate properties."""


Row = tuple[str, str, bytes | None]
"""Table, key, value (None: the row goes)."""
PlacedRow = tuple[int, str, bytes | None]
"""Position in the log, key, value."""


class LogReader(Protocol):
    """What replaying needs of the store."""

    def max_offset(self, topic: str, queue_id: int) -> int: ...

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]: ...

    def get_many(self, refs: list[tuple[int, int]]) -> list[Message | None]: ...

    def whole_records(
        self, topic: str, queue_id: int, offset: int, units: list[tuple[int, int, int]]
    ) -> list[bytes | None]: ...

    def note_damage(self, unit: tuple[int, int, int], queue: str, offset: int, what: str, is_unit: bool) -> None: ...


def topic_of(table: str) -> str:
    """System topic of a table."""
    return names.SYSTEM_PREFIX + table


def check_item(table: str, key: str, value: bytes | None) -> None:
    """Raise ILLEGAL_ARGUMENT for what cannot be kept."""
    if type(table) is not str or type(key) is not str or not (value is None or type(value) is bytes):
        found = ", ".join(type(part).__name__ for part in (table, key, value))
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"table, key and value are texts and bytes, not {found}")
    if _TABLE.match(table) is None:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"table name {table!r} is not [a-z][a-z0-9_]*")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:  # half of a surrogate pair, which comes back as other characters
        size = 0
    if not 0 < size <= KEY_BYTES_MAX or _NOT_IN_KEYS.search(key) is not None:
        raise GantryError(
            ErrorCode.ILLEGAL_ARGUMENT,
            f"table {table}: key {key[:80]!r} is empty, no text, too long or holds U+0000, U+0001 or U+0002",
        )


def item_message(table: str, key: str, value: bytes | None) -> Message:
    """The record of one change."""
    pairs = [(KEY_PROPERTY, key)]
    if value is None:
        pairs.append((DELETED_PROPERTY, "1"))
    return Message(topic_of(table), value or b"", props.encode(pairs), queue_id=0)


def row_of(message: Message) -> Row:
    """The change that a record of a table's topic is."""
    value = None if message.property(DELETED_PROPERTY) else message.body
    return message.topic.removeprefix(names.SYSTEM_PREFIX), message.property(KEY_PROPERTY), value


def row_in(data: bytes) -> tuple[str, bytes | None] | None:
    """Key and value out of the bytes of a record that `whole_records` vouches for; None: it holds more than such a record has, `row_of` tells."""
    body_end = HEAD.size + int.from_bytes(data[HEAD.size - 4 : HEAD.size], "big")
    at = body_end + 3 + data[body_end]
    if not data.startswith(_KEY_MARK, at):
        return None
    at += len(_KEY_MARK)
    end = data.find(b"\x02", at)
    left = len(data) - end - 1
    if end < 0:
        return None
    value: bytes | None = data[HEAD.size : body_end]
    if left and not (left == props.OWN_CRC_SIZE and data.startswith(props.OWN_CRC_MARK, end + 1)):
        if data[end + 1 :] != _DELETED_PAIR and (
            left != len(_DELETED_PAIR) + props.OWN_CRC_SIZE or not data.startswith(_DELETED_AND_CRC, end + 1)
        ):
            return None
        value = None
    return data[at:end].decode("utf-8", "replace"), value


class Tables:
    """Every table of the broker that was used. A change is visible at once; it is safe when its record is."""

    def __init__(self) -> None:
        self._tables: dict[str, RowMap] = {}
        self._keys: dict[str, TableKeys] = {}
        """Of every table, once something has walked or changed it: keys of rows that are not packed."""
        self._watchers: dict[str, list[Callable[[str, bytes | None], None]]] = {}
        self._expected: set[tuple[str, str]] = set()
        """(table, key) of rows that were handed over to be written since the last append, ..."""
        self._writing: set[tuple[str, str]] = set()
        """... and of those in the append that is under way."""
        self._companion_at: dict[tuple[str, str], int] = {}
        self._quarantined: dict[str, dict[str, bytes]] = {}
        """Rows of the broker's own tables that nobody here can read. They stay in log and snapshots: another version may be able to."""

    def load(self, tables: dict[str, dict[str, bytes]]) -> None:
        """Take over the rows of a snapshot: nothing of them is left there, for `replay` gives back what it packs."""
        self._tables.update(tables)
        tables.clear()

    def replay(self, reader: LogReader, tables: list[str], offsets: dict[str, int] | None = None) -> set[str]:
        """Read the named tables from the log; `offsets`: by topic, from where on (elsewhere all of it). Returns the tables with a damaged
        record: what it said is not known, and it is listed as damage."""
        damaged: set[str] = set()
        for table in tables:
            rows = self._tables.setdefault(table, {})

            def lost(topic: str, offset: int, unit: tuple[int, int, int], table: str = table) -> None:
                damaged.add(table)
                log.error(
                    "table %s: record %d, at %d of the log, is damaged: the row that it changed is as it was before",
                    table, offset, unit[0],
                )  # fmt: skip
                what = f"it changed a row of table {table}, which is as it was before"
                reader.note_damage(unit, f"{topic}/0", offset, what, False)

            for key, value in replay_table(reader, table, offsets or {}, lost):
                if value is None:
                    rows.pop(key, None)
                else:
                    rows[key] = value
            if table in RESTING:
                rows = self._tables[table] = packed(rows)
            self._keys[table] = TableKeys(_not_packed(rows))
        return damaged

    def quarantine(self, checks: Mapping[str, RowCheck]) -> None:
        """At start: take every row that its check cannot read out of its table, with a line in the log."""
        for table, check in checks.items():
            rows = self._tables.get(table, {})
            self.quarantine_rows(
                table, {key: why for key, value in rows.items() if (why := why_unreadable(check, key, value))}
            )

    def quarantine_rows(self, table: str, bad: Mapping[str, str]) -> None:
        """At start: take rows out of their table; `bad`: by key, what is wrong."""
        if not bad:
            return
        rows, quarantined = self._tables[table], self._quarantined.setdefault(table, {})
        for number, (key, why) in enumerate(bad.items()):
            quarantined[key] = rows[key]
            del rows[key]
            if number < QUARANTINED_LINES_MAX:
                report(table, key, why)
        if len(bad) > QUARANTINED_LINES_MAX:
            log.error(
                "%d more rows of table %s cannot be read and are put aside", len(bad) - QUARANTINED_LINES_MAX, table
            )
        self._keys[table] = TableKeys(_not_packed(rows))

    def quarantined(self, table: str) -> dict[str, bytes]:
        """Rows that were put aside and not replaced since; read only."""
        return self._quarantined.get(table, {})

    def kept(self, table: str, key: str) -> bytes | None:
        """The row as the log has to keep it, put aside or not."""
        value = self._tables.get(table, {}).get(key)
        return value if value is not None else self.quarantined(table).get(key)

    def rows(self, table: str) -> RowMap:
        """The live rows; read only."""
        return self._tables.setdefault(table, {})

    def walk(self, table: str) -> Iterator[list[str]]:
        """Keys of a table in pages, while it may change: see `TableKeys.walk`. Packed ones first: what is changed meanwhile comes behind them once more."""
        rows = self.rows(table)
        keys = self._keys.get(table)
        if keys is None:
            keys = self._keys[table] = TableKeys(_not_packed(rows))
        if isinstance(rows, PackedRows):
            return chain(([key for key, _ in page] for page in rows.pages()), keys.walk())
        return keys.walk()

    def rows_besides(self, tables: Collection[str]) -> dict[str, int]:
        """How many rows each table but these has, if it has any."""
        return {name: len(rows) for name, rows in sorted(self._tables.items()) if rows and name not in tables}

    def expect(self, rows: Sequence[Row]) -> None:
        """Rows were handed over to be written."""
        for table, key, _ in rows:
            self._expected.add((table, key))

    def writing(self) -> None:
        """An append of all that was handed over begins."""
        self._writing, self._expected = self._expected, set()
        self._companion_at.clear()

    def companion(self, at: int, table: str, key: str, value: bytes | None) -> None:
        """As `apply`, of a row whose record, at `at`, stands among the messages of the append that is under way, which are told of later (`take_row`)."""
        self._companion_at[table, key] = at
        self.apply(table, key, value)

    def written(self) -> None:
        """It is over: each of its rows was applied, or refused."""
        self._writing = set()

    def awaits(self, table: str, keys: Iterable[str]) -> bool:
        """Whether one of the rows is about to change: it was handed over and is not applied yet."""
        return any((table, key) in self._expected or (table, key) in self._writing for key in keys)

    def check_room(self, table: str, items: Sequence[tuple[str, bytes | None]]) -> None:
        """Raise LIMIT_REACHED if the new keys among `items` do not fit any more."""
        rows = self._tables.get(table)
        if rows is not None and len(rows) + len(items) > ROWS_MAX:
            new = sum([value is not None and key not in rows for key, value in items])
            if new and len(rows) + new > ROWS_MAX:
                raise GantryError(
                    ErrorCode.LIMIT_REACHED, f"table {table} has {len(rows)} rows, at most {ROWS_MAX} are kept"
                )

    def apply(self, table: str, key: str, value: bytes | None) -> None:
        """Change a row in memory (its record is being appended) and tell the watchers."""
        rows = self._tables.setdefault(table, {})
        loose = _not_packed(rows)
        keys = self._keys.get(table)
        if keys is None:
            keys = self._keys[table] = TableKeys(loose)
        if self._quarantined:
            self._quarantined.get(table, {}).pop(key, None)
        if value is None:
            was_loose = key in loose
            rows.pop(key, None)
            if was_loose:
                keys.removed(key)
        else:
            if key not in loose:
                keys.added(key)
            rows[key] = value
        self.tell(table, key, value)

    def tell(self, table: str, key: str, value: bytes | None) -> None:
        """Tell the watchers of a change; of a table that has no rows, a notice."""
        for watcher in list(self._watchers.get(table, ())):
            try:
                watcher(key, value)
            except Exception as error:  # the row is stored: its writer is answered, and other watchers hear of it
                log.error("table %s, key %r: %s: %s", table, key[:200], type(error).__name__, error)
                log.debug("traceback", exc_info=error)

    def take_row(self, message: Message) -> bool:
        """A message was stored: if it is a row, too, that has changed. False: it is none."""
        table = table_of_message(message)
        row = row_of_message(message.properties, message.body) if table else None
        if row is not None:
            behind = self._companion_at and self._companion_at.get((table, row[0]), -1) > message.physical_offset
            if not behind:
                self.apply(table, *row)
        return bool(table)

    def watch(self, table: str, watcher: Callable[[str, bytes | None], None]) -> None:
        """Call `watcher` for each change from now on."""
        self._watchers.setdefault(table, []).append(watcher)

    def unwatch(self, table: str, watcher: Callable[[str, bytes | None], None]) -> None:
        """Stop calling it."""
        watchers = self._watchers.get(table, [])
        if watcher in watchers:
            watchers.remove(watcher)


def _not_packed(rows: RowMap) -> dict[str, bytes]:
    """Those of a table that stand in a dict; they change with it."""
    return rows.awake if isinstance(rows, PackedRows) else rows


def _steps(reader: LogReader, topic: str, offset: int) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
    """Offset and units of each piece of queue 0 of `topic`, from `offset` to its end."""
    end = reader.max_offset(topic, 0)
    offset = max(offset, reader.min_offset(topic, 0))
    while offset < end:
        units = reader.units(topic, 0, offset, REPLAY_STEP)
        if not units:
            break
        yield offset, units
        offset += len(units)


def replay_topic(
    reader: LogReader,
    topic: str,
    offset: int,
    on_damaged: Callable[[int, tuple[int, int, int]], None] = lambda offset, unit: None,
) -> Iterator[Message]:
    """Every record of queue 0 of `topic` from `offset` on, in order. `on_damaged(offset, unit)`: there should be one, and is none."""
    for first, units in _steps(reader, topic, offset):
        for number, message in enumerate(reader.get_many([(unit[0], unit[1]) for unit in units]), first):
            if message is not None and message.topic == topic:
                yield message
            elif units[number - first][1] != HOLE_SIZE:
                on_damaged(number, units[number - first])


Lost = Callable[[int, tuple[int, int, int]], None]
"""`on_damaged(offset, unit)`: there should be a record, and is none."""


def replay_rows(reader: LogReader, topic: str, offset: int, on_damaged: Lost) -> Iterator[tuple[str, bytes | None]]:
    """Key and value of every record as `replay_topic` gives them, for tables: what is plain is read in large pieces and makes no `Message`."""
    for _, key, value in _placed_rows(reader, topic, offset, on_damaged):
        yield key, value


def _placed_rows(reader: LogReader, topic: str, offset: int, on_damaged: Lost) -> Iterator[PlacedRow]:
    for first, units in _steps(reader, topic, offset):
        found = [row_in(data) if data is not None else None for data in reader.whole_records(topic, 0, first, units)]
        others = [place for place, row in enumerate(found) if row is None]
        messages = reader.get_many([(units[place][0], units[place][1]) for place in others])
        for place, message in zip(others, messages, strict=True):
            if message is not None and message.topic == topic:
                _, key, value = row_of(message)
                found[place] = key, value
            elif units[place][1] != HOLE_SIZE:
                on_damaged(first + place, units[place])
        for unit, row in zip(units, found, strict=True):
            if row is not None:
                yield unit[0], *row


def _message_rows(reader: LogReader, queue: str, offset: int, on_damaged: Lost) -> Iterator[PlacedRow]:
    """The same of messages that are rows, too."""
    for first, units in _steps(reader, queue, offset):
        for number, message in enumerate(reader.get_many([(unit[0], unit[1]) for unit in units]), first):
            unit = units[number - first]
            row = None
            if message is not None and is_entry(message.dispatch, queue, number):
                row = row_of_message(message.properties, message.body)
            if row is not None:
                yield unit[0], *row
            elif unit[1] != HOLE_SIZE:
                on_damaged(number, unit)


def replay_table(
    reader: LogReader,
    table: str,
    offsets: Mapping[str, int],
    on_damaged: Callable[[str, int, tuple[int, int, int]], None],
) -> Iterator[tuple[str, bytes | None]]:
    """Key and value of every change of a table, in the order of the log; `offsets`: by topic, from where on (elsewhere all). `on_damaged(topic, offset, unit)`."""
    topic, queue = topic_of(table), names.OWN_ROWS_PREFIX + table
    own = _placed_rows(reader, topic, offsets.get(topic, 0), partial(on_damaged, topic))
    if not reader.max_offset(queue, 0):
        return ((key, value) for _, key, value in own)
    others = _message_rows(reader, queue, offsets.get(queue, 0), partial(on_damaged, queue))
    return ((key, value) for _, key, value in merge(own, others, key=itemgetter(0)))
