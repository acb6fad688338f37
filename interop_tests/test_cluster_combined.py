"""`gantry up` as a member of a cluster: its doors reach every broker, as gateways of their own do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests.running import Gantry, Process
from interop_tests.test_amqp_clients import connect
from interop_tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

QUEUES = 12
"""So many that both brokers own some."""


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[Gantry]]:
    """Two processes, each a broker with all doors; the first has the nameserver."""
    first = Gantry(tmp_path / "one", settings=("broker.name=one", "broker.metadata_group=one"))
    second = Gantry(tmp_path / "two")
    for found in (first, second):
        found.directory.mkdir()
    try:
        first.start()
        command = ["up", "--data", str(second.directory / "data"), "--nameserver", first.doors["nameserver"]]
        process = Process(
            "up", second.directory, [*command, "--set=broker.name=two", "--set=broker.metadata_group=one"]
        )
        second.processes.append(process)
        process.start()
        yield [first, second]
    finally:
        second.stop()
        first.stop()


def test_queues_of_both_are_at_every_door(members: list[Gantry]) -> None:
    here, there = (connect(member) for member in members)
    one, other = here.channel(), there.channel()
    one.confirm_delivery()
    names = [f"q{number}" for number in range(QUEUES)]
    for name in names:
        one.queue_declare(name, durable=True)
    for name in names:
        one.basic_publish("", name, name.encode())
    for name in names:
        until(lambda: other.queue_declare(name, passive=True).method.message_count == 1)  # noqa: B023 (called at once)
        _, _, body = other.basic_get(name, auto_ack=True)
        assert body == name.encode()
    here.close()
    there.close()
