"""One page of an HTTP server: what other processes show to whoever asks."""

from __future__ import annotations

import asyncio
import ssl
from typing import cast
from urllib.parse import urlsplit

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.dial.connector import connect, reason_of
from gantrymq.net.places import join_address


class _Answer(asyncio.Protocol):
    """Everything until the other side closes."""

    def __init__(self, request: bytes, bytes_max: int) -> None:
        self._request = request
        self._bytes_max = bytes_max
        self._transport: asyncio.Transport | None = None
        self.data = bytearray()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.data += data
        if len(self.data) > self._bytes_max and not self.ended.done():
            self.ended.set_exception(ValueError(f"over {self._bytes_max} bytes"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.ended.done():
            return
        if exc is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(exc)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def get_page(url: str, timeout_s: float, bytes_max: int) -> bytes:
    """Body of the answer to one HTTP/1.0 request: such an answer ends with the connection and is never chunked.

    Raises UNAVAILABLE, naming the page: it cannot be had in time, is longer than `bytes_max`, or has another status than 200.
    """
    try:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if secure else 80)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        request = f"GET {target} HTTP/1.0\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode()
        tls = ssl.create_default_context() if secure else None
        async with asyncio.timeout(timeout_s):
            status, _, body = await _ask(request, join_address(host, port), tls, bytes_max)
    except (OSError, ValueError) as error:
        raise GantryError(ErrorCode.UNAVAILABLE, f"{url} cannot be had: {reason_of(error)}") from None
    except GantryError as error:
        raise GantryError(ErrorCode.UNAVAILABLE, f"{url} cannot be had: {error.text}") from None
    if status != 200:
        raise GantryError(ErrorCode.UNAVAILABLE, f"{url} answered with status {status}")
    return body


async def post(
    url: str, headers: bytes, body: bytes, timeout_s: float, bytes_max: int, tls: ssl.SSLContext | None
) -> tuple[int, bytes]:
    """Status and body of the answer to one HTTP/1.0 POST; nothing is followed elsewhere. `headers`: whole lines; `tls`: for https.

    Raises UNAVAILABLE as `get_page`, also for a body of another length than its head says.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if tls is not None else 80)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        head = f"POST {target} HTTP/1.0\r\nHost: {parts.netloc}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n".encode()
        async with asyncio.timeout(timeout_s):
            address = join_address(parts.hostname or "", port)
            status, lines, found = await _ask(head + headers + b"\r\n" + body, address, tls, bytes_max)
        for line in lines:
            name, _, value = line.partition(b":")
            if name.lower() == b"transfer-encoding" or (
                name.lower() == b"content-length" and value.strip() != b"%d" % len(found)
            ):
                raise ValueError("its body is not what its head says")
    except (OSError, ValueError) as error:
        raise GantryError(ErrorCode.UNAVAILABLE, f"{url} cannot be had: {reason_of(error)}") from None
    except GantryError as error:
        raise GantryError(ErrorCode.UNAVAILABLE, f"{url} cannot be had: {error.text}") from None
    return status, found


async def _ask(
    request: bytes, address: str, tls: ssl.SSLContext | None, bytes_max: int
) -> tuple[int, list[bytes], bytes]:
    """Status, lines of the head, and body."""
    answer = await connect(lambda: _Answer(request, bytes_max), address, None, tls)
    try:
        await answer.ended
    finally:
        answer.close()
    head, mark, body = bytes(answer.data).partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if not mark or len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise ValueError("no HTTP answer")
    return int(words[1]), head.split(b"\r\n")[1:], body
