"""What a consumer wants of a topic: (expression type, expression) as a compiled `Filter`. Pull, pop and CHECK_CLIENT_CONFIG use it.

`compile_filter` is the one way from a subscription's text to something that tests records. Tags are compared by their hash, as
the queue holds it (the client compares the tags themselves); SQL92 is evaluated over the record's properties.

    wanted = compile_filter(header.expression_type, header.subscription)    # raises FilterError: answer code 23
    found = select(store, topic, queue_id, offset, wanted, count, bytes_max)   # may raise Cold, having changed nothing

`Filter.takes_unit` and `Filter.takes_properties` test one record, for who reads queues in a way of his own (pop).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.sql.sql92 import Expression, ExpressionError, parse
from gantrymq.store.log import record
from gantrymq.store.queues.consume_queue import HOLE_SIZE
from gantrymq.store.queues.unit_words import tag_words

if TYPE_CHECKING:
    from gantrymq.store.queues.consume_queue import Unit
    from gantrymq.store.reader import StoreReader

log = logging.getLogger(__name__)

TAGS_MAX: Final = 4096
"""Tags in one subscription."""

TAG_CHARS_MAX: Final = 256 * 1024
"""Characters of a subscription by tags: 64 for each of the most tags."""

CACHED_MAX: Final = 4096
CACHED_CHARS_MAX: Final = 2 * 1024 * 1024
"""Compiled filters kept, and the characters of their expressions together (a compiled one takes some 30 bytes a character): as
many as there are subscriptions in use, and no more however many a client makes up. The oldest go."""

FIRST_STEP: Final = 8
"""Units looked at for each record that is wanted, before it is known how many pass."""

SCAN_STEP: Final = 2048
SCAN_MAX: Final = 16_384
"""Queue units looked at by tag for one answer (20 to 50 ns each); then the client is told where to go on."""

SQL_SCAN_MAX: Final = 256
SQL_BYTES_MAX: Final = 1024 * 1024
"""Records that one answer evaluates, and their bytes: a millisecond's work. One record alone may be larger."""


class FilterError(GantryError):
    """A subscription that cannot be understood: SUBSCRIPTION_PARSE_FAILED (23) on the wire."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.ILLEGAL_ARGUMENT, text)


class Filter:
    """A compiled subscription. `codes`: tag hashes that pass; None: no filter by tag. `sql`: the SQL92 expression, or None."""

    __slots__ = ("codes", "sql", "units_each", "words")

    def __init__(self, codes: frozenset[int] | None = None, sql: Expression | None = None) -> None:
        self.codes = codes
        self.sql = sql
        self.words = tag_words(codes) if codes is not None else frozenset()
        self.units_each = FIRST_STEP
        """Units looked at for each record that passed, last time: how many are worth looking at first."""

    def takes_unit(self, unit: Unit) -> bool:
        """What the queue's unit alone says: False if the record cannot pass."""
        return unit[1] != HOLE_SIZE and (self.codes is None or unit[2] in self.codes)

    def takes_properties(self, properties: bytes) -> bool:
        """Whether a record with these encoded properties passes, once `takes_unit` is settled."""
        return self.sql is None or self.sql.matches(properties)


ALL: Final = Filter()
"""Takes every record."""


class _Cache:
    """Filters, and what is wrong with expressions that are none, by type and text; the oldest leave."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], Filter | str] = {}
        self.chars = 0

    def add(self, key: tuple[str, str], found: Filter | str) -> None:
        self.entries[key] = found
        self.chars += len(key[1])
        while len(self.entries) > CACHED_MAX or self.chars > CACHED_CHARS_MAX:
            oldest = next(iter(self.entries))
            del self.entries[oldest]
            self.chars -= len(oldest[1])


_cache: Final = _Cache()


def compile_filter(expression_type: str | None, expression: str | None) -> Filter:
    """The filter of a subscription; the same text gives the same object while it is cached. Raises FilterError.

    No type, an empty one and `TAG` are tags (ExpressionType.isTagType); no expression and `*` take every record.
    """
    kind = expression_type or "TAG"
    if not expression or expression == "*":
        if kind == "TAG":
            return ALL
        expression = expression or ""
    key = (kind, expression)
    found = _cache.entries.get(key)
    if found is None:
        found = _compile(kind, expression)
        _cache.add(key, found)
    if isinstance(found, str):
        raise FilterError(found)
    return found


def _compile(kind: str, expression: str) -> Filter | str:
    if kind == "TAG":
        return parse_tags(expression)
    if kind != "SQL92":
        return f"expression type {kind[:20]!r} is unknown; known are TAG and SQL92"
    if not expression:
        return "an SQL92 subscription needs an expression"
    try:
        sql = parse(expression)
    except ExpressionError as error:
        return str(error)
    if sql.ignored and sql.never:
        return f"SQL92 expression: {sql.ignored[:40]!r} is not understood (there is no LIKE and no arithmetic)"
    if sql.ignored:
        log.warning(
            "SQL92 expression %.200r: what begins with %.40r is ignored, as RocketMQ does", expression, sql.ignored
        )
    return Filter(sql=sql)


def parse_tags(expression: str) -> Filter | str:
    """`A || B` as a filter by hash, or what is wrong with it. Java's FilterAPI.buildSubscriptionData."""
    if len(expression) > TAG_CHARS_MAX:
        return f"subscription of {len(expression)} characters; at most {TAG_CHARS_MAX} are allowed"
    tags = {tag for tag in (part.strip() for part in expression.split("||")) if tag}
    if not tags:
        return f"subscription {expression[:80]!r} names no tag"
    if len(tags) > TAGS_MAX:
        return f"a subscription has at most {TAGS_MAX} tags"
    if "*" in tags:
        return ALL
    return Filter(codes=frozenset([names.java_hash(tag) for tag in tags]))


class Selection:
    """Records of a queue that pass: `pieces` as they are stored, neighbours perhaps in one; `offsets` of each record taken.

    `next_offset`: where to go on; everything before it was looked at.
    """

    __slots__ = ("next_offset", "offsets", "pieces", "size")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.offsets: list[int] = []
        self.pieces: list[bytes] = []
        self.size = 0
        """Bytes of `pieces`."""


def select(
    store: StoreReader, topic: str, queue_id: int, offset: int, wanted: Filter, count: int, bytes_max: int
) -> Selection:
    """Up to `count` records from `offset` on that pass, within `bytes_max` (one record alone may be larger).

    Looks at a bounded number of records (SCAN_MAX, SQL_SCAN_MAX). May raise `Cold` (store/cold.py).
    """
    if wanted.sql is not None:
        return _select_sql(store, topic, queue_id, offset, wanted, count, bytes_max)
    stop = min(store.visible_end(topic, queue_id), offset + SCAN_MAX)
    offsets: list[int] = []
    positions: list[int] = []
    sizes: list[int] = []
    at = offset
    step = min(count * wanted.units_each, SCAN_STEP)
    while at < stop and len(offsets) < count:
        step = min(step, stop - at)
        if wanted.codes is None:
            units = store.units(topic, queue_id, at, step)
            places = [place for place, unit in enumerate(units) if unit[1] != HOLE_SIZE]
            offsets += [at + place for place in places]
            positions += [units[place][0] for place in places]
            sizes += [units[place][1] for place in places]
        else:
            taken, where, lengths = store.select_units(topic, queue_id, at, step, wanted.codes, wanted.words)
            offsets += taken
            positions += where
            sizes += lengths
        at += step
        matched = len(offsets)
        each = -(-(at - offset) // matched) if matched else step * 2
        step = min(max(count - matched, 1) * each, SCAN_STEP)
        wanted.units_each = min(each, SCAN_STEP)
    if len(offsets) >= count:
        at = offsets[count - 1] + 1
        del positions[count:], sizes[count:], offsets[count:]
    found = Selection(at)
    found.pieces, number, found.size = store.read_places(topic, queue_id, offsets, positions, sizes, bytes_max)
    if number < len(offsets):
        found.next_offset = offsets[number]
        del offsets[number:]
    found.offsets = offsets
    return found


def _select_sql(
    store: StoreReader, topic: str, queue_id: int, offset: int, wanted: Filter, count: int, bytes_max: int
) -> Selection:
    """Reads records in steps that grow, as most may pass or none."""
    assert wanted.sql is not None
    matches, properties_of = wanted.sql.matches, record.properties_of
    found = Selection(offset)
    stop = offset + SQL_SCAN_MAX
    step, total, room = count * 2, 0, SQL_BYTES_MAX
    while found.next_offset < stop and room > 0:
        at = found.next_offset
        units = store.units(topic, queue_id, at, min(step, stop - at))
        if not units:
            break
        read, taken = store.read_units(topic, queue_id, range(at, at + len(units)), units, room)
        for place, data in enumerate(read):
            if not data or not matches(properties_of(data, 0, len(data))):
                continue
            if total and total + len(data) > bytes_max:
                found.next_offset = at + place
                return found
            total += len(data)
            found.size = total
            found.pieces.append(data)
            found.offsets.append(at + place)
            if len(found.pieces) == count:
                found.next_offset = at + place + 1
                return found
        found.next_offset = at + taken
        room -= sum(map(len, read))
        step *= 2
    return found
