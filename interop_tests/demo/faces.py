"""One message as every door shows it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

BODY_CHARACTERS = 150
VALUE_CHARACTERS = 48
"""Of one property."""

SAME_LINE_MAX = 74
"""Short parts share a line of a table that is 100 characters wide."""

SHOWN_ELSEWHERE = frozenset({"TAGS", "KEYS", "UNIQ_KEY"})
"""As tag, keys and message id."""
INTERNAL_PREFIX = "GANTRY_"
"""What a door notes for itself about a message, some of it in base64: nothing that an application has put in."""

Lines = dict[str, str]
"""What a door calls its parts -> their values, in order."""


@dataclass(slots=True)
class Faces:
    """Collects what consumers saw of the messages in `wanted`. Any thread may add."""

    wanted: dict[str, str] = field(default_factory=dict)
    """Message id -> title of its table."""
    seen: dict[str, dict[str, Lines]] = field(default_factory=dict)
    bodies: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    """Message id -> (SHA-256, beginning) of the bodies that the consumers got: one, if all is well."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, message_id: str, consumer: str, lines: Lines, digest: str, beginning: str) -> None:
        with self._lock:
            self.seen.setdefault(message_id, {}).setdefault(consumer, lines)
            self.bodies.setdefault(message_id, set()).add((digest, shorten(beginning, BODY_CHARACTERS)))

    def missing(self, consumers: list[str]) -> list[str]:
        """`consumer: id` of what has not arrived."""
        with self._lock:
            return [
                f"{consumer}: {message_id}"
                for message_id in self.wanted
                for consumer in consumers
                if consumer not in self.seen.get(message_id, {})
            ]


def join(pairs: dict[str, str]) -> str:
    """Properties or headers on as few lines as they take."""
    return ", ".join(f"{name}={shorten(str(value), VALUE_CHARACTERS)}" for name, value in pairs.items())


def own(properties: Mapping[str, str]) -> Lines:
    """The line of the application's own properties, if it has any."""
    others = {
        name: value
        for name, value in properties.items()
        if name not in SHOWN_ELSEWHERE and not name.startswith(INTERNAL_PREFIX)
    }
    return {"properties": join(others)} if others else {}


def shorten(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


def _cell(lines: Lines) -> Text:
    text = Text(overflow="fold")
    for index, (name, value) in enumerate(lines.items()):
        if index:
            text.append("   " if len(text.plain.rpartition("\n")[2]) + len(name) + len(value) < SAME_LINE_MAX else "\n")
        text.append(f"{name} ", "dim")
        text.append(value)
    return text


def _body(bodies: set[tuple[str, str]]) -> Text:
    if len(bodies) != 1:
        return Text("; ".join(sorted(f"{digest[:16]} {beginning}" for digest, beginning in bodies)), "bold red")
    [(digest, beginning)] = bodies
    return Text.assemble(beginning, ("\nSHA-256 ", "dim"), f"{digest[:16]}…", (", the same at every consumer", "dim"))


def show(console: Console, faces: Faces, consumers: list[str]) -> None:
    """One table per message."""
    for message_id, title in faces.wanted.items():
        table = Table(
            title=title,
            title_justify="left",
            title_style="bold",
            show_header=False,
            width=console.width,
            box=box.ROUNDED,
        )
        table.add_column(style="cyan", width=13, no_wrap=True)
        table.add_column(ratio=1)
        for consumer in consumers:
            table.add_row(consumer, _cell(faces.seen.get(message_id, {}).get(consumer, {"": "-"})), end_section=True)
        table.add_row("body", _body(faces.bodies.get(message_id, set())))
        console.print(Group(Text(), table))
