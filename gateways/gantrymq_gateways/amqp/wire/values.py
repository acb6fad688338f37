"""Strings and field tables of AMQP 0-9-1, typed so that a table is encoded again to the same bytes.

Type letters are RabbitMQ's (`rabbit_binary_parser`): `t b B s u I i l L f d D T S A F V x`; the letters of the
0-9-1 document differ and no client uses them. `L` is signed, as clients send it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

DEPTH_MAX: Final = 16
"""Nesting of tables and arrays: deeper ones only exist to exhaust a recursive parser."""

SHORTSTR_BYTES_MAX: Final = 255


class ValueTypeError(ValueError):
    """A field type that nobody knows (RabbitMQ answers 541)."""


class MalformedError(ValueError):
    """Truncated or overlong data (501)."""


class Utf8Error(ValueError):
    """A shortstr that is not UTF-8 (501 with its own text)."""


@dataclass(frozen=True, slots=True)
class Field:
    """A value with its type letter. `value`: bytes for S and x, list[Field] for A, `Table` for F, (scale, unscaled) for D."""

    kind: str
    value: Any


Table = list[tuple[str, Field]]
"""Pairs in wire order; a name may repeat."""

_NUMBERS: Final = {
    "b": struct.Struct(">b"),
    "B": struct.Struct(">B"),
    "s": struct.Struct(">h"),
    "u": struct.Struct(">H"),
    "I": struct.Struct(">i"),
    "i": struct.Struct(">I"),
    "l": struct.Struct(">q"),
    "L": struct.Struct(">q"),
    "f": struct.Struct(">f"),
    "d": struct.Struct(">d"),
    "T": struct.Struct(">Q"),
}
_LENGTH: Final = struct.Struct(">I")
_DECIMAL: Final = struct.Struct(">BI")

SIZES: Final = {
    **{kind: number.size for kind, number in _NUMBERS.items()},
    "t": 1, "D": _DECIMAL.size, "V": 0, "S": -1, "x": -1, "A": -2, "F": -2,
}  # fmt: skip
"""Bytes of a value by its type letter; -1: bytes with their length before them, -2: fields with their length before them."""

ERLANG_TYPES: Final = {
    "t": "bool", "b": "byte", "B": "unsignedbyte", "s": "short", "u": "unsignedshort", "I": "signedint", "i": "unsignedint",
    "l": "long", "L": "long", "f": "float", "d": "double", "D": "decimal", "T": "timestamp", "S": "longstr", "A": "array",
    "F": "table", "V": "void", "x": "binary",
}  # fmt: skip
"""Names of types as RabbitMQ's reply texts have them."""


def shortstr(text: str) -> bytes:
    """A shortstr of text of at most 255 UTF-8 bytes (longer raises MalformedError)."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > SHORTSTR_BYTES_MAX:
        raise MalformedError(f"a shortstr of {len(data)} bytes")
    return bytes((len(data),)) + data


def read_shortstr(data: bytes, at: int) -> tuple[str, int]:
    """Text and the position after it."""
    if at >= len(data):
        raise MalformedError("shortstr without length")
    end = at + 1 + data[at]
    if end > len(data):
        raise MalformedError("shortstr over the end")
    try:
        return data[at + 1 : end].decode("utf-8"), end
    except UnicodeDecodeError:
        raise Utf8Error("Malformed UTF-8 in shortstr") from None


def longstr(data: bytes) -> bytes:
    """Length and bytes."""
    return _LENGTH.pack(len(data)) + data


def read_longstr(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Bytes and the position after them, never past `end`."""
    if at + 4 > end:
        raise MalformedError("longstr without length")
    stop = at + 4 + _LENGTH.unpack_from(data, at)[0]
    if stop > end:
        raise MalformedError("longstr over the end")
    return data[at + 4 : stop], stop


def encode_field(field: Field) -> bytes:
    """Type letter and value."""
    kind, value = field.kind, field.value
    number = _NUMBERS.get(kind)
    if number is not None:
        return kind.encode() + number.pack(value)
    match kind:
        case "S" | "x":
            return kind.encode() + longstr(value)
        case "t":
            return b"t\x01" if value else b"t\x00"
        case "F":
            return b"F" + encode_table(value)
        case "A":
            return b"A" + longstr(b"".join([encode_field(item) for item in value]))
        case "D":
            return b"D" + _DECIMAL.pack(*value)
        case "V":
            return b"V"
    raise ValueTypeError(f"unknown field type {kind!r}")


def encode_table(table: Table) -> bytes:
    """Length and pairs."""
    return longstr(b"".join([shortstr(name) + encode_field(field) for name, field in table]))


def _read_field(data: bytes, at: int, end: int, depth: int) -> tuple[Field, int]:
    if at >= end:
        raise MalformedError("field without type")
    kind = chr(data[at])
    at += 1
    number = _NUMBERS.get(kind)
    if number is not None:
        if at + number.size > end:
            raise MalformedError("number over the end")
        return Field(kind, number.unpack_from(data, at)[0]), at + number.size
    match kind:
        case "S" | "x":
            value, at = read_longstr(data, at, end)
            return Field(kind, value), at
        case "t":
            if at >= end:
                raise MalformedError("boolean over the end")
            return Field("t", data[at] != 0), at + 1
        case "F":
            table, at = read_table(data, at, end, depth + 1)
            return Field("F", table), at
        case "A":
            return _read_array(data, at, end, depth + 1)
        case "D":
            if at + 5 > end:
                raise MalformedError("decimal over the end")
            return Field("D", _DECIMAL.unpack_from(data, at)), at + 5
        case "V":
            return Field("V", None), at
    raise ValueTypeError(f"unknown field type {kind!r}")


def _read_array(data: bytes, at: int, end: int, depth: int) -> tuple[Field, int]:
    if depth > DEPTH_MAX:
        raise MalformedError(f"tables nested deeper than {DEPTH_MAX}")
    if at + 4 > end:
        raise MalformedError("array without length")
    stop = at + 4 + _LENGTH.unpack_from(data, at)[0]
    if stop > end:
        raise MalformedError("array over the end")
    at += 4
    items: list[Field] = []
    while at < stop:
        item, at = _read_field(data, at, stop, depth)
        items.append(item)
    return Field("A", items), stop


def read_table(data: bytes, at: int, end: int, depth: int = 0) -> tuple[Table, int]:
    """Pairs and the position after the table, never past `end`."""
    if depth > DEPTH_MAX:
        raise MalformedError(f"tables nested deeper than {DEPTH_MAX}")
    if at + 4 > end:
        raise MalformedError("table without length")
    stop = at + 4 + _LENGTH.unpack_from(data, at)[0]
    if stop > end:
        raise MalformedError("table over the end")
    at += 4
    table: Table = []
    while at < stop:
        name, at = read_shortstr(data, at)
        field, at = _read_field(data, at, stop, depth)
        table.append((name, field))
    return table, stop


def check_field(data: bytes) -> None:
    """Raises MalformedError, Utf8Error or ValueTypeError if `data` is not one field of a header: type letter and value."""
    if _read_field(data, 0, len(data), 0)[1] != len(data):
        raise MalformedError("octets after a field")


def lookup(table: Table, name: str) -> Field | None:
    """The first field of that name."""
    for key, field in table:
        if key == name:
            return field
    return None


def text_of(field: Field) -> str:
    """A value as RabbitMQ's reply texts quote it."""
    if field.kind in "Sx":
        return bytes(field.value).decode("utf-8", "replace")
    if field.kind == "t":
        return "true" if field.value else "false"
    return str(field.value)
