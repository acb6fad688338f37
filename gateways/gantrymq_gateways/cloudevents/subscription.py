"""The subscription object of the CloudEvents Subscriptions API (subscriptions/spec.md 3.2): reading, checking, showing.

What the door does not do is refused by name, never ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from gantrymq.broker.port import Start
from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq_gateways.cloudevents.mapping import LATE_ATTRIBUTES
from gantrymq_gateways.cloudevents.rules.filters import Attributes, Test, compile_filters, names_in
from gantrymq_gateways.cloudevents.rules.guard import SinkGuard
from gantrymq_gateways.cloudevents.wire.constants import (
    FILTERS_MAX,
    MAXAGE_S_CEILING,
    MAXAGE_S_DEFAULT,
    MAXATTEMPTS_CEILING,
    MAXATTEMPTS_DEFAULT,
    SINK_BYTES_MAX,
)
from gantrymq_gateways.cloudevents.wire.event import is_timestamp, is_uri_reference

_MEMBERS: Final = frozenset({"sink", "protocol", "types", "source", "filters", "config"})
_NOT_KEPT: Final = frozenset({"sinkcredential", "protocolsettings"})
_CONFIG_MEMBERS: Final = frozenset({"topic", "from", "contentmode", "maxage_s", "maxattempts"})
_NUMBER: Final = re.compile(r"(?:^|\.)(?:[0-9]+|0[xX][0-9a-fA-F]*)\.?\Z")
"""A host that systems take for an IPv4 address, however it is written (WHATWG URL 3.5: it ends in a number)."""
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}\Z")
_TARGET = re.compile(r"[!-~]*\Z")


class SubscriptionError(GantryError):
    """A subscription that cannot be kept; the text names the member, the value and what is allowed."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.ILLEGAL_ARGUMENT, text)


@dataclass(frozen=True, slots=True)
class Sink:
    """Where deliveries go. `host`: as dialled and checked; `authority`: as in the Host header."""

    secure: bool
    host: str
    port: int
    authority: str
    target: str

    @property
    def origin(self) -> tuple[bool, str, int]:
        """What connections are shared by."""
        return self.secure, self.host, self.port


class Past(StrEnum):
    """How a subscription with filters comes to its own queue (`places.py`)."""

    NONE = ""
    """It has its own queue alone."""
    OPENING = "opening"
    """It is to have places in the queues of its topic."""
    OPEN = "open"
    """It has them, and is delivered from there until nothing is left."""
    CLOSING = "closing"
    """It is done with them."""


@dataclass(slots=True)
class Subscription:
    """One subscription. `document`: the members that the client gave, defaults of `config` filled in."""

    id: str
    document: dict[str, Any]
    sink: Sink
    topic: str
    """As given, native or foreign."""
    start: Start
    structured: bool
    attempts_max: int
    age_max_ms: int
    """From the first attempt; for a sink that asks to wait."""
    types: frozenset[str] = frozenset()
    source: str = ""
    test: Test | None = None
    is_late: bool = False
    """A filter asks for what a message that was no event is called, which a route cannot know."""
    placed: bool = False
    """It once had a cursor in every queue of its topic; it is stored only then."""
    disabled: str = ""
    """Why deliveries have stopped for good; empty while they go on."""
    error: str = ""
    """How the last attempt failed, as it was looked at last; empty: it did not."""
    owner: str = ""
    """The user who made it; empty: nobody was asked."""
    light: int = 0
    """The queue that its route leads to; 0: it has no filter, or none yet."""
    past: Past = Past.NONE
    seen: dict[str, int] = field(default_factory=dict)
    """How far each queue of its topic was read before its own queue took over: store host (hexadecimal) `/` queue id `/offset` to the last offset there; without
    `/offset` to the last log position, as rows of an earlier version have it. A record that another broker group forwarded has a position in the log of its queue."""
    paused: str = ""
    """Why nothing is delivered for now: its owner may not have it. Not stored: rights say so."""

    @property
    def status(self) -> str:
        """`disabled`, `paused` or `active`."""
        return "disabled" if self.disabled else "paused" if self.paused else "active"

    def matches(self, attributes: Attributes) -> bool:
        """Whether an event with these attributes is delivered (3.2.1, 3.2.4)."""
        if self.types and attributes["type"] not in self.types:
            return False
        if self.source and attributes["source"] != self.source:
            return False
        return self.test is None or self.test(attributes)

    @property
    def matches_all(self) -> bool:
        """True if nothing is filtered, so that attributes need not be looked at."""
        return not self.types and not self.source and self.test is None

    def shown(self) -> dict[str, Any]:
        """The object as clients see it; `status` and `statusreason` are additions of this server."""
        shown = {"id": self.id, **self.document, "status": self.status}
        if reason := self.disabled or self.paused:
            shown["statusreason"] = reason
        return shown

    def stored(self) -> bytes:
        """Value of the table."""
        stored: dict[str, Any] = {"document": self.document, "disabled": self.disabled}
        if self.error:
            stored["error"] = self.error
        if self.owner:
            stored["owner"] = self.owner
        if self.light:
            stored |= {"light": self.light, "past": self.past, "seen": self.seen}
        return msgspec.json.encode(stored)


def parse_sink(text: Any, guard: SinkGuard) -> Sink:
    """A sink URL, checked as far as that is possible without resolving its name. Raises SubscriptionError."""
    if not isinstance(text, str) or not text or len(text) > SINK_BYTES_MAX:
        raise SubscriptionError(f"sink must be an http or https URL of at most {SINK_BYTES_MAX} characters")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise SubscriptionError(f"sink {text[:128]!r} is not a URL: {error}") from None
    if port == 0:
        raise SubscriptionError(f"sink {text[:128]!r}: port 0 cannot be dialled; use 1 to 65535, or leave it out")
    if parts.scheme not in ("http", "https") or not is_uri_reference(text):
        raise SubscriptionError(f"sink {text[:128]!r} must be an absolute http or https URL")
    if parts.scheme == "http" and not guard.http:
        raise SubscriptionError(
            "sink must use https; http is for doors on loopback, or set cloudevents.allow_http_sinks"
        )
    if parts.username is not None or parts.fragment:
        raise SubscriptionError("sink must not hold user names, passwords or a fragment")
    host = parts.hostname or ""
    literal = True
    try:
        host = str(ip_address(host))
    except ValueError:
        literal = False
        if _NUMBER.search(host) is not None:
            raise SubscriptionError(
                f"sink {text[:128]!r}: an IPv4 address is written as four decimal numbers, and no name ends in a number"
            ) from None
        if _HOST.match(host) is None:
            raise SubscriptionError(f"sink {text[:128]!r} has no host that can be looked up") from None
    if literal and not guard.permits(host):
        raise SubscriptionError(f"sink address {host} is not allowed; see cloudevents.sink_networks")
    secure = parts.scheme == "https"
    number = (443 if secure else 80) if port is None else port
    name = f"[{host}]" if ":" in host else host
    authority = name if port is None else f"{name}:{port}"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if _TARGET.match(target) is None:
        raise SubscriptionError("sink holds characters that must be percent-encoded (RFC 3986)")
    return Sink(secure, host, number, authority, target)


def parse_subscription(subscription_id: str, document: Any, guard: SinkGuard) -> Subscription:
    """A subscription from its decoded JSON. Raises SubscriptionError or FilterError."""
    if not isinstance(document, dict):
        raise SubscriptionError("a subscription is a JSON object")
    if "id" in document:
        raise SubscriptionError("id is assigned by the server; leave it out")
    for name in document:
        if name in _NOT_KEPT:
            raise SubscriptionError(f"{name} is not supported")
        if name not in _MEMBERS:
            raise SubscriptionError(f"unknown member {name[:64]!r}; there are {', '.join(sorted(_MEMBERS))}")
    if document.get("protocol") != "HTTP":
        raise SubscriptionError("protocol must be 'HTTP'")
    sink = parse_sink(document.get("sink"), guard)
    types = document.get("types", [])
    if "types" in document and (
        not isinstance(types, list) or not types or not all(isinstance(item, str) and item for item in types)
    ):
        raise SubscriptionError("types must be an array of event types that are not empty; leave it out for all")
    if len(types) > FILTERS_MAX:
        raise SubscriptionError(f"types has {len(types)} entries, at most {FILTERS_MAX} are allowed")
    source = document.get("source", "")
    if "source" in document and (not isinstance(source, str) or not is_uri_reference(source)):
        raise SubscriptionError("source must be a URI-reference that is not empty")
    filters = document.get("filters", [])
    if not isinstance(filters, list):
        raise SubscriptionError("filters must be an array")
    test = compile_filters(filters)
    config = _parse_config(document.get("config"))
    return Subscription(
        subscription_id,
        {**document, "config": config},
        sink,
        config["topic"],
        _parse_start(config["from"]),
        config["contentmode"] == "structured",
        config["maxattempts"],
        config["maxage_s"] * 1000,
        frozenset(types),
        source,
        test,
        any(not LATE_ATTRIBUTES.isdisjoint(names_in(each)) for each in filters),
    )


def _parse_config(config: Any) -> dict[str, Any]:
    if not isinstance(config, dict):
        raise SubscriptionError("config must be an object with at least 'topic'")
    for name in config:
        if name not in _CONFIG_MEMBERS:
            raise SubscriptionError(f"unknown key config.{name[:64]}; there are {', '.join(sorted(_CONFIG_MEMBERS))}")
    topic = config.get("topic")
    if not isinstance(topic, str) or not topic:
        raise SubscriptionError("config.topic must name a topic")
    mode = config.get("contentmode", "binary")
    if mode not in ("binary", "structured"):
        raise SubscriptionError("config.contentmode must be 'binary' or 'structured'")
    attempts = config.get("maxattempts", MAXATTEMPTS_DEFAULT)
    if type(attempts) is not int or not 1 <= attempts <= MAXATTEMPTS_CEILING:
        raise SubscriptionError(f"config.maxattempts must be a number from 1 to {MAXATTEMPTS_CEILING}")
    age_s = config.get("maxage_s", MAXAGE_S_DEFAULT)
    if type(age_s) is not int or not 1 <= age_s <= MAXAGE_S_CEILING:
        raise SubscriptionError(f"config.maxage_s must be a number of seconds from 1 to {MAXAGE_S_CEILING}")
    start = config.get("from", "end")
    if not isinstance(start, str):
        raise SubscriptionError("config.from must be 'end', 'earliest' or an RFC 3339 time")
    return {"topic": topic, "from": start, "contentmode": mode, "maxattempts": attempts, "maxage_s": age_s}


def _parse_start(text: str) -> Start:
    if text in ("end", "earliest"):
        return Start(text)
    if not is_timestamp(text):
        raise SubscriptionError(f"config.from {text[:64]!r} must be 'end', 'earliest' or an RFC 3339 time")
    text = text.upper().replace(":60", ":59")  # A leap second is no second of the platform's calendar.
    try:
        return Start("time", int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise SubscriptionError(f"config.from {text[:64]!r} is out of range") from None


def read_stored(subscription_id: str, value: bytes, guard: SinkGuard) -> Subscription:
    """A subscription from the table. Raises GantryError if today's rules no longer allow it."""
    try:
        stored = msgspec.json.decode(value)
        subscription = parse_subscription(subscription_id, stored["document"], guard)
        subscription.disabled = str(stored["disabled"])
        subscription.error = str(stored.get("error", ""))
        subscription.owner = str(stored.get("owner", ""))
        subscription.light = int(stored.get("light", 0))
        subscription.past = Past(stored.get("past", ""))
        subscription.seen = {str(queue): int(position) for queue, position in stored.get("seen", {}).items()}
        subscription.placed = subscription.past is not Past.OPENING
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise SubscriptionError(f"stored subscription {subscription_id} cannot be read: {error}") from None
    return subscription


def topics_of_row(key: str, value: bytes) -> list[str]:
    """Native topics that a row needs."""
    topic = stored_topic(value)
    try:
        names.check_topic(topic)
    except GantryError:
        return [names.encode_topic(topic)] if topic else []
    return [topic]


def stored_topic(value: bytes) -> str:
    """The topic of a row that `read_stored` refuses, so that its places can be found; empty if it tells none."""
    try:
        topic = msgspec.json.decode(value)["document"]["config"]["topic"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, IndexError):
        return ""
    return topic if isinstance(topic, str) else ""


def stored_light(value: bytes) -> int:
    """The queue of a row that may be one `read_stored` refuses; 0 if it tells none."""
    try:
        light = msgspec.json.decode(value)["light"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, IndexError):
        return 0
    return light if type(light) is int else 0


def gone_row(light: int) -> bytes:
    """Value of a subscription that was deleted and whose queue is still to be removed."""
    return msgspec.json.encode({"gone": True, "light": light})


def is_gone(value: bytes) -> bool:
    """Whether a row says so."""
    try:
        return msgspec.json.decode(value).get("gone") is True
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError):
        return False
