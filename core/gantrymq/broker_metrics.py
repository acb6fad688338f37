"""What a broker tells Prometheus: totals as gauges and counters of the registry, topics and groups as a source that is read in slices.

Names and labels are RocketMQ's where it has the number (BrokerMetricsConstant, DefaultStoreMetricsConstant, PopMetricsConstant), else
`gantry_...`. Topics and groups have numbers of their own up to a limit; system topics have none.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from heapq import nlargest
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from gantrymq.broker.lags import LagSweep
from gantrymq.broker.queues.engine import OUTCOMES
from gantrymq.broker.rocketmq import stats
from gantrymq.metrics import Histogram, Metrics, head, labels_text
from gantrymq.model import names
from gantrymq.remoting.server.clients.requests import language_name

if TYPE_CHECKING:
    from gantrymq.broker.broker import Broker
    from gantrymq.remoting.registration.registrar import Registrar
    from gantrymq.remoting.server.broker_door import BrokerServer

ROWS_PER_PIECE: Final = 500
"""Sample lines written in one go: some 200 us."""

TEXTS_PER_PIECE: Final = 100
"""Texts of labels made in one go: some 300 us."""

COUNTERS_PER_PIECE: Final = 1000
"""Counters looked at in one go: some 300 us, with the sorting of the best."""

NODE_TYPE: Final = "broker"

Labels = list[tuple[str, str]]


def _count_of(counts: Mapping[str, int], why: str) -> int:
    return counts.get(why, 0)


class BrokerMetrics:
    """The numbers of one broker."""

    def __init__(
        self, broker: Broker, doors: BrokerServer, metrics: Metrics, limits: tuple[int, int], flush_seconds: Histogram
    ) -> None:
        self._broker = broker
        self._doors = doors
        self._metrics = metrics
        self._topics_max, self._groups_max = limits
        config = broker.config
        self._node: Labels = [("cluster", config.cluster), ("node_type", NODE_TYPE), ("node_id", config.name)]
        self._flush_seconds = flush_seconds
        self._node_text = labels_text(self._node)
        self._topics_left_out = self._groups_left_out = self._lags_unknown = 0
        self._topic_texts: dict[str, str] = {}
        self._pair_texts: list[dict[str, str]] = [{}, {}]

    def register(self) -> None:
        """Everything."""
        self._totals()
        self._store()
        self._histograms()
        for source in (self._topic_rates, self._group_rates, self._lags, self._clients, self._forwards):
            self._metrics.add_source(source)

    def _one(self, name: str, text: str, source: Callable[[], int | float], kind: str = "gauge", **more: str) -> None:
        self._metrics.read(name, text, source, kind, **dict(self._node), **more)

    def _totals(self) -> None:
        broker, doors = self._broker, self._doors
        counts = broker.stats
        for name, text, source, kind in (
            ("rocketmq_broker_permission", "What clients may: 4 read, 2 write", lambda: broker.settings.permission, "gauge"),
            ("rocketmq_topic_number", "Topics, system topics left out", self._topic_count, "gauge"),
            ("rocketmq_consumer_group_number", "Consumer groups that are configured", lambda: len(doors.groups.configs), "gauge"),
            ("rocketmq_half_messages", "Half messages without a decision", lambda: broker.transactions.pending, "gauge"),
            ("rocketmq_send_to_dlq_messages_total", "Messages that went to a dead letter topic",
             lambda: doors.sends.dead_letters.value, "counter"),
            ("rocketmq_timing_messages", "Messages that wait for a time of delivery", broker.delays.timers.pending, "gauge"),
            ("gantry_put_messages_total", "Messages stored for clients since the start", lambda: counts.put_total, "counter"),
            ("gantry_get_messages_total", "Messages in answers to pulls and pops", lambda: counts.get_total, "counter"),
            ("gantry_pulls_waiting", "Long polls that wait for a message", lambda: doors.pulls.waiting, "gauge"),
            ("gantry_pop_leased", "Messages that pop consumers have and did not acknowledge",
             lambda: len(broker.pops.leases.by_id), "gauge"),
            ("gantry_unflushed_answers_bytes", "Records whose answer waits for the disk", lambda: broker.pending.bytes, "gauge"),
            ("gantry_cursors", "Places of sessions, queues and pop groups", broker.cursors.count, "gauge"),
            ("gantry_offset_places", "Topics and groups with committed offsets", lambda: len(broker.offsets), "gauge"),
            ("gantry_metrics_topics_left_out", "Topics without numbers of their own in the last scrape (metrics.topics_max)",
             lambda: self._topics_left_out, "gauge"),
            ("gantry_metrics_groups_left_out", "Groups and topics without a lag of their own in the last scrape (metrics.groups_max)",
             lambda: self._groups_left_out, "gauge"),
            ("gantry_metrics_lags_unknown", "Groups and topics whose queues were not open yet in the last scrape",
             lambda: self._lags_unknown, "gauge"),
        ):  # fmt: skip
            self._one(name, text, source, kind)
        receiving = broker.receiving
        for name, text, source in (
            (
                "gantry_forwarded_total",
                "Records of other broker groups that entered queues here",
                lambda: receiving.taken,
            ),
            ("gantry_forwarded_dropped_total", "...and that no queue here wanted any more", lambda: receiving.dropped),
        ):
            self._one(name, text, source, "counter")
        taken = broker.queues.counts
        for why in OUTCOMES:
            text = "Entries that queues with a policy took out or did not take, by reason"
            self._one("gantry_queue_entries_total", text, partial(_count_of, taken, why), "counter", outcome=why)

    def _topic_count(self) -> int:
        return sum([not topic.system for topic in self._broker.topics.topics.values()])

    def _store(self) -> None:
        store = self._broker.store
        medium = {"storage_type": "local", "storage_medium": "disk"}
        for name, text, source in (
            ("rocketmq_storage_size", "Length of the log", lambda: store.written_position - store.log_min_position),
            ("rocketmq_storage_flush_behind_bytes", "Bytes of the log that are not on stable storage",
             lambda: store.written_position - store.flushed_position),
            ("rocketmq_storage_dispatch_behind_bytes", "Bytes of the log whose records are in no queue yet",
             lambda: store.written_position - store.dispatched_position),
        ):  # fmt: skip
            self._one(name, text, source, **medium)
        for name, text, source in (
            ("gantry_log_begin_position", "Physical offset of the oldest record", lambda: store.log_min_position),
            ("gantry_log_end_position", "Physical offset behind the newest record", lambda: store.written_position),
            ("gantry_log_flushed_position", "The log below it is on stable storage", lambda: store.flushed_position),
            ("gantry_log_derived_position", "Queues and index below it are on stable storage", lambda: store.derived_position),
            ("gantry_light_live_units", "Entries of light queues that may still be read", lambda: store.light_live_units),
            ("gantry_store_failed", "1 after the disk failed: nothing is accepted any more", lambda: int(store.failure is not None)),
            ("gantry_disk_size_bytes", "Used and available bytes of the file system that holds the store", lambda: store.disk_usage()[0]),
            ("gantry_disk_free_bytes", "Free bytes of it", lambda: store.disk_usage()[1]),
        ):  # fmt: skip
            self._one(name, text, source)

    def _histograms(self) -> None:
        counts, metrics = self._broker.stats, self._metrics
        self._broker.pending.times.show(metrics)
        metrics.show("gantry_flush_seconds", "Time of each flush of the log", self._flush_seconds)
        metrics.show("gantry_pull_answer_messages", "Messages in an answer to a pull", counts.answer_messages)
        metrics.show("gantry_pull_answer_bytes", "Bytes of records in an answer to a pull", counts.answer_bytes)
        metrics.show(
            "gantry_born_to_pulled_seconds",
            "From the producer's clock to the answer to a pull, of the first message of each answer",
            counts.born_seconds,
        )

    # --- sources

    def _forwards(self) -> Iterator[str]:
        sending = self._broker.sending
        shown = {name: sending.show(name) for name in sending.peers}
        texts = {name: self._labels([("peer", name)]) for name in shown}
        for name, text, kind, key in (
            ("gantry_forward_waiting", "Records that wait here for another broker group", "gauge", "behind"),
            ("gantry_forward_lease_ms", "How long the routes of that group are still known; 0: they are not", "gauge", "lease_ms"),
            ("gantry_forward_refused_total", "Records that were refused because too many wait for it", "counter", "refused"),
        ):  # fmt: skip
            if shown:
                yield from self._family(name, text, kind, [(texts[peer], row[key]) for peer, row in shown.items()])

    def _topic_rates(self) -> Iterator[str]:
        shown, left = yield from self._busiest(stats.TOPIC_PUT_NUMS, self._topics_max)
        self._topics_left_out = left
        texts: dict[str, str] = {}
        for place, (topic, _) in enumerate(shown):
            if place % TEXTS_PER_PIECE == 0:
                yield ""
            texts[topic] = self._topic_texts.get(topic) or self._labels(
                [("topic", topic), ("message_type", "normal"), ("is_system", "false")]
            )
        self._topic_texts = texts
        yield ""
        sizes = self._broker.stats.values_of(stats.TOPIC_PUT_SIZE, texts)
        rows = [(texts[topic], count) for topic, count in shown]
        yield from self._family("rocketmq_messages_in_total", "Messages stored by topic", "counter", rows)
        rows = [(text, sizes[topic]) for topic, text in texts.items()]
        yield from self._family("rocketmq_throughput_in_total", "Bytes of records stored by topic", "counter", rows)

    def _group_rates(self) -> Iterator[str]:
        shown, _ = yield from self._busiest(stats.GROUP_GET_NUMS, self._groups_max)
        yield ""
        keys = [key for key, _ in shown]
        sizes = self._broker.stats.values_of(stats.GROUP_GET_SIZE, keys)
        yield ""
        texts = yield from self._keep_pairs(keys, 0)
        rows = [(texts[key], count) for key, count in shown]
        yield from self._family("rocketmq_messages_out_total", "Messages pulled by group", "counter", rows)
        rows = [(texts[key], sizes[key]) for key, _ in shown]
        yield from self._family("rocketmq_throughput_out_total", "Bytes of records pulled by group", "counter", rows)

    def _busiest(self, name: str, limit: int) -> Generator[str, None, tuple[list[tuple[str, int]], int]]:
        """(key, value) of the highest counters without those of system topics, and how many more there are."""
        best: list[tuple[str, int]] = []
        count = 0
        for part in self._broker.stats.tables(name, COUNTERS_PER_PIECE):
            count += len(part)
            best = sorted([*best, *part], key=itemgetter(1), reverse=True)[: limit + len(names.ROCKETMQ_SYSTEM_TOPICS)]
            yield ""
        shown = [entry for entry in best if not names.is_system_topic(entry[0].partition("@")[0])][:limit]
        return shown, count - len(shown)

    def _keep_pairs(self, keys: list[str], which: int) -> Generator[str, None, dict[str, str]]:
        """Label text by `topic@group`, kept from scrape to scrape for what is shown."""
        kept = self._pair_texts[which]
        texts: dict[str, str] = {}
        for first in range(0, len(keys), TEXTS_PER_PIECE):
            for key in keys[first : first + TEXTS_PER_PIECE]:
                texts[key] = kept.get(key) or self._labels(_pair(*key.rpartition("@")[::2]))
            yield ""
        self._pair_texts[which] = texts
        return texts

    def _lags(self) -> Iterator[str]:
        broker, sweep = self._broker, LagSweep(self._groups_max)
        for _ in sweep.groups(broker.store, broker.topics.topics, broker.offsets):
            yield ""
        for _ in sweep.shared(broker.cursors, broker.queues.name_of):
            yield ""
        shown = sweep.behind
        self._groups_left_out = sweep.behind_count - len(shown)
        self._lags_unknown = sweep.unknown
        keys = [f"{name}@{group}" for _, name, group in shown]
        yield ""
        texts = yield from self._keep_pairs(keys, 1)
        for name, text, rows in (
            ("rocketmq_consumer_lag_messages", "Messages that a group has not consumed, by its committed offsets",
             [(texts[key], lag) for key, (lag, _, _) in zip(keys, shown, strict=True)]),
            ("gantry_lag_messages", "Lag of all groups together", [(self._node_text, sweep.total)]),
            ("gantry_lag_places", "Groups and topics that a lag is counted of", [(self._node_text, sweep.places)]),
        ):  # fmt: skip
            yield from self._family(name, text, "gauge", rows)

    def _clients(self) -> Iterator[str]:
        clients = self._doors.clients
        producers: dict[tuple[str, str], int] = {}
        seen: set[tuple[str, object]] = set()
        for members in clients.producers.values():
            for client_id, member in members.items():
                if (client_id, member) not in seen:
                    seen.add((client_id, member))
                    kind = (language_name(member.language).lower(), str(member.version))
                    producers[kind] = producers.get(kind, 0) + 1
        yield ""
        rows = [
            (self._labels([("language", language), ("version", version), ("protocol_type", "remoting")]), count)
            for (language, version), count in sorted(producers.items())
        ]
        yield from self._family("rocketmq_producer_connections", "Producers by language and version", "gauge", rows)
        groups = nlargest(self._groups_max, clients.groups.values(), key=lambda group: len(group.consumers))
        rows = []
        conflicts = []
        for group in groups:
            kinds: dict[tuple[str, str], int] = {}
            for consumer in group.consumers.values():
                kind = (language_name(consumer.language).lower(), str(consumer.version))
                kinds[kind] = kinds.get(kind, 0) + 1
            mode = "pull" if group.consume_type == "CONSUME_ACTIVELY" else "push"
            for (language, version), count in sorted(kinds.items()):
                labels = [("consumer_group", group.name), ("language", language), ("version", version)]
                rows.append((self._labels([*labels, ("consume_mode", mode), ("is_system", "false")]), count))
            if group.conflicts:
                conflicts.append((self._labels([("consumer_group", group.name)]), len(group.conflicts)))
        yield ""
        yield from self._family(
            "rocketmq_consumer_connections", "Consumers by group, language and version", "gauge", rows
        )
        yield from self._family(
            "gantry_group_subscription_conflicts", "Topics of which members of the group want different things", "gauge", conflicts
        )  # fmt: skip

    def _labels(self, labels: Labels) -> str:
        return f"{self._node_text},{labels_text(labels)}"

    def _family(self, name: str, text: str, kind: str, rows: list[tuple[str, int]]) -> Iterator[str]:
        yield head(name, kind, text)
        for first in range(0, len(rows), ROWS_PER_PIECE):
            yield "".join([f"{name}{{{labels}}} {value}\n" for labels, value in rows[first : first + ROWS_PER_PIECE]])


def _pair(topic: str, group: str) -> Labels:
    is_retry = str(topic.startswith(names.RETRY_PREFIX)).lower()
    return [("topic", topic), ("consumer_group", group), ("is_retry", is_retry), ("is_system", "false")]


def registered(registrar: Registrar) -> str:
    """What /readyz says of the broker: no nameserver knows it."""
    if any(link.registered.is_set() for link in registrar.links):
        return ""
    return "not registered with any nameserver: " + ", ".join([link.address for link in registrar.links])
