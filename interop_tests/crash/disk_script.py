"""A store and a broker in one thread over a real directory, flushed after every batch; run under strace by test_syscalls.py.

`python -m interop_tests.crash.disk_script DIR NOTES WHO STEPS`: recovers DIR, appends, notes in NOTES what it sent and what was acknowledged
(S number; A number queue offset; R number: refused), and stops cleanly. Exit code 3: the store stopped after an error.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig, GatewayConfig, TopicsConfig
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock, ManualTurn, ManualWheel
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore

CONFIG = StoreConfig(
    commitlog_file_size=64 * 1024, consumequeue_file_size=400, index_slots=50, index_entries=40, queue_files_max=8,
    checkpoint_interval_ms=100,
)  # fmt: skip
TOPIC = "t"
QUEUES = 2
BATCH = 3
BODY_BYTES = 4000
LARGE_BYTES = 20_000
"""Large parts go out by pwritev."""
EXIT_STORE_FAILED = 3


class Script:
    def __init__(self, directory: Path, notes: Path, who: str) -> None:
        self.notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.who = who
        self.turn = ManualTurn()
        clock = ManualClock()
        self.wheel = ManualWheel(clock)
        self.store = MessageStore(OsFileSystem(), directory, CONFIG, clock)
        self.store.load(None)
        self.broker = Broker(
            self.store, clock, self.turn, self.wheel, {}, BrokerConfig(), TopicsConfig(), GatewayConfig(queues=QUEUES), True
        )  # fmt: skip
        self.broker.open()
        self.port = LocalBrokerPort(self.broker)

    def note(self, kind: str, *numbers: int) -> None:
        os.write(self.notes, f"{kind} {self.who} {' '.join(map(str, numbers))}\n".encode())

    def flush(self) -> None:
        self.broker.gate.advance(self.store.flush())
        self.turn.run_until_quiet()

    def send(self, first: int, size: int) -> None:
        messages = []
        for number in range(first, first + BATCH):
            self.note("S", number)
            key = f"{self.who}{number}"
            body = f"{self.who} {number} ".encode().ljust(size, b".")
            messages.append(Message(TOPIC, body, f"UNIQ_KEY\x01{key}\x02".encode(), "", (key,), number % QUEUES))

        def done(token: Any, results: Any) -> None:
            for number, result in enumerate(results if isinstance(results, list) else [results] * BATCH, first):
                if isinstance(result, int):
                    self.note("A", number, number % QUEUES, result)
                elif result is ErrorCode.STORE_FULL:
                    self.note("R", number)
                else:
                    raise GantryError(ErrorCode.STORE_FAILED, f"{result}")

        self.port.submit(messages, None, done)
        self.turn.run_until_quiet()

    def run(self, steps: int) -> None:
        for step in range(steps):
            self.send(step * BATCH, LARGE_BYTES if step % 4 == 3 else BODY_BYTES)
            self.flush()
            self.store.reserve_ahead()
            if step % 3 == 2:
                self.wheel.advance(1000)
                self.turn.run_until_quiet()
                checkpoint = self.store.take_checkpoint()
                if checkpoint is not None:
                    self.store.sync_checkpoint(checkpoint)
        self.broker.close()
        self.store.close()


def main() -> int:
    logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
    directory, notes, who, steps = sys.argv[1:]
    try:
        Script(Path(directory), Path(notes), who).run(int(steps))
    except GantryError as error:
        if error.code is not ErrorCode.STORE_FAILED:
            raise
        print(f"stopped: {error.text}", file=sys.stderr)
        return EXIT_STORE_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
