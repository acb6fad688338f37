"""Names under which an HTTP door on loopback answers."""

from __future__ import annotations

import pytest

from gantrymq.net.host_names import KNOWN_MAX, HostNames, asked_host, host_names


@pytest.mark.parametrize(
    "host",
    [b"localhost", b"LocalHost:8080", b"127.0.0.1", b"127.0.0.1:5557", b"127.9.8.7:1", b"[::1]", b"[::1]:8080", b"broker.lan:8080", None],
)  # fmt: skip
def test_names_of_loopback_are_answered(host: bytes | None) -> None:
    assert HostNames("127.0.0.1", ("broker.lan",)).refusal(host) == ""


@pytest.mark.parametrize(
    "host",
    [b"evil.example", b"evil.example:8080", b"127.0.0.1.evil.example", b"localhost.evil.example", b"", b"10.0.0.1", b"[::2]:80", b"0.0.0.0"],
)  # fmt: skip
def test_other_names_are_refused_and_told(host: bytes) -> None:
    text = HostNames("127.0.0.1").refusal(host)
    assert host.decode() in text
    assert "server.host_names" in text
    assert HostNames("0.0.0.0").refusal(host) == "", "a door that others reach answers to every name"
    assert HostNames("192.0.2.1").refusal(host) == ""


def test_the_name_that_it_was_bound_by_is_answered() -> None:
    assert HostNames("localhost").refusal(b"localhost:80") == ""
    assert HostNames("127.0.0.5").refusal(b"evil.example") != ""


def test_what_is_remembered_is_bounded() -> None:
    names = HostNames("127.0.0.1")
    for port in range(3 * KNOWN_MAX):
        assert names.refusal(b"localhost:%d" % port) == ""
        assert names.refusal(b"evil%d.example" % port)
    assert len(names._known) <= KNOWN_MAX


def test_a_target_that_names_a_host_counts_more_than_the_header() -> None:
    headers = [(b"accept", b"*/*"), (b"host", b"localhost")]
    assert asked_host(b"/a", headers) == b"localhost"
    assert asked_host(b"http://evil.example:80/a", headers) == b"evil.example:80"
    assert asked_host(b"http://localhost@evil.example?q", headers) == b"evil.example"
    assert asked_host(b"/a", []) is None


def test_the_setting() -> None:
    assert host_names("") == ()
    assert host_names(" Broker.LAN , other ") == ("broker.lan", "other")
    for wrong in ("a:80", "http://a", "a b"):
        with pytest.raises(ValueError, match="no name of a host"):
            host_names(wrong)
