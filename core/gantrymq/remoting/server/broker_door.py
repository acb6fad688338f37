"""The broker's Remoting door (port 10911): sends as one batch per read, everything else by handler tables.

The hot path: one `received` -> all its sends -> one `Broker.submit` -> one callback -> their answers in the
outbox. Handlers: pulls.py, offsets.py, admin.py, clients/requests.py.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from gantrymq.administration.administration import Administration
from gantrymq.administration.groups import Groups
from gantrymq.administration.reading import Reading
from gantrymq.auth.tokens.ending import Ending
from gantrymq.model import sysflag
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import LOOPBACK_HOST, Message
from gantrymq.net.api import Door, Link
from gantrymq.net.held.outbound import LARGE_BYTES, Pieces, gathered
from gantrymq.remoting.codec import Command, FrameError, SendResponses, header_of, response
from gantrymq.remoting.constants import FLAG_ONEWAY, FLAG_RESPONSE, REGION, RequestCode, ResponseCode
from gantrymq.remoting.dispatch import Handler, K, Row, S, rows
from gantrymq.remoting.door import RemotingDoor, code_name, code_of
from gantrymq.remoting.gateway_codes import FIRST_CODE, LAST_CODE
from gantrymq.remoting.headers import HeaderError, SendHeaderV2, parse, parse_send
from gantrymq.remoting.registration.route_finder import RouteFinder
from gantrymq.remoting.server.admin import accounts as account_requests
from gantrymq.remoting.server.admin import audit as audit_requests
from gantrymq.remoting.server.admin import requests as admin_requests
from gantrymq.remoting.server.admin.accounts import Accounts
from gantrymq.remoting.server.admin.audit import Trail
from gantrymq.remoting.server.clients import requests as client_requests
from gantrymq.remoting.server.clients.calls import CALL_MS, Calls, OnAnswer
from gantrymq.remoting.server.clients.locks import QueueLocks
from gantrymq.remoting.server.clients.registry import Clients
from gantrymq.remoting.server.clients.requests import ClientServices
from gantrymq.remoting.server.guard import Guard
from gantrymq.remoting.server.identity import Identity
from gantrymq.remoting.server.jobs import Jobs
from gantrymq.remoting.server.overview import requests as overview_requests
from gantrymq.remoting.server.pop import modes as mode_requests
from gantrymq.remoting.server.pop import requests as pop_requests
from gantrymq.remoting.server.pop.answers import PopServices
from gantrymq.remoting.server.pop.modes import ModeServices
from gantrymq.remoting.server.pop.requests import PopRequests
from gantrymq.remoting.server.pressure import NEVER_SHED, SEND_BYTES, UNACKED_BYTES_MAX, Pressure
from gantrymq.remoting.server.pulling import offsets as offset_requests
from gantrymq.remoting.server.pulling import pulls
from gantrymq.remoting.server.pulling.offsets import QueueServices
from gantrymq.remoting.server.pulling.pulls import Pulls, PullServices, Waiter
from gantrymq.remoting.server.reads import Read, T, Waits
from gantrymq.remoting.server.reply import GatewaySession, OpenSession
from gantrymq.remoting.server.sending import batches as batch_requests
from gantrymq.remoting.server.sending import recalls as recall_requests
from gantrymq.remoting.server.sending import replies as reply_requests
from gantrymq.remoting.server.sending import retries as retry_requests
from gantrymq.remoting.server.sending import rows as row_requests
from gantrymq.remoting.server.sending import transactions as transaction_requests
from gantrymq.remoting.server.sending.batches import Batches, send_batch
from gantrymq.remoting.server.sending.recalls import Recalls, submit_redirected
from gantrymq.remoting.server.sending.replies import Replies, Requesters
from gantrymq.remoting.server.sending.retries import Returns
from gantrymq.remoting.server.sending.sends import Sends, SendServices, UniqueKeys, remark_of
from gantrymq.remoting.server.sending.transactions import ProducerClients, TransactionServices
from gantrymq.remoting.server.tools import Tools
from gantrymq.store.cold import Cold

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gantrymq.auth.authority import Authority
    from gantrymq.auth.members.key import ClusterKey
    from gantrymq.broker.broker import Broker
    from gantrymq.services import ServiceContext

log = logging.getLogger(__name__)

PULLED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Pulled records on the way to one peer, in the outbox and in the transport; beyond it its pulls wait."""

DEFERRED_MAX: Final = 4096
"""Pulls that wait until their peer takes the answers to earlier ones; beyond it they are answered
SYSTEM_BUSY."""

CODE = RequestCode
_SEND_V2: Final = int(CODE.SEND_MESSAGE_V2)


def host_bytes(address: str) -> bytes:
    """Address and port of `host:port` as a record stores them: 4 or 16 bytes and 4 for the port; a name
    counts as loopback."""
    host, _, port = address.rpartition(":")
    try:
        parsed = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return LOOPBACK_HOST[:4] + (int(port) if port.isdigit() else 0).to_bytes(4, "big")
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).packed + int(port).to_bytes(4, "big")


STRANGER_BYTES: Final = 4096
"""Of an unfinished frame, before it is looked at whose it may be."""

COLD_MAX: Final = 1024
"""Requests of one connection that wait for the disk: a consumer pulls each of its queues once at a time."""


class BrokerServer:
    """What all connections to one broker share; `accept` is the listener's factory."""

    def __init__(
        self,
        broker: Broker,
        context: ServiceContext,
        open_session: OpenSession,
        authority: Authority | None = None,
        cluster_key: ClusterKey | None = None,
    ) -> None:
        """`authority`: who knows the users; None without authentication. `cluster_key`: what gateways show; None: they are known by address."""
        self.broker = broker
        self.open_session = open_session
        self.wheel = context.wheel
        self.turn = context.turn
        self.cluster_key = cluster_key
        self.cluster_certificates: frozenset[str] = context.shared.get("cluster_certificates", frozenset())
        self.identity = Identity(broker.clock.now_ms())
        self.routes = RouteFinder(lambda: self.identity.nameservers, context.shared.get("cluster_tls"))
        self.clients = Clients()
        self.groups = Groups(broker.topics, broker.tables, broker.clock, broker.put, broker.delete_group)
        self.locks = QueueLocks()
        self.reading = Reading(broker)
        self.administration = Administration(broker, self.groups, self.reading, self.clients)
        self.jobs = Jobs(broker.fetch, context.turn.in_slices)
        self.pressure = Pressure()
        self.responses = SendResponses(LOOPBACK_HOST, REGION)
        waits = Waits(broker.wheel, broker.turn, broker.fetch)
        of_pulls = PullServices(
            broker.topics, broker.commits, broker.stats, self.reading, broker.config.waiting_pulls_max
        )
        self.pulls = Pulls(of_pulls, self.clients, waits)
        of_pops = PopServices(broker.config.name, broker.topics.topics, broker.pops, broker.stats, self.reading)
        self.pops = PopRequests(of_pops, self.groups, broker.clock, waits)
        of_sends = SendServices(
            broker.config.cluster, broker.topics, broker.tables, broker.store, broker.settings, broker.ensure_topic,
            broker.clock,
        )  # fmt: skip
        self.sends = Sends(of_sends, LOOPBACK_HOST, self.groups, self._in_order)
        in_slices, batch_max = context.turn.in_slices, broker.config.batch_messages_max
        self.batches = Batches(self.sends, self.responses, batch_max, broker.submit, broker.submit_with, in_slices)
        self.recalls = Recalls(broker.topics, broker.delays, broker.clock, broker.config.name, self.responses)
        broker.transactions.checks.producers = ProducerClients(self.clients, self.responses, broker.config.name)
        self.authority = authority
        self.guarded: set[BrokerConnection] = set()
        """Connections that are asked for their rights."""
        if self.authority is not None:
            self.authority.watch(self._rights_changed)
        self.table = self._all_rows()

    def _all_rows(self) -> dict[int, Row]:
        """Every request code that is answered here."""
        broker, clients, groups, clock = self.broker, self.clients, self.groups, self.broker.clock
        keyed = self.cluster_key is not None or bool(self.cluster_certificates)
        requesters = Requesters(clients)
        store_replies = broker.config.store_replies
        replies = Replies(broker.topics, requesters, clock, self.identity, self.responses, store_replies)
        modes = ModeServices(broker.topics, broker.tables, groups, clients, self.routes, broker.config.name, broker.put)
        tools = self._tools()
        return {
            **_rows(SENDS, None),
            **_rows(batch_requests.HANDLERS, self.batches),
            **_rows(row_requests.HANDLERS, self.batches),
            **_rows(recall_requests.HANDLERS, self.recalls),
            **_rows(reply_requests.HANDLERS, replies),
            **_rows(retry_requests.HANDLERS, Returns(groups, self.sends, broker.stats.sent_back)),
            **_rows(
                transaction_requests.HANDLERS, TransactionServices(broker.transactions, clients, clock, broker.submit)
            ),
            **_rows(pulls.HANDLERS, self.pulls),
            **_rows(offset_requests.HANDLERS, QueueServices(broker.topics, self.reading, broker.commits.commit)),
            **_rows(client_requests.HANDLERS, ClientServices(clients, groups, self.locks, clock, self.wheel)),
            **_rows(pop_requests.HANDLERS, self.pops),
            **_rows(mode_requests.HANDLERS, modes),
            **_rows(admin_requests.HANDLERS, tools),
            **_rows(overview_requests.HANDLERS, tools),
            **_rows(account_requests.HANDLERS, Accounts(self.authority, broker.put, clock.now_ms)),
            **_rows(audit_requests.HANDLERS, Trail(self.authority, self.reading, self.jobs, self.identity, keyed)),
        }

    def _tools(self) -> Tools:
        broker, administration = self.broker, self.administration
        return Tools(
            administration.topics, administration.groups, administration.offsets, administration.figures,
            administration.damage, administration.overview, self.clients, self.jobs, self.identity, self.pulls,
            self.reading, broker.config.name, broker.config.cluster, broker.clock, broker.settings, broker.stats,
            broker.store, broker.tables, broker.offsets,
        )  # fmt: skip

    def set_address(self, address: str) -> None:
        """The `host:port` under which clients know the broker: it stands in message ids and records."""
        self.identity.address = address
        name, _, port = address.rpartition(":")
        if not name.startswith("["):
            try:
                # IPv4 where a name has both: the ids of all Java clients before 5.0 have 32 digits.
                found = {family: place[0] for family, _, _, _, place in socket.getaddrinfo(name, None)}
                address = f"{found.get(socket.AF_INET) or found[socket.AF_INET6]}:{port}"
            except (OSError, KeyError):
                log.warning("broker: %s cannot be resolved; message ids name 127.0.0.1 instead", name)
        host = host_bytes(address)
        self.broker.store.set_store_host(host)
        self.sends.unique = UniqueKeys(self.broker.clock, host)
        self.responses.set_host(host)

    def _in_order(self, group: str) -> bool:
        """Some client of the group holds a queue: it consumes in order."""
        return self.locks.any_held(group, self.wheel.now_ms())

    def _rights_changed(self) -> None:
        for connection in list(self.guarded):
            connection.rights_changed()

    def accept(self) -> Door:
        """A door for a new connection."""
        return BrokerConnection(self)


class BrokerConnection(RemotingDoor):
    """One connection of a client."""

    def __init__(self, shared: BrokerServer) -> None:
        typed = shared.authority is None  # a signature is over all fields
        super().__init__(shared.wheel, shared.table, typed, shared.cluster_key, shared.cluster_certificates)
        self.shared = shared
        self.outbox = self.connection.outbox
        self.waiters: set[Waiter] = set()
        self.deferred: deque[Command] = deque()
        self.pull_bytes = 0
        """Bytes of pulled records in the outbox."""
        self.client_ids: set[str] = set()
        self.language = self.version = self.beat_ms = 0
        self._born_host = LOOPBACK_HOST
        self._host_flag = 0
        self._open_sends = 0
        self._read_bytes = 0
        """Bytes read since the last batch of sends."""
        self._unacked_bytes = 0
        """Frames of sends that wait for the disk."""
        self._calls: Calls | None = None
        self._replies: Calls | None = None
        """Replies that were pushed to this client."""
        self._cold = 0
        """Requests that wait for the disk."""
        self._closing = False
        self._gateway: GatewaySession | None = None
        self._guard: Guard | None = None
        """Without authentication none."""

    def connected(self, link: Link) -> None:
        """See `net.api.Door`."""
        super().connected(link)
        if self.shared.authority is not None:
            self._guard = Guard(self.shared.authority, link, self.stranger)
            self._guard.ending = Ending(self.shared.wheel, self.rights_changed)
            self.shared.guarded.add(self)
        self._born_host = host_bytes(link.peer)
        self._host_flag = 0 if len(self._born_host) == len(LOOPBACK_HOST) else sysflag.BORN_HOST_V6

    def received(self, data: bytes) -> None:
        """All sends of one read become one batch of the log."""
        self._active = True
        connection = self.connection
        shared = self.shared
        self._read_bytes += len(data)
        make = shared.sends.message
        host, host_flag = self._born_host, self._host_flag
        batch: list[Message] = []
        commands: list[Command] = []
        guard = self._guard
        received = connection.receive_data(data)
        self.link.spent(len(received))
        for command in received:
            if guard is not None and not self._passes(guard, command):
                continue
            send = command.header
            if not isinstance(send, SendHeaderV2) or command.code != _SEND_V2 or command.flag & 1:
                self.handle(command)
                continue
            try:
                batch.append(make(send, command.body, host, host_flag))
            except GantryError as error:
                self.refuse(command, code_of(error.code), error.text)
                continue
            commands.append(command)
        if shared.sends.redirected:
            shared.sends.redirected = False
            submit_redirected(self, shared.recalls, batch, commands)
        if batch:
            size, self._read_bytes = self._read_bytes, 0
            if self._unacked_bytes > UNACKED_BYTES_MAX:
                self._refuse_sends(commands)
            else:
                self._open_sends += 1
                size += SEND_BYTES * len(batch)
                self._unacked_bytes += size
                shared.broker.submit(batch, (batch, commands, size), self._stored, self)
        else:
            self._read_bytes = connection.pending_bytes
        if guard is not None and not guard.is_known and connection.reader.pending_bytes > STRANGER_BYTES:
            self._ask_for_room(guard)
        if connection.error:
            self.broken()
        if connection.outbox:
            self.link.mark()

    def _ask_for_room(self, guard: Guard) -> None:
        """Nobody is known yet, and a large frame has begun."""
        try:
            begun = self.connection.reader.begun()
        except FrameError:
            return  # said when the frame is whole, or never
        if begun is not None:
            guard.ask_for_room(*begun)

    def _passes(self, guard: Guard, command: Command) -> bool:
        """Whether whoever sent it may; a refusal is answered. A send gets the header that makes it one of a batch."""
        if command.flag & FLAG_RESPONSE:
            return True
        refusal = guard.refusal(command)
        if refusal:
            log.info("%s: %s: refused: %s", self.link.peer, code_name(command.code), refusal)
            self.refuse(command, ResponseCode.NO_PERMISSION, refusal)
            return False
        if command.code == _SEND_V2:
            try:
                command.header = parse(command.fields, SendHeaderV2)
            except HeaderError:
                pass  # whoever handles it alone says what is wrong
        return True

    def check(self, command: Command, actions: str, topic: str) -> None:
        """See `Reply`."""
        if self._guard is not None and (why := self._guard.missing(command, actions, topic)):
            log.info("%s: %s: refused: %s", self.link.peer, code_name(command.code), why)
            raise GantryError(ErrorCode.NO_PERMISSION, why)

    def rights_changed(self) -> None:
        """Users or policies are others now. A connection with a poll for what is not its user's any more is closed: it may come again, and hears
        why at its next request."""
        guard = self._guard
        if guard is None or not self.open:
            return
        polls = self.shared.pops.polls.commands_of(self)
        lost = any(not guard.may_read(waiter.topic.name, waiter.group) for waiter in self.waiters)
        if lost or any(guard.refusal(command) for command in polls) or guard.is_gone():
            log.info("%s: closed: its user lost a right", self.link.peer)
            self.shared.pulls.drop(self)  # the same turn may store what they wait for
            self.shared.pops.polls.drop(self)
            self.link.close()

    def _refuse_sends(self, commands: Sequence[Command]) -> None:
        self.shared.pressure.connection_sends += len(commands)
        text = f"[OVERLOAD] {self._unacked_bytes} bytes of this connection's sends wait for the disk; send again later"
        for command in commands:
            self.refuse(command, ResponseCode.SYSTEM_BUSY, text)

    def _stored(self, token: tuple[list[Message], list[Command], int], results: Any) -> None:
        """The broker is done with a batch of sends: render their answers."""
        batch, commands, size = token
        self._open_sends -= 1
        self._unacked_bytes -= size
        if not self.open:
            return
        outbox = self.connection.outbox
        template, prefixes = self.shared.responses.template, self.shared.responses.prefixes
        if isinstance(results, GantryError):
            results = [results.code] * len(batch)
        for message, command, result in zip(batch, commands, results, strict=True):
            if command.flag & FLAG_ONEWAY:
                continue
            if type(result) is int:
                # SendResponses.frame, without a call per message.
                header = template % (message.physical_offset, message.queue_id, result, command.opaque)
                outbox.append(prefixes[len(header)] + header)
            else:
                outbox.append(response(command, code_of(result), remark_of(result, message)))
        self.link.mark()
        if self._closing:
            self.shutdown()

    # Sends that are not on the hot path.

    def send(self, command: Command) -> None:
        """SEND_MESSAGE, and SEND_MESSAGE_V2 with a binary or unusual header."""
        if command.code == CODE.SEND_MESSAGE:
            header = parse_send(command.fields)
            if header.batch == "true":
                send_batch(command, self, self.shared.batches)
                return
        else:
            header = header_of(command, SendHeaderV2)
        message = self.message(header, command.body)
        if self._unacked_bytes > UNACKED_BYTES_MAX:
            self._refuse_sends([command])
            return
        if message.kind:
            self.shared.sends.redirected = False
            submit_redirected(self, self.shared.recalls, [message], [command])
            return
        self._open_sends += 1
        size = len(command.body) + SEND_BYTES
        self._unacked_bytes += size
        self.shared.broker.submit([message], ([message], [command], size), self._stored, self)

    @property
    def born_host(self) -> bytes:
        """The peer's address, as a record has it."""
        return self._born_host

    def message(self, header: SendHeaderV2, body: bytes) -> Message:
        """The message of a send that came over this connection. Raises GantryError for what is refused."""
        return self.shared.sends.message(header, body, self._born_host, self._host_flag)

    # Batches (sending/batches.py).

    @property
    def host_flag(self) -> int:
        """Bit of sysFlag for the width of `born_host`."""
        return self._host_flag

    def refuses(self, command: Command) -> bool:
        """Too much of this connection waits for the disk: the send is answered so."""
        if self._unacked_bytes <= UNACKED_BYTES_MAX:
            return False
        self._refuse_sends([command])
        return True

    def batch_begins(self, size: int) -> None:
        """A frame of so many bytes is being worked on, or waits for the disk."""
        self._open_sends += 1
        self._unacked_bytes += size

    def batch_ended(self, size: int) -> None:
        """It is answered now."""
        self._open_sends -= 1
        self._unacked_bytes -= size

    def close_if_over(self) -> None:
        """At a stop: what was on its way is answered."""
        if self._closing:
            self.shutdown()

    def submit(self, batch: list[Message], answer: Callable[[Any], None]) -> None:
        """See `SendReply`."""
        self._open_sends += 1
        self.shared.broker.submit(batch, answer, self._submitted, self)

    def _submitted(self, answer: Callable[[Any], None], results: Any) -> None:
        self._open_sends -= 1
        if not self.open:
            return
        answer(results)
        self.link.mark()
        if self._closing:
            self.shutdown()

    # Flow.

    @property
    def peer(self) -> str:
        """Address and port of the other side."""
        return self.link.peer

    def mark(self) -> None:
        """Something is in the outbox."""
        self.link.mark()

    def defer(self, command: Command) -> None:
        """Handle the request again when there is room."""
        self.deferred.append(command)

    def full(self) -> bool:
        """So much is on its way to the peer that pulls have to wait."""
        return self.pull_bytes + self.link.outbound_bytes() > PULLED_BYTES_MAX

    def data_to_send(self) -> Pieces:
        """See `net.api.Door`. Pulls that had no room go on in the next turn. Large records are not copied: other readers may have them, too."""
        pulled, self.pull_bytes = self.pull_bytes, 0
        if self.deferred:
            self.shared.turn.at_deliver(self.serve_deferred)
        if pulled < LARGE_BYTES:
            return self.connection.data_to_send()
        pieces = gathered(self.connection.outbox)
        self.connection.outbox.clear()
        return pieces

    def serve_deferred(self) -> None:
        """Answer pulls that had to wait for room."""
        while self.deferred and self.open and not self.full():
            self.handle(self.deferred.popleft())
        if self.connection.outbox:
            self.link.mark()

    def writable(self) -> None:
        """See `net.api.Door`."""
        super().writable()
        self.serve_deferred()

    def handle(self, command: Command) -> None:
        """See `RemotingDoor`; typed sends that are no batch come from deferred or odd requests."""
        if command.flag & FLAG_RESPONSE:
            for calls in (self._calls, self._replies):
                if calls is not None and calls.answered(command):
                    break
            return
        if FIRST_CODE <= command.code <= LAST_CODE and self.is_member():
            self._gateway_request(command)
            return
        if len(self.deferred) > DEFERRED_MAX and command.code not in NEVER_SHED:
            self.shared.pressure.pulls += 1
            self.refuse(command, ResponseCode.SYSTEM_BUSY, f"{DEFERRED_MAX} pulls wait for the peer to read")
            return
        super().handle(command)

    def met(self, name: str, why: str) -> None:
        """See `RemotingDoor`."""
        if self._guard is not None:
            self._guard.met(name, why)

    def run(self, command: Command, handler: Handler[Any, Any], services: Any) -> None:
        """See `RemotingDoor`."""
        try:
            super().run(command, handler, services)
        except Cold:  # a defect: what was done so far must not be done again
            log.exception("%s: %s: reads records outside of its reading part", self.link.peer, code_name(command.code))
            self.refuse(command, ResponseCode.SYSTEM_ERROR, "the broker cannot read what was asked for in this way")
        except OSError as error:  # one record that the disk cannot read must not end the connection
            log.error("%s: %s: %s", self.link.peer, code_name(command.code), error)
            text = f"the broker's disk cannot read what was asked for: {error}"
            self.refuse(command, ResponseCode.SYSTEM_ERROR, text)

    def read(self, command: Command, find: Callable[[Reading], T], apply: Callable[[T], None]) -> None:
        """`apply(find(reading))`, now or when the disk has what `find` reads; see reads.py. For handlers."""
        try:
            found = find(self.shared.reading)
        except Cold as cold:
            self._wait_for(cold, Read(command, find, apply))
            return
        apply(found)

    def _wait_for(self, cold: Cold, read: Read[Any]) -> None:
        if self._cold >= COLD_MAX:
            text = f"{COLD_MAX} requests of this connection wait for the disk"
            self.refuse(read.command, ResponseCode.SYSTEM_BUSY, text)
            return
        self._cold += 1
        try:
            self.shared.broker.store.fetch(cold, read, self._data_is_here)
        except GantryError as error:
            self._cold -= 1
            self.refuse(read.command, ResponseCode.SYSTEM_BUSY, error.text)

    def _data_is_here(self, read: Read[Any]) -> None:
        self._cold -= 1
        if self.open:
            self.run(read.command, _read_again, read)
            if self.connection.outbox:
                self.link.mark()

    def read_again(self, read: Read[Any]) -> None:
        """The data that a request waited for is in memory."""
        try:
            found = read.find(self.shared.reading)
        except Cold as cold:
            self._wait_for(cold, read)
            return
        read.apply(found)

    def busy(self) -> bool:
        """See `RemotingDoor`."""
        own = self.waiters or self.deferred or self._open_sends or self._cold or self.shared.pops.polls.waits(self)
        return bool(own) or super().busy()

    def _gateway_request(self, command: Command) -> None:
        """A gateway process on the other side: its calls go to a session of its own."""
        if self._gateway is None:
            self._gateway = self.shared.open_session(self.link.peer, self._send_frame, self.link.abort, self._begun)
        self._gateway.handle(command)

    def _begun(self) -> int:
        return self.connection.reader.pending_bytes

    def _send_frame(self, frame: bytes) -> None:
        self.connection.outbox.append(frame)
        self.link.mark()

    # Clients.

    def consumers_changed(self, group: str) -> None:
        """See `clients.Member`: the client balances its queues anew."""
        self.push(CODE.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})

    def push(self, code: int, fields: dict[str, str], body: bytes = b"") -> bool:
        """A one-way request to the client; False if it is gone, or takes nothing any more."""
        if not self.open or self.full():
            return False
        self.connection.notify(code, fields, body)
        self.link.mark()
        return True

    def call(
        self, code: int, fields: dict[str, str], body: bytes, on_answer: OnAnswer, timeout_ms: int = CALL_MS
    ) -> None:
        """A request to the client; `on_answer` gets its answer, or why there is none. Raises UNAVAILABLE, LIMIT_REACHED."""
        if not self.open or self.full():
            raise GantryError(ErrorCode.UNAVAILABLE, f"client {self.link.peer} takes nothing at the moment")
        if self._calls is None:
            self._calls = Calls(self.shared.wheel)
        self._calls.check_room()
        self._calls.opened(self.connection.request(code, fields, body), timeout_ms, on_answer)
        self.link.mark()

    def push_reply(self, fields: dict[str, str], body: bytes, on_answer: OnAnswer) -> None:
        """PUSH_REPLY_MESSAGE_TO_CLIENT, as `call`."""
        if not self.open or self.full():
            raise GantryError(ErrorCode.UNAVAILABLE, "it does not read what it is sent")
        if self._replies is None:
            self._replies = Calls(self.shared.wheel, reply_requests.PUSHED_MAX)
        self._replies.check_room()
        opaque = self.connection.request(CODE.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, body)
        self._replies.opened(opaque, CALL_MS, on_answer)
        self.link.mark()

    def answer_when_stored(self, command: Command, body: bytes = b"") -> None:
        """Answer with success when everything that the broker was handed so far is as safe as an acknowledgement promises."""
        self._open_sends += 1
        self.shared.broker.when_stored((command, body), self._change_stored)

    def answer_when_known(self, command: Command) -> None:
        """As `answer_when_stored`, and the nameservers know of the topics, too: who asks them next finds what he was promised."""
        self._open_sends += 1
        self.shared.broker.when_stored((command, b""), self._topics_stored)

    def respond_when_known(self, command: Command, fields: dict[str, str]) -> None:
        """Answer with success when the nameservers know of the topics, stored or not."""
        self._open_sends += 1

        def known() -> None:
            self._open_sends -= 1
            if not self.open:
                return
            self.respond(command, ResponseCode.SUCCESS, None, fields)
            if self._closing:
                self.shutdown()

        self.shared.identity.when_known(known)

    def _topics_stored(self, token: tuple[Command, bytes], result: object) -> None:
        if isinstance(result, GantryError):
            self._change_stored(token, result)
        else:
            self.shared.identity.when_known(lambda: self._change_stored(token, None))

    def _change_stored(self, token: tuple[Command, bytes], result: object) -> None:
        self._open_sends -= 1
        if not self.open:
            return
        command, body = token
        if isinstance(result, GantryError):
            self.refuse(command, code_of(result.code), result.text)
        else:
            self.respond(command, body=body)
        if self._closing:
            self.shutdown()

    def left(self, reason: str) -> None:
        """The client is gone: so are its polls and its memberships."""
        for calls in (self._calls, self._replies):
            if calls is not None:
                calls.closed()
        self.deferred.clear()
        self.shared.guarded.discard(self)
        if self._guard is not None and self._guard.ending is not None:
            self._guard.ending.stop()
        if self._gateway is not None:
            self._gateway.close()
        self.shared.pulls.drop(self)
        self.shared.pops.polls.drop(self)
        self.shared.clients.connection_closed(self)

    def shutdown(self) -> None:
        """The server stops: nothing new is read, sends that are on their way to the disk are answered, then it closes."""
        self._closing = True
        self.link.pause_reading()
        self.shared.pulls.drop(self)
        self.shared.pops.polls.drop(self)
        if not self._open_sends:
            self.link.close()


def _rows(handlers: Mapping[K, Handler[BrokerConnection, S]], services: S) -> dict[int, Row]:
    """Rows of a family of requests; checks that a connection is all that its handlers want of a reply."""
    return rows(handlers, services)


def _read_again(command: Command, connection: BrokerConnection, read: Read[Any]) -> None:
    connection.read_again(read)


def send(command: Command, connection: BrokerConnection, services: None) -> None:
    """SEND_MESSAGE, SEND_MESSAGE_V2."""
    connection.send(command)


SENDS: Final = {CODE.SEND_MESSAGE: send, CODE.SEND_MESSAGE_V2: send}
