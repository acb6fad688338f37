"""The progress of recovery, as a bar and as lines."""

from __future__ import annotations

import io
import logging

import pytest

from gantrymq.launch.recovery_progress import LINE_MS, QUIET_BYTES, RecoveryProgress

TOTAL = 64 * QUIET_BYTES


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("out", [io.StringIO(), Terminal()])
def test_lines_elsewhere(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, out: io.StringIO) -> None:
    monkeypatch.setenv("TERM", "dumb")
    now = [0]
    progress = RecoveryProgress(lambda: now[0], out)
    with caplog.at_level(logging.INFO):
        progress(TOTAL // 8, TOTAL)
        assert caplog.messages == []
        now[0] = LINE_MS
        progress(TOTAL // 2, TOTAL)
        progress(TOTAL // 2 + 1, TOTAL)
    progress.close()
    assert caplog.messages == ["recovery: 256 of 512 MiB, 51 MiB/s, about 5 s left"]
    assert out.getvalue() == ""


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    progress = RecoveryProgress(lambda: 0, out)
    for done in range(0, TOTAL, TOTAL // 4):
        progress(done, TOTAL)
    progress.close()
    assert "recovering the log" in out.getvalue()


def test_nothing_for_what_is_done_at_once() -> None:
    out = Terminal()
    progress = RecoveryProgress(lambda: 0, out)
    progress(100, QUIET_BYTES - 1)
    progress.close()
    assert out.getvalue() == ""
