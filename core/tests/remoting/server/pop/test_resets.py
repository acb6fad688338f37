"""Resets of a group's offset that pops hear of."""

from gantrymq.remoting.constants import RequestCode as Code
from tests.remoting.bench import TOPIC, Bench, ask, pull
from tests.remoting.pop_client import GROUP, ack, batch_ack, pop
from tests.remoting.server.pop.test_requests import bodies, committed, fill
from tests.remoting.server.pulling.test_pulls import bodies_of


def test_reset_goes_back(bench: Bench) -> None:
    fill(bench, 5)
    link = bench.connect()
    held = pop(link, maxMsgNums=4)
    batch_ack(link, held[:3])
    bench.broker.pops.reset(GROUP, TOPIC, 0, 1)
    bench.turn.run_until_quiet()
    assert committed(bench) == 1
    again = pop(link)
    assert [(m.body, m.times) for m in again] == [(b"m%d" % i, 0) for i in range(1, 5)]
    ack(link, held[3])
    assert committed(bench) == 1


def test_reset_before_the_first_pop_is_heard_of_by_it(bench: Bench) -> None:
    """RocketMQ: PopMessageProcessor.resetPopOffset. Until then commits do not count, and a pull would go back."""
    fill(bench, 5)
    link = bench.connect()
    bench.doors.groups.ensure(GROUP)
    reset = {"group": GROUP, "topic": TOPIC, "timestamp": -1, "isForce": True, "queueId": 0, "offset": 2}
    assert ask(link, Code.INVOKE_BROKER_TO_RESET_OFFSET, **reset).code == 0
    messages = pop(link, order=True)
    assert bodies(messages) == [b"m2", b"m3", b"m4"]
    for message in messages:
        ack(link, message)
    assert committed(bench) == 5
    assert bench.broker.offsets.resets == {}
    answer = pull(link, consumerGroup=GROUP, queueOffset=4)
    assert answer.code == 0
    assert bodies_of(answer.body) == [b"m4"]
