"""Format strings of `gantry message tail`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.cli.commands.formats import FIELDS, parse, render
from gantrymq.model.errors import ConfigError

PAGE = (Path(__file__).parents[4] / "docs" / "operations" / "cli.md").read_text()


def message() -> Any:
    return SimpleNamespace(
        topic="orders", tag="paid", keys="k1 k2", body=b"\xff\x00body", broker="broker-a", queue_id=3, queue_offset=17,
        store_ms=1_700_000_000_123, message_id="ID", property_map=lambda: {"a": "1", "b": "2"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("%t %g %k %b", b"orders paid k1 k2 \xff\x00body\n"),
        ("%t %T %k %s\\n", b"orders 1700000000123 k1 k2 \xff\x00body\n"),
        ("%B/%p/%o\\t%S %i %h", b"broker-a/3/17\t6 ID a=1,b=2\n"),
        ("%%%b\\0", b"%\xff\x00body\0"),
        (r"a\\\x7c%t", b"a\\|orders\n"),
        ("%b\n", b"\xff\x00body\n"),
    ],
)
def test_what_a_format_makes(text: str, line: bytes) -> None:
    assert render(parse(text), message()) == line


@pytest.mark.parametrize(
    ("text", "part"), [("%q", "%q means nothing"), ("50%", "% means nothing"), (r"\q", r"\q means")]
)
def test_a_letter_that_means_nothing_is_named(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match="allowed are") as caught:
        parse(text)
    assert part in str(caught.value)


def test_the_page_lists_every_letter() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `%")]
    assert [row.split("`")[1].removeprefix("%") for row in rows] == list(FIELDS)
