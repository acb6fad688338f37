"""Tables and property lists as the API's JSON has them, and back."""

from __future__ import annotations

from typing import Any, Final

from gantrymq_gateways.amqp.wire.content import Properties
from gantrymq_gateways.amqp.wire.values import Field, Table

_NUMBERS: Final = frozenset(
    {"delivery_mode", "priority", "timestamp"},
)
_TEXTS: Final = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type", "user_id",
    "app_id", "cluster_id",
)  # fmt: skip


def field_of(value: Any) -> Field:
    """A JSON value as RabbitMQ's API takes it: an integer is a 64-bit one. Raises ValueError."""
    if isinstance(value, bool):
        return Field("t", value)
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{value} has over 64 bits")
        return Field("l", value)
    if isinstance(value, float):
        return Field("d", value)
    if isinstance(value, str):
        return Field("S", value.encode("utf-8", "surrogatepass"))
    if isinstance(value, list):
        return Field("A", [field_of(item) for item in value])
    if isinstance(value, dict):
        return Field("F", table_of(value))
    return Field("V", None)


def table_of(value: Any) -> Table:
    """An object of JSON; nothing is an empty table. Raises ValueError."""
    if value is None or value == "" or value == []:
        return []
    if not isinstance(value, dict):
        raise ValueError(f"{str(value)[:80]!r} is no object")
    return [(str(name), field_of(item)) for name, item in value.items()]


def plain(field: Field) -> Any:
    """A value for JSON."""
    value = field.value
    if field.kind in "Sx":
        return bytes(value).decode("utf-8", "replace")
    if field.kind == "A":
        return [plain(item) for item in value]
    if field.kind == "F":
        return plain_table(value)
    if field.kind == "D":
        scale, unscaled = value
        return unscaled / 10**scale
    return value


def plain_table(table: Table) -> dict[str, Any]:
    """A table for JSON; of a repeated name the last counts."""
    return {name: plain(field) for name, field in table}


def properties_of(value: Any) -> Properties:
    """Of a message to publish. Raises ValueError."""
    if not isinstance(value, dict):
        return Properties()
    found = Properties()
    for name in _TEXTS:
        if name in value:
            setattr(found, name, str(value[name]))
    for name in _NUMBERS:
        if name in value:
            setattr(found, name, int(value[name]))
    if "headers" in value:
        found.headers = table_of(value["headers"])
    return found


def plain_properties(properties: Properties) -> dict[str, Any]:
    """Of a message that was fetched."""
    found: dict[str, Any] = {}
    for name in (*_TEXTS, *sorted(_NUMBERS)):
        value = getattr(properties, name)
        if value is not None:
            found[name] = value
    if properties.headers is not None:
        found["headers"] = plain_table(properties.headers)
    return found


def truth(value: Any, otherwise: bool = False) -> bool:
    """A flag: rabbitmqadmin sends texts. Raises ValueError."""
    if value is None:
        return otherwise
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise ValueError(f"{str(value)[:80]!r} is neither true nor false")
