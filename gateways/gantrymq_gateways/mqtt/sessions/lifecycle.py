"""How sessions begin, change, end and expire: procedures over the port, one at a time per client id.

A client id is held by a lease, so that a CONNECT anywhere takes the session over from whoever has it [MQTT-3.1.4-2].
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol

from gantrymq.broker.port import AGAIN, END, FIND, BrokerPort, CursorInfo, lease_name, row_name
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Call, Steps, call, pause, run
from gantrymq.net.procedures.order import Serial, Work
from gantrymq_gateways.mqtt.config import MqttConfig
from gantrymq_gateways.mqtt.drafts import Draft
from gantrymq_gateways.mqtt.messages import exchange
from gantrymq_gateways.mqtt.messages.deliver import Outlet
from gantrymq_gateways.mqtt.messages.exchange import Released, receipts_key, row_key
from gantrymq_gateways.mqtt.messages.fanout import Fanout
from gantrymq_gateways.mqtt.messages.grants import QOS, pack
from gantrymq_gateways.mqtt.retained import RetainedStore
from gantrymq_gateways.mqtt.sessions.exclusive import Exclusives
from gantrymq_gateways.mqtt.sessions.filter_queues import FilterQueues
from gantrymq_gateways.mqtt.sessions.hold import Hold
from gantrymq_gateways.mqtt.sessions.memory import Memories
from gantrymq_gateways.mqtt.sessions.past import Replays
from gantrymq_gateways.mqtt.sessions.rows import TAKEN, TOGETHER_MAX, SessionRows
from gantrymq_gateways.mqtt.sessions.sessions import (
    PersistentSession,
    Session,
    SessionTools,
    VolatileSession,
    Waiting,
)
from gantrymq_gateways.mqtt.sessions.shared import SharedGroups
from gantrymq_gateways.mqtt.sessions.terms import Terms, codes_of, is_quiet
from gantrymq_gateways.mqtt.tables import (
    FILTER_GRACE_MS,
    LINE_END,
    SESSION_TABLE,
    SessionTable,
    StoredFilter,
    StoredSession,
    holder_of,
)
from gantrymq_gateways.mqtt.topics.exclusive import check_exclusive, is_exclusive, plain
from gantrymq_gateways.mqtt.topics.mapping import SYS_PREFIX
from gantrymq_gateways.mqtt.topics.past import is_past
from gantrymq_gateways.mqtt.topics.shared import check_shared, is_shared, stands_apart
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.packets import Subscribe, Unsubscribe
from gantrymq_gateways.mqtt.wire.reasons import Reason

log = logging.getLogger(__name__)

GROUP_PREFIX: Final = "mqtt:"

HOLDER_BASE: Final = 1 << 40
"""Holders of this door count from here, so that they never meet another door's in the same broker."""

FILTER_WORK, ADD_WORK, LEVEL_WORK = 128, 48, 1
"""Units of `Work`, measured in microseconds: a filter installed or removed, one added to a session, a level of the retained topics looked at."""

SAVE_MS: Final = FILTER_GRACE_MS // 4
"""A SUBSCRIBE that takes longer stores what it has so far: a filter that is in no row is removed after its grace time."""


class Client(Protocol):
    """The connection that a session is for."""

    peer: str
    gone: bool

    def outlet(self) -> Outlet: ...

    def taken_over(self, name: str) -> None: ...

    def fail(self, text: str, reason: Reason = Reason.UNSPECIFIED) -> None: ...

    def prepare(self) -> Steps:
        """The client id is its own from now on."""

    def accepted(self, session: Session, present: bool, epoch: int) -> None: ...


def names_of(client_id: str) -> list[str]:
    """What somebody must decide about for a session to begin and go on."""
    exchanges = [row_name(exchange.TABLE, key) for key in (row_key(client_id), receipts_key(client_id))]
    return [lease_name(GROUP_PREFIX + client_id), row_name(SESSION_TABLE, client_id), *exchanges]


Places = tuple[list[tuple[str, StoredFilter, int]], list[tuple[str, StoredFilter]], bool]


def _take(row: StoredSession, terms: Terms) -> None:
    """As a CONNECT has it. Raises GantryError for a row of another user."""
    row.expiry_s = terms.stored_expiry_s
    row.user = terms.owner(row.user)


class Lifecycle:
    """Procedures on sessions. `now_ms` is the wall clock: what it times outlives processes. `gateway`: the name of this one."""

    def __init__(
        self,
        port: BrokerPort,
        tools: SessionTools,
        fanout: Fanout,
        kept: RetainedStore,
        now_ms: Callable[[], int],
        gateway: str,
        config: MqttConfig,
    ) -> None:
        self.port = port
        self.tools = tools
        self.fanout = fanout
        self.kept = kept
        self.now_ms = now_ms
        self.table = SessionTable(config.session_expiry_s * 1000)
        self.rows = SessionRows(port, self.table, now_ms, gateway)
        self.queues = FilterQueues(port, self.table, tools)
        self.past = Replays(port, tools, gateway)
        self.shared = SharedGroups(port, self.queues, tools, config.shared_strategy, self.past)
        self.serial = Serial()
        self.pause = pause(tools.later)
        """Where one client asks for much, the others have their turn in between."""
        self._sessions_max = config.sessions_max
        self._subscriptions_max = config.subscriptions_max
        self._session_expiry_ms = config.session_expiry_s * 1000
        self._holder = HOLDER_BASE
        self.live: dict[str, Session] = {}
        """Sessions of the connected clients, by client id."""
        self.exclusives = Exclusives(port, self.table, self.live, gateway, now_ms)
        self.exchanges: dict[str, bytes] = {}
        """Rows of `mqtt_exchange`."""
        self._memories = Memories(self.exchanges)

    # CONNECT

    def connect(self, client: Client, terms: Terms, client_id: str) -> Steps:
        """Take the client id, find or begin the session, answer."""
        lease = GROUP_PREFIX + client_id
        hold = Hold()

        def lost(name: str) -> None:
            hold.lose(name)
            client.taken_over(name)
            self.rows.changed(client_id)

        lasting = terms.expiry_s or not terms.clean
        epoch = yield partial(self.port.take_lease, lease, True, lost, deputy=not lasting)
        begun = False
        try:
            if not client.gone:
                yield from client.prepare()
            if not client.gone:
                terms.owner(self.stored_owner(client_id))  # another gateway may have been faster
                if terms.clean or self.table.is_expired(client_id, self.now_ms()):
                    yield from self.forget(client_id, hold)  # [MQTT-3.1.2-6] [MQTT5-3.1.2-4]
                if not client.gone:
                    yield from self._begin(client, terms, client_id, epoch, hold)
                begun = not client.gone
        finally:
            if not begun:  # also after a failure: a lease that nobody has would keep the session from expiring
                self.serial.put(client_id, self._left(client_id, epoch, hold), self.report)

    def owner(self, client_id: str) -> str:
        """Whose the open or stored session is, as far as it is known here; empty: nobody's."""
        live = self.live.get(client_id)
        return live.user if live is not None else self.stored_owner(client_id)

    def stored_owner(self, client_id: str) -> str:
        """Of the stored session alone."""
        row = self.table.row(client_id)
        if row is None or self.table.is_expired(client_id, self.now_ms()):
            return ""
        return holder_of(row).user

    def _begin(self, client: Client, terms: Terms, client_id: str, epoch: int, hold: Hold) -> Steps:
        if terms.expiry_s or not terms.clean:
            if (yield from self._connect_persistent(client, terms, client_id, epoch, hold)) or client.gone:
                return
            if terms.expiry_s:
                return
        session = VolatileSession(client_id, self.tools, client.outlet(), client.fail)
        self.live[client_id] = session
        client.accepted(session, False, epoch)

    def _connect_persistent(
        self, client: Client, terms: Terms, client_id: str, epoch: int, hold: Hold
    ) -> Generator[Call, Any, bool]:
        """False: there is no session to go on with, and none is begun."""
        found: Draft | None = None

        def found_it(session: Draft) -> None:
            nonlocal found
            found = session
            if session.row.gateway != self.rows.gateway:
                self._memories.forget(client_id)  # Another gateway had it meanwhile.
            _take(session.row, terms)

        def begin() -> StoredSession:
            if len(self.table) >= self._sessions_max:
                raise GantryError(ErrorCode.LIMIT_REACHED, f"mqtt.sessions_max ({self._sessions_max}) is reached")
            row = StoredSession({})
            _take(row, terms)
            return row

        stored = yield from self.rows.claim(client_id, hold, found_it, begin if terms.expiry_s else None)
        if stored is None:
            return False
        present = stored is found  # not one that was found and went before it was claimed [MQTT-3.2.2-2]
        if stored.row.over or stored.row.ending:  # a clean session or an UNSUBSCRIBE that was taken over
            present = present and not stored.row.over and bool(stored.filters)
            if not (yield from self._end_filters(client_id, hold, stored)):
                return False
        work = Work()
        places = yield from self._open_places(client, client_id, stored, work)
        if places is None:
            return False
        opened, shared, renewed = places
        if renewed and not (yield from self.rows.write(client_id, hold, stored)):
            return False  # A queue that is in no row is removed after a grace time.
        self._holder += 1
        session = PersistentSession(client_id, self.tools, client.outlet(), client.fail, self._holder)
        session.hold = hold
        session.held = True
        session.expiry_s = terms.expiry_s
        yield from self._memories.recall(session, present)
        session.on_owed = partial(self._owed_no_more, session, set())
        for text, kept, cursor in opened:
            session.add(text, kept.granted, cursor, kept.light)
            if work.spend(ADD_WORK):
                yield self.pause
        session.subscribed({text: kept.granted for text, kept, _ in opened})
        for text, kept in shared:
            yield from self._join_again(session, text, kept)
        retained: dict[str, list[Waiting]] = {}
        owed = {text: kept.granted for text, kept, _ in opened if kept.owed}
        yield from self._find_retained(session, owed, retained, work)  # what is too much stays owed
        self.rows.reported(client_id, self.table.row(client_id), session)
        if client.gone:
            session.detach()
            self.shared.detach(session)
            return False
        session.send_retained(retained)
        session.held = False
        self._memories.forget(client_id)
        self.table.connected(client_id)
        self.live[client_id] = session
        if session.granted_below(SYS_PREFIX):
            self.tools.wants_sys(session)
        client.accepted(session, present, epoch)
        for packet_id, state in list(session.outlet.inflight.items()):
            if isinstance(state, Released):
                session.send_ack(c.PUBREL, packet_id)  # [MQTT-4.4.0-1] [MQTT5-4.4.0-1]
        return True

    def _open_places(
        self, client: Client, client_id: str, stored: Draft, work: Work
    ) -> Generator[Call, Any, Places | None]:
        """(filters with the cursor of each, shared subscriptions, whether a queue had to begin anew) of a stored session. None: its client is gone."""
        opened: list[tuple[str, StoredFilter, int]] = []
        shared: list[tuple[str, StoredFilter]] = []
        renewed = False
        for text, kept in stored.filters.items():
            if work.spend(FILTER_WORK):
                yield self.pause
            if client.gone:
                return None
            if stands_apart(text):
                shared.append((text, kept))
                continue
            light = kept.light
            info = yield from self._open_again(client_id, text, kept)
            renewed = renewed or kept.light != light
            if not kept.granted & QOS and info.ready:
                # QoS 0 is for those who listen: what came while nobody did is not kept (docs/mapping/mqtt.md).
                yield call(self.port.purge, info.cursor)
            opened.append((text, kept, info.cursor))
        return opened, shared, renewed

    def _find_retained(
        self, session: Session, granted: dict[str, int], found: dict[str, list[Waiting]], work: Work
    ) -> Generator[Call, Any, bool]:
        """What new subscriptions find, by filter. False: more than may wait; filters behind that one were not looked at."""
        waiting = len(session.retained)
        for text, qos in granted.items():
            messages: list[Waiting] = []
            for _ in session.find_retained(self.kept, text, qos, messages):
                if messages and waiting > self.tools.retained_waiting_max:
                    return False
                if work.spend(LEVEL_WORK):
                    yield self.pause
            if messages:
                found[text] = messages
                waiting += len(messages)
        return True

    def _is_owed(self, text: str, qos: int, work: Work) -> Generator[Call, Any, bool]:
        """Whether a new subscription finds retained messages that its client must acknowledge."""
        if qos & QOS:
            for message in self.kept.walk(plain(text)):
                if message is not None and message.qos:
                    return True
                if work.spend(LEVEL_WORK):
                    yield self.pause
        return False

    def _open_again(self, client_id: str, text: str, kept: StoredFilter) -> Generator[Call, Any, CursorInfo]:
        """The session's place in a filter's queue; in a new queue if the old one was removed behind its back. What a broker group has that is away
        comes when it is back."""
        group = GROUP_PREFIX + client_id
        try:
            info: CursorInfo = yield call(self.port.open_cursor, f"~{kept.light}", group, AGAIN)
        except GantryError as error:
            if error.code is not ErrorCode.QUEUE_NOT_FOUND:
                raise
            log.warning("client %s: the queue of its filter %r is gone and begins anew", client_id, text[:128])
            self.queues.gone(kept.light)
            kept.light = yield from self.queues.queue_of(text)
            info = yield call(self.port.open_cursor, f"~{kept.light}", group, END)
        return info

    def _join_again(self, session: PersistentSession, text: str, kept: StoredFilter) -> Steps:
        """The session's group; it has a new queue if the old one was removed."""
        light = yield from self.shared.join(session, text, kept.granted, kept.light)
        if light != kept.light:
            kept.light = light

            def correct(row: Draft) -> None:
                if text in row.filters:
                    row.filters[text].light = light

            yield from self._change(session, correct)

    def _change(self, session: PersistentSession, change: Callable[[Draft], None]) -> Generator[Call, Any, bool]:
        """Change a session's row. False: somebody else has the session, it is theirs then."""
        stored = self.rows.held(session.hold)
        if stored is not None:
            change(stored)
            stored.row.left_ms = 0
            if (yield from self.rows.write(session.client_id, session.hold, stored)):
                return True
        if session.is_attached():
            session.fail(TAKEN)
        return False

    def _owed_no_more(self, session: PersistentSession, paid: set[str], text: str) -> None:
        """All retained messages of a filter are acknowledged. `paid`: filters whose row does not say so yet."""
        paid.add(text)
        if len(paid) == 1:
            self.serial.put(session.client_id, self._paid(session, paid), self.report)

    def _paid(self, session: PersistentSession, paid: set[str]) -> Steps:
        yield self.pause  # One change for all filters that are paid in a turn.
        texts = paid.copy()
        paid.clear()

        def pay(stored: Draft) -> None:
            for kept in [stored.filters[text] for text in texts if text in stored.filters]:
                kept.owed = 0

        yield from self._change(session, pay)

    # SUBSCRIBE and UNSUBSCRIBE

    def subscribe(self, session: Session, packet: Subscribe, answer: Callable[[list[int], str], None]) -> Steps:
        """Install the routes, then answer with one code per filter [MQTT-3.8.4-5] [MQTT5-3.8.4-6] and the first refusal's text, then send what
        is retained."""
        # A message that comes meanwhile may be in the queue of an old filter and of a new one: it is delivered once, when both are known.
        session.held = True
        try:
            yield from self._subscribe(session, packet, answer)
        finally:
            session.held = False
        session.pump()

    def _subscribe(self, session: Session, packet: Subscribe, answer: Callable[[list[int], str], None]) -> Steps:
        granted: dict[str, int] = {}
        refused: dict[str, GantryError] = {}
        stored = self.rows.held(session.hold) if isinstance(session, PersistentSession) else None
        work = Work()
        saved_ms = self.now_ms()
        subscribed: Collection[str] = ()
        if stored is not None:
            subscribed = stored.filters
        elif isinstance(session, VolatileSession):
            subscribed = session.subscriptions
        before = {text: stored.filters[text] for text, _ in packet.filters if text in stored.filters} if stored else {}
        identifier = packet.properties.get(p.SUBSCRIPTION_ID, [0])[0]
        quiet = {text for text, options in packet.filters if is_quiet(options, text in subscribed)}
        for text, options in packet.filters:
            try:
                qos = pack(options, identifier)
                session.check_filter(text)
                yield from self._check_filter(session, subscribed, text)
                if isinstance(session, VolatileSession):
                    yield from self._subscribe_volatile(session, text, qos)
                elif stored is not None:
                    yield from self._take_filter(stored, text, qos)
                granted[text] = qos
            except GantryError as error:
                refused[text] = error
                if text not in subscribed:
                    self.exclusives.drop(session.client_id, [text])
            if work.spend(FILTER_WORK):
                yield self.pause
            if isinstance(session, PersistentSession):
                if stored is None or session.hold.is_lost():
                    return
                saved_ms = yield from self._save(session, stored, granted, saved_ms)
        if isinstance(session, PersistentSession) and stored is not None and granted:
            yield from self._subscribe_persistent(session, stored, granted, refused, before, quiet, work, saved_ms)
        bad = [text for text, _ in packet.filters if text not in granted]
        if bad and bad[0] in refused:
            count = f"{len(bad)} of {len(packet.filters)} subscriptions refused, first"
            log.warning("client %s: %s %r: %s", session.client_id, count, bad[0][:128], refused[bad[0]])
        if session.is_attached():
            wanted = {text: number for text, number in granted.items() if text not in quiet}
            session.subscribed_again(wanted)
            session.subscribed(granted)
            found: dict[str, list[Waiting]] = {}
            few = yield from self._find_retained(session, wanted, found, work)
            if isinstance(session, PersistentSession) and stored is not None:
                yield from self._owe(session, stored, wanted if few else found, found)
            if session.is_attached():
                answer(
                    codes_of(session, packet, granted, refused),
                    refused[bad[0]].text if bad and bad[0] in refused else "",
                )
                session.send_retained(found)  # [MQTT-3.8.4-3]
                if not few:
                    text = f"more than {self.tools.retained_waiting_max} retained messages wait for it"
                    session.fail(text, Reason.QUOTA_EXCEEDED)

    def _subscribe_persistent(
        self,
        session: PersistentSession,
        stored: Draft,
        granted: dict[str, int],
        refused: dict[str, GantryError],
        before: dict[str, StoredFilter],
        quiet: Collection[str],
        work: Work,
        saved_ms: int,
    ) -> Steps:
        """The row first, then the places in the queues: whoever takes the session in between finds in the row where it may have one."""
        for text, qos in granted.items():
            if text not in quiet:
                stored.filters[text].owed = int((yield from self._is_owed(text, qos, work)))
            saved_ms = yield from self._save(session, stored, granted, saved_ms)
        if not (yield from self._save(session, stored, granted, None)):
            return
        cursors: dict[str, int] = {}
        failed: list[str] = []
        renewed = False
        for text in list(granted):
            if session.hold.is_lost():
                return
            kept = stored.filters[text]
            light = kept.light
            try:
                if stands_apart(text):
                    yield from self._join_again(session, text, kept)
                    continue
                cursors[text] = (yield from self._open_again(session.client_id, text, kept)).cursor
                renewed = renewed or kept.light != light
            except GantryError as error:
                refused[text] = error
                del granted[text]
                failed.append(text)
            if work.spend(FILTER_WORK):
                yield self.pause

        def correct(row: Draft) -> None:
            row.filters.update({text: stored.filters[text] for text in cursors})
            for text in failed:
                if text in before:
                    row.filters[text] = before[text]
                else:
                    row.filters.pop(text, None)

        if (failed or renewed) and not (yield from self._change(session, correct)):
            return
        for text, cursor in cursors.items():
            if session.is_attached():
                session.add(text, granted[text], cursor, stored.filters[text].light)
            if work.spend(ADD_WORK):
                yield self.pause

    def _owe(
        self,
        session: PersistentSession,
        stored: Draft,
        looked_at: Collection[str],
        found: dict[str, list[Waiting]],
    ) -> Steps:
        """What is retained changed since the row was written: it says again what is owed."""
        owing = {text for text, messages in found.items() if (owed := messages[0][2]) is not None and owed.left}
        wrong = [text for text in looked_at if stored.filters[text].owed != (text in owing)]

        def correct(row: Draft) -> None:
            for text in wrong:
                row.filters[text].owed = int(text in owing)

        if wrong:
            yield from self._change(session, correct)

    def _save(
        self, session: PersistentSession, stored: Draft, granted: dict[str, int], saved_ms: int | None
    ) -> Generator[Call, Any, int]:
        """Put what a SUBSCRIBE took into the session's row, if that is long ago (or None: now). Returns when it was done last, 0 when
        the session is somebody else's."""
        now_ms = self.now_ms()
        if saved_ms is not None and now_ms - saved_ms < SAVE_MS:
            return saved_ms
        added = {text: stored.filters[text] for text in granted}
        return now_ms if (yield from self._change(session, lambda row: row.filters.update(added))) else 0

    def _check_filter(self, session: Session, subscribed: Collection[str], text: str) -> Steps:
        """Raise GantryError for filters that nobody may have."""
        if is_shared(text):
            check_shared(text)
        elif is_exclusive(text):
            check_exclusive(text)
        if is_past(text) and text not in subscribed:
            self.past.check(session, text, subscribed)
        if text not in subscribed and len(subscribed) >= self._subscriptions_max:
            raise GantryError(ErrorCode.LIMIT_REACHED, f"mqtt.subscriptions_max ({self._subscriptions_max}) is reached")
        yield from self.queues.need_topic(text)
        if is_exclusive(text):
            yield from self.exclusives.take(session.client_id, text)

    def _subscribe_volatile(self, session: VolatileSession, text: str, qos: int) -> Steps:
        if not session.is_attached():
            return
        session.subscriptions[text] = qos
        if stands_apart(text):
            try:
                yield from self.shared.join(session, text, qos)
            except GantryError:
                session.subscriptions.pop(text, None)
                raise
            return
        install = self.fanout.attach(text, session, qos)
        if install is None:
            return
        try:
            yield install
        except GantryError:
            session.subscriptions.pop(text, None)
            self.fanout.detach(text, session)
            raise
        if not session.is_attached():
            self.fanout.detach(text, session)

    def _take_filter(self, stored: Draft, text: str, qos: int) -> Steps:
        """Note the filter with its light queue."""
        known = stored.filters.get(text)
        light = known.light if known is not None else 0
        if not light and not is_past(text):
            light = yield from self.queues.queue_of(text)
        stored.filters[text] = StoredFilter(qos, light, 0 if known is None else known.owed)

    def unsubscribe(self, session: Session, packet: Unsubscribe, answer: Callable[[list[int]], None]) -> Steps:
        """End subscriptions, and answer with one code per filter [MQTT5-3.11.3-1]; unknown filters are no error [MQTT-3.10.4-5]."""
        known = session.shares.keys() | session.filters()
        codes = [0 if text in known else int(Reason.NO_SUBSCRIPTION_EXISTED) for text in packet.filters]
        if isinstance(session, VolatileSession):
            work = Work()
            for text in packet.filters:
                if session.subscriptions.pop(text, None) is not None:
                    self.shared.leave(session, text)
                    self.fanout.detach(text, session)
                    if work.spend(FILTER_WORK):
                        yield self.pause
        elif isinstance(session, PersistentSession) and session.is_attached():
            yield from self._unsubscribe_persistent(session, packet.filters)
        self.exclusives.drop(session.client_id, packet.filters)
        if session.is_attached():
            answer(codes)

    def _unsubscribe_persistent(self, session: PersistentSession, filters: list[str]) -> Steps:
        known = [text for text in dict.fromkeys(filters) if text in session.subscriptions or text in session.shares]
        if not known:
            return
        cursors: dict[str, int] = {}
        work = Work()
        for text in known:
            if stands_apart(text):
                self.shared.leave(session, text)
                continue
            cursors[text] = session.remove(text)
            if work.spend(ADD_WORK):
                yield self.pause
        lights: dict[str, int] = {}

        def end(stored: Draft) -> None:
            for text in known:
                if text in stored.filters:
                    lights[text] = stored.filters[text].light
                stored.end(text)

        # The row names the places that are given back: whoever takes the session in between does what is left of that.
        if not (yield from self._change(session, end)):
            return
        for text, cursor in cursors.items():
            if session.hold.is_lost():
                return
            yield call(self.port.delete_cursor, cursor)
            if text in lights:
                session.hold.given_back |= {lights[text]}
            if work.spend(ADD_WORK):
                yield self.pause
        if session.is_attached():
            session.pump()

    # The end

    def detach(self, session: Session, epoch: int) -> None:
        """The connection is gone: the session ends (clean) or waits for its client."""
        if not session.is_attached():
            return
        session.detach()
        self.shared.detach(session)
        if self.live.get(session.client_id) is session:
            del self.live[session.client_id]
        if isinstance(session, VolatileSession):
            unused = self.fanout.leave(session.subscriptions, session)
            self.exclusives.drop(session.client_id, session.subscriptions)
            session.subscriptions.clear()
            run(self._remove_unused(unused), self.report)
        elif isinstance(session, PersistentSession):
            self.tools.flush_settled()
            self.port.release(session.holder)
            # Behind what is under way for the session: until then it is held, so that another taker is heard of.
            end = self._ended if session.expiry_s == 0 else self._left
            if session.expiry_s:
                self._memories.keep(session)
            self.serial.put(
                session.client_id, end(session.client_id, epoch, session.hold, session.changed_expiry_s), self.report
            )
            return
        self.port.drop_lease(GROUP_PREFIX + session.client_id, epoch)

    def _remove_unused(self, filters: list[str]) -> Steps:
        """Take routes away that nobody needs any more."""
        work = Work()
        for text in filters:
            self.fanout.remove_unused(text)
            if work.spend(FILTER_WORK):
                yield self.pause

    def _ended(self, client_id: str, epoch: int, hold: Hold, expiry_s: int | None = None) -> Steps:
        """The session ends with its connection, though it did not begin with it [MQTT5-3.1.2-23]."""
        try:
            if client_id not in self.live and not hold.is_lost():
                yield from self.forget(client_id, hold)
        finally:
            self.port.drop_lease(GROUP_PREFIX + client_id, epoch)

    def _left(self, client_id: str, epoch: int, hold: Hold, expiry_s: int | None = None) -> Steps:
        """The session's client is gone: note when, and let the client id go. `expiry_s`: what its DISCONNECT said."""

        def leave(stored: Draft) -> None:
            stored.row.left_ms = self.now_ms()
            if expiry_s is not None:
                stored.row.expiry_s = expiry_s

        try:
            if client_id in self.live:
                return
            if hold.row is None:
                yield from self.rows.claim(client_id, hold, leave)
            elif (stored := self.rows.held(hold)) is not None:
                leave(stored)
                yield from self.rows.write(client_id, hold, stored)
        finally:
            self.port.drop_lease(GROUP_PREFIX + client_id, epoch)

    def forget(self, client_id: str, hold: Hold) -> Steps:
        """End a stored session: all its filters, then its places in the light queues, then its row. What is left when it is taken over
        the taker does."""
        self._memories.forget(client_id)
        row, rows = self.table.row(client_id), self.table.filters_of(client_id)
        if rows or (row is not None and (b'"$from/' in row or b'"$exclusive/' in row)):
            before = self.rows.stored(client_id)
            filters = list(rows if before is None else before.filters)
            self.exclusives.drop(client_id, filters)
            for text in filter(is_past, filters):
                yield from self.past.forget(client_id, text)

        def end(stored: Draft) -> None:
            for text in list(stored.filters.inline):
                stored.end(text)  # the others have rows
            stored.row.over = int(bool(stored.filters))

        # Filters without a session are what is left of one whose row cannot be read.
        begin = partial(StoredSession, {}) if row is None and rows else None
        stored = yield from self.rows.claim(client_id, hold, end, begin)
        if stored is not None and (yield from self._end_filters(client_id, hold, stored)):
            known = [key for key in (row_key(client_id), receipts_key(client_id)) if key in self.exchanges]
            if known and not hold.is_lost():
                yield call(self.port.put, exchange.TABLE, [(key, None) for key in known])
                for key in known:
                    self.exchanges.pop(key, None)
            yield from self.rows.write(client_id, hold, None)

    def _end_filters(self, client_id: str, hold: Hold, stored: Draft) -> Generator[Call, Any, bool]:
        """Of a session that has ended: its filters that have rows, a part at a time, and all its places. False: the client id is lost."""
        yield from self._give_back(client_id, hold, stored)
        while stored.row.over:
            for text in islice(list(stored.filters), TOGETHER_MAX):
                stored.end(text)
            stored.row.over = int(bool(stored.filters))
            if not (yield from self.rows.write(client_id, hold, stored)):
                return False
            yield from self._give_back(client_id, hold, stored)
        return not hold.is_lost()

    def _give_back(self, client_id: str, hold: Hold, stored: Draft) -> Steps:
        """Give back the places that the row says are given back."""
        work = Work()
        used = () if stored.row.over else [kept.light for kept in stored.filters.values()]
        for light in set(stored.row.ending).difference(used):
            if work.spend(FILTER_WORK):
                yield self.pause
            try:
                if hold.is_lost():
                    return
                info: CursorInfo = yield call(self.port.open_cursor, f"~{light}", GROUP_PREFIX + client_id, FIND)
                if hold.is_lost():
                    return
                yield call(self.port.delete_cursor, info.cursor)
            except GantryError as error:
                if error.code not in (ErrorCode.QUEUE_NOT_FOUND, ErrorCode.NOT_FOUND):
                    raise
            hold.given_back |= {light}

    def session_changed(self, key: str, value: bytes | None) -> None:
        """The table reports a row of `mqtt_session`."""
        self.table.changed_session(key, value, self.now_ms())
        if LINE_END not in key:
            self.rows.reported(key, value, self.live.get(key))

    def exchange_changed(self, key: str, value: bytes | None) -> None:
        """The table reports a row of `mqtt_exchange`."""
        if value is None:
            self.exchanges.pop(key, None)
        else:
            self.exchanges[key] = value

    def sweep(self) -> None:
        """Forget expired sessions and remove filters that nobody uses; called now and then."""
        now_ms = self.now_ms()
        self.shared.sweep(now_ms)
        for client_id in list(self.table.expired(now_ms)):
            self.table.postpone(client_id, now_ms + self._session_expiry_ms)
            self.serial.put(client_id, self._expire(client_id), self.report)
        for light, row in self.queues.unused(now_ms):
            self.serial.put(f"\0{light}", self.queues.remove(light, row), self.report)

    def _expire(self, client_id: str) -> Steps:
        lease = GROUP_PREFIX + client_id
        hold = Hold()

        def lost(name: str) -> None:
            hold.lose(name)
            self.rows.changed(client_id)

        try:
            epoch = yield call(self.port.take_lease, lease, False, lost)
        except GantryError as error:
            if error.code is ErrorCode.LEASE_HELD:
                return  # Connected, here or to another gateway.
            raise
        log.info("session of client %s expired", client_id)
        try:
            yield from self.forget(client_id, hold)
        finally:
            self.port.drop_lease(lease, epoch)  # also after a failure: the next attempt must find it free

    def report(self, error: GantryError | None) -> None:
        """The end of a procedure that nobody waits for."""
        if error is not None and error.code not in (ErrorCode.UNAVAILABLE, ErrorCode.SHUTTING_DOWN):
            log.warning("MQTT session could not be updated: %s", error)

    def lost(self) -> None:
        """The broker went away: what this process knew of it counts no more."""
        self.rows.lost()
        self.queues.lost()
        self.shared.lost()
        self.live.clear()
        self._memories.clear()
