"""Live messages to sessions with volatile filters: one tap per gateway process, one route number per distinct filter.

Nothing is kept here: a message goes from the append batch into the outboxes of its receivers. What a receiver cannot take now
it defers itself (`VolatileSession.defer`); QoS 0 goes on to `mqtt.outbound_bytes_max` and is dropped and counted beyond it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from gantrymq.broker.port import Done, RoutePort, is_error
from gantrymq.model.message import Message
from gantrymq.net.procedures.driver import Call, call
from gantrymq_gateways.mqtt.messages.deliver import FETCH_BYTES_MAX, Outlet, body_of
from gantrymq_gateways.mqtt.messages.exchange import AWAITING_RECEIPT
from gantrymq_gateways.mqtt.messages.facts import Facts, facts_of
from gantrymq_gateways.mqtt.messages.grants import PLAIN, QOS, Grant, combine
from gantrymq_gateways.mqtt.routes import KIND
from gantrymq_gateways.mqtt.topics.exclusive import plain
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

    def defer(self, message: Message, grant: Grant) -> None:
        """A message of QoS 1 or 2 that cannot be sent now."""


Plain = list[tuple[Receiver, Outlet, int]]


class Receivers:
    """Who gets a message. With the highest QoS granted: clients of 3.x and of 5.0 that get what others get, too. With all that they were granted:
    those for which each message is looked at (bridges, subscription options, topic aliases, small packets)."""

    __slots__ = ("five", "known", "others", "three")

    def __init__(self) -> None:
        self.known: set[Any] = set()
        """All of them."""
        self.three: Plain = []
        self.five: Plain = []
        self.others: list[tuple[Receiver, Outlet, tuple[int, ...]]] = []

    def add(self, receiver: Any, several: tuple[int, ...]) -> None:
        """One who is not there yet; `several`: what its filters were granted."""
        outlet: Outlet = receiver.outlet
        self.known.add(receiver)
        if max(several) > QOS or not outlet.is_plain:
            self.others.append((receiver, outlet, several))
        else:
            (self.five if outlet.five else self.three).append((receiver, outlet, max(several)))


class _Filter:
    __slots__ = ("expression", "number", "ready", "receivers", "text", "topic", "waiting")

    def __init__(self, text: str, number: int, rules: TopicRules) -> None:
        self.text = text
        self.number = number
        self.topic, self.expression = rules.filter_route(plain(text))
        self.receivers: dict[Any, int] = {}
        """What each was granted (messages/grants.py)."""
        self.ready = False
        self.waiting: list[tuple[object, Done]] = []
        """Who waits for the route to be installed."""


class Fanout:
    """Filters of clean sessions and their receivers."""

    def __init__(
        self, port: RoutePort, topics: DeliveryTopics, now_ms: Callable[[], int], rules: TopicRules = NO_RULES
    ) -> None:
        """`now_ms`: the wall clock, for messages that expire."""
        self._now_ms = now_ms
        self._rules = rules
        self._port = port
        self._topics = topics
        self._tap = 0
        self._by_text: dict[str, _Filter] = {}
        self._by_number: dict[int, _Filter] = {}
        self._next_number = 1
        self._cache: dict[tuple[int, ...], Receivers] = {}
        self._resolved: dict[int, set[tuple[int, ...]]] = {}
        """Number of a filter -> keys of the cache that it is in."""
        self.deliveries = 0
        """Messages handed to clients that are connected, by filters of clean sessions."""
        self.dropped = 0
        """QoS 0 messages that a client was too slow for."""
        self.expired = 0
        """Messages that had expired when they came."""

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
        self._forget()

    def _forget(self) -> None:
        self._cache.clear()
        self._resolved.clear()

    def _changed(self, number: int) -> None:
        """Other receivers than before, or granted otherwise: what was resolved with this filter is so no more."""
        for numbers in list(self._resolved.get(number, ())):
            self._drop(numbers)

    def _drop(self, numbers: tuple[int, ...]) -> None:
        self._cache.pop(numbers, None)
        for number in numbers:
            known = self._resolved.get(number)
            if known is not None:
                known.discard(numbers)
                if not known:
                    del self._resolved[number]

    def _added(self, number: int, receiver: Receiver, granted: int) -> None:
        """One receiver more: it joins what was resolved, if it is not there by another filter. So a fleet that comes at once is no work for every message."""
        for numbers in list(self._resolved.get(number, ())):
            receivers = self._cache[numbers]
            if receiver in receivers.known:
                self._drop(numbers)
            else:
                receivers.add(receiver, (granted,))

    def attach(self, text: str, receiver: Receiver, granted: int) -> Call | None:
        """Add or change a subscription. The call that must succeed before it counts, or None if the route is there."""
        found = self._by_text.get(text)
        if found is None:
            found = _Filter(text, self._next_number, self._rules)
            self._next_number += 1
            self._by_text[text] = found
            self._by_number[found.number] = found
        is_new = receiver not in found.receivers
        found.receivers[receiver] = granted
        if is_new:
            self._added(found.number, receiver, granted)
        else:
            self._changed(found.number)
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
            if found is None or found.receivers.pop(receiver, None) is None:
                continue
            self._changed(found.number)
            if not found.receivers:
                unused.append(text)
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
        self._changed(found.number)
        if not found.receivers:
            self._remove(found)

    def _resolve(self, numbers: tuple[int, ...]) -> Receivers:
        """Each receiver once, at the highest QoS of its matching filters [MQTT-3.3.5-1] [MQTT5-3.3.4-2]."""
        granted: dict[Any, tuple[int, ...]] = {}
        for number in numbers:
            found = self._by_number.get(number)
            if found is not None:
                for receiver, one in found.receivers.items():
                    granted[receiver] = (*granted.get(receiver, ()), one)
        if len(self._cache) >= RECEIVERS_CACHE_MAX:
            self._forget()
        receivers = Receivers()
        for receiver, several in granted.items():
            receivers.add(receiver, several)
        self._cache[numbers] = receivers
        for number in numbers:
            self._resolved.setdefault(number, set()).add(numbers)
        return receivers

    def on_records(self, records: Records) -> None:
        """Deliver one append batch's matches. The hot path of fan-out."""
        cache = self._cache
        for message, numbers in records:
            receivers = cache.get(numbers) or self._resolve(numbers)
            topic = self._topics.get(message.topic, message.tag)
            body = message.body if not message.sys_flag & 1 else body_of(message)
            if not topic or body is None:
                log.warning(
                    "record at %d cannot be sent over MQTT: no topic or a broken body",
                    message.physical_offset,
                )
                continue
            facts = facts_of(message)
            if facts.expires_ms and facts.is_over(self._now_ms()):
                self.expired += 1
                continue
            if receivers.three:
                self._deliver(message, receivers.three, topic, body, facts.qos, len(body))
            if receivers.five:
                tail = facts.tail(self._now_ms() if facts.expires_ms else 0)
                self._deliver(message, receivers.five, topic, tail + body, facts.qos, len(body))
            for receiver, outlet, several in receivers.others:
                own = outlet.returns(message)
                grant = None if own and outlet.bridge else combine(several, own)
                if grant is not None:
                    self._deliver_to_one(message, facts, receiver, outlet, grant, topic, body)

    def _deliver_to_one(
        self,
        message: Message,
        facts: Facts,
        receiver: Receiver,
        outlet: Outlet,
        grant: Grant,
        topic: bytes,
        body: bytes,
    ) -> None:
        qos = min(grant.qos, facts.qos)
        if qos and (not outlet.direct or outlet.room() <= 0):
            receiver.defer(message, grant)
            return
        if not qos and outlet.blocked and not outlet.takes(len(topic) + len(body)):
            self.dropped += 1
            return
        listed = b""
        if outlet.five:
            listed = grant.listed + facts.listed(self._now_ms() if facts.expires_ms else 0)
        flags = qos << 1 | outlet.retain_flag(facts, grant.retains)
        if outlet.publish(topic, body, flags, AWAITING_RECEIPT if qos == 2 else None, 0, listed):
            self.deliveries += 1

    def _deliver(
        self, message: Message, receivers: Plain, topic: bytes, tail: bytes, qos: int, payload_bytes: int
    ) -> None:
        """`tail`: what stands behind the packet identifier: the payload, with 5.0 the properties in front."""
        packet = b""
        heads = [b"", b"", b""]
        size = count = 0
        for receiver, outlet, granted in receivers:
            level = granted if granted < qos else qos
            if level:
                inflight = outlet.inflight
                if not outlet.direct or outlet.blocked or len(inflight) >= outlet.inflight_max:
                    receiver.defer(message, PLAIN[granted])
                    continue
                head = heads[level]
                if not head:
                    head = heads[level] = codec.encode_publish_head(topic, len(tail), level << 1)
                    size = len(head) + 2 + len(tail)
                packet_id = outlet.next_id
                if packet_id in inflight or packet_id == 65_535:
                    packet_id = outlet.take_id()
                else:
                    outlet.next_id = packet_id + 1
                inflight[packet_id] = None if level == 1 else AWAITING_RECEIPT
                outlet.outbox += (head, packet_id.to_bytes(2, "big"), tail)
                connection = outlet.connection
                sent = connection.outbox_bytes = connection.outbox_bytes + size
            else:
                if not packet:
                    packet = codec.encode_publish_head(topic, len(tail), 0) + tail
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
        if count:
            self.deliveries += count
            counts = connection.counts
            counts.published_out += count
            counts.published_bytes_out += count * payload_bytes
