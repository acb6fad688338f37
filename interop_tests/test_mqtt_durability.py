"""kill -9 of the server in the middle of acknowledged publishes: sessions, their backlog and retained messages survive."""

from __future__ import annotations

import pytest

from interop_tests.running import Gantry
from interop_tests.test_mqtt_paho import Paho

pytestmark = pytest.mark.crash


def test_backlog_and_retained_survive_kill(own_server: Gantry) -> None:
    sub = Paho(own_server, "keeper", False).start()
    sub.subscribe(("k/#", 1), ("k/+", 1))
    sub.stop()
    acknowledged: list[str] = []
    for round_ in range(2):
        pub = Paho(own_server).start()
        pub.publish("k/r", f"kept {round_}", retain=True)
        acknowledged.append(f"kept {round_}")
        sent = [(f"{round_}.{i}", pub.client.publish("k/a", f"{round_}.{i}", 1)) for i in range(2000)]
        sent[500][1].wait_for_publish(10)
        own_server.processes[0].kill()
        acknowledged += [name for name, info in sent if info.is_published()]
        pub.client.loop_stop()
        own_server.processes[0].start()
    sub = Paho(own_server, "keeper", False).start()
    assert sub.present
    got: list[str] = []
    while not set(acknowledged) <= set(got):
        message = sub.messages.get(timeout=10)
        got.append(message.payload.decode())
    assert len(acknowledged) > 1000
    order = [name for name in dict.fromkeys(got) if name.startswith("1.")]
    assert order == sorted(order, key=lambda name: int(name.partition(".")[2]))
    fresh = Paho(own_server).start()
    fresh.subscribe(("k/r", 1))
    assert fresh.receive(1) == [("k/r", b"kept 1")]
    fresh.stop()
    sub.stop()


def test_unacknowledged_deliveries_come_again(own_server: Gantry) -> None:
    sub = Paho(own_server, "slow", False)
    sub.client.manual_ack_set(True)
    sub.start()
    sub.subscribe(("s", 1))
    pub = Paho(own_server).start()
    for i in range(20):
        pub.publish("s", str(i))
    first = [sub.messages.get(timeout=10) for _ in range(20)]
    for message in first[:10]:
        sub.client.ack(message.mid, message.qos)
    sub.publish("other", "the acknowledgements went before this")
    own_server.kill_and_restart()
    sub.client.loop_stop()
    pub.client.loop_stop()
    again = Paho(own_server, "slow", False).start()
    assert again.present
    got = [again.messages.get(timeout=10) for _ in range(10)]
    assert [(m.payload, m.dup) for m in got] == [(b"%d" % i, True) for i in range(10, 20)]
    again.stop()
