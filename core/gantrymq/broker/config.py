"""Settings of the broker: its sections (section `store`: store/config.py), and what the process gives it beside them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from gantrymq.broker.row_checks import RowCheck
from gantrymq.model.settings import setting
from gantrymq.store.schedule import DELAY_LEVELS, delays_of

_NAME = re.compile(r"[A-Za-z0-9_%|.\-]{1,255}\Z")
"""What nameservers take as the name of a cluster or broker."""
_HOST = re.compile(r"([A-Za-z0-9._\-]{0,253}|\[?[0-9A-Fa-f]*:[0-9A-Fa-f:.]+(%[A-Za-z0-9._\-]+)?\]?)\Z")
"""A host name or an address of either kind, without a port."""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Identity and address."""

    port: int = setting(10911, least=0, most=65535)
    vip_channel: bool = True
    """The same door again on `port` - 2, where RocketMQ's clients up to 4.5.0 send and rocketmq-dashboard asks (vipChannelEnabled)."""
    name: str = "broker-a"
    """Name of the broker group in routes, unlike any other's of the cluster (RocketMQ: brokerName)."""
    cluster: str = "DefaultCluster"
    """Cluster that it belongs to (RocketMQ: brokerClusterName)."""
    metadata_group: str = ""
    """Name of the broker group that keeps the cluster's table of slots, the same at every broker: which group decides about a name, and has its
    queue. Empty: this broker is alone behind its gateways, which do not use several without it together. It cannot be changed later."""
    forward_records_max: int = setting(10_000_000, least=1_000)
    """Records that wait for one other broker group, 20 bytes each beside the log. More that it wants, by its last
    word, are refused until it takes some, or is forgotten (`gantry cluster forget`); publishers of others go on."""
    id: int = setting(0, least=0, most=0)
    """0 is the master; slaves come with replication."""
    advertised_host: str = ""
    """What routes tell clients; empty: the bound address, or the outgoing one where that is 0.0.0.0."""
    pending_bytes_max: int = setting(256 * 1024 * 1024, least=1 << 20)
    """Records accepted and not yet acknowledged, whole process; beyond it submits are answered BUSY."""
    pending_ms_max: int = setting(3_000, least=10, most=3_600_000)
    """...and so they are while the disk has acknowledged nothing for so long: Java clients give a send up after three seconds."""
    waiting_pulls_max: int = setting(16_384, least=1, most=200_000)
    """Pulls of one connection that wait for a message, one per queue that a consumer reads; more are answered SYSTEM_BUSY."""
    store_replies: bool = True
    """Replies to requests are kept in `<cluster>_REPLY_TOPIC`, beside being pushed (RocketMQ: storeReplyMessageEnable)."""
    batch_messages_max: int = setting(16_384, least=1, most=16_384)
    """Messages in one SEND_BATCH_MESSAGE; more are refused. A batch is one append, 3 us a message. RocketMQ's example that fills batches
    of a million bytes sends 14,000 in one."""
    session_bytes_max: int = setting(1 << 30, least=0)
    """Backlog of one MQTT session (one filter's queue); beyond it see session_bytes_full. Looked at once a minute. 0: no limit."""
    session_bytes_full: Literal["drop_oldest", "drop_newest", "disconnect"] = "drop_oldest"
    """What goes beyond session_bytes_max: the oldest messages, or those that came last, dropped and counted; or the session ends: its client is
    disconnected (reason 0x97) and finds no session when it comes back."""
    session_messages_max: int = setting(0, least=0)
    """The same in messages, those with the client included; looked at once a minute. 0: no limit."""
    session_messages_full: Literal["drop_oldest", "drop_newest", "disconnect"] = "drop_oldest"
    """The same for session_messages_max; drop_newest is what Mosquitto's max_queued_messages does."""
    snapshot_records: int = setting(100_000, least=1)
    """A snapshot of tables and cursors is made after so many records of theirs, or a quarter of the rows, whichever is more."""
    snapshot_interval_s: int = setting(600, least=1, most=1_000_000)
    """...and after this time if a tenth of that came; also at a clean stop."""

    def __post_init__(self) -> None:
        group = self.metadata_group
        for key, value in (("name", self.name), ("cluster", self.cluster), ("metadata_group", group or self.name)):
            if _NAME.match(value) is None:
                raise ValueError(f"{key} = {value!r:.80}: allowed are 1 to 255 of [A-Za-z0-9_%|.-]")
        if _HOST.match(self.advertised_host) is None:
            raise ValueError(f"advertised_host = {self.advertised_host!r:.80}: allowed are a host name or an address")


@dataclass(frozen=True, slots=True)
class TopicsConfig:
    """How topics come into being."""

    auto_create: bool = True
    """Whether publishing to a topic that does not exist makes it (RocketMQ: autoCreateTopicEnable)."""
    auto_create_max: int = setting(10_000, least=0, most=1_000_000)
    """Topics that may come into being by themselves: a fleet with device ids in first levels must not fill the tables. Shares of connections
    and doors: broker/topic_budget.py."""
    queue_topics_max: int = setting(200_000, least=0, most=2_000_000)
    """Topics made for declared AMQP queues, which do not count there. One stays when its queue goes (`gantry topic prune --unused`)."""
    default_queues: int = setting(4, least=1, most=128)
    """Queues of a topic that a native producer creates by sending."""
    check_message_type: bool = False
    """Sends over Remoting must have the type that their topic's attribute `message.type` says, as behind RocketMQ's proxy
    (enableTopicMessageTypeCheck). RocketMQ's broker does not look."""


@dataclass(frozen=True, slots=True)
class ExchangesConfig:
    """What the broker reads of the AMQP door's section, which says what it is."""

    PART: ClassVar[bool] = True
    keep_exchange_records: bool = True


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """What gateways need from the broker."""

    queues: int = setting(4, least=1, most=128)
    """Queues of a topic made by a gateway; the queue is chosen by hash of sharding key, else tag."""


@dataclass(frozen=True, slots=True)
class TransactionsConfig:
    """When producers are asked what became of their transactions."""

    timeout_ms: int = setting(6_000, least=0, most=86_400_000)
    """Age of a half message at its first check, unless its producer asked for another (RocketMQ: transactionTimeOut)."""
    check_interval_ms: int = setting(30_000, least=100, most=86_400_000)
    """Between two checks (RocketMQ: transactionCheckInterval)."""
    check_max: int = setting(15, least=1, most=1_000_000)
    """Checks of one half message; then it goes to TRANS_CHECK_MAX_TIME_TOPIC (RocketMQ: transactionCheckMax)."""


@dataclass(frozen=True, slots=True)
class TimerConfig:
    """Messages that wait for their time."""

    max_delay_s: int = setting(3 * 24 * 3600, least=1, most=100 * 366 * 24 * 3600)
    """Longest delay of a message with a time of its own, three days as RocketMQ's timerMaxDelaySec; a longer one is refused. A message
    that waits is kept whatever the retention."""
    delay_levels: str = DELAY_LEVELS
    """What the delay levels mean, level 1 first (RocketMQ: messageDelayLevel); levels above the last count as the last."""
    recall: bool = True
    """Whether a message with a time of its own can be recalled (RocketMQ: recallMessageEnable)."""

    def __post_init__(self) -> None:
        try:
            delays_of(self.delay_levels)
        except ValueError as error:
            raise ValueError(f"delay_levels = {error}") from None


def nobody() -> None:
    """Nobody is told."""


def untimed() -> float:
    """The clock of a broker whose batches are not timed."""
    return 0.0


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Settings of the broker's parts, what its tables may hold, whom it tells, and a clock for timings. Without them it stands alone."""

    timer: TimerConfig = field(default_factory=TimerConfig)
    transactions: TransactionsConfig = field(default_factory=TransactionsConfig)
    row_checks: Mapping[str, RowCheck] | None = None
    """Of tables whose rows a start puts aside if they cannot be read; None: of the broker's own."""
    request_flush: Callable[[], None] = nobody
    """Synchronous flush: called once per turn that parked something (the flusher's group commit)."""
    on_delays_settled: Callable[[], None] = nobody
    """Called when floors of the delays' cursors have moved (the export of delayOffset.json and timercheck)."""
    now_s: Callable[[], float] = untimed
    """Seconds of a clock that never goes back, by which batches are timed."""
    random_bits: Callable[[int], int] = secrets.randbits
    """Tells one start of the broker from all others."""


DEFAULTS: Final = BrokerOptions()
