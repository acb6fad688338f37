"""Who sends a request, and may he: every request of a connection is asked here once authentication is on.

Clients and tools sign each request (RocketMQ's AccessKey and Signature), or send a token with it. What gateways, brokers and nameservers say to each other is taken
from who has shown the cluster's key; where there is none, from this machine and `server.trusted_networks`, as without authentication.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from gantrymq.auth.authority import NOT_LOADED, Authority, Identity
from gantrymq.auth.resources import ACTION_NAMES, Action, Kind
from gantrymq.auth.signatures import ACCESS_KEY, SECURITY_TOKEN
from gantrymq.auth.tokens.tokens import is_token
from gantrymq.model.names import TRACE_TOPIC
from gantrymq.net.held.addresses import address_of
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.door import code_name
from gantrymq.remoting.gateway_codes import MEMBER_CODES
from gantrymq.remoting.request_classes import MEMBERS_ONLY, RequestClass, class_of, member_refusal
from gantrymq.remoting.server.changes import CHANGES, changed_by
from gantrymq.remoting.server.rights import RIGHTS, names_light_queues, topic_need

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gantrymq.auth.tokens.ending import Ending
    from gantrymq.net.api import Link
    from gantrymq.remoting.codec import Command

log = logging.getLogger(__name__)

DOOR: Final = "remoting"
"""What the audit trail calls it."""

IDENTITIES_MAX: Final = 64
"""Users of one connection: a client has one."""

SENDS: Final = frozenset({int(Code.SEND_MESSAGE), int(Code.SEND_MESSAGE_V2), int(Code.SEND_BATCH_MESSAGE)})
"""What they need hangs on their topic alone."""

ALLOWED_MAX: Final = 1024
"""Topics of one connection that are not asked about again."""

WRONG_MAX: Final = 16
"""Wrong signatures and tokens after which a connection is closed: whoever guesses has to connect again, too."""

TRACE_NEED: Final = ("pub", f"topic:{TRACE_TOPIC}")
"""Every user may write what became of its messages: clients do by themselves."""


class Guard:
    """Of one connection."""

    __slots__ = (
        "_allowed",
        "_authority",
        "_epoch",
        "_identities",
        "_link",
        "_stranger",
        "_wrong",
        "ending",
        "is_known",
    )

    def __init__(self, authority: Authority, link: Link, stranger: Callable[[int], str]) -> None:
        """`stranger(code)`: why the peer is none of those that ask this of each other, empty if it is."""
        self._authority = authority
        self._link = link
        self._stranger = stranger
        self._identities: dict[str, Identity] = {}
        self._allowed: set[tuple[str, str, int, str, str]] = set()
        """Sends (`_send_of`) that were allowed in `_epoch`."""
        self._epoch = -1
        self._wrong = 0
        self.ending: Ending | None = None
        """Told of a token that a request came with."""
        self.is_known = False
        """Somebody has shown who it is."""

    def refusal(self, command: Command) -> str:
        """Why the request is not answered; empty if it is."""
        if command.code in MEMBER_CODES:
            return ""
        if command.code in SENDS and self._was_allowed(command) and not names_light_queues(command):
            return ""
        kind, why = class_of(command.code), ""
        if kind in (RequestClass.GATEWAY, RequestClass.BROKER):
            why = self._no_member(command.code)
            if not why:
                self._show("")
                return ""
        if kind is RequestClass.GATEWAY or (
            kind is RequestClass.BROKER
            and (command.code in MEMBERS_ONLY or not (ACCESS_KEY in command.fields or _token_of(command.fields)))
        ):  # what brokers only read of each other, tools ask for, too
            self._authority.audit.denied(DOOR, "", self._link.peer, code_name(command.code), "", why)
            return why
        if not self._authority.loaded:
            return NOT_LOADED
        try:
            identity = self._who(command)
        except PermissionError as error:
            return str(error)
        if why := self._show(identity.name):
            return why
        why, resource = _missing(identity, command)
        if why:
            identity.refused(DOOR, code_name(command.code), resource, why)
        elif command.code in CHANGES:
            self._authority.audit.changed(
                DOOR, identity.name, identity.address, code_name(command.code), changed_by(command)
            )
        elif command.code in SENDS:
            if len(self._allowed) >= ALLOWED_MAX:
                self._allowed.clear()
            self._allowed.add(_send_of(command))
        return why

    def _no_member(self, code: int) -> str:
        """Why the peer is no process of this cluster; empty if it is one. Where there is a cluster key, an address alone makes nobody one, not even for
        what brokers read of each other."""
        return self._stranger(code) or (member_refusal(code) if self._stranger(Code.BROKER_HEARTBEAT) else "")

    def _was_allowed(self, command: Command) -> bool:
        """The same user was allowed to send to the same topic since users or policies last changed, and this request has its signature or token, too.
        A request that does not pass here is checked in full."""
        authority = self._authority
        if self._epoch != authority.epoch:
            self._epoch = authority.epoch
            self._allowed.clear()
            return False
        known = _send_of(command)
        token, name = known[:2]
        if known not in self._allowed or not (token or name):
            return False
        if token:
            identity = self._identities.get(token)
            return identity is not None and identity.alive
        secret = authority.secret(name)
        return secret is not None and secret.is_signed(command.fields, command.body, command.version)

    def met(self, name: str, why: str) -> None:
        """Somebody has shown the cluster's key; `why` not."""
        self._authority.audit.login(DOOR, name, self._link.peer, why, "cluster key")
        if not why:
            self._show("")

    def _show(self, user: str) -> str:
        """Why this user is refused: it has too many connections."""
        why = "" if self.is_known else self._link.known(user)
        if not why:
            self.is_known = True
            return ""
        return f"user {user}: {why}"

    def ask_for_room(self, command: Command, size: int) -> None:
        """A frame of `size` bytes has begun; this is its header. All of it is read where the header names a user with a secret (the signature is over the
        whole frame), has a token, or needs no signature."""
        authority, link, name = self._authority, self._link, command.fields.get(ACCESS_KEY, "")
        token = _token_of(command.fields)
        if token:
            expected = authority.by_token(token, "", link.peer)[0] is not None
        elif name:
            expected = authority.secret(name) is not None
        else:
            expected = bool(
                authority.by_certificate(link.peer_certificate, "", "") or authority.anonymous("", "", link.guest)
            )
        if expected:
            link.expect(size)

    def missing(self, command: Command, actions: str, topic: str) -> str:
        """Why the sender of an accepted request may not do this with a topic that the request itself does not name; empty: it may."""
        if class_of(command.code) in (RequestClass.GATEWAY, RequestClass.BROKER) and not self._no_member(command.code):
            return ""
        try:
            identity = self._who(command)
        except PermissionError as error:
            return str(error)
        need = topic_need(actions, topic)
        if identity.is_admin or may(identity, *need):
            return ""
        why = f"user {identity.name} has no permission {need[0]} on {need[1]} from {identity.address}"
        identity.refused(DOOR, code_name(command.code), need[1], why)
        return why

    def may_read(self, topic: str, group: str) -> bool:
        """Whether a user of this connection may consume."""
        need = topic_need("sub", topic)
        return any(may(user, *need) and may(user, "sub", f"group:{group}") for user in self._identities.values())

    def is_gone(self) -> bool:
        """All users of this connection were deleted or disabled."""
        return bool(self._identities) and not any(user.alive for user in self._identities.values())

    def _who(self, command: Command) -> Identity:
        """Raises PermissionError with the reason."""
        fields = command.fields
        if SECURITY_TOKEN in fields and (token := _token_of(fields)):
            return self._by_token(token)
        name = fields.get(ACCESS_KEY, "")
        if not name:
            found = self._authority.by_certificate(self._link.peer_certificate, "", self._link.peer)
            found = found or self._authority.anonymous("", self._link.peer, self._link.guest)
            if found is None:
                raise self._unknown("", "the request is not signed: it has no AccessKey")
            self._authority.audit.login(DOOR, found.name, self._link.peer, how="certificate or anonymous")
            return self._identities.setdefault("", found)
        secret = self._authority.secret(name)
        if secret is None or not secret.is_signed(fields, command.body, command.version):
            self._authority.logins.note_failure(name, address_of(self._link.peer))
            self._count_wrong()
            raise self._unknown(name, f"the signature of AccessKey {name[:64]!r} is wrong")
        identity = self._identities.get(name)
        if identity is None:
            identity = self._authority.identity(name, "", self._link.peer)
            self._keep(name, identity)
            self._authority.audit.login(DOOR, name, self._link.peer, how="signature")
        return identity

    def _by_token(self, token: str) -> Identity:
        """Raises PermissionError with the reason. What a token says is read once per connection."""
        known = self._identities.get(token)
        if known is not None and known.alive:
            return known
        found, why = self._authority.by_token(token, "", self._link.peer)
        if found is None:
            self._identities.pop(token, None)
            self._count_wrong()
            raise self._unknown(known.name if known is not None else "", why, "token")
        self._keep(token, found)
        if self.ending is not None:
            self.ending.watch(found)
        self._authority.audit.login(DOOR, found.name, self._link.peer, how=found.came_with)
        return found

    def _keep(self, key: str, identity: Identity) -> None:
        if len(self._identities) >= IDENTITIES_MAX:
            self._identities.clear()
        self._identities[key] = identity

    def _count_wrong(self) -> None:
        self._wrong += 1
        if self._wrong >= WRONG_MAX:
            log.warning("%s: closed: %d signatures or tokens were wrong", self._link.peer, self._wrong)
            self._link.close()

    def _unknown(self, name: str, why: str, how: str = "signature") -> PermissionError:
        self._authority.audit.login(DOOR, name, self._link.peer, why, how if name or how != "signature" else "")
        return PermissionError(why)


def _token_of(fields: Mapping[str, str]) -> str:
    """The token of a request; what else RocketMQ's clients send there is none."""
    token = fields.get(SECURITY_TOKEN, "")
    return token if token and is_token(token) else ""


def _send_of(command: Command) -> tuple[str, str, int, str, str]:
    """All that the right to a send depends on: token or user, code, and the fields of `rights.TOPIC_FIELDS`."""
    fields = command.fields
    token = _token_of(fields) if SECURITY_TOKEN in fields else ""
    return token, fields.get(ACCESS_KEY, ""), command.code, fields.get("topic", ""), fields.get("b", "")


def _missing(identity: Identity, command: Command) -> tuple[str, str]:
    """What somebody needs for a request and has not, and on what; empty: he may."""
    if identity.is_admin:
        return "", ""
    needs = RIGHTS.get(command.code)
    if needs is None:
        text = f"user {identity.name} is no administrator, and request code {command.code} is for administrators"
        return text, ""
    for need in needs(command):
        if need != TRACE_NEED and not may(identity, *need):
            return f"user {identity.name} has no permission {need[0]} on {need[1]} from {identity.address}", need[1]
    return "" if identity.alive else f"user {identity.name} was deleted or disabled", ""


def may(identity: Identity, actions: str, resource: str) -> bool:
    """Whether one of `actions` (`sub|get`) is allowed on `KIND:NAME`."""
    word, _, name = resource.partition(":")
    kind = Kind(word)
    found: list[Action] = [ACTION_NAMES[action] for action in actions.split("|")]
    return any(identity.may(action, kind, name) for action in found)
