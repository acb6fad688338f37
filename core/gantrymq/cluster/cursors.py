"""Cursors of a gateway process over several broker groups: a part in each group, merged by whoever acquires. Where the cluster has slots, one of
a light queue has a single part, at the queue's owner (`owned/queues.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.port import AGAIN, DETAILS_MAX, CursorDetails, CursorInfo, Done, Outcome, Start, Terms
from gantrymq.cluster import join as cluster_join
from gantrymq.cluster.everywhere import Everywhere
from gantrymq.cluster.group import ClusterCursor, Group, Part
from gantrymq.cluster.names import GROUP_BITS, GROUPS_MAX, mark
from gantrymq.cluster.patience import Patience
from gantrymq.cluster.seats import ClusterSeats
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.queue_policy import Policy
from gantrymq.net.procedures.driver import Call, Gathering, Steps, first_error, run

if TYPE_CHECKING:
    from gantrymq.cluster.group import Cluster

CURSORS_MAX: Final = 2_000_000
"""As many as one broker keeps."""


class ClusterCursors:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.by_handle: dict[int, ClusterCursor] = {}
        self._by_name: dict[tuple[str, str], ClusterCursor] = {}
        self._patience = Patience(cluster.wheel, cluster.answers_again)
        self._seats = ClusterSeats(cluster)

    def forget(self) -> None:
        """Every group is gone."""
        self.by_handle.clear()
        self._by_name.clear()

    def lost(self, group: Group) -> None:
        """A group is gone: its parts are opened again when it is back."""
        for cursor in self.by_handle.values():
            cursor.parts.pop(group.index, None)
            if cursor.seats:
                self._seats.lost(cursor, group)

    def rehome(self) -> None:
        """Groups came or left: seats whose home is another group now are taken there."""
        seated = [cursor for cursor in self.by_handle.values() if cursor.seats]
        if seated:
            run(self._settle_seats(seated), lambda result: None)

    def _settle_seats(self, seated: Sequence[ClusterCursor]) -> Steps:
        for cursor in seated:
            yield from self._seats.settle(cursor)

    def joined(self, group: Group) -> None:
        """A group is in use, or answers, (again): there may be something in its parts."""
        absent = []
        for cursor in self.by_handle.values():
            if group.index in cursor.parts:
                self.wake(cursor)
            elif not cursor.parts and self._cluster.owned.may_have(group, cursor.queue):
                absent.append(cursor)
        if absent:
            run(self._open_absent(absent, group), lambda result: None)

    def _open_absent(self, absent: Sequence[ClusterCursor], group: Group) -> Steps:
        """A group that hung answers: what was asked for meanwhile."""
        for cursor in absent:
            if not cursor.deleted and group.index not in cursor.parts:
                yield from self._open_at(cursor, group, {})
                self.wake(cursor)

    def drop_light(self, light: int) -> None:
        """The light queue is being deleted."""
        for cursor in [cursor for cursor in self.by_handle.values() if cursor.queue == f"~{light}"]:
            self._drop(cursor)

    def open(self, queue: str, group: str, start: Start, token: Any, on_done: Done) -> None:
        owner, absent = None, None
        try:
            owner = self._cluster.owned.owner_of(queue)
        except GantryError as error:
            if error.code is not ErrorCode.UNAVAILABLE or start.kind != AGAIN.kind:
                on_done(token, error)
                return
            absent = error
        cursor = self._by_name.get((queue, group))
        if cursor is None:
            if len(self.by_handle) >= CURSORS_MAX:
                on_done(token, GantryError(ErrorCode.LIMIT_REACHED, f"{CURSORS_MAX} cursors are open"))
                return
            cursor = ClusterCursor(self._cluster.number(), queue, group, start)
        elif cursor.start.kind == "find":
            cursor.start = start

        found: dict[int, CursorInfo] = {}
        opened = partial(self._opened, cursor, found, token, on_done)
        if absent is not None:
            opened(absent)
        elif owner is not None:
            run(self._open_at(cursor, owner, found), opened)
        else:
            Everywhere(self._cluster, lambda group: self._open_at(cursor, group, found), opened)

    def _opened(
        self, cursor: ClusterCursor, found: dict[int, CursorInfo], token: Any, on_done: Done, error: Any
    ) -> None:
        is_later = cursor.start.kind == AGAIN.kind and isinstance(error, GantryError)
        if error is not None and not (is_later and error.code is ErrorCode.UNAVAILABLE and self._cluster.up):
            on_done(token, error)
            return
        if not found and cursor.start.kind == "find":
            on_done(
                token, GantryError(ErrorCode.NOT_FOUND, f"group {cursor.name} has no cursor in queue {cursor.queue}")
            )
            return
        cursor = self._by_name.setdefault((cursor.queue, cursor.name), cursor)
        self.by_handle[cursor.handle] = cursor
        infos = list(found.values())
        ready, unacked = sum([info.ready for info in infos]), sum([info.unacked for info in infos])
        on_done(token, CursorInfo(cursor.handle, ready, unacked, max([info.next_offset for info in infos], default=0)))

    def _open_at(self, cursor: ClusterCursor, group: Group, found: dict[int, CursorInfo]) -> Steps:
        name = yield from self._queue_at(cursor.queue, group)
        if name is None or _is_deleted(cursor):
            return
        attempt = group.attempt
        try:
            question = partial(group.port.open_cursor, name, cursor.name, cursor.start)
            info: CursorInfo = yield self._asked(cursor, group, question)
        except GantryError as error:
            if error.code is ErrorCode.NOT_FOUND and cursor.start.kind == "find":
                return
            raise
        found[group.index] = info
        if group.index not in cursor.parts and attempt == group.attempt:
            cursor.parts[group.index] = part = Part(group, info.cursor)
            if cursor.on_ready is not None:
                group.port.watch(info.cursor, partial(self._part_ready, cursor, part))
            if cursor.rank:
                group.port.rank(info.cursor, cursor.rank)
        if _is_deleted(cursor):
            yield from self._delete_at(cursor, group)

    def _asked(self, cursor: ClusterCursor, group: Group, question: Call) -> Call:
        """What the group is asked; if it alone has the queue, nobody waits for it when it hangs."""
        alone = self._cluster.owned.lies_in_one(cursor.queue)
        return self._cluster.decisions.ask(group, question) if alone else question

    def restore(self, group: Group) -> Steps:
        """Open at a group that came what is open at the others, or was open there."""
        owned = self._cluster.owned
        for cursor in list(self.by_handle.values()):
            if cursor.deleted or not owned.may_have(group, cursor.queue):
                continue
            try:
                yield from self._open_at(cursor, group, {})
            except GantryError as error:  # deleted meanwhile by another gateway: nobody else has it
                if error.code is not ErrorCode.QUEUE_NOT_FOUND or not owned.lies_in_one(cursor.queue):
                    raise

    def _queue_at(self, queue: str, group: Group) -> Steps:
        """The group's name of a queue; None if it has no part of it."""
        if queue.startswith("~"):
            local = yield from self._cluster.light_at(group, int(queue[1:]))
            return f"~{local}"
        topic, _, number = queue.rpartition("/")
        places = self._cluster.places.get(topic)
        if places is None and len(self._cluster.groups) > 1:
            yield partial(self._cluster.ensure_topic, topic, False)
            places = self._cluster.places.get(topic)
        if places is None:
            return queue
        if int(number) >= len(places):
            raise GantryError(ErrorCode.QUEUE_NOT_FOUND, f"topic {topic} has no queue {number}")
        holder, local = places[int(number)]
        return f"{topic}/{local}" if holder is group else None

    def owner_of(self, cursor: int) -> Group | None:
        """The group that alone has the queue of a cursor; None: each has a part, or it is not there."""
        found = self.by_handle.get(cursor)
        if found is None or not self._cluster.owned.lies_in_one(found.queue):
            return None
        return next((part.group for part in found.parts.values()), None)

    def set_policy(self, cursor: int, policy: Policy, token: Any, on_done: Done) -> None:
        """As QueuePort.set_policy: each part for itself."""
        try:
            calls = self._at_parts(cursor, "set_policy", policy)
        except GantryError as error:
            on_done(token, error)
        else:
            Gathering(calls, lambda results: on_done(token, first_error(results)))

    def _at_parts(self, cursor: int, method: str, *arguments: Any) -> list[Call]:
        """What is asked of each part. Raises NOT_FOUND; where the queue lies in one group UNAVAILABLE, QUEUE_NOT_FOUND."""
        found = self._cursor(cursor)
        if self._cluster.owned.lies_in_one(found.queue):
            parts = [self._part_at_owner(found)]
        else:
            parts = list(found.parts.values())
        questions = [(part.group, partial(getattr(part.group.port, method), part.local, *arguments)) for part in parts]
        return [self._asked(found, group, question) for group, question in questions]

    def _part_at_owner(self, cursor: ClusterCursor) -> Part:
        """Raises UNAVAILABLE, QUEUE_NOT_FOUND."""
        owner = self._cluster.owned.owner_of(cursor.queue)
        part = cursor.parts.get(owner.index) if owner is not None else None
        if part is None:
            raise GantryError(ErrorCode.QUEUE_NOT_FOUND, f"queue {cursor.queue} does not exist any more")
        return part

    def _cursor(self, handle: int) -> ClusterCursor:
        """Raises NOT_FOUND."""
        found = self.by_handle.get(handle)
        if found is None:
            raise GantryError(ErrorCode.NOT_FOUND, f"cursor {handle} does not exist (any more)")
        return found

    def delete(self, cursor: int, token: Any, on_done: Done) -> None:
        found = self.by_handle.get(cursor)
        if found is None:
            on_done(token, None)
            return
        if self._cluster.owned.lies_in_one(found.queue):
            self._delete_at_owner(found, token, on_done)
            return
        self._drop(found)

        def deleted(error: Any) -> None:
            if error is None and found.queue.startswith("~"):
                key = cluster_join.gone_key("cursor", f"{found.queue[1:]}/{found.name}")
                self._cluster.note_gone([key], partial(on_done, token))
            else:
                on_done(token, error)

        Everywhere(self._cluster, partial(self._delete_at, found), deleted)

    def _delete_at_owner(self, cursor: ClusterCursor, token: Any, on_done: Done) -> None:
        try:
            part = self._part_at_owner(cursor)
        except GantryError as error:
            if error.code is ErrorCode.QUEUE_NOT_FOUND:
                self._drop(cursor)
                on_done(token, None)
            else:
                on_done(token, error)
            return

        def deleted(token: Any, result: Any) -> None:
            if isinstance(result, GantryError):  # it may be there: whoever asked has to ask again
                cursor.deleted = False
                self.by_handle[cursor.handle] = cursor
                self._by_name.setdefault((cursor.queue, cursor.name), cursor)
            on_done(token, result)

        def late(_result: Any) -> None:
            self._drop(cursor)

        self._drop(cursor)
        question = partial(part.group.port.delete_cursor, part.local)
        self._cluster.decisions.ask(part.group, question, late)(token, deleted)

    @staticmethod
    def _delete_at(cursor: ClusterCursor, group: Group) -> Steps:
        part = cursor.parts.pop(group.index, None)
        if part is not None:
            yield partial(group.port.delete_cursor, part.local)

    def _drop(self, cursor: ClusterCursor) -> None:
        self.by_handle.pop(cursor.handle, None)
        self._by_name.pop((cursor.queue, cursor.name), None)
        cursor.watch(None)
        cursor.deleted = True

    def acquire(self, cursor: int, holder: int, count_max: int, bytes_max: int, token: Any, on_done: Done) -> None:
        found = self.by_handle.get(cursor)
        if found is None:
            on_done(token, GantryError(ErrorCode.NOT_FOUND, f"cursor {cursor} does not exist (any more)"))
            return
        self._ask(found, found.parts_to_ask(), holder, count_max, bytes_max, token, on_done)

    def _ask(
        self,
        cursor: ClusterCursor,
        parts: list[Part],
        holder: int,
        count_max: int,
        bytes_max: int,
        token: Any,
        on_done: Done,
    ) -> None:
        """Ask the parts in turn until one has something; what a group that hangs has is served when it answers again."""
        parts = [part for part in parts if not part.group.hangs]
        if not parts:
            self._arm(cursor)
            on_done(token, [])
            return
        part = parts[0]
        part.ready = False  # until its watcher calls, or it gave all that was asked for

        def acquired(result: Any) -> None:
            if isinstance(result, GantryError):
                if result.code is not ErrorCode.UNAVAILABLE or not self._cluster.up:
                    self._arm(cursor)
                    on_done(token, result)
                    return
                result = []
            if not result:
                self._ask(cursor, parts[1:], holder, count_max, bytes_max, token, on_done)
                return
            index = part.group.index
            for delivery in result:
                mark(index, delivery.message)
                delivery.offset = delivery.offset << GROUP_BITS | index
            cursor.rotation += 1
            if len(result) >= count_max:
                part.ready = True
            else:
                self._arm(cursor)
            on_done(token, result)

        def late(result: Any) -> None:
            """Whoever asked went on without it."""
            part.ready = True
            if not isinstance(result, GantryError):
                part.group.port.settle([(part.local, delivery.offset, Outcome.RELEASE) for delivery in result])

        question = partial(part.group.port.acquire, part.local, holder, count_max, bytes_max)
        if len(self._cluster.groups) > 1:
            self._patience.ask(part.group, question, acquired, late)
        else:
            question(None, lambda token, result: acquired(result))

    def scan(self, cursor: int, offset: int, count_max: int, bytes_max: int, token: Any, on_done: Done) -> None:
        try:
            found, part = self._only_part(cursor)
        except GantryError as error:
            on_done(token, error)
            return
        found.armed = found.on_ready is not None

        def scanned(token: Any, result: Any) -> None:
            if not isinstance(result, GantryError):
                for delivery in result.deliveries:
                    mark(part.group.index, delivery.message)
            on_done(token, result)

        self._asked(found, part.group, partial(part.group.port.scan, part.local, offset, count_max, bytes_max))(
            token, scanned
        )

    def seek(self, cursor: int, start: Start, token: Any, on_done: Done) -> None:
        try:
            found, part = self._only_part(cursor)
        except GantryError as error:
            on_done(token, error)
            return
        self._asked(found, part.group, partial(part.group.port.seek, part.local, start))(token, on_done)

    def _only_part(self, cursor: int) -> tuple[ClusterCursor, Part]:
        """One group's offsets say nothing of another's. Raises GantryError."""
        found = self._cursor(cursor)
        if self._cluster.owned.lies_in_one(found.queue):
            return found, self._part_at_owner(found)
        if len(self._cluster.groups) > 1:
            text = f"a queue that is read by offset lies in one broker group, and there are {len(self._cluster.groups)}"
            raise GantryError(ErrorCode.NOT_SUPPORTED, text)
        for part in found.parts.values():
            return found, part
        raise GantryError(ErrorCode.UNAVAILABLE, "the broker group of this queue is not connected")

    def settle(self, items: Sequence[tuple[int, int, Outcome]]) -> None:
        for index, entries in self.by_group(items).items():
            self._cluster.groups[index].port.settle(entries)

    def by_group(self, items: Sequence[tuple[int, int, Outcome]]) -> dict[int, list[tuple[int, int, Outcome]]]:
        """Settlements as each group's port takes them, by the group's index; those of parts that are away are left out."""
        by_group: dict[int, list[tuple[int, int, Outcome]]] = {}
        for cursor, offset, outcome in items:
            found = self.by_handle.get(cursor)
            index = offset & GROUPS_MAX - 1
            part = found.parts.get(index) if found is not None else None
            if part is not None:
                by_group.setdefault(index, []).append((part.local, offset >> GROUP_BITS, outcome))
                if outcome is Outcome.REQUEUE or outcome is Outcome.RELEASE:
                    part.ready = True
        return by_group

    def release(self, holder: int) -> None:
        for group in self._cluster.ready_groups():
            group.port.release(holder)

    def watch(self, cursor: int, on_ready: Callable[[int], None] | None) -> None:
        found = self.by_handle.get(cursor)
        if found is None:
            return
        found.watch(on_ready)
        for part in found.parts.values():
            part.group.port.watch(part.local, None if on_ready is None else partial(self._part_ready, found, part))

    def take_seat(
        self, cursor: int, terms: Terms, on_turn: Callable[[int, bool], None], token: Any, on_done: Done
    ) -> None:
        found = self.by_handle.get(cursor)
        if found is None:
            on_done(token, GantryError(ErrorCode.NOT_FOUND, f"cursor {cursor} does not exist (any more)"))
        else:
            self._seats.take(found, terms, on_turn, token, on_done)

    def leave_seat(self, cursor: int, seat: int, token: Any, on_done: Done) -> None:
        found = self.by_handle.get(cursor)
        if found is None:
            on_done(token, 0)
        else:
            self._seats.leave(found, seat, token, on_done)

    def rank(self, cursor: int, rank: int) -> None:
        found = self.by_handle.get(cursor)
        if found is not None:
            found.rank = rank
            for part in found.parts.values():
                part.group.port.rank(part.local, rank)

    def _part_ready(self, cursor: ClusterCursor, part: Part, _local: int) -> None:
        part.ready = True
        self.wake(cursor)

    def _arm(self, cursor: ClusterCursor) -> None:
        cursor.armed = cursor.on_ready is not None
        if cursor.ready_parts():
            self.wake(cursor)

    def wake(self, cursor: ClusterCursor) -> None:
        if cursor.armed and not cursor.waking:
            cursor.waking = True
            self._cluster.turn.at_deliver(partial(self._call_ready, cursor))

    def _call_ready(self, cursor: ClusterCursor) -> None:
        cursor.waking = False
        if cursor.on_ready is not None and cursor.armed and cursor.handle in self.by_handle:
            cursor.armed = False
            cursor.on_ready(cursor.handle)

    def stats(self, cursors: Sequence[int], token: Any, on_done: Done) -> None:
        self._gather(cursors, "stats", lambda place, one, other: _sum(cursors[place], one, other), token, on_done)

    def details(self, cursors: Sequence[int], token: Any, on_done: Done) -> None:
        self._gather(cursors[:DETAILS_MAX], "details", lambda place, one, other: _add(one, other), token, on_done)

    def _gather(
        self, cursors: Sequence[int], method: str, together: Callable[[int, Any, Any], Any], token: Any, on_done: Done
    ) -> None:
        """What the groups say of their parts, put together by cursor; a group that does not say is left out."""
        by_group: dict[int, list[tuple[int, int]]] = {}
        for place, handle in enumerate(cursors):
            found = self.by_handle.get(handle)
            for index, part in found.parts.items() if found is not None else ():
                if self._cluster.slots.known and part.group.hangs:
                    continue
                by_group.setdefault(index, []).append((place, part.local))

        def ask(index: int, token: Any, done: Done) -> None:
            group = self._cluster.groups[index]
            question: Call = partial(getattr(group.port, method), [local for _, local in by_group[index]])
            if self._cluster.slots.known:
                question = self._cluster.decisions.ask(group, question)
            question(token, done)

        def gathered(results: list[Any]) -> None:
            infos: list[Any] = [None] * len(cursors)
            for index, result in zip(by_group, results, strict=True):
                for (place, _), info in zip(
                    by_group[index], () if isinstance(result, GantryError) else result, strict=False
                ):
                    if info is not None:
                        infos[place] = together(place, infos[place], info)
            on_done(token, infos)

        Gathering([partial(ask, index) for index in by_group], gathered)

    def purge(self, cursor: int, token: Any, on_done: Done) -> None:
        try:
            calls = self._at_parts(cursor, "purge")
        except GantryError as error:
            on_done(token, error)
        else:
            Gathering(calls, lambda results: on_done(token, first_error(results) or sum(results)))


def _sum(handle: int, one: CursorInfo | None, other: CursorInfo) -> CursorInfo:
    if one is None:
        return CursorInfo(handle, other.ready, other.unacked, other.next_offset, other.consumers)
    following = max(one.next_offset, other.next_offset)
    return CursorInfo(
        handle, one.ready + other.ready, one.unacked + other.unacked, following, one.consumers + other.consumers
    )


def _add(one: CursorDetails | None, other: CursorDetails) -> CursorDetails:
    if one is None:
        return other
    return CursorDetails(
        one.ready + other.ready, one.unacked + other.unacked, one.consumers + other.consumers, one.end + other.end,
        one.pinned + other.pinned,
    )  # fmt: skip


def _is_deleted(cursor: ClusterCursor) -> bool:
    """Asked again after each answer."""
    return cursor.deleted
