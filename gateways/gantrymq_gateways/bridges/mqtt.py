"""A bridge to another MQTT broker: topics in, out or both, stored and forwarded from the log.

Out: records that match feed one light queue of the bridge, with one cursor; what the other side has acknowledged is done, so an outage of days
costs 20 bytes a message here and nothing is lost by kill -9. In: a session that the other side keeps; a message is acknowledged there when the log
here has it. Messages do not go round: what came in by a bridge carries its name and does not go out by it, and what went out is known when it
comes back. One gateway process at a time runs a bridge, by a lease.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import ssl
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import anyio

from gantrymq.broker.port import END, PASSING, BrokerPort, CursorInfo, Delivery, Outcome, Route
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.net.dial.connector import connect
from gantrymq.net.places import join_address
from gantrymq.net.procedures.awaited import awaited
from gantrymq_gateways.bridges.mosquitto import Connection, TopicRule
from gantrymq_gateways.bridges.remote import WINDOW, Remote
from gantrymq_gateways.mqtt import retained
from gantrymq_gateways.mqtt.messages.deliver import body_of, bridge_property, message_qos
from gantrymq_gateways.mqtt.messages.publish import KeptRow
from gantrymq_gateways.mqtt.routes import KIND
from gantrymq_gateways.mqtt.topics.mapping import DeliveryTopics, match_levels
from gantrymq_gateways.mqtt.topics.rules import TopicRules
from gantrymq_gateways.mqtt.wire.codec import Connect, Publish, Will

log = logging.getLogger(__name__)

TABLE: Final = "mqtt_bridge"
"""Bridge -> JSON {"light": its queue, "routes": number of its routes, "state", "since": ms, "why", "addresses", "gateway"}."""

HOLDER_BASE: Final = 1 << 42
"""Holders of bridges count from here."""

LEASE_PREFIX: Final = "mqtt-bridge:"
LEASE_RETRY_S: Final = 2.0
CONNECT_S: Final = 15.0
"""From the first packet to CONNACK."""
ACQUIRE_BYTES: Final = 1024 * 1024
RETRY_MS: Final = 100
"""Until what the log was too busy for is submitted again."""
INWARD_MAX: Final = 1_000
"""Messages on their way to the log; beyond it we do not read."""
ECHOES_MAX: Final = 10_000
"""Messages sent whose return is expected, where the other side does not know bridges; the oldest are forgotten."""


def check_row(key: str, value: bytes) -> None:
    """Raise for a row of `mqtt_bridge` that cannot be read."""
    if not isinstance(json.loads(value)["light"], int):
        raise ValueError("the row has no queue")


class Echoes:
    """Messages that went out, by a digest: the other side may send them back once each."""

    def __init__(self) -> None:
        self._count: Counter[bytes] = Counter()
        self._order: OrderedDict[bytes, None] = OrderedDict()

    def note(self, topic: str, payload: bytes) -> None:
        """It goes out."""
        key = _digest(topic, payload)
        self._count[key] += 1
        self._order[key] = None
        self._order.move_to_end(key)
        if len(self._order) > ECHOES_MAX:
            old, _ = self._order.popitem(last=False)
            del self._count[old]

    def returns(self, topic: str, payload: bytes) -> bool:
        """One that comes in went out before."""
        key = _digest(topic, payload)
        if not self._count[key]:
            del self._count[key]
            return False
        self._count[key] -= 1
        return True


def _digest(topic: str, payload: bytes) -> bytes:
    return hashlib.blake2b(topic.encode() + b"\0" + payload, digest_size=16).digest()


class Bridge:
    """One `connection`. `run` is its task; everything else happens in callbacks of the loop."""

    def __init__(
        self,
        connection: Connection,
        port: BrokerPort,
        topics: DeliveryTopics,
        rules: TopicRules,
        gateway: str,
        number: int,
        packet_bytes_max: int,
        now_ms: Callable[[], int],
    ) -> None:
        self.connection = connection
        self._port = port
        self._topics = topics
        self._rules = rules
        self._gateway = gateway
        self._holder = HOLDER_BASE + number
        self._mark = bridge_property(f"bridge:{connection.name}")
        self._remote: Remote | None = None
        self._cursor = 0
        self._ready = asyncio.Event()
        self._up = asyncio.Event()
        """The broker is there."""
        self._lost = asyncio.Event()
        self._row: dict[str, Any] = {}
        self._level_private = connection.private
        self._echoes = Echoes()
        self._flying: dict[int, int] = {}
        """Packet identifier -> offset."""
        self._next_id = 1
        self._asked = False
        self._more = True
        self._waiting: deque[Delivery] = deque()
        self._inward: deque[tuple[Message, int, KeptRow | None]] = deque()
        self._storing = 0
        self._held = False
        self.packet_bytes_max = packet_bytes_max
        self._now_ms = now_ms
        self.sent = self.received = 0
        self.stopping = False

    # The task

    async def run(self) -> None:
        """Until cancelled."""
        self._port.watch_state(self._broker)
        failures = 0
        while not self.stopping:
            await self._up.wait()
            try:
                epoch = await self._take_lease()
            except GantryError:
                await anyio.sleep(LEASE_RETRY_S)
                continue
            try:
                failures = 0 if await self._session(failures) else failures + 1
            except GantryError as error:
                log.warning("bridge %s: %s", self.connection.name, error)
                failures += 1
            finally:
                self._port.drop_lease(LEASE_PREFIX + self.connection.name, epoch)
            await anyio.sleep(self._back_off_s(failures))

    def _back_off_s(self, failures: int) -> float:
        shortest, longest = self.connection.restart_s
        return min(longest, shortest * 2.0 ** max(failures - 1, 0)) * random.uniform(0.8, 1.0)

    async def _take_lease(self) -> int:
        self._lost = asyncio.Event()
        lost = self._lost
        epoch: int = await awaited(
            self._port.take_lease, LEASE_PREFIX + self.connection.name, False, lambda name: lost.set()
        )
        return epoch

    def _broker(self, up: bool) -> None:
        if up:
            self._up.set()
        else:
            self._up.clear()
            self._lost.set()
            self._cursor = 0
            if self._remote is not None:
                self._remote.close("the broker here is not reachable")

    async def _session(self, failures: int) -> bool:
        """One connection from beginning to end. True: it was accepted."""
        await self._prepare()
        connection = self.connection
        host, port = connection.addresses[failures % len(connection.addresses)]
        place = join_address(host, port)
        self._flying.clear()
        self._waiting.clear()
        self._inward.clear()
        self._asked = self._held = False
        self._more = True
        self._ready = asyncio.Event()
        remote = self._remote = Remote(self, self._connect(), self.packet_bytes_max)
        try:
            with anyio.fail_after(CONNECT_S):
                await connect(lambda: remote, place, None, _context(connection))
                await self._first_of(self._ready, remote.ended)
        except (GantryError, OSError) as error:
            remote.close(str(error) or f"{place} does not answer")
            self._remote = None
            await self._say("waiting", remote.why, failures == 0)
            return False
        accepted = self._ready.is_set()
        if accepted:
            try:
                await self._say("connected", place, True)
                await self._first_of(remote.ended, self._lost)
            finally:
                remote.close("another gateway runs it")
        elif remote.refused_code == 1 and self._level_private:
            self._level_private = False  # the other side does not know bridges: the next attempt says nothing of it
        self._remote = None
        if self._cursor:
            self._port.watch(self._cursor, None)
            self._port.release(self._holder)
        await self._say("waiting", remote.why, accepted or failures == 0)
        return accepted

    @staticmethod
    async def _first_of(*events: asyncio.Event) -> None:
        async with anyio.create_task_group() as tasks:

            async def one(event: asyncio.Event) -> None:
                await event.wait()
                tasks.cancel_scope.cancel()

            for event in events:
                tasks.start_soon(one, event)

    def _connect(self) -> Connect:
        connection = self.connection
        will = None
        if connection.notifications:
            will = Will(connection.state_topic.encode(), b"0", 1, True)
        password = connection.password.encode() if connection.password is not None else None
        return Connect(
            connection.client_id, connection.clean, connection.keep_alive_s, 4, will, connection.user_name, password,
            self._level_private,
        )  # fmt: skip

    async def stop(self) -> None:
        """The server stops."""
        self.stopping = True
        if self._remote is not None:
            if self.connection.notifications:
                self._remote.publish(self.connection.state_topic, b"0", 1, 0)
            self._remote.leave()

    # Its queue and rows

    async def _prepare(self) -> None:
        """The queue, its routes, its cursor."""
        name = self.connection.name
        rows = await awaited(self._port.watch_table, TABLE, self._row_changed)
        self._row = json.loads(rows[name]) if name in rows else {}
        outward = [rule for rule in self.connection.topics if rule.direction != "in"]
        light = self._row.get("light", 0)
        if outward and not light:
            light = await awaited(partial(self._port.create_light, name=f"{TABLE}/{name}"))
        before = self._row.get("routes", 0)
        self._row |= {
            "light": light, "routes": len(outward), "addresses": [f"{h}:{p}" for h, p in self.connection.addresses],
            "gateway": self._gateway,
        }  # fmt: skip
        await self._put_row()
        for number, rule in enumerate(outward):
            topic = self._rules.home_of(rule.local_filter)
            if topic is not None:
                await awaited(self._port.ensure_topic, topic, True)
            place, expression = self._rules.filter_route(rule.local_filter)
            await awaited(self._port.add_route, Route(f"bridge/{name}/{number}", KIND, place, expression, light))
        stale = [f"bridge/{name}/{number}" for number in range(len(outward), before)]
        if stale:
            await awaited(self._port.remove_routes, stale)
        if light:
            info: CursorInfo = await awaited(self._port.open_cursor, f"~{light}", f"bridge:{name}", END)
            self._cursor = info.cursor

    async def _put_row(self) -> None:
        value = json.dumps(self._row, separators=(",", ":")).encode()
        await awaited(self._port.put, TABLE, [(self.connection.name, value)])

    def _row_changed(self, key: str, value: bytes | None) -> None:
        """Another gateway's change is read when the lease is ours."""

    async def _say(self, state: str, why: str, loud: bool) -> None:
        """Note the state in the row and at `$SYS/bridge/NAME/state`; `loud`: it is news for the log."""
        if loud:
            level = logging.INFO if state == "connected" else logging.WARNING
            log.log(level, "bridge %s: %s (%s)", self.connection.name, state, why)
        if self._row.get("state") == state and not loud:
            return
        self._row |= {"state": state, "why": why, "since": self._now_ms(), "sent": self.sent, "received": self.received}
        await self._put_row()
        topic, body = f"$SYS/bridge/{self.connection.name}/state", b"1" if state == "connected" else b"0"
        pairs = [(props.TAGS, f"bridge.{self.connection.name}.state"), (props.ORIGIN, "mqtt"), (props.RETAIN, "1")]
        message = Message("%24SYS", body, props.encode(pairs), pairs[0][1])
        retained.RowPlace(topic, 1).enter(message)
        (result,) = await awaited(self._port.submit, [message])
        if isinstance(result, ErrorCode):
            raise GantryError(result, f"the state of bridge {self.connection.name} was not stored")

    # Remote's host

    def accepted(self, present: bool) -> None:
        remote, connection = self._remote, self.connection
        self._ready.set()
        if remote is None:
            return
        if connection.notifications:
            remote.publish(connection.state_topic, b"1", 1, 0)
        inward = {rule.remote_filter: min(rule.qos, 1) for rule in connection.topics if rule.direction != "out"}
        if inward:
            remote.subscribe(list(inward.items()))
        if self._cursor:
            self._port.watch(self._cursor, self._entry)
            self._pump()

    def subscribed(self, codes: list[int]) -> None:
        if any(code >= 0x80 for code in codes):
            log.warning(
                "bridge %s: the other side refused %d of its subscriptions",
                self.connection.name,
                sum(code >= 0x80 for code in codes),
            )

    def writable(self) -> None:
        self._pump()

    # Out

    def _entry(self, cursor: int) -> None:
        self._more = True
        self._pump()

    def _pump(self) -> None:
        remote = self._remote
        if remote is None or not self._ready.is_set():
            return
        while self._waiting and len(self._flying) < WINDOW and not remote.full:
            self._send(remote, self._waiting.popleft())
        if self._asked or not self._more or self._waiting or remote.full or len(self._flying) >= WINDOW:
            return
        self._asked = True
        count = WINDOW - len(self._flying)
        self._port.acquire(self._cursor, self._holder, count, ACQUIRE_BYTES, (remote, count), self._acquired)

    def _acquired(self, token: tuple[Remote, int], result: Any) -> None:
        remote, asked = token
        if remote is not self._remote:
            return  # its holder was released
        self._asked = False
        if isinstance(result, GantryError):
            remote.close(f"messages cannot be fetched: {result}")
            return
        self._more = len(result) == asked
        self._waiting.extend(result)
        self._pump()

    def _send(self, remote: Remote, delivery: Delivery) -> None:
        message = delivery.message
        topic = self._topics.get(message.topic, message.tag).decode()
        body = body_of(message)
        rule = self._rule_of(topic) if topic else None
        if rule is None or body is None or self._mark in message.properties:
            self._settle(delivery.offset)
            return
        where = rule.to_remote(topic)
        retain = 1 if props.find(message.properties, props.RETAIN) == "1" else 0
        if not self._level_private and rule.direction == "both":
            self._echoes.note(where, body)
        self.sent += 1
        if min(rule.qos, message_qos(message)):
            packet_id = self._free_id()
            self._flying[packet_id] = delivery.offset
            remote.publish(where, body, 2 | retain | (8 if delivery.count > 1 else 0), packet_id)
        else:
            remote.publish(where, body, retain, 0)
            self._settle(delivery.offset)

    def _free_id(self) -> int:
        while self._next_id in self._flying:
            self._next_id = self._next_id % 65_535 + 1
        packet_id = self._next_id
        self._next_id = packet_id % 65_535 + 1
        return packet_id

    def _rule_of(self, topic: str) -> TopicRule | None:
        for rule in self.connection.topics:
            if rule.direction != "in" and match_levels(rule.local_filter, topic):
                return rule
        return None

    def _settle(self, offset: int) -> None:
        self._port.settle([(self._cursor, offset, Outcome.ACK)])

    def acknowledged(self, packet_id: int) -> None:
        offset = self._flying.pop(packet_id, None)
        if offset is not None:
            self._settle(offset)
            self._pump()

    # In

    def arrived(self, publish: Publish) -> None:
        topic = publish.topic.decode()
        rule = next(
            (r for r in self.connection.topics if r.direction != "out" and match_levels(r.remote_filter, topic)), None
        )
        if rule is None or (not self._level_private and self._echoes.returns(topic, publish.payload)):
            self._taken(publish.packet_id)
            return
        local = rule.to_local(topic)
        try:
            native, tag = self._rules.to_native(local)
        except GantryError as error:
            log.warning("bridge %s: a message to %r is left out: %s", self.connection.name, local[:128], error)
            self._taken(publish.packet_id)
            return
        pairs = [(props.TAGS, tag), (props.ORIGIN, "mqtt")]
        pairs += [(props.QOS, "0")] if not publish.qos else []
        pairs += [(props.RETAIN, "1")] if publish.retain else []
        message = Message(native, publish.payload, props.encode(pairs) + self._mark, tag)
        row = KeptRow.of(retained.RowPlace(local, publish.qos), message) if publish.retain else None
        self._inward.append((message, publish.packet_id, row))
        self._store()

    def _store(self) -> None:
        """Hand what came over in batches, one at a time: so that order holds where the log is busy."""
        remote = self._remote
        if remote is None:
            return
        over = len(self._inward) + self._storing > INWARD_MAX
        if over is not self._held:
            self._held = over
            remote.hold(over)
        if self._storing or not self._inward:
            return
        batch = list(self._inward)
        self._inward.clear()
        self._storing = len(batch)
        rows = {row.key: row.value for _, _, row in batch if row is not None and row.apart}
        if rows:
            self._port.put(retained.TABLE, list(rows.items()), None, lambda token, result: None)
        self._port.submit([message for message, _, _ in batch], (remote, batch), self._stored)

    def _stored(self, token: tuple[Remote, list[Any]], result: Any) -> None:
        remote, batch = token
        self._storing = 0
        if remote is not self._remote:
            return
        results = [result.code] * len(batch) if isinstance(result, GantryError) else result
        again = []
        for entry, code in zip(batch, results, strict=True):
            if code in PASSING:
                again.append(entry)
                continue
            if isinstance(code, ErrorCode):
                if code in (ErrorCode.UNAVAILABLE, ErrorCode.SHUTTING_DOWN, ErrorCode.STORE_FAILED):
                    remote.close(f"messages cannot be stored: {code.value}")
                    return
                log.warning(
                    "bridge %s: a message to %r is left out: %s", self.connection.name, entry[0].topic, code.value
                )
            else:
                self.received += 1
            self._taken(entry[1])
        if again:
            self._inward.extendleft(reversed(again))
            asyncio.get_running_loop().call_later(RETRY_MS / 1000, self._store)
        else:
            self._store()

    def _taken(self, packet_id: int) -> None:
        if packet_id and self._remote is not None:
            self._remote.acknowledge(packet_id)


def _context(connection: Connection) -> ssl.SSLContext | None:
    if not connection.tls:
        return None
    made = ssl.create_default_context(cafile=connection.ca_file or None)
    if connection.insecure:
        made.check_hostname = False
    if connection.cert_file:
        made.load_cert_chain(connection.cert_file, connection.key_file or None)
    return made
