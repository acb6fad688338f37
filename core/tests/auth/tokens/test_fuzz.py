"""Whatever a stranger sends instead of a token, a key set or a proof: refused with this part's own error, and nothing else happens."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gantrymq.auth.sasl.scram import Exchange, ScramError, make_verifier
from gantrymq.auth.tokens.key_sets import KeySetError, read_key_set
from gantrymq.auth.tokens.scopes import SCOPES_MAX, matches, parse_scopes
from gantrymq.auth.tokens.verify import Expected, TokenError, verify
from tests.auth.tokens.issuer import AUDIENCE, ISSUER, NOW_S, Issuer, b64

US = Issuer()
KEYS = read_key_set(US.jwks())
VERIFIER = make_verifier("secret")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: f"eyJ{b64(data)}.{b64(data)}.{b64(data)}"))
def test_texts(text: str) -> None:
    with contextlib.suppress(TokenError):
        raise AssertionError(verify(text, KEYS, Expected(ISSUER, AUDIENCE), NOW_S))


@given(st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "jwk", "b64"]), JSON, max_size=4))
def test_headers(header: dict[str, Any]) -> None:
    """A good signature under a header that says something else is good only where the header says what is meant."""
    try:
        verify(US.token("EdDSA", header), KEYS, Expected(ISSUER, AUDIENCE), NOW_S)
    except TokenError:
        return
    assert header.get("alg", "EdDSA") == "EdDSA"
    assert header.get("kid", "ed") in ("ed", None)


@given(st.dictionaries(st.sampled_from(["iss", "aud", "exp", "nbf", "sub"]), JSON, max_size=5))
def test_claims(claims: dict[str, Any]) -> None:
    try:
        found = verify(US.token("EdDSA", None, **claims), KEYS, Expected(ISSUER, AUDIENCE), NOW_S)
    except TokenError:
        return
    assert found["iss"] == ISSUER
    assert found["exp"] > NOW_S


@given(JSON, st.binary(max_size=50))
def test_key_sets(value: Any, data: bytes) -> None:
    for text in (data, json.dumps({"keys": value}).encode(), json.dumps({"keys": [value]}).encode()):
        with contextlib.suppress(KeySetError):
            raise AssertionError(len(read_key_set(text)))
    members = {"kty": "RSA", "n": b64(data), "e": b64(data[:3])}
    point = {"kty": "EC", "crv": "P-256", "x": b64(data), "y": b64(data)}
    for member in (members, point, {"kty": "OKP", "crv": "Ed25519", "x": b64(data)}):
        try:
            read_key_set(json.dumps({"keys": [member]}).encode())
        except KeySetError:
            continue
        assert len(data) == 32  # any 32 bytes may be a key of Ed25519


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_proofs(first: bytes, final: bytes) -> None:
    for begin in (first, b"n,,n=alice,r=abcdefghij"):
        exchange = Exchange(lambda user: VERIFIER)
        with contextlib.suppress(ScramError):
            exchange.first(begin)
            exchange.final(final)
            raise AssertionError(begin)


@given(
    st.lists(st.text(max_size=30), max_size=10),
    st.text(alphabet="a*b", max_size=12),
    st.text(alphabet="ab", max_size=12),
)
def test_scopes(texts: list[str], pattern: str, name: str) -> None:
    """`*` as everybody understands it, by trying every split."""
    parse_scopes(texts, "")

    def slowly(pattern: str, name: str) -> bool:
        if not pattern:
            return not name
        if pattern[0] == "*":
            return any(slowly(pattern[1:], name[at:]) for at in range(len(name) + 1))
        return bool(name) and name[0] == pattern[0] and slowly(pattern[1:], name[1:])

    assert matches(pattern, name) is slowly(pattern, name)


def test_more_scopes_than_are_read() -> None:
    assert len(parse_scopes([f"read:*/{number}" for number in range(SCOPES_MAX + 5)], "")) == SCOPES_MAX
