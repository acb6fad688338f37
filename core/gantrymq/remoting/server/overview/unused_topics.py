"""PRUNE_TOPICS: which topics that came into being at their first use are unused, and their removal (`gantry topic prune --unused`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from gantrymq.broker.retention.unused import UnusedTopics, load_topic_users
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.headers import parse
from gantrymq.remoting.overview_codes import PRUNE_TOPICS
from gantrymq.remoting.server.jobs import patiently

if TYPE_CHECKING:
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.administration import Administration
    from gantrymq.remoting.server.jobs import Steps
    from gantrymq.remoting.server.reply import Reply

TOPICS_STEP: Final = 20
"""Topics looked at, or removed, in one go: some 500 us."""


class _Prune(msgspec.Struct, rename="camel"):
    older_ms: int = 0
    remove: bool = False


def prune(command: Command, reply: Reply, services: Administration) -> None:
    """PRUNE_TOPICS."""
    asked = parse(command.fields, _Prune)
    wanted = bodies.decode(command.body, list[str]) if asked.remove else []
    services.jobs.run(command, reply, _prune(services, asked, wanted))


def _prune(services: Administration, asked: _Prune, wanted: list[str]) -> Steps:
    broker = services.broker
    unused = UnusedTopics(broker, load_topic_users(), lambda topic: _subscribed(services, topic))
    gone: list[list[Any]] = []
    kept: list[tuple[str, str]] = []
    try:
        yield from unused.survey()
        while (yield from patiently(services.reading, lambda _: unused.check_waiting())):
            yield None
        for number, name in enumerate(wanted if asked.remove else unused.candidates()):
            if number % TOPICS_STEP == TOPICS_STEP - 1:
                yield None
            topic = broker.topics.topics.get(name)
            made_ms = topic.config.created_ms if topic is not None else 0
            why = yield from patiently(
                services.reading,
                lambda _: unused.why_used(name, asked.older_ms),  # noqa: B023 (called at once)
            )
            if why:
                kept.append((name, why))
            else:
                if asked.remove:
                    unused.remove(name)
                gone.append([name, made_ms])
    finally:
        unused.close()
    if gone and asked.remove:
        stored: list[object] = []
        broker.when_stored(None, lambda token, result: stored.append(result))
        while not stored:
            yield None
    return bodies.encode({"unused": gone, "kept": kept, "named": sorted(unused.named)})


def _subscribed(services: Administration, topic: str) -> bool:
    return any(topic in group.subscriptions for group in services.clients.groups.values())


HANDLERS: Final = {PRUNE_TOPICS: prune}
