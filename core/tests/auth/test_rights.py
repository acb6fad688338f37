"""Rights: what covers what, deny over allow, and names that must not widen a pattern."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.auth.resources import Action, Kind, covers, meets, parse_resource, substituted
from gantrymq.auth.rights import CompiledPolicy, Rights
from gantrymq.auth.rows import Policy, Rule


def rights(*rules: tuple[str, str], user: str = "alice", client_id: str = "c1", address: str = "10.1.2.3:5") -> Rights:
    """A `!` in front of the actions denies."""
    made = [Rule(resource, tuple(actions.lstrip("!").split(",")), actions[0] != "!") for resource, actions in rules]
    return Rights([CompiledPolicy(Policy(f"user:{user}", tuple(made)))], user, client_id, address)


def test_exact_prefix_and_nothing() -> None:
    found = rights(("topic:orders", "pub"), ("topic:log*", "pub,sub"), ("group:*", "sub"))
    assert found.decide(Action.PUB, Kind.TOPIC, "orders").rule == "user:alice: allow pub on topic:orders"
    assert not found.decide(Action.SUB, Kind.TOPIC, "orders").allowed
    assert not found.decide(Action.PUB, Kind.TOPIC, "orders2").allowed
    assert found.decide(Action.SUB, Kind.TOPIC, "logs").allowed
    assert not found.decide(Action.PUB, Kind.GROUP, "x").allowed
    assert found.decide(Action.SUB, Kind.GROUP, "anything").allowed
    assert found.decide(Action.PUB, Kind.QUEUE, "orders").rule == "no rule"


def test_deny_wins_wherever_it_stands() -> None:
    for rules in (
        (("topic:*", "all"), ("topic:secret*", "!sub")),
        (("topic:secret*", "!sub"), ("topic:secrets", "all")),
    ):
        assert not rights(*rules).decide(Action.SUB, Kind.TOPIC, "secrets").allowed
        assert rights(*rules).decide(Action.PUB, Kind.TOPIC, "secrets").allowed


def test_all_topics_at_once_need_one_rule_for_all() -> None:
    assert rights(("topic:*", "sub")).decide_prefix(Action.SUB, Kind.TOPIC, "").allowed
    assert not rights(("topic:a*", "sub")).decide_prefix(Action.SUB, Kind.TOPIC, "").allowed
    assert not rights(("topic:*", "sub"), ("topic:x", "!sub")).decide_prefix(Action.SUB, Kind.TOPIC, "").allowed


def test_sources() -> None:
    policy = Policy("user:a", (Rule("topic:t", ("pub",), True, ("10.0.0.0/8",)),))
    for address, allowed in (
        ("10.1.1.1:9", True),
        ("192.168.0.1:9", False),
        ("[::ffff:10.0.0.1]:9", True),
        ("unix", False),
    ):
        assert (
            Rights([CompiledPolicy(policy)], "a", "", address).decide(Action.PUB, Kind.TOPIC, "t").allowed is allowed
        ), address


@pytest.mark.parametrize(
    ("pattern", "name", "covered", "met"),
    [
        ("a/#", "a", True, True), ("a/#", "a/b/c", True, True), ("a/#", "a/#", True, True), ("a/#", "#", False, True),
        ("a/+", "a/b", True, True), ("a/+", "a/+", True, True), ("a/+", "a/#", False, True), ("a/+", "a", False, False),
        ("a/b", "a/+", False, True), ("#", "$SYS/x", False, False), ("$SYS/#", "#", False, False), ("+/b", "a/b", True, True),
        ("+/b", "+/c", False, False), ("#", "+/+", True, True), ("a/b/c", "a/#", False, True), ("a", "a/#", False, True),
    ],
)  # fmt: skip
def test_filters(pattern: str, name: str, covered: bool, met: bool) -> None:
    levels = substituted(pattern, "u", "c")
    assert levels is not None
    assert covers(levels, name.split("/")) is covered
    assert meets(levels, name.split("/")) is met


words = st.lists(st.sampled_from(["a", "b", "+", "#", "$x"]), min_size=1, max_size=4)


def is_filter(levels: list[str]) -> bool:
    return "#" not in levels[:-1]


@given(
    words.filter(is_filter),
    words.filter(is_filter),
    st.lists(st.sampled_from(["a", "b", "$x"]), min_size=1, max_size=4),
)
def test_filters_against_topics(pattern: list[str], name: list[str], topic: list[str]) -> None:
    """What a filter that is covered matches, the pattern matches; where both match something, they meet."""
    wanted = substituted("/".join(pattern), "u", "c")
    other = substituted("/".join(name), "u", "c")
    assert wanted is not None
    assert other is not None
    by_pattern, by_name = covers(wanted, topic), covers(other, topic)
    if covers(wanted, name) and by_name:
        assert by_pattern
    if by_pattern and by_name:
        assert meets(wanted, name)


@pytest.mark.parametrize("name", ["#", "+", "a/b", "", "a\nb", "x#", "a+"])
def test_names_do_not_widen_patterns(name: str) -> None:
    for pattern in ("plant/%c/#", "plant/%u", "%c"):
        assert substituted(pattern, name, name) is None
    found = rights(("mqtt:plant/%u/#", "pub"), user=name)
    assert not found.decide(Action.PUB, Kind.MQTT, "plant/other/x").allowed


def test_names_are_put_in_once() -> None:
    assert substituted("%u/%c", "%c", "%u") == ["%c", "%u"]
    found = rights(("mqtt:plant/%u/%c", "pub"), user="al", client_id="c.*")
    assert found.decide(Action.PUB, Kind.MQTT, "plant/al/c.*").allowed
    assert not found.decide(Action.PUB, Kind.MQTT, "plant/al/cxx").allowed


@pytest.mark.parametrize("text", ["topic", "topic:", "what:x", "topic:a*b", "mqtt:a/#/b", "mqtt:a+", "topic:a\nb", "*"])
def test_what_is_no_resource(text: str) -> None:
    with pytest.raises(ValueError, match=r"resource|name|filter|end only"):
        parse_resource(text)


def test_what_is_the_same_for_every_client_is_compiled_once() -> None:
    rules = (
        Rule("topic:t", ("pub",)),
        Rule("mqtt:own/%c/#", ("pub",)),
        Rule("topic:near", ("pub",), True, ("10.0.0.0/8",)),
    )
    policy = CompiledPolicy(Policy("user:a", rules))
    one, other = (
        Rights([policy], "a", name, address) for name, address in (("c1", "10.1.1.1:9"), ("c2", "192.168.0.1:9"))
    )
    for found, near, own in ((one, True, "own/c1/x"), (other, False, "own/c2/x")):
        assert found.decide(Action.PUB, Kind.TOPIC, "t").allowed
        assert found.decide(Action.PUB, Kind.TOPIC, "near").allowed is near
        assert [found.decide(Action.PUB, Kind.MQTT, name).allowed for name in ("own/c1/x", "own/c2/x")] == [
            name == own for name in ("own/c1/x", "own/c2/x")
        ]
    assert one._tables[0] is other._tables[0]


@pytest.mark.parametrize("denied", ["a/secret", "+/secret", "#", "a/#"])
@pytest.mark.parametrize("name", ["a/secret", "+/secret", "#", "+/+", "a/+"])
def test_a_deny_is_met_whatever_its_first_level_is(denied: str, name: str) -> None:
    assert not rights(("mqtt:#", "sub"), (f"mqtt:{denied}", "!sub")).decide(Action.SUB, Kind.MQTT, name).allowed
    assert rights(("mqtt:#", "sub"), ("mqtt:b/other", "!sub")).decide(Action.SUB, Kind.MQTT, "a/secret").allowed
