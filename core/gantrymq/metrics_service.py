"""Metrics and health of a process over HTTP: /metrics for Prometheus, /healthz and /readyz for whoever starts and stops processes.

Read-only, no bodies, no authentication: it listens where the other doors do (loopback unless told otherwise; with `auth.enabled` there, or
where clients show certificates). A scrape is rendered in
slices between the turns of the loop, and scrapes of one second share a text.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import h11

from gantrymq import __version__
from gantrymq.launch.health import Health
from gantrymq.metrics import Metrics, head, labels_text
from gantrymq.net.host_names import HostNames, asked_host
from gantrymq.net.listen import ListenError

if TYPE_CHECKING:
    from gantrymq.net.api import Link
    from gantrymq.services import ServiceContext

log = logging.getLogger(__name__)

PORT: Final = 5557
"""Of a process with a broker: RocketMQ's Prometheus exporter (BrokerConfig.metricsPromExporterPort)."""

GATEWAY_PORT: Final = 5558
NAMESERVER_PORT: Final = 5559
"""Of processes with nothing else, so that one of each on a machine is always found at the same place."""

FURTHER_PORTS: Final = range(5560, 5576)
"""Taken in turn where the own one is in use: a machine runs a few processes of a kind."""

HEAD_BYTES_MAX: Final = 16 * 1024
"""A request line and its headers; Prometheus sends 300 bytes."""

BODY_BYTES_MAX: Final = 64 * 1024
"""Nobody sends a body; what comes nevertheless is dropped up to here, so that the connection stays in step."""

CONNECTIONS_MAX: Final = 64
"""Scrapers and probes of one process; more would be no scrapers."""

REQUEST_MS: Final = 10_000
"""From the first byte of a request to its end."""

IDLE_MS: Final = 120_000
"""Twice Prometheus's default scrape interval, so that its connection lives from scrape to scrape."""

FRESH_MS: Final = 1_000
"""A text is given to other scrapers too for so long: many of them cost what one costs."""

SLICE_S: Final = 0.001
"""Of the loop's time in one go."""

METRICS_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
TEXT_TYPE: Final = b"text/plain; charset=utf-8"

_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}

PATHS: Final = ("/metrics", "/healthz", "/readyz", "/")
ALLOW: Final = ((b"allow", b"GET, HEAD"),)

Answer = Callable[[int, bytes, bytes], None]
"""`answer(status, content type, body)`."""


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Section `metrics`."""

    port: int | None = field(
        default=None,
        metadata={
            "min": 0,
            "max": 65535,
            "help": "HTTP port; 0 takes a free one; not given: 5557 with a broker, 5558 for gateways, 5559 for a nameserver, or the first free one from 5560 on where another process has it",
        },
    )
    enabled: bool = field(default=True, metadata={"help": "false: no metrics door"})
    topics_max: int = field(
        default=1_000,
        metadata={"min": 0, "max": 100_000, "help": "topics with numbers of their own, the busiest first"},
    )
    groups_max: int = field(
        default=1_000,
        metadata={
            "min": 0,
            "max": 100_000,
            "help": "groups and topics with a lag of their own, the farthest behind first",
        },
    )


class Scrape:
    """Renders the registry in slices, for everybody who asks meanwhile."""

    def __init__(self, metrics: Metrics, soon: Callable[[Callable[[], None]], None], now_ms: Callable[[], int]) -> None:
        self._metrics = metrics
        self._soon = soon
        self._now_ms = now_ms
        self._waiting: list[Callable[[bytes | None], None]] = []
        self._pieces: Iterator[str] | None = None
        self._parts: list[str] = []
        self._text = b""
        self._made_ms = -FRESH_MS
        self._spent_s = 0.0
        self.seconds = 0.0
        """Processor time that the last text took."""
        self.bytes = 0

    def get(self, on_text: Callable[[bytes | None], None]) -> None:
        """`on_text(text)`, now or in some turns; None if some number cannot be had."""
        if self._pieces is None and self._now_ms() - self._made_ms < FRESH_MS:
            on_text(self._text)
            return
        self._waiting.append(on_text)
        if self._pieces is None:
            self._pieces = self._metrics.pieces()
            self._parts = []
            self._spent_s = 0.0
            self._slice()

    def _slice(self) -> None:
        assert self._pieces is not None
        begun = time.thread_time()
        until = time.perf_counter() + SLICE_S
        try:
            for piece in self._pieces:
                self._parts.append(piece)
                if time.perf_counter() >= until:
                    self._spent_s += time.thread_time() - begun
                    self._soon(self._slice)
                    return
        except Exception as error:
            log.error("a scrape failed: %s: %s", type(error).__name__, error)
            log.debug("traceback", exc_info=True)
            self._finish(None)
            return
        self._text = "".join(self._parts).encode()
        self._made_ms = self._now_ms()
        self.seconds = self._spent_s + time.thread_time() - begun
        self.bytes = len(self._text)
        self._finish(self._text)

    def _finish(self, text: bytes | None) -> None:
        self._parts = []
        self._pieces = None
        waiting, self._waiting = self._waiting, []
        for on_text in waiting:
            on_text(text)


class Pages:
    """What the door answers."""

    def __init__(self, health: Health, scrape: Scrape, names: HostNames) -> None:
        self._health = health
        self._scrape = scrape
        self._names = names
        self.open = 0
        """Connections."""

    def refusal(self, request: h11.Request) -> tuple[int, str]:
        """Why a request is not answered: status and text; 0 if it is. Its head tells, so that nobody sends a body for nothing."""
        refused = self._names.refusal(asked_host(request.target, request.headers))
        if refused:
            return 421, refused
        if request.method not in (b"GET", b"HEAD"):
            return 405, "GET or HEAD"
        if _path(request) not in PATHS:
            return 404, "there are /metrics, /healthz and /readyz"
        return 0, ""

    def get(self, path: str, answer: Answer) -> None:
        """Answer a GET or HEAD for one of `PATHS`."""
        if path == "/metrics":
            self._scrape.get(lambda text: _scraped(text, answer))
        elif path == "/healthz":
            _told(self._health.problems(), answer)
        elif path == "/readyz":
            _told(self._health.waits(), answer)
        else:
            answer(200, TEXT_TYPE, b"gantry: /metrics, /healthz, /readyz\n")


def _path(request: h11.Request) -> str:
    return request.target.partition(b"?")[0].decode("latin-1")


def _has_body(request: h11.Request) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in request.headers
    )


def _scraped(text: bytes | None, answer: Answer) -> None:
    if text is None:
        answer(500, TEXT_TYPE, b"some number cannot be had; the log says which\n")
    else:
        answer(200, METRICS_TYPE, text)


def _told(reasons: list[str], answer: Answer) -> None:
    if reasons:
        answer(503, TEXT_TYPE, ("\n".join(reasons) + "\n").encode())
    else:
        answer(200, TEXT_TYPE, b"ok\n")


class MetricsDoor:
    """One HTTP connection (`net.api.Door`)."""

    def __init__(self, pages: Pages, now_ms: Callable[[], int]) -> None:
        self._pages = pages
        self._now_ms = now_ms
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._link: Link | None = None
        self._out: list[bytes] = []
        self._request: h11.Request | None = None
        self._body_bytes = 0
        self._busy = False
        """An answer is being made."""
        self._ending = False

    def connected(self, link: Link) -> None:
        """See `Door`."""
        self._link = link
        self._pages.open += 1
        link.set_deadline(self._now_ms() + REQUEST_MS)
        if self._pages.open > CONNECTIONS_MAX:
            log.warning("%s: refused, %d connections are open", link.peer, CONNECTIONS_MAX)
            self._fail(503, f"{CONNECTIONS_MAX} connections are open already")

    def received(self, data: bytes) -> None:
        """See `Door`."""
        if self._ending or self._link is None:
            return
        if len(self._http.trailing_data[0]) > HEAD_BYTES_MAX:
            self._link.abort()  # it sends on and on while its answer is being made
            return
        self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            if data:
                self._http.receive_data(data)
            while not self._busy and not self._ending:
                event = self._http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                    return
                if isinstance(event, h11.Request):
                    self._request = event
                    self._body_bytes = 0
                    status, text = self._pages.refusal(event)
                    if status and _has_body(event):
                        self._fail(status, text, ALLOW if status == 405 else ())
                        return
                    if self._http.they_are_waiting_for_100_continue:
                        raise h11.RemoteProtocolError("no body is taken here", error_status_hint=417)
                elif isinstance(event, h11.Data):
                    self._body_bytes += len(event.data)
                    if self._body_bytes > BODY_BYTES_MAX:
                        raise h11.RemoteProtocolError("no body is taken here", error_status_hint=413)
                elif isinstance(event, h11.EndOfMessage):
                    self._dispatch()
        except h11.RemoteProtocolError as error:
            self._fail(error.error_status_hint, str(error))

    def _dispatch(self) -> None:
        assert self._request is not None
        assert self._link is not None
        self._busy = True
        self._link.set_deadline(None)
        status, text = self._pages.refusal(self._request)
        if status:
            self._answer(status, TEXT_TYPE, text.encode() + b"\n", ALLOW if status == 405 else ())
            return
        self._pages.get(_path(self._request), self._answer)

    def _answer(
        self, status: int, content_type: bytes, body: bytes, more: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        link, request = self._link, self._request
        if link is None or request is None or not self._busy:
            return  # it left while the text was made
        headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *more]
        if self._ending:
            headers.append((b"connection", b"close"))
        try:
            self._write(h11.Response(status_code=status, headers=headers, reason=_REASONS[status]))
            if request.method != b"HEAD":
                self._write(h11.Data(data=body))
            self._write(h11.EndOfMessage())
        except h11.LocalProtocolError:
            link.abort()
            return
        self._busy = False
        self._request = None
        link.mark()
        if self._ending or self._http.our_state is h11.MUST_CLOSE or self._http.their_state is h11.MUST_CLOSE:
            self._ending = True
            link.close()
            return
        self._http.start_next_cycle()
        link.set_deadline(self._now_ms() + IDLE_MS)
        self._take(b"")

    def _fail(self, status: int, text: str, more: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """Answer what cannot be read, or is not, and end."""
        self._ending = self._busy = True
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = text.encode() + b"\n"
            headers = [
                (b"content-type", TEXT_TYPE), (b"content-length", b"%d" % len(body)), (b"connection", b"close"), *more
            ]  # fmt: skip
            self._write(h11.Response(status_code=status, headers=headers, reason=_REASONS[status]))
            self._write(h11.Data(data=body))
            self._write(h11.EndOfMessage())
        if self._link is not None:
            self._link.mark()
            self._link.close()

    def _write(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        data = self._http.send(event)
        if data:
            self._out.append(data)

    def inbound_bytes(self) -> int:
        """See `Door`: bodies are dropped as they come."""
        return len(self._http.trailing_data[0])

    def unfinished(self) -> int:
        """See `Door`: a request has `REQUEST_MS`."""
        return 0

    def overdue(self, why: str, busy: bool) -> None:
        """See `Door`."""
        if self._link is not None:
            self._link.abort()

    def data_to_send(self) -> bytes:
        """See `Door`."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def eof(self) -> bool | None:
        """See `Door`: an answer that is being made still goes out."""
        if self._busy and not self._ending:
            self._ending = True
            return True
        return None

    def closed(self, reason: str) -> None:
        """See `Door`."""
        self._link = None
        self._pages.open -= 1

    def writable(self) -> None:
        """See `Door`."""

    def deadline(self, now_ms: int) -> None:
        """See `Door`: it took too long, or is idle."""
        if self._link is not None and not self._busy:
            self._ending = True
            self._link.close()

    def shutdown(self) -> None:
        """See `Door`."""
        self._ending = True
        if self._link is not None and not self._busy:
            self._link.close()


class MetricsService:
    """The door as a service (entry point `gantrymq.services`); started first and stopped last."""

    name = "metrics"
    default_port = PORT
    alpn = ("http/1.1",)
    asks_nobody = True
    """See `launch.openings`: with `auth.enabled` it is for this machine, or for clients with certificates."""
    config: type = MetricsConfig
    extra_sections: ClassVar[dict[str, type]] = {}

    async def start(self, context: ServiceContext) -> list[tuple[str, int]]:
        """See `Service`."""
        config: MetricsConfig = context.config
        metrics: Metrics = context.shared["metrics"]
        context.shared["metrics_config"] = config
        now_ms = context.clock.monotonic_ms
        scrape = Scrape(metrics, context.turn.at_deliver, now_ms)
        show_process(metrics, context.shared.get("listeners", {}))
        metrics.read("gantry_scrape_seconds", "Processor time that the last scrape took", lambda: scrape.seconds)
        metrics.read("gantry_scrape_bytes", "Length of the last scrape", lambda: scrape.bytes)
        pages = Pages(context.shared["health"], scrape, HostNames(context.host, context.host_names))

        def accept() -> MetricsDoor:
            return MetricsDoor(pages, now_ms)

        if config.port is not None:
            return [await context.listen(accept, context.host, config.port)]
        own = port_of(context.shared.get("services", ()))
        taken = ""
        for port in (own, *FURTHER_PORTS):
            try:
                bound: tuple[str, int] = await context.listen(accept, context.host, port)
            except ListenError as error:
                taken = taken or str(error.strerror)
                continue
            break
        else:
            bound = await context.listen(accept, context.host, 0)
        if bound[1] != own:
            log.info("%s; metrics are on port %d (--set metrics.port=N chooses one)", taken, bound[1])
        return [bound]

    async def drain(self, deadline_s: float) -> None:
        """See `Service`."""

    async def stop(self) -> None:
        """See `Service`."""


def port_of(services: Collection[str]) -> int:
    """Where a process with these services has its metrics if nobody says it."""
    if "broker" in services:
        return PORT
    return GATEWAY_PORT if set(services) - {MetricsService.name, "nameserver"} else NAMESERVER_PORT


def show_process(metrics: Metrics, listeners: dict[str, list[Any]]) -> None:
    """Numbers that every process has."""
    begun = time.time()
    metrics.read("process_start_time_seconds", "When the process started, seconds since 1970", lambda: begun)
    metrics.read("process_cpu_seconds_total", "Processor time, user and system", time.process_time, "counter")
    metrics.read("process_resident_memory_bytes", "Memory in use", _resident_bytes)
    metrics.read("process_open_fds", "Open files", lambda: len(os.listdir("/proc/self/fd")))
    metrics.read("process_max_fds", "Limit of open files", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    version = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    metrics.read("gantry_info", "1; the version in its labels", lambda: 1, version=__version__, python=version)

    def protocols() -> Iterator[str]:
        rows = [
            f"gantry_protocol_connections{{{labels_text([('protocol', name)])}}} {sum([each.connections for each in opened])}\n"
            for name, opened in sorted(listeners.items())
        ]
        yield head("gantry_protocol_connections", "gauge", "Open connections by door") + "".join(rows)

    metrics.add_source(protocols)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def factory() -> Any:
    """Entry point `metrics` of group `gantrymq.services`."""
    return MetricsService()
