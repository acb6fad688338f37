"""Shares as the Java classes of RocketMQ 5.3.3 compute them (data/allocation_vectors.json was printed by them)."""

import json
from pathlib import Path

import pytest

from gantrymq.client import allocation
from gantrymq.client.connecting.routes import MessageQueue

VECTORS = json.loads((Path(__file__).parent / "data" / "allocation_vectors.json").read_text())
STRATEGIES = {
    "averagely": allocation.averagely,
    "circle": allocation.circle,
    "consistent_hash": allocation.consistent_hash,
    "machine_room": allocation.machine_room(("room1", "room2")),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_shares_are_those_of_the_java_client(name: str) -> None:
    vectors = [vector for vector in VECTORS if vector["strategy"] == name]
    assert len(vectors) == 10
    for vector in vectors:
        queues = [MessageQueue("orders", broker, number) for broker, number in vector["queues"]]
        clients = sorted(vector["shares"])
        for client, share in vector["shares"].items():
            assert STRATEGIES[name](client, queues, clients) == [queues[row] for row in share], (name, client)


def test_queues_by_configuration() -> None:
    queues = [MessageQueue("orders", "broker-a", number) for number in range(4)]
    assert allocation.by_config(queues[1:3])("c", queues, ["a", "b", "c"]) == queues[1:3]
