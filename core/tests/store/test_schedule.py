"""Times in the units of waiting messages: the same live and after a replay."""

from __future__ import annotations

import pytest

from gantrymq.model import properties as props
from gantrymq.model.message import Message
from gantrymq.model.names import SCHEDULE_TOPIC, java_hash
from gantrymq.store import schedule
from gantrymq.store.schedule import DELAYS_MS, TIMER_TOPIC, code_of_tag, delays_of, number_of, timer_code, waiting_code

NOW = 1_700_000_000_123


def record(topic: str, **pairs: str) -> Message:
    message = Message(topic, b"", props.encode(pairs), "")
    message.store_ms = NOW
    return message


def test_a_table_of_levels_is_read() -> None:
    assert delays_of("1s 2m\t3h 4d") == (1000, 120_000, 3 * 3_600_000, 4 * 86_400_000)
    assert len(DELAYS_MS) == 18


@pytest.mark.parametrize("text", ["", "1", "1x", "-1s", "0s", "1s,2s", "1.5s", "1s " * 65, "99999999999s"])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed are"):
        delays_of(text)


@pytest.mark.parametrize(("text", "number"), [("7", 7), ("-7", -1), ("", -1), ("x", -1), ("9" * 19, -1), ("²", -1)])
def test_numbers_are_read_as_java_longs(text: str, number: int) -> None:
    assert number_of(text) == number


@pytest.mark.parametrize("level", [1, 3, 18])
def test_a_level_has_one_code_live_and_replayed(level: int) -> None:
    live = code_of_tag(schedule.level_tag(level), NOW, DELAYS_MS)
    assert live == waiting_code(record(SCHEDULE_TOPIC, DELAY=str(level)), DELAYS_MS) == NOW + DELAYS_MS[level - 1]


def test_a_level_beyond_the_table_counts_as_the_last() -> None:
    assert waiting_code(record(SCHEDULE_TOPIC, DELAY="40"), (1000, 5000)) == NOW + 5000
    assert code_of_tag(schedule.level_tag(40), NOW, (1000, 5000)) == NOW + 5000


@pytest.mark.parametrize(
    ("pairs", "tag", "due"),
    [
        ({"TIMER_DELIVER_MS": "1700000005500"}, schedule.timer_tag(1700000005000, 1700000005500, -1), 1700000005500),
        ({"TIMER_DELIVER_MS": "1700000006000"}, schedule.timer_tag(1700000005000, 1700000006000, -1), 1700000006000),
        ({"TIMER_DELAY_MS": "5000"}, schedule.timer_tag(1700000005000, 1700000005123, 5000), NOW + 5000),
        ({"TIMER_DELAY_SEC": "5"}, schedule.timer_tag(1700000005000, 1700000005123, 5000), NOW + 5000),
        # Stored long after it was made (rolled, or the clock went back): the second's end, as a real broker delivers it.
        ({"TIMER_DELAY_MS": "900"}, schedule.timer_tag(1700000005000, 1700000005123, 900), 1700000006000),
        ({"TIMER_DELIVER_MS": "junk"}, schedule.timer_tag(1700000005000, 0, -1), 1700000006000),
    ],
)
def test_a_timer_has_one_code_live_and_replayed(pairs: dict[str, str], tag: str, due: int) -> None:
    assert timer_code(record(TIMER_TOPIC, TIMER_OUT_MS="1700000005000", **pairs)) == due
    assert code_of_tag(tag, NOW, DELAYS_MS) == due


def test_an_order_to_recall_has_a_negative_code() -> None:
    order = record(TIMER_TOPIC, TIMER_OUT_MS="1700000005000", TIMER_DEL_UNIQKEY="t+u")
    assert timer_code(order) == code_of_tag(schedule.recall_tag(1700000005000), NOW, DELAYS_MS) == -1700000006000


def test_codes_tell_times_from_hashes() -> None:
    assert abs(java_hash("some tag")) < schedule.CODE_MIN < NOW
    message = record(TIMER_TOPIC)
    message.tag = "some tag"
    assert timer_code(message) == java_hash("some tag")
