"""Sessions that end because their backlog is over a limit (`broker.session_messages_full`, `broker.session_bytes_full`: disconnect).

The broker says so in table `mqtt_over`: client id -> JSON {"entries": so many, "text": which limit}. The gateway that has the client disconnects it
(reason 0x97) and ends the session; one that nobody has any gateway ends. By then the client may have caught up, or begun another session: so it is looked at once more.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any, Final

import msgspec

from gantrymq.broker.port import FIND, BrokerPort, CursorInfo
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Call, Steps, call
from gantrymq.net.procedures.order import Work
from gantrymq_gateways.mqtt.sessions.hold import Hold
from gantrymq_gateways.mqtt.sessions.lifecycle import FILTER_WORK, GROUP_PREFIX, Lifecycle
from gantrymq_gateways.mqtt.sessions.sessions import PersistentSession
from gantrymq_gateways.mqtt.topics.shared import stands_apart
from gantrymq_gateways.mqtt.wire.reasons import Reason

log = logging.getLogger(__name__)

TABLE: Final = "mqtt_over"


class _Row(msgspec.Struct):
    entries: int
    text: str


_decode = msgspec.json.Decoder(_Row).decode


def check_row(key: str, value: bytes) -> None:
    """Raise for a row of `mqtt_over` that cannot be read."""
    _decode(value)


class Overfull:
    """As one gateway sees them."""

    def __init__(self, port: BrokerPort, lifecycle: Lifecycle) -> None:
        self._port = port
        self._lifecycle = lifecycle
        self._rows: dict[str, bytes] = {}
        self.ended = 0
        """Sessions ended here."""

    def begin(self) -> Steps:
        """Read the table."""
        self._rows.clear()
        self._rows.update((yield call(self._port.watch_table, TABLE, self.changed)))

    def changed(self, client_id: str, value: bytes | None) -> None:
        """The table reports a row."""
        if value is None:
            self._rows.pop(client_id, None)
            return
        self._rows[client_id] = value
        if client_id in self._lifecycle.live:
            self._examine(client_id)

    def sweep(self) -> None:
        """Now and then: those that no gateway has a client of."""
        for client_id in list(self._rows):
            self._examine(client_id)

    def _examine(self, client_id: str) -> None:
        self._lifecycle.serial.put(client_id, self._end(client_id), self._lifecycle.report)

    def _end(self, client_id: str) -> Steps:
        value = self._rows.get(client_id)
        if value is None:
            return
        row = _decode(value)
        if not (yield from self._is_over(client_id, row.entries)):
            yield from self._done(client_id, value)
            return
        live = self._lifecycle.live.get(client_id)
        if isinstance(live, PersistentSession):
            self._say(client_id, row)
            live.expiry_s = 0
            live.fail(f"its session ends: its backlog is over {row.text}", Reason.QUOTA_EXCEEDED)
        elif live is not None or not (yield from self._end_stored(client_id, row)):
            return  # its gateway does it
        yield from self._done(client_id, value)

    def _is_over(self, client_id: str, entries: int) -> Generator[Call, Any, bool]:
        stored = self._lifecycle.rows.stored(client_id)
        if stored is None:
            return False
        work = Work()
        for text, kept in stored.filters.items():
            if stands_apart(text):
                continue
            if work.spend(FILTER_WORK):
                yield self._lifecycle.pause
            try:
                info: CursorInfo = yield call(self._port.open_cursor, f"~{kept.light}", GROUP_PREFIX + client_id, FIND)
            except GantryError as error:
                if error.code not in (ErrorCode.QUEUE_NOT_FOUND, ErrorCode.NOT_FOUND):
                    raise
                continue
            if info.ready + info.unacked >= entries:
                return True
        return False

    def _end_stored(self, client_id: str, row: _Row) -> Generator[Call, Any, bool]:
        """End a session that nobody is connected with. False: somebody is, at another gateway."""
        lease, hold = GROUP_PREFIX + client_id, Hold()

        def lost(name: str) -> None:
            hold.lose(name)
            self._lifecycle.rows.changed(client_id)

        try:
            epoch = yield call(self._port.take_lease, lease, False, lost)
        except GantryError as error:
            if error.code is ErrorCode.LEASE_HELD:
                return False
            raise
        try:
            self._say(client_id, row)
            yield from self._lifecycle.forget(client_id, hold)
        finally:
            self._port.drop_lease(lease, epoch)
        return not hold.is_lost()

    def _say(self, client_id: str, row: _Row) -> None:
        self.ended += 1
        log.warning("client %s: its session ends: its backlog is over %s", client_id, row.text)

    def _done(self, client_id: str, value: bytes) -> Steps:
        yield call(self._port.put_if, TABLE, [(client_id, value, None)])
        self._rows.pop(client_id, None)
