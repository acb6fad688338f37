import random

import pytest

from gantrymq_gateways.cloudevents.push.retry import RetryPolicy, Verdict, retry_after_ms, verdict_of

NOW_MS = 1_700_000_000_000  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.mark.parametrize(
    ("verdict", "statuses"),
    [
        (Verdict.DONE, [200, 201, 202, 204, 299]),
        (Verdict.RETRY, [404, 408, 409, 429, 500, 501, 502, 503, 504, 599, 600]),
        (Verdict.FINAL, [300, 301, 302, 307, 308, 304, 400, 401, 403, 405, 413, 415, 422, 451]),
        (Verdict.GONE, [410]),
    ],
)
def test_verdicts(verdict, statuses):
    assert [verdict_of(status) for status in statuses] == [verdict] * len(statuses)


def test_schedule():
    policy = RetryPolicy(first_ms=1000, longest_ms=60_000)
    assert [policy.delay_ms(n, lambda: 0.0) for n in range(1, 9)] == [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]
    assert [policy.delay_ms(n, lambda: 0.9999999) for n in (1, 2, 8, 100, 10_000)] == [999, 1999, 59999, 59999, 59999]
    chance = random.Random(1).random
    assert len({policy.delay_ms(3, chance) for _ in range(50)}) > 40


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (b"0", 0),
        (b" 120 ", 120_000),
        (b"999999999", 600_000),
        (b"Tue, 14 Nov 2023 22:14:20 GMT", 60_000),
        (b"Tue, 14 Nov 2023 22:14:20", 60_000),
        (b"Tue, 14 Nov 2023 22:12:20 GMT", 0),
        (b"Tue, 14 Nov 2033 22:12:20 GMT", 600_000),
        (b"Tuesday, 14-Nov-23 22:14:20 GMT", 60_000),
        (b"1.5", None),
        (b"-1", None),
        (b"soon", None),
        (b"", None),
        (b"\xff", None),
        (b"Mon, 99999999999999999999 Jan 2020 00:00:00 GMT", None),
        (b"Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
        (b"Mon, 01 Jan 2020 00:00:00 +99999999999999999999", None),
        (b"Mon, 01 Jan 0001 00:00:00 +2359", 0),
        (b"Fri, 31 Dec 9999 23:59:59 -2359", 600_000),
    ],
)
def test_retry_after(value, expected):
    assert retry_after_ms(value, NOW_MS, 600_000) == expected
