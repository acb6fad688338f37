"""Settings of the MQTT door: section `mqtt`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from gantrymq.model.errors import GantryError
from gantrymq.model.settings import setting
from gantrymq.net.loopback import networks_of
from gantrymq_gateways.mqtt.topics.rewrite import parse_rewriting
from gantrymq_gateways.mqtt.topics.rules import LEVELS_MAX, parse_rules

EVENTS_TOPIC_MAX: Final = 80
"""Characters of `mqtt.events_topic`: a native topic has up to 127 bytes."""


@dataclass(frozen=True, slots=True)
class MqttConfig:
    """Every limit with its reason; `metadata` bounds what may be set."""

    port: int = setting(1883, least=0, most=65535)
    enabled: bool = True
    allow_anonymous: bool = False
    """Let clients of other machines in, too; those of this machine may always come."""
    connect_timeout_ms: int = setting(10_000, least=100, most=600_000)
    """From accepted socket to CONNECT: silent strangers cost memory."""
    websocket_path: str = "/mqtt"
    """Where every port of this door takes WebSockets, too (sub-protocols mqtt and mqttv3.1); empty: nowhere."""
    websocket_origins: str = ""
    """Pages of other hosts that may open one in a browser: origins such as https://app.example.org, separated by commas; * for all. Those of the
    host that they ask always may."""
    proxies: str = ""
    """Networks of proxies (HAProxy, nginx, a cloud's load balancer), separated by commas, whose PROXY headers (versions 1 and 2) are
    believed: their connections count as those of the clients that they name."""
    connections_max: int = setting(0, least=0, most=10_000_000)
    """Clients of this gateway process; 0: as many as server.door_connections_max lets in. One more is refused: return code 3, reason 0x97."""
    connections_per_address_max: int = setting(0, least=0, most=10_000_000)
    """Of them from one address; 0: any number. Behind a router or a proxy (`mqtt.proxies`) many have one."""
    connect_rate_max: int = setting(0, least=0, most=1_000_000)
    """Clients let in a second; 0: any number. More wait their turn up to 10 s, and are refused beyond that: return code 3, reason 0x9F."""
    flapping_max: int = setting(0, least=0, most=1_000_000)
    """Connections of one client id that may end within mqtt.flapping_window_s; one more, and it is banned for mqtt.flapping_ban_s; 0: any number."""
    flapping_window_s: int = setting(60, least=1, most=86_400)
    """See mqtt.flapping_max."""
    flapping_ban_s: int = setting(300, least=1, most=86_400)
    """See mqtt.flapping_max."""
    publish_rate_max: int = setting(0, least=0, most=10_000_000)
    """Messages that one client publishes a second; 0: any number. Who publishes more is not read for a while: nothing is lost or refused."""
    publish_bytes_rate_max: int = setting(0, least=0, most=10_000_000_000)
    """The same in bytes of payload. What is larger is taken, and waited for."""
    bridges: str = ""
    """File with links to other MQTT brokers, as mosquitto.conf writes them: connection, address, topic PATTERN DIRECTION QOS LOCAL REMOTE."""
    inflight_max: int = setting(256, least=1, most=10_000)
    """Messages of QoS 1 and 2 of a session sent and not acknowledged; MQTT 5.0 clients may ask for fewer."""
    awaiting_rel_max: int = setting(1_000, least=1, most=65_535)
    """QoS 2 messages of a publisher that it has not released: each is a packet identifier that we must remember. MQTT 5.0 clients are told it as
    Receive Maximum, which counts QoS 1, too; who goes beyond it is disconnected."""
    topic_alias_max: int = setting(100, least=0, most=65_535)
    """Topic aliases of a 5.0 client in each direction: each keeps a topic in memory."""
    volatile_entries_max: int = setting(100_000, least=1, most=1_000_000)
    """QoS 1 messages that wait (as positions in the log) for a slow client with a clean session; beyond it see volatile_entries_full."""
    volatile_bytes_max: int = setting(0, least=0)
    """The same in bytes of their records; 0: no limit. They lie in the log, not in memory."""
    volatile_entries_full: Literal["disconnect", "drop_oldest", "drop_newest"] = "disconnect"
    """What becomes of one more: the client is cut off (reason 0x97), or the oldest that waits, or the new one, is dropped and counted."""
    outbound_bytes_max: int = setting(8 * 1024 * 1024, least=262_144, most=16 * 1024 * 1024)
    """Bytes on their way to one client beyond which QoS 0 is dropped: a burst of that size arrives whole. QoS 1 stays in the log, whatever is set here."""
    refused_publish: Literal["close", "dead_letter"] = "close"
    """What becomes of a PUBLISH that no record can be, by its size or its name: the connection is closed, and the client's next ones are answered
    later and later (up to 30 s); or it is stored in %DLQ%gantry_mqtt and acknowledged, up to 100 a second and 64 MiB an hour of one client."""
    topic_rules: str = ""
    """Native topics by prefix of the MQTT topic: PREFIX=TOPIC, separated by semicolons (devices/=fleet; sensor-=sensors). What is under a prefix
    goes to its topic with all its levels in the tag. Set it before the first publish, alike for all gateways of a cluster."""
    rewrite: str = ""
    """Topics and filters that become others: ACTION SOURCE REGEX DESTINATION, separated by semicolons (all old/# ^old/(.+)$ new/$1); ACTION is publish, subscribe or all."""
    topic_levels: int = setting(1, least=1, most=LEVELS_MAX)
    """Leading levels of an MQTT topic that name its native topic where no rule fits; the others are the tag. Set it as the rules."""
    unacked_bytes_max: int = setting(4 * 1024 * 1024, least=65_536, most=64 * 1024 * 1024)
    """Bodies of one publisher handed to the log and not acknowledged by it; beyond it we stop reading from the publisher."""
    busy_retry_ms: int = setting(100, least=1, most=10_000)
    """Between attempts to hand over what the server was too busy for; meanwhile its publisher is not read."""
    subscriptions_max: int = setting(1_000, least=1, most=100_000)
    """Filters of one session; more are refused with SUBACK 0x80. Each of a persistent session costs a cursor. One packet has at most
    10000 filters, whatever is set here: more close the connection."""
    shared_strategy: Literal["round_robin", "least_inflight", "sticky", "hash_topic", "hash_client", "key"] = (
        "round_robin"
    )
    """Which member of a shared subscription gets a message: each in turn; who has least to acknowledge; one as long as it is there; by the topic;
    by the publisher; or in turn, but a topic's messages to the same as long as it has some to acknowledge, so that their order holds."""
    replays_max: int = setting(100, least=0, most=100_000)
    """Subscriptions that begin in the past ($from/...) at once: each reads its whole topic and keeps up to 1 MiB in memory. One more is refused; 0: any number."""
    retained_max: int = setting(100_000, least=0, most=10_000_000)
    """Topics with a retained message: all are held in memory. Beyond it a retained publish closes the connection."""
    retained_bytes_max: int = setting(256 * 1024 * 1024, least=0)
    """Topics, properties and payloads of all retained messages, for the same reason."""
    session_expiry_s: int = setting(86_400, least=1, most=10 * 365 * 86_400)
    """A persistent session is forgotten so long after its client left: an abandoned one would pin its backlog for ever."""
    sessions_max: int = setting(100_000, least=1, most=10_000_000)
    """Persistent sessions; a CONNECT that would begin one more is answered with return code 3."""
    sys_interval_s: int = setting(10, least=0, most=86_400)
    """Between values at $SYS/broker/...; 0: there are none."""
    events_topic: str = ""
    """First level of the topics where clients that come and go are told: TOPIC/clients/CLIENT/connected and .../disconnected; empty: nowhere."""
    keep_alive_s_max: int = setting(0, least=0, most=65_535)
    """Cap on the keep-alive that clients ask for; 0: none."""

    def __post_init__(self) -> None:
        if self.websocket_path and not self.websocket_path.startswith("/"):
            raise ValueError(f"websocket_path = {self.websocket_path!r:.80} does not begin with /")
        plain = self.events_topic.replace("_", "").replace("-", "")
        if plain and not (plain.isascii() and plain.isalnum() and len(self.events_topic) <= EVENTS_TOPIC_MAX):
            raise ValueError(
                f"events_topic = {self.events_topic!r:.80} is not of 1 to {EVENTS_TOPIC_MAX} letters, digits, _ and -"
            )
        try:
            networks_of(self.proxies)
        except ValueError as error:
            raise ValueError(f"proxies = {self.proxies!r:.80}: {error}; write 10.0.0.0/8, 192.0.2.7") from error
        try:
            parse_rewriting(self.rewrite)
        except GantryError as error:
            raise ValueError(f"rewrite = {self.rewrite!r:.80}: {error.text}") from error
        try:
            parse_rules(self.topic_rules)
        except GantryError as error:
            raise ValueError(f"topic_rules = {self.topic_rules!r:.80}: {error.text}; write devices/=fleet") from error
