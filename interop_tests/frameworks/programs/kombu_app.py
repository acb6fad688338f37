"""kombu by itself: queues with options, a mixin with its own producer, simple queues, a mailbox."""

import os
import threading
import time

from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.mixins import ConsumerProducerMixin
from kombu.pidbox import Mailbox

URL = os.environ["AMQP_URL"]


def simple(connection):
    queue = connection.SimpleQueue("simple")
    for number in range(10):
        queue.put({"number": number})
    for number in range(10):
        message = queue.get(timeout=30)
        assert message.payload == {"number": number}
        message.ack()
    queue.close()


def options(connection):
    dead = Queue("options.dead", Exchange("options.dead", type="fanout"))
    queue = Queue(
        "options",
        Exchange("options", type="topic"),
        routing_key="a.#",
        expires=60,
        message_ttl=0.2,
        max_length=10,
        queue_arguments={"x-dead-letter-exchange": "options.dead"},
    )
    got = []
    channel = connection.channel()
    dead(channel).declare()
    queue(channel).declare()
    producer = Producer(channel, queue.exchange)
    producer.publish("kept", routing_key="a.b", retry=True)
    with Consumer(
        channel, dead, callbacks=[lambda body, message: (got.append((body, message.headers)), message.ack())]
    ):
        drain(connection, lambda: got)
    assert got[0][0] == "kept"
    assert got[0][1]["x-death"][0]["reason"] == "expired"


def drain(connection, condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        try:
            connection.drain_events(timeout=1)
        except TimeoutError:
            continue


class Server(ConsumerProducerMixin):
    def __init__(self, connection):
        self.connection = connection

    def get_consumers(self, consumer_class, channel):
        return [consumer_class(queues=[Queue("server")], on_message=self.answer)]

    def answer(self, message):
        self.producer.publish(
            {"twice": 2 * message.payload["number"]},
            routing_key=message.properties["reply_to"],
            correlation_id=message.properties["correlation_id"],
            retry=True,
        )
        message.ack()
        self.should_stop = True


def mixin(connection):
    answers = []
    back = Queue("", exclusive=True, auto_delete=True)(connection.channel())
    back.declare()
    server = Queue("server")(connection.channel())
    server.declare()
    Producer(connection.channel()).publish({"number": 21}, routing_key="server", reply_to=back.name, correlation_id="1")
    Server(connection.clone()).run()
    with Consumer(connection.channel(), back, callbacks=[lambda body, message: answers.append(body)], no_ack=True):
        drain(connection, lambda: answers)
    assert answers == [{"twice": 42}]


def mailbox(connection):
    """Remote control as Celery has it: a node hears a call to everybody and answers to the caller's reply queue."""
    box = Mailbox("proof", type="fanout")
    behind = connection.clone()
    node = box(behind).Node("one", channel=behind.channel())
    node.handlers["ping"] = lambda state, **_: "pong"
    node.listen(callback=node.handle_message)
    finished = []
    server = threading.Thread(target=drain, args=(behind, lambda: finished))
    server.start()
    try:
        assert box(connection).call(["one"], "ping", timeout=30) == [{"one": "pong"}]
    finally:
        finished.append(True)
        server.join()


with Connection(URL) as connection:
    for part in (simple, options, mixin, mailbox):
        part(connection)
print("done")
