"""EventRoutes: whatever the index does, an event meets exactly the routes whose subscription it matches."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq_gateways.cloudevents.mapping import from_message, to_message
from gantrymq_gateways.cloudevents.routes import EventRoutes, expression_of
from gantrymq_gateways.cloudevents.rules.guard import SinkGuard
from gantrymq_gateways.cloudevents.subscription import parse_subscription
from gantrymq_gateways.cloudevents.wire.event import DataState, Event

GUARD = SinkGuard(loopback=True, http=True)
OWN = "//own"
NAMES = ["type", "source", "subject", "ext", "id", "time"]
VALUES = ["a", "ab", "abc", "b", "ba", "message", OWN]

pairs = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES), min_size=1, max_size=2)
comparisons = st.builds(
    lambda dialect, values: {dialect: values}, st.sampled_from(["exact", "prefix", "suffix"]), pairs
)
expressions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds(lambda each: {"not": each}, inner),
        st.builds(
            lambda dialect, each: {dialect: each},
            st.sampled_from(["all", "any"]),
            st.lists(inner, min_size=1, max_size=3),
        ),
    ),
    max_leaves=4,
)
wanted = st.fixed_dictionaries(
    {},
    optional={
        "types": st.lists(st.sampled_from(VALUES), min_size=1, max_size=2),
        "source": st.sampled_from(["a", "ab", OWN]),
        "filters": st.lists(expressions, max_size=3),
    },
)
events = st.builds(
    lambda required, more: Event({"specversion": "1.0", **required, **more}, b"", DataState.PRESENT, {}),
    st.fixed_dictionaries({name: st.sampled_from(VALUES) for name in ("id", "type", "source")}),
    st.dictionaries(st.sampled_from(["subject", "ext"]), st.sampled_from(VALUES), max_size=2),
)


def subscription(document):
    whole = {"sink": "http://127.0.0.1/", "protocol": "HTTP", "config": {"topic": "t"}, **document}
    return parse_subscription("s", whole, GUARD)


def installed(documents, topic="t"):
    routes = EventRoutes()
    for number, document in enumerate(documents):
        assert routes.add(number, topic, expression_of(document, f"s{number}", OWN, ""))
    return routes


@given(st.lists(wanted, max_size=8), events, st.sets(st.integers(0, 7)))
def test_an_event_meets_the_routes_of_the_subscriptions_that_it_matches(documents, event, removed):
    message = to_message(event, "t", 0)
    routes = installed(documents)
    for number in removed:
        routes.remove(number)
    expected = [
        number
        for number, document in enumerate(documents)
        if number not in removed and subscription(document).matches(event.attributes)
    ]
    assert sorted(set(routes.match(message))) == expected
    for number in range(len(documents)):
        routes.remove(number)
    assert not routes._topics
    assert list(routes.match(message)) == []


@given(wanted, st.sampled_from(VALUES), st.sampled_from(["", "U1"]))
def test_a_message_that_was_none_misses_no_route_and_meets_no_other_unless_it_asks_what_is_late(document, tag, unique):
    text = f"UNIQ_KEY\x01{unique}\x02" if unique else ""
    message = Message("t", b"", f"{text}GANTRY_ORIGIN\x01amqp\x02".encode(), tag)
    found = bool(list(installed([document]).match(message)))
    kept = subscription(document)
    matches = kept.matches(from_message(message, OWN).attributes)
    assert found >= matches
    if not kept.is_late:
        assert found == matches


def test_other_topics_are_not_looked_at():
    routes = installed([{"types": ["a"]}])
    assert list(routes.match(Message("u", b"", b"", "a"))) == []
    assert list(routes.match(Message("t", b"", b"", "a"))) == [0]


def test_a_digest_topic_is_called_by_its_foreign_name():
    routes = EventRoutes()
    routes.add(1, "t_0123", expression_of({"filters": [{"exact": {"subject": "long/name/x"}}]}, "s", OWN, "long/name"))
    assert list(routes.match(Message("t_0123", b"", b"GANTRY_ORIGIN\x01mqtt\x02", "x"))) == [1]


def test_only_routes_that_may_match_are_tried():
    """1,000 subscriptions, each of its own tenant, and one that has to be tried: an event tries two."""
    tried = []
    documents = [{"types": ["order"], "filters": [{"exact": {"tenant": f"t{number}"}}]} for number in range(1000)]
    documents.append({"filters": [{"not": {"exact": {"tenant": "t1"}}}]})
    routes = installed(documents)
    (each,) = routes._topics["t"].values()
    for route in each.routes.values():
        route.tests = (lambda attributes, number=route.number: tried.append(number) is None,)
    event = Event(
        {"specversion": "1.0", "id": "1", "source": "s", "type": "order", "tenant": "t7"}, b"", DataState.PRESENT, {}
    )
    assert sorted(routes.match(to_message(event, "t", 0))) == [7, 1000]
    assert len(tried) == 2


def test_routes_that_ask_for_the_same_type_are_told_apart_by_their_prefixes():
    tried = []
    documents = [{"types": ["order"], "filters": [{"prefix": {"subject": f"r{number:03}/"}}]} for number in range(300)]
    routes = installed(documents)
    (each,) = routes._topics["t"].values()
    for route in each.routes.values():
        route.tests = (lambda attributes, number=route.number: tried.append(number) is None,)
    event = Event(
        {"specversion": "1.0", "id": "1", "source": "s", "type": "order", "subject": "r123/x"},
        b"",
        DataState.PRESENT,
        {},
    )
    assert 123 in set(routes.match(to_message(event, "t", 0)))
    assert len(tried) < 12


def without(tenant):
    return {"not": {"exact": {"tenant": tenant}}}


@pytest.mark.parametrize(
    "of_one",
    [
        lambda tenant: [{"not": {"prefix": {"type": "order"}}}],
        lambda tenant: [without(tenant), {"not": {"suffix": {"subject": "/x"}}}],
        lambda tenant: [{"not": {"any": [{"exact": {"tenant": tenant}}, {"exact": {"type": "order"}}]}}],
        lambda tenant: [{"not": {"all": [{"exact": {"type": "order"}}, {"prefix": {"subject": "r"}}]}}],
        lambda tenant: [{"not": {"any": [without(tenant), {"exact": {"type": "order"}}]}}],
        lambda tenant: [{"any": [{"exact": {"tenant": tenant}}, {"prefix": {"subject": f"{tenant}/"}}]}],
    ],
)
@pytest.mark.parametrize("types", [[], ["order"]])
def test_routes_that_share_what_they_do_not_want_are_tried_together(of_one, types):
    documents = [{"types": types, "filters": of_one(f"t{number}")} for number in range(300)]
    routes = installed(documents)
    (each,) = routes._topics["t"].values()
    tried = []

    def counted(test):
        return lambda attributes: tried.append(test) or test(attributes)

    places = [
        place for values in each.values.values() for sizes in values.by_length.values() for place in sizes.values()
    ]
    for place in [each.rest, *places]:
        for group in place.groups.values():
            group.test = group.test and counted(group.test)
            for route in group.routes.values():
                route.tests = tuple(map(counted, route.tests))
    attributes = {"specversion": "1.0", "id": "1", "source": "s", "type": "order", "tenant": "x", "subject": "r/x"}
    assert list(routes.match(to_message(Event(attributes, b"", DataState.PRESENT, {}), "t", 0))) == []
    assert len(tried) < 20


@pytest.mark.parametrize(
    "expression", ["", "[]", "{}", '{"types":[],"source":"","filters":[{"x":1}],"id":"","self":"","name":""}']
)
def test_a_bad_expression_is_refused(expression):
    with pytest.raises(GantryError) as caught:
        EventRoutes().add(1, "t", expression)
    assert caught.value.code is ErrorCode.ILLEGAL_ARGUMENT
    with pytest.raises(GantryError):
        EventRoutes().add(1, None, expression_of({}, "s", OWN, ""))


def test_a_queue_is_called_as_its_subscription():
    row = json.dumps(["events", "t", expression_of({}, "abc", OWN, ""), 7]).encode()
    assert EventRoutes.queue_name(lambda table: {"events/7": row}, 7) == "abc"
    assert EventRoutes.queue_name(lambda table: {}, 7) == ""
