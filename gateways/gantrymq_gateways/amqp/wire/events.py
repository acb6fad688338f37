"""What a connection is given and what it tells: settings, and the events of `Connection.receive_data`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gantrymq.model.limits import BODY_BYTES_CEILING
from gantrymq_gateways.amqp.wire.assembling import Total
from gantrymq_gateways.amqp.wire.constants import Method
from gantrymq_gateways.amqp.wire.values import Table


@dataclass(frozen=True, slots=True)
class Settings:
    """What the server offers."""

    properties: Table
    channel_max: int = 2047
    frame_max: int = 131072
    heartbeat_s: int = 60
    body_bytes_max: int = BODY_BYTES_CEILING
    """When the connection begins."""
    body_bytes_now: Callable[[], int] | None = None
    """The same as brokers come and go; asked for bodies of more than one frame."""
    assembling: Total = field(default_factory=Total)
    """Shared by all connections."""


@dataclass(slots=True)
class Opened:
    """Logged in and open: methods may come."""

    user: str
    client: str


@dataclass(slots=True)
class ChannelOpened:
    channel: int


@dataclass(slots=True)
class ChannelClosing:
    """The peer closes a channel: when its work is finished, call `channel_closed`."""

    channel: int


@dataclass(slots=True)
class ChannelFailed:
    """We closed the channel after a protocol error; it exists no more."""

    channel: int


@dataclass(slots=True)
class Publish:
    """basic.publish, whole. `arguments`, `properties`: raw bytes (method arguments; flags and property list)."""

    channel: int
    arguments: bytes
    properties: bytes
    body: bytes


@dataclass(slots=True)
class MethodReceived:
    channel: int
    method: Method
    arguments: list[Any]


@dataclass(slots=True)
class ConnectionClosing:
    """The peer says goodbye: when everything is released, call `connection_closed`."""


@dataclass(slots=True)
class Ended:
    """Close the socket. `abort`: without a word. `reason`: for the log; empty for an ordinary end."""

    reason: str
    abort: bool = False


Event = Opened | ChannelOpened | ChannelClosing | ChannelFailed | Publish | MethodReceived | ConnectionClosing | Ended
