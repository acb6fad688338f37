"""One HTTP/1.1 client connection without I/O: a request out, an answer in, one at a time.

Of an answer only the status and Retry-After are kept; the body is read to its end and dropped, up to a limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import h11

from gantrymq_gateways.cloudevents.wire.constants import RESPONSE_BYTES_MAX

USER_AGENT: Final = b"gantrymq"


@dataclass(slots=True)
class Answer:
    """What came of an attempt. `status` 0: no answer, and `failure` says why."""

    status: int
    retry_after: bytes | None = None
    failure: str = ""
    unsent: bool = False
    """It never came to a request, for a reason of ours: no attempt is used up."""


class ClientConnection:
    """State of one connection to a sink."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=RESPONSE_BYTES_MAX)
        self._received = 0
        self.answer: Answer | None = None
        """To the last request, as soon as its status is known; `receive_data` returns it when it is whole."""
        self.reusable = True
        """After an answer: whether another request may follow."""

    @property
    def untouched(self) -> bool:
        """True while nothing of the answer has arrived."""
        return self._received == 0

    def request(self, authority: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
        """Bytes of a POST. Raises h11.LocalProtocolError for a header that HTTP cannot carry."""
        self._received = 0
        self.answer = None
        head = h11.Request(
            method=b"POST",
            target=target.encode("ascii"),
            headers=[
                (b"host", authority.encode("ascii")),
                (b"user-agent", USER_AGENT),
                (b"accept-encoding", b"identity"),
                (b"content-length", b"%d" % len(body)),
                *headers,
            ],
        )
        http = self._http
        events: list[h11.Event] = (
            [head, h11.Data(data=body), h11.EndOfMessage()] if body else [head, h11.EndOfMessage()]
        )
        return b"".join([http.send(event) or b"" for event in events])

    def receive_data(self, data: bytes) -> Answer | None:
        """Take bytes of the sink; the answer once it is whole (empty `data`: the sink closed)."""
        self._received += len(data)
        if not data:
            self.reusable = False
        try:
            self._http.receive_data(data)
            return self._next()
        except h11.RemoteProtocolError as error:
            self.reusable = False
            return self.answer or Answer(0, failure=self._failure(error, ended=not data))

    def _failure(self, error: h11.RemoteProtocolError, ended: bool) -> str:
        if not ended:
            return f"malformed answer: {str(error)[:200]}"
        if self.untouched:
            return "the sink closed the connection without an answer"
        return f"the sink closed the connection after {self._received} bytes, before the end of its answer"

    def _next(self) -> Answer | None:
        http = self._http
        while True:
            event = http.next_event()
            if type(event) is h11.Response:
                retry_after = None
                for name, value in event.headers:
                    if name == b"retry-after":
                        retry_after = value
                self.answer = Answer(event.status_code, retry_after)
            elif type(event) is h11.EndOfMessage:
                if http.our_state is h11.DONE and http.their_state is h11.DONE and not http.trailing_data[0]:
                    http.start_next_cycle()
                else:
                    self.reusable = False
                return self.answer
            elif event is h11.NEED_DATA or event is h11.PAUSED:
                if self._received > RESPONSE_BYTES_MAX:
                    self.reusable = False
                    return self.answer or Answer(0, failure=f"the answer has over {RESPONSE_BYTES_MAX} bytes")
                return None
            elif type(event) is h11.ConnectionClosed:
                self.reusable = False
                return self.answer or Answer(0, failure="the sink closed the connection without an answer")
