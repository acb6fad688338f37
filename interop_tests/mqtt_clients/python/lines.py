"""Lines of words on standard input, for the programs with Python's clients beside this file: ../driver.py has the words."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable


def say(*words: object) -> None:
    print(*words, flush=True)


def arrived(name: str, topic: str, qos: int, retain: bool, payload: bytes) -> None:
    say("message", name, topic, qos, int(retain), payload.decode() or "-")


async def serve(words: dict[str, Callable[..., Awaitable[object]]]) -> None:
    """Do what they say, until there are no more."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        word, *given = line.rstrip("\n").split(" ")
        try:
            said = await words[word](*given)
        except Exception as error:
            say("failed", repr(error))
        else:
            say("ok", "" if said is None else said)
