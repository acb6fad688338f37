"""An issuer of tokens, honest and otherwise."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64encode
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ISSUER, AUDIENCE, NOW_S = "https://issuer.example", "gantry", 1_800_000_000


def b64(data: bytes | dict[str, Any] | int) -> str:
    if isinstance(data, int):
        data = data.to_bytes((data.bit_length() + 7) // 8, "big")
    elif isinstance(data, dict):
        data = json.dumps(data).encode()
    return urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    """Three keys, `rsa`, `ec` and `ed`."""

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(65537, 2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())
        self.ed = ed25519.Ed25519PrivateKey.generate()

    def jwks(self, *others: dict[str, Any]) -> bytes:
        numbers, point = self.rsa.public_key().public_numbers(), self.ec.public_key().public_numbers()
        raw = self.ed.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        keys = [
            {"kty": "RSA", "kid": "rsa", "use": "sig", "alg": "RS256", "n": b64(numbers.n), "e": b64(numbers.e)},
            {"kty": "EC", "kid": "ec", "crv": "P-256", "x": b64(point.x.to_bytes(32, "big")), "y": b64(point.y.to_bytes(32, "big"))},
            {"kty": "OKP", "kid": "ed", "crv": "Ed25519", "x": b64(raw)},
        ]  # fmt: skip
        return json.dumps({"keys": [*keys, *others]}).encode()

    def rsa_public(self) -> bytes:
        return self.rsa.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def sign(self, algorithm: str, signed: bytes) -> bytes:
        if algorithm == "RS256":
            return self.rsa.sign(signed, padding.PKCS1v15(), SHA256())
        if algorithm == "ES256":
            r, s = utils.decode_dss_signature(self.ec.sign(signed, ec.ECDSA(SHA256())))
            return r.to_bytes(32, "big") + s.to_bytes(32, "big")
        if algorithm == "EdDSA":
            return self.ed.sign(signed)
        if algorithm == "HS256":  # with what everybody knows
            return hmac.digest(self.rsa_public(), signed, hashlib.sha256)
        return b""

    def token(self, algorithm: str = "EdDSA", header: dict[str, Any] | None = None, **claims: Any) -> str:
        """`header`, `claims`: instead of what an honest token has; None: without it."""
        names = {"RS256": "rsa", "ES256": "ec", "EdDSA": "ed", "HS256": "rsa"}
        head = {"alg": algorithm, "typ": "JWT", "kid": names.get(algorithm, "rsa"), **(header or {})}
        payload = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW_S + 600, **claims}
        parts = [b64({name: value for name, value in each.items() if value is not None}) for each in (head, payload)]
        signed = ".".join(parts)
        return f"{signed}.{b64(self.sign(algorithm, signed.encode()))}"
