"""Exchanges, queues and bindings, held in memory and in step with other gateways; their rows: `rows.py`.

Changes are `Steps`, one at a time (`lock`). A durable queue or binding is written as unfinished, then its light queue, cursor and
route are made (or dropped), then the row is written again (or removed): what a crash leaves half done is undone at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec

from gantrymq.broker.port import (
    END,
    FIND,
    FOR_EXCHANGE,
    FOR_QUEUE,
    BrokerPort,
    CursorInfo,
    choose_name,
    lease_name,
    row_name,
    seat_name,
)
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.indexes.multimap import MultiMap
from gantrymq.model.indexes.shared import shared
from gantrymq.model.queue_policy import Policy
from gantrymq.net.procedures.driver import Call, Done, Steps, in_order
from gantrymq.net.procedures.order import Lock
from gantrymq_gateways.amqp.exchanges.arguments import check_binding as check_new_binding
from gantrymq_gateways.amqp.exchanges.bindings import alternate_id, default_routes, expression_of, route
from gantrymq_gateways.amqp.origin import (
    DEFAULT_EXCHANGE,
    ROOT,
    full_name,
    local,
    own_prefix,
    prefix_of,
    vhost_of,
)
from gantrymq_gateways.amqp.properties.mapping import topic_of
from gantrymq_gateways.amqp.queues import policies as server
from gantrymq_gateways.amqp.queues.arguments import policy_of
from gantrymq_gateways.amqp.rows import (
    BINDING_TABLE,
    EXCHANGE_TABLE,
    NO_EXCHANGE,
    QUEUE_TABLE,
    Binding,
    Exchange,
    QueueDefinition,
    binding_from,
    binding_row,
    exchange_from,
    exchange_row,
    queue_from,
    queue_row,
    system_exchange,
    system_exchanges,
)
from gantrymq_gateways.amqp.vhosts import registry
from gantrymq_gateways.amqp.wire.constants import ACCESS_REFUSED, PRECONDITION_FAILED, AmqpError
from gantrymq_gateways.amqp.wire.values import read_table

log = logging.getLogger(__name__)

LONG_TOPIC_TABLE: Final = "long_topic"
"""Shared by the doors: native topic to the name that it stands for, where that was too long."""
ORPHANS_AT_ONCE: Final = 100
"""Transient queues of other gateways that are looked at together: a lease is asked for, for each."""
SLICE: Final = 20
"""Queues that are held against a changed policy between two turns of the loop: two milliseconds."""
LIGHT_TRIES: Final = 20
"""Light queues that are made for one whose consumers are not decided about by a group that is away."""
GROUP: Final = "amqp"
"""Consumer group of a queue's cursor."""


@dataclass(frozen=True, slots=True)
class DefinitionLimits:
    """How much one broker keeps; each row costs about 1 KiB of memory in every gateway."""

    exchanges_max: int = 10_000
    queues_max: int = 100_000
    bindings_max: int = 500_000
    delivery_limit: int = 20
    """Of quorum queues that name none."""


class Definitions:
    """See the module. `on_queue_gone(queue)`: a queue was deleted, here or by another gateway; `on_policies()`: they are others now;
    `on_vhost(vhost)`: it is another now, or gone, and nobody may be in it any more; `breathe`: a call that is answered in a later turn."""

    def __init__(
        self,
        port: BrokerPort,
        limits: DefinitionLimits,
        on_queue_gone: Callable[[QueueDefinition], None],
        on_policies: Callable[[], None],
        on_vhost: Callable[[str], None],
        breathe: Callable[[object, Done], None],
    ) -> None:
        self._port = port
        self._limits = limits
        self._on_queue_gone = on_queue_gone
        self.lock = Lock()
        self.version = 0
        """Changes whenever a publish may have to go elsewhere than before."""
        self.queues: dict[str, QueueDefinition] = {}
        self.policies = server.Policies()
        self.vhosts = registry.VirtualHosts()
        self._on_vhost = on_vhost
        self._on_policies = on_policies
        self.breathe = breathe
        self.exchange_of: dict[str, str] = {}
        """Names of exchanges by topic, where the topic is a shortened name."""
        self._exchanges: dict[str, Exchange | None] = {}
        self._declared = 0
        """How many of them are exchanges."""
        self._native: set[str] = set()
        self._bindings: dict[str, Binding] = {}
        self._by_source: MultiMap[str, str] = MultiMap()
        """Rows of bindings; the same by destination, exchanges and queues."""
        self._by_destination: tuple[MultiMap[str, str], MultiMap[str, str]] = (MultiMap(), MultiMap())
        self.followers: list[Callable[[str, str, Binding | None], None]] = []
        """Called with an exchange, a row and its binding (None: gone); without a row when something else about the exchange changed, without
        both when anything did."""
        self._own_rows: dict[tuple[str, str], list[bytes | None]] = {}
        self._leases: dict[str, int] = {}

    # Start.

    def start(self) -> Steps:
        """Load the tables, follow them, and undo what a crash left half done."""
        tables = (
            (registry.TABLE, self._vhost_row),
            (registry.USER_TABLE, self.vhosts.user_changed),
            (EXCHANGE_TABLE, self._exchange_row),
            (QUEUE_TABLE, self._queue_row),
            (BINDING_TABLE, self._binding_row),
            (LONG_TOPIC_TABLE, self._long_topic_row),
            (server.TABLE, self._policy_row),
        )
        for table, apply in tables:
            rows = yield partial(self._port.watch_table, table, partial(self._changed, table, apply))
            for key, data in rows.items():
                apply(key, data)
        for binding in list(self._bindings.values()):
            if not binding.finished or (binding.to_queue and binding.destination not in self.queues):
                yield from self.unbind(binding)
        for queue in list(self.queues.values()):
            if queue.transient:
                held = yield from self._try_lease(queue.name)
                if held:
                    yield from self.delete_queue(queue)
            elif not queue.finished:
                yield from self.delete_queue(queue)
        for exchange in list(self._exchanges.values()):
            if exchange is not None and not exchange.durable and (yield from self._try_lease("/" + exchange.name)):
                yield from self.delete_exchange(exchange)
        for sort, name, policy in list(self.policies.unfinished()):
            yield from self._finish_policy(sort, name, policy, None)
        for vhost, row in list(self.vhosts.rows.items()):
            if row.gone:
                yield from self._empty_vhost(vhost)

    def _changed(self, table: str, apply: Callable[[str, bytes | None], None], key: str, data: bytes | None) -> None:
        """A row changed. Our own changes are in force already; what comes back late must not undo newer ones."""
        waiting = self._own_rows.get((table, key))
        if waiting is not None:
            if data in waiting:
                del waiting[: waiting.index(data) + 1]
            if not waiting:
                del self._own_rows[(table, key)]
            return
        apply(key, data)

    def _exchange_row(self, name: str, data: bytes | None) -> None:
        self.version += 1
        if self._exchanges.pop(name, None) is not None:
            self._declared -= 1
        if data is None:
            self._tell(name)
            return
        self._native.discard(name)
        exchange = self._exchanges[name] = exchange_from(name, data)
        if exchange is not None:
            self._declared += 1
        topic = names.encode_topic(name)
        if names.decode_escapes(topic, "") != name:
            self.exchange_of[topic] = name
        self._tell(name)

    def _tell(self, exchange: str, row: str = "", binding: Binding | None = None) -> None:
        for follower in self.followers:
            follower(exchange, row, binding)

    def _long_topic_row(self, topic: str, data: bytes | None) -> None:
        """The name behind a topic whose native name is shortened, whichever door used it first."""
        if data is not None:
            self.exchange_of[topic] = data.decode("utf-8", "replace")

    def _note_name(self, topic: str, name: str) -> Steps:
        """Let the other doors show the full name of an exchange or queue whose topic is a shortened one."""
        if names.decode_escapes(topic, "") != name and topic not in self.exchange_of:
            yield from self._put(LONG_TOPIC_TABLE, self._long_topic_row, [(topic, name.encode())])

    def _queue_row(self, name: str, data: bytes | None) -> None:
        self.version += 1
        old = self.queues.pop(name, None)
        if data is not None:
            self.queues[name] = queue_from(name, data)
        self.vhosts.queues[vhost_of(name)] += (data is not None) - (old is not None)
        if old is not None and (data is None or self.queues[name].light != old.light):
            self._on_queue_gone(old)

    def _binding_row(self, row: str, data: bytes | None) -> None:
        old = self._bindings.pop(row, None)
        if old is not None:
            self._by_source.discard(old.source, row)
            self._by_destination[old.to_queue].discard(old.destination, row)
            self._tell(old.source, row)
        if data is not None:
            found = binding_from(data)
            queue = self.queues.get(found.destination) if found.to_queue else None
            destination = shared(found.destination) if queue is None else queue.name
            key = destination if found.key == destination else found.key  # most often; one object then
            binding = Binding(shared(found.source), found.to_queue, destination, key, found.arguments, found.finished)
            self._bindings[row] = binding
            self._by_source.add(binding.source, row)
            self._by_destination[binding.to_queue].add(destination, row)
            self._tell(binding.source, row, binding)

    def _put(
        self, table: str, apply: Callable[[str, bytes | None], None], rows: list[tuple[str, bytes | None]]
    ) -> Steps:
        """Write rows; in force here at once."""
        for key, data in rows:
            apply(key, data)
        yield self._writing(table, rows)

    def _writing(self, table: str, rows: list[tuple[str, bytes | None]], deputy: bool = False) -> Call:
        """The call that writes rows; `deputy`: as of TablePort.put."""

        def call(token: Any, on_done: Done) -> None:
            for key, data in rows:
                self._own_rows.setdefault((table, key), []).append(data)
            self._port.put(table, rows, token, on_done, deputy=deputy)

        return call

    def _in_order(self, *calls: Call) -> Steps:
        return in_order(calls, self._port.keeps_order)

    # Exchanges.

    def exchanges(self) -> list[Exchange]:
        """Those that clients declared, and topics of other doors that were looked for."""
        found = [exchange for exchange in self._exchanges.values() if exchange is not None]
        return found + [Exchange(name, "topic") for name in self._native]

    def bindings(self) -> list[Binding]:
        """All but those of the default exchange."""
        return [binding for binding in self._bindings.values() if binding.finished]

    def declared_exchange(self, name: str) -> Exchange | None:
        """One that a client declared."""
        return self._exchanges.get(name)

    def known_exchange(self, name: str) -> Exchange | None:
        """Without asking the broker; `find_exchange` knows native topics too."""
        found = system_exchange(name) or self._exchanges.get(name)
        return Exchange(name, "topic") if found is None and name in self._native else found

    def find_exchange(self, name: str) -> Steps:
        """The exchange, or None. A topic of another door is a durable topic exchange."""
        found = self.known_exchange(name)
        if found is not None:
            return found
        topic = topic_of(name)
        if name in self._exchanges or local(name) == DEFAULT_EXCHANGE or names.is_closed_to_gateways(topic):
            return None
        try:
            yield partial(self._port.ensure_topic, topic, False)
        except GantryError as error:
            if error.code is ErrorCode.TOPIC_NOT_FOUND:
                return None
            raise
        self._native.add(name)
        self._tell(name)
        self.version += 1
        return Exchange(name, "topic")

    def create_exchange(self, exchange: Exchange) -> Steps:
        """A declaration; the caller checked that it contradicts nothing."""
        self.vhosts.check(exchange.name)
        topic = topic_of(exchange.name)
        # Records of the default exchange carry DEFAULT_EXCHANGE as its name: an exchange called so would be taken for it.
        if local(exchange.name) == DEFAULT_EXCHANGE or names.is_closed_to_gateways(topic):
            raise AmqpError(ACCESS_REFUSED, f"exchange name '{exchange.name}' is reserved")
        if self._declared >= self._limits.exchanges_max:
            text = f"cannot declare exchange '{exchange.name}' in vhost '/': limit of {self._limits.exchanges_max} is reached"
            raise AmqpError(PRECONDITION_FAILED, text)
        yield partial(self._port.ensure_topic, topic, FOR_EXCHANGE)
        yield from self._note_name(topic, exchange.name)
        if not exchange.durable:
            yield from self._try_lease("/" + exchange.name)
        yield from self._set_alternate(exchange, self._alternate(exchange, self.policies))
        yield from self._put(EXCHANGE_TABLE, self._exchange_row, [(exchange.name, exchange_row(exchange))])

    def delete_exchange(self, exchange: Exchange) -> Steps:
        """With its bindings; the topic and its records stay, the name is unknown until declared again."""
        yield from self._remove_bindings(self.bindings_from(exchange.name) + self.bindings_to(False, exchange.name))
        if self._alternate(exchange, self.policies):
            yield from self._set_alternate(exchange, "")
        yield from self._put(EXCHANGE_TABLE, self._exchange_row, [(exchange.name, NO_EXCHANGE)])
        self._drop_lease("/" + exchange.name)

    # Queues.

    def create_queue(self, wanted: QueueDefinition) -> Steps:
        """Light queue, cursor and default binding. Returns (definition, cursor)."""
        self.vhosts.check_queue(wanted.name)
        if len(self.queues) >= self._limits.queues_max:
            text = f"cannot declare queue '{wanted.name}' in vhost '/': queue limit of {self._limits.queues_max} is reached"
            raise AmqpError(PRECONDITION_FAILED, text)
        unfinished = self.queues.get(wanted.name)
        if unfinished is not None:
            yield partial(self._port.delete_light, unfinished.light)
        yield from self._remove_bindings(self.bindings_to(True, wanted.name))  # of one that the broker deleted
        if wanted.shared:
            yield from self._queue_topic(wanted.name)
        if wanted.transient:
            yield from self._try_lease(wanted.name)
        try:
            return (yield from self._make_queue(wanted))
        except GantryError:
            if wanted.transient:
                self._drop_lease(wanted.name)  # what there is of it goes as a queue whose gateway is gone
            raise

    def _make_queue(self, wanted: QueueDefinition) -> Steps:
        light = yield from self._new_light(wanted.name)
        queue = replace(wanted, light=light, finished=wanted.transient)
        row = queue_row(queue)
        self._queue_row(queue.name, row)
        cursor = partial(self._port.open_cursor, f"~{light}", GROUP, END)
        _, info = yield from self._in_order(self._writing(QUEUE_TABLE, [(queue.name, row)]), cursor)
        policy = self.broker_policy(queue)
        calls: list[Call] = [partial(self._port.add_route, each) for each in default_routes(queue)]
        if policy is not None:
            calls.insert(0, partial(self._port.set_policy, info.cursor, policy))
        if not queue.finished:
            queue = replace(queue, finished=True)
            row = queue_row(queue)
            calls.append(self._writing(QUEUE_TABLE, [(queue.name, row)]))
        yield from self._in_order(*calls)
        self._queue_row(queue.name, row)
        return queue, info.cursor

    def _new_light(self, name: str) -> Steps:
        """A light queue for the queue of that name; its consumers are decided about by a group that answers, if there is one."""
        passed: list[int] = []
        make = partial(self._port.create_light, name=row_name(QUEUE_TABLE, name))
        light: int = yield make
        while not self._port.answers_for(seat_name(f"~{light}", GROUP)) and len(passed) < LIGHT_TRIES:
            passed.append(light)
            light = yield make
        for each in passed:
            self._port.delete_light(each, each, self._passed)
        return light

    @staticmethod
    def _passed(light: int, result: Any) -> None:
        if isinstance(result, GantryError):
            log.warning("amqp: light queue %d, which nobody uses, could not be deleted: %s", light, result)

    def generated_name(self, prefix: str, token: Callable[[], str]) -> str:
        """Of a queue that the server names: one that can be declared, while brokers are away."""

        def decided(name: str) -> list[str]:
            return [lease_name("amqp/" + name), row_name(QUEUE_TABLE, name)]

        return choose_name(self._port, lambda: f"{prefix}amq.gen-{token()}", decided)

    def _queue_topic(self, name: str) -> Steps:
        """A durable shared queue has a topic; one that is made for it is no exchange, and lies with the queue."""
        topic = topic_of(name)
        if names.is_closed_to_gateways(topic):
            raise AmqpError(ACCESS_REFUSED, f"queue name '{name}' is reserved")
        try:
            yield partial(self._port.ensure_topic, topic, False)
        except GantryError as error:
            if error.code is not ErrorCode.TOPIC_NOT_FOUND:
                raise
            yield partial(self._port.ensure_topic, topic, FOR_QUEUE, near=row_name(QUEUE_TABLE, name))
            yield from self._note_name(topic, name)
            if name not in self._exchanges:
                yield from self._put(EXCHANGE_TABLE, self._exchange_row, [(name, NO_EXCHANGE)])

    def delete_queue(self, queue: QueueDefinition) -> Steps:
        """With its light queue, routes and bindings."""
        calls: list[Call] = []
        if not queue.transient and queue.finished:
            row = queue_row(replace(queue, finished=False))
            self._queue_row(queue.name, row)
            calls.append(self._writing(QUEUE_TABLE, [(queue.name, row)]))
        calls.append(partial(self._port.delete_light, queue.light))
        bindings = {row: self._bindings[row] for row in self._by_destination[True].of(queue.name)}
        if bindings:  # their routes went with the light queue
            calls.append(self._writing(BINDING_TABLE, [(row, None) for row in bindings]))
        calls.append(self._writing(QUEUE_TABLE, [(queue.name, None)]))
        yield from self._in_order(*calls)
        yield from self._removed(bindings)
        self._queue_row(queue.name, None)
        self._drop_lease(queue.name)

    def drop_orphan(self, queue: QueueDefinition) -> Steps:
        """Whether it was a transient queue of a gateway that is gone; then it is deleted. The caller holds the lock."""
        if not queue.transient or queue.name in self._leases:
            return False
        free: bool = yield partial(self._port.is_free, "amqp/" + queue.name)
        if not free or not (yield from self._try_lease(queue.name)):
            return False
        log.info("amqp: queue %r of a gateway that is gone is deleted", queue.name)
        yield from self.delete_queue(queue)
        return True

    def drop_orphans(self, after: str) -> Steps:
        """Look at some transient queues of other gateways, by name behind `after`; returns the last name, or "" at the end."""
        names_ = sorted(
            [queue.name for queue in self.queues.values() if queue.transient and queue.name not in self._leases]
        )
        part = [name for name in names_ if name > after][:ORPHANS_AT_ONCE]
        for name in part:
            yield self.lock.take("definitions")
            try:
                queue = self.queues.get(name)
                if queue is not None:
                    yield from self.drop_orphan(queue)
            finally:
                self.lock.free("definitions")
        return part[-1] if len(part) == ORPHANS_AT_ONCE else ""

    def forget_queue(self, queue: QueueDefinition) -> Steps:
        """The broker, or another gateway, has deleted it: its bindings go, too."""
        yield self.lock.take("definitions")
        try:
            if queue.name not in self.queues:
                yield from self._remove_bindings(self.bindings_to(True, queue.name))
                self._drop_lease(queue.name)
        finally:
            self.lock.free("definitions")

    # Bindings.

    def bindings_from(self, source: str) -> list[Binding]:
        """Of an exchange."""
        return [self._bindings[row] for row in self._by_source.of(source)]

    def rows_from(self, source: str) -> dict[str, Binding]:
        """As `bindings_from`, by row."""
        return {row: self._bindings[row] for row in self._by_source.of(source)}

    def bindings_to(self, to_queue: bool, destination: str) -> list[Binding]:
        """Into a queue or exchange."""
        return [self._bindings[row] for row in self._by_destination[to_queue].of(destination)]

    def bind(self, binding: Binding, exchange: Exchange, light: int) -> Steps:
        """Add a binding; `light` of the queue, 0 for an exchange. Nothing happens if it is there."""
        key = binding.row
        found = self._bindings.get(key)
        if found is not None and found.finished:
            return
        self.vhosts.check(binding.source)
        if len(self._bindings) >= self._limits.bindings_max:
            text = f"cannot bind '{binding.destination}' to '{binding.source}': limit of {self._limits.bindings_max} bindings is reached"
            raise AmqpError(PRECONDITION_FAILED, text)
        self._check_binding(binding, exchange.rules.routed)
        first, finished = binding_row(replace(binding, finished=False)), binding_row(binding)
        self._binding_row(key, first)
        bound = route("amqp.b." + key, topic_of(binding.source), expression_of(binding, exchange.rules), light)
        queue = self.queues.get(binding.destination) if binding.to_queue else None
        transient = queue is not None and queue.transient
        yield from self._in_order(
            self._writing(BINDING_TABLE, [(key, first)], transient),
            partial(self._port.add_route, bound),
            self._writing(BINDING_TABLE, [(key, finished)], transient),
        )
        self._binding_row(key, finished)

    def _check_binding(self, binding: Binding, routed: str) -> None:
        table, _ = read_table(binding.arguments, 0, len(binding.arguments)) if binding.arguments else ([], 0)
        hashed = self.bindings_from(binding.source) if routed == "x-consistent-hash" else []
        check_new_binding(routed, binding.key, table, [other.key for other in hashed if other.row != binding.row])

    def unbind(self, binding: Binding) -> Steps:
        """Remove a binding; unknown ones are ignored. An auto-delete exchange goes with its last one."""
        found = self._bindings.get(binding.row)
        if found is not None:
            yield from self._remove_bindings([found])

    def _remove_bindings(self, bindings: list[Binding]) -> Steps:
        if not bindings:
            return
        by_row = {binding.row: binding for binding in bindings}
        rows = {key: binding_row(replace(binding, finished=False)) for key, binding in by_row.items()}
        for key, row in rows.items():
            self._binding_row(key, row)
        yield from self._in_order(self._writing(BINDING_TABLE, [*rows.items()]), *self._removing(by_row))
        yield from self._removed(by_row)

    def _removing(self, bindings: dict[str, Binding]) -> list[Call]:
        """The calls, in their order, when something tells the next start of it. `bindings`: by row."""
        rows = [(row, None) for row in bindings]
        routes = partial(self._port.remove_routes, ["amqp.b." + key for key, _ in rows])
        return [routes, self._writing(BINDING_TABLE, list(rows))] if rows else []

    def _removed(self, bindings: dict[str, Binding]) -> Steps:
        for row in bindings:
            self._binding_row(row, None)
        for source in dict.fromkeys(binding.source for binding in bindings.values()):
            exchange = self._exchanges.get(source)
            if exchange is not None and exchange.auto_delete and not self._by_source.of(source):
                yield from self.delete_exchange(exchange)

    # Policies.

    def _policy_row(self, key: str, data: bytes | None) -> None:
        self.version += 1
        self.policies.changed(key, data)
        self._tell("")
        self._on_policies()

    def broker_policy(self, queue: QueueDefinition, policies: server.Policies | None = None) -> Policy | None:
        """What the broker does for a queue, by its arguments and the policies; None: nothing."""
        deserted = queue.auto_delete and not queue.exclusive
        limit = self._limits.delivery_limit
        return policy_of(queue.name, self.effective_arguments(queue, policies), QUEUE_TABLE, deserted, limit)

    def effective_arguments(self, queue: QueueDefinition, policies: server.Policies | None = None) -> bytes:
        """Its own, and what policies add to them."""
        _, _, said = (policies or self.policies).of_queue(queue.name, queue.arguments)
        return server.effective_arguments(queue.arguments, said)

    def alternate(self, exchange: Exchange) -> str:
        """Full name of where a message goes that no binding wants; empty for nowhere."""
        return self._alternate(exchange, self.policies)

    @staticmethod
    def _alternate(exchange: Exchange, policies: server.Policies) -> str:
        found = exchange.rules.alternate or server.alternate_of(policies.of_exchange(exchange.name)[1])
        return full_name(own_prefix(exchange.name), found) if found else ""

    def _set_alternate(self, exchange: Exchange, alternate: str) -> Steps:
        topic = topic_of(exchange.name)
        if alternate:
            expression = {"exchange": exchange.name, "type": "alternate", "key": "", "destination": alternate}
            yield partial(self._port.add_route, route(alternate_id(exchange.name), topic, expression, 0))
        else:
            yield partial(self._port.remove_routes, [alternate_id(exchange.name)])

    def set_policy(self, sort: str, name: str, policy: server.ServerPolicy | None) -> Steps:
        """Make, change or delete (None) one, by its full name; when this ends, what it concerns has it. The caller holds the lock."""
        self.vhosts.check(name)
        count = len(self.policies.all(sort, vhost_of(name)))
        if policy is not None and self.policies.get(sort, name) is None and count >= server.POLICIES_MAX:
            text = f"cannot set policy '{name}' in vhost '/': limit of {server.POLICIES_MAX} is reached"
            raise AmqpError(PRECONDITION_FAILED, text)
        before = self.policies.copy()
        if policy is None:
            begun = msgspec.structs.replace(self.policies.get(sort, name) or server.ServerPolicy(""), gone=True)
        else:
            begun = msgspec.structs.replace(policy, finished=False)
        yield from self._put(server.TABLE, self._policy_row, [(server.row_key(sort, name), server.row_value(begun))])
        yield from self._finish_policy(sort, name, begun, before)

    def _finish_policy(
        self, sort: str, name: str, policy: server.ServerPolicy, before: server.Policies | None
    ) -> Steps:
        """Tell whom it concerns (all, where nobody knows who was told), then say that it is done."""
        for number, queue in enumerate(list(self.queues.values()), 1):
            if not number % SLICE:
                yield self.breathe
            now = self.broker_policy(queue)
            if queue.finished and (before is None or now != self.broker_policy(queue, before)):
                yield from self._tell_queue(queue, now or Policy(name=queue.name, row=(QUEUE_TABLE, queue.name)))
        declared = [exchange for exchange in self._exchanges.values() if exchange is not None]
        for exchange in [*system_exchanges(vhost_of(name)), *declared]:
            alternate = self._alternate(exchange, self.policies)
            if before is None or alternate != self._alternate(exchange, before):
                yield from self._set_alternate(exchange, alternate)
        done = None if policy.gone else server.row_value(msgspec.structs.replace(policy, finished=True))
        yield from self._put(server.TABLE, self._policy_row, [(server.row_key(sort, name), done)])

    def _tell_queue(self, queue: QueueDefinition, policy: Policy) -> Steps:
        try:
            info: CursorInfo = yield partial(self._port.open_cursor, f"~{queue.light}", GROUP, FIND)
        except GantryError as error:
            if error.code not in (ErrorCode.NOT_FOUND, ErrorCode.QUEUE_NOT_FOUND):
                raise
            return  # it went meanwhile
        yield partial(self._port.set_policy, info.cursor, policy)

    # Virtual hosts.

    def _vhost_row(self, name: str, data: bytes | None) -> None:
        self.version += 1
        self.vhosts.changed(name, data)
        self._on_vhost(name)

    def set_vhost(self, name: str, row: registry.VirtualHost) -> Steps:
        """Make or change one. Raises ValueError. The caller holds the lock."""
        if name not in self.vhosts.rows and name != ROOT:
            registry.check_name(name)
            if names.is_closed_to_gateways(topic_of(prefix_of(name) + "queue")):
                raise ValueError(f"the name {name!r} is reserved")
            if len(self.vhosts.rows) >= registry.VHOSTS_MAX:
                raise ValueError(f"limit of {registry.VHOSTS_MAX} vhosts is reached")
        yield from self._put(registry.TABLE, self._vhost_row, [(name, registry.row_value(row))])

    def set_user_limits(self, user: str, limits: dict[str, int]) -> Steps:
        """All limits of a user; without any he has no row. Raises ValueError. The caller holds the lock."""
        known = self.vhosts.user_limits
        if limits and user not in known and len(known) >= registry.USERS_MAX:
            raise ValueError(f"limit of {registry.USERS_MAX} users with limits is reached")
        row = registry.row_value(registry.UserLimits(limits)) if limits else None
        yield from self._put(registry.USER_TABLE, self.vhosts.user_changed, [(user, row)])

    def delete_vhost(self, name: str) -> Steps:
        """With all that is in it; its connections end first. The caller holds the lock."""
        row = msgspec.structs.replace(self.vhosts.rows[name], gone=True)
        yield from self._put(registry.TABLE, self._vhost_row, [(name, registry.row_value(row))])
        yield from self._empty_vhost(name)

    def _empty_vhost(self, vhost: str) -> Steps:
        prefix = prefix_of(vhost)
        for exchange in system_exchanges(vhost):
            if self._alternate(exchange, self.policies):
                yield from self._set_alternate(exchange, "")
        rows: list[tuple[str, bytes | None]] = [(key, None) for key in self.policies.keys_of(vhost)]
        if rows:
            yield from self._put(server.TABLE, self._policy_row, rows)
        for number, queue in enumerate(list(self.queues.values()), 1):
            if not number % SLICE:
                yield self.breathe
            if queue.name.startswith(prefix):
                yield from self.delete_queue(queue)
        for declared in list(self._exchanges.values()):
            if declared is not None and declared.name.startswith(prefix):
                yield from self.delete_exchange(declared)
        yield from self._remove_bindings([each for each in self._bindings.values() if each.source.startswith(prefix)])
        self._native = {name for name in self._native if not name.startswith(prefix)}
        yield from self._put(registry.TABLE, self._vhost_row, [(vhost, None)])

    # Leases: who keeps a transient thing alive.

    def _try_lease(self, name: str) -> Steps:
        if name in self._leases:
            return True
        try:
            epoch = yield partial(self._port.take_lease, "amqp/" + name, False, self._lease_lost)
        except GantryError as error:
            if error.code is ErrorCode.LEASE_HELD:
                return False
            raise
        self._leases[name] = epoch
        return True

    def _drop_lease(self, name: str) -> None:
        epoch = self._leases.pop(name, None)
        if epoch is not None:
            self._port.drop_lease("amqp/" + name, epoch)

    def _lease_lost(self, name: str) -> None:
        log.warning("amqp: lease %s was taken over by another gateway", name)
        self._leases.pop(name.removeprefix("amqp/"), None)
