"""Whether an address is reachable from this machine alone, and what a door says that lets others in."""

from __future__ import annotations

import logging
import socket
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from gantrymq.net.places import join_address

Network = IPv4Network | IPv6Network


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`, which may be a Unix socket's path. Raises `OSError` for a name that cannot be resolved."""
    if host.startswith("/"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        pass
    found = {info[4][0] for info in socket.getaddrinfo(host, None)} if host else set()
    return bool(found) and all(ip_address(str(address).partition("%")[0]).is_loopback for address in found)


def warn_if_open(log: logging.Logger, door: str, address: tuple[str, int], setting: str) -> None:
    """A line at the start of a door whose `setting` lets in strangers who can reach it."""
    if not is_loopback(address[0]):
        log.warning("%s: every client that reaches %s:%d is let in unauthenticated (%s)", door, *address, setting)


def networks_of(text: str) -> tuple[Network, ...]:
    """The networks of `server.trusted_networks`. Raises ValueError."""
    return tuple([ip_network(part.strip()) for part in text.split(",") if part.strip()])


def is_trusted(peer: Any, own: Any, networks: tuple[Network, ...]) -> bool:
    """Whether a peer's socket address is this machine's (`own`: our end of the connection), or in one of the networks."""
    if not isinstance(peer, tuple) or not isinstance(own, tuple):
        return False
    if peer[0] == own[0]:
        return True
    address = ip_address(str(peer[0]).partition("%")[0])
    inner = getattr(address, "ipv4_mapped", None) or address
    return any(inner in network for network in networks)


def peer_name(address: Any) -> tuple[str, bool]:
    """(`host:port`, is it this machine) of a socket address; `unix` for a Unix socket."""
    if not isinstance(address, tuple):
        return "unix", True
    host, port = str(address[0]), address[1]
    if host.startswith("127.") or host == "::1":
        return join_address(host, port), True
    if ":" not in host:
        return f"{host}:{port}", False
    mapped = ip_address(host.partition("%")[0])
    inner = getattr(mapped, "ipv4_mapped", None)
    return f"[{host}]:{port}", bool(inner is not None and inner.is_loopback)
