"""`gantry mqtt` and `gantry bridge` against a running server."""

from __future__ import annotations

import json
from typing import Any

from interop_tests.commands import gantry
from interop_tests.running import Gantry
from interop_tests.test_mqtt_paho import Paho


def said(server: Gantry, *words: str) -> str:
    done = gantry(*words, "--nameserver", server.doors["nameserver"], COLUMNS="160")
    return done.stdout + done.stderr


def shown(server: Gantry, *words: str) -> list[Any]:
    done = gantry(*words, "--json", "--nameserver", server.doors["nameserver"])
    assert done.returncode == 0, done.stderr
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


def test_clients_kick_and_ban(server: Gantry) -> None:
    client = Paho(server, "cli-live").start()
    client.subscribe(("climqtt/live", 1))
    (row,) = shown(server, "mqtt", "clients", "--client", "cli-live")
    assert (row["version"], row["kept"], row["filters"]) == ("3.1.1", False, ["climqtt/live"])
    assert "cli-live" in said(server, "mqtt", "clients")
    assert said(server, "mqtt", "kick", "cli-live") == "kicked cli-live\n"
    client.event("disconnect")
    client.event("connect")  # paho comes again
    said(server, "mqtt", "ban", "--client", "cli-live", "--for", "10m", "--reason", "test")
    client.event("disconnect")
    (ban,) = shown(server, "mqtt", "bans")
    assert (ban["kind"], ban["whom"], ban["reason"]) == ("client", "cli-live", "test")
    assert client.event("connect")[1].is_failure
    said(server, "mqtt", "unban", "--client", "cli-live")
    assert "is not connected" in said(server, "mqtt", "kick", "cli-nobody")
    client.stop()
