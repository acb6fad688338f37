"""Where a door listens, as one writes it: `tls://0.0.0.0:8883?client_cert=required`.

A place is text, so that a list of them stands in a TOML array, in the environment and behind `--set`. Its scheme is the transport
below the door's protocol, its options are those of the scheme.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlsplit

PLAIN, TLS, ANY = "tcp", "tls", "any"
"""Without TLS; with it; both on one port, told apart by the first byte."""

CLIENT_CERT: Final = ("none", "optional", "required")

TLS_OPTIONS: Final = ("cert", "key", "client_ca", "crl", "client_cert")
"""Each as in section `tls`, for this place alone."""

OPTIONS: Final[dict[str, tuple[str, ...]]] = {PLAIN: (), TLS: TLS_OPTIONS, ANY: TLS_OPTIONS}
"""Schemes, and what may be said of a place with each."""


@dataclass(frozen=True, slots=True)
class Place:
    """One address, and how its connections begin."""

    host: str
    port: int
    scheme: str = PLAIN
    options: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def speaks_tls(self) -> bool:
        """Some of its connections, at least, have TLS."""
        return self.scheme != PLAIN

    @property
    def speaks_plain(self) -> bool:
        """Some of its connections, at least, have none."""
        return self.scheme != TLS


def parse_place(text: str) -> Place:
    """Raises ValueError with what is wrong and what to write."""
    parts = urlsplit(text)
    if parts.scheme not in OPTIONS:
        raise ValueError(f"must begin with {', '.join(f'{scheme}://' for scheme in OPTIONS)}")
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{error}; write {parts.scheme}://0.0.0.0:8883") from error
    if not parts.hostname or port is None or parts.path or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"must be SCHEME://HOST:PORT, such as {parts.scheme}://0.0.0.0:8883")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) != len(pairs):
        raise ValueError("an option stands there twice")
    for key, value in pairs:
        if key not in OPTIONS[parts.scheme]:
            allowed = ", ".join(OPTIONS[parts.scheme]) or "none"
            raise ValueError(f"{parts.scheme} has no option {key}; it has {allowed}")
        if key == "client_cert" and value not in CLIENT_CERT:
            raise ValueError(f"client_cert must be one of {', '.join(CLIENT_CERT)}")
    return Place(parts.hostname, port, parts.scheme, options)
