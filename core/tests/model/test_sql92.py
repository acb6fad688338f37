"""SQL92 expressions: RocketMQ's own answers as vectors, a second evaluator written plainly, limits."""

import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gantrymq.model import sql92
from gantrymq.model.properties import encode
from gantrymq.model.sql92 import DEPTH_MAX, EXPRESSION_CHARS_MAX, EvaluationError, ExpressionError, parse
from gantrymq.model.sql_values import order, to_double, to_int

VECTORS = Path(__file__).parent / "sql92_vectors.tsv"


def plain(text: str) -> str:
    found = text.encode("ascii").decode("unicode_escape")
    return found.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


def vectors() -> list[tuple[str, str, bytes]]:
    found = []
    for line in VECTORS.read_text("ascii").splitlines()[1:]:
        result, text, properties = line.split("\t")
        found.append((result, plain(text), plain(properties).encode("utf-8", "surrogatepass")))
    return found


def result_of(text: str, properties: bytes) -> str:
    """As the vectors say it, and the same from `matches`."""
    try:
        expression = parse(text)
    except ExpressionError:
        return "P"
    try:
        value = expression.value(properties)
    except EvaluationError:
        assert not expression.matches(properties)
        return "E"
    assert expression.matches(properties) is (value is True)
    return {True: "T", False: "F", None: "N"}[value]


def test_as_rocketmq() -> None:
    found = vectors()
    assert len(found) > 2500
    assert {result for result, _, _ in found} == set("PTFNE")
    wrong = [(result_of(text, data), result, text, data) for result, text, data in found if result_of(text, data) != result]
    assert wrong == []
