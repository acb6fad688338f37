"""Rows of `mqtt_session`, each written only by who holds its client id.

A lease says who has a client id, but what its last holder wrote may still be on its way to the broker when another has it. So a row names the
gateway that holds it, whoever takes the session claims the row first, and every change compares: once the row is claimed,
nothing that an earlier holder wrote is taken any more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

from gantrymq.broker.port import Done, TablePort
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Call, call
from gantrymq_gateways.mqtt.sessions.hold import Hold
from gantrymq_gateways.mqtt.sessions.sessions import PersistentSession, Session
from gantrymq_gateways.mqtt.tables import SESSION_TABLE, SessionTable, StoredSession, holder_of

TAKEN: Final = "its client id was taken by another gateway"
CLAIMED_LATER: Final = (ErrorCode.STORE_FULL, ErrorCode.UNAVAILABLE)
"""The row cannot be written: the disk is full, or its broker group away."""


def _named(row: bytes, gateway: str) -> bytes:
    """The row with another gateway's name, and otherwise the same."""
    stored = StoredSession.decode(row)
    stored.gateway = gateway
    return stored.encode()


class _Change:
    """A call that is answered when the row has changed since this was made."""

    __slots__ = ("_on_done", "_result", "_token", "_told")

    def __init__(self) -> None:
        self._told = False
        self._result: GantryError | None = None
        self._token: object = None
        self._on_done: Done | None = None

    def tell(self, result: GantryError | None = None) -> None:
        self._told = True
        self._result = result
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(self._token, result)

    def wait(self, token: object, on_done: Done) -> None:
        if self._told:
            on_done(token, self._result)
        else:
            self._token, self._on_done = token, on_done


class SessionRows:
    """Procedures on single rows. `gateway`: the name of this process in the rows that it holds."""

    def __init__(self, port: TablePort, table: SessionTable, now_ms: Callable[[], int], gateway: str) -> None:
        self._port = port
        self._table = table
        self._now_ms = now_ms
        self.gateway = gateway
        self._waiting: dict[str, _Change] = {}
        """By client id; procedures of one client id run one at a time."""

    def changed(self, client_id: str) -> None:
        """The table reported a change of the row, or the client id is lost: go on."""
        change = self._waiting.get(client_id)
        if change is not None:
            change.tell()

    def reported(self, client_id: str, value: bytes | None, session: Session | None) -> None:
        """The table reports a row. A claim that found the row as it wanted it wrote nothing: another gateway's may have come behind it, and then
        the session is theirs, whoever has the lease."""
        if isinstance(session, PersistentSession) and value is not None and value != session.hold.row:
            gateway = holder_of(value).gateway
            if gateway and gateway != self.gateway:
                session.hold.lose(client_id)
                session.fail(TAKEN)
        self.changed(client_id)

    def lost(self) -> None:
        """The broker went away."""
        for change in list(self._waiting.values()):
            change.tell(GantryError(ErrorCode.UNAVAILABLE, "the broker was lost meanwhile"))

    def held(self, hold: Hold) -> StoredSession | None:
        """A copy of the row as its holder knows it; None if nothing is claimed or the client id is lost."""
        return None if hold.row is None or hold.is_lost() else StoredSession.decode(hold.row)

    def claim(
        self,
        client_id: str,
        hold: Hold,
        change: Callable[[StoredSession], None],
        begin: Callable[[], StoredSession] | None = None,
    ) -> Generator[Call, Any, StoredSession | None]:
        """Make the row ours, changed by `change`; `begin` makes one where there is none. None: there is none, or the client id is lost."""
        while not hold.is_lost():
            known = self._table.row(client_id)
            if known is not None:
                stored = StoredSession.decode(known)
                change(stored)
            elif begin is not None:
                stored = begin()
            else:
                return None
            before, stored.gateway = stored.gateway, self.gateway
            value = stored.encode()
            try:
                if value == known or (yield from self._put(client_id, hold, known, value)):
                    hold.row = value
                    return stored
            except GantryError as error:
                if known is None or value != _named(known, self.gateway) or error.code not in CLAIMED_LATER:
                    raise
                # Who only comes back must get what waits for it: the next change of the row claims it.
                stored.gateway = before
                hold.row = known
                return stored
        return None

    def write(self, client_id: str, hold: Hold, stored: StoredSession | None) -> Generator[Call, Any, bool]:
        """Change (None: delete) a row that is claimed. False: the client id is lost, and the row is somebody else's."""
        given_back = hold.given_back
        value = None
        if stored is not None:
            stored.gateway = self.gateway
            stored.ending = [light for light in stored.ending if light not in given_back]
            value = stored.encode()
        while not hold.is_lost():
            if value == hold.row or (yield from self._put(client_id, hold, hold.row, value)):
                hold.row = value
                hold.given_back -= given_back
                return True
            if self._table.row(client_id) != hold.row:  # Else it only moved to another broker group.
                hold.lose(client_id)
        return False

    def _put(self, client_id: str, hold: Hold, known: bytes | None, value: bytes | None) -> Generator[Call, Any, bool]:
        """False: the row was another one, and it is known by now which."""
        change = self._waiting[client_id] = _Change()
        self._table.writing_session(client_id, value)
        try:
            fits: list[bool] = yield call(self._port.put_if, SESSION_TABLE, [(client_id, known, value)])
            if fits[0]:
                self._table.wrote_session(client_id, value, self._now_ms())
                return True
            self._table.unwritten_session(client_id, value)
            if not hold.is_lost() and self._table.row(client_id) == known:
                yield change.wait
            return False
        except GantryError:
            self._table.unwritten_session(client_id, value)
            raise
        finally:
            del self._waiting[client_id]
