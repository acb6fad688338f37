"""Records of one queue as plain objects, and a directory's figures; nothing is written.

Records behind what the queue's files hold are listed as if they had been dispatched: recovery in memory.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from gantrymq.model import properties as props
from gantrymq.model.dialect import DialectError, read_json
from gantrymq.model.message import Message
from gantrymq.model.names import is_own_system_topic
from gantrymq.store.index.geometry import ROCKETMQ_SLOTS, IndexBytes, find_slots
from gantrymq.store.index.index_file import PROBED_ENTRIES
from gantrymq.store.log import record
from gantrymq.store.log.recovery import check_record
from gantrymq.store.queues.consume_queue import HOLE_SIZE
from gantrymq.store.tools.check import places_of
from gantrymq.store.tools.inspect import StoreImage

HIDDEN: Final = "***"
_SECRET = re.compile(
    r"passw|secret|credential|access_?token|refresh_?token|authorization|accesskey|signature|securitytoken|api_?key",
    re.I,
)


def hide(value: Any) -> Any:
    """The value with everything that stands under the name of a credential replaced by `***`."""
    if isinstance(value, dict):
        return {key: HIDDEN if _SECRET.search(str(key)) and item else hide(item) for key, item in value.items()}
    if isinstance(value, list):
        return [hide(item) for item in value]
    return value


def shown_body(message: Message) -> bytes:
    """The body as stored; in rows of our own tables credentials are hidden."""
    if not is_own_system_topic(message.topic) or not _SECRET.search(message.body.decode("latin-1")):
        return message.body
    try:
        value = json.loads(message.body)
    except ValueError:
        return HIDDEN.encode()
    return (
        json.dumps(hide(value), separators=(",", ":")).encode() if isinstance(value, dict | list) else HIDDEN.encode()
    )


def described(message: Message, topic: str, queue_id: int, offset: int) -> dict[str, Any]:
    """One line of `gantry store dump --json`. Place: the queue that was asked for."""
    pairs = props.decode(message.properties)
    pairs.update(props.decode(message.dispatch))
    return {
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": offset,
        "commitLogOffset": message.physical_offset,
        "storeSize": message.size,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_ms,
        "storeTimestamp": message.store_ms,
        "properties": hide(pairs),
        "body": base64.b64encode(shown_body(message)).decode(),
    }


def dump(
    image: StoreImage, topic: str, queue_id: int, start: int, tell: Callable[[str, int, int], None]
) -> Iterator[dict[str, Any]]:
    """Records of a queue from offset `start` on, in order of their offsets; offsets without a record are left out."""
    log_ = image.log
    derived = image.derived(1 << 62)
    queue = image.queue(topic, queue_id)
    following = start
    for offset, _, stored in image.compacted.records(topic, queue_id, start):
        yield described(record.decode(stored, check_crc=False), topic, queue_id, offset)
    start = following = max(start, image.compacted.end(topic, queue_id))
    for offset in range(max(start, queue.first_offset), queue.next_offset) if queue is not None else ():
        position, size, _ = queue.unit(offset)  # type: ignore[union-attr]  # the range is empty without it
        if size != HOLE_SIZE and position >= derived:
            break
        if size == HOLE_SIZE or position < log_.min_position:
            continue
        found, message = check_record(log_, position)
        if message is not None and found == size and (topic, queue_id, offset) in places_of(message):
            yield described(message, topic, queue_id, offset)
        following = offset + 1
    if not image.clean:
        yield from _undispatched(image, topic, queue_id, following, derived, tell)


def _undispatched(
    image: StoreImage, topic: str, queue_id: int, following: int, derived: int, tell: Callable[[str, int, int], None]
) -> Iterator[dict[str, Any]]:
    for at, _, message, bad in image.walk(max(derived, image.log.min_position)):
        if bad is not None and not bad.lost:
            return
        if message is None or at < derived:
            continue
        tell("log", at - image.log.min_position, image.log.limit - image.log.min_position)
        for name, its_queue, offset in places_of(message):
            if (name, its_queue) == (topic, queue_id) and offset >= following:
                yield described(message, topic, queue_id, offset)
                following = offset + 1


def figures(image: StoreImage) -> dict[str, Any]:
    """What `gantry store stats` shows: files, queues, index, configuration, positions."""
    queues = []
    for topic, queue_id in sorted(image.queue_names()):
        queue = image.queue(topic, queue_id)
        if queue is None:
            continue
        first = queue.first_offset
        while first < queue.next_offset and (
            queue.unit(first)[1] == HOLE_SIZE or queue.unit(first)[0] < image.log.min_position
        ):
            first += 1
        queues.append({"topic": topic, "queueId": queue_id, "minOffset": first, "maxOffset": queue.next_offset})
    return {
        "directory": str(image.directory), "cleanStop": image.clean, "running": image.running, "ours": image.known,
        "segments": len(image.log.bases), "segmentBytes": image.log.file_size, "logBegin": image.log.min_position,
        "logLimit": image.log.limit, "queues": queues, "index": list(_index_figures(image)),
        "checkpoint": list(image.checkpoint), "flushedPosition": image.positions.flushed,
        "derivedPosition": image.positions.derived, "compacted": _compacted_figures(image), "config": _config_figures(image), "diskBytes": _disk_bytes(image.directory),
    }  # fmt: skip


def _compacted_figures(image: StoreImage) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic,
            "queueId": queue_id,
            "endOffset": file.end,
            "records": len(file.offsets),
            "bytes": file.records_bytes,
        }
        for (topic, queue_id), file in sorted(image.compacted.queues.items())
    ]


def _index_figures(image: StoreImage) -> Iterator[dict[str, Any]]:
    for name in image.files.list_dir(image.directory / "index"):
        if not name.isdecimal():
            continue
        handle = image.files.open(image.directory / "index" / name, False)
        try:
            index = IndexBytes(image.files, handle)
            slots = find_slots(index, (image.positions.sizes.index_slots, ROCKETMQ_SLOTS), PROBED_ENTRIES)
            yield {
                "name": name, "entries": index.used, "room": index.entries_of(slots) if slots else 0, "slots": slots,
                "beginMs": index.begin_ms, "endMs": index.end_ms,
            }  # fmt: skip
        finally:
            image.files.close(handle)


def _config_figures(image: StoreImage) -> dict[str, int]:
    """Number of entries by file."""
    found = {}
    for name, key in (
        ("topics", "topicConfigTable"),
        ("subscriptionGroup", "subscriptionGroupTable"),
        ("consumerOffset", "offsetTable"),
        ("lmqConsumerOffset", "offsetTable"),
    ):
        try:
            value = read_json(image.read_file(image.directory / "config" / f"{name}.json"))
            found[name] = len(value[key])
        except (DialectError, KeyError, TypeError):
            continue
    return found


def _disk_bytes(directory: Path) -> dict[str, int]:
    """Bytes on disk (not lengths: files are sparse) by part."""
    sizes: dict[str, int] = {}
    for path in directory.rglob("*"):
        try:
            if path.is_file():
                part = path.relative_to(directory).parts[0]
                sizes[part] = sizes.get(part, 0) + path.stat().st_blocks * 512
        except OSError:
            continue  # a running broker removes files
    return sizes
