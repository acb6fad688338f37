"""Tokens that are good, and every way that is known of making one that is not (RFC 8725, advisory classes of JWT libraries)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gantrymq.auth.tokens.key_sets import SET_BYTES_MAX, KeySet, KeySetError, read_key_set
from gantrymq.auth.tokens.verify import TOKEN_CHARS_MAX, Expected, TokenError, UnknownKeyError, verify
from tests.auth.tokens.issuer import AUDIENCE, ISSUER, NOW_S, Issuer, b64

US = Issuer()
THEM = Issuer()
KEYS = read_key_set(US.jwks())
EXPECTED = Expected(ISSUER, AUDIENCE, 5.0)


def check(token: str, keys: KeySet = KEYS, now_s: float = NOW_S) -> dict[str, Any]:
    return verify(token, keys, EXPECTED, now_s)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_good_ones(algorithm: str) -> None:
    assert check(US.token(algorithm))["sub"] == "alice"
    assert check(US.token(algorithm, {"kid": None}))["sub"] == "alice"  # the only key for it
    assert check(US.token(algorithm, {"typ": "at+jwt"}, aud=["other", AUDIENCE], nbf=NOW_S, iat=NOW_S - 1.5))
    with pytest.raises(TokenError, match="signature"):
        check(THEM.token(algorithm))


def tampered(token: str) -> str:
    head, _, signature = token.split(".")
    return f"{head}.{b64({'iss': ISSUER, 'aud': AUDIENCE, 'sub': 'root', 'exp': NOW_S + 600})}.{signature}"


RAW = {"iss": ISSUER, "aud": AUDIENCE, "sub": "root", "exp": NOW_S + 600}
ATTACKS = {
    "alg none": (US.token("none"), "algorithm 'none'"),
    "alg None in capitals": (US.token("none", {"alg": "NoNe"}), "algorithm 'NoNe'"),
    "no alg": (US.token("none", {"alg": None}), "algorithm"),
    "alg a list": (US.token("none", {"alg": ["RS256"]}), "algorithm"),
    "HS256 with the public key as its secret": (US.token("HS256"), "algorithm 'HS256'"),
    "an RSA key named for ES256": (US.token("ES256", {"kid": "rsa"}), "no key 'rsa' for ES256"),
    "an EC signature named RS256": (US.token("ES256", {"alg": "RS256", "kid": "rsa"}), "signature"),
    "an empty signature": (US.token("RS256").rpartition(".")[0] + ".", "signature"),
    "no signature part": (US.token("RS256").rpartition(".")[0], "three parts"),
    "five parts, encrypted": ("a.b.c.d.e", "three parts"),
    "other claims under the signature": (tampered(US.token("RS256")), "signature"),
    "kid with a path": (US.token("RS256", {"kid": "../../dev/null"}), "no key"),
    "kid with a query": (US.token("RS256", {"kid": "x' OR '1'='1"}), "no key"),
    "kid a number": (US.token("RS256", {"kid": 1}), "kid is no text"),
    "a key of its own in the header": (THEM.token("EdDSA", {"jwk": json.loads(THEM.jwks())["keys"][2]}), "signature"),
    "a URL of keys in the header": (THEM.token("EdDSA", {"jku": "https://evil.example/keys"}), "signature"),
    "a certificate of its own": (THEM.token("RS256", {"x5c": ["MIIB"], "x5u": "https://evil.example"}), "signature"),
    "critical extensions": (US.token("RS256", {"crit": ["b64"], "b64": False}), "crit"),
    "a logout token": (US.token("RS256", {"typ": "logout+jwt"}), "type"),
    "expired": (US.token(exp=NOW_S - 6), "expired"),
    "no exp": (US.token(exp=None), "no exp"),
    "exp a text": (US.token(exp=str(NOW_S + 600)), "exp is no time"),
    "exp true": (US.token(exp=True), "exp is no time"),
    "exp for ever": (US.token(exp=1e300), "exp is no time"),
    "exp before 1970": (US.token(exp=-1), "exp is no time"),
    "not yet": (US.token(nbf=NOW_S + 60), "not good yet"),
    "nbf a text": (US.token(nbf="now"), "nbf is no time"),
    "another issuer": (US.token(iss="https://issuer.example/"), "issuer"),
    "no issuer": (US.token(iss=None), "issuer"),
    "another audience": (US.token(aud="gantry2"), "not for"),
    "a list without us": (US.token(aud=["a", "b"]), "not for"),
    "no audience": (US.token(aud=None), "not for"),
    "an audience that is an object": (US.token(aud={"gantry": 1}), "not for"),
    "a header that is no JSON": (f"{b64(b'nope')}.{b64(RAW)}.AA", "header"),
    "a header that is a list": (f"{b64(b'[]')}.{b64(RAW)}.AA", "no object"),
    "base64 with padding": (US.token("RS256") + "=", "base64url"),
    "standard base64": (US.token("RS256").rpartition(".")[0] + ".+/+/", "base64url"),
    "a line break in the middle": (US.token("RS256").replace(".", "\n.", 1), "base64url"),
    "too long": ("eyJ" + "a" * TOKEN_CHARS_MAX + ".b.c", "characters"),
    "nested without end": (f"{b64(b'[' * 5000)}.{b64(RAW)}.AA", "no JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks(name: str) -> None:
    token, why = ATTACKS[name]
    with pytest.raises(TokenError, match=why):
        check(token)


def test_an_ecdsa_signature_of_zeros_is_nobodys() -> None:
    """CVE-2022-21449: r = s = 0 were good for any text."""
    head, payload, _ = US.token("ES256").split(".")
    for signature in (b"\0" * 64, b"\0" * 63 + b"\1", b"", b"\0" * 65):
        with pytest.raises(TokenError, match="signature"):
            check(f"{head}.{payload}.{b64(signature)}")


def test_clocks_may_differ_a_little() -> None:
    assert check(US.token(exp=NOW_S - 4))
    assert check(US.token(nbf=NOW_S + 4))


def test_a_key_that_is_not_known_is_told_apart() -> None:
    with pytest.raises(UnknownKeyError):
        check(US.token(header={"kid": "new"}))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "no JWK set"),
        (b"[]", "no JWK set"),
        (b'{"keys": []}', "no key for"),
        (b'{"keys": [{"kty": "oct", "kid": "x", "k": "AAAA"}]}', "no key for"),
        (b'{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}', "RSA key of 17 bits"),
        (b'{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "AA"}]}', "key ''"),
        (b'{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}', "key ''"),
        (b"x" * (SET_BYTES_MAX + 1), "bytes"),
        (US.jwks(json.loads(US.jwks())["keys"][0]), "same kid"),
        (json.dumps({"keys": [{"kty": "x"}] * 101}).encode(), "101 keys"),
    ],
)  # fmt: skip
def test_key_sets_that_are_none(text: bytes, why: str) -> None:
    with pytest.raises(KeySetError, match=why):
        read_key_set(text)


def test_keys_for_other_things_are_passed_over() -> None:
    keys = read_key_set(
        US.jwks({"kty": "RSA", "kid": "enc", "use": "enc"}, {"kty": "EC", "crv": "P-521", "kid": "big"})
    )
    assert len(keys) == 3
    assert keys.find("enc", "RS256") is None
