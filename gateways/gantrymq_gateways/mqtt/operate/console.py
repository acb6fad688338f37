"""The gateway's side of `gantry mqtt`: questions are rows of table `mqtt_console`, and so are the answers of every gateway.

`gateway/NAME`: one that runs, its host and process. `ask/ID`: JSON {"what": "clients" | "kick", "client", "by", "at": ms}. `answer/ID/NAME`: JSON. Whoever asked
removes question and answers; what is older than a minute a gateway removes.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from gantrymq.broker.port import TablePort

TABLE: Final = "mqtt_console"
LEASE_PREFIX: Final = "mqtt-gateway:"
OLD_MS: Final = 60_000
CLIENTS_MAX: Final = 10_000
"""Clients in one answer: some 3 MiB; a row has 4 at most."""


def check_row(key: str, value: bytes) -> None:
    """Raise for a row of `mqtt_console` that cannot be read."""
    if not isinstance(json.loads(value), dict):
        raise ValueError("the row is no object")


class Shown(Protocol):
    """A connection that an operator may see and end."""

    def facts(self) -> dict[str, Any]:
        """What a list of clients says of it; empty for one that is not let in yet."""

    def kick(self, text: str) -> None:
        """Close it on its protocol's terms."""


class Console:
    """One gateway's. `doors()`: its connections. `now_ms`: wall clock."""

    def __init__(
        self,
        port: TablePort,
        name: str,
        now_ms: Callable[[], int],
        doors: Callable[[], Iterable[Shown]],
        kicked: Callable[[str, str], None] = lambda who, client: None,
    ) -> None:
        """`kicked(who, client)`: an operator ended a client's connection here."""
        self._kicked = kicked
        self._port = port
        self._name = name
        self._now_ms = now_ms
        self._doors = doors
        self._asked: dict[str, int] = {}

    def begin(self) -> None:
        """The table is watched: say that we are here."""
        row = {"host": socket.gethostname(), "pid": os.getpid(), "at": self._now_ms()}
        self._put([(f"gateway/{self._name}", _encode(row))])

    def end(self) -> None:
        """The gateway stops."""
        self._put([(f"gateway/{self._name}", None)])

    def changed(self, key: str, value: bytes | None) -> None:
        """A row of the table changed."""
        if not key.startswith("ask/"):
            return
        if value is None:
            self._asked.pop(key, None)
            return
        if key in self._asked:
            return
        question = json.loads(value)
        self._asked[key] = int(question.get("at", 0))
        if self._now_ms() - self._asked[key] < OLD_MS:
            self._put([(f"answer/{key[4:]}/{self._name}", _encode(self._answer(question)))])

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        what, client = question.get("what"), question.get("client", "")
        if what == "clients":
            found = []
            for door in self._doors():
                facts = door.facts()
                if facts and (not client or facts["client"] == client):
                    found.append(facts)
            return {"clients": found[:CLIENTS_MAX], "count": len(found)}
        if what == "kick":
            doors = [door for door in self._doors() if door.facts().get("client") == client]
            for door in doors:
                door.kick("kicked by an operator")
            if doors:
                self._kicked(operator_of(question), client)
            return {"kicked": len(doors)}
        return {"error": f"this gateway does not know the question {what!r:.40}"}

    def sweep(self) -> None:
        """Remove questions that nobody took back."""
        old = [key for key, at_ms in self._asked.items() if self._now_ms() - at_ms > OLD_MS]
        if old:
            answers = [f"answer/{key[4:]}/{self._name}" for key in old]
            self._put([(key, None) for key in [*old, *answers]])
            for key in old:
                del self._asked[key]

    def _put(self, rows: list[tuple[str, bytes | None]]) -> None:
        self._port.put(TABLE, rows, None, lambda token, result: None)


def operator_of(row: dict[str, Any]) -> str:
    """Who gave the command, as its row says: nobody has shown it."""
    return str(row.get("by", ""))[:128]


def _encode(row: dict[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode()
