"""The columns of the source and of the sink as tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

COLUMNS: Final = {
    "topic": "STRING",
    "broker": "STRING",
    "queue": "INT",
    "offset": "BIGINT",
    "tag": "STRING",
    "keys": "STRING",
    "body": "BINARY",
    "bornTimestamp": "TIMESTAMP",
    "storeTimestamp": "TIMESTAMP",
    "properties": "MAP<STRING, STRING>",
}
"""What the source can read; a schema given by the user is a selection of these, in any order."""

_TEXTS: Final = "MAP<STRING, STRING>"
VIEW_COLUMNS: Final = {
    "": {},
    "mqtt": {"mqttTopic": "STRING", "qos": "INT", "retain": "BOOLEAN", "userProperties": _TEXTS},
    "amqp": {
        "exchange": "STRING", "routingKey": "STRING", "headers": _TEXTS, "contentType": "STRING", "correlationId": "STRING",
        "replyTo": "STRING", "messageId": "STRING", "priority": "INT",
    },
    "cloudevents": {
        "id": "STRING", "source": "STRING", "type": "STRING", "subject": "STRING", "time": "TIMESTAMP", "datacontenttype": "STRING",
        "dataschema": "STRING", "data": "BINARY", "attributes": _TEXTS, "attributeTypes": _TEXTS,
    },
    "kafka": {
        "key": "BINARY", "value": "BINARY", "topic": "STRING", "partition": "INT", "offset": "BIGINT", "timestamp": "TIMESTAMP",
        "timestampType": "INT", "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    },
}  # fmt: skip
"""What the option `columns` adds (decoding/views.py)."""


def ddl(view: str = "", headers: bool = True) -> str:
    """The source's schema: its own columns and a view's; with Kafka's, exactly those (the column `headers` where it is asked for)."""
    chosen = dict(VIEW_COLUMNS[view]) if view == "kafka" else COLUMNS | VIEW_COLUMNS[view]
    if view == "kafka" and not headers:
        del chosen["headers"]
    return ", ".join([f"`{name}` {kind}" for name, kind in chosen.items()])


SINK_COLUMNS: Final = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tag": ("string",),
    "keys": ("string",),
    "properties": ("map<string,string>",),
    "shardingKey": ("string",),
    "expiresAt": ("timestamp",),
    "deliverAt": ("timestamp",),
}
"""What the sink takes, each with the types that are allowed; only `body` must be there (and `topic`, unless the option is set)."""

_TEXT_COLUMN: Final = ("string",)
_BODY: Final = ("binary", "string")
_TIMES: Final = dict.fromkeys(("expiresAt", "deliverAt"), ("timestamp",))
RETAIN_COLUMN: Final = "retain"
ONLY_AT_LEAST_ONCE: Final = (*_TIMES, RETAIN_COLUMN)
"""Columns with a meaning for the broker, which takes none of that in other modes."""
SHAPE_COLUMNS: Final = {
    "": SINK_COLUMNS,
    "mqtt": {
        "body": _BODY, "mqttTopic": _TEXT_COLUMN, "qos": ("int",), "retain": ("boolean",), "userProperties": ("map<string,string>",), "contentType": _TEXT_COLUMN,
        "correlationId": _TEXT_COLUMN, "replyTo": _TEXT_COLUMN, **_TIMES,
    },
    "amqp": {
        "body": _BODY, "exchange": _TEXT_COLUMN, "routingKey": _TEXT_COLUMN, "headers": ("map<string,string>",), "contentType": _TEXT_COLUMN,
        "correlationId": _TEXT_COLUMN, "replyTo": _TEXT_COLUMN, "messageId": _TEXT_COLUMN, "priority": ("int",), **_TIMES,
    },
    "cloudevents": {
        "data": _BODY, "topic": _TEXT_COLUMN, "id": _TEXT_COLUMN, "source": _TEXT_COLUMN, "type": _TEXT_COLUMN, "subject": _TEXT_COLUMN,
        "time": ("timestamp",), "datacontenttype": _TEXT_COLUMN, "dataschema": _TEXT_COLUMN, "attributes": ("map<string,string>",),
        "attributeTypes": ("map<string,string>",), **_TIMES,
    },
    "kafka": {
        "value": _BODY, "key": _BODY, "topic": _TEXT_COLUMN, "partition": ("int",), "headers": ("array<struct<key:string,value:binary>>",),
    },
}  # fmt: skip
"""The same for each value of the option `columns` (writing/shapes.py)."""
BODY_COLUMN: Final = {"": "body", "mqtt": "body", "amqp": "body", "cloudevents": "data", "kafka": "value"}
_NEEDED: Final = {"": (), "mqtt": (), "amqp": (), "cloudevents": ("id", "source", "type"), "kafka": ()}
_TOPIC_COLUMN: Final = {"": "topic", "mqtt": "mqttTopic", "amqp": "exchange", "cloudevents": "topic", "kafka": "topic"}


_STRINGS: Final = re.compile(r"(?i)struct<[^<>:,]+:string(,[^<>:,]+:string)*>")
"""Instead of the map of all properties: some of them by name."""


class SchemaError(ValueError):
    """A DataFrame's schema does not fit; the text names the column and what is allowed."""


def check_projection(fields: Iterable[tuple[str, str]], view: str = "") -> None:
    """Raise SchemaError unless each (name, Spark type name) is a column of the source, or of the view."""
    columns = COLUMNS | VIEW_COLUMNS[view]
    seen = set()
    for name, kind in fields:
        wanted = columns.get(name)
        if wanted is None:
            raise SchemaError(f"there is no column {name!r}; the source has {', '.join(columns)}")
        chosen = name == "properties" and _STRINGS.fullmatch(kind.replace(" ", ""))
        if not chosen and kind.replace(" ", "").lower() != wanted.replace(" ", "").lower():
            raise SchemaError(f"column {name!r} is {wanted}, the schema says {kind.upper()}; cast it after reading")
        if name in seen:
            raise SchemaError(f"column {name!r} stands twice in the schema")
        seen.add(name)


def check_sink(fields: Iterable[tuple[str, str]], has_topic: bool, shape: str = "") -> None:
    """Raise SchemaError unless a DataFrame of these columns can be written. `shape`: the option `columns`."""
    columns = SHAPE_COLUMNS[shape]
    names = set()
    for name, kind in fields:
        allowed = columns.get(name)
        if allowed is None:
            raise SchemaError(f"column {name!r} cannot be written; allowed are {', '.join(columns)}")
        if kind.replace(" ", "").lower() not in allowed:
            raise SchemaError(f"column {name!r} is {kind}; allowed is {' or '.join(allowed)}")
        if name in names:
            raise SchemaError(f"column {name!r} stands twice: drop one, or give it another name")
        names.add(name)
    for name in (BODY_COLUMN[shape], *_NEEDED[shape]):
        if name not in names:
            raise SchemaError(f"the column {name!r} ({' or '.join(columns[name])}) is missing")
    topic = _TOPIC_COLUMN[shape]
    if topic not in names and not has_topic:
        raise SchemaError(f"set the option 'topic', or give each row its own in a column {topic!r}")
