"""What the HTTP service said of who is here, asked again in turn: what it takes back ends, what it changes counts for open connections.

The password is not kept, so it is not said again. No answer changes nothing: a login ends at its own time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final
from weakref import ReferenceType, ref

from gantrymq.auth.outside.answers import Verdict
from gantrymq.auth.tokens.tokens import TokenUser

TICK_MS: Final = 1_000
"""How late one may be asked again."""

Question = tuple[str, str, str]
"""User, client id, address: all whom one answer is about."""


class Held:
    """What holds of everybody who came with one question."""

    def __init__(self, question: Question, verdict: Verdict) -> None:
        self.question = question
        self.verdict = verdict
        self.until_ms: int | None = None
        """Of the wall clock; None: a login's own time."""
        self.longest_ms = 0
        """When the last of these logins ends."""

    @property
    def withdrawn(self) -> bool:
        """The service takes it no more."""
        return not self.verdict.allowed

    def says_as(self, verdict: Verdict) -> bool:
        """The rights are the same."""
        return (verdict.groups, verdict.policy) == (self.verdict.groups, self.verdict.policy)

    def revised(self, user: TokenUser) -> TokenUser:
        """As the service sees it now. Never longer than before."""
        expires_ms = user.expires_ms if self.until_ms is None else min(user.expires_ms, self.until_ms)
        verdict = self.verdict
        if (verdict.groups, verdict.policy, expires_ms) == (user.groups, user.policy, user.expires_ms):
            return user
        return TokenUser(user.name, verdict.groups, (), expires_ms, verdict.policy, by_backend=True, held=self)


class Refreshing:
    """All who are held, by when they are asked about again. Each is here as long as somebody's identity holds it."""

    def __init__(self, every_ms: int) -> None:
        self._every_ms = every_ms
        self._held: dict[Question, ReferenceType[Held]] = {}
        self._due: dict[Question, int] = {}
        """The earliest first."""
        self.waiting: deque[ReferenceType[Held]] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def held(self, question: Question, verdict: Verdict, now_ms: int) -> Held:
        """For one more login. Whoever is there gets the newer answer, too, by `Held.verdict`: the caller sees whether it changed."""
        known = self._held.get(question)
        found = known() if known is not None else None
        if found is None or found.withdrawn:
            found = Held(question, verdict)
            self._held[question] = ref(found, self._forgetter(question))
            self._wait(question, now_ms)
        return found

    def _forgetter(self, question: Question) -> Callable[[ReferenceType[Held]], None]:
        def forget(dead: ReferenceType[Held]) -> None:
            if self._held.get(question) is dead:
                del self._held[question]
                self._due.pop(question, None)

        return forget

    def _wait(self, question: Question, now_ms: int) -> None:
        self._due.pop(question, None)
        self._due[question] = now_ms + self._every_ms

    def collect(self, now_ms: int) -> None:
        """Who is due waits to be asked about."""
        for question, due_ms in list(self._due.items()):
            if due_ms > now_ms:
                break
            del self._due[question]
            self.waiting.append(self._held[question])

    def next(self) -> Held | None:
        """One to ask about, who is still here."""
        while self.waiting:
            found = self.waiting.popleft()()
            if found is not None and not found.withdrawn:
                return found
        return None

    def asked(self, held: Held, now_ms: int) -> None:
        """There was an answer, or none."""
        if not held.withdrawn:
            self._wait(held.question, now_ms)
