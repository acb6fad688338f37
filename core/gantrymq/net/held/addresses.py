"""How many connections each address has, so that one machine does not take those of all others.

An IPv6 host usually owns a /64 and may come from any address in it: that is one address here.
"""

from __future__ import annotations

import logging
from ipaddress import ip_address
from typing import Final

log = logging.getLogger(__name__)

IPV6_HOST_BITS: Final = 64


def address_of(peer: str) -> str:
    """What counts as one address in `host:port`: an IPv4 address, the /64 of an IPv6 address, or the text."""
    host = peer.rpartition(":")[0] or peer
    if not host.startswith("["):
        return host
    try:
        found = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped) if mapped is not None else f"{ip_address(int(found) >> IPV6_HOST_BITS << IPV6_HOST_BITS)}/64"


class Addresses:
    """Of a process, all doors together."""

    __slots__ = ("_by_address", "_refused", "most")

    def __init__(self, most: int) -> None:
        """`most`: connections of one address."""
        self.most = most
        self._by_address: dict[str, int] = {}
        self._refused: set[str] = set()
        """Those of which a refusal was logged; again after one of their connections ended."""

    def came(self, peer: str) -> str:
        """One more: what to give to `went`; empty: there are as many as may be, and this one is not counted."""
        address = address_of(peer)
        there = self._by_address.get(address, 0)
        if there >= self.most:
            if address not in self._refused:
                self._refused.add(address)
                text = (
                    "%s: refused, server.address_connections_max (%d) is reached; so are others from there from now on"
                )
                log.warning(text, peer, self.most)
            return ""
        self._by_address[address] = there + 1
        return address

    def went(self, address: str) -> None:
        """One less; empty: it was not counted."""
        there = self._by_address.get(address, 0)
        if there > 1:
            self._by_address[address] = there - 1
        elif there:
            del self._by_address[address]
        self._refused.discard(address)

    def __len__(self) -> int:
        """Addresses that have connections."""
        return len(self._by_address)
