"""Random histories of several broker groups behind gateways: lines cut at any call, mended, messages, consumers, definitions, groups that join."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.broker.port import EARLIEST, Outcome, Route
from gantrymq.cluster.names import split_light, tag_of
from gantrymq.model.errors import GantryError
from tests.cluster.several import PULLED_MS, Several
from tests.cluster.site import message

GROUPS = ("a", "b", "c")
gateway = st.integers(0, 1)
group = st.sampled_from(GROUPS)
traffic = st.one_of(
    st.tuples(st.just("publish"), gateway, st.integers(0, 7)),
    st.tuples(st.just("publish"), gateway, st.integers(0, 7)),
    st.tuples(st.just("take"), gateway, st.integers(1, 3)),
    st.tuples(st.just("cut"), gateway, group),
    st.tuples(st.just("soon"), gateway, group, st.integers(0, 12)),
    st.tuples(st.just("mend"), gateway, group),
    st.tuples(st.just("join")),
    st.tuples(st.just("wait"), st.integers(1, 70)),
)


@dataclass
class Queue:
    """One light queue with its cursor, and what it must and may get."""

    light: int
    cursor: int
    name: str
    must: set[bytes] = field(default_factory=set)
    may: set[bytes] = field(default_factory=set)
    got: list[bytes] = field(default_factory=list)
    routed: bool = False
    unsure: bool = False
    """A change of its route failed: it may be there or not."""


class History:
    """Sites with `gateways` over groups `a` and `b`; `c` joins when told."""

    def __init__(self, gateways: int) -> None:
        self.site = Several("a", "b")
        self.ports = [self.site.gateway() for _ in range(gateways)]
        self.sent = 0
        self.cuts = 0
        self.queues: list[Queue] = []
        self.routes = 0

    def call(self, number: int, method: str, *args: Any) -> Any:
        return self.site.call(self.ports[number], method, *args)

    def line(self, number: int, name: str) -> Any:
        return self.site.gateways[number][1].get(name)

    def make(self, number: int) -> None:
        """A queue for everything, at one group or another; not if anything of it fails."""
        box: list[Any] = []
        self.ports[number].create_light(None, lambda token, result: box.append(result), name=f"q/{self.routes}")
        self.site.wait(1_000)
        (light,) = box
        if isinstance(light, GantryError):
            return
        info = self.call(number, "open_cursor", f"~{light}", "g", EARLIEST)
        if isinstance(info, GantryError):
            return
        self.queues.append(queue := Queue(light, info.cursor, f"r{self.routes}"))
        self.routes += 1
        self.route(number, queue)

    def route(self, number: int, queue: Queue) -> None:
        error = self.call(number, "add_route", Route(queue.name, "prefix", None, "a", queue.light))
        queue.routed, queue.unsure = error is None, queue.unsure or error is not None

    def unroute(self, number: int, queue: Queue) -> None:
        error = self.call(number, "remove_routes", [queue.name])
        queue.routed, queue.unsure = False, error is not None

    def publish(self, number: int, topic: int) -> None:
        body = b"%d" % self.sent
        self.sent += 1
        (result,) = self.call(number, "submit", [message(f"t{topic}", body)])
        for queue in self.queues:
            if isinstance(result, int) and queue.routed:
                queue.must.add(body)
            if queue.routed or queue.unsure:
                queue.may.add(body)

    def take(self, number: int, count: int) -> None:
        for queue in self.queues:
            self.take_from(number, queue, count)

    def take_from(self, number: int, queue: Queue, count: int) -> bool:
        port = self.ports[number]
        cursor = queue.cursor
        if number or port.up:
            info = self.call(number, "open_cursor", f"~{queue.light}", "g", EARLIEST)
            if isinstance(info, GantryError):
                return False
            cursor = info.cursor
        result = self.call(number, "acquire", cursor, 1, count, 1 << 20)
        if isinstance(result, GantryError) or not result:
            return False
        queue.got += [delivery.message.body for delivery in result]
        port.settle([(cursor, delivery.offset, Outcome.ACK) for delivery in result])
        self.site.run()
        return True

    def cut(self, number: int, name: str, after: int | None = None) -> None:
        line = self.line(number, name)
        if line is not None and line.up:
            self.cuts += 1
            if after is None:
                line.cut()
            else:
                line.calls_left = after
            self.site.run()

    def mend(self, number: int, name: str) -> None:
        line = self.line(number, name)
        if line is not None and not line.up:
            line.mend()
            self.site.run()

    def join(self) -> None:
        if "c" not in self.site.nodes:
            self.site.add_node("c")

    def step(self, step: tuple[Any, ...]) -> None:
        kind, *arguments = step
        if kind == "wait":
            self.site.wait(arguments[0] * 100)
        elif kind == "soon":
            self.cut(*arguments)
        else:
            getattr(self, kind)(*arguments)

    def heal(self) -> None:
        """Every line is whole, and every group is in use."""
        for port, lines in self.site.gateways:
            for line in lines.values():
                line.calls_left = None
                if not line.up:
                    line.mend()
            self.site.wait(12_000)
            assert {one.name for one in port.ready_groups()} == set(self.site.nodes)

    def finish(self) -> None:
        self.heal()
        self.site.wait(PULLED_MS)
        for queue in self.queues:
            for number in range(len(self.ports)):
                while self.take_from(number, queue, 100):
                    pass
            assert queue.must <= set(queue.got), "acknowledged and lost"
            assert set(queue.got) <= queue.may
            if not self.cuts:
                assert len(queue.got) == len(set(queue.got)), "delivered twice without a cut"
        self.check_definitions()

    def check_definitions(self) -> None:
        """The queues' owners have the routes that were answered, and none that were removed; nobody else has any."""
        wanted = {queue.name for queue in self.queues if queue.routed and not queue.unsure}
        allowed = wanted | {queue.name for queue in self.queues if queue.unsure}
        found = [name for node in self.site.nodes.values() for name in node.broker.tables.rows("route")]
        assert len(found) == len(set(found)), "a route lies in one group"
        assert wanted <= set(found) <= allowed


@settings(max_examples=20, deadline=None)
@given(st.lists(traffic, max_size=30))
def test_two_gateways_lose_nothing(steps: list[tuple[Any, ...]]) -> None:
    history = History(2)
    history.make(0)
    for step in steps:
        history.step(step)
    history.finish()


definitions = st.one_of(
    st.tuples(st.just("publish"), st.just(0), st.integers(0, 7)),
    st.tuples(st.just("publish"), st.just(0), st.integers(0, 7)),
    st.tuples(st.just("take"), st.just(0), st.integers(1, 3)),
    st.tuples(st.just("cut"), st.just(0), group),
    st.tuples(st.just("soon"), st.just(0), group, st.integers(0, 25)),
    st.tuples(st.just("mend"), st.just(0), group),
    st.tuples(st.just("mend"), st.just(0), group),
    st.tuples(st.just("make"), st.just(0)),
    st.tuples(st.just("unroute_one"), st.just(0), st.integers(0, 9)),
    st.tuples(st.just("drop_one"), st.just(0), st.integers(0, 9)),
    st.tuples(st.just("join")),
    st.tuples(st.just("wait"), st.integers(1, 70)),
)


class Definitions(History):
    """One gateway, and queues that come and go."""

    def __init__(self) -> None:
        super().__init__(1)

    def unroute_one(self, number: int, which: int) -> None:
        if self.queues:
            self.unroute(number, self.queues[which % len(self.queues)])

    def drop_one(self, number: int, which: int) -> None:
        if self.queues:
            queue = self.queues[which % len(self.queues)]
            if self.call(number, "delete_light", queue.light) is None:
                self.queues.remove(queue)
            else:
                queue.unsure, queue.routed = True, False  # it may be gone
                queue.must.clear()


@settings(max_examples=20, deadline=None)
@given(st.lists(definitions, max_size=20))
def test_definitions_hold(steps: list[tuple[Any, ...]]) -> None:
    history = Definitions()
    history.make(0)
    for step in steps:
        history.step(step)
    history.finish()


def test_a_history_without_cuts_is_exact() -> None:
    history = History(2)
    for _ in range(4):
        history.make(0)
    for number in range(40):
        history.publish(number % 2, number % 8)
        if number == 20:
            history.join()
    history.finish()
    assert {split_light(queue.light)[0] for queue in history.queues} == {0, tag_of("b")}
    for queue in history.queues:
        assert sorted(queue.got) == sorted(queue.must)
