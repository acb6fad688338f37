"""Java's properties text, in which RocketMQ's configuration travels: `key=value` lines, `#` comments, backslash escapes."""

from __future__ import annotations

import re
from typing import Final

from gantrymq.model.errors import ErrorCode, GantryError

TEXT_BYTES_MAX: Final = 256 * 1024
"""RocketMQ's whole configuration has some 15 KiB."""

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_END_OF_KEY: Final = re.compile(r"(?<!\\)(?:\\\\)*([=:\s])")


def read(data: bytes) -> dict[str, str]:
    """Values by key (java.util.Properties.load). Raises ILLEGAL_ARGUMENT."""
    if len(data) > TEXT_BYTES_MAX:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"a configuration text has at most {TEXT_BYTES_MAX} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"the configuration text is not UTF-8: {error}") from None
    values: dict[str, str] = {}
    lines = iter(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    for line in lines:
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while len(line) - len(line.rstrip("\\")) & 1:
            line = line[:-1] + next(lines, "").lstrip(" \t\f")
        found = _END_OF_KEY.search(line)
        key, value = (line, "") if found is None else (line[: found.start(1)], line[found.start(1) :])
        value = value.lstrip(" \t\f")
        if value[:1] in ("=", ":"):
            value = value[1:].lstrip(" \t\f")
        values[_unescape(key)] = _unescape(value)
    return values


def _unescape(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        mark = found.group(1)
        return chr(int(mark[1:], 16)) if len(mark) == 5 else _ESCAPES.get(mark, mark)

    return _ESCAPE.sub(one, text) if "\\" in text else text


def write(values: dict[str, str]) -> bytes:
    """The text, keys in order (MixAll.properties2String)."""
    return "".join([f"{key}={_escape(values[key])}\n" for key in sorted(values)]).encode()


def _escape(value: str) -> str:
    if value.isprintable() and "\\" not in value and not value.startswith((" ", "\t")):
        return value
    text = (
        value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t").replace("\f", "\\f")
    )
    return "\\" + text if text.startswith(" ") else text
