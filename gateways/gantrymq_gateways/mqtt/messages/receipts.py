"""What persistent sessions received with QoS 2 is in the log before PUBREL goes out: table `mqtt_exchange`, key `>` + client id.

A message is sent under the packet identifier that its place in its light queue gives it (`identifier_of_place`), so that it comes again under the same
one, whatever was killed and whichever gateway has the session then: nothing is stored for what is only sent. PUBREC makes it an entry of the row, with its
place, and settles it when the row is stored. What is delivered again all the same, because the settlement was lost, is known by its place and
settled without being sent. An entry goes with the next row after PUBCOMP, and until then its identifier is nobody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Protocol

from gantrymq.broker.port import PASSING, POSITION_MASK, Done
from gantrymq.model.errors import GantryError
from gantrymq_gateways.mqtt.messages.exchange import TABLE, Place, decode_entries, encode_entries

IDS: Final = 0x7FFF
"""Identifiers from 1 to this one are given by places, those above in turn: other messages of the session do not meet them."""

_SPREAD: Final = 40_503
"""Odd, about 2^16 divided by the golden ratio: neighbouring light queues begin far from each other."""

ROWS_MAX: Final = 256
"""Rows of one call: at `mqtt.inflight_max` by default some 1 MiB at most."""


def place_of(light: int, offset: int) -> Place:
    """Without the number that a broker group has in this process only."""
    return light, offset & POSITION_MASK


def identifier_of_place(place: Place) -> int:
    """The packet identifier of a message with QoS 2."""
    return (place[0] * _SPREAD + place[1]) % IDS + 1


class Receiving:
    """In flight: PUBREC came, and the row that says so is on its way to the log. PUBREL follows."""

    __slots__ = ("settles",)

    def __init__(self, settles: object) -> None:
        self.settles = settles


class Owner(Protocol):
    """The session that received."""

    def receipts_stored(self, numbers: Iterable[int]) -> None:
        """The row has these, in the order of their PUBRECs [MQTT-4.6.0-4] [MQTT5-4.6.0-4]."""

    def receipts_failed(self, text: str) -> None:
        """It could not be written."""


class Outbound:
    """Receipts of one session. `row`: as the table has it, None if there is none."""

    __slots__ = ("_completed", "_flying", "_pending", "_waiting", "key", "owner", "places", "row", "stored")

    def __init__(self, key: str = "", row: bytes | None = None) -> None:
        self.key = key
        self.row = row
        self.stored = decode_entries(row or b"")
        """Entries of `row`."""
        self.places = set(self.stored.values())
        self.owner: Owner | None = None
        """None while the client is away."""
        self._pending: dict[int, Place] = {}
        """Received, and in no row that was handed over."""
        self._flying: dict[int, Place] | None = None
        """Entries of a row on its way."""
        self._completed: set[int] = set()
        """Of `stored`: PUBCOMP came."""
        self._waiting: list[tuple[object, Done]] = []

    def receive(self, number: int, place: Place) -> None:
        """PUBREC came for it."""
        self._pending[number] = place

    def complete(self, number: int) -> None:
        """PUBCOMP came for it."""
        if number in self.stored:
            self._completed.add(number)

    def released(self) -> list[int]:
        """What PUBREL goes out for, and no PUBCOMP came."""
        return [number for number in self.stored if number not in self._completed]

    def has(self, number: int) -> bool:
        """The identifier stands in a row: a PUBREL may go out for it after a crash."""
        return number in self.stored or (self._flying is not None and number in self._flying)

    def leave(self) -> None:
        """The client is gone: what is in no row comes again."""
        self.owner = None
        self._pending.clear()

    def wait(self, token: object, on_done: Done) -> None:
        """Answered when no row is on its way."""
        if self._flying is None:
            on_done(token, None)
        else:
            self._waiting.append((token, on_done))

    def hand_over(self) -> bytes | None:
        """The row that is to be written."""
        entries = {number: place for number, place in self.stored.items() if number not in self._completed}
        entries |= self._pending
        self._pending.clear()
        self._flying = entries
        return encode_entries(entries.items()) or None

    def is_flying(self) -> bool:
        return self._flying is not None

    def is_behind(self) -> bool:
        """Something was received that the row does not say yet."""
        return bool(self._pending)

    def landed(self, value: bytes | None, text: str) -> None:
        """The row was written, or why it was not."""
        flying, self._flying = self._flying or {}, None
        if not text:
            new = [number for number in flying if number not in self.stored]
            self.row, self.stored, self.places = value, flying, set(flying.values())
            self._completed &= flying.keys()
            if self.owner is not None:
                self.owner.receipts_stored(new)
        elif self.owner is not None:
            self.owner.receipts_failed(text)
        self._tell()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for token, on_done in waiting:
            on_done(token, None)

    def again(self) -> None:
        """The row was refused for now."""
        flying, self._flying = self._flying or {}, None
        if self.owner is not None:
            first = {number: place for number, place in flying.items() if number not in self.stored}
            self._pending = first | self._pending
        self._tell()


class ReceiptsPort(Protocol):
    """What `Receipts` needs from the broker."""

    def put_if(
        self, table: str, items: list[tuple[str, bytes | None, bytes | None]], token: object, on_done: Done
    ) -> None: ...


class Receipts:
    """One gateway's: rows of all its sessions in one call per turn. `soon`: runs a callback where a turn hands over to the log. `later`: the same
    a little later, for what was refused for now."""

    def __init__(
        self,
        port: ReceiptsPort,
        soon: Callable[[Callable[[], None]], None],
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        self._port = port
        self._soon = soon
        self._later = later
        self._due: dict[Outbound, None] = {}
        self._asked = False

    def note(self, outbound: Outbound) -> None:
        """Its row is to be written, once what is on its way is stored."""
        if not outbound.is_flying():
            self._due[outbound] = None
            if not self._asked:
                self._asked = True
                self._soon(self._flush)

    def _note_all(self, batch: list[Outbound]) -> None:
        for outbound in batch:
            self.note(outbound)

    def _flush(self) -> None:
        self._asked = False
        due, self._due = [outbound for outbound in self._due if outbound.owner is not None], {}
        for at in range(0, len(due), ROWS_MAX):
            batch = due[at : at + ROWS_MAX]
            items = [(outbound.key, outbound.row, outbound.hand_over()) for outbound in batch]
            self._port.put_if(TABLE, items, (batch, items), self._stored)

    def _stored(self, token: tuple[list[Outbound], list[tuple[str, bytes | None, bytes | None]]], result: Any) -> None:
        batch, items = token
        if isinstance(result, GantryError) and result.code in PASSING:
            for outbound in batch:
                outbound.again()
            self._later(partial(self._note_all, batch))
            return
        failed = isinstance(result, GantryError)
        for index, outbound in enumerate(batch):
            text = ""
            if failed:
                text = f"what it received cannot be stored: {result}"
            elif not result[index]:
                text = "what it received was stored by another gateway"
            outbound.landed(items[index][2], text)
            if not text and outbound.is_behind():
                self.note(outbound)
