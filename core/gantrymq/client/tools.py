"""Questions of tools about brokers, groups and clients, beside `Admin`: each function takes one and asks the addresses it is told."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from gantrymq.client.admin import Admin
from gantrymq.client.connecting.routes import loads
from gantrymq.client.errors import BrokerError, expect_success
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.names import AUTO_CREATE_TEMPLATE
from gantrymq.remoting import java_properties
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.overview_codes import (
    DAMAGE_LIST,
    DAMAGE_SKIP,
    DRAIN,
    GROUP_LIST,
    GROUP_WISHES,
    OVERVIEW,
    PRUNE_TOPICS,
    TOPIC_LIST,
)

T = TypeVar("T")

TOGETHER: Final = 16
"""Requests on their way at once."""

QUICK_S: Final = 6.0
"""What a server answers at once unless it is busy."""

ASK_CLIENT_S: Final = 5.0
"""A client that is asked through its broker may be stuck in a handler."""

TABLE_S: Final = 15.0
"""Tables of 20,000 topics take a broker seconds, in slices."""

LIST_S: Final = 60.0
"""...and all ends of their queues, the first time after a start, more of them."""

NOBODY: Final = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR)
"""How brokers say that nobody of a group is connected."""


async def gather(work: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Results in order, at most `TOGETHER` at once. The first failure ends all."""
    room = asyncio.Semaphore(TOGETHER)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with room:
            return await call()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(call)) for call in work]
    return [task.result() for task in tasks]


async def masters(admin: Admin, cluster: str = "", broker: str = "") -> dict[str, str]:
    """Broker name to address of its master, all or those named. Raises UNAVAILABLE, NOT_FOUND."""
    found = (await admin.cluster()).masters(cluster)
    if broker:
        if broker not in found:
            like = difflib.get_close_matches(broker, found, 1)
            hint = f"did you mean {like[0]!r}? Known" if like else "known"
            known = ", ".join(sorted(found)) or "none"
            raise GantryError(ErrorCode.NOT_FOUND, f"there is no broker {broker!r}; {hint}: {known}")
        return {broker: found[broker]}
    if not found:
        raise GantryError(ErrorCode.UNAVAILABLE, "no broker is registered with the nameserver")
    return dict(sorted(found.items()))


async def _json(
    admin: Admin, address: str, code: int, fields: dict[str, str], what: str, limit_s: float = QUICK_S
) -> Any:
    if limit_s > QUICK_S:
        await _answers(admin, address)
    return loads((await admin.client.ask(address, Command(code, fields), what, limit_s)).body)


async def _answers(admin: Admin, address: str) -> None:
    """A question that may take a server long is asked only where a small one is answered: any answer will do. Raises UNAVAILABLE."""
    link = await admin.client.links.get(address)
    await link.request(Command(RequestCode.GET_MIN_OFFSET, {"topic": AUTO_CREATE_TEMPLATE, "queueId": "0"}))


async def overview(admin: Admin, address: str, backlog: bool = False) -> dict[str, Any]:
    """A GantryMQ broker at a glance."""
    fields = {"backlog": str(backlog).lower()}
    found: dict[str, Any] = await _json(admin, address, OVERVIEW, fields, "overview", TABLE_S)
    return found


async def damaged_records(admin: Admin, address: str) -> list[dict[str, Any]]:
    """Damaged records that a broker has met and that are still damaged, by position: as `overview_codes.DAMAGE_LIST` says."""
    found: dict[str, Any] = await _json(admin, address, DAMAGE_LIST, {}, "list of damaged records", TABLE_S)
    rows: list[dict[str, Any]] = found["records"]
    return rows


async def skip_damaged(admin: Admin, address: str, position: int, queue: str = "", offset: int = -1) -> int:
    """Nobody waits for the damaged record at that position any more; the number of those who did. `queue`, `offset`: as the list shows them; needed
    where several entries have the position. Raises NOT_FOUND, ILLEGAL_ARGUMENT."""
    fields = {"position": str(position), "queue": queue, "offset": str(offset)}
    found = await _json(admin, address, DAMAGE_SKIP, fields, "skipping")
    return int(found["skipped"])


async def set_draining(admin: Admin, address: str, on: bool) -> None:
    """Gateways and producers take no new messages there, or take them again."""
    await admin.client.ask(address, Command(DRAIN, {"on": str(on).lower()}), "drain")


async def set_write_permission(admin: Admin, broker: str, on: bool) -> list[str]:
    """Wipe or add a broker's write permission at every nameserver; returns those that did not answer."""
    code = RequestCode.ADD_WRITE_PERM_OF_BROKER if on else RequestCode.WIPE_WRITE_PERM_OF_BROKER
    missing = []
    for address in list(admin.client.routes.nameservers):
        try:
            await admin.client.ask(address, Command(code, {"brokerName": broker}), f"write permission of {broker}")
        except GantryError as error:
            if error.code is not ErrorCode.UNAVAILABLE:
                raise
            missing.append(address)
    return missing


async def runtime(admin: Admin, address: str) -> dict[str, str]:
    """GET_BROKER_RUNTIME_INFO."""
    table: dict[str, str] = (await _json(admin, address, RequestCode.GET_BROKER_RUNTIME_INFO, {}, "runtime info"))[
        "table"
    ]
    return table


async def broker_config(admin: Admin, address: str) -> dict[str, str]:
    """Settings under RocketMQ's names."""
    answer = await admin.client.ask(address, Command(RequestCode.GET_BROKER_CONFIG), "configuration")
    return java_properties.read(answer.body)


async def update_broker_config(admin: Admin, address: str, values: Mapping[str, str]) -> None:
    """Change settings, all or none."""
    command = Command(RequestCode.UPDATE_BROKER_CONFIG, {}, java_properties.write(dict(values)))
    await admin.client.ask(address, command, "change of configuration")


async def topic_config(admin: Admin, address: str, topic: str) -> dict[str, Any]:
    """A topic as one broker has it."""
    found: dict[str, Any] = await _json(
        admin, address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic}, f"configuration of {topic!r}"
    )
    return found


async def topic_configs(admin: Admin, address: str) -> dict[str, dict[str, Any]]:
    """All topics of a broker."""
    found: dict[str, dict[str, Any]] = (
        await _json(admin, address, RequestCode.GET_ALL_TOPIC_CONFIG, {}, "topics", TABLE_S)
    )["topicConfigTable"]
    return found


async def update_topic(
    admin: Admin, address: str, topic: str, read: int, write: int, perm: int, attributes: str
) -> None:
    """Create or change a topic at one broker; `attributes`: `+name=value,-name`."""
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(read), "writeQueueNums": str(write), "perm": str(perm),
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": attributes,
    }  # fmt: skip
    await admin.client.ask(address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields), f"topic {topic!r}")


def _queues(table: Mapping[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Entries of a map whose keys are MessageQueues."""
    return [(loads(key.encode()), value) for key, value in table.items()]


async def topic_stats(admin: Admin, address: str, topic: str) -> list[dict[str, Any]]:
    """Both ends of every queue at one broker, and the time of the newest record."""
    found = await _json(
        admin, address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}, f"statistics of {topic!r}", TABLE_S
    )
    rows = [
        {
            "topic": topic, "broker": queue["brokerName"], "queue": queue["queueId"], "min": value["minOffset"],
            "max": value["maxOffset"], "updated": value["lastUpdateTimestamp"],
        }
        for queue, value in _queues(found.get("offsetTable") or {})
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row["broker"], row["queue"]))


async def topic_list(admin: Admin, address: str) -> list[tuple[str, int, int | None]] | None:
    """(name, queues, messages; None: not known yet) of every topic of a broker; None where it is none of ours."""
    return await _list(admin, address, TOPIC_LIST, "topics")


async def prune_topics(
    admin: Admin, address: str, older_ms: int, remove: Iterable[str] | None = None
) -> dict[str, list[Any]]:
    """Unused topics of a broker, or, of those in `remove`, what was removed: see PRUNE_TOPICS."""
    body = json.dumps(list(remove)).encode() if remove is not None else b""
    fields = {"olderMs": str(older_ms), "remove": str(remove is not None).lower()}
    await _answers(admin, address)
    answer = await admin.client.ask(address, Command(PRUNE_TOPICS, fields, body), "unused topics", LIST_S)
    found: dict[str, list[Any]] = loads(answer.body)
    return found


async def group_list(admin: Admin, address: str) -> list[dict[str, Any]] | None:
    """`group`, `lag`, `rate`, `topics` and `members` (client ids) of every group of a broker; None where it is none of ours."""
    return await _list(admin, address, GROUP_LIST, "groups")


async def _list(admin: Admin, address: str, code: int, name: str) -> list[Any] | None:
    try:
        found: list[Any] = (await _json(admin, address, code, {}, f"list of {name}", LIST_S))[name]
    except BrokerError as error:
        if error.response_code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        raise
    return found


async def topic_groups(admin: Admin, address: str, topic: str) -> list[str]:
    """Groups that consume a topic or have offsets of it."""
    found = await _json(
        admin, address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic}, f"groups of {topic!r}"
    )
    return list(found.get("groupList") or ())


async def rate(admin: Admin, address: str, name: str, key: str) -> float:
    """A counter's messages a second over the last minute; 0 for what was not counted."""
    fields = {"statsName": name, "statsKey": key}
    try:
        found = await _json(admin, address, RequestCode.VIEW_BROKER_STATS_DATA, fields, f"rate of {key!r}")
    except BrokerError:
        return 0.0
    return float(found["statsMinute"]["tps"])


async def offset_groups(admin: Admin, address: str) -> set[str]:
    """Groups with offsets at one broker, configured or not."""
    found = await _json(admin, address, RequestCode.GET_ALL_CONSUMER_OFFSET, {}, "offsets", TABLE_S)
    return {place.rpartition("@")[2] for place in found.get("offsetTable") or {}}


async def group_config(admin: Admin, address: str, group: str) -> dict[str, Any] | None:
    """A group as one broker has it; None if it does not."""
    try:
        found: dict[str, Any] = await _json(
            admin, address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group}, f"group {group!r}"
        )
    except BrokerError as error:
        if error.response_code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            return None
        raise
    return found


async def update_group(admin: Admin, address: str, config: Mapping[str, Any]) -> None:
    """Create or change a group at one broker."""
    body = msgspec.json.encode(dict(config))
    command = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    await admin.client.ask(address, command, f"group {config['groupName']!r}")


async def group_progress(admin: Admin, address: str, group: str, topic: str = "") -> tuple[float, list[dict[str, Any]]]:
    """Messages a second that a group takes at one broker, and how far it is in every queue."""
    fields = {"consumerGroup": group, "topic": topic}
    found = await _json(admin, address, RequestCode.GET_CONSUME_STATS, fields, f"progress of {group!r}", TABLE_S)
    rows = [
        {
            "topic": queue["topic"], "broker": queue["brokerName"], "queue": queue["queueId"],
            "committed": value["consumerOffset"], "end": value["brokerOffset"],
            "lag": max(value["brokerOffset"] - value["consumerOffset"], 0), "consumed": value["lastTimestamp"],
        }
        for queue, value in _queues(found.get("offsetTable") or {})
    ]  # fmt: skip
    return float(found.get("consumeTps") or 0), sorted(
        rows, key=lambda row: (row["topic"], row["broker"], row["queue"])
    )


async def connections(admin: Admin, address: str, group: str) -> dict[str, Any] | None:
    """Members of a group at one broker and what they want as a whole; None if nobody is connected."""
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    try:
        found: dict[str, Any] = await _json(admin, address, code, {"consumerGroup": group}, f"members of {group!r}")
    except BrokerError as error:
        if error.response_code in NOBODY:
            return None
        raise
    return found


async def group_wishes(admin: Admin, address: str, group: str) -> dict[str, dict[str, str]] | None:
    """What each member of a group wants of each topic, by client id; None where the broker is none of ours."""
    try:
        found: dict[str, dict[str, str]] = (
            await _json(admin, address, GROUP_WISHES, {"group": group}, f"wishes of {group!r}")
        )["wishes"]
    except BrokerError:
        return None
    return found


async def member_subscriptions(admin: Admin, address: str, group: str, client_id: str) -> dict[str, str] | None:
    """What one member says that it wants, by topic; None if it does not answer."""
    fields = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    try:
        found = await _json(admin, address, code, fields, f"running info of {client_id}", ASK_CLIENT_S)
    except GantryError:
        return None
    return {each["topic"]: each.get("subString") or "*" for each in found.get("subscriptionSet") or ()}


async def producers(admin: Admin, address: str) -> dict[str, list[dict[str, Any]]]:
    """Producers that are connected to one broker, by group."""
    found: dict[str, list[dict[str, Any]]] = (
        await _json(admin, address, RequestCode.GET_ALL_PRODUCER_INFO, {}, "producers")
    ).get("data") or {}
    return found


async def clone_offsets(admin: Admin, address: str, source: str, target: str, topic: str = "") -> None:
    """Give a group the offsets of another, of one topic or of all."""
    fields = {"srcGroup": source, "destGroup": target, "topic": topic, "offline": "true"}
    await admin.client.ask(address, Command(RequestCode.CLONE_GROUP_OFFSET, fields), f"clone of {source!r}")


async def reset_queue(admin: Admin, address: str, group: str, topic: str, queue: int, offset: int) -> None:
    """Let a group go on at an offset of one queue."""
    fields = {
        "topic": topic, "group": group, "timestamp": "0", "isForce": "true", "queueId": str(queue), "offset": str(offset),
    }  # fmt: skip
    await admin.client.ask(address, Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields), f"reset of {group!r}")


async def nameserver_config(admin: Admin, address: str) -> dict[str, str]:
    """A nameserver's settings."""
    link = await admin.client.links.get(address)
    answer = await link.request(Command(RequestCode.GET_NAMESRV_CONFIG))
    return java_properties.read(expect_success(answer, "configuration", address).body)


def as_json(value: object) -> str:
    """One line."""
    return json.dumps(value, ensure_ascii=False)
