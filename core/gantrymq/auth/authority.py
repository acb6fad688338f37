"""Users, policies and tokens as they are now, and what every door asks of them: who is it, and may he.

Rows come from the broker (`follow`) and are held compiled per connection (`Identity`). A change counts from the next question on; who
watches is told once per turn, so that open connections lose what they lost. Before the rows are here nobody comes in.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gantrymq.auth.audit import Audit
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.expressions import ExpressionError, matches
from gantrymq.auth.keys import KeyFileError, Keys
from gantrymq.auth.logins import Logins
from gantrymq.auth.passwords import is_foreign, make_hash
from gantrymq.auth.resources import Action, Kind
from gantrymq.auth.rights import NO_RULE, CompiledPolicy, Decision, Rights
from gantrymq.auth.rows import ANONYMOUS, CHECKS, POLICIES, TOKENS, USERS, Policy, Token, User
from gantrymq.auth.signatures import Secret
from gantrymq.auth.tokens import own, scopes
from gantrymq.auth.tokens.tokens import Tokens, TokenUser, is_token
from gantrymq.auth.tokens.verify import TokenError
from gantrymq.net.held.addresses import address_of

if TYPE_CHECKING:
    from gantrymq.auth.outside.backend import Backend
    from gantrymq.net.tls.identity import Certificate

log = logging.getLogger(__name__)

CONFIGURE, WRITE, READ = range(3)
"""RabbitMQ's three expressions."""

EXCHANGE, QUEUE = "exchange", "queue"

AMQP_NATIVE: Final[dict[tuple[int, str], Action]] = {
    (CONFIGURE, EXCHANGE): Action.CREATE, (CONFIGURE, QUEUE): Action.CREATE, (WRITE, EXCHANGE): Action.PUB,
    (READ, EXCHANGE): Action.SUB, (WRITE, QUEUE): Action.UPDATE, (READ, QUEUE): Action.SUB,
}  # fmt: skip
"""The native actions that stand for RabbitMQ's permissions: on `topic:EXCHANGE` and `queue:QUEUE`."""

ADMIN: Final = Decision(True, "administrator")
GONE: Final = Decision(False, "the user was deleted or disabled")
EXPIRED: Final = Decision(False, "the token has expired")
ENDED: Final = Decision(False, "the login has expired")
WITHDRAWN: Final = Decision(False, "the service of auth.http_url takes the login no more")
OVER: Final = Decision(False, "the token has expired or was deleted")
NOT_LOADED: Final = "users are not known yet: come again"

RENEWING_MAX: Final = 16
"""Imported hashes that are replaced at once: each takes a thread of logins 30 to 40 ms."""

Login = Callable[["Identity | None", str], None]
"""`on_done(identity, why)`: why is empty with an identity."""


class Identity:
    """Who a connection is, and its rights."""

    __slots__ = ("_authority", "_epoch", "_rights", "_user", "address", "client_id", "name", "own_token", "token")

    def __init__(
        self, authority: Authority, name: str, client_id: str, address: str, token: TokenUser | None = None,
        own_token: Token | None = None,
    ) -> None:  # fmt: skip
        self._authority = authority
        self.token = token
        """What it came with, if it was an issuer's."""
        self.own_token = own_token
        """The same, if it was one of ours."""
        self.name = name
        self.client_id = client_id
        self.address = address
        """`host:port`."""
        self._epoch = -1
        self._user: User | None = None
        self._rights: Rights | None = None

    def _current(self) -> Rights:
        authority = self._authority
        if self._rights is None or self._epoch != authority.epoch:
            self._epoch = authority.epoch
            token = self.token
            if token is not None and token.held is not None:
                token = self.token = token.held.revised(token)
            self._user = authority.user(self.name) if token is None else authority.user_of(token)
            policies = authority.policies_of(self.name, None if token is None else token.groups)
            if token is not None and token.policy is not None:
                policies.append(CompiledPolicy(token.policy))
            self._rights = Rights(policies, self.name, self.client_id, self.address)
        if self._token_is_over():
            self._user = None
        return self._rights

    def _token_is_over(self) -> bool:
        if self.token is not None:
            held = self.token.held
            return (held is not None and held.withdrawn) or self._authority.is_over(self.token)
        return self.own_token is not None and not self._authority.is_good(self.own_token)

    @property
    def gone(self) -> Decision:
        """Why it is not alive."""
        if not self._token_is_over():
            return GONE
        if self.token is not None and self.token.by_backend:
            return WITHDRAWN if self.token.held is not None and self.token.held.withdrawn else ENDED
        return EXPIRED if self.own_token is None else OVER

    @property
    def farewell(self) -> str:
        """What a door says whose client is not alive any more."""
        if self.gone is WITHDRAWN:
            return f"the login of user {self.name} was withdrawn"
        if self.gone is ENDED:
            return f"the login of user {self.name} has expired"
        if self.gone is not GONE:
            return f"the token of user {self.name} {self.gone.rule.removeprefix('the token ')}"
        return f"user {self.name} was deleted or disabled"

    def renew(self, other: Identity) -> None:
        """It showed again who it is. Raises PermissionError where that is somebody else."""
        if other.name != self.name:
            raise PermissionError(f"it was user {self.name}, and is {other.name} now: that takes a new connection")
        self.token, self.own_token = other.token, other.own_token
        self._rights = None

    @property
    def has_token(self) -> bool:
        """It came with a token, and may come with another one while it is connected."""
        return self.own_token is not None or (self.token is not None and not self.token.by_backend)

    @property
    def came_with(self) -> str:
        """For the audit trail; empty: no token."""
        if self.own_token is not None:
            return f"token {self.own_token.id}"
        if self.token is None:
            return ""
        return "HTTP back end" if self.token.by_backend else "token"

    def ends_in_ms(self) -> int | None:
        """How long its token is good; None: as long as its user is there."""
        if self.own_token is not None:
            return max(self.own_token.expires_ms - self._authority.audit.now_ms(), 0)
        token, tokens = self.token, self._authority.tokens
        if token is not None and token.by_backend:
            return max(token.expires_ms - self._authority.audit.now_ms(), 0)
        return None if token is None or tokens is None else max(token.expires_ms - tokens.now_ms(), 0)

    @property
    def alive(self) -> bool:
        """The user is still there and enabled."""
        self._current()
        return self._user is not None

    @property
    def is_admin(self) -> bool:
        """May do everything."""
        self._current()
        return self._user is not None and self._user.admin

    def refused(self, door: str, action: str, resource: str, why: str) -> None:
        """It wanted what it may not: written to the audit trail."""
        self._authority.audit.denied(door, self.name, self.address, action, resource, why)

    def changed(self, door: str, action: str, resource: str) -> None:
        """It changes what it may: written to the audit trail."""
        self._authority.audit.changed(door, self.name, self.address, action, resource)

    def decide(self, action: Action, kind: Kind, name: str) -> Decision:
        """The one question."""
        rights = self._current()
        if self._user is None:
            return self.gone
        if self._user.admin:
            return ADMIN
        decision = rights.decide(action, kind, name)
        return self._by_scopes(action, kind, name) if decision is NO_RULE and self.token is not None else decision

    def _by_scopes(self, action: Action, kind: Kind, name: str | None) -> Decision:
        """What no rule says may be a scope's. `name` None: whatever the name is."""
        token = self.token
        found = scopes.for_native(token.scopes, action, kind, name) if token is not None else None
        return Decision(True, f"scope {found.text}") if found is not None else NO_RULE

    def may(self, action: Action, kind: Kind, name: str) -> bool:
        """As `decide`."""
        return self.decide(action, kind, name).allowed

    def decide_mqtt(self, action: Action, levels: str, topic: str | None) -> Decision:
        """An MQTT topic or filter. `topic`: its native topic; None: a filter that may match any. A deny of either wins, an allow of either
        is enough."""
        rights = self._current()
        if self._user is None:
            return self.gone
        if self._user.admin:
            return ADMIN
        own = rights.decide(action, Kind.MQTT, levels)
        if not own.allowed and own.rule != "no rule":
            return own
        if topic is None:
            native = rights.decide_prefix(action, Kind.TOPIC, "")
        else:
            native = rights.decide(action, Kind.TOPIC, topic)
        if native.allowed or native.rule != "no rule":
            return native
        return own if own.allowed else self._by_scopes(action, Kind.TOPIC, topic)

    def decide_amqp(self, which: int, vhost: str, name: str, native: tuple[Action, Kind, str]) -> Decision:
        """One of RabbitMQ's permissions on an exchange or queue: by the user's expressions for the vhost where it has some, else by native
        rights. A native deny wins in any case."""
        decision = self.decide(*native)
        user, token = self._user, self.token
        if user is None or user.admin or (not decision.allowed and decision.rule != "no rule"):
            return decision
        if token is not None and not decision.allowed:
            scope = scopes.for_amqp(token.scopes, scopes.WORDS[which], vhost, name)
            return Decision(True, f"scope {scope.text}") if scope is not None else decision
        expressions = user.amqp.get(vhost)
        if expressions is None:
            return decision
        text = f"user:{user.name}: {scopes.WORDS[which]} {expressions[which]!r} in vhost {vhost}"
        return Decision(_matches(expressions[which], name), text)

    def may_enter(self, vhost: str) -> bool:
        """Whether an AMQP client may open a vhost: with expressions for it; where a user has none at all, the native rights decide later."""
        self._current()
        user = self._user
        return user is not None and (user.admin or not user.amqp or vhost in user.amqp)

    def decide_routing_key(self, which: int, vhost: str, exchange: str, key: str) -> Decision:
        """RabbitMQ's topic permissions: only where the user has some for the exchange."""
        self._current()
        user, token = self._user, self.token
        if user is None:
            return self.gone
        if token is not None:
            word = scopes.WORDS[which]
            for wanted in (key, None):
                scope = scopes.for_amqp(token.scopes, word, vhost, exchange, wanted)
                if scope is not None:  # those of the exchange alone are for other keys
                    return Decision(wanted is not None, f"scope {scope.text}")
        expressions = user.amqp_topics.get(vhost, {}).get(exchange)
        if expressions is None or user.admin:
            return Decision(True, "no topic permission")
        expression = expressions[0 if which == WRITE else 1]
        for name, value in (("{username}", user.name), ("{vhost}", vhost), ("{client_id}", self.client_id)):
            expression = expression.replace(name, _literal(value))
        text = f"user:{user.name}: topic permission {expression!r} of exchange {exchange}"
        return Decision(_matches(expression, key), text)


def _literal(text: str) -> str:
    """An expression that matches this text and no other: every sign is escaped."""
    return "".join([f"\\x{{{ord(letter):x}}}" for letter in text])


def _matches(expression: str, name: str) -> bool:
    try:
        return matches(expression, name)
    except ExpressionError as error:
        log.error("permission %r cannot be used and allows nothing: %s", expression, error)
        return False


class Authority:
    """Of one process."""

    def __init__(
        self,
        config: AuthConfig,
        logins: Logins,
        soon: Callable[[Callable[[], None]], None],
        audit: Audit,
        hashes_of: Callable[[str], tuple[str, str]] = lambda password: (make_hash(password), ""),
        tokens: Tokens | None = None,
    ) -> None:
        """`soon(callback)`: run it at the end of the turn. `hashes_of(password)`: what is kept of it, its hash, and SCRAM's verifier where there
        is one; takes 40 ms. `tokens`: where tokens are taken."""
        self.config = config
        self.logins = logins
        self.audit = audit
        self.backend: Backend | None = None
        """Where users without an account are asked for elsewhere."""
        self.keys: Keys | None = None
        """Only where secrets are checked: at a broker."""
        self.replace_row: Callable[[User, User], None] | None = None
        self._renewing: set[str] = set()
        self.hashes_of = hashes_of
        self.tokens = tokens
        self._secrets: dict[str, Secret] = {}
        """Of users that have signed since a user changed."""
        self.epoch = 0
        self.loaded = False
        self._soon = soon
        self._users: dict[str, User] = {}
        self._policies: dict[str, Policy] = {}
        self._compiled: dict[str, CompiledPolicy] = {}
        """Of those that somebody has who was here since policies changed."""
        self._tokens: dict[str, Token] = {}
        self._rows: Final[dict[str, dict[str, Any]]] = {
            USERS: self._users,
            POLICIES: self._policies,
            TOKENS: self._tokens,
        }
        self._certificates: dict[str, str] = {}
        self._watchers: list[Callable[[], None]] = []
        self._telling = False

    # Rows.

    def load(self, table: str, rows: Mapping[str, bytes]) -> None:
        """All rows of a table; what is not among them is gone."""
        known = self._rows[table]
        for key in [key for key in known if key not in rows]:
            self.apply(table, key, None)
        for key, value in rows.items():
            self.apply(table, key, value)
        if table == POLICIES:  # asked for last
            self.loaded = True

    def apply(self, table: str, key: str, value: bytes | None) -> None:
        """One row is so now. A row that cannot be read takes its user's rights away rather than leaving an old one in force."""
        known = self._rows[table]
        found = None
        if value is not None:
            try:
                found = CHECKS[table](key, value)
            except ValueError as error:
                log.error("row %r of table %s cannot be read: it counts as deleted: %s", key[:80], table, error)
        if found == known.get(key):
            return
        if found is None:
            known.pop(key, None)
        else:
            known[key] = found
        self._changed(table)

    def _changed(self, table: str) -> None:
        if table == POLICIES:
            self._compiled = {
                name: one for name, one in self._compiled.items() if self._policies.get(name) is one.policy
            }
        if table == USERS:
            self._secrets.clear()
            users = self._users.values()
            self._certificates = {name: user.name for user in users for name in user.certificates}
        self.rights_changed()

    def rights_changed(self) -> None:
        """Somebody's: all are looked at anew."""
        self.epoch += 1
        if not self._telling and self._watchers:
            self._telling = True
            self._soon(self._tell)

    def _tell(self) -> None:
        self._telling = False
        for watcher in list(self._watchers):
            watcher()

    def attach(self, replace_row: Callable[[User, User], None]) -> None:
        """The broker is there: `replace_row(before, after)` stores a user where the row is as it was."""
        self.replace_row = replace_row

    def watch(self, on_change: Callable[[], None]) -> None:
        """Called at the end of a turn in which something changed."""
        self._watchers.append(on_change)

    def unwatch(self, on_change: Callable[[], None]) -> None:
        """No more."""
        if on_change in self._watchers:
            self._watchers.remove(on_change)

    # Who.

    def user(self, name: str) -> User | None:
        """One that may log in."""
        found = self._users.get(name)
        return found if found is not None and found.enabled else None

    def users(self) -> list[User]:
        """All, by name."""
        return [self._users[name] for name in sorted(self._users)]

    def policies(self) -> list[Policy]:
        """All, by subject."""
        return [self._policies[name] for name in sorted(self._policies)]

    def tokens_of(self, user: str = "") -> list[Token]:
        """Of ours, by user and id; empty: of all users."""
        found = [token for token in self._tokens.values() if user in ("", token.user)]
        return sorted(found, key=lambda token: (token.user, token.id))

    def token(self, name: str) -> Token | None:
        """One of ours, good or not."""
        return self._tokens.get(name)

    @property
    def takes_tokens(self) -> bool:
        """Somebody may come with one."""
        return self.tokens is not None or bool(self._tokens)

    def account(self, name: str) -> User | None:
        """Enabled or not."""
        return self._users.get(name)

    def policy(self, subject: str) -> Policy | None:
        """Of `user:NAME` or `group:NAME`."""
        return self._policies.get(subject)

    def has_admin(self) -> bool:
        """Whether somebody may do everything."""
        return any(user.admin and user.enabled for user in self._users.values())

    def policies_of(self, name: str, groups: tuple[str, ...] | None = None) -> list[CompiledPolicy]:
        """Those of a user and of its groups, or of these."""
        user = self._users.get(name)
        if groups is None:
            groups = user.groups if user is not None else ()
        subjects = [f"user:{name}", *[f"group:{group}" for group in groups]]
        return [self._compiled_of(subject) for subject in subjects if subject in self._policies]

    def _compiled_of(self, subject: str) -> CompiledPolicy:
        found = self._compiled.get(subject)
        if found is None:
            found = self._compiled[subject] = CompiledPolicy(self._policies[subject])
        return found

    def identity(self, name: str, client_id: str, address: str) -> Identity:
        """Of a user who has shown who he is."""
        return Identity(self, name, client_id, address)

    def explained(self, name: str, client_id: str, address: str) -> Identity:
        """As `identity`; of somebody without an account as the HTTP back end said last, where it was asked here."""
        found = self.backend.user_of(name) if self.backend is not None and name not in self._users else None
        return Identity(self, name, client_id, address, found)

    def anonymous(self, client_id: str, address: str, guest: str = "") -> Identity | None:
        """Who a client without a name is; None: it may not come in. `guest`: of its listener (`net.api.Link`)."""
        name = guest or ANONYMOUS
        return self.identity(name, client_id, address) if self.user(name) is not None else None

    def login(self, name: str, password: str, client_id: str, address: str, on_done: Login) -> None:
        """By password or token; `on_done` on the loop, possibly at once."""
        if not self.loaded:
            on_done(None, NOT_LOADED)
            return
        if (self.tokens is not None or own.looks_like_one(password)) and is_token(password):
            on_done(*self.by_token(password, client_id, address))
            return
        host = address_of(address)
        if self.backend is not None and name not in self._users:

            def answered(found: TokenUser | None, why: str) -> None:
                if found is not None and self.user_of(found) is None:
                    found, why = None, "the user changed meanwhile"
                on_done(None if found is None else Identity(self, name, client_id, address, found), why)

            self.backend.login(name, password, client_id, host, answered)
            return
        user = self.user(name)
        known = user.password if user is not None else ""

        def answer(why: str) -> None:
            now = self.user(name)
            if not why and (now is None or now.password != known):
                why = "the user changed meanwhile"
            if not why and now is not None and is_foreign(known):
                self._renew(now, password)
            on_done(None if why else self.identity(name, client_id, address), why)

        self.logins.check(name, known, password, host, answer)

    def _renew(self, user: User, password: str) -> None:
        """An imported hash gives way to one of argon2id. Of a fleet that comes at once some do at each login."""
        replace_row, renewing = self.replace_row, self._renewing
        if replace_row is None or user.name in renewing or len(renewing) >= RENEWING_MAX:
            return
        renewing.add(user.name)

        def hashed(found: tuple[str, str]) -> None:
            renewing.discard(user.name)
            if self._users.get(user.name) == user:
                replace_row(user, msgspec.structs.replace(user, password=found[0], scram=found[1]))

        self.logins.hash(partial(self.hashes_of, password), hashed)

    def by_token(self, token: str, client_id: str, address: str) -> tuple[Identity | None, str]:
        """Whoever a token says, whatever name came with it; or why nobody."""
        if own.looks_like_one(token):
            return self._by_own_token(token, client_id, address)
        if self.tokens is None:
            return None, "no tokens are taken here (auth.jwt_keys)"
        try:
            user = self.tokens.user_of(token)
        except TokenError as error:
            return None, f"the token is refused: {error}"
        if self.user_of(user) is None:
            return None, f"the token is refused: user {user.name} is disabled"
        return Identity(self, user.name, client_id, address, user), ""

    def _by_own_token(self, text: str, client_id: str, address: str) -> tuple[Identity | None, str]:
        name, hashed = own.parse(text)
        token = self._tokens.get(name)
        if token is None or not same(token.hash.encode(), hashed.encode()):
            return None, f"the token is refused: none with id {name} is known"
        if not self.is_good(token):
            return None, f"the token is refused: {name} has expired"
        if self.user(token.user) is None:
            return None, f"the token is refused: user {token.user} of {name} was deleted or disabled"
        return Identity(self, token.user, client_id, address, own_token=token), ""

    def is_good(self, token: Token) -> bool:
        """It was not deleted, and has not expired."""
        return self._tokens.get(token.id) == token and self.audit.now_ms() < token.expires_ms

    def user_of(self, token: TokenUser) -> User | None:
        """As an account: the token says the groups, and nobody is administrator by one. An account of the name that is disabled holds."""
        account = self._users.get(token.name)
        if account is not None and not account.enabled:
            return None
        return User(token.name, groups=token.groups)

    def is_over(self, token: TokenUser) -> bool:
        """It has expired, or no tokens are taken any more."""
        if token.by_backend:
            return self.backend is None or self.audit.now_ms() >= token.expires_ms
        return self.tokens is None or self.tokens.now_ms() >= token.expires_ms

    def is_nobody(self, name: str) -> bool:
        """No user can be it any more: there is no account, and nobody else may say so."""
        return name not in self._users and self.tokens is None and self.backend is None

    def by_certificate(self, certificate: Certificate | None, client_id: str, address: str) -> Identity | None:
        """Whoever a verified client certificate names; None: nobody here."""
        if certificate is None or not self.loaded:
            return None
        listed = [f"sha256:{certificate.fingerprint}", certificate.subject]
        name = next((self._certificates[each] for each in listed if each in self._certificates), None)
        if name is None:
            names: dict[str, tuple[str, ...]] = {
                "cn": (certificate.common_name,), "subject": (certificate.subject,), "dns": certificate.dns,
                "email": certificate.email, "uri": certificate.uri,
            }  # fmt: skip
            name = next((each for each in names.get(self.config.certificate_user, ()) if self.user(each)), None)
        return self.identity(name, client_id, address) if name and self.user(name) is not None else None

    def by_key(self, name: str, client_id: str, address: str) -> Identity | None:
        """Whose pre-shared key TLS was begun with; None: there is no such user."""
        return self.identity(name, client_id, address) if self.loaded and self.user(name) is not None else None

    def secret(self, name: str) -> Secret | None:
        """What a signing user signs with; None: there is no such user, or it has none. Opened once, and again after a user changed."""
        known = self._secrets.get(name)
        if known is not None:
            return known
        user = self.user(name)
        if user is None or not user.secret or self.keys is None:
            return None
        opened = self._opened(name, user.secret)
        if opened is not None:
            self._secrets[name] = opened
        return opened

    def _opened(self, name: str, sealed: str) -> Secret | None:
        assert self.keys is not None, "asked before"
        try:
            return Secret(self.keys.open(name, sealed))
        except KeyFileError as error:
            log.error("%s", error)
            return None


def same(first: bytes, second: bytes) -> bool:
    """Compared in a time that tells nothing."""
    return hmac.compare_digest(first, second)
