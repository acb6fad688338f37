"""Requests by chance for the Remoting door: frames whole and damaged, every request code, every header class, filters, property strings.

Everything follows from a seed. `Fuzz.run` sends them over a few connections and holds what must be true whatever comes: nothing is
raised, each request is answered once or its connection is closed, and when all peers are gone nothing of them is left.
"""

from __future__ import annotations

import inspect
import json
import random
import re
import struct
from pathlib import Path
from typing import Any

import msgspec

from gantrymq.net.testing import FakeLink
from gantrymq.remoting.codec import PREFIX, Command, FrameReader, encode
from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.server import filters
from gantrymq.remoting.server.broker_door import BrokerServer
from tests.remoting.bench import Bench, ask, send

TOPICS = ["T", "U", "%RETRY%G", "%RETRY%G_T", "%DLQ%G", "TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_gantry_topic", "%LMQ%x", "new", "%", "a/b", ""]  # fmt: skip
GROUPS = ["G", "H", "CG", "", "x" * 300, "%RETRY%G", "a b", "ä"]
NUMBERS = ["0", "1", "2", "3", "-1", "7", "32", "1024", "2147483647", "2147483648", "-2147483648", "9223372036854775807", "9223372036854775808", "1700000000000", "99999999999999999999999", "1.5", "NaN", "", "x", "true"]  # fmt: skip
EXPRESSIONS = ["*", "", "A || B", "||", "a > 1", "a = 'x' AND b IS NULL", "a >", "NOT NOT a", "(" * 200, "a LIKE 'x'", "'", "a IN ('x')", "x" * 5000, "\x00", "TAGS = 'A' OR price BETWEEN 1 AND 3"]  # fmt: skip
TEXTS = ["", "x", "ä", "\ud83d\ude00", "\x00", "\x01\x02", "null", "true", "false", "{}", "[]", "T", "G", "TAG", "SQL92", "x" * 70_000, "127.0.0.1:10911", "../../etc", "%s%d", "0 0 0 0 0 0 0 0", "1 2 3 4 5 6 7", "7F00000100002A9F0000000000000000"]  # fmt: skip
PROPERTIES = ["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TRAN_MSG", "PGROUP", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "GANTRY_DISPATCH_MORE", "__SHARDINGKEY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "CORRELATION_ID", "REPLY_TO_CLIENT", "MSG_TYPE", "TTL", "POP_CK", "1ST_POP_TIME", "_SYS_MSG_PRIORITY_", "TIMER_DEL_UNIQKEY", "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS", "INNER_NUM", "WAIT", "a", "price", "", "GANTRY_EXPIRES_AT"]  # fmt: skip
LENGTHS = [0, 1, 3, 4, 8, 100, 0xFFFFFF, 0x1000000, 0x1000001, 0x7FFFFFFF, 0xFFFFFFFF, 0x47455420]

BODY_KINDS = {int(RequestCode.HEART_BEAT): 2, int(RequestCode.SEND_BATCH_MESSAGE): 3}
GATEWAY_CODES = range(60_000, 60_200)
"""Gateways speak a protocol of their own over the door: calls that go on and are cancelled."""


def shapes(base: type[msgspec.Struct] = msgspec.Struct) -> list[type[msgspec.Struct]]:
    """Every class of a header or body that the door knows."""
    found = []
    for each in base.__subclasses__():
        if each.__module__.startswith(("gantrymq.remoting.", "gantrymq.model.")) and "gateway" not in each.__module__:
            found.append(each)
        found += shapes(each)
    return sorted(found, key=lambda each: f"{each.__module__}.{each.__qualname__}")


SHAPES = shapes()
HEADERS = [each for each in SHAPES if each.__name__.rstrip("V2").endswith("Header")]
TYPES = {field.encode_name: str(field.type) for each in SHAPES for field in msgspec.structs.fields(each)}
FIELDS = sorted(TYPES)
KEPT_MAX = 40
"""Values of one field of answers that later requests may name: message ids, handles, offsets."""


def body_shapes(server: BrokerServer) -> dict[int, type[msgspec.Struct]]:
    """What the handlers read out of a request's body."""
    by_name = {each.__name__: each for each in SHAPES}
    found = {}
    for code, row in server.table.items():
        handler = row.handler
        if not inspect.isfunction(handler):
            continue  # a method of the compiled door: those read sends
        for name in re.findall(r"decode\(command\.body, (?:\w+\.)?(\w+)\)", inspect.getsource(handler)):
            if name in by_name:
                found[int(code)] = by_name[name]
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        found[int(code)] = by_name["LockRequest"]
    return found


class Fuzz:
    """One broker and what is sent to it."""

    def __init__(self, root: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.bench = Bench(root)
        self.codes = sorted(self.bench.doors.table)
        self.bodies = body_shapes(self.bench.doors)
        self.links: list[FakeLink] = []
        self.open_requests: dict[FakeLink, dict[int, int]] = {}
        self.answered = 0
        self.opaque = 0
        self.kept: dict[str, list[str]] = {}

    # What is sent.

    def value(self, name: str, wild: bool = False) -> str:
        """Something that could stand there; `wild`: something that should not."""
        chance = self.chance
        low = name.lower()
        if wild:
            return chance.choice(TEXTS + NUMBERS + TOPICS + GROUPS)
        known = self.kept.get("msgId" if low.endswith("id") and "msg" in low else name)
        if known and chance.random() < 0.7:
            return chance.choice(known)
        if name == "extraInfo":
            return f"{chance.randrange(8)} {self.bench.clock.now_ms()} 60000 {chance.randrange(9)} 0 broker-a {chance.randrange(4)} {chance.randrange(8)}"
        if "int" in TYPES.get(name, ""):
            return chance.choice(NUMBERS[:7])
        if "bool" in TYPES.get(name, "") or low.startswith("order") or name in ("k", "m", "unitMode", "batch"):
            return chance.choice(["true", "false"])
        if "topic" in low or name in ("b", "c"):
            return chance.choice(TOPICS[:3])
        if "group" in low or name == "a":
            return chance.choice(GROUPS[:3])
        if name in ("subscription", "exp", "subString"):
            return chance.choice(EXPRESSIONS)
        if name in ("expressionType", "expType"):
            return chance.choice(["TAG", "SQL92", "", "XPATH"])
        if name in ("i", "properties"):
            return self.properties()
        if "clientid" in low:
            return chance.choice(["c1", "c2"])
        return chance.choice(TEXTS if chance.random() < 0.5 else NUMBERS[:7])

    def properties(self) -> str:
        chance = self.chance
        found = []
        for _ in range(chance.randrange(6)):
            value = chance.choice([*NUMBERS, *TEXTS, "%LMQ%a", "%LMQ%a,%LMQ%b", "%LMQ%~1", "A", "T", "G"])
            if len(value) > 1000 and chance.random() < 0.9:
                value = value[:1000]
            found.append(chance.choice(PROPERTIES) + chance.choice(["\x01"] * 9 + [""]) + value)
        return "\x02".join(found) + chance.choice(["\x02"] * 5 + [""])

    def fields(self) -> dict[str, str]:
        """Of all header classes together, which every handler can parse, or of one; with nothing, little or much that is wrong."""
        chance = self.chance
        names = (
            FIELDS
            if chance.random() < 0.9
            else [field.encode_name for field in msgspec.structs.fields(chance.choice(HEADERS))]
        )
        found = {name: self.value(name) for name in names}
        found.pop("n", None)  # the name of another broker would always be refused
        wrong = chance.choice([0, 0, 0, 1, 2, 5, len(names) // 3])
        for name in chance.sample(names, min(wrong, len(names))):
            if chance.random() < 0.2:
                found.pop(name, None)
            else:
                found[name] = self.value(name, True)
        return found

    def json(self, depth: int = 0) -> Any:
        chance = self.chance
        kind = chance.randrange(7 if depth < 4 else 4)
        if kind < 2:
            return chance.choice([0, 1, -1, 2**31, 2**63, 2**70, 1.5, True, False, None])
        if kind < 4:
            return chance.choice([*TOPICS, *GROUPS, *EXPRESSIONS, *TEXTS[:12]])
        if kind == 4:
            return [self.json(depth + 1) for _ in range(chance.randrange(4))]
        return self.object(depth)

    def object(self, depth: int) -> dict[str, Any]:
        """Keys of the body classes, values mostly of a kind that they could have."""
        chance = self.chance
        found: dict[str, Any] = {}
        for name in chance.sample(FIELDS, chance.randrange(12)):
            if name.endswith(("Set", "List", "Table")) and depth < 4:
                found[name] = chance.choice(
                    [[self.object(depth + 1)], {"T": self.object(depth + 1)}, [], self.json(depth + 1)]
                )
            elif name.endswith(("Data", "Config", "Wrapper")) and depth < 4:
                found[name] = self.object(depth + 1)
            else:
                found[name] = self.value(name) if chance.random() < 0.8 else self.json(depth + 1)
        return found

    def like(self, kind: msgspec.inspect.Type, name: str, depth: int = 0) -> Any:
        """A value of a type, as the body classes declare it."""
        chance = self.chance
        if chance.random() < 0.02:
            return self.json(3)
        match kind:
            case msgspec.inspect.StructType(fields=fields):
                return {field.encode_name: self.like(field.type, field.encode_name, depth + 1) for field in fields}
            case msgspec.inspect.ListType(item_type=item) | msgspec.inspect.SetType(item_type=item):
                return [self.like(item, name, depth + 1) for _ in range(chance.randrange(3))]
            case msgspec.inspect.DictType(value_type=item):
                return {
                    chance.choice(TOPICS[:3] + NUMBERS[:4]): self.like(item, name, depth + 1)
                    for _ in range(chance.randrange(3))
                }
            case msgspec.inspect.UnionType(types=types):
                return self.like(chance.choice(types), name, depth)
            case msgspec.inspect.IntType():
                return chance.choice([0, 1, 2, 7, -1, 2**31, 2**63 - 1, 2**63])
            case msgspec.inspect.BoolType():
                return chance.random() < 0.5
            case msgspec.inspect.NoneType():
                return None
        return self.value(name)

    def body(self, code: int) -> bytes:
        chance = self.chance
        kind = chance.randrange(8)
        if kind > 2 and code in BODY_KINDS:
            kind = BODY_KINDS[code]
        elif kind > 2 and code in self.bodies:
            wanted = self.like(msgspec.inspect.type_info(self.bodies[code]), "")
            return json.dumps(wanted).encode("utf-8", "replace")
        if kind == 0:
            return b""
        if kind == 1:
            return chance.randbytes(chance.choice([1, 20, 300]))
        if kind == 2:
            return self.heartbeat()
        if kind == 3:
            return self.batch()
        if kind == 4:
            return chance.choice(
                [b"[" * 5000, b'{"a":' * 5000, b'{{"topic":"T"}:1}', b"{0:1}", b"null", b"\xff\xfe", b"{", b'"', b"NaN"]
            )
        data = json.dumps(self.object(0)).encode("utf-8", "replace")
        if kind == 5:
            at = chance.randrange(len(data))
            data = data[:at] + chance.randbytes(1) + data[at + 1 :]
        return data

    def heartbeat(self) -> bytes:
        """A whole one: what groups and subscriptions do with it matters more than its shape."""
        chance = self.chance
        groups = [
            {"groupName": self.value("group"), "consumeType": "CONSUME_PASSIVELY", "messageModel": chance.choice(["CLUSTERING", "BROADCASTING"]),
             "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
             "subscriptionDataSet": [{"topic": self.value("topic"), "subString": chance.choice(EXPRESSIONS), "subVersion": chance.randrange(9),
                                      "expressionType": chance.choice(["TAG", "SQL92", None])} for _ in range(chance.randrange(4))]}
            for _ in range(chance.randrange(4))
        ]  # fmt: skip
        producers = [{"groupName": self.value("group")} for _ in range(chance.randrange(3))]
        return json.dumps(
            {"clientID": chance.choice(["c1", "c2", "c3"]), "consumerDataSet": groups, "producerDataSet": producers}
        ).encode()

    def batch(self) -> bytes:
        """Messages of SEND_BATCH_MESSAGE, with lengths that may be wrong."""
        chance = self.chance
        found = b""
        for _ in range(chance.randrange(1, 4)):
            body, properties = (
                chance.randbytes(chance.randrange(30)),
                self.properties().encode("utf-8", "replace")[:32_000],
            )
            size = 22 + len(body) + len(properties)
            if chance.random() < 0.2:
                size = chance.choice(LENGTHS) & 0x7FFFFFFF
            found += (
                struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + struct.pack(">H", len(properties)) + properties
            )
        return found

    def frame(self) -> tuple[bytes, Command]:
        """One request, and what it is."""
        chance = self.chance
        self.opaque += 1
        code = (
            chance.choice(self.codes)
            if chance.random() < 0.95
            else chance.choice([0, -1, 9, 999, 2**31 - 1, -(2**31), 60_000, 60_110, 60_150])
        )
        flag = chance.choice([0] * 12 + [2, 1, 3])
        command = Command(code, self.fields(), self.body(code), self.opaque, flag, language=chance.randrange(14))
        try:
            return encode(command, chance.random() < 0.5), command
        except (ValueError, struct.error):  # a text that UTF-8 or the binary header cannot hold
            command.fields = {
                name: value.encode("utf-8", "replace").decode()[:30_000] for name, value in command.fields.items()
            }
            return encode(command), command

    def damaged(self, data: bytes) -> bytes:
        """The frame with bytes changed, or cut, or with a length that is a lie."""
        chance = self.chance
        kind = chance.randrange(4)
        if kind == 0:
            return PREFIX.pack(chance.choice(LENGTHS), chance.choice(LENGTHS)) + data[8:]
        if kind == 1:
            return data[: chance.randrange(len(data))]
        changed = bytearray(data)
        for _ in range(chance.randrange(1, 6)):
            changed[chance.randrange(len(changed) if kind == 2 else min(len(changed), 60))] = chance.randrange(256)
        return bytes(changed)

    # What must be true.

    def run(self, count: int) -> None:
        """`count` requests; then silence, in which all that waits comes to its end; then nobody is there any more."""
        chance = self.chance
        for number in range(count):
            if number % 50 == 0:
                self.fill()
            while len(self.links) < 4:
                link = self.bench.connect(f"127.0.0.1:{50_000 + len(self.open_requests)}")
                self.links.append(link)
                self.open_requests[link] = {}
            link = chance.choice(self.links)
            data, command = self.frame()
            damaged = chance.random() < 0.05
            if damaged:
                data = self.damaged(data)
            elif not command.flag and command.code not in GATEWAY_CODES:
                self.open_requests[link][command.opaque] = command.code
            for part in self.parts(data):
                self.take(link, link.feed(part))
            if damaged or chance.random() < 0.01:
                link.lose()  # the rest of a damaged stream means nothing
            for other in self.links:
                self.take(other, other.take())
            self.links = [each for each in self.links if each.closed_by is None]
            if chance.random() < 0.05:
                self.pass_time(chance.choice([10, 1000, 20_000]))
        self.pass_time(320_000)
        self.finish()

    def fill(self) -> None:
        """Something to work on: topics with messages, whatever was deleted meanwhile."""
        link = self.bench.connect()
        for topic in TOPICS[:2]:
            fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
                      "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}  # fmt: skip
            ask(link, RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)
            for number in range(8):
                properties = f"TAGS\x01{'AB'[number % 2]}\x02price\x01{number}\x02KEYS\x01T\x02"
                send(link, b"body", properties, b=topic, e=number % 4)
        link.lose("done")
        self.bench.turn.run_until_quiet()

    def parts(self, data: bytes) -> list[bytes]:
        if self.chance.random() < 0.8:
            return [data]
        cut = self.chance.randrange(len(data) + 1)
        return [data[:cut], data[cut:]]

    def pass_time(self, ms: int) -> None:
        self.bench.wheel.advance(ms)
        self.bench.turn.run_until_quiet()
        for link in self.links:
            self.take(link, link.take())

    def take(self, link: FakeLink, data: bytes) -> None:
        """Whole frames; an answer takes its request off the list of those that wait."""
        reader = FrameReader()
        waiting = self.open_requests[link]
        for answer in reader.feed(data):
            if answer.is_response and answer.opaque in waiting:
                del waiting[answer.opaque]
                self.answered += 1
                for name, value in answer.fields.items():
                    known = self.kept.setdefault(name, [])
                    known.insert(0, value)
                    del known[KEPT_MAX:]
        assert reader.pending_bytes == 0, "half a frame was written"

    def finish(self) -> None:
        for link in self.links:
            left = self.open_requests[link]
            assert link.closed_by is not None or not left, f"never answered: {sorted(set(left.values()))}"
            link.lose("the peer is gone")
        self.bench.turn.run_until_quiet()
        doors = self.bench.doors
        assert doors.pulls.waiting == 0
        assert doors.clients.groups == {}
        assert doors.clients.producers == {}
        for name in TOPICS[:4]:
            topic = self.bench.broker.topics.topics.get(name)
            assert topic is None or not topic.waiters, name
        assert len(filters._cache.entries) <= filters.CACHED_MAX

    def close(self) -> None:
        self.bench.close()
