"""Property lists of publishers as native properties: text headers and shared fields by name, what remains in the residue.

A list is walked once, field by field. What is worked out on the way is remembered by content: sets of fields, names of headers, forms,
small tables. So lists in which only ids differ cost the walk alone.
"""

from __future__ import annotations

import re
import struct
from binascii import b2a_base64
from dataclasses import dataclass
from typing import Final

from gantrymq.model import properties as props
from gantrymq.model.limits import PROPERTIES_BYTES_MAX
from gantrymq_gateways.amqp import residue
from gantrymq_gateways.amqp.constants import DIRECT_REPLY_TO, FRAME_ERROR, PRECONDITION_FAILED, AmqpError
from gantrymq_gateways.amqp.content import decode_properties
from gantrymq_gateways.amqp.residue import LONG, NESTED
from gantrymq_gateways.amqp.values import SIZES, MalformedError, ValueTypeError, read_shortstr

NATIVE_BYTES_MAX: Final = PROPERTIES_BYTES_MAX - 4096
"""Room for the dispatch list of up to 64 queues stays free."""

TTL_MS_MAX: Final = 0xFFFFFFFF
"""RabbitMQ's largest expiration: 32 bits."""

NAMES_MAX: Final = 4096
"""Remembered names of headers with their types: programs have dozens, of 300 bytes at most."""
FLAGS_MAX: Final = 256
"""Remembered sets of fields: a program has one or two."""

_TEXT: Final = -3
"""In place of a size: text, which has a native property if nothing speaks against it."""
_REFUSED_HEADERS: Final = ("CC", "BCC")
"""Headers that ask RabbitMQ for further routing keys: not kept yet, so not accepted."""
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}\Z")
_PLAIN_FLAGS: Final = (
    residue.SHARED_FLAGS | residue.HEADERS | residue.DELIVERY_MODE | residue.PRIORITY | residue.EXPIRATION
)
"""Fields that native properties may hold without a residue."""
_ID_FLAGS: Final = residue.CORRELATION_ID | residue.MESSAGE_ID | residue.TIMESTAMP
_LOOKED_AT: Final = residue.REPLY_TO | residue.EXPIRATION | residue.USER_ID
_NATIVE: Final = residue.NATIVE_ENTRY
_LENGTH: Final = residue.LENGTH
_REST: Final = props.AMQP_REST.encode() + b"\x01"
_PRIORITIES: Final = [b"%s\x01%d\x02" % (props.PRIORITY.encode(), priority) for priority in range(256)]
_QOS_0: Final = b"%s\x010\x02" % props.QOS.encode()


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


class PropertyReader:
    """Reads the property lists of one user's messages."""

    def __init__(self, user: str) -> None:
        self._user = user
        self._names: dict[bytes, tuple[int, bytes]] = {}
        self._fields: dict[int, list[tuple[int, int, bytes]]] = {}
        self._forms: dict[bytes, bytes] = {}
        self._nested = residue.Nested()

    def read(self, raw: bytes) -> Content:
        """Raises AmqpError where RabbitMQ refuses a message, and for what is not kept yet."""
        try:
            walk = self._walk(raw, False)
            native = b"".join(walk.pairs)
            if not _well_formed(native, walk.pairs):
                walk = self._walk(raw, True)
                native = b"".join(walk.pairs)
        except (ValueError, IndexError, struct.error) as error:
            raise AmqpError(FRAME_ERROR, _not_understood(raw, error), connection=True) from None
        if native:
            native = native[1:] + b"\x02"
        flags = walk.flags
        ttl_ms = self._refuse(walk) if flags & _LOOKED_AT else -1
        if walk.priority >= 0:
            native += _PRIORITIES[walk.priority]
        if walk.mode == 1:
            native += _QOS_0
        if not _plain(walk, ttl_ms):
            native += self._residue(walk)
        if len(native) > NATIVE_BYTES_MAX:
            text = f"message properties of {len(native)} octets are larger than {NATIVE_BYTES_MAX}"
            raise AmqpError(PRECONDITION_FAILED, text)
        return Content(native, ttl_ms, not flags & _ID_FLAGS)

    def _residue(self, walk: _Walk) -> bytes:
        form = residue.WORDS.pack(walk.flags, walk.native) + b"".join(walk.entries)
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
        if walk.looked_at.get(residue.REPLY_TO) == DIRECT_REPLY_TO.encode():
            raise AmqpError(PRECONDITION_FAILED, "fast reply consumer does not exist")
        expiration = walk.looked_at.get(residue.EXPIRATION)
        return -1 if expiration is None else _ttl(expiration.decode())

    def _walk(self, raw: bytes, careful: bool) -> _Walk:
        """Every field. Ends are compared when all is read: no slice of bytes fails. `careful`: texts that no native property can hold
        are told apart one by one."""
        at = 2
        if len(raw) < at:
            raise MalformedError("no property flags")
        flags = raw[0] << 8 | raw[1]
        walk = _Walk(flags)
        pairs, loose = walk.pairs, walk.loose
        for bit, size, prefix in self._fields.get(flags) or self._fields_of(flags):
            if size == LONG:
                start = at + 1
                at = start + raw[at]
                value = raw[start:at]
                if not value.isascii():
                    value.decode()
                if prefix and (not careful or _fits(value)):
                    pairs.append(prefix)
                    pairs.append(value)
                else:
                    walk.native &= ~bit
                    loose.append(raw[start - 1 : at])
                if bit & _LOOKED_AT:
                    walk.looked_at[bit] = value
            elif size == NESTED:
                at = self._headers(raw, at, walk, careful)
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

    def _headers(self, raw: bytes, at: int, walk: _Walk, careful: bool) -> int:
        names, pairs = self._names, walk.pairs
        entry, pair, value_of = walk.entries.append, pairs.append, walk.loose.append
        stop = at + 4 + _LENGTH(raw, at)[0]
        at += 4
        seen: set[bytes] = set()
        while at < stop:
            start = at + raw[at] + 2
            name = raw[at:start]
            size, text = names.get(name) or self._name(name)
            if size == _TEXT:
                at = start + 4 + _LENGTH(raw, start)[0]
                value = raw[start + 4 : at]
                if not careful or (text not in seen and _fits(value)):
                    if careful:
                        seen.add(text)
                    pair(text)
                    pair(value)
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
        return at

    def _name(self, key: bytes) -> tuple[int, bytes]:
        """For a name with a type letter: the value's size, and the name of its native property (_TEXT) or its entry of the form."""
        name, end = read_shortstr(key, 0)
        if end + 1 != len(key):
            raise MalformedError("field without type")
        kind = chr(key[end])
        if name in _REFUSED_HEADERS:
            raise _refused_header(name, kind)
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

    def _fields_of(self, flags: int) -> list[tuple[int, int, bytes]]:
        """Fields of a list in order: bit, size (LONG: shortstr, NESTED: the table), native property or nothing."""
        if flags & residue.UNUSED:
            raise MalformedError("unknown property flags")
        found = []
        for place in range(15, 1, -1):
            bit = 1 << place
            if flags & bit:
                native = residue.SHARED.get(bit)
                size = NESTED if bit == residue.HEADERS else residue.FIXED.get(bit, LONG)
                found.append((bit, size, b"\x02%s\x01" % native.encode() if native else b""))
        if len(self._fields) >= FLAGS_MAX:
            self._fields.clear()
        self._fields[flags] = found
        return found

    def _form(self, form: bytes) -> bytes:
        text = b2a_base64(form, newline=False)
        if len(form) <= residue.FORM_BYTES_MAX:
            if len(self._forms) >= residue.FORMS_MAX:
                self._forms.clear()
            self._forms[form] = text
        return text


def _well_formed(native: bytes, pairs: list[bytes]) -> bool:
    """Whether the properties read back as the pairs: UTF-8, no marks in values, nothing empty, no name twice."""
    count = len(pairs) >> 1
    if (
        native.count(b"\x01") != count
        or native.count(b"\x02") != count
        or b"\x01\x02" in native
        or native[-1:] == b"\x01"
    ):
        return False
    if not native.isascii():
        try:
            native.decode()
        except UnicodeDecodeError:
            return False
    return count < 2 or len(set(pairs[::2])) == count


def _fits(value: bytes) -> bool:
    """Whether a native property can hold it."""
    if not value or b"\x01" in value or b"\x02" in value:
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _plain(walk: _Walk, ttl_ms: int) -> bool:
    """Whether the native properties alone rebuild the list."""
    flags, entries = walk.flags, walk.entries
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


def _refused_header(name: str, kind: str) -> AmqpError:
    if kind == "A":
        return AmqpError(PRECONDITION_FAILED, f"header '{name}' is not supported")
    shown = "longstr" if kind == "S" else kind
    return AmqpError(PRECONDITION_FAILED, f'invalid message: {{unacceptable_type_in_header,"{name}",{shown}}}')


def _not_understood(raw: bytes, error: Exception) -> str:
    """The walk compares ends when it is through; the plain decoder names what is wrong."""
    try:
        decode_properties(raw)
    except ValueError as found:
        error = found
    return f"content header is not understood: {error}"
