"""GET_BROKER_RUNTIME_INFO: what `mqadmin brokerStatus` and `clusterList` print of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.constants import VERSION, RequestCode
from gantrymq.remoting.dispatch import Handler
from gantrymq.store.retention.rules import used_ratio

if TYPE_CHECKING:
    from gantrymq.broker.rocketmq.stats import BrokerStats
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.remoting.server.tools import Tools

UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

QUEUES: Final = ("send", "pull", "litePull", "query", "ack")
"""RocketMQ's thread pools: there are none here, so nothing waits in them."""


def readable_size(count: int) -> str:
    """As MixAll.humanReadableByteCount: 1024 is `1.0 KiB`."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    unit = 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.1f} {UNITS[unit]}"


def _three(windows: tuple[float, float, float]) -> str:
    return " ".join([repr(round(value, 6)) for value in windows])


def _running(spent_ms: int) -> str:
    seconds = spent_ms // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"


def _counts(stats: BrokerStats) -> dict[str, str]:
    puts, gets = _three(stats.windows()), _three(stats.windows(True))
    table = {
        "putTps": puts, "getTotalTps": gets, "getFoundTps": gets, "getTransferredTps": gets, "getTransferedTps": gets,
        "getMissTps": "0.0 0.0 0.0", "putMessageTimesTotal": str(stats.put_total), "putMessageFailedTimes": "0",
        "putMessageSizeTotal": str(stats.put_bytes),
        "putMessageAverageSize": repr(stats.put_bytes / stats.put_total if stats.put_total else 0.0),
    }  # fmt: skip
    for word, of_gets in (("Put", False), ("Get", True)):
        now, today, yesterday = stats.days(of_gets)
        table[f"msg{word}TotalTodayNow"] = str(now)
        table[f"msg{word}TotalTodayMorning"] = str(today)
        table[f"msg{word}TotalYesterdayMorning"] = str(yesterday)
    return table


def runtime_info(command: Command, reply: Reply, services: Tools) -> None:
    """See the module."""
    store = services.store
    first = store.log_min_position if store.written_position > store.log_min_position else -1
    reply.read(
        command,
        lambda reading: reading.store.store_ms_at(first) if first >= 0 else -1,
        lambda oldest_ms: _runtime_info(command, reply, services, oldest_ms),
    )


def _runtime_info(command: Command, reply: Reply, services: Tools, oldest: int) -> None:
    store = services.store
    now_ms = services.clock.now_ms()
    size, free = store.disk_usage()
    used = repr(round(used_ratio(size, free), 4))
    to_flush = store.written_position - store.flushed_position
    table = {
        "brokerVersionDesc": "V5_3_3", "brokerVersion": str(VERSION), "brokerActive": "true",
        "bootTimestamp": str(services.identity.started_ms), "runtime": _running(now_ms - services.identity.started_ms),
        "startAcceptSendRequestTimeStamp": "0",
        "commitLogMinOffset": str(store.log_min_position), "commitLogMaxOffset": str(store.written_position),
        "flushedPosition": str(store.flushed_position), "dispatchBehindBytes": "0",
        "dispatchMaxBuffer": "0", "remainHowManyDataToFlush": readable_size(to_flush),
        "remainTransientStoreBufferNumbs": "0", "earliestMessageTimeStamp": str(oldest if oldest > 0 else -1),
        "commitLogDirCapacity": f"Total : {readable_size(size)}, Free : {readable_size(free)}.",
        "commitLogDiskRatio": used, "consumeQueueDiskRatio": used, "pageCacheLockTimeMills": "0",
        "putMessageEntireTimeMax": "0", "getMessageEntireTimeMax": "0", "putLatency99": "0.00", "putLatency999": "0.00",
        "EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": "100000",
        "timerReadBehind": "0", "timerOffsetBehind": "0", "timerCongestNum": "0",
        "timerEnqueueTps": "0.0", "timerDequeueTps": "0.0", "pullWaiting": str(services.pulls.waiting),
    }  # fmt: skip
    for name in QUEUES:
        table[f"{name}ThreadPoolQueueSize"] = "0"
        table[f"{name}ThreadPoolQueueCapacity"] = "10000" if name == "send" else "100000"
        table[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    reply.respond(command, body=bodies.encode(bodies.KVTable(table | _counts(services.stats))))


HANDLERS: Final[dict[int, Handler[Reply, Tools]]] = {
    RequestCode.GET_BROKER_RUNTIME_INFO: runtime_info,
}
