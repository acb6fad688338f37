"""The flush thread: long system calls only (fdatasync, fallocate), never work in Python, which would hold up the loop.

Asynchronous flush: every interval, if something was written. Synchronous: on `request()`; requests that come while a flush
runs share the next one (group commit). Results are posted to the loop. Between flushes it reserves space ahead of the write
position and puts due checkpoints of the derived files on stable storage.
"""

from __future__ import annotations

import logging
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from gantrymq.model.errors import GantryError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gantrymq.store.message_store import MessageStore

CALLS_PER_FLUSH: Final = 16
"""While a checkpoint of many files is written, the log is flushed at least every so many steps of it (8 files each)."""

log = logging.getLogger(__name__)


class Flusher:
    """One per store. `post(callback, value)` runs `callback(value)` on the loop (loop.call_soon_threadsafe)."""

    def __init__(
        self, store: MessageStore, interval_ms: int, sync: bool, post: Callable[[Callable[[Any], None], Any], object]
    ) -> None:
        self._store = store
        self._interval_s = interval_ms / 1000
        self._sync = sync
        self._post = post
        self._wake = Event()
        self._stopping = False
        self._passed = 0
        self._thread: Thread | None = None
        self.on_flushed: Callable[[int], None] = lambda position: None
        """Called on the loop with the new flushed position, once per flush that moved it."""
        self.on_failed: Callable[[GantryError], None] = lambda error: None
        """Called on the loop once; the thread has ended."""

    def start(self) -> None:
        self._thread = Thread(target=self._run, name="gantry-flush", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Flush soon (synchronous flush: after each append batch). Cheap when one is already asked for."""
        if not self._wake.is_set():
            self._wake.set()

    def stop(self) -> None:
        """End the thread after the flush it may be in; `MessageStore.close` does the last one."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.wait(self._interval_s)
                self._wake.clear()
                self.step()
        except GantryError as error:
            self._post(self.on_failed, error)
        except Exception as error:
            log.exception("flush thread ended")
            self._post(self.on_failed, self._store.fail(error))

    def step(self) -> None:
        """One round: flush, reserve, checkpoint. Raises what `MessageStore.flush` raises."""
        self._flush()
        self._store.reserve_ahead()
        checkpoint = self._store.take_checkpoint()
        if checkpoint is not None:
            self._store.sync_checkpoint(checkpoint, self._flush_if_asked)

    def _flush(self) -> None:
        before = self._store.flushed_position
        position = self._store.flush()
        if position > before:
            self._post(self.on_flushed, position)

    def _flush_if_asked(self) -> None:
        self._passed += 1
        if self._wake.is_set() or self._passed % CALLS_PER_FLUSH == 0:
            self._wake.clear()
            self._flush()
