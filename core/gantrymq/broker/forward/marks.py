"""Which queues of other groups want a record: property GANTRY_FORWARD, which the source writes into it.

`NAME:START:1,2;OTHER::*`: by group, its light queues to which its routes led, as of the routes that the source knew, and the start of that group
that told them (of another disk the same numbers are other queues); `*`, and a property that is `*` alone: the source did not know them, and the owner
is to match the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError

ANY: Final = "*"
TEXT_BYTES_MAX: Final = 4_096
"""Of the property. A record that more queues of other groups want is matched again by its owners."""
_NAME: Final = props.FORWARD.encode() + props.NAME_END
UNKNOWN: Final = _NAME + ANY.encode() + props.PAIR_END
"""Every group that gets the record is to match it."""


def mark_of(wanted: Mapping[str, tuple[str, Iterable[int]] | None]) -> bytes:
    """The property of a record that these groups want in these light queues, of that start; None: the group is to match it."""
    parts = [
        f"{name}::{ANY}" if queues is None else f"{name}:{queues[0]}:{','.join(map(str, sorted(queues[1])))}"
        for name, queues in wanted.items()
    ]
    text = ";".join(parts)
    return _NAME + text.encode() + props.PAIR_END if len(text) <= TEXT_BYTES_MAX else UNKNOWN


def marked(properties: bytes, mark: bytes, most: int) -> bytes:
    """Properties with the mark; where that were more than `most` bytes, with the shortest one."""
    if properties.endswith(mark):
        return properties  # it is sent again
    separator = b"" if not properties or properties.endswith(props.PAIR_END) else props.PAIR_END
    whole = properties + separator + mark
    return whole if len(whole) <= most else properties + separator + UNKNOWN


def split(properties: bytes) -> tuple[bytes, bytes]:
    """Properties as the sender gave them, and the mark."""
    at = properties.rfind(_NAME)
    if at >= 0 and properties.find(props.PAIR_END, at) == len(properties) - 1 and (not at or properties[at - 1] == 2):
        own = properties[:at]
        return (without_mark(own) if _NAME in own else own), properties[at:]
    return without_mark(properties), properties


def without_mark(properties: bytes) -> bytes:
    """Properties as the sender gave them."""
    while (start := _start(properties)) >= 0:
        end = properties.find(props.PAIR_END, start)
        properties = properties[:start] + (properties[end + 1 :] if end >= 0 else b"")
    return properties


def _start(properties: bytes) -> int:
    if properties.startswith(_NAME):
        return 0
    found = properties.find(props.PAIR_END + _NAME)
    return found + 1 if found >= 0 else -1


def lights_for(name: str, properties: bytes) -> tuple[str, tuple[int, ...]] | None:
    """Which light queues of group `name` a record is for, and of which start; None: the group is to match it. Raises MESSAGE_ILLEGAL for a mark
    that is none."""
    text = props.find(properties, props.FORWARD)
    if not text or text == ANY:
        return None
    for part in text.split(";"):
        start, _, lights = part.rpartition(":")
        whose, _, life = start.rpartition(":")
        if whose == name:
            try:
                return None if lights == ANY else (life, tuple([int(light) for light in lights.split(",")]))
            except ValueError:
                break
    raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"a forwarded record is not for {name}: {text[:80]!r}")
