"""`mqtt.topic_rules` and `mqtt.topic_levels`: every MQTT topic comes back, no two meet in one place, filters find what MQTT's rule says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gantrymq.broker.port import Route
from gantrymq.broker.routing.router import Router
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq_gateways.mqtt.config import MqttConfig
from gantrymq_gateways.mqtt.routes import MqttRoutes
from gantrymq_gateways.mqtt.topics.mapping import match_levels
from gantrymq_gateways.mqtt.topics.rules import RULES_MAX, parse_rules
from gantrymq_gateways.mqtt.wire.codec import Disconnect
from gateways.tests.mqtt.world import World, will

RULES = [
    "", "d/=fleet", "d=fleet", "=fleet", "d/=fleet; d/1=other; fleet=other", "d/a/=d", "d/=d", "f=fleet; fleet/=f", "/=fleet; d//=fleet",
    "=fleet; d=x; x=d",
]  # fmt: skip
LEVEL = st.sampled_from(
    [
        "",
        "d",
        "d1",
        "1",
        "12",
        "fleet",
        "other",
        "f",
        "x",
        "a",
        "$x",
        "a.b",
        "%2F",
        "%00",
        "é",
        "%24x",
        "TBW102",
        "d" * 130,
    ]
)
TOPIC = st.lists(LEVEL, min_size=1, max_size=4).map("/".join).filter(bool)
FILTER = st.builds(
    lambda levels, rest: "/".join([*levels, "#"] if rest else levels),
    st.lists(st.one_of(LEVEL, st.just("+")), min_size=1, max_size=4), st.booleans(),
).filter(bool)  # fmt: skip
LEVELS = st.sampled_from([1, 2, 3])
TAG = st.lists(st.sampled_from(["", "d", "d1", "1", "fleet", "x", "$x", "%2E", "é"]), max_size=4).map(".".join)


@given(st.sampled_from(RULES), LEVELS, TOPIC)
@example("d/=fleet", 1, "fleet/d/1")
@example("=fleet", 1, "fleet/")
@example("", 2, "d/")
@example("", 2, "/d")
@example("", 3, "d//%2F/")
def test_every_topic_comes_back_or_is_refused_for_the_one_in_its_place(text: str, levels: int, topic: str) -> None:
    rules = parse_rules(text, levels)
    try:
        native, tag = rules.to_native(topic)
    except GantryError as error:
        if error.code is ErrorCode.NAME_INVALID:
            own, _, rest = topic.partition("/")
            assert rules.to_native(rest)[0] == own
            assert rules.to_mqtt(*rules.to_native(rest)).decode() == rest
        else:
            assert topic.startswith("TBW102")
        return
    if len(native) < 120 or native in rules.targets:  # the way back of long names is a table's (LongTopics)
        assert rules.to_mqtt(native, tag).decode() == topic


@given(st.sampled_from(RULES), LEVELS, st.lists(TOPIC, max_size=12, unique=True))
def test_no_two_topics_meet(text: str, levels: int, topics: list[str]) -> None:
    rules = parse_rules(text, levels)
    places = []
    for topic in dict.fromkeys([*topics, *[f"{native}/{topic}" for topic in topics for native in rules.targets]]):
        try:
            places.append(rules.to_native(topic))
        except GantryError:
            continue
    assert len(places) == len(set(places))


@given(st.sampled_from(RULES), LEVELS, st.lists(FILTER, max_size=10), st.lists(TOPIC, max_size=6), st.data())
def test_filters_find_what_the_rule_says(
    text: str, levels: int, filters: list[str], topics: list[str], data: st.DataObject
) -> None:
    rules = parse_rules(text, levels)
    routes = MqttRoutes()
    for number, wanted in enumerate(filters):
        assert routes.add(number, *rules.filter_route(wanted)) is False
    gone = data.draw(st.sets(st.integers(0, 10)))
    for number in gone:
        routes.remove(number)
    for topic in topics:
        try:
            native, tag = rules.to_native(topic)
        except GantryError:
            continue
        found = routes.match(Message(native, b"", tag=tag))
        assert sorted(found) == [n for n, f in enumerate(filters) if n not in gone and match_levels(f, topic)]
    for number in range(len(filters)):
        routes.remove(number)
    assert not routes._ruled


@given(
    st.sampled_from(RULES),
    LEVELS,
    st.lists(FILTER, max_size=10),
    st.sampled_from(
        [
            "fleet",
            "d",
            "x",
            "other",
            "f",
            "%24x",
            "d%2Fx",
            "%2Fd%2F1",
            "d%2F%2B",
            "%24x%2Fd",
            "fleet%2Fd",
            "d%2F" + "1" * 90 + "_" + "A" * 32,
        ]
    ),
    TAG,
)
def test_messages_of_other_doors_are_found_as_they_are_delivered(
    text: str, levels: int, filters: list[str], native: str, tag: str
) -> None:
    rules = parse_rules(text, levels)
    routes = MqttRoutes()
    for number, wanted in enumerate(filters):
        routes.add(number, *rules.filter_route(wanted))
    topic = rules.to_mqtt(native, tag).decode()
    assert sorted(routes.match(Message(native, b"", tag=tag))) == [
        n for n, wanted in enumerate(filters) if match_levels(wanted, topic)
    ]


@pytest.mark.parametrize(
    ("topic", "place"),
    [
        ("devices/d1/temp", ("fleet", "devices.d1.temp")), ("sensor-17/up", ("sensors", "sensor-17.up")), ("devices", ("devices", "")),
        ("fleet/x", ("fleet", "x")), ("devices/gate/7", ("gates", "devices.gate.7")), ("$devices/1", ("%24devices", "1")),
    ],
)  # fmt: skip
def test_places(topic: str, place: tuple[str, str]) -> None:
    rules = parse_rules("devices/=fleet; sensor-=sensors; devices/gate=gates")
    assert rules.to_native(topic) == place
    assert rules.to_mqtt(*place).decode() == topic


@pytest.mark.parametrize(
    ("topic", "place"),
    [
        ("acme/line1/d1/temp", ("acme%2Fline1", "d1.temp")), ("acme/line1", ("acme%2Fline1", "")), ("acme", ("acme", "")),
        ("acme/", ("acme%2F", "")), ("/a/b", ("%2Fa", "b")), ("a.b/c.d/e.f", ("a%2Eb%2Fc%2Ed", "e%2Ef")), ("a%2Fb/c", ("a%252Fb%2Fc", "")),
        ("$aws/a/b", ("%24aws", "a.b")), ("devices/d1/temp", ("fleet", "devices.d1.temp")), ("a/" + "b" * 130 + "/c", ("a", "b" * 130 + ".c")),
    ],
)  # fmt: skip
def test_places_of_two_levels(topic: str, place: tuple[str, str]) -> None:
    rules = parse_rules("devices/=fleet", 2)
    assert rules.to_native(topic) == place
    assert rules.to_mqtt(*place).decode() == topic


def test_two_levels_open_no_closed_topic() -> None:
    rules = parse_rules("", 2)
    for topic in ("$SYS/broker/uptime", "TBW102/x", "%RETRY%g/x", "rmq_sys_gantry_topic/x", "$share/g/x"):
        with pytest.raises(GantryError) as raised:
            rules.to_native(topic)
        assert raised.value.code is ErrorCode.NO_PERMISSION
    assert rules.to_native("$SYS/broker/connection/b/state") == ("%24SYS", "broker.connection.b.state")


def test_a_place_that_is_taken_is_refused_with_its_owner() -> None:
    with pytest.raises(GantryError, match=r"mqtt\.topic_rules its place is that of 'devices/d1'"):
        parse_rules("devices/=fleet").to_native("fleet/devices/d1")


@pytest.mark.parametrize(
    ("text", "home"),
    [("devices/+/temp", "fleet"), ("devices/#", "fleet"), ("devices/1", "fleet"), ("a/+", "a"), ("#", None), ("+/1", None), ("fleet/#", "fleet")],
)  # fmt: skip
def test_what_a_subscription_makes(text: str, home: str | None) -> None:
    assert parse_rules("devices/=fleet").home_of(text) == home


@pytest.mark.parametrize(
    ("text", "home"),
    [("a/b/#", "a%2Fb"), ("a/b", "a%2Fb"), ("a", "a"), ("a/#", None), ("a/+/c", None), ("#", None), ("$aws/b/#", "%24aws"), ("devices/#", "fleet")],
)  # fmt: skip
def test_what_a_subscription_makes_of_two_levels(text: str, home: str | None) -> None:
    assert parse_rules("devices/=fleet", 2).home_of(text) == home


@pytest.mark.parametrize(
    "text",
    ["fleet", "a=", "a=b/c", "a=TBW102", "a=%24x", "$a=b", "a/+=b", "a/#=b", "a=b; a=c", "a=" + "b" * 128, "a" * 201 + "=b",  "; ".join(f"{i}{'a' * 100}=b" for i in range(10)), ";",
     "; ".join(f"a{i}=b" for i in range(RULES_MAX + 1))],
)  # fmt: skip
def test_bad_rules_end_the_start(text: str) -> None:
    with pytest.raises(ValueError, match="topic_rules = "):
        MqttConfig(topic_rules=text)


@pytest.mark.parametrize(
    "expression",
    [
        "{}",
        '{"filter":1,"rules":[["a","b"]]}',
        '{"filter":"a","rules":[["a"]]}',
        '{"filter":"a","rules":[["a","b/c"]]}',
        '{"filter":"a","rules":[],"levels":9}',
    ],
)
def test_bad_expressions(expression: str) -> None:
    with pytest.raises(GantryError) as raised:
        MqttRoutes().add(1, None, expression)
    assert raised.value.code is ErrorCode.ILLEGAL_ARGUMENT


@pytest.fixture(params=[("late", 1), ("local", 1), ("remote", 1), ("local", 2)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    kind, levels = request.param
    world = World(kind, seed=7, directory=tmp_path / "first", topic_rules="devices/=fleet", topic_levels=levels)
    yield world
    world.close()


def test_both_kinds_of_sessions_over_the_door(world: World) -> None:
    names = ["devices/1/temp", "+/1/#", "#", "fleet/#", "devices/+/up"]
    live = {text: world.client(f"live-{at}") for at, text in enumerate(names)}
    kept = {text: world.client(f"kept-{at}", clean=False) for at, text in enumerate(names)}
    for clients in (live, kept):
        for text, client in clients.items():
            client.subscribe(text)
    for client in kept.values():
        client.send(Disconnect())
    device = world.client("device")
    published = ["devices/1/temp", "fleet/x", "devices"]
    for topic in published:
        device.publish(topic, topic)
    for text in names:
        wanted = [(topic, topic.encode()) for topic in published if match_levels(text, topic)]
        assert live[text].messages() == wanted
    world = world.restart()
    for at, text in enumerate(names):
        wanted = [(topic, topic.encode()) for topic in published if match_levels(text, topic)]
        assert world.client(f"kept-{at}", clean=False).messages() == wanted


def test_one_native_topic_for_all_devices() -> None:
    world = World(topic_rules="devices/=fleet")
    for device in range(20):
        world.client(f"d{device}").subscribe(f"devices/{device}/cmd")
        world.client(f"p{device}").publish(f"devices/{device}/temp")
    assert {message.topic for message in world.port.log} == {"fleet"}
    assert set(world.port.topic_queues) == {"fleet"}


def test_what_is_retained_and_left_behind_keeps_its_name() -> None:
    world = World(topic_rules="devices/=fleet")
    world.client("c", will=will("devices/7/state", b"off", retain=True)).link.lose()
    world.settle()
    reader = world.client("r")
    reader.subscribe("devices/+/state")
    assert reader.messages() == [("devices/7/state", b"off")]
    assert [(m.topic, m.tag) for m in world.port.log] == [("fleet", "devices.7.state")]


def test_two_levels_over_the_door() -> None:
    world = World(topic_levels=2)
    world.client("c", will=will("acme/l1/d7/state", b"off", retain=True)).link.lose()
    live = world.client("live")
    live.subscribe("acme/+/d1/#")
    world.client("p").publish("acme/l1/d1/temp", b"1")
    world.settle()
    assert live.messages() == [("acme/l1/d1/temp", b"1")]
    reader = world.client("r")
    reader.subscribe("acme/l1/#")
    assert reader.messages() == [("acme/l1/d7/state", b"off")]
    assert {(m.topic, m.tag) for m in world.port.log} == {("acme%2Fl1", "d7.state"), ("acme%2Fl1", "d1.temp")}
    assert set(world.port.topic_queues) == {"acme%2Fl1"}


def test_a_subscription_under_rules_names_its_native_topic() -> None:
    router = Router({"mqtt": MqttRoutes()}, {}, lambda route_id: None)
    rules = parse_rules("devices/=fleet", 2)
    for number, text in enumerate(["devices/a/#", "site/hall/+", "devices/b", "+/a", "#"], 1):
        router.add(Route(str(number), "mqtt", *rules.filter_route(text), number))
    assert router.names_topic("fleet")
    assert router.names_topic("site%2Fhall")
    assert not router.names_topic("devices")
    router.remove("1")
    assert router.names_topic("fleet")
    router.remove("3")
    router.remove("2")
    assert not router.names_topic("fleet")
    assert not router.names_topic("site%2Fhall")


@pytest.mark.parametrize(
    ("text", "levels", "homes"),
    [
        ("t/#", 1, ["t"]),
        ("devices/#", 1, ["devices", "fleet", "heavy"]),
        ("devices/d1/+", 1, ["devices", "fleet"]),
        ("devices/x/d/temp", 1, ["devices", "heavy", "fleet"]),
        ("dev/#", 1, ["dev"]),
        ("+/x", 1, None),
        ("t/a/#", 2, ["t", "t%2Fa"]),
        ("t/+", 2, None),
        ("t", 2, ["t"]),
    ],
)
def test_where_all_that_a_filter_matches_is(text: str, levels: int, homes: list[str] | None) -> None:
    found = parse_rules("devices/=fleet; devices/x=heavy", levels).homes_of(text)
    assert (found and sorted(found)) == (homes and sorted(homes))
