"""`mqtt.topic_rules`: MQTT topics under a prefix go to one native topic, with all their levels in the tag; `mqtt.topic_levels`: how many leading
levels name the native topic of the others (docs/mapping/mqtt.md).

A message of such a native topic reads as its tag where that, taken as an MQTT topic, is under a prefix of that native topic; else as native
topic and tag, as everywhere. So that no two MQTT topics meet in one place, what the second way cannot bring back is refused.

Several levels are a native topic's name with `%2F` between them, as many as fit into it. So a native topic's first `%2F` come back as levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import TOPIC_BYTES_MAX
from gantrymq_gateways.mqtt.topics import mapping as topics
from gantrymq_gateways.mqtt.wire import constants as c

RULES_MAX: Final = 32
"""Each is looked at for every new topic, and stands in the expression of every route."""
PREFIX_CHARS_MAX: Final = 200
RULES_CHARS_MAX: Final = 1_000
"""All prefixes and topics together: 100,000 routes hold as many copies."""
LEVELS_MAX: Final = 8
"""Native topics have 127 bytes."""
BETWEEN: Final = "%2F"
"""`/` in a native topic."""


class TopicRules:
    """The rules of one configuration, longest prefix first: the first that fits decides."""

    __slots__ = ("levels", "pairs", "plain", "targets")

    def __init__(self, pairs: Sequence[tuple[str, str]] = (), levels: int = 1) -> None:
        """`levels`: that name the native topic where no rule fits. Raises GantryError(ILLEGAL_ARGUMENT) for rules that are none."""
        if not 1 <= levels <= LEVELS_MAX:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"1 to {LEVELS_MAX} levels name a topic, not {levels}")
        for prefix, target in pairs:
            _check(prefix, target)
        if len(pairs) > RULES_MAX or len({prefix for prefix, _ in pairs}) < len(pairs):
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"at most {RULES_MAX} topic rules, and a prefix has one only")
        if sum([len(prefix) + len(target) for prefix, target in pairs]) > RULES_CHARS_MAX:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"the topic rules have over {RULES_CHARS_MAX} characters")
        self.pairs = tuple(sorted(pairs, key=lambda pair: (-len(pair[0]), pair[0])))
        self.targets = frozenset([target for _, target in pairs])
        self.levels = levels
        self.plain = not pairs and levels == 1
        """There are no rules at all."""

    def target_of(self, topic: str) -> str | None:
        """Native topic that a rule gives an MQTT topic; None: first level and tag, as without rules.

        The rules leave out topics whose first level is a rule's native topic, the system's, and those that begin with `$`.
        """
        if not topic or not self.pairs:
            return None
        first = names.encode_topic(topic.partition("/")[0])
        if first in self.targets or names.is_closed_to_gateways(first) or not names.matches_wildcards(first):
            return None
        return next((target for prefix, target in self.pairs if topic.startswith(prefix)), None)

    def to_native(self, topic: str) -> tuple[str, str]:
        """As `topics.to_native`; NAME_INVALID too for a topic whose place belongs to one under a prefix."""
        native, tag = self._place(topic)
        target = self.target_of(topic)
        if target is not None:
            return target, names.encode_tag(topic.split("/"))
        if native in self.targets:
            rest = topic.partition("/")[2]
            if self.target_of(rest) == native:
                raise GantryError(
                    ErrorCode.NAME_INVALID,
                    f"topic {topic[:128]!r} cannot be published to: by mqtt.topic_rules its place is that of {rest[:128]!r}",
                )
        return native, tag

    def _place(self, topic: str) -> tuple[str, str]:
        """As `topics.to_native`, with so many leading levels in the native topic as there are to be and as it has room for."""
        native, tag = topics.to_native(topic)
        if self.levels > 1 and names.matches_wildcards(native) and not names.is_closed_to_gateways(native):
            levels = topic.split("/")
            for count in range(min(self.levels, len(levels)), 1, -1):
                joined = names.encode_topic("/".join(levels[:count]))
                if not names.is_long_topic(joined):
                    return joined, names.encode_tag(levels[count:])
        return native, tag

    def _split(self, native: str, words: list[str]) -> tuple[str, list[str]]:
        """Back from `_place`: first level as a native topic, the other levels as words."""
        if self.levels == 1 or BETWEEN not in native or names.is_long_topic(native):
            return native, words
        first, *others = native.split(BETWEEN, self.levels - 1)
        if first and (not names.matches_wildcards(first) or names.is_closed_to_gateways(first)):
            return native, words
        return first or names.EMPTY, [*[names.encode_word(names.decode_escapes(word, "")) for word in others], *words]

    def view(self, native: str, words: list[str]) -> tuple[str, list[str]]:
        """Native topic and tag words that the message would have without rules: what filters are about."""
        if native not in self.targets or not words:
            return self._split(native, words)
        levels = topics.levels_of(words)
        if self.target_of("/".join(levels)) != native:
            return native, words
        return names.encode_topic(levels[0]), words[1:]

    def to_mqtt(self, native: str, tag: str, long_topics: topics.LongTopics | None = None) -> bytes:
        """As `topics.to_mqtt`."""
        if native in self.targets:
            text = "/".join(topics.levels_of(topics.words_of(tag)))
            if self.target_of(text) == native:
                encoded = text.encode("utf-8", "replace")
                return encoded if len(encoded) <= c.STRING_BYTES_MAX else b""
        words = topics.words_of(tag)
        first, seen = self._split(native, words)
        if first == native and seen is words:
            return topics.to_mqtt(native, tag, long_topics)
        return topics.join(names.decode_escapes(first, topics.STANDING), seen)

    def filter_route(self, text: str) -> tuple[str | None, str]:
        """As `topics.filter_route`. With rules the expression has filter and rules, and the route may match any topic."""
        route = topics.filter_route(text)
        if self.plain:
            return route
        return None, msgspec.json.encode(_Ruled(text, list(self.pairs), self.levels)).decode()

    def home_of(self, text: str) -> str | None:
        """Native topic that comes into being by a subscription; None: none does."""
        native, _ = topics.filter_route(text)
        if native is None:
            return None
        if self.levels > 1 and names.matches_wildcards(native):
            levels = text.split("/")[: self.levels]
            native = None if {"+", "#"} & set(levels) else self._place("/".join(levels))[0]
        literal = text
        for level in ("+", "#"):
            literal = literal.partition(f"/{level}")[0] + "/" if f"/{level}" in literal else literal
        return self.target_of(literal) or native

    def homes_of(self, text: str) -> list[str] | None:
        """Native topics that hold everything a filter matches; None: it may be any number of them."""
        native, _ = topics.filter_route(text)
        if native is None:
            return None
        found = [native]
        if self.levels > 1 and names.matches_wildcards(native):
            levels = text.split("/")[: self.levels]
            if {"+", "#"} & set(levels):
                return None
            found.append(self._place("/".join(levels))[0])
        literal = text.partition("+")[0].partition("#")[0]
        found += [target for prefix, target in self.pairs if literal.startswith(prefix) or prefix.startswith(literal)]
        return list(dict.fromkeys(found))


class _Ruled(msgspec.Struct, omit_defaults=True):
    """Expression of a route with topic rules."""

    filter: str
    rules: list[tuple[str, str]]
    levels: int = 1


_decode_ruled = msgspec.json.Decoder(_Ruled).decode

NO_RULES: Final = TopicRules()


def parse_rules(text: str, levels: int = 1) -> TopicRules:
    """Rules of the form `prefix=topic`, separated by `;`. Raises GantryError(ILLEGAL_ARGUMENT)."""
    pairs = []
    for rule in text.split(";") if text.strip() else ():
        prefix, mark, target = rule.rpartition("=")
        if not mark:
            raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"topic rule {rule[:80]!r} is not of the form prefix=topic")
        pairs.append((prefix.strip(), target.strip()))
    return TopicRules(pairs, levels)


def parse_ruled(expression: str) -> tuple[TopicRules, str]:
    """Rules and filter of a route expression that `TopicRules.filter_route` made. Raises GantryError(ILLEGAL_ARGUMENT)."""
    try:
        found = _decode_ruled(expression)
    except msgspec.MsgspecError as error:
        raise GantryError(
            ErrorCode.ILLEGAL_ARGUMENT,
            f"route expression {expression[:80]!r} is not a filter with topic rules: {error}",
        ) from error
    return TopicRules(found.rules, found.levels), found.filter


def _check(prefix: str, target: str) -> None:
    plain = target.replace("_", "").replace("-", "")
    if not (plain.isascii() and plain.isalnum() and len(target) <= TOPIC_BYTES_MAX) or names.is_closed_to_gateways(
        target
    ):
        raise GantryError(
            ErrorCode.ILLEGAL_ARGUMENT,
            f"topic {target[:80]!r} must be 1 to {TOPIC_BYTES_MAX} letters, digits, _ and -, and no system topic",
        )
    if len(prefix) > PREFIX_CHARS_MAX or prefix.startswith("$") or not set("+#\0").isdisjoint(prefix):
        raise GantryError(
            ErrorCode.ILLEGAL_ARGUMENT,
            f"prefix {prefix[:80]!r} must have at most {PREFIX_CHARS_MAX} characters, neither + nor #, and not begin with $",
        )
