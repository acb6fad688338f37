"""The pump over real sockets, with time in the test's hand."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from gantrymq.net.api import Link
from gantrymq.net.held.limits import PumpLimits
from gantrymq.net.held.outbound import Pieces, gathered
from gantrymq.net.held.rates import RateLimits
from gantrymq.net.listen import Listener, ListenError, listen
from gantrymq.net.loopback import networks_of, peer_name
from gantrymq.net.places import Place
from gantrymq.net.process.host import PumpHost
from gantrymq.net.pump import Pump
from gantrymq.net.testing import ManualClock, ManualWheel
from gantrymq.net.turn import LoopTurn


class EchoDoor:
    """Echoes; `boom` makes it raise, `bye` makes it close after an answer."""

    def __init__(self) -> None:
        self.link: Link
        self.out: list[bytes] = []
        self.in_pieces = False
        self.kept_bytes = self.frame = self.missing = 0
        self.seen = bytearray()
        self.events: list[str] = []
        self.keeps_eof = False

    def connected(self, link: Link) -> None:
        self.link = link

    def received(self, data: bytes) -> None:
        self.seen += data
        if b"boom" in data:
            raise ValueError("boom")
        self.out.append(data)
        self.link.mark()
        if b"bye" in data:
            self.link.close()

    def inbound_bytes(self) -> int:
        return self.kept_bytes

    def unfinished(self) -> int:
        return self.frame

    def missing_bytes(self) -> int:
        return self.missing

    def overdue(self, why: str, busy: bool) -> None:
        self.events.append(f"overdue:{busy}:{why}")
        self.kept_bytes = self.frame = 0
        self.out.append(b"too late")
        self.link.close()

    def data_to_send(self) -> Pieces:
        data = gathered(self.out) if self.in_pieces else b"".join(self.out)
        self.out.clear()
        return data

    def eof(self) -> bool:
        self.events.append("eof")
        return self.keeps_eof

    def closed(self, reason: str) -> None:
        self.events.append(f"closed:{reason}")

    def writable(self) -> None:
        self.events.append("writable")

    def deadline(self, now_ms: int) -> None:
        self.events.append(f"deadline:{now_ms}")

    def shutdown(self) -> None:
        self.out.append(b"goodbye")
        self.link.close()


class Bench:
    """A listener with echo doors on a running loop; the wheel stands still."""

    def __init__(self, limits: PumpLimits | None = None) -> None:
        self.clock = ManualClock()
        self.wheel = ManualWheel(self.clock)
        self.turn = LoopTurn(asyncio.get_running_loop().call_soon)
        self.host = PumpHost(self.turn, self.wheel, limits or PumpLimits())
        self.doors: list[EchoDoor] = []
        self.listener: Listener
        self.sockets: list[socket.socket] = []

    async def __aenter__(self) -> Bench:
        self.listener = await listen(self.host, self.make, Place("127.0.0.1", 0))
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.sockets:
            client.close()
        self.listener.close()
        self.listener.abort_connections()
        await until(lambda: self.listener.connections == 0)

    def make(self) -> EchoDoor:
        self.doors.append(EchoDoor())
        return self.doors[-1]

    async def connect(self, receive_buffer: int = 0) -> socket.socket:
        client = socket.socket()
        if receive_buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.setblocking(False)
        self.sockets.append(client)
        before = self.host.traffic.accepted + self.host.traffic.refused
        await asyncio.get_running_loop().sock_connect(client, self.listener.address)
        await until(lambda: self.host.traffic.accepted + self.host.traffic.refused > before)
        return client


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition of this process."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # the conditions are of sockets, which set no event
            await asyncio.sleep(0)


async def read(client: socket.socket, size: int = 65536) -> bytes:
    async with asyncio.timeout(30):
        return await asyncio.get_running_loop().sock_recv(client, size)


async def send(client: socket.socket, data: bytes) -> None:
    async with asyncio.timeout(30):
        await asyncio.get_running_loop().sock_sendall(client, data)


def on_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on uvloop."""

    def run() -> None:
        uvloop.run(test())  # type: ignore[arg-type]

    run.__name__ = test.__name__
    return run


@on_loop
async def test_echo_and_peer_name() -> None:
    async with Bench() as bench:
        client = await bench.connect()
        await send(client, b"hello")
        assert await read(client) == b"hello"
        assert bench.doors[0].link.peer == f"127.0.0.1:{client.getsockname()[1]}"
        assert bench.doors[0].link.peer_is_loopback
        assert bench.host.traffic.bytes_in == bench.host.traffic.bytes_out == 5


@on_loop
async def test_one_write_per_turn_and_no_delay() -> None:
    async with Bench() as bench:
        client = await bench.connect()
        door = bench.doors[0]
        pump = door.link
        assert isinstance(pump, Pump)
        real = pump._transport
        assert real is not None
        accepted = real.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 120
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        writes: list[bytes] = []

        class Counting:
            def write(self, data: bytes) -> None:
                writes.append(data)

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        pump._transport = Counting()  # type: ignore[assignment]
        for part in (b"a", b"b", b"c"):
            pump.data_received(part)
            pump.mark()
        assert writes == []
        await until(lambda: writes)
        assert writes == [b"abc"]
        pump._transport = real
        await send(client, b"x")
        assert await read(client) == b"x"


@on_loop
async def test_a_door_that_raises_closes_only_itself() -> None:
    async with Bench() as bench:
        good, bad = await bench.connect(), await bench.connect()
        await send(bad, b"boom")
        await until(lambda: bench.doors[1].events)
        await send(good, b"still here")
        assert await read(good) == b"still here"
        assert bench.doors[1].events == ["closed:ValueError: boom"]
        assert bench.host.traffic.failed == 1
        assert bench.listener.connections == 1


@on_loop
async def test_close_writes_the_outbox_then_ends_and_reads_nothing_more() -> None:
    async with Bench() as bench:
        client = await bench.connect()
        await send(client, b"bye")
        assert await read(client) == b"bye"
        assert await read(client) == b""
        door = bench.doors[0]
        await send(client, b"more")  # no reset: the peer may still be sending when it reads our last words
        assert door.events == []
        client.close()
        await until(lambda: door.events)
        assert door.events == ["closed:"]
        assert bytes(door.seen) == b"bye"


@on_loop
async def test_a_peer_that_does_not_close_is_waited_for_no_longer_than_linger_ms() -> None:
    async with Bench() as bench:
        client = await bench.connect()
        await send(client, b"bye")
        assert await read(client) == b"bye"
        assert await read(client) == b""
        door = bench.doors[0]
        pump = door.link
        assert isinstance(pump, Pump)
        await until(lambda: pump._waiting() == 0)  # the peer's kernel acknowledges our end when it likes
        bench.wheel.advance(2 * bench.host.limits.linger_ms)
        await until(lambda: door.events)
        assert door.events == ["closed:"]
        assert client.fileno() >= 0


@on_loop
async def test_half_closed_peer_gets_its_answers_and_is_closed() -> None:
    async with Bench() as bench:
        client = await bench.connect()
        await send(client, b"last")
        client.shutdown(socket.SHUT_WR)
        assert await read(client) == b"last"
        assert await read(client) == b""
        await until(lambda: len(bench.doors[0].events) == 2)
        assert bench.doors[0].events == ["eof", "closed:"]


@on_loop
async def test_a_door_may_keep_a_half_closed_link() -> None:
    async with Bench() as bench:
        client = await bench.connect()
        door = bench.doors[0]
        door.keeps_eof = True
        client.shutdown(socket.SHUT_WR)
        await until(lambda: door.events == ["eof"])
        door.out.append(b"late answer")
        door.link.mark()
        assert await read(client) == b"late answer"
        door.link.close()
        assert await read(client) == b""
        await until(lambda: door.events == ["eof", "closed:"])


@on_loop
async def test_stalled_reader_is_closed_and_a_slow_one_is_not() -> None:
    limits = PumpLimits(stalled_reader_ms=30_000)
    async with Bench(limits) as bench:
        stalled, slow = await bench.connect(4096), await bench.connect(4096)
        for door in bench.doors:
            door.out.append(b"x" * 8_000_000)
            door.link.mark()
        await until(lambda: all(door.link.outbound_bytes() for door in bench.doors))
        for _ in range(10):
            for _ in range(20):
                assert await read(slow)
            bench.wheel.advance(7_500)
            await asyncio.sleep(0)
        assert bench.doors[0].events[0].startswith("closed:stalled reader")
        assert bench.doors[1].events == []
        assert bench.host.traffic.stalled == 1
        stalled.close()


@on_loop
async def test_writable_follows_when_a_slow_reader_has_read() -> None:
    async with Bench() as bench:
        client = await bench.connect(4096)
        door = bench.doors[0]
        door.out.append(b"x" * 8_000_000)
        door.link.mark()
        await until(door.link.outbound_bytes)
        assert door.events == []
        got = 0
        while got < 8_000_000:
            got += len(await read(client, 1 << 20))
        await until(lambda: door.events == ["writable"])
        bench.wheel.advance(120_000)  # and nobody calls it stalled later
        await asyncio.sleep(0)
        assert door.events == ["writable"]
        assert door.link.outbound_bytes() == 0


@on_loop
async def test_a_peer_that_does_not_read_is_not_read_from_and_is_cut_off_at_the_ceiling() -> None:
    limits = PumpLimits(outbound_bytes_max=1_000_000, outbound_bytes_ceiling=20_000_000)
    async with Bench(limits) as bench:
        client = await bench.connect(4096)
        door = bench.doors[0]
        door.out.append(b"x" * 12_000_000)
        door.link.mark()
        await until(door.link.outbound_bytes)
        await send(client, b"request")
        for _ in range(20):
            await asyncio.sleep(0)
        assert bytes(door.seen) == b""
        door.out.append(b"x" * 12_000_000)
        door.link.mark()
        await until(lambda: door.events)
        assert "outbound_bytes_ceiling" in door.events[0]


@on_loop
async def test_many_slow_readers_stay_within_the_limit_of_the_process() -> None:
    limits = PumpLimits(outbound_bytes_process_max=18_000_000)
    async with Bench(limits) as bench:
        for _ in range(3):
            await bench.connect(4096)
        for door, size in zip(bench.doors, (8_000_000, 12_000_000, 7_000_000), strict=True):
            door.out.append(b"x" * size)
            door.link.mark()
        await until(lambda: bench.doors[1].events)
        assert "outbound_bytes_process_max" in bench.doors[1].events[0]
        assert bench.doors[0].events == bench.doors[2].events == []
        assert bench.host.ledger.held_bytes <= limits.outbound_bytes_process_max
        for door in bench.doors:
            door.link.abort()
        await until(lambda: bench.listener.connections == 0)
        assert (bench.host.ledger.held_bytes, bench.host.holding) == (0, set())


@on_loop
async def test_a_payload_that_many_slow_readers_get_counts_once() -> None:
    limits = PumpLimits(outbound_bytes_process_max=18_000_000)
    async with Bench(limits) as bench:
        for _ in range(5):
            await bench.connect(4096)
        payload = b"x" * 12_000_000
        for door in bench.doors:
            door.in_pieces = True
            door.out += [b"head", payload]
            door.link.mark()
        await until(lambda: all(door.link.outbound_bytes() for door in bench.doors))
        assert bench.host.ledger.held_bytes == 12_000_000 + 5 * 4
        assert [door.events for door in bench.doors] == [[]] * 5
        assert bench.doors[0].link.is_pressed()
        bench.doors[0].out.append(b"y" * 7_000_000)
        bench.doors[0].link.mark()
        await until(lambda: bench.doors[0].events)
        assert "outbound_bytes_process_max" in bench.doors[0].events[0]
        assert [door.events for door in bench.doors[1:]] == [[]] * 4
        for client in bench.sockets[1:]:
            got = 0
            while got < len(payload) + 4:
                got += len(await read(client, 1 << 20))
        await until(lambda: all(not door.link.outbound_bytes() for door in bench.doors))
        assert not bench.doors[1].link.is_pressed()
        assert (bench.host.ledger.held_bytes, bench.host.holding) == (0, set())


@on_loop
async def test_what_is_held_of_a_large_write_is_looked_at_again() -> None:
    """It may be taken without a word from the transport, which tells only those whom it had called slow."""
    async with Bench() as bench:
        client = await bench.connect()
        door = bench.doors[0]
        door.in_pieces = True
        door.out.append(b"x" * 2_000_000)
        door.link.mark()
        got = 0
        while got < 2_000_000:
            got += len(await read(client, 1 << 20))
        await until(lambda: not door.link.outbound_bytes())
        bench.wheel.advance(60_000)
        assert (bench.host.ledger.held_bytes, bench.host.holding) == (0, set())
        assert bench.doors[0].events in ([], ["writable"])


async def begin(bench: Bench, client: socket.socket, door: EchoDoor, kept_bytes: int, frame: int) -> None:
    """The peer begins a frame, of which so much is held."""
    door.kept_bytes, door.frame = kept_bytes, frame
    seen = len(door.seen)
    await send(client, b"part")
    await until(lambda: len(door.seen) > seen)


@on_loop
async def test_a_frame_that_trickles_is_ended_and_one_that_ends_is_not() -> None:
    async with Bench(PumpLimits(frame_timeout_ms=4_000)) as bench:
        slow, quick = await bench.connect(), await bench.connect()
        trickling, sending = bench.doors
        await begin(bench, slow, trickling, 10, 7)
        await begin(bench, quick, sending, 10, 1)
        for second in range(1, 4):
            bench.wheel.advance(1_000)
            await begin(bench, slow, trickling, 10 + second, 7)
            await begin(bench, quick, sending, 10, 1 + second)
        assert bench.host.inbound.held_bytes == 13 + 10
        assert trickling.events == sending.events == []
        bench.wheel.advance(1_100)
        assert [event.split(":")[:2] for event in trickling.events] == [["overdue", "False"]]
        assert "server.frame_timeout_ms" in trickling.events[0]
        assert bench.host.inbound.held_bytes == 10
        assert await read(slow) == b"part" * 4 + b"too late"
        bench.wheel.advance(2_000)
        assert sending.events == []
        sending.kept_bytes = sending.frame = 0
        await send(quick, b"end")
        await until(lambda: bench.host.inbound.held_bytes == 0)
        bench.wheel.advance(60_000)
        assert sending.events == []
        assert bench.host.inbound.receiving == set()


@on_loop
async def test_time_in_which_we_do_not_read_is_not_the_peers() -> None:
    async with Bench(PumpLimits(frame_timeout_ms=4_000)) as bench:
        client = await bench.connect()
        (door,) = bench.doors
        await begin(bench, client, door, 10, 7)
        door.link.pause_reading()
        bench.wheel.advance(60_000)
        assert door.events == []
        door.link.resume_reading()
        bench.wheel.advance(5_100)
        assert door.events[0].startswith("overdue:False")


@on_loop
async def test_over_the_bound_those_whose_bytes_were_held_longest_go() -> None:
    limits = PumpLimits(inbound_bytes_process_max=100_000, frame_timeout_ms=120_000)
    async with Bench(limits) as bench:
        clients = [await bench.connect() for _ in range(4)]
        for client, door, kept_bytes in zip(clients[:3], bench.doors, (30_000, 20_000, 30_000), strict=False):
            await begin(bench, client, door, kept_bytes, 1)
            bench.wheel.advance(5_000)
        assert bench.host.inbound.held_bytes == 80_000
        await begin(bench, clients[3], bench.doors[3], 60_000, 1)
        assert bench.doors[0].events[0].startswith("overdue:True")
        assert "server.inbound_bytes_process_max" in bench.doors[0].events[0]
        assert bench.doors[1].events[0].startswith("overdue:True"), "20,000 bytes for 10 s count more than 30,000 for 5"
        assert bench.doors[2].events == bench.doors[3].events == []
        assert bench.host.inbound.held_bytes == 90_000
        for client in clients:
            client.close()
        await until(lambda: bench.listener.connections == 0)
        assert (bench.host.inbound.held_bytes, bench.host.inbound.receiving) == (0, set())
        assert bench.host.inbound.shown_out == 2


@on_loop
async def test_who_is_shown_out_and_takes_nothing_is_not_waited_for() -> None:
    limits = PumpLimits(frame_timeout_ms=4_000, stalled_reader_ms=600_000, linger_ms=1_000)
    async with Bench(limits) as bench:
        client = await bench.connect(4096)
        (door,) = bench.doors
        door.out.append(b"x" * 8_000_000)
        await begin(bench, client, door, 10, 7)
        await until(lambda: bench.host.ledger.held_bytes > 0)
        bench.wheel.advance(5_100)
        assert door.events[0].startswith("overdue:False")
        await asyncio.sleep(0)  # the write phase with its last words
        assert bench.host.ledger.held_bytes > 0
        bench.wheel.advance(1_100)
        await until(lambda: bench.listener.connections == 0)
        assert bench.host.ledger.held_bytes == 0
        assert door.events[1].startswith("closed:stalled reader")


@on_loop
async def test_pause_and_resume_reading() -> None:
    async with Bench() as bench:
        client = await bench.connect()
        door = bench.doors[0]
        door.link.pause_reading()
        door.link.pause_reading()
        await send(client, b"waits")
        for _ in range(20):
            await asyncio.sleep(0)
        assert bytes(door.seen) == b""
        door.link.resume_reading()
        assert await read(client) == b"waits"


@on_loop
async def test_deadline_is_one_per_link_and_movable() -> None:
    async with Bench() as bench:
        await bench.connect()
        door = bench.doors[0]
        start_ms = bench.clock.mono_ms
        door.link.set_deadline(start_ms + 1_000)
        door.link.set_deadline(start_ms + 5_000)  # put off
        bench.wheel.advance(4_000)
        assert door.events == []
        bench.wheel.advance(1_000)
        assert door.events == [f"deadline:{start_ms + 5_000}"]
        door.link.set_deadline(start_ms + 60_000)
        door.link.set_deadline(start_ms + 6_000)  # brought forward
        bench.wheel.advance(1_000)
        assert door.events[1:] == [f"deadline:{start_ms + 6_000}"]
        door.link.set_deadline(start_ms + 7_000)
        door.link.set_deadline(None)
        bench.wheel.advance(100_000)
        assert len(door.events) == 2


@on_loop
async def test_connections_max_refuses_and_recovers() -> None:
    async with Bench(PumpLimits(connections_max=2)) as bench:
        first, _ = await bench.connect(), await bench.connect()
        third = await bench.connect()
        assert await read(third) == b""
        assert bench.host.traffic.refused == 1
        first.close()
        await until(lambda: bench.listener.connections == 1)
        fourth = await bench.connect()
        await send(fourth, b"ok")
        assert await read(fourth) == b"ok"


@on_loop
async def test_one_door_leaves_room_at_the_others() -> None:
    async with Bench(PumpLimits(connections_max=4, door_connections_max=2)) as bench:
        other = await listen(bench.host, bench.make, Place("127.0.0.1", 0))
        first, _ = await bench.connect(), await bench.connect()
        assert await read(await bench.connect()) == b""
        assert bench.host.traffic.refused == 1
        reader, writer = await asyncio.open_connection(*other.address)
        writer.write(b"ok")
        assert await reader.readexactly(2) == b"ok"
        first.close()
        await until(lambda: bench.listener.connections == 1)
        again = await bench.connect()
        await send(again, b"ok")
        assert await read(again) == b"ok"
        writer.close()
        other.close()
        other.abort_connections()


@on_loop
async def test_shutdown_lets_every_door_say_goodbye() -> None:
    async with Bench() as bench:
        clients = [await bench.connect() for _ in range(3)]
        bench.listener.close()
        bench.listener.shutdown_connections()
        for client in clients:
            assert await read(client) == b"goodbye"
            assert await read(client) == b""
            client.close()
        await until(lambda: bench.listener.connections == 0)


@on_loop
async def test_abort_ends_at_once_and_the_link_is_harmless_afterwards() -> None:
    async with Bench() as bench:
        await bench.connect()
        door = bench.doors[0]
        door.link.abort()
        await until(lambda: door.events == ["closed:"])
        door.link.mark()
        door.link.close()
        door.link.abort()
        door.link.pause_reading()
        door.link.resume_reading()
        door.link.set_deadline(bench.clock.mono_ms + 100)
        bench.wheel.advance(1_000)
        assert door.link.outbound_bytes() == 0
        assert door.events == ["closed:"]


@on_loop
async def test_port_in_use_is_one_line() -> None:
    async with Bench() as bench:
        host, port = bench.listener.address
        with pytest.raises(ListenError) as caught:
            await listen(bench.host, bench.make, Place(host, port))
        assert (
            caught.value.strerror == f"cannot listen on {host}:{port}: the port is in use (is another gantry running?)"
        )


def test_peer_names() -> None:
    assert peer_name(("127.0.0.1", 5)) == ("127.0.0.1:5", True)
    assert peer_name(("192.0.2.1", 5)) == ("192.0.2.1:5", False)
    assert peer_name(("::1", 5, 0, 0)) == ("[::1]:5", True)
    assert peer_name(("2001:db8::1", 5, 0, 0)) == ("[2001:db8::1]:5", False)
    assert peer_name(("::ffff:127.0.0.1", 5, 0, 0)) == ("[::ffff:127.0.0.1]:5", True)
    assert peer_name("/tmp/socket") == ("unix", True)


class Elsewhere:
    """A transport whose peer is at some address."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.closed = False

    def get_extra_info(self, name: str) -> Any:
        return {"peername": (self.host, 5), "sockname": ("192.0.2.99", 6)}.get(name)

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        """Nothing is written."""

    def close(self) -> None:
        self.closed = True


def test_one_address_has_its_part_of_the_connections() -> None:
    limits = PumpLimits(address_connections_max=2, trusted_networks=networks_of("198.51.100.0/24"))
    host = PumpHost(LoopTurn(lambda run: None), ManualWheel(ManualClock()), limits)
    live: set[Pump] = set()

    def come(address: str) -> tuple[Pump, bool]:
        pump, transport = Pump(host, EchoDoor, live), Elsewhere(address)
        pump.connection_made(transport)  # type: ignore[arg-type]
        return pump, not transport.closed

    first, _ = come("192.0.2.1")
    assert [come("192.0.2.1")[1] for _ in range(3)] == [True, False, False]
    assert host.traffic.refused == 2
    assert come("192.0.2.2")[1]
    assert all(come("198.51.100.7")[1] and come("127.0.0.1")[1] and come("192.0.2.99")[1] for _ in range(5))
    first.connection_lost(None)
    assert [come("192.0.2.1")[1] for _ in range(2)] == [True, False]
    for pump in list(live):
        pump.connection_lost(None)
    assert (host.traffic.connections, len(host.addresses)) == (0, 0)


@on_loop
async def test_reading_pauses_for_what_is_more_than_a_users_rate() -> None:
    async with Bench(PumpLimits(user_rates=RateLimits(connections_max=2, bytes_per_s=1_000))) as bench:
        clients = [await bench.connect() for _ in range(3)]
        refused = "auth.user_connections_max (2) is reached"
        assert [door.link.known("alice") for door in bench.doors] == ["", "", refused]
        assert bench.doors[2].link.known("bob") == ""
        first, second, third = bench.doors
        await send(clients[0], b"x" * 3_000)
        await until(lambda: first.seen)
        first.link.set_deadline(bench.clock.monotonic_ms() + 500)
        await send(clients[0], b"late")
        await send(clients[2], b"other")
        await until(lambda: bytes(third.seen) == b"other")
        bench.wheel.advance(1_500)
        await asyncio.sleep(0)
        assert not [event for event in first.events if event.startswith("deadline")], "it is we who do not read"
        assert len(first.seen) <= 3_000
        bench.wheel.advance(600)
        await until(lambda: len(first.seen) == 3_004)
        clients[0].close()
        await until(lambda: bench.listener.connections == 2)
        assert second.link.known("alice") == "", "it is counted once"
        assert bench.host.user_rates.come("alice", "peer")[1] == ""


def test_connections_of_an_address_above_its_rate_are_refused() -> None:
    limits = PumpLimits(address_rates=RateLimits(connects_per_s=2), trusted_networks=networks_of("198.51.100.0/24"))
    clock = ManualClock()
    host = PumpHost(LoopTurn(lambda run: None), ManualWheel(clock), limits)
    live: set[Pump] = set()

    def come(address: str) -> bool:
        pump, transport = Pump(host, EchoDoor, live), Elsewhere(address)
        pump.connection_made(transport)  # type: ignore[arg-type]
        pump.connection_lost(None)
        return not transport.closed

    assert [come("192.0.2.1") for _ in range(4)] == [True, True, False, False]
    assert come("192.0.2.2")
    assert all(come("198.51.100.7") and come("127.0.0.1") for _ in range(5))
    assert (host.traffic.refused, host.address_rates.refused, len(host.addresses)) == (2, 2, 0)
    clock.advance(1_000)
    assert come("192.0.2.1")
