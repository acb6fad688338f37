"""Settings of section `amqp`."""

from __future__ import annotations

from dataclasses import dataclass

from gantrymq.model.settings import setting


@dataclass(frozen=True, slots=True)
class AmqpConfig:
    """The AMQP door. Limits are per connection or broker as said; they end in errors that name them."""

    port: int = setting(5672, least=0, most=65535)
    enabled: bool = True
    management_port: int | None = setting(
        None,
        "port of RabbitMQ's management API (HTTP); 0 takes a free one; not given: 15672 where the door has its default port and is bound to loopback, else none",
        least=0,
        most=65535,
    )
    loopback_guest_only: bool = True
    """Let `guest`, the only account, in from this machine alone (RabbitMQ: loopback_users); false: from every machine that reaches the door."""
    channel_max: int = setting(2047, least=1, most=65535)
    """Offered in tune: highest channel number."""
    frame_max: int = setting(131072, least=4096, most=16 * 1024 * 1024)
    """Offered in tune: largest frame in bytes."""
    heartbeat: int = setting(60, least=0, most=65535)
    """Offered in tune: seconds."""
    rabbitmq_metrics: bool = False
    """Numbers under RabbitMQ's names (`rabbitmq_*`) on the metrics door, beside ours; in one process of several, for queues are those of all."""
    product: str = "RabbitMQ"
    """Server property that clients look at to find out what they may use."""
    version: str = "4.0.5"
    """Server property; some clients parse it as dotted integers."""
    consumers_max: int = setting(4096, least=1, most=100_000)
    """Consumers per channel; a round over a queue's consumers must stay short."""
    unacked_max: int = setting(65_536, least=1, most=10_000_000)
    """Deliveries per channel without an answer, for consumers without prefetch: about 20 MiB of bookkeeping."""
    consumer_timeout_ms: int = setting(1_800_000, least=0, most=31_536_000_000)
    """How long a delivery may wait for its answer before its channel is closed, of queues without `x-consumer-timeout`; 0: for ever."""
    delivery_limit: int = setting(20, least=-1, most=1_000_000_000)
    """Deliveries of a message of a `quorum` queue without `x-delivery-limit`, after which it is dropped or a dead letter (RabbitMQ 4: 20); -1: any number."""
    outbound_bytes_max: int = setting(1024 * 1024, least=65536, most=16 * 1024 * 1024)
    """Bytes for one slow reader above which nothing more is fetched for it."""
    inbound_bytes_max: int = setting(16 * 1024 * 1024, least=65536, most=256 * 1024 * 1024)
    """Bodies of one connection that wait for the log, or behind a method that does, above which nothing more is read from it."""
    tx_bytes_max: int = setting(16 * 1024 * 1024, least=65536, most=16 * 1024 * 1024)
    """Bodies and properties of one transaction (tx.select): they are kept in memory, and written in one turn."""
    keep_exchange_records: bool = True
    """Records of exchanges and queues are kept for `store.file_reserved_hours`, for other doors to read; false: only until all queues, sessions and
    subscriptions that got them have acknowledged them. The broker reads it, so it is given to every broker; a topic's attribute `keep.records` wins."""
    bridge_secrets: str = ""
    """Folder with the passwords of bridges, a file each; without it they are variables GANTRY_BRIDGE_NAME of the server's environment."""
    exchanges_max: int = setting(10_000, least=0, most=1_000_000)
    """Exchanges that clients declared, all together."""
    queues_max: int = setting(100_000, least=0, most=1_000_000)
    """Queues, all together; each is a light queue and a cursor of the broker."""
    bindings_max: int = setting(500_000, least=0, most=2_000_000)
    """Bindings, all together; each is a route of the broker."""
