"""What the driver asks nameservers and brokers, over real sockets."""

from core.tests.client.fake_cluster import FakeCluster
from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.spark.wire import Metadata

Q0, Q1 = (MessageQueue("telemetry", "broker-a", number) for number in range(2))


def test_topics_are_neither_brokers_nor_clusters(cluster: FakeCluster) -> None:
    assert set(Metadata([cluster.nameserver]).topics()) == {"telemetry", "TBW102", "rmq_sys_gantry_x"}


def test_offsets_by_time_sizes_and_commits(cluster: FakeCluster) -> None:
    for number in range(50):
        cluster.broker().append("telemetry", 0, bytes(100), store_ms=1000 + number)
    metadata = Metadata([cluster.nameserver])
    queues = metadata.queues(["telemetry"])
    assert metadata.offsets_at(queues, {Q0: 1020, Q1: 0}) == {Q0: 20, Q1: 0}
    sizes = metadata.record_bytes(queues, {Q0: 10, Q1: 0}, "g")
    assert 200 <= sizes[Q0] <= 210
    assert sizes[Q1] == 0
    metadata.commit(queues, {Q0: 7, Q1: 0}, "g")
    assert cluster.broker().offsets == {("g", "telemetry", 0): 7, ("g", "telemetry", 1): 0}
