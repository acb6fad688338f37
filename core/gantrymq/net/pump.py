"""The only code that touches a connected socket: one `Pump` per connection, an `asyncio.Protocol` and the door's `Link`.

In: `data_received` hands the bytes to the door as they come. (Measured on uvloop: 5.5 us a receive, system call included, and
5.6 with `BufferedProtocol`; uvloop reads into one buffer of the loop, so a connection has none of its own.) Out: `mark()` asks
for the write phase of this loop turn, where the outbox is taken once and written once. No task, future or queue per connection.

It also keeps what every door owes its peers and neighbours: a reader that stalls is closed, what waits for a slow reader is
bounded, a close lets the peer read the last words, and an exception ends the connection that raised it and no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from gantrymq.net.api import ConnectionFactory, Door
from gantrymq.net.doors.threshold import behind, expect, known
from gantrymq.net.held.kernel import unacknowledged_bytes
from gantrymq.net.held.outbound import LARGE_BYTES, Held, Pieces
from gantrymq.net.held.rates import Account
from gantrymq.net.loopback import is_trusted, peer_name
from gantrymq.net.process.host import PumpHost
from gantrymq.net.rotation import BOUNDED_BYTES_MAX, SHARE_S, SLICE_BYTES_MAX, SLICE_BYTES_MIN, SLICE_S
from gantrymq.net.tls.identity import Certificate, certificate_of
from gantrymq.net.tls.keyed import user_of

log = logging.getLogger(__name__)

WRITE_HIGH_BYTES: Final = 64 * 1024
"""Above this the peer counts as slow and its progress is watched; `writable` follows when it falls to the low mark."""

WRITE_LOW_BYTES: Final = 16 * 1024
"""Low mark: still some milliseconds of work for the network, so that deliveries restart before the line runs dry."""

STALL_CHECKS: Final = 4
"""Progress is looked at so often per `stalled_reader_ms`: a stalled reader is closed after 1 to 1.25 of that time."""

HELD_MS: Final = 1_000
"""A deadline of a door (a keep-alive) that passes while what the peer sent waits for its turn is put off so long."""

OPEN, CLOSING, LINGERING, CLOSED = range(4)
"""OPEN -> CLOSING (`close` called, outbox not yet written) -> LINGERING (end of stream sent, the peer's awaited) -> CLOSED."""

HOLD_DOOR, HOLD_PUMP, HOLD_TURN, HOLD_RATE = 1, 2, 8, 64
"""Who paused reading, that the rest of what was read waits for the next turn, or that its address or user has taken more than its rate: more is
not read meanwhile."""

EOF_SEEN, LOST, SHOWN_OUT = 4, 16, 32
"""The peer sends nothing any more; the connection is gone, and its door has not had all that the peer sent before; `show_out` was called."""

WAITS: Final = HOLD_DOOR | HOLD_PUMP | HOLD_RATE
"""What was read waits, too."""
HOLDS: Final = WAITS | HOLD_TURN


class Pump(asyncio.Protocol):
    """One accepted connection."""

    __slots__ = (
        "_account",
        "_counted",
        "_deadline_armed_ms",
        "_deadline_at_ms",
        "_deadline_handle",
        "_door",
        "_factory",
        "_flags",
        "_frame",
        "_frame_at_ms",
        "_frame_handle",
        "_full",
        "_handled",
        "_held",
        "_host",
        "_live",
        "_marked",
        "_observe",
        "_progress_at_ms",
        "_queued",
        "_read_s",
        "_reason",
        "_rest",
        "_sent",
        "_slice_bytes",
        "_state",
        "_taken",
        "_transport",
        "_watch_handle",
        "guest",
        "inbound_bytes",
        "is_encrypted",
        "key_user",
        "peer",
        "peer_certificate",
        "peer_is_loopback",
        "peer_is_trusted",
    )

    def __init__(
        self,
        host: PumpHost,
        factory: ConnectionFactory,
        live: set[Pump],
        observe: Callable[[float], None] = lambda took_s: None,
    ) -> None:
        """`observe` is told how long it took from a read to the write of its answers, where they came in the turn that ended its work."""
        self._host = host
        self._observe = observe
        self._factory = factory
        self._live = live
        self._door: Door | None = None
        self._transport: asyncio.Transport | None = None
        self._state = OPEN
        self._flags = 0
        self._marked = False
        self._full = False
        self._rest = b""
        """Read and not handed to the door yet."""
        self._queued = False
        """In the rotation."""
        self._slice_bytes = SLICE_BYTES_MIN
        """How much the door gets at once: about `SLICE_S`, as it took its slices up to now."""
        self._read_s = 0.0
        """When it was read, or what was handed over last."""
        self._handled = -1
        """The turn in which the door had handled all of that."""
        self._reason = ""
        self._sent = 0
        self.inbound_bytes = 0
        """Counted in `PumpHost.inbound`."""
        self._frame = 0
        """What was unfinished (`Door.unfinished`) at the last look, ..."""
        self._frame_at_ms = 0
        """... since when, ..."""
        self._frame_handle = 0
        """... and the deadline of the next look."""
        self._held: Held | None = None
        """What the transport holds of large writes, and of all since the peer is slow."""
        self._taken = 0
        self._progress_at_ms = 0
        self._watch_handle = 0
        self._account: Account | None = None
        """Where addresses or users have rates."""
        self._deadline_at_ms: int | None = None
        self._deadline_armed_ms = 0
        self._deadline_handle = 0
        self.peer, self._counted = "?", ""
        self.peer_is_loopback = self.peer_is_trusted = self.is_encrypted = False
        self.peer_certificate: Certificate | None = None
        self.key_user = self.guest = ""

    # From the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = connection = cast("asyncio.Transport", transport)
        self.peer, self.peer_is_loopback = peer_name(connection.get_extra_info("peername"))
        secure = connection.get_extra_info("ssl_object")
        self.is_encrypted, self.peer_certificate = secure is not None, certificate_of(secure)
        self.key_user = user_of(secure)
        host = self._host
        self.peer_is_trusted = self.peer_is_loopback or is_trusted(
            connection.get_extra_info("peername"), connection.get_extra_info("sockname"), host.limits.trusted_networks
        )
        if not host.admit(self.peer, self._live) or not self._count_address():
            self._state = CLOSED
            connection.close()
            return
        host.traffic.accepted += 1
        host.traffic.connections += 1
        self._live.add(self)
        connection.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        try:
            self._door = self._factory()
            self._door.connected(self)
        except Exception as error:
            self._failed(error)

    def data_received(self, data: bytes) -> None:
        if self._state != OPEN:
            return
        rotation = self._host.rotation
        self._host.traffic.bytes_in += len(data)
        if self._account is not None:
            self._pay(self._account, len(data))
        if self._rest or rotation.has_to_wait(len(data), self._slice_bytes):
            if not self._rest:
                self._read_s = rotation.clock_s()
            self._rest += data
            little = rotation.is_little(len(self._rest), self._slice_bytes)
            self._queue(much=not little)
            if len(self._rest) > SLICE_BYTES_MAX:  # for less, two calls of the kernel cost more than they spare
                self._hold(HOLD_TURN, True)
            if not little:  # to count it would cost as much as to handle it
                self._count_inbound()
            return
        self._read_s = rotation.clock_s()
        self._take(data)

    def _take(self, data: bytes) -> None:
        """Give the door what was read: at once if it is no more than a slice."""
        if len(data) > self._slice_bytes or self._flags & HOLDS:
            self._hand_over(data)
            self._count_inbound()
            return
        rotation, door, taken = self._host.rotation, self._door, None
        begun_s = rotation.clock_s()
        try:
            taken = door.received(data)  # type: ignore[union-attr]  # OPEN and connected: there is a door
            if door.inbound_bytes() != self.inbound_bytes:  # type: ignore[union-attr]
                self._count_inbound()
        except Exception as error:
            self._failed(error)
        took_s = rotation.clock_s() - begun_s
        rotation.turn.reads_s += took_s
        if taken is not None and taken < len(data) and self._state == OPEN:
            if took_s < SHARE_S and not self._flags & HOLDS:
                self._hand_over(data[taken:])
            else:
                self._rest = data[taken:]
                self._hold(HOLD_TURN, True)
            self._count_inbound()
            return
        self._handled = rotation.turn.number
        if took_s > SLICE_S:
            self._slice_bytes = max(SLICE_BYTES_MIN, int(len(data) * SLICE_S / took_s))
            if took_s >= SHARE_S and self._state == OPEN:
                self._hold(HOLD_TURN, True)  # which queues it, too

    def _hand_over(self, data: bytes) -> None:
        """Give the door its share of what was read, slice by slice; the rest is for later turns."""
        rotation, door = self._host.rotation, self._door
        if door is None:
            return
        clock_s = rotation.clock_s
        begun_s = now_s = clock_s()
        size, at, slice_bytes = len(data), 0, self._slice_bytes
        while True:
            # What a large frame lacks is kept until it is whole, however it is cut: a slice of it is no work.
            step = max(slice_bytes, door.missing_bytes())
            part = data[at : at + step] if at or size > step else data
            taken = None
            try:
                taken = door.received(part)
            except Exception as error:
                self._failed(error)
            count = len(part) if taken is None else taken
            at += count
            before_s, now_s = now_s, clock_s()
            took_s = now_s - before_s
            if count > slice_bytes:
                pass  # it took what that one frame takes: smaller slices would change nothing
            elif took_s > SLICE_S:
                slice_bytes = max(SLICE_BYTES_MIN, int(count * SLICE_S / took_s))
            elif count == slice_bytes:
                slice_bytes = min(slice_bytes * 4, SLICE_BYTES_MAX if taken is None else BOUNDED_BYTES_MAX)
            if at >= size or self._state != OPEN or now_s - begun_s >= SHARE_S:
                break
            if self._flags & WAITS and not self._flags & LOST:
                break
        self._slice_bytes = slice_bytes
        rotation.turn.reads_s += now_s - begun_s
        if self._state != OPEN:
            return
        self._rest = data[at:]
        if not self._rest:
            self._handled = rotation.turn.number
        if self._rest or now_s - begun_s >= SHARE_S:
            self._hold(HOLD_TURN, True)
            if self._flags & LOST or not self._flags & WAITS:
                self._queue(much=True)
        else:
            self._hold(HOLD_TURN, False)

    def _queue(self, much: bool) -> None:
        if not self._queued:
            self._queued = True
            self._host.rotation.wait(self, much)

    def go_on(self) -> None:
        """See `rotation.Waiting`."""
        self._queued = False
        if self._state == OPEN:
            if self._flags & WAITS and not self._flags & LOST:
                self._hold(HOLD_TURN, True)  # queues again when the others let go
                return
            rest, self._rest = self._rest, b""
            if rest:
                self._take(rest)
            else:
                self._hold(HOLD_TURN, False)
        if not self._rest or self._state != OPEN:
            if self._flags & LOST:
                self._over()
            elif self._flags & EOF_SEEN:
                self._end_of_stream()

    def _hand_over_rest(self) -> None:
        """The peer has ended a TLS connection, which closes right after: no later turn is certain, so what it sent before is due now,
        whoever paused and however long it takes. It is no more than was read at once."""
        rest, self._rest = self._rest, b""
        while rest and self._state == OPEN and self._door is not None:
            try:
                taken = self._door.received(rest[:SLICE_BYTES_MAX])
                rest = rest[SLICE_BYTES_MAX if taken is None else taken :]
            except Exception as error:
                self._failed(error)

    def eof_received(self) -> bool:
        """True keeps our own side open (TLS has no such thing); it is closed at the end of the turn, after the outbox, unless the door keeps it."""
        self._flags |= EOF_SEEN
        if self._state == LINGERING:
            return False
        if self._rest:
            if not self.is_encrypted:
                return True  # when the door has had the rest
            self._hand_over_rest()
        self._end_of_stream()
        return not self.is_encrypted

    def _end_of_stream(self) -> None:
        if self._state == OPEN and self._door is not None:
            try:
                if not self._door.eof():
                    self.close()
            except Exception as error:
                self._failed(error)

    def pause_writing(self) -> None:
        self._full = True
        self._watch_progress()

    def resume_writing(self) -> None:
        self._full = False
        self.count_outbound()
        if self._state != OPEN:
            return
        if self._held is None:
            self._host.wheel.cancel(self._watch_handle)
            self._watch_handle = 0
        self._hold(HOLD_PUMP, False)
        try:
            if self._door is not None:
                self._door.writable()
        except Exception as error:
            self._failed(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._reason = self._reason or (str(exc) or type(exc).__name__ if exc is not None else "")
        if self._rest and self._state == OPEN and self._door is not None:
            self._flags |= LOST
            self._queue(much=True)
        else:
            self._over()

    def _over(self) -> None:
        """The connection is gone, and its door has had everything that came over it."""
        door, self._door = self._door, None
        self._rest = b""
        self._state = CLOSED
        host = self._host
        self._release_outbound()
        if self in self._live:
            self._live.discard(self)
            host.traffic.connections -= 1
            host.addresses.went(self._counted)
            if self._account is not None:
                self._account.leave()
        self._set_inbound(0)
        if self._frame_handle:
            host.wheel.cancel(self._frame_handle)
        if self._watch_handle:
            host.wheel.cancel(self._watch_handle)
        if self._deadline_handle:
            host.wheel.cancel(self._deadline_handle)
        if door is None:
            return
        try:
            door.closed(self._reason)
        except Exception as error:
            host.traffic.failed += 1
            log.error("%s: closing the door failed: %s: %s", self.peer, type(error).__name__, error)
            log.debug("%s: traceback", self.peer, exc_info=True)

    # The door's link.

    def mark(self) -> None:
        """Something may be in the outbox: it is taken once at the end of this loop turn."""
        if not self._marked:
            self._marked = True
            self._host.at_write(self._flush)

    def close(self) -> None:
        """Write what is in the outbox, then close. No `received` comes after it."""
        if self._state == OPEN:
            self._state = CLOSING
            self.mark()

    def abort(self) -> None:
        """Close at once."""
        if self._state != CLOSED:
            self._state = CLOSED
            if self._transport is not None:
                self._transport.abort()

    def pause_reading(self) -> None:
        """See `Link`."""
        self._hold(HOLD_DOOR, True)

    def resume_reading(self) -> None:
        """The door can take more; reading goes on unless too much waits for this very peer."""
        self._hold(HOLD_DOOR, False)

    def set_deadline(self, at_ms: int | None) -> None:
        """See `Link`. A later one than the one in the wheel costs an assignment: so a keep-alive can be moved at each packet."""
        self._deadline_at_ms = at_ms
        if at_ms is None or (self._deadline_handle and at_ms >= self._deadline_armed_ms):
            return
        wheel = self._host.wheel
        if self._deadline_handle:
            wheel.cancel(self._deadline_handle)
        self._deadline_armed_ms = at_ms
        self._deadline_handle = wheel.call_at(at_ms, self._deadline)

    def outbound_bytes(self) -> int:
        """Bytes handed to the transport and not yet taken by the kernel for the peer."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def is_pressed(self) -> bool:
        """As `Link.is_pressed`."""
        return self._host.is_pressed()

    def become(self, door: Door) -> None:
        """See `Link`."""
        self._door = behind(self._door, door)
        door.connected(self)

    def known(self, user: str = "") -> str:
        """See `Link`."""
        why = self._account.add(self._host.user_rates, user, self.peer) if user and self._account is not None else ""
        self._door = known(self._door) if not why else self._door
        return why

    def spent(self, requests: int) -> None:
        """See `Link`."""
        if self._account is not None:
            self._account.spent += requests

    def _pay(self, account: Account, size: int) -> None:
        """Reading pauses for what is more than a rate."""
        wheel = self._host.wheel
        now_ms = wheel.now_ms()
        wait_ms = account.pay(size, now_ms)
        if wait_ms and not self._flags & HOLD_RATE:
            self._hold(HOLD_RATE, True)
            wheel.call_at(now_ms + wait_ms, lambda at_ms: self._hold(HOLD_RATE, False))

    def expect(self, size: int) -> None:
        """See `Link`."""
        expect(self._door, size)

    def speaks_for(self, host: str, port: int) -> None:
        """See `Link`."""
        self.peer, self.peer_is_loopback = peer_name((host, port))
        trusted = is_trusted((host, port), ("", 0), self._host.limits.trusted_networks)
        self.peer_is_trusted, self.peer_certificate, self.key_user = self.peer_is_loopback or trusted, None, ""
        self._host.addresses.went(self._counted)
        if self._account is not None:
            self._account.leave()
        if not self._count_address():
            self.close()

    def _count_address(self) -> bool:
        """Among the connections of its address; False: there are too many."""
        host = self._host
        if self._account is None and (host.address_rates.are_any or host.user_rates.are_any):
            self._account = Account()
        if self.peer_is_trusted:
            self._counted = ""
            return True
        self._counted = host.addresses.came(self.peer)
        if self._counted and (
            self._account is None or not self._account.add(host.address_rates, self._counted, self.peer)
        ):
            return True
        host.addresses.went(self._counted)
        self._counted = ""
        host.traffic.refused += 1
        return False

    # From the listener.

    def shutdown(self) -> None:
        """The server stops: let the door say goodbye."""
        if self._state != OPEN or self._door is None:
            return
        try:
            self._door.shutdown()
        except Exception as error:
            self._failed(error)

    # Own.

    def _flush(self) -> None:
        """Write phase: one write per connection and turn."""
        self._marked = False
        transport, door = self._transport, self._door
        if door is None or self._state >= LINGERING:
            return
        try:
            data = door.data_to_send()
        except Exception as error:
            self._failed(error)
            return
        if self.inbound_bytes:
            self._count_inbound()
        if transport is None:
            return
        if data:
            if self._handled >= self._host.rotation.turn.number:
                self._handled = -1
                self._observe(self._host.rotation.clock_s() - self._read_s)
            if isinstance(data, list):
                size = sum(map(len, data))
                transport.writelines(data)
            else:
                size = len(data)
                transport.write(data)
            self._sent += size
            self._host.traffic.bytes_out += size
            if self._full or size > WRITE_HIGH_BYTES:
                self._bound_outbound(data, size)
        if (
            self._state == CLOSING and not self._marked
        ):  # marked: it was shown out just now, and its last words are in the outbox
            self._start_linger(transport)

    # See `inbound.Receiving`.

    def _count_inbound(self) -> None:
        """Bring `PumpHost.inbound` up to date."""
        door = self._door
        if door is None or self._state != OPEN:
            return
        self._set_inbound(len(self._rest) + door.inbound_bytes())
        host = self._host
        if self.inbound_bytes > LARGE_BYTES or (self.inbound_bytes and not self._frame_handle):
            host.trimmer.note()
            frame, now_ms = door.unfinished(), host.wheel.now_ms()
            if frame != self._frame or not self._frame_handle:
                self._frame, self._frame_at_ms = frame, now_ms
            if not self._frame_handle:
                self._frame_handle = host.wheel.call_at(now_ms + host.inbound.check_interval_ms(), self._check_frame)
        if host.inbound.held_bytes > host.inbound.bytes_max:
            host.inbound.bound_all(host.wheel.now_ms())

    def _set_inbound(self, size: int) -> None:
        inbound = self._host.inbound
        inbound.held_bytes += size - self.inbound_bytes
        self.inbound_bytes = size
        if size:
            inbound.receiving.add(self)
        else:
            inbound.receiving.discard(self)

    def _check_frame(self, now_ms: int) -> None:
        self._frame_handle = 0
        door, inbound = self._door, self._host.inbound
        if door is None or self._state != OPEN or not self.inbound_bytes:
            return
        frame = door.unfinished()
        if frame != self._frame or not frame:
            self._frame, self._frame_at_ms = frame, now_ms
        elif self._flags & HOLDS:
            self._frame_at_ms += inbound.check_interval_ms()  # it is we who do not read
        elif now_ms - self._frame_at_ms >= inbound.timeout_ms:
            took_ms = now_ms - self._frame_at_ms
            why = f"a frame or body is not whole {took_ms} ms after it began, more than server.frame_timeout_ms"
            self.show_out(why, False)
            return
        self._frame_handle = self._host.wheel.call_at(now_ms + inbound.check_interval_ms(), self._check_frame)

    def held_ms(self, now_ms: int) -> int:
        """For how long the same frame or body has been unfinished, at least 1."""
        door = self._door
        if door is None or not self._frame or door.unfinished() != self._frame:
            return 1
        return max(now_ms - self._frame_at_ms, 1)

    def show_out(self, why: str, busy: bool) -> None:
        """End it on its protocol's terms; a peer that takes nothing for `linger_ms` does not hear them, and what is held for it is free."""
        self._host.inbound.shown_out += 1
        self._flags |= SHOWN_OUT
        self._rest = b""
        self._set_inbound(0)
        if self._state != OPEN or self._door is None:
            self.abort()
            return
        try:
            self._door.overdue(why, busy)
        except Exception as error:
            self._failed(error)

    def _bound_outbound(self, data: Pieces, size: int) -> None:
        """A peer that does not read is not read from either; one that a door goes on writing to in spite of it is cut off."""
        host, waiting = self._host, self.outbound_bytes()
        if not waiting:
            self._release_outbound()
            return
        if self._held is None:
            self._held = Held(host.ledger)
            host.holding.add(self)
            if waiting > size:
                self._held.wrote_before(self._sent - size, waiting - size)
        self._held.wrote(self._sent, data)
        host.trimmer.note()
        self.count_outbound()
        if not self._watch_handle:
            self._watch_progress()
        if waiting > host.limits.outbound_bytes_ceiling:
            self.cut_off("more than server.outbound_bytes_ceiling")
        elif waiting > host.limits.outbound_bytes_max:
            self._hold(HOLD_PUMP, True)
        host.bound_all()

    def count_outbound(self) -> None:
        """Give back what the kernel has taken meanwhile."""
        if self._held is not None and not self._held.taken(self._sent - self.outbound_bytes()):
            self._release_outbound()

    def held_share_bytes(self) -> int:
        """What would be free without it, payloads that others get too by their shares."""
        return self._held.share_bytes() if self._held is not None else 0

    def cut_off(self, why: str) -> None:
        """Close a reader for which too much waits."""
        self._reason = f"{self.outbound_bytes()} bytes waiting for a slow reader, {why}"
        log.warning("%s: %s; closed", self.peer, self._reason)
        self._full = False
        self._release_outbound()
        self.abort()

    def _release_outbound(self) -> None:
        if self._held is not None:
            self._held.clear()
            self._held = None
            self._host.holding.discard(self)

    def _start_linger(self, transport: asyncio.Transport) -> None:
        """End our stream after the last bytes and wait for the peer's end, up to `linger_ms` after it took everything: closing
        a socket with unread input makes the kernel send a reset, and the peer loses the answer that says what was wrong."""
        self._state = LINGERING
        if transport.is_closing():  # lost: asyncio's TLS says so one turn later, and its transport answers nothing any more once it is closed again
            return
        if self._flags & EOF_SEEN or not transport.can_write_eof():
            transport.close()
        else:
            if self._flags & HOLDS:
                transport.resume_reading()
            transport.write_eof()
        self._watch_progress()

    def _watch_progress(self) -> None:
        """Look at the peer's progress from now on."""
        host = self._host
        self._progress_at_ms = now_ms = host.wheel.now_ms()
        self._taken = self._sent - self._waiting()
        host.wheel.cancel(self._watch_handle)
        self._watch_handle = host.wheel.call_at(now_ms + self._watch_interval_ms(), self._watch)

    def _watch_interval_ms(self) -> int:
        limits = self._host.limits
        interval_ms = limits.stalled_reader_ms // STALL_CHECKS
        return min(interval_ms, limits.linger_ms) if self._state == LINGERING else interval_ms

    def _watch(self, now_ms: int) -> None:
        self._watch_handle = 0
        transport = self._transport
        if transport is None or self._state == CLOSED:
            return
        waiting = self._waiting()
        if self._sent - waiting != self._taken:
            self._taken = self._sent - waiting
            self._progress_at_ms = now_ms
        idle_ms = now_ms - self._progress_at_ms
        limits = self._host.limits
        if self._state == LINGERING and waiting == 0 and idle_ms >= limits.linger_ms:
            transport.abort()  # it has everything; TLS, which was closed before, would wait for the peer's answer
            return
        if waiting and idle_ms >= (limits.linger_ms if self._flags & SHOWN_OUT else limits.stalled_reader_ms):
            self._host.traffic.stalled += 1
            self._reason = f"stalled reader: took nothing for {idle_ms} ms while {waiting} bytes waited"
            log.warning("%s: %s; closed", self.peer, self._reason)
            self.abort()
            return
        self.count_outbound()
        if self._full or self._held is not None or self._state == LINGERING:
            self._watch_handle = self._host.wheel.call_at(now_ms + self._watch_interval_ms(), self._watch)

    def _waiting(self) -> int:
        """Bytes that the peer has not acknowledged: the transport's and the kernel's."""
        transport = self._transport
        return unacknowledged_bytes(transport) if transport is not None else 0

    def _hold(self, holder: int, on: bool) -> None:
        before = self._flags & HOLDS
        self._flags = self._flags | holder if on else self._flags & ~holder
        after = self._flags & HOLDS
        if after == HOLD_TURN and before != HOLD_TURN:
            self._queue(much=True)
        if self._transport is None or self._state != OPEN or bool(before) == bool(after) or self._flags & EOF_SEEN:
            return
        if after:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _deadline(self, now_ms: int) -> None:
        self._deadline_handle = 0
        at_ms = self._deadline_at_ms
        if at_ms is None or self._state != OPEN or self._door is None:
            return
        if at_ms > now_ms:
            self.set_deadline(at_ms)
            return
        flags = self._flags
        if flags & HOLD_RATE or (self._rest and not flags & WAITS):  # it is we who have not listened yet
            self.set_deadline(now_ms + HELD_MS)
            return
        self._deadline_at_ms = None
        try:
            self._door.deadline(now_ms)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """A door raised: our fault, not the peer's; this connection ends, the others do not notice."""
        self._host.traffic.failed += 1
        self._reason = f"{type(error).__name__}: {error}"
        log.error("%s: %s failed: %s; closed", self.peer, type(self._door).__name__, self._reason)
        log.debug("%s: traceback", self.peer, exc_info=True)
        self.abort()
