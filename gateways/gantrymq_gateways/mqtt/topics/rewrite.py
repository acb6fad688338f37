"""`mqtt.rewrite`: topics of publications and filters of subscriptions become others, as EMQX's topic rewriting has it.

A rule is `ACTION SOURCE REGEX DESTINATION`, rules are separated by `;`. ACTION: publish, subscribe or all. The first rule of the action whose SOURCE (a topic filter)
matches decides: if REGEX is found in the topic too, the topic becomes DESTINATION with `$1` to `$9` for the regex's groups; otherwise it stays as it is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq_gateways.mqtt.topics.mapping import match_levels
from gantrymq_gateways.mqtt.topics.shared import bare
from gantrymq_gateways.mqtt.wire import text as checks
from gantrymq_gateways.mqtt.wire.text import MalformedPacket

log = logging.getLogger(__name__)

RULES_MAX: Final = 100
"""Each is looked at for every new topic and every filter."""

RULE_CHARS_MAX: Final = 1_000

TOPIC_CHARS_MAX: Final = 1_024
"""Longer topics stay as they are: an operator's regex may take time that grows with the square of it."""

ACTIONS: Final = ("publish", "subscribe", "all")

_GROUP: Final = re.compile(r"\$([1-9])")


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """One of them."""

    action: str
    source: str
    pattern: re.Pattern[str]
    destination: str

    def apply(self, topic: str) -> str:
        """The topic that it becomes."""
        found = self.pattern.search(topic)
        if found is None:
            return topic
        groups = found.groups(default="")
        return _GROUP.sub(lambda place: groups[int(place[1]) - 1], self.destination)


class Rewriter:
    """All rules of a gateway."""

    __slots__ = ("_of",)

    def __init__(self, rules: Sequence[RewriteRule] = ()) -> None:
        self._of = {
            action: tuple([rule for rule in rules if rule.action in (action, "all")])
            for action in ("publish", "subscribe")
        }

    def published(self, topic: str) -> str:
        """Where a publication to `topic` goes."""
        rules = self._of["publish"]
        return _rewritten(rules, topic, False) if rules else topic

    def subscribed(self, text: str) -> str:
        """What a subscription, or its end, is to; of shared ones and the like the topic filter alone is rewritten."""
        rules = self._of["subscribe"]
        if not rules:
            return text
        wanted = bare(text)
        return text[: len(text) - len(wanted)] + _rewritten(rules, wanted, True) if wanted else text


NO_REWRITING: Final = Rewriter()


def _rewritten(rules: Sequence[RewriteRule], topic: str, wild: bool) -> str:
    if len(topic) > TOPIC_CHARS_MAX:
        return topic
    rule = next((rule for rule in rules if match_levels(rule.source, topic)), None)
    if rule is None:
        return topic
    made = rule.apply(topic)
    try:
        if wild:
            checks.check_filter(made)
        else:
            checks.check_topic(made.encode())
    except MalformedPacket as error:
        log.warning("topic %r would become %r by mqtt.rewrite, and stays as it is: %s", topic[:128], made[:128], error)
        return topic
    return made


def parse_rewriting(text: str) -> Rewriter:
    """Raises GantryError(ILLEGAL_ARGUMENT)."""
    rules = [_rule(part.strip()) for part in text.split(";") if part.strip()]
    if len(rules) > RULES_MAX:
        raise _wrong(f"at most {RULES_MAX} rules")
    return Rewriter(rules)


def _rule(text: str) -> RewriteRule:
    words = text.split()
    if len(words) != 4 or words[0] not in ACTIONS or len(text) > RULE_CHARS_MAX:
        raise _wrong(f"{text[:80]!r} is not publish|subscribe|all SOURCE REGEX DESTINATION")
    action, source, regex, destination = words
    try:
        checks.check_filter(source)
        pattern = re.compile(regex)
    except (MalformedPacket, re.error) as error:
        raise _wrong(f"{text[:80]!r}: {error}") from None
    over = [number for number in _GROUP.findall(destination) if int(number) > pattern.groups]
    if over:
        raise _wrong(f"{text[:80]!r}: the regex has no group {over[0]}")
    return RewriteRule(action, source, pattern, destination)


def _wrong(why: str) -> GantryError:
    return GantryError(ErrorCode.ILLEGAL_ARGUMENT, why)
