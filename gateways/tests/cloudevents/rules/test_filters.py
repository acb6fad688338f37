import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq_gateways.cloudevents.rules.filters import FilterError, compile_filters
from gantrymq_gateways.cloudevents.wire.constants import FILTER_DEPTH_MAX, FILTERS_MAX

EVENT = {"specversion": "1.0", "id": "1", "source": "/s/a", "type": "com.example.created", "ext": "x"}

CASES = [
    ([{"exact": {"type": "com.example.created"}}], True),
    ([{"exact": {"type": "com.example"}}], False),
    ([{"exact": {"type": "com.example.created", "ext": "x"}}], True),
    ([{"exact": {"type": "com.example.created", "ext": "y"}}], False),
    ([{"exact": {"missing": "x"}}], False),
    ([{"prefix": {"type": "com."}}], True),
    ([{"prefix": {"type": "org."}}], False),
    ([{"prefix": {"missing": "x"}}], False),
    ([{"suffix": {"type": ".created", "source": "/a"}}], True),
    ([{"suffix": {"missing": "x"}}], False),
    ([{"not": {"exact": {"ext": "x"}}}], False),
    ([{"not": {"exact": {"missing": "x"}}}], True),
    ([{"all": [{"exact": {"ext": "x"}}, {"prefix": {"id": "1"}}]}], True),
    ([{"all": [{"exact": {"ext": "x"}}, {"prefix": {"id": "2"}}]}], False),
    ([{"any": [{"exact": {"ext": "y"}}, {"prefix": {"id": "1"}}]}], True),
    ([{"any": [{"exact": {"ext": "y"}}]}], False),
    ([{"any": [{"not": {"all": [{"exact": {"ext": "x"}}]}}, {"suffix": {"id": "1"}}]}], True),
    ([{"exact": {"ext": "x"}}, {"exact": {"ext": "y"}}], False),
    ([{"exact": {"EXT".lower(): "X"}}], False),
]


@pytest.mark.parametrize(("filters", "passes"), CASES)
def test_dialects(filters, passes):
    assert compile_filters(filters)(EVENT) is passes


def test_no_filter():
    assert compile_filters([]) is None


def nested(depth):
    expression = {"exact": {"id": "1"}}
    for _ in range(depth - 1):
        expression = {"not": expression}
    return [expression]


REFUSED = [
    ([{}], "filters[0]: a filter is an object with one member"),
    (["type"], "filters[0]"),
    ([{"exact": {"id": "1"}, "prefix": {"id": "1"}}], "one member"),
    ([{"sql": "type = 'x'"}], "filters[0].sql: CloudEvents SQL is not supported"),
    ([{"regex": {"id": "1"}}], "filters[0].regex: unknown dialect"),
    ([{"exact": {}}], "filters[0].exact"),
    ([{"exact": "id"}], "filters[0].exact"),
    ([{"exact": {"id": ""}}], "filters[0].exact.id"),
    ([{"exact": {"id": 1}}], "filters[0].exact.id"),
    ([{"exact": {"ID": "1"}}], "attribute name 'ID'"),
    ([{"exact": {"": "1"}}], "attribute name ''"),
    ([{"exact": {"data": "1"}}], "data"),
    ([{"all": []}], "filters[0].all"),
    ([{"any": {"exact": {"id": "1"}}}], "filters[0].any"),
    ([{"all": [{"exact": {"id": "1"}}, {"any": [{"nope": 1}]}]}], "filters[0].all[1].any[0].nope"),
    ([{"not": []}], "filters[0].not"),
    (nested(FILTER_DEPTH_MAX + 1), "deep"),
    ([{"exact": {"id": "1"}}] * (FILTERS_MAX + 1), "over"),
    ([{"exact": {f"a{n}": "1" for n in range(FILTERS_MAX + 2)}}, {"exact": {"id": "1"}}], "over"),
]


@pytest.mark.parametrize(("filters", "words"), REFUSED)
def test_refused(filters, words):
    with pytest.raises(FilterError) as caught:
        compile_filters(filters)
    assert words in str(caught.value)


def test_limits_are_inclusive():
    compile_filters(nested(FILTER_DEPTH_MAX))
    compile_filters([{"exact": {"id": "1"}}] * FILTERS_MAX)


LEAF = st.builds(
    lambda dialect, name, value: {dialect: {name: value}},
    st.sampled_from(["exact", "prefix", "suffix"]),
    st.sampled_from([*EVENT, "missing"]),
    st.sampled_from(["1", "/s", "com.", "x", "created"]),
)
EXPRESSIONS = st.recursive(
    LEAF,
    lambda inner: (
        st.builds(lambda d, items: {d: items}, st.sampled_from(["all", "any"]), st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda item: {"not": item}, inner)
    ),
    max_leaves=6,
)


def meaning(expression):
    ((dialect, argument),) = expression.items()
    if dialect == "not":
        return not meaning(argument)
    if dialect in ("all", "any"):
        return {"all": all, "any": any}[dialect]([meaning(item) for item in argument])
    ((name, wanted),) = argument.items()
    value = EVENT.get(name)
    if value is None:
        return False
    return {"exact": value == wanted, "prefix": value.startswith(wanted), "suffix": value.endswith(wanted)}[dialect]


@given(EXPRESSIONS)
def test_meaning(expression):
    try:
        test = compile_filters([expression])
    except FilterError:
        return
    assert test(EVENT) is meaning(expression)
