"""Settings of section `amqp`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AmqpConfig:
    """The AMQP door. Limits are per connection or broker as said; they end in errors that name them."""

    port: int = 5672
    enabled: bool = True
    channel_max: int = 2047
    """Offered in tune: highest channel number."""
    frame_max: int = 131072
    """Offered in tune: largest frame in bytes."""
    heartbeat: int = 60
    """Offered in tune: seconds."""
    product: str = "RabbitMQ"
    """Server property that clients look at to find out what they may use."""
    version: str = "3.13.7"
    """Server property; some clients parse it as dotted integers."""
    body_bytes_max: int = 4 * 1024 * 1024
    """Largest message body: the limit of every door."""
    consumers_max: int = 1000
    """Consumers per channel; a round over a queue's consumers must stay short."""
    unacked_max: int = 65_536
    """Deliveries per channel without an answer, for consumers without prefetch: about 20 MiB of bookkeeping."""
    outbound_bytes_max: int = 1024 * 1024
    """Bytes for one slow reader above which nothing more is fetched for it."""
    inbound_bytes_max: int = 16 * 1024 * 1024
    """Bodies of one connection that wait for the log above which nothing more is read from it."""
    exchanges_max: int = 10_000
    queues_max: int = 100_000
    bindings_max: int = 500_000
