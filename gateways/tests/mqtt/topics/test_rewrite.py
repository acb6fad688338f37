"""`mqtt.rewrite`: which topics and filters become others, and what a client sees of it."""

from __future__ import annotations

import pytest

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq_gateways.mqtt.config import MqttConfig
from gantrymq_gateways.mqtt.topics.rewrite import RULES_MAX, TOPIC_CHARS_MAX, parse_rewriting
from gateways.tests.mqtt.world import World, will

RULES = r"all y/+/z/# ^y/(.+)/z/(.+)$ y/z/$2;publish x/# ^x/y/(\d+)$ z/$1 ; subscribe x/1/+ ^x/1/(.+)$ z/x/$1; publish x/# (.*) never"


@pytest.mark.parametrize(
    ("topic", "published", "subscribed"),
    [
        ("y/a/z/b", "y/z/b", "y/z/b"),
        ("y/def", "y/def", "y/def"),
        ("x/y/123", "z/123", "x/y/123"),
        ("x/y/abc", "x/y/abc", "x/y/abc"),  # the first rule whose source matches decides
        ("x/1/2", "x/1/2", "z/x/2"),
        ("x", "x", "x"),
        ("$SYS/x", "$SYS/x", "$SYS/x"),
    ],
)
def test_what_becomes_of_it(topic: str, published: str, subscribed: str) -> None:
    rewriter = parse_rewriting(RULES)
    assert (rewriter.published(topic), rewriter.subscribed(topic)) == (published, subscribed)


def test_of_filters_of_every_kind_the_topic_filter_is_rewritten() -> None:
    rewriter = parse_rewriting("subscribe a/# ^a/(.+)$ b/$1")
    for kind in ("", "$share/g/", "$queue/", "$from/earliest/", "$exclusive/"):
        assert rewriter.subscribed(f"{kind}a/+/x") == f"{kind}b/+/x"
        assert rewriter.subscribed(f"{kind}c") == f"{kind}c"
    assert rewriter.subscribed("$share/g") == "$share/g"


def test_what_would_be_no_topic_stays(caplog: pytest.LogCaptureFixture) -> None:
    rewriter = parse_rewriting("publish a/# ^a/(.*)$ $1; publish b/# (.*) c/+; subscribe a/# ^a/(.*)$ x#$1")
    assert [rewriter.published(topic) for topic in ("a/", "a/x", "b/x")] == ["a/", "x", "b/x"]
    assert rewriter.subscribed("a/x") == "a/x"
    assert [record.getMessage().count("mqtt.rewrite") for record in caplog.records] == [1, 1, 1]
    long = "a/" + "x" * TOPIC_CHARS_MAX
    assert rewriter.published(long) == long


@pytest.mark.parametrize(
    "text",
    [
        "all a b",
        "all a b c d",
        "some a/# b c",
        "all a/#/b b c",
        "all a/# ( c",
        "all a/# (.*) $2",
        ";".join(["all a b c"] * (RULES_MAX + 1)),
        "all a b " + "c" * 1000,
    ],
)
def test_rules_that_are_none(text: str) -> None:
    with pytest.raises(GantryError) as caught:
        parse_rewriting(text)
    assert caught.value.code is ErrorCode.ILLEGAL_ARGUMENT
    with pytest.raises(ValueError, match="rewrite = "):
        MqttConfig(rewrite=text)


def test_clients_meet_at_the_new_topic() -> None:
    world = World("immediate", rewrite="all old/# ^old/(.+)$ new/$1")
    new, kept = world.client("new"), world.client("kept", clean=False)
    assert new.subscribe("new/#") == [1]
    assert kept.subscribe("old/+") == [1]
    old = world.client("old", will=will("old/will"))
    old.publish("old/a", "1")
    old.publish("old/a", "2", 0)
    old.publish("$delayed/0/old/b", "3")
    old.publish("old/r", "4", retain=True)
    expected = [("new/a", b"1"), ("new/a", b"2"), ("new/b", b"3"), ("new/r", b"4")]
    assert new.messages() == expected
    assert kept.messages() == expected
    old.link.close()
    world.settle()
    assert new.messages() == [("new/will", b"gone")]
    kept.unsubscribe("old/+")
    world.client("p").publish("old/x")
    assert kept.messages() == [("new/will", b"gone")]
    late = world.client("late")
    late.subscribe("old/r")
    assert late.messages() == [("new/r", b"4")]
