"""Which group has a queue: of a light queue, with its routes and cursors, its owner; of a topic's queue the one whose number it is in `Cluster.places`.

The owner of a light queue is the group that made it, whose tag stands in the queue's id, unless another one has it under an id of its own (tables
`cluster_moved`, where it has moved, and `cluster_light`). Brokers forward to it what is published elsewhere; a gateway copies nothing. While the owner is not in use, what concerns the
queue is UNAVAILABLE, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.broker.port import SEATS
from gantrymq.broker.tables.group_tables import LIGHTS_TABLE
from gantrymq.cluster.group import ASK_MS
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
        self._gone_on: set[int] = set()
        """Light queues of which one group has said just now that they went on, and no other that they came."""

    def moved(self, light: int) -> None:
        """A group said something new of where it is. Of two connections the one may be ahead of the other."""
        if self._holder(light) is not None or not any(light in group.moved for group in self._cluster.groups):
            self._gone_on.discard(light)
        elif light not in self._gone_on:
            self._gone_on.add(light)
            wheel = self._cluster.wheel
            wheel.call_at(wheel.now_ms() + ASK_MS, lambda now_ms: self._gone_on.discard(light))

    def holder(self, queue: str) -> Group | None:
        """The group that has a queue, in use or not, as far as is known."""
        if queue.startswith("~"):
            return self._holder(int(queue[1:]))
        topic, _, number = queue.rpartition("/")
        places = self._cluster.places.get(topic)
        if places is None:  # while there was one group its queues had their own numbers
            return self._cluster.groups[0] if self._cluster.groups else None
        return places[int(number)][0] if int(number) < len(places) else None

    def name_at_holder(self, queue: str, holder: Group) -> str:
        """What its group calls it."""
        if queue.startswith("~"):
            return f"~{holder.local_light(int(queue[1:]))}"
        topic, _, number = queue.rpartition("/")
        places = self._cluster.places.get(topic)
        return queue if places is None else f"{topic}/{places[int(number)][1]}"

    def find(self, queue: str) -> Steps:
        """The group that has a queue, in use. Raises UNAVAILABLE, QUEUE_NOT_FOUND, and what looking for the topic does."""
        if not queue.startswith("~"):
            topic = queue.rpartition("/")[0]
            if topic not in self._cluster.places and len(self._cluster.groups) > 1:
                yield partial(self._cluster.ensure_topic, topic, False)
        return self.lies_at(queue)

    def lies_at(self, queue: str) -> Group:
        """...where its topic was looked for."""
        if queue.startswith("~"):
            return self.owner(int(queue[1:]))
        found = self.holder(queue)
        if found is None:
            topic, _, number = queue.rpartition("/")
            raise GantryError(ErrorCode.QUEUE_NOT_FOUND, f"topic {topic} has no queue {number}")
        if not found.ready:
            raise GantryError(ErrorCode.UNAVAILABLE, f"the broker group {found.name} of queue {queue} is not connected")
        if found.hangs:
            raise hangs(found)
        return found

    def owner(self, light: int) -> Group:
        """The group that has a light queue. Raises UNAVAILABLE, QUEUE_NOT_FOUND."""
        found = self._holder(light)
        if found is None or not found.ready:
            ready = {group.name for group in self._cluster.ready_groups()}
            if found is None and light in self._gone_on:
                raise on_its_way(f"~{light}")
            is_gone = self._cluster.slots.members <= ready if self._cluster.slots.known else found is None
            if ready and is_gone:
                raise GantryError(
                    ErrorCode.QUEUE_NOT_FOUND, f"queue ~{light} is gone with the broker group that had it"
                )
            raise GantryError(ErrorCode.UNAVAILABLE, f"the broker group of queue ~{light} is not connected")
        if found.hangs:
            raise hangs(found)
        return found

    def _holder(self, light: int) -> Group | None:
        groups = self._cluster.groups
        having = [group for group in groups if group.moved.get(light)] or [
            group for group in groups if light in group.lights
        ]
        having = having or [group for group in self._cluster.groups if group.local_light(light)]
        return next((group for group in having if group.ready), having[0] if having else None)

    def place_for(self, name: str) -> Group:
        """The group where something of this name is made. Raises UNAVAILABLE."""
        group = self._cluster.home(name)
        if group.draining:
            raise GantryError(ErrorCode.UNAVAILABLE, f"the broker group {group.name} takes nothing new: it is drained")
        return group

    def answers_for(self, name: str) -> bool:
        """As BrokerPort.answers_for: the consumers of a queue are its owner's."""
        kind, _, rest = name.partition("/")
        try:
            if kind == SEATS and rest.startswith("~"):
                self.owner(int(rest[1:].partition("/")[0]))
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
            is_gone = error.code is ErrorCode.QUEUE_NOT_FOUND
            if is_gone:
                self._drop_light(light)
            on_done(token, None if is_gone else error)
            return

        def gone(_result: Any) -> None:
            self._drop_light(light)

        def deleted(token: Any, result: Any) -> None:
            if not isinstance(result, GantryError):
                gone(result)
            on_done(token, result)

        question = partial(group.port.delete_light, group.local_light(light))

        def steps() -> Steps:
            yield self._cluster.decisions.ask(group, question, gone)
            if light in group.lights:
                yield partial(group.port.put, LIGHTS_TABLE, [(str(light), None)])

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

    def _may_have_routes(self, group: Group) -> bool:
        return group.registered and (group.was_used or group.name in self._cluster.slots.members)

    def remove_routes(self, route_ids: Sequence[str], token: Any, on_done: Done) -> None:
        """As RoutePort.remove_routes. UNAVAILABLE if fewer were found than asked for, and a group that may have the others did not answer."""
        ids = list(dict.fromkeys(route_ids))
        asked = [group for group in self._cluster.ready_groups() if not group.hangs]

        def removed(results: list[Any]) -> None:
            errors = [result for result in results if isinstance(result, GantryError)]
            found = sum([result for result in results if not isinstance(result, GantryError)])
            absent = [
                group.name for group in self._cluster.groups if self._may_have_routes(group) and group not in asked
            ]
            refused = [error for error in errors if error.code is not ErrorCode.UNAVAILABLE]
            if absent and not errors:
                errors = [GantryError(ErrorCode.UNAVAILABLE, f"the broker group {', '.join(absent)} is not connected")]
            if refused:
                on_done(token, refused[0])
            else:
                on_done(token, errors[0] if errors and found < len(ids) else None)

        Gathering(self._removals(asked, ids), removed)


def on_its_way(queue: str) -> GantryError:
    """A queue moves: who asks again soon finds it."""
    return GantryError(ErrorCode.NOT_OWNER, f"queue {queue} is on its way to another broker group")
