"""Users, policies and tokens over Remoting: RocketMQ's requests of mqadmin (createUser, createAcl ...), with what ours have beside it.

RocketMQ's user has a secret that it signs with; the same text is its password at every other door. Fields of ours in the same bodies:
`groups`, `hash` (instead of a password), `certificates`, `amqp`, `amqpTopics`. No answer holds a password, hash or secret.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gantrymq.auth import passwords
from gantrymq.auth.authority import AMQP_NATIVE, EXCHANGE, QUEUE, Authority
from gantrymq.auth.keys import KeyFileError
from gantrymq.auth.resources import ACTION_NAMES, Kind, parse_resource
from gantrymq.auth.rights import Decision
from gantrymq.auth.rows import (
    POLICIES,
    TOKENS,
    USERS,
    Policy,
    Rule,
    Token,
    User,
    check_name,
    check_policy,
    check_token,
    encode,
)
from gantrymq.auth.tokens import own
from gantrymq.auth.tokens.scopes import WORDS
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.overview_codes import ADD_TOKEN, DELETE_TOKEN, EXPLAIN, LIST_TOKENS

if TYPE_CHECKING:
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reply import Reply

ANY_KINDS: Final = (Kind.TOPIC, Kind.GROUP, Kind.QUEUE, Kind.CLUSTER)
"""What RocketMQ's resource `*` is."""

USER_TOKENS_MAX: Final = 1_000
"""Of one user, in force: each is a row in the memory of every process."""
NOTE_CHARS_MAX: Final = 256
DAY_MS: Final = 86_400_000

Rows = list[tuple[str, bytes | None]]
"""Key and value; None: the row goes."""

Put = Callable[[str, list[tuple[str, bytes | None]], object, Callable[[Any, Any], None]], None]


class UserInfo(msgspec.Struct, rename="camel"):
    """RocketMQ's, and ours behind it. What is None stays as it is."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None
    groups: list[str] | None = None
    hash: str | None = None
    certificates: list[str] | None = None
    amqp: dict[str, tuple[str, str, str]] | None = None
    amqp_topics: dict[str, dict[str, tuple[str, str]]] | None = None
    has_secret: bool = False


class AclEntry(msgspec.Struct, rename="camel"):
    """One rule."""

    resource: str = ""
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str = "Allow"


class AclPolicy(msgspec.Struct, rename="camel"):
    """RocketMQ groups rules by type; both types are kept as one list."""

    policy_type: str | None = None
    entries: list[AclEntry] | None = None


class AclInfo(msgspec.Struct, rename="camel"):
    """All rules of a subject."""

    subject: str | None = None
    policies: list[AclPolicy] | None = None


class Accounts:
    """What the handlers need."""

    def __init__(self, authority: Authority | None, put: Put, now_ms: Callable[[], int]) -> None:
        self._authority = authority
        self.put = put
        self.now_ms = now_ms

    @property
    def authority(self) -> Authority:
        """Raises NOT_SUPPORTED without authentication."""
        if self._authority is None:
            raise GantryError(
                ErrorCode.NOT_SUPPORTED, "authentication is off at this broker: auth.enabled=true turns it on"
            )
        return self._authority


# Users.


def create_user(command: Command, reply: Reply, services: Accounts) -> None:
    """CREATE_USER."""
    name = _name(command.fields.get("username", ""))
    if services.authority.account(name) is not None:
        raise GantryError(ErrorCode.ALREADY_EXISTS, f"user {name} exists already")
    _store_user(command, reply, services, User(name))


def update_user(command: Command, reply: Reply, services: Accounts) -> None:
    """UPDATE_USER: what the body names."""
    _store_user(command, reply, services, _account(services, command.fields.get("username", "")))


def _store_user(command: Command, reply: Reply, services: Accounts, user: User) -> None:
    info = bodies.decode(command.body, UserInfo)
    authority = services.authority
    try:
        user = _changed(user, info, authority, services.now_ms())
    except (ValueError, KeyFileError) as error:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, str(error)) from error
    if info.password is None:
        _put(command, reply, services, USERS, user.name, encode(user))
        return

    def hashed(found: tuple[str, str]) -> None:
        if reply.open:
            known = msgspec.structs.replace(user, password=found[0], scram=found[1])
            _put(command, reply, services, USERS, user.name, encode(known))

    authority.logins.hash(partial(authority.hashes_of, info.password), hashed)


def _changed(user: User, info: UserInfo, authority: Authority, now_ms: int) -> User:
    """Raises ValueError and `KeyFileError`."""
    changes: dict[str, Any] = {"changed_ms": now_ms}
    if info.password is not None:
        passwords.check_password(info.password)
        if authority.keys is None:
            raise ValueError("this broker has no key file")
        changes["secret"] = authority.keys.seal(user.name, info.password)
    elif info.hash is not None:
        passwords.check_hash(info.hash)
        changes |= {"password": info.hash, "secret": "", "scram": ""}
    if info.user_type is not None:
        changes["admin"] = _one_of("userType", info.user_type, {"super": True, "normal": False})
    if info.user_status is not None:
        changes["enabled"] = _one_of("userStatus", info.user_status, {"enable": True, "disable": False})
    for group in info.groups or ():
        check_name(group)
    for field, value in (("groups", info.groups), ("certificates", info.certificates)):
        if value is not None:
            changes[field] = tuple(value)
    for field, rights in (("amqp", info.amqp), ("amqp_topics", info.amqp_topics)):
        if rights is not None:
            changes[field] = rights
    return msgspec.structs.replace(user, **changes)


def _one_of(what: str, given: str, known: dict[str, bool]) -> bool:
    if given.lower() not in known:
        raise ValueError(f"{what} {given!r}: it is one of {', '.join(known)}")
    return known[given.lower()]


def delete_user(command: Command, reply: Reply, services: Accounts) -> None:
    """DELETE_USER, and its own policy and tokens with it: a user made later under the name begins without rights."""
    user = _account(services, command.fields.get("username", ""))
    tokens: Rows = [(token.id, None) for token in services.authority.tokens_of(user.name)]
    rows: list[tuple[str, Rows]] = [(POLICIES, [(f"user:{user.name}", None)]), (USERS, [(user.name, None)])]
    _put_in_turn(command, reply, services, [(TOKENS, tokens), *rows] if tokens else rows)


def get_user(command: Command, reply: Reply, services: Accounts) -> None:
    """GET_USER; without a body, as RocketMQ's, where there is no such user."""
    user = services.authority.account(command.fields.get("username", ""))
    reply.respond(command, body=b"" if user is None else bodies.encode(_shown(user)))


def list_users(command: Command, reply: Reply, services: Accounts) -> None:
    """LIST_USER; `filter`: part of the name."""
    part = command.fields.get("filter", "")
    reply.respond(
        command, body=bodies.encode([_shown(user) for user in services.authority.users() if part in user.name])
    )


def _shown(user: User) -> UserInfo:
    return UserInfo(
        username=user.name, password="", user_type="Super" if user.admin else "Normal",
        user_status="enable" if user.enabled else "disable", groups=list(user.groups), certificates=list(user.certificates),
        amqp=user.amqp, amqp_topics=user.amqp_topics, has_secret=bool(user.secret),
    )  # fmt: skip


def _account(services: Accounts, name: str) -> User:
    found = services.authority.account(name)
    if found is None:
        raise GantryError(ErrorCode.NOT_FOUND, f"there is no user {name!r}")
    return found


def _name(name: str) -> str:
    try:
        check_name(name)
    except ValueError as error:
        raise GantryError(ErrorCode.NAME_INVALID, str(error)) from error
    return name


# Policies.


def create_acl(command: Command, reply: Reply, services: Accounts) -> None:
    """CREATE_ACL and UPDATE_ACL: rules for a resource replace those for the same one; the others stay."""
    info = bodies.decode(command.body, AclInfo)
    subject = _subject(command.fields.get("subject") or info.subject or "")
    before = services.authority.policy(subject)
    try:
        new: dict[str, list[Rule]] = {}
        for entry in [entry for policy in info.policies or () for entry in policy.entries or ()]:
            for rule in _rules(entry):
                new.setdefault(rule.resource, []).append(rule)
        rules: dict[str, list[Rule]] = {}
        for rule in before.rules if before is not None else ():
            rules.setdefault(rule.resource, []).append(rule)
        policy = Policy(subject, tuple(itertools.chain.from_iterable((rules | new).values())))
        check_policy(policy)
    except ValueError as error:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, str(error)) from error
    _put(command, reply, services, POLICIES, subject, encode(policy))


def _rules(entry: AclEntry) -> list[Rule]:
    """Raises ValueError."""
    actions = tuple(action.lower() for name in entry.actions or () for action in name.split(","))
    unknown = [action for action in actions if action not in ACTION_NAMES]
    if unknown or not actions:
        raise ValueError(f"action {', '.join(unknown) or 'missing'}: there are {', '.join(ACTION_NAMES)}")
    sources = tuple(source for source in entry.source_ips or () if source not in ("", "*"))
    allow = _one_of("decision", entry.decision, {"allow": True, "deny": False})
    if entry.resource == "*":
        return [Rule(f"{kind}:*", actions, allow, sources) for kind in ANY_KINDS]
    return [Rule(str(parse_resource(entry.resource)), actions, allow, sources)]


def delete_acl(command: Command, reply: Reply, services: Accounts) -> None:
    """DELETE_ACL: the rules for `resource`, or all of the subject."""
    subject = _subject(command.fields.get("subject", ""))
    policy, resource = services.authority.policy(subject), command.fields.get("resource", "")
    if policy is None:
        raise GantryError(ErrorCode.NOT_FOUND, f"{subject} has no policy")
    value = None
    if resource:
        try:
            wanted = str(parse_resource(resource))
        except ValueError as error:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, str(error)) from error
        rules = tuple(rule for rule in policy.rules if rule.resource != wanted)
        value = encode(Policy(subject, rules)) if rules else None
    _put(command, reply, services, POLICIES, subject, value)


def get_acl(command: Command, reply: Reply, services: Accounts) -> None:
    """GET_ACL; without a body, as RocketMQ's, where the subject has no policy."""
    policy = services.authority.policy(_subject(command.fields.get("subject", "")))
    reply.respond(command, body=b"" if policy is None else bodies.encode(_acl(policy)))


def list_acls(command: Command, reply: Reply, services: Accounts) -> None:
    """LIST_ACL; `subjectFilter`, `resourceFilter`: parts of them. Rules of other resources are left out."""
    subject, resource = (
        command.fields.get("subjectFilter", "").lower(),
        command.fields.get("resourceFilter", "").lower(),
    )
    found = [
        _acl(Policy(policy.subject, rules))
        for policy in services.authority.policies()
        if subject in policy.subject.lower()
        and (rules := tuple([rule for rule in policy.rules if resource in rule.resource.lower()]))
    ]
    reply.respond(command, body=bodies.encode(found))


def _acl(policy: Policy) -> AclInfo:
    entries = [
        AclEntry(
            rule.resource[:1].upper() + rule.resource[1:],
            [action.capitalize() for action in rule.actions],
            list(rule.sources) or None,
            "Allow" if rule.allow else "Deny",
        )
        for rule in policy.rules
    ]
    return AclInfo(policy.subject[:1].upper() + policy.subject[1:], [AclPolicy("Custom", entries)])


def _subject(text: str) -> str:
    """`User:alice` as `user:alice`."""
    word, colon, name = text.partition(":")
    if not colon or word.lower() not in ("user", "group"):
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"{text!r} is no subject: write User:NAME or Group:NAME")
    return f"{word.lower()}:{_name(name)}"


# Tokens.


class TokenInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """A token of ours: what its maker sends, and what is shown of it."""

    id: str = ""
    hash: str = ""
    username: str = ""
    made_ms: int = 0
    expires_ms: int = 0
    note: str = ""
    state: str = ""


def add_token(command: Command, reply: Reply, services: Accounts) -> None:
    """ADD_TOKEN. What has expired of the user's is forgotten."""
    authority, now_ms = services.authority, services.now_ms()
    user = _account(services, command.fields.get("username", ""))
    info = bodies.decode(command.body, TokenInfo)
    if authority.token(info.id) is not None:
        raise GantryError(ErrorCode.ALREADY_EXISTS, f"token {info.id} exists already")
    try:
        check_token(info.id, info.hash)
    except ValueError as error:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, str(error)) from error
    if not now_ms < info.expires_ms <= now_ms + own.DAYS_MAX * DAY_MS:
        text = f"expiresMs {info.expires_ms}: a token is good for {own.DAYS_MAX} days at most"
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
    if len(info.note) > NOTE_CHARS_MAX or not info.note.isprintable():
        text = f"the note of a token has up to {NOTE_CHARS_MAX} printable characters"
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
    known = authority.tokens_of(user.name)
    expired = [token.id for token in known if token.expires_ms <= now_ms]
    if len(known) - len(expired) >= USER_TOKENS_MAX:
        text = f"user {user.name} has {USER_TOKENS_MAX} tokens; delete those that nobody needs"
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
    made = Token(info.id, user.name, info.hash, info.expires_ms, now_ms, info.note)
    _put_all(command, reply, services, TOKENS, [(made.id, encode(made)), *[(name, None) for name in expired]])


def list_tokens(command: Command, reply: Reply, services: Accounts) -> None:
    """LIST_TOKENS; without hashes."""
    authority, now_ms = services.authority, services.now_ms()

    def shown(token: Token) -> TokenInfo:
        state = "good" if authority.user(token.user) is not None else "no user"
        state = state if now_ms < token.expires_ms else "expired"
        return TokenInfo(
            id=token.id, username=token.user, made_ms=token.made_ms, expires_ms=token.expires_ms, note=token.note, state=state
        )  # fmt: skip

    tokens = authority.tokens_of(command.fields.get("username", ""))
    reply.respond(command, body=bodies.encode([shown(token) for token in tokens]))


def delete_token(command: Command, reply: Reply, services: Accounts) -> None:
    """DELETE_TOKEN; connections that came with it end at once."""
    name = command.fields.get("tokenId", "")
    if services.authority.token(name) is None:
        raise GantryError(ErrorCode.NOT_FOUND, f"there is no token {name[:64]!r}")
    _put(command, reply, services, TOKENS, name, None)


def explain(command: Command, reply: Reply, services: Accounts) -> None:
    """EXPLAIN: which rule decides."""
    fields = command.fields
    if "vhost" in fields:
        found = _explain_amqp(fields, services.authority)
        reply.respond(command, body=bodies.encode({"allowed": found.allowed, "rule": found.rule}))
        return
    action = ACTION_NAMES.get(fields.get("action", "").lower())
    if action is None:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"there are the actions {', '.join(ACTION_NAMES)}")
    try:
        resource = parse_resource(fields.get("resource", ""))
    except ValueError as error:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, str(error)) from error
    address = fields.get("address") or "127.0.0.1:0"
    identity = services.authority.explained(fields.get("user", ""), fields.get("clientId", ""), address)
    if resource.kind is Kind.MQTT:
        decision = identity.decide_mqtt(action, resource.name, fields.get("topic"))
    else:
        decision = identity.decide(action, resource.kind, resource.name)
    reply.respond(command, body=bodies.encode({"allowed": decision.allowed, "rule": decision.rule}))


def _explain_amqp(fields: dict[str, str], authority: Authority) -> Decision:
    """As `amqp.access.decide`, of one permission in a vhost."""
    vhost, permission = fields["vhost"], fields.get("action", "").lower()
    what, _, name = fields.get("resource", "").partition(":")
    if permission not in WORDS or what not in (EXCHANGE, QUEUE) or not name:
        text = f"at the AMQP door there are the actions {', '.join(WORDS)}, on {EXCHANGE}:NAME and {QUEUE}:NAME"
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, text)
    identity = authority.explained(fields.get("user", ""), "", fields.get("address") or "127.0.0.1:0")
    if not identity.may_enter(vhost):
        return Decision(False, f"no permission in vhost {vhost}") if identity.alive else identity.gone
    kind = Kind.TOPIC if what == EXCHANGE else Kind.QUEUE
    full = name if vhost == "/" else f"{vhost}\n{name}"
    native = names.encode_topic(full) if what == EXCHANGE or vhost != "/" else name
    which = WORDS.index(permission)
    return identity.decide_amqp(which, vhost, name, (AMQP_NATIVE[which, what], kind, native))


def _put(command: Command, reply: Reply, services: Accounts, table: str, key: str, value: bytes | None) -> None:
    _put_all(command, reply, services, table, [(key, value)])


def _put_all(command: Command, reply: Reply, services: Accounts, table: str, rows: Rows) -> None:
    """Answered when they are stored."""
    _put_in_turn(command, reply, services, [(table, rows)])


def _put_in_turn(command: Command, reply: Reply, services: Accounts, steps: list[tuple[str, Rows]]) -> None:
    """Rows of one table after the other, each when those before are stored: what fails is the answer, and nothing behind it is done."""
    (table, rows), *others = steps

    def stored(_token: Any, result: Any) -> None:
        if isinstance(result, GantryError):
            reply.refuse(command, ResponseCode.SYSTEM_ERROR, result.text)
        elif others:
            _put_in_turn(command, reply, services, others)
        else:
            reply.respond(command)

    services.put(table, rows, None, stored)


HANDLERS: Final = {
    RequestCode.AUTH_CREATE_USER: create_user,
    RequestCode.AUTH_UPDATE_USER: update_user,
    RequestCode.AUTH_DELETE_USER: delete_user,
    RequestCode.AUTH_GET_USER: get_user,
    RequestCode.AUTH_LIST_USER: list_users,
    RequestCode.AUTH_CREATE_ACL: create_acl,
    RequestCode.AUTH_UPDATE_ACL: create_acl,
    RequestCode.AUTH_DELETE_ACL: delete_acl,
    RequestCode.AUTH_GET_ACL: get_acl,
    RequestCode.AUTH_LIST_ACL: list_acls,
    ADD_TOKEN: add_token,
    LIST_TOKENS: list_tokens,
    DELETE_TOKEN: delete_token,
    EXPLAIN: explain,
}
