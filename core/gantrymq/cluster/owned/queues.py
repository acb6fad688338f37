"""Light queues and routes that one group has for the whole cluster, where it has slots.

The owner of a queue is the group that made it: its tag stands in the queue's id. (Before the cluster had slots it may have been drained to one
group, which has the others' queues under ids of its own.) Brokers forward to it what is published elsewhere; a gateway
copies nothing. While the owner is not in use, what concerns the queue is UNAVAILABLE, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.broker.port import SEATS
from gantrymq.broker.tables.group_tables import LIGHTS_TABLE
from gantrymq.cluster.patience import hangs
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Call, Gathering, Steps, run

if TYPE_CHECKING:
    from gantrymq.broker.port import Done, Route
    from gantrymq.cluster.group import Cluster, Group


class OwnedQueues:
    """See the module. `drop_light(light)`: its cursors are closed."""

    def __init__(self, cluster: Cluster, drop_light: Callable[[int], None]) -> None:
        self._cluster = cluster
        self._drop_light = drop_light

    def lies_in_one(self, queue: str) -> bool:
        """One group has the queue; else each has a part of it."""
        return self._cluster.slots.known and queue.startswith("~")

    def owner_of(self, queue: str) -> Group | None:
        """The group that has the queue; None: each has a part of it. Raises UNAVAILABLE, QUEUE_NOT_FOUND."""
        return self.owner(int(queue[1:])) if self.lies_in_one(queue) else None

    def may_have(self, group: Group, queue: str) -> bool:
        """The group has the queue, or a part of it, if it exists."""
        return not self.lies_in_one(queue) or bool(group.local_light(int(queue[1:])))

    def owner(self, light: int) -> Group:
        """The group that has a light queue. Raises UNAVAILABLE, QUEUE_NOT_FOUND."""
        ready = self._cluster.ready_groups()
        found = next((group for group in ready if group.local_light(light)), None)
        if found is None and self._members() <= {group.name for group in ready}:
            raise GantryError(ErrorCode.QUEUE_NOT_FOUND, f"queue ~{light} is gone with the broker group that had it")
        if found is None:
            raise GantryError(ErrorCode.UNAVAILABLE, f"the broker group of queue ~{light} is not connected")
        if found.hangs:
            raise hangs(found)
        return found

    def _members(self) -> set[str]:
        """Groups that were not forgotten."""
        table = self._cluster.slots.table
        return {*table.groups, *([table.head.keeper] if table.head is not None else [])}

    def place_for(self, name: str) -> Group:
        """The group where something of this name is made. Raises UNAVAILABLE."""
        group = self._cluster.home(name)
        if group.draining:
            raise GantryError(ErrorCode.UNAVAILABLE, f"the broker group {group.name} takes nothing new: it is drained")
        return group

    def answers_for(self, name: str) -> bool:
        """As BrokerPort.answers_for: the consumers of a queue are its owner's."""
        kind, _, rest = name.partition("/")
        queue = rest.partition("/")[0] if kind == SEATS else ""
        try:
            if self.lies_in_one(queue):
                self.owner_of(queue)
            else:
                self._cluster.home(name)
        except GantryError:
            return False
        return True

    def delete(self, light: int, token: Any, on_done: Done) -> None:
        """As QueuePort.delete_light."""
        try:
            group = self.owner(light)
        except GantryError as error:
            on_done(token, None if error.code is ErrorCode.QUEUE_NOT_FOUND else error)
            return

        def gone(_result: Any) -> None:
            self._drop_light(light)

        def deleted(token: Any, result: Any) -> None:
            if not isinstance(result, GantryError):
                gone(result)
            on_done(token, result)

        question = partial(group.port.delete_light, group.local_light(light))
        rows = [(str(light), None)] if light in group.lights else []

        def steps() -> Steps:
            yield self._cluster.decisions.ask(group, question, gone)
            if rows:
                yield partial(group.port.put, LIGHTS_TABLE, rows)

        run(steps(), partial(deleted, token))

    def add_route(self, route: Route, token: Any, on_done: Done) -> None:
        """As RoutePort.add_route."""
        try:
            group = self.owner(route.light) if route.light else self._cluster.home(f"route/{route.route_id}")
        except GantryError as error:
            on_done(token, error)
            return
        question = partial(group.port.add_route, replace(route, light=route.light and group.local_light(route.light)))
        call = self._patiently(group, question)
        if route.light:
            call(token, on_done)
        else:
            run(self._only_there(group, call, route.route_id), partial(on_done, token))

    def _only_there(self, group: Group, call: Call, route_id: str) -> Steps:
        """A route of a name goes to the owner of its slot; what an earlier owner has under that name is replaced, too."""
        yield call
        others = [other for other in self._cluster.ready_groups() if other is not group and not other.hangs]

        def removed(token: Any, on_done: Done) -> None:
            Gathering(self._removals(others, [route_id]), lambda results: on_done(token, None))

        yield removed

    def _removals(self, groups: Sequence[Group], route_ids: Sequence[str]) -> list[Call]:
        return [self._patiently(group, partial(group.port.remove_routes, route_ids)) for group in groups]

    def _patiently(self, group: Group, change: Call) -> Call:
        """A change of routes is answered when the other groups know it, or some seconds later: whether its group hangs, a second question tells.
        Nothing is undone of a change that comes late: it may have been asked for again."""

        def call(token: Any, on_done: Done) -> None:
            open_ = [on_done]

            def answered(_token: Any, result: Any) -> None:
                if open_:
                    open_.pop()(token, result)

            def heard(_token: Any, result: Any) -> None:
                if isinstance(result, GantryError):
                    answered(None, result)

            change(None, answered)
            if open_ and len(self._cluster.groups) > 1:
                self._cluster.decisions.ask(group, partial(group.port.stats, []))(None, heard)

        return call

    def remove_routes(self, route_ids: Sequence[str], token: Any, on_done: Done) -> None:
        """As RoutePort.remove_routes. UNAVAILABLE if fewer were found than asked for, and a group that may have the others did not answer."""
        ids = list(dict.fromkeys(route_ids))
        asked = [group for group in self._cluster.ready_groups() if not group.hangs]

        def removed(results: list[Any]) -> None:
            errors = [result for result in results if isinstance(result, GantryError)]
            found = sum([result for result in results if not isinstance(result, GantryError)])
            absent = [group.name for group in self._cluster.groups if group.registered and group not in asked]
            refused = [error for error in errors if error.code is not ErrorCode.UNAVAILABLE]
            if absent and not errors:
                errors = [GantryError(ErrorCode.UNAVAILABLE, f"the broker group {', '.join(absent)} is not connected")]
            if refused:
                on_done(token, refused[0])
            else:
                on_done(token, errors[0] if errors and found < len(ids) else None)

        Gathering(self._removals(asked, ids), removed)
