"""Cursors of a gateway process over several broker groups: each at the group that has its queue (`owned/queues.py`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.port import AGAIN, DETAILS_MAX, FIND, CursorInfo, Done, Outcome, Start, Terms
from gantrymq.cluster.group import ClusterCursor, Group, Part
from gantrymq.cluster.names import GROUP_BITS, GROUPS_MAX, mark
from gantrymq.cluster.owned.queues import OwnedQueues, on_its_way
from gantrymq.cluster.patience import Patience
from gantrymq.cluster.seats import ClusterSeats
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.indexes.multimap import MultiMap
from gantrymq.model.queue_policy import Policy
from gantrymq.net.procedures.driver import Gathering, Steps, run

if TYPE_CHECKING:
    from gantrymq.cluster.group import Cluster

log = logging.getLogger(__name__)

CURSORS_MAX: Final = 2_000_000
"""As many as one broker keeps."""


class ClusterCursors:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.queues = OwnedQueues(cluster, self.drop_light)
        self.by_handle: dict[int, ClusterCursor] = {}
        self._by_name: dict[tuple[str, str], ClusterCursor] = {}
        self._of_queue: MultiMap[str, int] = MultiMap()
        """Handles of the cursors in a queue."""
        self._patience = Patience(cluster.wheel, cluster.answers_again)
        self._seats = ClusterSeats(cluster)

    def forget(self) -> None:
        """Every group is gone."""
        self.by_handle.clear()
        self._by_name.clear()
        self._of_queue = MultiMap()

    def lost(self, group: Group) -> None:
        """A group is gone: what was open there is opened again when it is back."""
        for cursor in self.by_handle.values():
            if cursor.part is not None and cursor.part.group is group:
                cursor.part = None
                self._seats.lost(cursor)

    def joined(self, group: Group) -> None:
        """A group is in use, or answers, (again): there may be something in its queues."""
        waiting = []
        for cursor in self.by_handle.values():
            if cursor.part is None:
                holder = self.queues.holder(
                    cursor.queue
                )  # where it was lost on its way there it is where it was before
                if holder is not None and holder.ready and not cursor.queue_is_gone:
                    waiting.append(cursor)
            elif cursor.part.group is group:
                self.wake(cursor)
                if cursor.seats:
                    waiting.append(cursor)
        if waiting:
            run(self._follow(waiting), lambda result: None)

    def queue_moved(self, light: int) -> None:
        """A light queue is at another group than before, perhaps."""
        self.queues.moved(light)
        holder = self.queues.holder(f"~{light}")
        if holder is None:
            return
        moved = [self.by_handle[handle] for handle in self._of_queue.of(f"~{light}")]
        for cursor in moved:
            if cursor.part is not None and cursor.part.group is not holder:
                cursor.part.group.port.watch(cursor.part.local, None)
                cursor.part = None
                self._seats.lost(cursor)
        if holder.ready and moved:
            run(self._follow(moved), lambda result: None)

    def _follow(self, waiting: Sequence[ClusterCursor]) -> Steps:
        """Open what was asked for while its group hung, or moved, and take the consumers again that the group does not know."""
        for cursor in waiting:
            holder = self.queues.holder(cursor.queue)
            if holder is not None and not cursor.deleted and cursor.part is None:
                try:
                    yield from self._open_again(cursor, holder)
                except GantryError as error:
                    if error.code is ErrorCode.UNAVAILABLE:
                        continue
                    log.warning("cursor %s of queue %s is not open: %s", cursor.name, cursor.queue, error.text)
                self.wake(cursor)
            yield from self._seats.settle(cursor)

    def drop_light(self, light: int) -> None:
        """The light queue is being deleted."""
        for handle in list(self._of_queue.of(f"~{light}")):
            self._drop(self.by_handle[handle])

    def open(self, queue: str, group: str, start: Start, token: Any, on_done: Done) -> None:
        cursor = self._by_name.get((queue, group))
        if cursor is None:
            if len(self.by_handle) >= CURSORS_MAX:
                on_done(token, GantryError(ErrorCode.LIMIT_REACHED, f"{CURSORS_MAX} cursors are open"))
                return
            cursor = ClusterCursor(self._cluster.number(), queue, group, start)
        elif cursor.start.kind == FIND.kind:
            cursor.start = start
        run(self._open(cursor), partial(self._opened, cursor, start, token, on_done))

    def _open(self, cursor: ClusterCursor) -> Steps:
        group = yield from self.queues.find(cursor.queue)
        try:
            info = yield from self._open_at(cursor, group)
        except GantryError as error:
            raise on_its_way(cursor.queue) if self._has_moved(error, cursor.queue, group) else error from None
        return info

    def _opened(self, cursor: ClusterCursor, start: Start, token: Any, on_done: Done, result: Any) -> None:
        if isinstance(result, GantryError):
            # A topic's queue that is away is read when it is back; who wants a light queue says so.
            is_later = start.kind == AGAIN.kind or (start.kind != FIND.kind and not cursor.queue.startswith("~"))
            if result.code is not ErrorCode.UNAVAILABLE or not is_later or not self._cluster.up:
                on_done(token, result)
                return
            result = CursorInfo(0, 0, 0, 0)
        cursor = self._by_name.setdefault((cursor.queue, cursor.name), cursor)
        self._keep(cursor)
        on_done(token, CursorInfo(cursor.handle, result.ready, result.unacked, result.next_offset))

    def _keep(self, cursor: ClusterCursor) -> None:
        if cursor.handle not in self.by_handle:
            self.by_handle[cursor.handle] = cursor
            self._of_queue.add(cursor.queue, cursor.handle)

    def _open_at(self, cursor: ClusterCursor, group: Group) -> Steps:
        """Raises NOT_FOUND where it is only looked for; QUEUE_NOT_FOUND, also if it is deleted meanwhile."""
        attempt = group.attempt
        name = self.queues.name_at_holder(cursor.queue, group)
        question = partial(group.port.open_cursor, name, cursor.name, cursor.start)
        info: CursorInfo = yield self._cluster.decisions.ask(group, question)
        if cursor.deleted:
            yield partial(group.port.delete_cursor, info.cursor)
            raise GantryError(ErrorCode.QUEUE_NOT_FOUND, f"cursor {cursor.name} of queue {cursor.queue} was deleted")
        if attempt == group.attempt and cursor.part is None:
            cursor.part = part = Part(group, info.cursor)
            cursor.queue_is_gone = False
            if cursor.on_ready is not None:
                group.port.watch(info.cursor, partial(self._part_ready, cursor, part))
            if cursor.rank:
                group.port.rank(info.cursor, cursor.rank)
        return info

    def _open_again(self, cursor: ClusterCursor, group: Group) -> Steps:
        try:
            yield from self._open_at(cursor, group)
        except GantryError as error:
            if error.code is ErrorCode.QUEUE_NOT_FOUND:  # another gateway has deleted it
                cursor.queue_is_gone = not cursor.deleted
            elif error.code is not ErrorCode.NOT_FOUND or cursor.start.kind != FIND.kind:
                raise

    def restore(self, group: Group) -> Steps:
        """Open at a group that came what was open there, or should be."""
        for cursor in list(self.by_handle.values()):
            if not cursor.deleted and cursor.part is None and self.queues.holder(cursor.queue) is group:
                yield from self._open_again(cursor, group)

    def owner_of(self, cursor: int) -> Group | None:
        """The group that has the light queue of a cursor; None: it is a topic's, or not there."""
        found = self.by_handle.get(cursor)
        if found is None or found.part is None or not found.queue.startswith("~"):
            return None
        return found.part.group

    def _cursor(self, handle: int) -> ClusterCursor:
        """Raises NOT_FOUND."""
        found = self.by_handle.get(handle)
        if found is None:
            raise GantryError(ErrorCode.NOT_FOUND, f"cursor {handle} does not exist (any more)")
        return found

    def _part(self, cursor: ClusterCursor) -> Part:
        """At the group that has the queue. Raises UNAVAILABLE, QUEUE_NOT_FOUND."""
        group = self.queues.lies_at(cursor.queue)
        part = cursor.part
        if part is not None and part.group is group:
            return part
        if cursor.queue_is_gone:
            raise GantryError(ErrorCode.QUEUE_NOT_FOUND, f"queue {cursor.queue} does not exist any more")
        if group.moved.get(_light_of(cursor.queue)):
            raise on_its_way(cursor.queue)
        raise GantryError(ErrorCode.UNAVAILABLE, f"queue {cursor.queue} is not open yet at broker group {group.name}")

    def _ask(self, cursor: int, token: Any, on_done: Done, method: str, *arguments: Any) -> None:
        """A question to the group that has a cursor's queue; NOT_FOUND, and as `_part`."""
        try:
            part = self._part(self._cursor(cursor))
        except GantryError as error:
            on_done(token, error)
            return
        question = partial(getattr(part.group.port, method), part.local, *arguments)
        answered = partial(self._answered, self._cursor(cursor).queue, part.group, on_done)
        self._cluster.decisions.ask(part.group, question)(token, answered)

    def _answered(self, queue: str, asked: Group, on_done: Done, token: Any, result: Any) -> None:
        if isinstance(result, GantryError) and self._has_moved(result, queue, asked):
            result = on_its_way(queue)
        on_done(token, result)

    def _has_moved(self, error: GantryError, queue: str, asked: Group) -> bool:
        """Whether the group did not find the queue because another one has it by now."""
        return error.code in (ErrorCode.NOT_FOUND, ErrorCode.QUEUE_NOT_FOUND) and self.queues.holder(queue) is not asked

    def set_policy(self, cursor: int, policy: Policy, token: Any, on_done: Done) -> None:
        self._ask(cursor, token, on_done, "set_policy", policy)

    def purge(self, cursor: int, token: Any, on_done: Done) -> None:
        self._ask(cursor, token, on_done, "purge")

    def seek(self, cursor: int, start: Start, token: Any, on_done: Done) -> None:
        self._ask(cursor, token, on_done, "seek", start)

    def scan(self, cursor: int, offset: int, count_max: int, bytes_max: int, token: Any, on_done: Done) -> None:
        found = self.by_handle.get(cursor)
        part = found.part if found is not None else None
        if found is not None:
            found.armed = found.on_ready is not None

        def scanned(token: Any, result: Any) -> None:
            if not isinstance(result, GantryError) and part is not None:
                for delivery in result.deliveries:
                    mark(part.group.index, delivery.message)
            on_done(token, result)

        self._ask(cursor, token, scanned, "scan", offset, count_max, bytes_max)

    def delete(self, cursor: int, token: Any, on_done: Done) -> None:
        found = self.by_handle.get(cursor)
        if found is None:
            on_done(token, None)
            return
        try:
            part = self._part(found)
        except GantryError as error:
            if error.code is ErrorCode.QUEUE_NOT_FOUND:
                self._drop(found)
                on_done(token, None)
            else:
                on_done(token, error)
            return

        def deleted(token: Any, result: Any) -> None:
            if isinstance(result, GantryError):  # it may be there: whoever asked has to ask again
                if self._has_moved(result, found.queue, part.group):
                    result = on_its_way(found.queue)
                found.deleted = False
                self._keep(found)
                self._by_name.setdefault((found.queue, found.name), found)
            on_done(token, result)

        def late(_result: Any) -> None:
            self._drop(found)

        self._drop(found)
        question = partial(part.group.port.delete_cursor, part.local)
        self._cluster.decisions.ask(part.group, question, late)(token, deleted)

    def _drop(self, cursor: ClusterCursor) -> None:
        if self.by_handle.pop(cursor.handle, None) is not None:
            self._of_queue.discard(cursor.queue, cursor.handle)
        self._by_name.pop((cursor.queue, cursor.name), None)
        cursor.watch(None)
        cursor.deleted = True

    def acquire(self, cursor: int, holder: int, count_max: int, bytes_max: int, token: Any, on_done: Done) -> None:
        found = self.by_handle.get(cursor)
        if found is None:
            on_done(token, GantryError(ErrorCode.NOT_FOUND, f"cursor {cursor} does not exist (any more)"))
            return
        part = found.part_to_ask()
        if part is None:  # of a group that hangs: when it answers again
            self._arm(found)
            on_done(token, [])
            return
        part.ready = False  # until its watcher calls, or it gave all that was asked for

        def late(result: Any) -> None:
            """Whoever asked went on without it."""
            part.ready = True
            if not isinstance(result, GantryError):
                part.group.port.settle([(part.local, delivery.offset, Outcome.RELEASE) for delivery in result])

        acquired = partial(self._acquired, found, part, count_max, token, on_done)
        question = partial(part.group.port.acquire, part.local, holder, count_max, bytes_max)
        if len(self._cluster.groups) > 1:
            self._patience.ask(part.group, question, acquired, late)
        else:
            question(None, lambda token, result: acquired(result))

    def _acquired(
        self, cursor: ClusterCursor, part: Part, count_max: int, token: Any, on_done: Done, result: Any
    ) -> None:
        if isinstance(result, GantryError):
            self._arm(cursor)
            moves = self._has_moved(result, cursor.queue, part.group) or result.code is ErrorCode.NOT_OWNER
            is_for_now = moves or (result.code is ErrorCode.UNAVAILABLE and self._cluster.up)
            on_done(token, [] if is_for_now else result)
            return
        index = part.group.index
        for delivery in result:
            mark(index, delivery.message)
            delivery.offset = delivery.offset << GROUP_BITS | index
        if len(result) >= count_max:
            part.ready = True
        else:
            self._arm(cursor)
        on_done(token, result)

    def settle(self, items: Sequence[tuple[int, int, Outcome]]) -> None:
        for index, entries in self.by_group(items).items():
            self._cluster.groups[index].port.settle(entries)

    def by_group(self, items: Sequence[tuple[int, int, Outcome]]) -> dict[int, list[tuple[int, int, Outcome]]]:
        """Settlements as each group's port takes them, by the group's index; those of a group that is away are left out."""
        by_group: dict[int, list[tuple[int, int, Outcome]]] = {}
        for cursor, offset, outcome in items:
            found = self.by_handle.get(cursor)
            index = offset & GROUPS_MAX - 1
            part = found.part if found is not None else None
            if part is not None and part.group.index == index:
                by_group.setdefault(index, []).append((part.local, offset >> GROUP_BITS, outcome))
                if outcome is Outcome.REQUEUE or outcome is Outcome.RELEASE:
                    part.ready = True
        return by_group

    def watch(self, cursor: int, on_ready: Callable[[int], None] | None) -> None:
        found = self.by_handle.get(cursor)
        if found is None:
            return
        found.watch(on_ready)
        part = found.part
        if part is not None:
            part.group.port.watch(part.local, None if on_ready is None else partial(self._part_ready, found, part))

    def take_seat(
        self, cursor: int, terms: Terms, on_turn: Callable[[int, bool | None], None], token: Any, on_done: Done
    ) -> None:
        try:
            found = self._cursor(cursor)
            part = self._part(found)
        except GantryError as error:
            on_done(token, error)
        else:
            answered = partial(self._answered, found.queue, part.group, on_done)
            self._seats.take(found, part, terms, on_turn, token, answered)

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
            if found.part is not None:
                found.part.group.port.rank(found.part.local, rank)

    def _part_ready(self, cursor: ClusterCursor, part: Part, _local: int) -> None:
        part.ready = True
        self.wake(cursor)

    def _arm(self, cursor: ClusterCursor) -> None:
        cursor.armed = cursor.on_ready is not None
        if cursor.part_to_ask() is not None:
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
        def named(place: int, info: CursorInfo) -> CursorInfo:
            return CursorInfo(cursors[place], info.ready, info.unacked, info.next_offset, info.consumers)

        self._gather(cursors, "stats", named, token, on_done)

    def details(self, cursors: Sequence[int], token: Any, on_done: Done) -> None:
        self._gather(cursors[:DETAILS_MAX], "details", lambda place, info: info, token, on_done)

    def _gather(
        self, cursors: Sequence[int], method: str, named: Callable[[int, Any], Any], token: Any, on_done: Done
    ) -> None:
        """What the groups say of their cursors; a group that does not say is left out."""
        by_group: dict[int, list[tuple[int, int]]] = {}
        for place, handle in enumerate(cursors):
            found = self.by_handle.get(handle)
            part = found.part if found is not None else None
            if part is not None and not part.group.hangs:
                by_group.setdefault(part.group.index, []).append((place, part.local))

        def ask(index: int, token: Any, done: Done) -> None:
            group = self._cluster.groups[index]
            question = partial(getattr(group.port, method), [local for _, local in by_group[index]])
            self._cluster.decisions.ask(group, question)(token, done)

        def gathered(results: list[Any]) -> None:
            infos: list[Any] = [None] * len(cursors)
            for index, result in zip(by_group, results, strict=True):
                known = () if isinstance(result, GantryError) else result
                for (place, _), info in zip(by_group[index], known, strict=False):
                    if info is not None:
                        infos[place] = named(place, info)
            on_done(token, infos)

        Gathering([partial(ask, index) for index in by_group], gathered)


def _light_of(queue: str) -> int:
    """0: it is a topic's."""
    return int(queue[1:]) if queue.startswith("~") else 0
