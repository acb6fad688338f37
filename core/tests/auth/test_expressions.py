"""The linear-time engine beside Python's own on expressions that both have."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.auth.expressions import Expression, ExpressionError, matches

LETTERS = "ab.\n-"
atoms = st.sampled_from(["a", "b", ".", "\\.", "[ab]", "[^a]", "[a-b-]", "\\w", "\\D", "^", "$", "\\x61", "(?:ab)", ""])
repeats = st.sampled_from(["", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "{0}", "*?"])


def quantified(pair: tuple[str, str]) -> str:
    atom, repeat = pair
    return atom + repeat if atom and atom not in "^$" else atom


pieces = st.tuples(atoms, repeats).map(quantified)
expressions = st.recursive(
    st.lists(pieces, max_size=4).map("".join),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("|".join),
        st.tuples(inner, st.sampled_from(["", "*", "+", "?", "{1,2}"])).map(lambda pair: f"({pair[0]}){pair[1]}"),
    ),
    max_leaves=5,
)


@given(expressions, st.text(LETTERS, max_size=8))
def test_it_decides_as_re_does(expression: str, name: str) -> None:
    wanted = re.search(expression or "^$", name, re.ASCII) is not None
    assert Expression(expression).search(name) is wanted


@pytest.mark.parametrize(
    ("expression", "name", "wanted"),
    [
        ("", "", True), ("", "a", False), (".*", "", True), ("^amq\\.", "amq.topic", True), ("^amq\\.", "xamq.", False),
        ("^(orders|jobs)-[0-9]+$", "jobs-12", True), ("^(orders|jobs)-[0-9]+$", "jobs-", False),
        ("orders", "all.orders.de", True), ("\\x{e4}", "ä", True), ("[]a]", "]", True), ("[^]a]", "]", False),
    ],
)  # fmt: skip
def test_as_rabbitmq_uses_it(expression: str, name: str, wanted: bool) -> None:
    assert matches(expression, name) is wanted


@pytest.mark.parametrize(
    "expression", ["(", ")", "[", "a**", "*a", "(?=a)", "(?<a>b)", "\\1", "\\p{L}", "a{2", "a{9999}", "a{3,2}", "[b-a]", "x" * 5000,
                   "((a{1000}){1000})", "(" * 200 + ")" * 200, "[[:alpha:]]"],
)  # fmt: skip
def test_what_is_not_regular_or_too_large_is_refused(expression: str) -> None:
    with pytest.raises(ExpressionError):
        Expression(expression)


def test_time_is_linear() -> None:
    begun = time.process_time()
    assert not Expression("^(a+)+$").search("a" * 4000 + "b")
    assert not Expression("(.*)(.*)(.*)(.*)(.*)x$").search("a" * 4000)
    assert time.process_time() - begun < 2
