"""kill -9 of the server in the middle of acknowledged publishes: sessions, their backlog and retained messages survive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests.running import Gantry
from interop_tests.test_mqtt_paho import WAIT_S, Paho
from interop_tests.waiting import until

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
        until(sent[500][1].is_published)
        own_server.processes[0].kill()
        acknowledged += [name for name, info in sent if info.is_published()]
        pub.client.loop_stop()
        own_server.processes[0].start()
    sub = Paho(own_server, "keeper", False).start()
    assert sub.present
    got: list[str] = []
    while not set(acknowledged) <= set(got):
        message = sub.messages.get(timeout=WAIT_S)
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
    sub = Paho(own_server, "slow", False, manual_ack=True).start()
    sub.subscribe(("s", 1))
    pub = Paho(own_server).start()
    for i in range(20):
        pub.publish("s", str(i))
    first = [sub.messages.get(timeout=WAIT_S) for _ in range(20)]
    for message in first[:10]:
        sub.client.ack(message.mid, message.qos)
    sub.publish("other", "the acknowledgements went before this")
    sub.client.loop_stop()  # or it would be back before `again`
    pub.client.loop_stop()
    own_server.kill_and_restart()
    again = Paho(own_server, "slow", False).start()
    assert again.present
    got = [again.messages.get(timeout=WAIT_S) for _ in range(10)]
    assert [(m.payload, m.dup) for m in got] == [(b"%d" % i, True) for i in range(10, 20)]
    again.stop()


@pytest.fixture
def separated(tmp_path: Path) -> Iterator[Gantry]:
    gantry = Gantry(tmp_path, "separated")
    try:
        yield gantry.start()
    finally:
        gantry.stop()


@pytest.mark.parametrize("killed", ["gateway", "broker"])
def test_one_of_three_processes_is_killed(separated: Gantry, killed: str) -> None:
    sub = Paho(separated, "keeper", False, manual_ack=True).start()
    sub.subscribe(("k/#", 1))
    pub = Paho(separated).start()
    pub.publish("k/a", "1")
    pub.publish("k/b", "kept", retain=True)
    assert sub.receive(2) == [("k/a", b"1"), ("k/b", b"kept")]
    separated.process(killed).kill()
    sub.event("disconnect")
    sub.client.loop_stop()
    pub.client.loop_stop()
    separated.process(killed).start()
    again = _when_let_in(separated)
    assert again.present
    assert again.receive(2) == [("k/a", b"1"), ("k/b", b"kept")]
    pub = Paho(separated).start()
    pub.publish("k/c", "3")
    assert again.receive(1) == [("k/c", b"3")]
    fresh = Paho(separated).start()
    fresh.subscribe(("k/b", 1))
    assert fresh.receive(1) == [("k/b", b"kept")]
    for client in (again, pub, fresh):
        client.stop()


@pytest.mark.parametrize("killed", ["gateway", "broker"])
def test_the_will_of_a_killed_process(separated: Gantry, killed: str) -> None:
    keeper = Paho(separated, "keeper", False).start()
    keeper.subscribe(("will/#", 1))
    keeper.client.loop_stop()
    lost = Paho(separated, will=("will/t", "gone", 1)).start()
    separated.process(killed).kill()
    lost.event("disconnect")
    lost.client.loop_stop()
    separated.process(killed).start()
    again = _when_let_in(separated)
    assert again.receive(1) == [("will/t", b"gone")]
    again.stop()


def _when_let_in(server: Gantry) -> Paho:
    """A gateway that has lost its broker is shut, or refuses with return code 3, until it has found it again."""
    return until(lambda: Paho(server, "keeper", False).start(), ignored=(AssertionError, OSError))


def test_qos_2_comes_once_through_kills(own_server: Gantry) -> None:
    """From publisher to log and from log to subscriber, with paho's own exchange on both sides and kills in the middle of it."""
    count = 900
    sub = Paho(own_server, "once", False, reconnect=False)
    sub.client.manual_ack_set(
        False
    )  # with it paho answers no PUBREL of a message that it has done with: the PUBCOMP that a kill took
    sub.start()
    sub.subscribe(("once/#", 2), ("once/+", 2))
    pub = Paho(own_server, "sender", False, reconnect=False).start()
    sent = [pub.client.publish(f"once/{i % 3}", str(i), 2) for i in range(count)]
    got: list[int] = []
    for limit in (200, 500):
        while len(got) < limit:
            got.append(int(sub.messages.get(timeout=WAIT_S).payload))
        own_server.kill_and_restart()
        # One attempt for each kill: at a second one paho publishes anew what it had released, without DUP: its own QoS 2 is broken then.
        for client in (sub.client, pub.client):
            client.loop_stop()
            client.reconnect()
            client.loop_start()
    until(lambda: all(info.is_published() for info in sent))
    pub.publish("once/end", str(count), qos=2)
    while count not in got:
        got.append(int(sub.messages.get(timeout=WAIT_S).payload))
    sub.stop()
    pub.stop()
    assert sorted(got) == list(range(count + 1))
