"""The rows of `./run bench mqtt`: what an MQTT broker is asked to do, each with what is to be reached beside Mosquitto 2.0 or beside a row of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Server = Any
Row = tuple[str, str, str, Callable[[Server], dict[str, Any]]]
"""Name, the row of ours that its ratio is to (empty: the peer's), what is to be reached, what to run."""

IDLE_KIB: Final = 8
PUBLISH: Final = "QoS 1 publish, window 100"
ONE_TO_ONE: Final = "1 to 1, QoS 1"
MANY_PUBLISHERS: Final = 1_000
ONE_PER_READ: Final = 100
"""Connections of the row with one message per read: so many keep the server busy, and each still writes a record for each message."""
BURSTS: Final = 40


def rows(count: int, run: Callable[..., dict[str, Any]]) -> list[Row]:
    """`run(server, mode, *arguments, door=...)`: the result of mqtt_load.py as a row."""
    half, publishes, connects = str(count // 2), str(count), str(max(count // 50, 1_000))

    def row(
        name: str, reach: str, mode: str, messages: str, *arguments: str, beside: str = "", door: str = "mqtt"
    ) -> Row:
        words = [mode, "--count", messages, *arguments]
        return f"MQTT {name}", f"MQTT {beside}" if beside else "", reach, lambda server: run(server, *words, door=door)

    def factor(value: float) -> str:
        return f"<= {value:g} x Mosquitto"

    publish, thrice = ("--qos", "1", "--window", "100"), ("--repeat", "3")
    return [
        # First: later, memory that other rows have left would be used again, and a connection seem to take none.
        row("idle connection", f"<= {IDLE_KIB} KiB", "connections", "2000"),
        row(PUBLISH, factor(0.7), "pub", publishes, *publish, *thrice),
        row("QoS 1 publish, 1,000 topics in turn", factor(0.7), "pub", publishes, *publish, "--topics", "1000", *thrice),
        row("QoS 2 publish, window 20", factor(0.8), "pub", half, "--qos", "2", *thrice),
        row("1 to 1, QoS 0", factor(1.2), "pubsub", half, "--qos", "0", *thrice),
        row(ONE_TO_ONE, factor(0.8), "pubsub", half, "--qos", "1", *thrice),
        row("1 to 1, QoS 2", factor(0.8), "pubsub", half, "--qos", "2", *thrice),
        row("persistent session, QoS 1", factor(1.3), "pubsub", half, "--qos", "1", "--persistent", *thrice),
        row("fan-out 1 to 50, QoS 0", factor(0.1), "pubsub", str(count // 20), "--qos", "0", "--subs", "50"),
        row("fan-out 1 to 50, QoS 1", factor(0.25), "pubsub", str(count // 20), "--qos", "1", "--subs", "50"),
        row(f"{MANY_PUBLISHERS:,} publishers, window 1", factor(0.8), "pub", half,
            "--qos", "1", "--window", "1", "--connections", str(MANY_PUBLISHERS)),
        row("shared group of 10, QoS 1", factor(1), "pubsub", half, "--qos", "1", "--subs", "10", "--shared", *thrice),
        row(f"{BURSTS} bursts, 1 to 1, QoS 1", "", "pubsub", half, "--qos", "1", "--bursts", str(BURSTS)),
        row("connect", "<= 60 us", "connections", connects),
        row("connect and subscribe", "<= 120 us", "connections", connects, "--subscribe"),
        row("TLS, QoS 1 publish, window 100", factor(1), "pub", publishes, *publish, "--transport", "tls", *thrice, door="mqtt.tls"),
        row(f"TLS, {ONE_PER_READ} publishers, one message per read", factor(1.5), "pub", half,
            "--qos", "1", "--window", "1", "--connections", str(ONE_PER_READ), "--transport", "tls", door="mqtt.tls"),
        row("WebSocket, QoS 1 publish, window 100", "<= 1.4 x our TCP", "pub", publishes, *publish, "--transport", "ws", *thrice, beside=PUBLISH),
        row("5.0, QoS 1 publish, window 100", "<= 1.15 x our 3.1.1", "pub", publishes, *publish, "--v", "5", *thrice, beside=PUBLISH),
        row("5.0, 1 to 1, QoS 1", "<= 1.15 x our 3.1.1", "pubsub", half, "--qos", "1", "--v", "5", *thrice, beside=ONE_TO_ONE),
    ]  # fmt: skip
