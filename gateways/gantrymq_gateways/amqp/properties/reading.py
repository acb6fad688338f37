"""Property lists of publishers as native properties: text headers and shared fields by name, what remains in the residue.

What stands between the texts of a list (names, types, numbers, small tables) is remembered by content, each stretch by itself. So a list costs
its texts and whatever in it is new. Lists whose texts no native property can hold are walked field by field.
"""

from __future__ import annotations

import re
import struct
from binascii import b2a_base64
from dataclasses import dataclass
from typing import Final, TypeVar

from gantrymq.model import properties as props
from gantrymq.model.limits import PROPERTIES_BYTES_MAX
from gantrymq_gateways.amqp.properties import residue
from gantrymq_gateways.amqp.properties.residue import LONG, NESTED
from gantrymq_gateways.amqp.wire.constants import DIRECT_REPLY_TO, FRAME_ERROR, PRECONDITION_FAILED, AmqpError
from gantrymq_gateways.amqp.wire.content import decode_properties
from gantrymq_gateways.amqp.wire.values import SIZES, MalformedError, ValueTypeError, read_shortstr

NATIVE_BYTES_MAX: Final = PROPERTIES_BYTES_MAX - 4096
"""Room for the dispatch list of up to 64 queues stays free."""

TTL_MS_MAX: Final = 0xFFFFFFFF
"""RabbitMQ's largest expiration: 32 bits."""

NAMES_MAX: Final = 4096
"""Remembered names of headers with their types: programs have dozens, of 300 bytes at most."""
FLAGS_MAX: Final = 256
"""Remembered sets of fields: a program has one or two."""
STRETCHES_MAX: Final = 4096
"""Remembered stretches of each kind: a program has a dozen, and some more where numbers stand in them."""
STRETCH_BYTES_MAX: Final = 256
"""Longer ones hardly repeat."""
ADDED_MAX: Final = 64
"""Remembered headers that were added: of dead letters, whose second stands in them."""
ADDED_BYTES_MAX: Final = 2048
ENDS_MAX: Final = 1024
"""Remembered residues: a program has a handful, and some more where numbers stand in them."""
END_BYTES_MAX: Final = 1024
"""Celery's has 360 bytes."""

_TEXT: Final = -3
"""In place of a size: text, which has a native property if nothing speaks against it."""
_SPECIAL_HEADERS: Final = ("CC", "BCC", "x-delay")
"""Headers that ask for something: further routing keys, a later delivery."""
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}\Z")
_PLAIN_FLAGS: Final = (
    residue.SHARED_FLAGS | residue.HEADERS | residue.DELIVERY_MODE | residue.PRIORITY | residue.EXPIRATION
)
"""Fields that native properties may hold without a residue."""
_ID_FLAGS: Final = residue.CORRELATION_ID | residue.MESSAGE_ID | residue.TIMESTAMP
_LOOKED_AT: Final = residue.REPLY_TO | residue.EXPIRATION | residue.USER_ID
_HEAD: Final = residue.CONTENT_TYPE | residue.CONTENT_ENCODING
_MIDDLE: Final = residue.CORRELATION_ID | residue.REPLY_TO | residue.EXPIRATION | residue.MESSAGE_ID | residue.TIMESTAMP
_TAIL: Final = residue.TYPE | residue.USER_ID | residue.APP_ID | residue.CLUSTER_ID
_SHORT_TEXT: Final = b"S\0\0\0"
"""Type letter of a text and the upper bytes of its length."""
_DIRECT: Final = DIRECT_REPLY_TO.encode()
_NATIVE: Final = residue.NATIVE_ENTRY
_LENGTH: Final = residue.LENGTH
_REST: Final = props.AMQP_REST.encode() + b"\x01"
_PRIORITIES: Final = [b"%s\x01%d\x02" % (props.PRIORITY.encode(), priority) for priority in range(256)]
_QOS_0: Final = b"%s\x010\x02" % props.QOS.encode()


_Field = tuple[int, int, bytes]
"""Bit, size (LONG: shortstr, NESTED: the table), native property or nothing."""
_Key = TypeVar("_Key")
_Found = TypeVar("_Found")


@dataclass(slots=True)
class Content:
    """A property list as native properties. `ttl_ms`: lifetime after storing, -1 without end. `repeats`: no field tells that it is of
    one message only."""

    native: bytes
    ttl_ms: int
    repeats: bool = False


class _Walk:
    """What was found in a list. `pairs`: names and values of native properties in turn, a name with the end of the pair before it;
    `entries`: of the residue's form; `loose`: its values; `looked_at`: texts that RabbitMQ looks at, by their flags."""

    __slots__ = ("entries", "flags", "looked_at", "loose", "mode", "native", "pairs", "priority")

    def __init__(self, flags: int) -> None:
        self.flags = flags
        self.native = flags & residue.SHARED_FLAGS
        self.pairs: list[bytes] = []
        self.entries: list[bytes] = []
        self.loose: list[bytes] = []
        self.looked_at: dict[int, bytes] = {}
        self.mode = self.priority = -1


class _Shape:
    """A set of fields. `head`: how many texts stand before the table; `octets`: delivery mode and priority; `middle`: what follows, by size and
    the name of its native property; `tail`: bits of the texts at the end, which have no native properties and hardly change."""

    __slots__ = ("fields", "flags", "head", "middle", "octets", "plain", "reply_to", "table", "tail")

    def __init__(self, flags: int, fields: list[_Field]) -> None:
        self.fields = fields
        self.flags = flags
        self.head = (flags & _HEAD).bit_count()
        self.table = bool(flags & residue.HEADERS)
        self.octets = (flags & (residue.DELIVERY_MODE | residue.PRIORITY)).bit_count()
        self.middle = [(size, name) for bit, size, name in fields if bit & _MIDDLE]
        self.tail = flags & _TAIL
        self.plain = not flags & ~_PLAIN_FLAGS and bool(flags & residue.DELIVERY_MODE)
        self.reply_to = bool(flags & residue.REPLY_TO)


class _Stretch:
    """What stands between texts: `entries` of the form and values of the residue (`loose`). `name`: of the native property whose text comes
    next, or nothing. `pairs`: those of longer texts that were found in it."""

    __slots__ = ("entries", "loose", "name", "pairs")

    def __init__(self, name: bytes, entries: bytes, loose: bytes, pairs: list[bytes]) -> None:
        self.name = name
        self.entries = entries
        self.loose = loose
        self.pairs = pairs


class SpecialListError(Exception):
    """The list asks for something, which `messages/special.py` sees to."""


class PropertyReader:
    """Reads the property lists of one user's messages. `special`: those that ask for something are read like any other."""

    def __init__(self, user: str, special: bool = False) -> None:
        self._user = user
        self._special = special
        self._names: dict[bytes, tuple[int, bytes]] = {}
        self._shapes: dict[bytes, _Shape] = {}
        self._heads: dict[bytes, _Stretch] = {}
        self._gaps: dict[bytes, _Stretch] = {}
        self._tails: dict[tuple[int, bytes], _Stretch] = {}
        self._added: dict[bytes, _Stretch] = {}
        self._ends: dict[tuple[_Stretch | bytes, ...], Content] = {}
        self._forms: dict[bytes, bytes] = {}
        self._nested = residue.Nested()

    def read(self, raw: bytes, added: bytes = b"") -> Content:
        """Raises AmqpError where RabbitMQ refuses a message, and SpecialListError. `added`: headers that stand behind those of the list's table."""
        try:
            content = self._by_stretches(raw, added)
        except (ValueError, IndexError, struct.error, AmqpError):
            content = None
        return content if content is not None else self._by_fields(with_headers(raw, added) if added else raw)

    # By stretches: texts of native properties, and what stands between them.

    def _by_stretches(self, raw: bytes, added: bytes) -> Content | None:
        """None, or any error: the list is wrong, or has texts that need a careful look."""
        shape = self._shapes.get(raw[:2]) or self._shape(raw)
        at = 2
        for _ in range(shape.head):
            at += 1 + raw[at]
        head = self._heads.get(raw[:at]) or self._head(raw[:at], shape)
        pairs = head.pairs[:]
        path: list[_Stretch | bytes] = [head]
        if shape.table:
            stop = at + 4 + _LENGTH(raw, at)[0]
            if stop > at + 4 and not self._table(raw[at + 4 : stop], pairs, path):
                return None
            at = stop
        if added:
            stretch = self._added.get(added) or self._add(added)
            path.append(stretch)
            pairs += stretch.pairs
        names = pairs[::2]
        path.append(raw[at : at + shape.octets])
        at += shape.octets
        for size, name in shape.middle:
            start = at
            at += size if size > 0 else 1 + raw[at]
            if name:
                pairs += (name, raw[start + 1 : at])
            else:
                path.append(raw[start:at])
        if shape.tail:
            tail = shape.tail, raw[at:]
            path.append(self._tails.get(tail) or self._tail(tail, shape))
            at = len(raw)
        native = b"".join(pairs)
        if at != len(raw) or not _well_formed(native, pairs, names) or (shape.reply_to and _DIRECT in pairs):
            return None
        key = tuple(path)
        end = self._ends.get(key) or self._end(key, shape, b"\x02" if native else b"")
        if len(native) + len(end.native) > NATIVE_BYTES_MAX:
            return None
        return Content(native[1:] + end.native, end.ttl_ms, end.repeats) if native else end

    def _table(self, table: bytes, pairs: list[bytes], path: list[_Stretch | bytes]) -> bool:
        """Texts of at most 255 bytes, and what stands between them. Every stretch is parsed from where the text before it ends: texts and
        numbers that look like the begin of a text do no more than lead to False."""
        gaps = self._gaps
        texts = table.split(_SHORT_TEXT)
        gap = gaps.get(texts[0]) or self._gap(texts[0], pairs)
        path.append(gap)
        del texts[0]
        text, end = b"", 0
        for text in texts:
            if not gap.name:
                return False
            end = text[0] + 1
            pairs.append(gap.name)
            pairs.append(text[1:end])
            gap = gaps.get(text[end:]) or self._gap(text[end:], pairs)
            path.append(gap)
        return not gap.name and len(text) >= end

    def _gap(self, data: bytes, pairs: list[bytes]) -> _Stretch:
        """Fields that are no short texts, and the name of the text behind them."""
        walk = _Walk(0)
        name = self._fields(data, 0, len(data), walk, False)
        gap = _Stretch(name, b"".join(walk.entries), b"".join(walk.loose), [])
        pairs += walk.pairs
        if not walk.pairs and len(data) <= STRETCH_BYTES_MAX:
            _remember(self._gaps, data, gap, STRETCHES_MAX)
        return gap

    def _add(self, data: bytes) -> _Stretch:
        """Fields of any kind, all of them."""
        walk = _Walk(0)
        self._fields(data, 0, len(data), walk, True)
        stretch = _Stretch(b"", b"".join(walk.entries), b"".join(walk.loose), walk.pairs)
        return _remember(self._added, data, stretch, ADDED_MAX) if len(data) <= ADDED_BYTES_MAX else stretch

    def _head(self, data: bytes, shape: _Shape) -> _Stretch:
        """Flags, content type and encoding."""
        at, pairs = 2, []
        if shape.flags & residue.CONTENT_TYPE:
            at = 3 + data[2]
            if not _fits(data[3:at]):
                raise MalformedError("no native property can hold the content type")
            pairs = [b"\x02%s\x01" % props.CONTENT_TYPE.encode(), data[3:at]]
        if shape.flags & residue.CONTENT_ENCODING:
            read_shortstr(data, at)
        head = _Stretch(b"", b"", data[at:], pairs)
        return _remember(self._heads, data, head, STRETCHES_MAX) if len(data) <= STRETCH_BYTES_MAX else head

    def _tail(self, key: tuple[int, bytes], shape: _Shape) -> _Stretch:
        """Type, user, application and cluster, those that the list has."""
        data, at = key[1], 0
        for bit, _, _ in shape.fields:
            if bit & shape.tail:
                text, at = read_shortstr(data, at)
                if bit == residue.USER_ID and text != self._user:
                    raise MalformedError("another user")
        if at != len(data):
            raise MalformedError("octets after the last property")
        tail = _Stretch(b"", b"", data, [])
        return _remember(self._tails, key, tail, STRETCHES_MAX) if len(data) <= STRETCH_BYTES_MAX else tail

    def _end(self, path: tuple[_Stretch | bytes, ...], shape: _Shape, closing: bytes) -> Content:
        """What comes behind the pairs of a list: `closing` them, priority, QoS and residue."""
        walk = _Walk(shape.flags)
        octets, *middle = [part for part in path if isinstance(part, bytes)]
        if shape.flags & residue.DELIVERY_MODE:
            walk.mode = octets[0]
        if shape.flags & residue.PRIORITY:
            walk.priority = octets[-1]
        if shape.flags & residue.EXPIRATION:
            walk.looked_at[residue.EXPIRATION] = middle[0][1:]
        for part in path:
            if isinstance(part, bytes):
                walk.loose.append(part)
            else:
                walk.entries.append(part.entries)
                walk.loose.append(part.loose)
        end = self._finish(walk, closing)
        size = len(end.native) + 8 * len(path)
        return _remember(self._ends, path, end, ENDS_MAX) if size <= END_BYTES_MAX else end

    # Field by field.

    def _by_fields(self, raw: bytes) -> Content:
        try:
            walk = self._walk(raw)
        except (ValueError, IndexError, struct.error) as error:
            raise AmqpError(FRAME_ERROR, _not_understood(raw, error), connection=True) from None
        native = b"".join(walk.pairs)
        end = self._finish(walk, b"\x02" if native else b"")
        if len(native) + len(end.native) > NATIVE_BYTES_MAX:
            text = f"message properties of {len(native) + len(end.native)} octets are larger than {NATIVE_BYTES_MAX}"
            raise AmqpError(PRECONDITION_FAILED, text)
        return Content(native[1:] + end.native, end.ttl_ms, end.repeats)

    def _finish(self, walk: _Walk, closing: bytes) -> Content:
        """What comes behind the pairs."""
        ttl_ms = self._refuse(walk) if walk.flags & _LOOKED_AT else -1
        parts = [closing]
        if walk.priority >= 0:
            parts.append(_PRIORITIES[walk.priority])
        if walk.mode == 1:
            parts.append(_QOS_0)
        entries = b"".join(walk.entries)
        if not _plain(walk, entries, ttl_ms):
            parts.append(self._residue(walk, entries))
        return Content(b"".join(parts), ttl_ms, not walk.flags & _ID_FLAGS)

    def _residue(self, walk: _Walk, entries: bytes) -> bytes:
        form = residue.WORDS.pack(walk.flags, walk.native) + entries
        values = b"".join(walk.loose)
        size = len(form) + len(values)
        if size > residue.HEADER_BYTES_MAX:
            text = f"content header without its text has {size} octets, which is larger than {residue.HEADER_BYTES_MAX}"
            raise AmqpError(PRECONDITION_FAILED, text)
        text_form = self._forms.get(form) or self._form(form)
        return b"".join((_REST, text_form, b".", b2a_base64(values, newline=False), b"\x02"))

    def _refuse(self, walk: _Walk) -> int:
        """What RabbitMQ looks at on publish. Returns the lifetime."""
        user = walk.looked_at.get(residue.USER_ID)
        if user is not None and user.decode() != self._user:
            text = f"user_id property set to '{user.decode()}' but authenticated user was '{self._user}'"
            raise AmqpError(PRECONDITION_FAILED, text)
        if walk.looked_at.get(residue.REPLY_TO) == _DIRECT:
            raise SpecialListError
        expiration = walk.looked_at.get(residue.EXPIRATION)
        return -1 if expiration is None else _ttl(expiration.decode())

    def _walk(self, raw: bytes) -> _Walk:
        """Every field. Ends are compared when all is read: no slice of bytes fails."""
        shape = self._shapes.get(raw[:2]) or self._shape(raw)
        walk = _Walk(shape.flags)
        pairs, loose = walk.pairs, walk.loose
        at = 2
        for bit, size, name in shape.fields:
            if size == LONG:
                start = at + 1
                at = start + raw[at]
                value = raw[start:at]
                value.decode()
                if name and _fits(value):
                    pairs += (name, value)
                else:
                    walk.native &= ~bit
                    loose.append(raw[start - 1 : at])
                if bit & _LOOKED_AT:
                    walk.looked_at[bit] = value
            elif size == NESTED:
                stop = at + 4 + _LENGTH(raw, at)[0]
                if self._fields(raw, at + 4, stop, walk, True):
                    raise MalformedError("field without type")
                at = stop
            else:
                value = raw[at : at + size]
                at += size
                loose.append(value)
                if bit == residue.DELIVERY_MODE:
                    walk.mode = value[0]
                elif bit == residue.PRIORITY:
                    walk.priority = value[0]
        if at != len(raw):
            raise MalformedError("octets after the last property")
        return walk

    def _fields(self, raw: bytes, at: int, stop: int, walk: _Walk, careful: bool) -> bytes:
        """Headers up to `stop`. `careful`: texts that no native property can hold are told apart one by one; else a name without a value may
        come last, whose native property is returned."""
        names, pairs = self._names, walk.pairs
        entry, value_of = walk.entries.append, walk.loose.append
        seen: set[bytes] = set()
        while at < stop:
            start = at + raw[at] + 2
            if start == stop + 1 and not careful:
                name = raw[at:stop] + b"S"
                entry(_NATIVE)
                return (names.get(name) or self._name(name))[1]
            name = raw[at:start]
            size, text = names.get(name) or self._name(name)
            if size == _TEXT:
                at = start + 4 + _LENGTH(raw, start)[0]
                value = raw[start + 4 : at]
                if not careful or (text not in seen and _fits(value)):
                    seen.add(text)
                    pairs += (text, value)
                    entry(_NATIVE)
                    continue
                text = b"S" + name[:-1]
            elif not size:
                at = start
                entry(text)
                continue
            elif size > 0:
                at = start + size
            else:
                at = start + 4 + _LENGTH(raw, start)[0]
                if size == NESTED:
                    self._nested.check(raw[start - 1 : at])
            entry(text)
            value_of(raw[start:at])
        if at != stop:
            raise MalformedError("a value over the end of its table")
        return b""

    def _name(self, key: bytes) -> tuple[int, bytes]:
        """For a name with a type letter: the value's size, and the name of its native property (_TEXT) or its entry of the form."""
        name, end = read_shortstr(key, 0)
        if end + 1 != len(key):
            raise MalformedError("field without type")
        kind = chr(key[end])
        if name in _SPECIAL_HEADERS and not self._special:
            raise SpecialListError
        size = SIZES.get(kind)
        if size is None:
            raise ValueTypeError(f"unknown field type {kind!r}")
        if kind == "S":
            found = _TEXT, b"\x02%s\x01" % props.foreign_name(name).encode()
        else:
            found = size, key[end:] + key[:end]
        if len(self._names) >= NAMES_MAX:
            self._names.clear()
        self._names[key] = found
        return found

    def _shape(self, raw: bytes) -> _Shape:
        """The fields of a list in order."""
        if len(raw) < 2:
            raise MalformedError("no property flags")
        flags = raw[0] << 8 | raw[1]
        if flags & residue.UNUSED:
            raise MalformedError("unknown property flags")
        found = []
        for place in range(15, 1, -1):
            bit = 1 << place
            if flags & bit:
                native = residue.SHARED.get(bit)
                size = NESTED if bit == residue.HEADERS else residue.FIXED.get(bit, LONG)
                found.append((bit, size, b"\x02%s\x01" % native.encode() if native else b""))
        if len(self._shapes) >= FLAGS_MAX:
            self._shapes.clear()
        shape = self._shapes[raw[:2]] = _Shape(flags, found)
        return shape

    def _form(self, form: bytes) -> bytes:
        text = b2a_base64(form, newline=False)
        if len(form) <= residue.FORM_BYTES_MAX:
            if len(self._forms) >= residue.FORMS_MAX:
                self._forms.clear()
            self._forms[form] = text
        return text


def headers_at(raw: bytes) -> int:
    """Where the table of a list stands, or would."""
    at = 2
    for _ in range(((raw[0] << 8 | raw[1]) & _HEAD).bit_count()):
        at += 1 + raw[at]
    return at


def with_headers(raw: bytes, added: bytes) -> bytes:
    """The list with these headers behind those of its table."""
    at = headers_at(raw)
    size = _LENGTH(raw, at)[0]
    stop = at + 4 + size
    return b"".join((raw[:at], (size + len(added)).to_bytes(4, "big"), raw[at + 4 : stop], added, raw[stop:]))


def _remember(cache: dict[_Key, _Found], key: _Key, found: _Found, most: int) -> _Found:
    if len(cache) >= most:
        cache.clear()
    cache[key] = found
    return found


def _well_formed(native: bytes, pairs: list[bytes], names: list[bytes]) -> bool:
    """Whether the properties read back as the pairs: UTF-8, no marks in values, nothing empty, and none of these names twice."""
    count = len(pairs) >> 1
    if native.count(b"\x01") != count or native.count(b"\x02") != count or not all(pairs):
        return False
    if not native.isascii():
        try:
            native.decode()
        except UnicodeDecodeError:
            return False
    return len(names) < 2 or len(set(names)) == len(names)


def _fits(value: bytes) -> bool:
    """Whether a native property can hold it."""
    if not value or b"\x01" in value or b"\x02" in value:
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _plain(walk: _Walk, entries: bytes, ttl_ms: int) -> bool:
    """Whether the native properties alone rebuild the list."""
    flags = walk.flags
    return (
        not flags & ~_PLAIN_FLAGS
        and walk.mode in (1, 2)
        and walk.native == flags & residue.SHARED_FLAGS
        and len(entries) == entries.count(_NATIVE)
        and bool(entries) == bool(flags & residue.HEADERS)
        and (ttl_ms < 0 or walk.looked_at[residue.EXPIRATION] == b"%d" % ttl_ms)
    )


def _ttl(expiration: str) -> int:
    if _INTEGER.match(expiration) is None:
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{expiration}': no_integer")
    ttl_ms = int(expiration)
    if ttl_ms < 0:
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{expiration}': {{value_negative,{ttl_ms}}}")
    if ttl_ms > TTL_MS_MAX:
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{expiration}': {{value_too_big,{ttl_ms}}}")
    return ttl_ms


def _not_understood(raw: bytes, error: Exception) -> str:
    """The walk compares ends when it is through; the plain decoder names what is wrong."""
    try:
        decode_properties(raw)
    except ValueError as found:
        error = found
    return f"content header is not understood: {error}"
