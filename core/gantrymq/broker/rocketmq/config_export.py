"""Topics, groups and offsets as RocketMQ's `config/*.json`: an export of our tables, taken back in when somebody else wrote it.

The truth is the log. The export is at most a second late: a change marks its file, a timer takes the fragments, a thread joins and
writes them (temporary file, fsync, `.bak` of the file before, rename). The SHA-256 of our last two exports of each file is noted in
`D/gantry/exports` before the rename; at start a file with other bytes is another's and becomes records. What it lacks was deleted by
that broker if our last export had it (`D/gantry/exported_*`); else that broker never saw it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.rocketmq import config_files as cf
from gantrymq.broker.rocketmq.config_files import Version
from gantrymq.broker.rocketmq.timer_takeover import TimerCheck, parse_check, remove_wheel
from gantrymq.broker.tables.tables import Rows
from gantrymq.broker.topics import QUEUES_MAX, TopicConfig
from gantrymq.model import names
from gantrymq.model.dialect import DialectError
from gantrymq.model.errors import GantryError, StoreCorruptError

if TYPE_CHECKING:
    from gantrymq.broker.tables.tables import Tables
    from gantrymq.net.api import Wheel
    from gantrymq.services import Clock
    from gantrymq.store.files import FileSystem

log = logging.getLogger(__name__)

EXPORT_MS: Final = 400
"""From a change to its export; committed offsets become rows within half a second, so that both stay under one."""
RETRY_MS: Final = 5_000
"""After a failure (full disk): the log has everything, so the broker goes on."""
NOTED_MAX: Final = 2
FILE_BYTES_MAX: Final = 1 << 30
"""A million places of 200 bytes, and room; a larger file is no configuration."""

RENDER: Final = {
    "topic": cf.topic_fragment, "group": cf.group_fragment, "offset": cf.offset_fragment, "request_mode": cf.mode_fragment,
}  # fmt: skip

KEYED: Final = ("topic", "group", "offset")
"""Tables whose keys our last export had are kept beside it: a killed broker's export may lack what was made in its last second."""


Work = dict[str, Mapping[str, Iterable[bytes]] | bytes | list[str]]
"""What to write: file name to tables of fragments or to all that it holds; table to its keys."""


DELETE_NAME: Final = "import-delete"
"""File of `D/gantry`: at the next start what `config/*.json` names no more is deleted (`gantry store import-config --delete`)."""
SAME_MAX: Final = 10_000
"""Different settings of topics that are kept once."""
NAMED_MAX: Final = 5
"""Names in a line of the log."""


def _in_range(body: dict[str, Any]) -> bool:
    """Whether a topic of another's file has what `topic update` takes."""
    try:
        queues = [int(body.get(name, 16)) for name in ("readQueueNums", "writeQueueNums")]
        return all(1 <= count <= QUEUES_MAX for count in queues) and 0 <= int(body.get("perm", 6)) <= 7
    except (TypeError, ValueError):
        return False


class Ends:
    """What the import needs of the store."""

    def __init__(
        self, topics: list[str], queues_of: Callable[[str], list[int]], max_offset: Callable[[str, int], int]
    ) -> None:
        self.topics = topics
        self.queues_of = queues_of
        self.max_offset = max_offset


class ConfigExport:
    """One broker's files. Loop thread, except `_write`."""

    def __init__(self, files: FileSystem, root: Path, clock: Clock) -> None:
        self._files = files
        self._directory = root / "store" / "config"
        self._notes_path = root / "gantry" / "exports"
        self._delete_path = root / "gantry" / DELETE_NAME
        self._clock = clock
        self._notes: dict[str, list[str]] = {}
        self._versions: dict[str, Version] = {}
        self._unreadable: list[str] = []
        """What `import_rows` could read neither in a file nor in its `.bak`."""
        self._fragments: dict[str, dict[str, bytes]] = {name: {} for name in (*RENDER, "lmq")}
        self._same: dict[bytes, bytes] = {}
        """One object for topics with the same settings."""
        self.others_levels: dict[int, int] | None = None
        """Another broker's delayOffset.json, after `import_rows`; None: it is ours, or there is none."""
        self.others_timers: TimerCheck | None = None
        """The same for timercheck."""
        self._delays: Callable[[], tuple[dict[int, int], int | None]] | None = None
        self._dirty: set[str] = set()
        self._armed = False
        self._topics_at = -EXPORT_MS
        """When a topic's change was last exported at once."""
        self._writing = Lock()
        self._wheel: Wheel | None = None
        self._in_thread: Callable[[Callable[[], None]], object] = lambda work: work()

    # --- import

    def import_rows(self, tables: Tables, ends: Ends) -> Rows:
        """Rows that differ from what another has written into the files. Raises StoreCorruptError that names each file that cannot be read."""
        self._notes = self._load_notes()
        self._unreadable.clear()
        rows: Rows = []
        topics = self._foreign(cf.TOPICS)
        if topics is not None:
            rows += self._topic_rows(tables.rows("topic"), topics.get("topicConfigTable") or {}, ends)
        groups = self._foreign(cf.GROUPS)
        if groups is not None:
            rows += self._group_rows(tables.rows("group"), groups.get("subscriptionGroupTable") or {})
        modes = self._foreign(cf.MODES)
        if modes is not None:
            rows += self._mode_rows(tables.rows("request_mode"), modes)
        offsets = self._foreign_offsets()
        if offsets is not None:
            rows += self._offset_rows(tables.rows("offset"), offsets)
            rows += [("reset", key, None) for key in tables.rows("reset")]  # another broker kept them in memory only
        self._import_delays()
        if self._unreadable:
            raise StoreCorruptError(
                f"{'; '.join(self._unreadable)}. Repair these files; or remove them: topics, groups and offsets are in the log"
            )
        known = tables.rows("topic")
        for name in ends.topics:  # a real broker's light queues can be read under their names
            if name.startswith(names.LMQ_PREFIX) and name not in known and not names.is_own_system_topic(name):
                rows.append(("topic", name, TopicConfig(name, 1, 1).to_bytes()))
        if rows:
            log.info("%s: %d rows of topics, groups and offsets taken over", self._directory, len(rows))
        return rows

    def _import_delays(self) -> None:
        levels = self._foreign(cf.DELAYS)
        if levels is not None:
            try:
                self.others_levels = cf.delays_of(levels)
            except (ValueError, TypeError, AttributeError) as error:
                raise StoreCorruptError(f"{self._directory / cf.DELAYS} cannot be understood: {error}") from None
        data = self._read(self._directory / cf.TIMERS)
        if hashlib.sha256(data).hexdigest() not in self._notes.get(cf.TIMERS, ()):
            self.others_timers = parse_check(data)

    def _load_notes(self) -> dict[str, list[str]]:
        data = self._read(self._notes_path)
        try:
            return {str(name): list(hashes) for name, hashes in json.loads(data).items()} if data else {}
        except (ValueError, AttributeError, TypeError):
            log.warning("%s cannot be read: the files of %s count as another's", self._notes_path, self._directory)
            return {}

    def _read(self, path: Path) -> bytes:
        if not self._files.exists(path):
            return b""
        handle = self._files.open(path, False)
        try:
            return self._files.pread(handle, min(self._files.size(handle), FILE_BYTES_MAX), 0)
        finally:
            self._files.close(handle)

    def _foreign(self, name: str) -> dict[str, Any] | None:
        """The file's object if its bytes are not one of our last exports, else None. A file that is no JSON gives way to its `.bak`."""
        broken = []
        for path in (self._directory / name, self._directory / (name + ".bak")):
            data = self._read(path)
            if not data.strip():
                continue
            ours = hashlib.sha256(data).hexdigest() in self._notes.get(name, ())
            try:
                value = cf.parse(data)
            except DialectError as error:
                broken.append(f"{path} is no JSON ({error})")
                continue
            if broken:
                log.error("%s; its .bak counts", broken[0])
            self._versions[name] = max(cf.version_of(value), self._versions.get(name, Version()))
            return None if ours else value
        self._unreadable += broken
        return None

    def _foreign_offsets(self) -> dict[str, Any] | None:
        found = [value for value in (self._foreign(cf.LMQ_OFFSETS), self._foreign(cf.OFFSETS)) if value is not None]
        return max(found, key=cf.version_of) if found else None

    def _topic_rows(self, known: Mapping[str, bytes], wanted: dict[str, Any], ends: Ends) -> Rows:
        rows: Rows = []
        for name, body in wanted.items():
            if names.is_own_system_topic(name):
                continue
            if not names.is_stored_topic(name) or not isinstance(body, dict):
                log.warning("%s: topic %r is left out: not a legal name", cf.TOPICS, name)
                continue
            if not _in_range(body):
                log.error("%s: topic %r is left out: 1 to %d queues, perm 0 to 7", cf.TOPICS, name, QUEUES_MAX)
                continue
            config = TopicConfig(
                name, int(body.get("readQueueNums", 16)), int(body.get("writeQueueNums", 16)), int(body.get("perm", 6)),
                int(body.get("topicSysFlag", 0)), bool(body.get("order", False)), dict(body.get("attributes") or {}),
            )  # fmt: skip
            old = known.get(name)
            if old is not None:
                first = TopicConfig.from_bytes(name, old).first_offsets
                # Its queues may have begun anew meanwhile: then nothing old lies below their ends.
                config.first_offsets = {q: n for q, n in first.items() if n <= ends.max_offset(name, int(q))}
            if config.to_bytes() != old:
                rows.append(("topic", name, config.to_bytes()))
        exported = [name for name, row in known.items() if cf.topic_fragment(name, row)]
        for name in self._gone("topic", exported, wanted, cf.TOPICS):
            log.warning("%s: topic %s is gone from it: deleted", cf.TOPICS, name)
            config = TopicConfig.from_bytes(name, known[name])
            config.deleted = True
            config.first_offsets = {str(queue): ends.max_offset(name, queue) for queue in ends.queues_of(name)}
            rows.append(("topic", name, config.to_bytes()))
        return rows

    def _group_rows(self, known: Mapping[str, bytes], wanted: dict[str, Any]) -> Rows:
        rows: Rows = []
        for name, body in wanted.items():
            try:
                names.check_group(name)
            except GantryError as error:
                log.warning("%s: %s: left out", cf.GROUPS, error.text)
                continue
            value = {key: item for key, item in body.items() if item is not None} | {"groupName": name}
            if name not in known or json.loads(known[name]) != value:
                rows.append(("group", name, json.dumps(value, separators=(",", ":")).encode()))
        return rows + [("group", name, None) for name in self._gone("group", known, wanted, cf.GROUPS)]

    def _mode_rows(self, known: Mapping[str, bytes], value: dict[str, Any]) -> Rows:
        try:
            wanted = cf.modes_of(value)
        except (DialectError, ValueError, TypeError, AttributeError) as error:
            log.error("%s: %s cannot be understood (%s): left out", self._directory, cf.MODES, error)
            return []
        rows: Rows = [
            ("request_mode", key, json.dumps(body, separators=(",", ":")).encode())
            for key, body in wanted.items()
            if key not in known or json.loads(known[key]) != body
        ]
        return rows + [("request_mode", key, None) for key in known if key not in wanted]

    def _offset_rows(self, known: Mapping[str, bytes], value: dict[str, Any]) -> Rows:
        try:
            wanted = cf.offsets_of(value)
        except (DialectError, ValueError, TypeError, AttributeError) as error:
            raise StoreCorruptError(f"{self._directory}: the file of offsets cannot be understood: {error}") from None
        rows: Rows = [
            ("offset", key, json.dumps(offsets, separators=(",", ":")).encode())
            for key, offsets in wanted.items()
            if offsets and (key not in known or json.loads(known[key]) != offsets)
        ]
        return rows + [("offset", key, None) for key in self._gone("offset", known, wanted, cf.OFFSETS)]

    def _gone(self, table: str, known: Iterable[str], wanted: Container[str], file: str) -> list[str]:
        """What another broker has deleted, if somebody says that it was one. It never saw what our last export lacked."""
        gone = [key for key in known if key not in wanted]
        path = self._keys_path(table)
        if not gone or not self._files.exists(path):
            return self._permitted(gone, file)
        exported = set(self._read(path).decode("utf-8", "surrogatepass").split("\n"))
        deleted = [key for key in gone if key in exported]
        if len(deleted) < len(gone):
            log.info("%s: %d rows of table %s that were not exported yet stay", path, len(gone) - len(deleted), table)
        return self._permitted(deleted, file)

    def _permitted(self, deleted: list[str], file: str) -> list[str]:
        """A file that was cut or half edited names less, too."""
        if deleted and not self._files.exists(self._delete_path):
            log.error(
                "%s names %d fewer than it did (%s%s): they stay. To have them deleted stop, run `gantry store import-config --delete %s`, start",
                self._directory / file, len(deleted), ", ".join(deleted[:NAMED_MAX]),
                ", ..." if len(deleted) > NAMED_MAX else "", self._directory.parent.parent,
            )  # fmt: skip
            return []
        return deleted

    def _keys_path(self, table: str) -> Path:
        return self._notes_path.with_name(f"exported_{table}")

    # --- export

    def start(self, tables: Tables, wheel: Wheel, in_thread: Callable[[Callable[[], None]], object]) -> None:
        """Export everything now and each change from now on. `in_thread(work)` runs it elsewhere."""
        self._wheel, self._in_thread = wheel, in_thread
        self._files.remove(self._delete_path)
        for table in RENDER:
            for key, row in tables.rows(table).items():
                self._take(table, key, row)
            tables.watch(table, lambda key, row, table=table: self._changed(table, key, row))  # type: ignore[misc]
        self._dirty = {*RENDER, *[f"keys of {table}" for table in KEYED]}
        self._arm(0)

    def keep_delays(self, floors: Callable[[], tuple[dict[int, int], int | None]]) -> None:
        """From now on delayOffset.json and timercheck are ours, too; `delays_changed` says when `floors()` has."""
        self._delays = floors
        self.delays_changed()

    def delays_changed(self) -> None:
        """Waiting messages were delivered."""
        self._dirty.add("delay")
        self._arm(EXPORT_MS)

    def _take(self, table: str, key: str, row: bytes | None) -> None:
        fragments: dict[str, Callable[[str, bytes], bytes]] = {table: RENDER[table]}
        if table == "offset" and cf.is_lmq_key(key):
            fragments["lmq"] = cf.lmq_fragment
        for name, render in fragments.items():
            text = render(key, row) if row is not None else b""
            if (key in self._fragments[name]) != bool(text):
                self._dirty.add(f"keys of {name}")
            if text:
                if name == "topic":
                    text = self._same.setdefault(text, text) if len(self._same) < SAME_MAX else text
                self._fragments[name][key] = text
            else:
                self._fragments[name].pop(key, None)

    def _changed(self, table: str, key: str, row: bytes | None) -> None:
        self._take(table, key, row)
        self._dirty.add(table)
        wheel = self._wheel
        if table == "topic" and wheel is not None and wheel.now_ms() - self._topics_at >= EXPORT_MS:
            # A real broker that opens a killed broker's directory serves only topics that it finds there; many at once are one export.
            self._topics_at = wheel.now_ms()
            wheel.call_at(self._topics_at, self._due)
            return
        self._arm(EXPORT_MS)

    def _arm(self, delay_ms: int) -> None:
        if not self._armed and self._wheel is not None:
            self._armed = True
            self._wheel.call_at(self._wheel.now_ms() + delay_ms, self._due)

    def _due(self, now_ms: int) -> None:
        self._armed = False
        if not self._dirty:
            return
        if self._writing.locked():
            self._arm(EXPORT_MS // 4)
            return
        dirty, work = self._snapshot()

        def write() -> None:
            if not self._write(work):
                self._dirty |= dirty  # the next change tries again; so does the clean stop

        self._in_thread(write)

    def finish(self) -> None:
        """At a clean stop, after the last change: write what is not written yet. Any thread; nothing changes any more."""
        self._wheel = None
        _, work = self._snapshot()
        self._write(work)

    def _snapshot(self) -> tuple[set[str], Work]:
        """What has changed, and what to write."""
        dirty, self._dirty = self._dirty, set()
        lists = {name: list(fragments.values()) for name, fragments in self._fragments.items()}
        work: Work = {}
        if "topic" in dirty:
            work[cf.TOPICS] = {"topicConfigTable": cf.named(list(self._fragments["topic"]), lists["topic"])}
        if "group" in dirty:
            work[cf.GROUPS] = {"forbiddenTable": [], "subscriptionGroupTable": lists["group"]}
        if "request_mode" in dirty:
            work[cf.MODES] = {"messageRequestModeMap": cf.by_topic(self._fragments["request_mode"])}
        if "offset" in dirty:
            own = [text for key, text in self._fragments["offset"].items() if not cf.is_lmq_key(key)]
            work[cf.OFFSETS] = {"offsetTable": lists["offset"]}
            work[cf.LMQ_OFFSETS] = {"lmqOffsetTable": lists["lmq"], "offsetTable": own}
        if "delay" in dirty and self._delays is not None:
            levels, timer = self._delays()
            work[cf.DELAYS] = {"offsetTable": [b"%d:%d" % pair for pair in levels.items()]}
            if timer is not None:
                now_ms = self._clock.now_ms()
                version = self._versions[cf.TIMERS] = self._versions.get(cf.TIMERS, Version()).after(now_ms)
                check = TimerCheck(now_ms // 1000 * 1000, 0, timer, timer, 0, version.timestamp, version.counter)
                work[cf.TIMERS] = check.to_bytes()
        work.update({table: list(self._fragments[table]) for table in KEYED if f"keys of {table}" in dirty})
        return dirty, work

    def _write(self, work: Work) -> bool:
        with self._writing:
            try:
                self._files.make_dirs(self._directory)
                now_ms = self._clock.now_ms()
                for name, tables in work.items():
                    if isinstance(tables, list):
                        continue
                    if isinstance(tables, bytes):
                        self._replace(name, tables)
                        remove_wheel(self._files, self._directory.parent)
                        continue
                    version = self._versions[name] = self._versions.get(name, Version()).after(now_ms)
                    self._replace(name, cf.document(version, tables))
                if not self._files.exists(self._directory / cf.DELAYS):
                    # One that is there is a real broker's and names what it has delivered: it stays.
                    self._put(self._directory / cf.DELAYS, cf.document(Version(now_ms), {"offsetTable": []}))
                self._files.sync_dir(self._directory)
                for name, keys in work.items():
                    if isinstance(keys, list):  # behind the export: what is named here, it had
                        self._put(self._keys_path(name), "\n".join(keys).encode("utf-8", "surrogatepass"))
            except OSError as error:
                log.error(
                    "%s was not written (%s); the log has everything, the next change tries again",
                    self._directory,
                    error,
                )
                return False
        return True

    def _replace(self, name: str, data: bytes) -> None:
        """Note, keep the file before as `.bak`, rename."""
        noted = self._notes.get(name, [])
        self._notes[name] = [hashlib.sha256(data).hexdigest(), *noted][:NOTED_MAX]
        self._put(self._notes_path, json.dumps(self._notes).encode())
        self._files.sync_dir(self._notes_path.parent)
        path = self._directory / name
        before = self._read(path)
        if before:
            self._put(self._directory / (name + ".bak"), before)
        self._put(path, data)

    def _put(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + ".tmp")
        handle = self._files.open(temporary, True)
        try:
            self._files.truncate(handle, 0)
            self._files.pwrite(handle, data, 0)
            self._files.datasync(handle)
        finally:
            self._files.close(handle)
        self._files.rename(temporary, path)
