"""Parts of the broker with a life of their own: messages that wait (delays, transactions) and consumers with receipts (pops)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gantrymq.broker.config import BrokerConfig, GatewayConfig
    from gantrymq.broker.consuming.commits import OffsetCommits
    from gantrymq.broker.consuming.cursors import Cursors
    from gantrymq.broker.consuming.offsets import ConsumerOffsets
    from gantrymq.broker.matches import RouteMatch
    from gantrymq.broker.port import Done
    from gantrymq.broker.routing.router import Router
    from gantrymq.broker.tables.tables import Rows, Tables
    from gantrymq.broker.topic_budget import Maker
    from gantrymq.broker.topics import Topic, TopicTable
    from gantrymq.broker.turn.ackgate import AckGate
    from gantrymq.broker.turn.pending import Pending
    from gantrymq.model.errors import ErrorCode
    from gantrymq.model.message import Message
    from gantrymq.net.api import Wheel
    from gantrymq.services import Clock, Turn
    from gantrymq.store.cold import Cold
    from gantrymq.store.message_store import MessageStore


class Part(Protocol):
    """What `Broker` calls; everything else a part does from `Topic.wait`, `Broker.wheel` and the doors' requests."""

    def open(self) -> None:
        """Tables and cursors are there; what the part owed before the start goes on. It may append (`Broker.submit`)."""

    def close(self) -> None:
        """The broker stops cleanly: last chance to append; nothing may be submitted later."""


class Context(Protocol):
    """What a part is given of the broker: where things are, time, and ways into the log and back."""

    config: BrokerConfig
    gateway_config: GatewayConfig
    store: MessageStore
    topics: TopicTable
    tables: Tables
    cursors: Cursors
    offsets: ConsumerOffsets
    commits: OffsetCommits
    gate: AckGate
    clock: Clock
    turn: Turn
    wheel: Wheel
    request_flush: Callable[[], None]
    closed: bool
    full: str
    pending: Pending
    router: Router

    def arm_append(self) -> None: ...

    def submit(
        self, batch: Sequence[Message], token: Any, on_done: Done, sender: object = None, whole: bool = False
    ) -> None: ...

    def submit_with(
        self,
        batch: Sequence[Message],
        token: Any,
        on_done: Done,
        sender: object,
        held: Any,
        rows: Rows,
        barred: Mapping[int, frozenset[int]] = ...,
    ) -> None: ...

    def topic_for(self, message: Message, sender: object) -> tuple[Topic | None, ErrorCode | None]: ...

    def mark(self, message: Message, match: RouteMatch, sender: object) -> ErrorCode | None: ...

    def redirect(self, message: Message, topic: Topic) -> tuple[Topic | None, ErrorCode | None]: ...

    def put(self, table: str, items: Sequence[tuple[str, bytes | None]], token: Any, on_done: Done | None) -> None: ...

    def put_rows(self, rows: Rows, token: Any = None, on_done: Done | None = None, together: bool = False) -> None: ...

    def new_light(self) -> tuple[int, Rows]: ...

    def drop_light(self, light: int, rows: Rows) -> None: ...

    def refuses(self, count: int) -> ErrorCode | None: ...

    def append_ack(self, body: bytes) -> None: ...

    def write_acks(self) -> None: ...

    def when_stored(self, token: Any, on_done: Done) -> None: ...

    def fetch(self, cold: Cold, call: Any, again: Callable[..., None], *arguments: Any) -> None: ...

    def ensure_topic(self, name: str, create: int, queues: int, maker: Maker | None = None) -> Topic: ...

    def min_offset(self, topic: str, queue_id: int) -> int: ...
