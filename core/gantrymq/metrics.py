"""Counters, gauges and histograms of the process and their text form (Prometheus text exposition format 0.0.4).

Hot code keeps a `Counter` and adds to its `value`, or a `Histogram` and calls `observe` once per batch; a number that exists already is
read through a gauge with a function. What has thousands of label sets is written by a source when it is asked for, in pieces.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

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


SECONDS: Final = (
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""From one turn of the loop to a disk that hangs."""

LONG_SECONDS: Final = (
    0.001,
    0.005,
    0.01,
    0.05,
    0.1,
    0.5,
    1.0,
    5.0,
    15.0,
    60.0,
    300.0,
    1_800.0,
    3_600.0,
    21_600.0,
    86_400.0,
)
"""From stored to read: a consumer may come back after a day."""

COUNTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096)
"""Messages in a batch."""

BYTES: Final = (64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216)
"""Up to the largest frame."""


class Histogram:
    """How often a value fell below each of the fixed `bounds`."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum: int | float = 0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` (so often). One thread only."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Its sample lines; `labels`: as they stand between braces."""
        total = 0
        comma = "," if labels else ""
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            shown = "+Inf" if bound == float("inf") else repr(bound)
            yield f'{name}_bucket{{{labels}{comma}le="{shown}"}} {total}'
        braces = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braces} {self.sum}"
        yield f"{name}_count{braces} {total}"


Read = Callable[[], int | float]
Source = Callable[[], Iterator[str]]
"""Yields pieces of text, each whole lines; the empty piece is a place to pause."""


class Family:
    """All label sets of one name."""

    __slots__ = ("children", "help", "kind", "name")

    def __init__(self, name: str, kind: str, help_text: str) -> None:
        self.name = name
        self.kind = kind
        self.help = help_text
        self.children: dict[tuple[tuple[str, str], ...], Counter | Gauge | Histogram | Read] = {}


class Metrics:
    """The registry; `context.shared["metrics"]` of a process."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}
        self._sources: list[Source] = []

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

    def histogram(self, name: str, help_text: str, bounds: Sequence[float], **labels: str) -> Histogram:
        """The histogram `name` with these labels; the same arguments give the same object."""
        child = self._child(name, "histogram", help_text, labels, lambda: Histogram(bounds))
        assert isinstance(child, Histogram)
        return child

    def show(self, name: str, help_text: str, histogram: Histogram, **labels: str) -> None:
        """A histogram that its owner keeps."""
        self._family(name, "histogram", help_text, labels).children[tuple(sorted(labels.items()))] = histogram

    def add_source(self, source: Source) -> None:
        """Families that are written when asked for; their names stand nowhere else."""
        self._sources.append(source)

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
        return "".join(self.pieces())

    def pieces(self) -> Iterator[str]:
        """The same in pieces, for whoever must not hold up the loop."""
        for family in self._families.values():
            lines: list[str] = []
            for labels, child in family.children.items():
                inner = labels_text(labels)
                if isinstance(child, Histogram):
                    lines.extend(child.lines(family.name, inner))
                    continue
                value = child.value if isinstance(child, (Counter, Gauge)) else child()
                lines.append(f"{family.name}{{{inner}}} {value}" if inner else f"{family.name} {value}")
            yield head(family.name, family.kind, family.help) + "".join([line + "\n" for line in lines])
        for source in self._sources:
            yield from source()

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
        self,
        name: str,
        kind: str,
        help_text: str,
        labels: dict[str, str],
        make: Callable[[], Counter | Gauge | Histogram],
    ) -> Counter | Gauge | Histogram | Read:
        children = self._family(name, kind, help_text, labels).children
        key = tuple(sorted(labels.items()))
        child = children.get(key)
        if child is None:
            child = children[key] = make()
        return child


def head(name: str, kind: str, help_text: str) -> str:
    """The two lines before the samples of a family."""
    return f"# HELP {name} {escape(help_text)}\n# TYPE {name} {kind}\n"


def labels_text(labels: Iterable[tuple[str, str]]) -> str:
    """Labels as they stand between the braces."""
    return ",".join([f'{key}="{escape(text, quote=True)}"' for key, text in labels])


def escape(text: str, quote: bool = False) -> str:
    """Escapes of the text format: backslash and line feed, in label values also the quote."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text
