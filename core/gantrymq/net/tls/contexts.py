"""TLS contexts from files: read and checked at the start, read again when they change.

A change is all or nothing: a file that cannot be read, or a key that does not fit, leaves the last good context in place. A new context
is for connections that begin; those that are open keep theirs.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, Protocol

from gantrymq.model.settings import setting
from gantrymq.net.places import TLS_OPTIONS, Place

log = logging.getLogger(__name__)

CHECK_EVERY_S: Final = 5.0
"""How often files are looked at for a change: sooner than anybody waits for a renewed certificate, a few `stat` calls."""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Section `tls`."""

    cert: str = setting("", "PEM file with the server's certificate and those between it and its CA")
    key: str = setting("", "PEM file with its private key; empty: it is in the file of cert")
    key_password_file: str = setting("", "file with the password of an encrypted key")
    client_ca: str = setting("", "PEM file with the CAs whose client certificates are accepted")
    crl: str = setting(
        "", "PEM file with revocation lists of these CAs; a client certificate on one of them is refused"
    )
    client_cert: Literal["none", "optional", "required"] = setting(
        "none", "whether clients show a certificate; what they show must be of a CA of client_ca"
    )
    cluster_ca: str = setting(
        "",
        "PEM file with the CAs of this cluster's processes: connections to nameservers and brokers have TLS, to certificates of these for the host that is connected to; empty: they have none",
    )
    cluster_cert: str = setting(
        "", "PEM file with the certificate that is shown there, and those between it and its CA; empty: none"
    )
    cluster_cert_key: str = setting("", "PEM file with its private key; empty: it is in the file of cluster_cert")
    handshake_ms: int = setting(10_000, "time for a handshake, from accepting the connection", least=100, most=600_000)
    handshakes_max: int = setting(
        1_000, "handshakes under way at one port; more wait to be accepted", least=1, most=100_000
    )

    def of(self, place: Place) -> TlsConfig:
        """As it is for one place, whose options win."""
        if place.has_keys:
            return replace(self, cert="", key="", client_ca="", crl="", client_cert="none")
        own = {key: value for key, value in place.options.items() if key in TLS_OPTIONS}
        return replace(self, **own)  # type: ignore[arg-type]  # checked by `parse_place`


class TlsError(Exception):
    """A context cannot be made; the text is one line for the user."""


class Gate(Protocol):
    """Who is told of handshakes that say who somebody is (`keyed.py`)."""

    def wait(self, peer: str, go: Callable[[str], None]) -> None:
        """`go("")` once a handshake of this peer may begin, `go(why)` if it may not."""

    def failed(self, peer: str, identity: str) -> None:
        """It was not who it said."""


class Context:
    """The context of one place, made anew as its files change."""

    def __init__(self, config: TlsConfig, protocols: Iterable[str] = ()) -> None:
        """`protocols`: what the door speaks, by its ALPN names (RFC 7301). Raises `TlsError`."""
        self.config = config
        self._protocols = list(protocols)
        self._seen = self._marks()
        self.current = self._make()
        self.gate: Gate | None = None
        """Of a place where a handshake says who somebody is."""

    def for_connection(self) -> ssl.SSLContext:
        """The context of a connection that begins now."""
        return self.current

    def reload(self) -> bool:
        """Read the files again; False: something is wrong with them, the old context stays, and it was logged."""
        seen = self._marks()
        try:
            self.current = self._make()
        except TlsError as error:
            log.error("tls: %s; connections go on with what was there before", error)
            return False
        finally:
            self._seen = seen
        log.info("tls: %s was read again", ", ".join(self._files()[:1]))
        return True

    def reload_if_changed(self) -> None:
        """Call it now and then."""
        if self._marks() != self._seen:
            self.reload()

    def _files(self) -> list[str]:
        config = self.config
        return [name for name in (config.cert, config.key, config.client_ca, config.crl) if name]

    def _marks(self) -> list[tuple[int, int, int] | None]:
        marks: list[tuple[int, int, int] | None] = []
        for name in self._files():
            try:
                found = os.stat(name)
                marks.append((found.st_ino, found.st_mtime_ns, found.st_size))
            except OSError:
                marks.append(None)
        return marks

    def _make(self) -> ssl.SSLContext:
        config = self.config
        if not config.cert:
            raise TlsError(
                "tls.cert is not given: a place with TLS needs a certificate (gantry cert dev makes one to try)"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        try:
            context.load_cert_chain(config.cert, config.key or None, self._password)
        except (OSError, ValueError) as error:
            raise TlsError(_said("tls.cert", config.cert, config.key, error)) from error
        if config.client_cert != "none":
            self._trust(context)
        if self._protocols:
            context.set_alpn_protocols(self._protocols)
        return context

    def _trust(self, context: ssl.SSLContext) -> None:
        config = self.config
        if not config.client_ca:
            raise TlsError(
                f"tls.client_ca is not given, but client_cert = {config.client_cert}: whose certificates are good?"
            )
        try:
            context.load_verify_locations(config.client_ca)
        except (OSError, ValueError) as error:
            raise TlsError(_said("tls.client_ca", config.client_ca, "", error)) from error
        if config.crl:
            try:
                context.load_verify_locations(config.crl)
            except (OSError, ValueError) as error:
                raise TlsError(_said("tls.crl", config.crl, "", error)) from error
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        context.verify_mode = ssl.CERT_REQUIRED if config.client_cert == "required" else ssl.CERT_OPTIONAL

    def _password(self) -> str:
        """Asked for where the key is encrypted, and only then: without it OpenSSL would ask at the terminal."""
        if not self.config.key_password_file:
            raise ValueError("the key is encrypted; tls.key_password_file names the file with its password")
        return Path(self.config.key_password_file).read_text(encoding="utf-8").rstrip("\r\n")


class Outgoing(Context):
    """What this process trusts and shows when it connects to another one of its cluster."""

    def __init__(self, config: TlsConfig) -> None:
        """Raises `TlsError`."""
        super().__init__(config)

    def _files(self) -> list[str]:
        config = self.config
        return [name for name in (config.cluster_ca, config.cluster_cert, config.cluster_cert_key) if name]

    def _make(self) -> ssl.SSLContext:
        config = self.config
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which checks certificate and host
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(config.cluster_ca)
        except (OSError, ValueError) as error:
            raise TlsError(_said("tls.cluster_ca", config.cluster_ca, "", error)) from error
        if config.cluster_cert:
            try:
                context.load_cert_chain(config.cluster_cert, config.cluster_cert_key or None, self._password)
            except (OSError, ValueError) as error:
                raise TlsError(
                    _said("tls.cluster_cert", config.cluster_cert, config.cluster_cert_key, error)
                ) from error
        return context


def current_of(outgoing: Outgoing | None) -> ssl.SSLContext | None:
    """The context of a connection that begins now."""
    return None if outgoing is None else outgoing.current


def outgoing_of(config: TlsConfig) -> Outgoing | None:
    """None: connections to processes of the cluster have no TLS. Raises `TlsError`."""
    if config.cluster_ca:
        return Outgoing(config)
    if config.cluster_cert or config.cluster_cert_key:
        raise TlsError(
            "tls.cluster_ca is not given, but tls.cluster_cert is: whose certificates are good on the other side?"
        )
    return None


def _said(setting: str, file: str, second: str, error: Exception) -> str:
    names = f'{setting} = "{file}"' + (f', key "{second}"' if second else "")
    if isinstance(error, ssl.SSLError):
        return f"{names}: {(error.reason or 'not PEM').lower().replace('_', ' ')}"
    if isinstance(error, OSError):
        return f"{names}: {error.strerror or error}"
    return f"{names}: {error}"
