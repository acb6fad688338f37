"""Expressions with properties: written by hand, and made at random. RocketMQ's answers to them are core/tests/model/sql92_vectors.tsv.

    python -m interop_tests.sql92.cases CLASSPATH > core/tests/model/sql92_vectors.tsv

writes that file anew; CLASSPATH is what `interop_tests/bench/peers/rocketmq.sh classpath` prints.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

Case = tuple[str, str]
"""Expression, encoded properties."""

EVALUATE = Path(__file__).parent / "Evaluate.java"
RANDOM_CASES = 1000
SEED = 92


def pairs(**properties: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


PLAIN = pairs(
    a="7",
    b="x",
    t="true",
    f="False",
    d="1.5",
    n="-3",
    big="3000000000",
    e="1e3",
    s=" 5 ",
    q="it's",
    z="0",
    u="ä",
    w="NaN",
)

WORDS = [
    "a = 7", "a = '7'", "a <> 7", "a > 6", "a >= 7", "a < 7", "a <= 7", "7 = a", "8 > a", "a = 7.0", "a > 6.5", "a = b", "b = 'x'", "b <> 'x'",
    "'x' = b", "b = 5", "b > 5", "d = 1.5", "d > 1", "d < 2", "1.5 = d", "n = -3", "n < 0", "n > -4", "n = - 3", "n = -3.0", "- n = 3", "-(-3) = n",
    "+ a = 7", "a = +7", "big > 5", "big > 5L", "big > 3000000000", "big >= 3000000000", "big = 3000000000", "big > 2999999999.5", "e = 1000", "e = 1000.0",
    "e > 999.9", "s = 5", "s = 5.0", "w > 1.5", "w = 1.5", "w < 1.5", "w >= w", "w > 1", "a > d", "d > a", "a > b", "d >= d", "e > big",
    "t = TRUE", "t = true", "t <> TRUE", "f = FALSE", "b = FALSE", "b = TRUE", "TRUE = t", "TRUE = 'true'", "'true' = TRUE", "TRUE = TRUE", "TRUE = 1",
    "1 = TRUE", "TRUE <> FALSE", "t", "a", "none", "NOT t", "NOT none", "TRUE", "FALSE", "NULL", "NOT NULL", "NOT TRUE", "NOT (a = 7)", "NOT a = 7",
    "none = 1", "none <> 1", "1 = none", "1 <> none", "none > 1", "none = none", "none <> none", "a = none", "none = a", "none > a", "a > none",
    "none IS NULL", "none IS NOT NULL", "a IS NULL", "a IS NOT NULL", "NULL IS NULL", "1 IS NULL", "TRUE IS NOT NULL", "a IS NOT NULL IS NULL",
    "-b IS NULL", "(a = 7) IS NULL", "(none = 7) IS NULL", "a is null or a = 7",
    "a BETWEEN 1 AND 10", "a BETWEEN 8 AND 10", "a BETWEEN 10 AND 1", "a NOT BETWEEN 1 AND 3", "a NOT BETWEEN 10 AND 1", "a BETWEEN 1 AND d", "a BETWEEN n AND 8",
    "a BETWEEN 'a' AND 'b'", "a BETWEEN 1.5 AND 9", "a BETWEEN NULL AND 3", "a BETWEEN TRUE AND FALSE", "a BETWEEN -5 AND -7", "5 BETWEEN 1 AND 9",
    "none BETWEEN 1 AND 2", "none NOT BETWEEN 1 AND 2", "a BETWEEN 1 AND none", "a BETWEEN 8 AND none", "b BETWEEN 1 AND 2", "a BETWEEN 1 AND 3 AND 5",
    "a IN ('7', '8')", "a IN ('8')", "a NOT IN ('8')", "none IN ('8')", "none NOT IN ('8')", "a IN (7)", "a IN ()", "'a' IN ('a')", "(a) IN ('7')",
    "a IN ('1','2','3','4','5','6','7')", "a NOT IN ('1','2','3','4','5','6','7')", "a IN '7'", "(a = 7) IN ('7')", "a IN ('7',)", "q IN ('it''s')",
    "b CONTAINS 'x'", "b CONTAINS ''", "b NOT CONTAINS ''", "b NOT CONTAINS 'x'", "b NOT CONTAINS 'y'", "none CONTAINS 'x'", "none NOT CONTAINS 'x'",
    "q STARTSWITH 'it'", "q ENDSWITH '''s'", "q NOT STARTSWITH 'it'", "q NOT ENDSWITH 'x'", "q STARTSWITH ''", "q CONTAINS 'T'", "'abc' CONTAINS 'b'",
    "5 CONTAINS '5'", "TRUE CONTAINS 'T'", "b CONTAINS x", "b CONTAINS 5", "b CONTAINS 'x' = TRUE", "(b CONTAINS 'x') = TRUE", "b CONTAINS 'x' CONTAINS 'y'",
    "a = 7 AND b = 'x'", "a = 7 AND b = 'y'", "a = 8 OR b = 'x'", "a = 8 OR b = 'y'", "a = 7 OR b = 'y' AND none = 1", "none = 1 AND a = 8", "none = 1 AND a = 7",
    "none = 1 OR a = 7", "none = 1 OR a = 8", "b > 5 OR a = 7", "a = 7 OR b > 5", "b > 5 AND a = 8", "a = 8 AND b > 5", "NOT (b > 5)", "a = 7 AND", "AND a = 7",
    "a = 7 OR 5", "5 OR a = 7", "5", "'x'", "1.5", "-5", "-a", "a AND b", "t AND TRUE", "TRUE AND t", "TRUE OR t", "a = 7 AND 'x'", "a = 7 and not b = 'x'",
    "a = 7 And b IN ('x') oR FALSE", "NOT NOT TRUE", "NOT NOT NOT TRUE", "- - 5 = 5", "NOT -5", "a = NOT TRUE", "NOT TRUE = FALSE", "(NOT TRUE) = FALSE",
    "a > b > 5", "a = 7 = TRUE", "(a = 7) = (b = 'x')", "(a = 7) = 't'", "'true' = (a = 7)", "(a = 7) = 1", "1 = (a = 7)", "t = (a = 7)", "(a = 7) = t", "(a = 7) > 1",
    "a > 'x'", "a > TRUE", "a > NULL", "a = NULL", "NULL = a", "NULL <> 1", "a <> NULL", "5 > 3", "3 > 5", "5 = 5.0", "5 = 5L", "'a' = 'a'", "'a' = 'b'", "'5' = 5", "5 = '5'",
    "'x' = 5", "5 = 'x'", "1.5 = '1.5'", "1.5 = 'x'", "'a' > 'b'", "9007199254740993 = 9007199254740992.0", "9007199254740993 > 9007199254740992.0",
    "", " ", "a =", "= a", "a == 7", "a != 7", "a = 7;", "a = 7 ;", "a = 7 b", "a = 7 b #", "a = 7 #", "a = 7)", "(a = 7", "((a = 7))", "()", "a LIKE 'x%'", "a + 1 = 8",
    "a * 2 = 14", "a = 7 LIMIT 5", "007 = a", "a = 007", "a = 0", "z = 0", "z = 0L", "z < 0", "a = 0.0", "a > 0.0", "a > .5", "a > 5.", "a > 5.e0", "a > 5.e", "a > 5e",
    "a > 5e0", "a > 1e400", "a > 1e-400", "a > 4.9e-324", "a > 1.8e308", "a < 9223372036854775807", "a < 9223372036854775808", "a > -9223372036854775808",
    "a > -9223372036854775807", "a < 2147483647", "a < 2147483648", "big > 2147483647", "big > 2147483648", "n > -2147483648", "big > -2147483648", "a > 5l", "a > 5LL", "a > 5.5L",
    "a -- comment\n = 7", "a = 7 -- comment", "a = 7 -- comment\n", "a --5 = 7", "a /* x */ = 7", "a /* x = 7", "/* a */ b = 'x'", "/**/a = 7", "/***/a = 7", "a /* * / */= 7",
    "/* x */ /* y */a=7", "a=7/**/", "a\t=\n7\r\f", "a\u00a0= 7", "a = 7\u000b", "'it''s' = q", "q = 'it''s'", "q = 'it's'", "q = ''", "q = ''''", "'' = ''", "b = \"x\"",
    "u = 'ä'", "ä = 'x'", "u CONTAINS 'ä'", "$a = 1", "_a = 1", "a$b_c9 = 1", "9a = 1", "a.b = 1", "a-b = 1", "TAGS = 'x'", "In = 1", "is IS NULL", "not", "A = 7", "T",
    "a NOT = 7", "a NOT 7", "a IS 7", "a IS NOT 7", "a IS TRUE", "a BETWEEN 1", "a BETWEEN 1 OR 2", "a NOT", "NOT", "-", "+", "+ + a = 7", "+a", "+TRUE", "+'x' = b", "a = + -7",
    "a, b", "a IN ('7') AND", "((((((((((a = 7))))))))))", "a = '\n'", "a = 1 OR a = 2 OR a = 3 OR a = 7", "a = 7 AND a = 7 AND a = 7 AND none", "none AND b > 5", "none OR b > 5",
]  # fmt: skip

TEXTS = [
    "0", "-0", "+7", "-7", "7.0", "07", " 7", "7 ", "+", "-", ".", "1_0", "0x10", "0x1p3", "0x1.8p1f", "0xp1", "1e5", "1e", "1e+5", ".5", "5.", "-.5", "1f", "1.5d", "1L", "1D",
    "2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "1e309", "-1e309", "1e-400",
    "NaN", "nan", "-NaN", "+NaN", "NaNf", "Infinity", "-Infinity", "infinity", "inf", "-0.0", "0.0", "\u0664\u0662", "\uff17", "7\u0660", "\ud835\udfd7", "true", "TRUE", "tRuE", "True ", "yes", "x",
    "\u00a07", "\u001f7\u0001", "00000000000000000000000000000000000000000000000000007", "1" * 50, "1" * 400, "7\x00", "--7", "+-7", "1.5.5", "1e5.5",
    "0x1p99999", "1e99999999999999999999", "0e99999999999999999999", "\u212a", "fal\u017fe",
]  # fmt: skip
AGAINST = [
    "a = 7", "a > 7", "a <= 7", "a > 3000000000", "a > 6.5", "a < 6.5", "a = 7.5", "a >= b", "b > a", "a = TRUE", "a <> TRUE", "a = b", "a > -1", "7 = a", "7.5 >= a", "a = 7L",
]  # fmt: skip
RAW = [
    "a\x017\x02a\x018\x02", "a\x017\x02a\x01\x02", "\x01\x02a\x017\x02", "a\x017", "aa\x017\x02", "ba\x017\x02a\x018", "a\x01\x01\x02", "a\x017\x018\x02", "a\x02a\x017", "", "a", "a\x01", "\x02\x02a\x017\x02\x02",
    "x\x01a\x02a\x017\x02x\x01a\x017\x02",
]  # fmt: skip

NAMES = ["a", "b", "t", "d", "n", "none", "big", "e", "q", "z"]
NUMBERS = ["0", "7", "-3", "3000000000", "1.5", "-1.5", "8L", "1e3", "10"]
STRINGS = ["'x'", "'7'", "''", "'it''s'", "'true'", "'1.5'", "'s'"]
OPERATORS = ["=", "<>", ">", ">=", "<", "<="]


def by_hand() -> list[Case]:
    cases = [(text, PLAIN) for text in WORDS]
    cases += [(text, pairs(a=value, b="5")) for value in TEXTS for text in AGAINST]
    cases += [
        (text, raw) for raw in RAW for text in ("a = 7", "a = '7'", "a IS NULL", "a CONTAINS '8'", "x CONTAINS 'a'")
    ]
    return cases


def _operand(chance: random.Random, depth: int) -> str:
    kind = chance.random()
    if kind < 0.5:
        return chance.choice(NAMES)
    if kind < 0.75:
        return chance.choice(NUMBERS)
    if kind < 0.85:
        return chance.choice(STRINGS)
    if kind < 0.9:
        return chance.choice(["TRUE", "FALSE", "NULL", "true"])
    if kind < 0.94:
        return chance.choice(["-", "+", "NOT "]) + _operand(chance, depth + 1)
    return f"({_condition(chance, depth + 1)})"


def _condition(chance: random.Random, depth: int) -> str:
    if depth < 4 and chance.random() < 0.5:
        joined = chance.choice([" AND ", " OR "]).join(
            _condition(chance, depth + 1) for _ in range(chance.randint(2, 3))
        )
        return chance.choice(["", "NOT "]) + f"({joined})" if chance.random() < 0.6 else joined
    left = _operand(chance, depth) if chance.random() < 0.3 else chance.choice(NAMES)
    no = chance.choice(["", "NOT "])
    kind = chance.randrange(8)
    if kind == 0:
        return f"{left} IS {no}NULL"
    if kind == 1:
        return f"{left} {no}BETWEEN {_operand(chance, depth)} AND {_operand(chance, depth)}"
    if kind == 2:
        return f"{left} {no}IN ({', '.join(chance.sample(STRINGS, chance.randint(1, 6)))})"
    if kind == 3:
        return f"{left} {no}{chance.choice(['CONTAINS', 'STARTSWITH', 'ENDSWITH'])} {chance.choice(STRINGS)}"
    if kind == 4:
        return left
    return f"{left} {chance.choice(OPERATORS)} {_operand(chance, depth)}"


def at_random(seed: int, count: int) -> list[Case]:
    """Conditions by the grammar; every eighth one is damaged by a character that is removed, doubled or put in."""
    chance = random.Random(seed)
    cases: list[Case] = []
    values = ["7", "x", "true", "False", "1.5", "-3", "3000000000", "it's", "0", "1e3", "10", ""]
    for number in range(count):
        text = _condition(chance, 0)
        if number % 8 == 0:
            at = chance.randrange(len(text))
            text = (
                text[:at]
                + chance.choice(["", text[at] * 2, "'", " ", "(", ")", "-", "NOT ", "9", ","])
                + text[at + 1 :]
            )
        cases.append((text, pairs(**{name: chance.choice(values) for name in chance.sample(NAMES, 7)})))
    return cases


def escaped(text: str) -> str:
    return "".join(
        {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}.get(each)
        or (each if " " <= each <= "~" else _units(each))
        for each in text
    )


def _units(character: str) -> str:
    data = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[at : at + 2].hex()}" for at in range(0, len(data), 2))


def plain(text: str) -> str:
    """What `escaped` made, back."""
    found = text.encode("ascii").decode("unicode_escape")
    return found.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")


def answers(classpath: str, cases: list[Case]) -> list[str]:
    """RocketMQ's results, one letter each."""
    given = "".join(f"{escaped(text)}\t{escaped(properties)}\n" for text, properties in cases)
    done = subprocess.run(
        ["java", "-Xmx256m", "-Xss1m", "-cp", classpath, str(EVALUATE)],
        input=given,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    found = done.stdout.split()
    if len(found) != len(cases):
        raise RuntimeError(f"{len(found)} answers to {len(cases)} cases: {done.stderr[-500:]}")
    return found


def main() -> None:
    cases = list(dict.fromkeys(by_hand() + at_random(SEED, RANDOM_CASES)))
    print(
        "# result, expression, properties; RocketMQ 5.3.3 (interop_tests/sql92). P: does not parse, T F N: true false unknown, E: evaluating throws"
    )
    for (text, properties), result in zip(cases, answers(sys.argv[1], cases), strict=True):
        print(f"{result}\t{escaped(text)}\t{escaped(properties)}")


if __name__ == "__main__":
    main()
