"""The public keys of an issuer: a JWK set (RFC 7517) of RSA, P-256 and Ed25519 keys.

A key's type says which algorithm it checks, whatever a token asks for: an RSA key is never a secret of HMAC, and there are no keys for `none`.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from typing import Any, Final

import msgspec

RS256, ES256, EDDSA = "RS256", "ES256", "EdDSA"
ALGORITHMS: Final = (RS256, ES256, EDDSA)

KEYS_MAX: Final = 100
"""Of one set; large issuers have ten."""
SET_BYTES_MAX: Final = 256 * 1024

RSA_BITS_MIN: Final = 2048
"""RFC 7518 3.3."""
RSA_BITS_MAX: Final = 8192
"""Checking takes longer with the square of it; 8192 bits are 0.2 ms."""

_P256_BYTES: Final = 32
_ED25519_BYTES: Final = 32


class KeySetError(ValueError):
    """No key set that can be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Key:
    """One public key, and the algorithm that it is for."""

    name: str
    algorithm: str
    public: Any

    def verifies(self, signature: bytes, signed: bytes) -> bool:
        """Whether this key's owner signed it."""
        from cryptography.exceptions import InvalidSignature

        try:
            _verify(self, signature, signed)
        except InvalidSignature:
            return False
        return True


def _verify(key: Key, signature: bytes, signed: bytes) -> None:
    """Raises InvalidSignature."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec, padding, utils
    from cryptography.hazmat.primitives.hashes import SHA256

    if key.algorithm == RS256:
        key.public.verify(signature, signed, padding.PKCS1v15(), SHA256())
    elif key.algorithm == ES256:
        if len(signature) != 2 * _P256_BYTES:  # RFC 7518 3.4
            raise InvalidSignature
        numbers = [int.from_bytes(part, "big") for part in (signature[:_P256_BYTES], signature[_P256_BYTES:])]
        key.public.verify(utils.encode_dss_signature(*numbers), signed, ec.ECDSA(SHA256()))
    else:
        key.public.verify(signature, signed)


class KeySet:
    """What is known of an issuer's keys at one time."""

    def __init__(self, keys: list[Key]) -> None:
        self._keys = keys

    def find(self, name: str | None, algorithm: str) -> Key | None:
        """The key of this name, if it is for the algorithm. Without a name: the only one for it."""
        found = [key for key in self._keys if key.algorithm == algorithm and (name is None or key.name == name)]
        return found[0] if len(found) == 1 else None

    def __len__(self) -> int:
        return len(self._keys)


class _Jwk(msgspec.Struct):
    """The members that are read; RFC 7517 4 and RFC 7518 6."""

    kty: str
    kid: str = ""
    use: str = ""
    alg: str = ""
    crv: str = ""
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""


class _Jwks(msgspec.Struct):
    keys: list[_Jwk]


_decode: Final = msgspec.json.Decoder(_Jwks).decode


def read_key_set(data: bytes) -> KeySet:
    """Keys that are for something else (`use`, an unknown type or curve) are passed over. Raises `KeySetError`, also where none is left: a set
    without keys would lock everybody out."""
    if len(data) > SET_BYTES_MAX:
        raise KeySetError(f"a key set of {len(data)} bytes, at most {SET_BYTES_MAX} are read")
    try:
        found = _decode(data).keys
    except (msgspec.DecodeError, RecursionError) as error:
        raise KeySetError(f"no JWK set (RFC 7517): {error}") from error
    if len(found) > KEYS_MAX:
        raise KeySetError(f"{len(found)} keys, at most {KEYS_MAX} are read")
    keys = [key for key in map(_key_of, found) if key is not None]
    if not keys:
        raise KeySetError("it has no key for RS256, ES256 or EdDSA")
    names = [(key.name, key.algorithm) for key in keys]
    if len(set(names)) != len(names):
        raise KeySetError("two keys have the same kid")
    return KeySet(keys)


def _key_of(jwk: _Jwk) -> Key | None:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    algorithm = {("RSA", ""): RS256, ("EC", "P-256"): ES256, ("OKP", "Ed25519"): EDDSA}.get((jwk.kty, jwk.crv))
    if algorithm is None or jwk.use not in ("", "sig") or jwk.alg not in ("", algorithm):
        return None
    try:
        if algorithm == RS256:
            modulus = _number(jwk.n)
            if not RSA_BITS_MIN <= modulus.bit_length() <= RSA_BITS_MAX:
                raise KeySetError(
                    f"an RSA key of {modulus.bit_length()} bits: {RSA_BITS_MIN} to {RSA_BITS_MAX} are taken"
                )
            return Key(jwk.kid, algorithm, rsa.RSAPublicNumbers(_number(jwk.e), modulus).public_key())
        if algorithm == ES256:
            numbers = ec.EllipticCurvePublicNumbers(_number(jwk.x), _number(jwk.y), ec.SECP256R1())
            return Key(jwk.kid, algorithm, numbers.public_key())
        return Key(jwk.kid, algorithm, ed25519.Ed25519PublicKey.from_public_bytes(base64url(jwk.x)))
    except KeySetError:
        raise
    except ValueError as error:
        raise KeySetError(f"key {jwk.kid[:64]!r}: {error}") from error


def base64url(text: str) -> bytes:
    """RFC 7515 2: no padding, no other signs. Raises ValueError."""
    if any(sign in text for sign in "=+/"):  # b64decode takes both alphabets
        raise ValueError("base64url has no padding, and - and _ for + and / (RFC 7515 2)")
    return b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _number(text: str) -> int:
    return int.from_bytes(base64url(text), "big")
