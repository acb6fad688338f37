"""<TAB> without a server: names that need none, and silence within its time."""

from __future__ import annotations

import time

from core.tests.cli.tab import press_tab
from gantrymq.cli.completion import ASK_S

ATTEMPTS = 5
"""A machine that does something else for a moment makes one late, not all of them."""


def test_settings_without_a_server() -> None:
    assert press_tab("gantry up --set mqtt.po", "127.0.0.1:1") == ["mqtt.port="]
    assert "mqtt.enabled=" in press_tab("gantry config show --set mqtt.", "127.0.0.1:1")
    assert press_tab("gantry config show mq", "127.0.0.1:1") == ["mqtt"]
    assert press_tab("gantry gateway am", "127.0.0.1:1") == ["amqp"]


def silence_is_short(line: str, silent: str) -> bool:
    """Beyond what the start of the command itself takes here and now."""
    begun = time.monotonic()
    assert press_tab("gantry topic sho", "127.0.0.1:1") == ["show"]
    start_s = time.monotonic() - begun
    begun = time.monotonic()
    assert press_tab(line, silent) == []
    took_s = time.monotonic() - begun
    assert took_s >= ASK_S
    return took_s < 3 * start_s + ASK_S


def test_a_server_that_never_answers(silent: str) -> None:
    for line in ("gantry topic show o", "gantry group show b", "gantry broker show b"):
        assert any(silence_is_short(line, silent) for _ in range(ATTEMPTS)), line
