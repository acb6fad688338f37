"""Which addresses webhooks may go to. Checked on the resolved address when dialling, never on the name alone.

`ipaddress`'s own `is_global` lets NAT64, 6to4 and multicast pass, so the table is spelled out; what is embedded in an
IPv6 address is checked as the IPv4 address that it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LOOPBACK: Final[tuple[Network, ...]] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))

DENIED: Final[tuple[Network, ...]] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local, cloud metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # IETF protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
        "::/128",
        "::1/128",  # loopback
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # local NAT64
        "100::/64",  # discard
        "2001::/23",  # IETF protocol assignments, Teredo
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
        "5f00::/16",  # SRv6
        "fc00::/7",  # unique local
        "fe80::/10",  # link-local
        "fec0::/10",  # site-local
        "ff00::/8",  # multicast
    )
)


@dataclass(frozen=True, slots=True)
class SinkGuard:
    """The rule of one door. `loopback`: loopback sinks are allowed; `http`: sinks without TLS are; `allowed`: further networks."""

    loopback: bool
    http: bool
    allowed: tuple[Network, ...] = ()

    def permits(self, text: str) -> bool:
        """Whether an address in its text form may be dialled; what cannot be read may not."""
        try:
            address: Address = ip_address(text.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in self.allowed):
            return True
        if self.loopback and any(address in network for network in LOOPBACK):
            return True
        if isinstance(address, IPv6Address) and int(address) < 1 << 32:
            return False  # IPv4-compatible (RFC 4291 2.5.5.1), long deprecated
        return not any(address in network for network in DENIED)


def parse_networks(text: str) -> tuple[Network, ...]:
    """Comma-separated CIDR list. Raises ValueError with the part that is none."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())
