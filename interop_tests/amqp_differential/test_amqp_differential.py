"""Scripts of raw methods to the real RabbitMQ 4.0.5 and to a server of ours: the same frames, but for the differences that are listed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from interop_tests.amqp_differential.accepted import ACCEPTED
from interop_tests.amqp_differential.sides import Answer, Side, Wire, unasked
from interop_tests.amqp_differential.steps import SCRIPTS, Http, Step
from interop_tests.real_rabbitmq import MISSING, RabbitMQ
from interop_tests.running import Gantry, free_port

PAGE: Final = Path(__file__).parents[2] / "docs" / "mapping" / "amqp.md"


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """The real one, and ours."""
    directory = tmp_path_factory.mktemp("rabbitmq")
    real, management = RabbitMQ(directory).start(), free_port()
    gantry = Gantry(tmp_path_factory.mktemp("gantry"), settings=(f"amqp.management_port={management}",))
    try:
        gantry.start()
        yield Side(real.port, real.port + 3), Side(gantry.address("amqp")[1], management)
        gantry.stop()
    finally:
        gantry.kill()
        real.stop()


def both(sides: tuple[Side, Side], step: Step) -> tuple[list[Answer], list[Answer]]:
    real, ours = sides
    return real.play(step), ours.play(step)


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("script", SCRIPTS)
def test_same_answers(sides: tuple[Side, Side], script: str) -> None:
    differ = []
    try:
        for number, step in enumerate(SCRIPTS[script]):
            real, ours = both(sides, step)
            if not isinstance(step, Http) and {unasked(real), unasked(ours)} != {step.answers}:
                differ.append(f"{number}: {step}: its `answers` is wrong\n  real {real}\n  ours {ours}")
            elif real != ours and not any(rule.covers(real, ours) for rule in ACCEPTED):
                differ.append(f"{number}: {step}\n  real {real}\n  ours {ours}")
    finally:
        for side in sides:
            side.forget()
    assert not differ, "\n".join(differ)


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize(
    "login", [{}, {"password": "wrong"}, {"user": "nobody"}, {"vhost": "none"}, {"vhost": ""}], ids=str
)
def test_same_openings(sides: tuple[Side, Side], login: dict[str, str]) -> None:
    openings = []
    for side in sides:
        wire = Wire(side.amqp, **login)
        openings.append(wire.opening)
        wire.close()
    assert openings[0] == openings[1]


def test_accepted_differences_are_documented() -> None:
    page = re.sub(r"\s+", " ", PAGE.read_text())
    assert not [rule.reason for rule in ACCEPTED if rule.reason not in page]
