"""Published through each door, received through each other door: the same bytes, names and properties as docs/mapping says, in order."""

from __future__ import annotations

import gc
import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.model import names
from gantrymq.model.errors import GantryError
from gantrymq_gateways.amqp.origin import tag_of
from gantrymq_gateways.mqtt.topics.mapping import to_native
from interop_tests.cross_matrix import EXITS, KIND, OCTETS, SOURCES, Exits, Heard, Said, amqp_properties, can_say
from interop_tests.running import Gantry

pytestmark = [
    # pika leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def shortened(native: str) -> str:
    return native[:94] + "_" + hashlib.sha256(native.encode()).hexdigest()[:32].upper()


@dataclass(frozen=True)
class Row:
    """One name as every door spells it; `T` stands for the test's own first level. None: that door cannot say it.

    In: `mqtt` topic, `amqp` (exchange, key), `event` type (posted to topic `first`), `native` (topic, tag). Out: the same unless an `_out` says
    otherwise.
    """

    label: str
    native: tuple[str, str]
    mqtt: str | None = None
    amqp: tuple[str, str] | None = None
    event: str | None = None
    mqtt_out: str = ""
    amqp_out: tuple[str, str] | None = None
    event_out: str = ""
    first: str = "T"
    raw_native: bool = True
    """A native client may send this topic and tag as they are."""


ROWS = [
    Row("plain", ("T", "line1.temp"), "T/line1/temp", ("T", "line1.temp"), "line1.temp"),
    Row("one level", ("T", ""), "T", ("T", ""), event_out="message"),
    Row("two levels", ("T", "b"), "T/b", ("T", "b"), "b"),
    Row("empty level", ("T", ".b"), "T//b", ("T", ".b"), ".b"),
    Row("empty last level", ("T", "b."), "T/b/", ("T", "b."), "b."),
    Row("only an empty level", ("T", "%00"), "T/", amqp_out=("T", ""), event_out="%00"),
    Row("Unicode", ("T", "%C3%BC.%C3%A9%F0%9F%98%80"), "T/ü/é😀", ("T", "ü.é😀"), "ü.é😀"),
    Row("dot in a level", ("T", "a%2Eb.c"), "T/a.b/c", amqp_out=("T", "a%2Eb.c"), event_out="a%2Eb.c"),
    Row("what looks like an escape", ("T", "x%2541"), "T/x%41", ("T", "x%41"), "x%41"),
    Row("what does not", ("T", "x%4g.%zz.100%"), "T/x%4g/%zz/100%", ("T", "x%4g.%zz.100%"), "x%4g.%zz.100%"),
    Row("an escaped escape", ("T", "a%252Eb"), "T/a%2Eb", ("T", "a%2Eb"), "a%2Eb"),
    Row("slash in a key", ("T", "a%2Fb.c"), None, ("T", "a/b.c"), "a/b.c", mqtt_out="T/a%2Fb/c"),
    Row("wildcards of MQTT in a key", ("T", "a%23.%2B"), None, ("T", "a#.+"), "a#.+", mqtt_out="T/a%23/%2B"),
    Row("wildcards of AMQP", ("T", "%2A.b%20c.x%2A"), "T/*/b c/x*", ("T", "*.b c.x*"), "*.b c.x*"),
    Row("bar", ("T", "a%7Cb.%7C%7C"), "T/a|b/||", ("T", "a|b.||"), "a|b.||"),
    Row("case", ("T", "Line1.TEMP"), "T/Line1/TEMP", ("T", "Line1.TEMP"), "Line1.TEMP"),
    Row("first level with a dot", ("T%2Ex", "o2"), "T.x/o2", ("T.x", "o2"), "o2", first="T.x"),
    Row("Unicode first level", ("T%C3%BC%20%C3%A9", "o3"), "Tü é/o3", ("Tü é", "o3"), "o3", first="Tü é"),
    Row("long first level", ("T" + "x" * 200, "o4"), "T" + "x" * 200 + "/o4", ("T" + "x" * 200, "o4"), "o4",
        first="T" + "x" * 200),
    Row("long Unicode first level", ("T" + "%C3%BC" * 60, "o5"), "T" + "ü" * 60 + "/o5", ("T" + "ü" * 60, "o5"), "o5",
        first="T" + "ü" * 60),
    Row("long key", ("T", "k" * 1000), "T/" + "k" * 1000, amqp_out=("T", "k" * 255), event="k" * 1000),
    Row("leading slash", ("%00", "T.a"), "/T/a", amqp_out=None, event_out="T.a", first="", raw_native=False),
    Row("raw native tag", ("T", "a b/c+#*"), mqtt_out="T/a b%2Fc%2B%23*", amqp_out=("T", "a b/c+#*"), event_out="a b/c+#*"),
]  # fmt: skip

EDGE_BODIES = [
    b"first",
    b"",
    b"\x00",
    b"a\x00b\x01c\x02d\r\n\r\n",
    b"\x01\x02\x01\x02",
    b"\xff\xfe\x80 not UTF-8 \xc3\x28",
    bytes(range(256)),
    b'{"looks": "like JSON"}',
    random.Random(3).randbytes(1 << 20),
    b"last",
]


@dataclass(frozen=True)
class Name:
    """A row with the test's own first level put in."""

    row: Row
    label: str

    def put(self, text: str) -> str:
        return text.replace("T", self.label, 1)

    @property
    def first(self) -> str:
        return self.put(self.row.first)

    @property
    def topic(self) -> str:
        native = self.put(self.row.native[0])
        return (
            native
            if len(native) <= 127
            else native[:94] + "_" + hashlib.sha256(native.encode()).hexdigest()[:32].upper()
        )

    @property
    def tag(self) -> str:
        return self.put(self.row.native[1]) if self.row.first == "" else self.row.native[1]

    def said(self, kind: str) -> tuple[str, str] | None:
        """As a source of this kind spells it."""
        row = self.row
        if kind == "mqtt":
            return (self.put(row.mqtt), "") if row.mqtt is not None else None
        if kind == "amqp":
            return (self.put(row.amqp[0]), row.amqp[1]) if row.amqp is not None else None
        if kind == "event":
            return (self.first, row.event) if row.event is not None else None
        return (self.topic, self.tag) if row.raw_native else None

    def heard(self, exit_: str) -> tuple[str, ...] | None:
        """As this exit spells it."""
        row = self.row
        if exit_ in ("clean", "session"):
            return (self.put(row.mqtt_out or row.mqtt or ""),)
        if exit_ == "amqp":
            name = row.amqp_out or row.amqp
            return (self.put(name[0]), name[1]) if name is not None else None
        if exit_ == "pull":
            return (self.topic, self.tag)
        return (row.event_out or row.event or self.tag,) if row.first else (self.put(row.event_out),)


def plan(kind: str, label: str) -> tuple[list[Name], list[tuple[Name, Said]]]:
    """All names of the table, and what a source of `kind` says: the edge bodies under the first name, two bodies under the others,
    interleaved."""
    every = [Name(row, label) for row in ROWS]
    spoken: list[tuple[Name, bytes]] = []
    for turn, body in enumerate(EDGE_BODIES):
        spoken.append((every[0], body))
        if turn in (2, 6):
            spoken += [(name, f"{name.row.label} {turn}".encode()) for name in every[1:]]
    lines: list[tuple[Name, Said]] = []
    for name, body in spoken:
        said = name.said(kind)
        if said is not None:
            lines.append((name, Said(said, body, len(lines))))
    return every, lines


def by_name(heard: list[Heard]) -> dict[tuple[str, ...], list[bytes]]:
    found: dict[tuple[str, ...], list[bytes]] = defaultdict(list)
    for line in heard:
        found[line.name].append(line.body)
    return found


TIME = "2026-01-02T03:04:05Z"

Pairs = list[tuple[Name, Said, Heard]]


def paired(lines: list[tuple[Name, Said]], heard: list[Heard]) -> Pairs:
    """Bodies are unique in a test."""
    said = {line.body: (name, line) for name, line in lines}
    assert len(said) == len(lines)
    return [(*said[line.body], line) for line in heard]


def mqtt_any(pairs: Pairs) -> None:
    assert all(heard.facts["qos"] == 1 for _, _, heard in pairs)


def amqp_from_mqtt(pairs: Pairs) -> None:
    for _, _, heard in pairs:
        assert {name: value for name, value in heard.facts.items() if value is not None} == {"delivery_mode": 2}


def amqp_from_amqp(pairs: Pairs) -> None:
    for _, said, heard in pairs:
        assert {name: value for name, value in heard.facts.items() if value is not None} == amqp_properties(said)
    numbers = [said.number for _, said, _ in pairs]
    assert numbers == sorted(numbers)  # one channel and exchange: the order across keys is kept in a queue, too


def amqp_from_event(pairs: Pairs) -> None:
    for _, said, heard in pairs:
        assert heard.facts["headers"] == {
            "ce-id": f"e{said.number}", "ce-source": "/matrix/%C3%BC", "ce-type": said.name[1], "ce-specversion": "1.0",
            "ce-subject": "sub ject", "ce-device": f"d{said.number}", "ce-datacontenttype": OCTETS, "ce-time": TIME,
        }  # fmt: skip
        assert (heard.facts["content_type"], heard.facts["delivery_mode"]) == (OCTETS, 2)


def amqp_from_native(pairs: Pairs) -> None:
    for _, said, heard in pairs:
        assert heard.facts["headers"] == {"device": f"d{said.number}"}
        assert heard.facts["delivery_mode"] == 2


def with_tag(name: Name, properties: dict[str, str]) -> dict[str, str]:
    return {**properties, "TAGS": name.tag} if name.tag else properties


def pull_from_mqtt(pairs: Pairs) -> None:
    for name, _, heard in pairs:
        assert heard.facts == with_tag(name, {"GANTRY_ORIGIN": "mqtt"})


def pull_from_amqp(pairs: Pairs) -> None:
    for name, said, heard in pairs:
        number = said.number
        assert heard.facts == with_tag(name, {
            "GANTRY_ORIGIN": "amqp", "GANTRY_EXCHANGE": said.name[0], "GANTRY_CONTENT_TYPE": OCTETS,
            "GANTRY_CORRELATION_ID": f"c{number}", "GANTRY_REPLY_TO": "answers", "GANTRY_MESSAGE_ID": f"m{number}",
            "GANTRY_PRIORITY": "3", "device": f"d{number}", "GANTRY_H_CE_x": "no event", "GANTRY_H_TAGS": "no tag",
        })  # fmt: skip


def pull_from_event(pairs: Pairs) -> None:
    for name, said, heard in pairs:
        number = said.number
        assert heard.facts == with_tag(name, {
            "GANTRY_ORIGIN": "cloudevents", "KEYS": f"e{number}", "GANTRY_CONTENT_TYPE": OCTETS, "CE_id": f"e{number}",
            "CE_source": "/matrix/%C3%BC", "CE_type": said.name[1], "CE_specversion": "1.0", "CE_subject": "sub ject",
            "CE_datacontenttype": OCTETS, "CE_device": f"d{number}", "CE_time": TIME,
        })  # fmt: skip


def pull_from_native(pairs: Pairs) -> None:
    for name, said, heard in pairs:
        facts = dict(heard.facts)
        assert len(facts.pop("UNIQ_KEY")) == 32
        facts.pop("__SHARDINGKEY", None)
        assert facts.pop("CLUSTER") == "DefaultCluster"  # as RocketMQ's brokers add it
        assert facts == with_tag(name, {"KEYS": f"k{said.number} all", "device": f"d{said.number}"})


def attributes(heard: Heard) -> dict[str, str]:
    """Of an event in either mode."""
    if "specversion" in heard.facts:
        return dict(heard.facts)
    found = {name[3:]: value for name, value in heard.facts.items() if name.startswith("ce-")}
    return {**found, "datacontenttype": heard.facts["content-type"]}


def event_from_event(pairs: Pairs) -> None:
    for _, said, heard in pairs:
        assert attributes(heard) == {
            "id": f"e{said.number}", "source": "/matrix/%C3%BC", "type": said.name[1], "specversion": "1.0",
            "subject": "sub ject", "datacontenttype": OCTETS, "device": f"d{said.number}", "time": TIME,
        }  # fmt: skip


def event_from_other(pairs: Pairs, subject_of: Callable[[Said], str]) -> None:
    seen = set()
    for name, said, heard in pairs:
        found = attributes(heard)
        seen.add(found.pop("id"))
        assert found.pop("time")
        found.pop("partitionkey", None)
        subject = subject_of(said)
        (kind,) = name.heard("binary") or ("",)
        wanted = {"source": "//gantrymq", "type": kind, "specversion": "1.0", "datacontenttype": OCTETS}
        assert found == ({**wanted, "subject": subject} if subject else wanted)
    assert len(seen) == len(pairs)


EXIT_KIND = {
    "clean": "mqtt",
    "session": "mqtt",
    "amqp": "amqp",
    "binary": "event",
    "structured": "event",
    "pull": "pull",
}
CHECKS: dict[str, dict[str, Callable[[Pairs], None]]] = {
    "mqtt": dict.fromkeys(("mqtt", "amqp", "event", "native"), mqtt_any),
    "amqp": {
        "mqtt": amqp_from_mqtt,
        "amqp": amqp_from_amqp,
        "event": amqp_from_event,
        "native": amqp_from_native,
    },
    "event": {
        "mqtt": partial(event_from_other, subject_of=lambda said: said.name[0]),
        "amqp": partial(event_from_other, subject_of=lambda said: said.name[1]),
        "event": event_from_event,
        "native": partial(event_from_other, subject_of=lambda said: ""),
    },
    "pull": {
        "mqtt": pull_from_mqtt,
        "amqp": pull_from_amqp,
        "event": pull_from_event,
        "native": pull_from_native,
    },
}
"""By exit, then by source."""


@pytest.fixture
def label() -> Iterator[str]:
    """A first level that no other test uses (without T, which stands for it)."""
    yield f"m{uuid4().hex[:8]}"
    gc.collect()


@pytest.mark.parametrize("source", SOURCES)
def test_matrix(server: Gantry, label: str, source: str) -> None:
    kind = KIND.get(source, "event")
    every, lines = plan(kind, label)
    lines = [(name, line) for name, line in lines if can_say(source, line)]
    firsts = list(dict.fromkeys(name.first for name in every))
    topics = list(dict.fromkeys(name.topic for name in every))
    exits = Exits(server, label, firsts, topics)
    try:
        SOURCES[source](server, [line for _, line in lines])
        for exit_ in EXITS:
            wanted: dict[tuple[str, ...], list[bytes]] = defaultdict(list)
            for name, line in lines:
                spelled = name.heard(exit_)
                if spelled is not None:
                    wanted[spelled].append(line.body)
            heard = exits.collect(exit_, sum(map(len, wanted.values())))
            assert by_name(heard) == wanted, exit_
            CHECKS[EXIT_KIND[exit_]][kind](paired(lines, heard))
    finally:
        exits.close()


# Injectivity: two names of one door never become one native name, and what a door writes it reads back.

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=6) | st.sampled_from(
    ["", "%", "%41", "%2E", "%00", "a.b", "a", "%25", "%2", "#", "ü", "%C3%BC", "x" * 130, "L" * 94 + "_" + "0" * 32]
)
LEVELS = st.lists(
    WORDS.map(lambda word: word.replace("/", "").replace("+", "").replace("#", "")), min_size=1, max_size=4
)
KEYS = st.tuples(WORDS, st.lists(WORDS, min_size=1, max_size=4).map(".".join))


@settings(max_examples=500)
@given(LEVELS, LEVELS)
def test_two_topics_never_collide(one: list[str], other: list[str]) -> None:
    first, second = "/".join(one), "/".join(other)
    try:
        assert first == second or to_native(first) != to_native(second)
    except GantryError:
        return


@settings(max_examples=500)
@given(KEYS, KEYS)
def test_two_keys_never_collide(one: tuple[str, str], other: tuple[str, str]) -> None:
    first, second = [(names.encode_topic(exchange), tag_of(key)) for exchange, key in (one, other)]
    assert one == other or first != second


@settings(max_examples=500)
@given(WORDS.filter(bool), st.lists(WORDS.map(lambda word: word.replace(".", "")), min_size=1, max_size=3))
def test_the_same_words_are_the_same_message_at_every_door(first: str, words: list[str]) -> None:
    """MQTT's levels, AMQP's words and an event type's words, where all three can say them."""
    if "/" in first + "".join(words) or words == [""]:
        return
    try:
        native = to_native("/".join([first, *words]))
    except GantryError:
        return
    assert native == (names.encode_topic(first), tag_of(".".join(words)))
