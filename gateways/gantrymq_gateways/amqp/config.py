"""Settings of section `amqp`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AmqpConfig:
    """The AMQP door. Limits are per connection or broker as said; they end in errors that name them."""

    port: int = field(default=5672, metadata={"min": 0, "max": 65535})
    enabled: bool = True
    management_port: int | None = field(
        default=None,
        metadata={
            "min": 0,
            "max": 65535,
            "help": "port of RabbitMQ's management API (HTTP); 0 takes a free one; not given: 15672 where the door has its default port and is bound to loopback, else none",
        },
    )
    loopback_guest_only: bool = True
    """Let `guest`, the only account, in from this machine alone (RabbitMQ: loopback_users); false: from every machine that reaches the door."""
    channel_max: int = field(default=2047, metadata={"min": 1, "max": 65535})
    """Offered in tune: highest channel number."""
    frame_max: int = field(default=131072, metadata={"min": 4096, "max": 16 * 1024 * 1024})
    """Offered in tune: largest frame in bytes."""
    heartbeat: int = field(default=60, metadata={"min": 0, "max": 65535})
    """Offered in tune: seconds."""
    product: str = "RabbitMQ"
    """Server property that clients look at to find out what they may use."""
    version: str = "3.13.7"
    """Server property; some clients parse it as dotted integers."""
    consumers_max: int = field(default=4096, metadata={"min": 1, "max": 100_000})
    """Consumers per channel; a round over a queue's consumers must stay short."""
    unacked_max: int = field(default=65_536, metadata={"min": 1, "max": 10_000_000})
    """Deliveries per channel without an answer, for consumers without prefetch: about 20 MiB of bookkeeping."""
    consumer_timeout_ms: int = field(default=1_800_000, metadata={"min": 0, "max": 31_536_000_000})
    """How long a delivery may wait for its answer before its channel is closed, of queues without `x-consumer-timeout`; 0: for ever."""
    outbound_bytes_max: int = field(default=1024 * 1024, metadata={"min": 65536, "max": 16 * 1024 * 1024})
    """Bytes for one slow reader above which nothing more is fetched for it."""
    inbound_bytes_max: int = field(default=16 * 1024 * 1024, metadata={"min": 65536, "max": 256 * 1024 * 1024})
    """Bodies of one connection that wait for the log, or behind a method that does, above which nothing more is read from it."""
    tx_bytes_max: int = field(default=16 * 1024 * 1024, metadata={"min": 65536, "max": 16 * 1024 * 1024})
    """Bodies and properties of one transaction (tx.select): they are kept in memory, and written in one turn."""
    exchanges_max: int = field(default=10_000, metadata={"min": 0, "max": 1_000_000})
    """Exchanges that clients declared, all together."""
    queues_max: int = field(default=100_000, metadata={"min": 0, "max": 1_000_000})
    """Queues, all together; each is a light queue and a cursor of the broker."""
    bindings_max: int = field(default=500_000, metadata={"min": 0, "max": 2_000_000})
    """Bindings, all together; each is a route of the broker."""
