"""What an MQTT filter or an AMQP binding matches, as a source (`mqttFilter`, `exchange` + `bindingKey`): which topics to read, what to ask the broker
for, and which tags count. The broker may give more; `Selection` is looked at for every record (decoding/views.py). No Spark, no socket."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gantrymq.model import names
from gantrymq.model import properties as props
from gantrymq.model.errors import GantryError
from gantrymq.spark.planning.offsets import OptionError

DEFAULT: Final = "(default)"
"""GANTRY_EXCHANGE of the default exchange."""
EVERYWHERE: Final = r"(?!\$|%24).*"
"""Topics that a wildcard in the first level matches (the broker's own never do)."""
_ONE: Final = r"\.[^.]*"
_RAW: Final = re.compile(r"[^!-~]|[/+#*|]")
"""What a native client may have left as it is in a word of a tag, and gateways escape."""
_SURE: Final = re.compile(r"[A-Za-z0-9_.:-]+")


@dataclass(frozen=True, slots=True)
class Selection:
    """`pattern`: a regular expression for the words of a tag, each with a dot in front. `exchange`: of AMQP, which a record must have been
    published to; None: by whatever door and exchange."""

    pattern: str
    exchange: str | None = None

    def matches(self, tag: str) -> bool:
        """Whether a tag counts; empty: none."""
        return re.fullmatch(self.pattern, _words(tag), re.DOTALL) is not None


@dataclass(frozen=True, slots=True)
class Selected:
    """`topic` or `topics` (a pattern) to read; `sql`: what the broker need not give, empty if that cannot be said."""

    selection: Selection
    topic: str = ""
    topics: str = ""
    sql: str = ""


def _words(tag: str) -> str:
    if not tag:
        return ""
    return "." + ("" if tag == names.EMPTY else _RAW.sub(_escaped, tag))


def _escaped(found: re.Match[str]) -> str:
    return "".join([f"%{byte:02X}" for byte in found.group().encode("utf-8", "surrogatepass")])


def _native(option: str, text: str, foreign: str) -> str:
    try:
        native = names.encode_topic(foreign)
        names.check_topic(native)
    except GantryError as error:
        raise OptionError(f"{option} is {text!r}: {error.text}") from None
    return native


def _prefilter(literal: str, exact: bool, also: str = "") -> str:
    """SQL92 for records whose tag is, or begins with, `literal`; empty where raw tags may be spelled otherwise."""
    if not literal or not _SURE.fullmatch(literal):
        return ""
    test = f"TAGS = '{literal}'" if exact else f"TAGS STARTSWITH '{literal}'"
    return f"{test} OR {also} IS NOT NULL" if also else test


def mqtt_filter(text: str) -> Selected:
    """Raises OptionError for what is no filter [MQTT-4.7.1-2] [MQTT-4.7.1-3]."""
    levels = text.split("/")
    for place, level in enumerate(levels):
        last = place == len(levels) - 1
        if ("#" in level and (level != "#" or not last)) or ("+" in level and level != "+"):
            raise OptionError(f"mqttFilter is {text!r}: + and # are whole levels, # the last one")
    if not text or "\0" in text or levels[0] in ("$share", "$queue", "$delayed"):
        raise OptionError(f"mqttFilter is {text!r}: allowed is a topic filter like plant/+/temp or plant/#")
    first, rest = levels[0], levels[1:]
    if first == "#":
        return Selected(Selection(r"(\..*)?"), topics=EVERYWHERE)
    parts: list[str] = []
    plain: list[str] = []
    for level in rest:
        parts.append(
            r"(\..*)?" if level == "#" else _ONE if level == "+" else r"\." + re.escape(names.encode_word(level))
        )
        if len(plain) == len(parts) - 1 and level not in ("+", "#"):
            plain.append(names.encode_word(level))
    sql = _prefilter(".".join(plain), len(plain) == len(rest))
    selection = Selection("".join(parts))
    if first == "+":
        return Selected(selection, topics=EVERYWHERE, sql=sql)
    return Selected(selection, _native("mqttFilter", text, first), sql=sql)


def binding(exchange: str, key: str) -> Selected:
    """What a queue gets that is bound to a topic exchange by `key`; of the default exchange, whose name is empty, what the queue `key` gets."""
    if not exchange:
        if not key:
            raise OptionError("exchange is empty, the default one: bindingKey must be a queue's name")
        return Selected(Selection("", DEFAULT), _native("bindingKey", key, key))
    parts: list[str] = []
    plain: list[str] = []
    for word in key.split(".") if key else []:
        parts.append(
            f"({_ONE})*" if word == "#" else _ONE if word == "*" else r"\." + re.escape(names.encode_word(word))
        )
        if len(plain) == len(parts) - 1 and word not in ("*", "#"):
            plain.append(names.encode_word(word))
    sql = _prefilter(".".join(plain), len(plain) == len(parts), props.ORIGIN_KEYS)
    return Selected(Selection("".join(parts), exchange), _native("exchange", exchange, exchange), sql=sql)
