"""RocketMQ's `config/*.json` as bytes (docs/formats/config.md): one fragment per row, so that a change costs one row.

Written as fastjson's PrettyFormat writes them, integer keys without quotes; read in that dialect and in standard JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from gantrymq.model.dialect import DialectError, quick_json, read_json
from gantrymq.model.names import LMQ_PREFIX, is_own_system_topic

TOPICS = "topics.json"
GROUPS = "subscriptionGroup.json"
OFFSETS = "consumerOffset.json"
LMQ_OFFSETS = "lmqConsumerOffset.json"
DELAYS = "delayOffset.json"
MODES = "messageRequestMode.json"
TIMERS = "timercheck"


class Version(NamedTuple):
    """RocketMQ's DataVersion; compared by time, then by counter, as both files of offsets count for themselves."""

    timestamp: int = 0
    counter: int = 0
    state: int = 0

    def after(self, now_ms: int) -> Version:
        """The next one."""
        return Version(max(now_ms, self.timestamp + 1), self.counter + 1, self.state)


_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def pretty(value: Any, depth: int) -> str:
    """JSON as fastjson's PrettyFormat writes it, keys sorted."""
    if not isinstance(value, dict) or not value:
        return _text(value)
    inner = "\t" * (depth + 1)
    items = ",\n".join([f"{inner}{_text(key)}:{pretty(value[key], depth + 1)}" for key in sorted(value)])
    return "{\n" + items + "\n" + "\t" * depth + "}"


UNNAMED: Final = "\0name\0"
"""No topic is called so."""
_UNNAMED_TEXT: Final = json.dumps(UNNAMED).encode()


def topic_fragment(name: str, row: bytes) -> bytes:
    """The entry of topics.json for a row of table `topic`, without its name (`named`); empty for what is not exported. Most topics have
    the same."""
    value = quick_json(row)
    if value.get("deleted") or is_own_system_topic(name) or name.startswith(LMQ_PREFIX):
        return b""
    entry = {
        "attributes": value["attributes"], "order": value["order"], "perm": value["perm"], "topicName": UNNAMED,
        "readQueueNums": value["readQueueNums"], "writeQueueNums": value["writeQueueNums"],
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": value["topicSysFlag"],
    }  # fmt: skip
    return _entry(UNNAMED, entry)


def named(names: Iterable[str], fragments: Iterable[bytes]) -> Iterator[bytes]:
    """Entries of topics with their names."""
    for name, fragment in zip(names, fragments, strict=True):
        yield fragment.replace(_UNNAMED_TEXT, _text(name).encode())


def group_fragment(name: str, row: bytes) -> bytes:
    """The entry of subscriptionGroup.json; what a real broker keeps there and we do not know stays."""
    return _entry(name, {**json.loads(row), "groupName": name})


def offset_fragment(key: str, row: bytes) -> bytes:
    """The entry of an offset table with integer keys, as fastjson writes it."""
    pairs = ",".join([f"{int(queue)}:{offset}" for queue, offset in json.loads(row).items()])
    return f"\t\t{json.dumps(key, ensure_ascii=False)}:{{{pairs}\n\t\t}}".encode()


def lmq_fragment(key: str, row: bytes) -> bytes:
    """The entry of `lmqOffsetTable`: a light queue has one queue."""
    offsets = json.loads(row)
    return f"\t\t{json.dumps(key, ensure_ascii=False)}:{offsets.get('0', 0)}".encode()


def mode_fragment(key: str, row: bytes) -> bytes:
    """A group's entry below its topic in messageRequestMode.json, for a row of table `request_mode`."""
    return f"\t\t\t{json.dumps(key.partition('@')[2], ensure_ascii=False)}:{pretty(json.loads(row), 3)}".encode()


def by_topic(fragments: dict[str, bytes]) -> list[bytes]:
    """Fragments of `topic@group` keys as one fragment per topic."""
    topics: dict[str, list[bytes]] = {}
    for key, text in fragments.items():
        topics.setdefault(key.partition("@")[0], []).append(text)
    return [b'\t\t"%b":{\n%b\n\t\t}' % (topic.encode(), b",\n".join(texts)) for topic, texts in topics.items()]


def modes_of(value: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """`topic@group` to SetMessageRequestModeRequestBody, from messageRequestMode.json. Raises `DialectError`."""
    found: dict[str, dict[str, Any]] = {}
    for topic, groups in (value.get("messageRequestModeMap") or {}).items():
        if not isinstance(groups, dict):
            raise DialectError(f"messageRequestModeMap: {topic!r} has no table of groups")
        for group, body in groups.items():
            mode, share = str(body.get("mode", "PULL")), int(body.get("popShareQueueNum", 0))
            if mode not in ("PULL", "POP"):
                raise DialectError(f"messageRequestModeMap: {topic}@{group} has the mode {mode[:20]!r}")
            found[f"{topic}@{group}"] = {
                "topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": share,
            }  # fmt: skip
    return found


def _entry(name: str, value: dict[str, Any]) -> bytes:
    return f"\t\t{_text(name)}:{pretty(value, 2)}".encode()


def is_lmq_key(key: str) -> bool:
    """True if the group of `topic@group` is a light queue's own (RocketMQ: MixAll.isLmq)."""
    return key.rpartition("@")[2].startswith(LMQ_PREFIX)


def document(version: Version, tables: Mapping[str, Iterable[bytes]]) -> bytes:
    """A whole file from fragments. Names of tables in order."""
    head = pretty({"counter": version.counter, "stateVersion": version.state, "timestamp": version.timestamp}, 1)
    parts = [f'{{\n\t"dataVersion":{head}'.encode()]
    for name, fragments in tables.items():
        if entries := b",\n".join(fragments):
            parts.append(b'\t"%b":{\n%b\n\t}' % (name.encode(), entries))
        else:
            parts.append(b'\t"%b":{}' % name.encode())
    return b",\n".join(parts) + b"\n}"


def parse(data: bytes) -> dict[str, Any]:
    """A file's object. Raises `DialectError`."""
    value = read_json(data)
    if not isinstance(value, dict):
        raise DialectError("not an object")
    return value


def version_of(value: dict[str, Any]) -> Version:
    """Its DataVersion; zeros without one."""
    found = value.get("dataVersion")
    if not isinstance(found, dict):
        return Version()
    numbers = [found.get(name, 0) for name in ("timestamp", "counter", "stateVersion")]
    return Version(*[number if type(number) is int else 0 for number in numbers])


def delays_of(value: dict[str, Any]) -> dict[int, int]:
    """Level to offset, from delayOffset.json. Raises ValueError, TypeError."""
    return {int(level): int(offset) for level, offset in (value.get("offsetTable") or {}).items()}


def offsets_of(value: dict[str, Any]) -> dict[str, dict[str, int]]:
    """`topic@group` to offsets by queue id (decimal), from either file of offsets. Raises `DialectError`."""
    found: dict[str, dict[str, int]] = {}
    for key, queues in (value.get("offsetTable") or {}).items():
        if not isinstance(queues, dict):
            raise DialectError(f"offsetTable: {key!r} has no table of queues")
        found[key] = {str(int(queue)): int(offset) for queue, offset in queues.items()}
    for key, offset in (value.get("lmqOffsetTable") or {}).items():
        found[key] = {"0": int(offset)}
    return found
