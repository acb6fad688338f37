"""Users without an account here, as an operator's HTTP service knows them: asked per login, and in turn while they are here (`refresh.py`);
bounded, remembered, and never open on failure.

An answer says who somebody is and what he may, so that no packet waits for the service: rights are decided here, as everybody's are.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from hmac import compare_digest
from typing import Any, Final, Protocol

from gantrymq.auth.config import AuthConfig
from gantrymq.auth.logins import AWAY, WRONG, Logins, Timer
from gantrymq.auth.outside.answers import AnswerError, Verdict, body_again, body_of, read_answer
from gantrymq.auth.outside.refresh import TICK_MS, Held, Question, Refreshing
from gantrymq.auth.rows import check_name
from gantrymq.auth.tokens.tokens import TokenUser
from gantrymq.model.errors import GantryError

log = logging.getLogger(__name__)

Answer = Callable[["TokenUser | None", str], None]
"""`answer(user, why)`: why is empty with a user."""

Exchange = Callable[[bytes], Awaitable[tuple[int, bytes]]]
"""One request with this body: status and body of the answer. Raises GantryError, and takes no longer than its own time-out."""

RESULTS: Final = ("allowed", "denied", "failed", "remembered")
REFRESHED: Final = ("same", "changed", "withdrawn", "failed")


class _Metrics(Protocol):
    """What is needed of `metrics.Metrics`."""

    def read(
        self, name: str, help_text: str, source: Callable[[], float], kind: str = "gauge", **labels: str
    ) -> None: ...


class _Login:
    """One that waits for the service."""

    __slots__ = ("address", "answer", "body", "key", "question", "since_ms", "user")

    def __init__(self, question: Question, key: bytes, body: bytes, answer: Answer, since_ms: int) -> None:
        self.question = question
        self.user, _, self.address = question
        self.key = key
        self.body = body
        self.answer = answer
        self.since_ms = since_ms


class Backend:
    """Of one process."""

    def __init__(
        self, config: AuthConfig, logins: Logins, timer: Timer, now_ms: Callable[[], int], exchange: Exchange
    ) -> None:
        """`now_ms`: the wall clock, of which answers expire. How many may wait is `logins`' business, as of passwords."""
        self._config = config
        self._logins = logins
        self._timer = timer
        self._now_ms = now_ms
        self._exchange = exchange
        self._waiting: deque[_Login] = deque()
        self._asking: set[asyncio.Task[None]] = set()
        self._known: OrderedDict[Question, tuple[int, bytes, TokenUser]] = OrderedDict()
        """Until when, the keyed hash of all that was asked, and who it is."""
        self._refreshing = Refreshing(config.http_refresh_ms)
        self._ticking = False
        self._asking_again = 0
        self._on_change: Callable[[], None] = lambda: None
        self.refreshed: Counter[str] = Counter()
        self._last: OrderedDict[str, TokenUser] = OrderedDict()
        """By user: what was said last."""
        self._why = ""
        self.counts: Counter[str] = Counter()

    def attach(self, on_change: Callable[[], None]) -> None:
        """Called where the rights of somebody who is here changed, or were withdrawn."""
        self._on_change = on_change

    def show(self, metrics: _Metrics) -> None:
        """Register what is counted."""
        text = "Logins that auth.http_url was asked for, by what came of it"
        for result in RESULTS:
            count = partial(self.counts.__getitem__, result)
            metrics.read("gantry_auth_http_logins_total", text, count, "counter", result=result)
        text = "Those who are connected, asked for again at auth.http_url, by what came of it"
        for result in REFRESHED:
            count = partial(self.refreshed.__getitem__, result)
            metrics.read("gantry_auth_http_refreshes_total", text, count, "counter", result=result)
        text = "Logins that wait for auth.http_url"
        metrics.read(
            "gantry_auth_http_waiting", text, lambda: len(self._waiting) + len(self._asking) - self._asking_again
        )

    def user_of(self, name: str) -> TokenUser | None:
        """What the service said of somebody last, as long as it holds: for whoever asks why."""
        found = self._last.get(name)
        return found if found is not None and self._now_ms() < found.expires_ms else None

    def login(self, user: str, password: str, client_id: str, address: str, answer: Answer) -> None:
        """`answer` is called on the loop, possibly at once. `address`: without port."""

        def go(why: str) -> None:
            if why:
                answer(None, why)
            else:
                self._ask(user, password, client_id, address, answer)

        self._logins.after_delay(user, address, go)

    def _ask(self, user: str, password: str, client_id: str, address: str, answer: Answer) -> None:
        key = self._logins.key(user, f"{client_id}\0{address}", password)
        question = (user, client_id, address)
        until_ms, right, known = self._known.get(question, (0, b"", None))
        if (
            known is not None
            and compare_digest(right, key)
            and until_ms > self._timer.now_ms()
            and self._now_ms() < known.expires_ms
        ):
            self.counts["remembered"] += 1
            answer(self._held(question, known), "")
            return
        body = body_of(self._config.http_format == "form", user, password, client_id, address)
        if body is None or not _is_name(user):
            self._logins.note_failure(user, address)
            answer(None, WRONG)
            return
        if self._logins.wait_elsewhere(address, lambda why: answer(None, why)):
            self._waiting.append(_Login(question, key, body, answer, self._timer.now_ms()))
            self._go_on()

    def _go_on(self) -> None:
        """As many at once as the service is asked: logins first, about who is here in half of the places."""
        config = self._config
        while self._waiting and len(self._asking) < config.http_requests_max:
            login = self._waiting.popleft()
            if self._timer.now_ms() - login.since_ms > config.http_timeout_ms:
                self._away("too many logins wait for it")
                self._failed(login)
                continue
            self._begin(self._exchanged(login))
        again_max = max(config.http_requests_max // 2, 1)
        while self._asking_again < again_max and len(self._asking) < config.http_requests_max:
            held = self._refreshing.next()
            if held is None:
                return
            self._asking_again += 1
            self._begin(self._exchanged_again(held))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._asking.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        self._go_on()

    async def _exchanged(self, login: _Login) -> None:
        verdict = await self._verdict(login.user, login.body)
        if verdict is not None:
            self._answered(login, verdict)
        else:
            self._failed(login)

    async def _verdict(self, user: str, body: bytes) -> Verdict | None:
        """None: there was no answer, which was said in the log."""
        try:
            status, answer = await self._exchange(body)
            if 400 <= status < 500:
                log.info("user %r: auth.http_url answered with status %d: refused", user, status)
                return Verdict(False)
            if status != 200:
                raise AnswerError(f"it answered with status {status}")
            verdict = read_answer(user, answer)
        except GantryError as error:
            self._away(error.text)
            return None
        except AnswerError as error:
            self._away(str(error))
            return None
        if self._why:
            self._why = ""
            log.info("auth.http_url: it answers again")
        return verdict

    def _answered(self, login: _Login, verdict: Verdict) -> None:
        logins, config = self._logins, self._config
        logins.waited_elsewhere(login.address)
        if not verdict.allowed:
            self.counts["denied"] += 1
            logins.note_failure(login.user, login.address)
            login.answer(None, WRONG)
            return
        self.counts["allowed"] += 1
        logins.note_success(login.user, login.address)
        lasts_ms = min(config.http_session_ms, (verdict.expires_s or config.http_session_ms) * 1000)
        user = TokenUser(login.user, verdict.groups, (), self._now_ms() + lasts_ms, verdict.policy, by_backend=True)
        _keep(self._last, login.user, user, config.http_cached_max)
        if config.http_cache_ms:
            until_ms = self._timer.now_ms() + config.http_cache_ms
            _keep(self._known, login.question, (until_ms, login.key, user), config.http_cached_max)
        login.answer(self._held(login.question, user), "")

    def _held(self, question: Question, user: TokenUser) -> TokenUser:
        """Asked about again as long as somebody has what this returns."""
        if not self._config.http_refresh_ms:
            return user
        verdict = Verdict(True, user.groups, user.policy)
        held = self._refreshing.held(question, verdict, self._timer.now_ms())
        held.longest_ms = max(held.longest_ms, user.expires_ms)
        if not held.says_as(verdict):  # the newer answer holds for those before, too
            held.verdict = verdict
            self._on_change()
        if not self._ticking:
            self._ticking = True
            self._timer.call_at(self._timer.now_ms() + TICK_MS, self._tick)
        return replace(user, held=held)

    def _tick(self, now_ms: int) -> None:
        self._ticking = bool(self._refreshing)
        if not self._ticking:
            return
        self._timer.call_at(now_ms + TICK_MS, self._tick)
        self._refreshing.collect(now_ms)
        self._go_on()

    async def _exchanged_again(self, held: Held) -> None:
        user, client_id, address = held.question
        try:
            verdict = await self._verdict(
                user, body_again(self._config.http_format == "form", user, client_id, address)
            )
        finally:
            self._asking_again -= 1
        self.refreshed[self._told(held, verdict)] += 1
        self._refreshing.asked(held, self._timer.now_ms())

    def _told(self, held: Held, verdict: Verdict | None) -> str:
        """What came of it."""
        if verdict is None:
            return "failed"
        user, question = held.question[0], held.question
        if not verdict.allowed:
            log.info("user %r: auth.http_url takes the login no more", user)
            held.verdict = verdict
            self._known.pop(question, None)
            self._last.pop(user, None)
            self._on_change()
            return "withdrawn"
        if verdict.expires_s is not None:
            self._shorten(held, verdict.expires_s * 1000)
        if held.says_as(verdict):
            return "same"
        held.verdict = verdict
        remembered = self._known.get(question)
        if remembered is not None:
            until_ms, key, known = remembered
            self._known[question] = until_ms, key, replace(known, groups=verdict.groups, policy=verdict.policy)
        if user in self._last:
            self._last[user] = replace(self._last[user], groups=verdict.groups, policy=verdict.policy)
        self._on_change()
        return "changed"

    def _shorten(self, held: Held, lasts_ms: int) -> None:
        """A login ends earlier than was said, never later."""
        until_ms = self._now_ms() + lasts_ms
        if until_ms < held.longest_ms:
            held.until_ms = held.longest_ms = until_ms
            self._on_change()
            self._timer.call_at(self._timer.now_ms() + lasts_ms, lambda now_ms: self._on_change())

    def _failed(self, login: _Login) -> None:
        """Nobody is let in for that, and it is nobody's wrong password."""
        self.counts["failed"] += 1
        self._logins.waited_elsewhere(login.address)
        login.answer(None, AWAY)

    def _away(self, why: str) -> None:
        if why != self._why:
            self._why = why
            log.error("auth.http_url: %s; nobody without an account here comes in", why)

    def close(self) -> None:
        """Wait for nobody."""
        for task in self._asking:
            task.cancel()


def _keep(known: OrderedDict, key: object, value: object, most: int) -> None:  # type: ignore[type-arg]
    known.pop(key, None)
    while len(known) >= most:
        known.popitem(last=False)
    known[key] = value


def _is_name(text: str) -> bool:
    try:
        check_name(text)
    except ValueError:
        return False
    return True
