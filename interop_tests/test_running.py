"""Where servers of tests listen."""

from __future__ import annotations

import pytest

from interop_tests.running import listening_ports


@pytest.mark.parametrize(
    ("given", "ports"),
    [
        ("32768\t60999\n", range(10_000, 32_000)),
        ("16000 65535", range(10_000, 16_000)),
        ("15000 30000", range(30_001, 65_536)),
        ("1024 65535", range(10_000, 32_000)),  # the kernel leaves nothing
    ],
)
def test_no_outgoing_connection_takes_the_port_of_a_server(given: str, ports: range) -> None:
    assert listening_ports(given) == ports
