"""The samples of docs/mapping, as they stand there, against a running server. A page with a sample that nothing runs fails."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from gantrymq_gateways.bridges.mosquitto import parse
from interop_tests.running import Gantry
from interop_tests.test_amqp_clients import connect

PAGES = Path(__file__).parents[1] / "docs" / "mapping"


def samples() -> dict[str, list[str]]:
    """Fenced blocks by page."""
    found = {
        path.name: re.findall(r"^```\w*\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
        for path in PAGES.glob("*.md")
    }
    return {name: blocks for name, blocks in found.items() if blocks}


def a_stream(server: Gantry, sample: str) -> None:
    """Python for pika, with a channel and a callback: what was there before is delivered."""
    connection = connect(server)
    channel = connection.channel()
    got: list[bytes] = []

    def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        got.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(got) == 4:
            channel.stop_consuming()

    declare, *rest = sample.splitlines()
    exec(declare, {"channel": channel})
    for body in (b"1", b"2"):
        channel.basic_publish("", "trail", body)
    exec("\n".join(rest), {"channel": channel, "on_message": on_message})
    for body in (b"3", b"4"):
        channel.basic_publish("", "trail", body)
    channel.start_consuming()
    assert got == [b"1", b"2", b"3", b"4"]
    channel.queue_delete("trail")
    connection.close()


def a_subscription(server: Gantry, sample: str) -> None:
    """JSON for POST /subscriptions: it is made, and is what was asked for."""
    asked = json.loads(sample)
    host, port = server.address("cloudevents")
    with httpx.Client(base_url=f"http://{host}:{port}", trust_env=False) as client:
        made = client.post("/subscriptions", json=asked)
        assert made.status_code == 201, made.text
        shown = client.get(f"/subscriptions/{made.json()['id']}").json()
        assert {key: shown[key] for key in asked if key != "config"} == {
            key: value for key, value in asked.items() if key != "config"
        }
        assert asked["config"].items() <= shown["config"].items()
        assert client.delete(f"/subscriptions/{shown['id']}").status_code == 204


def a_bridge(server: Gantry, sample: str) -> None:
    """A file for `mqtt.bridges`: the whole of it is understood."""
    parsed = parse(sample)
    (bridge,) = parsed.connections
    assert (bridge.name, bridge.user_name, bridge.addresses) == (
        "site",
        "site7",
        [("office.example", 1883), ("standby.example", 1883)],
    )
    assert len(bridge.topics) == 2
    assert parsed.notes == []


RUN: Final[dict[str, list[Callable[[Gantry, str], None]]]] = {
    "amqp_streams.md": [a_stream],
    "cloudevents.md": [a_subscription],
    "mqtt.md": [a_bridge],
}


def test_every_sample_is_run() -> None:
    assert {name: len(blocks) for name, blocks in samples().items()} == {
        name: len(steps) for name, steps in RUN.items()
    }


@pytest.mark.parametrize(
    ("page", "number"), [(page, number) for page, steps in RUN.items() for number in range(len(steps))]
)
def test_a_sample(server: Gantry, page: str, number: int) -> None:
    RUN[page][number](server, samples()[page][number])
