"""Users, policies and tokens as rows of three tables of the log: `auth_user` by name, `auth_policy` by subject (`user:NAME` or `group:NAME`),
`auth_token` by id."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from ipaddress import ip_network
from typing import Any, Final

import msgspec

from gantrymq.auth.resources import Action, parse_actions, parse_resource

USERS: Final = "auth_user"
POLICIES: Final = "auth_policy"
TOKENS: Final = "auth_token"

ANONYMOUS: Final = "anonymous"
"""The user that clients without a name are, where it exists and is enabled."""

NAME_CHARS_MAX: Final = 255
_TOKEN_ID: Final = re.compile(r"[0-9a-f]{16}")
_TOKEN_HASH: Final = re.compile(r"[0-9a-f]{64}")
RULES_MAX: Final = 10_000
"""Of one subject."""


class User(msgspec.Struct, frozen=True, omit_defaults=True):
    """One account. Nobody who has none of password, secret and certificates can log in as it."""

    name: str
    admin: bool = False
    """May do everything (RocketMQ: Super)."""
    enabled: bool = True
    groups: tuple[str, ...] = ()
    password: str = ""
    """A hash that says its own scheme (`passwords.py`)."""
    secret: str = ""
    """Encrypted (`keys.py`): what the client signs with; it must be known to check a signature."""
    scram: str = ""
    """What SCRAM-SHA-256 checks against (`sasl/scram.py`), made with the password where `auth.scram` says so."""
    certificates: tuple[str, ...] = ()
    """Names of client certificates that are this user beside those that `auth.certificate_user` says: a subject, or `sha256:FINGERPRINT`."""
    amqp: dict[str, tuple[str, str, str]] = {}
    """By vhost: RabbitMQ's expressions for configure, write, read."""
    amqp_topics: dict[str, dict[str, tuple[str, str]]] = {}
    """By vhost and exchange: expressions for the routing keys that may be written and read."""
    amqp_tags: tuple[str, ...] = ()
    """RabbitMQ's, which its tools set and look for, without `administrator`; `monitoring` may look at everything in the management API."""
    changed_ms: int = 0


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a broker keeps of a token of ours (`tokens/own.py`)."""

    id: str
    user: str
    """Who comes with it is this account."""
    hash: str
    expires_ms: int
    """Of the wall clock."""
    made_ms: int = 0
    note: str = ""
    """What it is for, for people."""


class Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a policy."""

    resource: str
    actions: tuple[str, ...]
    allow: bool = True
    sources: tuple[str, ...] = ()
    """Networks that it holds for; none: all."""


class Policy(msgspec.Struct, frozen=True):
    """The rules of one subject."""

    subject: str
    rules: tuple[Rule, ...]


_users: Final = msgspec.json.Decoder(User)
_policies: Final = msgspec.json.Decoder(Policy)
_tokens: Final = msgspec.json.Decoder(Token)
_encode: Final = msgspec.json.Encoder().encode


def encode(row: User | Policy | Token) -> bytes:
    """The value of a row."""
    return _encode(row)


def read_user(key: str, value: bytes) -> User:
    """Raises ValueError or msgspec.ValidationError (a ValueError, too) for what is no user."""
    user = _users.decode(value)
    if user.name != key:
        raise ValueError(f"user {user.name!r} in the row of {key!r}")
    check_name(user.name)
    for group in user.groups:
        check_name(group)
    return user


def read_policy(key: str, value: bytes) -> Policy:
    """As `read_user`."""
    policy = _policies.decode(value)
    if policy.subject != key:
        raise ValueError(f"policy of {policy.subject!r} in the row of {key!r}")
    check_policy(policy)
    return policy


def read_token(key: str, value: bytes) -> Token:
    """As `read_user`."""
    token = _tokens.decode(value)
    if token.id != key:
        raise ValueError(f"token {token.id!r} in the row of {key!r}")
    check_name(token.user)
    check_token(token.id, token.hash)
    return token


def check_token(name: str, known: str) -> None:
    """Raises ValueError for what is no id and hash of a token (`tokens/own.py`)."""
    if _TOKEN_ID.fullmatch(name) is None or _TOKEN_HASH.fullmatch(known) is None:
        raise ValueError(f"{name[:32]!r}: no id and hash of a token")


def check_policy(policy: Policy) -> None:
    """Raises ValueError."""
    kind, colon, name = policy.subject.partition(":")
    if not colon or kind not in ("user", "group"):
        raise ValueError(f"{policy.subject!r} is no subject: write user:NAME or group:NAME")
    check_name(name)
    if len(policy.rules) > RULES_MAX:
        raise ValueError(f"{policy.subject} has {len(policy.rules)} rules, at most {RULES_MAX} are allowed")
    for rule in policy.rules:
        parse_resource(rule.resource)
        parse_actions(list(rule.actions))
        for source in rule.sources:
            ip_network(source)


def check_name(name: str) -> None:
    """Raise ValueError for what may not be the name of a user or group: names stand in lines of the log, rows and patterns."""
    if not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable() or any(letter in "#+/*:" for letter in name):
        raise ValueError(f"{name[:80]!r} is no name: 1 to {NAME_CHARS_MAX} printable characters without # + / * :")
    if name != name.strip():
        raise ValueError(f"{name!r} begins or ends with a space")


def actions_of(rule: Rule) -> Action:
    """Of a checked rule."""
    return parse_actions(list(rule.actions))


CHECKS: Final[Mapping[str, Callable[[str, bytes], Any]]] = {
    USERS: read_user,
    POLICIES: read_policy,
    TOKENS: read_token,
}
"""Who reads the rows of each table."""
