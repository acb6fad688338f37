"""Filter dialects of the CloudEvents Subscriptions API (subscriptions/spec.md 3.2.4), compiled to one function.

Required dialects: exact, prefix, suffix, all, any, not. Anything else is refused when the subscription is made: a filter
that is skipped would widen what is delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq_gateways.cloudevents.wire.constants import FILTER_DEPTH_MAX, FILTERS_MAX
from gantrymq_gateways.cloudevents.wire.event import EventError, check_name

Attributes = Mapping[str, str]
Test = Callable[[Attributes], bool]


class FilterError(GantryError):
    """A filter that cannot be kept; the text says which and why."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.ILLEGAL_ARGUMENT, text)


def _exact(name: str, wanted: str) -> Test:
    return lambda attributes: attributes.get(name) == wanted


def _prefix(name: str, wanted: str) -> Test:
    return lambda attributes: attributes.get(name, "").startswith(wanted)


def _suffix(name: str, wanted: str) -> Test:
    return lambda attributes: attributes.get(name, "").endswith(wanted)


COMPARISONS: Final[dict[str, Callable[[str, str], Test]]] = {"exact": _exact, "prefix": _prefix, "suffix": _suffix}
"""By dialect: what compares one attribute with a text."""
# A missing attribute makes all three false (3.2.4.1): wanted values are never empty.


def _all(tests: list[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]
    return lambda attributes: all(test(attributes) for test in tests)


def _any(tests: list[Test]) -> Test:
    return lambda attributes: any(test(attributes) for test in tests)


def _not(test: Test) -> Test:
    return lambda attributes: not test(attributes)


class _Compiler:
    """Counts expressions while it compiles, so that nesting cannot hide their number."""

    def __init__(self) -> None:
        self._count = 0

    def compile(self, expression: Any, place: str, depth: int) -> Test:
        self._count += 1
        if self._count > FILTERS_MAX:
            raise FilterError(f"over {FILTERS_MAX} filter expressions")
        if depth > FILTER_DEPTH_MAX:
            raise FilterError(f"{place}: nested over {FILTER_DEPTH_MAX} deep")
        if not isinstance(expression, dict) or len(expression) != 1:
            raise FilterError(f"{place}: a filter is an object with one member, its dialect")
        dialect, argument = next(iter(expression.items()))
        place = f"{place}.{dialect[:32]}"
        if dialect in COMPARISONS:
            return self._comparison(dialect, argument, place)
        if dialect in ("all", "any"):
            if not isinstance(argument, list) or not argument:
                raise FilterError(f"{place}: an array with at least one filter is needed")
            tests = [self.compile(inner, f"{place}[{index}]", depth + 1) for index, inner in enumerate(argument)]
            return _all(tests) if dialect == "all" else _any(tests)
        if dialect == "not":
            return _not(self.compile(argument, place, depth + 1))
        if dialect == "sql":
            raise FilterError(f"{place}: CloudEvents SQL is not supported; use exact, prefix, suffix, all, any, not")
        raise FilterError(f"{place}: unknown dialect; there are exact, prefix, suffix, all, any, not")

    def _comparison(self, dialect: str, argument: Any, place: str) -> Test:
        if not isinstance(argument, dict) or not argument:
            raise FilterError(f"{place}: an object of attribute names and values is needed")
        self._count += len(argument) - 1
        tests: list[Test] = []
        for name, wanted in argument.items():
            try:
                check_name(name)
            except EventError as error:
                raise FilterError(f"{place}: {error}") from None
            if not isinstance(wanted, str) or not wanted:
                raise FilterError(f"{place}.{name}: the value must be a string that is not empty")
            tests.append(COMPARISONS[dialect](name, wanted))
        return _all(tests)


def compile_filters(filters: list[Any]) -> Test | None:
    """One test for a `filters` array (all must hold); None for an empty one. Raises FilterError."""
    compiler = _Compiler()
    tests = [compiler.compile(expression, f"filters[{index}]", 1) for index, expression in enumerate(filters)]
    return _all(tests) if tests else None


def names_in(expression: Any) -> set[str]:
    """Attributes that a filter expression (one that was checked) looks at."""
    found: set[str] = set()
    waiting = [expression]
    while waiting:
        dialect, argument = next(iter(waiting.pop().items()))
        if dialect == "not":
            waiting.append(argument)
        elif isinstance(argument, list):
            waiting.extend(argument)
        else:
            found.update(argument)
    return found
