"""SQL92 filter expressions: RocketMQ's grammar (SelectorParser.jj) and semantics, compiled once to closures.

    or         := and (OR and)*
    and        := equality (AND equality)*
    equality   := comparison (("=" | "<>") comparison | IS [NOT] NULL)*
    comparison := unary ((">" | ">=" | "<" | "<=") unary | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string
                         | [NOT] BETWEEN unary AND unary | [NOT] IN "(" string ("," string)* ")")*
    unary      := ("+" | "-" | NOT) unary | string | decimal | float | TRUE | FALSE | NULL | name | "(" or ")"

As in RocketMQ an expression ends where the grammar takes nothing more; what follows is ignored there, and named in
`Expression.ignored` here. There is no LIKE and no arithmetic. Values are Java's (sql_compile.py, sql_values.py).
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from gantrymq.model.sql import compiling
from gantrymq.model.sql.compiling import CONSTANT, PROPERTY, ExpressionError, Node
from gantrymq.model.sql.values import INT_BITS, LONG_BITS, EvaluationError

EXPRESSION_CHARS_MAX: Final = 65_536
TOKENS_MAX: Final = 4096
"""Names, values, signs and keywords of one expression. The most take 10 ms to compile, once for each text; 2,000 IN values fit."""

DEPTH_MAX: Final = 100
"""Nested parentheses, signs, NOTs and operators: parsing and evaluation are recursive (at most 4 calls a level)."""

SHOWN_CHARS: Final = 40
"""Of the expression in an error text."""

_SKIP: Final = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*+[\n\r]|/\*[^*]*+\*(?:\*|[^*/][^*]*+\*)*+/)+")
_TOKEN: Final = re.compile(
    r"(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<decimal>0|[1-9][0-9]*[lL]?)"
    r"|(?P<string>'[^']*(?:''[^']*)*')"
    r"|(?P<word>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<sign><>|>=|<=|[=<>(),+-])"
)
_KEYWORDS: Final = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"}
)
_ORDERINGS: Final = frozenset({">", ">=", "<", "<="})
_TEXT_TESTS: Final = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
_TESTS: Final = _TEXT_TESTS | {"BETWEEN", "IN"}

_END: Final = "end"
_STRING: Final = "string"
_DECIMAL: Final = "decimal"
_FLOAT: Final = "float"
_NAME: Final = "name"


class Expression:
    """A compiled expression.

    `names`: the properties that it reads. `ignored`: text behind its end. `never`: it is a property alone, which is text and so
    never true.
    """

    __slots__ = ("_run", "ignored", "names", "never", "text")

    def __init__(self, text: str, node: Node, never: bool, names: tuple[str, ...], ignored: str) -> None:
        self.text = text
        self.names = names
        self.ignored = ignored
        self.never = never
        self._run = node.run

    def matches(self, properties: bytes) -> bool:
        """Whether a record with these encoded properties (`model.properties`) passes. Only the names in use are decoded."""
        try:
            return self._run(properties) is True
        except EvaluationError:
            return False

    def value(self, properties: bytes) -> bool | None:
        """True, False or None (unknown); raises EvaluationError where RocketMQ's evaluation throws."""
        found = self._run(properties)
        return found if found is None else found is True


def parse(text: str) -> Expression:
    """Compile an expression; raises ExpressionError, which says where."""
    if len(text) > EXPRESSION_CHARS_MAX:
        raise ExpressionError(f"SQL92 expression of {len(text)} characters; at most {EXPRESSION_CHARS_MAX} are allowed")
    return _Parser(text).expression()


class _Parser:
    """One text, read token by token: what is behind the end of the expression is not even looked at."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._next_at = 0
        self._nested = self._tokens = 0
        self._names: dict[str, None] = {}
        self._kind = self._image = ""
        self._at = 0
        self._advance()

    def expression(self) -> Expression:
        node = self._or()
        ignored = "" if self._kind is _END else self._text[self._at :]
        top = self._boolean(node)
        return Expression(self._text, top, node.kind == PROPERTY, tuple(self._names), ignored)

    # Tokens: `_kind` is a keyword or a sign itself, or one of the classes above; `_image` the text.

    def _advance(self) -> None:
        skipped = _SKIP.match(self._text, self._next_at)
        at = self._at = skipped.end() if skipped else self._next_at
        found = _TOKEN.match(self._text, at)
        if found is None:
            if at < len(self._text):
                self._fail(f"unexpected character {self._text[at]!r}")
            self._kind, self._image = _END, ""
            return
        self._tokens += 1
        if self._tokens > TOKENS_MAX:
            self._fail(f"more than {TOKENS_MAX} names, values and signs")
        self._next_at = found.end()
        self._image = image = found.group()
        group = found.lastgroup
        if group == "word":
            upper = image.upper()
            self._kind = upper if upper in _KEYWORDS else _NAME
        elif group == "sign":
            self._kind = image
        else:
            self._kind = _STRING if group == "string" else _DECIMAL if group == "decimal" else _FLOAT

    def _fail(self, problem: str) -> NoReturn:
        around = self._text[max(self._at - SHOWN_CHARS // 2, 0) : self._at + SHOWN_CHARS // 2]
        raise ExpressionError(f"SQL92 expression, character {self._at + 1} (near {around!r}): {problem}")

    def _expect(self, kind: str) -> None:
        if self._kind != kind:
            self._fail(f"expected {kind}, found {self._image or 'the end'}")
        self._advance()

    def _take(self) -> str:
        kind = self._kind
        self._advance()
        return kind

    def _enter(self) -> None:
        self._nested += 1
        if self._nested > DEPTH_MAX:
            self._fail(f"nested more than {DEPTH_MAX} deep")

    def _made(self, node: Node) -> Node:
        if node.depth > DEPTH_MAX:
            self._fail(f"nested more than {DEPTH_MAX} deep")
        return node

    def _boolean(self, node: Node) -> Node:
        try:
            return self._made(compiling.boolean(node))
        except ExpressionError as error:
            self._fail(str(error))

    # Grammar.

    def _or(self) -> Node:
        """`or` and `and` in one call: every level of parentheses costs stack."""
        alternatives: list[Node] = []
        while True:
            node = self._equality()
            if self._kind == "AND":
                parts = [self._boolean(node)]
                while self._kind == "AND":
                    self._advance()
                    parts.append(self._boolean(self._equality()))
                node = self._made(compiling.all_of(parts))
            if self._kind != "OR" and not alternatives:
                return node
            alternatives.append(self._boolean(node))
            if self._kind != "OR":
                return self._made(compiling.any_of(alternatives))
            self._advance()

    def _equality(self) -> Node:
        left = self._comparison()
        while True:
            kind = self._kind
            if kind in ("=", "<>"):
                self._advance()
                right = self._comparison()
                left = self._build(compiling.equal if kind == "=" else compiling.not_equal, left, right)
            elif kind == "IS":
                self._advance()
                negative = self._kind == "NOT"
                if negative:
                    self._advance()
                self._expect("NULL")
                left = self._made(compiling.is_null(left, negative))
            else:
                return left

    def _build(self, make: compiling.Make, left: Node, right: Node) -> Node:
        try:
            return self._made(make(left, right))
        except ExpressionError as error:
            self._fail(str(error))

    def _comparison(self) -> Node:
        left = self._unary()
        while True:
            kind = self._kind
            if kind in _ORDERINGS:
                self._advance()
                left = self._build(compiling.ORDERINGS[kind], left, self._unary())
            elif kind == "NOT":
                self._advance()
                if self._kind not in _TESTS:
                    self._fail(f"expected a test behind NOT, found {self._image or 'the end'}")
                left = self._test(left, True)
            elif kind in _TESTS:
                left = self._test(left, False)
            else:
                return left

    def _test(self, left: Node, negative: bool) -> Node:
        kind = self._take()
        if kind in _TEXT_TESTS:
            return self._made(compiling.text_test(kind, left, self._string(), negative))
        if kind == "IN":
            self._expect("(")
            wanted = [self._string()]
            while self._kind == ",":
                self._advance()
                wanted.append(self._string())
            self._expect(")")
            if left.kind != PROPERTY:
                self._fail("IN needs a property on its left")
            return compiling.is_in(left, frozenset(wanted), negative)
        low = self._unary()
        self._expect("AND")
        high = self._unary()
        try:
            return self._made(compiling.between(left, low, high, negative))
        except ExpressionError as error:
            self._fail(str(error))

    def _string(self) -> str:
        if self._kind is not _STRING:
            self._fail(f"expected a string in single quotes, found {self._image or 'the end'}")
        image = self._image
        self._advance()
        return image[1:-1].replace("''", "'")

    def _unary(self) -> Node:
        kind = self._kind
        if kind in ("+", "-", "NOT"):
            self._enter()
            self._advance()
            node = self._unary()
            if kind == "-":
                node = self._made(compiling.negated(node))
            elif kind == "NOT":
                node = self._made(compiling.inverted(self._boolean(node)))
            self._nested -= 1
            return node
        if kind == "(":
            self._enter()
            self._advance()
            node = self._or()
            self._expect(")")
            self._nested -= 1
            return node
        return self._primary(kind)

    def _primary(self, kind: str) -> Node:
        if kind is _STRING:
            return compiling.constant(self._string())
        image = self._image
        if kind is _NAME:
            self._advance()
            self._names[image] = None
            return compiling.prop(image)
        if kind is _DECIMAL:
            value = int(image.rstrip("lL")) if len(image) <= SHOWN_CHARS else 1 << LONG_BITS
            if value >= 1 << (LONG_BITS - 1):
                self._fail(f"{image[:SHOWN_CHARS]} is out of the range of a long")
            self._advance()
            return compiling.constant(value, INT_BITS if value < 1 << (INT_BITS - 1) else LONG_BITS)
        if kind is _FLOAT:
            number = float(image)
            # ConstantExpression.createFloat takes Double.MIN_VALUE for the least number, so 0.0 is refused.
            if number == 0.0 or number == float("inf"):
                self._fail(f"{image[:SHOWN_CHARS]} is out of the range of a double above zero")
            self._advance()
            return compiling.constant(number)
        if kind in ("TRUE", "FALSE", "NULL"):
            self._advance()
            return compiling.constant({"TRUE": True, "FALSE": False, "NULL": None}[kind])
        self._fail(f"expected a value, found {image or 'the end'}")


__all__ = ["CONSTANT", "DEPTH_MAX", "EXPRESSION_CHARS_MAX", "EvaluationError", "Expression", "ExpressionError", "parse"]
