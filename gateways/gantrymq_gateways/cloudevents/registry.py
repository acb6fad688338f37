"""Subscriptions of this process: the HTTP handlers, the durable table, and which of them are delivered from here.

The table is the truth; every gateway process sees it, and a lease per subscription decides which one delivers. Cursors are
opened before 201 is answered, so that nothing stored after the answer can be missed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gantrymq.auth.resources import Action
from gantrymq.broker.port import EARLIEST, FIND, CursorInfo, Start, TopicInfo
from gantrymq.metrics import Metrics
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.http.problems import Problem, Respond, respond_problem
from gantrymq.net.procedures.driver import Steps, call, run
from gantrymq_gateways.cloudevents.access import check, may_subscribe
from gantrymq_gateways.cloudevents.door import JSON_HEADER
from gantrymq_gateways.cloudevents.mapping import timestamp
from gantrymq_gateways.cloudevents.numbers import ERROR_CHARS_MAX
from gantrymq_gateways.cloudevents.places import OwnQueues, group_of
from gantrymq_gateways.cloudevents.push.delivery import Push, PushHost
from gantrymq_gateways.cloudevents.rules.guard import SinkGuard
from gantrymq_gateways.cloudevents.subscription import (
    Past,
    Subscription,
    is_gone,
    parse_subscription,
    read_stored,
    stored_light,
    stored_topic,
)
from gantrymq_gateways.cloudevents.wire.constants import SUBSCRIPTION_BYTES_MAX, SUBSCRIPTION_TABLE
from gantrymq_gateways.cloudevents.wire.problems import problem_of

if TYPE_CHECKING:
    from gantrymq.auth.authority import Authority, Identity

log = logging.getLogger(__name__)

LEASE_RETRY_MS: Final = 5_000
"""Between looks whether the gateway that delivers a subscription is still there."""
REOPEN_MS: Final = 2_000
"""Before another try to open what could not be opened."""
CLOCK_SKEW_MS: Final = 60_000
"""A client's "now" may be so far ahead of ours."""
TOPIC_POLL_MS: Final = 10_000
"""Between looks for new queues of subscribed topics; one call for all subscriptions."""

_WILDCARDS: Final = frozenset({"+", "#"})
"""Levels of MQTT filters; as a name nobody could publish to it by MQTT, and who subscribes means the filter."""

_ENCODE: Final = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _Record:
    """A subscription as this process knows it. `epoch`: of the lease; 0 if another process delivers, or nobody yet."""

    subscription: Subscription
    push: Push | None = None
    epoch: int = 0
    opening: bool = False


@dataclass(frozen=True, slots=True)
class _Invalid:
    """A row that today's rules refuse: not delivered, but shown, and it can be deleted."""

    reason: str
    topic: str
    """Where its places are; empty if the row does not tell."""
    light: int


class Registry:
    """See the module. `new_id` gives ids of letters and digits that cannot be guessed."""

    def __init__(self, host: PushHost, guard: SinkGuard, new_id: Callable[[], str], subscriptions_max: int) -> None:
        self._host = host
        self._port = host.port
        self._guard = guard
        self._new_id = new_id
        self._subscriptions_max = subscriptions_max
        self._records: dict[str, _Record] = {}
        self._invalid: dict[str, _Invalid] = {}
        self._creating: set[str] = set()
        self._removing: set[str] = set()
        """Until the table tells that their rows are gone: what it tells before is old."""
        self._own = OwnQueues(host.port, host.topics, host.config.source)
        self._up = False
        self._is_loaded = False
        self._polling = False
        self._stopped = False
        self.numbers = host.numbers
        self._authority: Authority | None = None
        """Asked whether owners may still have what they subscribed to."""
        self._on_loaded: Callable[[], None] | None = None

    @property
    def is_up(self) -> bool:
        """The broker is there, and the table was read."""
        return self._up and self._is_loaded

    def show_numbers(self, metrics: Metrics) -> None:
        """Register what is counted here."""
        self.numbers.show(metrics)
        for name, text, source in (
            (
                "gantry_cloudevents_lag_events",
                "Events that subscriptions delivered from here are still to get, counted every 10 s",
                lambda: sum([record.push.lag for record in self._records.values() if record.push is not None]),
            ),
            ("gantry_cloudevents_in_flight", "Requests to sinks under way", lambda: self._host.in_flight),
            ("gantry_cloudevents_held_bytes", "Data of events acquired and not settled", lambda: self._host.held_bytes),
        ):
            metrics.read(name, text, source)
        for state in ("active", "disabled", "paused", "invalid"):
            text = "Webhook subscriptions, by their status"
            metrics.read("gantry_cloudevents_subscriptions", text, partial(self._count, state), status=state)

    def _count(self, status: str) -> int:
        if status == "invalid":
            return len(self._invalid)
        return sum([record.subscription.status == status for record in self._records.values()])

    def ask(self, authority: Authority) -> None:
        """Deliver to nobody's sink what its owner may not have: what `authority` says now, and whenever it says something else."""
        self._authority = authority
        authority.watch(self._rights_changed)

    def _rights_changed(self) -> None:
        for record in list(self._records.values()):
            before, record.subscription.paused = record.subscription.paused, self._missing(record.subscription)
            if record.subscription.paused:
                self._pause(record, before)
            elif before:
                log.info("subscription %s is delivered again: its owner has the right", record.subscription.id)
                self._acquire(record)

    def _pause(self, record: _Record, before: str) -> None:
        if not before:
            log.warning("subscription %s is paused: %s", record.subscription.id, record.subscription.paused)
        if not record.opening:  # else whoever opens it sees that it may not
            self._end(record, port_lost=not self._up)

    def _missing(self, subscription: Subscription) -> str:
        """Why its owner may not have it; empty: he may, or nobody is asked. Before the users are known nothing is delivered."""
        authority, owner = self._authority, subscription.owner
        if authority is None or not owner:
            return ""
        if not authority.loaded:
            return "users are not known yet"
        if may_subscribe(authority.identity(owner, "", ""), subscription.topic):
            return ""
        return f"user {owner}, who made it, may not subscribe to topic {subscription.topic[:128]}"

    def start(self, on_loaded: Callable[[], None] | None = None) -> None:
        """Follow the port: load and deliver while it is there. `on_loaded` is called once, when the table has been read."""
        self._on_loaded = on_loaded
        self._port.watch_state(self._on_state)

    def _on_state(self, up: bool) -> None:
        if self._stopped or up is self._up:
            return
        self._up = up
        if up:
            self._port.watch_table(SUBSCRIPTION_TABLE, self._on_change, None, self._loaded)
            return
        for record in self._records.values():
            self._end(record, port_lost=True)

    def _loaded(self, token: Any, rows: dict[str, bytes] | GantryError) -> None:
        if isinstance(rows, GantryError):
            log.warning("subscriptions cannot be read: %s", rows)
            self._later(REOPEN_MS, self._reload)
            return
        self._removing.clear()
        for name in [name for name in (*self._records, *self._invalid) if name not in rows]:
            self._forget(name)
        for name, value in rows.items():
            self._on_change(name, value)
            if is_gone(value):  # Whoever deleted it did not come to its end.
                self._remove(name, stored_light(value))
        self._is_loaded = True
        on_loaded, self._on_loaded = self._on_loaded, None
        if on_loaded is not None:
            on_loaded()
        if not self._polling:
            self._polling = True
            self._later(TOPIC_POLL_MS, self._poll)

    def _reload(self) -> None:
        if self._up:
            self._up = False
            self._on_state(True)

    def stop(self) -> None:
        """End every delivery; places and leases are given back."""
        self._stopped = True
        if self._authority is not None:
            self._authority.unwatch(self._rights_changed)
        for record in self._records.values():
            self._end(record, port_lost=False)

    def _later(self, delay_ms: int, then: Callable[[], None]) -> None:
        wheel = self._host.around.wheel
        wheel.call_at(wheel.now_ms() + delay_ms, lambda now_ms: None if self._stopped else then())

    # -- the table -----------------------------------------------------------------------------------------------

    def _on_change(self, name: str, value: bytes | None) -> None:
        if self._stopped:
            return
        if value is None or name in self._removing or is_gone(value):
            if value is None:
                self._removing.discard(name)
            self._forget(name)
            return
        record = self._records.get(name)
        try:
            subscription = read_stored(name, value, self._guard)
        except GantryError as error:
            # Kept in the table and not delivered: a filter that cannot be read must not widen what is sent.
            log.warning("subscription %s is not delivered: %s", name, error)
            if record is None:
                self._invalid[name] = _Invalid(error.text, stored_topic(value), stored_light(value))
            return
        self._invalid.pop(name, None)
        if record is None:
            record = self._records[name] = _Record(subscription)
        elif record.push is None and not record.opening:
            record.subscription = subscription
        record.subscription.paused = self._missing(record.subscription)
        if subscription.disabled:
            record.subscription.disabled = subscription.disabled
            self._end(record, port_lost=False)
        elif record.subscription.paused:
            self._pause(record, "")
        elif record.push is None:
            self._acquire(record)

    def _forget(self, name: str) -> None:
        self._invalid.pop(name, None)
        record = self._records.pop(name, None)
        if record is None:
            return
        if record.push is not None:
            for cursor in record.push.stop():
                self._port.delete_cursor(cursor, name, _logged)
            record.push = None
        self._end(record, port_lost=False)

    def _end(self, record: _Record, port_lost: bool) -> None:
        if record.push is not None:
            record.push.stop(port_lost)
            record.push = None
        if record.epoch and not port_lost:
            self._port.drop_lease(group_of(record.subscription.id), record.epoch)
        record.epoch = 0

    def _put(self, subscription: Subscription, done: Callable[[Any, Any], None]) -> None:
        self._port.put(SUBSCRIPTION_TABLE, [(subscription.id, subscription.stored())], subscription.id, done)

    # -- delivering ----------------------------------------------------------------------------------------------

    def _acquire(self, record: _Record) -> None:
        """Become the one who delivers, if nobody else is; try again later otherwise."""
        if record.opening or not self._is_current(record):
            return
        record.opening = True
        subscription = record.subscription

        def opened(error: GantryError | None) -> None:
            record.opening = False
            if error is not None:
                self._end(record, port_lost=not self._up)
                if error.code is not ErrorCode.LEASE_HELD:
                    log.warning("subscription %s is not delivered for now: %s", subscription.id, error)
                held = error.code is ErrorCode.LEASE_HELD
                self._later(LEASE_RETRY_MS if held else REOPEN_MS, lambda: self._acquire(record))
            elif not self._is_current(record):
                self._end(record, port_lost=not self._up)
            elif record.push is not None:
                record.push.run()

        self._open(record, opened)

    def _is_current(self, record: _Record) -> bool:
        known = self._records.get(record.subscription.id)
        return self._up and not self._stopped and known is record and record.subscription.status == "active"

    def _open(self, record: _Record, done: Callable[[GantryError | None], None]) -> None:
        """Lease, topic and cursors of one subscription, in that order. After a failure the caller ends what there is."""
        subscription = record.subscription

        def leased(token: Any, result: int | GantryError) -> None:
            if isinstance(result, GantryError):
                done(result)
                return
            record.epoch = result
            topic = self._host.topics.native_of_either(subscription.topic)
            # Dead letters and retries may be read; their topics come into being by whoever writes them.
            self._port.ensure_topic(topic, not names.is_closed_to_gateways(topic), None, found)

        def found(token: Any, result: TopicInfo | GantryError) -> None:
            if isinstance(result, GantryError):
                done(result)
                return
            push = Push(self._host, subscription, lambda reason: self._disable(record, reason))
            if subscription.matches_all and not subscription.light:
                self._open_places(push, result, lambda error: placed(push, error))
            else:
                run(self._open_own(record, push, result), lambda error: placed(push, error))

        def placed(push: Push, error: GantryError | None) -> None:
            record.push = push
            done(error)

        self._port.take_lease(group_of(subscription.id), False, lambda name: self._lease_lost(record), None, leased)

    def _open_own(self, record: _Record, push: Push, topic: TopicInfo) -> Steps:
        subscription = record.subscription

        def before_row() -> None:
            # Known before the table's watcher tells of it, so that nobody opens it a second time.
            self._records.setdefault(subscription.id, record)

        own: int = yield from self._own.open(subscription, topic, before_row)
        if subscription.past is Past.NONE:
            push.add_own_place(own)
            return
        error: GantryError | None = yield lambda token, done: self._open_places(push, topic, partial(done, token))
        if error is not None:
            raise error
        yield from self._own.opened_past(subscription)
        push.read_to_end(lambda: self._leave_past(record, push, own))

    def _leave_past(self, record: _Record, push: Push, own: int) -> None:
        """What there was before the subscription had its own queue is delivered."""
        topic = self._host.topics.native_of_either(record.subscription.topic)

        def steps() -> Steps:
            info: TopicInfo = yield call(self._port.ensure_topic, topic, not names.is_closed_to_gateways(topic))
            yield from self._own.leave_past(record.subscription, push.seen, info)

        def ended(error: GantryError | None) -> None:
            if record.push is not push:
                return
            if error is None:
                push.add_own_place(own)
                return
            log.warning("subscription %s does not go on for now: %s", record.subscription.id, error)
            self._later(REOPEN_MS, lambda: self._leave_past(record, push, own) if record.push is push else None)

        run(steps(), ended)

    def _open_places(self, push: Push, topic: TopicInfo, done: Callable[[GantryError | None], None]) -> None:
        """Cursors for the queues of `topic` that `push` has none in."""
        subscription = push.subscription
        missing = [queue for queue in range(topic.read_queues) if queue not in push.queues]
        left = len(missing)
        failure: GantryError | None = None

        def opened(queue: int, result: CursorInfo | GantryError) -> None:
            nonlocal left, failure
            left -= 1
            if isinstance(result, GantryError):
                failure = result
            else:
                push.add_place(queue, result.cursor)
            if not left:
                subscription.placed = subscription.placed or failure is None
                done(failure)

        if not missing:
            done(None)
        for queue in missing:
            # A queue without a cursor came later than the subscription (more queues, or the topic was deleted and made
            # again): all in it is to be delivered.
            start: Start = EARLIEST if subscription.placed else subscription.start
            self._port.open_cursor(f"{topic.name}/{queue}", group_of(subscription.id), start, queue, opened)

    def _lease_lost(self, record: _Record) -> None:
        record.epoch = 0
        self._end(record, port_lost=False)
        self._later(LEASE_RETRY_MS, lambda: self._acquire(record))

    def _disable(self, record: _Record, reason: str) -> None:
        subscription = record.subscription
        subscription.disabled = reason
        self._end(record, port_lost=False)
        log.warning("subscription %s is disabled: %s", subscription.id, reason)
        self._put_until_done(subscription)

    def _put_until_done(self, subscription: Subscription) -> None:
        def done(token: Any, result: object) -> None:
            if isinstance(result, GantryError):
                log.warning("the state of subscription %s cannot be stored: %s", subscription.id, result)
                self._later(REOPEN_MS, again)

        def again() -> None:
            if subscription.id in self._records:
                self._put_until_done(subscription)

        self._put(subscription, done)

    def _poll(self) -> None:
        self._later(TOPIC_POLL_MS, self._poll)
        if self._up and any(record.push is not None for record in self._records.values()):
            self._port.topics(None, self._polled)
            for record in self._records.values():
                if record.push is not None and record.push.cursors:
                    self._port.stats(record.push.cursors, record.push, _count_lag)
                if record.push is not None:
                    self._tell_error(record.subscription, record.push.last.error)

    def _tell_error(self, subscription: Subscription, error: str) -> None:
        """The row tells how the last attempt failed, for who has no gateway to ask. A row that is another one now is left."""
        before = subscription.error
        if error == before:
            return
        row = subscription.stored()
        subscription.error = error

        def told(token: Any, result: list[bool] | GantryError) -> None:
            if result != [True] and subscription.error == error:
                subscription.error = before  # tried again

        self._port.put_if(SUBSCRIPTION_TABLE, [(subscription.id, row, subscription.stored())], None, told)

    def _polled(self, token: Any, result: list[TopicInfo] | GantryError) -> None:
        if isinstance(result, GantryError):
            return
        topics = {topic.name: topic for topic in result}
        for record in self._records.values():
            push = record.push
            topic = topics.get(self._host.topics.native_of_either(record.subscription.topic))
            if push is None or topic is None or push.has_own_queue:
                continue
            if topic.read_queues > len(push.queues):
                self._open_places(push, topic, lambda error, record=record: self._grown(record, error))  # type: ignore[misc]

    @staticmethod
    def _grown(record: _Record, error: GantryError | None) -> None:
        if error is not None:
            log.warning("subscription %s: a queue cannot be opened: %s", record.subscription.id, error)

    # -- handlers ------------------------------------------------------------------------------------------------

    def create(self, body: bytes, respond: Respond, asker: Identity | None = None) -> None:
        """`POST /subscriptions`. Raises Problem, GantryError."""
        if len(body) > SUBSCRIPTION_BYTES_MAX:
            raise Problem(413, f"a subscription has at most {SUBSCRIPTION_BYTES_MAX} bytes")
        try:
            document = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Problem(400, f"the body is not JSON: {str(error)[:200]}") from None
        subscription = parse_subscription(self._new_id(), document, self._guard)
        ahead_ms = subscription.start.at_ms - self._host.around.clock.now_ms()
        if ahead_ms > CLOCK_SKEW_MS:
            raise Problem(400, "config.from lies in the future; subscribe then, or with 'end' now")
        if not _WILDCARDS.isdisjoint(subscription.topic.split("/")):
            raise Problem(
                400,
                f"config.topic {subscription.topic[:128]!r} must name one topic; wildcards (+, #) are not supported",
            )
        check(asker, Action.SUB, subscription.topic)
        subscription.owner = asker.name if asker is not None else ""
        topic = self._host.topics.native_of_either(subscription.topic)
        names.check_topic(topic)
        if names.is_system_topic(topic) or topic.startswith(("$", "%24", names.LMQ_PREFIX)):
            raise Problem(403, f"topic {topic!r} belongs to the system and cannot be subscribed to")
        self._refuse_unloaded()
        if not self._up:
            raise GantryError(ErrorCode.UNAVAILABLE)
        if len(self._records.keys() | self._creating) >= self._subscriptions_max:
            raise Problem(403, f"there are {self._subscriptions_max} subscriptions, the limit; delete one first")
        self._creating.add(subscription.id)
        record = _Record(subscription, opening=True)
        self._open(record, lambda error: self._opened(record, error, respond))

    def _opened(self, record: _Record, error: GantryError | None, respond: Respond) -> None:
        if error is not None:
            self._creating.discard(record.subscription.id)
            self._undo(record)
            respond_problem(respond, problem_of(error))
            return
        subscription = record.subscription

        def stored(token: Any, result: object) -> None:
            self._creating.discard(subscription.id)
            record.opening = False
            if isinstance(result, GantryError):
                self._undo(record)
                respond_problem(respond, problem_of(result))
                return
            location = (b"location", f"/subscriptions/{subscription.id}".encode())
            respond(201, (JSON_HEADER, location), _ENCODE(subscription.shown()))
            if not self._is_current(record):
                self._end(record, port_lost=not self._up)
            elif record.push is not None:
                record.push.run()

        # Known before the table's watcher tells of it, so that nobody opens it a second time.
        self._records[subscription.id] = record
        if subscription.light:  # Its row was stored before its queue was used.
            stored(None, None)
        else:
            self._put(subscription, stored)

    def _undo(self, record: _Record) -> None:
        self._records.pop(record.subscription.id, None)
        if record.push is not None:
            for cursor in record.push.stop():
                self._port.delete_cursor(cursor, record.subscription.id, _logged)
            record.push = None
        self._end(record, port_lost=not self._up)
        if record.subscription.light:
            self._remove(record.subscription.id, record.subscription.light)

    def list_all(self, respond: Respond, asker: Identity | None = None) -> None:
        """`GET /subscriptions`: those of topics that one may subscribe to. Raises GantryError."""
        self._refuse_unloaded()
        kept = [record.subscription for record in self._records.values()]
        shown = [each.shown() for each in kept if may_subscribe(asker, each.topic)]
        for name, invalid in self._invalid.items():
            if may_subscribe(asker, invalid.topic):
                shown.append(_shown_invalid(name, invalid))
        respond(200, (JSON_HEADER,), _ENCODE(shown))

    def show(self, subscription_id: str, respond: Respond, asker: Identity | None = None) -> None:
        """`GET /subscriptions/{id}`. Raises Problem, GantryError."""
        record = self._known(subscription_id, asker)
        if record is None:
            respond(200, (JSON_HEADER,), _ENCODE(_shown_invalid(subscription_id, self._invalid[subscription_id])))
            return
        push = record.push
        shown = record.subscription.shown()
        if push is None or not self._up:  # another process delivers it, or nobody
            respond(200, (JSON_HEADER,), _ENCODE(shown))
            return

        def counted(token: Any, result: list[CursorInfo | None] | GantryError) -> None:
            _count_lag(push, result)
            respond(200, (JSON_HEADER,), _ENCODE(shown | {"delivery": self._delivery(push)}))

        self._port.stats(push.cursors, None, counted)

    def _delivery(self, push: Push) -> dict[str, Any]:
        """How a subscription that is delivered from here fares; times are RFC 3339."""
        around = self._host.around
        found: dict[str, Any] = {"lag": push.lag, "inflight": push.in_flight}
        if push.last.at_ms:
            found["lastattempt"] = timestamp(push.last.at_ms)
            found["laststatus"] = push.last.status
            if push.last.failure:
                found["lasterror"] = push.last.failure[:ERROR_CHARS_MAX]
        due_ms = push.next_attempt_ms()
        if due_ms:
            found["nextattempt"] = timestamp(around.clock.now_ms() + due_ms - around.wheel.now_ms())
        return found

    def delete(self, subscription_id: str, respond: Respond, asker: Identity | None = None) -> None:
        """`DELETE /subscriptions/{id}`. Raises Problem, GantryError."""
        record = self._known(subscription_id, asker)
        kept = self._invalid[subscription_id] if record is None else record.subscription
        topic, light = kept.topic, kept.light

        def deleted(token: Any, result: object) -> None:
            if isinstance(result, GantryError):
                respond_problem(respond, problem_of(result))
                return
            if record is None or record.push is None:
                self._drop_places(subscription_id, topic)
            self._forget(subscription_id)
            if light:
                self._remove(subscription_id, light)
            respond(204, (), b"")

        if light:
            self._own.mark_gone(subscription_id, light, subscription_id, deleted)
        else:
            self._port.put(SUBSCRIPTION_TABLE, [(subscription_id, None)], subscription_id, deleted)

    def _remove(self, subscription_id: str, light: int) -> None:
        """Remove the queue of a subscription that is no more, and its row; again until it is done."""
        self._removing.add(subscription_id)

        def ended(error: GantryError | None) -> None:
            if error is None or not self._up:  # Where the broker is lost, the row is found when it is back.
                return
            log.warning("subscription %s: its queue cannot be removed for now: %s", subscription_id, error)
            self._later(REOPEN_MS, lambda: self._remove(subscription_id, light))

        run(self._own.remove(subscription_id, light), ended)

    def _drop_places(self, subscription_id: str, topic_name: str) -> None:
        """Delete the places of a subscription that nobody delivers (disabled, invalid): they would keep the log alive."""
        if not topic_name:
            log.warning(
                "subscription %s: its row names no topic; places that it had cannot be deleted", subscription_id
            )
            return
        topic = self._host.topics.native_of_either(topic_name)

        def found(token: Any, result: TopicInfo | GantryError) -> None:
            if not isinstance(result, GantryError):
                for queue in range(result.read_queues):
                    self._port.open_cursor(f"{topic}/{queue}", group_of(subscription_id), FIND, None, opened)

        def opened(token: Any, result: CursorInfo | GantryError) -> None:
            if not isinstance(result, GantryError):
                self._port.delete_cursor(result.cursor, subscription_id, _logged)

        self._port.ensure_topic(topic, False, None, found)

    def _refuse_unloaded(self) -> None:
        if not self._is_loaded:  # A listing now would deny subscriptions that exist.
            raise GantryError(ErrorCode.UNAVAILABLE)

    def _known(self, subscription_id: str, asker: Identity | None) -> _Record | None:
        """The record; None for a row that cannot be delivered. One of a topic that `asker` may not subscribe to does not exist for it."""
        self._refuse_unloaded()
        record = self._records.get(subscription_id)
        invalid = self._invalid.get(subscription_id)
        topic = record.subscription.topic if record is not None else invalid.topic if invalid is not None else None
        if topic is None or not may_subscribe(asker, topic):
            raise Problem(404, f"there is no subscription {subscription_id[:64]!r}")
        return record


def _count_lag(push: Push, result: list[CursorInfo | None] | GantryError) -> None:
    if not isinstance(result, GantryError):
        push.lag = sum([info.ready + info.unacked for info in result if info is not None])


def _shown_invalid(subscription_id: str, invalid: _Invalid) -> dict[str, Any]:
    return {"id": subscription_id, "status": "invalid", "statusreason": invalid.reason}


def _logged(token: Any, result: object) -> None:
    if isinstance(result, GantryError):
        log.warning("subscription %s: its place cannot be deleted: %s", token, result)
