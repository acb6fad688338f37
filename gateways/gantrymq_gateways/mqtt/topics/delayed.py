"""`$delayed/<seconds>/<topic>`: a publish that enters `<topic>` so many seconds later, as EMQX has it. The broker's timers keep it (`timer.max_delay_s`)."""

from __future__ import annotations

from typing import Final

from gantrymq.model.errors import ErrorCode, GantryError

PREFIX: Final = "$delayed/"

DELAY_S_MAX: Final = 4_294_967
"""EMQX's limit; `timer.max_delay_s` (three days by default) is the broker's."""


def split_delay(topic: str) -> tuple[int, str]:
    """(seconds, the topic itself); 0 for a topic without a delay. Raises GantryError(NAME_INVALID)."""
    if not topic.startswith(PREFIX):
        return 0, topic
    digits, mark, rest = topic[len(PREFIX) :].partition("/")
    if not (mark and rest and digits.isascii() and digits.isdigit() and len(digits) <= 10) or int(digits) > DELAY_S_MAX:
        raise GantryError(
            ErrorCode.NAME_INVALID,
            f"topic {topic[:128]!r} is not $delayed/<seconds>/<topic> with 0 to {DELAY_S_MAX} seconds",
        )
    return int(digits), rest
