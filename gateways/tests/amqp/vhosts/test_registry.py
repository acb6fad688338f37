"""Rows of vhosts and limits: what is taken, what is refused, and what a name is in its vhost."""

from __future__ import annotations

import pytest

from gantrymq_gateways.amqp import origin
from gantrymq_gateways.amqp.vhosts import registry
from gantrymq_gateways.amqp.wire.constants import AmqpError


@pytest.mark.parametrize("vhost", ["/", "shop", "a/b", "é", "a b"])
@pytest.mark.parametrize("name", ["", "jobs", "amq.topic", "shop"])
def test_full_names_come_apart_again(vhost: str, name: str) -> None:
    full = origin.prefix_of(vhost) + name
    assert (origin.vhost_of(full), origin.local(full)) == (vhost, name)
    assert origin.own_prefix(full) == origin.prefix_of(vhost)


@pytest.mark.parametrize(
    "body",
    [{"default_queue_type": "fast"}, {"tags": 5}, {"tags": [1]}, {"description": "x" * registry.TEXT_BYTES_MAX}],
)
def test_vhosts_that_make_no_sense_are_refused(body: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"default_queue_type|tags|description"):
        registry.new_vhost(body, None)


@pytest.mark.parametrize("name", ["", "a\nb", "a\0", "x" * (registry.NAME_BYTES_MAX + 1)])
def test_names_that_no_vhost_has(name: str) -> None:
    with pytest.raises(ValueError, match="the name of a vhost"):
        registry.check_name(name)


def test_what_a_change_does_not_say_stays() -> None:
    first = registry.new_vhost({"description": "d", "tags": "a, b", "default_queue_type": "quorum"}, None)
    assert (first.tags, first.default_queue_type) == (["a", "b"], "quorum")
    second = registry.new_vhost({"metadata": {"description": "e"}}, first)
    assert (second.description, second.tags, second.default_queue_type) == ("e", ["a", "b"], "quorum")
    assert registry.new_vhost({"default_queue_type": "undefined"}, second).default_queue_type == ""


def test_rows_are_checked() -> None:
    good = registry.row_value(registry.VirtualHost(limits={"max-queues": 5}))
    registry.check_row("v", good)
    registry.check_row("/", good)
    registry.check_user_row("u", registry.row_value(registry.UserLimits({"max-channels": 5})))
    for key, value in (("a\nb", good), ("v", b"{"), ("v", b'{"limits":{"max-songs":1}}')):
        with pytest.raises(ValueError, match=r"name of a vhost|malformed|truncated|max-songs"):
            registry.check_row(key, value)
    with pytest.raises(ValueError, match="is none of"):
        registry.check_user_row("u", b'{"limits":{"max-queues":1}}')


@pytest.mark.parametrize("value", [True, "5", 1.5, 1 << 40])
def test_limits_are_whole_numbers(value: object) -> None:
    with pytest.raises(ValueError, match="no whole number"):
        registry.check_limit(registry.VHOST_LIMITS, "max-queues", value)


def test_errors_have_the_names_that_clients_know() -> None:
    error = AmqpError(404, "no queue 'v\njobs' in vhost '/'")
    assert registry.said_in(error, "v").text == "no queue 'jobs' in vhost 'v'"
    assert registry.said_in(error, "/") is error
