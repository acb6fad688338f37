"""One script of raw requests against the real RocketMQ 5.3.3 and against this broker: answers compared field by field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests.differential.accepted import ACCEPTED, Accepted
from interop_tests.differential.sides import Side, differences
from interop_tests.differential.steps import script
from interop_tests.real_broker import REAL_BROKER, peer
from interop_tests.running import Gantry, free_port

PREFIX = "diff"

pytestmark = REAL_BROKER


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    """(RocketMQ, ours), both new."""
    nameserver, broker = free_port(), free_port(-2, 1)
    directory = str(tmp_path / "real")
    gantry = Gantry(tmp_path, settings=("message.body_bytes_max=4MiB",))  # as RocketMQ
    made: list[Side] = []
    try:
        peer("start", directory, str(nameserver), str(broker))
        gantry.start()
        made.append(Side(f"127.0.0.1:{nameserver}", f"127.0.0.1:{broker}", PREFIX))
        made.append(Side(gantry.doors["nameserver"], gantry.doors["broker"], PREFIX))
        yield made[0], made[1]
    finally:
        for side in made:
            side.close()
        peer("kill", directory)
        for process in gantry.processes:
            process.kill()


def test_answers_are_the_real_brokers(sides: tuple[Side, Side]) -> None:
    theirs, ours = sides
    used: set[Accepted] = set()
    failures = []
    steps = script()
    for step in steps:
        real, own = theirs.play(step), ours.play(step)
        for place, one, other in differences(real, own):
            cover = next((rule for rule in ACCEPTED if rule.covers(step.name, place, other, own.get("code", 0))), None)
            if cover is None:
                failures.append(
                    f"{step.name}: {place}: RocketMQ {one!r}, ours {other!r} ({real.get('said')!r}, {own.get('said')!r})"
                )
            else:
                used.add(cover)
    assert not failures, "\n".join(failures)
    assert not [rule.reason for rule in ACCEPTED if rule not in used], "accepted, but nothing differs any more"
    assert len(steps) > 200
