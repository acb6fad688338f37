"""One MQTT client: events of its connection -> publishing, session and lifecycle; answers -> its outbox.

The pump calls it (`net.api.Door`). It decides who comes in, and what its end means: DISCONNECT discards the will [MQTT-3.1.2-10], else it is published.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.model.errors import GantryError
from gantrymq.model.message import Message
from gantrymq.net.api import Link
from gantrymq.net.held.outbound import Pieces
from gantrymq.net.procedures.driver import Steps
from gantrymq_gateways.mqtt import access
from gantrymq_gateways.mqtt.access import ClientTargets
from gantrymq_gateways.mqtt.arrival import Arrival
from gantrymq_gateways.mqtt.authentication import Answer
from gantrymq_gateways.mqtt.gateway import MqttGateway, Peer
from gantrymq_gateways.mqtt.messages.deliver import Aliases, Outlet
from gantrymq_gateways.mqtt.messages.publish import Inflow, encode_acks
from gantrymq_gateways.mqtt.messages.refused import BECOME_LETTERS, letter
from gantrymq_gateways.mqtt.messages.will_rows import KeptWill
from gantrymq_gateways.mqtt.operate.gate import Rates
from gantrymq_gateways.mqtt.sessions.lifecycle import GROUP_PREFIX
from gantrymq_gateways.mqtt.sessions.sessions import Session
from gantrymq_gateways.mqtt.sessions.terms import connack_properties
from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.connection import Event, MqttConnection, Part, State, Violation
from gantrymq_gateways.mqtt.wire.packets import Ack, Auth, Connect, Disconnect, Publish, Subscribe, Unsubscribe
from gantrymq_gateways.mqtt.wire.properties import Properties
from gantrymq_gateways.mqtt.wire.reasons import Reason, reason_of

if TYPE_CHECKING:
    from gantrymq.auth.authority import Identity

log = logging.getLogger(__name__)

HOLD_CONNECT, HOLD_PUBLISH, HOLD_PROCEDURES, HOLD_RATE = 1, 2, 4, 8
"""Why a connection is not read."""


class MqttDoor(Peer):
    """One connection, from accept to close."""

    __slots__ = (
        "_arrival",
        "_closing",
        "_epoch",
        "_gateway",
        "_holds",
        "_inflow",
        "_kept",
        "_leaving",
        "_link",
        "_outlet",
        "_parked",
        "_procedures",
        "_rate_timer",
        "_rates",
        "_since_ms",
        "_targets",
        "_why",
        "connection",
        "gone",
        "peer",
        "session",
    )

    def __init__(self, gateway: MqttGateway) -> None:
        self._gateway = gateway
        now_ms = gateway.shell.clock.monotonic_ms()
        self.connection = MqttConnection(gateway.limits_now(), gateway.known_topics, now_ms, gateway.counts)
        self._link: Link | None = None
        self._outlet: Outlet | None = None
        self._inflow: Inflow | None = None
        self._why = "closed"
        """How the connection ended."""
        self._arrival = Arrival(gateway, self)
        self._kept: KeptWill | None = None
        """The will once it is noted."""
        self._targets: ClientTargets | None = None
        """Where it may publish."""
        self._rates: Rates | None = None
        """None: no limit of what it publishes."""
        self._rate_timer = 0
        self._since_ms = 0
        self._epoch = 0
        self._holds = 0
        self._procedures = 0
        self._parked: list[Event] = []
        """What came behind a SUBSCRIBE or UNSUBSCRIBE that is under way: packets take effect in order."""
        self._closing = False
        """The client is gone; the connection is closed as soon as what it published is answered."""
        self._leaving = False
        """The client closed its side: what it sent is still done, then the connection ends."""
        self.session: Session | None = None
        self.gone = False
        self.peer = "?"

    # Door

    def connected(self, link: Link) -> None:
        self._link = link
        self.peer = link.peer
        self._gateway.doors.add(self)
        self._gateway.counts.sockets += 1
        link.set_deadline(self.connection.next_deadline())

    def received(self, data: bytes) -> int | None:
        if self.gone:
            return None
        before = (counts := self.connection.counts).packets_in
        events = self.connection.receive_data(data, self._gateway.shell.clock.monotonic_ms())
        counts.bytes_in += (taken := self.connection.taken)
        counts.packets_in += len(events)
        if self._link is not None:
            self._link.spent(counts.packets_in - before)  # with the PINGREQs, which are no events
        if events:
            self._handle(events)
        if self.connection.outbox_bytes and self._link is not None:
            self._link.mark()
        return taken

    def inbound_bytes(self) -> int:
        return self.connection.buffered_bytes()

    def unfinished(self) -> int:
        return self.connection.unfinished()

    def missing_bytes(self) -> int:
        return self.connection.missing_bytes()

    def overdue(self, why: str, busy: bool) -> None:
        self.connection.close()
        self.fail(why)

    def data_to_send(self) -> Pieces:
        size = self.connection.outbox_bytes
        self.connection.counts.bytes_out += size
        data = self.connection.data_to_send()
        if (outlet := self._outlet) is not None and outlet.written(size):
            # The bytes are not written yet; the end of the next turn knows how many the socket took.
            self._gateway.shell.turn.at_deliver(self.writable)
        return data

    def eof(self) -> bool | None:
        self._leaving = True
        return not self.gone and self._is_busy()

    def closed(self, reason: str) -> None:
        self._end(True)

    def writable(self) -> None:
        if not self.gone and self._outlet is not None and self._outlet.unblock() and self.session is not None:
            self.session.pump()

    def deadline(self, now_ms: int) -> None:
        if self.gone or self._link is None:
            return
        if self._holds:
            # Clocks stop while it is we who do not read (DESIGN: back-pressure).
            self.connection.resumed(now_ms)
        for event in self.connection.handle_deadline(now_ms):
            if isinstance(event, Violation):
                self.fail(event.text, event.reason)
                return
        self._link.set_deadline(self.connection.next_deadline())

    def shutdown(self) -> None:
        self._why = "server_shutting_down"
        self.connection.disconnect(Reason.SERVER_SHUTTING_DOWN)
        self._end(True)
        self._close()

    def _is_busy(self) -> bool:
        """Something that the client sent is not done yet."""
        if self.session is None:
            return self.connection.state is State.CONNECTING
        return self._procedures > 0 or self._inflow is None or not self._inflow.is_idle()

    def _has_procedures(self) -> bool:
        return self._procedures > 0

    def _finish(self) -> None:
        """End a connection whose client left, once everything is done."""
        if self._leaving and not self.gone and not self._is_busy():
            self._end(True)
            self._close()

    # Events

    def _handle(self, events: list[Event]) -> None:
        if self._has_procedures():
            self._parked += events
            return
        publishes: list[Publish] = []
        releases: list[int] = []
        waits = False
        try:
            for index, event in enumerate(events):
                if type(event) is Publish:
                    publishes.append(event)
                    continue
                waits = True
                if type(event) is Ack:
                    if event.kind == c.PUBREL:
                        releases.append(event.packet_id)
                    elif self.session is not None:
                        self._acknowledged(self.session, event)
                    continue
                if publishes or releases:  # what comes behind must find these published
                    batch, released, publishes, releases = publishes, releases, [], []
                    self._submit(batch, released)
                self._other(event)
                if self.gone:
                    return
                if self._has_procedures():
                    self._parked += events[index + 1 :]
                    break
            if publishes or releases:
                self._submit(publishes, releases)
        except GantryError as error:
            self.refused(str(error), reason_of(error.code))
        if waits and self.session is not None and not self.gone:  # what it publishes makes no room for what it gets
            self.session.pump()

    def _submit(self, publishes: list[Publish], releases: list[int]) -> None:
        inflow = self._inflow
        if inflow is not None:
            inflow.submit(publishes, releases)
            if inflow.is_over():
                text = f"more than {inflow.receive_max} messages that are not acknowledged (mqtt.awaiting_rel_max)"
                self.fail(text, Reason.RECEIVE_MAXIMUM_EXCEEDED)
            elif self._rates is not None and publishes:
                self._pace(self._rates, publishes)

    def _pace(self, rates: Rates, publishes: list[Publish]) -> None:
        """Who publishes faster than it may is not read until it has paid for what was taken."""
        shell = self._gateway.shell
        now_ms = shell.clock.monotonic_ms()
        wait_ms = rates.take(len(publishes), sum([len(publish.payload) for publish in publishes]), now_ms)
        if wait_ms and not self.gone:
            self._hold(HOLD_RATE)
            shell.wheel.cancel(self._rate_timer)
            self._rate_timer = shell.wheel.call_at(now_ms + wait_ms, lambda at_ms: self._resume(HOLD_RATE))

    @staticmethod
    def _acknowledged(session: Session, ack: Ack) -> None:
        if ack.kind == c.PUBACK:
            session.acknowledged(ack.packet_id)
        elif ack.kind == c.PUBREC:
            session.received(ack.packet_id, ack.reason)
        else:
            session.completed(ack.packet_id)

    def _other(self, event: Event) -> None:
        session = self.session
        if isinstance(event, Connect):
            assert self._link is not None, "what came, came from it"
            self._arrival.begin(event, self._link)
        elif isinstance(event, Violation):
            if session is not None and event.refused:
                self.refused(event.text)
            else:
                self.fail(event.text, event.reason)
        elif isinstance(event, Part):
            if self._inflow is not None:
                self._inflow.take_part(event)
        elif isinstance(event, Auth):
            self._arrival.proceed(event)
        elif isinstance(event, Disconnect):
            self._disconnect(session, event)
        elif session is None:
            return
        elif isinstance(event, Subscribe):
            self._subscribe(session, event)
        elif isinstance(event, Unsubscribe):
            self._unsubscribe(session, event)

    def _disconnect(self, session: Session | None, packet: Disconnect) -> None:
        expiry_s = packet.properties.get(p.SESSION_EXPIRY)
        if session is not None and expiry_s is not None:
            if expiry_s and not session.expiry_s:
                # [MQTT5-3.14.2-2]; the client may have been told already that it is gone.
                self.connection.state = State.CONNECTED
                self.fail("DISCONNECT wants a session that CONNECT did not want", Reason.PROTOCOL_ERROR)
                return
            session.expiry_s = min(expiry_s, self._gateway.config.session_expiry_s)
            session.changed_expiry_s = session.expiry_s
        self._why = "disconnect"
        self._end(packet.reason == Reason.DISCONNECT_WITH_WILL)
        self._close()

    # CONNECT and AUTH (arrival.py)

    def asking(self) -> None:
        self._hold(HOLD_CONNECT)

    def challenge(self, answer: Answer) -> None:
        self.connection.challenge(answer.reason, answer.data)
        if self._link is not None:
            self._link.mark()
            self._link.set_deadline(self.connection.next_deadline())
        self._resume(HOLD_CONNECT)

    def admitted(self) -> None:
        """Answer CONNECT."""
        lifecycle = self._gateway.lifecycle
        if not self.gone:
            client_id = self._arrival.client_id
            steps = lifecycle.connect(self, self._arrival.terms, client_id)
            lifecycle.serial.put(client_id, steps, self._connect_ended)

    def rights_changed(self) -> None:
        """See `Peer`. A client whose user is gone leaves; subscriptions that it may not have any more end."""
        identity = self._arrival.identity
        if identity is None or self.gone:
            return
        if self._targets is not None:
            self._targets.forget()
        if not identity.alive:
            self.fail(identity.farewell, Reason.NOT_AUTHORIZED)
        elif self.session is not None:
            self._drop_filters(identity, self.session)

    def _drop_filters(self, identity: Identity, session: Session) -> None:
        """End what the user may not subscribe to; nothing is delivered before that."""
        rules = self._gateway.rules
        lost = [text for text in (*session.filters(), *session.shares) if not access.is_allowed(identity, rules, text)]
        if not lost:
            return
        log.info(
            "%s: client %s: %d subscriptions end: its user lost the right",
            self.peer,
            self._arrival.client_id,
            len(lost),
        )
        session.held = True

        def ended(_codes: list[int]) -> None:
            session.held = False
            session.pump()

        self._procedure(session, self._gateway.lifecycle.unsubscribe(session, Unsubscribe(0, lost), ended))

    def _connect_ended(self, error: GantryError | None) -> None:
        if error is not None and not self.gone:
            reason = reason_of(error.code)
            known = reason in (Reason.SERVER_BUSY, Reason.QUOTA_EXCEEDED, Reason.NOT_AUTHORIZED)
            self.refused_connect(reason if known else Reason.SERVER_UNAVAILABLE, str(error))
        # What was pipelined behind CONNECT, then what waits for the session.
        self.received(b"")
        if self.session is not None and not self.gone:
            self.session.pump()
        self._finish()

    def _subscribe(self, session: Session, packet: Subscribe) -> None:
        subscribed = self._gateway.targets.rewriter.subscribed
        packet.filters = [(subscribed(text), options) for text, options in packet.filters]

        def answer(codes: list[int], text: str) -> None:
            self._send_codes(c.SUBACK, packet.packet_id, codes, text)

        self._procedure(session, self._gateway.lifecycle.subscribe(session, packet, answer))

    def _unsubscribe(self, session: Session, packet: Unsubscribe) -> None:
        packet.filters = [self._gateway.targets.rewriter.subscribed(text) for text in packet.filters]

        def answer(codes: list[int]) -> None:
            if self.connection.five:
                self._send_codes(c.UNSUBACK, packet.packet_id, codes, "")
            else:
                self._send(codec.encode_ack(c.UNSUBACK, packet.packet_id))

        self._procedure(session, self._gateway.lifecycle.unsubscribe(session, packet, answer))

    def _send_codes(self, kind: int, packet_id: int, codes: list[int], text: str) -> None:
        connection = self.connection
        properties: Properties = {}
        if text and self._arrival.terms.problems:  # [MQTT5-3.1.2-29]
            properties[p.REASON_STRING] = text[:512].replace("\0", "")
        data = codec.encode_codes(kind, packet_id, codes, properties, connection.level)
        if connection.outgoing_bytes_max and len(data) > connection.outgoing_bytes_max:
            data = codec.encode_codes(kind, packet_id, codes, None, connection.level)  # [MQTT5-3.9.2-1]
        self._send(data)

    def _procedure(self, session: Session, steps: Steps) -> None:
        self._procedures += 1
        self._gateway.lifecycle.serial.put(session.client_id, steps, self._procedure_ended)
        if self._procedures:
            self._hold(HOLD_PROCEDURES)

    def _procedure_ended(self, error: GantryError | None) -> None:
        self._procedures -= 1
        if error is not None:
            self.fail(f"a subscription could not be stored: {error}")
        if self._parked and not self.gone:
            events, self._parked = self._parked, []
            self._handle(events)
        if not self._procedures:
            self._resume(HOLD_PROCEDURES)
            self._finish()

    def _send(self, data: bytes) -> None:
        if not self.gone and self._link is not None:
            self.connection.send(data)
            self._link.mark()

    # Client (lifecycle.py)

    def outlet(self) -> Outlet:
        config = self._gateway.config
        assert self._link is not None, "a session begins after `connected`"
        inflight_max = min(config.inflight_max, self._arrival.terms.receive_max)
        outlet = Outlet(self.connection, self._link, inflight_max, config.outbound_bytes_max, self._arrival.bridge)
        if self._arrival.terms.alias_max and config.topic_alias_max:
            outlet.aliases = Aliases(min(self._arrival.terms.alias_max, config.topic_alias_max))
        self._outlet = outlet
        return outlet

    def prepare(self) -> Steps:
        rows = self._gateway.will_rows
        yield from rows.settle(self._arrival.client_id)
        if self._arrival.will is not None and not self.gone:
            delay_s = min(self._arrival.terms.will_delay_s, self._arrival.terms.expiry_s)
            self._kept = rows.keep(self._arrival.client_id, self._arrival.will, self.peer, delay_s)
            yield from rows.store(self._kept)

    def accepted(self, session: Session, present: bool, epoch: int) -> None:
        assert self._link is not None, "a session begins after `connected`"
        gateway = self._gateway
        self.session = session
        self._since_ms = gateway.shell.clock.now_ms()
        self._epoch = epoch
        gateway.counts.connects += 1
        unacked_max = gateway.config.unacked_bytes_max
        mark = session.outlet.mark + gateway.publisher_mark(self._arrival.client_id)
        identity, targets = self._arrival.identity, gateway.targets
        if identity is not None:
            targets = self._targets = ClientTargets(targets, identity)
            session.user = self._arrival.terms.owner(gateway.lifecycle.stored_owner(self._arrival.client_id))
            session.check_filter = partial(access.check_filter, identity, gateway.rules)
        inflow = Inflow(gateway.shell.port, targets, gateway.kept, self, unacked_max, mark, session.inbound)
        config = gateway.config
        if config.publish_rate_max or config.publish_bytes_rate_max:
            now_ms = gateway.shell.clock.monotonic_ms()
            self._rates = Rates(config.publish_rate_max, config.publish_bytes_rate_max, now_ms)
        inflow.five = self.connection.five
        inflow.counts = gateway.counts
        inflow.receive_max = gateway.config.awaiting_rel_max
        inflow.now_ms = gateway.shell.clock.now_ms
        inflow.unanswered = len(session.inbound.ids)
        session.expiry_s = self._arrival.terms.expiry_s
        session.on_no_local = self._mark_messages
        self._inflow = inflow
        self.connection.accept(present, self._connack() if self.connection.five else None)
        if present:
            gateway.will_rows.resumed(self._arrival.client_id)
        else:
            gateway.will_rows.ended(self._arrival.client_id)
        self._link.set_deadline(self.connection.next_deadline())
        self._link.mark()
        if identity is not None:
            self._drop_filters(identity, session)
        gateway.events.connected(self._arrival.client_id, self._introduction(present))
        self._resume(HOLD_CONNECT)

    def _introduction(self, present: bool) -> dict[str, Any]:
        """Of an event: EMQX's names, and `peer`."""
        connect = self._arrival.connect
        assert connect is not None, "it was accepted"
        return {
            "username": self._arrival.answer.user, "peer": self.peer, "proto_ver": connect.level, "keepalive": connect.keep_alive_s,
            "clean_start": connect.clean, "expiry_interval": self._arrival.terms.expiry_s, "session_present": present,
        }  # fmt: skip

    def _mark_messages(self, mark: bytes) -> None:
        if self._inflow is not None:
            self._inflow.mark = mark + self._gateway.publisher_mark(self._arrival.client_id)

    def _connack(self) -> Properties:
        config = self._gateway.config
        properties = connack_properties(
            self._arrival.terms,
            self.connection.packet_bytes_max,
            config.awaiting_rel_max,
            config.topic_alias_max,
            self._arrival.assigned,
            self.connection.server_keep_alive_s,
        )
        method = self._arrival.connect.properties.get(p.AUTH_METHOD) if self._arrival.connect is not None else None
        if method is not None:
            properties[p.AUTH_METHOD] = method  # [MQTT5-4.12.0-5]
            if self._arrival.answer.data is not None:
                properties[p.AUTH_DATA] = self._arrival.answer.data
        return properties

    def refused_connect(self, reason: Reason, text: str) -> None:
        """Answer CONNECT with a failure, and close."""
        if not self.gone:
            log.warning("%s: CONNECT refused, %s (%s)", self.peer, reason.name.lower().replace("_", " "), text)
            self._arrival.will = None
            self.connection.refuse(reason, text)
            self._end(False)
            self._close()

    def taken_over(self, name: str) -> None:
        # [MQTT-3.1.4-2] [MQTT5-3.1.4-3]
        self.fail(f"client id {name[len(GROUP_PREFIX) :]!r} connected again", Reason.SESSION_TAKEN_OVER)

    def fail(self, text: str, reason: Reason = Reason.UNSPECIFIED) -> None:
        """Close with a line in the log, and DISCONNECT where there is one; the will is published."""
        if not self.gone:
            log.warning("%s: closed: %s", self.peer, text)
            self._why = reason.name.lower()
            self.connection.disconnect(reason, text)
            self._end(True)
            self._close()

    def facts(self) -> dict[str, Any]:
        session, connect = self.session, self._arrival.connect
        if session is None or connect is None or self.gone:
            return {}
        return {
            "client": self._arrival.client_id, "user": self._arrival.answer.user, "peer": self.peer, "since_ms": self._since_ms,
            "version": {c.LEVEL_3_1: "3.1", c.LEVEL_5: "5.0"}.get(connect.level, "3.1.1"), "kept": session.remembers,
            "filters": sorted({*session.filters(), *session.shares}), "inflight": len(session.outlet.inflight),
            "keep_alive_s": connect.keep_alive_s,
        }  # fmt: skip

    def kick(self, text: str) -> None:
        self.fail(text, Reason.ADMINISTRATIVE_ACTION)

    def abandon(self, text: str) -> None:
        if not self.gone:
            log.warning("%s: closed: %s", self.peer, text)
            self._why = "server_busy"
            self.connection.disconnect(Reason.SERVER_BUSY, text)
            if self.session is not None:
                self.session.detach()
            self._arrival.will = self._kept = None  # its row is published when the broker is back
            self._end(False)
            if self._link is not None:
                self._link.close()  # answers of a broker that is away may never come

    def _end(self, lost: bool) -> None:
        """The client is no client of ours any more; once."""
        if self.gone:
            return
        self.gone = True
        if any(isinstance(event, Disconnect) for event in self._parked):
            lost = False  # [MQTT-3.14.4-3]: DISCONNECT came, it only waited for what was sent before it.
        gateway = self._gateway
        gateway.doors.discard(self)
        gateway.shell.wheel.cancel(self._rate_timer)
        self._arrival.leave()
        started = self.connection.state is not State.AWAIT_CONNECT
        self.connection.close()
        if self._inflow is not None:
            self._inflow.closed = True
        session, self.session = self.session, None
        if session is not None:
            gateway.lifecycle.detach(session, self._epoch)
            told = {"username": self._arrival.answer.user, "peer": self.peer, "reason": self._why}
            gateway.events.disconnected(self._arrival.client_id, told)
            if self._why not in ("server_busy", "server_shutting_down"):
                gateway.operate.left(self._arrival.client_id)
        kept, self._kept = self._kept, None
        if kept is not None and lost and started and session is not None:
            gateway.will_rows.lost(kept, min(self._arrival.terms.will_delay_s, session.expiry_s))
        elif kept is not None:
            gateway.will_rows.discard(kept)

    def _close(self) -> None:
        """Close the connection, behind the acknowledgements of what the client sent before its end [MQTT-4.3.2-2]."""
        if self._inflow is not None and self._inflow.is_flying():
            self._closing = True
        elif self._link is not None:
            self._link.close()

    # InflowHost (publish.py)

    def acknowledge(self, acks: list[int]) -> None:
        connection = self.connection
        if self._link is not None and (self._closing or not self.gone) and not connection.has_disconnected:
            connection.send(encode_acks(acks))
            connection.counts.others_out += len(acks) - 1
            self._link.mark()

    def answered(self) -> None:
        if self._closing:
            self._close()
        elif self._leaving:
            self._finish()

    def hold_reading(self) -> None:
        self._hold(HOLD_PUBLISH)

    def resume_reading(self) -> None:
        self._resume(HOLD_PUBLISH)

    def _hold(self, reason: int) -> None:
        if not self._holds and self._link is not None:
            self._link.pause_reading()
        self._holds |= reason

    def _resume(self, reason: int) -> None:
        if not self._holds & reason:
            return
        self._holds &= ~reason
        if not self._holds and not self.gone and self._link is not None:
            self.connection.resumed(self._gateway.shell.clock.monotonic_ms())
            self._link.resume_reading()

    def dropped(self, text: str) -> None:
        gateway = self._gateway
        if gateway.refusals.note_answered(self._arrival.client_id, gateway.shell.clock.monotonic_ms()):
            log.warning("%s: client %s: refused with a reason code: %s", self.peer, self._arrival.client_id, text)

    def refused(self, text: str, reason: Reason = Reason.UNSPECIFIED) -> None:
        """Close for what the client sent; it is let in again later each time, and the log says it once."""
        if self.gone:
            return
        gateway = self._gateway
        if gateway.refusals.note(self._arrival.client_id, gateway.shell.clock.monotonic_ms()):
            log.warning("%s: client %s: closed, also next time: %s", self.peer, self._arrival.client_id, text)
        self.connection.disconnect(reason, text)
        self._end(True)
        self._close()

    def letter(self, topic: str, payload: bytes, flags: int, error: GantryError, part: str) -> Message | None:
        gateway = self._gateway
        if gateway.config.refused_publish == "close" or error.code not in BECOME_LETTERS:
            return None
        if not gateway.refusals.admits(self._arrival.client_id, len(payload), gateway.shell.clock.monotonic_ms()):
            return None
        return letter(self._arrival.client_id, topic, payload, flags, error.text, part)

    def retry_later(self, retry: Callable[[], None]) -> None:
        shell = self._gateway.shell
        shell.wheel.call_at(shell.clock.monotonic_ms() + self._gateway.config.busy_retry_ms, lambda now_ms: retry())
