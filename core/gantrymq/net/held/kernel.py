"""What the kernel holds of a connection: it takes megabytes from us at once, and the peer takes them from it a little at a time."""

from __future__ import annotations

import asyncio
import struct
from fcntl import ioctl
from termios import TIOCOUTQ


def unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Bytes that the peer has not acknowledged: the transport's and the kernel's. The kernel's count matters: its send
    buffer of some megabytes takes more from us only in large steps, though a slow peer takes bytes all the time."""
    waiting = transport.get_write_buffer_size()
    peer_socket = transport.get_extra_info("socket")
    if peer_socket is not None:
        try:
            waiting += struct.unpack("i", ioctl(peer_socket.fileno(), TIOCOUTQ, b"\0\0\0\0"))[0]
        except (OSError, ValueError):  # closed meanwhile, or not a TCP socket
            pass
    return waiting
