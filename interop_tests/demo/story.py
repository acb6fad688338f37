"""The demonstration from the first start to the last table."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from interop_tests.demo import plot, report
from interop_tests.demo.alerts import AlertBook, RejectedBook, due
from interop_tests.demo.consumers import AmqpQueue, Inbox, MqttSession, NativePull, Webhook
from interop_tests.demo.faces import Faces, show
from interop_tests.demo.ledger import Ledger
from interop_tests.demo.publishers import AmqpFlights, CloudEventPushes, MqttTelemetry
from interop_tests.demo.server import Server
from interop_tests.demo.sources import FLIGHTS_ORIGIN, Telemetry
from interop_tests.demo.spark_feed import START_S, SparkFeed

NAMES = {"mqtt": "MQTT", "amqp": "AMQP", "cloudevents": "CloudEvents"}
DATA_SETS = {
    "MQTT": "telemetry of this machine, read now: cpu, memory, disk, network (paho-mqtt, QoS 1)",
    "AMQP": f"{FLIGHTS_ORIGIN} (aiormq, publisher confirms)",
    "CloudEvents": "the history of this repository as push events (cloudevents + httpx: binary, structured, batches)",
}
MQTT_IN, AMQP_IN, WEBHOOK_IN, PULL_IN, SPARK_IN = "MQTT session", "AMQP queue", "webhook", "pull consumer", "Spark"

STALLED_S = 240.0
"""If nothing moves for so long, nothing will: neither a message acknowledged nor one received, at no consumer. Longer than a killed server may take
to be ready. How long it takes in all says how busy the machine is, not what is wrong."""
TICK_S = 0.1
PUBLISHING, KILLING = "publishing", "kill -9"


class DemoError(Exception):
    """The demonstration cannot go on; the text says why."""


@dataclass(frozen=True, slots=True)
class Options:
    """`out`: folder of the picture."""

    seconds: float
    spark: bool
    keep: bool
    out: Path
    root: Path


@dataclass
class Story:
    """One run in an empty directory. `end` may be called at any time and leaves no process."""

    options: Options
    console: Console
    directory: Path
    problems: list[str] = field(default_factory=list)
    faces: Faces = field(default_factory=Faces)
    alerts: AlertBook = field(default_factory=AlertBook)
    rejected: RejectedBook = field(default_factory=RejectedBook)
    outage: plot.Outage | None = None
    begun: float = 0.0

    def __post_init__(self) -> None:
        self.consumers = [MQTT_IN, AMQP_IN, WEBHOOK_IN, PULL_IN, *([SPARK_IN] if self.options.spark else [])]
        self.ledger = Ledger(NAMES, self.consumers)
        self.server = Server(self.directory)
        self.telemetry = Telemetry()
        host = re.sub(r"[^A-Za-z0-9_-]+", "-", platform.node()) or "machine"
        self.mqtt = MqttTelemetry(self.ledger, self.telemetry, host)
        self.amqp = AmqpFlights(self.ledger)
        self.pushes = CloudEventPushes(self.ledger, self.options.root)
        self.queue = AmqpQueue(self._inbox(AMQP_IN))
        self.session = MqttSession(self._inbox(MQTT_IN), self.alerts.receive, self.rejected.receive)
        self.webhook = Webhook(self._inbox(WEBHOOK_IN))
        self.pull = NativePull(self._inbox(PULL_IN))
        self.spark: SparkFeed | None = None
        if self.options.spark:
            self.spark = SparkFeed(
                SPARK_IN, self.ledger, self.faces, self.problems, self.options.root, self.directory / "spark"
            )
        self.faces.wanted = {
            "mqtt-0": "Published over MQTT",
            "amqp-0": "Published over AMQP",
            "push-0": "Published as a CloudEvent",
        }

    def _inbox(self, name: str) -> Inbox:
        return Inbox(name, self.ledger, self.faces, self.problems)

    async def run(self) -> list[str]:
        """Everything; returns what is wrong, one line each."""
        begun = time.monotonic()
        await self._open()
        await self._introduce()
        await self._traffic()
        await self._close()
        problems = self._results()
        self.console.print(f"\n{time.monotonic() - begun:.0f} s in all.", highlight=False)
        return problems

    async def _open(self) -> None:
        say = self.console.print
        say("[bold]GantryMQ[/bold]: one log, every door, on real input\n", highlight=False)
        grid = Table.grid(padding=(0, 2))
        for door, text in DATA_SETS.items():
            grid.add_row(Text(f"  {door}", "cyan"), text)
        say(grid)
        took_s = await self.server.start()
        self.telemetry.server_pid = self.server.pid
        where = "  ".join(f"{name} {address.rpartition(':')[2]}" for name, address in self.server.doors.items())
        say(f"\ngantry up is ready after {took_s:.1f} s on 127.0.0.1: {where}", highlight=False)
        # The queue's exchanges bring the topics into being, for those who only read.
        await self.queue.start(self.server.address("amqp"))
        await self.session.start(self.server.address("mqtt"))
        await self.webhook.start(self.server.address("cloudevents"))
        await self.pull.start(self.server.address("nameserver"))
        if self.spark is not None:
            await self.spark.start(self.server.address("nameserver"))
        await self.mqtt.start(self.server.address("mqtt"))
        await self.amqp.start(self.server.address("amqp"))
        await self.pushes.start(self.server.address("cloudevents"))
        self._check()

    async def _introduce(self) -> None:
        """One message through each door, and what became of it."""
        await self._attend(self._first(), "first messages")
        if self.spark is not None:
            with self.console.status("Spark is starting"):
                if not await self._until(self.spark.started, START_S):
                    raise DemoError(f"Spark did not start within {START_S:.0f} s:\n{self.spark.log_end()}")
        shown = await self._until(lambda: not self.faces.missing(self.consumers), STALLED_S)
        show(self.console, self.faces, self.consumers)
        if not shown:
            raise DemoError(f"not seen within {STALLED_S:.0f} s: {', '.join(self.faces.missing(self.consumers))}")

    async def _first(self) -> None:
        for publisher in (self.mqtt, self.amqp, self.pushes):
            await publisher.first()

    async def _traffic(self) -> None:
        progress = report.Progress(self.ledger, NAMES, self.alerts)
        self.console.print()
        with report.Screen(self.console, progress) as screen:
            self.begun = time.time()
            begun = time.monotonic()
            progress.state = PUBLISHING

            def turn() -> None:
                progress.share = min(1.0, (time.monotonic() - begun) / self.options.seconds)
                if progress.share >= 1.0 and progress.state == PUBLISHING:
                    progress.state = "waiting for the last acknowledgements"
                screen.tick()

            await self._attend(self._publish_and_kill(progress, screen), "traffic", turn)
            progress.state = "waiting for the last deliveries"
            await self._until(self._converged, STALLED_S, screen.tick)
            progress.state = "done"

    async def _publish_and_kill(self, progress: report.Progress, screen: report.Screen) -> None:
        async with asyncio.TaskGroup() as group:
            for publisher in (self.mqtt, self.amqp, self.pushes):
                group.create_task(publisher.run(self.options.seconds))
            group.create_task(self._kill_halfway(progress, screen))

    async def _kill_halfway(self, progress: report.Progress, screen: report.Screen) -> None:
        await asyncio.sleep(self.options.seconds / 2)
        killed_at = time.time()
        progress.state = KILLING
        self.telemetry.server_pid = 0
        await self.server.kill()
        open_count = self.ledger.unacknowledged()
        await self.server.start()
        self.telemetry.server_pid = self.server.pid
        self.outage = plot.Outage(killed_at, time.time())
        down_s = self.outage.ready_at - killed_at
        screen.say(
            f"[red]kill -9[/red] after {killed_at - self.begun:.1f} s with {open_count} messages unacknowledged;"
            f" doors open again after {down_s:.1f} s, same directory, same ports"
        )
        progress.state = PUBLISHING

    def _converged(self) -> bool:
        published = self.mqtt.published
        written = self.spark is None or not (self.alerts.missing(due(published)) or self.rejected.missing(published))
        return written and not self.ledger.lagging()

    async def _attend(self, work: Coroutine[Any, Any, None], what: str, turn: Callable[[], None] | None = None) -> None:
        """Do it, and look meanwhile whether going on makes sense."""
        task = asyncio.create_task(work)
        try:
            if not await self._until(task.done, STALLED_S, turn):
                open_count = self.ledger.unacknowledged()
                raise DemoError(f"{what}: nothing came for {STALLED_S:.0f} s, {open_count} messages are unacknowledged")
            self._check()  # an error of the work itself may only follow from what this finds
            await task
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _until(self, done: Callable[[], bool], stalled_s: float, turn: Callable[[], None] | None = None) -> bool:
        """Wait for a condition; False if nothing at all has moved for `stalled_s`."""
        moved, end = -1, 0.0
        while not done():
            self._check()
            count = self.ledger.moved() + len(self.alerts.counts) + len(self.rejected.counts)
            if count != moved:
                moved, end = count, time.monotonic() + stalled_s
            elif time.monotonic() > end:
                return False
            if turn is not None:
                turn()
            await asyncio.sleep(TICK_S)
        return True

    def _check(self) -> None:
        """Raise if waiting on is pointless."""
        if self.problems:
            raise DemoError("; ".join(self.problems))
        if self.server.died():
            raise DemoError(f"the server has ended by itself:\n{self.server.log_end()}")
        if self.spark is not None and self.spark.died():
            raise DemoError(f"the Spark job has ended:\n{self.spark.log_end()}")

    async def _close(self) -> None:
        with self.console.status("stopping"):
            if self.spark is not None:
                await self.spark.stop()
            for part in (self.mqtt, self.amqp, self.pushes, self.session, self.queue, self.webhook, self.pull):
                await part.stop()
            await self.server.stop()

    def _results(self) -> list[str]:
        down_s = self.outage.ready_at - self.outage.killed_at if self.outage is not None else 0.0
        report.show_results(self.console, self.ledger, NAMES, down_s)
        problems = [*self.problems, *self.ledger.problems()]
        if self.outage is None:
            problems.append("the server was not killed")
        if self.spark is not None:
            report.show_alerts(self.console, self.alerts, self.mqtt.published)
            report.show_rejected(self.console, self.rejected)
            problems += self.alerts.problems(self.mqtt.published) + self.rejected.problems(self.mqtt.published)
        total = sum(len(book.acknowledged) for book in self.ledger.doors.values())
        title = (
            f"GantryMQ: {total:,} messages, three protocols, {len(self.consumers)} consumers, the server killed once: "
        )
        title += "something is wrong" if problems else "all received"
        path = self.options.out / "gantry-demo.png"
        batches = self.spark.batches() if self.spark is not None else []
        plot.draw(path, plot.picture(self.ledger, NAMES, self.begun, self.outage, title, batches))
        self.console.print(f"\nPicture: {path}", highlight=False, soft_wrap=True)
        return problems

    async def kill(self) -> None:
        """`end` while the event loop still runs."""
        await self.pull.stop()
        self.server.end()
        if self.spark is not None:
            await self.spark.kill()

    def end(self) -> None:
        self.server.end()
        if self.spark is not None:
            self.spark.end()


def check_out(out: Path) -> None:
    """Make the picture's folder; raises DemoError or OSError if nothing can be written there."""
    out.mkdir(parents=True, exist_ok=True)
    if not os.access(out, os.W_OK):
        raise DemoError(f"{out} cannot be written to: choose another folder with --out")
