"""Publishes that 3.1.1 can only refuse by closing, which makes a client send them again for ever (`mqtt.refused_publish`).

`close`: the client's next attempts wait, one second more each time. `dead_letter`: what no record can be, by its size or its name, is stored in
`%DLQ%gantry_mqtt` and acknowledged, within a budget per client.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from gantrymq.model import names
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import Message
from gantrymq_gateways.mqtt.wire import constants as c

DEAD_LETTERS: Final = names.DLQ_PREFIX + "gantry_mqtt"

BECOME_LETTERS: Final = frozenset(
    {
        ErrorCode.NAME_INVALID,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.PROPERTIES_TOO_LARGE,
        ErrorCode.TOPIC_LIMIT,
    }
)
"""Refusals by size or name. What somebody may not do (NO_PERMISSION) is never stored."""

DELAY_S_MAX: Final = 30
"""The longest wait of a CONNECT: a fleet's log shows a client that is in trouble within a minute."""
FORGET_MS: Final = 120_000
"""A client that was refused nothing for so long begins anew."""
CLIENTS_MAX: Final = 10_000
"""Clients in trouble that are remembered, some 200 bytes each; the one refused longest ago is forgotten first."""
LETTERS_PER_S: Final = 100
LETTER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of one client within `LETTER_PERIOD_S`: who is wrong all the time must not fill the disk."""
LETTER_PERIOD_S: Final = 3600

REASON: Final = "GANTRY_DLQ_REASON"
TOPIC: Final = "GANTRY_MQTT_TOPIC"
CLIENT: Final = "GANTRY_MQTT_CLIENT"
PART: Final = "GANTRY_DLQ_PART"
TOPIC_SHOWN_MAX: Final = 2048
"""Characters of the MQTT topic that a dead letter names; properties end at 32 KiB."""


class _Client:
    __slots__ = ("answered_ms", "at_ms", "bytes_left", "count", "letters_left", "letters_ms")

    def __init__(self, now_ms: int) -> None:
        self.count = 0
        self.at_ms = now_ms
        self.answered_ms = -FORGET_MS - 1
        self.bytes_left = float(LETTER_BYTES_MAX)
        self.letters_left = float(LETTERS_PER_S)
        self.letters_ms = now_ms


class Refusals:
    """What is remembered of clients in trouble, by client id. `now_ms`: a clock that never goes back."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self.closed = 0
        """Connections that were closed for a publish."""
        self.answered = 0
        """Publishes that were refused with a reason code (5.0)."""
        self.letters = 0
        """Dead letters stored instead."""

    def _find(self, client_id: str, now_ms: int) -> _Client:
        found = self._clients.get(client_id)
        if found is None:
            found = self._clients[client_id] = _Client(now_ms)
            if len(self._clients) > CLIENTS_MAX:
                self._clients.popitem(last=False)
        self._clients.move_to_end(client_id)
        return found

    def note(self, client_id: str, now_ms: int) -> bool:
        """A connection is closed for what its client published. True: for the first time, so the log should say it."""
        self.closed += 1
        client = self._find(client_id, now_ms)
        if now_ms - client.at_ms > FORGET_MS:
            client.count = 0
        client.count += 1
        client.at_ms = now_ms
        return client.count == 1

    def note_answered(self, client_id: str, now_ms: int) -> bool:
        """A publish was refused with a reason code. True: for the first time in a while, so the log should say it."""
        self.answered += 1
        client = self._find(client_id, now_ms)
        first = now_ms - client.answered_ms > FORGET_MS
        client.answered_ms = now_ms
        return first

    def delay_ms(self, client_id: str, now_ms: int) -> int:
        """How long the client's CONNECT waits for its answer."""
        client = self._clients.get(client_id)
        if client is None or now_ms - client.at_ms > FORGET_MS:
            return 0
        return min(client.count, DELAY_S_MAX) * 1000

    def admits(self, client_id: str, size: int, now_ms: int) -> bool:
        """Whether a dead letter of `size` bytes is within the client's budget, which it takes from."""
        client = self._find(client_id, now_ms)
        passed_s = (now_ms - client.letters_ms) / 1000
        client.letters_ms = now_ms
        client.letters_left = min(LETTERS_PER_S, client.letters_left + passed_s * LETTERS_PER_S)
        client.bytes_left = min(LETTER_BYTES_MAX, client.bytes_left + passed_s * LETTER_BYTES_MAX / LETTER_PERIOD_S)
        if client.letters_left < 1 or client.bytes_left < size:
            return False
        client.letters_left -= 1
        client.bytes_left -= size
        self.letters += 1
        return True


def letter(client_id: str, topic: str, payload: bytes, flags: int, reason: str, part: str = "") -> Message:
    """The dead letter of a publish. `part`: `2/3` of one that is larger than any record."""
    pairs = [
        (REASON, printable(reason)[:512]),
        (TOPIC, printable(topic)[:TOPIC_SHOWN_MAX]),
        (CLIENT, printable(client_id)),
        (props.ORIGIN, "mqtt"),
    ]
    if part:
        pairs.append((PART, part))
    if flags & c.FLAG_QOS != 2:
        pairs.append((props.QOS, str(flags >> 1 & 3)))
    return Message(DEAD_LETTERS, payload, props.encode(pairs))


def printable(text: str) -> str:
    """Without what would end a property, or a line of a log."""
    return "".join([character if character.isprintable() else "?" for character in text])
