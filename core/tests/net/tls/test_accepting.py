"""Ports with TLS, with real sockets: who comes in, who does not, and how long they may take."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from gantrymq.net.held.limits import PumpLimits
from gantrymq.net.listen import Listener, listen
from gantrymq.net.places import parse_place
from gantrymq.net.process.host import PumpHost
from gantrymq.net.testing import ManualClock, ManualWheel
from gantrymq.net.tls.contexts import Context, TlsConfig
from gantrymq.net.turn import LoopTurn
from tests.net.test_pump import EchoDoor
from tests.net.tls.certs import client_context, make_certificates


class Bench:
    def __init__(self, certs: Path) -> None:
        self.certs = certs
        self.doors: list[EchoDoor] = []
        self.host: PumpHost
        self.context: Context
        self.listener: Listener

    def make(self) -> EchoDoor:
        self.doors.append(EchoDoor())
        return self.doors[-1]

    @asynccontextmanager
    async def open(self, scheme: str, limits: PumpLimits | None = None, **settings: object) -> AsyncIterator[None]:
        config = TlsConfig(
            str(self.certs / "server.pem"), str(self.certs / "server.key"), client_ca=str(self.certs / "ca.pem"),
            **settings,  # type: ignore[arg-type]
        )  # fmt: skip
        turn = LoopTurn(asyncio.get_running_loop().call_soon)
        self.host = PumpHost(turn, ManualWheel(ManualClock()), limits or PumpLimits())
        self.context = Context(config, ["echo"])
        place = parse_place(f"{scheme}://127.0.0.1:0")
        self.listener = await listen(self.host, self.make, place, self.context)
        try:
            yield
        finally:
            self.listener.close()
            self.listener.abort_connections()
            await asyncio.sleep(0)

    async def connect(self, context: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self.listener.address
        return await asyncio.open_connection(host, port, ssl=context, server_hostname="localhost" if context else None)

    async def echo(self, context: ssl.SSLContext | None, text: bytes = b"hello") -> bytes:
        reader, writer = await self.connect(context)
        writer.write(text)
        answer = await reader.readexactly(len(text))
        writer.close()
        return answer


Scenario = Callable[[Bench], Awaitable[None]]


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls") / "certs", "sensor-1", "a,b")


@pytest.fixture
def run(certs: Path) -> Callable[[Scenario], None]:
    async def limited(scenario: Scenario) -> None:
        async with asyncio.timeout(30):
            await scenario(Bench(certs))

    def runs(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(limited(scenario))

    return runs


def test_tls_only(run: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.open("tls"):
            assert await bench.echo(client_context(bench.certs)) == b"hello"
            assert await bench.echo(client_context(bench.certs), b"x" * 300_000) == b"x" * 300_000
            assert bench.doors[0].link.is_encrypted
            assert bench.doors[0].link.peer_certificate is None
            reader, writer = await bench.connect(None)
            writer.write(b"hello")
            assert not (await reader.read()).startswith(b"hello")
            writer.close()
            assert len(bench.doors) == 2

    run(scenario)


def test_both_on_one_port(run: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.open("any"):
            assert await bench.echo(None) == b"hello"
            assert await bench.echo(client_context(bench.certs)) == b"hello"
            assert [door.link.is_encrypted for door in bench.doors] == [False, True]

    run(scenario)


@pytest.mark.parametrize("kind", ["optional", "required"])
def test_client_certificates(run: Callable[[Scenario], None], kind: str) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.open("tls", client_cert=kind):
            assert await bench.echo(client_context(bench.certs, "sensor-1")) == b"hello"
            found = bench.doors[0].link.peer_certificate
            assert found is not None
            assert (found.common_name, found.subject) == ("sensor-1", "CN=sensor-1")
            assert len(found.fingerprint) == 64
            await bench.echo(client_context(bench.certs, "a,b"))
            odd = bench.doors[1].link.peer_certificate
            assert odd is not None
            assert odd.subject == r"CN=a\,b"
            if kind == "optional":
                assert await bench.echo(client_context(bench.certs)) == b"hello"
                assert bench.doors[2].link.peer_certificate is None
            else:
                with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                    await bench.echo(client_context(bench.certs))
                assert len(bench.doors) == 2

    run(scenario)


def test_a_certificate_of_somebody_else_is_refused(run: Callable[[Scenario], None], tmp_path: Path) -> None:
    strangers = make_certificates(tmp_path / "strangers", "sensor-1")

    async def scenario(bench: Bench) -> None:
        async with bench.open("tls", client_cert="optional"):
            context = client_context(bench.certs)
            context.load_cert_chain(strangers / "sensor-1.pem", strangers / "sensor-1.key")
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await bench.echo(context)
            assert not bench.doors

    run(scenario)


def test_old_versions_are_refused_and_alpn_is_answered(run: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.open("tls"):
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                context = client_context(bench.certs)
                context.minimum_version = context.maximum_version = version
                context.set_alpn_protocols(["other", "echo"])
                _, writer = await bench.connect(context)
                assert writer.get_extra_info("ssl_object").version() == version.name.replace("_", ".").replace(
                    "V", "v", 1
                )
                assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "echo"
                writer.close()
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
            with pytest.warns(DeprecationWarning, match="TLSv1_1"):
                old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await bench.connect(old)

    run(scenario)


@pytest.mark.parametrize("scheme", ["tls", "any"])
def test_who_says_nothing_is_closed(run: Callable[[Scenario], None], scheme: str) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.open(scheme, handshake_ms=100):
            reader, writer = await bench.connect(None)
            assert await reader.read() == b""
            writer.close()
            assert bench.host.traffic.refused == 1
            assert not bench.doors

    run(scenario)


def test_handshakes_are_bounded_and_the_next_one_waits(run: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.open("tls", handshakes_max=2):
            idle = [await bench.connect(None) for _ in range(2)]
            waiting = asyncio.create_task(bench.echo(client_context(bench.certs)))
            done, _ = await asyncio.wait([waiting], timeout=0.1)
            assert not done
            for _, writer in idle:
                writer.close()
            assert await waiting == b"hello"

    run(scenario)


def test_too_many_connections_are_refused_before_the_handshake(run: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.open("tls", PumpLimits(connections_max=1)):
            reader, writer = await bench.connect(client_context(bench.certs))
            writer.write(b"in")
            await reader.readexactly(2)
            with pytest.raises((ssl.SSLError, OSError)):
                await bench.connect(client_context(bench.certs))
            writer.close()

    run(scenario)


def test_a_new_certificate_is_for_new_connections(run: Callable[[Scenario], None], tmp_path: Path) -> None:
    certs = make_certificates(tmp_path / "own")

    async def scenario(_: Bench) -> None:
        bench = Bench(certs)
        async with bench.open("tls"):
            context = client_context(certs)
            reader, writer = await bench.connect(context)
            before = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            make_certificates(certs)
            assert bench.context.reload()
            _, second = await bench.connect(context)
            assert second.get_extra_info("ssl_object").getpeercert(binary_form=True) != before
            writer.write(b"still here")
            assert await reader.readexactly(10) == b"still here"
            writer.close()
            second.close()

    run(scenario)


def test_closing_ends_handshakes(run: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.open("any"):
            reader, writer = await bench.connect(None)
            bench.listener.close()
            assert await reader.read() == b""
            writer.close()
            with pytest.raises(ConnectionRefusedError), socket.create_connection(bench.listener.address, 1):
                pass

    run(scenario)
