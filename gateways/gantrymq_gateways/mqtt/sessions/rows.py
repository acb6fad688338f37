"""Rows of `mqtt_session`, each written only by who holds its client id.

A lease says who has a client id, but what its last holder wrote may still be on its way to the broker when another has it. So a row names the
gateway that holds it, whoever takes the session claims the row first, and every change compares: once the row is claimed,
nothing that an earlier holder wrote is taken any more. Rows of filters are changed in one piece with the session's, which then says another
number: who knows that row knows them too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

from gantrymq.broker.port import Done, TablePort
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Call, call
from gantrymq_gateways.mqtt.drafts import Draft
from gantrymq_gateways.mqtt.sessions.hold import Hold
from gantrymq_gateways.mqtt.sessions.sessions import PersistentSession, Session
from gantrymq_gateways.mqtt.tables import SESSION_TABLE, SessionTable, StoredSession, filter_key, holder_of

TAKEN: Final = "its client id was taken by another gateway"
TOGETHER_MAX: Final = 512
"""Rows of filters that are changed in one piece. Beyond that a SUBSCRIBE or UNSUBSCRIBE is stored in several: it is not answered yet."""

Changes = list[tuple[str, bytes | None]]
"""Filters with their own rows, None: deleted."""

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
        """The table reports a session's row. A claim that found the row as it wanted it wrote nothing: another gateway's may have come behind it, and then
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

    def held(self, hold: Hold) -> Draft | None:
        """The session as its holder knows it; None if nothing is claimed or the client id is lost."""
        return None if hold.row is None or hold.is_lost() else Draft(StoredSession.decode(hold.row), hold.filters)

    def stored(self, client_id: str) -> Draft | None:
        """The session as far as it is known here: another gateway's last change may be on its way."""
        row = self._table.row(client_id)
        return None if row is None else Draft(StoredSession.decode(row), self._table.filters_of(client_id))

    def claim(
        self,
        client_id: str,
        hold: Hold,
        change: Callable[[Draft], None],
        begin: Callable[[], StoredSession] | None = None,
    ) -> Generator[Call, Any, Draft | None]:
        """Make the row ours, changed by `change`; `begin` makes one where there is none. None: there is none, or the client id is lost."""
        while not hold.is_lost():
            known = self._table.row(client_id)
            hold.filters = dict(self._table.filters_of(client_id))
            if known is not None:
                stored = Draft(StoredSession.decode(known), hold.filters)
                change(stored)
            elif begin is not None:
                stored = Draft(begin(), hold.filters)
                stored.row.over = int(bool(hold.filters))  # of a row that could not be read
            else:
                return None
            before, stored.row.gateway = stored.row.gateway, self.gateway
            value = stored.row.encode()
            try:
                if value == known or (yield from self._put(client_id, hold, known, value, [])):
                    hold.row = value
                    return stored
            except GantryError as error:
                if known is None or value != _named(known, self.gateway) or error.code not in CLAIMED_LATER:
                    raise
                # Who only comes back must get what waits for it: the next change of the row claims it.
                stored.row.gateway = before
                hold.row = known
                return stored
        return None

    def write(self, client_id: str, hold: Hold, stored: Draft | None) -> Generator[Call, Any, bool]:
        """Change (None: delete, its filters having ended) a session that is claimed. False: the client id is lost, and it is somebody else's."""
        given_back = hold.given_back
        value = None
        changes: Changes = []
        if stored is not None:
            row = stored.row
            row.gateway = self.gateway
            row.ending = [light for light in row.ending if light not in given_back]
            if not row.over:
                stored.filters.spread()
            changes = stored.filters.changes()
            while len(changes) > TOGETHER_MAX and hold.row is not None:
                step = StoredSession.decode(hold.row)
                step.gateway, step.ending, step.changes = self.gateway, row.ending, step.changes + 1
                if not (yield from self._write(client_id, hold, step.encode(), changes[:TOGETHER_MAX])):
                    return False
                row.changes = step.changes
                changes = changes[TOGETHER_MAX:]
            row.changes += bool(changes)
            value = row.encode()
        if not (yield from self._write(client_id, hold, value, changes)):
            return False
        hold.given_back -= given_back
        return True

    def _write(self, client_id: str, hold: Hold, value: bytes | None, changes: Changes) -> Generator[Call, Any, bool]:
        while not hold.is_lost():
            if value == hold.row or (yield from self._put(client_id, hold, hold.row, value, changes)):
                hold.row = value
                for text, kept in changes:
                    if kept is None:
                        hold.filters.pop(text, None)
                    else:
                        hold.filters[text] = kept
                return True
            if self._table.row(client_id) != hold.row:  # Else it only moved to another broker group.
                hold.lose(client_id)
        return False

    def _put(
        self, client_id: str, hold: Hold, known: bytes | None, value: bytes | None, changes: Changes
    ) -> Generator[Call, Any, bool]:
        """False: the session's row was another one, and it is known by now which."""
        change = self._waiting[client_id] = _Change()
        # The session's row last: whoever is told of it was told of the others.
        rows = [(filter_key(client_id, text), kept) for text, kept in changes] + [(client_id, value)]
        for key, one in rows:
            self._table.writing_session(key, one)
        try:
            if changes:
                fit: bool = yield call(self._port.put_together, SESSION_TABLE, client_id, known, rows)
            else:
                (fit,) = yield call(self._port.put_if, SESSION_TABLE, [(client_id, known, value)])
            if fit:
                for key, one in rows:
                    self._table.wrote_session(key, one, self._now_ms())
                return True
            self._unwritten(rows)
            if not hold.is_lost() and self._table.row(client_id) == known:
                yield change.wait
            return False
        except GantryError:
            self._unwritten(rows)
            raise
        finally:
            del self._waiting[client_id]

    def _unwritten(self, rows: Changes) -> None:
        for key, value in rows:
            self._table.unwritten_session(key, value)
