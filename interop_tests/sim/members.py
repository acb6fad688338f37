"""Simulated members of groups that pull: heartbeats, rebalance, offsets, retries; concurrent or in order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.client.allocation import averagely
from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.client.records import ReceivedMessage, decode_records
from gantrymq.model import names
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode
from gantrymq.remoting.json_bodies import (
    ConsumerData,
    ConsumerIds,
    Heartbeat,
    LockAnswer,
    LockRequest,
    QueueName,
    Subscription,
    decode,
    encode,
)
from gantrymq.store.schedule import DELAYS_MS
from interop_tests.sim.client import Client

if TYPE_CHECKING:
    from interop_tests.sim.ledger import Group, Ledger, Sent
    from interop_tests.sim.node import Node
    from interop_tests.sim.world import World

BROKER = "broker-a"
HEARTBEAT_MS = 3_000
BALANCE_MS = 5_000
COMMIT_MS = 1_000
SUSPEND_MS = 4_000
LOCK_VALID_MS = 30_000
LOCK_EVERY_MS = 10_000
OUTSTANDING_MAX = 32
RETRIES_MAX = 3
RETRY_LEVEL_FIRST = 3


class Share:
    """A queue that this member reads. `next`: where it pulls; `outstanding`: offsets that it works on."""

    def __init__(self, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.next = -1
        self.committed = -1
        """Told to the broker over this connection."""
        self.outstanding: dict[int, None] = {}
        self.dropped = False
        self.locked_until = -1
        self.lock_life = 0
        self.life = 0
        """The broker's process that gave the oldest message which waits here."""
        self.pulling = False
        self.waiting: list[ReceivedMessage] = []
        self.working = False

    @property
    def place(self) -> int:
        """All below is consumed."""
        return min(self.outstanding, default=self.next)


class PullMember(Client):
    """One member of `group`. `orderly`: under locks, one message at a time."""

    def __init__(self, world: World, node: Node, ledger: Ledger, name: str, group: Group, orderly: bool) -> None:
        super().__init__(world, node, ledger, name)
        self.group = group
        self.orderly = orderly
        self.shares: dict[tuple[str, int], Share] = {}

    @property
    def client_id(self) -> str:
        """A new process has a new id."""
        return f"c@{self.name}#{self.incarnation}"

    def _topics(self) -> dict[str, int]:
        queues = {topic: self.node.topics[topic] for topic in self.group.topics}
        if not self.orderly:
            queues[names.RETRY_PREFIX + self.group.name] = 1
        return queues

    # Life.

    def started(self) -> None:
        """See `Client`."""
        self.shares = {}
        self.soon(HEARTBEAT_MS, self._beat)
        self.soon(self.world.lot.randrange(BALANCE_MS), self._balance_regularly)
        self.soon(COMMIT_MS, self._commit_regularly)
        if self.orderly:
            self.soon(LOCK_EVERY_MS, self._lock_regularly)

    def ended(self) -> None:
        """See `Client`."""
        for share in self.shares.values():
            self.ledger.release(self.group.name, share.topic, share.queue_id, self.client_id)

    def leave(self) -> None:
        """It goes as a client should: what it holds is given back."""
        self.world.note(f"{self.name} leaves")
        for share in list(self.shares.values()):
            self._drop(share)
        self.tell(Code.UNREGISTER_CLIENT, clientID=self.client_id, consumerGroup=self.group.name)
        self.crash()

    def connected(self) -> None:
        """See `Client`."""
        for share in self.shares.values():
            share.committed = -1
        self._heartbeat()
        self.soon(self.world.lot.randrange(20, 60), self._balance)

    def _beat(self) -> None:
        self._heartbeat()
        self.soon(HEARTBEAT_MS, self._beat)

    def _heartbeat(self) -> None:
        if self.wire is None:
            return
        wanted = [Subscription(topic, self.group.tag if not topic.startswith("%") else "*") for topic in self._topics()]
        data = ConsumerData(
            self.group.name, consume_from_where="CONSUME_FROM_FIRST_OFFSET", subscription_data_set=wanted
        )
        self.ask(Code.HEART_BEAT, lambda answer: None, encode(Heartbeat(self.client_id, [], [data])))

    def asked(self, command: Command) -> None:
        """See `Client`."""
        if command.code == Code.NOTIFY_CONSUMER_IDS_CHANGED:
            self._balance()

    # Balance.

    def _balance_regularly(self) -> None:
        self._balance()
        self.soon(BALANCE_MS, self._balance_regularly)

    def _balance(self) -> None:
        if self.wire is not None:
            self.ask(Code.GET_CONSUMER_LIST_BY_GROUP, self._listed, consumerGroup=self.group.name)

    def _listed(self, answer: Command | None) -> None:
        if answer is None or answer.code != 0:
            return
        ids = sorted(decode(answer.body, ConsumerIds).consumer_id_list)
        if self.client_id not in ids:
            return
        for topic, count in self._topics().items():
            queues = [MessageQueue(topic, BROKER, queue_id) for queue_id in range(count)]
            mine = {queue.queue_id: None for queue in averagely(self.client_id, queues, ids)}
            for share in [share for share in self.shares.values() if share.topic == topic]:
                if share.queue_id not in mine:
                    self._drop(share)
            for queue_id in mine:
                if (topic, queue_id) not in self.shares:
                    self._take(Share(topic, queue_id))

    def _drop(self, share: Share) -> None:
        share.dropped = True
        if share.working:
            return  # an orderly member ends its message first, and gives the lock back then
        if self.shares.get((share.topic, share.queue_id)) is share:
            del self.shares[share.topic, share.queue_id]
        self._commit(share)
        if self.orderly:
            self.tell(Code.UNLOCK_BATCH_MQ, self._lock_body([share]))

    def _take(self, share: Share) -> None:
        self.shares[share.topic, share.queue_id] = share
        if self.orderly:
            self._lock([share])
        else:
            self._find_place(share)

    def _find_place(self, share: Share) -> None:
        fields: dict[str, Any] = {
            "consumerGroup": self.group.name, "topic": share.topic, "queueId": share.queue_id, "setZeroIfNotFound": False,
        }  # fmt: skip
        self.ask(Code.QUERY_CONSUMER_OFFSET, partial(self._placed, share), **fields)

    def _placed(self, share: Share, answer: Command | None) -> None:
        if share.dropped:
            return
        if answer is not None and answer.code == 0:
            share.next = int(answer.fields["offset"])
        elif answer is not None and answer.code == ResponseCode.QUERY_NOT_FOUND:
            share.next = 0
        else:
            self.soon(200, partial(self._find_place, share))
            return
        self._pull(share)

    # Locks.

    def _lock_body(self, shares: list[Share]) -> bytes:
        queues = [QueueName(share.topic, BROKER, share.queue_id) for share in shares]
        return encode(LockRequest(self.group.name, self.client_id, queues))

    def _lock_regularly(self) -> None:
        if self.shares:
            self._lock([share for share in self.shares.values() if not share.dropped])
        self.soon(LOCK_EVERY_MS, self._lock_regularly)

    def _lock(self, shares: list[Share]) -> None:
        self.ask(
            Code.LOCK_BATCH_MQ, partial(self._locked, shares, self.world.now, self.node.life), self._lock_body(shares)
        )

    def _locked(self, shares: list[Share], since: int, life: int, answer: Command | None) -> None:
        if answer is None or answer.code != 0:
            self.soon(500, partial(self._lock_missing, shares))
            return
        held = {(queue.topic, queue.queue_id): None for queue in decode(answer.body, LockAnswer).lock_ok_mq_set}
        for share in shares:
            if share.dropped:
                continue
            if (share.topic, share.queue_id) not in held:
                share.locked_until = -1
                continue
            share.locked_until = since + LOCK_VALID_MS
            share.lock_life = life
            if share.next < 0:
                self._find_place(share)
            elif share.waiting and not share.working:
                self._work(share)
        self.soon(1_000, partial(self._lock_missing, shares))

    def _lock_missing(self, shares: list[Share]) -> None:
        missing = [share for share in shares if not share.dropped and share.locked_until < self.world.now]
        if missing:
            self._lock(missing)

    # Pulls.

    def _pull(self, share: Share) -> None:
        if share.dropped or share.pulling:
            return
        if self.wire is None or len(share.outstanding) > OUTSTANDING_MAX:
            self.soon(self.world.lot.randrange(20, 100), partial(self._pull, share))
            return
        lot = self.world.lot
        commit = not self.orderly and lot.random() < 0.3
        fields: dict[str, Any] = {
            "consumerGroup": self.group.name, "topic": share.topic, "queueId": share.queue_id, "queueOffset": share.next,
            "maxMsgNums": lot.choice((1, 4, 32)), "sysFlag": 7 if commit else 6, "commitOffset": share.place if commit else 0,
            "suspendTimeoutMillis": SUSPEND_MS, "subVersion": 0,
            "subscription": "*" if share.topic.startswith("%") else self.group.tag,
        }  # fmt: skip
        share.pulling = True
        self.ask(
            Code.PULL_MESSAGE, partial(self._pulled, share, self.node.life), timeout_ms=SUSPEND_MS + 3_000, **fields
        )

    def _pulled(self, share: Share, life: int, answer: Command | None) -> None:
        share.pulling = False
        if share.dropped:
            return
        if answer is None or "nextBeginOffset" not in answer.fields:
            self.soon(self.world.lot.randrange(50, 500), partial(self._pull, share))
            return
        following = int(answer.fields["nextBeginOffset"])
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            # A power loss took records that it had passed; what it holds from before them still stands.
            share.next = following
            share.outstanding = {offset: None for offset in share.outstanding if offset < following}
            share.waiting = [message for message in share.waiting if message.queue_offset < following]
            self._commit(share)
        elif answer.code == 0:
            self._check_dense(share, answer, following)
            share.next = following
            for message in decode_records(answer.body):
                self._take_in(share, message, life)
        else:
            share.next = following
        self.ledger.passed(self.group, share.topic, share.queue_id, share.next, life)
        self._pull(share)

    def _check_dense(self, share: Share, answer: Command, following: int) -> None:
        offsets = [message.queue_offset for message in decode_records(answer.body)]
        wanted = list(range(share.next, following))
        if self.group.tag != "*":
            self.ledger.check(
                all(offset in wanted for offset in offsets) and offsets == sorted(set(offsets)),
                "I4", f"{share.topic}/{share.queue_id}: {offsets} for {share.next} to {following}",
            )  # fmt: skip
        else:
            self.ledger.check(
                offsets == wanted, "I4", f"{share.topic}/{share.queue_id}: {offsets} for {share.next} to {following}"
            )

    def _take_in(self, share: Share, message: ReceivedMessage, life: int) -> None:
        position = message.physical_offset if life == self.node.life and self.node.up else -1
        place = (message.topic, message.queue_id, message.queue_offset)
        tag = message.property("TAGS")
        if self.group.tag not in ("*", tag) and not share.topic.startswith("%"):
            return  # filters compare hashes; members compare the tags
        sent = self.ledger.delivered(self.group, place, message.body, position, message.property_map())
        if message.topic != sent.topic:
            self.ledger.came_back(self.group, sent, message.reconsume_times)
        share.outstanding[message.queue_offset] = None
        if self.orderly:
            share.life = life if not share.waiting else share.life
            share.waiting.append(message)
            if not share.working:
                self._work(share)
        else:
            self.soon(self.world.lot.randrange(1, 200), partial(self._consume, share, message, sent))

    # Concurrent.

    def _consume(self, share: Share, message: ReceivedMessage, sent: Sent) -> None:
        if sent.poison or (not self.world.calm and self.world.chance(0.1)):
            self._send_back(share, message, sent)
            return
        self.ledger.consumed(self.group, sent)
        share.outstanding.pop(message.queue_offset, None)

    def _send_back(self, share: Share, message: ReceivedMessage, sent: Sent) -> None:
        level = self.world.lot.choice((0, 0, 1, 2))
        fields: dict[str, Any] = {
            "offset": message.physical_offset, "group": self.group.name, "delayLevel": level, "originMsgId": sent.uid,
            "originTopic": share.topic, "unitMode": False, "maxReconsumeTimes": RETRIES_MAX,
        }  # fmt: skip
        times = message.reconsume_times
        delay = DELAYS_MS[(level or RETRY_LEVEL_FIRST + times) - 1]
        asked = self.group.back_due.setdefault((sent.uid, times + 1), [])
        asked.append((self.world.now, delay, self.node.life))
        self.ask(Code.CONSUMER_SEND_MSG_BACK, partial(self._back, share, message, sent), **fields)

    def _back(self, share: Share, message: ReceivedMessage, sent: Sent, answer: Command | None) -> None:
        if answer is None or answer.code != 0:
            self.soon(self.world.lot.randrange(500, 2_000), partial(self._consume, share, message, sent))
            return
        self.ledger.sent_back(self.group, sent)
        share.outstanding.pop(message.queue_offset, None)

    # In order.

    def _work(self, share: Share) -> None:
        share.working = False
        if not share.waiting or self.shares.get((share.topic, share.queue_id)) is not share:
            return
        if share.dropped:
            self._drop(share)
            return
        if self.world.now >= share.locked_until or share.lock_life != self.node.life or not self.node.up:
            # A member cannot know that the broker came anew; ours waits for the lock of the new process so that one rule holds.
            self.soon(200, partial(self._lock_missing, [share]))
            share.locked_until = -1
            return
        share.working = True
        self.ledger.hold(self.group.name, share.topic, share.queue_id, self.client_id, share.lock_life)
        spent = self.world.lot.choice((3, 30)) if self.world.calm else self.world.lot.choice((3, 30, 400, 1_500))
        self.soon(spent, partial(self._worked, share, share.waiting[0]))

    def _worked(self, share: Share, message: ReceivedMessage) -> None:
        self.ledger.release(self.group.name, share.topic, share.queue_id, self.client_id)
        share.working = False
        if share.dropped:
            self._drop(share)
            return
        if share.waiting and share.waiting[0] is message and (self.world.calm or not self.world.chance(0.1)):
            share.waiting.pop(0)
            share.outstanding.pop(message.queue_offset, None)
            sent = self.ledger.message_of(message.body, message.topic, self.group.name)
            same_life = share.life == self.node.life and self.node.up
            self.ledger.orderly(self.group.name, share.topic, share.queue_id, message.queue_offset, same_life)
            self.ledger.consumed(self.group, sent)
        self._work(share)

    # Offsets.

    def _commit_regularly(self) -> None:
        for share in list(self.shares.values()):
            self._commit(share)
        self.soon(COMMIT_MS, self._commit_regularly)

    def _commit(self, share: Share) -> None:
        if share.next < 0 or self.wire is None or share.committed == share.place:
            return
        share.committed = share.place
        fields: dict[str, Any] = {
            "consumerGroup": self.group.name, "topic": share.topic, "queueId": share.queue_id, "commitOffset": share.place,
        }  # fmt: skip
        self.tell(Code.UPDATE_CONSUMER_OFFSET, **fields)
