"""Messages as AMQP shows them: basic.deliver's exchange and routing key, and the property list.

Native properties are split into names and values. What the names mean (`_Layout`), how a list of them is put together (`_Plan`) and what stands
between the native texts of such a list (`_Template`) is worked out once and remembered, as the same names and the same residue come with most
messages of a program.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from dataclasses import dataclass
from typing import Final

from gantrymq.model import names as native_names
from gantrymq.model import properties as props
from gantrymq.model.message import Message
from gantrymq_gateways.amqp.origin import DEFAULT_EXCHANGE, DIRECT_TOPIC, local
from gantrymq_gateways.amqp.properties import residue
from gantrymq_gateways.amqp.properties.mapping import KEY
from gantrymq_gateways.amqp.properties.residue import LENGTH, LONG, NESTED
from gantrymq_gateways.amqp.wire.content import decode_properties
from gantrymq_gateways.amqp.wire.values import SHORTSTR_BYTES_MAX, MalformedError, shortstr

NUMBER_DIGITS_MAX: Final = 18
"""Digits of a number in a property: milliseconds of any time that a client can name, and always 63 bits."""

LAYOUTS_MAX: Final = 1024
"""Remembered lists of names: a program has a handful. Some 5 KiB each."""
LAYOUT_NAMES_MAX: Final = 128
"""Longer ones are not remembered."""
FORMS_MAX: Final = 16
"""Remembered forms of one list of names."""
TEMPLATES_MAX: Final = 1024
"""Remembered lists but for their native texts: a program has a handful, and some more where numbers stand in them. Some 3 KiB each."""
TEMPLATE_KEY_BYTES_MAX: Final = 1024
"""Longer residues hardly repeat."""
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


class _Template:
    """A property list but for its native texts. `before`, `after`: fields on both sides of the table, each with what stands before it and the
    index of its value; `table`: in turn what stands before a text, room for its length and for itself, at last what stands behind them all."""

    __slots__ = ("after", "before", "last", "opening", "table", "texts")

    def __init__(self, head: bytes) -> None:
        self.before: list[tuple[bytes, int]] = []
        self.opening = head
        self.table: list[bytes] = []
        """Empty: there is no table."""
        self.texts: list[int] = []
        self.after: list[tuple[bytes, int]] = []
        self.last = b""

    def fill(self, values: list[bytes]) -> bytes:
        """The list with these texts."""
        parts: list[bytes] = []
        _add_fields(parts, self.before, values)
        parts.append(self.opening)
        if self.table:
            texts = [values[index] for index in self.texts]
            table = self.table[:]
            table[2::3] = texts
            try:
                table[1::3] = [_LENGTHS[len(text)] for text in texts]
            except IndexError:
                table[1::3] = [_LONG_WORD.pack(len(text)) for text in texts]
            text = b"".join(table)
            parts.append(_LONG_WORD.pack(len(text)))
            parts.append(text)
        _add_fields(parts, self.after, values)
        parts.append(self.last)
        return b"".join(parts)


class _Layout:
    """What the names of a message's properties mean: indexes of values, -1 for what is not there."""

    __slots__ = (
        "exact",
        "exchange",
        "expires",
        "forms",
        "headers",
        "kept",
        "key",
        "plain",
        "priority",
        "qos",
        "repeats",
        "rest",
        "shared",
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
        self.kept = len(names) <= LAYOUT_NAMES_MAX
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
        self._templates: dict[tuple[_Layout, bytes], _Template] = {}
        self._nested = residue.Nested()

    def render(self, message: Message) -> Rendered:
        """Tail of basic.deliver and content header."""
        if len(message.properties) > RENDERED_KEY_BYTES_MAX:
            return self._render(message)
        key = (message.exchange, message.topic, message.properties)
        found = self._cache.get(key)
        if found is None:
            found = self._render(message)
            if found.repeats:
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
        if layout.kept:
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
        elif "\x01" in origin:
            origin = origin.partition("\x01")[0]
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
        key = layout, values[layout.rest]
        template = self._templates.get(key)
        if template is None:
            form, _, text = values[layout.rest].partition(b".")
            plan = layout.form_plan(form)
            if plan is None:
                return None
            try:
                template = self._template(plan, b64decode(text, validate=True))
            except (ValueError, IndexError, struct.error):
                return None
            self._remember(key, template)
        return template.fill(values)

    def _remember(self, key: tuple[_Layout, bytes], template: _Template) -> None:
        if key[0].kept and len(key[1]) <= TEMPLATE_KEY_BYTES_MAX:
            if len(self._templates) >= TEMPLATES_MAX:
                self._templates.clear()
            self._templates[key] = template

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
        key = layout, b"%d %b" % (flags, loose)
        template = self._templates.get(key)
        if template is None:
            template = self._template(layout.plain_plan(flags), loose)
            self._remember(key, template)
        return template.fill(values)

    def _template(self, plan: _Plan, loose: bytes) -> _Template:
        """Raises ValueError, IndexError or struct.error for loose values that do not fit."""
        template = _Template(plan.head)
        template.opening, at = _fields(template.before, plan.head, plan.before, loose, 0)
        if plan.headers is not None:
            run: list[bytes] = []
            for literal, index, size in plan.headers:
                run.append(literal)
                if index >= 0:
                    template.texts.append(index)
                    template.table += (b"".join(run), b"", b"")
                    run.clear()
                    continue
                start = at
                at += size if size >= 0 else 4 + LENGTH(loose, at)[0]
                if size == NESTED:
                    self._nested.check(literal[-1:] + loose[start:at])
                run.append(loose[start:at])
            template.table.append(b"".join(run))
        template.last, at = _fields(template.after, b"", plan.after, loose, at)
        if at != len(loose):
            raise MalformedError("values of another form")
        return template


def _fields(
    found: list[tuple[bytes, int]], literal: bytes, steps: list[_Step], loose: bytes, at: int
) -> tuple[bytes, int]:
    """Fields outside the table; returns what stands behind the last native one, and the position in `loose` behind them."""
    for _, index, size in steps:
        if index >= 0:
            found.append((literal, index))
            literal = b""
            continue
        start = at
        if size == LONG:
            at += 1 + loose[at]
            loose[start + 1 : at].decode()
        else:
            at += size
        literal += loose[start:at]
    return literal, at


def _add_fields(parts: list[bytes], fields: list[tuple[bytes, int]], values: list[bytes]) -> None:
    for literal, index in fields:
        value = values[index]
        if len(value) > SHORTSTR_BYTES_MAX or not value.isascii():
            value = _short(value.decode("utf-8", "replace")).encode()
        parts += (literal, _OCTETS[len(value)], value)


def _split(properties: bytes) -> tuple[tuple[bytes, ...], list[bytes]]:
    """Names and values in their order, as `props.decode` reads them."""
    if properties and properties[-1] != 2:
        properties += b"\x02"
    words = properties[:-1].replace(b"\x02", b"\x01").split(b"\x01") if properties else []
    count = len(words) >> 1
    if properties.translate(None, _NOT_MARKS) == b"\x01\x02" * count and all(words):
        return tuple(words[::2]), words[1::2]
    pairs = props.decode(properties)
    return tuple([name.encode() for name in pairs]), [value.encode() for value in pairs.values()]


def _number(text: bytes) -> int:
    """A property's number, -1 for what is none: native producers write what they like, and `int` itself refuses 4,301 digits."""
    return int(text) if len(text) <= NUMBER_DIGITS_MAX and text.isdigit() else -1


def _made_tail(origin: str | None, topic: str, tag: str, own_key: str) -> bytes:
    if origin == DEFAULT_EXCHANGE:
        exchange = ""
        key = own_key or local(native_names.decode_escapes(tag if topic == DIRECT_TOPIC else topic, ""))
    else:
        exchange = local(origin or native_names.decode_escapes(topic, ""))
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
