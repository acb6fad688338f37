"""Garbage never escapes. Random histories of channels and connections: the AMQP actor of `gateways/tests/simulation.py`."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq_gateways.amqp.wire.codec import method_frame
from gantrymq_gateways.amqp.wire.constants import METHODS
from gateways.tests.amqp.peer import Server
from gateways.tests.amqp.wire.test_codec import SAMPLES


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(METHODS)), max_size=12), st.binary(max_size=30))
def test_any_methods_in_any_order_are_answered(names: list[str], garbage: bytes) -> None:
    server = Server()
    peer = server.client(1, 2)
    for name in names:
        method = METHODS[name]
        arguments = tuple("q" if letter == "s" else [] if letter == "F" else SAMPLES[letter] for letter in method.spec)
        peer.raw(method_frame(1 if method.class_id != 10 else 0, method, arguments))
    peer.raw(garbage)
    assert server.client().declare("other") == [(1, "queue.declare-ok", ["other", 0, 0])]
