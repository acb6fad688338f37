"""Differences between a real broker's answers and ours that stay, each with its reason; docs/mapping/rocketmq.md lists the reasons."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

MISSING = "<absent>"


@dataclass(frozen=True)
class Accepted:
    """`steps` and `places` are patterns that match the whole name; `answers`: our response codes, none: all."""

    reason: str
    steps: str
    places: str
    refused: bool = False
    """Only where our answer is a refusal and lacks what the real one has."""

    def covers(self, step: str, place: str, ours: Any, code: int) -> bool:
        if self.refused and (ours != MISSING or code in (0, 19, 20, 21)):
            return False
        return re.fullmatch(self.steps, step) is not None and re.fullmatch(self.places, place) is not None


ALL = r".*"
ANSWER = r"code|remark|body|fields\..*"
UNKNOWN_TOPIC = "An offset of a topic that does not exist is refused with 17; RocketMQ answers 0, -1 or 22"
UNKNOWN_QUEUE = (
    "An offset of a queue that does not exist is refused with 29; RocketMQ answers 0 or 22, and keeps commits"
)

ACCEPTED = (
    Accepted(
        "A refusal carries no fields; RocketMQ sends MSG_REGION, TRACE_ON and the zeroes of its header classes",
        ALL, r"fields\..*", refused=True,
    ),
    Accepted(
        "Only answers to half messages name a transactionId; RocketMQ repeats the UNIQ_KEY that the producer sent in every answer",
        ALL, r"fields\.transactionId",
    ),
    Accepted(
        "MSG_REGION and TRACE_ON are stored only where there is `RMQ_SYS_TRACE_TOPIC`: 39 bytes per message that are the same in each",
        ALL, r"(body\.\d+|pushed\.fields)\.properties\.(MSG_REGION|TRACE_ON)",
    ),
    Accepted(
        "Pull answers leave out topicSysFlag and groupSysFlag, which are 0 outside of unitised clusters and which no client reads",
        ALL, r"fields\.(topicSysFlag|groupSysFlag)",
    ),
    Accepted("Each heartbeat is complete (no heartbeat V2)", r"heartbeat.*", r"fields\.IS_SUPPORT_HEART_BEAT_V2"),
    Accepted("There are no revive topics, so reviveQid is 0", r"pop .*|longer", r"fields\.reviveQid"),
    Accepted(
        "A missing or malformed mandatory field is 1 SYSTEM_ERROR with its name, for every request; RocketMQ often takes it for null or 0",
        r"(offset|pop|unregister|route|delete|recall|commit|by key) without .*|commit of a word", ANSWER,
    ),
    Accepted(UNKNOWN_TOPIC, r"(offset|max offset|min offset|earliest message) of no topic|offset by time, no topic", ANSWER),
    Accepted(UNKNOWN_QUEUE, r"(offset|max offset|min offset|commit) of no queue", ANSWER),
    Accepted(
        "A new group is told the end of an empty queue; RocketMQ says 22, and a message that comes before the client asks for that end is passed over",
        "offset of an empty queue", ANSWER,
    ),
    Accepted("A commit of a negative offset is refused; RocketMQ keeps it", "commit of -1", ANSWER),
    Accepted(
        "A group need not be known before it pulls or commits; RocketMQ makes it at the first pull, refuses illegal names with 26 and "
        "commits before that, too",
        "pull by an illegal group|commit of a group that is not known", ANSWER,
    ),
    Accepted("A topic has 1 to 1,024 queues; RocketMQ makes one that nobody can send to", r"create (zero|minus).*", ANSWER),
    Accepted("topicFilterType is ignored, it has had one meaning since 3.x; RocketMQ knows two names", r"create filter.*", ANSWER),
    Accepted("An empty body is a message; RocketMQ's own client refuses it, its broker ends in a NullPointerException", "empty body", ANSWER),
    Accepted("TBW102 is a template and takes no messages", "to TBW102", ANSWER),
    Accepted("A batch that cannot be read is 13 MESSAGE_ILLEGAL, not a Java exception with 1", "batch, (broken|empty)", "code"),
    Accepted("A filter that cannot be understood is refused with 23; RocketMQ lets everything pass", r"pull with (broken SQL92|another type)", ANSWER),
    Accepted(
        "A pull by tag that is newer than the last heartbeat gets everything, and the client compares; RocketMQ refuses it with 25",
        "pull newer than the heartbeat", ANSWER,
    ),
    Accepted("A query in a topic that does not exist is refused with 17", "by key, no topic", "code"),
    Accepted(
        "A decision that comes too late is refused with 604 and does nothing; RocketMQ answers 0 and delivers a message a second time that "
        "is committed twice, also after a rollback",
        "rollback after the commit|commit after the rollback|pull after decisions that came too late", ANSWER,
    ),
    Accepted(
        "A reply for a queue that the topic of replies does not have goes to queue 0: it is pushed anyway, and the copy is a trace",
        "reply to a queue that is not there", ANSWER,
    ),
    Accepted("Where RocketMQ gives a code alone, the remark says why", "batch ack .*|longer, behind the end", "remark"),
)  # fmt: skip
