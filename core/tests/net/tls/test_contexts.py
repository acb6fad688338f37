"""Contexts from files, and what a change of the files does to them."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest

from gantrymq.net.places import parse_place
from gantrymq.net.tls.contexts import Context, TlsConfig, TlsError
from tests.net.tls.certs import make_certificates


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    return make_certificates(tmp_path / "certs")


def config(certs: Path, **more: str) -> TlsConfig:
    return TlsConfig(cert=str(certs / "server.pem"), key=str(certs / "server.key"), **more)  # type: ignore[arg-type]


def test_a_context_is_of_today(certs: Path) -> None:
    context = Context(config(certs), ["mqtt"]).current
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_NONE
    assert context.options & ssl.OP_NO_COMPRESSION


def test_client_certificates(certs: Path) -> None:
    trusting = config(certs, client_ca=str(certs / "ca.pem"), client_cert="optional")
    assert Context(trusting).current.verify_mode == ssl.CERT_OPTIONAL
    place = parse_place("tls://127.0.0.1:1?client_cert=required")
    assert Context(trusting.of(place)).current.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "tls.cert is not given"),
        ({"cert": "nowhere.pem"}, "No such file"),
        ({"cert": "{}/server.pem", "key": "{}/ca.key"}, "key values mismatch"),
        ({"cert": "{}/server.pem"}, "server.pem"),  # there is no key in it
        ({"cert": "{}/server.pem", "key": "{}/server.key", "client_cert": "required"}, "tls.client_ca is not given"),
        (
            {"cert": "{}/server.pem", "key": "{}/server.key", "client_cert": "required", "client_ca": "{}/server.key"},
            "tls.client_ca",
        ),
    ],
)
def test_what_cannot_be_used_is_said(certs: Path, given: dict[str, str], complaint: str) -> None:
    with pytest.raises(TlsError, match=complaint):
        Context(TlsConfig(**{key: value.format(certs) for key, value in given.items()}))  # type: ignore[arg-type]


def test_an_encrypted_key_needs_its_password(certs: Path) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key((certs / "server.key").read_bytes(), None)
    (certs / "locked.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open"))
    )
    (certs / "password").write_text("open\n")
    locked = TlsConfig(cert=str(certs / "server.pem"), key=str(certs / "locked.key"))
    with pytest.raises(TlsError, match="key_password_file"):
        Context(locked)
    Context(TlsConfig(locked.cert, locked.key, str(certs / "password")))


def test_changed_files_are_read_and_broken_ones_are_not_used(certs: Path, caplog: pytest.LogCaptureFixture) -> None:
    context = Context(config(certs))
    first = context.current
    context.reload_if_changed()
    assert context.current is first
    whole = (certs / "server.pem").read_bytes()
    (certs / "server.pem").write_bytes(whole[: len(whole) // 2])
    with caplog.at_level(logging.INFO):
        context.reload_if_changed()
        context.reload_if_changed()
    assert context.current is first
    assert [record.levelname for record in caplog.records] == ["ERROR"]  # said once
    make_certificates(certs)
    context.reload_if_changed()
    assert context.current is not first
