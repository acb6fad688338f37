"""A door that speaks Remoting: what nameserver and broker have in common.

Dispatches requests by code to handlers, turns their failures into response codes, closes what is broken or
idle.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from gantrymq.auth.members.handshake import MemberError, Porter
from gantrymq.auth.members.key import ClusterKey
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.api import Link, Wheel
from gantrymq.net.held.outbound import Pieces
from gantrymq.net.tls.identity import is_listed
from gantrymq.remoting import overview_codes
from gantrymq.remoting.codec import Command
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.constants import FLAG_RESPONSE, RequestCode, ResponseCode
from gantrymq.remoting.dispatch import Handler, Row
from gantrymq.remoting.gateway_codes import MEMBER_BEGIN, MEMBER_CODES
from gantrymq.remoting.headers import HeaderError
from gantrymq.remoting.json_bodies import BodyError
from gantrymq.remoting.request_classes import CLASSES, MEMBERS_ONLY, member_refusal, refusal

log = logging.getLogger(__name__)

IDLE_MS_MAX: Final = 120_000
"""RocketMQ's serverChannelMaxIdleTimeSeconds; clients send a heartbeat every 30 s."""

RESPONSE_CODES: Final[dict[ErrorCode, ResponseCode]] = {
    ErrorCode.TOPIC_NOT_FOUND: ResponseCode.TOPIC_NOT_EXIST,
    ErrorCode.TOPIC_LIMIT: ResponseCode.TOPIC_NOT_EXIST,
    ErrorCode.LIMIT_REACHED: ResponseCode.SYSTEM_BUSY,
    ErrorCode.QUEUE_NOT_FOUND: ResponseCode.INVALID_PARAMETER,
    ErrorCode.GROUP_NOT_FOUND: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ErrorCode.NOT_FOUND: ResponseCode.QUERY_NOT_FOUND,
    ErrorCode.ALREADY_EXISTS: ResponseCode.TOPIC_EXIST_ALREADY,
    ErrorCode.NAME_INVALID: ResponseCode.INVALID_PARAMETER,
    ErrorCode.ILLEGAL_ARGUMENT: ResponseCode.SYSTEM_ERROR,
    ErrorCode.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    ErrorCode.MESSAGE_TOO_LARGE: ResponseCode.MESSAGE_ILLEGAL,
    ErrorCode.PROPERTIES_TOO_LARGE: ResponseCode.MESSAGE_ILLEGAL,
    ErrorCode.NO_PERMISSION: ResponseCode.NO_PERMISSION,
    ErrorCode.NO_ROUTE: ResponseCode.SYSTEM_ERROR,
    ErrorCode.OFFSET_OUT_OF_RANGE: ResponseCode.PULL_OFFSET_MOVED,
    ErrorCode.BUSY: ResponseCode.SYSTEM_BUSY,
    ErrorCode.STORE_FULL: ResponseCode.SERVICE_NOT_AVAILABLE,
    ErrorCode.STORE_FAILED: ResponseCode.SERVICE_NOT_AVAILABLE,
    ErrorCode.FLUSH_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    ErrorCode.UNAVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    ErrorCode.SHUTTING_DOWN: ResponseCode.SERVICE_NOT_AVAILABLE,
    ErrorCode.NOT_SUPPORTED: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
}
"""Failures on Remoting's terms; what is not named is SYSTEM_ERROR."""


def code_of(error: ErrorCode) -> int:
    """Response code for a failure."""
    return int(RESPONSE_CODES.get(error, ResponseCode.SYSTEM_ERROR))


OWN_NAMES: Final = {
    code: name for name, code in vars(overview_codes).items() if name.isupper() and isinstance(code, int)
}


def code_name(code: int) -> str:
    """`NAME (number)` of a request code, RocketMQ's or ours; the number alone if nobody knows it."""
    try:
        return f"{RequestCode(code).name} ({code})"
    except ValueError:
        return f"{OWN_NAMES[code]} ({code})" if code in OWN_NAMES else str(code)


class RemotingDoor:
    """One connection. `table`: rows by request code, of the server; `key` and `certificates`: what members of the cluster show, one of both;
    where there is neither, they are known by address. Subclasses may override `left`."""

    def __init__(
        self,
        wheel: Wheel,
        table: Mapping[int, Row],
        typed: bool = False,
        key: ClusterKey | None = None,
        certificates: frozenset[str] = frozenset(),
    ) -> None:
        self.table = table
        self.porter = None if key is None else Porter(key)
        self._certificates = certificates
        self._certified = False
        """It has shown the certificate of a member."""
        self.connection = Connection(typed)
        self.link: Link
        self.open = False
        self._wheel = wheel
        self._active = True

    def connected(self, link: Link) -> None:
        """See `net.api.Door`."""
        self.link = link
        self.open = True
        self._certified = is_listed(link.peer_certificate, self._certificates)
        link.set_deadline(self._wheel.now_ms() + IDLE_MS_MAX)

    def received(self, data: bytes) -> None:
        """Handle every whole request in `data`; a broken stream is answered and closed."""
        self._active = True
        connection = self.connection
        commands = connection.receive_data(data)
        self.link.spent(len(commands))
        for command in commands:
            self.handle(command)
        if connection.error:
            self.broken()
        self.link.mark()

    def handle(self, command: Command) -> None:
        """One request; responses to our one-way notices are dropped."""
        if command.flag & FLAG_RESPONSE:
            return
        row = self.table.get(command.code)
        known = row is not None or command.code in CLASSES
        if known and (self._asks or not self.link.peer_is_trusted) and (remark := self.stranger(command.code)):
            self.refuse(command, ResponseCode.NO_PERMISSION, remark)
        elif command.code in MEMBER_CODES:
            self._meet(command)
        elif row is None:
            self.refuse(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, self.unknown(command.code))
        else:
            self.run(command, row.handler, row.services)

    @property
    def _asks(self) -> bool:
        """Members show a key or a certificate: an address is not enough."""
        return self.porter is not None or bool(self._certificates)

    @property
    def _has_shown(self) -> bool:
        return self._certified or (self.porter is not None and self.porter.shown)

    def is_member(self) -> bool:
        """A process of this cluster: it has shown the key or a certificate; where neither is asked for, its address says so."""
        return self._has_shown if self._asks else self.link.peer_is_trusted

    def stranger(self, code: int) -> str:
        """Why who has shown nothing, or is elsewhere, gets no answer to this request; empty if he gets one."""
        if self._has_shown:
            return ""
        if self._asks and code in MEMBERS_ONLY:
            return member_refusal(code)
        return "" if self.link.peer_is_trusted else refusal(code)

    def _meet(self, command: Command) -> None:
        """MEMBER_BEGIN, MEMBER_PROVE: somebody shows that it is of this cluster. Who does not is answered, and closed."""
        porter, fields = self.porter, None
        try:
            if porter is None:
                raise MemberError(
                    "this process has no cluster key, and who asks has one: name the same in auth.cluster_key_file of both, or of neither"
                )
            if command.code == MEMBER_BEGIN:
                fields = porter.begin(command.fields)
            else:
                porter.finish(command.fields)
        except MemberError as error:
            log.warning("%s: no member of the cluster: %s", self.link.peer, error)
            self.refuse(command, ResponseCode.NO_PERMISSION, str(error))
            self.met("", str(error))
            self.link.close()
            return
        self.respond(command, fields=fields)
        if porter.shown:
            log.debug("%s: %s is a member of the cluster", self.link.peer, porter.name)
            self.met(porter.name, "")

    def met(self, name: str, why: str) -> None:
        """Somebody has shown the cluster's key; `why` not."""

    def run(self, command: Command, handler: Handler[Any, Any], services: Any) -> None:
        """Let `handler` work; what it raises becomes an answer."""
        try:
            handler(command, self, services)
        except (HeaderError, BodyError) as error:
            self.refuse(command, ResponseCode.SYSTEM_ERROR, f"{code_name(command.code)}: {error}")
        except GantryError as error:
            self.refuse(command, code_of(error.code), error.text)

    def unknown(self, code: int) -> str:
        """Remark for a code without handler."""
        return f"request code {code_name(code)} is not supported by this server"

    def respond(
        self,
        request: Command,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        """Answer a request, now or later; dropped where the connection is gone, and for a one-way request."""
        if self.open:
            self.connection.respond(request, code, remark, fields, body)
            self.link.mark()

    def refuse(self, command: Command, code: int, remark: str) -> None:
        """Answer with a failure."""
        self.respond(command, code, remark)

    def broken(self, code: int = ResponseCode.SYSTEM_ERROR) -> None:
        """Nothing more is read from this stream: one answer that says why, then close."""
        text = self.connection.error
        log.warning("%s: closed: %s", self.link.peer, text)
        self.connection.respond(Command(0), code, text)
        self.link.close()

    def inbound_bytes(self) -> int:
        """See `net.api.Door`."""
        return self.connection.reader.pending_bytes

    def unfinished(self) -> int:
        """See `net.api.Door`."""
        reader = self.connection.reader
        return reader.number if reader.pending_bytes else 0

    def missing_bytes(self) -> int:
        """See `net.api.Door`."""
        return self.connection.reader.missing_bytes

    def overdue(self, why: str, busy: bool) -> None:
        """See `net.api.Door`. The answer names no request: that was never whole."""
        self.connection.give_up(why)
        self.broken(ResponseCode.SYSTEM_BUSY if busy else ResponseCode.SYSTEM_ERROR)
        self.link.mark()

    def data_to_send(self) -> Pieces:
        """See `net.api.Door`."""
        return self.connection.data_to_send()

    def eof(self) -> None:
        """A peer that stopped sending gets what is in the outbox; the pump closes."""

    def closed(self, reason: str) -> None:
        """See `net.api.Door`."""
        self.open = False
        self.left(reason)

    def left(self, reason: str) -> None:
        """The connection is gone; forget what belonged to it."""

    def writable(self) -> None:
        """The peer takes its answers again. (While it does not, the pump reads nothing from it.)"""

    def deadline(self, now_ms: int) -> None:
        """Close a connection on which nothing came for `IDLE_MS_MAX` (up to twice that)."""
        if not self._active and not self.busy():
            log.info("%s: closed: idle for %d s", self.link.peer, IDLE_MS_MAX // 1000)
            self.link.close()
            return
        self._active = False
        self.link.set_deadline(now_ms + IDLE_MS_MAX)

    def busy(self) -> bool:
        """Something of this connection is still being worked on."""
        return False

    def shutdown(self) -> None:
        """The server stops: what is answered goes out, then the connection closes."""
        self.link.close()
