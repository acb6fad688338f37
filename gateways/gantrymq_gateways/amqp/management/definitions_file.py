"""Definitions as RabbitMQ exports and imports them: users and what they may, vhosts with their limits, policies, exchanges, queues and bindings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from gantrymq.net.procedures.driver import Steps
from gantrymq_gateways.amqp.gateway import Gateway
from gantrymq_gateways.amqp.management import policies, users, views, virtual_hosts
from gantrymq_gateways.amqp.management.inside import Inside
from gantrymq_gateways.amqp.management.values import table_of, truth
from gantrymq_gateways.amqp.origin import ROOT, full_name, local, prefix_of, vhost_of
from gantrymq_gateways.amqp.queues.policies import OPERATOR, USER

log = logging.getLogger(__name__)

LIMITS: Final = "vhost-limits"
"""The component of parameters that are a vhost's limits."""

_SKIPPED: Final = ("global_parameters",)
ACCOUNTS: Final = ("users", "permissions", "topic_permissions")
"""Where there are users: else they are left out."""


def export(gateway: Gateway, vhost: str | None = None) -> dict[str, Any]:
    """All that is durable, or that of one vhost."""
    queues = [queue for queue in views.visible_queues(gateway, vhost) if not queue.transient]
    names = {queue.name for queue in queues}
    shown = [
        exchange
        for exchange in gateway.definitions.exchanges()
        if exchange.durable and (vhost is None or vhost_of(exchange.name) == vhost)
    ]
    limits = virtual_hosts.limit_views(gateway, vhost)
    return {
        "rabbit_version": gateway.config.version, "rabbitmq_version": gateway.config.version,
        "product_name": gateway.config.product, "product_version": gateway.config.version,
        "users": users.views(gateway) if vhost is None else [], "permissions": users.permissions(gateway, vhost),
        "topic_permissions": users.topic_permissions(gateway, vhost), "global_parameters": [],
        "vhosts": [each for each in virtual_hosts.definitions_of(gateway) if vhost in (None, each["name"])],
        "parameters": [
            *policies.parameters(gateway, vhost),
            *[{**each, "component": LIMITS, "name": "limits"} for each in limits],
        ],
        "policies": [policies.view(*each) for each in gateway.definitions.policies.all(USER, vhost)],
        "queues": [
            {
                "name": local(queue.name), "vhost": vhost_of(queue.name), "durable": True, "auto_delete": queue.auto_delete,
                "arguments": views.arguments_of(queue.arguments),
            }
            for queue in sorted(queues, key=lambda queue: queue.name)
        ],
        "exchanges": [views.definition_of(each) for each in sorted(shown, key=lambda each: each.name)],
        "bindings": [
            {key: value for key, value in views.binding_view(binding).items() if key != "properties_key"}
            for binding in gateway.definitions.bindings()
            if vhost is None or vhost_of(binding.source) == vhost
            if not binding.to_queue or binding.destination in names
        ],
    }  # fmt: skip


def import_(gateway: Gateway, user: str, body: dict[str, Any], vhost: str | None = None) -> Steps:
    """Declare what is not there yet; all into one vhost where the request names it. Raises what the declarations raise: what came before the refused one stays, as in RabbitMQ. Returns
    what was left out, by kind."""
    skipped = _SKIPPED if gateway.authority is not None else (*_SKIPPED, *ACCOUNTS)
    left: dict[str, int] = {name: len(body[name]) for name in skipped if body.get(name)}
    kinds = (
        ("vhosts", _vhost), ("users", _user), ("permissions", _permission), ("topic_permissions", _topic_permission), ("parameters", _parameter), ("policies", _policy), ("exchanges", _exchange), ("queues", _queue), ("bindings", _binding),
    )  # fmt: skip
    for kind, declare in kinds:
        if kind in skipped:
            continue
        for row in body.get(kind) or ():
            if not isinstance(row, dict):
                raise ValueError(f"{kind}: {str(row)[:80]!r} is no object")
            alone = kind in ("vhosts", "users")
            place = ROOT if alone else vhost or str(row.get("vhost", ROOT))
            if alone and vhost is not None:
                continue
            if gateway.definitions.vhosts.get(place) is None:
                raise ValueError(f"{kind}: vhost {place[:80]!r} is not there, and not in this file")
            if (missed := (yield from declare(Inside(gateway, user, place), row))) is not None:
                left[missed] = left.get(missed, 0) + 1
    for name, count in left.items():
        log.warning("amqp: definitions: %d %s were not imported", count, name)
    return left


def _vhost(inside: Inside, row: dict[str, Any]) -> Steps:
    yield from virtual_hosts.put(inside.gateway, str(row["name"]), row)


def _user(inside: Inside, row: dict[str, Any]) -> Steps:
    return (yield from users.import_user(inside.gateway, row))


def _permission(inside: Inside, row: dict[str, Any]) -> Steps:
    return (yield from _right(inside, row, "permissions", users.put_permission))


def _topic_permission(inside: Inside, row: dict[str, Any]) -> Steps:
    return (yield from _right(inside, row, "topic_permissions", users.put_topic_permission))


def _right(inside: Inside, row: dict[str, Any], what: str, put: Callable[..., Steps]) -> Steps:
    name = str(row["user"])
    if users.view(inside.gateway, name) is None:
        return f"{what} of users that are not there"
    yield from put(inside.gateway, inside.vhost, name, row)
    return None


def _parameter(inside: Inside, row: dict[str, Any]) -> Steps:
    """Operator policies and limits of vhosts are parameters in such a file; there are no others here."""
    if row.get("component") == LIMITS and isinstance(row.get("value"), dict):
        for limit, value in row["value"].items():
            yield from virtual_hosts.set_limit(inside.gateway, inside.vhost, limit, value)
        return None
    if row.get("component") != OPERATOR or not isinstance(row.get("value"), dict):
        return "parameters"
    yield from policies.put(
        inside.gateway, OPERATOR, full_name(prefix_of(inside.vhost), str(row["name"])), row["value"]
    )
    return None


def _policy(inside: Inside, row: dict[str, Any]) -> Steps:
    yield from policies.put(inside.gateway, USER, full_name(prefix_of(inside.vhost), str(row["name"])), row)


def _exchange(inside: Inside, row: dict[str, Any]) -> Steps:
    name = str(row["name"])
    if not name or name.startswith("amq."):
        return
    if inside.gateway.definitions.declared_exchange(full_name(prefix_of(inside.vhost), name)) is not None:
        return  # as it is, whatever the file says of it, as with RabbitMQ
    flags = truth(row.get("durable"), True), truth(row.get("auto_delete")), truth(row.get("internal"))
    kind = str(row.get("type", "direct"))
    yield from inside.call("exchange.declare", 0, name, kind, False, *flags, False, table_of(row.get("arguments")))


def _queue(inside: Inside, row: dict[str, Any]) -> Steps:
    found = inside.gateway.definitions.queues.get(full_name(prefix_of(inside.vhost), str(row["name"])))
    if found is not None and found.finished:
        return  # the same
    durable, auto_delete = truth(row.get("durable"), True), truth(row.get("auto_delete"))
    table = table_of(row.get("arguments"))
    yield from inside.call("queue.declare", 0, str(row["name"]), False, durable, False, auto_delete, False, table)


def _binding(inside: Inside, row: dict[str, Any]) -> Steps:
    source, destination, key = str(row["source"]), str(row["destination"]), str(row.get("routing_key", ""))
    if not source:
        return
    method = "queue.bind" if row.get("destination_type", "queue") == "queue" else "exchange.bind"
    yield from inside.call(method, 0, destination, source, key, False, table_of(row.get("arguments")))
