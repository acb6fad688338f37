import asyncio
import threading

import pytest

from gantrymq.net.testing import ManualClock, ManualWheel
from gantrymq_gateways.cloudevents.push import resolver as module
from gantrymq_gateways.cloudevents.push.resolver import NoThreadError, Resolver, lookup_in_thread


class Rig:
    """`begun`: every look-up in order; `held`: those that hold a thread."""

    def __init__(self):
        self.wheel = ManualWheel(ManualClock())
        self.resolver = Resolver(self.wheel, self.start)
        self.begun = []
        self.held = {}
        self.told = []

    def start(self, text, on_found):
        assert text not in self.held, "a second thread for one name"
        self.begun.append(text)
        self.held[text] = on_found

    def ask(self, *names):
        return [self.resolver.resolve(name, lambda found, name=name: self.told.append((name, found))) for name in names]

    def find(self, name, found=("192.0.2.1",)):
        self.held.pop(name)(found)

    def take(self):
        told, self.told = self.told, []
        return told


@pytest.fixture
def rig():
    return Rig()


def names(prefix, count):
    return [f"{prefix}{number}" for number in range(count)]


def test_one_look_up_is_shared_and_kept(rig):
    rig.ask("a", "a", "a")
    rig.find("a")
    assert rig.take() == [("a", ("192.0.2.1",))] * 3
    rig.wheel.advance(module.ADDRESSES_MS - 50)
    rig.ask("a")
    assert rig.take() == [("a", ("192.0.2.1",))]
    assert rig.begun == ["a"]
    rig.wheel.advance(100)
    rig.ask("a")
    assert rig.begun == ["a", "a"]


def test_a_failure_is_kept_for_as_long_as_it_took(rig):
    error = OSError("no such name")
    for took_ms, kept_ms in ((0, 5_000), (20_000, 20_000), (300_000, 60_000)):
        rig.ask("a")
        rig.wheel.advance(took_ms)
        rig.find("a", error)
        rig.take()
        rig.wheel.advance(kept_ms - 50)
        rig.ask("a")
        assert rig.take() == [("a", error)]
        rig.wheel.advance(100)
    assert len(rig.begun) == 3


def test_a_name_that_hangs_has_one_thread_and_fails_at_its_deadline(rig):
    rig.ask("slow")
    rig.wheel.advance(module.LOOKUP_MS + 50)
    ((_, failure),) = rig.take()
    assert isinstance(failure, TimeoutError)
    rig.ask("slow")
    assert rig.take() == [("slow", failure)]
    assert rig.begun == ["slow"]
    rig.find("slow")
    rig.ask("slow")
    assert rig.take() == [("slow", ("192.0.2.1",))]


@pytest.mark.parametrize("hanging", [2, 8, 100])
def test_names_that_hang_do_not_delay_one_that_answered(rig, hanging):
    rig.ask("good")
    rig.find("good")
    rig.wheel.advance(module.ADDRESSES_MS)
    rig.ask(*names("slow", hanging))
    rig.take()
    rig.ask("good")
    assert "good" in rig.held
    rig.find("good")
    assert rig.take() == [("good", ("192.0.2.1",))]


def test_names_that_begin_to_hang_make_room_for_those_that_answer(rig):
    known = names("known", module.THREADS_PER_LANE)
    rig.ask("good", *known[1:])
    for name in ("good", *known[1:]):
        rig.find(name)
    rig.ask(known[0])
    rig.find(known[0])
    rig.wheel.advance(module.ADDRESSES_MS)
    rig.ask(*known, "good")
    assert "good" not in rig.held
    rig.wheel.advance(module.LOOKUP_MS + 50)
    assert "good" in rig.held


def test_threads_are_bounded_and_new_names_wait_their_turn(rig):
    waiting = rig.ask(*names("slow", module.THREADS_PER_LANE + 2))
    assert len(rig.held) == module.THREADS_PER_LANE
    assert [lookup.is_queued for lookup in waiting[-3:]] == [False, True, True]
    rig.wheel.advance(60_000)
    assert len(rig.held) == module.THREADS_PER_LANE
    waiting[-2].cancel()
    rig.find("slow0")
    assert rig.begun[-1] == f"slow{module.THREADS_PER_LANE + 1}"


def test_all_threads_are_bounded(rig):
    for generation in range(10):
        batch = names(f"g{generation}x", module.THREADS_PER_LANE)
        for name in batch:
            rig.resolver._names[name] = module._Name(name)
            rig.resolver._names[name].answered = True
        rig.ask(*batch)
        rig.wheel.advance(module.LOOKUP_MS + 50)
    assert len(rig.held) == module.THREADS_MAX


def test_the_queue_is_bounded(rig):
    rig.ask(*names("slow", module.THREADS_PER_LANE + module.QUEUE_MAX))
    assert rig.take() == []
    rig.ask("one more")
    ((_, failure),) = rig.take()
    assert isinstance(failure, NoThreadError)


def test_names_remembered_are_bounded(rig):
    for name in names("n", module.NAMES_MAX + 10):
        rig.ask(name)
        rig.find(name)
    assert len(rig.resolver._names) == module.NAMES_MAX
    assert "n0" not in rig.resolver._names


def test_look_up_in_a_thread():
    async def main():
        loop = asyncio.get_running_loop()
        start = lookup_in_thread(loop)
        results = []
        for name in ("127.0.0.1", "a..b"):
            found = loop.create_future()
            start(name, found.set_result)
            results.append(await found)
        return results

    good, bad = asyncio.run(main())
    assert good == ("127.0.0.1",)
    assert isinstance(bad, OSError)


def test_no_thread_from_the_system(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)

    async def main():
        loop = asyncio.get_running_loop()
        found = loop.create_future()
        lookup_in_thread(loop)("127.0.0.1", found.set_result)
        return await found

    assert isinstance(asyncio.run(main()), NoThreadError)
