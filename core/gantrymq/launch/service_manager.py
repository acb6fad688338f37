"""What a service manager is told about this process: systemd's notification protocol (sd_notify(3)), one datagram a line."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from typing import Final

log = logging.getLogger(__name__)

TELL_READY: Final = "READY=1"
TELL_STOPPING: Final = "STOPPING=1"


def notify(environment: Mapping[str, str], state: str) -> None:
    """Tell the manager that started us, if one did and wants to know (`NOTIFY_SOCKET`). Never raises: serving goes on without it."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # a name without a file
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.connect(address)
            manager.sendall(state.encode())
    except OSError as error:
        log.warning("the service manager at NOTIFY_SOCKET cannot be told %s: %s", state, error.strerror or error)
