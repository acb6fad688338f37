"""Methods of classes exchange and queue: declare, delete, bind, unbind, purge, with RabbitMQ's checks and words."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from gantrymq.broker.port import END, BrokerPort, CursorInfo
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Steps
from gantrymq_gateways.amqp.channels.channel import Channel, Handler
from gantrymq_gateways.amqp.definitions import GROUP
from gantrymq_gateways.amqp.exchanges.arguments import TYPES, check_exchange, check_same_arguments
from gantrymq_gateways.amqp.messages.consumers import Queue
from gantrymq_gateways.amqp.messages.streams import unsupported
from gantrymq_gateways.amqp.origin import local
from gantrymq_gateways.amqp.properties.mapping import topic_of
from gantrymq_gateways.amqp.queues.arguments import check_arguments, check_same, is_stream
from gantrymq_gateways.amqp.rows import Binding, Exchange, QueueDefinition, system_exchange
from gantrymq_gateways.amqp.wire.constants import (
    ACCESS_REFUSED,
    DIRECT_REPLY_TO,
    NOT_FOUND,
    PRECONDITION_FAILED,
    AmqpError,
    locked_error,
    unknown_queue_error,
)
from gantrymq_gateways.amqp.wire.values import Field, Table, encode_table, lookup

log = logging.getLogger(__name__)

RESERVED_PREFIX: Final = "amq."

SERVER_NAMED_TRIES: Final = 3
"""A broker that hangs is known to after the first: it is asked for nothing more then."""


def _named(channel: Channel, name: str) -> str:
    """An exchange's full name; the default exchange is not for definitions."""
    if not name:
        raise AmqpError(ACCESS_REFUSED, "operation not permitted on the default exchange")
    return channel.prefix + name


def _key(key: str) -> str:
    """A binding key; U+0000 is refused at every door."""
    if "\0" in key:
        raise AmqpError(PRECONDITION_FAILED, "a binding key holds U+0000, which is not allowed")
    return key


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _same(what: str, name: str, argument: str, received: str, current: str) -> None:
    if received != current:
        text = f"inequivalent arg '{argument}' for {what} '{name}' in vhost '/': received '{received}' but current is '{current}'"
        raise AmqpError(PRECONDITION_FAILED, text)


def _locked(channel: Channel, work: Callable[[], Steps]) -> Steps:
    """Definitions change one at a time."""
    lock = channel.door.gateway.definitions.lock
    yield lock.take("definitions")
    try:
        result = yield from work()
    finally:
        lock.free("definitions")
    return result


# exchange.


def exchange_declare(
    channel: Channel,
    _ticket: int,
    exchange: str,
    kind: str,
    passive: bool,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    nowait: bool,
    arguments: Table,
) -> Steps:
    definitions = channel.door.gateway.definitions
    if passive:
        yield from _existing_exchange(channel, _named(channel, exchange))
    else:
        if kind not in TYPES:
            raise AmqpError(PRECONDITION_FAILED, f"invalid exchange type '{kind}'")
        wanted = Exchange(_named(channel, exchange), kind, durable, auto_delete, internal, encode_table(arguments))

        def work() -> Steps:
            # A native topic that nobody declared is open to any type: the first declaration fixes it.
            found = system_exchange(wanted.name) or definitions.declared_exchange(wanted.name)
            if found is None:
                _check_new_exchange(wanted, arguments)
                yield from definitions.create_exchange(wanted)
                return
            _same("exchange", wanted.name, "type", kind, found.type)
            _same("exchange", wanted.name, "durable", _flag(durable), _flag(found.durable))
            _same("exchange", wanted.name, "auto_delete", _flag(auto_delete), _flag(found.auto_delete))
            _same("exchange", wanted.name, "internal", _flag(internal), _flag(found.internal))
            check_same_arguments(wanted.name, arguments, found.arguments)

        yield from _locked(channel, work)
    if not nowait:
        channel.reply("exchange.declare-ok")


def _check_new_exchange(wanted: Exchange, arguments: Table) -> None:
    if local(wanted.name).startswith(RESERVED_PREFIX):
        raise AmqpError(ACCESS_REFUSED, f"exchange name '{wanted.name}' contains reserved prefix 'amq.*'")
    check_exchange(wanted.name, wanted.type, arguments)


def _existing_exchange(channel: Channel, name: str) -> Steps:
    found = yield from channel.door.gateway.definitions.find_exchange(name)
    if found is None:
        raise AmqpError(NOT_FOUND, f"no exchange '{name}' in vhost '/'")
    return found


def exchange_delete(channel: Channel, _ticket: int, exchange: str, if_unused: bool, nowait: bool) -> Steps:
    name = _named(channel, exchange)
    definitions = channel.door.gateway.definitions
    if system_exchange(name) is not None:
        raise AmqpError(ACCESS_REFUSED, f"deletion of system exchange '{name}' in vhost '/' not allowed")

    def work() -> Steps:
        found = yield from definitions.find_exchange(name)
        if found is None:
            return
        if if_unused and definitions.bindings_from(name):
            raise AmqpError(PRECONDITION_FAILED, f"exchange '{name}' in vhost '/' in use")
        yield from definitions.delete_exchange(found)

    yield from _locked(channel, work)
    if not nowait:
        channel.reply("exchange.delete-ok")


def exchange_bind(
    channel: Channel, _ticket: int, destination: str, source: str, key: str, nowait: bool, arguments: Table
) -> Steps:
    wanted = Binding(_named(channel, source), False, _named(channel, destination), _key(key), encode_table(arguments))

    def work() -> Steps:
        found = yield from _existing_exchange(channel, wanted.source)
        yield from _existing_exchange(channel, wanted.destination)
        yield from channel.door.gateway.definitions.bind(wanted, found, 0)

    yield from _locked(channel, work)
    if not nowait:
        channel.reply("exchange.bind-ok")


def exchange_unbind(
    channel: Channel, _ticket: int, destination: str, source: str, key: str, nowait: bool, arguments: Table
) -> Steps:
    wanted = Binding(_named(channel, source), False, _named(channel, destination), _key(key), encode_table(arguments))
    yield from _locked(channel, partial(channel.door.gateway.definitions.unbind, wanted))
    if not nowait:
        channel.reply("exchange.unbind-ok")


# queue.


def queue_declare(
    channel: Channel,
    _ticket: int,
    queue: str,
    passive: bool,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    nowait: bool,
    arguments: Table,
) -> Steps:
    door = channel.door
    name = queue
    if name == DIRECT_REPLY_TO:  # no queue, but clients look whether it is there
        if not nowait:
            channel.reply("queue.declare-ok", name, 0, 1)
        return
    if passive:
        found: Queue = yield from door.gateway.open_queue(channel.prefix + name, door)
    else:
        named = bool(name)
        arguments = _with_default_type(channel, arguments, durable and not exclusive and not auto_delete)
        wanted = QueueDefinition(
            channel.prefix + name,
            0,
            durable
            and not exclusive,  # RabbitMQ: one that goes with its connection is not durable, whatever it was declared
            exclusive,
            auto_delete,
            encode_table(arguments),
        )
        if named:
            found = yield from _locked(channel, partial(_declare, channel, wanted, arguments, named))
        else:
            found = yield from _server_named(channel, wanted, arguments)
    channel.last_queue = found.name
    if not nowait:
        yield partial(door.gateway.port.catch_up, found.cursor)
        counts: list[CursorInfo | None] = yield partial(door.gateway.port.stats, [found.cursor])
        info = counts[0]
        ready, consumers = (info.ready, info.consumers) if info is not None else (0, 0)
        channel.reply("queue.declare-ok", local(found.name), ready, consumers)


def _declare(channel: Channel, wanted: QueueDefinition, arguments: Table, named: bool) -> Steps:
    """The queue at work, made if there is none. The caller holds the lock."""
    door = channel.door
    definitions = door.gateway.definitions
    existing = definitions.queues.get(wanted.name)
    if existing is not None and existing.finished and (yield from definitions.drop_orphan(existing)):
        existing = None
    if existing is not None and existing.finished and not (yield from _is_there(door.gateway.port, existing.light)):
        log.warning("amqp: queue %r is gone with its broker, and is declared anew", wanted.name)
        yield from definitions.delete_queue(existing)
        existing = None
    if existing is not None and existing.finished:
        queue = yield from door.gateway.open_queue(wanted.name, door)
        _check_same_queue(queue, wanted, arguments)
        return queue
    _check_new_queue(wanted, arguments, named)
    return (yield from door.gateway.create_queue(wanted, door))


def _is_there(port: BrokerPort, light: int) -> Steps:
    """Whether the broker has a queue of which there is a definition; it is in use then."""
    try:
        yield partial(port.open_cursor, f"~{light}", GROUP, END)
    except GantryError as error:
        if error.code is ErrorCode.QUEUE_NOT_FOUND:
            return False
        raise
    return True


def _server_named(channel: Channel, wanted: QueueDefinition, arguments: Table) -> Steps:
    """Under another name where the broker that decides about one is found to be away when it is asked."""
    gateway = channel.door.gateway
    for tries_left in reversed(range(SERVER_NAMED_TRIES)):
        queue = replace(wanted, name=gateway.definitions.generated_name(channel.prefix, gateway.token))
        try:
            return (yield from _locked(channel, partial(_declare, channel, queue, arguments, False)))
        except GantryError as error:
            if error.code is not ErrorCode.UNAVAILABLE or not tries_left or not queue.transient:
                raise


def _with_default_type(channel: Channel, arguments: Table, lasting: bool) -> Table:
    """With the vhost's type of queues, where a durable shared one names none."""
    kind = channel.door.gateway.definitions.vhosts.default_type(channel.door.vhost) if lasting else ""
    if not kind or lookup(arguments, "x-queue-type") is not None:
        return arguments
    return [*arguments, ("x-queue-type", Field("S", kind.encode()))]


def _check_new_queue(wanted: QueueDefinition, arguments: Table, named: bool) -> None:
    if named and local(wanted.name).startswith(RESERVED_PREFIX):
        raise AmqpError(ACCESS_REFUSED, f"queue name '{wanted.name}' contains reserved prefix 'amq.*'")
    topic_of(wanted.name)
    if not named and is_stream(arguments):
        text = "Cannot declare a server-named queue for type rabbit_stream_queue"
        raise AmqpError(PRECONDITION_FAILED, text)
    check_arguments(wanted.name, arguments, wanted.durable, wanted.exclusive, wanted.auto_delete)


def _check_same_queue(queue: Queue, wanted: QueueDefinition, arguments: Table) -> None:
    found = queue.definition
    if found.exclusive != wanted.exclusive:
        raise locked_error(queue.name)
    _same("queue", queue.name, "durable", _flag(wanted.durable), _flag(found.durable))
    _same("queue", queue.name, "auto_delete", _flag(wanted.auto_delete), _flag(found.auto_delete))
    check_same(queue.name, arguments, found.arguments)


def queue_bind(
    channel: Channel, _ticket: int, queue: str, exchange: str, key: str, nowait: bool, arguments: Table
) -> Steps:
    name = channel.queue_name(queue)
    if local(name).startswith(DIRECT_REPLY_TO):
        raise unknown_queue_error(name)
    # AMQP queue.bind, rule "queue-known": with neither queue nor key given, the key is the queue's name too.
    key = local(name) if not key and not queue else key
    wanted = Binding(_named(channel, exchange), True, name, _key(key), encode_table(arguments))
    door = channel.door

    def work() -> Steps:
        found_queue: Queue = yield from door.gateway.open_queue(name, door)
        found = yield from _existing_exchange(channel, wanted.source)
        yield from door.gateway.definitions.bind(wanted, found, found_queue.definition.light)

    yield from _locked(channel, work)
    if not nowait:
        channel.reply("queue.bind-ok")


def queue_unbind(channel: Channel, _ticket: int, queue: str, exchange: str, key: str, arguments: Table) -> Steps:
    name = channel.queue_name(queue)
    key = local(name) if not key and not queue else key
    wanted = Binding(_named(channel, exchange), True, name, _key(key), encode_table(arguments))
    door = channel.door

    def work() -> Steps:
        if name in door.gateway.definitions.queues:
            yield from door.gateway.open_queue(name, door)
        yield from door.gateway.definitions.unbind(wanted)

    yield from _locked(channel, work)
    channel.reply("queue.unbind-ok")


def queue_purge(channel: Channel, _ticket: int, queue: str, nowait: bool) -> Steps:
    door = channel.door
    found: Queue = yield from door.gateway.open_queue(channel.queue_name(queue), door)
    if found.is_stream:
        raise unsupported("queue.purge", found.name)
    yield partial(door.gateway.port.catch_up, found.cursor)
    count: int = yield partial(door.gateway.port.purge, found.cursor)
    if not nowait:
        channel.reply("queue.purge-ok", count)


def queue_delete(channel: Channel, _ticket: int, queue: str, if_unused: bool, if_empty: bool, nowait: bool) -> Steps:
    name = channel.queue_name(queue)
    gateway = channel.door.gateway

    def work() -> Steps:
        if name not in gateway.definitions.queues:
            return 0
        found: Queue = yield from gateway.open_queue(name, channel.door)
        yield partial(gateway.port.catch_up, found.cursor)
        counts: list[CursorInfo | None] = yield partial(gateway.port.stats, [found.cursor])
        if if_unused and counts[0] is not None and counts[0].consumers:
            raise AmqpError(PRECONDITION_FAILED, f"queue '{name}' in vhost '/' in use")
        ready = counts[0].ready if counts[0] is not None else 0
        if if_empty and ready:
            raise AmqpError(PRECONDITION_FAILED, f"queue '{name}' in vhost '/' not empty")
        yield from gateway.definitions.delete_queue(found.definition)
        return ready

    count: Any = yield from _locked(channel, work)
    if not nowait:
        channel.reply("queue.delete-ok", count)


HANDLERS: Final[dict[str, Handler]] = {
    "exchange.declare": exchange_declare,
    "exchange.delete": exchange_delete,
    "exchange.bind": exchange_bind,
    "exchange.unbind": exchange_unbind,
    "queue.declare": queue_declare,
    "queue.bind": queue_bind,
    "queue.unbind": queue_unbind,
    "queue.purge": queue_purge,
    "queue.delete": queue_delete,
}
