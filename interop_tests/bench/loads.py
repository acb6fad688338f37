"""The load generators as functions: each runs one in a process of its own against a server, and makes a row of what it said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from interop_tests.bench.servers import Server

HERE = Path(__file__).resolve().parent


def generator(script: str, *arguments: str, timeout_s: float = 300) -> dict[str, Any]:
    """Run a load generator; its last line is its result."""
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / script), *arguments], capture_output=True, text=True, timeout=timeout_s,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": [f"not done within {timeout_s:g} s"]}
    if done.returncode:
        return {"error": (done.stderr or done.stdout).strip().splitlines()[-1:] or ["failed"]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _port(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    return host, port


def send(server: Server, mix: str, window: int, connections: int, messages: int) -> dict[str, Any]:
    """Acknowledged Remoting sends; `mix`: see remoting_load.py."""
    got = generator(
        "remoting_load.py", server.doors["broker"], "--window", str(window), "--connections", str(connections),
        "--messages", str(messages), "--warmup", str(messages // 5), "--runs", "3", "--server-pid", str(server.pid),
        "--topic", f"Bench{mix}{window}x{connections}", "--mix", mix,
    )  # fmt: skip
    return row(got, got.get("sends_per_s"), got.get("server_cpu_us_per_msg"))


def pull(server: Server, batch: int, messages: int) -> dict[str, Any]:
    """Batch pull of a topic that is filled first."""
    fill = ["--window", "256", "--messages", str(messages), "--topic", "BenchPull"]
    filled = generator("remoting_load.py", server.doors["broker"], *fill)
    if "error" in filled:
        return row(filled, None, None)
    got = generator(
        "remoting_pull.py", server.doors["broker"], "--topic", "BenchPull", "--batch", str(batch),
        "--messages", str(messages), "--runs", "3", "--server-pid", str(server.pid),
    )  # fmt: skip
    rate = next(
        (value for key, value in got.items() if key.endswith("_per_s") and isinstance(value, (int, float))), None
    )
    return row(got, rate, got.get("server_cpu_us_per_msg"))


def mqtt(server: Server, mode: str, *arguments: str, door: str = "mqtt") -> dict[str, Any]:
    """mqtt_load.py against the server's MQTT door, or its TLS one."""
    host, port = _port(server.doors[door])
    got = generator("mqtt_load.py", host, port, mode, *arguments, "--server-pid", str(server.pid))
    if mode == "connections":
        bytes_each = got.get("rss_bytes_per_connection")
        if bytes_each is None:
            return row(got, None, None)
        return row(got, got["connects_per_s"], got["server_us_per_connect"]) | {
            "note": f"{bytes_each / 1024:.1f} KiB each"
        }
    deliveries = mode == "pubsub"
    names = [key for key in got if "per_s" in key]
    rate = got.get("delivered_per_s" if deliveries else "published_per_s", got.get(names[0]) if names else None)
    cpu = next(
        (got[key] for key in got if key.startswith("server_us_per_deliver" if deliveries else "server_us_per_publish")),
        None,
    )
    return row(got, rate, cpu)


def amqp(script: str, server: Server, messages: int, arguments: tuple[str, ...]) -> dict[str, Any]:
    """A load generator against the server's AMQP door; its mode is the first argument."""
    host, port = _port(server.doors["amqp"])
    mode, *more = arguments
    words = [mode, "--host", host, "--port", port, *more, "--messages", str(messages), "--server-pid", str(server.pid)]
    got = generator(script, *words)
    rates = ("rate", "publish_rate", "consume_rate") if mode != "pubsub" else ("consume_rate",)
    rate = next((got[key] for key in rates if key in got), None)
    return row(got, rate, got.get("server_cpu_us_per_msg"))


def row(got: dict[str, Any], rate: Any, cpu: Any) -> dict[str, Any]:
    return {"rate": rate, "cpu_us": cpu, "raw": got, "note": str(got["error"][0])[:60] if "error" in got else ""}
