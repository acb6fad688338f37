"""What a Mosquitto kept, into this server: over its MQTT door, as the clients that it belongs to.

Retained messages go first, so that they wait for nobody. Then each session begins, with its subscriptions, just before the oldest
message that was queued for it, and the queued messages are published in their order, each once however many wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gantrymq_gateways.bridges.mosquitto_db import (
    Database,
    MosquittoFileError,
    StoredClient,
    StoredMessage,
    read_database,
)
from gantrymq_gateways.mqtt.topics.mapping import SYS_PREFIX, match_levels
from gantrymq_gateways.mqtt.topics.shared import bare, is_shared
from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.codec import (
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    MalformedPacket,
    Packet,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
)
from gantrymq_gateways.mqtt.wire.reasons import Reason

WINDOW: Final = 100
"""Messages on their way at a time, where the server takes as many."""
ANSWER_S: Final = 60.0
"""Until the server must have answered."""
IMPORTER: Final = "gantry-import-db"
"""Client id of who publishes."""
FILTERS_AT_ONCE: Final = 100
"""Filters in one SUBSCRIBE, which is one change of the session's row."""
NO_RETAINED: Final = 0x20
"""Retain Handling 2 of a subscription: what is retained came to that client long ago (MQTT 5.0 3.8.3.1)."""


class MoveError(Exception):
    """Why it cannot go on, for people."""


@dataclass(slots=True)
class Moved:
    """What was done, for people."""

    retained: int = 0
    sessions: int = 0
    subscriptions: int = 0
    queued: int = 0
    """Messages, each once."""
    left: list[str] = field(default_factory=list)
    """What was not carried over, and why."""


class _Line:
    """A 5.0 connection that asks and waits."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.window = WINDOW
        self._packet_id = 0

    @classmethod
    async def open(cls, host: str, port: int, client_id: str, clean: bool, expiry_s: int = 0) -> tuple[_Line, ConnAck]:
        """Raises MoveError."""
        try:
            line = cls(*await asyncio.open_connection(host, port))
        except OSError as error:
            raise MoveError(f"{host}:{port}: {error.strerror or error}") from error
        asked: p.Properties = {p.SESSION_EXPIRY: expiry_s} if expiry_s else {}
        line.send(Connect(client_id, clean=clean, level=c.LEVEL_5, properties=asked))
        answer = await line.next()
        if not isinstance(answer, ConnAck):
            raise MoveError(f"the server answers a CONNECT with {type(answer).__name__}")
        if answer.code:
            line.close()
            hint = ""
            if answer.code in (Reason.NOT_AUTHORIZED, Reason.BAD_USER_NAME_OR_PASSWORD):
                hint = ": import before auth.enabled is set, and from this machine"
            raise MoveError(f"client {client_id[:64]!r} is refused with {_name(answer.code)}{hint}")
        line.window = min(WINDOW, answer.properties.get(p.RECEIVE_MAXIMUM, c.RECEIVE_MAX))
        return line, answer

    def send(self, packet: Packet) -> None:
        self._writer.write(codec.encode_packet(packet, c.LEVEL_5))

    def packet_id(self) -> int:
        self._packet_id = self._packet_id % c.PACKET_ID_MAX + 1
        return self._packet_id

    async def drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError as error:
            raise MoveError(f"the connection was lost: {error}") from error

    async def next(self) -> Packet:
        """The next packet. Raises MoveError; so does a DISCONNECT."""
        try:
            async with asyncio.timeout(ANSWER_S):
                first = await self._reader.readexactly(1)
                head = first
                while len(head) == 1 or head[-1] & 0x80:
                    head += await self._reader.readexactly(1)
                body = len(head)
                found = codec.packet_end(head, 0)
                end = found[1] if found is not None else body
                data = head + await self._reader.readexactly(end - body)
            packet = codec.decode_packet(data, 0, body, end, c.LEVEL_5)
        except TimeoutError as error:
            raise MoveError(f"the server did not answer within {ANSWER_S:.0f} s") from error
        except (OSError, asyncio.IncompleteReadError, MalformedPacket) as error:
            raise MoveError(f"the connection was lost: {error}") from error
        if isinstance(packet, Disconnect):
            text = packet.properties.get(p.REASON_STRING, "")
            raise MoveError(f"the server disconnects: {_name(packet.reason)} {text}".rstrip())
        return packet

    async def leave(self) -> None:
        """DISCONNECT; the session stays."""
        self.send(Disconnect())
        await self.drain()
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # it is gone

    def close(self) -> None:
        self._writer.close()


def _name(code: int) -> str:
    return f"{code:#04x} ({Reason(code).name.lower().replace('_', ' ')})" if code in set(Reason) else f"{code:#04x}"


class Mover:
    """One import. `now_s`: the wall clock. `say(text)`: news for people."""

    def __init__(self, host: str, port: int, now_s: int, say: Callable[[str], None]) -> None:
        self._host = host
        self._port = port
        self._now_s = now_s
        self._say = say
        self.done = Moved()

    async def move(self, database: Database) -> Moved:
        """Everything. Raises MoveError; what was done until then is in `done`."""
        line, _ = await _Line.open(self._host, self._port, IMPORTER, True)
        try:
            await self._retained(line, database)
            await self._sessions(line, database)
            await line.leave()
        finally:
            line.close()
        return self.done

    async def _retained(self, line: _Line, database: Database) -> None:
        found = [database.messages[number] for number in database.retained if number in database.messages]
        own = SYS_PREFIX.encode()
        found = [message for message in found if not message.topic.startswith(own) and self._is_fresh(message)]
        self.done.retained = await self._publish(line, found, True)
        self._say(f"{self.done.retained} retained messages")

    def _is_fresh(self, message: StoredMessage) -> bool:
        return not message.expires_s or message.expires_s > self._now_s

    async def _sessions(self, line: _Line, database: Database) -> None:
        first: dict[int, list[str]] = {}
        waiting = set(database.unreleased)
        idle: list[str] = []
        for client_id, client in database.clients.items():
            if self._left_s(client) <= 0:
                continue
            if queue := self._wanted(client_id, client, database):
                first.setdefault(min(queue), []).append(client_id)
                waiting |= queue
            else:
                idle.append(client_id)
        batch: list[StoredMessage] = []
        for number in sorted(waiting & database.messages.keys()):
            if number in first:
                self.done.queued += await self._publish(line, batch, False)
                batch = []
                await self._begin(database, first[number])
            if self._is_fresh(message := database.messages[number]):
                batch.append(message)
            if len(batch) >= WINDOW:
                self.done.queued += await self._publish(line, batch, False)
                batch = []
        self.done.queued += await self._publish(line, batch, False)
        await self._begin(database, idle)
        self._say(f"{self.done.sessions} sessions with {self.done.subscriptions} subscriptions")
        self._say(f"{self.done.queued} queued messages")

    def _left_s(self, client: StoredClient) -> int:
        return client.until_s - self._now_s if client.until_s else client.expiry_s

    def _wanted(self, client_id: str, client: StoredClient, database: Database) -> set[int]:
        """What is queued for a session and will come to it; says how much will not."""
        filters = [bare(text) for text, (options, _) in client.filters.items() if options & c.OPTION_QOS]
        queue = {number for number in client.queue if number in database.messages}
        topics = {number: database.messages[number].topic.decode() for number in queue}
        wanted = {number for number in queue if any(match_levels(text, topics[number]) for text in filters)}
        if count := len(queue) - len(wanted):
            text = f"{count} queued messages that no filter of QoS 1 or 2 of it matches"
            self.done.left.append(f"client {client_id!r}: {text} (Mosquitto keeps no shared subscriptions in its file)")
        return wanted

    async def _begin(self, database: Database, client_ids: Iterable[str]) -> None:
        for client_id in client_ids:
            await self._begin_one(client_id, database.clients[client_id])

    async def _begin_one(self, client_id: str, client: StoredClient) -> None:
        wanted_s = min(self._left_s(client), c.EXPIRY_NEVER)
        try:
            line, answer = await _Line.open(self._host, self._port, client_id, False, wanted_s)
        except MoveError as error:
            self.done.left.append(f"client {client_id!r}: {error}")
            return
        try:
            if answer.session_present:
                self.done.left.append(f"client {client_id!r}: it has a session here already, which stays as it is")
                await line.leave()
                return
            by_identifier: dict[int, list[tuple[str, int]]] = {}
            for text, (options, identifier) in client.filters.items():
                if is_shared(text):
                    options &= ~c.OPTION_NO_LOCAL  # [MQTT5-3.8.3-4]
                by_identifier.setdefault(identifier, []).append((text, options | NO_RETAINED))
            for identifier, filters in by_identifier.items():
                for start in range(0, len(filters), FILTERS_AT_ONCE):
                    await self._subscribe(line, client_id, filters[start : start + FILTERS_AT_ONCE], identifier)
            self.done.sessions += 1
            await line.leave()
        finally:
            line.close()

    async def _subscribe(self, line: _Line, client_id: str, filters: list[tuple[str, int]], identifier: int) -> None:
        asked: p.Properties = {p.SUBSCRIPTION_ID: [identifier]} if identifier else {}
        line.send(Subscribe(line.packet_id(), filters, asked))
        await line.drain()
        answer = await line.next()
        while not isinstance(answer, SubAck):
            answer = await line.next()  # somebody publishes meanwhile
        for (text, _), code in zip(filters, answer.codes, strict=True):
            if code >= Reason.UNSPECIFIED:
                self.done.left.append(f"client {client_id!r}: filter {text!r} is refused with {_name(code)}")
            else:
                self.done.subscriptions += 1

    async def _publish(self, line: _Line, messages: list[StoredMessage], retain: bool) -> int:
        """Returns how many the server has."""
        taken = 0
        for start in range(0, len(messages), line.window):
            taken += await self._publish_some(line, messages[start : start + line.window], retain)
        return taken

    async def _publish_some(self, line: _Line, messages: list[StoredMessage], retain: bool) -> int:
        waiting: dict[int, StoredMessage] = {}
        taken = len(messages)
        for message in messages:
            packet_id = line.packet_id() if message.qos else 0
            if packet_id:
                waiting[packet_id] = message
            properties = dict(message.properties)
            if message.expires_s:
                properties[p.MESSAGE_EXPIRY] = message.expires_s - self._now_s
            flags = message.qos << 1 | (c.FLAG_RETAIN if retain else 0)
            line.send(Publish(message.topic, message.payload, flags, packet_id, properties))
            await line.drain()
        if len(waiting) < len(messages):
            line.send(PingReq())  # QoS 0 has no other answer
            await line.drain()
            waiting[0] = messages[0]
        while waiting:
            answer = await line.next()
            if isinstance(answer, PingResp):
                waiting.pop(0, None)
            elif not isinstance(answer, Ack) or answer.packet_id not in waiting:
                raise MoveError(f"the server answers a PUBLISH with {type(answer).__name__}")
            elif answer.kind == c.PUBREC and answer.reason < Reason.UNSPECIFIED:
                line.send(Ack(c.PUBREL, answer.packet_id))
            else:
                message = waiting.pop(answer.packet_id)
                if answer.reason >= Reason.UNSPECIFIED:
                    taken -= 1
                    self.done.left.append(f"message to {message.topic.decode()!r}: {_name(answer.reason)}")
        return taken


def run(path: str, host: str, port: int, dry: bool, say: Callable[[str], None]) -> bool:
    """For the command line: what happens is said in words. False: it could not go on."""
    mover = Mover(host, port, int(time.time()), say)
    try:
        database = read_database(Path(path).read_bytes())
        if dry:
            queued = sum(len(client.queue) for client in database.clients.values())
            say(
                f"{len(database.retained)} retained messages, {len(database.clients)} sessions, {queued} places in their queues"
            )
            return True
        asyncio.run(mover.move(database))
    except (OSError, MosquittoFileError, MoveError) as error:
        say(f"{path}: {getattr(error, 'strerror', None) or error}" if not isinstance(error, MoveError) else str(error))
        return False
    finally:
        for text in mover.done.left:
            say(f"NOT carried over: {text}")
    return True
