"""One HTTP connection of the door: requests to handlers, answers back in order."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote_to_bytes

import msgspec

from gantrymq.auth.resources import Action
from gantrymq.model import names
from gantrymq.model.errors import GantryError
from gantrymq.net.api import Link
from gantrymq.net.host_names import HostNames, asked_host
from gantrymq.net.http.door import Handler, HttpDoor
from gantrymq.net.http.problems import Problem, Respond
from gantrymq.net.http.server_connection import Headers, Request
from gantrymq_gateways.cloudevents.access import ROUTES, Asker, check
from gantrymq_gateways.cloudevents.numbers import EventNumbers
from gantrymq_gateways.cloudevents.publish import BatchJob, Place, Publisher
from gantrymq_gateways.cloudevents.wire.codec import FormatError
from gantrymq_gateways.cloudevents.wire.constants import (
    BATCH_TYPE,
    STRUCTURED_TYPE,
    SUBSCRIPTION_BYTES_MAX,
)
from gantrymq_gateways.cloudevents.wire.problems import problem_of

if TYPE_CHECKING:
    from gantrymq.auth.authority import Authority, Identity

log = logging.getLogger(__name__)

_ENCODE: Final = msgspec.json.Encoder().encode
JSON_HEADER: Final = (b"content-type", b"application/json")
_ACCEPTED_TYPES: Final = (b"accept-post", f"*/*, {STRUCTURED_TYPE}, {BATCH_TYPE}".encode())


POSTS: Final = b"/topics/"


class Subscriptions(Protocol):
    """The handlers of `/subscriptions` (registry.py). `asker`: with authentication, who asks."""

    numbers: EventNumbers

    @property
    def is_up(self) -> bool:
        """Requests can be served."""

    def create(self, body: bytes, respond: Respond, asker: Identity | None) -> None:
        """`POST /subscriptions`."""

    def list_all(self, respond: Respond, asker: Identity | None) -> None:
        """`GET /subscriptions`."""

    def show(self, subscription_id: str, respond: Respond, asker: Identity | None) -> None:
        """`GET /subscriptions/{id}`."""

    def delete(self, subscription_id: str, respond: Respond, asker: Identity | None) -> None:
        """`DELETE /subscriptions/{id}`."""


Asked = tuple[str, list[str], Headers, int]
"""Method, path, headers and length of a request."""


def _content_type(headers: Headers) -> str:
    found: list[bytes] = []
    for name, value in headers:
        if name == b"content-type":
            found.append(value)
        elif name == b"content-encoding" and value.strip().lower() != b"identity":
            raise Problem(415, "Content-Encoding is not supported; send the body as it is", (_ACCEPTED_TYPES,))
    if len(found) > 1:
        raise Problem(400, "Content-Type is repeated")
    return found[0].decode("latin-1") if found else ""


def split_path(target: bytes) -> list[str]:
    """Decoded segments of a request target's path (origin or absolute form). Raises Problem."""
    if not target.startswith(b"/"):
        scheme, mark, rest = target.partition(b"://")
        if not mark or scheme.lower() not in (b"http", b"https"):
            raise Problem(400, "the request target is neither a path nor a URL (RFC 9112 3.2)")
        target = b"/" + rest.partition(b"?")[0].partition(b"/")[2]  # a query may follow the host at once (RFC 3986 3.2)
    path = target.partition(b"?")[0]
    if b"#" in path:
        raise Problem(400, "a fragment is no part of a request target (RFC 9112 3.2); write # as %23")
    try:
        return [unquote_to_bytes(segment).decode("utf-8", "strict") for segment in path[1:].split(b"/")]
    except UnicodeDecodeError:
        raise Problem(400, "the path is not UTF-8 after percent-decoding") from None


class EventDoor(HttpDoor):
    """One connection of a client."""

    def __init__(
        self,
        publisher: Publisher,
        subscriptions: Subscriptions,
        names: HostNames,
        anonymous: bool,
        authority: Authority | None = None,
    ) -> None:
        """`authority`: asked who each request is from; None: nobody is asked."""
        around = publisher.around
        super().__init__(
            around.clock.monotonic_ms, around.turn.in_slices, publisher.request_bytes_max(), publisher.date_line
        )
        self._authority = authority
        self._asker: Asker | None = None
        self._publisher = publisher
        self._names = names
        self._subscriptions = subscriptions
        self._anonymous = anonymous
        """Clients of other machines are welcome, too."""
        self._refused = False
        """The log has the line about this client."""
        self._job: BatchJob | None = None

    def connected(self, link: Link) -> None:
        """See `Door`."""
        if self._authority is not None:
            self._asker = Asker(self._authority, link)
        super().connected(link)

    def _continue_job(self) -> None:
        """One more slice of a large batch; what was sent behind it waits, so that order is kept."""
        job = self._job
        if job is None:
            return
        if self.link is None:  # closed: the rest goes in slices, too
            if job.drop():
                self._publisher.around.turn.in_slices(self._continue_job)
            else:
                self._job = None
            return
        if not job.step():
            self._publisher.around.turn.in_slices(self._continue_job)
            return
        self._job = None
        self.go_on()

    def serve(self, request: Request, respond: Respond) -> None:
        """See `HttpDoor`."""
        try:
            request.verdict(request, respond)
        except GantryError as error:
            raise problem_of(error) from None

    def told(self, target: bytes, status: int) -> None:
        """See `HttpDoor`."""
        if target.startswith(POSTS):
            self._subscriptions.numbers.posted(status)

    def judge(self, method: str, target: bytes, headers: Headers, length: int) -> Handler:
        """See `HttpDoor`: who may ask, what there is, and in which form."""
        refused = self._names.refusal(asked_host(target, headers))
        if refused:
            raise Problem(421, refused)
        segments = split_path(target)
        if segments != ["healthz"]:
            if self._asker is not None:
                asked = (method, segments, headers, length)
                return self.verdict_on(partial(self._asker.identify, headers), partial(self._handler_for, asked))
            self._admit()
        return self._handler(method, segments, headers, length, None)

    def _handler_for(self, asked: Asked, who: Identity | Problem) -> Handler:
        if isinstance(who, Problem):
            raise who
        if self.link is not None and (why := self.link.known(who.name)):
            raise Problem(429, f"user {who.name}: {why}", ((b"retry-after", b"1"),))
        return self._handler(*asked, who)

    def _handler(
        self, method: str, segments: list[str], headers: Headers, length: int, asker: Identity | None
    ) -> Handler:
        try:
            return self._route(method, segments, headers, length, asker)
        except FormatError as error:
            raise Problem(415, str(error), (_ACCEPTED_TYPES,)) from None
        except GantryError as error:
            raise problem_of(error) from None

    def _route(
        self, method: str, segments: list[str], headers: Headers, length: int, asker: Identity | None
    ) -> Handler:
        subscriptions = self._subscriptions
        match segments:
            case ["topics", topic] if topic:
                _allow(method, "/topics/{topic}")
                check(asker, Action.PUB, names.encode_topic(topic))
                place = self._publisher.place(topic, _content_type(headers))
                return partial(self._publish, place, asker)
            case ["subscriptions"]:
                _allow(method, "/subscriptions")
                if method == "GET":
                    return lambda request, respond: subscriptions.list_all(respond, asker)
                _check_subscription(_content_type(headers), length)
                return lambda request, respond: subscriptions.create(request.body, respond, asker)
            case ["subscriptions", name] if name:
                _allow(method, "/subscriptions/{id}")
                if method == "GET":
                    return lambda request, respond: subscriptions.show(name, respond, asker)
                return lambda request, respond: subscriptions.delete(name, respond, asker)
            case ["healthz"]:
                _allow(method, "/healthz")
                return self._tell_health
            case _:
                raise Problem(404, "there is /topics/{topic}, /subscriptions, /subscriptions/{id} and /healthz")

    def _tell_health(self, request: Request, respond: Respond) -> None:
        """503 while every other request is answered so, for want of a broker."""
        up = self._subscriptions.is_up
        shown = {"status": "ok"} if up else {"status": "unavailable", "detail": "the broker is not reachable"}
        respond(200 if up else 503, (JSON_HEADER, (b"cache-control", b"no-store")), _ENCODE(shown))

    def _publish(self, place: Place, asker: Identity | None, request: Request, respond: Respond) -> None:
        check(asker, Action.PUB, place[0])  # the body took its time
        self._job = self._publisher.publish(place, request.headers, request.body, respond, self)
        if self._job is not None:
            self.busy = True
            self._publisher.around.turn.in_slices(self._continue_job)

    def _admit(self) -> None:
        """Raises Problem for a client of another machine that is not welcome."""
        link = self.link
        if self._anonymous or link is None or link.peer_is_loopback:
            return
        if not self._refused:
            self._refused = True
            log.warning(
                "%s: refused: clients of other machines are; cloudevents.allow_anonymous=true lets them in", link.peer
            )
        raise Problem(403, "clients of other machines are refused; the server's log says which setting lets them in")


def _check_subscription(content_type: str, length: int) -> None:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise Problem(415, "a subscription is application/json", ((b"accept-post", b"application/json"),))
    if length > SUBSCRIPTION_BYTES_MAX:
        raise Problem(413, f"a subscription has at most {SUBSCRIPTION_BYTES_MAX} bytes")


def _allow(method: str, path: str) -> None:
    """Raises Problem for a method that has no declared right."""
    methods = [each for known, each in ROUTES if known == path]
    if method not in methods:
        raise Problem(405, f"{method[:32]} is not for this path", ((b"allow", ", ".join(methods).encode()),))
