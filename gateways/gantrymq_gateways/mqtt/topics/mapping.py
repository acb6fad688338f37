"""MQTT topics and filters <-> native topic and tag (docs/mapping/mqtt.md), with caches for what repeats.

First level = native topic, the other levels = words of the tag. Going out, an escape stays where the decoded character would
be a separator or wildcard here (`/ + #`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, Protocol

from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import TAG_BYTES_MAX
from gantrymq_gateways.mqtt.wire import constants as c

STANDING: Final = "/+#"
"""Characters that may not come out of an escape in a level."""

DELIVERY_CACHE_MAX: Final = 20_000
"""Distinct (native topic, tag) kept as MQTT topics; at the limit the cache starts anew."""

SYS_PREFIX: Final = "$SYS/"

_RAW = re.compile("[/+#|*\\x00-\\x20\\x7f-\U0010ffff]")
"""Characters that `names.encode_word` escapes, the separator of words apart."""

_BRIDGE_STATE = re.compile(r"\$SYS/broker/connection/[^/]+/state\Z")
"""Where a Mosquitto bridge says that it is there (its will says that it is not any more)."""

ONE_EMPTY_LEVEL: Final = names.EMPTY


class LongTopics:
    """First levels whose native topic had to be shortened, and the way back. Filled from a table by the adapter. `on_learned(native, first_level)` is
    called for each that a client said."""

    def __init__(self, on_learned: Callable[[str, str], None] = lambda native, first_level: None) -> None:
        self.foreign: dict[str, str] = {}
        """Shortened native topic -> first level."""
        self._on_learned = on_learned

    def note(self, first_level: str, native: str) -> None:
        """A client said `first_level`, which is `native` here: where that was shortened, keep the way back."""
        if native not in self.foreign and names.decode_escapes(native, "") != first_level:
            self.foreign[native] = first_level
            self._on_learned(native, first_level)


def to_native(topic: str) -> tuple[str, str]:
    """(native topic, tag) of an MQTT topic without wildcards.

    Raises GantryError: NAME_INVALID for what no name can hold and too many levels, NO_PERMISSION for topics that gateways may not write.
    """
    levels = topic.split("/")
    if len(levels) > c.TOPIC_LEVELS_MAX:
        raise GantryError(
            ErrorCode.NAME_INVALID,
            f"the topic has {len(levels)} levels, at most {c.TOPIC_LEVELS_MAX} are allowed",
        )
    native = names.encode_topic(levels[0])
    if names.is_closed_to_gateways(native) and _BRIDGE_STATE.match(topic) is None:
        raise GantryError(
            ErrorCode.NO_PERMISSION, f"topic {topic[:128]!r} belongs to the system and cannot be published to"
        )
    return native, names.encode_tag(levels[1:])


def words_of(tag: str) -> list[str]:
    """Encoded words of a native tag; none for a message without a tag.

    A tag of another door may hold characters that are escaped in an MQTT level; they are escaped here, so that a filter finds them.
    """
    if not tag:
        return []
    if tag == ONE_EMPTY_LEVEL:
        return [""]
    if _RAW.search(tag) is not None:
        tag = _RAW.sub(_escape_raw, tag)
    return tag.split(".")


def _escape_raw(match: re.Match[str]) -> str:
    return names.encode_word(match.group())


def to_mqtt(native: str, tag: str, long_topics: LongTopics | None = None) -> bytes:
    """MQTT topic of a message; empty if it has none that may be sent (over 65,535 bytes, or an empty string)."""
    first = None
    if long_topics is not None:
        first = long_topics.foreign.get(native)
    if first is None:
        first = names.decode_escapes(native, STANDING)
    return join(first, words_of(tag))


def join(first: str, words: list[str]) -> bytes:
    """The MQTT topic of a first level and encoded words; empty over 65,535 bytes."""
    encoded = "/".join([first, *levels_of(words)]).encode("utf-8", "replace")
    return encoded if len(encoded) <= c.STRING_BYTES_MAX else b""


def levels_of(words: list[str]) -> list[str]:
    """Levels of an MQTT topic for the encoded words of a tag."""
    return [_level(word) for word in words]


def _level(word: str) -> str:
    text = names.decode_escapes(word, STANDING) if word != ONE_EMPTY_LEVEL else word
    return text.replace("\0", "%00")


class ToMqtt(Protocol):
    """`to_mqtt`, or `TopicRules.to_mqtt`."""

    def __call__(self, native: str, tag: str, long_topics: LongTopics | None = None) -> bytes: ...


class DeliveryTopics:
    """(native topic, tag) -> MQTT topic as bytes, remembered."""

    def __init__(self, long_topics: LongTopics, convert: ToMqtt = to_mqtt) -> None:
        self._long = long_topics
        self._convert = convert
        self._known: dict[tuple[str, str], bytes] = {}

    def get(self, native: str, tag: str) -> bytes:
        key = (native, tag)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= DELIVERY_CACHE_MAX:
                self._known.clear()
            found = self._known[key] = self._convert(native, tag, self._long)
        return found

    def forget(self) -> None:
        """A long topic became known."""
        self._known.clear()


def filter_route(text: str) -> tuple[str | None, str]:
    """(native topic or None, route expression) of a checked filter; the expression is what `MqttRoutes` reads.

    Raises GantryError(NAME_INVALID) for filters of more levels or bytes than a message can have.
    """
    levels = text.split("/")
    if len(levels) > c.TOPIC_LEVELS_MAX:
        raise GantryError(
            ErrorCode.NAME_INVALID,
            f"the filter has {len(levels)} levels, at most {c.TOPIC_LEVELS_MAX} are allowed",
        )
    first = levels[0]
    if first == "#":
        return None, '["#"]'
    topic = None if first == "+" else names.encode_topic(first)
    words = [level if level in ("+", "#") else names.encode_word(level) for level in levels[1:]]
    if sum(map(len, words)) > TAG_BYTES_MAX:
        raise GantryError(ErrorCode.NAME_INVALID, f"the filter needs a tag of more than {TAG_BYTES_MAX} bytes")
    return topic, json.dumps(words, separators=(",", ":"), ensure_ascii=True)


def match_levels(text: str, topic: str) -> bool:
    """True if the filter matches the MQTT topic: the rule itself (MQTT 4.7), for small sets and as the trie's oracle."""
    wanted = text.split("/")
    levels = topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False  # [MQTT-4.7.2-1]
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(levels) or level not in ("+", levels[index]):
            return False
    return len(wanted) == len(levels)
