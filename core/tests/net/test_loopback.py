"""Addresses of this machine, and the line about doors that are open to others."""

from __future__ import annotations

import logging

import pytest

from gantrymq.net.loopback import warn_if_open

log = logging.getLogger("door")


@pytest.mark.parametrize(("host", "lines"), [("127.0.0.1", 0), ("::1", 0), ("0.0.0.0", 1), ("10.0.0.1", 1)])
def test_a_door_that_is_open_to_others_says_so(host: str, lines: int, caplog: pytest.LogCaptureFixture) -> None:
    warn_if_open(log, "amqp", (host, 5672), "amqp.loopback_guest_only=false")
    assert (
        caplog.messages
        == [f"amqp: every client that reaches {host}:5672 is let in unauthenticated (amqp.loopback_guest_only=false)"][
            :lines
        ]
    )
