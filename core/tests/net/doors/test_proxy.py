"""PROXY headers of both versions, as HAProxy's specification writes them."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from gantrymq.net.doors.proxy import HEADER_BYTES_MAX, SIGNATURE_2, ProxyError, Speaks, parse


def version_2(command: int = 0x21, family: int = 0x11, body: bytes | None = None, length: int | None = None) -> bytes:
    if body is None:
        size = 4 if family >> 4 == 1 else 16
        source = "192.0.2.7" if size == 4 else "2001:db8::7"
        own = "192.0.2.1" if size == 4 else "2001:db8::1"
        body = ip_address(source).packed + ip_address(own).packed + b"\xc0\x01\x07\x5b"
    return SIGNATURE_2 + bytes((command, family)) + (len(body) if length is None else length).to_bytes(2, "big") + body


@pytest.mark.parametrize(
    ("data", "client"),
    [
        (b"PROXY TCP4 192.0.2.7 192.0.2.1 49153 1883\r\n", ("192.0.2.7", 49153)),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 49153 1883\r\n", ("2001:db8::7", 49153)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff:f...f 65535 65535\r\n", None),
        (version_2(), ("192.0.2.7", 49153)),
        (version_2(family=0x21), ("2001:db8::7", 49153)),
        (version_2(body=ip_address("192.0.2.7").packed * 2 + b"\xc0\x01\x07\x5b" + b"\x04\x00\x01x"), ("192.0.2.7", 49153)),
        (version_2(command=0x20), None),
        (version_2(command=0x20, family=0, body=b""), None),
        (version_2(family=0x31, body=bytes(216)), None),
    ],
)  # fmt: skip
def test_headers_at_every_split(data: bytes, client: Speaks) -> None:
    for size in range(1, len(data)):
        assert parse(data[:size]) is None, f"decided after {size} bytes"
    assert parse(data + b"\x10\x0c") == (client, len(data))


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY TCP4 192.0.2.7 192.0.2.1 49153\r\n",
        b"PROXY TCP4 2001:db8::7 192.0.2.1 49153 1883\r\n",
        b"PROXY TCP4 192.0.2.7 192.0.2.1 70000 1883\r\n",
        b"PROXY UDP4 192.0.2.7 192.0.2.1 49153 1883\r\n",
        b"PROXY \r\n",
        b"PROXY TCP4 " + b"1" * 107,
        version_2(command=0x11),
        version_2(command=0x22),
        version_2(body=b"short"),
        version_2(length=HEADER_BYTES_MAX),
    ],
)
def test_headers_that_are_none(data: bytes) -> None:
    with pytest.raises(ProxyError):
        parse(data)


@pytest.mark.parametrize("data", [b"\x10\x0c\x00\x04MQTT", b"POST / HTTP/1.1\r\n", b"GET /", b"\x16\x03\x01"])
def test_a_connection_without_one(data: bytes) -> None:
    assert parse(data) == (None, 0)
