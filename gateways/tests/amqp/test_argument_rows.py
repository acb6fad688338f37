"""Every argument has a row in docs/mapping, and a client's test in interop_tests that uses it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from gantrymq_gateways.amqp.exchanges.arguments import TYPES
from gantrymq_gateways.amqp.queues.arguments import ARGUMENTS

ROOT: Final = Path(__file__).parents[3]
ROWS: Final = [
    line
    for page in ("amqp.md", "amqp_streams.md")
    for line in (ROOT / "docs" / "mapping" / page).read_text().splitlines()
    if line.startswith("| ")
]
CLIENTS: Final = "\n".join([path.read_text() for path in sorted((ROOT / "interop_tests").glob("test_amqp_*.py"))])
OF_EXCHANGES: Final = ("alternate-exchange", "hash-header", "hash-property", "x-delayed-type")


def used(argument: str) -> re.Pattern[str]:
    """As a client's test writes it: by its name, or as the keyword of a function that puts the x- before it."""
    return re.compile(rf"\b({argument}|{argument.removeprefix('x-').replace('-', '_')})\b")


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_a_queue_argument(argument: str) -> None:
    rows = [row for row in ROWS if re.search(rf"`{argument}[`=]", row.split(" | ")[0])]
    assert rows, "no row of the tables names it"
    effects = [row.split(" | ")[1] for row in rows]
    assert ARGUMENTS[argument].effect != any(effect.startswith("none:") for effect in effects)
    assert used(argument).search(CLIENTS)


@pytest.mark.parametrize("name", sorted({*TYPES, *OF_EXCHANGES}))
def test_an_exchange(name: str) -> None:
    assert [row for row in ROWS if f"`{name}`" in row]
    assert used(name).search(CLIENTS)
