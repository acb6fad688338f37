"""SQL92 expressions made by chance, evaluated by RocketMQ's own classes and by ours."""

from __future__ import annotations

import pytest

from gantrymq.model.sql.sql92 import EvaluationError, ExpressionError, parse
from interop_tests.java import official
from interop_tests.sql92.cases import answers, at_random

CASES = 10_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.skipif(bool(official.missing()), reason=official.missing()),
]


@pytest.fixture(scope="module")
def classpath() -> str:
    return official.needed(official.peer_jars)


def ours(text: str, properties: str) -> str:
    try:
        return {True: "T", False: "F", None: "N"}[parse(text).value(properties.encode())]
    except ExpressionError:
        return "P"
    except EvaluationError:
        return "E"


@pytest.mark.parametrize("seed", range(3))
def test_as_rocketmq(classpath: str, seed: int) -> None:
    cases = at_random(seed, CASES)
    theirs = answers(classpath, cases)
    assert set(theirs) == set("PTFNE")
    assert [(case, each) for case, each in zip(cases, theirs, strict=True) if ours(*case) != each] == []
