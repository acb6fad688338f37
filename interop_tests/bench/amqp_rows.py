"""The rows of `./run bench amqp`: what an AMQP broker is asked to do, each with what is to be reached beside RabbitMQ 4."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from interop_tests.bench.amqp_lists import LISTS

Server = Any
Run = Callable[[str, Server, int, tuple[str, ...]], dict[str, Any]]
"""`run(script, server, messages, arguments)`: the result of a load generator as a row."""

DECLARE_MS: Final = 0.5
IDLE_KIB: Final = 8


def rows(count: int, run: Run) -> list[tuple[str, str, Callable[[Server], dict[str, Any]]]]:
    """Name, what is to be reached, what to run."""
    load, special = partial(run, "amqp_load.py"), partial(run, "amqp_special_load.py")

    def row(name: str, reach: str, generator: Any, messages: int, *arguments: str) -> Any:
        return f"AMQP {name}", reach, lambda server: generator(server, messages, arguments)

    def factor(value: float) -> str:
        return f"<= {value:g} x RabbitMQ"

    publish = [
        row(f"confirmed publish, window {window}", factor(0.25), load, messages, "publish", "--window", str(window))
        for window, messages in ((1, count // 10), (100, count), (1000, count))
    ]
    frameworks = [
        row(f"{mode}, {name}", factor(0.5), load, count // 2, mode, "--list", name)
        for name in LISTS
        for mode in ("publish", "consume")
    ]
    return [
        ("AMQP idle connection, one channel", f"<= {IDLE_KIB} KiB", lambda server: _idle(load, server)),
        *publish,
        *frameworks,
        row("consume, prefetch 200, ack each", factor(0.33), load, count // 2, "consume"),
        row("consume, acks out of order", "", load, count // 2, "consume", "--ack", "shuffled"),
        row("consume, ack multiple", factor(0.3), load, count // 2, "consume", "--ack", "multiple"),
        row("1 to 1, window 100, ack each", factor(0.33), load, count // 2, "pubsub"),
        row("transient publish, no confirms", factor(0.4), load, count, "publish", "--no-confirm", "--delivery-mode", "1"),
        row(
            "fan-out to 10 queues, per delivery", factor(0.4), load, count // 20, "pubsub", "--exchange", "load-fan",
            "--exchange-type", "fanout", "--queues", "10", "--consumers", "10",
        ),
        row("1,000 connections, window 1", factor(0.4), special, count // 4, "many"),
        row("dead-lettering", factor(0.5), special, count // 2, "dead"),
        row("priority queue, publish and consume", factor(0.5), special, count // 2, "priority"),
        row("expiry of waiting messages", factor(0.5), special, count // 2, "expiry"),
        ("AMQP declare + bind + delete", f"<= {DECLARE_MS} ms", lambda server: _declare(special, server, count // 100)),
    ]  # fmt: skip


def _idle(load: Any, server: Server) -> dict[str, Any]:
    found = load(server, 0, ("idle", "--connections", "1000"))
    each = found["raw"].get("kib_per_connection")
    return found | ({"rate": "", "note": f"{each:.1f} KiB each"} if each is not None else {})


def _declare(special: Any, server: Server, count: int) -> dict[str, Any]:
    found = special(server, count, ("declare",))
    seconds = found["raw"].get("seconds")
    return found | ({"note": f"{seconds / count * 1000:.2f} ms each"} if seconds is not None else {})
