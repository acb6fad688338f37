"""The doors under a seed, alone and together: see `simulation`, and each door's actor for what it promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.net.procedures import order
from gantrymq_gateways.mqtt.sessions import sessions
from gateways.tests.amqp.actor import AmqpActor
from gateways.tests.cloudevents.actor import EventActor
from gateways.tests.mqtt.actor import MqttActor
from gateways.tests.simulation import Simulation

MODES = ["immediate", "late", "shuffled"]
ACTORS = {
    "mqtt": lambda simulation: [MqttActor(simulation)],
    "events": lambda simulation: [EventActor(simulation)],
    "amqp": lambda simulation: [AmqpActor(simulation)],
    "together": lambda simulation: [
        MqttActor(simulation),
        EventActor(simulation, broker_fails=False),
        AmqpActor(simulation),
    ],
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("who", list(ACTORS))
def test_simulation(who: str, mode: str, seed: int) -> None:
    simulation = Simulation(mode, seed)
    simulation.run(*ACTORS[who](simulation))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(8, 10))
def test_a_turn_for_every_piece_of_work(mode: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "TURN_WORK", 1)
    monkeypatch.setattr(sessions, "ASK_MAX", 1)
    test_simulation("mqtt", mode, seed)


@pytest.mark.parametrize("mode", ["local", "remote"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", [MqttActor, AmqpActor])
def test_over_the_real_broker(kind: type[MqttActor | AmqpActor], mode: str, seed: int, tmp_path: Path) -> None:
    simulation = Simulation("late", seed)
    actor = kind(simulation, mode, tmp_path / "first")
    try:
        simulation.run(actor)
    finally:
        actor.close()
