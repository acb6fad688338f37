"""Rows of AMQP bridges: what is one, and that none ever holds or shows a password."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gantrymq_gateways.bridges import rows
from gantrymq_gateways.bridges.rows import End, SecretError

SAID: dict[str, Any] = {
    "source": {"url": "amqp://bob@rabbit/shop", "secret": "rabbit"},
    "destination": {},
    "queue": "jobs",
}


def test_a_row_comes_back_as_it_was_said() -> None:
    row = rows.row_from("b", rows.made("b", **SAID, rate=5.0, declare=True, arguments={"x-max-length": 9}))
    assert (row.source.url, row.queue, row.rate, row.declare, row.arguments) == (
        "amqp://bob@rabbit/shop", "jobs", 5.0, True, {"x-max-length": 9},
    )  # fmt: skip
    assert row.destination == End()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"queue": ""}, "a queue or from an exchange"),
        ({"exchange": "e"}, "a queue or from an exchange"),
        ({"to_queue": "a", "to_exchange": "b"}, "not to both"),
        ({"key": "k"}, "for an exchange"),
        ({"source": {}}, "another broker"),
        ({"source": {"url": "http://rabbit/"}}, "an address is amqp://"),
        ({"source": {"url": "amqp:///x"}}, "an address is amqp://"),
        ({"source": {"url": "amqp://rabbit:99999"}}, "its address is none"),
        ({"source": {"url": "amqp://rabbit", "user": "bob"}}, "stand in the address"),
        ({"source": {"url": "amqp://rabbit", "secret": "../../etc/passwd"}}, "name of a secret"),
        ({"destination": {"secret": "a/b"}}, "name of a secret"),
        ({"source": {"url": "amqp://rabbit/" + "x" * 3000}}, "an address is amqp://"),
        ({"prefetch": 0}, "1 to 10000"),
        ({"rate": -1.0}, "not below 0"),
        ({"kind": "x-delayed-message"}, "direct, fanout, topic, headers"),
        ({"queue": "ü" * 200}, "255 bytes"),
        ({"prefetch": "many"}, "int"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_is_no_bridge_is_refused_in_words(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rows.made("b", **(SAID | change))


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 65, "a\n"])
def test_names(name: str) -> None:
    with pytest.raises(ValueError, match="name of a bridge"):
        rows.made(name, **SAID)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="no password in the address") as failure:
        rows.made("b", **(SAID | {"source": {"url": "amqp://bob:hunter2@rabbit/"}}))
    assert "hunter2" not in str(failure.value)


def test_secrets_come_from_a_file_and_else_from_a_variable(tmp_path: Path) -> None:
    (tmp_path / "rabbit").write_text("from @ file/\r\nsecond line\n")
    environment = {"GANTRY_BRIDGE_RABBIT": "from the environment", "HOME": "/root"}
    end = End(url="amqps://bob@rabbit:5671/shop?cafile=/ca", secret="rabbit")
    assert (
        rows.address(end, "", str(tmp_path), environment)
        == "amqps://bob:from%20%40%20file%2F@rabbit:5671/shop?cafile=/ca"
    )
    assert rows.address(end, "", "", environment) == "amqps://bob:from%20the%20environment@rabbit:5671/shop?cafile=/ca"
    for name in ("HOME", "home"):
        with pytest.raises(SecretError, match="no variable GANTRY_BRIDGE_HOME"):
            rows.address(End(url="amqp://rabbit", secret=name), "", str(tmp_path), environment)


def test_a_secret_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(SecretError, match=r"file folder of amqp\.bridge_secrets \(Is a directory\)"):
        rows.address(End(url="amqp://rabbit", secret="folder"), "", str(tmp_path), {})


def test_the_own_door() -> None:
    assert rows.address(End(), "127.0.0.1:5672", "", {}) == "amqp://guest:guest@127.0.0.1:5672/%2F"
    end = End(user="bob", vhost="a/b", secret="s")
    assert rows.address(end, "[::1]:7", "", {"GANTRY_BRIDGE_S": "p@w"}) == "amqp://bob:p%40w@[::1]:7/a%2Fb"


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (End(), "here"),
        (End(vhost="/"), "here"),
        (End(vhost="shop"), "here/shop"),
        (End(url="amqp://bob@rabbit"), "rabbit:5672"),
        (End(url="amqps://rabbit/shop"), "rabbit:5671/shop"),
        (End(url="amqp://rabbit:99/"), "rabbit:99"),
    ],
)
def test_what_an_end_is_called(end: End, words: str) -> None:
    assert rows.shown(end) == words


def test_a_state_comes_back() -> None:
    state = rows.State("connected", "why", 5, 6, 7, "g")
    rows.check_state("b", rows.encode(state))
    assert rows.state_from(rows.encode(state)) == state
