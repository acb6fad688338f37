"""Users without an account here, as an operator's HTTP service knows them: asked once per login, bounded, remembered, and never open on failure.

An answer says who somebody is and what he may, so that no packet waits for the service: rights are decided here, as everybody's are.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from gantrymq.auth.config import AuthConfig
from gantrymq.auth.logins import AWAY, WRONG, Logins, Timer
from gantrymq.auth.outside.answers import AnswerError, Verdict, body_of, read_answer
from gantrymq.auth.rows import check_name
from gantrymq.auth.tokens.tokens import TokenUser
from gantrymq.model.errors import GantryError

log = logging.getLogger(__name__)

Answer = Callable[["TokenUser | None", str], None]
"""`answer(user, why)`: why is empty with a user."""

Exchange = Callable[[bytes], Awaitable[tuple[int, bytes]]]
"""One request with this body: status and body of the answer. Raises GantryError, and takes no longer than its own time-out."""

RESULTS: Final = ("allowed", "denied", "failed", "remembered")


class _Metrics(Protocol):
    """What is needed of `metrics.Metrics`."""

    def read(
        self, name: str, help_text: str, source: Callable[[], float], kind: str = "gauge", **labels: str
    ) -> None: ...


class _Login:
    """One that waits for the service."""

    __slots__ = ("address", "answer", "body", "key", "since_ms", "user")

    def __init__(self, user: str, address: str, key: bytes, body: bytes, answer: Answer, since_ms: int) -> None:
        self.user = user
        self.address = address
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
        self._known: OrderedDict[bytes, tuple[int, TokenUser]] = OrderedDict()
        """By keyed hash of all that was asked: until when, and who it is."""
        self._last: OrderedDict[str, TokenUser] = OrderedDict()
        """By user: what was said last."""
        self._why = ""
        self.counts: Counter[str] = Counter()

    def show(self, metrics: _Metrics) -> None:
        """Register what is counted."""
        text = "Logins that auth.http_url was asked for, by what came of it"
        for result in RESULTS:
            count = partial(self.counts.__getitem__, result)
            metrics.read("gantry_auth_http_logins_total", text, count, "counter", result=result)
        text = "Logins that wait for auth.http_url"
        metrics.read("gantry_auth_http_waiting", text, lambda: len(self._waiting) + len(self._asking))

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
        until_ms, known = self._known.get(key, (0, None))
        if known is not None and until_ms > self._timer.now_ms() and self._now_ms() < known.expires_ms:
            self.counts["remembered"] += 1
            answer(known, "")
            return
        body = body_of(self._config.http_format == "form", user, password, client_id, address)
        if body is None or not _is_name(user):
            self._logins.note_failure(user, address)
            answer(None, WRONG)
            return
        if self._logins.wait_elsewhere(address, lambda why: answer(None, why)):
            self._waiting.append(_Login(user, address, key, body, answer, self._timer.now_ms()))
            self._go_on()

    def _go_on(self) -> None:
        """As many at once as the service is asked."""
        config = self._config
        while self._waiting and len(self._asking) < config.http_requests_max:
            login = self._waiting.popleft()
            if self._timer.now_ms() - login.since_ms > config.http_timeout_ms:
                self._failed(login, "too many logins wait for it")
                continue
            task = asyncio.get_running_loop().create_task(self._exchanged(login))
            self._asking.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        self._go_on()

    async def _exchanged(self, login: _Login) -> None:
        try:
            status, body = await self._exchange(login.body)
            if 400 <= status < 500:
                log.info("user %r: auth.http_url answered with status %d: refused", login.user, status)
                self._answered(login, Verdict(False))
                return
            if status != 200:
                raise AnswerError(f"it answered with status {status}")
            verdict = read_answer(login.user, body)
        except GantryError as error:
            self._failed(login, error.text)
            return
        except AnswerError as error:
            self._failed(login, str(error))
            return
        if self._why:
            self._why = ""
            log.info("auth.http_url: it answers again")
        self._answered(login, verdict)

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
            _keep(self._known, login.key, (until_ms, user), config.http_cached_max)
        login.answer(user, "")

    def _failed(self, login: _Login, why: str) -> None:
        """Nobody is let in for that, and it is nobody's wrong password."""
        self.counts["failed"] += 1
        self._logins.waited_elsewhere(login.address)
        if why != self._why:
            self._why = why
            log.error("auth.http_url: %s; nobody without an account here comes in", why)
        login.answer(None, AWAY)

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
