"""What a process trusts and shows when it connects to another one of its cluster."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from gantrymq.net.tls.contexts import TlsConfig, TlsError, current_of, outgoing_of
from gantrymq.net.tls.identity import Certificate, is_listed
from tests.net.tls.certs import make_certificates


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    return make_certificates(tmp_path / "certs", "member")


def test_it_trusts_the_clusters_cas_alone_and_checks_the_host(certs: Path) -> None:
    context = current_of(outgoing_of(TlsConfig(cluster_ca=str(certs / "ca.pem"))))
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(context.get_ca_certs()) == 1, "none of the system's"
    assert current_of(outgoing_of(TlsConfig())) is None


def test_files_that_changed_are_read_again_and_bad_ones_are_not_taken(certs: Path) -> None:
    member = certs / "member.pem"
    config = TlsConfig(
        cluster_ca=str(certs / "ca.pem"), cluster_cert=str(member), cluster_cert_key=str(certs / "member.key")
    )
    outgoing = outgoing_of(config)
    assert outgoing is not None
    before = outgoing.current
    outgoing.reload_if_changed()
    assert outgoing.current is before
    good = member.read_bytes()
    member.write_bytes(b"nonsense")
    outgoing.reload_if_changed()
    assert outgoing.current is before
    member.write_bytes(good + b"\n")
    outgoing.reload_if_changed()
    assert outgoing.current is not before


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"cluster_ca": "nowhere.pem"}, "tls.cluster_ca"),
        ({"cluster_cert": "{}/member.pem"}, "tls.cluster_ca is not given"),
        ({"cluster_ca": "{}/ca.pem", "cluster_cert": "{}/member.pem"}, "tls.cluster_cert"),
        ({"cluster_ca": "{}/ca.pem", "cluster_cert": "{}/member.pem", "cluster_cert_key": "{}/ca.key"}, "mismatch"),
    ],
)
def test_what_cannot_be_used_is_said(certs: Path, given: dict[str, str], complaint: str) -> None:
    with pytest.raises(TlsError, match=complaint):
        outgoing_of(TlsConfig(**{key: value.format(certs) for key, value in given.items()}))


def test_who_is_listed() -> None:
    one = Certificate("CN=a,O=b", "a", ("a",), (), (), "0f")
    assert is_listed(one, ["CN=a,O=b"])
    assert is_listed(one, ["sha256:0f"])
    for names in ([], ["a"], ["CN=a"], ["0f"], ["sha256:0F1"]):
        assert not is_listed(one, names)
    assert not is_listed(None, ["CN=a,O=b"])
