"""Remoting frames to commands and back; no socket, no clock.

    int32 total | int8 serialize type, int24 header length | header | body        (big-endian; total does not
    count itself)

A header is JSON (type 0) or RocketMQ's binary form (type 1); `fields` are the command's extFields. Answers
are JSON whatever the request was, as the Java server's are; receivers decide by the type byte. Layouts:
docs/formats/remoting.md.
"""

from __future__ import annotations

import struct
from typing import Final, cast

import msgspec

from gantrymq.model.limits import FRAME_BYTES_MAX
from gantrymq.remoting.ack_shapes import ACK_CODE, ACK_START, Acks, AckShape, AckShapes, Fields
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
from gantrymq.remoting.end_shapes import END_START, Ends, EndShapes
from gantrymq.remoting.frame_headers import (
    JsonOut,
    decode_json,
    decode_loose,
    decode_pop,
    decode_pull,
    decode_send,
    encode_json,
)
from gantrymq.remoting.headers import HeaderError, PopHeader, PullHeader, SendHeaderV2, parse
from gantrymq.remoting.send_shapes import Alike, SendShape, SendShapes, header_of

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
_send_shapes: Final = SendShapes()
_ack_shapes: Final = AckShapes()
_end_shapes: Final = EndShapes()
_SEND_STARTS: Final = (b'{"code":%d,' % _SEND, b'{"code":%d,' % _BATCH)
_PULLS: Final = (int(RequestCode.PULL_MESSAGE), int(RequestCode.LITE_PULL_MESSAGE))
_POP: Final = int(RequestCode.POP_MESSAGE)
_POP_START: Final = b'{"code":%d,' % _POP
_READ_STARTS: Final = (*[b'{"code":%d,' % code for code in _PULLS], _POP_START)
_RUN_STARTS: Final = (ACK_START, END_START)
_ANY_SENDS: Final = (*_SEND_STARTS, *_BINARY_SENDS)
_INT32_MAX: Final = 0x7FFFFFFF


class FrameError(Exception):
    """The stream is not Remoting from here on. `commands`: what was whole before the bad frame."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.commands: list[Command] = []


class Command:
    """One request or response. `language`: number of `constants.Language`; `send`: set instead of `fields`
    when the reader was asked for typed sends (`FrameReader(typed_sends=True)`) and this is SEND_MESSAGE_V2 or
    SEND_BATCH_MESSAGE; `pull`: the same of PULL_MESSAGE and LITE_PULL_MESSAGE, `pop` of POP_MESSAGE."""

    __slots__ = ("body", "code", "fields", "flag", "language", "opaque", "pop", "pull", "remark", "send", "version")

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
        send: SendHeaderV2 | None = None,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.language = language
        self.version = version
        self.remark = remark
        self.fields: dict[str, str] = {} if fields is None else fields
        self.body = body
        self.send = send
        self.pull: PullHeader | None = None
        self.pop: PopHeader | None = None

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
        return *head, self.remark, self.fields, self.body, self.send, self.pull, self.pop

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


def _decode_typed_send(header: bytes, body: bytes) -> Command | None:
    """Command with `send`, or None if the header is not what it looked like: the general way then says
    why."""
    try:
        wire = decode_send(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    code = wire.code
    opaque = wire.opaque
    if (code != _SEND and code != _BATCH) or not -0x80000000 <= opaque <= 0x7FFFFFFF:
        return None
    language = wire.language
    return Command(
        code, None, body, opaque, wire.flag, None,
        0 if language == "JAVA" else _language(language), wire.version, wire.extFields,
    )  # fmt: skip


def _decode_typed_read(header: bytes, body: bytes) -> Command | None:
    """Command with `pull` or `pop`, or None, as `_decode_typed_send`."""
    is_pop = header.startswith(_POP_START)
    try:
        wire = decode_pop(header) if is_pop else decode_pull(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    code, opaque, flag, language = wire.code, wire.opaque, wire.flag, wire.language
    if (code != _POP if is_pop else code not in _PULLS) or not (0 <= opaque <= _INT32_MAX and 0 <= flag <= _INT32_MAX):
        return None
    command = Command(
        code, None, body, opaque, flag, wire.remark, 0 if language == "JAVA" else _language(language), wire.version
    )
    fields = wire.extFields
    if isinstance(fields, PopHeader):
        command.pop = fields
    else:
        command.pull = fields
    return command


def _decode_binary_send(header: bytes, body: bytes) -> Command:
    """Command with `send` and `fields`; raises `FrameError`."""
    command = decode_binary_header(header, body)
    try:
        command.send = parse(command.fields, SendHeaderV2)
    except HeaderError:
        pass  # the door parses the fields again and answers what is wrong
    return command


def _learn(marker: int, header: bytes, command: Command) -> SendShape | None:
    """Remember the shape of an ordinary send."""
    send = command.send
    if send is None or command.code != _SEND or command.flag:
        return None

    def decode(probe: bytes) -> tuple[SendHeaderV2 | None, int]:
        try:
            again = _decode_typed_send(probe, b"") if marker < 1 << 24 else _decode_binary_send(probe, b"")
        except FrameError:
            again = None
        return (again.send, again.opaque) if again is not None else (None, 0)

    return _send_shapes.learn(marker, header, send, (command.language, command.version), decode)


def as_command(received: Command | Alike) -> Command:
    """A send that was told by its likeness, as the command that the general way would have made."""
    if isinstance(received, Command):
        return received
    shape, _, _, _, opaque, body = received
    return Command(_SEND, None, body, opaque, 0, None, shape.language, shape.version, header_of(received))


def _decode_fields(header: bytes) -> tuple[Fields, int]:
    command = decode_json_header(header, b"")
    return command.fields, command.opaque


def _learn_ack(header: bytes) -> None:
    """Remember the shape of an acknowledgement that waits for an answer."""
    try:
        command = decode_json_header(header, b"")
        if not command.flag and command.remark is None:
            _ack_shapes.learn(header, command.fields, (command.language, command.version), _decode_fields)
    except FrameError:
        return  # whoever decodes it in earnest says so


def _learn_end(header: bytes) -> None:
    """Remember the shape of a decision on a transaction, one-way or not."""
    try:
        command = decode_json_header(header, b"")
        if command.flag in (0, FLAG_ONEWAY) and command.remark is None:
            _end_shapes.learn(header, command.fields, command.flag, _decode_fields)
    except FrameError:
        return  # as above


def as_commands(received: list[Command | Alike | Acks | Ends]) -> list[Command]:
    """What was told by its likeness as the commands that the general way would have made."""
    commands: list[Command] = []
    for one in received:
        if isinstance(one, Acks):
            shape = one.shape
            for offset, opaque in zip(one.offsets, one.opaques, strict=True):
                fields = one.fields(offset)
                commands.append(Command(ACK_CODE, fields, b"", int(opaque), 0, None, shape.language, shape.version))
        elif isinstance(one, Ends):
            commands += [decode_json_header(header, b"") for header in one.headers()]
        else:
            commands.append(as_command(one))
    return commands


def _what_is(total: int) -> str:
    """Guess from the first four bytes what a peer speaks that is not Remoting."""
    word = total.to_bytes(4, "big")
    if word in (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PRI "):
        return "; this looks like HTTP, but the port speaks RocketMQ Remoting"
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

    __slots__ = ("_ack_shape", "_need", "_pending", "_shape", "_typed_sends", "_unlike", "_unlike_acks", "_unlike_ends")

    def __init__(self, typed_sends: bool = False) -> None:
        self._typed_sends = typed_sends
        self._pending = bytearray()
        self._need = 0
        """Bytes that must be in `_pending` before it is worth looking again."""
        self._shape: SendShape | None = None
        """Of the last send that was like another, or was learned."""
        self._unlike = 0
        """Sends since then that were like none."""
        self._ack_shape: AckShape | None = None
        self._unlike_acks = 0
        """The same of acknowledgements."""
        self._unlike_ends = 0
        """The same of decisions on transactions."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of the unfinished frame that are held."""
        return len(self._pending)

    def feed(self, data: bytes) -> list[Command]:
        """All commands that `data` completes, in order. Raises `FrameError`; the reader is of no use after
        that."""
        commands = self.read(data)
        return as_commands(commands) if self._typed_sends else cast("list[Command]", commands)

    def read(self, data: bytes) -> list[Command | Alike | Acks | Ends]:
        """As `feed`; with `typed_sends`, ordinary sends, acknowledgements and decisions that are like earlier ones stay as they are told
        from those."""
        pending = self._pending
        if pending:
            pending += data
            if len(pending) < self._need:
                return []
            data = bytes(pending)
            pending.clear()
        commands: list[Command | Alike | Acks | Ends] = []
        typed, shape, at, size = self._typed_sends, self._shape, 0, len(data)
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
                if shape is not None and marker == shape.marker:
                    sent = shape.match(data, at + 8, body_at, end)
                    if sent is not None:
                        commands.append(sent)
                        at = end
                        continue
                if typed and data.startswith(_ANY_SENDS, at + 8):
                    sent = _send_shapes.find(marker, data, at + 8, body_at, end)
                    if sent is not None:
                        shape = self._shape = sent[0]
                        self._unlike = 0
                        commands.append(sent)
                        at = end
                        continue
                if typed and body_at == end and data.startswith(_RUN_STARTS, at + 8):
                    begin, at = at, self._take_run(marker, data, at, commands)
                    if at > begin:
                        continue
                command = None
                # Java, and most clients after it, write the keys in alphabetical order: code first.
                if typed and marker < 1 << 24 and data.startswith(_SEND_STARTS, at + 8):
                    command = _decode_typed_send(data[at + 8 : body_at], data[body_at:end])
                elif typed and marker < 1 << 24 and data.startswith(_READ_STARTS, at + 8):
                    command = _decode_typed_read(data[at + 8 : body_at], data[body_at:end])
                if command is None:
                    command = self._decode(marker >> 24, data[at + 8 : body_at], data[body_at:end])
                if command.send is not None:
                    # The 1st, 2nd, 4th, 8th...: learning takes as long as 50 sends, in vain where each is unlike all others.
                    self._unlike += 1
                    if self._unlike & (self._unlike - 1) == 0:
                        shape = self._shape = _learn(marker, data[at + 8 : body_at], command) or shape
                commands.append(command)
                at = end
            else:
                self._need = 8
                if size - at >= 4:
                    total = int.from_bytes(data[at : at + 4], "big")
                    if total > FRAME_BYTES_MAX - 4 or total < 4:
                        self._refuse(total, 0)
        except FrameError as error:
            self._shape, error.commands = None, as_commands(commands)  # `lone` takes nothing any more
            raise
        if at < size:
            pending += memoryview(data)[at:] if at else data
        return commands

    def lone(self, data: bytes) -> Alike | None:
        """The send that `data` is, if it is one, whole, and like the last one. None: nothing was taken, `read` it."""
        shape, size = self._shape, len(data)
        if shape is None or self._pending or not 8 <= size <= FRAME_BYTES_MAX:
            return None
        total, marker = PREFIX.unpack_from(data)
        if total + 4 != size or marker != shape.marker:
            return None
        body_at = 8 + (marker & 0xFFFFFF)
        return shape.match(data, 8, body_at, size) if body_at <= size else None

    def _take_run(self, marker: int, data: bytes, at: int, commands: list[Command | Alike | Acks | Ends]) -> int:
        """Add the acknowledgements or decisions whose frames begin at `at`, if they are like earlier ones; where they end, or `at`."""
        last = commands[-1] if commands else None
        found: Acks | Ends | None
        if data.startswith(ACK_START, at + 8):
            found = self._like_ack(marker, data, at, last if isinstance(last, Acks) else None)
        else:
            found = self._like_end(marker, data, at)
        if found is None:
            return at
        if found is not last:
            commands.append(found)
        return found.end

    def _like_ack(self, marker: int, data: bytes, at: int, run: Acks | None) -> Acks | None:
        """The acknowledgements whose frames begin at `at`, if they are like an earlier one; see `AckShape.match`."""
        shape = self._ack_shape
        found = shape.match(data, at, run) if shape is not None and shape.marker == marker else None
        if found is None:
            found = _ack_shapes.find(marker, data, at, run)
            if found is not None:
                self._ack_shape = found.shape
                self._unlike_acks = 0
            else:  # as sends are learned
                self._unlike_acks += 1
                if marker < 1 << 24 and self._unlike_acks & (self._unlike_acks - 1) == 0:
                    _learn_ack(data[at + 8 : at + 8 + marker])
        return found

    def _like_end(self, marker: int, data: bytes, at: int) -> Ends | None:
        """The decisions whose frames begin at `at`, if they are like an earlier one; see `EndShape.match`."""
        found = _end_shapes.find(marker, data, at)
        if found is not None:
            self._unlike_ends = 0
        else:  # as sends are learned
            self._unlike_ends += 1
            if marker < 1 << 24 and self._unlike_ends & (self._unlike_ends - 1) == 0:
                _learn_end(data[at + 8 : at + 8 + marker])
        return found

    def _decode(self, kind: int, header: bytes, body: bytes) -> Command:
        if kind == HEADER_JSON:
            return decode_json_header(header, body)
        if kind == HEADER_BINARY:
            if self._typed_sends and header.startswith(_BINARY_SENDS):
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

    __slots__ = ("host", "prefixes", "template", "wider")

    def __init__(self, host: bytes, region: str) -> None:
        self.host = host.hex().upper()
        """The first digits of every message id."""
        self.template = (
            b'{"code":0,"extFields":{"MSG_REGION":%b,"TRACE_ON":"true","msgId":"%b%%016X","queueId":"%%d",'
            b'"queueOffset":"%%d"},"flag":1,"language":"JAVA","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
        ) % (encode_json(region).replace(b"%", b"%%"), self.host.encode(), VERSION)
        self.wider = self.template.replace(b'"extFields":{', b'"extFields":{%b', 1)
        """With room for further fields in front, each with a comma behind it; `prefixes` are too few for these."""
        largest = len(self.template % ((1 << 63) - 1, -(1 << 31), -(1 << 63), -(1 << 31)))
        self.prefixes = [PREFIX.pack(size + 4, size) for size in range(largest + 1)]
        """By the length of the header."""

    def frame(self, opaque: int, physical_offset: int, queue_id: int, queue_offset: int) -> bytes:
        """Whole frame of a successful answer."""
        header = self.template % (physical_offset, queue_id, queue_offset, opaque)
        return self.prefixes[len(header)] + header
