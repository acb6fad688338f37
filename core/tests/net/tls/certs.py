"""Certificates for tests, made as `gantry cert dev` makes them."""

from __future__ import annotations

import ssl
from pathlib import Path

from gantrymq.cli.security.certificates import Authority


def make_certificates(directory: Path, *clients: str) -> Path:
    """ca, server (localhost, 127.0.0.1), and a client certificate each."""
    directory.mkdir(exist_ok=True)
    authority = Authority(directory, 2)
    authority.issue("server", "localhost", ["localhost", "127.0.0.1"])
    for client in clients:
        authority.issue(client, client, [])
    return directory


def client_context(directory: Path, client: str = "") -> ssl.SSLContext:
    """What a client that trusts the CA uses, with its certificate if one is named."""
    context = ssl.create_default_context(cafile=directory / "ca.pem")
    if client:
        context.load_cert_chain(directory / f"{client}.pem", directory / f"{client}.key")
    return context
