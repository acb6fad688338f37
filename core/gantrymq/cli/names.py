"""Names that people type: which are not theirs to look at, and what they may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Final

from gantrymq.client import tools
from gantrymq.client.admin import Admin, ClusterInfo, is_system_group
from gantrymq.client.connecting.routes import MessageQueue, Route
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.names import DLQ_PREFIX, LMQ_PREFIX, RETRY_PREFIX, is_system_topic

REDRIVE_PREFIX: Final = "gantry_redrive_"
"""Group that keeps how far a group's dead letters were sent again."""

TOOL_GROUPS: Final = frozenset({"gantry_get", "gantry_pull", "gantry_tail"})
"""Under which the commands read that show messages."""

LIKE: Final = 0.6
"""From this likeness on a name is worth asking about (difflib's own default)."""


def is_own_topic(name: str, info: ClusterInfo) -> bool:
    """Retry and dead letter topics, RocketMQ's and our own, and those that RocketMQ makes of a cluster's or broker's name."""
    if name.startswith((RETRY_PREFIX, DLQ_PREFIX, LMQ_PREFIX)) or is_system_topic(name):
        return True
    return name in info.clusters or name in info.brokers or name.removesuffix("_REPLY_TOPIC") in info.clusters


def is_own_group(name: str) -> bool:
    """RocketMQ's groups and those of these commands."""
    return is_system_group(name) or name in TOOL_GROUPS or name.startswith(REDRIVE_PREFIX)


async def topics(admin: Admin) -> tuple[list[str], list[str]]:
    """The user's topics, and the others (`is_own_topic`); each sorted."""
    names, info = await admin.topics(system=True), await admin.cluster()
    hidden = [name for name in names if is_own_topic(name, info)]
    return sorted(set(names).difference(hidden)), hidden


async def groups(admin: Admin) -> tuple[list[str], list[str]]:
    """The user's groups, those that only have offsets (pull consumers) among them, and the others; each sorted."""
    names = set(await admin.groups(system=True))
    for address in (await tools.masters(admin)).values():
        names |= await tools.offset_groups(admin, address)
    return sorted(filter(lambda name: not is_own_group(name), names)), sorted(filter(is_own_group, names))


def hidden_line(count: int, what: str) -> str:
    """What a list says of names that it leaves out; empty where there are none."""
    return f"{count} {what}{'s' if count != 1 else ''} of the system hidden (--all shows them)" if count else ""


def near(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing where nothing is like it."""
    names = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), names, 1, LIKE)
    found = found or sorted([each for each in names if each.startswith(name.lower())], key=len)[:1]
    return f"; did you mean {names[found[0]]!r}?" if found else ""


async def unknown_topic(admin: Admin, topic: str) -> GantryError:
    """That there is no such topic, in the user's words instead of the wire's."""
    shown, hidden = await topics(admin)
    known = hidden if topic.startswith("%") else shown
    return GantryError(ErrorCode.TOPIC_NOT_FOUND, f"there is no topic {topic!r}{near(topic, known)}")


async def check_queue(admin: Admin, queue: MessageQueue) -> Route:
    """The topic's route. Raises TOPIC_NOT_FOUND, and QUEUE_NOT_FOUND naming those that there are."""
    route = await admin.route(queue.topic)
    if queue not in route.read_queues():
        counts = [f"{broker}/0 to {broker}/{read - 1}" for broker, (read, _, _) in sorted(route.queues.items())]
        text = f"topic {queue.topic!r} has no queue {queue.broker}/{queue.queue_id}; it has {', '.join(counts)}"
        raise GantryError(ErrorCode.QUEUE_NOT_FOUND, text)
    return route


async def in_words(admin: Admin, error: GantryError, arguments: dict[str, Any]) -> GantryError:
    """`error`, where a name among the command's `arguments` is the reason with what may have been meant."""
    topic, group = arguments.get("topic"), arguments.get("group", arguments.get("source"))
    try:
        if error.code is ErrorCode.TOPIC_NOT_FOUND and isinstance(topic, str) and repr(topic) in error.text:
            return await unknown_topic(admin, topic)
        if error.code is ErrorCode.GROUP_NOT_FOUND and isinstance(group, str):
            return GantryError(error.code, f"{error.text}{near(group, (await groups(admin))[0])}")
    except GantryError:
        return error  # the names cannot be had any more: what failed first is what counts
    return error
