"""Pop polls that wait, where one of them fails."""

from typing import Any

import pytest

from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.server.pop import answers as pop_answers
from tests.remoting.bench import Bench, answers
from tests.remoting.pop_client import later, pop, pop_frame
from tests.remoting.server.pop.test_requests import bodies, fill


def test_a_poll_that_fails_is_answered_and_costs_no_other_its_message(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = pop_answers.Pop.find, []

    def find(self: Any, reading: Any) -> Any:
        calls.append(self)
        if len(calls) == 3:  # both have found nothing and wait; now a message comes
            raise OSError(5, "Input/output error")
        return real(self, reading)

    monkeypatch.setattr(pop_answers.Pop, "find", find)
    fill(bench, 1, queue=3)
    unlucky, lucky = bench.connect(), bench.connect()
    pop(lucky, queueId=3)
    calls.clear()
    assert unlucky.feed(pop_frame(1, pollTime=10_000)) == b""
    assert lucky.feed(pop_frame(2, pollTime=10_000, queueId=-1)) == b""
    fill(bench, 1)
    (answer,) = answers(unlucky.take())
    assert (answer.code, answer.remark) == (Answer.SYSTEM_ERROR, "[Errno 5] Input/output error")
    assert bodies(later(lucky.take())) == [b"m0"]
    assert bench.doors.pops.polls.waiting == 0
