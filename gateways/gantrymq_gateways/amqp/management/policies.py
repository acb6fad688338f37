"""Policies and operator policies as the API has them."""

from __future__ import annotations

from typing import Any

from gantrymq.net.procedures.driver import Steps
from gantrymq_gateways.amqp.gateway import Gateway
from gantrymq_gateways.amqp.origin import local, vhost_of
from gantrymq_gateways.amqp.queues.policies import OPERATOR, USER, ServerPolicy, new_policy
from gantrymq_gateways.amqp.rows import Exchange, QueueDefinition


def view(name: str, policy: ServerPolicy) -> dict[str, Any]:
    """One of them, by its full name."""
    return {
        "vhost": vhost_of(name), "name": local(name), "pattern": policy.pattern, "apply-to": policy.apply_to,
        "definition": policy.definition, "priority": policy.priority,
    }  # fmt: skip


def parameters(gateway: Gateway, vhost: str | None = None) -> list[dict[str, Any]]:
    """Operator policies as files of definitions have them."""
    return [
        {"vhost": vhost_of(name), "name": local(name), "component": OPERATOR, "value": _value(policy)}
        for name, policy in gateway.definitions.policies.all(OPERATOR, vhost)
    ]


def _value(policy: ServerPolicy) -> dict[str, Any]:
    return {key: value for key, value in view("", policy).items() if key not in ("vhost", "name")}


def put(gateway: Gateway, sort: str, name: str, body: dict[str, Any]) -> Steps:
    """Make or change one, by its full name; what it concerns has it at the end. Raises ValueError. Returns whether it is new."""
    policy = new_policy(sort, body)
    definitions = gateway.definitions
    yield definitions.lock.take("definitions")
    try:
        new = definitions.policies.get(sort, name) is None
        yield from definitions.set_policy(sort, name, policy)
    finally:
        definitions.lock.free("definitions")
    return new


def delete(gateway: Gateway, sort: str, name: str) -> Steps:
    """Returns whether there was one."""
    definitions = gateway.definitions
    yield definitions.lock.take("definitions")
    try:
        if definitions.policies.get(sort, name) is None:
            return False
        yield from definitions.set_policy(sort, name, None)
    finally:
        definitions.lock.free("definitions")
    return True


def of_queue(gateway: Gateway, queue: QueueDefinition) -> dict[str, Any]:
    """What a queue's view says of them."""
    policy, operator, said = gateway.definitions.policies.of_queue(queue.name, queue.arguments)
    return {"policy": policy, "operator_policy": operator, "effective_policy_definition": said}


def of_exchange(gateway: Gateway, exchange: Exchange) -> dict[str, Any]:
    """The same of an exchange; the default exchange has none."""
    policy, said = gateway.definitions.policies.of_exchange(exchange.name) if local(exchange.name) else (None, {})
    return {"policy": policy, "effective_policy_definition": said} if policy is not None else {}


SORTS = {"policies": USER, "operator-policies": OPERATOR}
"""By the first word of a path."""
