"""One process: starts the services of its plan in order, tells when all doors are open, and stops them in reverse.

`gantry up`, `nameserver`, `broker` and `gateway` all end here; they differ in their plan (launch/plan.py). Nothing here knows a protocol.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TextIO

import anyio
import anyio.abc
import anyio.lowlevel

from gantrymq import __version__
from gantrymq.clock import SystemClock
from gantrymq.config import (
    is_page,
)
from gantrymq.launch.checks import check_bind
from gantrymq.launch.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from gantrymq.launch.first_steps import first_steps
from gantrymq.launch.health import STOPPING, Health
from gantrymq.launch.plan import BEFORE_DOORS, WITHOUT_PORT, Launch, LoadError, Plan, find_service, make_plan, reason_of
from gantrymq.launch.restart import Follower
from gantrymq.launch.service_manager import TELL_READY, TELL_STOPPING, notify
from gantrymq.logs import JsonFormatter, complain, set_up_logging
from gantrymq.metrics import SECONDS, Metrics
from gantrymq.model.errors import ConfigError, GantryError
from gantrymq.net.api import ConnectionFactory
from gantrymq.net.doors.threshold import Terms
from gantrymq.net.held.limits import PumpLimits
from gantrymq.net.held.rates import RateLimits
from gantrymq.net.host_names import host_names
from gantrymq.net.listen import Listener, listen, raise_file_limit, reserve
from gantrymq.net.loopback import networks_of
from gantrymq.net.places import PLAIN, Place, join_address
from gantrymq.net.process.host import PumpHost
from gantrymq.net.tls.contexts import CHECK_EVERY_S, Context
from gantrymq.net.trim import trim
from gantrymq.net.turn import LoopTurn
from gantrymq.net.wheel import TimerWheel
from gantrymq.services import Service, ServiceContext

log = logging.getLogger(__name__)

GC_STARTING: Final = (100_000, 50, 100)
"""Until it is ready: what a start makes, some thirty objects a session, is looked at twice and not again with each quarter that it grows. That was a third
of the start's time."""
GC_YOUNG_MAX: Final = 3_000
"""Objects before the collector looks at the youngest. One turn makes thousands, which reference counting frees; at Python's
default of 700 the collector takes 3 % of a loaded broker's time to find nothing."""
GC_MIDDLE: Final = 2
"""...and so many times until it looks at what was left of these, too: 0.3 us an object where much is under way, so 3 ms; after ten times
10,000 it took 36."""
GC_OLD: Final = 30
"""...and so many of these before all that was made since the start may be looked at, where a quarter is new: 50 ms beside 1,500 new queues."""

SHUT_S: Final = 1.0
"""For clients of a door whose broker is lost to read the goodbye: waiting longer keeps them from coming back."""

SAME_STOP_MS: Final = 250
"""A signal so soon after the first is the first once more: `timeout` and service managers send it to the process and to its group."""

TYPED_AS: Final = "GANTRY_TYPED_AS"
"""In the environment: how the user types `gantry`; a checkout's `./run` says it, which puts nothing on PATH."""

POLL_S: Final = 0.01
"""While stopping, and only then, open connections are counted so often."""


class Server:
    """The services of one process, from the first start to the last stop."""

    def __init__(self, plan: Plan, out: TextIO) -> None:
        self._plan = plan
        self._out = out
        self._started: list[Service] = []
        self._listeners: dict[str, list[Listener]] = {}
        self._addresses: dict[str, str] = {}
        self._ports: dict[str, Any] = {}
        """Each door's own way to the broker, closed after the door."""
        self._places: dict[str, list[tuple[str, int]]] = {}
        """Where doors listened before their broker was lost, in order: there they open again."""
        self._reserved: dict[str, list[socket.socket]] = {}
        """Holds these addresses while the door is shut."""
        self._health = Health()
        openings = plan.openings
        self._shared: dict[str, Any] = {
            "health": self._health,
            "listeners": self._listeners,
            "accept_loss": plan.accept_loss,
            "cluster_key": plan.cluster_key,
            "cluster_certificates": frozenset(plan.auth.cluster_certificates),
            # A broker connects to the nameserver of its own process as that listens.
            "cluster_tls": None if plan.own_nameserver and openings.is_plain("nameserver") else openings.outgoing,
        }
        self._nameservers = list(plan.nameservers)
        self._exit_code = EXIT_OK
        self._stop = anyio.Event()
        self._starting = anyio.CancelScope()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._follower = Follower(self, self._spawn, reason_of)

    async def run(self) -> int:
        """Start, serve until told to stop, stop; returns the exit code."""
        server, auth = self._plan.server, self._plan.auth
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_loop_error)
        metrics = Metrics()
        text = "Length of a turn of the loop: what was read is handled, appended, delivered and written"
        observe = metrics.histogram("gantry_turn_seconds", text, SECONDS).observe
        self._clock, self._turn = SystemClock(), LoopTurn(loop.call_soon, time.perf_counter, observe)
        self._wheel = TimerWheel(self._clock.monotonic_ms, loop.call_later)
        connections = raise_file_limit(server.connections_max)
        limits = PumpLimits(
            outbound_bytes_max=server.outbound_bytes_max,
            outbound_bytes_ceiling=max(server.outbound_bytes_ceiling, server.outbound_bytes_max),
            outbound_bytes_process_max=server.outbound_bytes_process_max,
            inbound_bytes_process_max=server.inbound_bytes_process_max,
            frame_timeout_ms=server.frame_timeout_ms,
            stalled_reader_ms=server.stalled_reader_ms,
            trusted_networks=networks_of(server.trusted_networks),
            connections_max=connections,
            door_connections_max=server.door_connections_max or max(connections - connections // 10, 1),
            address_connections_max=server.address_connections_max or max(connections // 10, 1),
            address_rates=RateLimits(
                connects_per_s=server.address_connects_per_s,
                requests_per_s=server.address_requests_per_s,
                bytes_per_s=server.address_bytes_per_s,
            ),
            user_rates=RateLimits(
                connections_max=auth.user_connections_max,
                connects_per_s=auth.user_connects_per_s,
                requests_per_s=auth.user_requests_per_s,
                bytes_per_s=auth.user_bytes_per_s,
            ),
        )
        self._host = PumpHost(self._turn, self._wheel, limits)
        self._shared |= {"metrics": metrics, "services": [each.name for each in self._plan.services]}
        self._shared["ports"] = {getattr(config, "port", 0) for config in self._plan.configs.values()}
        self._host.show(metrics)
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            await tasks.start(self._watch_signals)
            if self._plan.openings.all_contexts():
                self._spawn(self._follow_certificates)
            with self._starting:
                await self._start_all()
            if not self._stop.is_set():
                self._announce_ready()
                await self._stop.wait()
            notify(os.environ, TELL_STOPPING)
            await self._follower.stop()
            await self._stop_all()
            tasks.cancel_scope.cancel()
        self._wheel.close()
        if self._exit_code == EXIT_OK:
            self._say(f"stopped{self._stop_line()}")
        return self._exit_code

    async def _watch_signals(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            first_ms = 0
            async for number in signals:
                now_ms = self._clock.monotonic_ms()
                if first_ms and now_ms - first_ms < SAME_STOP_MS:
                    continue
                first_ms = first_ms or now_ms
                if self._stop.is_set():
                    # The log is safe at any moment (that is what recovery is for), so "at once" may mean it.
                    self._say("stopped at once")
                    os._exit(EXIT_FAILED)
                log.info("%s: stopping", signal.Signals(number).name)
                self._request_stop(EXIT_OK)

    def _request_stop(self, exit_code: int) -> None:
        self._exit_code = max(self._exit_code, exit_code)
        self._health.phase = STOPPING
        self._stop.set()
        self._starting.cancel()

    async def _start_all(self) -> None:
        gc.set_threshold(*GC_STARTING)
        plan = self._plan
        if plan.ready_file is not None:
            try:
                plan.ready_file.unlink(missing_ok=True)
            except OSError as error:
                self._refuse_ready_file(error)
                return
        self._say(f"gantry {__version__}" + self._data_line())
        if is_page(self._nameservers[0]):
            try:
                await self._follow_page(self._nameservers[0])
            except GantryError as error:
                complain(error.text)
                self._request_stop(EXIT_FAILED)
                return
        for service in plan.services:
            try:
                if plan.auth.enabled and "auth" not in self._shared:
                    authentication = import_module("gantrymq.launch.authentication")  # only where it is on
                    own = (self._wheel, self._turn.at_deliver, self._clock.now_ms)
                    self._shared["auth"] = authentication.authority_of(plan.auth, *own)
                    if self._shared["auth"].backend is not None:
                        self._shared["auth"].backend.show(self._shared["metrics"])
                await self._start_one(service)
            except ConfigError as error:
                complain(f"{service.name}: {error}")
                self._request_stop(EXIT_USAGE)
                return
            except Exception as error:
                complain(f"{service.name}: {reason_of(error)}")
                log.debug("%s: traceback", service.name, exc_info=True)
                self._request_stop(EXIT_FAILED)
                return

    async def _follow_page(self, url: str) -> None:
        page = import_module("gantrymq.launch.nameserver_page")  # only when one is named
        self._nameservers = []
        await page.begin(url, self._nameservers)
        self._spawn(page.keep, url, self._nameservers)

    def _data_path(self) -> Path | None:
        keeps = any(service.name in BEFORE_DOORS for service in self._plan.services)
        return Path(self._plan.server.data).absolute() if keeps else None

    def _stop_line(self) -> str:
        path = self._data_path()
        return f", everything that was acknowledged is in {path}" if path is not None else ""

    def _data_line(self) -> str:
        path = self._data_path()
        given = " (--data not given)" if self._plan.data_is_default else ""
        return f", data in {path}{given}" if path is not None else ""

    async def _start_one(self, service: Service) -> None:
        plan = self._plan
        if service.name in BEFORE_DOORS:
            make_data_directory(Path(plan.server.data))
        context = self._context(service)
        if service.name not in WITHOUT_PORT:
            local = self._shared.get("broker_port")
            context.port = local.for_service() if local is not None else await self._connect(context)
            self._ports[service.name] = context.port
            if local is None and "auth" in self._shared and "broker" not in self._shared:
                await import_module("gantrymq.launch.authentication").follow(self._shared["auth"], context.port)
        self._started.append(service)
        addresses = await service.start(context)
        if service.name not in WITHOUT_PORT and "broker_port" not in self._shared:
            self._health.ready_if(service.name, partial(self._shut_reason, service.name))
            self._follower.follow(service.name, context.port)
        if service.name == "nameserver" and plan.own_nameserver and addresses:
            self._nameservers[:] = [join_address(reachable(addresses[0][0]), addresses[0][1])]
        if addresses:
            self._tell(service.name, addresses)

    def _context(self, service: Service) -> ServiceContext:
        plan = self._plan

        async def listen_here(factory: ConnectionFactory, host: str, port: int) -> tuple[str, int]:
            check_bind(host, plan.server.insecure_bind or plan.auth.enabled)  # in which case its places were checked
            if self._listeners.get(service.name):
                return (
                    await self._listen(service.name, factory, *plan.openings.further(service.name, host, port))
                ).address
            opened = [
                await self._listen(service.name, factory, place, context)
                for place, context in plan.openings.each(service.name, host, port)
            ]
            return opened[0].address

        return ServiceContext(
            config=plan.configs[service.name],
            sections=plan.sections[service.name],
            host=plan.openings.host(service.name, plan.server.host),
            data=Path(plan.server.data),
            clock=self._clock,
            turn=self._turn,
            wheel=self._wheel,
            nameservers=self._nameservers,
            host_names=host_names(plan.server.host_names),
            listen=listen_here,
            spawn=self._spawn,
            port=self._shared.get("broker_port"),
            shared=self._shared,
            threshold=Terms(plan.auth.unknown_ms, plan.auth.unknown_bytes_max, self._wheel)
            if plan.auth.enabled
            else None,
        )

    async def _listen(self, name: str, factory: ConnectionFactory, place: Place, tls: Context | None) -> Listener:
        opened = self._listeners.setdefault(name, [])
        places = self._places.get(name, [])
        if len(opened) < len(places):
            host, port = places[len(opened)]
            place = replace(place, host=host, port=port)
        text = "From a read to the write of its answers, where these wait for no disk, message or other process"
        answered = self._shared["metrics"].histogram("gantry_answer_seconds", text, SECONDS, door=name)
        if tls is not None and place.has_keys and "auth" in self._shared:
            tls.gate = import_module("gantrymq.launch.handshakes").Handshakes(self._shared["auth"], name)
        listener = await listen(self._host, factory, place, tls, answered.observe)
        opened.append(listener)
        return listener

    def _tell(self, name: str, addresses: list[tuple[str, int]]) -> None:
        """Where a door is open: a line, and for the ready file its first address, and that of each other transport."""
        self._addresses[name] = join_address(*addresses[0])
        shown = [join_address(*address) for address in addresses]
        opened = self._listeners.get(name, [])
        if opened:
            shown = [str(each.place) if each.place.scheme != PLAIN else join_address(*each.address) for each in opened]
        for each in opened[1:]:
            if each.place.scheme != PLAIN:
                self._addresses.setdefault(f"{name}.{each.place.scheme}", join_address(*each.address))
        self._say("  ".join([f"{name:<12}", *shown]))

    async def _follow_certificates(self) -> None:
        """Read certificates again when their files change, or at once after SIGHUP."""
        contexts = self._plan.openings.all_contexts()
        with anyio.open_signal_receiver(signal.SIGHUP) as signals:
            while True:
                hung_up = False
                with anyio.move_on_after(CHECK_EVERY_S):
                    hung_up = bool(await anext(signals))
                for context in contexts:
                    context.reload() if hung_up else context.reload_if_changed()

    async def _connect(self, context: ServiceContext) -> Any:
        """The brokers of another process, through Remoting; one connection per door, so that what each holds ends with it."""
        client = import_module("gantrymq.cluster.wire.dial")  # only when brokers are elsewhere
        return await client.connect(self._nameservers, context)

    async def shut(self, name: str) -> int:
        """See `restart.Doors`."""
        service = next(service for service in self._started if service.name == name)
        listeners = self._listeners.get(name, [])
        count = sum([listener.connections for listener in listeners])
        self._ports[name].close()  # first: it must not find the broker again for a door that is being stopped
        try:
            await self._stop_one(service, SHUT_S)
        except Exception as error:
            log.error("%s: failed while stopping: %s", name, reason_of(error))
            log.debug("%s: traceback", name, exc_info=True)
        self._started.remove(service)
        self._listeners.pop(name, None)
        self._release(name)
        self._reserved[name] = reserve(self._places.setdefault(name, [listener.address for listener in listeners]))
        return count

    async def reopen(self, name: str) -> None:
        """See `restart.Doors`."""
        service = find_service(name)
        try:
            await self._start_one(service)
        except Exception:
            if service in self._started:
                await self.shut(name)
            raise
        self._release(name)

    def _shut_reason(self, name: str) -> str:
        return "shut until its broker is back" if name in self._reserved else ""

    def _release(self, name: str) -> None:
        for held in self._reserved.pop(name, ()):
            held.close()

    def _spawn(self, function: Callable[..., Any], *arguments: Any) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(self._guard, function, arguments)

    async def _guard(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """A background task that fails leaves the process half alive: stop it, and say so, rather than limp on."""
        try:
            await function(*arguments)
        except Exception as error:
            name = getattr(function, "__qualname__", repr(function))
            log.critical("background task %s failed, stopping: %s", name, reason_of(error))
            log.debug("%s: traceback", name, exc_info=True)
            self._request_stop(EXIT_FAILED)

    def _refuse_ready_file(self, error: OSError) -> None:
        complain(f"--ready-file {self._plan.ready_file}: {error.strerror or error}")
        self._request_stop(EXIT_FAILED)

    def _announce_ready(self) -> None:
        trim()  # what loading has freed: 0.6 KiB for each of 100,000 AMQP queues, in 0.4 us each
        if self._plan.ready_file is not None:
            try:
                write_atomically(self._plan.ready_file, json.dumps(self._addresses, indent=2) + "\n")
            except OSError as error:
                self._refuse_ready_file(error)
                return
        self._health.phase = ""
        gc.freeze()  # what the start made stays for good: the collector need not look at it again
        gc.set_threshold(GC_YOUNG_MAX, GC_MIDDLE, GC_OLD)
        self._say("ready")
        if self._plan.server.log_format == "text":
            for line in first_steps(self._addresses, os.environ.get(TYPED_AS, "gantry"), self._plan.auth.enabled):
                self._say(line)
        notify(os.environ, TELL_READY)

    async def _stop_all(self) -> None:
        """In reverse order; what is left of the deadline is shared out, so that one slow door leaves time for the broker."""
        end_s = anyio.current_time() + self._plan.server.drain_ms / 1000
        left = len(self._started)
        for service in reversed(self._started):
            share_s = max((end_s - anyio.current_time()) / left, 0)
            left -= 1
            try:
                await self._stop_one(service, share_s)
            except Exception as error:
                log.error("%s: failed while stopping: %s", service.name, reason_of(error))
                log.debug("%s: traceback", service.name, exc_info=True)
                self._exit_code = max(self._exit_code, EXIT_FAILED)

    async def _stop_one(self, service: Service, share_s: float) -> None:
        listeners = self._listeners.get(service.name, [])
        for listener in listeners:
            listener.close()
            listener.shutdown_connections()
        try:
            with anyio.move_on_after(share_s):
                await service.drain(share_s)
                while any(listener.connections for listener in listeners):  # noqa: ASYNC110  # only while stopping
                    await anyio.sleep(POLL_S)
        finally:
            for listener in listeners:
                listener.abort_connections()
            await anyio.lowlevel.checkpoint()  # lets the transports tell the doors that they are closed
            await service.stop()
            close = getattr(self._ports.pop(service.name, None), "close", None)
            if close is not None:
                result = close()
                if inspect.isawaitable(result):
                    await result

    def _say(self, line: str) -> None:
        if self._plan.server.log_format == "json":  # whoever reads output and log together reads objects
            record = log.makeRecord(log.name, logging.INFO, "", 0, line, (), None)
            line = JsonFormatter().format(record)
        try:
            self._out.write(line + "\n")
            self._out.flush()
        except OSError:
            # Nobody reads our output any more: no reason to stop, nor for an error when the interpreter flushes it.
            if self._out is sys.stdout:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._out.fileno())
                os.close(nowhere)


def make_data_directory(path: Path) -> None:
    """Create it, or say why not. Raises `OSError` with one line for the user."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = (
            "is a file; name a directory, with --data or server.data"
            if isinstance(error, FileExistsError)
            else error.strerror
        )
        raise OSError(error.errno, f"data directory {path}: {what}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise OSError(13, f"data directory {path}: not writable")


def write_atomically(path: Path, text: str) -> None:
    """Readers see the whole new content or none."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def reachable(host: str) -> str:
    """An address of this machine for a bound one, which may be the wildcard."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Errors that reached the event loop: one line, the traceback at debug."""
    error = context.get("exception")
    log.error("event loop: %s: %s", context.get("message"), reason_of(error) if isinstance(error, Exception) else error)
    if error is not None:
        log.debug("traceback", exc_info=error)


def run(launch: Launch, out: TextIO | None = None) -> int:
    """A whole process's life; returns its exit code."""
    try:
        plan = make_plan(launch, os.environ)
    except ConfigError as error:
        for each in error.each:
            complain(str(each))
        return EXIT_USAGE
    except LoadError as error:
        complain(str(error))
        return EXIT_FAILED
    set_up_logging(plan.server.log_level, plan.server.log_format)

    async def serve() -> int:
        return await Server(plan, out or sys.stdout).run()

    code: int = anyio.run(serve, backend="asyncio", backend_options={"use_uvloop": True})
    return code
