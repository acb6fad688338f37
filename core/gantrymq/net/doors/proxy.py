"""PROXY protocol, versions 1 and 2 (HAProxy's proxy-protocol.txt): whom a proxy speaks for, in front of the connection's own bytes."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

SIGNATURE_1: Final = b"PROXY "
SIGNATURE_2: Final = b"\r\n\r\n\x00\r\nQUIT\n"
LINE_BYTES_MAX: Final = 107
"""Of version 1, with its end of line."""
HEADER_BYTES_MAX: Final = 16 + 2048
"""Of version 2: addresses and what proxies add (names and certificates of TLS); the length field would allow 64 KiB."""

Speaks = tuple[str, int] | None
"""Address and port of the client; None: the proxy speaks for itself (a health check), or for somebody without an address."""


class ProxyError(Exception):
    """A header that is none."""


def parse(data: bytes) -> tuple[Speaks, int] | None:
    """(client, length of the header); None while it is not whole. Raises ProxyError. `(None, 0)`: the connection begins without one."""
    if data[: len(SIGNATURE_2)] == SIGNATURE_2[: len(data)]:
        return _parse_2(data) if len(data) >= 16 else None
    if data[: len(SIGNATURE_1)] == SIGNATURE_1[: len(data)]:
        return _parse_1(data)
    return None, 0


def _parse_1(data: bytes) -> tuple[Speaks, int] | None:
    end = data.find(b"\r\n", 0, LINE_BYTES_MAX)
    if end < 0:
        if len(data) >= LINE_BYTES_MAX:
            raise ProxyError(f"a PROXY line of over {LINE_BYTES_MAX} bytes")
        return None
    words = data[:end].decode("latin-1").split(" ")
    if words[1:2] == ["UNKNOWN"]:
        return None, end + 2
    version = {"TCP4": 4, "TCP6": 6}.get(words[1])
    try:
        source, port = ip_address(words[2]), int(words[4])
        good = len(words) == 6 and source.version == version and 0 <= port < 65_536
    except (ValueError, IndexError):
        good = False
    if not good:
        raise ProxyError("a PROXY line without protocol, addresses and ports")
    return (str(source), port), end + 2


def _parse_2(data: bytes) -> tuple[Speaks, int] | None:
    version, command = data[12] >> 4, data[12] & 15
    length = int.from_bytes(data[14:16], "big")
    if version != 2 or command > 1:
        raise ProxyError(f"PROXY header of version {version}, command {command}")
    if 16 + length > HEADER_BYTES_MAX:
        raise ProxyError(f"a PROXY header of {16 + length} bytes")
    if len(data) < 16 + length:
        return None
    family, body = data[13] >> 4, data[16 : 16 + length]
    size = {1: 4, 2: 16}.get(family, 0)
    if command == 0 or not size:
        return None, 16 + length
    if length < 2 * size + 4:
        raise ProxyError("a PROXY header too short for its addresses")
    port = int.from_bytes(body[2 * size : 2 * size + 2], "big")
    return (str(ip_address(body[:size])), port), 16 + length
