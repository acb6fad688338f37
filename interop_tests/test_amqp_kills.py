"""kill -9 again and again in the middle of queues with a limit and of requeued messages, by pika: nothing that was confirmed is lost but what the limit
takes out, the limit holds after each start, and what comes back is in its place, once, and marked."""

from __future__ import annotations

import gc
import itertools
import random
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

from interop_tests.running import Gantry
from interop_tests.test_amqp_crash import connect
from interop_tests.waiting import LIMIT_S, until

pytestmark = [
    pytest.mark.crash,
    # pika leaves the sockets of connections that were cut to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

QUEUE = "kills"
ROUNDS = 5
PUBLISHERS = 3
LIMIT = 40
GONE = (pika.exceptions.AMQPError, OSError)
"""What a client gets of a server that was killed; pika checks with `assert` what it finds then, too."""

WAYS = ("nack all", "nack some", "reject", "recover", "close", "hold")

Number = tuple[int, int]
"""Of a publisher, ascending."""


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Abandoned sockets are collected while their warnings are expected."""
    yield
    gc.collect()


class Publisher:
    """A thread that publishes and waits for each confirmation, until the server is gone."""

    def __init__(self, server: Gantry, name: int, numbers: Iterator[int]) -> None:
        self.server = server
        self.name = name
        self.numbers = numbers
        self.confirmed: list[Number] = []
        self.refused: list[Number] = []
        self.last: Number = (name, -1)
        """What it was not told about, if it is neither confirmed nor refused."""
        self.thread = threading.Thread(target=until_lost, args=(self.publish,))

    def publish(self) -> None:
        channel = connect(self.server).channel()
        channel.confirm_delivery()
        for number in self.numbers:
            self.last = (self.name, number)
            try:
                channel.basic_publish("", QUEUE, b"%d %d" % self.last, pika.BasicProperties(delivery_mode=2))
            except pika.exceptions.NackError:
                self.refused.append(self.last)
            else:
                self.confirmed.append(self.last)

    @property
    def sent(self) -> int:
        return len(self.confirmed) + len(self.refused)


def until_lost(work: Callable[[], None]) -> None:
    try:
        work()
    except GONE:
        return


class Kills:
    """The server, and what its clients know."""

    def __init__(self, server: Gantry, seed: int, arguments: dict[str, Any]) -> None:
        self.server = server
        self.lot = random.Random(seed)
        self.counts = [itertools.count() for _ in range(PUBLISHERS)]
        self.publishers: list[Publisher] = []
        channel = connect(server).channel()
        channel.queue_declare(QUEUE, durable=True, arguments=arguments)
        channel.connection.close()

    def round(self, *others: Callable[[], None], at_least: int) -> None:
        """Publish, and do the other things beside it; kill the server somewhere beyond `at_least` answers of each, start it again."""
        self.publishers = [Publisher(self.server, name, numbers) for name, numbers in enumerate(self.counts)]
        threads = [publisher.thread for publisher in self.publishers]
        threads += [threading.Thread(target=until_lost, args=(other,)) for other in others]
        for thread in threads:
            thread.start()
        enough = at_least + self.lot.randrange(70)
        until(lambda: all(publisher.sent >= enough for publisher in self.publishers))
        self.server.kill_and_restart()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()

    def take_all(self) -> list[tuple[Number, bool]]:
        """Everything in the queue, and whether it is redelivered; it is acknowledged when the broker has answered."""
        connection = connect(self.server)
        channel = connection.channel()
        found = []
        while True:
            method, _, body = channel.basic_get(QUEUE)
            if method is None:
                break
            found.append((number_of(body), method.redelivered))
        channel.basic_ack(0, multiple=True)
        assert channel.queue_declare(QUEUE, passive=True).method.message_count == 0
        connection.close()
        return found


def number_of(body: bytes) -> Number:
    name, _, number = body.decode().partition(" ")
    return int(name), int(number)


def in_order(numbers: list[Number]) -> None:
    """Nothing twice, and each publisher's in the order in which it sent them."""
    assert len(set(numbers)) == len(numbers)
    for name in range(PUBLISHERS):
        own = [number for number in numbers if number[0] == name]
        assert own == sorted(own)


@pytest.mark.parametrize("seed", range(2))
def test_a_queue_that_drops_its_head(own_server: Gantry, seed: int) -> None:
    kills = Kills(own_server, seed, {"x-max-length": LIMIT})
    held: list[Number] = []

    def hold() -> None:
        """A consumer that has some in hand, which come back and count again."""
        channel = connect(own_server).channel()
        channel.basic_qos(prefetch_count=10)
        for _, _, body in channel.consume(QUEUE):
            held.append(number_of(body))

    for round_ in range(ROUNDS):
        kills.round(*[hold] * (round_ % 2), at_least=LIMIT)
        numbers = [number for number, _ in kills.take_all()]
        in_order(numbers)
        assert len(numbers) == LIMIT
        for publisher in kills.publishers:
            own = [number for number in numbers if number[0] == publisher.name]
            newest = {publisher.confirmed[-1], publisher.last}
            assert not own or own[-1] in newest, "it is not the newest that are left"
            last = publisher.confirmed[-1][1]
            stored = [number for number in own if number[1] <= last]
            assert stored == publisher.confirmed[len(publisher.confirmed) - len(stored) :], "there is a hole"
    assert held


@pytest.mark.parametrize("seed", range(2))
def test_a_queue_that_refuses(own_server: Gantry, seed: int) -> None:
    kills = Kills(own_server, seed, {"x-max-length": LIMIT, "x-overflow": "reject-publish"})
    refused: set[Number] = set()
    for _ in range(ROUNDS):
        answered: list[Number] = []

        def take(answered: list[Number] = answered) -> None:
            """Room for new ones, again and again."""
            channel = connect(own_server).channel()
            while True:
                for _ in range(LIMIT // 2):
                    method, _, body = channel.basic_get(QUEUE)
                    if method is not None:
                        answered.append(number_of(body))
                        channel.basic_ack(method.delivery_tag)
                until(lambda: channel.queue_declare(QUEUE, passive=True).method.message_count == LIMIT)

        kills.round(take, at_least=LIMIT)
        refused.update(number for publisher in kills.publishers for number in publisher.refused)
        numbers = [number for number, _ in kills.take_all()]
        in_order(numbers)
        assert len(numbers) <= LIMIT + 1, "what had been taken and not answered is one, and comes back"
        assert refused.isdisjoint(numbers)
        assert refused.isdisjoint(answered)
        for publisher in kills.publishers:
            assert set(publisher.confirmed) <= {*numbers, *answered}
    assert refused


class Requeuer:
    """Takes messages of a queue and gives them back in every way there is; acknowledges some. The server may go at any moment."""

    def __init__(self, server: Gantry, seed: int) -> None:
        self.server = server
        self.lot = random.Random(seed)
        self.seen: set[Number] = set()
        self.acked: list[Number] = []
        """Asked for; the broker may not have heard of the last ones."""
        self.ways: set[str] = set()

    def run(self) -> None:
        while True:
            connection = connect(self.server)
            channel = connection.channel()
            for _ in range(self.lot.randrange(1, 4)):
                tags = self.take(channel)
                self.give_back(channel, tags)
                if channel.is_closed:
                    channel = connection.channel()
            if self.lot.random() < 0.5:
                connection.close()
            else:
                self.vanish(connection)

    def take(self, channel: Any) -> list[tuple[int, Number]]:
        found = []
        for _ in range(self.lot.randrange(1, 20)):
            method, _, body = channel.basic_get(QUEUE)
            if method is None:
                break
            assert method.redelivered or number_of(body) not in self.seen
            self.seen.add(number_of(body))
            found.append((method.delivery_tag, number_of(body)))
        return found

    def give_back(self, channel: Any, taken: list[tuple[int, Number]]) -> None:
        way = self.lot.choice(WAYS)
        self.ways.add(way)
        if way == "nack all":
            channel.basic_nack(0, multiple=True, requeue=True)
        elif way == "nack some":
            self.lot.shuffle(taken)
            for tag, number in taken[::2]:
                self.acked.append(number)
                channel.basic_ack(tag)
            for tag, _ in taken[1::2]:
                channel.basic_nack(tag, requeue=True)
        elif way == "reject":
            for tag, _ in reversed(taken):
                channel.basic_reject(tag, requeue=True)
        elif way == "recover":
            channel.basic_recover(requeue=True)
        elif way == "close":
            channel.close()

    def vanish(self, connection: Any) -> None:
        """The consumer dies: its socket ends, not a word is said."""
        connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
        with pytest.raises(GONE):
            connection.process_data_events()


@pytest.mark.parametrize("seed", range(2))
def test_requeued_messages(own_server: Gantry, seed: int) -> None:
    kills = Kills(own_server, seed, {})
    ways: set[str] = set()
    for round_ in range(ROUNDS):
        workers = [Requeuer(own_server, 10 * seed + 3 * round_ + number) for number in range(2)]
        kills.round(*[worker.run for worker in workers], at_least=150)
        found = kills.take_all()
        numbers = [number for number, _ in found]
        in_order(numbers)
        acked = {number for worker in workers for number in worker.acked}
        assert {number for one in kills.publishers for number in one.confirmed} - acked <= set(numbers), "lost"
        # What was asked for last may not have been heard.
        assert len(acked.intersection(numbers)) <= 10 * len(workers), "acknowledged long ago"
        seen = {number for worker in workers for number in worker.seen}
        assert seen.intersection(numbers), "nothing of what came back is there any more"
        assert all(redelivered for number, redelivered in found if number in seen), "came again without a word"
        ways |= {way for worker in workers for way in worker.ways}
    assert len(ways) == len(WAYS)
