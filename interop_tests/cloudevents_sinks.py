"""A webhook receiver inside the test's process: a real HTTP server on a free port that answers as it is told."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

from gantrymq.client import BlockingPullConsumer, BrokerError, MessageQueue
from interop_tests.waiting import until


def assigned(consumer: BlockingPullConsumer, topic: str) -> list[MessageQueue]:
    """Assign all queues of a topic as soon as the nameserver knows it (a new topic is told to it a little later)."""
    return until(lambda: consumer.assign(topic), ignored=(BrokerError,))


@dataclass
class Hook:
    """One delivery as it arrived. `number`: how many had come before; `headers`: names in lower case."""

    number: int
    path: str
    headers: dict[str, str]
    body: bytes


Answer = int | tuple[int, dict[str, str]]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """Five, as inherited, are soon there at the same time: the sixth would try again after a second, then three."""


class Sink:
    """`answer(hook)` decides the status (and headers); every delivery that has been answered is kept in `hooks`, in order of arrival: the
    thread of one may be overtaken by the next one's between its answer and the list."""

    def __init__(self, answer: Callable[[Hook], Answer] = lambda hook: 204) -> None:
        self.answer = answer
        self.hooks: list[Hook] = []
        self.arrivals = count()
        self.changed = threading.Condition()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                headers = {name.lower(): value for name, value in self.headers.items()}
                hook = Hook(next(sink.arrivals), self.path, headers, body)
                answer = sink.answer(hook)
                status, more = answer if isinstance(answer, tuple) else (answer, {})
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()
                with sink.changed:
                    insort(sink.hooks, hook, key=lambda hook: hook.number)
                    sink.changed.notify_all()

            def log_message(self, *args: object) -> None:
                """Quiet."""

        self.server = _Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/hook"

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def wait(self, condition: Callable[[list[Hook]], bool], timeout_s: float = 120.0) -> list[Hook]:
        """All hooks, as soon as `condition(hooks)` holds."""
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self.hooks), timeout_s), [
                hook.headers.get("ce-id") for hook in self.hooks
            ]
            return list(self.hooks)

    def ids(self) -> list[str]:
        with self.changed:
            return [hook.headers["ce-id"] for hook in self.hooks]
