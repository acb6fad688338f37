"""Names of shared subscriptions: `$share/<group>/<filter>` and `$queue/<filter>`, the group without a name."""

from __future__ import annotations

from typing import Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq_gateways.mqtt.topics import exclusive, past

SHARE: Final = "$share/"
QUEUE: Final = "$queue/"


def is_shared(text: str) -> bool:
    """Whether a filter is that of a shared subscription, a well-formed one or not."""
    return text.startswith((SHARE, QUEUE)) or text in (SHARE[:-1], QUEUE[:-1])


def stands_apart(text: str) -> bool:
    """Whether a filter is that of a subscription which does not go by the light queue of its topic filter: shared, or from the past."""
    return is_shared(text) or past.is_past(text)


def bare(text: str) -> str:
    """The topic filter of a subscription of any kind; empty for what has none."""
    if text.startswith((SHARE, past.PREFIX)):
        return text.partition("/")[2].partition("/")[2]
    return exclusive.plain(text.removeprefix(QUEUE))


def group_name(text: str) -> str:
    """Name of a shared subscription's group; empty for `$queue`."""
    return text.split("/", 2)[1] if text.startswith(SHARE) else ""


def check_shared(text: str) -> None:
    """Raise GantryError(NAME_INVALID) for a shared subscription that is none. Wildcards in the filter were checked with the packet."""
    why = ""
    if text.startswith(SHARE):
        group, slash, wanted = text.removeprefix(SHARE).partition("/")
        if not group:
            why = "the group has no name [MQTT-4.8.2-1]"
        elif "+" in group or "#" in group:
            why = "the group's name has a wildcard [MQTT-4.8.2-2]"
        elif not slash or not wanted:
            why = "no topic filter follows the group's name [MQTT-4.8.2-2]"
    else:
        wanted = text.removeprefix(QUEUE) if text.startswith(QUEUE) else ""
        if not wanted:
            why = "no topic filter follows $queue/"
    if not why and is_shared(wanted):
        why = "a shared subscription cannot be shared again"
    if why:
        raise GantryError(ErrorCode.NAME_INVALID, f"filter {text[:128]!r}: {why}")
