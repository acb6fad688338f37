"""The script: raw Remoting requests, good and bad, in the order in which they are sent to both brokers.

`{p}` in a field is the run's prefix of names, `{name}` a value that an earlier step kept. What a step leaves out of a good request stands
in the functions below, one for each kind.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

SECOND = "second"
"""A connection beside the usual one."""
ASKER = "asker"
"""The connection of a client that asked something and waits for replies."""
NAMESERVER = "nameserver"

Fields = Mapping[str, object]
BORN = "1700000000000"


@dataclass(frozen=True)
class Step:
    """One request. `until`: repeat while the answer's code or fields are other than these (a real broker builds its queues and its index
    a moment later). `keep`: variable to field of the answer, or `physical` for the offset in its message id."""

    name: str
    code: int
    fields: Fields
    body: bytes = b""
    binary: bool = False
    one_way: bool = False
    on: str = "main"
    until: Mapping[str, str] = field(default_factory=dict)
    keep: Mapping[str, str] = field(default_factory=dict)
    pushed_on: str = ""
    """Wait for a request of the broker on this connection; it belongs to what is compared."""
    may_push_on: str = ""
    """Answer a request of the broker on this connection if one comes before the step's answer."""


def without(fields: Fields, *names: str) -> dict[str, object]:
    return {name: value for name, value in fields.items() if name not in names}


LETTERS = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId", "f": "sysFlag",
    "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch",
}  # fmt: skip
SHORT = {
    "a": "{p}PG", "b": "{p}one", "c": "TBW102", "d": "2", "e": "0", "f": "0", "g": BORN, "h": "0", "i": "", "j": "0",
    "k": "false", "m": "false",
}  # fmt: skip
LONG = {LETTERS[letter]: value for letter, value in SHORT.items()}


def props(**pairs: str) -> str:
    return "".join([f"{name}\x01{value}\x02" for name, value in pairs.items()])


def packed(*bodies: bytes, tag: str = "") -> bytes:
    """Body of a batch."""
    made = b""
    for number, body in enumerate(bodies):
        text = props(UNIQ_KEY=f"BATCH{number}", **({"TAGS": tag} if tag else {})).encode()
        size = 4 + 4 + 4 + 4 + 4 + len(body) + 2 + len(text)
        made += struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + struct.pack(">h", len(text)) + text
    return made


def send(name: str, body: bytes = b"body", text: str = "", keep: Mapping[str, str] = {}, **changes: object) -> Step:
    """SEND_MESSAGE_V2 by letters."""
    return Step(name, 310, {**SHORT, "i": text, **changes}, body, keep=keep)


PULL = {
    "consumerGroup": "{p}CG", "topic": "{p}one", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0,
    "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "expressionType": "TAG",
}  # fmt: skip


def pull(name: str, code: int = 11, until: Mapping[str, str] = {}, **changes: object) -> Step:
    return Step(name, code, {**PULL, **changes}, until=until)


def create(name: str, queues: int = 1, **changes: object) -> Step:
    fields = {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    }  # fmt: skip
    return Step(f"create {name.replace('{p}', '')[:20] or 'nothing'} {changes or ''}".strip(), 17, fields | changes)


def settled(topic: str, offset: int, queue: int = 0) -> Step:
    """All sends to a queue can be read."""
    fields = {"topic": topic, "queueId": queue}
    return Step(f"max offset of {topic.replace('{p}', '')} is {offset}", 30, fields, until={"offset": str(offset)})


def java_hash(text: str) -> int:
    """String.hashCode."""
    made = 0
    for character in text:
        made = (made * 31 + ord(character)) & 0xFFFFFFFF
    return made - (1 << 32) if made >> 31 else made


def beat(client: str, *groups: tuple[str, str, str], producers: tuple[str, ...] = ()) -> bytes:
    """Heartbeat; groups are (group, topic, expression)."""
    data = [
        {"groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
         "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
         "subscriptionDataSet": [{"classFilterMode": False, "topic": topic, "subString": expression, "subVersion": 1,
                                  "tagsSet": [] if expression == "*" else [expression],
                                  "codeSet": [] if expression == "*" else [java_hash(expression)], "expressionType": "TAG"}]}
        for group, topic, expression in groups
    ]  # fmt: skip
    made = {"clientID": client, "producerDataSet": [{"groupName": name} for name in producers], "consumerDataSet": data}
    return json.dumps(made).encode()


def topics() -> Iterator[Step]:
    yield create("{p}one")
    yield create("{p}two", 2)
    yield create("{p}read", perm=4)
    yield create("{p}write", perm=2)
    yield create("{p}keyed")
    yield create("{p}odd name")
    yield create("")
    yield create("x" * 200)
    yield create("TBW102")
    yield create("SCHEDULE_TOPIC_XXXX")
    yield create("{p}zero", 0)
    yield create("{p}minus", readQueueNums=-1)
    yield create("{p}word", readQueueNums="many")
    yield create("{p}filter", topicFilterType="NONE_SUCH")
    yield Step("create without perm", 17, without(create("{p}perm").fields, "perm"))
    yield Step("topic config", 351, {"topic": "{p}two"})
    yield Step("topic config of none", 351, {"topic": "{p}none"})


def sends() -> Iterator[Step]:
    yield send("send V2", b"m0", props(UNIQ_KEY="U0", KEYS="k0 all", TAGS="red", own="x"))
    yield Step(
        "send V1", 10, {**LONG, "properties": props(UNIQ_KEY="U1", KEYS="k1 all", TAGS="blue", number="7")}, b"m1"
    )
    yield Step("send V2 binary", 310, {**SHORT, "i": props(UNIQ_KEY="U2", TAGS="red")}, b"m2", binary=True)
    yield Step("send V1 binary", 10, {**LONG, "properties": props(UNIQ_KEY="U3")}, b"m3", binary=True)
    yield Step("one way", 310, {**SHORT, "i": props(UNIQ_KEY="U4")}, b"m4", one_way=True)
    yield settled("{p}one", 5)
    yield send("no property at all", b"m5")
    yield send("queue -1", b"m6", props(UNIQ_KEY="U6"), e="-1")
    yield send("properties cut off", b"m7", "UNIQ_KEY\x01U7\x02TAGS\x01red")
    yield send("receipt in the properties", b"m8", props(UNIQ_KEY="U8", POP_CK="1 2 3"))
    yield send("flag, reconsumed, compressed bits", b"m9", props(UNIQ_KEY="U9"), h="5", j="2", f="768")
    yield send("unit mode", b"m10", props(UNIQ_KEY="U10"), k="true")
    yield send("unknown field", b"m11", props(UNIQ_KEY="U11"), zz="1")
    yield settled("{p}one", 12)
    yield send("queue too high", e="7")
    yield send("queue is no number", e="x")
    yield send("no topic", b=None)
    yield send("no queue", e=None)
    yield send("no sysFlag", f=None)
    yield send("no born timestamp", g=None)
    yield send("no group", a=None)
    yield send("no fields at all", **dict.fromkeys(SHORT))
    yield send("empty body", b"", b="{p}empty")
    yield send("body over 4 MiB", bytes(4 * 1024 * 1024 + 1))
    yield send("properties over 32767", b"x", props(big="x" * 33_000))
    yield send("tag mask in sysFlag", b"x", props(UNIQ_KEY="U12"), f="2", b="{p}two")
    yield send("topic not made, no template", b="{p}unknown", c="{p}nothing")
    yield send("topic made by TBW102", b="{p}made", e="1")
    yield Step("config of the made topic", 351, {"topic": "{p}made"})
    yield send("topic with a space", b="{p}odd topic")
    yield send("topic of 130", b="{p}" + "t" * 130)
    yield send("empty topic", b="")
    yield send("read only topic", b="{p}read")
    yield send("to SCHEDULE_TOPIC_XXXX", b="SCHEDULE_TOPIC_XXXX")
    yield send("to TBW102", b="TBW102")
    yield send("to the half topic", b="RMQ_SYS_TRANS_HALF_TOPIC")
    yield send("to a retry topic that is dead", b"dead", props(UNIQ_KEY="UD"), b="%RETRY%{p}RG", j="20", l="16")
    yield send("to a retry topic", b"again", props(UNIQ_KEY="UR"), b="%RETRY%{p}RG", j="1", l="16")
    yield Step("batch", 320, {**SHORT, "b": "{p}two", "i": "", "m": "true"}, packed(b"b0", b"b1", tag="blue"))
    yield Step("batch, broken", 320, {**SHORT, "b": "{p}two", "m": "true"}, packed(b"b0", b"b1")[:-3])
    yield Step("batch, empty", 320, {**SHORT, "b": "{p}two", "m": "true"}, b"")
    yield Step("batch to a retry topic", 320, {**SHORT, "b": "%RETRY%{p}RG", "m": "true"}, packed(b"b0"))
    yield Step("batch with queue too high", 320, {**SHORT, "b": "{p}two", "e": "9", "m": "true"}, packed(b"b0"))


def delays() -> Iterator[Step]:
    yield send("level 18", b"x", props(UNIQ_KEY="L1", DELAY="18"))
    yield send("level 99", b"x", props(UNIQ_KEY="L2", DELAY="99"))
    yield send("level 0", b"l3", props(UNIQ_KEY="L3", DELAY="0"), b="{p}two", e="1")
    # Later than the script takes on any machine: nothing of it may come into the topic that is looked at.
    yield send("timer in an hour", b"x", props(UNIQ_KEY="TM1", TIMER_DELAY_SEC="3600"), {"handle": "recallHandle"})
    yield send("timer in ms", b"x", props(UNIQ_KEY="TM2", TIMER_DELAY_MS="3600000"))
    yield send(
        "timer that has passed", b"t3", props(UNIQ_KEY="TM3", TIMER_DELIVER_MS="1600000000000"), b="{p}two", e="1"
    )
    yield send("timer too far", b"x", props(UNIQ_KEY="TM4", TIMER_DELAY_SEC="999999999"))
    yield send("timer that is no number", b"x", props(UNIQ_KEY="TM5", TIMER_DELAY_SEC="soon"))
    recall = {"producerGroup": "{p}PG", "topic": "{p}one", "recallHandle": "{handle}"}
    yield Step("recall", 370, recall)
    yield Step("recall of another topic", 370, recall | {"topic": "{p}two"})
    yield Step("recall without a topic", 370, without(recall, "topic"))
    yield Step("recall of a topic that is not there", 370, recall | {"topic": "{p}none"})
    yield Step("recall of nonsense", 370, recall | {"recallHandle": "nonsense"})
    yield Step("recall without a handle", 370, without(recall, "recallHandle"))


def pulls() -> Iterator[Step]:
    yield pull("pull all")
    yield pull("pull one", maxMsgNums=1)
    yield pull("pull from the middle", queueOffset=4, maxMsgNums=3)
    yield pull("pull at the end", queueOffset=12)
    yield pull("pull behind the end", queueOffset=50)
    yield pull("pull before the beginning", queueOffset=-3)
    yield pull("pull a tag", subscription="red")
    yield pull("pull two tags", subscription="red || blue")
    yield pull("pull a tag that nobody has", subscription="nobody")
    yield pull("pull with SQL92", subscription="number > 5", expressionType="SQL92")
    yield pull("pull with broken SQL92", subscription="number >", expressionType="SQL92")
    yield pull("pull with another type", subscription="x", expressionType="OTHER")
    yield pull("pull of an empty queue", topic="{p}keyed")
    yield pull("pull of a queue that is not there", queueId=9)
    yield pull("pull of queue -1", queueId=-1)
    yield pull("pull of no topic", topic="{p}none")
    yield pull("pull of an illegal topic", topic="{p}no good")
    yield pull("pull of a write only topic", topic="{p}write")
    yield pull("pull without a subscription", sysFlag=0, consumerGroup="{p}NOBODY")
    yield pull("pull of none", maxMsgNums=0)
    yield pull("pull of -1", maxMsgNums=-1)
    yield pull("pull and commit", sysFlag=5, commitOffset=3)
    yield pull("light pull", code=361, sysFlag=20, maxMsgNums=2)
    yield Step("pull without queueOffset", 11, without(PULL, "queueOffset"))
    yield Step("pull without a group", 11, without(PULL, "consumerGroup"))
    yield pull("pull by an illegal group", consumerGroup="{p} no good")
    yield pull("pull of the batch", topic="{p}two", until={"code": "0"})
    yield pull("pull of the passed timer", topic="{p}two", queueId=1, until={"nextBeginOffset": "2"})
    yield pull("pull of the dead", topic="%DLQ%{p}RG", until={"code": "0"})
    yield pull("pull of the retried", topic="%RETRY%{p}RG", until={"code": "0"})
    yield pull("long poll that ends", queueOffset=12, sysFlag=6, suspendTimeoutMillis=300)


def offsets() -> Iterator[Step]:
    where = {"consumerGroup": "{p}OG", "topic": "{p}one", "queueId": 0}
    yield Step("commit of a group that is not known", 15, where | {"consumerGroup": "{p}STRANGE", "commitOffset": 3})
    yield Step("create a group", 200, {}, json.dumps({"groupName": "{p}OG"}).encode())
    yield Step("offset of a new group", 14, where)
    yield Step("offset of a new group, not zero", 14, where | {"setZeroIfNotFound": "false"})
    yield Step("offset of an empty queue", 14, where | {"topic": "{p}keyed"})
    yield Step("offset of no topic", 14, where | {"topic": "{p}none"})
    yield Step("offset of no queue", 14, where | {"queueId": 9})
    yield Step("offset without a group", 14, without(where, "consumerGroup"))
    yield Step("commit", 15, where | {"commitOffset": 3})
    yield Step("offset after the commit", 14, where)
    yield Step("commit back", 15, where | {"commitOffset": 1})
    yield Step("offset after the way back", 14, where)
    yield Step("commit behind the end", 15, where | {"commitOffset": 99})
    yield Step("offset behind the end", 14, where)
    yield Step("commit of -1", 15, where | {"commitOffset": -1})
    yield Step("commit of no topic", 15, where | {"topic": "{p}none", "commitOffset": 1})
    yield Step("commit of no queue", 15, where | {"queueId": 9, "commitOffset": 1})
    yield Step("commit without an offset", 15, where)
    yield Step("commit of a word", 15, where | {"commitOffset": "x"})
    yield Step("one way commit", 15, where | {"commitOffset": 4}, one_way=True)
    yield Step("offset after the one way commit", 14, where, until={"offset": "4"})
    yield Step("offset by pull", 14, where | {"consumerGroup": "{p}CG"})
    for name, code in (("max", 30), ("min", 31)):
        yield Step(f"{name} offset", code, {"topic": "{p}one", "queueId": 0})
        yield Step(f"{name} offset of no topic", code, {"topic": "{p}none", "queueId": 0})
        yield Step(f"{name} offset of no queue", code, {"topic": "{p}one", "queueId": 9})
        yield Step(f"{name} offset without a queue", code, {"topic": "{p}one"})
    search = {"topic": "{p}one", "queueId": 0, "timestamp": 0}
    yield Step("offset at time 0", 29, search)
    yield Step("offset in the future", 29, search | {"timestamp": 4_000_000_000_000})
    yield Step("offset at time 0, upper", 29, search | {"boundaryType": "UPPER"})
    yield Step("offset in the future, upper", 29, search | {"timestamp": 4_000_000_000_000, "boundaryType": "UPPER"})
    yield Step("offset by time, no topic", 29, search | {"topic": "{p}none"})
    yield Step("offset by time, empty queue", 29, search | {"topic": "{p}keyed"})
    yield Step("earliest message", 32, {"topic": "{p}one", "queueId": 0})
    yield Step("earliest message of an empty queue", 32, {"topic": "{p}keyed", "queueId": 0})
    yield Step("earliest message of no topic", 32, {"topic": "{p}none", "queueId": 0})


def clients() -> Iterator[Step]:
    group = ("{p}HG", "{p}one", "red")
    yield Step("heartbeat", 34, {}, beat("{p}client1", group, producers=("{p}PG",)))
    yield Step("heartbeat of a second", 34, {}, beat("{p}client2", group), on=SECOND)
    yield Step("heartbeat with nothing", 34, {}, beat("{p}client3"), on="third")
    yield Step("heartbeat that is no JSON", 34, {}, b"{")
    yield Step("heartbeat without a body", 34, {})
    yield Step(
        "heartbeat with an odd type", 34, {}, beat("{p}client4", group).replace(b"CLUSTERING", b"ODD"), on="fourth"
    )
    yield Step("members", 38, {"consumerGroup": "{p}HG"})
    yield Step("members of none", 38, {"consumerGroup": "{p}none"})
    yield Step("members without a group", 38, {})
    yield pull("pull by heartbeat", consumerGroup="{p}HG", sysFlag=0, subVersion=1)
    yield pull("pull of a topic not subscribed", consumerGroup="{p}HG", topic="{p}two", sysFlag=0)
    yield pull("pull newer than the heartbeat", consumerGroup="{p}HG", sysFlag=0, subVersion=9)
    check = {"clientId": "{p}client1", "group": "{p}HG", "namespace": ""}
    for name, kind, text in (
        ("SQL92", "SQL92", "a > 5"), ("broken SQL92", "SQL92", "a >"), ("tags", "TAG", "a||b"),
        ("an odd type", "OTHER", "x"),
    ):  # fmt: skip
        data = {
            "topic": "{p}one",
            "subString": text,
            "expressionType": kind,
            "tagsSet": [],
            "codeSet": [],
            "subVersion": 1,
        }
        asked = {"clientId": "{p}client1", "group": "{p}HG", "namespace": None, "subscriptionData": data}
        yield Step(f"check of {name}", 46, check, json.dumps(asked).encode())
    yield Step("check of nothing", 46, {}, b"{}")
    queue = [{"topic": "{p}one", "brokerName": "broker-a", "queueId": 0}]
    lock = {"consumerGroup": "{p}HG", "clientId": "{p}client1", "onlyThisBroker": False, "mqSet": queue}
    other = lock | {"clientId": "{p}client2"}
    yield Step("lock", 41, {}, json.dumps(lock).encode())
    yield Step("lock again", 41, {}, json.dumps(lock).encode())
    yield Step("lock of another", 41, {}, json.dumps(other).encode())
    yield Step("unlock of another", 42, {}, json.dumps(other).encode())
    yield Step("lock of another, still", 41, {}, json.dumps(other).encode())
    yield Step("unlock", 42, {}, json.dumps(lock).encode())
    yield Step("lock of another, at last", 41, {}, json.dumps(other).encode())
    yield Step("lock of nothing", 41, {}, json.dumps(lock | {"mqSet": []}).encode())
    yield Step("lock that is no JSON", 41, {}, b"[")
    yield Step("unregister", 35, {"clientID": "{p}client2", "consumerGroup": "{p}HG"}, on=SECOND)
    yield Step("members after that", 38, {"consumerGroup": "{p}HG"})
    yield Step("unregister without a client", 35, {"consumerGroup": "{p}HG"})


def send_backs() -> Iterator[Step]:
    yield Step(
        "view for send back",
        310,
        {**SHORT, "b": "{p}two", "i": props(UNIQ_KEY="SB")},
        b"back",
        keep={"record": "physical"},
    )
    back = {"offset": "{record}", "group": "{p}HG", "delayLevel": 3, "originMsgId": "SB", "originTopic": "{p}two", "unitMode": "false",
            "maxReconsumeTimes": 16}  # fmt: skip
    yield Step("send back", 36, back)
    yield Step("send back, dead at once", 36, back | {"delayLevel": -1})
    yield Step("send back by a group that is not known", 36, back | {"group": "{p}NEVER"})
    yield Step("send back of no record", 36, back | {"offset": 99_999_999_999})
    yield Step("send back of a wrong offset", 36, back | {"offset": 1})
    yield Step("send back without an offset", 36, without(back, "offset"))
    yield Step("send back without a group", 36, without(back, "group"))
    yield Step("send back without a level", 36, without(back, "delayLevel"))
    yield pull("pull of what was dead at once", topic="%DLQ%{p}HG", until={"code": "0"})


def transactions() -> Iterator[Step]:
    text = props(TRAN_MSG="true", PGROUP="{p}TG", UNIQ_KEY="TX%d", KEYS="tx")
    for number in (1, 2, 3):
        keep = {f"half{number}": "physical", f"place{number}": "queueOffset"}
        yield Step(
            f"half message {number}",
            310,
            {**SHORT, "b": "{p}keyed", "f": "4", "i": text % number},
            b"h%d" % number,
            keep=keep,
        )
    end = {
        "producerGroup": "{p}TG", "tranStateTableOffset": "{place1}", "commitLogOffset": "{half1}", "commitOrRollback": 8,
        "fromTransactionCheck": "false", "msgId": "TX1", "transactionId": "TX1", "topic": "{p}keyed",
    }  # fmt: skip
    yield settled("{p}keyed", 0)
    yield Step("commit by another group", 37, end | {"producerGroup": "{p}OTHER"})
    yield Step("commit of a wrong place", 37, end | {"tranStateTableOffset": 999})
    yield Step("commit of a wrong record", 37, end | {"commitLogOffset": 1})
    yield Step("commit without an offset", 37, without(end, "commitLogOffset"))
    yield Step("commit of an odd kind", 37, end | {"commitOrRollback": 5})
    yield Step("not decided", 37, end | {"commitOrRollback": 0}, one_way=True)
    yield Step(
        "not decided after a check", 37, end | {"commitOrRollback": 0, "fromTransactionCheck": "true"}, one_way=True
    )
    yield Step("commit", 37, end)
    yield settled("{p}keyed", 1)
    second = end | {
        "tranStateTableOffset": "{place2}",
        "commitLogOffset": "{half2}",
        "msgId": "TX2",
        "transactionId": "TX2",
    }
    yield Step("rollback", 37, second | {"commitOrRollback": 12})
    third = end | {
        "tranStateTableOffset": "{place3}",
        "commitLogOffset": "{half3}",
        "msgId": "TX3",
        "transactionId": "TX3",
    }
    yield Step("one way commit after a check", 37, third | {"fromTransactionCheck": "true"}, one_way=True)
    yield pull("pull of what was committed", topic="{p}keyed", until={"nextBeginOffset": "2"})
    yield Step("rollback after the commit", 37, end | {"commitOrRollback": 12})
    yield Step("commit again", 37, end)
    yield Step("commit after the rollback", 37, second)
    yield pull("pull after decisions that came too late", topic="{p}keyed", until={"nextBeginOffset": "2"})


def queries() -> Iterator[Step]:
    query = {"topic": "{p}one", "key": "all", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 4_000_000_000_000}
    unique = {"_UNIQUE_KEY_QUERY": "true"}
    yield Step("by key", 12, query, until={"code": "0"})
    yield Step("by key, one", 12, query | {"maxNum": 1})
    yield Step("by a key that is not there", 12, query | {"key": "none"})
    yield Step("by key, another topic", 12, query | {"topic": "{p}two"})
    yield Step("by key, no topic", 12, query | {"topic": "{p}none"})
    yield Step("by key, another time", 12, query | {"endTimestamp": 1000})
    yield Step("by unique key", 12, query | {"key": "U3", **unique})
    yield Step("by unique key that is not there", 12, query | {"key": "UX", **unique})
    yield Step("by key without a number", 12, without(query, "maxNum"))
    yield Step("by key without a key", 12, without(query, "key"))
    yield Step("by record", 33, {"offset": "{record}"})
    yield Step("by record that is not there", 33, {"offset": 99_999_999_999})
    yield Step("by record without an offset", 33, {})


def replies() -> Iterator[Step]:
    yield Step("heartbeat of who asks", 34, {}, beat("{p}asker", producers=("{p}AG",)), on=ASKER)
    text = {"CORRELATION_ID": "c1", "TTL": "3000", "MSG_TYPE": "reply", "UNIQ_KEY": "RP"}
    known = props(REPLY_TO_CLIENT="{p}asker", **text)
    fields = {**SHORT, "b": "DefaultCluster_REPLY_TOPIC", "i": known}
    yield Step("reply", 325, fields, b"answer", pushed_on=ASKER)
    yield Step(
        "reply V1",
        324,
        {**LONG, "topic": "DefaultCluster_REPLY_TOPIC", "properties": known},
        b"answer",
        pushed_on=ASKER,
    )
    yield Step("reply to nobody", 325, fields | {"i": props(REPLY_TO_CLIENT="{p}gone", **text)}, b"answer")
    yield Step("reply that is none", 325, fields | {"i": props(UNIQ_KEY="RP")}, b"answer")
    yield Step("reply to a queue that is not there", 325, fields | {"e": "3"}, b"answer", may_push_on=ASKER)


def pops() -> Iterator[Step]:
    yield create("{p}pop", 2)
    for number in range(6):
        yield send(
            f"to pop {number}",
            b"p%d" % number,
            props(UNIQ_KEY=f"P{number}", TAGS="even" if number % 2 == 0 else "odd"),
            b="{p}pop",
        )
    yield settled("{p}pop", 6)
    pop = {
        "consumerGroup": "{p}PG1", "topic": "{p}pop", "queueId": 0, "maxMsgNums": 2, "invisibleTime": 60_000, "pollTime": 0,
        "bornTime": "{now}", "initMode": 0, "expType": "TAG", "exp": "*", "order": "false",
    }  # fmt: skip
    yield Step("pop two", 200050, pop, keep={"popped": "popTime", "revive": "reviveQid"})
    receipt = "0 {popped} 60000 {revive} 0 broker-a 0"
    ack = {"consumerGroup": "{p}PG1", "topic": "{p}pop", "queueId": 0, "extraInfo": f"{receipt} 0", "offset": 0}
    yield Step("pop the others", 200050, pop | {"maxMsgNums": 32})
    yield Step("pop when all are taken", 200050, pop)
    yield Step("ack", 200051, ack)
    yield Step("ack again", 200051, ack)
    yield Step("ack behind the end", 200051, ack | {"offset": 99})
    yield Step("ack of no topic", 200051, ack | {"topic": "{p}none"})
    yield Step("ack of no queue", 200051, ack | {"queueId": 9})
    yield Step("ack of nonsense", 200051, ack | {"extraInfo": "nonsense"})
    yield Step("ack without a receipt", 200051, without(ack, "extraInfo"))
    change = ack | {"offset": 1, "extraInfo": f"{receipt} 1", "invisibleTime": 30_000}
    yield Step("longer", 200053, change)
    yield Step("longer, behind the end", 200053, change | {"offset": 99})
    yield Step("longer, no topic", 200053, change | {"topic": "{p}none"})
    yield Step("longer without a time", 200053, without(change, "invisibleTime"))
    many = {"brokerName": "broker-a", "acks": [{"c": "{p}PG1", "t": "{p}pop", "r": "0", "so": 2, "q": 0, "rq": 0, "pt": 1, "it": 60000,
                                               "b": "Bw=="}]}  # fmt: skip
    yield Step("batch ack of nothing", 200151, {}, json.dumps(many | {"acks": []}).encode())
    yield Step("batch ack without a body", 200151, {})
    yield Step("peek", 200052, {"topic": "{p}pop", "queueId": 0, "maxMsgNums": 2, "consumerGroup": "{p}PEEK"})
    yield Step(
        "peek of no topic", 200052, {"topic": "{p}none", "queueId": 0, "maxMsgNums": 2, "consumerGroup": "{p}PEEK"}
    )
    yield Step("pop a tag", 200050, pop | {"consumerGroup": "{p}PG2", "exp": "even", "maxMsgNums": 32})
    yield Step("pop from the end", 200050, pop | {"consumerGroup": "{p}PG3", "initMode": 1, "maxMsgNums": 32})
    ordered = pop | {"consumerGroup": "{p}PG4", "order": "true", "attemptId": "a1"}
    yield Step("ordered pop", 200050, ordered)
    yield Step("ordered pop, blocked", 200050, ordered | {"attemptId": "a2"})
    yield Step("ordered pop, same attempt", 200050, ordered)
    yield Step("pop an empty queue", 200050, pop | {"queueId": 1})
    yield Step("pop of no topic", 200050, pop | {"topic": "{p}none"})
    yield Step("pop of a write only topic", 200050, pop | {"topic": "{p}write"})
    yield Step("pop of no queue", 200050, pop | {"queueId": 9})
    yield Step("pop too many", 200050, pop | {"maxMsgNums": 33})
    yield Step("pop with broken SQL92", 200050, pop | {"expType": "SQL92", "exp": "a >"})
    yield Step("pop without a time", 200050, without(pop, "invisibleTime"))
    wait = {"consumerGroup": "{p}PG5", "topic": "{p}pop", "queueId": 0, "pollTime": 0, "bornTime": "{now}"}
    yield Step("notification", 200054, wait)
    yield Step("notification of an empty queue", 200054, wait | {"queueId": 1})
    yield Step("notification of no topic", 200054, wait | {"topic": "{p}none"})
    yield Step("who polls", 200055, {"consumerGroup": "{p}PG5", "topic": "{p}pop", "queueId": 0})
    yield Step("who polls no topic", 200055, {"consumerGroup": "{p}PG5", "topic": "{p}none", "queueId": 0})
    mode = {"topic": "{p}pop", "consumerGroup": "{p}PG6", "mode": "POP", "popShareQueueNum": 0}
    yield Step("request mode", 401, {}, json.dumps(mode).encode())
    yield Step("request mode of a retry topic", 401, {}, json.dumps(mode | {"topic": "%RETRY%{p}PG6"}).encode())
    asked = {
        "topic": "{p}pop",
        "consumerGroup": "{p}PG6",
        "clientId": "{p}client6",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    }
    yield Step("heartbeat of a member", 34, {}, beat("{p}client6", ("{p}PG6", "{p}pop", "*")), on="member")
    yield Step("assignment", 400, {}, json.dumps(asked).encode())
    yield Step("assignment of a stranger", 400, {}, json.dumps(asked | {"clientId": "{p}client7"}).encode())
    yield Step("assignment by an odd strategy", 400, {}, json.dumps(asked | {"strategyName": "ODD"}).encode())


def others() -> Iterator[Step]:
    yield Step("a code that is not there", 9999, {})
    yield Step("connections", 203, {"consumerGroup": "{p}NEVER"})
    yield Step("route", 105, {"topic": "{p}two"}, on=NAMESERVER, until={"code": "0"})
    yield Step("route of no topic", 105, {"topic": "{p}none"}, on=NAMESERVER)
    yield Step("route without a topic", 105, {}, on=NAMESERVER)
    yield Step("clusters", 106, {}, on=NAMESERVER)
    yield Step("a code that no nameserver has", 9999, {}, on=NAMESERVER)
    yield Step("delete topic", 215, {"topic": "{p}write"})
    yield Step("delete no topic", 215, {"topic": "{p}none"})
    yield Step("delete without a topic", 215, {})
    yield Step("delete TBW102", 215, {"topic": "TBW102"})


def script() -> list[Step]:
    """All steps; names are unique."""
    parts = (topics, sends, delays, pulls, offsets, clients, send_backs, transactions, queries, replies, pops, others)
    made = [step for part in parts for step in part()]
    seen: dict[str, int] = {}
    unique = []
    for step in made:
        seen[step.name] = seen.get(step.name, 0) + 1
        name = step.name if seen[step.name] == 1 else f"{step.name} ({seen[step.name]})"
        unique.append(step if name == step.name else Step(**{**step.__dict__, "name": name}))
    return unique
