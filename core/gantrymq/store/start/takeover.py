"""Taking over a directory that a real RocketMQ broker has written: what cannot be read is refused, and where recovery begins.

Such a directory has none of our positions (`D/gantry`). What a real broker did to one of ours in the meantime is found by the same
means: its queues say how far it came, and a position of ours that is no record's begin any more gives way to its segment's.

`D/gantry/taken_over` says for good that the directory was such a broker's: who reads it may be RocketMQ's, and bodies stay as small as there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from gantrymq.model.errors import StoreCorruptError
from gantrymq.model.names import SYSTEM_PREFIX
from gantrymq.store.checkpoints.positions import CHECKPOINT
from gantrymq.store.files import read_small
from gantrymq.store.log import record
from gantrymq.store.log.recovery import check_record
from gantrymq.store.queues.consume_queue import HOLE_SIZE

if TYPE_CHECKING:
    from pathlib import Path

    from gantrymq.store.files import FileSystem
    from gantrymq.store.log.commit_log import CommitLog
    from gantrymq.store.queues.queue_table import QueueTable

log = logging.getLogger(__name__)

CHECKPOINT_SLACK_MS: Final = 3000
"""RocketMQ's recovery begins so long before the checkpoint's times (StoreCheckpoint.getMinTimestamp)."""
OTHER_ROCKSDB: Final = frozenset({"users", "acls"})
"""Directories of config/ that are RocksDB in every store: users and access rules, which we keep elsewhere."""
_REMEDY: Final = "nothing was changed; start the broker that wrote it with the file layout, or give another directory"


class Segments(Protocol):
    """What is needed of a log."""

    bases: list[int]
    file_size: int

    def read(self, at: int, count: int) -> bytes: ...


def refuse_unreadable(files: FileSystem, store: Path) -> None:
    """Raise StoreCorruptError, naming the place, for a store whose truth lies where we cannot read it. Changes nothing."""
    for name in files.list_dir(store):
        if name.startswith("dledger-"):
            raise StoreCorruptError(f"{store / name} is a DLedger log, which is not read here: {_REMEDY}")
        if name.startswith("consumequeue") and _is_rocksdb(files, store / name):
            raise StoreCorruptError(
                f"{store / name} holds ConsumeQueues in RocksDB (storeType=defaultRocksDB): {_REMEDY}"
            )
        if name == "batchconsumequeue" and _has_files(files, store / name):
            raise StoreCorruptError(f"{store / name} holds batch consume queues (queue.type=BatchCQ): {_REMEDY}")
        if name == "consumequeue_ext" and _has_files(files, store / name):
            raise StoreCorruptError(
                f"{store / name} holds extension files (enableConsumeQueueExt=true): the tag codes of its queues are addresses; {_REMEDY}"
            )
    for name in files.list_dir(store / "config"):
        if name not in OTHER_ROCKSDB and _is_rocksdb(files, store / "config" / name):
            raise StoreCorruptError(f"{store / 'config' / name} holds the configuration in RocksDB: {_REMEDY}")
    if _has_files(files, store / "compaction"):
        log.warning("%s is not read: of compacted topics only what the log still has is served", store / "compaction")


def _is_rocksdb(files: FileSystem, directory: Path) -> bool:
    # A regular file lists as empty: it has no CURRENT.
    return files.exists(directory / "CURRENT") and any(
        name.startswith("MANIFEST-") for name in files.list_dir(directory)
    )


def _has_files(files: FileSystem, directory: Path, depth: int = 4) -> bool:
    names = files.list_dir(directory)
    return any(name.isdecimal() and len(name) == 20 for name in names) or (
        depth > 0 and any(_has_files(files, directory / name, depth - 1) for name in names if "." not in name)
    )


def is_foreign(files: FileSystem, store: Path, names: list[str]) -> bool:
    """True if a directory without positions of ours never was ours: it has a broker's configuration and none of our tables.

    Otherwise all of it is replayed from the first record, light queues included.
    """
    return files.exists(store / "config" / "topics.json") and not any(name.startswith(SYSTEM_PREFIX) for name in names)


def taken_over(files: FileSystem, own: Path, foreign: bool) -> bool:
    """Whether a real broker began this directory. `foreign`: it was found so just now, and is noted before any position of ours."""
    mark = own / "taken_over"
    if foreign and not files.exists(mark):
        files.close(files.open(mark, True))
        files.sync_dir(own)
        return True
    return files.exists(mark)


def foreign_start(files: FileSystem, store: Path, log_: CommitLog, queues: QueueTable, clean: bool) -> int:
    """Where to begin with a directory that has no positions of ours: everything below is in the queues."""
    low = log_.min_position
    return max(queues_end(queues, log_) if clean else oldest_unchecked(files, store, log_), low)


def queues_end(queues: QueueTable, log_: CommitLog) -> int:
    """End of the last record that a queue names (RocketMQ: getMaxPhyOffsetInConsumeQueue)."""
    end = 0
    for name in queues.names():
        for queue in queues.topic(name).queues.values():
            for position, size, _ in queue.read(queue.next_offset - 1, 1):
                if size != HOLE_SIZE and position >= log_.min_position:
                    end = max(end, position + size)
    return min(end, log_.limit)


def oldest_unchecked(files: FileSystem, store: Path, log_: Segments) -> int:
    """First position of the newest segment whose first record is older than the checkpoint (RocketMQ: isMappedFileMatchedRecover)."""
    data = read_small(files, store / "checkpoint", CHECKPOINT.size)
    if data is None or len(data) < CHECKPOINT.size:
        return 0
    log_ms, queues_ms, *_ = CHECKPOINT.unpack(data)
    limit_ms = min(log_ms, queues_ms) - CHECKPOINT_SLACK_MS
    for base in reversed(log_.bases):
        _, message = check_record(log_, base)
        if message is not None and 0 < message.store_ms <= limit_ms:
            return base
    return 0


def record_boundary(log_: CommitLog, at: int) -> int:
    """`at` if a record begins or the log ends there, else the begin of its segment, where one always does."""
    base = log_.base_of(at)
    if at in (base, log_.limit) or check_record(log_, at)[0]:
        return at
    if log_.read(at, record.BLANK_SIZE).strip(b"\0"):
        return base  # the log goes on with something else than we left: another broker cut and wrote it
    return at
