"""Who may come in beside those who are there: numbers of connections, their rate, bans. Without I/O; time is an argument."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Final

from gantrymq.net.held.rates import Bucket

BAN_TABLE: Final = "mqtt_ban"
"""KIND:VALUE -> JSON {"until": ms since the epoch or 0 (for ever), "reason", "at": ms}. Kinds: client, user, address (a network)."""

KINDS: Final = ("client", "user", "address")

FLAPPING_CLIENTS_MAX: Final = 100_000
"""Client ids whose ends are counted at one time, some 20 MiB; beyond it the oldest are forgotten."""

CONNECT_WAIT_MS_MAX: Final = 10_000
"""A CONNECT waits its turn for so long (`mqtt.connect_rate_max`); one that would wait longer is refused."""


class Rates:
    """What one client publishes, in messages and payload bytes a second; 0: any number."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, messages_max: int, bytes_max: int, now_ms: int) -> None:
        self._messages = Bucket(messages_max, now_ms) if messages_max else None
        self._bytes = Bucket(bytes_max, now_ms) if bytes_max else None

    def take(self, messages: int, size: int, now_ms: int) -> int:
        """Ms for which nothing more is to be read from the client."""
        wait_ms = self._messages.take(messages, now_ms) if self._messages is not None else 0
        return max(wait_ms, self._bytes.take(size, now_ms) if self._bytes is not None else 0)


@dataclass(frozen=True, slots=True)
class Ban:
    """One row of `mqtt_ban`."""

    until_ms: int
    reason: str

    def holds(self, now_ms: int) -> bool:
        """It is not over."""
        return not self.until_ms or now_ms < self.until_ms


def parse_ban(key: str, value: bytes) -> tuple[str, str, Ban]:
    """Kind, whom, and the ban. Raises ValueError."""
    kind, colon, whom = key.partition(":")
    row = json.loads(value)
    if kind not in KINDS or not colon or not whom:
        raise ValueError(f"{key!r:.80} bans neither a client nor a user nor an address")
    if kind == "address":
        ip_network(whom)
    if not isinstance(row, dict) or not isinstance(row.get("until", 0), int):
        raise ValueError("the row says no time")
    return kind, whom, Ban(row.get("until", 0), str(row.get("reason", "")))


def check_ban(key: str, value: bytes) -> None:
    """Raise for a row of `mqtt_ban` that cannot be read."""
    parse_ban(key, value)


class Bans:
    """The table in memory."""

    def __init__(self) -> None:
        self._named: dict[tuple[str, str], Ban] = {}
        self._networks: dict[str, Ban] = {}
        self._rows: dict[str, bytes] = {}

    def load(self, rows: dict[str, bytes]) -> None:
        """Start from the table's rows."""
        self._named.clear()
        self._networks.clear()
        self._rows.clear()
        for key, value in rows.items():
            self.changed(key, value)

    def changed(self, key: str, value: bytes | None) -> None:
        """A row changed (None: it is gone)."""
        kind, _, whom = key.partition(":")
        if value is None:
            self._rows.pop(key, None)
            self._named.pop((kind, whom), None)
            if kind == "address":
                self._networks.pop(whom, None)
            return
        kind, whom, ban = parse_ban(key, value)
        self._rows[key] = value
        if kind == "address":
            self._networks[whom] = ban
        else:
            self._named[kind, whom] = ban

    def over(self, now_ms: int) -> list[tuple[str, bytes | None, bytes | None]]:
        """Bans that hold no more, as changes of rows that take them away."""
        found = [f"{kind}:{whom}" for (kind, whom), ban in self._named.items() if not ban.holds(now_ms)]
        found += [f"address:{network}" for network, ban in self._networks.items() if not ban.holds(now_ms)]
        return [(key, self._rows[key], None) for key in found]

    def find(self, client_id: str, user: str, host: str, now_ms: int) -> Ban | None:
        """The ban of a client, if there is one."""
        if not self._named and not self._networks:
            return None
        for key in (("client", client_id), ("user", user)):
            ban = self._named.get(key)
            if ban is not None and ban.holds(now_ms):
                return ban
        if self._networks:
            try:
                address = ip_address(host)
            except ValueError:
                return None  # a Unix socket
            inner = getattr(address, "ipv4_mapped", None) or address
            for network, ban in self._networks.items():
                if ban.holds(now_ms) and inner in ip_network(network):
                    return ban
        return None


class Flapping:
    """Clients that come and go again and again. A count of 0: nobody looks."""

    __slots__ = ("_max", "_seen", "_window_ms")

    def __init__(self, count_max: int, window_s: int) -> None:
        self._max = count_max
        self._window_ms = window_s * 1000
        self._seen: dict[str, tuple[int, int]] = {}
        """Client id -> (when its window began, connections that ended in it), oldest window first."""

    def left(self, client_id: str, now_ms: int) -> bool:
        """A connection ended. True: it was one too many, and counting begins anew."""
        if not self._max:
            return False
        seen = self._seen
        while seen and now_ms - seen[next(iter(seen))][0] >= self._window_ms:
            del seen[next(iter(seen))]
        if client_id not in seen and len(seen) >= FLAPPING_CLIENTS_MAX:
            del seen[next(iter(seen))]
        began_ms, count = seen.get(client_id, (now_ms, 0))
        if count >= self._max:
            del seen[client_id]
            return True
        seen[client_id] = began_ms, count + 1
        return False


def host_of(peer: str) -> str:
    """The address in `host:port`."""
    return peer.rpartition(":")[0].strip("[]") or peer


class Gate:
    """One gateway's. Limits of 0: none."""

    def __init__(self, connections_max: int, per_address_max: int, connect_rate_max: int, now_ms: int) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._connects = Bucket(connect_rate_max, now_ms) if connect_rate_max else None
        self._by_address: Counter[str] = Counter()
        self.bans = Bans()
        self.connected = 0
        self.most = 0
        """The most at one time."""
        self.refused = 0

    def full(self, peer: str) -> str:
        """Why one more connection from there is refused; empty: it is not."""
        if self._connections_max and self.connected >= self._connections_max:
            return f"mqtt.connections_max ({self._connections_max}) is reached"
        if self._per_address_max and self._by_address[host_of(peer)] >= self._per_address_max:
            return f"mqtt.connections_per_address_max ({self._per_address_max}) is reached"
        return ""

    def wait_ms(self, now_ms: int) -> int:
        """How long a CONNECT waits for its turn; -1: too long."""
        if self._connects is None:
            return 0
        wait_ms = self._connects.take(1, now_ms)
        if wait_ms > CONNECT_WAIT_MS_MAX:
            self._connects.give_back(1)
            return -1
        return wait_ms

    def enter(self, peer: str) -> None:
        """A client is let in."""
        self.connected += 1
        self.most = max(self.most, self.connected)
        if self._per_address_max:
            self._by_address[host_of(peer)] += 1

    def leave(self, peer: str) -> None:
        """It is gone."""
        self.connected -= 1
        if self._per_address_max:
            host = host_of(peer)
            self._by_address[host] -= 1
            if self._by_address[host] <= 0:
                del self._by_address[host]
