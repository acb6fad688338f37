"""One MQTT gateway: what all its connections share, and its state as the broker comes and goes."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq import __version__
from gantrymq.broker.port import BrokerPort, Outcome, choose_name
from gantrymq.metrics import Metrics
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import MessageConfig
from gantrymq.model.message import Message
from gantrymq.net.api import Wheel
from gantrymq.net.procedures.driver import Steps, call, pause, run
from gantrymq.services import Clock, Turn
from gantrymq_gateways.mqtt import retained
from gantrymq_gateways.mqtt.access import DOOR
from gantrymq_gateways.mqtt.authentication import Authenticate, anonymous
from gantrymq_gateways.mqtt.config import MqttConfig
from gantrymq_gateways.mqtt.messages import exchange
from gantrymq_gateways.mqtt.messages.fanout import Fanout
from gantrymq_gateways.mqtt.messages.properties import passed_on, to_native
from gantrymq_gateways.mqtt.messages.publish import KeptRow, Targets
from gantrymq_gateways.mqtt.messages.receipts import Receipts
from gantrymq_gateways.mqtt.messages.refused import Refusals
from gantrymq_gateways.mqtt.messages.will_rows import KeptWill, WillRows
from gantrymq_gateways.mqtt.messages.wills import Wills
from gantrymq_gateways.mqtt.operate.events import Events
from gantrymq_gateways.mqtt.operate.operations import Operations
from gantrymq_gateways.mqtt.operate.overfull import Overfull
from gantrymq_gateways.mqtt.operate.sys_topics import SysTopics
from gantrymq_gateways.mqtt.retained import RetainedStore, RowPlace
from gantrymq_gateways.mqtt.sessions.lifecycle import Lifecycle, names_of
from gantrymq_gateways.mqtt.sessions.sessions import (
    RETAINED_WAITING_FILTERS,
    RETAINED_WAITING_MAX,
    Session,
    SessionTools,
    VolatileSession,
)
from gantrymq_gateways.mqtt.sessions.shared_group import publisher_property
from gantrymq_gateways.mqtt.tables import FILTER_TABLE, SESSION_TABLE
from gantrymq_gateways.mqtt.topics.mapping import DeliveryTopics, LongTopics
from gantrymq_gateways.mqtt.topics.rewrite import parse_rewriting
from gantrymq_gateways.mqtt.topics.rules import parse_rules
from gantrymq_gateways.mqtt.wire.connection import HEADER_BYTES_MAX, ConnectionLimits
from gantrymq_gateways.mqtt.wire.counts import Counts

if TYPE_CHECKING:
    from gantrymq.auth.authority import Authority

log = logging.getLogger(__name__)

LONG_TOPIC_TABLE: Final = "long_topic"
"""Shortened native topic -> the first level that it stands for."""

SWEEP_MS: Final = 15_000
"""Between looks for expired sessions and unused filters: a quarter of the shortest time that it watches."""

START_RETRY_MS: Final = 1000
"""Until the next attempt to open, when the broker is back but refuses something."""


@dataclass(slots=True)
class Shell:
    """The outside world of a gateway."""

    port: BrokerPort
    clock: Clock
    turn: Turn
    wheel: Wheel
    name: str = field(default_factory=partial(secrets.token_hex, 8))
    """Of this gateway, like no other's."""


class Peer:
    """What the gateway does with a connection of its own accord (adapter.MqttDoor)."""

    __slots__ = ()

    def abandon(self, text: str) -> None:
        """Close: the broker is gone."""
        raise NotImplementedError

    def rights_changed(self) -> None:
        """Users or policies are others now."""

    def facts(self) -> dict[str, Any]:
        """See `operate.console.Shown`."""
        raise NotImplementedError

    def kick(self, text: str) -> None:
        """See `operate.console.Shown`."""
        raise NotImplementedError


class MqttGateway:
    """Shared state; `ready` once the tables are read and the tap is open."""

    def __init__(self, shell: Shell, config: MqttConfig, message: MessageConfig | None = None) -> None:
        self.shell = shell
        self._message = message = message or MessageConfig()
        self.config = config
        self.ready = False
        self._on_ready: Callable[[GantryError | None], None] | None = None
        self.long_topics = LongTopics(self._learned)
        self.rules = parse_rules(config.topic_rules, config.topic_levels)
        self.topics = DeliveryTopics(self.long_topics, self.rules.to_mqtt)
        self.targets = Targets(self.long_topics, self.rules, parse_rewriting(config.rewrite))
        self.known_topics: set[bytes] = set()
        self.counts = Counts()
        self.kept = RetainedStore(
            config.retained_max, config.retained_bytes_max, message.within(shell.port.body_bytes_max())
        )
        port = shell.port
        self.fanout = Fanout(port, self.topics, shell.clock.now_ms, self.rules)
        waiting_max = max(RETAINED_WAITING_MAX, RETAINED_WAITING_FILTERS * config.retained_max)
        later = shell.turn.at_write
        self.sys = SysTopics(self._sys_values, self._sys_totals, self.kept.show, self._is_live, pause(later))
        tools = SessionTools(
            port,
            self.topics,
            self.settle,
            config.volatile_entries_max,
            later,
            waiting_max,
            self.rules,
            shell.clock.now_ms,
            config.volatile_entries_full,
            config.volatile_bytes_max,
            note_receipts=Receipts(port, shell.turn.at_append, self._retry_later).note,
            wants_sys=self.sys.wants,
            flush_settled=self.flush_settled,
            note_topic=self.long_topics.note,
            replays_max=config.replays_max,
        )
        self.backlog_dropped = tools.backlog_dropped
        self.lifecycle = Lifecycle(port, tools, self.fanout, self.kept, shell.clock.now_ms, shell.name, config)
        self.overfull = Overfull(port, self.lifecycle)
        self._limits = self._limits_with(self.kept.body_bytes_max)
        self.authority: Authority | None = None
        """Who knows the users; None without authentication."""
        self.authenticate: Authenticate = anonymous(config.allow_anonymous)
        self.refusals = Refusals()
        self.doors: set[Peer] = set()
        self.operate = Operations(port, shell.clock, config, shell.name, lambda: list(self.doors), self._operated)
        self.events = Events(port, self.rules, config.events_topic, shell.turn.at_append, shell.clock.now_ms)
        self._started_ms = shell.clock.monotonic_ms()
        self._sys_handle = 0
        self.will_rows = WillRows(port, shell.clock, shell.wheel, shell.name, self.publish_will)
        self.wills = Wills(port, self.kept, shell.clock, shell.wheel, config.busy_retry_ms, self.will_rows.forget)
        self._settled: list[tuple[int, int, Outcome]] = []
        self._sweep_handle = 0
        self._generated = 0
        self._stopped = False
        self._life = 0
        """Counts comings of the broker: answers to procedures of an earlier one are not ours any more."""
        self._early: list[tuple[str, bytes | None]] | None = None
        """What other gateways change of sessions while this one reads the filters, to load both."""

    def limits_now(self) -> ConnectionLimits:
        """Of a connection that begins now: the brokers' limit of bodies may be another one than it was."""
        most = self._message.within(self.shell.port.body_bytes_max())
        if most != self.kept.body_bytes_max:
            self.kept.body_bytes_max = most
            self._limits = self._limits_with(most)
        return self._limits

    def _limits_with(self, body_bytes_max: int) -> ConnectionLimits:
        config = self.config
        return ConnectionLimits(
            body_bytes_max + HEADER_BYTES_MAX,
            config.connect_timeout_ms,
            body_bytes_max if config.refused_publish == "dead_letter" else 0,
            config.keep_alive_s_max,
            config.topic_alias_max,
        )

    def show(self, metrics: Metrics) -> None:
        """Register what is counted."""
        self.operate.show(metrics)
        fanout, refusals = self.fanout, self.refusals
        for name, text, source in (
            (
                "gantry_mqtt_live_deliveries_total",
                "Messages sent to connected clean sessions",
                lambda: fanout.deliveries,
            ),
            ("gantry_mqtt_dropped_total", "QoS 0 messages dropped, their reader was too slow", lambda: fanout.dropped),
            (
                "gantry_mqtt_events_dropped_total",
                "Events of clients (mqtt.events_topic) that could not be stored",
                lambda: self.events.dropped.value,
            ),
            (
                "gantry_mqtt_backlog_dropped_total",
                "Messages of QoS 1 and 2 that a clean session had no room for (mqtt.volatile_entries_full)",
                lambda: self.backlog_dropped.value,
            ),
            (
                "gantry_mqtt_sessions_over_total",
                "Sessions ended because their backlog was over a limit (broker.session_messages_full, broker.session_bytes_full)",
                lambda: self.overfull.ended,
            ),
            ("gantry_mqtt_expired_total", "Messages that had expired when they came", lambda: fanout.expired),
            ("gantry_mqtt_refused_total", "Connections closed for what they published", lambda: refusals.closed),
            ("gantry_mqtt_dead_letters_total", "Refused publishes stored as dead letters", lambda: refusals.letters),
        ):
            metrics.read(name, text, source, "counter")

    def authenticate_by(self, authority: Authority) -> None:
        """From now on."""
        self.authority = authority
        authority.watch(self._rights_changed)

    def _operated(self, who: str, action: str, resource: str) -> None:
        if self.authority is not None:
            self.authority.audit.changed(DOOR, who, "", action, resource)

    def _rights_changed(self) -> None:
        for door in list(self.doors):
            door.rights_changed()

    def start(self, on_ready: Callable[[GantryError | None], None] | None = None) -> None:
        """Begin; `on_ready` is called once, when connections may come, or with what prevents it. Later starts are tried until they succeed."""
        self._on_ready = on_ready
        self.shell.port.watch_state(self._state)

    def stop(self) -> None:
        """Forget the broker; the connections are closed by the shell."""
        self.ready = False
        self._stopped = True
        if self.authority is not None:
            self.authority.unwatch(self._rights_changed)
        self.operate.stop()
        self.shell.wheel.cancel(self._sweep_handle)
        self.shell.wheel.cancel(self._sys_handle)
        self.will_rows.stop()
        self.wills.stop()
        self.flush_settled()
        self.fanout.close()

    def _state(self, up: bool) -> None:
        if self._stopped:
            return
        self._life += 1
        if up:
            self._open(self._life)
            return
        self.ready = False
        self.shell.wheel.cancel(self._sweep_handle)
        self.shell.wheel.cancel(self._sys_handle)
        for door in list(self.doors):
            door.abandon("the broker is not reachable")
        self._settled.clear()
        self.fanout.close()
        self.lifecycle.lost()
        self.will_rows.lost_broker()
        self.sys.lost()
        self.operate.lost()

    def _open(self, life: int) -> None:
        if life == self._life and not self._stopped:
            run(self._begin(life), partial(self._begun, life))

    def _begin(self, life: int) -> Steps:
        port = self.shell.port
        self._early = early = list[tuple[str, bytes | None]]()
        sessions = yield call(port.watch_table, SESSION_TABLE, self._session_changed)
        filters = yield call(port.watch_table, FILTER_TABLE, self._filter_changed)
        self.lifecycle.table.load(sessions, filters, self.shell.clock.now_ms())
        self._early = None
        for key, value in early:
            self._session_changed(key, value)
        self.kept.load((yield call(port.watch_table, retained.TABLE, self.kept.changed)))
        exchanges = yield call(port.watch_table, exchange.TABLE, self.lifecycle.exchange_changed)
        self.lifecycle.exchanges.clear()
        self.lifecycle.exchanges.update(exchanges)
        long = yield call(port.watch_table, LONG_TOPIC_TABLE, self._long_topic_changed)
        for native, value in long.items():
            self.long_topics.foreign[native] = value.decode()
        tap = yield self.fanout.open()
        if life != self._life or self._stopped:
            raise GantryError(ErrorCode.UNAVAILABLE, "the broker was lost meanwhile")
        self.fanout.opened(tap)
        yield from self.operate.begin()
        yield from self.will_rows.begin()
        yield from self.lifecycle.past.begin()
        yield from self.lifecycle.exclusives.begin()
        yield from self.overfull.begin()
        self.ready = True
        now_ms = self.shell.clock.monotonic_ms()
        self._sweep_handle = self.shell.wheel.call_at(now_ms + SWEEP_MS, self._sweep)
        if self.config.sys_interval_s:
            self.sys.begin(now_ms)
            self._sys_handle = self.shell.wheel.call_at(now_ms + self.config.sys_interval_s * 1000, self._sys_tick)

    def _begun(self, life: int, error: GantryError | None) -> None:
        self._early = None
        on_ready, self._on_ready = self._on_ready, None
        if on_ready is not None:
            on_ready(error)
        elif error is not None and life == self._life and not self._stopped:
            log.warning("the MQTT door cannot open: %s; trying again", error)
            at_ms = self.shell.clock.monotonic_ms() + START_RETRY_MS
            self.shell.wheel.call_at(at_ms, lambda now_ms: self._open(life))

    def _sweep(self, now_ms: int) -> None:
        if self.ready:
            self.lifecycle.sweep()
            self.overfull.sweep()
            self.operate.sweep()
            run(self.will_rows.sweep(), self.lifecycle.report)
            run(self.lifecycle.past.sweep(), self.lifecycle.report)
            self._sweep_handle = self.shell.wheel.call_at(now_ms + SWEEP_MS, self._sweep)

    def _sys_tick(self, now_ms: int) -> None:
        if self.ready:
            self.sys.tick(now_ms)
            self._sys_handle = self.shell.wheel.call_at(now_ms + self.config.sys_interval_s * 1000, self._sys_tick)

    def _is_live(self, session: Session) -> bool:
        return self.lifecycle.live.get(session.client_id) is session

    def _sys_values(self) -> dict[str, object]:
        """What `$SYS/broker/` says, the averages apart."""
        gate, lifecycle, totals = self.operate.gate, self.lifecycle, self._sys_totals()
        away = lifecycle.table.away()
        volatile = [len(one.subscriptions) for one in lifecycle.live.values() if isinstance(one, VolatileSession)]
        found: dict[str, object] = {
            "version": f"gantrymq version {__version__}",
            "uptime": f"{(self.shell.clock.monotonic_ms() - self._started_ms) // 1000} seconds",
            "clients/connected": gate.connected,
            "clients/disconnected": away,
            "clients/total": gate.connected + away,
            "clients/maximum": gate.most,
            "subscriptions/count": sum(volatile) + lifecycle.table.subscriptions(),
            "retained messages/count": len(self.kept),
            "publish/bytes/received": self.counts.published_bytes_in,
            "publish/bytes/sent": self.counts.published_bytes_out,
        }
        for kind in ("messages", "bytes"):
            for way in ("received", "sent"):
                found[f"{kind}/{way}"] = totals[f"{kind}/{way}"]
        for way in ("received", "sent", "dropped"):
            found[f"publish/messages/{way}"] = totals[f"publish/{way}"]
        return found

    def _sys_totals(self) -> dict[str, int]:
        """What has an average under `$SYS/broker/load/`."""
        counts = self.counts
        return {
            "messages/received": counts.packets_in,
            "messages/sent": counts.published_out + counts.others_out,
            "publish/received": counts.published_in,
            "publish/sent": counts.published_out,
            "publish/dropped": self.fanout.dropped + self.sys.dropped,
            "bytes/received": counts.bytes_in,
            "bytes/sent": counts.bytes_out,
            "connections": counts.connects,
            "sockets": counts.sockets,
        }

    def _session_changed(self, key: str, value: bytes | None) -> None:
        if self._early is not None:
            self._early.append((key, value))
        else:
            self.lifecycle.session_changed(key, value)

    def _filter_changed(self, key: str, value: bytes | None) -> None:
        self.lifecycle.table.changed_filter(key, value, self.shell.clock.now_ms())

    def _long_topic_changed(self, key: str, value: bytes | None) -> None:
        if value is not None and self.long_topics.foreign.get(key) != value.decode():
            self.long_topics.foreign[key] = value.decode()
            self.topics.forget()

    def _learned(self, native: str, first_level: str) -> None:
        self.topics.forget()
        self.shell.port.put(LONG_TOPIC_TABLE, [(native, first_level.encode())], native, self._kept_name)

    def _kept_name(self, native: str, result: Any) -> None:
        if isinstance(result, GantryError):
            # The next publish tries again.
            self.long_topics.foreign.pop(native, None)
            log.warning("the name behind topic %s could not be stored: %s", native, result)

    def generated_id(self) -> str:
        """A client id for a client without one [MQTT-3.1.3-6]; unique over gateways and restarts, and one whose session can begin, if there is any."""
        begun = f"gantry-{self.shell.clock.now_ms():x}-{id(self) & 0xFFFFFF:06x}-"

        def next_id() -> str:
            self._generated += 1
            return f"{begun}{self._generated:x}"

        return choose_name(self.shell.port, next_id, names_of)

    def publisher_mark(self, client_id: str) -> bytes:
        """Properties that say who published, where somebody asks (`mqtt.shared_strategy`)."""
        return publisher_property(client_id) if self.config.shared_strategy == "hash_client" else b""

    def settle(self, cursor: int, offset: int, outcome: Outcome) -> None:
        """Collect an outcome; all of a turn go to the broker in one call."""
        if not self._settled:
            self.shell.turn.at_append(self.flush_settled)
        self._settled.append((cursor, offset, outcome))

    def _retry_later(self, retry: Callable[[], None]) -> None:
        at_ms = self.shell.clock.monotonic_ms() + self.config.busy_retry_ms
        self.shell.wheel.call_at(at_ms, lambda now_ms: retry())

    def flush_settled(self) -> None:
        """Hand collected outcomes over now."""
        if self._settled:
            settled, self._settled = self._settled, []
            self.shell.port.settle(settled)

    def publish_will(self, kept: KeptWill) -> None:
        """The client is lost: publish what it left [MQTT-3.1.2-8] [MQTT5-3.1.2-8]."""
        will, peer = kept.will, kept.peer
        flags = will.qos << 1 | (1 if will.retain else 0)
        now_ms = self.shell.clock.now_ms()
        try:
            target = self.targets.by_flags[flags].get(will.topic) or self.targets.find(will.topic, flags)
            if target.row is not None:
                self.kept.check_room(target.row, will.payload)
        except GantryError as error:
            log.warning("%s: its will was not published: %s", peer, error)
            self.will_rows.discard(kept)
            return
        told, keys, sharding_key = to_native(will.properties, now_ms) if will.properties else (b"", (), "")
        message = Message(target.native, will.payload, target.properties + told, target.tag, keys)
        message.sharding_key = sharding_key
        listed, expires_ms = passed_on(will.properties, now_ms)
        place = RowPlace(target.topic, will.qos, listed, expires_ms) if target.row is not None else None
        row = KeptRow.of(place, message) if place is not None else None
        self.wills.publish(message, peer, row, self.will_rows.taken(kept))
