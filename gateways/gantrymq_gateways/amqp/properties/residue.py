"""What native properties cannot hold of an AMQP property list, in one property (docs/mapping/amqp.md, "The residue").

A list whose fields and headers all have native properties, in their usual order, needs no residue. Any other has `GANTRY_AMQP_REST`, the
base64 of a form, a dot, and the base64 of values. The form says which fields and headers the list has and where each of them is kept;
it is the same for all messages that a program sends alike, so what is worked out for a form is remembered. The values differ.

    form:   flags of the list (2 bytes), flags of the fields that have native properties (2), one entry per header, in order
    entry:  `N`: the next native property that is a header; or type letter and name (shortstr): the value is below
    values: bytes of the fields and headers that have no native property, in the order of the list
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from typing import Final

from gantrymq.model import properties as props
from gantrymq_gateways.amqp.wire.values import SIZES, MalformedError, check_field, read_shortstr

HEADER_BYTES_MAX: Final = 16 * 1024
"""A residue above this is refused (406): base64 makes it 22 KiB of the 32 KiB that a record has for properties."""

# Bits of the flags (AMQP 4.2.6.1), in the order of the fields.
CONTENT_TYPE: Final = 1 << 15
CONTENT_ENCODING: Final = 1 << 14
HEADERS: Final = 1 << 13
DELIVERY_MODE: Final = 1 << 12
PRIORITY: Final = 1 << 11
CORRELATION_ID: Final = 1 << 10
REPLY_TO: Final = 1 << 9
EXPIRATION: Final = 1 << 8
MESSAGE_ID: Final = 1 << 7
TIMESTAMP: Final = 1 << 6
TYPE: Final = 1 << 5
USER_ID: Final = 1 << 4
APP_ID: Final = 1 << 3
CLUSTER_ID: Final = 1 << 2
UNUSED: Final = 0b11

SHARED: Final = {
    CONTENT_TYPE: props.CONTENT_TYPE,
    CORRELATION_ID: props.CORRELATION_ID,
    REPLY_TO: props.REPLY_TO,
    MESSAGE_ID: props.MESSAGE_ID,
}
"""Text fields with a property that every door knows."""
SHARED_FLAGS: Final = CONTENT_TYPE | CORRELATION_ID | REPLY_TO | MESSAGE_ID
FIXED: Final = {DELIVERY_MODE: 1, PRIORITY: 1, TIMESTAMP: 8}
"""Sizes of the fields that are no text; HEADERS is the table."""

NATIVE_ENTRY: Final = b"N"
LONG: Final = -1
"""Size of a value with a length before it."""
NESTED: Final = -2
"""The same, and what is in it has a form of its own: A and F."""
WORDS: Final = struct.Struct(">HH")
LENGTH: Final = struct.Struct(">I").unpack_from

FORMS_MAX: Final = 1024
"""Remembered forms: a program has a handful."""
FORM_BYTES_MAX: Final = 1024
"""Most forms have some 100 bytes."""
NESTED_MAX: Final = 1024
"""Tables and arrays in headers that were found well-formed: most are empty or repeat."""
NESTED_BYTES_MAX: Final = 256


class Nested:
    """Tells whether tables and arrays are well-formed, and remembers small ones that are."""

    def __init__(self) -> None:
        self._good: set[bytes] = set()

    def check(self, field: bytes) -> None:
        """`field`: type letter and value. Raises values.MalformedError, Utf8Error or ValueTypeError."""
        if field in self._good:
            return
        check_field(field)
        if len(field) <= NESTED_BYTES_MAX:
            if len(self._good) >= NESTED_MAX:
                self._good.clear()
            self._good.add(field)


@dataclass(slots=True)
class Form:
    """A form that was read. `headers`: per entry name (shortstr) with type letter, and the value's size, LONG or NESTED; None for `N`."""

    flags: int
    native: int
    headers: list[tuple[bytes, int] | None]


def read_form(text: bytes) -> Form:
    """Any native producer can write the property: raises ValueError for what no list can have."""
    data = base64.b64decode(text, validate=True)
    if len(data) < WORDS.size:
        raise MalformedError("a form without flags")
    flags, native = WORDS.unpack_from(data)
    if flags & UNUSED or native & ~(flags & SHARED_FLAGS):
        raise MalformedError("flags of a form")
    headers: list[tuple[bytes, int] | None] = []
    at = WORDS.size
    while at < len(data):
        kind = data[at : at + 1]
        if kind == NATIVE_ENTRY:
            headers.append(None)
            at += 1
            continue
        _, end = read_shortstr(data, at + 1)
        size = SIZES.get(kind.decode("latin-1"))
        if size is None:
            raise MalformedError("a type that nobody knows")
        headers.append((data[at + 1 : end] + kind, size))
        at = end
    if headers and not flags & HEADERS:
        raise MalformedError("headers of a list without a table")
    return Form(flags, native, headers)
