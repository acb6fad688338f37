"""Filters that Spark pushes down (`pushFilters`), turned into what a batch need not read: queues, offsets, times, tags, properties.

Spark applies every filter again itself, so each of these may take too much, and must never take too little. Knows pyspark's filter classes by
their names only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from gantrymq.spark.planning.options import Options

TIME_SLACK_MS: Final = 60_000
"""Store times rise within a queue but for a broker's clock that was set back; so much more is read on both sides of a time."""
_OFFSET_MAX: Final = 2**63 - 1
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_SAME: Final = {"partition": "queue", "timestamp": "storeTimestamp"}
"""Kafka's names of columns."""


@dataclass(slots=True)
class Narrowing:
    """What is left to read. `topics`, `brokers`, `queues`, `tags`: only these; None: all."""

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    queues: frozenset[int] | None = None
    tags: frozenset[str] | None = None
    properties: dict[str, frozenset[str]] = field(default_factory=dict)
    """Allowed values by name."""
    first: int = 0
    end: int = _OFFSET_MAX
    from_ms: int | None = None
    until_ms: int | None = None
    """Store times, both included."""

    def push(self, filters: Iterable[Any]) -> None:
        """Take what is understood of these conjuncts."""
        for each in filters:
            path = tuple(getattr(each, "attribute", ()))
            kind = type(each).__name__
            value: Any = getattr(each, "value", None)
            if kind == "In":
                self._one_of(path, list(value))
            elif kind in ("EqualTo", "EqualNullSafe"):
                self._one_of(path, [value])
                self._bound(path, value, value)
            elif kind in ("GreaterThan", "GreaterThanOrEqual"):
                self._bound(path, value, None)
            elif kind in ("LessThan", "LessThanOrEqual"):
                self._bound(path, None, value)

    def apply(self, options: Options) -> Options:
        """Options by which the broker filters too, unless it has a filter already. Text that SQL92 cannot be sure of is not handed on."""
        if options.tags or options.sql:
            return options
        wanted = {name: values for name, values in self.properties.items() if _NAME.fullmatch(name)}
        if self.tags is not None and wanted:
            wanted["TAGS"] = self.tags
        parts = [
            _sql(name, values) for name, values in sorted(wanted.items()) if values and all(map(_is_plain, values))
        ]
        if parts:
            return replace(options, sql=" AND ".join(parts))
        if self.tags and all(tag and "|" not in tag and tag == tag.strip() and tag != "*" for tag in self.tags):
            return replace(options, tags=tuple(sorted(self.tags)))
        return options

    def _one_of(self, path: tuple[str, ...], values: list[Any]) -> None:
        match path:
            case ("properties", name) if _all(values, str):
                self.properties[name] = self.properties.get(name, frozenset(values)) & frozenset(values)
            case (name,):
                name = _SAME.get(name, name)
                attribute = {"topic": "topics", "broker": "brokers", "queue": "queues", "tag": "tags"}.get(name)
                if attribute is not None and _all(values, int if name == "queue" else str):
                    have = getattr(self, attribute)
                    setattr(self, attribute, frozenset(values) if have is None else have & frozenset(values))

    def _bound(self, path: tuple[str, ...], low: Any, high: Any) -> None:
        match path:
            case ("offset",) if _all([value for value in (low, high) if value is not None], int):
                self.first = max(self.first, 0 if low is None else low)
                self.end = min(self.end, _OFFSET_MAX if high is None else high + 1)
            case ("storeTimestamp" | "timestamp",):
                if _is_time(low):
                    at = int(low.timestamp() * 1000) - TIME_SLACK_MS
                    self.from_ms = max(at, self.from_ms or 0)
                if _is_time(high):
                    at = int(high.timestamp() * 1000) + 1 + TIME_SLACK_MS
                    self.until_ms = at if self.until_ms is None else min(at, self.until_ms)


def _all(values: list[Any], kind: type) -> bool:
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


def _is_time(value: Any) -> bool:
    """An instant: a time without a zone says nothing here."""
    return isinstance(value, datetime) and value.tzinfo is not None


def _is_plain(text: str) -> bool:
    return text.isprintable() and "'" not in text


def _sql(name: str, values: frozenset[str]) -> str:
    quoted = ", ".join([f"'{value}'" for value in sorted(values)])
    return f"{name} IN ({quoted})"
