"""`gantry bridge add amqp`: kept shovels of queues and exchanges, in and out, between two installations, with kill -9 at every place, and a real RabbitMQ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
from typer.testing import CliRunner

from gantrymq.cli.app import app
from interop_tests.real_rabbitmq import MISSING, RabbitMQ
from interop_tests.running import Gantry
from interop_tests.test_amqp_clients import connect, unique, url
from interop_tests.test_amqp_shovel import empty, fill, ready, take_all
from interop_tests.waiting import until

COUNT = 200
PASSWORD = "guest"
GONE = (pika.exceptions.AMQPError, AssertionError)


def gantry(server: Gantry, *words: str, code: int = 0) -> str:
    """What `gantry bridge ...` says."""
    done = CliRunner().invoke(app, ["bridge", *words], env={"NAMESRV_ADDR": server.doors["nameserver"]})
    assert done.exit_code == code, done.output
    return done.output


def bridges(server: Gantry) -> dict[str, dict[str, Any]]:
    return {row["bridge"]: row for row in map(json.loads, gantry(server, "list", "--json").splitlines())}


def address(server: Gantry) -> str:
    """Without its password."""
    return url(server).replace("guest:guest@", "guest@")


def add(server: Gantry, name: str, *words: str) -> None:
    gantry(server, "add", "amqp", name, *words)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "other").write_text(PASSWORD + "\n")
    return folder


@pytest.fixture(scope="module")
def pair(secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gantry, Gantry]]:
    """The first keeps the bridges, and finds the other's password in a file."""
    keeper = Gantry(tmp_path_factory.mktemp("keeper"), "combined", (f"amqp.bridge_secrets={secrets}",))
    other = Gantry(tmp_path_factory.mktemp("other"))
    try:
        yield keeper.start(), other.start()
    finally:
        keeper.stop()
        other.stop()


def test_a_queue_in_and_a_queue_out(pair: tuple[Gantry, Gantry]) -> None:
    keeper, other = pair
    into, out = unique("q"), unique("q")
    fill(other, into, COUNT, headers={"n": 5}, message_id="the same")
    fill(keeper, out, COUNT)
    add(keeper, "in", "--from", address(other), "--from-secret", "other", "--queue", into, "--declare")
    add(
        keeper,
        "out",
        "--to",
        address(other),
        "--to-secret",
        "other",
        "--queue",
        out,
        "--declare",
        "--to-queue",
        out + ".there",
    )
    for server, queue in ((keeper, into), (other, out + ".there")):
        until(lambda server=server, queue=queue: ready(server, queue) == COUNT, ignored=GONE)  # type: ignore[misc]
        found = take_all(server, queue)
        assert [body for _, _, body in found] == [b"%d" % number for number in range(COUNT)]
    until(lambda: [bridges(keeper)[name]["moved"] for name in ("in", "out")] == [COUNT, COUNT])
    rows = bridges(keeper)
    assert {(rows[name]["state"], rows[name]["waiting"], rows[name]["protocol"]) for name in ("in", "out")} == {
        ("connected", 0, "amqp")
    }
    fill(other, into, 3)
    until(lambda: ready(keeper, into) == 3)
    gantry(keeper, "remove", "in", "--yes")
    until(lambda: consumers(other, into) == 0)
    assert "in" not in bridges(keeper)
    gantry(keeper, "remove", "in", "--yes", code=3)


def consumers(server: Gantry, queue: str) -> int:
    connection = connect(server)
    found = connection.channel().queue_declare(queue, passive=True).method.consumer_count
    connection.close()
    return int(found)


def test_an_exchange_both_ways_without_going_round(pair: tuple[Gantry, Gantry]) -> None:
    keeper, other = pair
    exchange, queue = unique("e"), unique("q")
    connections = [connect(server) for server in pair]
    channels = [connection.channel() for connection in connections]
    for channel in channels:
        channel.confirm_delivery()
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, "#")
    names = exchange + ".out", exchange + ".in"
    add(keeper, names[0], "--exchange", exchange, "--to", address(other), "--to-secret", "other", "--pattern", "a.#")
    add(
        keeper, names[1], "--exchange", exchange, "--from", address(other), "--from-secret", "other", "--pattern", "a.#"
    )
    until(lambda: {bridges(keeper)[name]["state"] for name in names} == {"connected"})
    for number, channel in enumerate(channels):
        channel.basic_publish(exchange, "a.b", b"from %d" % number)
        channel.basic_publish(exchange, "b", b"stays at %d" % number)
    until(lambda: [ready(server, queue) for server in pair] == [3, 3])
    # A message that went round would have come before the last one.
    channels[0].basic_publish(exchange, "a.last", b"last")
    until(lambda: [ready(server, queue) for server in pair] == [4, 4])
    for number, server in enumerate(pair):
        found = {body: (method.routing_key, properties.headers) for method, properties, body in take_all(server, queue)}
        assert set(found) == {b"from 0", b"from 1", b"last", b"stays at %d" % number}
        assert found[b"from %d" % (1 - number)][0] == "a.b"
    for name in names:
        gantry(keeper, "remove", name, "--yes")
    # The queue that the bridge made goes with it.
    until(lambda: absent(other, f"gantry.bridge.{names[1]}"))
    until(lambda: absent(keeper, f"gantry.bridge.{names[0]}"))
    for connection in connections:
        connection.close()


def absent(server: Gantry, queue: str) -> bool:
    connection = connect(server)
    try:
        connection.channel().queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        return bool(error.reply_code == 404)
    finally:
        connection.close()
    return False


def test_what_is_wrong_is_its_state_and_mended_when_it_changes(pair: tuple[Gantry, Gantry]) -> None:
    keeper, other = pair
    queue, name = unique("q"), unique("b")
    fill(keeper, queue, 5)
    words = ("--queue", queue, "--to", address(other))

    def why() -> str:
        row = bridges(keeper).get(name, {})
        return str(row.get("why", "")) if row.get("state") == "waiting" else ""

    add(keeper, name, *words, "--to-secret", "nobody-has-it")
    until(lambda: "no variable GANTRY_BRIDGE_NOBODY_HAS_IT" in why())
    add(keeper, name, "--queue", queue, "--to", address(other).replace("guest@", "stranger@"), "--to-secret", "other")
    until(lambda: "ACCESS_REFUSED" in why())
    add(keeper, name, *words, "--to-secret", "other")
    until(lambda: "nobody at the destination gets" in why())
    until(lambda: ready(keeper, queue) == 5)
    add(keeper, name, *words, "--to-secret", "other", "--declare")
    until(lambda: ready(other, queue) == 5, ignored=GONE)
    gantry(keeper, "remove", name, "--yes")


def test_passwords_are_in_no_row_and_no_log(pair: tuple[Gantry, Gantry], secrets: Path) -> None:
    keeper, other = pair
    refused = gantry(keeper, "add", "amqp", "b", "--queue", "q", "--from", "amqp://guest:hunter2@rabbit/", code=2)
    assert "no password in the address" in refused
    assert "hunter2" not in refused
    secret = "geheim-3141592653"
    (secrets / "wrong").write_text(secret)
    name = unique("b")
    add(keeper, name, "--queue", unique("q"), "--to", address(other), "--to-secret", "wrong")
    until(lambda: "ACCESS_REFUSED" in bridges(keeper)[name]["why"])
    assert secret not in json.dumps(bridges(keeper))
    gantry(keeper, "remove", name, "--yes")
    for file in keeper.directory.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["keeper", "other"])
@pytest.mark.parametrize("way", ["in", "out"])
def test_nothing_is_lost_when_one_is_killed(tmp_path: Path, victim: str, way: str) -> None:
    for name in ("keeper", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "s").write_text(PASSWORD)
    keeper = Gantry(tmp_path / "keeper", "combined", (f"amqp.bridge_secrets={tmp_path}",)).start()
    other = Gantry(tmp_path / "other").start()
    source, destination = (other, keeper) if way == "in" else (keeper, other)
    ends = (
        ("--from", address(other), "--from-secret", "s")
        if way == "in"
        else ("--to", address(other), "--to-secret", "s")
    )
    try:
        fill(source, "q", COUNT)
        empty(destination, "q")
        add(keeper, "b", *ends, "--queue", "q", "--rate", "100", "--prefetch", "20")
        until(lambda: ready(destination, "q") >= COUNT // 4)
        (keeper if victim == "keeper" else other).kill_and_restart()
        wanted = {b"%d" % number for number in range(COUNT)}
        seen: list[bytes] = []

        def all_there() -> bool:
            seen.extend(body for _, _, body in take_all(destination, "q"))
            return set(seen) == wanted

        until(all_there, ignored=GONE)
        until(lambda: ready(source, "q") == 0, ignored=GONE)
        assert len(seen) <= COUNT + 20, "more came twice than were on their way"
        until(lambda: bridges(keeper)["b"]["state"] == "connected")
    finally:
        keeper.stop()
        other.stop()


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_beside_a_real_rabbitmq(tmp_path: Path) -> None:
    """In and out at once, and it is killed meanwhile."""
    (tmp_path / "rabbit").write_text(PASSWORD)
    (tmp_path / "keeper").mkdir()
    keeper = Gantry(tmp_path / "keeper", "combined", (f"amqp.bridge_secrets={tmp_path}",)).start()
    rabbit = RabbitMQ(tmp_path / "rabbitmq")
    try:
        rabbit.start()
        place = f"amqp://guest@127.0.0.1:{rabbit.port}/"
        add(keeper, "in", "--from", place, "--from-secret", "rabbit", "--queue", "in", "--declare", "--rate", "100")
        add(keeper, "out", "--to", place, "--to-secret", "rabbit", "--queue", "out", "--declare", "--rate", "100")
        fill(rabbit, "in", COUNT)
        fill(keeper, "out", COUNT)
        until(lambda: ready(keeper, "in") > COUNT // 4 and ready(rabbit, "out") > COUNT // 4, ignored=GONE)
        rabbit.kill()
        rabbit.start()
        wanted = {b"%d" % number for number in range(COUNT)}
        for server, queue in ((keeper, "in"), (rabbit, "out")):
            seen: set[bytes] = set()

            def all_there(server: Any = server, queue: str = queue, seen: set[bytes] = seen) -> bool:
                seen.update(body for _, _, body in take_all(server, queue))
                return seen == wanted

            until(all_there, ignored=GONE)
    finally:
        keeper.stop()
        rabbit.stop()
