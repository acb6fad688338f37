"""Exactly once: what a micro-batch wrote becomes visible by one decision, whatever dies (docs/spark.md, Exactly once).

Tasks send their rows as half messages, some hundred to a thousand rows each, of a producer group that names query and batch (the *epoch*). The
driver's commit writes a decision first: a message that lists the half messages of the attempts that count. Then it commits these and rolls back
all others of the epoch. Who comes later, after a crash at any point, finds the decision and only finishes it; of two decisions the first in
the log counts. Brokers never ask about such half messages: nobody of their group is connected.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from gantrymq.client.connecting.routes import Route, loads
from gantrymq.client.errors import BrokerError, expect_success
from gantrymq.client.messages import parse_offset_message_id
from gantrymq.client.records import decode_records
from gantrymq.model import sysflag
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.names import AUTO_CREATE_TEMPLATE
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.overview_codes import LIST_OWN_TRANSACTIONS
from gantrymq.spark.wire import ASK_S, Metadata, Patience, patiently, wire
from gantrymq.spark.writing.sender import GROUP, STORED, Open, Sender

_log = logging.getLogger(__name__)

DECISIONS: Final = "gantry_spark_decisions"
"""Topic of the decisions; key: the epoch."""
ENDS_MAX: Final = 64
"""Decisions about half messages under way at one broker."""
FOUND_MAX: Final = 32
"""Decisions on one epoch that are looked at: one, unless two drivers ran at once."""
_TIME_MAX_MS: Final = 2**63 - 1


class Half(NamedTuple):
    """One half message of rows. `offset`: in the broker's half topic, `position`: in its log; `unique`: UNIQ_KEY of its first row."""

    broker: str
    topic: str
    offset: int
    position: int
    unique: str


class HalfSender(Sender):
    """Sends rows as half messages and keeps where they are."""

    def __init__(self, nameservers: Sequence[str], partition: int, group: str) -> None:
        super().__init__(nameservers, partition, group=group)
        self.halves: list[Half] = []

    def answered(self, entry: Open, answer: Command) -> None:
        """See `Sender`."""
        _, position = parse_offset_message_id(answer.fields.get("msgId", ""))
        unique = entry.common.rpartition("UNIQ_KEY\x01")[2].rstrip("\x02")
        offset = int(answer.fields["queueOffset"])
        self.halves.append(Half(entry.queue.broker, entry.queue.topic, offset, position, unique))


def group_of(query: str, batch: int) -> str:
    """The epoch's producer group, as `gantry transactions` shows it."""
    return f"spark-{query}-{batch}"


class Epoch:
    """The driver's part. `step(name)` is called before each step; for tests."""

    def __init__(
        self, nameservers: Sequence[str], query: str, batch: int, step: Callable[[str], None] = lambda name: None
    ) -> None:
        self._metadata = Metadata(nameservers)
        self.group = group_of(query, batch)
        self._step = step

    def commit(self, halves: Iterable[Half]) -> None:
        """Make the rows visible, or finish what an earlier commit of this epoch decided. Raises GantryError: then nothing is lost, and the next
        try of the batch goes on from here."""
        mine = sorted(set(halves))
        if not mine:
            return
        routes = self._routes(mine)
        decided = self._find(routes)
        if decided is None:
            self._step("decide")
            self._decide(routes, mine)
            decided = self._find(routes) or mine
        self._step("commit")
        self._end(routes, decided, sysflag.TRANSACTION_COMMIT)
        self._step("roll back others")
        self._roll_back_others(routes, set(decided))
        self._step("done")

    def abort(self, halves: Iterable[Half]) -> None:
        """Roll back, unless it is decided already: then the next try of the batch finishes it."""
        mine = sorted(set(halves))
        if not mine:
            return
        routes = self._routes(mine)
        if self._find(routes) is None:
            self._end(routes, mine, sysflag.TRANSACTION_ROLLBACK)
            self._roll_back_others(routes, set())

    def _routes(self, halves: Iterable[Half]) -> dict[str, Route]:
        """Routes of all topics that are concerned. One that its first rows have made may not be known yet; but some route has to name each broker."""
        wanted = {half.broker for half in halves}
        topics = [*sorted({half.topic for half in halves}), DECISIONS, AUTO_CREATE_TEMPLATE]

        def ask() -> dict[str, Route]:
            found: dict[str, Route] = {}
            for topic in topics:
                try:
                    found[topic] = self._metadata.route(topic)
                except GantryError as error:
                    if error.code is not ErrorCode.TOPIC_NOT_FOUND:
                        raise
            missing = sorted(wanted - {broker for route in found.values() for broker in route.brokers})
            if missing:
                text = f"epoch {self.group}: no nameserver knows broker {', '.join(missing)}"
                raise GantryError(ErrorCode.UNAVAILABLE, text)
            return found

        return patiently(ask)

    @staticmethod
    def _addresses(routes: dict[str, Route]) -> dict[str, str]:
        """Every broker that may know something of the epoch."""
        return {broker: route.address(broker) for route in routes.values() for broker in route.brokers}

    def _find(self, routes: dict[str, Route]) -> list[Half] | None:
        """The decision; all brokers have to answer, as two different ones must never be followed."""
        for _, address in sorted(self._addresses(routes).items()):
            found = patiently(lambda address=address: self._ask_for_decision(address))  # type: ignore[misc]
            if found is not None:
                return found
        return None

    def _ask_for_decision(self, address: str) -> list[Half] | None:
        fields = {
            "topic": DECISIONS, "key": self.group, "maxNum": str(FOUND_MAX), "beginTimestamp": "0", "endTimestamp": str(_TIME_MAX_MS),
        }  # fmt: skip
        answer = wire(address).request(Command(RequestCode.QUERY_MESSAGE, fields))
        if answer.code in (ResponseCode.QUERY_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST):
            return None
        body = expect_success(answer, f"query of {DECISIONS} for {self.group}", address).body
        # The index holds hashes: two keys may have the same.
        exact = [message for message in decode_records(body) if message.keys == self.group]
        if not exact:
            return None
        first = min(exact, key=lambda message: message.queue_offset)
        return [Half(*entry) for entry in json.loads(first.body)["halves"]]

    def _decide(self, routes: dict[str, Route], halves: list[Half]) -> None:
        """Write the decision, to the first broker by name that may know one."""
        broker, address = min(self._addresses(routes).items())
        body = json.dumps({"epoch": self.group, "halves": halves}).encode()
        fields = {
            "a": GROUP, "b": DECISIONS, "c": AUTO_CREATE_TEMPLATE, "d": "1", "e": "0", "f": "0", "g": str(time.time_ns() // 1_000_000),
            "h": "0", "i": f"KEYS\x01{self.group}\x02", "j": "0", "k": "false", "m": "false", "n": broker,
        }  # fmt: skip

        def send() -> None:
            answer = wire(address).request(Command(RequestCode.SEND_MESSAGE_V2, dict(fields), body))
            if answer.code not in STORED:
                raise BrokerError(answer, f"decision on {self.group}", address)

        patiently(send)

    def _end(self, routes: dict[str, Route], halves: Iterable[Half], fate: int) -> None:
        """Commit or roll back, each broker's in their order."""
        by_broker: dict[str, list[Half]] = {}
        for half in halves:
            by_broker.setdefault(half.broker, []).append(half)
        addresses = self._addresses(routes)
        for broker, mine in sorted(by_broker.items()):
            if broker not in addresses:
                addresses |= self._addresses(self._routes(mine))
            for at in range(0, len(mine), ENDS_MAX):
                self._end_some(addresses[broker], mine[at : at + ENDS_MAX], fate)

    def _end_some(self, address: str, halves: list[Half], fate: int) -> None:
        patience = Patience()
        while halves:
            try:
                link = wire(address)
                opaques = link.post([self._decision(half, fate) for half in halves])
                answers = [link.receive(opaque) for opaque in opaques]
            except GantryError as error:
                patience.wait(error)
                continue
            again: list[Half] = []
            why: GantryError | None = None
            for half, answer in zip(halves, answers, strict=True):
                if answer.code == ResponseCode.SUCCESS:
                    continue
                refused = BrokerError(answer, f"end of half message {half.offset} of {self.group}", address)
                if answer.code in (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE):
                    again.append(half)
                    why = refused
                elif fate == sysflag.TRANSACTION_COMMIT and not self._is_there(address, half):
                    raise refused
            if why is not None:
                patience.wait(why)
            halves = again

    def _decision(self, half: Half, fate: int) -> Command:
        fields = {
            "producerGroup": self.group, "topic": half.topic, "tranStateTableOffset": str(half.offset), "commitLogOffset": str(half.position),
            "commitOrRollback": str(fate), "fromTransactionCheck": "false", "msgId": half.unique, "transactionId": half.unique,
        }  # fmt: skip
        return Command(RequestCode.END_TRANSACTION, fields)

    @staticmethod
    def _is_there(address: str, half: Half) -> bool:
        """Whether a half message that is decided was committed: its first row stands in its topic, stored from there."""
        fields = {
            "topic": half.topic, "key": half.unique, "maxNum": str(FOUND_MAX), "beginTimestamp": "0", "endTimestamp": str(_TIME_MAX_MS),
            "_UNIQUE_KEY_QUERY": "true",
        }  # fmt: skip
        answer = patiently(lambda: wire(address).request(Command(RequestCode.QUERY_MESSAGE, fields)))
        if answer.code != ResponseCode.SUCCESS:
            return False
        return any(message.prepared_offset == half.position for message in decode_records(answer.body))

    def _roll_back_others(self, routes: dict[str, Route], decided: set[Half]) -> None:
        """What attempts that do not count have sent: of this run, and of earlier ones whose driver is gone."""
        places = {(half.broker, half.offset, half.position) for half in decided}
        others: list[Half] = []
        for broker, address in sorted(self._addresses(routes).items()):
            others += [
                half
                for half in patiently(lambda broker=broker, address=address: self._undecided(broker, address))  # type: ignore[misc]
                if (broker, half.offset, half.position) not in places
            ]
        if others:
            _log.info("epoch %s: %d half messages of other attempts are rolled back", self.group, len(others))
            self._end(routes, others, sysflag.TRANSACTION_ROLLBACK)

    def _undecided(self, broker: str, address: str) -> list[Half]:
        found: list[Half] = []
        start = 0
        while start >= 0:
            fields = {"prefix": self.group, "start": str(start)}
            answer = wire(address, ASK_S).request(Command(LIST_OWN_TRANSACTIONS, fields))
            page = loads(expect_success(answer, f"undecided half messages of {self.group}", address).body)
            found += [
                Half(broker, row["topic"], row["offset"], row["position"], "")
                for row in page["transactions"]
                if row["group"] == self.group
            ]
            start = page["next"]
        return found
