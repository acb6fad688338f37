"""Where the nameservers are: a list, NAMESRV_ADDR, or an HTTP page that names them (RocketMQ's TopAddressing).

The page is asked for when the client first needs a nameserver and again every two minutes; while it cannot be had the last list stays.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlsplit

from gantrymq.client.connecting.link import split_address
from gantrymq.model.errors import ErrorCode, GantryError

DEFAULT_NAMESERVER: Final = "127.0.0.1:9876"
DISCOVERY_S: Final = 120.0
"""RocketMQ's clients ask every two minutes."""
DISCOVERY_TIMEOUT_S: Final = 3.0
PAGE_BYTES_MAX: Final = 64 * 1024
"""The page holds a few addresses: more is something else."""


def parse_nameservers(text: str) -> list[str]:
    """Addresses of a `;`-joined list; raises ILLEGAL_ARGUMENT naming the bad one."""
    addresses = [address.strip() for address in text.replace(",", ";").split(";") if address.strip()]
    if not addresses:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "no nameserver: allowed is HOST:PORT, several joined by ;")
    for address in addresses:
        split_address(address)
    return addresses


def is_page(text: str) -> bool:
    """Whether `text` is the address of a page rather than of nameservers."""
    return text.strip().startswith(("http://", "https://"))


async def fetch_nameservers(url: str) -> list[str]:
    """Addresses that the page at `url` names. Raises UNAVAILABLE or ILLEGAL_ARGUMENT, naming the page."""
    try:
        async with asyncio.timeout(DISCOVERY_TIMEOUT_S):
            status, page = await _get(url)
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        text = f"{url} cannot be had: {str(error) or type(error).__name__}"
        raise GantryError(ErrorCode.UNAVAILABLE, text) from None
    if status != 200:
        raise GantryError(ErrorCode.UNAVAILABLE, f"{url} answered with status {status}")
    try:
        return parse_nameservers(page.decode("utf-8", "replace").strip().replace("\n", ";"))
    except GantryError as error:
        raise GantryError(error.code, f"{url}: {error.text}") from None


async def _get(url: str) -> tuple[int, bytes]:
    """Status and body of one HTTP/1.0 request: such an answer ends with the connection and is never chunked."""
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    reader, writer = await asyncio.open_connection(host, parts.port or (443 if secure else 80), ssl=secure or None)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        writer.write(f"GET {target} HTTP/1.0\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while len(answer) <= PAGE_BYTES_MAX and (more := await reader.read(PAGE_BYTES_MAX)):
            answer += more
    finally:
        writer.close()
    if len(answer) > PAGE_BYTES_MAX:
        raise ValueError(f"over {PAGE_BYTES_MAX} bytes")
    head, mark, body = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if not mark or len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise ValueError("no HTTP answer")
    return int(words[1]), body
