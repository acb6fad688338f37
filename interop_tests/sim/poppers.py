"""Simulated pop consumers: acknowledgements one by one and in batches, longer leases, messages that are let go."""

from __future__ import annotations

import base64
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode as Code
from interop_tests.sim.client import Client
from tests.remoting.pop_client import Popped, popped, real_topic

if TYPE_CHECKING:
    from interop_tests.sim.ledger import Group, Ledger, Place, Sent
    from interop_tests.sim.node import Node
    from interop_tests.sim.world import World

INVISIBLE_MS = (3_000, 8_000, 20_000)
POLL_MS = 3_000


class Popper(Client):
    """One member of a group that pops."""

    def __init__(self, world: World, node: Node, ledger: Ledger, name: str, group: Group) -> None:
        super().__init__(world, node, ledger, name)
        self.group = group

    def started(self) -> None:
        """See `Client`."""
        for topic in self.group.topics:
            self.soon(self.world.lot.randrange(100), partial(self._pop, topic))

    def _pop(self, topic: str) -> None:
        if self.wire is None:
            self.soon(self.world.lot.randrange(20, 200), partial(self._pop, topic))
            return
        lot = self.world.lot
        invisible = lot.choice(INVISIBLE_MS)
        fields: dict[str, Any] = {
            "consumerGroup": self.group.name, "topic": topic, "queueId": -1, "maxMsgNums": lot.choice((1, 8, 32)),
            "invisibleTime": invisible, "pollTime": POLL_MS if self.world.calm else lot.choice((0, POLL_MS)), "bornTime": self.world.clock.now_ms(),
            "initMode": 0, "order": self.group.ordered, "expType": "TAG", "exp": self.group.tag,
        }  # fmt: skip
        answered = partial(self._popped, topic, self.world.now, invisible, self.node.life)
        self.ask(Code.POP_MESSAGE, answered, timeout_ms=POLL_MS + 3_000, **fields)

    def _popped(self, topic: str, asked: int, invisible: int, life: int, answer: Command | None) -> None:
        lot = self.world.lot
        if answer is None or answer.code != 0:
            self.soon(lot.randrange(50, 400), partial(self._pop, topic))
            return
        fresh = life == self.node.life and self.node.up
        if fresh and self.group.ordered:
            for queue, offset in self._begins(popped(answer)).items():
                self.ledger.popped_in_order(self.group, topic, queue, offset)
        batch: list[tuple[Popped, Sent]] = []
        for one in popped(answer):
            place = (one.topic, one.queue_id, one.offset)
            sent = self.ledger.delivered(self.group, place, one.body, -1, None)
            if fresh:
                self.ledger.popped(self.group, sent, place, asked, asked + invisible, self.client)
            batch.append((one, sent))
        self.soon(lot.randrange(1, 300), partial(self._consume, batch))
        self.soon(lot.randrange(1, 50), partial(self._pop, topic))

    def _begins(self, batch: list[Popped]) -> dict[int, int]:
        """First offset of each queue."""
        begins: dict[int, int] = {}
        for one in batch:
            begins[one.queue_id] = min(begins.get(one.queue_id, one.offset), one.offset)
        return begins

    @property
    def client(self) -> str:
        """Who holds a lease."""
        return f"{self.name}#{self.incarnation}"

    def _consume(self, batch: list[tuple[Popped, Sent]]) -> None:
        lot = self.world.lot
        if not self.world.calm:
            if self.world.chance(0.1):
                return  # let go: they come again when their leases end
            if self.world.chance(0.1):
                for one, sent in batch:
                    self._change(one, sent)
                return
        for one, sent in batch:
            self.ledger.consumed(self.group, sent)
            self.ledger.pop_asked(self.group, self._place(one))
        if lot.random() < 0.5:
            self._ack_batch(batch)
            return
        for one, sent in batch:
            self._ack(one, sent)

    def _ack(self, one: Popped, sent: Sent) -> None:
        parts = one.receipt.split()
        fields: dict[str, Any] = {
            "consumerGroup": self.group.name, "topic": real_topic(one, self.group.name), "queueId": parts[6],
            "extraInfo": one.receipt, "offset": parts[7],
        }  # fmt: skip
        self.ask(Code.ACK_MESSAGE, partial(self._acked, [(one, sent)], self.node.life), **fields)

    def _ack_batch(self, batch: list[tuple[Popped, Sent]]) -> None:
        acks: dict[tuple[str, ...], int] = {}
        for one, _ in batch:
            parts = one.receipt.split()
            key = (one.topic, *parts[:7])
            acks[key] = acks.get(key, 0) | 1 << (int(parts[7]) - int(parts[0]))
        body = [
            {"c": self.group.name, "t": key[0], "so": int(key[1]), "pt": int(key[2]), "it": int(key[3]), "rq": int(key[4]),
             "r": key[5], "q": int(key[7]), "b": base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()}
            for key, bits in acks.items()
        ]  # fmt: skip
        text = json.dumps({"brokerName": "broker-a", "acks": body}).encode()
        self.ask(Code.BATCH_ACK_MESSAGE, partial(self._acked, batch, self.node.life), text)

    def _acked(self, batch: list[tuple[Popped, Sent]], life: int, answer: Command | None) -> None:
        if answer is None or answer.code != 0 or life != self.node.life:
            return
        for one, sent in batch:
            if one.pop_ms and self._still_mine(one):
                self.ledger.pop_done(self.group, sent, self._place(one))

    def _still_mine(self, one: Popped) -> bool:
        """The lease had not ended when the answer came: an acknowledgement that comes late is answered with success, and is none."""
        leased = self.group.leased.get(self._place(one))
        return leased is not None and leased[1] == self.client and self.world.now < leased[0]

    def _place(self, one: Popped) -> Place:
        return one.topic, one.queue_id, one.offset

    def _change(self, one: Popped, sent: Sent) -> None:
        parts = one.receipt.split()
        invisible = self.world.lot.choice(INVISIBLE_MS)
        fields: dict[str, Any] = {
            "consumerGroup": self.group.name, "topic": real_topic(one, self.group.name), "queueId": parts[6],
            "extraInfo": one.receipt, "offset": parts[7], "invisibleTime": invisible,
        }  # fmt: skip
        mine = self._still_mine(one)
        if mine:
            # Whether the new lease or the old one counts is not known until the answer comes.
            self.group.leased[self._place(one)] = (
                min(self.group.leased[self._place(one)][0], self.world.now + invisible),
                self.client,
                self.world.now,
            )
        answered = partial(self._changed, one, sent, self.world.now + invisible, mine, self.node.life)
        self.ask(Code.CHANGE_MESSAGE_INVISIBLETIME, answered, **fields)

    def _changed(self, one: Popped, sent: Sent, until: int, mine: bool, life: int, answer: Command | None) -> None:
        if answer is None or answer.code != 0 or life != self.node.life:
            return
        parts = one.receipt.split()
        parts[1], parts[2] = answer.fields["popTime"], answer.fields["invisibleTime"]
        one.receipt = " ".join(parts)
        if mine and self._still_mine(one):
            self.group.leased[self._place(one)] = (until, self.client, self.world.now)
        if self.world.calm or self.world.chance(0.7):
            self.ledger.consumed(self.group, sent)
            self.ledger.pop_asked(self.group, self._place(one))
            self.soon(self.world.lot.randrange(1, 300), partial(self._ack, one, sent))
