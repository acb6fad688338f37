"""Definitions that a RabbitMQ exports (`rabbitmqctl export_definitions`, `GET /api/definitions`): users, permissions, topic permissions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from gantrymq.auth.expressions import ExpressionError, matches
from gantrymq.auth.passwords import RABBIT
from gantrymq.cli.security.imports.found import Found, ImportFileError

READERS: Final = ("monitoring",)
"""Tags of users who look at everything, and change nothing."""
WITHOUT: Final = ("management", "policymaker", "impersonator")


def read_rabbitmq(data: bytes) -> Found:
    """Raises `ImportFileError`."""
    try:
        said = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ImportFileError(f"it is no JSON: {error}") from error
    if not isinstance(said, dict) or not isinstance(said.get("users"), list):
        raise ImportFileError(
            'there are no "users" in it: export the definitions of the whole broker, not of one vhost'
        )
    found = Found()
    for user in _rows(said, "users"):
        _user(found, user)
    _permissions(found, said)
    return found


def _rows(said: Mapping[str, Any], key: str) -> Iterator[dict[str, Any]]:
    rows = said.get(key) or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ImportFileError(f'"{key}" is no list of objects')
    yield from rows


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key, "")
    if not isinstance(value, str):
        raise ImportFileError(f'"{key}" is no text')
    return value


def _user(found: Found, row: dict[str, Any]) -> None:
    name, known, algorithm = _text(row, "name"), _text(row, "password_hash"), _text(row, "hashing_algorithm")
    algorithm = algorithm or "rabbit_password_hashing_sha256"
    tags = row.get("tags") or []
    tags = [tag.strip() for tag in (tags.split(",") if isinstance(tags, str) else tags) if isinstance(tag, str)]
    info: dict[str, Any] = {"userType": "Super" if "administrator" in tags else "Normal"}
    if known and algorithm in RABBIT:
        info["hash"] = f"{algorithm}:{known}"
    elif known:
        found.left.append(
            f"user {name[:80]!r}: the password is hashed with {algorithm[:80]}: give it a new one (gantry user set)"
        )
    if not found.user(name, **info):
        return
    if info["userType"] == "Super":
        found.notes.append(f"user {name} is administrator: here that is every right, to messages, too")
    elif any(tag in READERS for tag in tags):
        found.rule(f"user:{name}", "cluster:*", ["get", "list"])
    for tag in tags:
        if tag in WITHOUT:
            found.left.append(
                f"user {name}: tag {tag}: only administrators and who may get cluster:* see the management API"
            )
    if row.get("limits"):
        found.left.append(f"user {name}: limits of its connections and channels")


def _permissions(found: Found, said: Mapping[str, Any]) -> None:
    refused: set[tuple[str, str]] = set()
    """Topic permissions take away: without one of them, its user would get more in that vhost."""
    topics: dict[str, dict[str, dict[str, list[str]]]] = {}
    for row in _rows(said, "topic_permissions"):
        user, vhost, exchange = _text(row, "user"), _text(row, "vhost"), _text(row, "exchange")
        expressions = [_text(row, "write"), _text(row, "read")]
        try:
            for expression in expressions:
                _check(expression)
        except ExpressionError as error:
            refused.add((user, vhost))
            found.left.append(
                f"user {user[:80]}: topic permission of exchange {exchange[:80]} in vhost {vhost[:80]}: {error}; it gets nothing in that vhost"
            )
            continue
        topics.setdefault(user, {}).setdefault(vhost, {})[exchange] = expressions
    for row in _rows(said, "permissions"):
        user, vhost = _text(row, "user"), _text(row, "vhost")
        if user not in found.users or (user, vhost) in refused:
            continue
        expressions = [_text(row, key) for key in ("configure", "write", "read")]
        try:
            for expression in expressions:
                _check(expression)
        except ExpressionError as error:
            found.left.append(f"user {user}: permission in vhost {vhost[:80]}: {error}")
            continue
        found.users[user].setdefault("amqp", {})[vhost] = expressions
    for user, vhosts in topics.items():
        if user in found.users:
            found.users[user]["amqpTopics"] = vhosts


def _check(expression: str) -> None:
    plain = expression
    for variable in ("{username}", "{vhost}", "{client_id}"):
        plain = plain.replace(variable, "x")
    matches(plain, "")
