"""A program with a foreign MQTT client: it does what lines of words on its standard input say, and says what arrives.

    connect NAME URL LEVEL CLIENTID CLEAN WILL      -> ok PRESENT     URL: tcp://HOST:PORT or ws://HOST:PORT/mqtt; LEVEL 3, 4 or 5; CLEAN 1 or 0
    subscribe NAME FILTER QOS                       -> ok GRANTED
    publish NAME TOPIC QOS RETAIN COUNT TEXT        -> ok             when all are acknowledged: bodies TEXT.0, TEXT.1, ...
    disconnect NAME                                 -> ok

One command at a time, each answered by one line, `failed WHY` if it did not work; in between `message NAME TOPIC QOS RETAIN TEXT`. `-` is no will,
an empty body, or a PRESENT that the client does not tell. A session that is kept has 3600 s; a will says `gone` with QoS 1.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

from interop_tests import guard

WAIT_S: Final = 90.0
"""Only ends what hangs."""


class Message(NamedTuple):
    """As the client's user sees it."""

    topic: str
    qos: int
    retain: bool
    text: str


class Driver:
    """One such program, running."""

    def __init__(self, words: list[str], directory: Path) -> None:
        self._log = directory / "client.err"
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(
                words,
                cwd=directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env=os.environ | guard.mark(),
            )
        self._answers: queue.Queue[str] = queue.Queue()
        self._messages: defaultdict[str, queue.Queue[Message]] = defaultdict(queue.Queue)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, *given = line.rstrip("\n").split(" ")
            if word == "message":
                name, topic, qos, retain, text = given
                self._messages[name].put(Message(topic, int(qos), retain == "1", "" if text == "-" else text))
            else:
                self._answers.put(line.rstrip("\n"))
        self._answers.put("failed the program ended")

    def _do(self, *words: object) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        result, _, said = self._answers.get(timeout=WAIT_S).partition(" ")
        assert result == "ok", f"{words}: {said}\n{self._log.read_text(errors='replace')[-3000:]}"
        return said.strip()

    def connect(self, name: str, url: str, level: int, client_id: str, clean: bool = True, will: str = "-") -> str:
        """Whether a session was present: "1", "0", or "-" where the client does not tell."""
        return self._do("connect", name, url, level, client_id, int(clean), will)

    def subscribe(self, name: str, text: str, qos: int) -> int:
        return int(self._do("subscribe", name, text, qos))

    def publish(self, name: str, topic: str, qos: int, text: str, count: int = 1, retain: bool = False) -> None:
        self._do("publish", name, topic, qos, int(retain), count, text)

    def disconnect(self, name: str) -> None:
        self._do("disconnect", name)

    def receive(self, name: str, count: int) -> list[Message]:
        return [self._messages[name].get(timeout=WAIT_S) for _ in range(count)]

    def has_more(self, name: str) -> bool:
        return not self._messages[name].empty()

    def kill(self) -> None:
        """All its connections are lost, without a DISCONNECT."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
