"""`gantry queue|session|subscription|connection` against a running server with clients of all doors."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from interop_tests.cloudevents_sinks import Sink
from interop_tests.commands import gantry
from interop_tests.running import Gantry, free_port
from interop_tests.test_amqp_clients import connect
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gantry, str]]:
    directory: Path = tmp_path_factory.mktemp("owned")
    port = free_port()
    server = Gantry(directory, "separated", (f"amqp.management_port={port}",)).start()
    yield server, f"http://127.0.0.1:{port}"
    server.stop()


def run(server: Gantry, *words: str) -> subprocess.CompletedProcess[str]:
    return gantry(*words, "--nameserver", server.doors["nameserver"])


def rows(server: Gantry, *words: str) -> list[Any]:
    done = run(server, *words, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_queues(managed: tuple[Gantry, str]) -> None:
    server, _ = managed
    connection = connect(server)
    channel = connection.channel()
    channel.confirm_delivery()
    limits = {"x-max-length": 100, "x-queue-type": "quorum"}
    channel.queue_declare("owned-jobs", durable=True, arguments=limits)
    channel.queue_bind("owned-jobs", "amq.topic", "a.#")
    for number in range(5):
        channel.basic_publish("", "owned-jobs", b"%d" % number)
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume("owned-jobs", lambda *_: None)
    kept = Paho(server, "owned-shared", clean=False).start()
    kept.subscribe(("$share/og/owned/#", 1))
    kept.stop()
    sender = Paho(server, "owned-sender").start()
    sender.publish("owned/x", "1")
    sender.stop()
    found = {row["queue"]: row for row in rows(server, "queue", "list")}
    assert {name: found["owned-jobs"][name] for name in ("ready", "unacked", "consumers", "durable", "protocol")} == {
        "ready": 3, "unacked": 2, "consumers": 1, "durable": True, "protocol": "amqp"
    }  # fmt: skip
    assert found["owned-jobs"]["pinned_bytes"] > 0
    assert (found["$share/og/owned/#"]["ready"], found["$share/og/owned/#"]["protocol"]) == (1, "mqtt")
    (shown,) = rows(server, "queue", "show", "owned-jobs")
    assert (shown["max_length"], shown["bindings"], shown["in_rate"]) == (100, ["amq.topic a.#"], 0.0)
    assert [row["queue"] for row in rows(server, "queue", "list", "--protocol", "mqtt")] == ["$share/og/owned/#"]
    assert "owned-jobs" in run(server, "queue", "list").stdout
    (group,) = [row for row in rows(server, "group", "list") if row["group"] == "$share/og"]
    assert (group["lag"], group["topics"], group["members"]) == (1, ["owned/#"], 0)
    (shown,) = rows(server, "group", "show", "$share/og")
    assert (shown["topic"], shown["lag"], shown["unacked"]) == ("owned/#", 1, 0)
    assert run(server, "group", "show", "$share/other").returncode == 3
    assert "owned/#" in run(server, "group", "show", "$share/og").stdout
    missing = run(server, "queue", "show", "owned-job")
    assert (missing.returncode, "there is no queue owned-job" in missing.stderr) == (3, True)
    assert run(server, "queue", "list", "--protocol", "smtp").returncode == 2
    connection.close()


def test_sessions_and_subscriptions(managed: tuple[Gantry, str]) -> None:
    server, _ = managed
    kept = Paho(server, "owned-kept", clean=False).start()
    kept.subscribe(("owned-s/#", 1))
    kept.stop()
    sender = Paho(server, "owned-sender").start()
    for number in range(3):
        sender.publish("owned-s/x", str(number))
    sender.stop()
    (session,) = [row for row in rows(server, "session", "list") if row["client"] == "owned-kept"]
    assert (session["state"], session["waiting"], session["filters"]) == ("away", 3, 1)
    assert session["pinned_bytes"] > 0
    (shown,) = rows(server, "session", "show", "owned-kept")
    assert (shown["filters"], shown["waiting"]) == (["owned-s/#"], 3)
    assert run(server, "session", "show", "nobody").returncode == 3
    with Sink() as sink:
        host, port = server.address("cloudevents")
        base = f"http://{host}:{port}"
        wanted = {"protocol": "HTTP", "sink": sink.url, "types": ["a.b"], "config": {"topic": "owned-e"}}
        answer = httpx.post(f"{base}/subscriptions", json=wanted, timeout=60)
        assert answer.status_code == 201, answer.text
        identity = answer.json()["id"]
        found = {row["subscription"]: row for row in rows(server, "subscription", "list")}
        assert found["owned-kept/owned-s/#"]["ready"] == 3
        assert (found[identity]["to"], found[identity]["status"], found[identity]["ready"]) == (sink.url, "active", 0)
        (shown,) = rows(server, "subscription", "show", identity)
        assert (shown["types"], shown["protocol"]) == (["a.b"], "events")
        assert shown["last_error"] == ""
        nowhere = wanted | {"sink": f"http://127.0.0.1:{free_port()}/"}
        identity = httpx.post(f"{base}/subscriptions", json=nowhere, timeout=60).json()["id"]
        event = {"ce-specversion": "1.0", "ce-id": "1", "ce-type": "a.b", "ce-source": "/s"}
        assert httpx.post(f"{base}/topics/owned-e", headers=event, content=b"x", timeout=60).status_code == 202
        until(lambda: "refused" in rows(server, "subscription", "show", identity)[0]["last_error"].lower())


def test_a_session_shows_its_filters_wherever_their_rows_are(managed: tuple[Gantry, str]) -> None:
    server, _ = managed
    texts = [f"owned-m/{number}" for number in range(75)]  # from the 33rd on each has a row of its own
    kept = Paho(server, "owned-many", clean=False).start()
    kept.subscribe(*[(text, 1) for text in texts])
    kept.stop()
    sender = Paho(server, "owned-sender").start()
    for text in (texts[0], texts[40], texts[74]):
        sender.publish(text, "x")
    sender.stop()
    (listed,) = [row for row in rows(server, "session", "list") if row["client"] == "owned-many"]
    assert (listed["filters"], listed["waiting"]) == (75, 3)
    (shown,) = rows(server, "session", "show", "owned-many")
    assert shown["filters"] == sorted(texts)
    assert shown["waiting"] == 3
    assert all(text in run(server, "session", "show", "owned-many").stdout for text in texts)


def test_connections(managed: tuple[Gantry, str]) -> None:
    server, api = managed
    connection = connect(server)
    channel = connection.channel()
    channel.queue_declare("owned-c", exclusive=True)
    channel.basic_consume("owned-c", lambda *_: None)
    client = Paho(server, "owned-live").start()
    client.subscribe(("owned-live/#", 1))

    def both() -> dict[str, Any]:
        found = {row["protocol"]: row for row in rows(server, "connection", "list", "--api", api)}
        return found if found.keys() == {"amqp", "mqtt"} else {}

    found = until(both)
    assert (found["amqp"]["consumes"], found["amqp"]["channels"]) == (["owned-c"], 1)
    assert (found["mqtt"]["connection"], found["mqtt"]["consumes"]) == ("owned-live", ["owned-live/#"])
    (shown,) = rows(server, "connection", "show", "owned-live", "--protocol", "mqtt")
    assert shown["peer"].startswith("127.0.0.1")
    assert run(server, "connection", "show", "nobody", "--protocol", "mqtt").returncode == 3
    client.stop()
    connection.close()
