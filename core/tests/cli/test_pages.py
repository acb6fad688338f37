"""Commands that the pages write out: each is one that there is, with options that it has. `core/tests/test_configuration_doc.py` looks at settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from gantrymq.cli.app import app

ROOT = Path(__file__).parents[3]
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if page.parent.name != "formats"]
"""Without those of formats: what stands there in code is bytes."""
TREE: Any = typer.main.get_command(app)
HELP = {"--help", "--install-completion", "--show-completion"}
"""What every command takes."""

CODE = re.compile(r"```\w*\n(.*?)```|`([^`]+)`|^ {4}(\S.*)$", re.DOTALL | re.MULTILINE)
LINE = re.compile(r"(?:^|[\s/(;])gantry (?=[a-z])(?!gantry )(.*)")
END = re.compile(r"\s#\s|\s[|&><]{1,2}\s|;|\s\\$|&&")
"""Where the command is over: a comment, the next one, a redirection."""


def lines(page: str) -> Iterator[str]:
    """What stands behind the word `gantry` in code. A span of code may go on in the next line of the page."""
    for block, span, indented in CODE.findall(page):
        whole = re.sub(r"\\\n\s*", " ", block or indented) or " ".join(span.split())
        for line in whole.splitlines():
            for found in LINE.findall(line):
                yield END.split(found)[0]


def options(command: Any) -> set[str]:
    """Of a command; of a group those of its commands, as pages speak of `gantry amqp --user`."""
    own = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(HELP, *[options(inner) for inner in getattr(command, "commands", {}).values()])


def wrong(line: str) -> str:
    """What of a command is not there, or nothing. Words after the command are arguments; a word such as `a|b` ends the look."""
    command: Any = TREE
    path: list[str] = []
    for word in re.sub(r"'[^']*'|\"[^\"]*\"", "x", line).split():
        if word.startswith(("-", "[-")):
            known = options(command)
            for name in [each.partition("=")[0].strip("[](),.:") for each in word.split("|")]:
                if name.strip("-") and name not in known:
                    return f"{' '.join(path)}: no option {name}"
        elif getattr(command, "commands", None):
            if not re.fullmatch(r"[a-z-]+", word):
                return ""
            if word not in command.commands:
                return f"{' '.join(path)}: no command {word}"
            command, path = command.commands[word], [*path, word]
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist_with_their_options(page: Path) -> None:
    assert [(line, said) for line in lines(page.read_text(encoding="utf-8")) if (said := wrong(line))] == []


def test_many_are_looked_at() -> None:
    assert len([line for page in PAGES for line in lines(page.read_text(encoding="utf-8"))]) > 150


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("topic list --json", ""),
        ("topic list --jsno", "topic list: no option --jsno"),
        ("config check --file gantry.toml", "config check: no option --file"),
        ("topic lst", "topic: no command lst"),
        ("topc list", ": no command topc"),
        ("queue|session list", ""),
        ("amqp --user", ""),
        ("mqtt ban --client|--usr ...", "mqtt ban: no option --usr"),
        ("message tail orders -n 0 --tag 'a || --b'", ""),
    ],
)
def test_what_is_wrong(line: str, said: str) -> None:
    assert wrong(line) == said


def test_where_commands_stand() -> None:
    page = "`gantry a\nb` and `x gantryfoo` `exec gantry gantry z`\n```\n$ ./run gantry c --d  # e\ngantry f | head\n```\n    gantry g h\n"
    assert list(lines(page)) == ["a b", "z", "c --d ", "f", "g h"]
