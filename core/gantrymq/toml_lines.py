"""Where settings stand in a TOML file: `tomllib` gives values without their lines.

For text that `tomllib` has taken: what is no TOML gives nothing useful here.
"""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|\#[^\n]*"
    r"|[\[\]{}=.,\n]"
    r"|[^\s\"'\#\[\]{}=.,]+",
    re.DOTALL,
)
"""Strings of several lines, strings, comments, marks, and words."""

_OPENING: Final = frozenset("[{")
_CLOSING: Final = frozenset("]}")


def lines_of(text: str) -> dict[tuple[str, str], int]:
    """(section, key) to its line, counted from 1; (section, "") to the line where the section begins. Keys of an inline table
    (`mqtt = {port = 1}`) are not told apart from their section."""
    found: dict[tuple[str, str], int] = {}
    header: list[str] = []
    for line, tokens in _statements(text):
        if tokens[0] == "[":
            path = header = _path(tokens)
        else:
            path = header + _path(tokens)
        found.setdefault((path[0], ""), line)
        if len(path) > 1:
            found.setdefault((path[0], path[1]), line)
    return found


def _statements(text: str) -> list[tuple[int, list[str]]]:
    """Headers and assignments, each with the line where it begins; comments left out."""
    found: list[tuple[int, list[str]]] = []
    line, depth = 1, 0
    tokens: list[str] = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == "\n":
            if not depth:
                tokens = []
        elif not token.startswith("#"):
            if not tokens:
                found.append((line, tokens))
            tokens.append(token)
            depth += (token in _OPENING) - (token in _CLOSING)
        line += token.count("\n")
    return found


def _path(tokens: list[str]) -> list[str]:
    """The names of a header, or of what stands before the = of an assignment."""
    names: list[str] = []
    for token in tokens:
        if token in ("=", "]"):
            break
        if token not in ("[", "."):
            names.append(_name(token))
    return names


def _name(token: str) -> str:
    if token.startswith('"'):
        import tomllib

        name: str = tomllib.loads(f"name = {token}")["name"]  # it may have escapes
        return name
    return token.strip("'")
