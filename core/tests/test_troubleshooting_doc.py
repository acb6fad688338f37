"""docs/operations/troubleshooting.md quotes messages: each is one that the code still has, and each setting one that there is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations" / "troubleshooting.md").read_text()
SETTINGS = (ROOT / "docs" / "operations" / "configuration.md").read_text()
HEAD = re.compile(r"^\| it says \|.*\n\|---.*\n", re.MULTILINE)
GAP = "\0"
"""Where a text has a value."""


def texts(path: Path) -> Iterator[str]:
    """Every string of a file, also those with values in them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join([part.value if isinstance(part, ast.Constant) else GAP for part in node.values])  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[\d.]*[sdrf]", GAP, node.value)


@cache
def product() -> list[str]:
    """Every text of the packages, once."""
    folders = ("core/gantrymq", "gateways/gantrymq_gateways", "nameserver/gantrymq_nameserver")
    return sorted({text for folder in folders for path in (ROOT / folder).rglob("*.py") for text in texts(path)})


def messages() -> Iterator[tuple[str, str]]:
    """Chapter and message: what stands in the first column between backticks."""
    for chapter in PAGE.split("\n## ")[1:]:
        title = chapter.partition("\n")[0]
        head = HEAD.search(chapter)
        assert head is not None, title
        for row in chapter[head.end() :].partition("\n\n")[0].splitlines():
            for message in re.findall(r"`([^`]+)`", row.split(" | ")[0]):
                yield title, message
    for message in re.findall(r"says `([^`]+)`", PAGE):
        yield "", message


def says(text: str, message: str) -> bool:
    """Whether `text` can be the message: its parts between `...` are there, in this order, and no value is in one of them."""
    at = 0
    for part in [part.strip() for part in message.split("...")]:
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def test_every_message_is_the_codes() -> None:
    found = list(messages())
    assert len(found) > 40
    script = (ROOT / "run").read_text()
    gone = [
        message
        for chapter, message in found
        if not any(says(text, message) for text in ([script] if chapter == "Installing" else product()))
    ]
    assert gone == [], "the code says this no more"


def test_every_message_is_told_apart() -> None:
    """Not a word that stands everywhere: without its values something of it is left."""
    assert [message for _, message in messages() if len(message.replace("...", "").replace(" ", "")) < 12] == []


def test_every_setting_exists() -> None:
    named = set(re.findall(r"`(?:--set )?([a-z]+\.[a-z_]+)(?==|`)", PAGE))
    assert "server.connections_max" in named
    assert [name for name in sorted(named) if f"`{name}`" not in SETTINGS] == []


@pytest.mark.parametrize(
    ("text", "message", "fits"),
    [
        (f"port {GAP} is taken ({GAP})", "port ... is taken (...)", True),
        (f"port {GAP} is taken", "port 1883 is taken", False),
        ("the disk is full", "the disk is empty", False),
        ("b, then a", "a ... b", False),
    ],
)
def test_what_fits(text: str, message: str, fits: bool) -> None:
    assert says(text, message) is fits
