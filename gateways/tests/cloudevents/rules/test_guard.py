import pytest

from gantrymq_gateways.cloudevents.rules.guard import SinkGuard, parse_networks

PUBLIC = ["8.8.8.8", "93.184.216.34", "172.15.255.255", "172.32.0.0", "2606:4700::1111", "100.63.255.255"]
LOOPBACK = ["127.0.0.1", "127.255.0.1", "::1", "::ffff:127.0.0.1"]
PRIVATE = [
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "169.254.169.254", "172.16.0.1", "192.0.0.8", "192.0.2.1", "192.88.99.1",
    "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::",
    "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::10.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::1", "100::1", "2001::1",
    "2001:db8::1", "2002:a00:1::", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0",
    "fec0::1", "ff02::1", "nonsense", "", "127.1", "0x7f000001", "2130706433",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public(address):
    assert SinkGuard(loopback=False, http=False).permits(address)


@pytest.mark.parametrize("address", [*PRIVATE, *LOOPBACK])
def test_denied(address):
    assert not SinkGuard(loopback=False, http=False).permits(address)


@pytest.mark.parametrize("address", LOOPBACK)
def test_loopback_for_a_door_on_loopback(address):
    assert SinkGuard(loopback=True, http=True).permits(address)


@pytest.mark.parametrize("address", PRIVATE)
def test_a_door_on_loopback_opens_no_private_network(address):
    assert not SinkGuard(loopback=True, http=True).permits(address)


def test_networks_of_the_operator():
    guard = SinkGuard(loopback=False, http=False, allowed=parse_networks("10.1.0.0/16, fd00::/8"))
    assert guard.permits("10.1.2.3")
    assert guard.permits("::ffff:10.1.2.3")
    assert guard.permits("fd00::1")
    assert not guard.permits("10.2.0.1")
    assert parse_networks("") == ()
    with pytest.raises(ValueError, match=r"10\.1\.0\.1/16"):
        parse_networks("10.1.0.1/16")
