"""Rows of the broker's own tables: whether they can be read.

Each check raises for a row that its owner could not use; a start puts such a row aside (tables.py) and goes on without it. What the
rows mean: docs/formats/tables.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from gantrymq.broker.consuming.roles import parse_queue
from gantrymq.broker.pop.lease_table import TABLE as POP_LEASES
from gantrymq.broker.rocketmq import settings
from gantrymq.broker.row_checks import RowCheck
from gantrymq.broker.tables.forward_table import TABLE as FORWARD_TABLE
from gantrymq.broker.tables.group_tables import MOVED_TABLE, moved_from
from gantrymq.broker.topics import QUEUES_MAX
from gantrymq.model import queue_policy as policy

NEXT: Final = "next"
"""Key of the row that holds the next id of its table."""
LEASED_MAX: Final = 10_000_000
"""Offsets in the leases of one row of `pop_lease`, which are taken into memory one by one."""

_Queues = Annotated[int, msgspec.Meta(ge=1, le=QUEUES_MAX)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Topic(msgspec.Struct, rename="camel"):
    read_queue_nums: _Queues
    write_queue_nums: _Queues
    perm: int
    topic_sys_flag: int
    order: bool
    attributes: dict[str, str]
    first: dict[int, _Number] = {}
    deleted: bool = False
    on_use: bool = False
    for_queue: bool = False
    for_exchange: bool = False
    created: int = 0
    deleting: list[str] | None = None


class _PopLease(msgspec.Struct):
    next: _Number
    ordered: bool
    attempt: str
    recovered: int
    leases: list[tuple[int, int, list[_Number]]]
    stopped: int = 0


def _shape(shape: Any) -> RowCheck:
    """A check for JSON of that shape."""
    decode = msgspec.json.Decoder(shape).decode

    def check(key: str, value: bytes) -> object:
        try:
            return decode(value)
        except msgspec.DecodeError:
            return msgspec.convert(json.loads(value), shape)  # Python's JSON knows a little more: lone surrogates

    return check


_route = _shape(tuple[str, str | None, str, _Number])
_moved_route = _shape(tuple[str, str | None, str, _Number, _Number])
_cursor = _shape(tuple[str, str, _Number])
_pop_lease = _shape(_PopLease)
_offsets = _shape(dict[int, int])


def _id(text: str | bytes) -> int:
    number = int(text)
    if not 0 < number < 1 << 63:
        raise ValueError(f"{number} is no id")
    return number


def _check_light(key: str, value: bytes) -> None:
    _id(value if key == NEXT else key)


def _check_cursor(key: str, value: bytes) -> None:
    if key == NEXT:
        _id(value)
        return
    _id(key)
    found: Any = _cursor(key, value)
    parse_queue(found[0])


def _check_offsets(key: str, value: bytes) -> None:
    if "@" not in key:
        raise ValueError("the key is not topic@group")
    _offsets(key, value)


def _check_setting(key: str, value: bytes) -> None:
    found = settings.CHANGEABLE.get(key)
    if found is None:
        raise ValueError("there is no such setting")
    found.parse(value.decode())


def _check_pop_lease(key: str, value: bytes) -> None:
    _id(key)
    row: Any = _pop_lease(key, value)
    total = 0
    for _, _, runs in row.leases:
        for first, last in zip(runs[::2], runs[1::2], strict=True):
            total += last - first + 1
            if not first <= last < row.next or total > LEASED_MAX:
                raise ValueError(f"run {first} to {last} is none")


def _check_route(key: str, value: bytes) -> None:
    try:
        _route(key, value)
    except msgspec.ValidationError:
        _moved_route(key, value)


_leaving = _shape(tuple[_Number, str])
_coming = _shape(tuple[str, _Number])
_come = _shape(tuple[str, _Number, list[tuple[str, str]]])
_came = _shape(tuple[_Number, str, _Number])
_ended = _shape(list[str])


def _check_forward(key: str, value: bytes) -> None:
    kind, _, rest = key.partition("/")
    if kind == "leaving":
        _id(rest)
        _leaving(key, value)
    elif kind == "coming":
        _id(rest)
        try:
            _coming(key, value)
        except msgspec.ValidationError:
            _come(key, value)
    elif kind == "came":
        _id(rest.rpartition("/")[2])
        _came(key, value)
    elif kind == "ended":
        _id(rest)
        _ended(key, value)
    elif kind not in ("to", "read", "source", "start", "consumed") or not rest or int(value) < 0:
        raise ValueError("no forward queue, progress, source, start, or queue on its way")


def _check_moved(key: str, value: bytes) -> None:
    _id(key)
    if min(moved_from(value)) < 0:
        raise ValueError("no light queue, or no number of moves")


CHECKS: Final[Mapping[str, RowCheck]] = {
    "topic": _shape(_Topic),
    "route": _check_route,
    "light": _check_light,
    "cursor": _check_cursor,
    "offset": _check_offsets,
    "reset": _check_offsets,
    settings.TABLE: _check_setting,
    POP_LEASES: _check_pop_lease,
    policy.TABLE: policy.check_row,
    FORWARD_TABLE: _check_forward,
    MOVED_TABLE: _check_moved,
}
"""By table. `group` and `request_mode` have their readers in `remoting`."""
