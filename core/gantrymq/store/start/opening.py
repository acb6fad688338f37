"""From where on a start checks the log, and from where on it makes queues and index again. It changes nothing.

| what is found | log checked from | queues and index again from |
|---|---|---|
| clean stop; every derived file reaches as far as it did | its end | nothing |
| clean stop; a real broker has gone on with the log | where we stopped | the end of that broker's queues |
| ... and has cut and written what we had | begin of that segment | the same |
| killed (our own abort file) | derived position | the same |
| killed, a real broker's abort file | derived position, or begin of its segment | the same |
| a queue or an index file is gone or shorter than it was; `gantry store rebuild` | begin of the log | the same, all of them |
| an index file whose number of slots cannot be told | begin of the log | the same |
| segments were missing, and the loss is accepted | begin of the log | the same, all of them; no offset is given twice |
| no positions of ours, a real broker's directory, clean stop | end of its queues | the same |
| no positions of ours, a real broker's directory, killed | the segment before its checkpoint | the same |
| no positions of ours, but tables of ours | begin of the log | the same |

Light queues have a position of their own in their stream; from there on they are made again in every case.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gantrymq.store.log.recovery import check_record
from gantrymq.store.start.takeover import foreign_start, is_foreign, record_boundary

if TYPE_CHECKING:
    from pathlib import Path

    from gantrymq.store.checkpoints.ends import RememberedEnds
    from gantrymq.store.checkpoints.positions import Positions
    from gantrymq.store.files import FileSystem
    from gantrymq.store.index.index_file import Index
    from gantrymq.store.log.commit_log import CommitLog
    from gantrymq.store.queues.queue_table import QueueTable

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Begin:
    """Where recovery begins. Positions are bytes in the log."""

    flushed: int
    derived: int
    """The log is checked from here on, and what was derived from it is made again."""
    clean: bool
    foreign: bool
    """A real broker's directory, seen for the first time."""
    anew: bool = False
    """No queue and no index file is to be used."""
    light_anew: bool = False
    """The table of light queues is to be made from their stream."""


@dataclass(slots=True)
class Found:
    """What a start has opened so far."""

    files: FileSystem
    store: Path
    log: CommitLog
    queues: QueueTable
    index: Index
    light: Path
    positions: Positions
    ends: RememberedEnds
    clean: bool
    """There was no abort file."""
    own_crash: bool
    """The abort file is ours."""
    indexed: bool
    """False: an index file cannot be understood."""
    index_there: bool
    """There was a directory of the index."""
    anew: bool
    """Somebody asks for it: `gantry store rebuild`."""


def where_to_begin(found: Found) -> Begin:
    """The table above."""
    log_, positions = found.log, found.positions
    low = log_.min_position
    known = positions.flushed >= 0
    begin = Begin(max(positions.flushed, low), max(positions.derived, low), found.clean, False, found.anew)
    if not known:
        begin.foreign = is_foreign(found.files, found.store, found.queues.names())
        if begin.foreign and found.indexed:
            begin.derived = foreign_start(found.files, found.store, log_, found.queues, found.clean)
    elif log_.lost:
        begin.anew, begin.clean = True, False
    elif not found.own_crash and record_boundary(log_, begin.derived) != begin.derived:
        begin.flushed = begin.derived = record_boundary(log_, begin.derived)
    if known and not begin.anew:
        short = _short(found, begin)
        if short:
            log.error("%s: queues and index are made again from the log", short)
            begin.anew = True
    if begin.anew or (known and not found.indexed):
        begin.derived = low
    return begin


def _short(found: Found, begin: Begin) -> str:
    """What is wrong with the derived files, in words; empty if nothing is. Of light queues it is noted in `begin`."""
    ends = found.ends
    if not found.own_crash and (not found.clean or check_record(found.log, begin.derived)[0]):
        ends.forget()  # a real broker has worked here
        return ""
    if begin.derived > found.log.min_position:
        if not found.queues.names():
            return f"{found.store / 'consumequeue'} is empty"
        if not found.index_there:
            return f"{found.store / 'index'} is missing"
    exact = found.clean and ends.position == begin.derived
    if exact:
        light = ends.short_light(found.light)
        if light:
            log.error("%s: light queues are made again from the rest and the log", light)
            begin.light_anew = True
    queue_files = found.queues.files
    return ends.short_queue(queue_files) or ends.short_index(found.index, found.log.min_position)
