"""What a gateway remembers of a persistent session whose client is away, and what the tables say where it remembers nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gantrymq.net.procedures.driver import Steps
from gantrymq_gateways.mqtt.messages.exchange import (
    RELEASED,
    Inbound,
    Released,
    decode_ids,
    receipts_key,
    row_key,
)
from gantrymq_gateways.mqtt.messages.receipts import Outbound
from gantrymq_gateways.mqtt.sessions.sessions import PersistentSession
from gantrymq_gateways.mqtt.wire import constants as c

RESEND_SESSIONS_MAX: Final = 10_000
"""Sessions whose unacknowledged packet identifiers are remembered while they are away; the oldest are forgotten first."""


class Memory:
    """Of one session."""

    __slots__ = ("inbound", "outbound", "released", "resend")

    def __init__(self, session: PersistentSession) -> None:
        self.resend = session.resend
        self.inbound = session.inbound
        self.outbound = session.outbound
        self.released = [number for number, state in session.outlet.inflight.items() if isinstance(state, Released)]

    def is_worth_it(self) -> bool:
        return bool(self.resend or self.inbound.ids or self.released or self.outbound.row or self.outbound.is_flying())


class Memories:
    """Of a gateway, by client id. `rows`: those of `mqtt_exchange`."""

    def __init__(self, rows: Mapping[str, bytes]) -> None:
        self._rows = rows
        self._known: dict[str, Memory] = {}

    def keep(self, session: PersistentSession) -> None:
        """Its client is gone."""
        memory = Memory(session)
        if memory.is_worth_it():
            if len(self._known) >= RESEND_SESSIONS_MAX:
                self._known.pop(next(iter(self._known)))
            self._known[session.client_id] = memory

    def forget(self, client_id: str) -> None:
        """Another gateway had it meanwhile, the session is over, or it goes on."""
        self._known.pop(client_id, None)

    def clear(self) -> None:
        """The broker went away."""
        self._known.clear()

    def recall(self, session: PersistentSession, present: bool) -> Steps:
        """Give a session that begins or goes on its packet identifiers; behind what is on its way to the log."""
        memory = self._known.get(session.client_id)
        if memory is not None:
            yield memory.inbound.wait
            yield memory.outbound.wait
        sent = receipts_key(session.client_id)
        if memory is None:
            key = row_key(session.client_id)
            session.inbound = Inbound(key, decode_ids(self._rows.get(key, b"") if present else b""))
            session.outbound = Outbound(sent, self._rows.get(sent))
            released = session.outbound.released() if present else []
        else:
            session.resend = memory.resend
            session.inbound = memory.inbound
            session.inbound.resume()
            session.outbound = memory.outbound
            released = list(dict.fromkeys([*memory.released, *memory.outbound.released()]))
            if memory.resend:
                session.outlet.next_id = max(memory.resend.values()) % c.PACKET_ID_MAX + 1
        session.outbound.owner = session
        session.outlet.inflight.update(dict.fromkeys(released, RELEASED))
