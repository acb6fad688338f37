"""Batches on their way into the log: how much of them one turn takes, and whose turn it is.

A turn takes at most `ENTRIES_PER_TURN` queue entries or `BYTES_PER_TURN`, but at least one record. What does not fit waits here by sender, and the
senders take turns: so one message to 1,500 queues costs its sender time, and nobody else more than a share of each turn. Batches of one sender
keep their order; a batch that is taken in several turns is answered once, after its last message.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.model.errors import ErrorCode
from gantrymq.store.log.run import Run

if TYPE_CHECKING:
    from gantrymq.broker.port import Done
    from gantrymq.model.message import Message

ENTRIES_PER_TURN: Final = 1_500
"""Queue entries that one turn writes: 1.2 us each, so 2 ms."""
WHOLE_ENTRIES_MAX: Final = 4_000
"""...and that a batch which is stored whole may have in one turn."""
MESSAGE_ENTRIES: Final = 4
"""A record counts as so many, with that of its own queue: looking at it, writing it and answering take 5 us."""
ENTRY_BYTES: Final = 64
"""As which a queue entry counts while its sender waits: so a record costs 256 bytes beside its own, and empty ones and fan-out use up credit, too."""
BYTES_PER_TURN: Final = 1024 * 1024
"""...and bodies and properties: a millisecond of copying and checksums."""
RUN_ENTRY_BYTES: Final = BYTES_PER_TURN // WHOLE_ENTRIES_MAX
ENTRIES_PER_SHARE: Final = 500
BYTES_PER_SHARE: Final = 256 * 1024
"""What one sender takes of a turn before the next one has his share: as much as one read of the socket brings, so that nobody notices who
sends ordinary messages."""


class Companion(Protocol):
    """What is stored with a batch in one piece (broker/queues/companions.py)."""

    first: list[Message]
    unfit: bool


class Sent:
    """One submitted batch."""

    __slots__ = (
        "at",
        "batch",
        "begun_s",
        "companions",
        "end",
        "entries",
        "on_done",
        "passing",
        "results",
        "sender",
        "strict",
        "token",
        "whole",
    )

    def __init__(self, batch: Sequence[Message], token: Any, on_done: Done, sender: object, begun_s: float) -> None:
        self.batch = batch
        self.token = token
        self.on_done = on_done
        self.sender = sender
        self.begun_s = begun_s
        """When the first batch of its turn was submitted."""
        self.at = 0
        """Messages below it were dealt with in earlier turns."""
        self.end = 0
        """...and those below this one, in this turn."""
        self.entries = 0
        """Queue entries that it was, where a record counts as `MESSAGE_ENTRIES`: what it costs beside its bytes."""
        self.results: list[ErrorCode | None] | None = None
        """Why messages were refused; None: none was."""
        self.passing: ErrorCode | None = None
        """Refused for now (BUSY, STORE_FULL): so is what its sender has submitted behind it."""
        self.whole = False
        """It is stored whole or not at all, unless it is more than a whole turn takes: then a crash or a full disk may cut it."""
        self.companions: Companion | None = None
        """What is stored with it in one piece."""
        self.strict = False
        """Some message's acknowledgement waits for the flush."""

    def is_done(self) -> bool:
        """No later turn takes anything of it."""
        return self.end == len(self.batch)

    def refuse(self, index: int, code: ErrorCode) -> None:
        """A message is not stored."""
        if self.results is None:
            self.results = [None] * len(self.batch)
        self.results[index] = code

    def refuse_rest(self, code: ErrorCode) -> None:
        """What was not stored yet is not stored, because of the state of the whole broker."""
        self.passing = code
        for index in range(self.at, len(self.batch)):
            if self.results is None or self.results[index] is None:
                self.refuse(index, code)
        self.end = len(self.batch)

    def outcome(self) -> list[Any]:
        """Per message: its queue offset, or why it was not stored."""
        if self.results is None:
            return [message.queue_offset for message in self.batch]
        return [
            message.queue_offset if code is None else code
            for message, code in zip(self.batch, self.results, strict=True)
        ]


Prepare = Callable[[Sent, int, int], tuple[int, int]]
"""`prepare(sent, entries, bytes)`: take messages from `sent.end` on until so much is reached, at least one, and move `sent.end`; returns how
many entries and bytes these were."""


class Submitted:
    """All that waits for the log."""

    __slots__ = ("_fresh", "_waiting")

    def __init__(self) -> None:
        self._fresh: list[Sent] = []
        """Submitted since the last turn."""
        self._waiting: OrderedDict[object, deque[Sent]] = OrderedDict()
        """What earlier turns had no room for, by sender; the first one is next."""

    def add(self, sent: Sent) -> None:
        """Submit a batch."""
        self._fresh.append(sent)

    def __bool__(self) -> bool:
        """Something waits."""
        return bool(self._fresh or self._waiting)

    def __iter__(self) -> Iterator[Sent]:
        for queue in self._waiting.values():
            yield from queue
        yield from self._fresh

    def take(self, prepare: Prepare) -> list[Sent]:
        """This turn's share of everything, in the order in which it is to be written. Those who had nothing waiting come first, and leave half
        of the turn to the others: a neighbour's message does not stand behind what they have piled up."""
        fresh, self._fresh = self._fresh, []
        waiting = self._waiting
        taken: list[Sent] = []
        entries, size = ENTRIES_PER_TURN, BYTES_PER_TURN
        kept_entries, kept_size = (entries // 2, size // 2) if waiting else (0, 0)
        held: list[tuple[object, deque[Sent]]] = []
        for sent in fresh:
            if waiting and (queue := waiting.get(sent.sender)) is not None:
                queue.append(sent)
                continue
            if entries > kept_entries and size > kept_size:
                used, used_size = prepare(sent, *share(sent, entries - kept_entries, size - kept_size))
                entries, size = entries - used, size - used_size
                if sent.end or sent.is_done():
                    taken.append(sent)
                if sent.is_done():
                    continue
            waiting[sent.sender] = deque((sent,))
        while waiting and entries > 0 and size > 0:
            sender, queue = waiting.popitem(last=False)
            room, more = min(ENTRIES_PER_SHARE, entries), min(BYTES_PER_SHARE, size)
            while queue and room > 0 and more > 0:
                sent, begin = queue[0], queue[0].end
                used, used_size = prepare(sent, *share(sent, room, more))
                room, more = room - used, more - used_size
                entries, size = entries - used, size - used_size
                if (
                    sent.end == begin and not sent.is_done()
                ):  # it has to wait for whoever gets it: not looked at again in this turn
                    held.append((sender, queue))
                    break
                if begin == sent.at:
                    taken.append(sent)
                if sent.passing is not None:
                    taken += refused_behind(queue, sent.passing)
                elif sent.is_done():
                    queue.popleft()
            else:
                if queue:
                    waiting[sender] = queue
        waiting.update(held)
        return taken

    def give_up(self, senders: bool = False) -> list[Sent]:
        """Take out what waits (`senders`: only what has a sender): it is not going to be stored."""
        out = [sent for sent in self if not senders or sent.sender is not None]
        left = [sent for sent in self if senders and sent.sender is None]
        self._waiting.clear()
        if left:
            self._waiting[None] = deque(left)
        self._fresh = []
        return out


def share(sent: Sent, entries: int, size: int) -> tuple[int, int]:
    """What may be taken of a batch, where the turn has so much room left."""
    if sent.whole:
        return WHOLE_ENTRIES_MAX, BYTES_PER_TURN
    return min(ENTRIES_PER_SHARE, entries), min(BYTES_PER_SHARE, size)


def beyond_one(message: Message) -> int:
    """Queue entries that a run costs of a turn beyond those of one message, bytes counted in too."""
    return (
        max((len(message.bodies) - 1) * MESSAGE_ENTRIES, message.bytes // RUN_ENTRY_BYTES)
        if isinstance(message, Run)
        else 0
    )


def refused_behind(queue: deque[Sent], code: ErrorCode) -> list[Sent]:
    """The first of a sender's batches was refused for now: so are the others, that he may send all of them again in their order."""
    queue.popleft()
    behind = list(queue)
    queue.clear()
    for sent in behind:
        sent.refuse_rest(code)
    return behind
