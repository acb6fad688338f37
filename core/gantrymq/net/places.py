"""Where a door listens, as one writes it: `tls://0.0.0.0:8883?client_cert=required`; and addresses of others, `HOST:PORT`.

A place is text, so that a list of them stands in a TOML array, in the environment and behind `--set`. Its scheme is the transport
below the door's protocol, its options are those of the scheme.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from gantrymq.model.errors import ErrorCode, GantryError

PLAIN, TLS, ANY, UNIX = "tcp", "tls", "any", "unix"
"""Without TLS; with it; both on one port, told apart by the first byte; a socket in the file system."""

CLIENT_CERT: Final = ("none", "optional", "required")

TLS_OPTIONS: Final = ("cert", "key", "client_ca", "crl", "client_cert")
"""Each as in section `tls`, for this place alone."""

GUEST: Final = "user"
"""Option of every scheme: the user that a client without a name is there."""

PSK_FILE: Final = "psk_file"
HINT: Final = "psk_hint"
IDENTITY_IS_USER: Final = "use_identity_as_username"
PSK_OPTIONS: Final = (PSK_FILE, HINT, IDENTITY_IS_USER)
"""Pre-shared keys instead of certificates, for one place; the names are Mosquitto's."""

OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    PLAIN: (GUEST,), TLS: (*TLS_OPTIONS, *PSK_OPTIONS, GUEST), ANY: (*TLS_OPTIONS, *PSK_OPTIONS, GUEST), UNIX: ("mode", GUEST),
}  # fmt: skip
"""Schemes, and what may be said of a place with each."""

HINT_BYTES_MAX: Final = 128
"""RFC 4279 5.3; OpenSSL takes twice as much."""

UNIX_PATH_BYTES_MAX: Final = 107
"""Linux, unix(7)."""


@dataclass(frozen=True, slots=True)
class Place:
    """One address, and how its connections begin. `host` of a Unix socket: its path, `port` 0."""

    host: str
    port: int
    scheme: str = PLAIN
    options: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.scheme == UNIX:
            return f"unix://{self.host}"
        return f"{self.scheme}://{join_address(self.host, self.port)}"

    @property
    def speaks_tls(self) -> bool:
        """Some of its connections, at least, have TLS."""
        return self.scheme in (TLS, ANY)

    @property
    def has_keys(self) -> bool:
        """Its TLS is with pre-shared keys."""
        return PSK_FILE in self.options

    @property
    def speaks_plain(self) -> bool:
        """Some of its connections, at least, have none."""
        return self.scheme != TLS


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`; raises ILLEGAL_ARGUMENT."""
    host, _, port = address.strip().rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"address {address!r}: allowed is HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """What `split_address` takes apart."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_place(text: str) -> Place:
    """Raises ValueError with what is wrong and what to write."""
    parts = urlsplit(text)
    if parts.scheme not in OPTIONS:
        raise ValueError(f"must begin with {', '.join(f'{scheme}://' for scheme in OPTIONS)}")
    if parts.scheme == UNIX:
        return _unix_place(parts.netloc, parts.path, parts.query)
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
        if key == GUEST and not value:
            raise ValueError("user needs a name")
        if key == "client_cert" and value not in CLIENT_CERT:
            raise ValueError(f"client_cert must be one of {', '.join(CLIENT_CERT)}")
    _check_keys(options)
    return Place(parts.hostname, port, parts.scheme, options)


def _check_keys(options: dict[str, str]) -> None:
    if PSK_FILE not in options:
        lost = [key for key in PSK_OPTIONS if key in options]
        if lost:
            raise ValueError(
                f"{lost[0]} goes with psk_file=FILE; for client certificates there is auth.certificate_user"
            )
        return
    if not options[PSK_FILE]:
        raise ValueError("psk_file needs the name of a file")
    both = [key for key in TLS_OPTIONS if key in options]
    if both:
        raise ValueError(f"a listener has psk_file or certificates ({both[0]}), not both: give it two ports")
    if len(options.get(HINT, "").encode()) > HINT_BYTES_MAX:
        raise ValueError(f"psk_hint has at most {HINT_BYTES_MAX} bytes")
    if options.get(IDENTITY_IS_USER, "true") not in ("true", "false"):
        raise ValueError(f"{IDENTITY_IS_USER} must be true or false")


def _unix_place(netloc: str, path: str, query: str) -> Place:
    options = dict(parse_qsl(query, keep_blank_values=True))
    if netloc or not path.startswith("/") or len(path.encode()) > UNIX_PATH_BYTES_MAX:
        raise ValueError(
            f"must be unix:///DIRECTORY/NAME, at most {UNIX_PATH_BYTES_MAX} bytes, such as unix:///run/gantry/mqtt.sock"
        )
    guest = options.pop(GUEST, None)
    try:
        mode = int(options.pop("mode", "660"), 8)
    except ValueError:
        mode = -1
    if options or guest == "" or not 0 <= mode <= 0o777:
        raise ValueError("unix has the options mode, three octal digits such as mode=660, and user, a name")
    return Place(path, 0, UNIX, {"mode": f"{mode:o}"} | ({GUEST: guest} if guest else {}))
