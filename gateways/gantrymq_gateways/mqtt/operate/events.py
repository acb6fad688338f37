"""Clients that come and go, as messages (`mqtt.events_topic`): `<topic>/clients/<client id>/connected` and `.../disconnected`, JSON as EMQX's.

They are records of the log like any other, so that every door has them, of all gateways, and nobody who watches loses one. Those of a turn are one batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import msgspec

from gantrymq.broker.port import LogPort
from gantrymq.metrics import Counter
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq_gateways.mqtt.messages.publish import ORIGIN
from gantrymq_gateways.mqtt.topics.rules import TopicRules

log = logging.getLogger(__name__)

WAITING_MAX: Final = 10_000
"""Events handed to the log and not answered; more are left out and counted: a storm of clients must not fill the memory."""

_encode = msgspec.json.Encoder().encode


class Events:
    """One gateway's. `topic` empty: none are told. `soon` runs a callback where a turn hands over to the log."""

    def __init__(
        self,
        port: LogPort,
        rules: TopicRules,
        topic: str,
        soon: Callable[[Callable[[], None]], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._port = port
        self._rules = rules
        self._topic = topic
        self._soon = soon
        self._now_ms = now_ms
        self._batch: list[Message] = []
        self._waiting = 0
        self.dropped = Counter()
        """Events that could not be stored."""

    def connected(self, client_id: str, facts: dict[str, Any]) -> None:
        """A client was let in."""
        self._tell(client_id, "connected", facts)

    def disconnected(self, client_id: str, facts: dict[str, Any]) -> None:
        """It is gone."""
        self._tell(client_id, "disconnected", facts)

    def _tell(self, client_id: str, what: str, facts: dict[str, Any]) -> None:
        if not self._topic:
            return
        if self._waiting + len(self._batch) >= WAITING_MAX:
            self.dropped.value += 1
            return
        now_ms = self._now_ms()
        topic = f"{self._topic}/clients/{quote(client_id, safe=' ')}/{what}"
        try:
            native, tag = self._rules.to_native(topic)
        except GantryError as error:
            log.warning("client %s: that it %s cannot be told: %s", client_id, what, error)
            self.dropped.value += 1
            return
        body = _encode({"clientid": client_id, **facts, f"{what}_at": now_ms, "ts": now_ms})
        if not self._batch:
            self._soon(self._flush)
        properties = props.encode([(props.TAGS, tag), (props.ORIGIN, ORIGIN), (props.CONTENT_TYPE, "application/json")])
        self._batch.append(Message(native, body, properties, tag))

    def _flush(self) -> None:
        batch, self._batch = self._batch, []
        self._waiting += len(batch)
        self._port.submit(batch, len(batch), self._stored)

    def _stored(self, count: int, result: Any) -> None:
        self._waiting -= count
        codes = [result.code] * count if isinstance(result, GantryError) else result
        lost = [code for code in codes if isinstance(code, ErrorCode)]
        if lost:
            self.dropped.value += len(lost)
            log.warning("%d events of clients could not be stored: %s", len(lost), lost[0].value)
