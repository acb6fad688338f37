"""SQL92 expressions made by chance, evaluated by RocketMQ's own classes and by ours."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gantrymq.model.sql92 import EvaluationError, ExpressionError, parse
from interop_tests.sql92.cases import answers, at_random

PEER = Path(__file__).parent / "bench" / "peers" / "rocketmq.sh"
CASES = 10_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not shutil.which("java") or not shutil.which("mvn"), reason="needs a JDK and Maven for RocketMQ's classes"
    ),
]


@pytest.fixture(scope="module")
def classpath() -> str:
    done = subprocess.run(["bash", str(PEER), "classpath"], capture_output=True, text=True, timeout=200, check=True)
    return done.stdout.split()[-1]


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
