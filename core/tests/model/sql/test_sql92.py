"""SQL92 expressions: RocketMQ's own answers as vectors, a second evaluator written plainly, limits."""

import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gantrymq.model.properties import encode
from gantrymq.model.sql.sql92 import (
    DEPTH_MAX,
    EXPRESSION_CHARS_MAX,
    TOKENS_MAX,
    EvaluationError,
    ExpressionError,
    parse,
)
from gantrymq.model.sql.values import order, to_double, to_int

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
    wrong = [
        (result_of(text, data), result, text, data) for result, text, data in found if result_of(text, data) != result
    ]
    assert wrong == []


# A second evaluator: trees evaluated by walking them, values as Java has them, and the text that the tree stands for.

NAMES = ["a", "b", "c"]
TEXTS = ["7", "-3", "x", "true", "2.5", "9999999999", "it's"]
MISSING = object()

operands = st.one_of(
    st.sampled_from(NAMES).map(lambda name: ("name", name)),
    st.integers(-20, 20).map(lambda value: ("number", value)),
    st.sampled_from([0.5, 2.5, 7.0]).map(lambda value: ("number", value)),
)
conditions = st.recursive(
    st.one_of(
        st.tuples(st.sampled_from([">", ">=", "<", "<="]), operands, operands),
        st.tuples(st.sampled_from(["=", "<>"]), operands, operands),
        st.tuples(st.sampled_from(["=", "<>"]), st.sampled_from(NAMES).map(lambda name: ("name", name)),
                  st.one_of(st.booleans(), st.sampled_from(TEXTS)).map(lambda value: ("text", value))),
        st.tuples(st.just("null"), st.sampled_from(NAMES), st.booleans()),
        st.tuples(st.just("in"), st.sampled_from(NAMES), st.sets(st.sampled_from(TEXTS), min_size=1), st.booleans()),
        st.tuples(st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]), st.sampled_from(NAMES), st.sampled_from(["7", "t", "it's"]), st.booleans()),
    ),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=4)),
    ),
    max_leaves=12,
)  # fmt: skip


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def shown(tree) -> str:  # type: ignore[no-untyped-def]
    kind = tree[0]
    if kind == "name" or kind == "number":
        return str(tree[1])
    if kind == "text":
        return quoted(tree[1]) if isinstance(tree[1], str) else str(tree[1]).upper()
    if kind == "not":
        return f"NOT ({shown(tree[1])})"
    if kind in ("AND", "OR"):
        return f" {kind} ".join(f"({shown(each)})" for each in tree[1])
    if kind == "null":
        return f"{tree[1]} IS {'NOT ' if tree[2] else ''}NULL"
    if kind == "in":
        return f"{tree[1]} {'NOT ' if tree[3] else ''}IN ({', '.join(map(quoted, sorted(tree[2])))})"
    if kind in ("CONTAINS", "STARTSWITH", "ENDSWITH"):
        return f"{tree[1]} {'NOT ' if tree[3] else ''}{kind} {quoted(tree[2])}"
    return f"{shown(tree[1])} {kind} {shown(tree[2])}"


class Throws(Exception):
    pass


def number_like(text: str, other: int | float) -> int | float:
    """The text as the kind of number that it is compared with."""
    try:
        value = float(text) if isinstance(other, float) else int(text)
    except ValueError:
        raise Throws from None
    if isinstance(other, int) and not -(2**31) <= value < 2**31:
        raise Throws
    return value


def compared(kind: str, left: object, right: object) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        if kind in ("=", "<>"):
            return (left == right) is (kind == "=")
        left, right = number_like(left, 1.0), number_like(right, 1.0)
    elif isinstance(left, str):
        left = left.lower() == "true" if isinstance(right, bool) else number_like(left, right)  # type: ignore[arg-type]
    elif isinstance(right, str):
        right = number_like(right, left)  # type: ignore[arg-type]
    return {
        "=": left == right, "<>": left != right, ">": left > right, ">=": left >= right, "<": left < right, "<=": left <= right,  # type: ignore[operator]
    }[kind]  # fmt: skip


def walked(tree, properties: dict[str, str]) -> bool | None:  # type: ignore[no-untyped-def]
    kind = tree[0]
    if kind == "not":
        value = walked(tree[1], properties)
        return None if value is None else not value
    if kind in ("AND", "OR"):
        ends = kind == "OR"
        found: set[bool | None] = set()
        for each in tree[1]:
            value = walked(each, properties)
            if value is ends:
                return ends
            found.add(value)
        return None if None in found else not ends
    if kind == "null":
        return (tree[1] in properties) is tree[2]
    text = properties.get(tree[1]) if isinstance(tree[1], str) else None
    if kind == "in":
        return None if text is None else (text in tree[2]) is not tree[3]
    if kind in ("CONTAINS", "STARTSWITH", "ENDSWITH"):
        if text is None:
            return False
        found_it = {
            "CONTAINS": tree[2] in text,
            "STARTSWITH": text.startswith(tree[2]),
            "ENDSWITH": text.endswith(tree[2]),
        }[kind]
        return found_it is not tree[3]
    left, right = (properties.get(each[1]) if each[0] == "name" else each[1] for each in tree[1:])
    if left is None or right is None:
        if kind not in ("=", "<>") or (left is None and right is not None):
            return None
        return (left is right) is (kind == "=")  # nothing on the right: not equal, rather than unknown
    return compared(kind, left, right)


@settings(max_examples=200, deadline=None)
@given(conditions, st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TEXTS)))
@example(("=", ("name", "a"), ("name", "b")), {})
@example(("<>", ("number", 7), ("name", "a")), {})
def test_as_the_plain_evaluator(tree, properties: dict[str, str]) -> None:  # type: ignore[no-untyped-def]
    try:
        wanted = {True: "T", False: "F", None: "N"}[walked(tree, properties)]
    except Throws:
        wanted = "E"
    assert result_of(shown(tree), encode(properties)) == wanted


# Anything at all.

PARTS = [
    "a", "b", "7", "-", "+", "'x'", "'", "''", "(", ")", ",", "=", "<>", "<", ">=", " AND ", " OR ", "NOT ", " BETWEEN ", " IN ", " IS ", "NULL", "TRUE", " CONTAINS ",
    "--", "\n", "/*", "*/", "1e5", ".5", "5.", "9" * 30, "\x00", "ä", "\ud800", "#", " LIKE ",
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=3)), max_size=30).map("".join), st.binary(max_size=60)
)
def test_any_text_and_any_bytes(text: str, properties: bytes) -> None:
    assert result_of(text, properties) in "PTFNE"


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789.eE+-xXpPfFdDNaInity \u0664\uff17_", max_size=12))
def test_any_text_as_a_number(text: str) -> None:
    for read in (lambda: to_int(text, 32), lambda: to_int(text, 64), lambda: to_double(text)):
        try:
            read()
        except EvaluationError:
            continue
    assert result_of("a > 5 OR a < 2.5", encode({"a": text})) in "TFNE"


HOSTILE = {
    "parentheses": "(" * 30_000 + "a" + ")" * 30_000,
    "signs": "-" * EXPRESSION_CHARS_MAX,
    "plus": "+" * 60_000 + "a = 7",
    "nots": "NOT " * 16_000 + "TRUE",
    "chain": "a" + "=a" * 30_000,
    "nulls": "a" + " IS NULL" * 8000,
    "texts": "a" + " CONTAINS 'x'" * 5000,
    "ors": "a=7" + " OR a=7" * 1000,
    "too many ors": "a=7" + " OR a=7" * 9000,
    "ands": "a=7" + " AND a=7" * 1000,
    "in": "a IN (" + ",".join(["'" + "x" * 25 + "'"] * 2000) + ")",
    "quotes": "a = '" + "''" * 32_000,
    "a quote": "a = '" + "x" * 65_000,
    "comment": "/*" + "*" * 65_000,
    "comment with stars": "/*" + "* " * 32_000,
    "comments": "a = 7 " + "/**/" * 16_000,
    "line comments": "--" * 32_000 + "\n",
    "digits": "a > " + "9" * 65_000,
    "float": "a > " + "9" * 32_000 + "." + "9" * 32_000,
    "name": "a" * 65_000,
    "spaces": " " * 65_000 + "a",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_take_bounded_time(name: str) -> None:
    text = HOSTILE[name]
    assert len(text) <= EXPRESSION_CHARS_MAX
    spent_s = []
    for _ in range(3):
        began = time.process_time()
        result_of(text, encode({"a": "7"}))
        spent_s.append(time.process_time() - began)
    assert min(spent_s) < 0.5  # 10 ms on a quiet machine, and no collection of garbage; a quadratic scan takes seconds


def test_limits() -> None:
    with pytest.raises(ExpressionError, match="65537 characters; at most 65536"):
        parse("a" * (EXPRESSION_CHARS_MAX + 1))
    assert parse("a IN (" + ",".join(["'x'"] * (TOKENS_MAX // 2 - 2)) + ")").matches(encode({"a": "x"}))
    with pytest.raises(ExpressionError, match="more than 4096 names, values and signs"):
        parse("a IN (" + ",".join(["'x'"] * (TOKENS_MAX // 2)) + ")")
    inside = DEPTH_MAX - 1
    assert parse("(" * inside + "a = 7" + ")" * inside).matches(encode({"a": "7"}))
    with pytest.raises(ExpressionError, match="nested more than 100 deep"):
        parse("(" * (DEPTH_MAX + 1) + "a = 7" + ")" * (DEPTH_MAX + 1))
    with pytest.raises(ExpressionError, match="nested more than 100 deep"):
        parse("a" + " IS NULL" * (DEPTH_MAX + 1))
    deep = "NOT (" * (DEPTH_MAX // 2 - 1) + "a = 7" + ")" * (DEPTH_MAX // 2 - 1)
    assert parse(deep).value(encode({"a": "7"})) is False


ERRORS = {
    "a >": "character 4 .*expected a value, found the end",
    "a > 'x'": "'x' cannot be compared by <, <=, > and >=",
    "a = NULL": "use IS NULL",
    "a IN (7)": "expected a string in single quotes, found 7",
    "a BETWEEN 9 AND 1": "must not be above",
    "a # 7": "unexpected character '#'",
    "5": "5 is no condition",
    "a > 9223372036854775808": "range of a long",
    "a NOT = 7": "expected a test behind NOT, found =",
    "(a = 7": r"expected \), found the end",
    "a > 0.0": "above zero",
}


@pytest.mark.parametrize("text", ERRORS)
def test_errors_say_what_and_where(text: str) -> None:
    with pytest.raises(ExpressionError, match=ERRORS[text]) as caught:
        parse(text)
    assert "SQL92 expression, character " in str(caught.value)


def test_what_is_ignored() -> None:
    assert parse("a = 7 LIMIT 5").ignored == "LIMIT 5"
    assert parse("a = 7 /* all of it */ ").ignored == ""
    found = parse("a LIKE 'x%'")
    assert (found.ignored, found.never) == ("LIKE 'x%'", True)
    assert not parse("a = 7").never


def test_names_in_use() -> None:
    assert parse("b = 'x' AND (a > 7 OR b IS NULL)").names == ("b", "a")


def test_order_of_doubles() -> None:
    ascending = [float("-inf"), -1.0, -0.0, 0.0, 1.0, float("inf"), float("nan")]
    for place, left in enumerate(ascending):
        for other, right in enumerate(ascending):
            assert order(left, right) == (place > other) - (place < other)
