"""Messages as AMQP shows them: basic.deliver's exchange and routing key, and the property list.

Native properties are split into names and values. What the names mean, and how a list of them is put together, is worked out once and
remembered (`_Layout`, `_Plan`), as the same names and the same form of the residue come with every message of a program.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from dataclasses import dataclass
from typing import Final

from gantrymq.model import names as native_names
from gantrymq.model import properties as props
from gantrymq.model.message import Message
from gantrymq_gateways.amqp import residue
from gantrymq_gateways.amqp.content import decode_properties
from gantrymq_gateways.amqp.mapping import KEY
from gantrymq_gateways.amqp.residue import LENGTH, LONG, NESTED
from gantrymq_gateways.amqp.routes import DEFAULT_EXCHANGE, DIRECT_TOPIC
from gantrymq_gateways.amqp.values import SHORTSTR_BYTES_MAX, MalformedError, shortstr

NUMBER_DIGITS_MAX: Final = 18
"""Digits of a number in a property: milliseconds of any time that a client can name, and always 63 bits."""

LAYOUTS_MAX: Final = 1024
"""Remembered lists of names: a program has a handful. Some 5 KiB each."""
LAYOUT_NAMES_MAX: Final = 128
"""Longer ones are not remembered."""
FORMS_MAX: Final = 16
"""Remembered forms of one list of names."""
RENDERED_MAX: Final = 4096
"""Whole messages remembered whose properties may repeat. At most about 4 MiB with `RENDERED_KEY_BYTES_MAX`."""
RENDERED_KEY_BYTES_MAX: Final = 512
"""Longer properties hardly repeat."""
TAILS_MAX: Final = 10_000
"""Remembered exchanges and routing keys: devices with a key each; some 500 bytes apiece."""

_CE_HEADER: Final = "ce-"
_NOT_MARKS: Final = bytes([octet for octet in range(256) if octet not in b"\x01\x02"])
_LENGTHS: Final = [struct.pack(">I", size) for size in range(1024)]
_OCTETS: Final = [bytes((octet,)) for octet in range(256)]
_WORD: Final = struct.Struct(">H")
_LONG_WORD: Final = struct.Struct(">I")


@dataclass(slots=True)
class Rendered:
    """A message as basic.deliver shows it. `tail`: exchange and routing key as shortstrs; `properties`: flags and fields;
    `expires_at_ms`: 0 for never. `repeats`: nothing in it is of this message only."""

    tail: bytes
    properties: bytes
    expires_at_ms: int
    repeats: bool = False


_Step = tuple[bytes, int, int]
"""What stands before a value, the index of its native property or -1, and else its size in the residue (or LONG, NESTED)."""


@dataclass(slots=True)
class _Plan:
    """How a list is put together. `head`: the flags; `before`, `after`: fields on both sides of the table."""

    head: bytes
    before: list[_Step]
    headers: list[_Step] | None
    after: list[_Step]


class _Layout:
    """What the names of a message's properties mean: indexes of values, -1 for what is not there."""

    __slots__ = (
        "exact", "exchange", "expires", "forms", "headers", "key", "plain", "priority", "qos", "repeats", "rest", "shared",
    )  # fmt: skip

    def __init__(self, names: tuple[bytes, ...]) -> None:
        # Of a repeated name the last value counts, at the place of the first.
        at = {name.decode("utf-8", "replace"): index for index, name in enumerate(names)}
        self.exchange = at.get(props.EXCHANGE, -1)
        self.key = at.get(KEY, -1)
        self.expires = at.get(props.EXPIRES_AT, -1)
        self.qos = at.get(props.QOS, -1)
        self.priority = at.get(props.PRIORITY, -1)
        self.rest = at.get(props.AMQP_REST, -1)
        self.exact = at.get(props.AMQP_HEADER, -1)
        self.shared = {bit: at[name] for bit, name in residue.SHARED.items() if name in at}
        data_type = props.CE_PREFIX + "datacontenttype"
        if residue.CONTENT_TYPE not in self.shared and data_type in at:
            self.shared[residue.CONTENT_TYPE] = at[data_type]
        self.headers = _headers_of(at)
        self.repeats = not {props.MESSAGE_ID, props.CORRELATION_ID, props.EXPIRES_AT, props.UNIQ_KEY} & set(at)
        self.plain: dict[int, _Plan] = {}
        """Without a residue, by the flags that values decide."""
        self.forms: dict[bytes, _Plan | None] = {}
        """With a residue, by its form; None for one that no list can have."""

    def plain_plan(self, flags: int) -> _Plan:
        """`flags`: delivery mode, and of priority and expiration those that the message has."""
        plan = self.plain.get(flags)
        if plan is None:
            entries: list[tuple[bytes, int] | None] = [None] * len(self.headers)
            native = sum(self.shared)
            table = residue.HEADERS if entries else 0
            plan = self.plain[flags] = self._plan(residue.Form(flags | native | table, native, entries))
        return plan

    def form_plan(self, text: bytes) -> _Plan | None:
        """`text`: the form in base64; None if it is none."""
        if text in self.forms:
            return self.forms[text]
        try:
            plan = self._plan(residue.read_form(text))
        except ValueError:
            plan = None
        if len(text) <= residue.FORM_BYTES_MAX * 4 // 3:
            if len(self.forms) >= FORMS_MAX:
                self.forms.clear()
            self.forms[text] = plan
        return plan

    def _plan(self, form: residue.Form) -> _Plan:
        before: list[_Step] = []
        after: list[_Step] = []
        flags = form.flags
        for place in range(15, 1, -1):
            bit = 1 << place
            if not flags & bit or bit == residue.HEADERS:
                continue
            steps = before if bit > residue.HEADERS else after
            if not form.native & bit:
                steps.append((b"", -1, residue.FIXED.get(bit, LONG)))
            elif bit in self.shared:
                steps.append((b"", self.shared[bit], 0))
            else:
                flags ^= bit  # somebody took the property away
        headers = self._header_steps(form) if flags & residue.HEADERS else None
        return _Plan(_WORD.pack(flags), before, headers, after)

    def _header_steps(self, form: residue.Form) -> list[_Step]:
        """Native headers take the places of `N` in their order; what somebody has added comes last."""
        steps: list[_Step] = []
        native = iter(self.headers)
        literal = b""
        for entry in form.headers:
            if entry is not None:
                name, size = entry
                literal += name
                if size == 0:
                    continue
                steps.append((literal, -1, size))
            else:
                found = next(native, None)
                if found is None:
                    continue
                steps.append((literal + found[0], found[1], 0))
            literal = b""
        steps += [(name, index, 0) for name, index in native]
        if literal:
            steps.append((literal, -1, 0))
        return steps


def _headers_of(at: dict[str, int]) -> list[tuple[bytes, int]]:
    """Native properties that are headers: name with type letter, and index of the value."""
    found = []
    for name, index in at.items():
        foreign = props.foreign_name_of(name)
        if foreign is None and name.startswith(props.CE_PREFIX):
            foreign = _CE_HEADER + name[len(props.CE_PREFIX) :]
        if foreign is not None and len(foreign.encode()) <= SHORTSTR_BYTES_MAX:
            found.append((shortstr(foreign) + b"S", index))
    return found


class Renderer:
    """Messages as AMQP shows them. `exchange_of`: names of exchanges by topic, for topics whose name was shortened."""

    def __init__(self, exchange_of: dict[str, str]) -> None:
        self._exchange_of = exchange_of
        self._cache: dict[tuple[str | None, str, bytes], Rendered] = {}
        self._layouts: dict[tuple[bytes, ...], _Layout] = {}
        self._tails: dict[tuple[str | None, str, str, bytes], bytes] = {}
        self._nested = residue.Nested()

    def render(self, message: Message) -> Rendered:
        """Tail of basic.deliver and content header."""
        key = (message.exchange, message.topic, message.properties)
        found = self._cache.get(key)
        if found is None:
            found = self._render(message)
            if found.repeats and len(message.properties) <= RENDERED_KEY_BYTES_MAX:
                if len(self._cache) >= RENDERED_MAX:
                    self._cache.clear()
                self._cache[key] = found
        return found

    def _render(self, message: Message) -> Rendered:
        names, values = _split(message.properties)
        layout = self._layouts.get(names) or self._layout(names)
        tail = self._tail(message, layout, values)
        expires_at_ms = max(_number(values[layout.expires]), 0) if layout.expires >= 0 else 0
        listed = None
        if layout.rest >= 0:
            listed = self._with_residue(layout, values)
        elif layout.exact >= 0:
            listed = _exact(values[layout.exact])
        if listed is None:
            listed = self._plain(layout, values, message.born_ms, expires_at_ms)
        return Rendered(tail, listed, expires_at_ms, layout.repeats)

    def _layout(self, names: tuple[bytes, ...]) -> _Layout:
        layout = _Layout(names)
        if len(names) <= LAYOUT_NAMES_MAX:
            if len(self._layouts) >= LAYOUTS_MAX:
                self._layouts.clear()
            self._layouts[names] = layout
        return layout

    def _tail(self, message: Message, layout: _Layout, values: list[bytes]) -> bytes:
        # A record that was read from the log has its exchange in the properties only.
        origin = message.exchange
        topic, tag = message.topic, message.tag
        if origin is None:
            if layout.exchange >= 0:
                origin = values[layout.exchange].decode("utf-8", "replace")
            else:
                origin = self._exchange_of.get(topic)
        own_key = values[layout.key] if layout.key >= 0 else b""
        key = (origin, topic, tag, own_key)
        tail = self._tails.get(key)
        if tail is None:
            if len(self._tails) >= TAILS_MAX:
                self._tails.clear()
            tail = self._tails[key] = _made_tail(origin, topic, tag, own_key.decode("utf-8", "replace"))
        return tail

    def _with_residue(self, layout: _Layout, values: list[bytes]) -> bytes | None:
        """None for a residue that is none: any native producer can write that property, and a list that no client can read
        (AMQP 4.2.6.1) would end the connection of every consumer that it is delivered to."""
        form, _, text = values[layout.rest].partition(b".")
        plan = layout.form_plan(form)
        if plan is None:
            return None
        try:
            loose = b64decode(text, validate=True)
            return self._put_together(plan, values, loose)
        except (ValueError, IndexError, struct.error):
            return None

    def _plain(self, layout: _Layout, values: list[bytes], born_ms: int, expires_at_ms: int) -> bytes:
        """Native properties alone: an absent QoS is delivery mode 2."""
        flags = residue.DELIVERY_MODE
        loose = b"\x01" if layout.qos >= 0 and values[layout.qos] == b"0" else b"\x02"
        if layout.priority >= 0:
            priority = _number(values[layout.priority])
            if 0 <= priority < 256:
                flags |= residue.PRIORITY
                loose += _OCTETS[priority]
        if expires_at_ms:
            flags |= residue.EXPIRATION
            loose += shortstr(str(max(expires_at_ms - born_ms, 0)))
        return self._put_together(layout.plain_plan(flags), values, loose)

    def _put_together(self, plan: _Plan, values: list[bytes], loose: bytes) -> bytes:
        """Raises ValueError, IndexError or struct.error for loose values that do not fit."""
        parts = [plan.head]
        at = _add_fields(parts, plan.before, values, loose, 0)
        if plan.headers is not None:
            table: list[bytes] = []
            for literal, index, size in plan.headers:
                if index >= 0:
                    value = values[index]
                    length = len(value)
                    table += (literal, _LENGTHS[length] if length < 1024 else _LONG_WORD.pack(length), value)
                    continue
                start = at
                at += size if size >= 0 else 4 + LENGTH(loose, at)[0]
                value = loose[start:at]
                if size == NESTED:
                    self._nested.check(literal[-1:] + value)
                table += (literal, value)
            text = b"".join(table)
            parts += (_LONG_WORD.pack(len(text)), text)
        if _add_fields(parts, plan.after, values, loose, at) != len(loose):
            raise MalformedError("values of another form")
        return b"".join(parts)


def _add_fields(parts: list[bytes], steps: list[_Step], values: list[bytes], loose: bytes, at: int) -> int:
    """Fields outside the table; returns the position in `loose` behind them."""
    for _, index, size in steps:
        if index >= 0:
            value = values[index]
            if len(value) > SHORTSTR_BYTES_MAX or not value.isascii():
                value = _short(value.decode("utf-8", "replace")).encode()
            parts += (_OCTETS[len(value)], value)
            continue
        start = at
        if size == LONG:
            at += 1 + loose[at]
            value = loose[start:at]
            if not value.isascii():
                value[1:].decode()
        else:
            at += size
            value = loose[start:at]
        parts.append(value)
    return at


def _split(properties: bytes) -> tuple[tuple[bytes, ...], list[bytes]]:
    """Names and values in their order, as `props.decode` reads them."""
    if properties and properties[-1] != 2:
        properties += b"\x02"
    words = properties.replace(b"\x02", b"\x01").split(b"\x01")
    count = len(words) >> 1
    if (
        properties.translate(None, _NOT_MARKS) == b"\x01\x02" * count
        and b"\x01\x02" not in properties
        and b"\x02\x01" not in properties
        and properties[:1] != b"\x01"
    ):
        return tuple(words[:-1:2]), words[1::2]
    pairs = props.decode(properties)
    return tuple([name.encode() for name in pairs]), [value.encode() for value in pairs.values()]


def _number(text: bytes) -> int:
    """A property's number, -1 for what is none: native producers write what they like, and `int` itself refuses 4,301 digits."""
    return int(text) if len(text) <= NUMBER_DIGITS_MAX and text.isdigit() else -1


def _made_tail(origin: str | None, topic: str, tag: str, own_key: str) -> bytes:
    if origin == DEFAULT_EXCHANGE:
        exchange = ""
        key = own_key or native_names.decode_escapes(tag if topic == DIRECT_TOPIC else topic, "")
    else:
        exchange = origin or native_names.decode_escapes(topic, "")
        key = native_names.decode_escapes(tag, ".")
    return shortstr(_short(exchange)) + shortstr(_short(key))


def _short(text: str) -> str:
    """At most 255 bytes, cut at a character."""
    if len(text) <= SHORTSTR_BYTES_MAX // 4:
        return text
    return text.encode("utf-8", "replace")[:SHORTSTR_BYTES_MAX].decode("utf-8", "ignore")


def _exact(text: bytes) -> bytes | None:
    """The property list as records of earlier versions hold it, whole. Forged ones count as little as a forged residue."""
    try:
        exact = b64decode(text, validate=True)
        decode_properties(exact)
    except ValueError:  # binascii.Error, MalformedError, Utf8Error and ValueTypeError are all one
        return None
    return exact if len(exact) <= residue.HEADER_BYTES_MAX else None
