"""Opening a log after whatever happened to it: where it ends, what is damaged, and making the derived files match.

Two passes. `find_end` walks records from the last safe position: a bad record at or above the flushed position is the torn
tail and is cut, also if valid records follow; below it, it is damage: the bytes are kept in `D/gantry/quarantine` and a filler
record of exactly the gap takes their place. `replay` hands each record to the queues again, with the offsets that it was given.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol
from zlib import crc32

from gantrymq.model import sysflag
from gantrymq.model.message import Message
from gantrymq.model.properties import OWN_CRC_MARK, OWN_CRC_SIZE, own_crc, own_crc_is_right
from gantrymq.store.log import record
from gantrymq.store.log.commit_log import file_name
from gantrymq.store.log.groups import DISPATCH_TOPIC, OpenGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gantrymq.store.files import FileSystem
    from gantrymq.store.log.commit_log import CommitLog

log = logging.getLogger(__name__)

FILLER_TOPIC: Final = "rmq_sys_gantry_filler"
FILLER_BYTES_MAX: Final = 1024 * 1024
"""A larger gap gets several fillers: readers need not hold more than an ordinary record."""
_WINDOW: Final = 1024 * 1024
_ZEROS: Final = bytes(_WINDOW)
_NAMES_MAX: Final = 65_536
"""Topic names found sound, as bytes."""


PLACES_SHOWN: Final = 10
"""Damaged places in the line of the log; all of them are in the quarantine."""


@dataclass(slots=True)
class RecoveryReport:
    """What `MessageStore.load` found and did. Positions are bytes in the log."""

    clean: bool
    start: int
    """Where checking began."""
    end: int
    cut_bytes: int = 0
    """Torn tail removed (bytes from the cut to the last one that was not zero; at least 1 if anything was there)."""
    quarantined: list[tuple[int, int]] = field(default_factory=list)
    """(position, bytes) of damaged places that fillers stand in now."""
    records: int = 0
    """Records dispatched again."""
    whole: bool = False
    """After a crash: everything that was written is there (`abort.nothing_lost`)."""

    def __str__(self) -> str:
        checked = f"not closed cleanly; checked the log from {self.start} to {self.end}"
        parts = [f"closed cleanly; the log ends at {self.end}" if self.clean else checked]
        if self.clean and not self.end:
            parts = ["empty; a new log begins"]
        if self.records:
            parts.append(f"{self.records} records put into their queues again")
        if self.cut_bytes:
            parts.append(f"a torn tail of {self.cut_bytes} bytes removed")
        if self.quarantined:
            places = ", ".join([f"{size} bytes at {at}" for at, size in self.quarantined[:PLACES_SHOWN]])
            more = len(self.quarantined) - PLACES_SHOWN
            parts.append(f"damaged and set aside: {places}" + (f" and {more} more places" if more > 0 else ""))
        return "; ".join(parts)


class LogBytes(Protocol):
    """What looking at a record needs of a log."""

    file_size: int

    def read(self, at: int, count: int) -> bytes: ...


def check_record(log_: LogBytes, at: int, strict: bool = False) -> tuple[int, Message | None]:
    """(size, message) of the valid record at a position; (size, None) for a blank; (0, None) if there is neither.

    The CRC covers the body alone, unless the record has one of its own. `strict`: U+0000 behind it, which `MessageStore.check` lets no message have, is a sector that
    did not reach the disk.
    """
    head = log_.read(at, record.HEAD.size)
    if len(head) < record.BLANK_SIZE:
        return 0, None
    size, magic = record.PREFIX.unpack_from(head)
    room = log_.file_size - at % log_.file_size
    if magic == record.MAGIC_BLANK:
        return (size, None) if size == room else (0, None)
    if size < record.RECORD_SIZE_MIN or size + record.BLANK_SIZE > room or len(head) < record.HEAD.size:
        return 0, None
    if record.LONG.unpack_from(head, record.PHYSICAL_OFFSET_AT)[0] != at:
        return 0, None
    try:
        message = record.decode(log_.read(at, size))
    except record.RecordError:
        return 0, None
    if strict and (b"\0" in message.properties or b"\0" in message.dispatch or "\0" in message.topic):
        return 0, None
    return size, message


def sound_records(
    data: bytes, place: int, base: int, room: int, strict_from: int, names: set[bytes], thorough: bool = False
) -> tuple[int, int]:
    """Walk over records in `data` that are ordinary and sound; (where it stopped, where the last one begins or -1).

    `data` begins at position `base`, `room` bytes before its segment's end. What stops it (a blank, IPv6 hosts, V2, light queues, a
    name not met before that is no text, damage, the end of `data`, and if it is `thorough` a field that no broker writes) is `check_record`'s to
    judge; what passes here passes there.
    """
    unpack, length, last = record.HEAD.unpack_from, len(data), -1
    magic_v1, least, mask = record.MAGIC_V1, record.RECORD_SIZE_MIN, record.CRC_MASK
    own_crc_size, own_crc_mark = OWN_CRC_SIZE, OWN_CRC_MARK
    view = memoryview(data)
    while place + least <= length:
        size, magic, crc, _, _, _, position, flags, _, born, stored, host, _, prepared, body_length = unpack(
            data, place
        )
        end = place + size
        if magic != magic_v1 or end > length or size < least or end + record.BLANK_SIZE > room:
            break
        body_at = place + record.HEAD.size
        name_at = body_at + body_length + 1
        if position != base + place or flags & 0x30 or body_length < 0 or name_at + 2 > end:
            break
        properties_at = name_at + data[name_at - 1] + 2
        if properties_at > end or properties_at + (data[properties_at - 2] << 8) + data[properties_at - 1] != end:
            break
        if data[end - own_crc_size : end - 11] == own_crc_mark:  # the body is in it
            if not own_crc_is_right(view[place:end]):
                break
        elif crc32(view[body_at : name_at - 1]) & mask != crc:
            break
        name, properties = data[name_at : properties_at - 2], data[properties_at:end]
        if name not in names and not _is_sound_name(name, names):
            break
        if b"INNER_MULTI_" in properties or record.MORE_MARK in properties:
            break
        if position >= strict_from and b"\0" in properties:
            break
        if thorough and (b"\0" in properties or record.contradiction(flags, born, stored, host, prepared)):
            break
        last = position
        place = end
    return place, last


def _is_sound_name(name: bytes, names: set[bytes]) -> bool:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return False
    if "\0" in text or text == DISPATCH_TOPIC:
        return False
    if len(names) >= _NAMES_MAX:
        names.clear()
    names.add(name)
    return True


class EndFinder:
    """Pass one."""

    def __init__(self, files: FileSystem, log_: CommitLog, quarantine: Path, report: RecoveryReport) -> None:
        self._files = files
        self._log = log_
        self._quarantine = quarantine
        self._report = report
        self.thorough = False
        """Whatever a reader would call damaged is put aside, too, below the flushed position."""
        self.own_crcs = False
        """Fillers have a CRC of their own."""
        self.cuts: Sequence[int] = ()
        """Where segments ended that were too short: a record that goes on behind such a place is not whole, whatever its CRC says of the rest."""

    def find_end(
        self, start: int, flushed: int, strict: bool, progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Walk from `start` (a record boundary); returns the end of the log. `strict`: as in `check_record`.

        `progress(bytes done, bytes at most)`, once per window.
        """
        at = window_at = start
        window = b""
        names: set[bytes] = set()
        strict_from = flushed if strict else 1 << 62
        group = OpenGroup()
        while at < self._log.limit:
            room = self._log.base_of(window_at) + self._log.file_size - window_at
            room = min([room, *[cut + record.BLANK_SIZE - window_at for cut in self.cuts if cut > at]])
            place, last = at - window_at, -1
            if not group.has_head():
                place, last = sound_records(window, place, window_at, room, strict_from, names, self.thorough)
            if last >= 0:
                at = window_at + place
                group.alone(last)
            rest = len(window) - place
            if at != window_at and (rest < record.PREFIX.size or record.PREFIX.unpack_from(window, place)[0] > rest):
                window, window_at = self._log.read(at, _WINDOW), at
                if progress is not None:
                    progress(at - start, self._log.limit - start)
                continue
            if not window:
                window = self._log.read(at, _WINDOW)
                continue
            size, message = check_record(self._log, at, strict and at >= flushed)
            if not size or any(at < cut < at + size for cut in self.cuts) or self._is_odd(at, size, message, flushed):
                if at >= flushed:
                    break
                at = self._repair(at, flushed)
                group.forget()
                continue
            if message is not None:
                group.saw(message, at)
            at += size
        if group.is_open() and group.begin >= flushed:
            at = group.begin  # a group whose last records are torn off is cut with them
        return at

    def _is_odd(self, at: int, size: int, message: Message | None, flushed: int) -> bool:
        """Whether a reader would not hand out the valid record there."""
        return (
            self.thorough
            and message is not None
            and at < flushed
            and bool(record.fault(self._log.read(at, size), size))
        )

    def cut(self, end: int) -> None:
        """Remove what lies behind the end of the log."""
        self._report.cut_bytes = self._garbage_after(end)
        if self._report.cut_bytes:
            log.warning("log cut at %d: %d bytes of a torn tail", end, self._report.cut_bytes)
            self._log.cut(end)

    def _garbage_after(self, at: int) -> int:
        """Bytes from `at` up to the last one in its window that is not zero; segments after it count whole."""
        total = 0
        place = at
        while place < self._log.limit:
            data = self._log.read(place, _WINDOW)
            used = data.rstrip(b"\0") if data != _ZEROS else b""
            if used:
                total = place + len(used) - at
            place += len(data)
        return total

    def _repair(self, at: int, flushed: int) -> int:
        """Quarantine the bytes from `at` to the next valid record and put fillers there; returns where it ends."""
        segment_end = self._log.base_of(at) + self._log.file_size
        end = self._next_valid(at, min(segment_end, flushed), segment_end)
        self._to_quarantine(at, end, end == segment_end)
        return end

    def quarantine(self, at: int, size: int, why: str) -> None:
        """Quarantine a record that has the form of one, and put a filler there."""
        log.error("record at %d is damaged: %s", at, why)
        self._to_quarantine(at, at + size, False)

    def _to_quarantine(self, at: int, end: int, at_segment_end: bool) -> None:
        data = self._log.read(at, end - at)
        path = self._quarantine / f"{file_name(at)}-{len(data)}"
        self._files.make_dirs(self._quarantine)
        handle = self._files.open(path, True)
        try:
            self._files.pwrite(handle, data, 0)
            self._files.datasync(handle)
        finally:
            self._files.close(handle)
        self._files.sync_dir(self._quarantine)
        log.error("damaged log at %d: %d bytes moved to %s", at, len(data), path)
        self._report.quarantined.append((at, len(data)))
        self._log.write(at, fillers(at, end - at, at_segment_end, self.own_crcs))
        self._log.sync(at, end)

    def _next_valid(self, at: int, limit: int, segment_end: int) -> int:
        """Position of the next valid record or blank after the bad one at `at`, not above `limit`."""
        size = int.from_bytes(self._log.read(at, 4), "big")
        if size >= record.RECORD_SIZE_MIN and at + size < limit and check_record(self._log, at + size)[0]:
            return at + size  # the usual damage: some bytes inside one record
        place = at + 1
        while place < limit:
            data = self._log.read(place, _WINDOW + 8)
            matches = []
            for magic in (record.MAGIC_BYTES_V1, record.MAGIC_BYTES_V2, b"\xcb\xd4\x31\x94"):
                hit = data.find(magic, 4)
                while hit >= 0:
                    matches.append(place + hit - 4)
                    hit = data.find(magic, hit + 1)
            for hit in sorted(matches):
                if hit >= at + record.RECORD_SIZE_MIN + 1 and hit < limit and check_record(self._log, hit)[0]:
                    return hit
            place += _WINDOW
        return limit if limit - at > record.RECORD_SIZE_MIN or limit == segment_end else segment_end


def fillers(at: int, size: int, at_segment_end: bool, own_crcs: bool = False) -> bytes:
    """Records without meaning that take exactly `size` bytes; the rest of a segment is a blank record. `own_crcs`: each has a CRC of its own,
    as RocketMQ's `forceVerifyPropCRC` demands, where there is room for it."""
    if at_segment_end:
        return record.blank(size).ljust(size, b"\0")
    parts = []
    while size:
        part = size if size <= FILLER_BYTES_MAX else FILLER_BYTES_MAX - 4096
        room = part - record.RECORD_SIZE_MIN
        crc_size = OWN_CRC_SIZE if own_crcs and room >= OWN_CRC_SIZE else 0
        topic = FILLER_TOPIC[: min(len(FILLER_TOPIC), room - crc_size)]
        message = Message(topic, bytes(room - crc_size - len(topic)), bytes(crc_size), queue_id=0)
        message.queue_offset = 0
        message.sys_flag = sysflag.TRANSACTION_ROLLBACK
        message.physical_offset = at
        data = record.encode(message)
        if crc_size:
            data = data[:-crc_size] + own_crc((data[:-crc_size], b""), separated=True)
        parts.append(data)
        at += part
        size -= part
    return b"".join(parts)
