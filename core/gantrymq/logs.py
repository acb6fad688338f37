"""Log lines on stderr: text for people, or one JSON object per line for programs. What looks like a secret is masked."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import datetime
from typing import Any, Final

from gantrymq.log_limits import PeerLimit

TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

SECRET: Final = re.compile(
    r"""(?ix) ( (?! \w* _file \b ) \w* (?: password | passwd | secret | token | signature | access_?key | api_?key | cluster_key | authorization ) \w* ["']? \s* [=:] \s* )
    ( "[^"]*" | '[^']*' | (?: bearer | basic ) \s+ [^\s,;)}]+ | [^\s,;)}]+ )"""
)
"""`name=value` or `name: value` where the name says that nobody should see the value; the name of a file that holds it may be seen."""

MASK: Final = r"\1***"

_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every log record has; others were given with `extra` and are fields."""


_forms: list[str] = ["text"]
"""The form of this process's lines; the last one counts."""


def masked(text: str) -> str:
    """The text without values of secrets."""
    return SECRET.sub(MASK, text)


class TextFormatter(logging.Formatter):
    """time, level, module, text."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return masked(super().format(record))


class JsonFormatter(logging.Formatter):
    """One object per line: `time` (ISO 8601 with offset), `level`, `logger`, `message`, `fields` and `exception` where there are any."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": masked(record.getMessage()),
        }
        fields = {
            name: "***" if SECRET.match(f"{name}=x") else masked(value) if isinstance(value, str) else value
            for name, value in vars(record).items()
            if name not in _OWN
        }
        if fields:
            entry["fields"] = fields
        if record.exc_info:
            entry["exception"] = masked(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False, default=str)


def set_up_logging(level: str, form: str = "text") -> None:
    """Log to stderr from now on. `form`: `text` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    handler.addFilter(PeerLimit())
    _forms[:] = [form]
    logging.basicConfig(level=getattr(logging, level.upper()), handlers=[handler], force=True)


def complain(line: str) -> None:
    """One line on stderr about what kept a command from working."""
    line = masked(" ".join(line.splitlines()))
    if _forms[-1] == "json":
        entry = {
            "time": datetime.now().astimezone().isoformat(timespec="milliseconds"),
            "level": "error",
            "logger": "gantry",
            "message": line,
        }
        sys.stderr.write(json.dumps(entry, ensure_ascii=False) + "\n")
    else:
        sys.stderr.write(f"gantry: {line}\n")
    sys.stderr.flush()
