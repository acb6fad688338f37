"""`$from/<when>/<filter>`: what is one."""

from __future__ import annotations

import pytest

from gantrymq.broker.port import EARLIEST, Start
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq_gateways.mqtt.topics.past import is_past, split_past
from gantrymq_gateways.mqtt.topics.shared import bare, stands_apart


@pytest.mark.parametrize(
    ("text", "start", "wanted"),
    [
        ("$from/earliest/t/#", EARLIEST, "t/#"),
        ("$from/0/t", Start("time", 0), "t"),
        ("$from/1767225600000/t/+/x", Start("time", 1_767_225_600_000), "t/+/x"),
        ("$from/2026-01-01T00:00:00Z/t", Start("time", 1_767_225_600_000), "t"),
        ("$from/2026-01-01T00:00:00.250Z/t", Start("time", 1_767_225_600_250), "t"),
        ("$from/2026-01-01/t", Start("time", 1_767_225_600_000), "t"),
        ("$from/2026-01-01T00:00:00-01:00/t", Start("time", 1_767_229_200_000), "t"),
        ("$from/earliest//t", EARLIEST, "/t"),
    ],
)
def test_what_it_says(text: str, start: Start, wanted: str) -> None:
    assert is_past(text)
    assert stands_apart(text)
    assert split_past(text) == (start, wanted)
    assert bare(text) == wanted


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("$from", "neither earliest"),
        ("$from/", "neither earliest"),
        ("$from/earliest", "no topic filter"),
        ("$from/earliest/", "no topic filter"),
        ("$from/yesterday/t", "neither earliest"),
        ("$from/-1/t", "neither earliest"),
        ("$from/1e3/t", "neither earliest"),
        ("$from/999999999999999/t", "neither earliest"),
        ("$from/1066-10-14/t", "neither earliest"),
        ("$from/earliest/+/t", "no wildcard"),
        ("$from/earliest/#", "no wildcard"),
        ("$from/earliest/$share/g/t", "no past"),
        ("$from/earliest/$SYS/broker/#", "no past"),
    ],
)
def test_what_is_none(text: str, why: str) -> None:
    assert is_past(text)
    with pytest.raises(GantryError, match=why) as caught:
        split_past(text)
    assert caught.value.code is ErrorCode.NAME_INVALID


def test_other_topics_are_no_past() -> None:
    assert not is_past("$frommage/earliest/t")
    assert bare("$share/g") == ""
