"""Vhosts and limits as the API has them: what is made, changed and deleted, with the lock of the definitions."""

from __future__ import annotations

from typing import Any

import msgspec

from gantrymq.net.procedures.driver import Steps
from gantrymq_gateways.amqp.gateway import Gateway
from gantrymq_gateways.amqp.origin import ROOT
from gantrymq_gateways.amqp.vhosts import registry


def view(name: str, row: registry.VirtualHost) -> dict[str, Any]:
    """One of them."""
    return {**definition_of(name, row), "tracing": row.tracing}


def definition_of(name: str, row: registry.VirtualHost) -> dict[str, Any]:
    """What files of definitions say of it."""
    kind = row.default_queue_type or "classic"
    return {
        "name": name, "description": row.description, "tags": row.tags, "default_queue_type": kind,
        "metadata": {"description": row.description, "tags": row.tags, "default_queue_type": kind},
    }  # fmt: skip


def views(gateway: Gateway) -> list[dict[str, Any]]:
    """All that there are."""
    vhosts = gateway.definitions.vhosts
    return [view(name, row) for name in vhosts.names() if (row := vhosts.get(name)) is not None]


def definitions_of(gateway: Gateway) -> list[dict[str, Any]]:
    """All that there are, as files of definitions have them."""
    vhosts = gateway.definitions.vhosts
    return [definition_of(name, row) for name in vhosts.names() if (row := vhosts.get(name)) is not None]


def put(gateway: Gateway, name: str, body: dict[str, Any]) -> Steps:
    """Make or change one. Returns whether it is new. Raises ValueError."""
    definitions = gateway.definitions
    yield definitions.lock.take("definitions")
    try:
        old = definitions.vhosts.get(name)
        yield from definitions.set_vhost(name, registry.new_vhost(body, old))
    finally:
        definitions.lock.free("definitions")
    return old is None


def delete(gateway: Gateway, name: str) -> Steps:
    """With all that is in it. Returns whether there was one. Raises ValueError for `/`."""
    if name == ROOT:
        raise ValueError("vhost '/' cannot be deleted")
    definitions = gateway.definitions
    yield definitions.lock.take("definitions")
    try:
        if definitions.vhosts.get(name) is None:
            return False
        yield from definitions.delete_vhost(name)
    finally:
        definitions.lock.free("definitions")
    return True


def limit_views(gateway: Gateway, vhost: str | None = None) -> list[dict[str, Any]]:
    """Of the vhosts that have any."""
    rows = gateway.definitions.vhosts.rows
    return [
        {"vhost": name, "value": row.limits}
        for name, row in sorted(rows.items())
        if row.limits and not row.gone and vhost in (None, name)
    ]


def set_limit(gateway: Gateway, vhost: str, limit: str, value: Any) -> Steps:
    """None: no limit any more. Raises ValueError."""
    definitions = gateway.definitions
    yield definitions.lock.take("definitions")
    try:
        row = definitions.vhosts.get(vhost) or registry.VirtualHost()
        limits = _changed(row.limits, registry.VHOST_LIMITS, limit, value)
        yield from definitions.set_vhost(vhost, msgspec.structs.replace(row, limits=limits))
    finally:
        definitions.lock.free("definitions")


def user_limit_views(gateway: Gateway, user: str | None = None) -> list[dict[str, Any]]:
    """Of the users who have any."""
    found = gateway.definitions.vhosts.user_limits
    return [{"user": name, "value": limits} for name, limits in sorted(found.items()) if user in (None, name)]


def set_user_limit(gateway: Gateway, user: str, limit: str, value: Any) -> Steps:
    """None: no limit any more. Raises ValueError."""
    definitions = gateway.definitions
    yield definitions.lock.take("definitions")
    try:
        old = definitions.vhosts.user_limits.get(user, {})
        yield from definitions.set_user_limits(user, _changed(old, registry.USER_LIMITS, limit, value))
    finally:
        definitions.lock.free("definitions")


def _changed(limits: dict[str, int], known: frozenset[str], limit: str, value: Any) -> dict[str, int]:
    if value is None:
        return {name: old for name, old in limits.items() if name != limit}
    return {**limits, limit: registry.check_limit(known, limit, value)}
