"""MQTT filters and AMQP bindings as a source: which topics are read, what the broker is asked for, which tags count."""

import pytest

from gantrymq.spark.planning.offsets import OptionError
from gantrymq.spark.planning.options import for_batch, parse
from gantrymq.spark.planning.selecting import EVERYWHERE, binding, mqtt_filter


@pytest.mark.parametrize(
    ("text", "topic", "sql", "yes", "no"),
    [
        ("plant/line1/temp", "plant", "TAGS = 'line1.temp'", ["line1.temp"], ["", "line1", "line1.temp.x", "line1%2Etemp"]),
        ("plant/+/temp", "plant", "", ["line1.temp", ".temp", "a%2Fb.temp"], ["temp", "a.b.temp", "line1.temps"]),
        ("plant/line1/#", "plant", "TAGS STARTSWITH 'line1'", ["line1", "line1.a", "line1.a.b", "line1."], ["line12", "", "a.line1"]),
        ("plant/#", "plant", "", ["", "%00", "a.b"], []),
        ("plant", "plant", "", [""], ["a", "%00"]),
        ("plant/", "plant", "", ["%00"], ["", "a"]),
        ("plant/+", "plant", "", ["a", "%00"], ["", "a.b"]),
        ("plant/a b/ü", "plant", "", ["a%20b.%C3%BC", "a b.ü"], ["a.b"]),
        ("a.b/c", "a%2Eb", "TAGS = 'c'", ["c"], ["b.c"]),
        ("/x", "%00", "TAGS = 'x'", ["x"], []),
    ],
)  # fmt: skip
def test_mqtt_filters(text: str, topic: str, sql: str, yes: list[str], no: list[str]) -> None:
    found = mqtt_filter(text)
    assert (found.topic, found.topics, found.sql, found.selection.exchange) == (topic, "", sql, None)
    assert [tag for tag in [*yes, *no] if found.selection.matches(tag)] == yes


@pytest.mark.parametrize("text", ["#", "+/temp", "+/#"])
def test_a_wildcard_in_the_first_level_reads_all_topics(text: str) -> None:
    found = mqtt_filter(text)
    assert (found.topic, found.topics) == ("", EVERYWHERE)
    assert found.selection.matches("temp")
    assert parse({"mqttFilter": text}).pattern == EVERYWHERE


@pytest.mark.parametrize("text", ["", "a/#/b", "a/b#", "a+/b", "a\0", "$share/g/a"])
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="mqttFilter is"):
        mqtt_filter(text)


@pytest.mark.parametrize(
    ("key", "sql", "yes", "no"),
    [
        ("line1.temp", "TAGS = 'line1.temp' OR GANTRY_EXCHANGE_KEYS IS NOT NULL", ["line1.temp"], ["", "line1"]),
        ("*.temp", "", ["line1.temp", ".temp"], ["temp", "a.b.temp"]),
        ("#.temp", "", ["temp", "line1.temp", "a.b.temp"], ["temps", ""]),
        ("line1.#", "TAGS STARTSWITH 'line1' OR GANTRY_EXCHANGE_KEYS IS NOT NULL", ["line1", "line1.a.b"], ["line12"]),
        ("#", "", ["", "a", "a.b"], []),
        ("", "", [""], ["a"]),
        ("a.*.#", "TAGS STARTSWITH 'a' OR GANTRY_EXCHANGE_KEYS IS NOT NULL", ["a.b", "a.b.c"], ["a", "b.a"]),
    ],
)
def test_bindings(key: str, sql: str, yes: list[str], no: list[str]) -> None:
    found = binding("amq.topic", key)
    assert (found.topic, found.sql, found.selection.exchange) == ("amq%2Etopic", sql, "amq.topic")
    assert [tag for tag in [*yes, *no] if found.selection.matches(tag)] == yes


def test_the_default_exchange_is_a_queue() -> None:
    found = binding("", "jobs")
    assert (found.topic, found.selection.exchange, found.selection.matches(""), found.selection.matches("x")) == (
        "jobs", "(default)", True, False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"exchange": ""}, "bindingKey must be a queue's name"),
        ({"exchange": "", "bindingKey": ""}, "bindingKey must be a queue's name"),
        ({"topic": "a", "bindingKey": "k"}, "bindingKey is of an exchange"),
        ({"topic": "a", "mqttFilter": "a/#"}, "topic and mqttFilter exclude each other"),
        ({"mqttFilter": "a/#", "exchange": "a"}, "mqttFilter and exchange exclude each other"),
        ({"mqttFilter": "a/#", "tags": "x"}, "tags and mqttFilter exclude each other"),
        ({"exchange": "a", "sql": "n = 1"}, "sql and exchange exclude each other"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        for_batch(parse(options))
