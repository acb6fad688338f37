"""A door inside a WebSocket: the opening handshake (RFC 6455 section 4), then frames around another door's bytes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import h11

from gantrymq.net.api import Door, Link
from gantrymq.net.doors import frames
from gantrymq.net.held.outbound import Pieces, gathered
from gantrymq.net.host_names import HostNames, asked_host, name_of
from gantrymq.net.tls.identity import Certificate

log = logging.getLogger(__name__)

HEAD_BYTES_MAX: Final = 16 * 1024
"""Of the opening request: cookies of a web application fit."""

ACCEPT_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""RFC 6455 1.3."""

VERSION: Final = b"13"


@dataclass(frozen=True, slots=True)
class WebSocketRules:
    """What one kind of door asks of a WebSocket. `protocols`: sub-protocols, the best first. `origins`: of pages that may come beside those of the
    host that they ask, such as `https://app.example.org`; `*`: all."""

    path: str
    protocols: tuple[str, ...]
    names: HostNames
    origins: tuple[str, ...] = ()


class Refused(Exception):
    """The request opens no WebSocket here."""

    def __init__(self, status: int, text: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


def accept_key(key: bytes) -> bytes:
    """`Sec-WebSocket-Accept` for a `Sec-WebSocket-Key`."""
    return base64.b64encode(hashlib.sha1(key + ACCEPT_GUID, usedforsecurity=False).digest())


def _tokens(values: list[bytes]) -> list[str]:
    return [token.strip() for value in values for token in value.decode("latin-1").split(",") if token.strip()]


def judge(request: h11.Request, rules: WebSocketRules) -> list[tuple[str, str]]:
    """Headers of the answer that opens the WebSocket. Raises Refused."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in request.headers:
        found.setdefault(bytes(name), []).append(bytes(value))
    if bytes(request.target).partition(b"?")[0].decode("latin-1") != rules.path:
        raise Refused(404, f"there is nothing here but WebSockets at {rules.path}")
    upgrade = [token.lower() for token in _tokens(found.get(b"upgrade", []))]
    connection = [token.lower() for token in _tokens(found.get(b"connection", []))]
    if request.method != b"GET" or "websocket" not in upgrade or "upgrade" not in connection:
        raise Refused(
            426, f"{rules.path} speaks WebSocket alone", (("upgrade", "websocket"), ("connection", "upgrade"))
        )
    if found.get(b"sec-websocket-version") != [VERSION]:
        raise Refused(426, "WebSocket of version 13 is spoken here", (("sec-websocket-version", "13"),))
    keys = found.get(b"sec-websocket-key", [])
    try:
        good = len(keys) == 1 and len(base64.b64decode(keys[0], validate=True)) == 16
    except binascii.Error:
        good = False
    if not good:
        raise Refused(400, "Sec-WebSocket-Key is not 16 bytes in base64")
    refusal = rules.names.refusal(asked_host(bytes(request.target), [(bytes(n), bytes(v)) for n, v in request.headers]))
    if refusal:
        raise Refused(421, refusal)
    _check_origin(found, rules)
    asked = _tokens(found.get(b"sec-websocket-protocol", []))
    chosen = next((protocol for protocol in rules.protocols if protocol in asked), None)
    if chosen is None:
        raise Refused(400, f"Sec-WebSocket-Protocol names none of {', '.join(rules.protocols)}")
    return [
        ("upgrade", "websocket"),
        ("connection", "upgrade"),
        ("sec-websocket-accept", accept_key(keys[0]).decode()),
        ("sec-websocket-protocol", chosen),
    ]


def _check_origin(found: dict[bytes, list[bytes]], rules: WebSocketRules) -> None:
    """A browser lets any page open a WebSocket to any host, and says in Origin whose page it is."""
    origin = b"".join(found.get(b"origin", [])).decode("latin-1").lower()
    if not origin or "*" in rules.origins or origin in rules.origins:
        return
    asked = b"".join(found.get(b"host", []))
    if not urlsplit(origin).hostname or urlsplit(origin).hostname != name_of(asked):
        raise Refused(403, f"pages of {origin[:100]} may not come here; list it among the door's WebSocket origins")


class _InnerLink:
    """The link of the door inside: its close is said on the WebSocket first."""

    __slots__ = (
        "_outer",
        "expect",
        "guest",
        "is_encrypted",
        "is_pressed",
        "key_user",
        "known",
        "mark",
        "outbound_bytes",
        "pause_reading",
        "peer",
        "peer_certificate",
        "peer_is_loopback",
        "peer_is_trusted",
        "resume_reading",
        "set_deadline",
        "spent",
    )

    def __init__(self, outer: WebSocketDoor, link: Link) -> None:
        self._outer = outer
        self.peer, self.peer_is_loopback, self.peer_is_trusted = link.peer, link.peer_is_loopback, link.peer_is_trusted
        self.is_encrypted: bool = link.is_encrypted
        self.peer_certificate: Certificate | None = link.peer_certificate
        self.key_user, self.guest = link.key_user, link.guest
        self.mark, self.set_deadline = link.mark, link.set_deadline
        self.pause_reading, self.resume_reading = link.pause_reading, link.resume_reading
        self.outbound_bytes, self.is_pressed = link.outbound_bytes, link.is_pressed
        self.known, self.expect, self.spent = link.known, link.expect, link.spent

    def close(self) -> None:
        self._outer.close_inner()

    def abort(self) -> None:
        self._outer.link.abort()

    def become(self, door: Door) -> None:
        raise RuntimeError("a door inside a WebSocket stays")

    def speaks_for(self, host: str, port: int) -> None:
        raise RuntimeError("a door inside a WebSocket has the peer that it has")


class WebSocketDoor:
    """A `Door`. `make`: the door inside, once the handshake is over."""

    __slots__ = ("_closing", "_error", "_h11", "_held", "_inner", "_make", "_out", "_reader", "_rules", "link")

    def __init__(self, make: Callable[[], Door], rules: WebSocketRules) -> None:
        self.link: Link
        self._make = make
        self._rules = rules
        self._h11: h11.Connection | None = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._held = 0
        """Bytes of the request up to now."""
        self._inner: Door | None = None
        self._reader = frames.FrameReader()
        self._out: list[bytes] = []
        """To be written before anything of the door inside."""
        self._closing = False
        self._error = frames.NORMAL

    # Door

    def connected(self, link: Link) -> None:
        self.link = link

    def received(self, data: bytes) -> None:
        if self._h11 is not None:
            self._shake_hands(self._h11, data)
        elif not self._closing:
            self._frames(data)

    def inbound_bytes(self) -> int:
        if self._inner is None:
            return self._held
        return self._inner.inbound_bytes() + self._reader.held_bytes()

    def unfinished(self) -> int:
        if self._inner is None:
            return 1 if self._h11 is not None else 0
        return self._inner.unfinished()

    def missing_bytes(self) -> int:
        """Not known: they may come in very many frames of the WebSocket's."""
        return 0

    def overdue(self, why: str, busy: bool) -> None:
        if self._inner is not None:
            self._inner.overdue(why, busy)
        else:
            self._give_up(why)

    def data_to_send(self) -> Pieces:
        pieces: list[bytes | memoryview] = list(self._out)
        self._out.clear()
        if self._inner is not None:
            data = self._inner.data_to_send()
            if isinstance(data, list):
                pieces += frames.binary_frames(data)
            elif data:
                pieces += frames.binary_frames([data])
        if self._closing and self._inner is not None:
            pieces.append(frames.close_frame(self._error))
            self._closing = False
        return gathered(pieces)

    def eof(self) -> bool | None:
        return self._inner.eof() if self._inner is not None else None

    def closed(self, reason: str) -> None:
        if self._inner is not None:
            self._inner.closed(reason)

    def writable(self) -> None:
        if self._inner is not None:
            self._inner.writable()

    def deadline(self, now_ms: int) -> None:
        if self._inner is not None:
            self._inner.deadline(now_ms)
        else:
            self._give_up("its request is not whole in time")

    def shutdown(self) -> None:
        self._error = frames.GOING_AWAY
        if self._inner is not None:
            self._inner.shutdown()
        else:
            self.link.close()

    # Own

    def close_inner(self) -> None:
        """The door inside has said its last words."""
        self._closing = True
        self.link.close()

    def _give_up(self, why: str) -> None:
        log.warning("%s: closed, no WebSocket was opened: %s", self.link.peer, why)
        self._h11 = None
        self.link.close()

    def _shake_hands(self, connection: h11.Connection, data: bytes) -> None:
        try:
            if data:
                self._held += len(data)
                connection.receive_data(data)
            event = connection.next_event()
            if event is h11.NEED_DATA:
                return
            if not isinstance(event, h11.Request):
                raise Refused(400, "this is no request")
            answer = judge(event, self._rules)
        except (h11.RemoteProtocolError, Refused) as error:
            self._refuse(connection, error)
            return
        self._out.append(connection.send(h11.InformationalResponse(status_code=101, headers=answer)) or b"")
        rest = connection.trailing_data[0]
        self._h11 = None
        self._inner = self._make()
        self._inner.connected(_InnerLink(self, self.link))
        self.link.mark()
        if rest:
            self._frames(rest)

    def _refuse(self, connection: h11.Connection, error: Exception) -> None:
        status, headers = (error.status, error.headers) if isinstance(error, Refused) else (400, ())
        text = f"{error}\n".encode()
        head = [("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(text)))]
        head += [pair for pair in headers if pair[0] != "connection"]
        head.append(("connection", "upgrade, close" if status == 426 else "close"))
        lines = "".join([f"{name}: {value}\r\n" for name, value in head])
        self._out.append(f"HTTP/1.1 {status} Refused\r\n{lines}\r\n".encode() + text)
        self._give_up(str(error))

    def _frames(self, data: bytes) -> None:
        reader, inner = self._reader, self._inner
        assert inner is not None, "frames come after the handshake"
        try:
            payload = reader.feed(data)
        except frames.FrameError as error:
            log.warning("%s: closed: %s", self.link.peer, error)
            self._error = error.code
            self._closing = True
            self.link.close()
            return
        while payload and (taken := inner.received(payload)) is not None and taken < len(payload):
            payload = payload[taken:]  # frames are cut into small pieces before (`SLICE_BYTES_MAX`)
        if reader.ping is not None:
            self._out.append(frames.head_of(frames.PONG, len(reader.ping)) + reader.ping)
            reader.ping = None
            self.link.mark()
        if reader.closed is not None and not self._closing:
            self._error = int.from_bytes(reader.closed[:2], "big") or frames.NORMAL
            if not inner.eof():
                self.close_inner()
