"""The store's threads: long system calls only (fdatasync, fallocate, large writes), no work in Python, which would hold up the loop.

Asynchronous flush: every interval, if something was written. Synchronous: on `request()`; requests that come while a flush
runs share the next one (group commit). Results are posted to the loop. Between flushes the thread puts due checkpoints of the derived
files on stable storage. A second thread reserves space ahead of the write position and empties the write buffer: neither may wait
for a flush.
"""

from __future__ import annotations

import logging
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final, NamedTuple

from gantrymq.model.errors import GantryError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gantrymq.store.message_store import MessageStore

CALLS_PER_FLUSH: Final = 16
"""While a checkpoint of many files is written, the log is flushed at least every so many steps of it (8 files each)."""

log = logging.getLogger(__name__)


class FlushTimes(NamedTuple):
    """`now()`: seconds of a clock that never goes back; `observe(seconds)` is called in the thread with the time that each flush took."""

    now: Callable[[], float]
    observe: Callable[[float], None]


class Flusher:
    """One per store. `post(callback, value)` runs `callback(value)` on the loop (loop.call_soon_threadsafe): `on_flushed(position)` once per flush
    that moved the flushed position, `on_failed(error)` once when a thread has ended by it."""

    def __init__(
        self,
        store: MessageStore,
        interval_ms: int,
        post: Callable[[Callable[[Any], None], Any], object],
        on_flushed: Callable[[int], None] = lambda position: None,
        on_failed: Callable[[GantryError], None] = lambda error: None,
        times: FlushTimes | None = None,
    ) -> None:
        self._store = store
        self._interval_s = interval_ms / 1000
        self._post = post
        self._wake = Event()
        self._stopping = False
        self._passed = 0
        self._posted = store.flushed_position
        self._tell = Lock()
        self._told = False
        self._ahead = store.ahead
        self._threads: list[Thread] = []
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._times = times

    def start(self) -> None:
        for target, wake, name in (
            (self.step, self._wake, "gantry-flush"),
            (self._store.work_ahead, self._ahead, "gantry-ahead"),
        ):
            thread = Thread(target=self._run, args=(target, wake), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def request(self) -> None:
        """Flush soon (synchronous flush: after each append batch). Cheap when one is already asked for."""
        if not self._wake.is_set():
            self._wake.set()

    def stop(self) -> None:
        """End the thread after the flush it may be in; `MessageStore.close` does the last one."""
        self._stopping = True
        self._wake.set()
        self._ahead.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _run(self, step: Callable[[], None], wake: Event) -> None:
        try:
            while not self._stopping:
                wake.wait(self._interval_s)
                wake.clear()
                step()
        except GantryError as error:
            self._failed(error)
        except Exception as error:
            log.exception("%s ended", step.__name__)
            self._failed(self._store.fail(error))

    def _failed(self, error: GantryError) -> None:
        with self._tell:
            if not self._told:
                self._told = True
                self._post(self._on_failed, error)

    def step(self) -> None:
        """One round: flush, checkpoint. Raises what `MessageStore.flush` raises."""
        self._flush()
        checkpoint = self._store.take_checkpoint()
        if checkpoint is not None:
            self._store.sync_checkpoint(checkpoint, self._flush_if_asked)

    def _flush(self) -> None:
        # Compared with what was posted, not with the store's own position: a checkpoint flushes the log as well.
        times = self._times
        begun = times.now() if times is not None else 0.0
        position = self._store.flush()
        if position > self._posted:
            self._posted = position
            if times is not None:
                times.observe(times.now() - begun)
            self._post(self._on_flushed, position)

    def _flush_if_asked(self) -> None:
        self._passed += 1
        if self._wake.is_set() or self._passed % CALLS_PER_FLUSH == 0:
            self._wake.clear()
            self._flush()
