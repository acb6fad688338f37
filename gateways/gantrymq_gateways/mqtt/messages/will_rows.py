"""Wills of connected clients and those that wait for their Will Delay Interval (MQTT 5.0 3.1.3.2.2): rows of table `mqtt_will`, so that they are published
although their gateway was killed.

Key: gateway `/` number of the connection. Value: JSON (`_Row`). A row is written before CONNACK; it goes with DISCONNECT, or in one piece with the published
will. Each gateway holds the lease `mqtt-gateway:NAME`. Whoever is given the lease of another one knows that it is gone, and publishes its wills, each after
what is left of its delay. A client that goes on with its session at any gateway takes back what waits [MQTT5-3.1.3-9]; one that begins a new session has it
published at once [MQTT5-3.1.2-8].
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from gantrymq.broker.port import BrokerPort
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.api import Wheel
from gantrymq.net.procedures.driver import Steps, call
from gantrymq.services import Clock
from gantrymq_gateways.mqtt.wire.packets import Will
from gantrymq_gateways.mqtt.wire.properties import WILL, decode_properties, encode_properties

log = logging.getLogger(__name__)

TABLE: Final = "mqtt_will"

LEASE: Final = "mqtt-gateway:"

IN_MEMORY: Final = (ErrorCode.BUSY, ErrorCode.STORE_FULL, ErrorCode.UNAVAILABLE)
"""The row cannot be written now: the client is let in all the same, and its will lives in memory."""


class _Row(msgspec.Struct, omit_defaults=True):
    client: str
    topic: bytes
    payload: bytes
    """Both as base64."""
    flags: int
    """As in a PUBLISH: QoS and retain."""
    delay_s: int = 0
    properties: bytes = b""
    due_ms: int = 0
    """When it is published; 0: the client is connected."""
    peer: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Row).decode


def check_row(key: str, value: bytes) -> None:
    """Raise for a row that cannot be read."""
    _will_of(_decode(value))


def _will_of(row: _Row) -> Will:
    properties = decode_properties(row.properties, 0, len(row.properties), WILL)[0] if row.properties else {}
    return Will(row.topic, row.payload, row.flags >> 1 & 3, bool(row.flags & 1), properties)


class KeptWill:
    """A will of one connection. `key`: of its row."""

    __slots__ = ("client_id", "delay_s", "key", "peer", "stored", "will")

    def __init__(self, client_id: str, will: Will, peer: str, delay_s: int, key: str) -> None:
        self.client_id = client_id
        self.will = will
        self.peer = peer
        self.delay_s = delay_s
        self.key = key
        self.stored = False
        """It has, or had, a row."""

    def encode(self, due_ms: int = 0) -> bytes:
        """The row's value."""
        will = self.will
        listed = encode_properties(will.properties) if will.properties else b""
        flags = will.qos << 1 | int(will.retain)
        return _encode(_Row(self.client_id, will.topic, will.payload, flags, self.delay_s, listed, due_ms, self.peer))


class WillRows:
    """One gateway's. `publish` stores a will and takes its row away."""

    def __init__(
        self, port: BrokerPort, clock: Clock, wheel: Wheel, name: str, publish: Callable[[KeptWill], None]
    ) -> None:
        self._port = port
        self._clock = clock
        self._wheel = wheel
        self._name = name
        self._publish = publish
        self._number = 0
        self._rows: dict[str, _Row] = {}
        self._of_client: dict[str, set[str]] = {}
        """Client id -> keys of `_rows`."""
        self._late: dict[str, tuple[int, KeptWill]] = {}
        """Key -> (timer, will) of what this gateway publishes when its time has come."""
        self._adopted: dict[str, int] = {}
        """Gateways that are gone -> epoch of the lease."""
        self._written: set[str] = set()
        """Keys of this gateway that have a row."""

    def __len__(self) -> int:
        return len(self._late)

    # The table

    def changed(self, key: str, value: bytes | None) -> None:
        """The table reports a row."""
        old = self._rows.pop(key, None)
        if old is not None:
            keys = self._of_client[old.client]
            keys.discard(key)
            if not keys:
                del self._of_client[old.client]
        if value is None:
            self._written.discard(key)
            self._cancel(key)
            return
        row = self._rows[key] = _decode(value)
        self._of_client.setdefault(row.client, set()).add(key)
        if key in self._late and row.due_ms <= self._clock.now_ms():
            self._fire(key)

    def begin(self) -> Steps:
        """Read the table, say that this gateway is there, and publish what those left that are not. What this gateway itself left when it lost the
        broker is among that."""
        self.lost_broker()
        rows = yield call(self._port.watch_table, TABLE, self.changed)
        yield partial(self._port.take_lease, LEASE + self._name, True, self._lease_lost, deputy=True)
        for key, value in rows.items():
            self.changed(key, value)
        for key in [key for key in self._rows if _gateway_of(key) == self._name]:
            self._adopt(key)
        yield from self.sweep()

    def sweep(self) -> Steps:
        """Look for gateways that are gone."""
        there = {_gateway_of(key) for key in self._rows}
        for name in [name for name in self._adopted if name not in there]:
            self._port.drop_lease(LEASE + name, self._adopted.pop(name))
        for name in there:
            if name != self._name and name not in self._adopted:
                yield from self._take_over(name)

    def _take_over(self, name: str) -> Steps:
        try:
            epoch = yield call(self._port.take_lease, LEASE + name, False, self._lease_lost)
        except GantryError as error:
            if error.code is ErrorCode.LEASE_HELD:
                return
            raise
        self._adopted[name] = epoch
        keys = [key for key in self._rows if _gateway_of(key) == name]
        log.info("gateway %s is gone: %d wills of its clients are published, each after its delay", name, len(keys))
        for key in keys:
            self._adopt(key)

    def _lease_lost(self, lease: str) -> None:
        """The gateway is back. This one's own: others took it for gone."""
        name = lease[len(LEASE) :]
        if name == self._name:
            self._port.take_lease(lease, True, self._lease_lost, None, self._put, deputy=True)
        self._adopted.pop(name, None)
        for key in [key for key in self._late if _gateway_of(key) == name != self._name]:
            self._cancel(key)

    def _adopt(self, key: str) -> None:
        row = self._rows[key]
        now_ms = self._clock.now_ms()
        will = KeptWill(row.client, _will_of(row), row.peer, row.delay_s, key)
        will.stored = True
        self._written.add(key)
        self._wait(will, max(0, (row.due_ms or now_ms + row.delay_s * 1000) - now_ms))

    # Connections

    def keep(self, client_id: str, will: Will, peer: str, delay_s: int) -> KeptWill:
        """A will of a client that connects; `store` follows."""
        self._number += 1
        return KeptWill(client_id, will, peer, delay_s, f"{self._name}/{self._number}")

    def store(self, kept: KeptWill) -> Steps:
        """Write its row."""
        value = kept.encode()
        self._written.add(kept.key)
        kept.stored = True
        try:
            yield call(self._port.put, TABLE, [(kept.key, value)])
        except GantryError as error:
            self._written.discard(kept.key)
            kept.stored = False
            if error.code not in IN_MEMORY:
                raise
            log.warning("%s: its will is in memory only: %s", kept.peer, error)

    def settle(self, client_id: str) -> Steps:
        """Before a client comes in: what it left at a gateway that is gone."""
        for key in list(self._of_client.get(client_id, ())):
            name = _gateway_of(key)
            if name != self._name and name not in self._adopted:
                yield from self._take_over(name)

    def discard(self, kept: KeptWill) -> None:
        """DISCONNECT, or it was published or given up [MQTT-3.1.2-10]."""
        if kept.key in self._written:
            self._written.discard(kept.key)
            self._port.put(TABLE, [(kept.key, None)], kept, self._put)

    def forget(self, key: str) -> None:
        """A row whose will is given up."""
        self._port.put(TABLE, [(key, None)], None, self._put)

    def taken(self, kept: KeptWill) -> str:
        """Key of the row that goes with the published will; empty: none."""
        if kept.key not in self._written:
            return ""
        self._written.discard(kept.key)
        return kept.key

    def lost(self, kept: KeptWill, delay_s: int) -> None:
        """The client is lost. Its row may have gone already: it is back at another gateway."""
        if kept.stored and kept.key not in self._written:
            return
        row = self._rows.get(kept.key)
        if not delay_s or (row is not None and row.due_ms):
            self._publish(kept)
            return
        if kept.key in self._written:
            value = kept.encode(self._clock.now_ms() + delay_s * 1000)
            self._port.put(TABLE, [(kept.key, value)], kept, self._put)
        self._wait(kept, delay_s * 1000)

    def resumed(self, client_id: str) -> None:
        """The session goes on: nobody was lost."""
        self._end(client_id, True)

    def ended(self, client_id: str) -> None:
        """A new session begins: what waits is published now."""
        self._end(client_id, False)

    def _end(self, client_id: str, resumed: bool) -> None:
        for key in [key for key, (_, kept) in self._late.items() if kept.client_id == client_id]:
            if not resumed:
                self._fire(key)
            elif (kept := self._cancel(key)) is not None:
                self.discard(kept)
        for key in list(self._of_client.get(client_id, ())):
            row = self._rows[key]
            if _gateway_of(key) == self._name or key in self._late or not row.delay_s:
                continue
            # Another gateway's, which hears of it by the table.
            row.due_ms = self._clock.now_ms()
            self._port.put(TABLE, [(key, None if resumed else _encode(row))], None, self._put)

    def stop(self) -> None:
        """The gateway stops. What waits has its row, for the next one or another; what has none is published."""
        for key in list(self._late):
            if key not in self._written:
                self._fire(key)
            else:
                self._cancel(key)

    def lost_broker(self) -> None:
        """Nothing is known any more."""
        for key in list(self._late):
            self._cancel(key)
        for known in (self._rows, self._of_client, self._adopted, self._written):
            known.clear()

    # Time

    def _wait(self, kept: KeptWill, delay_ms: int) -> None:
        if not delay_ms:
            self._publish(kept)
            return
        at_ms = self._clock.monotonic_ms() + delay_ms
        self._late[kept.key] = self._wheel.call_at(at_ms, lambda now_ms: self._fire(kept.key)), kept

    def _cancel(self, key: str) -> KeptWill | None:
        found = self._late.pop(key, None)
        if found is None:
            return None
        self._wheel.cancel(found[0])
        return found[1]

    def _fire(self, key: str) -> None:
        kept = self._cancel(key)
        if kept is not None:
            self._publish(kept)

    def _put(self, token: object, result: Any) -> None:
        if isinstance(result, GantryError):
            log.warning("the row of a will could not be written: %s", result)


def _gateway_of(key: str) -> str:
    return key.partition("/")[0]
