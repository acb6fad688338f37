"""Whether a token is an issuer's, for us, and still good (RFC 7519 7.2, RFC 8725): its claims, or why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gantrymq.auth.tokens.key_sets import ALGORITHMS, KeySet, base64url

TOKEN_CHARS_MAX: Final = 8192
"""Longer ones are refused unread; an AMQP client's login has 4,096 bytes at most, an HTTP header line 8 KiB."""

TYPES: Final = ("", "jwt", "at+jwt", "application/at+jwt")
"""RFC 7519 5.1, RFC 9068 2.1: what a token may call itself; others (a logout token, a DPoP proof) are signed with the same keys for other things."""

SECONDS_MAX: Final = 253_402_300_800
"""The year 10000: what is beyond is no time."""

_decode: Final = msgspec.json.Decoder().decode


class TokenError(ValueError):
    """The text says why; it holds nothing of the token but names."""


class UnknownKeyError(TokenError):
    """Its key is not known here: it may be newer than what was read last."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a token must say."""

    issuer: str
    audience: str
    leeway_s: float = 0.0
    """Clocks differ so much."""


def looks_like_one(text: str) -> bool:
    """Three parts, the first of which is a JSON object in base64url; no password hash is asked for such a thing."""
    return text.startswith("eyJ") and text.count(".") == 2


def verify(token: str, keys: KeySet, expected: Expected, now_s: float) -> dict[str, Any]:
    """The claims. Raises `TokenError`."""
    if len(token) > TOKEN_CHARS_MAX:
        raise TokenError(f"a token of {len(token)} characters, at most {TOKEN_CHARS_MAX} are read")
    head, payload, signature = _parts(token)
    header = _object(head, "header")
    algorithm, name = header.get("alg"), header.get("kid")
    # The algorithms of this list and no others: not none, and none with a shared secret (RFC 8725 3.1).
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise TokenError(f"algorithm {str(algorithm)[:16]!r}: {', '.join(ALGORITHMS)} are taken")
    if "crit" in header:
        raise TokenError("it has extensions that must be understood (crit), and none is")
    if str(header.get("typ", "")).lower() not in TYPES:
        raise TokenError(f"it is of type {str(header['typ'])[:32]!r}, no access token")
    if name is not None and not isinstance(name, str):
        raise TokenError("kid is no text")
    # By name from the known set alone: nothing that the token carries or points at (jwk, jku, x5c, x5u) is a key.
    key = keys.find(name, algorithm)
    if key is None:
        raise UnknownKeyError(f"no key {str(name)[:64]!r} for {algorithm} is known")
    if not key.verifies(_bytes(signature, "signature"), f"{head}.{payload}".encode()):
        raise TokenError("its signature is wrong")
    claims = _object(payload, "payload")
    _check_times(claims, expected.leeway_s, now_s)
    if claims.get("iss") != expected.issuer:
        raise TokenError(f"its issuer is {str(claims.get('iss'))[:128]!r}, not {expected.issuer!r} (auth.jwt_issuer)")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if expected.audience not in [each for each in audiences if isinstance(each, str)]:
        raise TokenError(f"it is not for {expected.audience!r} (auth.jwt_audience)")
    return claims


def _parts(token: str) -> tuple[str, str, str]:
    parts = token.split(".")
    if len(parts) != 3 or not token.isascii():
        raise TokenError("it is no signed token, which has three parts in base64url with dots between them")
    return parts[0], parts[1], parts[2]


def _bytes(text: str, what: str) -> bytes:
    try:
        return base64url(text)
    except ValueError as error:
        raise TokenError(f"its {what} is no base64url") from error


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        found = _decode(_bytes(text, what))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise TokenError(f"its {what} is no JSON") from error
    if not isinstance(found, dict):
        raise TokenError(f"its {what} is no object")
    return found


def _check_times(claims: dict[str, Any], leeway_s: float, now_s: float) -> None:
    expires_s = time_of(claims, "exp")
    if expires_s is None:
        raise TokenError("it has no exp: a token that is good for ever is not taken")
    if now_s >= expires_s + leeway_s:
        raise TokenError("it has expired")
    begins_s = time_of(claims, "nbf")
    if begins_s is not None and now_s < begins_s - leeway_s:
        raise TokenError("it is not good yet (nbf)")


def time_of(claims: dict[str, Any], name: str) -> float | None:
    """Seconds since 1970, a number and nothing that could be taken for one. Raises `TokenError`."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < SECONDS_MAX:
        raise TokenError(f"{name} is no time")
    return float(value)
