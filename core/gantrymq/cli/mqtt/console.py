"""Questions to every MQTT gateway that runs, and their answers: rows of table `mqtt_console`."""

from __future__ import annotations

import json
import os
import secrets
import time
from typing import Any, Final

import anyio

from gantrymq.cli.mqtt.reach import Tables
from gantrymq.client.connecting.signing import USER_VARIABLE
from gantrymq.model.errors import ErrorCode, GantryError

TABLE: Final = "mqtt_console"
LEASE_PREFIX: Final = "mqtt-gateway:"
ANSWER_S: Final = 3.0
"""A gateway that says nothing for so long may be gone."""


def operator() -> str:
    """Who gives the command, for the audit trail."""
    return os.environ.get(USER_VARIABLE, "") or os.environ.get("USER", "")


async def ask(reach: Tables, question: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What each gateway answers, by its name. Raises UNAVAILABLE if no gateway runs."""
    answers: dict[str, dict[str, Any]] = {}
    name = secrets.token_hex(8)
    prefix = f"answer/{name}/"
    news = anyio.Event()

    def changed(key: str, value: bytes | None) -> None:
        if key.startswith(prefix) and value is not None:
            answers[key.removeprefix(prefix)] = json.loads(value)
            news.set()

    rows = await reach.rows(TABLE, changed)
    gateways = {key.removeprefix("gateway/") for key in rows if key.startswith("gateway/")}
    if not gateways:
        raise GantryError(ErrorCode.UNAVAILABLE, "no MQTT gateway runs in this cluster")
    row = {**question, "by": operator(), "at": time.time_ns() // 1_000_000}
    await reach.put(TABLE, [(f"ask/{name}", json.dumps(row).encode())])
    try:
        with anyio.move_on_after(ANSWER_S):
            while gateways - answers.keys():
                await news.wait()
                news = anyio.Event()
    finally:
        with anyio.CancelScope(shield=True):
            gone = [(f"ask/{name}", None), *[(prefix + gateway, None) for gateway in answers]]
            await reach.put(
                TABLE, [*gone, *[(f"gateway/{each}", None) for each in await _dead(reach, gateways - answers.keys())]]
            )
    return answers


async def _dead(reach: Tables, silent: set[str]) -> list[str]:
    """Gateways that were killed: their lease is free."""
    found = []
    for gateway in silent:
        try:
            epoch = await reach.ask(reach.port.take_lease, LEASE_PREFIX + gateway, False, lambda name: None)
        except GantryError:
            continue
        reach.port.drop_lease(LEASE_PREFIX + gateway, epoch)
        found.append(gateway)
    return found


SESSIONS: Final = "mqtt_session"
LINE_END: Final = "\n"
"""Between client id and filter in keys of rows that filters have of their own."""


async def session_rows(reach: Any) -> dict[str, dict[str, Any]]:
    """Rows of sessions with all their filters, by client id."""
    rows = await reach.rows(SESSIONS)
    found: dict[str, dict[str, Any]] = {key: json.loads(value) for key, value in rows.items() if LINE_END not in key}
    for key, value in rows.items():
        client, line_end, text = key.partition(LINE_END)
        if line_end and client in found:
            found[client]["s"][text] = json.loads(value)
    return found
