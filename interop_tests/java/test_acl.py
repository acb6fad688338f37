"""RocketMQ's own Java client with its ACL hook: the same user, with the same rights, against this broker and against a real one with ACL 2.0."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from interop_tests.accounts import ADMIN, PASSWORD, Guarded
from interop_tests.java import official
from interop_tests.mqadmin import driver
from interop_tests.mqadmin.test_accounts import WITH_ACL, home_of
from interop_tests.real_broker import REAL_BROKER, peer
from interop_tests.running import free_port
from interop_tests.waiting import until

pytestmark = REAL_BROKER

RULES = (
    ("Topic:own", "Pub,Sub"),
    ("Topic:%RETRY%readers", "Pub,Sub"),
    ("Group:readers", "Sub"),
    ("Group:acl-producer", "Sub"),
)
EXPECTED = [
    "sent 4", "consumed true true", "send to others 16", "pull of others' group 16", "pull of others' topic 16", "wrong secret 16",
    "no signature 16",
]  # fmt: skip


def prepare(java: driver.Driver, nameserver: str, broker: str) -> None:
    """Topics, a user and his rights, with mqadmin."""
    steps = [
        *[f"updateTopic -n {nameserver} -b {broker} -t {topic} -r 2 -w 2" for topic in ("own", "others")],
        f"createUser -n {nameserver} -b {broker} -u alice -p alice-pass -t Normal",
        *[
            f"createAcl -n {nameserver} -b {broker} -s User:alice -r {resource} -a {actions} -d Allow"
            for resource, actions in RULES
        ],
    ]
    for step in steps:
        text = java.run(*step.split(), limit_ms=120_000)
        assert "success" in text or "create topic to" in text, f"{step}\n{text}"


def talk(nameserver: str, directory: Path) -> list[str]:
    arguments = (nameserver, "alice", "alice-pass", "own", "others", "readers", "strangers")
    return official.printed("Acl", directory, *arguments)


def test_a_java_client_with_acl_on_a_real_broker_and_on_ours(tmp_path: Path) -> None:
    nameserver, broker = free_port(), free_port(-2, 1)
    real, ours = str(tmp_path / "real"), Guarded(tmp_path)
    try:
        peer("start", real, str(nameserver), str(broker), RMQ_BROKER_EXTRA=WITH_ACL)
        ours.start()
        sides = [(f"127.0.0.1:{nameserver}", f"127.0.0.1:{broker}"), (ours.doors["nameserver"], ours.doors["broker"])]
        with driver.Driver(home_of(tmp_path / "home", ADMIN, PASSWORD)) as java:
            for side in sides:
                prepare(java, *side)
        theirs, our = [talk(side[0], tmp_path) for side in sides]
        assert [line for line in theirs if not line.startswith("id ")] == EXPECTED
        assert [line for line in our if not line.startswith("id ")] == EXPECTED
        ids = [line.partition(" ")[2] for line in our if line.startswith("id ")]
        assert len(ids) == 4
        until(
            lambda: all(traced(ours, each) for each in ids)
        )  # message trace works though alice has no right to its topic
        said = ours.log()
        assert "Traceback" not in said
        assert "alice-pass" not in said
    finally:
        peer("kill", real)
        ours.stop()


def traced(server: Guarded, message_id: str) -> bool:
    """Sent, as the client's own trace says."""
    environment = {"PATH": os.environ["PATH"], "GANTRY_USER": ADMIN, "GANTRY_PASSWORD": PASSWORD}
    command = [sys.executable, "-m", "gantrymq", "trace", message_id, "--json", "--nameserver", server.nameserver]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode == 0 and '"group": "acl-producer"' in done.stdout
