"""Logins that a service decides, over real sockets: bounded, remembered, and never open on failure."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from gantrymq.auth.audit import Audit
from gantrymq.auth.authority import Authority, Identity
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.failures import Failures
from gantrymq.auth.logins import AWAY, CROWDED, WRONG, Logins
from gantrymq.auth.outside.backend import Backend
from gantrymq.auth.resources import Action, Kind
from gantrymq.auth.rows import POLICIES, USERS, Policy, Rule, User, encode
from gantrymq.launch.authentication import _exchange_of
from gantrymq.metrics import Metrics
from gantrymq.model.errors import ConfigError
from gantrymq.net.testing import ManualClock, ManualWheel
from tests.auth.outside.service import Service, ok

Serve = Callable[[Any], Service]


@pytest.fixture
def serve() -> Iterator[Serve]:
    made: list[Service] = []

    def start(answer: Any) -> Service:
        made.append(Service(answer))
        return made[-1]

    yield start
    for each in made:
        each.close()


class World:
    """An authority that asks `url`."""

    def __init__(self, url: str, *users: User, **settings: Any) -> None:
        config = AuthConfig(http_url=url, **settings)
        self.wheel = ManualWheel(ManualClock())
        self.wall_ms = 1_000_000
        loop = asyncio.get_running_loop()
        self.logins = Logins(
            self.wheel, loop.call_soon_threadsafe, b"seed", verified_ms=0, waiting_max=config.logins_max,
            address_waiting_max=config.address_logins_max, failures=Failures(0, 0, 20),
        )  # fmt: skip
        audit = Audit(self.wheel, lambda: self.wall_ms, "test")
        self.authority = Authority(config, self.logins, lambda callback: callback(), audit)
        self.backend = Backend(config, self.logins, self.wheel, lambda: self.wall_ms, _exchange_of(config))
        self.authority.backend = self.backend
        self.backend.attach(self.authority.rights_changed)
        self.authority.load(USERS, {user.name: encode(user) for user in users})
        rules = {"group:devs": (Rule("topic:dev*", ("pub",)), Rule("topic:secret", ("all",), False))}
        self.authority.load(POLICIES, {name: encode(Policy(name, found)) for name, found in rules.items()})

    async def login(
        self, name: str, password: str = "pw", client_id: str = "c", address: str = "192.0.2.1:5"
    ) -> Identity | str:
        """Who it is, or why nobody."""
        done: asyncio.Future[Identity | str] = asyncio.get_running_loop().create_future()
        self.authority.login(name, password, client_id, address, lambda found, why: done.set_result(found or why))
        async with asyncio.timeout(20):
            return await done


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]


def decides(head: bytes, body: bytes) -> bytes:
    """Password `pw` is right."""
    said = {name: each[0] for name, each in parse_qs(body.decode(), keep_blank_values=True).items()}
    return ok(b"allow devs" if said["password"] == "pw" else b"deny")


def test_who_it_is_and_what_it_may(serve: Serve) -> None:
    service = serve(decides)

    async def work() -> None:
        world = World(service.url)
        alice = await world.login("alice")
        assert isinstance(alice, Identity)
        assert alice.decide(Action.PUB, Kind.TOPIC, "dev1").rule == "group:devs: allow pub on topic:dev*"
        assert not alice.may(Action.PUB, Kind.TOPIC, "x")
        assert not alice.is_admin
        assert (alice.came_with, alice.has_token) == ("HTTP back end", False)
        assert await world.login("bob", "wrong") == WRONG
        assert world.logins.failed == 1
        assert world.logins.waiting == 0

    run(work)
    head, body = service.asked[0]
    assert head.startswith(b"POST /user HTTP/1.0\r\nHost: 127.0.0.1:%d\r\n" % service.port)
    assert body == b"username=alice&password=pw&client_id=c&address=192.0.2.1"


def test_rules_of_the_answer_count_beside_ours_and_a_deny_wins(serve: Serve) -> None:
    said = (b'{"result": "allow", "groups": ["devs"], "rules": [{"resource": "mqtt:plant/%u/#", "actions": ["pub", "sub"]},'
            b'{"resource": "topic:secret", "actions": ["pub"]}, {"resource": "topic:dev9", "actions": ["all"], "allow": false}]}')  # fmt: skip
    service = serve(lambda head, body: ok(said))

    async def work() -> None:
        world = World(service.url, http_format="json")
        alice = await world.login("alice")
        assert isinstance(alice, Identity)
        found = alice.decide_mqtt(Action.PUB, "plant/alice/x", "plant")
        assert (found.allowed, found.rule) == (True, "HTTP back end for user alice: allow pub,sub on mqtt:plant/%u/#")
        assert not alice.decide_mqtt(Action.PUB, "plant/bob/x", "plant").allowed
        assert not alice.may(Action.PUB, Kind.TOPIC, "secret"), "our deny"
        assert not alice.may(Action.PUB, Kind.TOPIC, "dev9"), "its deny"
        assert alice.may(Action.PUB, Kind.TOPIC, "dev8")
        explained = world.authority.explained("alice", "", "127.0.0.1:0").decide_mqtt(
            Action.SUB, "plant/alice", "plant"
        )
        assert explained == found.__class__(True, found.rule)
        assert not world.authority.explained("bob", "", "127.0.0.1:0").alive

    run(work)
    assert b"Content-Type: application/json\r\n" in service.asked[0][0]


def test_accounts_here_are_not_asked_for_and_a_disabled_one_holds(serve: Serve) -> None:
    service = serve(lambda head, body: ok(b"allow"))

    async def work() -> None:
        world = World(service.url, User("root", admin=True), User("off", enabled=False))
        assert await world.login("root") == WRONG
        assert await world.login("off") == WRONG
        alice = await world.login("alice")
        assert isinstance(alice, Identity)
        assert service.asked
        assert not [body for _, body in service.asked if b"alice" not in body]
        world.authority.apply(USERS, "alice", encode(User("alice", enabled=False)))
        assert not alice.alive
        world.logins.close()

    run(work)


def test_what_was_said_is_remembered_for_a_while(serve: Serve) -> None:
    service = serve(decides)

    async def work() -> None:
        world = World(service.url, http_cached_max=2)
        for _ in range(3):
            assert isinstance(await world.login("alice"), Identity)
        assert len(service.asked) == 1
        assert await world.login("alice", "wrong") == WRONG
        assert len(service.asked) == 2, "another password is another question"
        assert isinstance(await world.login("alice", client_id="d"), Identity)
        assert isinstance(await world.login("alice", address="192.0.2.2:5"), Identity)
        assert len(service.asked) == 4, "so are client id and address"
        assert isinstance(await world.login("alice"), Identity)
        assert len(service.asked) == 5, "two are remembered"
        world.wheel.advance(60_001)
        assert isinstance(await world.login("alice"), Identity)
        assert len(service.asked) == 6
        metrics = Metrics()
        world.backend.show(metrics)
        page = metrics.render()
        assert 'gantry_auth_http_logins_total{result="allowed"} 5' in page
        assert 'gantry_auth_http_logins_total{result="denied"} 1' in page
        assert 'gantry_auth_http_logins_total{result="remembered"} 2' in page

    run(work)


def test_a_login_ends(serve: Serve) -> None:
    service = serve(lambda head, body: ok(b'{"result": "allow", "expires_s": 60, "groups": ["devs"]}'))

    async def work() -> None:
        world = World(service.url)
        alice = await world.login("alice")
        assert isinstance(alice, Identity)
        assert alice.ends_in_ms() == 60_000
        world.wall_ms += 60_000
        assert not alice.alive
        assert not alice.may(Action.PUB, Kind.TOPIC, "dev1")
        assert alice.farewell == "the login of user alice has expired"
        assert isinstance(await world.login("alice"), Identity)
        assert len(service.asked) == 2, "what has expired is not remembered"

    run(work)


MOVED = b"HTTP/1.1 302 Found\r\nlocation: %s\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "no answer in time"),
        (b"", "no HTTP answer"),
        (b"SSH-2.0-x\r\n\r\n", "no HTTP answer"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "no answer that can be read"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nallow", "not what its head says"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nallow root", "not what its head says"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nallow", "not what its head says"),
        (b"HTTP/1.1 500 Oops\r\n\r\nallow", "it answered with status 500"),
        (MOVED, "it answered with status 302"),
        (ok(b"allow " + b"x" * 2_000), "over 1024 bytes"),
        (ok(b"<html>allow</html>"), "no answer that can be read"),
    ],
)
def test_whatever_goes_wrong_lets_nobody_in(
    serve: Serve, answer: bytes | None, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = serve(lambda head, body: ok(b"allow"))
    now: list[bytes | None] = [MOVED % elsewhere.url.encode() if answer == MOVED else answer]
    service = serve(lambda head, body: now[0])

    async def work() -> None:
        world = World(service.url, http_timeout_ms=200 if answer is None else 10_000, http_answer_bytes_max=1024)
        for _ in range(2):
            assert await world.login("alice", "s3kret") == AWAY
        assert world.logins.failed == 0, "nobody's wrong password"
        assert world.logins.waiting == 0
        said = [each.message for each in caplog.records if each.levelno == logging.ERROR]
        assert len(said) == 1, said
        assert why in said[0]
        assert "s3kret" not in said[0]
        now[0] = ok(b"allow")
        assert isinstance(await world.login("alice", "s3kret"), Identity)
        assert [each.message for each in caplog.records][-1] == "auth.http_url: it answers again"

    with caplog.at_level(logging.INFO, "gantrymq.auth.outside"):
        run(work)
    assert not elsewhere.asked, "nothing is followed elsewhere"


def test_a_service_that_is_not_there(serve: Serve) -> None:
    service = serve(decides)
    service.close()

    async def work() -> None:
        assert await World(service.url).login("alice") == AWAY

    service.close = lambda: None  # type: ignore[method-assign]
    run(work)


def test_4xx_is_a_denial_of_its_user(serve: Serve) -> None:
    service = serve(lambda head, body: b"HTTP/1.1 403 Forbidden\r\n\r\nallow")

    async def work() -> None:
        world = World(service.url)
        assert await world.login("alice") == WRONG
        assert world.logins.failed == 1

    run(work)


def test_names_that_are_none_are_not_asked_for(serve: Serve) -> None:
    service = serve(lambda head, body: ok(b"allow"))

    async def work() -> None:
        world = World(service.url)
        for name in ("", "a/b", "#", "user:x", "a\nb", "x" * 300):
            assert await world.login(name) == WRONG
        assert not service.asked

    run(work)


def test_so_many_at_once_and_so_many_wait(serve: Serve) -> None:
    gate = threading.Event()

    def slow(head: bytes, body: bytes) -> bytes:
        gate.wait(20)
        return ok(b"allow")

    service = serve(slow)

    async def work() -> None:
        world = World(service.url, http_requests_max=3, address_logins_max=10, http_timeout_ms=20_000)
        several = [asyncio.ensure_future(world.login(f"u{number}")) for number in range(12)]
        done, _ = await asyncio.wait(several, return_when=asyncio.FIRST_COMPLETED)
        assert [each.result() for each in done] == [CROWDED, CROWDED]
        assert world.logins.waiting == 10
        await asyncio.to_thread(service.wait_for, 3)
        gate.set()
        found = await asyncio.gather(*several)
        assert sum(isinstance(each, Identity) for each in found) == 10
        assert world.logins.waiting == 0

    run(work)
    assert service.most == 3


def test_who_waits_too_long_for_the_others_is_not_let_in(serve: Serve) -> None:
    service = serve(lambda head, body: None)

    async def work() -> None:
        world = World(service.url, http_requests_max=1, http_timeout_ms=300)
        several = [asyncio.ensure_future(world.login(f"u{number}")) for number in range(5)]
        await asyncio.to_thread(service.wait_for, 1)
        world.wheel.advance(301)
        assert await asyncio.gather(*several) == [AWAY] * 5
        assert len(service.asked) == 1

    run(work)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"http_url": "http://192.0.2.1/user"}, "https"),
        ({"http_url": "ftp://127.0.0.1/user"}, "https"),
        ({"http_url": "https://a:b@auth.example/user"}, "without user and password"),
        ({"http_ca": "/nowhere/ca.pem"}, "No such file"),
        ({"http_header_file": "/nowhere/header"}, "No such file"),
    ],
)
def test_settings_that_are_wrong(settings: dict[str, str], why: str) -> None:
    config = AuthConfig(**{"http_url": "https://auth.example/user", **settings})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=why):
        _exchange_of(config)


def test_a_header_file_that_is_none_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "header").write_text("s3kret without a name")
    with pytest.raises(ConfigError, match="one line NAME: VALUE") as caught:
        _exchange_of(AuthConfig(http_url="https://h/", http_header_file=str(tmp_path / "header")))
    assert "s3kret" not in str(caught.value)


def test_its_certificate_must_be_of_these_cas_and_it_knows_who_asks(serve: Serve, tmp_path: Path) -> None:
    certificates = pytest.importorskip("gantrymq.cli.security.certificates")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made = certificates.Authority(tmp_path / name, 1)
        made.issue("server", "localhost", ["127.0.0.1"])
    service = serve(lambda head, body: ok(b"allow"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "one" / "server.pem", tmp_path / "one" / "server.key")
    server = service._server
    server.socket = context.wrap_socket(server.socket, server_side=True)
    (tmp_path / "header").write_text("X-Secret: s3kret\n")
    url = service.url.replace("http:", "https:")

    async def work() -> None:
        named = {"http_header_file": str(tmp_path / "header")}
        assert await World(url, http_ca=str(tmp_path / "two" / "ca.pem"), **named).login("alice") == AWAY
        assert not service.asked
        assert isinstance(await World(url, http_ca=str(tmp_path / "one" / "ca.pem"), **named).login("alice"), Identity)

    run(work)
    assert b"\r\nX-Secret: s3kret\r\n" in service.asked[0][0]


def test_the_service_of_the_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "operations" / "security.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("\n```")[0]
    names: dict[str, Any] = {}
    exec(code.rpartition("\n\n")[0], names)  # all but the line that never returns
    server = names["ThreadingHTTPServer"](("127.0.0.1", 0), names["Users"])
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    (tmp_path / "header").write_text("Authorization: Bearer the-key")

    async def work() -> None:
        url = f"http://127.0.0.1:{server.server_port}/"
        world = World(url, http_header_file=str(tmp_path / "header"), http_refresh_ms=60_000)
        press = await world.login("press-7", "change-me")
        assert isinstance(press, Identity)
        assert press.decide_mqtt(Action.PUB, "plant/press-7/x", "plant").allowed
        assert await world.login("press-7", "other") == WRONG
        world.wheel.advance(62_000)
        while not world.backend.refreshed:
            await asyncio.wait(world.backend._asking)
        assert world.backend.refreshed == {"same": 1}
        assert await world.login("nobody", "") == WRONG
        assert await World(url).login("press-7", "change-me") == WRONG

    try:
        run(work)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
