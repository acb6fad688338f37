"""What there is, as the API's JSON has it. Lists are made in slices: a hundred thousand queues never hold up the loop."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from gantrymq.broker.port import FIND, CursorInfo
from gantrymq.model.errors import GantryError
from gantrymq.net.procedures.driver import Done, Steps
from gantrymq_gateways.amqp.channels.channel import Channel
from gantrymq_gateways.amqp.definitions import GROUP
from gantrymq_gateways.amqp.door import AmqpDoor
from gantrymq_gateways.amqp.exchanges.arguments import TYPES
from gantrymq_gateways.amqp.gateway import Gateway
from gantrymq_gateways.amqp.management import policies
from gantrymq_gateways.amqp.management.values import plain_table
from gantrymq_gateways.amqp.origin import local, own_prefix, prefix_of, vhost_of
from gantrymq_gateways.amqp.rows import Binding, Exchange, QueueDefinition, system_exchanges
from gantrymq_gateways.amqp.wire.constants import DIRECT_REPLY_TO
from gantrymq_gateways.amqp.wire.values import read_table

SLICE: Final = 100
"""Items between two turns of the loop: a millisecond."""


def breathe(gateway: Gateway, _token: Any, on_done: Done) -> None:
    """A call that is answered in a later turn."""
    gateway.turn.in_slices(lambda: on_done(None, None))


def arguments_of(data: bytes) -> dict[str, Any]:
    """Of a definition."""
    return plain_table(read_table(data, 0, len(data))[0]) if data else {}


def exchange_view(gateway: Gateway, exchange: Exchange) -> dict[str, Any]:
    """One exchange."""
    return definition_of(exchange) | {"user_who_performed_action": ""} | policies.of_exchange(gateway, exchange)


def definition_of(exchange: Exchange) -> dict[str, Any]:
    """What files of definitions say of it."""
    return {
        "name": local(exchange.name), "vhost": vhost_of(exchange.name), "type": exchange.type or "direct", "durable": exchange.durable,
        "auto_delete": exchange.auto_delete, "internal": exchange.internal, "arguments": arguments_of(exchange.arguments),
    }  # fmt: skip


def exchanges(gateway: Gateway, vhost: str | None = None) -> list[Exchange]:
    """All that can be published to, each vhost's default exchange first."""
    names = gateway.definitions.vhosts.names() if vhost is None else [vhost]
    declared: dict[str, list[Exchange]] = {name: [] for name in names}
    for exchange in gateway.definitions.exchanges():
        if (found := declared.get(vhost_of(exchange.name))) is not None:
            found.append(exchange)
    return [
        exchange
        for name in names
        for exchange in (
            Exchange(prefix_of(name), "direct"), *system_exchanges(name), *sorted(declared[name], key=lambda each: each.name)
        )
    ]  # fmt: skip


def binding_view(binding: Binding) -> dict[str, Any]:
    """One binding."""
    arguments = arguments_of(binding.arguments)
    return {
        "source": local(binding.source), "vhost": vhost_of(binding.destination), "destination": local(binding.destination),
        "destination_type": "queue" if binding.to_queue else "exchange", "routing_key": binding.key,
        "arguments": arguments, "properties_key": properties_key(binding.key, arguments),
    }  # fmt: skip


def properties_key(key: str, arguments: dict[str, Any]) -> str:
    """What names a binding among those of the same two ends."""
    if not arguments:
        return quote(key, safe="") or "~"
    digest = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()[:22]
    return f"{quote(key, safe='')}~{digest}"


def bindings(gateway: Gateway, vhost: str | None = None) -> Iterator[Binding]:
    """All, or those of a vhost, the default exchange's first."""
    for queue in visible_queues(gateway, vhost):
        yield Binding(own_prefix(queue.name), True, queue.name, local(queue.name), b"")
    for binding in gateway.definitions.bindings():
        if vhost is None or vhost_of(binding.source) == vhost:
            yield binding


def visible_queues(gateway: Gateway, vhost: str | None = None) -> list[QueueDefinition]:
    """All, or those of a vhost, without those behind direct replies."""
    found = gateway.definitions.queues.values()
    return [
        queue
        for queue in found
        if (queue.finished or queue.transient)
        and not local(queue.name).startswith(DIRECT_REPLY_TO)
        and (vhost is None or vhost_of(queue.name) == vhost)
    ]


def queue_views(gateway: Gateway, wanted: Iterable[QueueDefinition]) -> Steps:
    """Queues with their counts."""
    found: list[dict[str, Any]] = []
    rows = list(wanted)
    for first in range(0, len(rows), SLICE):
        part = rows[first : first + SLICE]
        cursors: list[int] = []
        for definition in part:
            cursor = yield from _cursor(gateway, definition)
            cursors.append(cursor)
        counts: list[CursorInfo | None] = yield partial(gateway.port.stats, cursors)
        found += [_queue_view(gateway, definition, info) for definition, info in zip(part, counts, strict=True)]
        yield partial(breathe, gateway)
    return found


def _cursor(gateway: Gateway, definition: QueueDefinition) -> Steps:
    queue = gateway.queues.get(definition.name)
    if queue is not None and queue.definition.light == definition.light:
        return queue.cursor
    try:
        info: CursorInfo = yield partial(gateway.port.open_cursor, f"~{definition.light}", GROUP, FIND)
    except GantryError:  # it went meanwhile
        return 0
    return info.cursor


def _queue_view(gateway: Gateway, definition: QueueDefinition, info: CursorInfo | None) -> dict[str, Any]:
    arguments = arguments_of(definition.arguments)
    ready, unacked = (info.ready, info.unacked) if info is not None else (0, 0)
    queue = gateway.queues.get(definition.name)
    consumers = list(queue.consumers) if queue is not None else []
    count = info.consumers if info is not None else 0
    return {
        "name": local(definition.name), "vhost": vhost_of(definition.name), "durable": definition.durable, "auto_delete": definition.auto_delete,
        "exclusive": definition.exclusive, "arguments": arguments, "type": arguments.get("x-queue-type", "classic"),
        "node": node_name(gateway), "state": "running", "consumers": count, "messages": ready + unacked,
        "messages_ready": ready, "messages_unacknowledged": unacked, **policies.of_queue(gateway, definition),
        "exclusive_consumer_tag": _exclusive(consumers), "memory": 0,
        "message_stats": {}, "messages_details": {"rate": 0.0}, "messages_ready_details": {"rate": 0.0},
        "messages_unacknowledged_details": {"rate": 0.0},
    }  # fmt: skip


def _exclusive(consumers: list[Any]) -> str | None:
    return consumers[0].tag if consumers and consumers[0].exclusive else None


def connections(gateway: Gateway) -> list[AmqpDoor]:
    """Those of this process that have logged in."""
    return [door for door in gateway.doors if isinstance(door, AmqpDoor) and door.opened]


def connection_view(door: AmqpDoor) -> dict[str, Any]:
    """One connection."""
    wire = door.wire
    host, _, port = door.peer.rpartition(":")
    return {
        "name": connection_name(door), "user": wire.user, "vhost": door.vhost, "protocol": "AMQP 0-9-1", "type": "network",
        "state": "blocked" if door.blocked_for_room else "running", "channels": len(door.channels),
        "channel_max": wire.channel_max, "frame_max": door.frame_max, "timeout": wire.heartbeat_s, "peer_host": host,
        "peer_port": int(port) if port.isdigit() else 0, "connected_at": door.connected_ms, "ssl": False,
        "auth_mechanism": wire.mechanism, "user_provided_name": wire.client_name, "node": node_name(door.gateway),
        "client_properties": {"product": wire.client, "connection_name": wire.client_name},
    }  # fmt: skip


def connection_name(door: AmqpDoor) -> str:
    """What tells a connection from others; without blanks and slashes, for it stands in paths."""
    return door.peer


def channel_view(door: AmqpDoor, channel: Channel) -> dict[str, Any]:
    """One channel."""
    return {
        "name": f"{connection_name(door)} ({channel.number})", "number": channel.number, "user": door.wire.user, "vhost": door.vhost,
        "state": "running", "confirm": channel.confirming, "transactional": channel.transaction is not None,
        "prefetch_count": channel.prefetch, "global_prefetch_count": channel.ledger.prefetch_shared,
        "messages_unacknowledged": len(channel.ledger.open), "consumer_count": len(channel.consumers),
        "messages_unconfirmed": channel.published - channel.confirmed, "messages_uncommitted": 0,
        "acks_uncommitted": 0, "node": node_name(door.gateway), "connection_details": _connection_details(door),
    }  # fmt: skip


def _connection_details(door: AmqpDoor) -> dict[str, Any]:
    host, _, port = door.peer.rpartition(":")
    return {"name": connection_name(door), "peer_host": host, "peer_port": int(port) if port.isdigit() else 0}


def consumer_views(gateway: Gateway) -> Iterator[dict[str, Any]]:
    """Of this process."""
    for door in connections(gateway):
        for channel in list(door.channels.values()):
            for consumer in list(channel.consumers.values()):
                if local(consumer.queue.name).startswith(DIRECT_REPLY_TO):
                    continue
                details = {
                    "name": f"{connection_name(door)} ({channel.number})", "number": channel.number, "user": door.wire.user,
                    "node": node_name(gateway), "connection_name": connection_name(door), **_peer_of(door),
                }  # fmt: skip
                yield {
                    "consumer_tag": consumer.tag, "exclusive": consumer.exclusive, "ack_required": not consumer.no_ack,
                    "prefetch_count": consumer.prefetch, "active": consumer.active, "activity_status": "up" if consumer.active else "waiting",
                    "arguments": {"x-priority": consumer.priority} if consumer.priority else {},
                    "consumer_timeout": consumer.queue.timeout_ms,
                    "queue": {"name": local(consumer.queue.name), "vhost": door.vhost}, "channel_details": details,
                }  # fmt: skip


def _peer_of(door: AmqpDoor) -> dict[str, Any]:
    details = _connection_details(door)
    return {"peer_host": details["peer_host"], "peer_port": details["peer_port"]}


def node_name(gateway: Gateway) -> str:
    """As RabbitMQ names nodes."""
    return gateway.node


def overview(gateway: Gateway, queues: list[dict[str, Any]], user: str) -> dict[str, Any]:
    """The first page of every tool."""
    doors = connections(gateway)
    config = gateway.config
    totals = {
        name: sum([queue[name] for queue in queues])
        for name in ("messages", "messages_ready", "messages_unacknowledged")
    }
    return {
        "management_version": config.version, "rabbitmq_version": config.version, "product_name": config.product,
        "product_version": config.version, "cluster_name": node_name(gateway), "node": node_name(gateway),
        "rates_mode": "none", "sample_retention_policies": {}, "erlang_version": "", "erlang_full_version": "",
        "exchange_types": [{"name": kind, "description": "", "enabled": True} for kind in sorted(TYPES)],
        "message_stats": {}, "queue_totals": totals, "disable_stats": False, "enable_queue_totals": True,
        "object_totals": {
            "connections": len(doors), "channels": sum([len(door.channels) for door in doors]),
            "consumers": sum(1 for _ in consumer_views(gateway)), "exchanges": len(exchanges(gateway)),
            "queues": len(queues),
        },
        "statistics_db_event_queue": 0, "listeners": [], "contexts": [], "user": user,
    }  # fmt: skip


def encoded(gateway: Gateway, items: Iterable[dict[str, Any]], columns: str) -> Steps:
    """A list as JSON, of each item those columns (all: empty)."""
    wanted = [name for name in columns.split(",") if name]
    pick: Callable[[dict[str, Any]], Any] = partial(_picked, wanted) if wanted else lambda item: item
    pieces: list[str] = []
    for number, item in enumerate(items, 1):
        pieces.append(json.dumps(pick(item)))
        if not number % SLICE:
            yield partial(breathe, gateway)
    return ("[" + ",".join(pieces) + "]").encode()


def _picked(wanted: list[str], item: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in wanted:
        value: Any = item
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None or name in item:
            place = found
            *outer, last = name.split(".")
            for part in outer:
                place = place.setdefault(part, {})
            place[last] = value
    return found
