"""How many log lines one client may cause: a token bucket per address, and one for all clients together.

Lines about a client begin with its `host:port` (the peer as first field), so that they are told from the process's own, which are never held
back. What is held back is counted, and said in one line as soon as the address may write again, or has been quiet for a while.
"""

from __future__ import annotations

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Final

log = logging.getLogger(__name__)

BURST: Final = 500
"""Lines of one address at once: a fleet behind one address may say something of each device."""
PER_S: Final = 10.0
"""Lines a second of one address from then on: two kilobytes a second."""
ALL_BURST: Final = 2_000
ALL_PER_S: Final = 100.0
"""The same for all clients together: many addresses must not do what one cannot."""
ADDRESSES_MAX: Final = 1_024
"""Addresses remembered, the ones that wrote last: 300 KiB."""
QUIET_S: Final = 10.0
"""After so long what was held back of an address is said, though it writes nothing more."""
CHECK_EVERY_S: Final = 1.0

_PEER: Final = re.compile(r"(?:(\d+\.\d+\.\d+\.\d+)|\[([0-9A-Fa-f:.]+)(?:%\w+)?\]):\d+\Z")


class Bucket:
    """Tokens of one address. `held`: lines held back since the last one said."""

    __slots__ = ("at_s", "held", "tokens")

    def __init__(self, tokens: float, at_s: float) -> None:
        self.tokens = tokens
        self.at_s = at_s
        self.held = 0

    def take(self, now_s: float, per_s: float, burst: float) -> bool:
        """Whether one more line may be written."""
        self.tokens = min(burst, self.tokens + max(now_s - self.at_s, 0.0) * per_s)
        self.at_s = now_s
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


class PeerLimit(logging.Filter):
    """Filter of the process's handler."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock_s = clock_s
        self._lock = Lock()
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._all = Bucket(ALL_BURST, clock_s())
        self._looked_s = clock_s()

    def __len__(self) -> int:
        return len(self._buckets)

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        address = address_of(record)
        now_s = self._clock_s()
        said: list[tuple[str, int]] = []
        with self._lock:
            if now_s - self._looked_s >= CHECK_EVERY_S:
                self._looked_s = now_s
                for quiet, bucket in self._buckets.items():
                    if bucket.held and now_s - bucket.at_s >= QUIET_S:
                        said.append((quiet, bucket.held))
                        bucket.held = 0
            passes = not address or self._passes(address, now_s, said)
        for about, count in said:  # no peer in front: never held back itself
            log.warning("%s more lines about %s were held back", f"{count:,}", about)
        return passes

    def _passes(self, address: str, now_s: float, said: list[tuple[str, int]]) -> bool:
        buckets = self._buckets
        bucket = buckets.get(address)
        if bucket is None:
            bucket = buckets[address] = Bucket(BURST, now_s)
            if len(buckets) > ADDRESSES_MAX:
                gone, old = buckets.popitem(last=False)
                if old.held:
                    said.append((gone, old.held))
        buckets.move_to_end(address)
        if bucket.take(now_s, PER_S, BURST) and self._all.take(now_s, ALL_PER_S, ALL_BURST):
            if bucket.held:
                said.append((address, bucket.held))
                bucket.held = 0
            return True
        bucket.held += 1
        return False


def address_of(record: logging.LogRecord) -> str:
    """The address of the client that a line is about; empty for other lines. IPv6: the network that one site has (64 bits)."""
    arguments = record.args
    if not isinstance(arguments, tuple) or not arguments or not isinstance(arguments[0], str):
        return ""
    if not isinstance(record.msg, str) or not record.msg.startswith("%s"):
        return ""
    found = _PEER.match(arguments[0])
    if found is None:
        return ""
    return found[1] or ":".join(found[2].split(":")[:4])
