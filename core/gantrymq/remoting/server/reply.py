"""What a request's handler may do with the connection that the request came over. `BrokerConnection` is all of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gantrymq.remoting.constants import ResponseCode

if TYPE_CHECKING:
    from gantrymq.administration.reading import Reading
    from gantrymq.model.message import Message
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.headers import SendHeaderV2

T = TypeVar("T")


class GatewaySession(Protocol):
    """What answers the calls of one gateway process (docs/formats/gateway.md)."""

    def handle(self, command: Command) -> None:
        """One request of the gateway; never raises for what the peer sent."""

    def close(self) -> None:
        """The connection is gone."""


OpenSession = Callable[[str, Callable[[bytes], None], Callable[[], None], Callable[[], int]], GatewaySession]
"""`open(peer, send, end, begun)`: a session for the gateway process at that address; `send(frame)` is how it answers, `end()` closes its
connection at once, and `begun()` tells how much of a frame is there that is not whole."""


class Reply(Protocol):
    """Every handler's. An answer to a connection that is gone meanwhile is dropped."""

    open: bool

    def respond(
        self,
        request: Command,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        """Answer the request; nothing is written for a one-way request."""

    def refuse(self, command: Command, code: int, remark: str) -> None:
        """Answer with a failure."""

    def check(self, command: Command, actions: str, topic: str) -> None:
        """Ask for a right on a topic that is known only now (`rights.topic_need`). Raises NO_PERMISSION; never without authentication."""

    def read(self, command: Command, find: Callable[[Reading], T], apply: Callable[[T], None]) -> None:
        """`apply(find(reading))`, now or when the disk has what `find` reads (reads.py)."""

    def answer_when_stored(self, command: Command, body: bytes = b"") -> None:
        """Success, when all that the broker was handed so far is as safe as an acknowledgement promises."""

    def answer_when_known(self, command: Command) -> None:
        """As `answer_when_stored`, and the nameservers know of the topics."""


class RecordsReply(Reply, Protocol):
    """Of requests whose answers are records: pulls, pops, queries."""

    outbox: list[bytes]
    pull_bytes: int
    """Bytes of records in the outbox."""

    @property
    def peer(self) -> str:
        """Address and port of the other side."""

    def full(self) -> bool:
        """So much is on its way to the peer that records have to wait."""

    def defer(self, command: Command) -> None:
        """Handle the request again when there is room."""

    def handle(self, command: Command) -> None:
        """Handle a request as if it had just come."""

    def mark(self) -> None:
        """Something is in the outbox."""


class SendReply(Reply, Protocol):
    """Of requests that store messages."""

    outbox: list[bytes]

    @property
    def peer(self) -> str:
        """Address and port of the other side."""

    @property
    def born_host(self) -> bytes:
        """The same as a record has it."""

    @property
    def host_flag(self) -> int:
        """Bit of sysFlag for the width of `born_host`."""

    def message(self, header: SendHeaderV2, body: bytes) -> Message:
        """The message of a send. Raises GantryError for what is refused."""

    def submit(self, batch: list[Message], answer: Callable[[Any], None]) -> None:
        """Store messages; `answer(results)` writes the response, and is not called for a connection that is gone."""
