"""What of a command line can be told to be wrong before anything starts: addresses to bind and the place of the ready file."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path

from gantrymq.model.errors import ConfigError


def check_bind(host: str, insecure_bind: bool) -> None:
    """Other machines may reach us only when the user says that this is meant. Raises `ConfigError`."""
    if not insecure_bind and not is_loopback(host):
        raise ConfigError(
            f'server.host = "{host}": other machines could connect, and nobody is authenticated yet; use 127.0.0.1, '
            "or add --set server.insecure_bind=true if the network is trusted"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)} if host else set()
    except OSError as error:
        raise ConfigError(f'server.host = "{host}": {error.strerror or error}') from error
    return bool(found) and all(ip_address(str(address).partition("%")[0]).is_loopback for address in found)


def check_ready_file(given: str | None, data: Path) -> Path | None:
    """Where `--ready-file` is to appear; what an earlier start left there is removed by the server. It may be in the data directory, which the
    start makes. Raises `ConfigError`."""
    if given is None:
        return None
    path = Path(given)
    if path.is_dir():
        raise ConfigError(f"--ready-file {given}: it is a directory; a file is to be written")
    if not path.parent.is_dir() and path.parent.absolute() != data.absolute():
        raise ConfigError(f"--ready-file {given}: there is no directory {path.parent}")
    return path
