"""Live messages to sessions with volatile filters: one tap per gateway process, one route number per distinct filter.

Nothing is kept here: a message goes from the append batch into the outboxes of its receivers. What a receiver cannot take now
it defers itself (`VolatileSession.defer`); QoS 0 goes on to `mqtt.outbound_bytes_max` and is dropped and counted beyond it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol

from gantrymq.broker.port import Done, RoutePort, is_error
from gantrymq.model.message import Message
from gantrymq.net.procedures.driver import Call, call
from gantrymq_gateways.mqtt.messages.deliver import FETCH_BYTES_MAX, Outlet, body_of, message_qos
from gantrymq_gateways.mqtt.routes import KIND
from gantrymq_gateways.mqtt.topics.mapping import DeliveryTopics
from gantrymq_gateways.mqtt.topics.rules import NO_RULES, TopicRules
from gantrymq_gateways.mqtt.wire import codec

log = logging.getLogger(__name__)

RECEIVERS_CACHE_MAX = 10_000
"""Distinct combinations of filters kept resolved; at the limit the cache starts anew."""

Records = list[tuple[Message, tuple[int, ...]]]


class Receiver(Protocol):
    """A session behind volatile filters."""

    outlet: Outlet

    def defer(self, message: Message) -> None:
        """A QoS 1 message that cannot be sent now."""


Receivers = tuple[list[tuple[Receiver, Outlet, int]], list[tuple[Receiver, Outlet, int]]]
"""Who gets a message, with the highest QoS granted: ordinary clients, and bridges, for which each message is looked at."""


class _Filter:
    __slots__ = ("expression", "number", "ready", "receivers", "text", "topic", "waiting")

    def __init__(self, text: str, number: int, rules: TopicRules) -> None:
        self.text = text
        self.number = number
        self.topic, self.expression = rules.filter_route(text)
        self.receivers: dict[Any, int] = {}
        self.ready = False
        self.waiting: list[tuple[object, Done]] = []
        """Who waits for the route to be installed."""


class Fanout:
    """Filters of clean sessions and their receivers."""

    def __init__(self, port: RoutePort, topics: DeliveryTopics, rules: TopicRules = NO_RULES) -> None:
        self._rules = rules
        self._port = port
        self._topics = topics
        self._tap = 0
        self._by_text: dict[str, _Filter] = {}
        self._by_number: dict[int, _Filter] = {}
        self._next_number = 1
        self._cache: dict[tuple[int, ...], Receivers] = {}
        self.deliveries = 0
        """Messages handed to clients that are connected, by filters of clean sessions."""
        self.dropped = 0
        """QoS 0 messages that a client was too slow for."""

    def open(self) -> Call:
        """The call that opens the tap; hand its result to `opened`."""
        return call(self._port.open_tap, self.on_records)

    def opened(self, tap: int) -> None:
        """The tap that volatile routes belong to."""
        self._tap = tap

    def close(self) -> None:
        """Drop everything."""
        if self._tap:
            self._port.close_tap(self._tap)
            self._tap = 0
        self._by_text.clear()
        self._by_number.clear()
        self._cache.clear()

    def attach(self, text: str, receiver: Receiver, qos: int) -> Call | None:
        """Add or change a subscription. The call that must succeed before it counts, or None if the route is there."""
        found = self._by_text.get(text)
        if found is None:
            found = _Filter(text, self._next_number, self._rules)
            self._next_number += 1
            self._by_text[text] = found
            self._by_number[found.number] = found
        found.receivers[receiver] = qos
        self._cache.clear()
        return None if found.ready else partial(self._install, found)

    def _install(self, found: _Filter, token: object, on_done: Done) -> None:
        found.waiting.append((token, on_done))
        if len(found.waiting) == 1:
            self._port.add_volatile(
                self._tap, found.number, KIND, found.topic, found.expression, found, self._installed
            )

    def _installed(self, found: _Filter, result: object) -> None:
        waiting, found.waiting = found.waiting, []
        found.ready = not is_error(result)
        for token, on_done in waiting:
            on_done(token, result)

    def leave(self, texts: Iterable[str], receiver: Receiver) -> list[str]:
        """End all of a receiver's subscriptions at once. Filters that nobody has any more are the result: the caller takes their routes
        away with `remove_unused`, which is most of the work, a few at a time."""
        unused = []
        for text in texts:
            found = self._by_text.get(text)
            if found is not None and found.receivers.pop(receiver, None) is not None and not found.receivers:
                unused.append(text)
        self._cache.clear()
        return unused

    def remove_unused(self, text: str) -> None:
        """Take the route of a filter away if nobody came for it meanwhile."""
        found = self._by_text.get(text)
        if found is not None and not found.receivers:
            self._remove(found)

    def _remove(self, found: _Filter) -> None:
        del self._by_text[found.text]
        del self._by_number[found.number]
        self._port.remove_volatile(self._tap, [found.number])

    def detach(self, text: str, receiver: Receiver) -> None:
        """End a subscription; the last one takes the route away."""
        found = self._by_text.get(text)
        if found is None or found.receivers.pop(receiver, None) is None:
            return
        self._cache.clear()
        if not found.receivers:
            self._remove(found)

    def _resolve(self, numbers: tuple[int, ...]) -> Receivers:
        """Each receiver once, at the highest QoS of its matching filters [MQTT-3.3.5-1]."""
        best: dict[Any, int] = {}
        for number in numbers:
            found = self._by_number.get(number)
            if found is not None:
                for receiver, qos in found.receivers.items():
                    if qos > best.get(receiver, -1):
                        best[receiver] = qos
        if len(self._cache) >= RECEIVERS_CACHE_MAX:
            self._cache.clear()
        everybody = [(receiver, receiver.outlet, qos) for receiver, qos in best.items()]
        receivers = [one for one in everybody if not one[1].bridge], [one for one in everybody if one[1].bridge]
        self._cache[numbers] = receivers
        return receivers

    def on_records(self, records: Records) -> None:
        """Deliver one append batch's matches. The hot path of fan-out."""
        cache = self._cache
        for message, numbers in records:
            receivers, bridges = cache.get(numbers) or self._resolve(numbers)
            if not receivers and not bridges:
                continue
            topic = self._topics.get(message.topic, message.tag)
            body = message.body if not message.sys_flag & 1 else body_of(message)
            if not topic or body is None:
                log.warning(
                    "record at %d cannot be sent over MQTT: no topic or a broken body",
                    message.physical_offset,
                )
                continue
            if receivers:
                self._deliver(message, receivers, topic, body)
            for receiver, outlet, granted in bridges:
                if not outlet.returns(message):
                    self._deliver_to_bridge(message, receiver, outlet, granted, topic, body)

    def _deliver_to_bridge(
        self, message: Message, receiver: Receiver, outlet: Outlet, granted: int, topic: bytes, body: bytes
    ) -> None:
        retain = outlet.retain_flag(message)
        if granted and message_qos(message):
            if not outlet.direct or outlet.room() <= 0:
                receiver.defer(message)
                return
            outlet.publish(topic, body, 2 | retain, None)
        elif outlet.blocked and not outlet.takes(len(topic) + len(body)):
            self.dropped += 1
            return
        else:
            outlet.publish(topic, body, retain, None)
        self.deliveries += 1

    def _deliver(
        self, message: Message, receivers: list[tuple[Receiver, Outlet, int]], topic: bytes, body: bytes
    ) -> None:
        qos = message_qos(message)
        packet = head = b""
        size = count = 0
        for receiver, outlet, granted in receivers:
            if granted and qos:
                inflight = outlet.inflight
                if not outlet.direct or outlet.blocked or len(inflight) >= outlet.inflight_max:
                    receiver.defer(message)
                    continue
                if not head:
                    head = codec.encode_publish_head(topic, len(body), 2)
                    size = len(head) + 2 + len(body)
                packet_id = outlet.next_id
                if packet_id in inflight or packet_id == 65_535:
                    packet_id = outlet.take_id()
                else:
                    outlet.next_id = packet_id + 1
                inflight[packet_id] = None
                outlet.outbox += (head, packet_id.to_bytes(2, "big"), body)
                connection = outlet.connection
                sent = connection.outbox_bytes = connection.outbox_bytes + size
            else:
                if not packet:
                    packet = codec.encode_publish_head(topic, len(body), 0) + body
                if outlet.blocked and not outlet.takes(len(packet)):
                    self.dropped += 1
                    continue
                outlet.outbox.append(packet)
                connection = outlet.connection
                sent = connection.outbox_bytes = connection.outbox_bytes + len(packet)
            count += 1
            outlet.link.mark()
            if sent > FETCH_BYTES_MAX:
                outlet.blocked = True
        self.deliveries += count
