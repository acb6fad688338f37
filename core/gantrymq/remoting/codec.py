"""Remoting frames to commands and back; no socket, no clock.

    int32 total | int8 serialize type, int24 header length | header | body        (big-endian; total does not
    count itself)

A header is JSON (type 0) or RocketMQ's binary form (type 1); `fields` are the command's extFields. Answers
are JSON whatever the request was, as the Java server's are; receivers decide by the type byte. Layouts:
docs/formats/remoting.md.
"""

from __future__ import annotations

import struct
from typing import Final, TypeVar

import msgspec

from gantrymq.model.limits import FRAME_BYTES_MAX
from gantrymq.remoting.constants import (
    BINARY_CODE_MAX,
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    HEADER_BINARY,
    HEADER_JSON,
    LANGUAGE_BY_NAME,
    LANGUAGE_NAMES,
    VERSION,
    Language,
    RequestCode,
)
from gantrymq.remoting.frame_headers import (
    TYPED,
    TYPED_START,
    Decode,
    JsonOut,
    decode_json,
    decode_loose,
    encode_json,
)
from gantrymq.remoting.headers import HeaderError, SendHeaderV2, parse

H = TypeVar("H", bound=msgspec.Struct)

PREFIX: Final = struct.Struct(">II")
"""Length of the rest of the frame; serialize type and header length."""
_BINARY: Final = struct.Struct(">hBhiii")
"""code, language, version, opaque, flag, length of the remark"""
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")

FIELDS_MAX: Final = 1024
"""Entries in one binary header; RocketMQ's largest header class has under 30."""

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_OTHER: Final = int(Language.OTHER)
_BINARY_SENDS: Final = (_INT16.pack(_SEND), _INT16.pack(_BATCH))
_INT32_MAX: Final = 0x7FFFFFFF


class FrameError(Exception):
    """The stream is not Remoting from here on. `commands`: what was whole before the bad frame."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.commands: list[Command] = []


class Command:
    """One request or response. `language`: number of `constants.Language`; `header`: set instead of `fields` where the reader was asked
    for it (`FrameReader(typed=True)`) and knows the code's class (`frame_headers.TYPED`); see `header_of`."""

    __slots__ = ("body", "code", "fields", "flag", "header", "language", "opaque", "remark", "version")

    def __init__(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        language: int = Language.PYTHON,
        version: int = VERSION,
        header: msgspec.Struct | None = None,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.language = language
        self.version = version
        self.remark = remark
        self.fields: dict[str, str] = {} if fields is None else fields
        self.body = body
        self.header = header

    @property
    def is_response(self) -> bool:
        """Bit 0 of the flag."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Bit 1 of the flag: nobody waits for an answer."""
        return self.flag & FLAG_ONEWAY != 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Command):
            return NotImplemented
        return self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]

    def _key(self) -> tuple[object, ...]:
        head = self.code, self.opaque, self.flag, self.language, self.version
        return *head, self.remark, self.fields, self.body, self.header

    def __repr__(self) -> str:
        what = "response" if self.is_response else "request"
        rest = f"{self.fields!r}, remark={self.remark!r}, {len(self.body)} bytes"
        return f"Command({what} {self.code}, opaque={self.opaque}, {rest})"


def _language(value: str | int | None) -> int:
    if isinstance(value, str):
        return LANGUAGE_BY_NAME.get(value, _OTHER)
    return _OTHER if value is None else value


def _int32(value: int, name: str) -> int:
    if not -0x80000000 <= value <= 0x7FFFFFFF:
        raise FrameError(f"header: `{name}` {value} is not a 32-bit integer")
    return value


def decode_json_header(header: bytes, body: bytes) -> Command:
    """Command of a JSON header, keys in any order; raises `FrameError`."""
    try:
        try:
            wire = decode_json(header)
            fields = wire.extFields or {}
        except msgspec.ValidationError:
            # Some clients write numbers and nulls into extFields, where Java has a map of strings.
            loose = decode_loose(header)
            fields = {name: _text(value) for name, value in (loose.extFields or {}).items() if value is not None}
            return Command(
                _int32(loose.code, "code"), fields, body, _int32(loose.opaque, "opaque"),
                _int32(loose.flag, "flag"), loose.remark, _language(loose.language), loose.version,
            )  # fmt: skip
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"header is not a Remoting JSON header: {error}") from None
    code, opaque, flag, language = wire.code, wire.opaque, wire.flag, wire.language
    if not (0 <= code <= _INT32_MAX and 0 <= opaque <= _INT32_MAX and 0 <= flag <= _INT32_MAX):
        code, opaque, flag = _int32(code, "code"), _int32(opaque, "opaque"), _int32(flag, "flag")
    return Command(
        code, fields, body, opaque, flag, wire.remark, 0 if language == "JAVA" else _language(language), wire.version
    )


def _text(value: str | int | float | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def decode_binary_header(header: bytes, body: bytes) -> Command:
    """Command of a binary header; raises `FrameError`. Strings of length zero become empty (Java: null)."""
    try:
        code, language, version, opaque, flag, remark_size = _BINARY.unpack_from(header)
        at = _BINARY.size + remark_size
        if remark_size < 0 or at + 4 > len(header):
            raise FrameError(f"binary header: the remark has {remark_size} bytes in a header of {len(header)}")
        remark = header[_BINARY.size : at].decode() if remark_size else None
        stop = at + 4 + _INT32.unpack_from(header, at)[0]
        at += 4
        if stop < at or stop > len(header):
            raise FrameError(f"binary header: the fields end at byte {stop} of {len(header)}")
        fields: dict[str, str] = {}
        while at < stop:
            size = header[at] << 8 | header[at + 1]
            end = at + 2 + size
            if end + 4 > stop:  # also a negative size
                raise FrameError(f"binary header: a field name has {size} bytes at byte {at} of {stop}")
            name = header[at + 2 : end].decode()
            size = _INT32.unpack_from(header, end)[0]
            at = end + 4 + size
            if size < 0 or at > stop:
                raise FrameError(f"binary header: field {name[:40]!r} has {size} bytes at byte {end} of {stop}")
            fields[name] = header[end + 4 : at].decode()
            if len(fields) > FIELDS_MAX:
                raise FrameError(f"binary header: more than {FIELDS_MAX} fields")
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise FrameError(f"binary header of {len(header)} bytes: {error}") from None
    return Command(code, fields, body, opaque, flag, remark, language, version)


def header_of(command: Command, of: type[H]) -> H:
    """The typed header of a request, read with its frame or now; raises `HeaderError`."""
    header = command.header
    return header if type(header) is of else parse(command.fields, of)


def _decode_typed(wanted: int, decode: Decode, header: bytes, body: bytes) -> Command | None:
    """Command with `header`, or None if it is not what it looked like: the general way then says why."""
    try:
        wire = decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    code, opaque, flag, language = wire.code, wire.opaque, wire.flag, wire.language
    if code != wanted or not (0 <= opaque <= _INT32_MAX and 0 <= flag <= _INT32_MAX):
        return None
    return Command(
        code, None, body, opaque, flag, wire.remark, 0 if language == "JAVA" else _language(language), wire.version, wire.extFields
    )  # fmt: skip


def _decode_binary_send(header: bytes, body: bytes) -> Command:
    """Command with `header` and `fields`; raises `FrameError`."""
    command = decode_binary_header(header, body)
    try:
        command.header = parse(command.fields, SendHeaderV2)
    except HeaderError:
        pass  # the door parses the fields again and answers what is wrong
    return command


def _what_is(total: int) -> str:
    """Guess from the first four bytes what a peer speaks that is not Remoting."""
    word = total.to_bytes(4, "big")
    if word in (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PRI "):
        return "; this looks like HTTP, but the port speaks RocketMQ Remoting"
    if word == b"HTTP":
        return "; this looks like the answer of an HTTP server, not of a nameserver or broker"
    if word[:2] == b"\x16\x03":
        return "; this looks like TLS, which is not configured on this port"
    if word == b"AMQP":
        return "; this looks like AMQP, but the port speaks RocketMQ Remoting"
    if word == b"PROX":
        return "; this looks like the PROXY protocol, which is not configured on this port"
    return ""


class FrameReader:
    """Cuts a byte stream into commands. Holds at most one unfinished frame (`FRAME_BYTES_MAX`) and the last
    chunk."""

    __slots__ = ("_need", "_pending", "_typed", "number")

    def __init__(self, typed: bool = False) -> None:
        """`typed`: fill in `Command.header` where the code has a class. Fields that the class does not have are lost then: who must see
        all of them, as for a signature over all fields, reads untyped, and parses (`header_of`) what it has checked."""
        self._typed = typed
        self._pending = bytearray()
        self._need = 0
        """Bytes that must be in `_pending` before it is worth looking again."""
        self.number = 1
        """Of the frame that is unfinished: another one when that is whole."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of the unfinished frame that are held."""
        return len(self._pending)

    @property
    def missing_bytes(self) -> int:
        """Bytes that the unfinished frame lacks, or its prefix; 0 without one."""
        return self._need - len(self._pending) if self._pending else 0

    def begun(self) -> tuple[Command, int] | None:
        """The unfinished frame, without its body, and its bytes; None while its header is not whole. Raises `FrameError`."""
        pending = self._pending
        if len(pending) < 8:
            return None
        total, marker = PREFIX.unpack_from(pending)
        body_at = 8 + (marker & 0xFFFFFF)
        if len(pending) < body_at:
            return None
        return self._decode(marker >> 24, bytes(pending[8:body_at]), b""), total + 4

    def feed(self, data: bytes) -> list[Command]:
        """All commands that `data` completes, in order. Raises `FrameError`; the reader is of no use after
        that."""
        pending = self._pending
        if pending:
            pending += data
            if len(pending) < self._need:
                return []
            data = bytes(pending)
            pending.clear()
        commands: list[Command] = []
        typed, at, size = self._typed, 0, len(data)
        try:
            while size - at >= 8:
                total, marker = PREFIX.unpack_from(data, at)
                end = at + 4 + total
                body_at = at + 8 + (marker & 0xFFFFFF)
                if total > FRAME_BYTES_MAX - 4 or body_at > end:
                    self._refuse(total, marker)
                if end > size:
                    self._need = end - at
                    break
                command = None
                if typed and marker < 1 << 24 and (known := TYPED.get(data[at + 8 : at + 8 + TYPED_START])) is not None:
                    command = _decode_typed(known[0], known[1], data[at + 8 : body_at], data[body_at:end])
                if command is None:
                    command = self._decode(marker >> 24, data[at + 8 : body_at], data[body_at:end])
                commands.append(command)
                at = end
            else:
                self._need = 8
                if size - at >= 4:
                    total = int.from_bytes(data[at : at + 4], "big")
                    if total > FRAME_BYTES_MAX - 4 or total < 4:
                        self._refuse(total, 0)
        except FrameError as error:
            error.commands = commands
            raise
        if at:
            self.number += 1
        if at < size:
            pending += memoryview(data)[at:] if at else data
        return commands

    def _decode(self, kind: int, header: bytes, body: bytes) -> Command:
        if kind == HEADER_JSON:
            return decode_json_header(header, body)
        if kind == HEADER_BINARY:
            if self._typed and header.startswith(_BINARY_SENDS):
                return _decode_binary_send(header, body)
            return decode_binary_header(header, body)
        raise FrameError(f"unknown header serialize type {kind}; allowed are 0 (JSON) and 1 (ROCKETMQ)")

    def _refuse(self, total: int, marker: int) -> None:
        if total > FRAME_BYTES_MAX - 4:
            raise FrameError(f"frame of {total + 4} bytes, at most {FRAME_BYTES_MAX} are allowed{_what_is(total)}")
        raise FrameError(f"frame of {total + 4} bytes with a header of {marker & 0xFFFFFF}")


def encode_header(command: Command) -> bytes:
    """JSON header in fastjson's key order; empty fields and remark are left out, as Java does."""
    language = command.language
    return encode_json(
        JsonOut(
            command.code,
            command.fields or None,
            command.flag,
            LANGUAGE_NAMES[language] if 0 <= language < len(LANGUAGE_NAMES) else "OTHER",
            command.opaque,
            command.remark,
            "JSON",
            command.version,
        )
    )


def encode_binary_header(command: Command) -> bytes:
    """Binary header; raises ValueError for a code beyond 16 bits (pop codes) or a field name beyond 32,767
    bytes."""
    if not -BINARY_CODE_MAX - 1 <= command.code <= BINARY_CODE_MAX:
        raise ValueError(f"code {command.code} does not fit into the 16 bits of a binary header; use the JSON header")
    parts = []
    for name, value in command.fields.items():
        key, text = name.encode(), value.encode()
        if len(key) > 0x7FFF:
            raise ValueError(f"field name of {len(key)} bytes; a binary header allows 32767")
        parts.append(b"%b%b%b%b" % (_INT16.pack(len(key)), key, _INT32.pack(len(text)), text))
    fields = b"".join(parts)
    remark = (command.remark or "").encode()
    head = _BINARY.pack(
        command.code, command.language & 0xFF, command.version, command.opaque, command.flag, len(remark)
    )
    return b"%b%b%b%b" % (head, remark, _INT32.pack(len(fields)), fields)


def frame(header: bytes, body: bytes = b"", kind: int = HEADER_JSON) -> bytes:
    """One frame around a header; raises ValueError over `FRAME_BYTES_MAX`."""
    size = len(header)
    total = 4 + size + len(body)
    if total + 4 > FRAME_BYTES_MAX:
        raise ValueError(f"frame of {total + 4} bytes, at most {FRAME_BYTES_MAX} are allowed")
    return PREFIX.pack(total, kind << 24 | size) + header + body


def encode(command: Command, binary: bool = False) -> bytes:
    """The command as one frame, JSON header unless `binary`; raises ValueError for what cannot be written."""
    if binary:
        return frame(encode_binary_header(command), command.body, HEADER_BINARY)
    return frame(encode_header(command), command.body)


def response(
    request: Command,
    code: int = 0,
    remark: str | None = None,
    fields: dict[str, str] | None = None,
    body: bytes = b"",
) -> bytes:
    """Frame that answers `request`. Language JAVA, as every RocketMQ server says: old clients know few
    names."""
    return encode(Command(code, fields, body, request.opaque, FLAG_RESPONSE, remark, Language.JAVA))


class SendResponses:
    """Template for the answers to sends: one %-format per answer instead of a JSON encoder.

    `host`: address and port of the store as the record has them (8 bytes, 20 with IPv6); `region`:
    MSG_REGION.
    """

    __slots__ = ("_region", "host", "prefixes", "template", "wider")

    def __init__(self, host: bytes, region: str) -> None:
        self._region = encode_json(region).replace(b"%", b"%%")
        self.set_host(host)

    def set_host(self, host: bytes) -> None:
        """The address under which clients know the broker."""
        self.host = host.hex().upper()
        """The first digits of every message id."""
        self.template = (
            b'{"code":0,"extFields":{"MSG_REGION":%b,"TRACE_ON":"true","msgId":"%b%%016X","queueId":"%%d",'
            b'"queueOffset":"%%d"},"flag":1,"language":"JAVA","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
        ) % (self._region, self.host.encode(), VERSION)
        self.wider = self.template.replace(b'"extFields":{', b'"extFields":{%b', 1)
        """With room for further fields in front, each with a comma behind it; `prefixes` are too few for these."""
        largest = len(self.template % ((1 << 63) - 1, -(1 << 31), -(1 << 63), -(1 << 31)))
        self.prefixes = [PREFIX.pack(size + 4, size) for size in range(largest + 1)]
        """By the length of the header."""

    def frame(self, opaque: int, physical_offset: int, queue_id: int, queue_offset: int) -> bytes:
        """Whole frame of a successful answer."""
        header = self.template % (physical_offset, queue_id, queue_offset, opaque)
        return self.prefixes[len(header)] + header
