"""Definitions as RabbitMQ exports and imports them: policies, exchanges, queues and bindings of vhost `/`."""

from __future__ import annotations

import logging
from typing import Any, Final

from gantrymq.net.procedures.driver import Steps
from gantrymq_gateways.amqp.gateway import Gateway
from gantrymq_gateways.amqp.management import policies, views
from gantrymq_gateways.amqp.management.inside import Inside
from gantrymq_gateways.amqp.management.policies import VHOST
from gantrymq_gateways.amqp.management.values import table_of, truth
from gantrymq_gateways.amqp.queues.policies import OPERATOR, USER

log = logging.getLogger(__name__)

_SKIPPED: Final = ("users", "permissions", "topic_permissions", "global_parameters")


def export(gateway: Gateway) -> dict[str, Any]:
    """All that is durable."""
    queues = [queue for queue in views.visible_queues(gateway) if not queue.transient]
    names = {queue.name for queue in queues}
    shown = [exchange for exchange in gateway.definitions.exchanges() if exchange.durable]
    return {
        "rabbit_version": gateway.config.version, "rabbitmq_version": gateway.config.version,
        "product_name": gateway.config.product, "product_version": gateway.config.version,
        "users": [], "vhosts": [{"name": VHOST}], "permissions": [], "topic_permissions": [],
        "global_parameters": [], "parameters": policies.parameters(gateway),
        "policies": [policies.view(*each) for each in gateway.definitions.policies.all(USER)],
        "queues": [
            {
                "name": queue.name, "vhost": VHOST, "durable": True, "auto_delete": queue.auto_delete,
                "arguments": views.arguments_of(queue.arguments),
            }
            for queue in sorted(queues, key=lambda queue: queue.name)
        ],
        "exchanges": [views.definition_of(each) for each in sorted(shown, key=lambda each: each.name)],
        "bindings": [
            {key: value for key, value in views.binding_view(binding).items() if key != "properties_key"}
            for binding in gateway.definitions.bindings()
            if not binding.to_queue or binding.destination in names
        ],
    }  # fmt: skip


def import_(gateway: Gateway, user: str, body: dict[str, Any]) -> Steps:
    """Declare what is not there yet. Raises what the declarations raise: what came before the refused one stays, as in RabbitMQ. Returns
    what was left out, by kind."""
    left: dict[str, int] = {name: len(body[name]) for name in _SKIPPED if body.get(name)}
    others = 0
    kinds = (
        ("parameters", _parameter), ("policies", _policy), ("exchanges", _exchange), ("queues", _queue), ("bindings", _binding),
    )  # fmt: skip
    for kind, declare in kinds:
        for row in body.get(kind) or ():
            if not isinstance(row, dict):
                raise ValueError(f"{kind}: {str(row)[:80]!r} is no object")
            if row.get("vhost", VHOST) != VHOST:
                others += 1
                continue
            if (missed := (yield from declare(Inside(gateway, user), row))) is not None:
                left[missed] = left.get(missed, 0) + 1
    if others:
        left["of other vhosts"] = others
    for name, count in left.items():
        log.warning("amqp: definitions: %d %s were not imported", count, name)
    return left


def _parameter(inside: Inside, row: dict[str, Any]) -> Steps:
    """Operator policies are parameters in such a file; there are no others here."""
    if row.get("component") != OPERATOR or not isinstance(row.get("value"), dict):
        return "parameters"
    yield from policies.put(inside.gateway, OPERATOR, str(row["name"]), row["value"])
    return None


def _policy(inside: Inside, row: dict[str, Any]) -> Steps:
    yield from policies.put(inside.gateway, USER, str(row["name"]), row)


def _exchange(inside: Inside, row: dict[str, Any]) -> Steps:
    name = str(row["name"])
    if not name or name.startswith("amq."):
        return
    flags = truth(row.get("durable"), True), truth(row.get("auto_delete")), truth(row.get("internal"))
    kind = str(row.get("type", "direct"))
    yield from inside.call("exchange.declare", 0, name, kind, False, *flags, False, table_of(row.get("arguments")))


def _queue(inside: Inside, row: dict[str, Any]) -> Steps:
    durable, auto_delete = truth(row.get("durable"), True), truth(row.get("auto_delete"))
    table = table_of(row.get("arguments"))
    yield from inside.call("queue.declare", 0, str(row["name"]), False, durable, False, auto_delete, False, table)


def _binding(inside: Inside, row: dict[str, Any]) -> Steps:
    source, destination, key = str(row["source"]), str(row["destination"]), str(row.get("routing_key", ""))
    if not source:
        return
    method = "queue.bind" if row.get("destination_type", "queue") == "queue" else "exchange.bind"
    yield from inside.call(method, 0, destination, source, key, False, table_of(row.get("arguments")))
