"""Simulated producers: plain messages, batches, delays, times of delivery, transactions whose decisions get lost."""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.client.records import decode_records
from gantrymq.model import sysflag
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.json_bodies import Heartbeat, ProducerData, encode
from gantrymq.store.schedule import DELAYS_MS
from interop_tests.sim.client import Client
from interop_tests.sim.ledger import COMMIT, DELAYED, HALF, PLAIN, ROLLBACK, TIMED, Sent
from interop_tests.sim.world import Violation

if TYPE_CHECKING:
    from interop_tests.sim.ledger import Ledger
    from interop_tests.sim.node import Node
    from interop_tests.sim.world import World

GROUP = "PG"
TAGS = ("red", "green")
ATTEMPTS_MAX = 3
OPEN_MAX = 8
LEVEL_MAX = 4
TIMER_MS_MAX = 40_000
POISON_EVERY = 30
HEARTBEAT_MS = 3_000
_ITEM = struct.Struct(">IIIiI")


def pairs_text(pairs: dict[str, str]) -> str:
    """Properties as they travel."""
    return "".join([f"{name}\x01{value}\x02" for name, value in pairs.items()])


class Producer(Client):
    """Sends until `quiet`. `kinds`: what it sends."""

    def __init__(self, world: World, node: Node, ledger: Ledger, name: str, kinds: tuple[str, ...]) -> None:
        super().__init__(world, node, ledger, name)
        self.kinds = kinds
        self.quiet = False
        self._count = 0
        self._in_flight = 0

    def started(self) -> None:
        """It sends now and then."""
        self._in_flight = 0
        self.soon(self.world.lot.randrange(200), self._tick)
        self.soon(HEARTBEAT_MS, self._beat)

    def connected(self) -> None:
        """Who has a group says so."""
        body = encode(Heartbeat(f"c@{self.name}", [ProducerData(GROUP)]))
        self.ask(Code.HEART_BEAT, lambda answer: None, body)

    def _beat(self) -> None:
        if self.wire is not None:
            self.connected()
        self.soon(HEARTBEAT_MS, self._beat)

    def _tick(self) -> None:
        lot = self.world.lot
        if self.quiet:
            return
        if self._in_flight < OPEN_MAX and self.wire is not None:
            kind = lot.choice(self.kinds)
            if kind == "batch":
                self._send_batch()
            elif kind == HALF:
                self._send_half(self._message("T", HALF))
            else:
                self._send_one(self._message(lot.choice("AAT"), kind))
        self.soon(lot.choice((1, 5, 40, 120)), self._tick)

    def _message(self, topic: str, kind: str, queue_id: int | None = None) -> Sent:
        lot = self.world.lot
        self._count += 1
        uid = f"{self.name}.{self._count}"
        if queue_id is None:
            queue_id = lot.randrange(self.node.topics[topic])
        body = uid.encode() + b"|" + b"x" * lot.choice((0, 10, 100, 900))
        pairs = {"UNIQ_KEY": uid, "KEYS": f"k{uid}", "TAGS": lot.choice(TAGS), "own": str(lot.randrange(1 << 16))}
        return Sent(uid, topic, queue_id, pairs["TAGS"], kind, body, pairs, self._count % POISON_EVERY == 0)

    def _asked_pairs(self, sent: Sent) -> dict[str, str]:
        """What is sent beside what consumers must see."""
        lot, pairs = self.world.lot, dict(sent.pairs)
        if sent.kind == DELAYED:
            level = lot.randrange(1, LEVEL_MAX + 1) if not sent.delay_ms else DELAYS_MS.index(sent.delay_ms) + 1
            sent.delay_ms = DELAYS_MS[level - 1]
            pairs["DELAY"] = str(level)
        elif sent.kind == TIMED:
            if not sent.due_wall_ms:
                sent.due_wall_ms = self.world.clock.now_ms() + lot.randrange(TIMER_MS_MAX)
            pairs["TIMER_DELIVER_MS"] = str(sent.due_wall_ms)
        elif sent.kind == HALF:
            pairs |= {"TRAN_MSG": "true", "PGROUP": GROUP}
        return pairs

    def _fields(self, sent: Sent, properties: str, flags: int = 0) -> dict[str, Any]:
        return {
            "a": GROUP, "b": sent.topic, "c": "TBW102", "d": 4, "e": sent.queue_id, "f": flags,
            "g": self.world.clock.now_ms(), "h": 0, "i": properties, "j": 0, "k": False, "m": False,
        }  # fmt: skip

    # One message.

    def _send_one(self, sent: Sent) -> None:
        high = self.ledger.high_of(sent.topic, sent.queue_id)
        life = self.node.life
        fields = self._fields(sent, pairs_text(self._asked_pairs(sent)))
        self.ledger.attempt(sent)
        self._in_flight += 1
        self.ask(Code.SEND_MESSAGE_V2, partial(self._answered, sent, high, life), sent.body, **fields)

    def _answered(self, sent: Sent, high: int, life: int, answer: Command | None) -> None:
        self._in_flight -= 1
        if answer is not None and answer.code == 0:
            position = int(answer.fields["msgId"][-16:], 16)
            self.ledger.acked(
                sent, int(answer.fields["queueId"]), int(answer.fields["queueOffset"]), position, high, life
            )
        elif sent.attempts < ATTEMPTS_MAX:
            self.soon(self.world.lot.randrange(1, 500), partial(self._again, sent))

    def _again(self, sent: Sent) -> None:
        if self.wire is None:
            self.soon(100, partial(self._again, sent))
        else:
            self._send_one(sent)

    # A batch.

    def _send_batch(self) -> None:
        lot = self.world.lot
        topic = lot.choice("AAT")
        queue_id = lot.randrange(self.node.topics[topic])
        batch = [self._message(topic, PLAIN, queue_id) for _ in range(lot.randrange(1, 5))]
        body = b""
        for sent in batch:
            self.ledger.attempt(sent)
            text = pairs_text(sent.pairs).encode()
            size = _ITEM.size + len(sent.body) + 2 + len(text)
            body += _ITEM.pack(size, 0, 0, 0, len(sent.body)) + sent.body + len(text).to_bytes(2, "big") + text
        high = self.ledger.high_of(topic, queue_id)
        fields = self._fields(batch[0], "", 0) | {"m": True}
        self._in_flight += 1
        self.ask(Code.SEND_BATCH_MESSAGE, partial(self._batch_answered, batch, high, self.node.life), body, **fields)

    def _batch_answered(self, batch: list[Sent], high: int, life: int, answer: Command | None) -> None:
        self._in_flight -= 1
        if answer is None or answer.code != 0:
            return
        first = int(answer.fields["queueOffset"])
        for index, (sent, text) in enumerate(zip(batch, answer.fields["msgId"].split(","), strict=True)):
            position = int(text[-16:], 16)
            self.ledger.acked(sent, int(answer.fields["queueId"]), first + index, position, high, life)
            high = first + index

    # Transactions.

    def _send_half(self, sent: Sent) -> None:
        life = self.node.life
        text = pairs_text(self._asked_pairs(sent))
        self.ledger.attempt(sent)
        self._in_flight += 1
        fields = self._fields(sent, text, sysflag.TRANSACTION_PREPARED)
        self.ask(Code.SEND_MESSAGE_V2, partial(self._half_answered, sent, life), sent.body, **fields)

    def _half_answered(self, sent: Sent, life: int, answer: Command | None) -> None:
        self._in_flight -= 1
        lot = self.world.lot
        if answer is None or answer.code != 0:
            sent.fate = sent.fate or ROLLBACK  # the local transaction is not done
            return
        offset, position = int(answer.fields["queueOffset"]), int(answer.fields["msgId"][-16:], 16)
        self.ledger.acked(sent, int(answer.fields["queueId"]), offset, position, -1, life)
        if self.world.chance(0.15):
            # It takes long, and its producer may be gone before it says anything: the database knows when it is asked.
            self.soon(lot.randrange(4_000), partial(self._decide, sent, offset, position))
        else:
            self._decide(sent, offset, position)

    def _decide(self, sent: Sent, offset: int, position: int) -> None:
        lot = self.world.lot
        sent.fate = sent.fate or lot.choice((COMMIT, COMMIT, ROLLBACK))
        if self.world.chance(0.8):
            self._end(sent, sent.fate, offset, position, False)

    def _end(self, sent: Sent, fate: str, offset: int, position: int, from_check: bool) -> None:
        if self.wire is None:
            return
        if fate == COMMIT:
            sent.commit_asked = True
        flag = sysflag.TRANSACTION_COMMIT if fate == COMMIT else sysflag.TRANSACTION_ROLLBACK
        fields: dict[str, Any] = {
            "producerGroup": GROUP, "tranStateTableOffset": offset, "commitLogOffset": position, "commitOrRollback": flag,
            "fromTransactionCheck": from_check, "msgId": sent.uid, "transactionId": sent.uid,
        }  # fmt: skip
        if self.world.chance(0.2):
            self.tell(Code.END_TRANSACTION, **fields)
        else:
            self.ask(
                Code.END_TRANSACTION, partial(self._ended, sent, fate, offset, position, self.ledger.losses), **fields
            )

    def _ended(self, sent: Sent, fate: str, offset: int, position: int, losses: int, answer: Command | None) -> None:
        if answer is None or answer.code != 0:
            return
        if losses == self.ledger.losses:
            self.ledger.decided(sent, fate)
            if self.world.chance(0.1) and fate == COMMIT:
                self._contradict(sent, offset, position, losses)

    def _contradict(self, sent: Sent, offset: int, position: int, losses: int) -> None:
        """A program that has gone wrong says the opposite of what it said: too late."""

        def answered(answer: Command | None) -> None:
            if answer is not None and answer.code == 0 and losses == self.ledger.losses:
                raise Violation("I8", f"{sent.uid} was committed, and its rollback was confirmed")

        fields: dict[str, Any] = {
            "producerGroup": GROUP, "tranStateTableOffset": offset, "commitLogOffset": position,
            "commitOrRollback": sysflag.TRANSACTION_ROLLBACK, "fromTransactionCheck": True, "msgId": sent.uid,
        }  # fmt: skip
        self.ask(Code.END_TRANSACTION, answered, **fields)

    def asked(self, command: Command) -> None:
        """The broker asks what became of a transaction: the database of the group's producers knows."""
        if command.code != Code.CHECK_TRANSACTION_STATE:
            return
        (message,) = decode_records(command.body)
        sent = self.ledger.message_of(message.body, message.topic, "")
        if not sent.fate and self.world.now - sent.begun > 5_000:
            sent.fate = ROLLBACK if not sent.acked else self.world.lot.choice((COMMIT, ROLLBACK))
        if sent.fate and (self.world.calm or self.world.chance(0.8)):
            offset, position = int(command.fields["tranStateTableOffset"]), int(command.fields["commitLogOffset"])
            self._end(sent, sent.fate, offset, position, True)
