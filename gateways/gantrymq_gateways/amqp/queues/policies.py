"""Policies and operator policies: what administrators say of queues and exchanges by a pattern of their names. Table `amqp_policy`.

Of each sort the one with the highest priority counts, and no other. What a queue's own arguments say counts more, but of two limits the lower one; an
operator policy lowers limits further. Which settings there are stands in SETTINGS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gantrymq.auth.expressions import ExpressionError, matches
from gantrymq_gateways.amqp.origin import local, vhost_of
from gantrymq_gateways.amqp.queues.arguments import ARGUMENTS, parse, type_of
from gantrymq_gateways.amqp.wire.values import Field, encode_table

TABLE: Final = "amqp_policy"
USER: Final = "policy"
OPERATOR: Final = "operator_policy"
SORTS: Final = (USER, OPERATOR)

POLICIES_MAX: Final = 1_000
"""Of a vhost; every queue that is declared is held against all of them."""

ROW_BYTES_MAX: Final = 16 * 1024
"""A pattern and some settings."""

APPLIES: Final = {"classic": "classic_queues", "quorum": "quorum_queues", "stream": "streams"}
"""What a policy calls a type of queues."""
QUEUES: Final = frozenset({"all", "queues", *APPLIES.values()})
APPLY_TO: Final = QUEUES | {"exchanges"}
PRIORITY_MAX: Final = 1 << 31

ALTERNATE: Final = "alternate-exchange"


@dataclass(frozen=True, slots=True)
class Setting:
    """`lowest`: of two values the lower one counts. `operator`: an operator policy may have it."""

    kinds: tuple[type, ...]
    lowest: bool = False
    operator: bool = False
    effect: bool = True


_LIMIT: Final = Setting((int,), lowest=True, operator=True)
_TEXT: Final = Setting((str,))
_NOTHING: Final = Setting((str, int, bool, list), operator=True, effect=False)

SETTINGS: Final[dict[str, Setting]] = {
    "message-ttl": _LIMIT,
    "expires": _LIMIT,
    "max-length": _LIMIT,
    "max-length-bytes": _LIMIT,
    "delivery-limit": _LIMIT,
    "consumer-timeout": _LIMIT,
    "overflow": Setting((str,), operator=True),
    "max-age": Setting((str,), operator=True),
    "dead-letter-exchange": _TEXT,
    "dead-letter-routing-key": _TEXT,
    "dead-letter-strategy": _TEXT,
    ALTERNATE: _TEXT,
    **dict.fromkeys(
        (
            "federation-upstream", "federation-upstream-pattern", "federation-upstream-set", "ha-mode",
            "ha-params", "ha-promote-on-failure", "ha-promote-on-shutdown", "ha-sync-batch-size", "ha-sync-mode",
            "initial-cluster-size", "max-in-memory-bytes", "max-in-memory-length", "queue-leader-locator",
            "queue-master-locator", "queue-mode", "queue-version", "stream-filter-size-bytes", "stream-max-segment-size-bytes",
            "target-group-size", "unclean-leader-election",
        ),
        _NOTHING,
    ),
}  # fmt: skip
"""By name, as RabbitMQ calls them; `x-` and the name is the argument of a queue that says the same."""


class ServerPolicy(msgspec.Struct, frozen=True):
    """One row. `finished`: every queue and exchange has it; `gone`: it was deleted, and not every one knows yet."""

    pattern: str
    apply_to: str = "all"
    priority: int = 0
    definition: dict[str, Any] = {}
    finished: bool = True
    gone: bool = False


_decode = msgspec.json.Decoder(ServerPolicy).decode
_encode = msgspec.json.Encoder().encode


def row_key(sort: str, name: str) -> str:
    """Of the table."""
    return f"{sort}/{name}"


def row_value(policy: ServerPolicy) -> bytes:
    """The other half."""
    return _encode(policy)


def check_row(key: str, value: bytes) -> None:
    """Raise for a row that cannot be read."""
    sort, _, name = key.partition("/")
    if sort not in SORTS or not name:
        raise ValueError("the key is no sort and name of a policy")
    policy = _decode(value)
    matches(policy.pattern, "")
    for setting, given in policy.definition.items():
        if setting in SETTINGS:  # those of a later version are none here
            _check_setting(sort, setting, given)


def new_policy(sort: str, body: dict[str, Any]) -> ServerPolicy:
    """As the API, or a file of definitions, has it. Raises ValueError with what is wrong."""
    pattern, definition, priority = body.get("pattern"), body.get("definition"), body.get("priority", 0)
    if not isinstance(pattern, str):
        raise ValueError("pattern: a text is needed")
    try:
        matches(pattern, "")
    except ExpressionError as error:
        raise ValueError(f"pattern {pattern!r}: {error}") from None
    if not isinstance(definition, dict) or not definition:
        raise ValueError("definition: an object with at least one setting is needed")
    if isinstance(priority, str) and priority.lstrip("-").isdecimal():  # rabbitmqadmin sends texts
        priority = int(priority)
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > PRIORITY_MAX:
        raise ValueError(f"priority {str(priority)[:40]!r}: a whole number is needed")
    allowed = APPLY_TO if sort == USER else APPLY_TO - {"exchanges"}
    apply_to = body.get("apply-to") or ("all" if sort == USER else "queues")
    if apply_to not in allowed:
        raise ValueError(f"apply-to {str(apply_to)[:40]!r} is none of {', '.join(sorted(allowed))}")
    for name, value in definition.items():
        _check_setting(sort, name, value)
    made = ServerPolicy(pattern, apply_to, priority, definition)
    if len(row_value(made)) > ROW_BYTES_MAX:
        raise ValueError(f"it has over {ROW_BYTES_MAX} bytes")
    return made


def _check_setting(sort: str, name: str, value: Any) -> None:
    setting = SETTINGS.get(name)
    if setting is None or (sort == OPERATOR and not setting.operator):
        raise ValueError(f"{name!r} is no setting of {'a policy' if sort == USER else 'an operator policy'}")
    if not isinstance(value, setting.kinds) or (isinstance(value, bool) and bool not in setting.kinds):
        raise ValueError(f"{name}: {str(value)[:80]!r} is not of its type")
    known = ARGUMENTS.get("x-" + name)
    if (
        not setting.effect or known is None or name == "dead-letter-routing-key"
    ):  # the queue itself may have the exchange
        return
    if wrong := known.check(_field(value), []):
        raise ValueError(f"{name}: {wrong}")


def _field(value: Any) -> Field:
    return Field("S", value.encode()) if isinstance(value, str) else Field("l", value)


class Policies:
    """All of both sorts, in force or about to be."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, ServerPolicy]] = {sort: {} for sort in SORTS}

    def copy(self) -> Policies:
        """As they are now."""
        made = Policies()
        made._rows = {sort: dict(rows) for sort, rows in self._rows.items()}
        return made

    def changed(self, key: str, value: bytes | None) -> None:
        """A row of the table."""
        sort, _, name = key.partition("/")
        rows = self._rows[sort]
        rows.pop(name, None)
        if value is not None:
            rows[name] = _decode(value)

    def all(self, sort: str, vhost: str | None = None) -> list[tuple[str, ServerPolicy]]:
        """By full name; of one vhost, or of all."""
        return sorted(
            (name, policy)
            for name, policy in self._rows[sort].items()
            if not policy.gone and (vhost is None or vhost_of(name) == vhost)
        )

    def keys_of(self, vhost: str) -> list[str]:
        """Of the rows of a vhost."""
        return [row_key(sort, name) for sort in SORTS for name in self._rows[sort] if vhost_of(name) == vhost]

    def get(self, sort: str, name: str) -> ServerPolicy | None:
        """One of them."""
        found = self._rows[sort].get(name)
        return None if found is None or found.gone else found

    def unfinished(self) -> Iterator[tuple[str, str, ServerPolicy]]:
        """Sort, name and row of what was begun and not brought to its end."""
        for sort, rows in self._rows.items():
            for name, policy in list(rows.items()):
                if policy.gone or not policy.finished:
                    yield sort, name, policy

    def _for(self, sort: str, name: str, kinds: frozenset[str]) -> tuple[str, ServerPolicy] | None:
        best: tuple[str, ServerPolicy] | None = None
        vhost, own = vhost_of(name), local(name)
        for each, policy in self._rows[sort].items():
            if policy.gone or policy.apply_to not in kinds or (best and best[1].priority >= policy.priority):
                continue
            if vhost_of(each) == vhost and (
                not policy.pattern or matches(policy.pattern, own)
            ):  # an empty one matches all
                best = local(each), policy
        return best

    def of_queue(self, name: str, arguments: bytes) -> tuple[str | None, str | None, dict[str, Any]]:
        """Names of policy and operator policy of a queue, and what both say together."""
        if not any(self._rows.values()):
            return None, None, {}
        return self._together(name, frozenset({"all", "queues", APPLIES[type_of(parse(arguments))]}))

    def of_exchange(self, name: str) -> tuple[str | None, dict[str, Any]]:
        """Name of an exchange's policy, and what it says."""
        policy = self._for(USER, name, frozenset({"all", "exchanges"}))
        return (policy[0], policy[1].definition) if policy is not None else (None, {})

    def _together(self, name: str, kinds: frozenset[str]) -> tuple[str | None, str | None, dict[str, Any]]:
        policy, operator = self._for(USER, name, kinds), self._for(OPERATOR, name, kinds)
        said = dict(policy[1].definition) if policy is not None else {}
        for key, value in operator[1].definition.items() if operator is not None else ():
            lowest = key in SETTINGS and SETTINGS[key].lowest
            said[key] = min(value, said[key]) if lowest and key in said else value
        return policy[0] if policy is not None else None, operator[0] if operator is not None else None, said


def effective_arguments(arguments: bytes, said: dict[str, Any]) -> bytes:
    """A queue's own arguments, and what policies say where they say nothing or have a higher limit."""
    if not said:
        return arguments
    table = dict(parse(arguments))
    for name, value in said.items():
        setting = SETTINGS.get(name)
        if setting is None or not setting.effect or name == ALTERNATE:
            continue
        own = table.get("x-" + name)
        if own is None or (setting.lowest and value < own.value):
            table["x-" + name] = _field(value)
    return encode_table(list(table.items()))


def alternate_of(said: dict[str, Any]) -> str:
    """What a policy says of an exchange; empty: nothing."""
    return str(said.get(ALTERNATE, ""))
