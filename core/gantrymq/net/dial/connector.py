"""Connections to others, made in one way: address, TLS, time-out, and failures that name the address, why it failed, and what to do.

What is said on a connection is its protocol's business, and whoever asked for it closes it. Not made here: those of libraries that own their
sockets (aiormq in the AMQP shovel; http.client and urllib where `gantry amqp` or a thread asks once and may block), and datagrams.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final, TypeVar

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.places import split_address
from gantrymq.net.tls.identity import reason_of as tls_reason

P = TypeVar("P", bound=asyncio.BaseProtocol)

CONNECT_S: Final = 3.0
"""As the Java client's: a host that is there answers within milliseconds, one that drops what it gets never does."""


def reason_of(error: OSError | ValueError) -> str:
    """For people: asyncio's own texts repeat the address as a tuple."""
    if isinstance(error, ssl.SSLError):
        return "it speaks no TLS" if error.reason == "WRONG_VERSION_NUMBER" else tls_reason(error)
    number = (isinstance(error, OSError) and error.errno) or 0  # below 0: the resolver's own
    if number > 0:
        return os.strerror(number)
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def unreachable(address: str, error: OSError | ValueError, remedy: str = "") -> GantryError:
    """UNAVAILABLE; `remedy`: what whoever named this address can do."""
    text = f"{address} cannot be reached: {reason_of(error)}"
    return GantryError(ErrorCode.UNAVAILABLE, f"{text}; {remedy}" if remedy else text)


async def connect(
    make: Callable[[], P],
    address: str,
    timeout_s: float | None = CONNECT_S,
    tls: ssl.SSLContext | None = None,
    *,
    name: str = "",
    remedy: str = "",
) -> P:
    """The protocol of a new connection, with TLS if `tls` is given; `name`: what the certificate must be for, if it is not the host of `address`.

    `timeout_s` counts for name look-up, connection and handshake together; None: the caller has a limit of its own. Cancelled, it leaves no
    connection. Raises UNAVAILABLE, or ILLEGAL_ARGUMENT for an address that is none.
    """
    host, port = split_address(address)
    try:
        async with asyncio.timeout(timeout_s):
            _, protocol = await asyncio.get_running_loop().create_connection(
                make, host, port, ssl=tls, server_hostname=(name or host) if tls is not None else None
            )
    except (
        OSError,
        UnicodeError,
    ) as error:  # TimeoutError is an OSError; a host that is no name of the DNS is the other
        raise unreachable(address, error, remedy) from None
    return protocol


def connect_blocking(address: str, timeout_s: float = CONNECT_S, tls: ssl.SSLContext | None = None) -> socket.socket:
    """The same without a loop; the socket keeps the time-out. Raises as `connect`."""
    host, port = split_address(address)
    try:
        plain = socket.create_connection((host, port), timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio sets it by itself
            return plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise
    except (OSError, UnicodeError) as error:
        raise unreachable(address, error) from None
