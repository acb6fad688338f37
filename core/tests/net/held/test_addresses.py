"""Connections of one address."""

from __future__ import annotations

import pytest

from gantrymq.net.held.addresses import Addresses, address_of


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("192.0.2.1:50000", "192.0.2.1"),
        ("[2001:db8:1:2:3:4:5:6]:50000", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2:ffff::1]:7", "2001:db8:1:2::/64"),
        ("[fe80::1%eth0]:7", "fe80::/64"),
        ("[::ffff:192.0.2.1]:50000", "192.0.2.1"),
        ("unix", "unix"),
    ],
)
def test_what_counts_as_one(peer: str, address: str) -> None:
    assert address_of(peer) == address


def test_one_address_has_no_more_than_its_part(caplog: pytest.LogCaptureFixture) -> None:
    addresses = Addresses(2)
    first, second = addresses.came("192.0.2.1:1"), addresses.came("192.0.2.1:2")
    assert first == second == "192.0.2.1"
    assert addresses.came("192.0.2.1:3") == ""
    assert addresses.came("192.0.2.1:4") == ""
    assert [record.getMessage() for record in caplog.records] == [
        "192.0.2.1:3: refused, server.address_connections_max (2) is reached; so are others from there from now on"
    ]
    assert addresses.came("192.0.2.2:1")
    addresses.went(first)
    addresses.went("")
    assert addresses.came("192.0.2.1:5")
    assert addresses.came("192.0.2.1:6") == ""
    assert len(caplog.records) == 2


def test_nothing_is_kept_of_those_that_are_gone() -> None:
    addresses = Addresses(2)
    for number in range(1000):
        addresses.went(addresses.came(f"192.0.2.{number}:1"))
    assert len(addresses) == 0
