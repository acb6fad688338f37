"""Who a peer with a client certificate is: the names that the certificate gives it, once a CA of ours has vouched for them."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

ATTRIBUTES: Final = {
    "commonName": "CN", "organizationalUnitName": "OU", "organizationName": "O", "localityName": "L",
    "stateOrProvinceName": "ST", "countryName": "C", "domainComponent": "DC", "userId": "UID", "serialNumber": "SERIALNUMBER",
}  # fmt: skip
"""Short names of RFC 4514 3, and the two that devices have."""

SPECIAL: Final = ',+"\\<>;='
"""Escaped in a value (RFC 4514 2.4), so that no value of an attribute reads as another attribute."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A verified client certificate."""

    subject: str
    """RFC 4514: the most specific first, such as `CN=sensor-1,O=Plant`."""
    common_name: str
    """The only CN; empty if there is none, or more than one."""
    dns: tuple[str, ...]
    email: tuple[str, ...]
    uri: tuple[str, ...]
    fingerprint: str
    """SHA-256 of the certificate, in hexadecimal."""


def is_listed(certificate: Certificate | None, names: Collection[str]) -> bool:
    """Whether a list of subjects and `sha256:FINGERPRINT`s has it."""
    return certificate is not None and (certificate.subject in names or f"sha256:{certificate.fingerprint}" in names)


def certificate_of(connection: Any) -> Certificate | None:
    """The verified certificate of an `ssl.SSLObject`'s peer; None: it showed none, or none was asked for."""
    if connection is None:
        return None
    der = connection.getpeercert(binary_form=True)
    found: dict[str, Any] | None = connection.getpeercert()
    if not der or not found:  # an empty dictionary: it was not verified
        return None
    parts = [pair for group in found.get("subject", ()) for pair in group]
    names = [value for key, value in parts if key == "commonName"]
    others: dict[str, list[str]] = {}
    for kind, value in found.get("subjectAltName", ()):
        others.setdefault(kind, []).append(value)
    return Certificate(
        subject=",".join([f"{ATTRIBUTES.get(key, key)}={_escaped(value)}" for key, value in reversed(parts)]),
        common_name=names[0] if len(names) == 1 else "",
        dns=tuple(others.get("DNS", ())),
        email=tuple(others.get("email", ())),
        uri=tuple(others.get("URI", ())),
        fingerprint=hashlib.sha256(der).hexdigest(),
    )


def _escaped(value: str) -> str:
    text = "".join([f"\\{letter}" if letter in SPECIAL else letter for letter in value])
    if text[:1] in (" ", "#"):
        text = "\\" + text
    if text.endswith(" ") and not text.endswith("\\ "):
        text = text[:-1] + "\\ "
    return text.replace("\0", "\\00")


def reason_of(error: Exception) -> str:
    """Why a handshake failed, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return str(error) or type(error).__name__
