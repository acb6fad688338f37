"""Users and rights at the MQTT door: who a CONNECT is, what it may publish, and what it may subscribe to.

What was allowed is kept with the connection's targets, so that a right costs nothing per message. A user's `mqtt:` patterns and the native
topic behind a topic or filter are asked together: a deny of either wins, an allow of either is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gantrymq.auth.logins import AGAIN
from gantrymq.auth.resources import Action
from gantrymq.auth.rights import Decision
from gantrymq.auth.sasl import exchanges
from gantrymq.auth.sasl.exchanges import Step
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq_gateways.mqtt.authentication import Answer, Answered
from gantrymq_gateways.mqtt.messages.publish import Target, Targets
from gantrymq_gateways.mqtt.topics.delayed import split_delay
from gantrymq_gateways.mqtt.topics.mapping import SYS_PREFIX
from gantrymq_gateways.mqtt.topics.rules import TopicRules
from gantrymq_gateways.mqtt.topics.shared import bare
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.packets import Connect
from gantrymq_gateways.mqtt.wire.reasons import Reason

DOOR: Final = "mqtt"
"""What the audit trail calls it."""

KEY: Final = "pre-shared key"

NEEDS: Final[dict[int, Action]] = {
    c.CONNECT: Action.PUB, c.PUBLISH: Action.PUB, c.SUBSCRIBE: Action.SUB,
    **dict.fromkeys((c.PUBACK, c.PUBREC, c.PUBREL, c.PUBCOMP, c.UNSUBSCRIBE, c.PINGREQ, c.DISCONNECT, c.AUTH), Action(0)),
}  # fmt: skip
"""By packet type, what it needs on its topics (of CONNECT: the will's); nothing where it concerns the connection's own session alone. Tests go
through the packets that a connection takes: one without a row here fails them."""

if TYPE_CHECKING:
    from gantrymq.auth.authority import Authority, Identity
    from gantrymq.net.api import Link

Identified = Callable[["Identity | None", Answer], None]
"""`answer(identity, answer)`: somebody, or one who must say more, or nobody."""


def identify(authority: Authority, connect: Connect, link: Link, answer: Identified) -> None:
    """The pre-shared key where it is the user's, else an authentication method, else user name and password (or token), else the client certificate, else the anonymous user, where there is one.
    Answers now or later, once for each step. A re-authentication is asked as a CONNECT with its properties."""
    said = connect.user_name or ""

    def tell(identity: Identity | None, found: Answer, user: str = said, how: str = "password") -> None:
        if identity is not None and (over := link.known(identity.name)):
            found, identity = Answer(Reason.QUOTA_EXCEEDED, f"user {identity.name}: {over}"), None
        if found.reason is not Reason.CONTINUE_AUTHENTICATION:
            why = "" if identity is not None else found.text
            authority.audit.login(DOOR, identity.name if identity is not None else user, link.peer, why, how)
        answer(identity, found)

    method = connect.properties.get(p.AUTH_METHOD)
    if link.key_user:  # what CONNECT says of users does not count, as with Mosquitto
        _by_key(authority, connect.client_id, link, method, tell)
        return
    if method is not None:
        _exchange(authority, connect, link, method, tell)
        return
    client_id = connect.client_id
    if connect.user_name is not None:
        password = (connect.password or b"").decode("utf-8", "surrogateescape")

        def done(identity: Identity | None, why: str) -> None:
            how = (identity.came_with if identity is not None else "") or "password"
            reason = Reason.SERVER_BUSY if why in AGAIN else Reason.BAD_USER_NAME_OR_PASSWORD
            tell(identity, _verdict(identity, reason, why), how=how)

        authority.login(connect.user_name, password, client_id, link.peer, done)
        return
    found = authority.by_certificate(link.peer_certificate, client_id, link.peer)
    found = found or authority.anonymous(client_id, link.peer, link.guest)
    text = "it has neither user name nor certificate of a user, and there is no user anonymous"
    tell(found, _verdict(found, Reason.NOT_AUTHORIZED, text), how="certificate or anonymous")


def _by_key(authority: Authority, client_id: str, link: Link, method: str | None, tell: Callable[..., None]) -> None:
    user = link.key_user
    if method is not None:
        text = "at this listener the pre-shared key says who it is, without an authentication method"
        tell(None, Answer(Reason.BAD_AUTHENTICATION_METHOD, text), user, KEY)
        return
    found = authority.by_key(user, client_id, link.peer)
    tell(found, _verdict(found, Reason.NOT_AUTHORIZED, "no user has the name of its pre-shared key"), user, KEY)


def _verdict(identity: Identity | None, reason: Reason, why: str, data: bytes | None = None) -> Answer:
    """`reason` and `why` count without an identity."""
    return Answer(reason, why) if identity is None else Answer(user=identity.name, data=data)


def _exchange(authority: Authority, connect: Connect, link: Link, method: str, tell: Callable[..., None]) -> None:
    """Enhanced authentication. [MQTT5-4.12.0-1]"""
    login = exchanges.begin(authority, method, connect.client_id, link.peer)
    if login is None:
        text = f"authentication method {method[:64]!r} is not taken"
        tell(None, Answer(Reason.BAD_AUTHENTICATION_METHOD, text), how=method[:64])
        return

    def stepped(step: Step) -> None:
        if step.identity is None and not step.why:
            tell(None, Answer(Reason.CONTINUE_AUTHENTICATION, data=step.data, proceed=proceed))
        else:
            reason = Reason.SERVER_BUSY if step.why in AGAIN else Reason.NOT_AUTHORIZED
            tell(step.identity, _verdict(step.identity, reason, step.why, step.data or None), login.user, method)

    def proceed(data: bytes | None, on_answer: Answered) -> None:
        login.step(data or b"", stepped)

    proceed(connect.properties.get(p.AUTH_DATA), lambda answer: None)


def owner(identity: Identity, authority: Authority, known: str) -> str:
    """Whose a session is that `identity` comes back to, or begins; `known`: whose it was, empty if nobody's. Raises GantryError for one that is
    another's. Administrators may have it, and it stays its user's; what a deleted user had is free."""
    if known in ("", identity.name) or authority.is_nobody(known):
        return identity.name
    if identity.is_admin:
        return known
    raise GantryError(ErrorCode.NO_PERMISSION, f"the client id is another user's, not {identity.name}'s")


def check_publish(identity: Identity, rules: TopicRules, topic: str) -> None:
    """Raises GantryError."""
    _, topic = split_delay(topic)
    native, _ = rules.to_native(topic)
    decision = identity.decide_mqtt(Action.PUB, topic, native)
    if not decision.allowed:
        identity.refused(DOOR, "pub", f"mqtt:{topic}", decision.rule)
        raise GantryError(
            ErrorCode.NO_PERMISSION, f"user {identity.name} may not publish to {topic[:128]!r}: {decision.rule}"
        )


def check_filter(identity: Identity, rules: TopicRules, text: str) -> None:
    """Raises GantryError for a filter that matches something which the user may not have."""
    decision = _decide_filter(identity, rules, text)
    if not decision.allowed:
        identity.refused(DOOR, "sub", f"mqtt:{text}", decision.rule)
        raise GantryError(
            ErrorCode.NO_PERMISSION, f"user {identity.name} may not subscribe to {text[:128]!r}: {decision.rule}"
        )


def _decide_filter(identity: Identity, rules: TopicRules, text: str) -> Decision:
    """Raises GantryError for what is no filter."""
    wanted = bare(text)
    wild = "+" in wanted or "#" in wanted
    native: str | None
    if wanted.startswith(SYS_PREFIX):
        native = names.encode_topic("$SYS")  # Nobody may publish there, but subscribe.
    else:
        native = rules.filter_route(wanted)[0] if wild else rules.to_native(wanted)[0]
    return identity.decide_mqtt(Action.SUB, wanted, native)


def is_allowed(identity: Identity, rules: TopicRules, text: str) -> bool:
    """As `check_filter`, of a subscription that there is."""
    try:
        return _decide_filter(identity, rules, text).allowed
    except GantryError:
        return False


class ClientTargets(Targets):
    """Of one connection: those that its user may publish to."""

    def __init__(self, shared: Targets, identity: Identity) -> None:
        self.rules = shared.rules
        self.rewriter = shared.rewriter
        self.by_flags: list[dict[bytes, Target]] = [{} for _ in range(8)]
        self._shared = shared
        self._identity = identity

    def find(self, topic: bytes, flags: int) -> Target:
        """See `Targets`."""
        check_publish(self._identity, self.rules, self.real(topic))
        target = self._shared.by_flags[flags].get(topic) or self._shared.find(topic, flags)
        known = self.by_flags[flags]
        if len(known) >= c.TOPIC_CACHE_MAX:
            known.clear()
        known[topic] = target
        return target

    def forget(self) -> None:
        """Ask again: rights changed."""
        for known in self.by_flags:
            known.clear()
