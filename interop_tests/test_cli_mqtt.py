"""`gantry mqtt` and `gantry bridge` against a running server."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from interop_tests.running import Gantry
from interop_tests.test_mqtt_paho import Paho


def shown(server: Gantry, *words: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq", *words, "--json", "--nameserver", server.doors["nameserver"]],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_is_kept_and_what_waits(server: Gantry) -> None:
    kept = Paho(server, "cli-kept", clean=False).start()
    kept.subscribe(("climqtt/#", 1), ("$share/clig/clishared/#", 1))
    kept.stop()
    sender = Paho(server, "cli-sender").start()
    for i in range(3):
        sender.publish("climqtt/x", str(i), retain=True)
        sender.publish("clishared/x", str(i))
    sender.stop()
    (session,) = [row for row in shown(server, "mqtt", "sessions") if row["client"] == "cli-kept"]
    assert (session["filters"], session["waiting"]) == (2, 3)
    assert session["left_ms"]
    filters = {row["filter"]: row["qos"] for row in shown(server, "mqtt", "subscriptions", "--client", "cli-kept")}
    assert filters == {"climqtt/#": 1, "$share/clig/clishared/#": 1}
    (group,) = [row for row in shown(server, "mqtt", "groups") if row["group"] == "clig"]
    assert (group["filter"], group["lag"]) == ("clishared/#", 3)
    (message,) = shown(server, "mqtt", "retained", "climqtt/+")
    assert (message["topic"], message["qos"], message["bytes"]) == ("climqtt/x", 1, 1)
    assert shown(server, "bridge", "list") == []
