"""Exclusive subscriptions, `$exclusive/<filter>` (as EMQX has them): one client at a time, over all gateways.

Table `mqtt_exclusive`: SHA-1 of the filter -> JSON [filter, client id, gateway]. Who subscribes puts itself there if nobody else is, by comparing the row as it changes it. A row counts as
long as its client's stored session has the subscription, or its gateway is there; otherwise the next one takes it over. Its gateway takes it away with the subscription or the session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

import msgspec

from gantrymq.broker.port import BrokerPort
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Call, Steps, call
from gantrymq_gateways.mqtt.drafts import Draft
from gantrymq_gateways.mqtt.messages.will_rows import LEASE
from gantrymq_gateways.mqtt.sessions.sessions import Session
from gantrymq_gateways.mqtt.tables import SessionTable, StoredSession
from gantrymq_gateways.mqtt.topics.exclusive import is_exclusive

TABLE: Final = "mqtt_exclusive"

_decode = msgspec.json.Decoder(tuple[str, str, str]).decode
_encode = msgspec.json.Encoder().encode


def check_row(key: str, value: bytes) -> None:
    """Raise for a row of `mqtt_exclusive` that cannot be read."""
    _decode(value)


def _key(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Exclusives:
    """As one gateway sees them. `live`: its connected sessions by client id."""

    def __init__(
        self, port: BrokerPort, table: SessionTable, live: dict[str, Session], gateway: str, now_ms: Callable[[], int]
    ) -> None:
        self._port = port
        self._table = table
        self._live = live
        self._gateway = gateway
        self._now_ms = now_ms
        self._rows: dict[str, bytes] = {}

    def begin(self) -> Steps:
        """Read the table."""
        self._rows.clear()
        rows = yield call(self._port.watch_table, TABLE, self.changed)
        self._rows.update(rows)

    def changed(self, key: str, value: bytes | None) -> None:
        """The table reports a row."""
        if value is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = value

    def take(self, client_id: str, text: str) -> Steps:
        """Raises GantryError(LIMIT_REACHED) while another client has it."""
        key = _key(text)
        value = self._rows.get(key)
        mine = _encode((text, client_id, self._gateway))
        if value is not None:
            _, holder, gateway = _decode(value)
            if holder != client_id and (yield from self._is_held(text, holder, gateway)):
                raise GantryError(ErrorCode.LIMIT_REACHED, f"{text[:128]!r} is subscribed to by client {holder}")
        if value == mine:
            return
        fits: list[bool] = yield call(self._port.put_if, TABLE, [(key, value, mine)])
        if not fits[0]:
            raise GantryError(ErrorCode.LIMIT_REACHED, f"{text[:128]!r} was subscribed to by another client just now")
        self._rows[key] = mine

    def _is_held(self, text: str, holder: str, gateway: str) -> Generator[Call, Any, bool]:
        row = self._table.row(holder)
        is_over = row is None or self._table.is_expired(holder, self._now_ms())
        if row is not None and not is_over and self._has(holder, row, text):
            return True
        if gateway == self._gateway:
            return holder in self._live
        free: bool = yield call(self._port.is_free, LEASE + gateway)
        return not free

    def _has(self, client_id: str, row: bytes, text: str) -> bool:
        return text in Draft(StoredSession.decode(row), self._table.filters_of(client_id)).filters

    def drop(self, client_id: str, filters: Iterable[str]) -> None:
        """The client has these subscriptions no more."""
        for text in filter(is_exclusive, filters):
            key = _key(text)
            value = self._rows.get(key)
            if value is not None and _decode(value)[1] == client_id:
                del self._rows[key]  # at once: the next one comes in the same turn
                self._port.put_if(TABLE, [(key, value, None)], None, _ignored)


def _ignored(token: object, result: Any) -> None:
    """Refused: somebody else has it, or the next one finds that nobody does."""
