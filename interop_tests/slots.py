"""What `gantry cluster slots` and `forwards` say of a cluster of processes, and names that a broker decides about."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from gantrymq.broker.port import lease_name, row_name
from gantrymq.broker.tables.slot_table import SLOTS, slot_of
from gantrymq_gateways.mqtt.sessions.lifecycle import GROUP_PREFIX
from gantrymq_gateways.mqtt.tables import SESSION_TABLE
from interop_tests.running import Cluster
from interop_tests.waiting import until


def gantry(cluster: Cluster, *words: str, code: int | None = 0) -> str:
    """What a command says, in one line where it breaks its text, and that it ends with `code`; None: with any."""
    command = [sys.executable, "-m", "gantrymq", *words, "--nameserver", cluster.nameservers]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


def rows(cluster: Cluster, *words: str) -> list[dict[str, Any]]:
    """What a command says with `--json`."""
    command = [sys.executable, "-m", "gantrymq", *words, "--json", "--nameserver", cluster.nameservers]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def owned(cluster: Cluster) -> dict[str, list[int]]:
    """Slots of each broker that answers for its own."""
    return {row["broker"]: row["slots"] for row in rows(cluster, "cluster", "slots") if not row["silent"]}


def are_shared(cluster: Cluster, brokers: int) -> bool:
    """Each of so many brokers answers for some slots, and all of them for all."""
    found = [len(slots) for slots in owned(cluster).values() if slots]
    return sum(found) == SLOTS and len(found) == brokers


def client_of(cluster: Cluster, owner: str, prefix: str) -> str:
    """A client id whose lease and session are that broker's."""
    slots = set(owned(cluster)[owner])
    names = (f"{prefix}{number}" for number in range(10_000))
    return next(
        name
        for name in names
        if {slot_of(lease_name(GROUP_PREFIX + name)), slot_of(row_name(SESSION_TABLE, name))} <= slots
    )


def forget(cluster: Cluster, broker: str) -> None:
    """`gantry cluster forget`, as soon as the nameservers have dropped a broker that was stopped."""
    said = f"slots of broker {broker} are other brokers' now"
    until(lambda: said in gantry(cluster, "cluster", "forget", broker, "--yes", code=None))
