"""One client cannot fill the log: what it causes is held back and counted; other lines are not touched."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from gantrymq import log_limits
from gantrymq.log_limits import ADDRESSES_MAX, ALL_BURST, BURST, PER_S, QUIET_S, PeerLimit


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Rig:
    """A logger with the limit on its handler, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.limit = PeerLimit(lambda: self.now_s)
        self.kept = Kept()
        self.kept.addFilter(self.limit)
        self.log = logging.getLogger("gantrymq.test_log_limits")
        self.log.addHandler(self.kept)
        log_limits.log.addHandler(self.kept)

    def write(self, count: int, peer: str = "10.0.0.1:5000") -> int:
        """Lines of a peer; returns how many came through."""
        before = len(self.kept.lines)
        for _ in range(count):
            self.log.warning("%s: closed: %s", peer, "a reason")
        return sum(line.startswith(peer) for line in self.kept.lines[before:])

    def close(self) -> None:
        self.log.removeHandler(self.kept)
        log_limits.log.removeHandler(self.kept)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def test_one_address_writes_a_burst_and_then_a_few_lines_a_second(rig: Rig) -> None:
    assert rig.write(1_000) == BURST
    assert rig.write(1_000, "10.0.0.1:6000") == 0  # another connection of the same client
    assert rig.write(10, "10.0.0.2:5000") == 10
    rig.now_s += 2
    assert rig.write(1_000) == 2 * PER_S
    summary = f"{2_000 - BURST:,} more lines about 10.0.0.1 were held back"
    assert rig.kept.lines.count(summary) == 1


def test_what_was_held_back_is_said_when_the_client_is_quiet(rig: Rig) -> None:
    rig.write(BURST + 7)
    rig.now_s += QUIET_S
    rig.log.warning("the process's own line")
    assert rig.kept.lines[-2:] == ["7 more lines about 10.0.0.1 were held back", "the process's own line"]


def test_other_lines_are_never_held_back(rig: Rig) -> None:
    for number in range(10 * BURST):
        rig.log.warning("queue %s: %d", "10.0.0.1:5000", number)
        rig.log.warning("%s: a topic", "factory")
        rig.log.warning("plain")
    assert len(rig.kept.lines) == 30 * BURST
    assert len(rig.limit) == 0


@pytest.mark.parametrize(
    "peers", [("[2001:db8:1:2::1]:5", "[2001:db8:1:2:3:4:5:6]:7"), ("[fe80::1%eth0]:1", "[fe80::1]:2")]
)
def test_addresses_of_one_ipv6_network_count_together(rig: Rig, peers: tuple[str, str]) -> None:
    assert rig.write(1_000, peers[0]) == BURST
    assert rig.write(1_000, peers[1]) == 0


def test_many_addresses_share_a_limit_and_are_forgotten(rig: Rig) -> None:
    passed = sum(rig.write(1, f"10.{number >> 8}.{number & 255}.1:5") for number in range(3 * ADDRESSES_MAX))
    assert passed == ALL_BURST
    assert len(rig.limit) == ADDRESSES_MAX
    held = sum(int(line.split()[0].replace(",", "")) for line in rig.kept.lines if "held back" in line)
    rig.now_s += QUIET_S
    rig.log.warning("later")
    held = sum(int(line.split()[0].replace(",", "")) for line in rig.kept.lines if "held back" in line)
    assert held == 3 * ADDRESSES_MAX - ALL_BURST
