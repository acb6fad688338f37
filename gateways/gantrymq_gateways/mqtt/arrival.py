"""A client that comes: who it is, whether it may come in, and with what; from CONNECT until its session begins. Later who it is again (AUTH).

It asks the accounts, or the hook of authentication.py, then the rules of this gateway: client id, bans, numbers, the will's topic.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from gantrymq.auth.tokens.ending import Ending
from gantrymq.model.errors import GantryError
from gantrymq_gateways.mqtt import access
from gantrymq_gateways.mqtt.authentication import Answer
from gantrymq_gateways.mqtt.gateway import MqttGateway
from gantrymq_gateways.mqtt.messages.deliver import bridge_property
from gantrymq_gateways.mqtt.sessions.sessions import Session
from gantrymq_gateways.mqtt.sessions.terms import Terms, terms_of
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.packets import Auth, Connect, Will
from gantrymq_gateways.mqtt.wire.reasons import Reason

if TYPE_CHECKING:
    from gantrymq.auth.authority import Identity
    from gantrymq.net.api import Link

CLIENT_ID_BYTES_MAX: Final = 200
"""A client id names a group of at most 255 bytes and a lease; MQTT demands 23 [MQTT-3.1.3-5]."""


class Arriving(Protocol):
    """The client's connection."""

    peer: str
    gone: bool
    session: Session | None

    def asking(self) -> None:
        """Who it is is being found out: until that is known, nothing is read from a client without a session."""

    def challenge(self, answer: Answer) -> None:
        """The client must say more, or is known again."""

    def refused_connect(self, reason: Reason, text: str) -> None: ...

    def fail(self, text: str, reason: Reason = Reason.UNSPECIFIED) -> None: ...

    def admitted(self) -> None:
        """It may come in."""

    def rights_changed(self) -> None: ...


class Arrival:
    """What is known of one client."""

    __slots__ = (
        "_counted",
        "_door",
        "_ending",
        "_gateway",
        "_link",
        "answer",
        "assigned",
        "bridge",
        "client_id",
        "connect",
        "identity",
        "terms",
        "will",
    )

    def __init__(self, gateway: MqttGateway, door: Arriving) -> None:
        self._gateway = gateway
        self._door = door
        self._link: Link | None = None
        self.connect: Connect | None = None
        self.terms = Terms()
        self.answer = Answer()
        """The last one of the authentication."""
        self.identity: Identity | None = None
        """Who it is; None without authentication."""
        self._ending: Ending | None = None
        """Of its token."""
        self.client_id = ""
        """Once it is admitted."""
        self.assigned = ""
        """Client id that the server made up."""
        self.will: Will | None = None
        self.bridge = b""
        """`bridge_property` of a client that is another broker."""
        self._counted = False
        """In `Gate`."""

    def begin(self, connect: Connect, link: Link) -> None:
        """CONNECT came."""
        self.connect = connect
        self._link = link
        self.terms = terms_of(connect, self._gateway.config.session_expiry_s)
        self._door.asking()
        self._ask_who(connect, link)

    def proceed(self, auth: Auth) -> None:
        """AUTH came."""
        connect, link = self.connect, self._link
        if connect is None or link is None:
            return
        data = auth.properties.get(p.AUTH_DATA)
        if auth.reason == Reason.REAUTHENTICATE:
            again = Connect(connect.client_id, level=c.LEVEL_5, properties=dict(auth.properties))
            self._ask_who(again, link)
        elif self.answer.proceed is not None:
            if self._door.session is None:
                self._door.asking()
            proceed, self.answer.proceed = self.answer.proceed, None
            proceed(data, self._authenticated)
        else:
            self._door.fail("AUTH that nobody asked for (MQTT 5.0 4.12)", Reason.PROTOCOL_ERROR)

    def leave(self) -> None:
        """The client is gone, or was not let in; once."""
        if self._ending is not None:
            self._ending.stop()
        if self._counted:
            self._gateway.operate.gate.leave(self._door.peer)

    # Who it is

    def _ask_who(self, connect: Connect, link: Link) -> None:
        authority = self._gateway.authority
        if authority is not None:
            access.identify(authority, connect, link, self._identified)
        else:
            self._gateway.authenticate(connect, link.peer_is_loopback, self._authenticated)

    def _identified(self, identity: Identity | None, answer: Answer) -> None:
        """Who the client is, where there are users; or what its authentication says next."""
        if self._door.gone:
            return
        if identity is None:
            answer.user = self.answer.user
        elif self.identity is not None:
            answer = self._renewed(self.identity, identity, answer)
        else:
            authority = self._gateway.authority
            assert authority is not None, "it said who the client is"
            self.identity = identity
            self.terms.owner = partial(access.owner, identity, authority)
            self._ending = Ending(self._gateway.shell.wheel, self._door.rights_changed)
            self._ending.watch(identity)
        self._authenticated(answer)

    def _renewed(self, known: Identity, identity: Identity, answer: Answer) -> Answer:
        """The client authenticated again while it is connected."""
        try:
            known.renew(identity)
        except PermissionError as error:
            return Answer(Reason.NOT_AUTHORIZED, str(error), known.name)
        if self._ending is not None:
            self._ending.watch(known)
        self._door.rights_changed()
        return answer

    def _authenticated(self, answer: Answer) -> None:
        """The hook's answer (authentication.py): the client may come in, must say more, or must go."""
        door = self._door
        if door.gone:
            return
        self.answer = answer
        if answer.reason is Reason.CONTINUE_AUTHENTICATION:
            door.challenge(answer)  # [MQTT5-4.12.0-2]
        elif door.session is not None:
            if answer.reason is Reason.SUCCESS:
                door.challenge(answer)
            else:
                door.fail(answer.text, answer.reason)  # [MQTT5-4.12.1-2]
        elif answer.reason is not Reason.SUCCESS:
            door.refused_connect(answer.reason, answer.text)
        elif self.connect is not None:
            self._admit(self.connect)

    # Whether it may come in

    def _admit(self, connect: Connect) -> None:
        """An authenticated client: check what it wants, then take its client id."""
        gateway, door = self._gateway, self._door
        client_id = connect.client_id
        if not gateway.ready:
            door.refused_connect(Reason.SERVER_UNAVAILABLE, "the broker is not reachable")
            return
        if not client_id:
            if connect.level == c.LEVEL_3_1 or (connect.level != c.LEVEL_5 and not connect.clean):
                # [MQTT-3.1.3-8]; MQTT 3.1 wants 1 to 23 characters.
                door.refused_connect(Reason.CLIENT_ID_NOT_VALID, "a session that is kept needs a client id")
                return
            client_id = self.assigned = gateway.generated_id()  # [MQTT5-3.1.3-6]
        if len(client_id.encode()) > CLIENT_ID_BYTES_MAX:
            text = f"a client id of over {CLIENT_ID_BYTES_MAX} bytes"
            door.refused_connect(Reason.CLIENT_ID_NOT_VALID, text)
            return
        try:
            self.terms.owner(gateway.lifecycle.owner(client_id))
        except GantryError as error:
            door.refused_connect(Reason.NOT_AUTHORIZED, error.text)
            return
        operate = gateway.operate
        banned = operate.banned(client_id, self.answer.user, door.peer)
        full = banned or operate.gate.full(door.peer)
        if full:
            operate.gate.refused += 1
            door.refused_connect(Reason.BANNED if banned else Reason.QUOTA_EXCEEDED, full)
            return
        if connect.will is not None:
            try:
                self._check_will(connect.will)
            except GantryError as error:
                door.refused_connect(Reason.NOT_AUTHORIZED, f"its will cannot be published: {error}")
                return
            self.will = connect.will
        self._enter(connect, client_id)

    def _check_will(self, will: Will) -> None:
        gateway = self._gateway
        topic = gateway.targets.real(will.topic)
        gateway.rules.to_native(topic)
        if self.identity is not None:
            access.check_publish(self.identity, gateway.rules, topic)

    def _enter(self, connect: Connect, client_id: str) -> None:
        """Now, or when it is its turn."""
        gateway, door = self._gateway, self._door
        if connect.bridge:
            self.bridge = bridge_property(client_id)
        self.client_id = client_id
        if self.identity is not None:
            self.identity.client_id = client_id
        gate, now_ms = gateway.operate.gate, gateway.shell.clock.monotonic_ms()
        wait_ms = gate.wait_ms(now_ms)
        if wait_ms < 0:
            gate.refused += 1
            door.refused_connect(Reason.CONNECTION_RATE_EXCEEDED, "more come than mqtt.connect_rate_max lets in")
            return
        gate.enter(door.peer)
        self._counted = True
        delay_ms = max(gateway.refusals.delay_ms(client_id, now_ms), wait_ms)
        if delay_ms:
            gateway.shell.wheel.call_at(now_ms + delay_ms, lambda at_ms: door.admitted())
        else:
            door.admitted()
