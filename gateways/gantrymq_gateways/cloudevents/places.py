"""Where a subscription with filters is delivered from: a light queue of its own, which its route leads to.

One that begins in the past, or that was made before there were routes, is first delivered from places in the queues of its topic. Its route
is there before these are opened. When nothing is left in a queue it is read no further; what its own queue has of before that place is passed over:

    opening   route, own queue; then a place in each queue of the topic
    open      delivered from there until all are at their end
    closing   how far each was read is stored; the places are removed
    (none)    delivered from its own queue

Each state is a row, so that whoever delivers it after a crash goes on there. A record that was delivered before the crash may come again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from gantrymq.broker.port import EARLIEST, END, FIND, BrokerPort, CursorInfo, Route, TopicInfo
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Steps, call
from gantrymq_gateways.cloudevents.long_topics import LongTopics
from gantrymq_gateways.cloudevents.routes import KIND, expression_of, route_id
from gantrymq_gateways.cloudevents.subscription import Past, Subscription, gone_row
from gantrymq_gateways.cloudevents.wire.constants import SUBSCRIPTION_TABLE

log = logging.getLogger(__name__)

_GONE: Final = frozenset({ErrorCode.NOT_FOUND, ErrorCode.QUEUE_NOT_FOUND, ErrorCode.TOPIC_NOT_FOUND})


def group_of(subscription_id: str) -> str:
    """Name of a subscription's cursors."""
    return f"ce:{subscription_id}"


class OwnQueues:
    """Procedures on them. `source`: of events made from messages that were none."""

    def __init__(self, port: BrokerPort, topics: LongTopics, source: str) -> None:
        self._port = port
        self._topics = topics
        self._source = source

    def open(self, subscription: Subscription, topic: TopicInfo, before_row: Callable[[], None]) -> Steps:
        """The route and the queue. Returns the cursor. `before_row` is called before the row of a subscription is stored that had no queue."""
        if not subscription.light:
            subscription.light = yield partial(self._port.create_light, name=f"{SUBSCRIPTION_TABLE}/{subscription.id}")
            subscription.past = Past.OPEN if subscription.placed else Past.OPENING
            if subscription.past is Past.OPENING and subscription.start == END:
                subscription.past = Past.NONE
            before_row()
            yield from self._store(subscription)  # The row first: a queue that is nowhere noted could never be removed.
        if subscription.past is Past.CLOSING:
            yield from self._close_past(subscription, topic)
        name = self._topics.foreign.get(topic.name, "")
        expression = expression_of(subscription.document, subscription.id, self._source, name)
        light = subscription.light
        yield call(self._port.add_route, Route(route_id(light), KIND, topic.name, expression, light))
        info: CursorInfo = yield call(self._port.open_cursor, f"~{light}", group_of(subscription.id), EARLIEST)
        return info.cursor

    def opened_past(self, subscription: Subscription) -> Steps:
        """It has its places in the queues of the topic."""
        if subscription.past is Past.OPENING:
            subscription.past = Past.OPEN
            yield from self._store(subscription)

    def leave_past(self, subscription: Subscription, seen: dict[str, int], topic: TopicInfo) -> Steps:
        """Nothing is left there."""
        before = subscription.past
        subscription.past, subscription.seen = Past.CLOSING, seen
        try:
            yield from self._store(subscription)
        except GantryError:
            subscription.past = before
            raise
        yield from self._close_past(subscription, topic)

    def _close_past(self, subscription: Subscription, topic: TopicInfo) -> Steps:
        yield from self.drop_places(subscription.id, topic)
        subscription.past = Past.NONE
        yield from self._store(subscription)

    def drop_places(self, subscription_id: str, topic: TopicInfo) -> Steps:
        """Remove its places in the queues of the topic: they would keep the log alive."""
        for queue in range(topic.read_queues):
            try:
                name = f"{topic.name}/{queue}"
                info: CursorInfo = yield call(self._port.open_cursor, name, group_of(subscription_id), FIND)
            except GantryError as error:
                if error.code not in _GONE:
                    raise
                continue
            yield call(self._port.delete_cursor, info.cursor)

    def remove(self, subscription_id: str, light: int) -> Steps:
        """What a deleted subscription leaves, and its row at last."""
        yield call(self._port.remove_routes, [route_id(light)])
        yield call(self._port.delete_light, light)
        yield call(self._port.put, SUBSCRIPTION_TABLE, [(subscription_id, None)])

    def mark_gone(self, subscription_id: str, light: int, token: Any, done: Callable[[Any, Any], None]) -> None:
        """The row of one that is being deleted."""
        self._port.put(SUBSCRIPTION_TABLE, [(subscription_id, gone_row(light))], token, done)

    def _store(self, subscription: Subscription) -> Steps:
        yield call(self._port.put, SUBSCRIPTION_TABLE, [(subscription.id, subscription.stored())])
