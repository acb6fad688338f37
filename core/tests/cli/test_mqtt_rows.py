"""Rows of MQTT tables as `gantry mqtt` reads them."""

from __future__ import annotations

import re

import pytest

from gantrymq.cli.mqtt.commands import _pattern, parse_retained


def test_a_retained_row_with_and_without_properties() -> None:
    assert parse_retained(b"\x01\x00\x03a/bxyz") == {"topic": "a/b", "qos": 1, "expires_ms": 0, "bytes": 3}
    extended = (1234).to_bytes(8, "big") + (2).to_bytes(4, "big") + b"pp"
    assert parse_retained(b"\x82\x00\x03a/b" + extended + b"xyz") == {
        "topic": "a/b", "qos": 2, "expires_ms": 1234, "bytes": 3
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "topic", "fits"),
    [
        ("a/#", "a", True), ("a/#", "a/b/c", True), ("a/+", "a/b", True), ("a/+", "a/b/c", False), ("+/b", "a/b", True),
        ("#", "a/b", True), ("#", "$SYS/a", False), ("+/a", "$SYS/a", False), ("$SYS/#", "$SYS/a", True), ("a.b", "axb", False),
    ],
)  # fmt: skip
def test_filters(text: str, topic: str, fits: bool) -> None:
    assert bool(re.compile(_pattern(text)).fullmatch(topic)) is fits
