"""Metrics and health of a process over HTTP: /metrics for Prometheus, /metrics/per-object for numbers of each queue by itself, /healthz and /readyz for whoever starts and stops processes.

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gantrymq import __version__
from gantrymq.launch.health import Health
from gantrymq.metrics import Metrics, head, labels_text
from gantrymq.model.settings import setting
from gantrymq.net.host_names import HostNames, asked_host
from gantrymq.net.http.door import Handler, InSlices, OneByOneDoor
from gantrymq.net.http.problems import TEXT_HEADER, Problem, Respond, as_text
from gantrymq.net.http.server_connection import Headers as RequestHeaders
from gantrymq.net.listen import ListenError

if TYPE_CHECKING:
    from gantrymq.services import ServiceContext

log = logging.getLogger(__name__)

PORT: Final = 5557
"""Of a process with a broker: RocketMQ's Prometheus exporter (BrokerConfig.metricsPromExporterPort)."""

GATEWAY_PORT: Final = 5558
NAMESERVER_PORT: Final = 5559
"""Of processes with nothing else, so that one of each on a machine is always found at the same place."""

FURTHER_PORTS: Final = range(5560, 5576)
"""Taken in turn where the own one is in use: a machine runs a few processes of a kind."""

BODY_BYTES_MAX: Final = 64 * 1024
"""Nobody sends a body; what comes nevertheless is dropped up to here, so that the connection stays in step."""

CONNECTIONS_MAX: Final = 64
"""Scrapers and probes of one process; more would be no scrapers."""

IDLE_MS: Final = 120_000
"""Twice Prometheus's default scrape interval, so that its connection lives from scrape to scrape."""

FRESH_MS: Final = 1_000
"""A text is given to other scrapers too for so long: many of them cost what one costs."""

SLICE_S: Final = 0.001
"""Of the loop's time in one go."""

METRICS_HEADER: Final = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Section `metrics`."""

    port: int | None = setting(
        None,
        "HTTP port; 0 takes a free one; not given: 5557 with a broker, 5558 for gateways, 5559 for a nameserver, or the first free one from 5560 on where another process has it",
        least=0,
        most=65535,
    )
    enabled: bool = setting(True, "false: no metrics door")
    topics_max: int = setting(1_000, "topics with numbers of their own, the busiest first", least=0, most=100_000)
    groups_max: int = setting(
        1_000, "groups and topics with a lag of their own, the farthest behind first", least=0, most=100_000
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

    def __init__(self, health: Health, scrape: Scrape, names: HostNames, objects: Scrape) -> None:
        self._health = health
        self._scrape = scrape
        self._objects = objects
        self._names = names
        self.connections = 0
        """Connections."""

    def handler(self, method: str, target: bytes, headers: RequestHeaders) -> Handler:
        """What answers a request with this head. Raises Problem."""
        refused = self._names.refusal(asked_host(target, headers))
        if refused:
            raise Problem(421, refused)
        if method not in ("GET", "HEAD"):
            raise Problem(405, "GET or HEAD", ((b"allow", b"GET, HEAD"),))
        found = self._handlers().get(target.partition(b"?")[0])
        if found is None:
            raise Problem(404, "there are /metrics, /metrics/per-object, /healthz and /readyz")
        if any(name == b"expect" for name, _ in headers):
            raise Problem(417, "no body is taken here")
        return found

    def _handlers(self) -> dict[bytes, Handler]:
        return {
            b"/": lambda _, respond: respond(200, (TEXT_HEADER,), b"gantry: /metrics, /healthz, /readyz\n"),
            b"/metrics": lambda _, respond: self._scrape.get(lambda text: _scraped(text, respond)),
            b"/metrics/per-object": lambda _, respond: self._objects.get(lambda text: _scraped(text, respond)),
            b"/healthz": lambda _, respond: _told(self._health.problems(), respond),
            b"/readyz": lambda _, respond: _told(self._health.waits(), respond),
        }


def _scraped(text: bytes | None, respond: Respond) -> None:
    if text is None:
        respond(500, (TEXT_HEADER,), b"some number cannot be had; the log says which\n")
    else:
        respond(200, (METRICS_HEADER,), text)


def _told(reasons: list[str], respond: Respond) -> None:
    if reasons:
        respond(503, (TEXT_HEADER,), ("\n".join(reasons) + "\n").encode())
    else:
        respond(200, (TEXT_HEADER,), b"ok\n")


class MetricsDoor(OneByOneDoor):
    """One HTTP connection."""

    render = staticmethod(as_text)
    idle_ms = IDLE_MS
    connections_max = CONNECTIONS_MAX

    def __init__(self, pages: Pages, now_ms: Callable[[], int], in_slices: InSlices) -> None:
        super().__init__(pages, now_ms, in_slices, BODY_BYTES_MAX)
        self._pages = pages

    def judge(self, method: str, target: bytes, headers: RequestHeaders, length: int) -> Handler:
        """See `HttpDoor`."""
        return self._pages.handler(method, target, headers)


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
        objects = context.shared["metrics_per_object"] = Metrics()
        each = Scrape(objects, context.turn.at_deliver, now_ms)
        pages = Pages(context.shared["health"], scrape, HostNames(context.host, context.host_names), each)

        def accept() -> MetricsDoor:
            return MetricsDoor(pages, now_ms, context.turn.in_slices)

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
        if taken:
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
