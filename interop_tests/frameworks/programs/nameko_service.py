"""nameko's services: `nameko run nameko_service` runs them."""

import os
from pathlib import Path

from kombu import Exchange, Queue
from nameko.events import BROADCAST, EventDispatcher, event_handler
from nameko.messaging import Publisher, consume
from nameko.rpc import RpcProxy, rpc

PLACE = Path(os.environ["PLACE"])
ORDERS = Exchange("nameko-orders", type="direct")


def note(line):
    with (PLACE / "nameko").open("a") as file:
        file.write(f"{line}\n")


class Sums:
    name = "sums"
    dispatch = EventDispatcher()
    publish = Publisher(exchange=ORDERS, routing_key="order")

    @rpc
    def add(self, x, y):
        self.dispatch("added", {"sum": x + y})
        self.publish(f"order {x}")
        return x + y

    @rpc
    def fail(self):
        raise ValueError("told to the caller")


class Front:
    name = "front"
    sums = RpcProxy("sums")

    @rpc
    def add_twice(self, x):
        return self.sums.add(x, x)

    @event_handler("sums", "added")
    def one_hears(self, event):
        note(f"one {event['sum']}")

    @event_handler("sums", "added", handler_type=BROADCAST, reliable_delivery=False)
    def all_hear(self, event):
        note(f"all {event['sum']}")

    @consume(Queue("nameko-orders", exchange=ORDERS, routing_key="order"))
    def ordered(self, text):
        note(text)
