"""ClusterPort: the BrokerPort of a gateway process over several broker groups, so that doors see one broker.

Records of a topic go to one group until it fails (order); definitions live where their key is at home; a queue lies in one group with its cursors
(`cluster/owned`). What is open in this process is opened at a group that comes (again) before it is used (`cluster/join.py`).
docs/architecture/cluster.md draws it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from gantrymq.broker.consuming.leases import NO_SLOT
from gantrymq.broker.port import POSITION_BITS, POSITION_MASK, Done, Outcome, Route, Start, Terms, TopicInfo
from gantrymq.broker.tables.slot_table import slot_of
from gantrymq.cluster import join as cluster_join
from gantrymq.cluster.cursors import ClusterCursors
from gantrymq.cluster.everywhere import Everywhere
from gantrymq.cluster.group import AGAIN_MS, ASK_MS, Group, GroupPort, Patient
from gantrymq.cluster.leases import ClusterLeases
from gantrymq.cluster.names import (
    GROUPS_MAX,
    cluster_light,
    home_of,
    mark,
)
from gantrymq.cluster.owned.fence import Fence
from gantrymq.cluster.patience import Decisions, hangs
from gantrymq.cluster.pieces import Piece, submit_pieces
from gantrymq.cluster.row_moves import RowMoves
from gantrymq.cluster.slots.view import SlotView
from gantrymq.cluster.tables import ClusterTables
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import BODY_BYTES_CEILING
from gantrymq.model.message import Message
from gantrymq.model.queue_policy import Policy
from gantrymq.model.tables.message_rows import row_of, table_of_message
from gantrymq.net.api import Wheel
from gantrymq.net.procedures.driver import Call, Gathering, Steps, first_error, run
from gantrymq.services import Turn

log = logging.getLogger(__name__)

CHOSEN_MAX: Final = 100_000
"""Topics whose group is remembered; beyond it the memory is started anew (the choice comes out the same while groups stay)."""
PLACES_MAX: Final = 400_000
"""Topics whose queues are numbered; at that number those that no group has (any more) are forgotten. A broker has 200,000 topics at most."""
JOIN_RETRY_MS: Final = (200, 500, 1000, 2000, 5000)
"""Waits between attempts to bring a connected group up to date; the last one repeats."""
SETTLE_MS: Final = 6_000
"""A group that comes while others are in use gets no new records before: other gateway processes ask the nameservers every second, and
their taps hear nothing of a group that they have not found."""
Records = list[tuple[Message, tuple[int, ...]]]
RowApart = tuple[int, str, str, bytes | None]
"""Place in its batch of a message that is a row, too, and the row: table, key, value."""


class _Tap:
    __slots__ = ("on_records", "routes")

    def __init__(self, on_records: Callable[[Records], None]) -> None:
        self.on_records = on_records
        self.routes: dict[int, tuple[str, str | None, str]] = {}
        """Volatile routes by number, to be installed at a group that comes."""


class ClusterPort:
    """See the module. `identity`: what makes this gateway's choices differ from another's."""

    keeps_order = False

    def __init__(self, turn: Turn, wheel: Wheel, identity: str, on_close: Callable[[], None] = lambda: None) -> None:
        self.turn = turn
        self.wheel = wheel
        self._identity = identity
        self.groups: list[Group] = []
        self._ready: list[Group] = []
        self.joining: list[Group] = []
        """Connected, being brought up to date."""
        self._chosen: dict[str, Group] = {}
        self.slots = SlotView(turn, self.members_changed)
        self._tables = ClusterTables(self)
        self._cursors = ClusterCursors(self)
        self._owned = self._cursors.queues
        self._fence = Fence(self)
        self.decisions: Patient = Decisions(self, self.answers_again)
        self.places: dict[str, list[tuple[Group, int]]] = {}
        """By topic: group and queue behind each queue number shown to the doors; numbers stay while this process runs."""
        self._taps: dict[int, _Tap] = {}
        self._leases = ClusterLeases(self)
        self._row_moves = RowMoves(self, self._tables, self._leases)
        self._next = 0
        self._made = 0
        """Light queues made here: the groups take turns."""
        self._states: list[Callable[[bool], None]] = []
        self._shown = False
        """What `watch_state` told last."""
        self.complete = False
        """Every group that the nameservers named at the start was there once, or its time is over."""
        self._on_close = on_close

    # Groups.

    def add_group(self, name: str, port: GroupPort) -> Group:
        """A group that the nameservers know; it is used when it is connected and up to date."""
        if len(self.groups) >= GROUPS_MAX:
            raise GantryError(ErrorCode.LIMIT_REACHED, f"{GROUPS_MAX} broker groups were seen; restart the gateway")
        group = Group(name, len(self.groups), port)
        self.groups.append(group)
        port.watch_state(partial(self._group_state, group))
        return group

    def ready_groups(self) -> list[Group]:
        """Groups in use, the first seen first."""
        return self._ready

    def complete_now(self) -> None:
        """Wait no longer for groups that are registered and do not answer."""
        self.complete = True
        self._show_state()

    def members_changed(self) -> None:
        """The nameservers know other groups than before, or a group is being emptied: homes may be elsewhere."""
        self._leases.rehome()
        self._tables.drop_forgotten()
        self._row_moves.check()

    def answers_again(self, group: Group) -> None:
        """It did not for a while: consumers passed over it, and deputies stood in for it."""
        self._cursors.joined(group)
        self._leases.rehome()

    def _group_state(self, group: Group, up: bool) -> None:
        group.attempt += 1
        if group in self.joining:
            self.joining.remove(group)
        if up:
            group.failures = 0
            self._join(group, group.attempt)
        elif group.ready:
            log.warning("broker group %s is gone; its queues wait until it is back", group.name)
            group.ready = False
            self._ready.remove(group)
            self._cursors.lost(group)
            self._leases.rehome()
            self._show_state()

    def _join(self, group: Group, attempt: int) -> None:
        if attempt == group.attempt:
            group.pending.clear()
            group.settled = not self._shown  # at the start nobody was told less than we are
            self.joining.append(group)
            run(self._bring_up(group), partial(self._joined, group, attempt))

    def _bring_up(self, group: Group) -> Steps:
        yield from cluster_join.learn(self, group)
        yield from cluster_join.join(self, group)

    def _joined(self, group: Group, attempt: int, result: Any) -> None:
        if attempt != group.attempt:
            return  # lost meanwhile
        self.joining.remove(group)
        if isinstance(result, GantryError):
            if result.text != group.complaint:
                log.warning(cluster_join.NOT_USED, group.name, result.text)
            group.complaint = result.text
            wait_ms = JOIN_RETRY_MS[min(group.failures, len(JOIN_RETRY_MS) - 1)]
            group.failures += 1
            self.wheel.call_at(self.wheel.now_ms() + wait_ms, lambda now_ms: self._join(group, attempt))
            return
        group.complaint = ""
        group.ready = group.was_used = True
        self._ready.append(group)
        self._ready.sort(key=lambda one: one.index)
        self._cursors.joined(group)
        if len(self.groups) > 1:
            log.info("broker group %s is in use", group.name)
        if not group.settled:
            self.wheel.call_at(self.wheel.now_ms() + SETTLE_MS, lambda now_ms: self._settle(group, attempt))
        self.members_changed()
        self._show_state()

    @staticmethod
    def _settle(group: Group, attempt: int) -> None:
        if attempt == group.attempt:
            group.settled = True

    def _show_state(self) -> None:
        if not self.complete and self.groups and all(group.ready for group in self.groups):
            self.complete = True
        up = self.up
        if up == self._shown:
            return
        self._shown = up
        if not up:
            self._forget()
        for on_state in list(self._states):
            on_state(up)

    def _forget(self) -> None:
        self._taps.clear()
        self._chosen.clear()
        self._leases.forget()
        self._cursors.forget()
        self._tables.forget()

    def home(self, name: str) -> Group:
        """Where `name` is at home: at the owner of its slot, where there are slots, else at the only group. Raises UNAVAILABLE if that group is not
        there, or hangs, or no group has said whose the slot is."""
        if self.slots.known:
            owner = self.slots.owner(name)
            if owner is None:
                raise _nobodys(name)
            found = next((group for group in self._ready if group.name == owner), None)
            if found is None:
                raise unavailable(owner)
        elif self._ready:
            found = self._ready[0]
        else:
            raise self._none_in_use()
        if found.hangs:
            raise hangs(found)
        return found

    def _none_in_use(self) -> GantryError:
        why = self.why()
        return GantryError(
            ErrorCode.UNAVAILABLE, f"no broker group is in use: {why}" if why else "no broker group is connected"
        )

    def why(self) -> str:
        """Why groups that are connected are not in use; empty where nothing is known."""
        return cluster_join.reasons(
            [group.complaint for group in self.groups if group.complaint and group.port.up and not group.ready]
        )

    def _named(self, name: str) -> Group:
        return next(group for group in self.groups if group.name == name)

    def close(self) -> None:
        """Nobody uses it any more. May be called twice."""
        self._on_close()
        for group in self.groups:
            group.port.close()

    # Log.

    def body_bytes_max(self) -> int:
        known = [group.port.body_bytes_max() for group in self.groups if group.registered or group.ready]
        return min(known, default=BODY_BYTES_CEILING)

    def submit(
        self,
        batch: Sequence[Message],
        token: Any,
        on_done: Done,
        sender: object = None,
        *,
        settle: Sequence[tuple[int, int, Outcome]] = (),
        rows: Sequence[tuple[str, str, bytes | None]] = (),
    ) -> None:
        if len(self.groups) > 1 and self._ready and any(message.lmq for message in batch):
            try:
                batch, apart = self._rows_apart(batch)
            except GantryError as error:
                on_done(token, error)
                return
            if apart:
                on_done = partial(self._then_rows, apart, on_done)
        if settle or rows:
            try:
                pieces = self._pieces(batch, settle, rows)
            except GantryError as error:
                on_done(token, error)
                return
            submit_pieces(pieces, batch, sender, token, on_done)
            return
        ready = self._ready
        if len(ready) == 1 and not ready[0].draining:
            ready[0].port.submit(batch, token, on_done, sender)
            return
        if not ready:
            on_done(token, [ErrorCode.UNAVAILABLE] * len(batch))
            return
        parts: dict[int, list[int]] = {}
        for index, message in enumerate(batch):
            parts.setdefault(self._group_for(message.topic).index, []).append(index)
        if len(parts) == 1:
            self.groups[next(iter(parts))].port.submit(batch, token, on_done, sender)
            return
        results: list[Any] = [None] * len(batch)

        def send(group: Group, places: list[int], token: Any, done: Done) -> None:
            group.port.submit([batch[place] for place in places], token, done, sender)

        def gathered(answers: list[Any]) -> None:
            for places, answer in zip(parts.values(), answers, strict=True):
                failed = isinstance(answer, GantryError)
                for number, place in enumerate(places):
                    results[place] = answer.code if failed else answer[number]
            on_done(token, results)

        Gathering([partial(send, self.groups[index], places) for index, places in parts.items()], gathered)

    def _rows_apart(self, batch: Sequence[Message]) -> tuple[list[Message], list[RowApart]]:
        """Messages that are rows, too, stay so where their group has the row; of the others a copy is the message, and the row follows it. Raises
        UNAVAILABLE."""
        found, apart = list(batch), []
        for place, message in enumerate(batch):
            table = table_of_message(message)
            row = row_of(message.properties, message.body) if table else None
            if row is None or self._tables.target(table, row[0]) == self._group_for(message.topic).index:
                continue
            found[place] = plain = Message(
                message.topic,
                message.body,
                message.properties,
                message.tag,
                message.keys,
                message.queue_id,
                message.born_ms,
            )
            plain.sharding_key, plain.exchange, plain.flag = message.sharding_key, message.exchange, message.flag
            apart.append((place, table, *row))
        return found, apart

    def _then_rows(self, apart: list[RowApart], on_done: Done, token: Any, results: Any) -> None:
        """The messages were answered: rows of those that are stored follow."""
        tables: dict[str, list[tuple[str, bytes | None]]] = {}
        for place, table, key, value in apart if not isinstance(results, GantryError) else ():
            if not isinstance(results[place], ErrorCode):
                tables.setdefault(table, []).append((key, value))
        if not tables:
            on_done(token, results)
            return

        def put(answers: list[Any]) -> None:
            on_done(token, first_error(answers) or results)

        Gathering([partial(self._tables.put, table, rows) for table, rows in tables.items()], put)

    def _pieces(
        self,
        batch: Sequence[Message],
        settle: Sequence[tuple[int, int, Outcome]],
        rows: Sequence[tuple[str, str, bytes | None]],
    ) -> list[Piece]:
        """What each group gets of a batch with settlements and rows. Raises UNAVAILABLE."""
        if not self._ready:
            raise self._none_in_use()
        pieces: dict[int, Piece] = {}

        def piece(index: int) -> Piece:
            return pieces.setdefault(index, Piece(self.groups[index]))

        for place, message in enumerate(batch):
            piece(self._group_for(message.topic).index).places.append(place)
        for index, entries in self._cursors.by_group(settle).items():
            piece(index).settle += entries
        for table, key, value in rows:
            piece(self._tables.target(table, key)).rows.append((table, key, value))
        return list(pieces.values())

    def _group_for(self, topic: str) -> Group:
        """One group for all records of a topic until it goes or is emptied: so each light queue keeps every publisher's order."""
        chosen = self._chosen.get(topic)
        if chosen is not None and chosen.ready and not chosen.draining:
            return chosen
        usable = self._usable()
        holders = [group for group in usable if topic in group.topics]
        name = f"{self._identity}/{topic}" if holders else topic
        chosen = self._named(home_of(name, [group.name for group in holders or usable]))
        self._choose(topic, chosen)
        return chosen

    def _choose(self, topic: str, group: Group) -> None:
        if len(self._chosen) >= CHOSEN_MAX:
            self._chosen.clear()
        self._chosen[topic] = group

    def _usable(self) -> list[Group]:
        """Groups for what is new."""
        lasting = [group for group in self._ready if not group.draining and not group.hangs]
        return [group for group in lasting if group.settled] or lasting or self._ready

    def ensure_topic(self, name: str, create: int, token: Any, on_done: Done, *, near: str = "") -> None:
        def make() -> None:
            try:
                group = self._owned.place_for(near) if near and self.slots.known else self._group_for(name)
            except GantryError as error:
                on_done(token, error)
                return
            self._choose(name, group)
            group.port.ensure_topic(name, create, token, on_done)

        def gathered(results: list[Any]) -> None:
            found = [result for result in results if isinstance(result, TopicInfo)]
            if found:
                on_done(token, self._topic(name, list(zip(self._ready, results, strict=False))))
            elif create and self._ready:
                make()
            else:
                on_done(token, first_error(results) or self._none_in_use())

        Gathering([partial(group.port.ensure_topic, name, False) for group in self._ready], gathered)

    def topics(self, token: Any, on_done: Done) -> None:
        ready = list(self._ready)

        def gathered(results: list[Any]) -> None:
            error = first_error(results)
            if error is not None:
                on_done(token, error)
                return
            found: dict[str, list[tuple[Group, Any]]] = {}
            for group, infos in zip(ready, results, strict=True):
                for info in infos:
                    found.setdefault(info.name, []).append((group, info))
            on_done(token, [self._topic(name, places) for name, places in found.items()])

        Gathering([group.port.topics for group in ready], gathered)

    def _topic(self, name: str, found: list[tuple[Group, Any]]) -> TopicInfo:
        infos = [(group, info) for group, info in found if isinstance(info, TopicInfo)]
        if len(self.groups) == 1:
            return infos[0][1]
        places = self._places(name)
        for group, info in infos:
            places += [place for queue in range(info.read_queues) if (place := (group, queue)) not in places]
        return TopicInfo(name, len(places), sum([info.write_queues for _, info in infos]))

    def _places(self, name: str) -> list[tuple[Group, int]]:
        found = self.places.get(name)
        if found is None:
            if len(self.places) >= PLACES_MAX:
                alive = set().union(*[group.topics for group in self.groups])
                self.places = {topic: places for topic, places in self.places.items() if topic in alive}
            found = self.places[name] = []
        return found

    def read(self, refs: Sequence[tuple[int, int]], token: Any, on_done: Done) -> None:
        by_group: dict[int, list[int]] = {}
        for number, (position, _) in enumerate(refs):
            by_group.setdefault(position >> POSITION_BITS, []).append(number)
        found: list[Message | None] = [None] * len(refs)

        def ask(index: int, numbers: list[int], token: Any, done: Done) -> None:
            wanted = [(refs[number][0] & POSITION_MASK, refs[number][1]) for number in numbers]
            self.groups[index].port.read(wanted, token, done)

        def gathered(results: list[Any]) -> None:
            error = first_error(results)
            if error is not None:
                on_done(token, error)
                return
            for (index, numbers), messages in zip(by_group.items(), results, strict=True):
                for number, message in zip(numbers, messages, strict=True):
                    found[number] = mark(index, message)
            on_done(token, found)

        Gathering([partial(ask, index, numbers) for index, numbers in by_group.items()], gathered)

    # Routes and taps.

    def add_route(self, route: Route, token: Any, on_done: Done) -> None:
        self._settled(partial(self._owned.add_route, route), token, on_done)

    def remove_routes(self, route_ids: Sequence[str], token: Any, on_done: Done) -> None:
        self._settled(partial(self._owned.remove_routes, route_ids), token, on_done)

    def open_tap(self, on_records: Callable[[Records], None], token: Any, on_done: Done) -> None:
        handle = self.number()
        self._taps[handle] = _Tap(on_records)

        def opened(error: Any) -> None:
            on_done(token, error or handle)

        Everywhere(self, lambda group: self._tap_at(group, handle), opened)

    def _tap_at(self, group: Group, handle: int) -> Steps:
        tap = self._taps.get(handle)
        if tap is None or handle in group.tap_handles:
            return
        index = group.index

        def on_records(records: Records) -> None:
            if index:
                for message, _ in records:
                    mark(index, message)
            tap.on_records(records)

        local: int = yield partial(group.port.open_tap, on_records)
        group.tap_handles[handle] = local
        for number in list(tap.routes):
            yield from self._volatile_at(group, handle, number)
        if handle not in self._taps:  # closed meanwhile
            self._close_tap_at(group, handle)

    def _volatile_at(self, group: Group, handle: int, number: int) -> Steps:
        tap, local = self._taps.get(handle), group.tap_handles.get(handle)
        route = tap.routes.get(number) if tap is not None else None
        if route is None or local is None:
            return
        kind, topic, expression = route
        yield partial(group.port.add_volatile, local, number, kind, topic, expression)
        if tap is not None and number not in tap.routes:  # removed meanwhile
            group.port.remove_volatile(local, [number])

    @staticmethod
    def _close_tap_at(group: Group, handle: int) -> None:
        local = group.tap_handles.pop(handle, None)
        if local is not None:
            group.port.close_tap(local)

    def close_tap(self, tap: int) -> None:
        self._taps.pop(tap, None)
        for group in self._ready:
            self._close_tap_at(group, tap)

    def add_volatile(
        self, tap: int, number: int, kind: str, topic: str | None, expression: str, token: Any, on_done: Done
    ) -> None:
        found = self._taps.get(tap)
        if found is None:
            on_done(token, GantryError(ErrorCode.NOT_FOUND, f"tap {tap} is not open"))
            return
        found.routes[number] = (kind, topic, expression)
        Everywhere(self, lambda group: self._volatile_at(group, tap, number), partial(on_done, token))

    def remove_volatile(self, tap: int, numbers: Sequence[int]) -> None:
        found = self._taps.get(tap)
        if found is not None:
            for number in numbers:
                found.routes.pop(number, None)
            for group in self._ready:
                if tap in group.tap_handles:
                    group.port.remove_volatile(group.tap_handles[tap], numbers)

    # Light queues and cursors.

    def create_light(self, token: Any, on_done: Done, *, name: str = "") -> None:
        run(self._create_light(name), partial(on_done, token))

    def _create_light(self, name: str) -> Steps:
        """At the owner of the name; without a name at one that answers."""
        tried: set[int] = set()
        is_owned = name and self.slots.known
        question_of = partial(partial, slot=slot_of(name) if name else NO_SLOT)
        while True:
            group = self._owned.place_for(name) if is_owned else self._in_turn(tried)
            tried.add(group.index)
            try:
                question = question_of(group.port.create_light)
                made: int = yield self.decisions.ask(group, question, partial(_unmake, group))
                return cluster_light(group.tag, made)
            except GantryError as error:
                if is_owned or error.code is not ErrorCode.UNAVAILABLE:
                    raise

    def _in_turn(self, tried: set[int]) -> Group:
        """Raises UNAVAILABLE."""
        usable = [group for group in self._usable() if group.index not in tried]
        if not usable:
            raise self._none_in_use()
        self._made += 1
        return usable[self._made % len(usable)]

    def delete_light(self, light: int, token: Any, on_done: Done) -> None:
        self._settled(partial(self._owned.delete, light), token, on_done)

    def open_cursor(self, queue: str, group: str, start: Start, token: Any, on_done: Done) -> None:
        self._settled(partial(self._cursors.open, queue, group, start), token, on_done)

    def set_policy(self, cursor: int, policy: Policy, token: Any, on_done: Done) -> None:
        self._settled(partial(self._cursors.set_policy, cursor, policy), token, on_done)

    def delete_cursor(self, cursor: int, token: Any, on_done: Done) -> None:
        self._settled(partial(self._cursors.delete, cursor), token, on_done)

    def acquire(self, cursor: int, holder: int, count_max: int, bytes_max: int, token: Any, on_done: Done) -> None:
        self._cursors.acquire(cursor, holder, count_max, bytes_max, token, on_done)

    def scan(self, cursor: int, offset: int, count_max: int, bytes_max: int, token: Any, on_done: Done) -> None:
        self._settled(partial(self._cursors.scan, cursor, offset, count_max, bytes_max), token, on_done)

    def seek(self, cursor: int, start: Start, token: Any, on_done: Done) -> None:
        self._settled(partial(self._cursors.seek, cursor, start), token, on_done)

    def settle(self, items: Sequence[tuple[int, int, Outcome]]) -> None:
        self._cursors.settle(items)

    def release(self, holder: int) -> None:
        for group in self._ready:
            group.port.release(holder)

    def watch(self, cursor: int, on_ready: Callable[[int], None] | None) -> None:
        self._cursors.watch(cursor, on_ready)

    def take_seat(
        self, cursor: int, terms: Terms, on_turn: Callable[[int, bool | None], None], token: Any, on_done: Done
    ) -> None:
        self._settled(partial(self._cursors.take_seat, cursor, terms, on_turn), token, on_done)

    def leave_seat(self, cursor: int, seat: int, token: Any, on_done: Done) -> None:
        self._cursors.leave_seat(cursor, seat, token, on_done)

    def rank(self, cursor: int, rank: int) -> None:
        self._cursors.rank(cursor, rank)

    def stats(self, cursors: Sequence[int], token: Any, on_done: Done) -> None:
        self._cursors.stats(cursors, token, on_done)

    def details(self, cursors: Sequence[int], token: Any, on_done: Done) -> None:
        self._cursors.details(cursors, token, on_done)

    def catch_up(self, cursor: int, token: Any, on_done: Done) -> None:
        self._fence.pass_through(self._cursors.owner_of(cursor), token, on_done)

    def purge(self, cursor: int, token: Any, on_done: Done) -> None:
        self._settled(partial(self._cursors.purge, cursor), token, on_done)

    # Tables and leases.

    def put(
        self, table: str, items: Sequence[tuple[str, bytes | None]], token: Any, on_done: Done, *, deputy: bool = False
    ) -> None:
        self._tables.put(table, items, token, on_done, deputy)

    def put_if(
        self, table: str, items: Sequence[tuple[str, bytes | None, bytes | None]], token: Any, on_done: Done
    ) -> None:
        self._tables.put_if(table, items, token, on_done)

    def put_together(
        self,
        table: str,
        key: str,
        expected: bytes | None,
        items: Sequence[tuple[str, bytes | None]],
        token: Any,
        on_done: Done,
    ) -> None:
        self._tables.put_together(table, key, expected, items, token, on_done)

    def watch_table(
        self, table: str, on_change: Callable[[str, bytes | None], None] | None, token: Any, on_done: Done
    ) -> None:
        self._tables.watch(table, on_change, token, on_done)

    def take_lease(
        self, name: str, force: bool, on_lost: Callable[[str], None], token: Any, on_done: Done,
        *, deputy: bool = False,
    ) -> None:  # fmt: skip
        self._leases.take(name, force, on_lost, token, on_done, deputy)

    def is_free(self, name: str, token: Any, on_done: Done) -> None:
        self._leases.is_free(name, token, on_done)

    def drop_lease(self, name: str, epoch: int) -> None:
        self._leases.drop(name, epoch)

    @property
    def up(self) -> bool:
        return self.complete and any(group.port.up for group in self._ready)

    def answers_for(self, name: str) -> bool:
        return self._owned.answers_for(name)

    def watch_state(self, on_state: Callable[[bool], None]) -> None:
        self._states.append(on_state)
        on_state(self._shown)

    # What a group that comes needs (cluster/join.py).

    def queue_moved(self, light: int) -> None:
        """A group says where a light queue is now."""
        self._cursors.queue_moved(light)

    def restore(self, group: Group) -> Steps:
        """Open at a group that came (again) what is open at the others: cursors, taps, tables, leases."""
        yield from self._cursors.restore(group)
        group.tap_handles.clear()
        for handle in list(self._taps):
            yield from self._tap_at(group, handle)
        yield from self._tables.restore(group)
        yield from self._leases.restore(group)

    # Helpers.

    def _settled(self, call: Call, token: Any, on_done: Done) -> None:
        """What concerns a queue that is on its way to another group waits for it, 3 s at most."""
        until_ms = self.wheel.now_ms() + ASK_MS

        def answered(_token: Any, result: Any) -> None:
            if not isinstance(result, GantryError) or result.code is not ErrorCode.NOT_OWNER:
                on_done(token, result)
            elif (now_ms := self.wheel.now_ms()) < until_ms:
                self.wheel.call_at(now_ms + AGAIN_MS, lambda now_ms: call(None, answered))
            else:
                on_done(token, GantryError(ErrorCode.UNAVAILABLE, result.text))

        call(None, answered)

    def number(self) -> int:
        self._next += 1
        return self._next


def unavailable(name: str) -> GantryError:
    """A group is not there."""
    return GantryError(ErrorCode.UNAVAILABLE, f"the broker group {name} is not connected")


def _nobodys(name: str) -> GantryError:
    """No copy of the table of slots has the slot of a name."""
    return GantryError(
        ErrorCode.UNAVAILABLE,
        f"no connected broker group has a row of slot {slot_of(name)}, that of {name[:80]}; a broker's log names each row that it cannot read",
    )


def _unmake(group: Group, light: int) -> None:
    """It was made too late, and another group made one."""
    group.port.delete_light(light, None, lambda token, result: None)
