"""Keeps the broker registered with every nameserver: at start, within a second of a topic change, every 30 s;
leaves at stop. Who changed a topic by a request is answered when they know of it.

One connection and one task per nameserver (asyncio; a few requests a minute). A nameserver that is away is
asked again with back-off and never holds up the broker or another nameserver.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.topics import PERM_INHERIT, PERM_READ, PERM_WRITE, TopicConfig, TopicTable
from gantrymq.model import names
from gantrymq.model.errors import GantryError
from gantrymq.net.places import join_address
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.headers import DataVersionHeader, RegisterBrokerHeader, UnregisterBrokerHeader, fields_of
from gantrymq.remoting.registration.nameserver_connection import ANSWER_S, NameserverConnection
from gantrymq.remoting.registration.topic_bodies import topic_body, topic_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.auth.members.key import ClusterKey
    from gantrymq.broker.config import BrokerConfig
    from gantrymq.broker.rocketmq.settings import Settings
    from gantrymq.net.tls.contexts import Outgoing
    from gantrymq.services import ServiceContext

log = logging.getLogger(__name__)

EVERY_S: Final = 30.0
"""RocketMQ's registerNameServerPeriod; a nameserver drops a broker after 120 s."""
SOON_S: Final = 0.2
"""At most one registration per this time: the first topic change is registered at once, those that follow it together."""
KNOWN_S: Final = 1.0
"""A request that changed a topic waits so long for the nameservers; one that hangs must not hold up who administers the others."""
WAITING_MAX: Final = 10_000
"""Such requests at once; what comes beyond is answered without waiting."""
FIRST_TRY_S: Final = 2.0
"""At start the broker waits so long for its nameservers before it goes on without."""
FOLLOW_S: Final = 5.0
"""How often the list of nameservers is looked at; a page that names them is asked every two minutes."""
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0

ANY_HOSTS: Final = frozenset({"", "0.0.0.0", "::"})


def advertised_address(configured: str, bound: tuple[str, int]) -> str:
    """`host:port` for clients: what is configured, else what is bound, else (bound to every address) the
    outgoing one."""
    host, port = bound
    if configured:
        host = configured
    elif host in ANY_HOSTS:
        host = outgoing_host()
        log.warning(
            "broker: bound to every address and broker.advertised_host is not set: clients are told %s; "
            "set broker.advertised_host if they cannot reach that", host,
        )  # fmt: skip
    return join_address(host, port)


def outgoing_host() -> str:
    """Address of the interface that leads out; nothing is sent. Loopback if there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1 (RFC 5737)
        except OSError:
            return "127.0.0.1"
        host: str = probe.getsockname()[0]
        return host


class NameserverLink(NameserverConnection):
    """One nameserver: connect, register, stay connected (the nameserver drops us when the connection
    closes)."""

    def __init__(
        self, address: str, key: ClusterKey | None = None, name: str = "", tls: Outgoing | None = None
    ) -> None:
        super().__init__(address, ANSWER_S, key, name, tls)
        self.registered = asyncio.Event()
        self.changed = asyncio.Event()
        self.hurry = asyncio.Event()
        """Somebody waits until this nameserver knows of a change."""
        self.version: int | None = None
        """Version of the topics that the nameserver has, as far as we know; only changes since then are sent."""
        self._warned = False

    def close(self) -> None:
        """See `NameserverConnection`."""
        super().close()
        self.version = None

    async def closed_or_changed(self, timeout_s: float) -> None:
        """Wait until it is time to register again: a change, a lost connection, or the period."""
        ended = asyncio.ensure_future(self.ended())
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self.changed.wait()), ended]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if not ended.cancelled():
            self.close()

    async def hurried(self, timeout_s: float) -> None:
        """Wait until somebody waits, but no longer than that."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.hurry.wait()
        except TimeoutError:
            return

    def failed(self, why: str) -> None:
        """Say so once per outage."""
        self.registered.clear()
        if not self._warned:
            self._warned = True
            why = why.removeprefix(self.address).lstrip(": ")
            log.warning("nameserver %s: registration failed: %s; trying again", self.address, why)

    def succeeded(self) -> None:
        """The nameserver knows us."""
        if self._warned or not self.registered.is_set():
            log.info("nameserver %s: registered", self.address)
        self._warned = False
        self.registered.set()


class Registrar:
    """All nameservers of one broker. `bound`: the address that the broker's door listens on; `key`: what it shows them first, if there is one."""

    def __init__(
        self,
        topics: TopicTable,
        settings: Settings,
        context: ServiceContext,
        bound: tuple[str, int],
        key: ClusterKey | None = None,
    ) -> None:
        self._topics = topics
        self._settings = settings
        self._config: BrokerConfig = context.config
        self._context = context
        self._key = key
        self.advertised = advertised_address(self._config.advertised_host, bound)
        self._started_ms = context.clock.now_ms()
        self.links: list[NameserverLink] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._keeping: dict[str, asyncio.Task[None]] = {}
        """By address: keeps the broker registered there."""
        self._body = b""
        self._body_version = -1
        self._waiting: dict[int, tuple[int, Callable[[], None], asyncio.TimerHandle]] = {}
        """Who waits until nameservers have a version of the topics: version, what to call, and when at the latest."""
        self._waits = 0

    async def start(self) -> None:
        """Register with every nameserver; returns when all know us, or after `FIRST_TRY_S`."""
        self._topics.watch(self.topics_changed)
        self._follow()
        self._tasks.append(asyncio.create_task(self._keep_following()))
        if self.links:
            try:
                async with asyncio.timeout(FIRST_TRY_S):
                    for link in self.links:
                        await link.registered.wait()
            except TimeoutError:
                missing = ", ".join(link.address for link in self.links if not link.registered.is_set())
                log.warning("broker: not registered yet with %s; it serves clients that know its address", missing)

    def _follow(self) -> None:
        """Links to the nameservers that are named now."""
        named = self._context.nameservers
        for link in [link for link in self.links if link.address not in named]:
            self.links.remove(link)
            self._keeping.pop(link.address).cancel()
            link.close()
        for address in named:
            if address not in self._keeping:
                tls = self._context.shared.get("cluster_tls")
                link = NameserverLink(address, self._key, f"broker {self._config.name}", tls)
                self.links.append(link)
                self._keeping[address] = asyncio.create_task(self._keep(link))

    async def _keep_following(self) -> None:
        while True:
            await asyncio.sleep(FOLLOW_S)
            self._follow()

    def topics_changed(self) -> None:
        """Nameservers will hear of it."""
        for link in self.links:
            link.changed.set()

    def when_known(self, done: Callable[[], None]) -> None:
        """Call `done` when every nameserver that we are registered with has the topics as they are now, or after `KNOWN_S`."""
        version = self._topics.version
        if self._all_have(version) or len(self._waiting) >= WAITING_MAX:
            done()
            return
        self._waits += 1
        timer = asyncio.get_running_loop().call_later(KNOWN_S, self._release, self._waits)
        self._waiting[self._waits] = (version, done, timer)
        for link in self.links:
            link.hurry.set()

    def _all_have(self, version: int) -> bool:
        known = [link.version for link in self.links if link.registered.is_set()]
        return all(had is not None and had >= version for had in known)

    def _release(self, number: int) -> None:
        _, done, timer = self._waiting.pop(number)
        timer.cancel()
        done()

    def _check(self) -> None:
        """After a registration that came about or failed."""
        for number, (version, _, _) in list(self._waiting.items()):
            if self._all_have(version):
                self._release(number)

    def _version(self) -> bodies.DataVersion:
        return bodies.DataVersion(0, self._started_ms, self._topics.version)

    def probe(self) -> Command:
        """Asks whether the nameserver has our topics as they are now; counts as a heartbeat and costs next to nothing."""
        config = self._config
        fields = fields_of(DataVersionHeader(self.advertised, config.cluster, config.name, config.id))
        return Command(RequestCode.QUERY_DATA_VERSION, fields, bodies.encode(self._version()))

    def command(self, since: int | None = None) -> Command:
        """The registration: all topics of this broker as they are now, or what changed since a version."""
        config = self._config
        host, _, port = self.advertised.rpartition(":")
        header = RegisterBrokerHeader(
            config.name, self.advertised, config.cluster, f"{host}:{int(port) + 1}", config.id, compressed=False
        )
        fields = fields_of(header)
        del fields["bodyCrc32"]
        names_changed = self._topics.changed_since(since) if since is not None else None
        if names_changed is not None:
            # Read by our own nameserver; RocketMQ's takes the topics of such a table, too, and forgets none.
            fields["gantrySince"] = str(since)
            return Command(RequestCode.REGISTER_BROKER, fields, self._changes(names_changed))
        # Read by our own nameserver: topics that are not in this table are gone.
        fields["gantryCompleteTable"] = "true"
        return Command(RequestCode.REGISTER_BROKER, fields, self._all_topics())

    def _changes(self, names_changed: list[str]) -> bytes:
        """Body of a registration with changes alone: as long as these are, however many topics there are."""
        topics, permission = self._topics.topics, self._settings.permission
        table = {}
        gone = []
        for name in names_changed:
            topic = topics.get(name)
            if topic is None or topic.system:
                gone.append(name)
            else:
                table[name] = topic_body(topic.config, permission)
        body = bodies.TopicConfigTable(table, self._version())
        return bodies.encode({"topicConfigSerializeWrapper": body, "filterServerList": [], "gantryGone": gone})

    def _all_topics(self) -> bytes:
        """Body of the whole registration, made once for all nameservers."""
        topics, permission = self._topics, self._settings.permission
        if self._body_version == topics.version:
            return self._body
        table = topic_table(topics, permission, self._started_ms)
        for name, config in topics.given.items():
            table.topic_config_table.setdefault(name, topic_body(config, permission))
        if self._settings.topics_config.auto_create:
            queues = self._settings.topics_config.default_queues
            # Clients that send to an unknown topic take this one's queues (RocketMQ: autoCreateTopicEnable).
            template = TopicConfig(names.AUTO_CREATE_TEMPLATE, queues, queues, PERM_READ | PERM_WRITE | PERM_INHERIT)
            table.topic_config_table[template.name] = topic_body(template, permission)
        self._body = bodies.encode(bodies.RegisterBody(table, []))
        self._body_version = topics.version
        return self._body

    async def _keep(self, link: NameserverLink) -> None:
        backoff_s = BACKOFF_FIRST_S
        now_s = asyncio.get_running_loop().time
        while True:
            # A new connection registers: the nameserver ties us to the connection that we came over.
            known = link.connected and link.registered.is_set() and not link.changed.is_set()
            link.changed.clear()
            link.hurry.clear()
            try:
                if known:
                    answer = await link.request(self.probe())
                    known = answer.code == ResponseCode.SUCCESS and answer.fields.get("changed") == "false"
                if not known:
                    answer = await self._register(link)
            except (GantryError, ValueError) as error:
                link.failed(str(error))
                self._check()
            else:
                if answer.code == ResponseCode.SUCCESS:
                    link.succeeded()
                    self._check()
                    if all(each.registered.is_set() for each in self.links):
                        self._body, self._body_version = b"", -1  # 200 bytes a topic
                    backoff_s = BACKOFF_FIRST_S
                    next_s = now_s() + SOON_S
                    await link.closed_or_changed(EVERY_S)
                    if link.changed.is_set() and now_s() < next_s:
                        await link.hurried(next_s - now_s())
                    continue
                link.failed(f"code {answer.code}: {answer.remark}")
                self._check()
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    async def _register(self, link: NameserverLink) -> Command:
        version = self._topics.version
        since = link.version if link.connected else None
        answer = await link.request(self.command(since))
        if answer.code == ResponseCode.SUCCESS and answer.fields.get("gantryUnknown") == "true":
            version = self._topics.version
            answer = await link.request(self.command())
        if answer.code == ResponseCode.SUCCESS:
            link.version = version
        return answer

    async def stop(self, deadline_s: float) -> None:
        """Leave the routes; a nameserver that does not answer within the deadline finds out by the closed
        connection."""
        self._topics.unwatch(self.topics_changed)
        for number in list(self._waiting):
            self._release(number)
        tasks = [*self._tasks, *self._keeping.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks = []
        self._keeping.clear()
        config = self._config
        fields = fields_of(UnregisterBrokerHeader(config.name, self.advertised, config.cluster, config.id))
        try:
            async with asyncio.timeout(min(deadline_s, ANSWER_S)):
                await asyncio.gather(
                    *(self._leave(link, Command(RequestCode.UNREGISTER_BROKER, dict(fields))) for link in self.links)
                )
        except TimeoutError:
            log.warning("broker: a nameserver did not answer while unregistering")
        finally:
            for link in self.links:
                link.close()

    async def _leave(self, link: NameserverLink, command: Command) -> None:
        if not link.registered.is_set():
            return
        try:
            await link.request(command)
        except GantryError as error:
            log.warning("nameserver: unregistering failed: %s", error)
