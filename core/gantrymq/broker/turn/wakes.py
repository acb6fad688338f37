"""Who waits for records is woken behind the append that brought them: long polls, watchers of cursors, taps.

Each is called at most once, in the deliver phase, and a turn has so much time for them; whoever is left waits for later turns, and nobody
stands behind a whole crowd.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from gantrymq.broker.consuming.known.table import Cursor
from gantrymq.broker.matches import RouteMatch, Tap
from gantrymq.broker.topics import TopicTable
from gantrymq.broker.turn.timings import Timings
from gantrymq.model.message import Message
from gantrymq.net.turn import log_failed, run_some
from gantrymq.services import Turn

WAKES_PER_TURN = 256
WAKES_S = 0.001
"""Waiters served in one turn, and how long: 8 us a pull. The others have later turns."""
TAPS_S = 0.001
"""Time of live deliveries in one turn."""

NOBODY: dict[object, Callable[[], None]] = {}


class Wakes:
    """Everybody who waits for a record; `topics` has those who wait for a topic's queue."""

    def __init__(self, topics: TopicTable, take_row: Callable[[Message], bool], turn: Turn, times: Timings) -> None:
        """`take_row(message)`: a stored message that enters further queues is the row of a table; False: it is none."""
        self._topics = topics
        self._take_row = take_row
        self._turn = turn
        self._times = times
        self._armed = False
        self._light: dict[int, dict[object, Callable[[], None]]] = {}
        """Who waits for a light queue."""
        self._woken: dict[object, Callable[[], None]] = {}
        self._late: deque[Callable[[], None]] = deque()
        """Woken, and not served yet, behind these crowds: the waiters of one queue, more than a turn serves or can look at."""
        self._crowds: deque[dict[object, Callable[[], None]]] = deque()
        self.full_taps: list[Tap] = []
        """Those that have not handed over all their records."""

    def wait(self, cursor: Cursor, call: Callable[[], None]) -> None:
        """Call when a record enters the cursor's queue."""
        key = ("cursor", cursor.id)
        if cursor.light:
            self._light.setdefault(cursor.light, {})[key] = call
        else:
            self._topics.wait_for(cursor.topic, cursor.queue_id, key, call)

    def forget(self, cursor: Cursor) -> None:
        """Nobody watches the cursor of a light queue any more, and its object goes."""
        waiters = self._light.get(cursor.light, {})
        if waiters.pop(("cursor", cursor.id), None) and not waiters:
            del self._light[cursor.light]

    def forget_light(self, light: int) -> None:
        """The light queue ends: nobody is called for it."""
        self._light.pop(light, None)

    def wake(self, cursor: Cursor, port: int) -> None:
        """Call that port's watcher of the cursor in the next deliver phase."""

        def call() -> None:
            if (watcher := cursor.watchers.get(port)) is not None:
                watcher(cursor.id)

        self._woken[("watch", cursor.id, port)] = call
        self._arm()

    def appended(self, messages: Sequence[Message], matches: Sequence[tuple[Message, RouteMatch]]) -> None:
        """Find who waits for what was appended."""
        woken = self._woken
        topics = self._topics.topics
        for message in messages:
            topic = topics.get(message.topic)
            if topic is not None and topic.waiters:
                waiters = topic.waiters.pop(message.queue_id, NOBODY)
                if len(waiters) > WAKES_PER_TURN:
                    self._crowds.append(waiters)
                else:
                    woken.update(waiters)
            if message.lmq and not self._take_row(message):
                self._topics.wake_lights(message.lmq, woken)
        light_waiters = self._light
        for message, hit in matches:
            for tap, numbers in hit.taps:
                if not tap.batch:
                    self.full_taps.append(tap)
                tap.batch.append((message, numbers))
            if light_waiters:
                for light in hit.lights:
                    if watchers := light_waiters.pop(light, None):
                        woken.update(watchers)
        if woken or self.full_taps or self._crowds:
            self._arm()

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._turn.at_deliver(self._deliver)

    def _deliver(self) -> None:
        self._armed = False
        taps, self.full_taps = deque(self.full_taps), []
        clock_s = self._times.now
        until_s = clock_s() + TAPS_S
        while taps and clock_s() <= until_s:
            tap = taps.popleft()
            try:
                tap.serve(clock_s, until_s)
            except Exception as error:  # one door's failure costs no other its records
                log_failed(tap.on_records, error)
            if tap.batch:
                self.full_taps.append(tap)
        self.full_taps[:0] = taps
        if self.full_taps:
            self._arm()
        self._serve()

    def _serve(self) -> None:
        """A share of the waiters, those that were woken now first: whoever waits behind a hundred thousand others waits for half of their share."""
        late, clock_s = self._late, self._times.now
        while self._crowds and len(late) < WAKES_PER_TURN:
            crowd = self._crowds[0]
            late.extend([crowd.pop(key) for key in list(islice(crowd, WAKES_PER_TURN))])
            if not crowd:
                self._crowds.popleft()
        shares = 2 if late else 1
        woken, self._woken = self._woken, {}
        fresh = deque(woken.values())
        left = WAKES_PER_TURN - run_some(fresh, WAKES_PER_TURN // shares, clock_s, WAKES_S / shares)
        left -= run_some(late, left, clock_s, WAKES_S / shares)
        # A queue's waiters, then the cursor watchers that they woke. What these wake waits for the next turn.
        watchers, self._woken = deque(self._woken.values()), {}
        if left > 0:
            run_some(watchers, left, clock_s, WAKES_S / shares)
        late.extend(fresh)
        late.extend(watchers)
        if late or self._crowds:
            self._arm()
