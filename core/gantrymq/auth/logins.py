"""Checking passwords without holding up the loop: in two threads, a bounded number at once, what was right remembered for a while.

Failed logins make later ones wait (`failures.py`), so that nobody tries a dictionary; unknown users cost what known ones cost, so that nobody
learns who there is. One address has a part of those that wait.
"""

from __future__ import annotations

import hmac
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol, TypeVar

from gantrymq.auth import passwords
from gantrymq.auth.failures import Failures

T = TypeVar("T")

THREADS: Final = 2
"""19 MiB and a core each while they work."""

KNOWN_MAX: Final = 100_000
"""Verified passwords remembered: a fleet; 100 bytes each."""

NOBODY: Final = "$argon2id$v=19$m=19456,t=2,p=1$6aD3x8jVjXvWn0b1mS0P3g$4m7u3Uq1Uo5zP1eWlA2q6S6o2l1P5V6Q7g0oI4l9x2k"
"""What a password of an unknown user is compared with: as slow as any, and never right."""

Answer = Callable[[str], None]
"""`answer(why)`: empty if the password is right."""

WRONG: Final = "the user name or password is wrong"
BUSY: Final = "too many logins wait: come again"
CROWDED: Final = "too many logins from your address wait: come again"
AWAY: Final = "the service that knows the users does not answer: come again"
AGAIN: Final = (BUSY, CROWDED, AWAY)
"""Answers to who was not asked."""


class Timer(Protocol):
    """What is needed of `net.api.Wheel`."""

    def call_at(self, at_ms: int, callback: Callable[[int], None]) -> int: ...

    def now_ms(self) -> int: ...


class Logins:
    """Of one process."""

    def __init__(
        self,
        timer: Timer,
        post: Callable[..., object],
        seed: bytes,
        *,
        verified_ms: int,
        waiting_max: int,
        address_waiting_max: int,
        failures: Failures,
    ) -> None:
        """`post(callback, *arguments)`: run it on the loop, from a thread. `seed`: random, of this process."""
        self._timer = timer
        self._post = post
        self.seed = seed
        self._verified_ms = verified_ms
        self._waiting_max = waiting_max
        self._address_waiting_max = address_waiting_max
        self._failures = failures
        self._pool = ThreadPoolExecutor(THREADS, "gantry-login")
        self._known: OrderedDict[bytes, int] = OrderedDict()
        """Keyed hash of (user, hash, password), and until when."""
        self._waiting_by_address: Counter[str] = Counter()
        self.waiting = 0
        self.failed = 0

    def check(self, user: str, known: str, password: str, address: str, answer: Answer) -> None:
        """Whether `password` is right; `known`: the user's hash, empty for a user who is not there. `answer` is called on the loop, possibly
        at once."""

        def go(why: str) -> None:
            if why:
                answer(why)
            else:
                self._check(user, known, password, address, answer)

        self.after_delay(user, address, go)

    def after_delay(self, user: str, address: str, go: Answer) -> None:
        """`go("")` once the user may try from there: at once, or later for its failures; `go(why)` where too many wait."""
        delay_ms = self._failures.delay_ms(user, address, self._timer.now_ms())
        if not delay_ms:
            go("")
        elif self._may_wait(address, go):
            self._wait(address)
            self._timer.call_at(self._timer.now_ms() + delay_ms, lambda now_ms: self._after_delay(address, go))

    def _after_delay(self, address: str, go: Answer) -> None:
        self._go_on(address)
        go("")

    def _may_wait(self, address: str, answer: Answer) -> bool:
        """Whether one more may; else `answer` has it."""
        if self._waiting_by_address[address] >= self._address_waiting_max:
            answer(CROWDED)
            return False
        if self.waiting >= self._waiting_max:
            answer(BUSY)
            return False
        return True

    def wait_elsewhere(self, address: str, answer: Answer) -> bool:
        """One more waits for somebody else's answer, until `waited_elsewhere`; False: too many do, and `answer` has it."""
        if not self._may_wait(address, answer):
            return False
        self._wait(address)
        return True

    def waited_elsewhere(self, address: str) -> None:
        """It waits no more."""
        self._go_on(address)

    def _wait(self, address: str) -> None:
        self.waiting += 1
        self._waiting_by_address[address] += 1

    def _go_on(self, address: str) -> None:
        self.waiting -= 1
        self._waiting_by_address[address] -= 1
        if not self._waiting_by_address[address]:
            del self._waiting_by_address[address]

    def _check(self, user: str, known: str, password: str, address: str, answer: Answer) -> None:
        key = self.key(user, known, password)
        until_ms = self._known.get(key, 0) if known else 0
        if until_ms > self._timer.now_ms():
            answer("")
            return
        compared = known or NOBODY
        if not passwords.is_slow(compared):
            self._done(user, address, key, answer, passwords.verify(compared, password))
            return
        if not self._may_wait(address, answer):
            return
        self._wait(address)
        self._pool.submit(self._in_thread, compared, password, partial(self._verified, user, address, key, answer))

    def _in_thread(self, known: str, password: str, done: Callable[[bool], None]) -> None:
        good = passwords.verify(known, password)
        try:
            self._post(done, good)
        except RuntimeError:  # the loop has ended meanwhile
            return

    def _verified(self, user: str, address: str, key: bytes, answer: Answer, good: bool) -> None:
        self._go_on(address)
        self._done(user, address, key, answer, good)

    def _done(self, user: str, address: str, key: bytes, answer: Answer, good: bool) -> None:
        if not good:
            self.note_failure(user, address)
            answer(WRONG)
            return
        self.note_success(user, address)
        if self._verified_ms:
            while len(self._known) >= KNOWN_MAX:
                self._known.popitem(last=False)
            self._known[key] = self._timer.now_ms() + self._verified_ms
        answer("")

    def hash(self, make: Callable[[], T], done: Callable[[T], None]) -> None:
        """`done(make())`, on the loop; `make` takes its time, in a thread, and raises nothing."""
        self._pool.submit(lambda: self._post(done, make()))

    def note_failure(self, user: str, address: str) -> None:
        """A login that failed for another reason than its password, too: a signature."""
        self.failed += 1
        self._failures.note(user, address, self._timer.now_ms())

    def note_success(self, user: str, address: str) -> None:
        """The user's next failure is its first."""
        self._failures.forget(user, address)

    def key(self, user: str, known: str, password: str) -> bytes:
        """Keyed by a secret of this process. Different for every hash that the user ever had: a changed password is not remembered."""
        parts = [text.encode("utf-8", "surrogatepass") for text in (user, known, password)]
        return hmac.digest(self.seed, b"".join([len(part).to_bytes(4, "big") + part for part in parts]), "sha256")

    def close(self) -> None:
        """Wait for nobody."""
        self._pool.shutdown(wait=False, cancel_futures=True)
