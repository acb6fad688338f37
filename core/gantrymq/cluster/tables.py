"""Tables of a gateway process over several broker groups: every row lies in one group, its key's home when it was made; doors see one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.broker.port import Done, family_of, row_name
from gantrymq.cluster.everywhere import Everywhere
from gantrymq.cluster.group import AGAIN_MS, ASK_MS, place_of
from gantrymq.cluster.patience import hangs
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Call, Gathering, Steps, everywhere, first_error

if TYPE_CHECKING:
    from gantrymq.cluster.group import Cluster, Group

Watcher = Callable[[str, bytes | None], None]


class _Table:
    """`places`: index of the group that holds each row (as many rows as one broker's table may have in each group)."""

    __slots__ = ("_on_gone", "leaving", "listeners", "name", "places", "readings", "watchers")

    def __init__(self, name: str, on_gone: Callable[[_Table, int, str], None]) -> None:
        self.name = name
        self._on_gone = on_gone
        self.places: dict[str, int] = {}
        self.leaving: dict[str, int] = {}
        """Rows that their group has no more: perhaps another one has them, and has not been heard yet."""
        self.watchers: list[Watcher] = []
        self.listeners: dict[int, Watcher] = {}
        """By group: what was handed to its port."""
        self.readings: list[dict[str, bytes | None]] = []
        """Changes since each reading that is under way began: groups answer at different times."""

    def changed(self, index: int, key: str, value: bytes | None) -> None:
        """A row changed at a group."""
        if value is not None:
            self.leaving.pop(key, None)
            self.places[key] = index
            self._tell(key, value)
        elif self.places.get(key) == index:  # else it lies elsewhere now
            self._on_gone(self, index, key)

    def gone(self, index: int, key: str, number: int) -> None:
        """A row did not go to another group, unless it was heard of since `number` was given to its leaving."""
        if self.leaving.get(key) == number and self.places.get(key) == index:
            del self.leaving[key]
            del self.places[key]
            self._tell(key, None)

    def _tell(self, key: str, value: bytes | None) -> None:
        for reading in self.readings:
            reading[key] = value
        for watcher in list(self.watchers):
            watcher(key, value)


class ClusterTables:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._tables: dict[str, _Table] = {}
        self._leaving: list[tuple[_Table, int, str, int]] = []
        """Rows that are asked about at the end of this turn."""
        self._dropped: set[int] = set()
        """Indexes of groups that were forgotten."""
        self._waiting: dict[tuple[str, str], int] = {}
        """Rows that are put again before long, as their group has them no more: a number for each attempt. A later put of the same row takes it away."""

    def forget(self) -> None:
        """Every group is gone."""
        self._tables.clear()
        self._leaving.clear()

    def watch(self, name: str, on_change: Watcher | None, token: Any, on_done: Done) -> None:
        """As TablePort.watch_table."""
        table = self._tables.setdefault(name, _Table(name, self._is_gone))
        found: dict[int, dict[str, bytes]] = {}
        answered = False
        changes: dict[str, bytes | None] = {}
        table.readings.append(changes)

        def at(group: Group) -> Steps:
            if answered:  # it joined meanwhile, or late
                yield from self._restore(table, group)
            else:
                found[group.index] = yield partial(group.port.watch_table, name, self._listener(table, group))

        def gathered(error: Any) -> None:
            nonlocal answered
            answered = True
            table.readings.remove(changes)
            if error is not None:
                on_done(token, error)
                return
            merged: dict[str, bytes] = {}
            for index, rows in sorted(found.items()):
                for key, value in rows.items():
                    if key not in changes and (key not in merged or table.places.get(key) == index):
                        merged[key] = value
                        table.places[key] = index
            for key, changed in changes.items():
                if changed is None:
                    merged.pop(key, None)
                else:
                    merged[key] = changed
            if on_change is not None and on_change not in table.watchers:
                table.watchers.append(on_change)
            on_done(token, merged)

        Everywhere(self._cluster, at, gathered)

    def _is_gone(self, table: _Table, index: int, key: str) -> None:
        """A row that moves is first there, then away here: what the others have said by their next answer decides."""
        number = table.leaving[key] = self._cluster.number()
        if len(self._cluster.groups) == 1:
            table.gone(index, key, number)
            return
        if not self._leaving:
            self._cluster.turn.at_deliver(self._ask_others)
        self._leaving.append((table, index, key, number))

    def _ask_others(self) -> None:
        leaving, self._leaving = self._leaving, []

        def heard(_results: list[Any]) -> None:
            for table, index, key, number in leaving:
                table.gone(index, key, number)

        groups = [group for group in self._cluster.ready_groups() if not group.hangs]
        Gathering([self._cluster.decisions.ask(group, partial(group.port.stats, [])) for group in groups], heard)

    @staticmethod
    def _listener(table: _Table, group: Group) -> Watcher:
        return table.listeners.setdefault(group.index, partial(table.changed, group.index))

    def put(
        self, name: str, items: Sequence[tuple[str, bytes | None]], token: Any, on_done: Done, deputy: bool = False
    ) -> None:
        """As TablePort.put: one batch per group."""
        for key, _ in items if self._waiting else ():
            self._waiting.pop((name, key), None)
        groups = self._cluster.ready_groups()
        if len(self._cluster.groups) == 1 and groups and not self._cluster.slots.known:
            groups[0].port.put(name, items, token, on_done)
        else:
            call = partial(self._put, name, items, self._until_ms(), deputy)
            self._known(name, partial(call, token, on_done), token, on_done)

    def _known(self, name: str, call: Callable[[], None], token: Any, on_done: Done) -> None:
        """`call` once it is known where the table's rows lie."""
        if name in self._tables:
            call()
            return

        def watched(_token: Any, result: Any) -> None:
            if isinstance(result, GantryError):
                on_done(token, result)
            else:
                call()

        self.watch(name, None, None, watched)

    def _until_ms(self) -> int:
        return self._cluster.wheel.now_ms() + ASK_MS

    def _put(
        self,
        name: str,
        items: Sequence[tuple[str, bytes | None]],
        until_ms: int,
        deputy: bool,
        token: Any,
        on_done: Done,
    ) -> None:
        batches: dict[int, list[tuple[str, bytes | None]]] = {}
        try:
            for key, value in items:
                index = self.target(name, key, deputy)
                batches.setdefault(index, []).append((key, value))
                home = self._home_or_none(name, key) if value is None else None
                if home is not None and home != index:  # it may be on its way there
                    batches.setdefault(home, []).append((key, value))
        except GantryError as error:
            on_done(token, error)
            return
        calls: list[Call] = []
        for index, batch in batches.items():
            question = partial(self._cluster.groups[index].port.put, name, batch, deputy=deputy)
            calls.append(
                self._patiently(
                    self._asked(index, question), partial(self._put_again, name, batch, until_ms, deputy), until_ms
                )
            )
        everywhere(calls, token, on_done)

    def _put_again(
        self,
        name: str,
        batch: Sequence[tuple[str, bytes | None]],
        until_ms: int,
        deputy: bool,
        token: Any,
        on_done: Done,
    ) -> None:
        """A moment later, without rows that were put meanwhile."""
        number = self._cluster.number()
        for key, _ in batch:
            self._waiting[name, key] = number

        def again(now_ms: int) -> None:
            still = [(key, value) for key, value in batch if self._waiting.get((name, key)) == number]
            for key, _ in still:
                del self._waiting[name, key]
            self._put(name, still, until_ms, deputy, token, on_done)

        self._cluster.wheel.call_at(self._cluster.wheel.now_ms() + AGAIN_MS, again)

    def _patiently(self, call: Call, again: Call, until_ms: int) -> Call:
        """Where a group does not have a row, nor decides about it, the row has moved, and where to is heard in a moment; UNAVAILABLE at the end."""

        def ask(token: Any, on_done: Done) -> None:
            def answered(token: Any, result: Any) -> None:
                if not isinstance(result, GantryError) or result.code is not ErrorCode.NOT_OWNER:
                    on_done(token, result)
                elif self._cluster.wheel.now_ms() < until_ms:
                    again(token, on_done)
                else:
                    on_done(token, GantryError(ErrorCode.UNAVAILABLE, result.text))

            call(token, answered)

        return ask

    def _later(self, call: Call) -> Call:
        wheel = self._cluster.wheel

        def wait(token: Any, on_done: Done) -> None:
            wheel.call_at(wheel.now_ms() + AGAIN_MS, lambda now_ms: call(token, on_done))

        return wait

    def put_if(
        self, name: str, items: Sequence[tuple[str, bytes | None, bytes | None]], token: Any, on_done: Done
    ) -> None:
        """As TablePort.put_if: each row is compared where it lies. A row that is being moved is not as expected for a moment."""
        groups = self._cluster.ready_groups()
        if len(self._cluster.groups) == 1 and groups and not self._cluster.slots.known:
            groups[0].port.put_if(name, items, token, on_done)
        else:
            call = partial(self._put_if, name, items, self._until_ms())
            self._known(name, partial(call, token, on_done), token, on_done)

    def _put_if(
        self,
        name: str,
        items: Sequence[tuple[str, bytes | None, bytes | None]],
        until_ms: int,
        token: Any,
        on_done: Done,
    ) -> None:
        batches: dict[int, list[int]] = {}
        try:
            for number, (key, _, _) in enumerate(items):
                index = self.target(name, key)
                batches.setdefault(index, []).append(number)
        except GantryError as error:
            on_done(token, error)
            return

        def gathered(results: list[Any]) -> None:
            error = first_error(results)
            if error is not None:
                on_done(token, error)
                return
            fits = [False] * len(items)
            for numbers, found in zip(batches.values(), results, strict=True):
                for number, fit in zip(numbers, found, strict=True):
                    fits[number] = fit
            on_done(token, fits)

        calls: list[Call] = []
        for index, numbers in batches.items():
            batch = [items[number] for number in numbers]
            question = partial(self._cluster.groups[index].port.put_if, name, batch)
            again = self._later(partial(self._put_if, name, batch, until_ms))
            calls.append(self._patiently(self._asked(index, question), again, until_ms))
        Gathering(calls, gathered)

    def put_together(
        self,
        name: str,
        key: str,
        expected: bytes | None,
        items: Sequence[tuple[str, bytes | None]],
        token: Any,
        on_done: Done,
    ) -> None:
        """As TablePort.put_together."""
        groups = self._cluster.ready_groups()
        if len(self._cluster.groups) == 1 and groups and not self._cluster.slots.known:
            groups[0].port.put_together(name, key, expected, items, token, on_done)
        else:
            call = partial(self._put_together, name, key, expected, items, self._until_ms())
            self._known(name, partial(call, token, on_done), token, on_done)

    def _put_together(
        self,
        name: str,
        key: str,
        expected: bytes | None,
        items: Sequence[tuple[str, bytes | None]],
        until_ms: int,
        token: Any,
        on_done: Done,
    ) -> None:
        try:
            index = self.target(name, key)
        except GantryError as error:
            on_done(token, error)
            return
        # While rows move some of them may still lie elsewhere: what is set here counts, so they go.
        left: dict[int, list[tuple[str, bytes | None]]] = {}
        for one, _ in items:
            place = self.place_of(name, one)
            if place is not None and place != index:
                left.setdefault(place, []).append((one, None))

        def done(_token: Any, result: Any) -> None:
            if isinstance(result, GantryError) or not result or not left:
                on_done(token, result)
                return
            calls = [partial(self._cluster.groups[place].port.put, name, batch) for place, batch in left.items()]
            everywhere(
                calls, None, lambda _token, gone: on_done(token, gone if isinstance(gone, GantryError) else True)
            )

        question = partial(self._cluster.groups[index].port.put_together, name, key, expected, items)
        again = self._later(partial(self._put_together, name, key, expected, items, until_ms))
        self._patiently(self._asked(index, question), again, until_ms)(None, done)

    def _asked(self, index: int, question: Call) -> Call:
        """What a group is to change of its rows. Of one that hangs nobody knows whether it does: as where its connection is lost."""
        return self._cluster.decisions.ask(self._cluster.groups[index], question)

    def home(self, name: str, key: str) -> Group:
        """The group where a row belongs: one of a session's filters where the session's own does."""
        return self._home(name, key, False)

    def _home(self, name: str, key: str, deputy: bool) -> Group:
        return place_of(self._cluster, row_name(name, key), deputy)[0]

    def _home_or_none(self, name: str, key: str) -> int | None:
        """Index of a row's home, where it is in use."""
        try:
            return self.home(name, key).index
        except GantryError:
            return None

    def names(self) -> list[str]:
        """Tables that this process uses."""
        return list(self._tables)

    def places(self, name: str) -> list[tuple[str, int]]:
        """Where each row of a table lies: key, and index of the group."""
        return list(self._tables[name].places.items())

    def target(self, name: str, key: str, deputy: bool = False) -> int:
        """Index of the group that a row is to be written at. Raises UNAVAILABLE."""
        found = self.place_of(name, key)
        if found is None:
            return self._home(name, key, deputy).index
        if self._cluster.groups[found].hangs:
            raise hangs(self._cluster.groups[found])
        return found

    def place_of(self, name: str, key: str) -> int | None:
        """Index of the group where the row was changed last."""
        return self._tables[name].places.get(key) if name in self._tables else None

    def drop_forgotten(self) -> None:
        """The rows of a group that is gone for good are gone: what is written under their keys goes to the owners of their slots."""
        slots = self._cluster.slots
        for group in self._cluster.groups:
            if (
                slots.known
                and not group.port.up
                and group.name not in slots.members
                and group.index not in self._dropped
            ):
                self._dropped.add(group.index)
                for table in list(self._tables.values()):
                    for key in [key for key, index in table.places.items() if index == group.index]:
                        table.changed(group.index, key, None)

    def restore(self, group: Group) -> Steps:
        """The rows of a group that came (again): what differs from what the doors know are changes."""
        self._dropped.discard(group.index)
        for table in list(self._tables.values()):
            yield from self._restore(table, group)

    def _restore(self, table: _Table, group: Group) -> Steps:
        rows: dict[str, bytes] = yield partial(group.port.watch_table, table.name, self._listener(table, group))
        gone = [key for key, index in table.places.items() if index == group.index and key not in rows]
        for key in gone:
            table.changed(group.index, key, None)
        # A row that names others comes behind them: who goes on when it is told finds them.
        for key in sorted(rows, key=lambda key: family_of(table.name, key) == key):
            if table.places.get(key, group.index) == group.index:
                table.changed(group.index, key, rows[key])
