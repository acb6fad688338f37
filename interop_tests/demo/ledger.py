"""What was published, what was acknowledged, what every consumer received; and whether these are the same.

A message is a pair of its id and the SHA-256 of its body, so a changed body counts as one missing and one invented message. Nothing
here knows a protocol. All methods may be called from any thread.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

Pair = tuple[str, str]
"""Message id and SHA-256 of the body in hexadecimal digits."""

NO_ID = "(no id)"
EXAMPLES_MAX = 5
"""Missing and invented messages that a report names; the rest is counted."""


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def identify(body: bytes) -> tuple[str, float]:
    """(id, time of publishing) as the publishers put them into every body; (NO_ID, 0) for anything else."""
    try:
        record = json.loads(body)
        return str(record["id"]), float(record["at"])
    except (ValueError, KeyError, TypeError):
        return NO_ID, 0.0


def percentile(values: Iterable[float], share: float) -> float:
    """Nearest-rank percentile; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass(slots=True)
class DoorBook:
    """One door's publishing side."""

    sent: dict[str, str] = field(default_factory=dict)
    """Id -> digest of everything handed to the protocol's client at least once."""
    acknowledged: dict[str, str] = field(default_factory=dict)
    sent_again: int = 0
    ack_times: list[float] = field(default_factory=list)

    def unacknowledged(self) -> int:
        return len(self.sent) - len(self.acknowledged)


@dataclass(slots=True)
class Receipt:
    """One delivery. `latency_s`: from publishing to here."""

    at: float
    latency_s: float


@dataclass(slots=True)
class ConsumerBook:
    """What one consumer received from one door."""

    pairs: Counter[Pair] = field(default_factory=Counter)
    receipts: list[Receipt] = field(default_factory=list)

    def duplicates(self) -> int:
        return self.pairs.total() - len(self.pairs)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One consumer's view of one door at the end."""

    door: str
    consumer: str
    received: int
    duplicates: int
    missing: int
    invented: int
    p50_s: float
    p99_s: float
    examples: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.missing and not self.invented


class Ledger:
    """The books of one run. Doors and consumers are known from the start."""

    def __init__(self, doors: Iterable[str], consumers: Iterable[str]) -> None:
        self.doors = {door: DoorBook() for door in doors}
        self.consumers = {name: {door: ConsumerBook() for door in self.doors} for name in consumers}
        self._lock = threading.Lock()

    def sending(self, door: str, message_id: str, body: bytes) -> None:
        """A message is about to be handed to the client library for the first time."""
        with self._lock:
            book = self.doors[door]
            assert message_id not in book.sent, f"id {message_id} is used twice"
            book.sent[message_id] = digest_of(body)

    def sending_again(self, door: str, messages: int = 1) -> None:
        """Unacknowledged messages are sent once more, with the ids that they had."""
        with self._lock:
            self.doors[door].sent_again += messages

    def acknowledged(self, door: str, message_id: str, at: float) -> None:
        """The server has taken responsibility: from now on the message may not be missing anywhere."""
        with self._lock:
            book = self.doors[door]
            if message_id not in book.acknowledged:
                book.acknowledged[message_id] = book.sent[message_id]
                book.ack_times.append(at)

    def received(self, consumer: str, door: str, body: bytes, at: float) -> str:
        """A consumer has a message in its hands; returns the message's id. `door`: where its topic is published."""
        message_id, sent_at = identify(body)
        self.received_pair(consumer, door, (message_id, digest_of(body)), at, sent_at)
        return message_id

    def received_pair(self, consumer: str, door: str, pair: Pair, at: float, sent_at: float) -> None:
        with self._lock:
            book = self.consumers[consumer][door]
            book.pairs[pair] += 1
            book.receipts.append(Receipt(at, at - sent_at))

    def judge(self, door: str, consumer: str) -> Verdict:
        """Compare one consumer's set with what was acknowledged at one door."""
        with self._lock:
            due = set(self.doors[door].acknowledged.items())
            book = self.consumers[consumer][door]
            have = set(book.pairs)
            latencies = [receipt.latency_s for receipt in book.receipts]
            missing, invented = sorted(due - have), sorted(have - due)
            examples = [f"missing {pair[0]}" for pair in missing[:EXAMPLES_MAX]]
            examples += [f"invented {pair[0]}" for pair in invented[:EXAMPLES_MAX]]
            return Verdict(
                door,
                consumer,
                len(have),
                book.duplicates(),
                len(missing),
                len(invented),
                percentile(latencies, 0.50),
                percentile(latencies, 0.99),
                tuple(examples),
            )

    def verdicts(self) -> list[Verdict]:
        return [self.judge(door, consumer) for door in self.doors for consumer in self.consumers]

    def lagging(self) -> dict[str, int]:
        """Consumer -> acknowledged messages that it does not have yet, without the consumers that have all."""
        with self._lock:
            behind = {}
            for name, books in self.consumers.items():
                count = sum(
                    len(book.acknowledged.items() - books[door].pairs.keys()) for door, book in self.doors.items()
                )
                if count:
                    behind[name] = count
            return behind

    def moved(self) -> int:
        """Grows with every message that is acknowledged or received for the first time, and ends growing when all is done."""
        with self._lock:
            acknowledged = sum(len(book.acknowledged) for book in self.doors.values())
            return acknowledged + sum(len(book.pairs) for books in self.consumers.values() for book in books.values())

    def unacknowledged(self) -> int:
        with self._lock:
            return sum(book.unacknowledged() for book in self.doors.values())

    def problems(self) -> list[str]:
        """Everything that keeps the sets from being equal, one line each; empty if all is well."""
        lines = [
            f"{door}: {book.unacknowledged()} messages were never acknowledged"
            for door, book in self.doors.items()
            if book.unacknowledged()
        ]
        lines += [f"{door}: nothing was published" for door, book in self.doors.items() if not book.sent]
        for verdict in self.verdicts():
            if not verdict.ok:
                lines.append(
                    f"{verdict.consumer} from {verdict.door}: {verdict.missing} missing, {verdict.invented} invented"
                    f" ({', '.join(verdict.examples)})"
                )
        return lines
