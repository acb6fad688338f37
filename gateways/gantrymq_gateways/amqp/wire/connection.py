"""One AMQP 0-9-1 connection without sockets and clocks: handshake, channels, content assembly, heartbeats, closing.

Bytes in, events out; what is to be sent gathers in an outbox. It knows which methods are legal when, and answers protocol
errors itself in RabbitMQ's words; it does not know what a queue is. Times are milliseconds of a monotonic clock.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, Final

from gantrymq.model.indexes.shared import shared
from gantrymq.net.held.outbound import Piece, Pieces, gathered
from gantrymq_gateways.amqp.wire import constants as c
from gantrymq_gateways.amqp.wire.assembling import Assembling, Content, expected_content
from gantrymq_gateways.amqp.wire.codec import (
    CONTENT_OVERHEAD,
    FRAME,
    HEADER,
    HEARTBEAT_FRAME,
    decode_arguments,
    erlang_binary,
    frame_description,
    method_frame,
)
from gantrymq_gateways.amqp.wire.constants import METHODS, METHODS_BY_NUMBER, AmqpError, Method
from gantrymq_gateways.amqp.wire.events import (
    ChannelClosing,
    ChannelFailed,
    ChannelOpened,
    ConnectionClosing,
    Ended,
    Event,
    MethodReceived,
    Opened,
    Publish,
    Settings,
)
from gantrymq_gateways.amqp.wire.login import text_or_empty
from gantrymq_gateways.amqp.wire.values import MalformedError, Utf8Error, ValueTypeError, lookup

FRAME_MAX_BEFORE_TUNE: Final = 4096
"""Largest frame of a peer that has not logged in: nothing before tune-ok needs more."""
HANDSHAKE_MS: Final = 10_000
"""From accept to connection.open, as RabbitMQ's handshake_timeout."""
SILENT_CLOSE_MS: Final = 3_000
"""RabbitMQ's SILENT_CLOSE_DELAY: slows guessing of passwords down."""
GOODBYE_MS: Final = 3_000
"""How long a peer that has heard close-ok may take to close its socket. RabbitMQ waits, too, up to 30 s: amqp091-go takes an end of the stream that it
sees together with close-ok for a failure, and with Watermill hangs for good."""
CLOSING_MS: Final = 5_000
"""How long a peer may take to answer connection.close."""
SILENT_HALVES_MAX: Final = 5
"""Half heartbeat intervals in a row without a byte after which the peer is gone: it has said nothing for 2.5 to 3 intervals. AMQP 4.2.7
wants two at least; RabbitMQ drops after two to three."""

WHOLE_BYTES_MAX: Final = 16 * 1024
"""A basic.publish whose content is cut off by the end of a read is looked at again when all of it is there, if it is no larger: begun and
finished by frames it costs twice as much. Larger ones are assembled."""

WORK_MAX: Final = 256
"""Of one `receive_data`; what is behind it has to be handed over again. So many acknowledgements or frames without an event are half a
millisecond, and so are ordinary publishes, which count as `EVENT_WORK`: 32 of them."""
EVENT_WORK: Final = 8

_ACK: Final = METHODS["basic.ack"]
_ACK_FRAME: Final = struct.Struct(">4xQB")
_ACK_IDS: Final = _ACK.number.to_bytes(4, "big")
_PUBLISH_IDS: Final = c.NUMBER_PUBLISH.to_bytes(4, "big")
_HEADER_KIND: Final = bytes((c.FRAME_HEADER,))


class State(Enum):
    """Where the connection stands."""

    HEADER = auto()
    START = auto()
    LOGIN = auto()
    """Whether the peer may come in is being found out."""
    SECURE = auto()
    """connection.secure was sent: its mechanism has more to say."""
    TUNE = auto()
    OPEN = auto()
    RUNNING = auto()
    CLOSING = auto()
    """We sent connection.close and wait for close-ok; everything else is ignored."""
    SILENT = auto()
    """The peer is refused, or has said goodbye: nothing is read or said until the socket is closed."""
    ENDED = auto()


_NAMES: Final = {
    State.START: "starting",
    State.LOGIN: "securing",
    State.SECURE: "securing",
    State.TUNE: "tuning",
    State.OPEN: "opening",
    State.RUNNING: "running",
}
"""States in RabbitMQ's reply texts."""

_HANDSHAKE: Final = {
    State.START: "connection.start-ok",
    State.SECURE: "connection.secure-ok",
    State.TUNE: "connection.tune-ok",
    State.OPEN: "connection.open",
}
"""The one method that each state of the handshake takes."""


Authenticate = Callable[[str, bytes, Callable[[str | bytes | bool], None]], None]
"""`authenticate(mechanism, response, answer)`: `answer(user)` lets the peer in, `answer(False)` does not, bytes are a challenge whose response is
asked next; now or later."""

SECURE_MAX: Final = 4
"""Challenges of one login; no mechanism has more than two."""


_same_capabilities: dict[frozenset[str], frozenset[str]] = {}
"""One object for all clients that announce the same: at most eight."""


class _Phase(Enum):
    OPEN = auto()
    CLOSING = auto()
    """We sent channel.close: all but close and close-ok is ignored."""
    DRAINING = auto()
    """The peer sent channel.close and waits for close-ok."""


@dataclass(slots=True)
class _Channel(Content):
    phase: _Phase = _Phase.OPEN


def _only_root(vhost: str) -> None:
    if vhost != "/":
        raise AmqpError(c.NOT_ALLOWED, f"vhost {vhost} not found", connection=True)


@dataclass(frozen=True, slots=True)
class Asked:
    """Whom a connection asks and tells beside its events."""

    check_vhost: Callable[[str], None] = _only_root
    """Raises AmqpError for a vhost that is not there, or not for this user."""
    check_channel: Callable[[], None] = lambda: None
    """Raises AmqpError where the user has too many."""
    update_secret: Callable[[str], None] = lambda secret: None
    """A new password or token of the same user. Raises AmqpError."""
    on_failure: Callable[[int, str], None] = lambda channel, text: None
    """Called once per channel or connection (0) that is closed for an error, with the reply text."""


NOBODY: Final = Asked()


class Connection:
    """State and outbox of one connection."""

    __slots__ = (
        "_asked",
        "_assembling",
        "_authenticate",
        "_buffer",
        "_capabilities",
        "_challenges",
        "_channels",
        "_deadline",
        "_ended",
        "_half_ms",
        "_heard",
        "_mechanisms",
        "_need",
        "_now",
        "_number",
        "_out",
        "_out_is_large",
        "_payload_max",
        "_reason",
        "_settings",
        "_silent_halves",
        "_state",
        "channel_max",
        "client",
        "client_name",
        "frame_max",
        "mechanism",
        "taken",
        "user",
    )

    def __init__(
        self,
        settings: Settings,
        authenticate: Authenticate,
        now_ms: int,
        mechanisms: bytes = c.MECHANISMS,
        asked: Asked = NOBODY,
    ) -> None:
        self._settings = settings
        self._authenticate = authenticate
        self._mechanisms = mechanisms
        self._state = State.HEADER
        self._buffer = bytearray()
        """An unfinished frame."""
        self._need = 0
        """Bytes that must be in it before it is worth looking again."""
        self._number = 1
        """Of the frame that is unfinished: another one when that is whole."""
        self.taken = 0
        """How much of what was received last is dealt with, or kept."""
        self._out: list[Piece] = []
        self._out_is_large = False
        """There are pieces that must not be copied."""
        self._payload_max = FRAME_MAX_BEFORE_TUNE - c.FRAME_OVERHEAD
        self._channels: dict[int, _Channel] = {}
        self._assembling = Assembling(settings.assembling, settings.body_bytes_max, settings.body_bytes_now)
        self._now = now_ms
        self._deadline: int | None = now_ms + HANDSHAKE_MS
        self._half_ms = 0
        self._silent_halves = 0
        self._heard = False
        self.user = ""
        self.mechanism = ""
        self._challenges = 0
        self.client_name = ""
        """What the client calls the connection."""
        self._capabilities: frozenset[str] = frozenset()
        self.client = ""
        self._reason = ""
        self._asked = asked
        self._ended = False
        self.frame_max = FRAME_MAX_BEFORE_TUNE
        self.channel_max = settings.channel_max

    # Outbox.

    def data_to_send(self) -> Pieces:
        """Take and clear the outbox."""
        data = gathered(self._out) if self._out_is_large else b"".join(self._out)
        self._out_is_large = False
        self._out.clear()
        return data

    def send(self, channel: int, name: str, *arguments: Any) -> None:
        """One method frame."""
        self._out.append(method_frame(channel, METHODS[name], arguments))

    def send_frames(self, frames: bytes) -> None:
        """Frames that are already encoded."""
        self._out.append(frames)

    def send_pieces(self, pieces: list[Piece]) -> None:
        """The same in pieces, some of them large."""
        self._out += pieces
        self._out_is_large = True

    @property
    def heartbeat_s(self) -> int:
        """Agreed in tune-ok; 0 for none."""
        return self._half_ms // 500

    @property
    def running(self) -> bool:
        """Open in both directions."""
        return self._state is State.RUNNING

    def has_capability(self, name: str) -> bool:
        """What the client announced in start-ok."""
        return name in self._capabilities

    # Deadlines.

    def next_deadline(self) -> int | None:
        """When `handle_deadline` wants to be called."""
        return self._deadline

    def handle_deadline(self, now_ms: int, reading: bool = True) -> list[Event]:
        """`reading`: false while we ourselves do not read (back-pressure), which is not the peer's silence."""
        self._now = now_ms
        events: list[Event] = []
        if self._deadline is None or now_ms < self._deadline:
            return events
        if self._state is not State.RUNNING:
            reasons = {State.CLOSING: "no answer to connection.close", State.SILENT: self._reason}
            self._end(
                events, reasons.get(self._state, f"handshake not finished after {HANDSHAKE_MS // 1000} s"), abort=True
            )
            return events
        # AMQP 4.2.7: nobody waits longer than the interval. Sent every half of it, whatever else was said: what was said at the
        # begin of the half before may be an interval ago by now, and a client that waits just as long (Java's) is gone.
        self._out.append(HEARTBEAT_FRAME)
        self._silent_halves = 0 if self._heard or not reading else self._silent_halves + 1
        self._heard = False
        if self._silent_halves >= SILENT_HALVES_MAX:
            self._end(events, "missed heartbeats from client", abort=True)
            return events
        self._deadline = now_ms + self._half_ms
        return events

    # What the adapter asks for.

    def channel_closed(self, channel: int) -> None:
        """Everything of a channel that the peer closed is finished."""
        if self._channels.pop(channel, None) is not None:
            self.send(channel, "channel.close-ok")

    def connection_closed(self) -> None:
        """Everything of a connection that the peer closed is released."""
        self.send(0, "connection.close-ok")
        self._silence("", GOODBYE_MS)

    def fail(self, error: AmqpError, channel: int, number: int = 0) -> None:
        """Close the channel or the connection; `number`: class and method id of what failed."""
        text = error.reply_text.encode()[: c.REPLY_TEXT_BYTES_MAX].decode("utf-8", "ignore")
        if not error.connection:
            state = self._channels.get(channel)
            if state is not None and state.phase is not _Phase.CLOSING and self._state is State.RUNNING:
                crossed = state.phase is _Phase.DRAINING
                state.phase = _Phase.CLOSING
                self._assembling.forget(state)
                self.send(channel, "channel.close", error.code, text, number >> 16, number & 0xFFFF)
                if crossed:
                    # AMQP 1.5.2.6: the peer's own channel.close has come already, and it waits for the answer.
                    self.send(channel, "channel.close-ok")
                self._asked.on_failure(channel, text)
            return
        if self._state in (State.CLOSING, State.SILENT, State.ENDED):
            return
        self.send(0, "connection.close", error.code, text, number >> 16, number & 0xFFFF)
        self._state = State.CLOSING
        self._asked.on_failure(0, text)
        self._deadline = self._now + CLOSING_MS

    # Bytes in.

    def receive_data(self, data: bytes, now_ms: int) -> list[Event]:
        """Events of everything that is complete, or of `WORK_MAX`: what is behind `data[:taken]` is to be handed over again."""
        self._now = now_ms
        self._heard = True
        events: list[Event] = []
        self.taken = len(data)
        kept = len(self._buffer)
        if kept:
            self._buffer += data
            if len(self._buffer) < self._need:
                return events
            data = bytes(self._buffer)
        self._need = at = 0
        if self._state is State.HEADER:
            at = self._receive_header(data, events)
        if not self._deaf():
            at = self._receive_frames(data, at, kept, events)
        if at:
            self._number += 1
        self._buffer = bytearray() if self._deaf() else bytearray(data[at : kept + self.taken])
        if not self._need and len(self._buffer) >= FRAME.size and self._state is not State.HEADER:
            self._need = FRAME.size + FRAME.unpack_from(self._buffer)[2] + 1
        return events

    def _deaf(self) -> bool:
        return self._state is State.SILENT or self._state is State.ENDED

    def _receive_header(self, data: bytes, events: list[Event]) -> int:
        # AMQP 4.2.2: a wrong header is answered with the right one and a closed socket, at the first wrong byte.
        head = data[:8]
        if head in (c.PROTOCOL_HEADER, c.PROTOCOL_HEADER_OLD):
            self._state = State.START
            self.send(0, "connection.start", 0, 9, self._settings.properties, self._mechanisms, c.LOCALES)
            return 8
        if len(head) < 8 and (c.PROTOCOL_HEADER.startswith(head) or c.PROTOCOL_HEADER_OLD.startswith(head)):
            return 0
        self._out.append(c.PROTOCOL_HEADER)
        self._end(events, f"bad protocol header {erlang_binary(head, False)}")
        return 0

    def _receive_frames(self, data: bytes, at: int, kept: int, events: list[Event]) -> int:
        """Position of the first frame that is not complete, or, behind the `kept` bytes of earlier reads, that is too much for now."""
        end = len(data)
        unpack = FRAME.unpack_from
        channels = self._channels
        if self._state is State.HEADER:
            return at
        kind: int
        number: int
        size: int
        work = 0
        while end - at >= 7:
            if work >= WORK_MAX and at >= kept:
                self.taken = at - kept
                break
            kind, number, size = unpack(data, at)
            if size > self._payload_max:
                limit = f"{{frame_too_large,{size},{self._payload_max}}}"
                self._frame_error(f"type {kind}, all octets = <<>>: {limit}", events)
                return end
            stop = at + 7 + size
            if stop >= end:
                break
            if data[stop] != c.FRAME_END:
                text = frame_description(kind, data[at + 7 : stop])
                self._frame_error(f"{text}: {{invalid_frame_end_marker,{data[stop]}}}", events)
                return end
            if kind == 1 and self._state is State.RUNNING:
                channel = channels.get(number)
                if channel is not None and channel.phase is _Phase.OPEN and channel.publish is None:
                    if data.startswith(_PUBLISH_IDS, at + 7) and size > 4:
                        after = self._whole_publish(data, at, stop, number, events)
                        if after > 0:
                            at = after
                            work += EVENT_WORK
                            continue
                        if -after > end - at and -after <= WHOLE_BYTES_MAX:
                            self._need = -after
                            break
                    elif data.startswith(_ACK_IDS, at + 7) and size == _ACK_FRAME.size:
                        tag, bits = _ACK_FRAME.unpack_from(data, at + 7)
                        events.append(MethodReceived(number, _ACK, [tag, bits & 1 == 1]))
                        at = stop + 1
                        work += 1
                        continue
            at = stop + 1
            seen = len(events)
            if self._receive_frame(kind, number, data[at - 1 - size : stop], events):
                return end
            work += EVENT_WORK if len(events) > seen else 1
        return at

    def _whole_publish(self, data: bytes, at: int, stop: int, number: int, events: list[Event]) -> int:
        """Method, header and at most one body frame that follow each other in the buffer: where they end. If they have not come, so far as
        it is seen: the negative of the bytes that are needed to see more. 0 if it is anything else."""
        head = stop + 1
        end = len(data)
        if end - head < 20:
            if head == end:
                return at - head - FRAME.size
            return at - head - 20 if data.startswith(_HEADER_KIND, head) else 0
        tail: int
        last: int
        kind, channel, size, class_id, weight, body_size = HEADER.unpack_from(data, head)
        tail = head + 7 + size
        if (
            kind != 2
            or channel != number
            or class_id != c.CLASS_BASIC
            or weight
            or not CONTENT_OVERHEAD + 2 <= size <= self._payload_max
            or body_size > self._settings.body_bytes_max
            or body_size > self._payload_max
        ):
            return 0
        if tail < end and data[tail] != c.FRAME_END:
            return 0
        if not body_size:
            if tail >= end:
                return at - tail - 1
            events.append(Publish(number, data[at + 11 : stop], data[head + 19 : tail], b""))
            return tail + 1
        last = tail + 8 + body_size
        if end - tail < 8:
            return at - tail - 8
        kind, channel, size = FRAME.unpack_from(data, tail + 1)
        if kind != 3 or channel != number or size != body_size:
            return 0
        if last >= end:
            return at - last - 1
        if data[last] != c.FRAME_END:
            return 0
        events.append(Publish(number, data[at + 11 : stop], data[head + 19 : tail], data[tail + 8 : last]))
        return last + 1

    def _receive_frame(self, kind: int, number: int, payload: bytes, events: list[Event]) -> bool:
        """True if nothing more is to be read."""
        if self._state is State.CLOSING:
            self._while_closing(kind, number, payload, events)
        elif kind == c.FRAME_METHOD and len(payload) >= 4:
            self._receive_method(number, payload, events)
        elif kind == c.FRAME_HEARTBEAT and not payload:
            if number:
                self._unexpected(kind, payload, events)
        elif (kind == c.FRAME_HEADER and len(payload) >= CONTENT_OVERHEAD) or kind == c.FRAME_BODY:
            if number == 0 or self._state is not State.RUNNING:
                self._unexpected(kind, payload, events)
            else:
                self._receive_content(kind, number, payload, events)
        else:
            self._frame_error(f"{frame_description(kind, payload)}: unknown_frame", events)
        return self._deaf()

    def _while_closing(self, kind: int, number: int, payload: bytes, events: list[Event]) -> None:
        if kind != c.FRAME_METHOD or number or len(payload) < 4:
            return
        method = METHODS_BY_NUMBER.get(int.from_bytes(payload[:4], "big"))
        if method is METHODS["connection.close-ok"]:
            self._end(events, "")
        elif method is METHODS["connection.close"]:
            self.send(0, "connection.close-ok")

    def _receive_method(self, number: int, payload: bytes, events: list[Event]) -> None:
        ids = int.from_bytes(payload[:4], "big")
        method = METHODS_BY_NUMBER.get(ids)
        if method is None:
            # RabbitMQ closes the socket without connection.close here.
            self._end(events, f"unknown method {ids >> 16}.{ids & 0xFFFF}", abort=True)
            return
        if method.number == c.NUMBER_PUBLISH and self._state is State.RUNNING and number:
            self._content_method(number, method, payload[4:], events)
            return
        try:
            arguments = decode_arguments(method.spec, payload, 4)
        except Utf8Error as error:
            self._connection_error(AmqpError(c.FRAME_ERROR, str(error), connection=True), events)
            return
        except ValueTypeError:
            self._connection_error(AmqpError(c.INTERNAL_ERROR, "", connection=True), events)
            return
        except MalformedError:
            text = f"cannot decode {erlang_binary(payload[4:], False)}"
            self._connection_error(AmqpError(c.FRAME_ERROR, text, connection=True), events, ids)
            return
        if self._state is not State.RUNNING:
            self._handshake(number, method, arguments, events)
        elif number == 0:
            self._control(method, arguments, events)
        else:
            self._channel_method(number, method, arguments, events)

    # Handshake (AMQP 2.2.4): start, tune, open.

    def _handshake(self, number: int, method: Method, arguments: list[Any], events: list[Event]) -> None:
        if number or method.name != _HANDSHAKE.get(self._state):
            if method.name == "connection.close" and not number:
                events.append(ConnectionClosing())
                return
            self._silence(f"unexpected {method.name} in connection state {_NAMES[self._state]}")
        elif self._state is State.START:
            self._log_in(arguments)
        elif self._state is State.SECURE:
            self._secured(arguments[0])
        elif self._state is State.TUNE:
            self._tuned(*arguments)
        else:
            self._opened(arguments[0], method, events)

    def _log_in(self, arguments: list[Any]) -> None:
        properties, mechanism, response, _locale = arguments
        capabilities = lookup(properties, "capabilities")
        if capabilities is not None and capabilities.kind == "F":
            said = {name for name, value in capabilities.value if value.kind == "t" and value.value}
            found = c.ASKED_CAPABILITIES & said
            self._capabilities = _same_capabilities.setdefault(found, found)
        self.client = shared(text_or_empty(lookup(properties, "product"))[:64])
        self.client_name = text_or_empty(lookup(properties, "connection_name"))[:128]
        if mechanism not in self._mechanisms.decode().split():
            self._logged_in(mechanism, False)
            return
        self.mechanism = shared(mechanism)
        self._secured(bytes(response))

    def _secured(self, response: bytes) -> None:
        """AMQP 1.4.2.3: as often as the mechanism wants it."""
        self._state = State.LOGIN
        self._authenticate(self.mechanism, response, partial(self._logged_in, self.mechanism))

    def _logged_in(self, mechanism: str, user: str | bytes | bool) -> None:
        """The answer to `authenticate`, now or later."""
        if self._state not in (State.START, State.LOGIN):
            return  # it ended meanwhile
        if isinstance(user, bytes):
            self._challenges += 1
            if self._challenges <= SECURE_MAX:
                self._state = State.SECURE
                self.send(0, "connection.secure", user)
                return
            user = False
        if isinstance(user, str):
            self.user = shared(user)
            self._state = State.TUNE
            settings = self._settings
            self.send(0, "connection.tune", settings.channel_max, settings.frame_max, settings.heartbeat_s)
            return
        known = mechanism in self._mechanisms.decode().split()
        if known and c.AUTH_CLOSE_CAPABILITY in self._capabilities:
            text = f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
            self.fail(AmqpError(c.ACCESS_REFUSED, text, connection=True), 0)
        else:
            self._silence(f"login refused, mechanism {mechanism[:32]!r}")

    def _tuned(self, channel_max: int, frame_max: int, heartbeat_s: int) -> None:
        settings = self._settings
        if not 0 < channel_max <= settings.channel_max:
            self._silence(f"tune-ok with channel_max {channel_max}, allowed are 1 to {settings.channel_max}")
            return
        if not c.FRAME_MIN_SIZE <= frame_max <= settings.frame_max:
            self._silence(f"tune-ok with frame_max {frame_max}, allowed are {c.FRAME_MIN_SIZE} to {settings.frame_max}")
            return
        self.channel_max = channel_max
        self.frame_max = frame_max
        self._payload_max = frame_max - c.FRAME_OVERHEAD
        self._half_ms = heartbeat_s * 500
        self._state = State.OPEN

    def _opened(self, vhost: str, method: Method, events: list[Event]) -> None:
        try:
            self._asked.check_vhost(vhost)
        except AmqpError as error:
            self.fail(error, 0, method.number)
            return
        self._state = State.RUNNING
        self._deadline = self._now + self._half_ms if self._half_ms else None
        self.send(0, "connection.open-ok", "")
        events.append(Opened(self.user, self.client))

    # Open.

    def _control(self, method: Method, arguments: list[Any], events: list[Event]) -> None:
        if method.name == "connection.close":
            events.append(ConnectionClosing())
        elif method.name == "connection.update-secret":
            try:
                self._asked.update_secret(bytes(arguments[0]).decode("utf-8", "replace"))
            except AmqpError as error:
                self._connection_error(error, events, method.number)
                return
            if self._state is State.RUNNING:
                self.send(0, "connection.update-secret-ok")
        else:
            text = f"unexpected method in connection state {_NAMES[self._state]}"
            self._connection_error(AmqpError(c.CHANNEL_ERROR, text, connection=True), events, method.number)

    def _channel_method(self, number: int, method: Method, arguments: list[Any], events: list[Event]) -> None:
        channel = self._channels.get(number)
        if channel is None:
            self._open_channel(number, method, events)
            return
        if channel.phase is not _Phase.OPEN:
            if method.name == "channel.close-ok" and channel.phase is _Phase.CLOSING:
                del self._channels[number]
            elif method.name == "channel.close" and channel.phase is _Phase.CLOSING:
                self.send(number, "channel.close-ok")
            return
        if channel.publish is not None:
            self._connection_error(expected_content(channel), events, c.NUMBER_PUBLISH)
        elif method.name == "channel.open":
            error = AmqpError(c.CHANNEL_ERROR, "second 'channel.open' seen", connection=True)
            self._connection_error(error, events, method.number)
        elif method.name == "channel.close":
            channel.phase = _Phase.DRAINING
            events.append(ChannelClosing(number))
        elif method.name != "channel.close-ok":
            events.append(MethodReceived(number, method, arguments))

    def _open_channel(self, number: int, method: Method, events: list[Event]) -> None:
        if method.name == "channel.close-ok":
            return
        if method.name != "channel.open":
            error = AmqpError(c.CHANNEL_ERROR, "expected 'channel.open'", connection=True)
            self._connection_error(error, events, method.number)
            return
        if len(self._channels) >= self.channel_max:
            # As RabbitMQ: their number counts, not the highest one; clients open channel 65535 whatever was negotiated.
            count = len(self._channels)
            text = f"number of channels opened ({count}) has reached the negotiated channel_max ({self.channel_max})"
            self._connection_error(AmqpError(c.NOT_ALLOWED, text, connection=True), events, method.number)
            return
        try:
            self._asked.check_channel()
        except AmqpError as error:
            self._connection_error(error, events, method.number)
            return
        self._channels[number] = _Channel()
        self.send(number, "channel.open-ok", b"")
        events.append(ChannelOpened(number))

    # Content (AMQP 4.2.6): header and body frames of one channel follow its method.

    def _content_method(self, number: int, method: Method, arguments: bytes, events: list[Event]) -> None:
        channel = self._channels.get(number)
        if channel is None:
            self._open_channel(number, method, events)
        elif channel.phase is _Phase.OPEN:
            if channel.publish is not None:
                self._connection_error(expected_content(channel), events, c.NUMBER_PUBLISH)
            else:
                channel.publish = arguments

    def _receive_content(self, kind: int, number: int, payload: bytes, events: list[Event]) -> None:
        channel = self._channels.get(number)
        if channel is None:
            error = AmqpError(c.CHANNEL_ERROR, "expected 'channel.open'", connection=True)
            self._connection_error(error, events)
        elif channel.phase is not _Phase.OPEN:
            return
        elif channel.publish is None:
            text = "expected method frame, got non method frame instead"
            self._connection_error(AmqpError(c.UNEXPECTED_FRAME, text, connection=True), events)
        else:
            try:
                self._assembling.receive(channel, kind == c.FRAME_HEADER, payload, self._payload_max)
            except AmqpError as error:
                if error.connection:
                    self._connection_error(error, events, c.NUMBER_PUBLISH)
                else:
                    self.fail(error, number, c.NUMBER_PUBLISH)
                    events.append(ChannelFailed(number))
                return
            if channel.is_complete():
                events.append(Publish(number, *self._assembling.take(channel)))

    def inbound_bytes(self) -> int:
        """Held of frames and bodies that are not complete."""
        return len(self._buffer) + self._assembling.size

    def unfinished(self) -> int:
        """A number that stays the same while the same body, or frame, waits for the peer; 0: none does."""
        return self._assembling.oldest() or (self._number if self._buffer else 0)

    def missing_bytes(self) -> int:
        """Bytes that the frame lacks which is not complete, or all frames of its message, as far as that is known."""
        return max(self._need - len(self._buffer), 0) if self._buffer else 0

    def give_up(self, error: AmqpError) -> None:
        """Close for what is unfinished, and forget it."""
        self._buffer = bytearray()
        self.forget_contents()
        if self._state is State.RUNNING:
            self.fail(error, 0)

    def forget_contents(self) -> None:
        """The connection is gone, and with it all that was begun."""
        for channel in self._channels.values():
            self._assembling.forget(channel)

    # Failures.

    def _frame_error(self, text: str, events: list[Event]) -> None:
        self._connection_error(AmqpError(c.FRAME_ERROR, text, connection=True), events)

    def _unexpected(self, kind: int, payload: bytes, events: list[Event]) -> None:
        text = frame_description(kind, payload)
        self._connection_error(AmqpError(c.UNEXPECTED_FRAME, text, connection=True), events)

    def _connection_error(self, error: AmqpError, events: list[Event], number: int = 0) -> None:
        if self._state is State.RUNNING:
            self.fail(error, 0, number)
        else:
            self._silence(error.reply_text)

    def _silence(self, reason: str, for_ms: int = SILENT_CLOSE_MS) -> None:
        self._state = State.SILENT
        self._reason = reason
        self._deadline = self._now + for_ms

    def _end(self, events: list[Event], reason: str, abort: bool = False) -> None:
        if not self._ended:
            self._ended = True
            self._state = State.ENDED
            self._deadline = None
            events.append(Ended(reason, abort))
