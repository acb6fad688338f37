"""Who is here is asked about again: what the service takes back or changes counts at once, and its silence for nothing."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Iterator
from urllib.parse import parse_qs

import pytest

from gantrymq.auth.authority import Identity
from gantrymq.auth.logins import WRONG
from gantrymq.auth.resources import Action, Kind
from gantrymq.metrics import Metrics
from tests.auth.outside.service import Service, ok
from tests.auth.outside.test_backend import World, run

EVERY_MS = 60_000


class Changing(Service):
    """Says what stands in `now` of each user, else `allow devs`."""

    def __init__(self) -> None:
        self.now: dict[str, bytes | None] = {}
        super().__init__(lambda head, body: self.now.get(parse_qs(body.decode())["username"][0], ok(b"allow devs")))


@pytest.fixture
def service() -> Iterator[Changing]:
    made = Changing()
    yield made
    made.close()


class Refreshed(World):
    """Asks again every minute."""

    def __init__(self, service: Service, **settings: object) -> None:
        super().__init__(service.url, **{"http_refresh_ms": EVERY_MS, **settings})
        self.told = 0
        self.authority.watch(self._on_change)

    def _on_change(self) -> None:
        self.told += 1

    async def come(self, name: str, **more: str) -> Identity:
        found = await self.login(name, **more)
        assert isinstance(found, Identity)
        return found

    async def refresh(self) -> None:
        """All who are due, and their answers."""
        self.wheel.advance(EVERY_MS + 1_100)
        while self.backend._asking:
            await asyncio.wait(self.backend._asking)
            await asyncio.sleep(0)


def pub(who: Identity, topic: str = "dev1") -> bool:
    return who.may(Action.PUB, Kind.TOPIC, topic)


def test_what_is_taken_back_ends_and_is_not_remembered(service: Changing) -> None:
    async def work() -> None:
        world = Refreshed(service, http_cache_ms=600_000)
        alice, bob = await world.come("alice"), await world.come("bob")
        assert pub(alice)
        service.now["alice"] = ok(b"deny")
        await world.refresh()
        assert not alice.alive
        assert not pub(alice)
        assert alice.farewell == "the login of user alice was withdrawn"
        assert pub(bob)
        assert world.told == 1
        assert await world.login("alice") == WRONG
        service.now["alice"] = ok(b"allow devs")
        again = await world.come("alice")
        assert pub(again)
        assert not pub(alice), "who was shown out comes again"
        await world.refresh()
        assert pub(again)
        metrics = Metrics()
        world.backend.show(metrics)
        page = metrics.render()
        assert 'gantry_auth_http_refreshes_total{result="withdrawn"} 1' in page
        assert 'gantry_auth_http_refreshes_total{result="same"} 3' in page

    run(work)
    again = [f"username={name}&client_id=c&address=192.0.2.1&refresh=true".encode() for name in ("alice", "bob")]
    assert sorted(body for _, body in service.asked[2:4]) == again, "no password; both are asked about at once"


def test_changed_rights_count_for_who_is_here_and_who_is_remembered(service: Changing) -> None:
    async def work() -> None:
        world = Refreshed(service, http_cache_ms=600_000)
        alice, twin = await world.come("alice"), await world.come("alice")
        service.now["alice"] = ok(b'{"result": "allow", "rules": [{"resource": "topic:new", "actions": ["pub"]}]}')
        await world.refresh()
        for each in (alice, twin, await world.come("alice"), world.authority.explained("alice", "", "127.0.0.1:0")):
            assert not pub(each)
            assert pub(each, "new")
        assert world.told == 1
        assert len(service.asked) == 2, "one question about both"

    run(work)


def test_no_answer_changes_nothing_and_is_said_once(service: Changing, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        world = Refreshed(service)
        several = [await world.come(f"u{number}") for number in range(3)]
        service.now.update({f"u{number}": b"HTTP/1.1 500 Oops\r\n\r\n" for number in range(3)})
        for _ in range(2):
            await world.refresh()
        assert all(pub(each) for each in several)
        assert world.backend.refreshed["failed"] == 6
        assert len([each for each in caplog.records if each.levelno == logging.ERROR]) == 1

    run(work)


def test_a_login_ends_earlier_if_so_said_and_never_later(service: Changing) -> None:
    async def work() -> None:
        service.now["bob"] = ok(b'{"result": "allow", "groups": ["devs"], "expires_s": 100}')
        world = Refreshed(service)
        alice, bob = await world.come("alice"), await world.come("bob")
        service.now["alice"] = ok(b'{"result": "allow", "groups": ["devs"], "expires_s": 30}')
        service.now["bob"] = ok(b'{"result": "allow", "groups": ["devs"], "expires_s": 1000}')
        await world.refresh()
        assert pub(alice)
        assert pub(bob)
        assert alice.ends_in_ms() == 30_000
        assert bob.ends_in_ms() == 100_000
        told = world.told
        world.wall_ms += 30_000
        world.wheel.advance(30_100)
        assert world.told == told + 1, "doors look again"
        assert not alice.alive
        assert pub(bob)

    run(work)


def test_who_has_gone_is_not_asked_about(service: Changing) -> None:
    async def work() -> None:
        world = Refreshed(service)
        alice, bob = await world.come("alice"), await world.come("bob")
        assert len(world.backend._refreshing) == 2
        del alice
        gc.collect()
        assert len(world.backend._refreshing) == 1
        await world.refresh()
        assert [body.split(b"&")[0] for _, body in service.asked[2:]] == [b"username=bob"]
        assert pub(bob)

    run(work)


def test_logins_have_half_of_the_places(service: Changing) -> None:
    gate = threading.Event()

    async def work() -> None:
        world = Refreshed(service, http_requests_max=4, http_timeout_ms=20_000)
        here = [await world.come(f"u{number}") for number in range(8)]

        def slow(head: bytes, body: bytes) -> bytes:
            if b"refresh" in body:
                gate.wait(20)
            return ok(b"allow devs")

        service.answer = slow
        world.wheel.advance(EVERY_MS + 1_100)
        assert isinstance(await world.login("new"), Identity), "it does not wait for them"
        assert world.backend._asking_again == 2
        gate.set()
        while world.backend._asking:
            await asyncio.wait(world.backend._asking)
            await asyncio.sleep(0)
        assert world.backend.refreshed["same"] == 8
        assert all(pub(each) for each in here)

    run(work)


def test_off_by_default(service: Changing) -> None:
    async def work() -> None:
        world = Refreshed(service, http_refresh_ms=0)
        alice = await world.come("alice")
        await world.refresh()
        assert pub(alice)
        assert len(service.asked) == 1

    run(work)
