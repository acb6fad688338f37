"""The vhosts beside `/`, and limits: tables `amqp_vhost` (a row for `/`, too, where somebody changed something) and `amqp_user_limits`.

A row that is `gone` is a vhost that is being deleted: nobody enters it, and what is in it goes before the row does.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import msgspec

from gantrymq_gateways.amqp.origin import ROOT, prefix_of, vhost_of
from gantrymq_gateways.amqp.wire.constants import NOT_ALLOWED, NOT_FOUND, PRECONDITION_FAILED, AmqpError

TABLE: Final = "amqp_vhost"
USER_TABLE: Final = "amqp_user_limits"

VHOSTS_MAX: Final = 1_000
"""Each has a cache of places to publish to in every gateway, and its own system exchanges."""
NAME_BYTES_MAX: Final = 80
"""A topic has 127 bytes; what is longer is shortened, and reads badly at the other doors."""
USERS_MAX: Final = 10_000
"""With limits of their own."""
TEXT_BYTES_MAX: Final = 4_096
"""Description and tags."""

MAX_CONNECTIONS, MAX_QUEUES, MAX_CHANNELS = "max-connections", "max-queues", "max-channels"
VHOST_LIMITS: Final = frozenset({MAX_CONNECTIONS, MAX_QUEUES})
USER_LIMITS: Final = frozenset({MAX_CONNECTIONS, MAX_CHANNELS})
QUEUE_TYPES: Final = frozenset({"quorum", "stream"})
LIMIT_MAX: Final = 1 << 31
TRACING: Final = {"true": True, "false": False}
"""As JSON, or as a text of it."""


class VirtualHost(msgspec.Struct, frozen=True):
    """One row. `default_queue_type`: of durable shared queues that name none, empty for `classic`; a limit below 0 is none."""

    description: str = ""
    tags: list[str] = []
    default_queue_type: str = ""
    limits: dict[str, int] = {}
    gone: bool = False
    tracing: bool = False
    """What is published and delivered is copied (messages/tracing.py)."""


class UserLimits(msgspec.Struct, frozen=True):
    """One row of `amqp_user_limits`."""

    limits: dict[str, int] = {}


_decode = msgspec.json.Decoder(VirtualHost).decode
_decode_user = msgspec.json.Decoder(UserLimits).decode
row_value: Final = msgspec.json.Encoder().encode
"""Of either table."""


def check_row(key: str, value: bytes) -> None:
    """Raise for a row of `amqp_vhost` that cannot be read."""
    if key != ROOT:
        check_name(key)
    _check_limits(_decode(value).limits, VHOST_LIMITS)


def check_user_row(_key: str, value: bytes) -> None:
    """The same of `amqp_user_limits`."""
    _check_limits(_decode_user(value).limits, USER_LIMITS)


def _check_limits(limits: dict[str, int], known: frozenset[str]) -> None:
    for name, value in limits.items():
        check_limit(known, name, value)


def check_limit(known: frozenset[str], name: str, value: Any) -> int:
    """A limit that somebody sets. Raises ValueError."""
    if name not in known:
        raise ValueError(f"{name[:40]!r} is none of {', '.join(sorted(known))}")
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > LIMIT_MAX:
        raise ValueError(f"{name}: {str(value)[:40]!r} is no whole number")
    return value


def check_name(name: str) -> None:
    """Of a new vhost. Raises ValueError."""
    if not name or len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        raise ValueError(f"the name of a vhost has 1 to {NAME_BYTES_MAX} bytes")
    if not name.isprintable():
        raise ValueError("the name of a vhost has characters that are not printed")


def new_vhost(body: dict[str, Any], old: VirtualHost | None) -> VirtualHost:
    """As the API, or a file of definitions, has it; what it does not say stays. Raises ValueError."""
    meta = body.get("metadata")
    said = {**(meta if isinstance(meta, dict) else {}), **body}
    made = old or VirtualHost()
    kind, tags = said.get("default_queue_type", made.default_queue_type), said.get("tags", made.tags)
    tracing = TRACING.get(str(said.get("tracing", made.tracing)).lower())
    if tracing is None:
        raise ValueError("tracing: true or false is needed")
    if kind in (None, "undefined", "classic"):  # RabbitMQ's words for none, and what they are without
        kind = ""
    if kind and kind not in QUEUE_TYPES:
        raise ValueError(f"default_queue_type {str(kind)[:40]!r} is none of {', '.join(sorted(QUEUE_TYPES))}")
    if isinstance(tags, str):
        tags = [tag.strip() for tag in tags.split(",") if tag.strip()]
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise ValueError("tags: a list of texts is needed")
    text = str(said.get("description", made.description))
    made = msgspec.structs.replace(
        made, description=text, tags=tags, default_queue_type=kind, gone=False, tracing=tracing
    )
    if len(row_value(made)) > TEXT_BYTES_MAX:
        raise ValueError(f"description and tags have over {TEXT_BYTES_MAX} bytes")
    return made


class VirtualHosts:
    """See the module. Connections and channels are counted for this process."""

    def __init__(self) -> None:
        self.rows: dict[str, VirtualHost] = {}
        self.user_limits: dict[str, dict[str, int]] = {}
        self.present: Counter[tuple[str, str]] = Counter()
        """Connections by ("vhost", name) and ("user", name), channels by ("channels", user)."""
        self.queues: Counter[str] = Counter()
        """By vhost."""

    def changed(self, name: str, data: bytes | None) -> None:
        """A row of the first table."""
        self.rows.pop(name, None)
        if data is not None:
            self.rows[name] = _decode(data)

    def user_changed(self, name: str, data: bytes | None) -> None:
        """A row of the second."""
        self.user_limits.pop(name, None)
        if data is not None:
            self.user_limits[name] = _decode_user(data).limits

    def names(self) -> list[str]:
        """All that can be entered, `/` first."""
        return [ROOT, *sorted(name for name, row in self.rows.items() if not row.gone and name != ROOT)]

    def get(self, name: str) -> VirtualHost | None:
        """None: there is no such vhost."""
        found = self.rows.get(name)
        if found is None and name == ROOT:
            return VirtualHost("Default virtual host")
        return None if found is None or found.gone else found

    def check(self, name: str) -> None:
        """Raises AmqpError where the vhost of a full name is gone."""
        vhost = vhost_of(name)
        if vhost != ROOT and self.get(vhost) is None:
            raise AmqpError(NOT_FOUND, f"vhost '{vhost}' does not exist")

    def check_queue(self, name: str) -> None:
        """One more queue. Raises AmqpError with RabbitMQ's words."""
        self.check(name)
        vhost = vhost_of(name)
        limit = self._limit(vhost, MAX_QUEUES)
        if 0 <= limit <= self.queues[vhost]:
            text = f"cannot declare queue '{name}': queue limit in vhost '{vhost}' ({limit}) is reached"
            raise AmqpError(PRECONDITION_FAILED, text)

    def _limit(self, vhost: str, name: str) -> int:
        row = self.rows.get(vhost)
        return row.limits.get(name, -1) if row is not None else -1

    def check_entry(self, vhost: str, user: str) -> None:
        """One more connection. Raises AmqpError with RabbitMQ's words."""
        if self.get(vhost) is None:
            raise AmqpError(NOT_ALLOWED, f"vhost {vhost} not found", connection=True)
        limit = self._limit(vhost, MAX_CONNECTIONS)
        if 0 <= limit <= self.present["vhost", vhost]:
            text = f"access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) is reached"
            raise AmqpError(NOT_ALLOWED, text, connection=True)
        limit = self.user_limits.get(user, {}).get(MAX_CONNECTIONS, -1)
        if 0 <= limit <= self.present["user", user]:
            text = f"connection refused for user '{user}': user connection limit ({limit}) is reached"
            raise AmqpError(NOT_ALLOWED, text, connection=True)

    def check_channel(self, user: str) -> None:
        """One more channel. Raises AmqpError with RabbitMQ's words."""
        limit = self.user_limits.get(user, {}).get(MAX_CHANNELS, -1)
        if 0 <= limit <= self.present["channels", user]:
            text = (
                f"number of channels opened for user '{user}' has reached the maximum allowed user limit of ({limit})"
            )
            raise AmqpError(NOT_ALLOWED, text, connection=True)

    def default_type(self, vhost: str) -> str:
        """Of queues that are durable and shared; empty: none is added."""
        row = self.rows.get(vhost)
        return row.default_queue_type if row is not None else ""


def said_in(error: AmqpError, vhost: str) -> AmqpError:
    """As clients of the vhost read it: full names without what stands in front, and the vhost's own name."""
    if vhost == ROOT:
        return error
    text = error.text.replace(prefix_of(vhost), "").replace("in vhost '/'", f"in vhost '{vhost}'")
    return AmqpError(error.code, text, connection=error.connection)
