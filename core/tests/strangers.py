"""What strangers by chance say to a door: right things changed a little, in pieces. For the tests of each door.

200 conversations a door every day; 20,000, which are some 100,000 reads, marked slow; as many as GANTRY_STRANGERS says, from seed
GANTRY_STRANGERS_SEED on, where somebody wants more.
"""

from __future__ import annotations

import gc
import logging
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gantrymq.auth.audit import Audit
from gantrymq.auth.authority import Authority
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.rows import POLICIES, USERS, User, encode
from gantrymq.net.api import Door
from gantrymq.net.doors.threshold import Terms, Threshold
from gantrymq.net.testing import FakeLink, ManualClock, ManualTurn, ManualWheel

UNKNOWN_MS, UNKNOWN_BYTES = 10_000, 64 * 1024
MANY, SEED = int(os.environ.get("GANTRY_STRANGERS", "20000")), int(os.environ.get("GANTRY_STRANGERS_SEED", "2"))
LONGEST_S = 900 if MANY <= 20_000 else 0
TOGETHER = 50
"""Strangers who are there at once, until their time is over."""
OBJECTS_MAX = 3_000
"""More than before the second half: caches that fill up to their own limits."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A test module that imports this logs nothing."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def authority_of(logins: Any, root: User) -> Authority:
    """It knows root alone."""
    audit = Audit(ManualWheel(ManualClock()), lambda: 0, "test")
    authority = Authority(AuthConfig(enabled=True), logins, lambda callback: callback(), audit)
    authority.load(USERS, {"root": encode(root)})
    authority.load(POLICIES, {})
    return authority


def changed(data: bytes, chance: random.Random) -> bytes:
    """Some of it is otherwise."""
    out = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        at = chance.randrange(len(out) + 1)
        what = chance.randrange(5)
        if what == 0 and at < len(out):
            out[at] = chance.randrange(256)
        elif what == 1:
            del out[at : at + chance.randint(1, 4)]
        elif what == 2:
            out[at:at] = chance.randbytes(chance.choice((1, 2, 9)))
        elif what == 3 and at < len(out):
            out[at] ^= 1 << chance.randrange(8)
        elif chance.random() < 0.05:
            out[at:at] = bytes([chance.randrange(256)]) * chance.choice((5_000, 70_000))
    return bytes(out)


def say(link: FakeLink, said: list[bytes], chance: random.Random) -> Iterator[None]:
    """A few things in pieces, until the door closes; a look at each piece's effect is the caller's."""
    data = b"".join([changed(chance.choice(said), chance) for _ in range(chance.randint(1, 4))])
    if chance.random() < 0.1:
        data = chance.randbytes(chance.randrange(200))
    while data and link.closed_by is None:
        size = chance.choice((1, 7, 64, len(data), len(data)))
        link.feed(data[:size])
        data = data[size:]
        yield


def attack(
    make: Callable[[], Door], said: list[bytes], chance: random.Random, shell: tuple[ManualWheel, ManualTurn], count: int,
    trusted: float = 0, held_max: int = UNKNOWN_BYTES,
) -> None:  # fmt: skip
    """So many at a threshold: none is let in, none may stay. `trusted`: the share that comes from this machine; `held_max`: bytes that one may
    make the door hold."""
    wheel, turn = shell
    for first in range(0, count, TOGETHER):
        links = []
        for _ in range(min(TOGETHER, count - first)):
            link = FakeLink(wheel, turn, f"192.0.2.{chance.randrange(1, 250)}:{chance.randrange(1024, 65536)}")
            link.peer_is_loopback = link.peer_is_trusted = chance.random() < trusted
            link.attach(Threshold(make(), Terms(UNKNOWN_MS, UNKNOWN_BYTES, wheel)))
            for _ in say(link, said, chance):
                assert isinstance(link.door, Threshold), "a stranger was let in"
                assert link.door.inbound_bytes() <= held_max
            links.append(link)
        for link in links:
            if link.closed_by is None and chance.random() < 0.2:
                link.peer_closes()
        wheel.advance(UNKNOWN_MS + 1_000)
        turn.run_until_quiet()
        assert [link for link in links if link.closed_by is None] == [], "a stranger may stay"


def twice(half: Callable[[int], None], count: int) -> None:
    """Nothing of the second half is kept."""
    half(count // 2)
    gc.collect()
    before = len(gc.get_objects())
    half(count - count // 2)
    gc.collect()
    assert len(gc.get_objects()) - before < OBJECTS_MAX
