"""Users, permissions and topic permissions as RabbitMQ's tools see and set them: accounts (docs/operations/security.md) with their expressions by vhost.

Without authentication there is `guest`, who may do everything; saying so again changes nothing, anything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gantrymq.auth.expressions import ExpressionError, matches
from gantrymq.auth.passwords import RABBIT, check_hash, check_password, verify
from gantrymq.auth.rows import POLICIES, TOKENS, USERS, User, check_name, encode
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Steps
from gantrymq_gateways.amqp.access import DEFAULT_NAME
from gantrymq_gateways.amqp.gateway import Gateway
from gantrymq_gateways.amqp.wire.constants import NOT_FOUND, AmqpError

if TYPE_CHECKING:
    from gantrymq.auth.authority import Authority

OFF: Final = "users and permissions: authentication is off here (auth.enabled=true turns it on)"
GUEST: Final = "guest"
ADMINISTRATOR: Final = "administrator"
MONITORING: Final = "monitoring"
"""Looks at everything in the management API, and changes nothing."""
SHA256: Final = "rabbit_password_hashing_sha256"
EVERYTHING: Final = (".*", ".*", ".*")
WORDS: Final = ("configure", "write", "read")
TAGS_MAX: Final = 20
VARIABLES: Final = ("{username}", "{vhost}", "{client_id}")


def _authority(gateway: Gateway) -> Authority:
    if gateway.authority is None:
        raise ValueError(OFF)
    return gateway.authority


def _known(gateway: Gateway, name: str) -> User:
    found = _authority(gateway).account(name)
    if found is None:
        raise AmqpError(NOT_FOUND, "user_not_found")
    return found


# What is shown. No password's hash is: nothing but a guess comes of it.


def views(gateway: Gateway) -> list[dict[str, Any]]:
    """All users."""
    authority = gateway.authority
    if authority is None:
        return [_shown(User(GUEST, admin=True), gateway)]
    return [_shown(user, gateway) for user in authority.users()]


def view(gateway: Gateway, name: str) -> dict[str, Any] | None:
    """One, who may be one of a token, without an account."""
    authority = gateway.authority
    if authority is None:
        return _shown(User(name, admin=True), gateway) if name == GUEST else None
    found = authority.account(name)
    return None if found is None else _shown(found, gateway)


def _shown(user: User, gateway: Gateway) -> dict[str, Any]:
    tags = [ADMINISTRATOR] * user.admin + list(user.amqp_tags)
    limits = gateway.definitions.vhosts.user_limits.get(user.name, {})
    return {"name": user.name, "password_hash": "", "hashing_algorithm": SHA256, "tags": tags, "limits": limits}


def permissions(gateway: Gateway, vhost: str | None = None, user: str | None = None) -> list[dict[str, Any]]:
    """All, or those of a vhost, of a user, or of both."""
    if gateway.authority is None:
        rows = [(GUEST, name, EVERYTHING) for name in gateway.definitions.vhosts.names()]
    else:
        rows = [(each.name, name, said) for each in gateway.authority.users() for name, said in each.amqp.items()]
    return [
        {"user": name, "vhost": place, **dict(zip(WORDS, said, strict=True))}
        for name, place, said in rows
        if vhost in (None, place) and user in (None, name)
    ]


def topic_permissions(gateway: Gateway, vhost: str | None = None, user: str | None = None) -> list[dict[str, Any]]:
    """The same of routing keys."""
    return [
        {"user": each.name, "vhost": place, "exchange": exchange, "write": write, "read": read}
        for each in (gateway.authority.users() if gateway.authority is not None else ())
        for place, exchanges in each.amqp_topics.items()
        for exchange, (write, read) in exchanges.items()
        if vhost in (None, place) and user in (None, each.name)
    ]


def monitors(authority: Authority, name: str) -> bool:
    """By RabbitMQ's tag."""
    found = authority.user(name)
    return found is not None and MONITORING in found.amqp_tags


# What is changed. Each returns whether it is new.


def put(gateway: Gateway, name: str, body: dict[str, Any]) -> Steps:
    """A user; without a password the one that there is stays. Raises ValueError."""
    authority = _authority(gateway)
    check_name(name)
    password, known = body.get("password"), body.get("password_hash")
    if password and known:
        raise ValueError("both password and password_hash are given")
    for given in (password, known):
        if given is not None and not isinstance(given, str):
            raise ValueError("password and password_hash are texts")
    tags = _tags(body.get("tags", ""))
    changes: dict[str, Any] = {
        "admin": ADMINISTRATOR in tags,
        "amqp_tags": tuple(tag for tag in tags if tag != ADMINISTRATOR),
    }
    if password:
        check_password(password)
        found = yield partial(_hashed, authority, password)
        secret = authority.keys.seal(name, password) if authority.keys is not None else ""
        changes |= {"password": found[0], "scram": found[1], "secret": secret}
    elif known:
        algorithm = body.get("hashing_algorithm") or SHA256
        hashed = f"{algorithm}:{known}"
        if algorithm not in RABBIT:
            raise ValueError(f"hashing_algorithm {str(algorithm)[:60]!r} is none of {', '.join(RABBIT)}")
        check_hash(hashed)
        changes |= {"password": hashed, "scram": "", "secret": ""}
    new = yield from _change(gateway, name, lambda user: msgspec.structs.replace(user, **changes), make=True)
    return new


def _hashed(authority: Authority, password: str, token: object, on_done: Callable[[object, Any], None]) -> None:
    authority.logins.hash(partial(authority.hashes_of, password), lambda found: on_done(token, found))


def _tags(given: Any) -> list[str]:
    tags = given.split(",") if isinstance(given, str) else given
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise ValueError("tags: a list of texts is needed")
    found = [tag.strip() for tag in tags if tag.strip()]
    if len(found) > TAGS_MAX or any(len(tag) > 80 or not tag.isprintable() for tag in found):
        raise ValueError(f"tags: at most {TAGS_MAX}, of 80 printable characters each")
    return found


def delete(gateway: Gateway, name: str) -> Steps:
    """With its policy and tokens: a user made later under the name begins without rights. Returns whether there was one."""
    authority = _authority(gateway)
    user = authority.account(name)
    if user is None:
        return False
    if user.admin and not any(each.admin and each.enabled for each in authority.users() if each.name != name):
        raise ValueError(f"user '{name}' is the last administrator")
    tokens: list[tuple[str, bytes | None]] = [(token.id, None) for token in authority.tokens_of(name)]
    for table, rows in ((TOKENS, tokens), (POLICIES, [(f"user:{name}", None)]), (USERS, [(name, None)])):
        if rows:
            yield partial(gateway.port.put, table, rows)
            for key, _ in rows:
                authority.apply(table, key, None)
    return True


def put_permission(gateway: Gateway, vhost: str, name: str, body: dict[str, Any]) -> Steps:
    """RabbitMQ's three expressions. Raises ValueError for one that cannot be matched in linear time."""
    said = tuple([_expression(body, word) for word in WORDS])
    if gateway.authority is None and (name, said) == (GUEST, EVERYTHING):
        return False
    before = _known(gateway, name)
    new = vhost not in before.amqp
    yield from _change(gateway, name, lambda user: msgspec.structs.replace(user, amqp={**user.amqp, vhost: said}))
    return new


def delete_permission(gateway: Gateway, vhost: str, name: str) -> Steps:
    """Returns whether there was one."""
    if vhost not in _known(gateway, name).amqp:
        return False

    def without(user: User) -> User:
        return msgspec.structs.replace(user, amqp={key: said for key, said in user.amqp.items() if key != vhost})

    yield from _change(gateway, name, without)
    return True


def put_topic_permission(gateway: Gateway, vhost: str, name: str, body: dict[str, Any]) -> Steps:
    """Of routing keys of an exchange."""
    exchange = body.get("exchange")
    if not isinstance(exchange, str):
        raise ValueError("exchange: a name is needed")
    exchange = exchange or DEFAULT_NAME
    said = (_expression(body, "write"), _expression(body, "read"))
    new = exchange not in _known(gateway, name).amqp_topics.get(vhost, {})

    def with_it(user: User) -> User:
        there = {**user.amqp_topics.get(vhost, {}), exchange: said}
        return msgspec.structs.replace(user, amqp_topics={**user.amqp_topics, vhost: there})

    yield from _change(gateway, name, with_it)
    return new


def delete_topic_permission(gateway: Gateway, vhost: str, name: str, exchange: str | None = None) -> Steps:
    """Of one exchange, or of all in the vhost. Returns whether there was one."""
    there = _known(gateway, name).amqp_topics.get(vhost, {})
    if not there or exchange not in (None, *there):
        return False

    def without(user: User) -> User:
        rest = {key: said for key, said in there.items() if exchange is not None and key != exchange}
        topics = {**user.amqp_topics, vhost: rest}
        return msgspec.structs.replace(user, amqp_topics={key: said for key, said in topics.items() if said})

    yield from _change(gateway, name, without)
    return True


def _expression(body: dict[str, Any], word: str) -> str:
    given = body.get(word)
    if not isinstance(given, str):
        raise ValueError(f"{word}: an expression is needed")
    plain = given
    for variable in VARIABLES:
        plain = plain.replace(variable, "x")
    try:
        matches(plain, "")
    except ExpressionError as error:
        raise ValueError(f"{word}: {error}") from error
    return given


def _change(gateway: Gateway, name: str, change: Callable[[User], User], make: bool = False) -> Steps:
    """Store a user as `change` makes it of the one that there is. Returns whether it is new."""
    authority = _authority(gateway)
    lock = gateway.definitions.lock
    yield lock.take("users")
    try:
        before = authority.account(name)
        if before is None and not make:
            raise AmqpError(NOT_FOUND, "user_not_found")
        after = change(before or User(name))
        if after == before:
            return False
        after = msgspec.structs.replace(after, changed_ms=gateway.clock.now_ms())
        expected = encode(before) if before is not None else None
        (stored,) = yield partial(gateway.port.put_if, USERS, [(name, expected, encode(after))])
        if not stored:
            raise GantryError(ErrorCode.UNAVAILABLE, f"user {name} was changed by somebody else meanwhile: try again")
        if authority.account(name) == before:  # the news of it is still on its way
            authority.apply(USERS, name, encode(after))
        return before is None
    finally:
        lock.free("users")


# Definitions of a RabbitMQ.


def import_user(gateway: Gateway, row: dict[str, Any]) -> Steps:
    """None, or what is left out: a user that everybody knows how to be."""
    name, known = str(row["name"]), str(row.get("password_hash") or "")
    if name == GUEST and verify(f"{row.get('hashing_algorithm') or SHA256}:{known}", GUEST):
        return "users (guest with its well-known password)"
    yield from put(gateway, name, row)
    return None
