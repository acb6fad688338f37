"""What a right is about: `topic:orders`, `topic:orders*`, `group:*`, `queue:jobs`, `cluster:*`, `mqtt:plant/%u/#`; and what may be done with it.

Native resources are matched exactly or by prefix. An MQTT pattern is a filter (MQTT 4.7), in which a level may be `%c` (client id) or
`%u` (user): these stand for that very text, so that no name with a wildcard in it widens a right.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag, StrEnum
from typing import Final


class Action(IntFlag):
    """RocketMQ's actions (ACL 2.0)."""

    PUB = 1
    SUB = 2
    CREATE = 4
    UPDATE = 8
    DELETE = 16
    GET = 32
    LIST = 64
    ALL = 127


class Kind(StrEnum):
    """What a resource is."""

    TOPIC = "topic"
    GROUP = "group"
    QUEUE = "queue"
    """A light queue by the name that people know it by: an AMQP queue."""
    CLUSTER = "cluster"
    MQTT = "mqtt"
    """An MQTT topic or filter, below what its native topic says."""


ACTION_NAMES: Final[dict[str, Action]] = {
    "pub": Action.PUB, "sub": Action.SUB, "create": Action.CREATE, "update": Action.UPDATE, "delete": Action.DELETE,
    "get": Action.GET, "list": Action.LIST, "all": Action.ALL,
}  # fmt: skip

NAME_CHARS_MAX: Final = 4096
"""A resource's name: the longest MQTT filter that a right is written for."""

LEVELS_MAX: Final = 64
"""Of an MQTT pattern."""


def parse_actions(names: list[str]) -> Action:
    """Raises ValueError."""
    found = Action(0)
    for name in names:
        if name.lower() not in ACTION_NAMES:
            raise ValueError(f"{name!r} is no action; there are {', '.join(ACTION_NAMES)}")
        found |= ACTION_NAMES[name.lower()]
    if not found:
        raise ValueError(f"an action is needed: {', '.join(ACTION_NAMES)}")
    return found


def action_names(actions: Action) -> list[str]:
    """As `parse_actions` takes them."""
    if actions == Action.ALL:
        return ["all"]
    return [name for name, action in ACTION_NAMES.items() if actions & action and name != "all"]


@dataclass(frozen=True, slots=True)
class Resource:
    """`name` is exact, unless `prefix`: then it is how names begin. An MQTT pattern is never a prefix."""

    kind: Kind
    name: str
    prefix: bool = False

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}{'*' if self.prefix else ''}"


def parse_resource(text: str) -> Resource:
    """Raises ValueError."""
    word, colon, name = text.partition(":")
    kinds = [str(kind) for kind in Kind]
    if not colon or word.lower() not in kinds:
        raise ValueError(f"{text!r} is no resource: write KIND:NAME with KIND one of {', '.join(kinds)}")
    kind = Kind(word.lower())
    if not name or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise ValueError(
            f"{text!r}: a name is needed, of at most {NAME_CHARS_MAX} printable characters; * is every name"
        )
    if kind is Kind.MQTT:
        check_filter(name)
        return Resource(kind, name)
    if "*" in name[:-1]:
        raise ValueError(f"{text!r}: * stands at the end only: a name, or how names begin")
    return Resource(kind, name.removesuffix("*"), name.endswith("*"))


def check_filter(text: str) -> None:
    """Raise ValueError for what is no MQTT filter. [MQTT-4.7.1-2] [MQTT-4.7.1-3]"""
    levels = text.split("/")
    if len(levels) > LEVELS_MAX:
        raise ValueError(f"{text!r} has more than {LEVELS_MAX} levels")
    for number, level in enumerate(levels):
        if ("#" in level and (level != "#" or number != len(levels) - 1)) or ("+" in level and level != "+"):
            raise ValueError(f"{text!r} is no MQTT filter: + is a whole level, # the last one")


def substituted(pattern: str, user: str, client_id: str) -> list[str | None] | None:
    """The levels of a pattern for one client; `+` is None, `#` stays the last. None: it matches nothing for this client, whose name
    would read as something else."""
    levels: list[str | None] = []
    for level in pattern.split("/"):
        if "%c" in level or "%u" in level:
            if ("%c" in level and not _is_plain(client_id)) or ("%u" in level and not _is_plain(user)):
                return None
            levels.append(_filled(level, user, client_id))
        else:
            levels.append(None if level == "+" else level)
    return levels


def _filled(level: str, user: str, client_id: str) -> str:
    """One pass: what a name holds is not looked at again."""
    parts: list[str] = []
    at = 0
    while at < len(level):
        word = level[at : at + 2]
        if word in ("%c", "%u"):
            parts.append(client_id if word == "%c" else user)
            at += 2
        else:
            parts.append(level[at])
            at += 1
    return "".join(parts)


def _is_plain(name: str) -> bool:
    return bool(name) and not any(letter in "/+#" for letter in name) and name.isprintable()


def covers(pattern: list[str | None], levels: list[str]) -> bool:
    """Whether everything that the filter (or topic) of `levels` matches is matched by the pattern. [MQTT-4.7.2-1] A leading wildcard of
    the pattern matches no name that begins with `$`."""
    if levels and levels[0].startswith("$") and pattern[0] in (None, "#"):
        return False
    for number, wanted in enumerate(pattern):
        if wanted == "#" and number == len(pattern) - 1:
            return True
        if number >= len(levels):
            return False
        level = levels[number]
        if level == "#":
            return False
        if wanted is not None and (level == "+" or level != wanted):
            return False
    # "a/#" also matches "a": a filter that ends with # is covered by a # only.
    return len(levels) == len(pattern)


def meets(pattern: list[str | None], levels: list[str]) -> bool:
    """Whether some topic is matched by both the pattern and the filter (or topic) of `levels`."""
    if (levels[0].startswith("$") and pattern[0] in (None, "#")) or (
        (pattern[0] or "").startswith("$") and levels[0] in ("+", "#")
    ):
        return False
    for number in range(max(len(pattern), len(levels))):
        wanted = pattern[number] if number < len(pattern) else ""
        level = levels[number] if number < len(levels) else ""
        if (wanted == "#" and number < len(pattern)) or (level == "#" and number < len(levels)):
            return True
        if number >= len(pattern) or number >= len(levels):
            # "a/#" matches "a", too: only a # may follow.
            return False
        if wanted is not None and level != "+" and level != wanted:
            return False
    return True
