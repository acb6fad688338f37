"""Counters and gauges of the process and their text form (Prometheus text exposition format 0.0.4).

Hot code keeps a `Counter` and adds to its `value`; a number that exists already is read through a gauge with a function.
"""

from __future__ import annotations

import re
from collections.abc import Callable

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")


class Counter:
    """A number that only grows: `counter.value += n`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int | float = 0


class Gauge:
    """A number that goes up and down: set `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int | float = 0


Read = Callable[[], int | float]


class Family:
    """All label sets of one name."""

    __slots__ = ("children", "help", "kind", "name")

    def __init__(self, name: str, kind: str, help_text: str) -> None:
        self.name = name
        self.kind = kind
        self.help = help_text
        self.children: dict[tuple[tuple[str, str], ...], Counter | Gauge | Read] = {}


class Metrics:
    """The registry; `context.shared["metrics"]` of a process."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def counter(self, name: str, help_text: str, **labels: str) -> Counter:
        """The counter `name` with these labels; the same arguments give the same object. Names end in `_total`."""
        child = self._child(name, "counter", help_text, labels, Counter)
        assert isinstance(child, Counter)
        return child

    def gauge(self, name: str, help_text: str, **labels: str) -> Gauge:
        """The gauge `name` with these labels; the same arguments give the same object."""
        child = self._child(name, "gauge", help_text, labels, Gauge)
        assert isinstance(child, Gauge)
        return child

    def read(self, name: str, help_text: str, source: Read, kind: str = "gauge", **labels: str) -> None:
        """A number that `source()` gives when asked; replaces an earlier source of the same name and labels."""
        self._family(name, kind, help_text, labels).children[tuple(sorted(labels.items()))] = source

    def remove(self, name: str, **labels: str) -> None:
        """Forget one label set (of a queue that was deleted)."""
        family = self._families.get(name)
        if family is not None:
            family.children.pop(tuple(sorted(labels.items())), None)

    def render(self) -> str:
        """Everything as text, families and label sets in order of their first use."""
        lines: list[str] = []
        for family in self._families.values():
            lines.append(f"# HELP {family.name} {escape(family.help)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            for labels, child in family.children.items():
                value = child.value if isinstance(child, (Counter, Gauge)) else child()
                inner = ",".join(f'{key}="{escape(text, quote=True)}"' for key, text in labels)
                lines.append(f"{family.name}{{{inner}}} {value}" if inner else f"{family.name} {value}")
        return "\n".join(lines) + "\n" if lines else ""

    def _family(self, name: str, kind: str, help_text: str, labels: dict[str, str]) -> Family:
        family = self._families.get(name)
        if family is None:
            if not NAME.match(name):
                raise ValueError(f"bad metric name {name!r}")
            family = self._families[name] = Family(name, kind, help_text)
        if family.kind != kind:
            raise ValueError(f"metric {name} is a {family.kind}, not a {kind}")
        for label in labels:
            if not LABEL.match(label):
                raise ValueError(f"bad label name {label!r} of metric {name}")
        return family

    def _child(
        self, name: str, kind: str, help_text: str, labels: dict[str, str], make: Callable[[], Counter | Gauge]
    ) -> Counter | Gauge | Read:
        children = self._family(name, kind, help_text, labels).children
        key = tuple(sorted(labels.items()))
        child = children.get(key)
        if child is None:
            child = children[key] = make()
        return child


def escape(text: str, quote: bool = False) -> str:
    """Escapes of the text format: backslash and line feed, in label values also the quote."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text
