"""An operator's service, as tests need it: over a socket of its own, right or wrong in every way."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

Raw = Callable[[bytes, bytes], bytes | None]
"""`raw(head, body)`: all bytes of the answer; None: none comes until the test ends."""


def ok(body: bytes, more: bytes = b"") -> bytes:
    """A whole answer."""
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%s\r\n%s" % (len(body), more, body)


class Service:
    """Answers each request with what `answer` says, and remembers what was asked."""

    def __init__(self, answer: Raw) -> None:
        self.answer = answer
        self.asked: list[tuple[bytes, bytes]] = []
        self.over = threading.Event()
        self.most = 0
        self._now = 0
        self._lock = threading.Condition()
        service = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                service.serve(self.rfile, self.wfile)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/user"
        self._thread = threading.Thread(target=partial(self._server.serve_forever, 0.02))
        self._thread.start()

    def serve(self, reads: Any, writes: Any) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = reads.readline()
            if not line:
                return
            head += line
        size = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        body = reads.read(size)
        with self._lock:
            self.asked.append((head, body))
            self._now += 1
            self.most = max(self.most, self._now)
            self._lock.notify_all()
        try:
            found = self.answer(head, body)
            if found is None:
                self.over.wait(30)
            else:
                writes.write(found)
        except OSError:
            pass  # whoever asked has gone
        finally:
            with self._lock:
                self._now -= 1

    def wait_for(self, count: int) -> None:
        """Until so many have asked."""
        with self._lock:
            assert self._lock.wait_for(lambda: len(self.asked) >= count, 20)

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
