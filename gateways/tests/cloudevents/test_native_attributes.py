"""Events whose properties a native producer wrote: whatever they say, a sink gets an event that HTTP and JSON can carry."""

import json

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.model import properties as props
from gantrymq.model.message import Message
from gantrymq_gateways.cloudevents import mapping
from gantrymq_gateways.cloudevents.wire.codec import encode_request

EVENT = {"CE_specversion": "1.0", "CE_id": "1", "CE_source": "/s", "CE_type": "t"}


def requests_for(**pairs):
    message = Message("orders", b"{}", props.encode({**EVENT, **pairs}.items()), "t")
    event = mapping.from_message(message, "//test")
    made = [encode_request(event, structured) for structured in (False, True)]
    for headers, _ in made:
        h11.Request(method="POST", target="/", headers=[("host", "h"), *headers])
    return event, made[0][0], json.loads(made[1][1])


@pytest.mark.parametrize("name", ["größe", "X-Up", "a b", "a:b", "data", "", "a\nb"])
def test_names_that_no_attribute_may_have_are_left_out(name):
    """spec.md, Naming: one such property would hold up the subscription for ever."""
    event, headers, document = requests_for(**{f"CE_{name}": "x"})
    assert name not in event.attributes
    assert len(headers) == 5
    assert document["data_base64"] == "e30="


@pytest.mark.parametrize("text", ["n=i", "n=b", "größe=e", "data=e", "n=e", "n=?", "==="])
def test_types_that_do_not_fit_their_value_do_not_count(text):
    event, _, document = requests_for(CE_n="abc", GANTRY_CE_TYPES=text)
    assert document["n"] == "abc"
    assert set(event.attributes) == {"specversion", "id", "source", "type", "n"}


@given(st.dictionaries(st.text(max_size=6), st.text(min_size=1, max_size=6), max_size=4), st.text(max_size=20))
def test_every_native_event_can_be_sent(pairs, types):
    requests_for(
        **{f"CE_{name}": value for name, value in pairs.items() if "CE_" + name not in EVENT}, GANTRY_CE_TYPES=types
    )
