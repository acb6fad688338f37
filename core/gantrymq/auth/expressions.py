"""Regular expressions in linear time, for RabbitMQ's permissions: what an administrator wrote, on names that clients choose.

An expression becomes a small automaton (Thompson's construction), which is walked with all its states at once: a name of n characters and
an expression of m signs take n times m steps, whatever both are. What Erlang's `re` has beyond regular languages (back references,
look-around) is refused. As RabbitMQ has it, an expression may match anywhere in the name, and an empty one matches the empty name only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

EXPRESSION_CHARS_MAX: Final = 4096
STATES_MAX: Final = 20_000
REPEAT_MAX: Final = 1000
DEPTH_MAX: Final = 100
"""Of brackets in brackets."""

NAME_CHARS_MAX: Final = 4096

Test = Callable[[str], bool]

CLASSES: Final[dict[str, Test]] = {
    "d": lambda letter: letter in "0123456789",
    "w": lambda letter: letter.isascii() and (letter.isalnum() or letter == "_"),
    "s": lambda letter: letter in " \t\n\r\f\v",
}
CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}
SPECIAL: Final = "\\^$.|?*+()[]{}"


class ExpressionError(ValueError):
    """What is wrong with an expression."""


class _State:
    """One state: with `test` it takes a letter, `anchor` is `^` or `$`, else it goes on to all of `out` at once."""

    __slots__ = ("anchor", "out", "test")

    def __init__(self, test: Test | None = None, anchor: str = "") -> None:
        self.test = test
        self.anchor = anchor
        self.out: list[_State] = []


class _Piece:
    """A part of the automaton: where it begins, and its open end."""

    __slots__ = ("end", "start")

    def __init__(self, start: _State, end: _State) -> None:
        self.start = start
        self.end = end


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self.states = 0

    def parse(self) -> _Piece:
        piece = self._alternatives()
        if self._at < len(self._text):
            raise ExpressionError(f"an unexpected ) at {self._at}")
        return piece

    def _state(self, test: Test | None = None, anchor: str = "") -> _State:
        self.states += 1
        if self.states > STATES_MAX:
            raise ExpressionError(f"it is too large: more than {STATES_MAX} states")
        return _State(test, anchor)

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _alternatives(self) -> _Piece:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ExpressionError(f"more than {DEPTH_MAX} brackets in each other")
        branches = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            branches.append(self._sequence())
        self._depth -= 1
        if len(branches) == 1:
            return branches[0]
        start, end = self._state(), self._state()
        for branch in branches:
            start.out.append(branch.start)
            branch.end.out.append(end)
        return _Piece(start, end)

    def _sequence(self) -> _Piece:
        start = end = self._state()
        while (letter := self._peek()) and letter not in "|)":
            at = self._at
            piece = self._atom()
            stop = self._at
            low, high = self._repeat()
            if (low, high) != (1, 1):
                piece = self._repeated(piece, at, stop, low, high)
            end.out.append(piece.start)
            end = piece.end
        return _Piece(start, end)

    def _repeat(self) -> tuple[int, int]:
        """How often the atom before stands; -1 is without end."""
        letter = self._peek()
        simple = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}
        if letter in simple and letter:
            self._at += 1
            found = simple[letter]
        elif letter == "{":
            close = self._text.find("}", self._at)
            low, comma, high = self._text[self._at + 1 : max(close, 0)].partition(",")
            if close < 0 or not low.isdecimal() or (high and not high.isdecimal()):
                raise ExpressionError(f"a {{ at {self._at} that is no repetition: write \\{{")
            self._at = close + 1
            found = (int(low), int(high) if high else (-1 if comma else int(low)))
            if max(found) > REPEAT_MAX or (found[1] != -1 and found[0] > found[1]):
                raise ExpressionError(f"a repetition of {low}{comma}{high}: at most {REPEAT_MAX}, the least first")
        else:
            return 1, 1
        if self._peek() == "?":
            self._at += 1  # lazy or not, it matches the same names
        if self._peek() in ("+", "*", "{"):
            raise ExpressionError(f"{self._peek()} at {self._at} has nothing to repeat")
        return found

    def _repeated(self, piece: _Piece, at: int, stop: int, low: int, high: int) -> _Piece:
        """Copies are parsed again: `at` to `stop` is the atom's text."""
        start = end = self._state()
        count = max(low, high, 1)
        for number in range(count):
            if number:
                after, self._at = self._at, at
                piece = self._atom()
                assert self._at == stop
                self._at = after
            loops = high == -1 and number == count - 1
            next_end = self._state()
            if number >= low:
                end.out.append(next_end)
            if high == 0:
                return _Piece(start, next_end)
            end.out.append(piece.start)
            piece.end.out.append(next_end)
            if loops:
                piece.end.out.append(piece.start)
            end = next_end
        return _Piece(start, end)

    def _atom(self) -> _Piece:
        letter = self._text[self._at]
        self._at += 1
        if letter == "(":
            return self._group()
        if letter == "[":
            return self._single(self._class())
        if letter == ".":
            return self._single(lambda found: found != "\n")
        if letter in "^$":
            state = self._state(anchor=letter)
            return self._after(state)
        if letter in "*+?{":
            raise ExpressionError(f"{letter} at {self._at - 1} has nothing to repeat")
        if letter == "\\":
            return self._single(self._escape())
        return self._single(lambda found: found == letter)

    def _single(self, test: Test) -> _Piece:
        return self._after(self._state(test))

    def _after(self, state: _State) -> _Piece:
        end = self._state()
        state.out.append(end)
        return _Piece(state, end)

    def _group(self) -> _Piece:
        if self._peek() == "?":
            if self._text[self._at : self._at + 2] != "?:":
                raise ExpressionError(f"(? at {self._at - 1}: only (?: is known; look-around is not regular")
            self._at += 2
        piece = self._alternatives()
        if self._peek() != ")":
            raise ExpressionError("a ( is not closed")
        self._at += 1
        return piece

    def _escape(self) -> Test:
        found = self._escaped()
        if isinstance(found, str):
            wanted = found
            return lambda letter: letter == wanted
        return found

    def _escaped(self) -> str | Test:
        """What stands behind a backslash: one letter, or a class."""
        letter = self._peek()
        self._at += 1
        if letter.lower() in CLASSES and letter:
            test = CLASSES[letter.lower()]
            return test if letter.islower() else lambda found: not test(found)
        if letter in CONTROLS and letter:
            return CONTROLS[letter]
        if letter == "x":
            if self._peek() == "{":
                close = self._text.find("}", self._at)
                digits, after = self._text[self._at + 1 : max(close, 0)], close + 1
            else:
                digits, after = self._text[self._at : self._at + 2], self._at + 2
            try:
                code = int(digits, 16)
                self._at = after
                return chr(code)
            except (ValueError, OverflowError) as error:
                raise ExpressionError(f"\\x at {self._at} without hexadecimal digits") from error
        if not letter or letter.isalnum():
            raise ExpressionError(f"\\{letter} is not known here")
        return letter

    def _class(self) -> Test:
        negated = self._peek() == "^"
        if negated:
            self._at += 1
        single: set[str] = set()
        ranges: list[tuple[str, str]] = []
        tests: list[Test] = []
        first = True
        while (letter := self._peek()) != "]" or first:
            if not letter:
                raise ExpressionError("a [ is not closed")
            if self._text.startswith("[:", self._at):
                raise ExpressionError("[: :] is not known here: write the letters")
            first = False
            self._at += 1
            low = self._escaped() if letter == "\\" else letter
            if not isinstance(low, str):
                tests.append(low)
                continue
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                letter = self._peek()
                self._at += 1
                high = self._escaped() if letter == "\\" else letter
                if not isinstance(high, str) or high < low:
                    raise ExpressionError(f"a range in [] at {self._at} that is none")
                ranges.append((low, high))
            else:
                single.add(low)
        self._at += 1

        def test(found: str) -> bool:
            inside = (
                found in single
                or any(low <= found <= high for low, high in ranges)
                or any(each(found) for each in tests)
            )
            return inside is not negated

        return test


class Expression:
    """A compiled one."""

    __slots__ = ("_accept", "_start")

    def __init__(self, text: str) -> None:
        """Raises `ExpressionError`."""
        if len(text) > EXPRESSION_CHARS_MAX:
            raise ExpressionError(f"it has {len(text)} characters, at most {EXPRESSION_CHARS_MAX} are allowed")
        piece = _Parser(text or "^$").parse()
        self._start, self._accept = piece.start, piece.end

    def search(self, name: str) -> bool:
        """Whether it matches somewhere in the name; a name over `NAME_CHARS_MAX` is not matched."""
        if len(name) > NAME_CHARS_MAX:
            return False
        states: set[_State] = set()
        for at in range(len(name) + 1):
            self._enter(self._start, states, at, name)
            if self._accept in states:
                return True
            if at == len(name):
                return False
            letter = name[at]
            following: set[_State] = set()
            for state in states:
                if state.test is not None and state.test(letter):
                    for after in state.out:
                        self._enter(after, following, at + 1, name)
            states = following
        return False

    @staticmethod
    def _enter(state: _State, states: set[_State], at: int, name: str) -> None:
        """Add a state, and all that it leads to without a letter."""
        waiting = [state]
        while waiting:
            state = waiting.pop()
            if state in states:
                continue
            if state.anchor == "^" and at != 0:
                continue
            if state.anchor == "$" and not (at == len(name) or (at == len(name) - 1 and name[at] == "\n")):
                continue
            states.add(state)
            if state.test is None:
                waiting += state.out


@lru_cache(maxsize=1024)
def _compiled(text: str) -> Expression | ExpressionError:
    try:
        return Expression(text)
    except ExpressionError as error:
        return error


@lru_cache(maxsize=65_536)
def matches(text: str, name: str) -> bool:
    """Whether an expression matches a name. Raises `ExpressionError`."""
    compiled = _compiled(text)
    if isinstance(compiled, ExpressionError):
        raise compiled
    return compiled.search(name)
