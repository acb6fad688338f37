"""A page that names the nameservers (`nameserver = http://...`, RocketMQ's address server), for brokers and gateways.

One list for the whole process is kept as the page says, in place: who uses it looks again. While the page cannot be had the last list
stays. Imported only when a page is used.
"""

from __future__ import annotations

import logging
from typing import Final

import anyio

from gantrymq.client.connecting.nameservers import DISCOVERY_S, fetch_nameservers
from gantrymq.model.errors import GantryError

log = logging.getLogger(__name__)

FIRST_S: Final = 60.0
"""A process gives up when the page cannot be had for so long at its start: a wrong address should be an error, not silence."""
RETRY_S: Final = 1.0
"""Pause between attempts at the start."""


async def begin(url: str, nameservers: list[str]) -> None:
    """Fill the list; raises GantryError when the page cannot be had within `FIRST_S`."""
    deadline = anyio.current_time() + FIRST_S
    said = False
    while True:
        try:
            nameservers[:] = await fetch_nameservers(url)
            log.info("nameservers by %s: %s", url, ";".join(nameservers))
            return
        except GantryError as error:
            if anyio.current_time() > deadline:
                raise
            log.log(logging.DEBUG if said else logging.WARNING, "%s; trying again", error.text)
            said = True
        await anyio.sleep(RETRY_S)


async def keep(url: str, nameservers: list[str], every_s: float = DISCOVERY_S) -> None:
    """Background task: what the page says now."""
    while True:
        await anyio.sleep(every_s)
        try:
            found = await fetch_nameservers(url)
        except GantryError as error:
            log.warning("%s; the last list stays", error.text)
            continue
        if found != nameservers:
            log.info("nameservers by %s: %s", url, ";".join(found))
            nameservers[:] = found
