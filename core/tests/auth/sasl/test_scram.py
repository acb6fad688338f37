"""SCRAM-SHA-256: RFC 7677's own exchange, and what a client may try."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from gantrymq.auth.sasl import scram
from gantrymq.auth.sasl.scram import Exchange, ScramError, Verifier, make_verifier, read_verifier


def client(
    user: str, password: str, exchange: Exchange, header: bytes = b"n,,", nonce: bytes = b"rOprNGfwEbeRWgbNEkqO"
):
    """(client-final, what the server must say to it), as a client computes them."""
    bare = b"n=" + user.encode() + b",r=" + nonce
    first = exchange.first(header + bare)
    fields = dict(part.split(b"=", 1) for part in first.split(b","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(fields[b"s"]), int(fields[b"i"]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    without = b"c=" + base64.b64encode(header) + b",r=" + fields[b"r"]
    said = bare + b"," + first + b"," + without
    signature = hmac.digest(hashlib.sha256(key).digest(), said, "sha256")
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    verdict = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), said, "sha256")
    return without + b",p=" + base64.b64encode(proof), b"v=" + base64.b64encode(verdict)


def test_the_exchange_of_rfc_7677() -> None:
    """Section 3, with its salt, nonces and proof."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    verifier = scram._verifier("pencil", salt, 4096)
    exchange = Exchange(lambda user: verifier)
    exchange.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    exchange._nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    first = b"r=%b,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096" % exchange._nonce
    exchange._said = b"n=user,r=rOprNGfwEbeRWgbNEkqO," + first
    final = b"c=biws,r=%b,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=" % exchange._nonce
    assert exchange.final(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_a_verifier_is_text_and_back() -> None:
    verifier = make_verifier("pässword")
    assert read_verifier(str(verifier)) == verifier
    assert "pässword" not in str(verifier)
    for bad in ("", "SCRAM-SHA-1$1:AA==$AA==:AA==", str(verifier)[:-10], str(verifier).replace("15000", "0")):
        with pytest.raises(ValueError):  # noqa: PT011  # whatever it is, nobody comes in by it
            read_verifier(bad)


def test_who_knows_the_password_comes_in_and_learns_that_the_server_does_too() -> None:
    verifier = make_verifier("secret")
    for header in (b"n,,", b"y,,", b"n,a=al=2Cice,"):
        exchange = Exchange(lambda user: verifier)
        final, verdict = client("al=2Cice", "secret", exchange, header)
        assert exchange.final(final) == verdict
        assert exchange.user == "al,ice"
    exchange = Exchange(lambda user: verifier)
    final, _ = client("alice", "wrong", exchange)
    with pytest.raises(ScramError, match="wrong"):
        exchange.final(final)


@pytest.mark.parametrize(
    "first",
    [b"", b"n,,", b"n,,n=alice", b"n,,n=alice,r=", b"p=tls-unique,,n=alice,r=abcdefghij", b"n,,m=x,n=alice,r=abcdefghij",
     b"n,a=root,n=alice,r=abcdefghij", b"n,,n=al=2cice,r=abcdefghij", b"n,,n=\xff,r=abcdefghij", b"n,,n=" + b"x" * 3000 + b",r=abcdefghij"],
)  # fmt: skip
def test_first_messages_that_are_none(first: bytes) -> None:
    with pytest.raises(ScramError):
        Exchange(lambda user: make_verifier("x")).first(first)


def test_nothing_of_an_exchange_is_good_in_another() -> None:
    verifier = make_verifier("secret")
    exchange = Exchange(lambda user: verifier)
    final, _ = client("alice", "secret", exchange)
    other = Exchange(lambda user: verifier)
    other.first(b"n,,n=alice,r=rOprNGfwEbeRWgbNEkqO")
    with pytest.raises(ScramError, match="nonce"):
        other.final(final)
    for changed in (final.replace(b"c=biws", b"c=eSws"), final[:-8], final.replace(b",p=", b",p=!"), b"", b",p="):
        with pytest.raises(ScramError):
            exchange.final(changed)


def test_a_user_that_is_not_there_looks_as_one_that_is() -> None:
    salts = {scram.unknown(b"seed", "bob").salt for _ in range(3)}
    assert len(salts) == 1
    assert scram.unknown(b"seed", "eve").salt not in salts
    exchange = Exchange(lambda user: scram.unknown(b"seed", user))
    final, _ = client("bob", "", exchange)
    with pytest.raises(ScramError, match="wrong"):
        exchange.final(final)
    assert isinstance(scram.unknown(b"seed", "bob"), Verifier)
