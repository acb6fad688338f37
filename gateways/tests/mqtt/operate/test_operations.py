"""What operators do at a gateway: lists, kicks, bans, limits of connections."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq_gateways.mqtt.operate import console, gate
from gantrymq_gateways.mqtt.operate.gate import BAN_TABLE, Ban, Bans, Bucket, Flapping, parse_ban
from gantrymq_gateways.mqtt.wire.packets import ConnAck, Connect, Publish
from gateways.tests.mqtt.world import Client, World


@pytest.fixture(params=["immediate", "late", "local", "remote"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(request.param, seed=3, directory=tmp_path / "first")
    yield world
    world.close()


def put(world: World, table: str, key: str, row: dict[str, Any] | None) -> None:
    value = None if row is None else json.dumps(row).encode()
    world.broker_port.put(table, [(key, value)], None, lambda token, result: None)
    world.settle()


def rows(world: World, table: str) -> dict[str, Any]:
    found: dict[str, bytes] = {}
    world.broker_port.watch_table(table, lambda key, value: None, None, lambda token, result: found.update(result))
    world.settle()
    return {key: json.loads(value) for key, value in found.items()}


def ask(world: World, question: dict[str, Any]) -> dict[str, Any]:
    put(world, console.TABLE, "ask/1", {**question, "at": world.clock.now_ms()})
    answer: dict[str, Any] = rows(world, console.TABLE)[f"answer/1/{world.gateway.shell.name}"]
    put(world, console.TABLE, "ask/1", None)
    return answer


def refused(world: World, client_id: str = "c", **fields: Any) -> int:
    client = world.client()
    client.send(Connect(client_id, **fields))
    answer = client.packets[0]
    assert isinstance(answer, ConnAck)
    assert client.closed is (answer.code != 0)
    return answer.code


def test_a_gateway_says_who_is_connected(world: World) -> None:
    world.client("b", user_name="u").subscribe("t/#", "$share/g/x")
    world.client("a", clean=False)
    answer = ask(world, {"what": "clients"})
    assert answer["count"] == 2
    a, b = sorted(answer["clients"], key=lambda row: str(row["client"]))
    assert (a["kept"], b["kept"]) == (True, False)
    assert (b["user"], b["version"], b["filters"]) == ("u", "3.1.1", ["$share/g/x", "t/#"])
    assert [row["client"] for row in ask(world, {"what": "clients", "client": "a"})["clients"]] == ["a"]
    assert f"gateway/{world.gateway.shell.name}" in rows(world, console.TABLE)


def test_kick_ends_a_connection_and_no_more(world: World) -> None:
    client, other = world.client("a", clean=False), world.client("b")
    client.subscribe("t")
    assert ask(world, {"what": "kick", "client": "a"}) == {"kicked": 1}
    assert client.closed
    assert not other.closed
    assert world.client("a", clean=False).present


def test_a_question_that_nobody_took_back_goes(world: World) -> None:
    put(world, console.TABLE, "ask/2", {"what": "clients", "at": world.clock.now_ms()})
    world.advance(120_000)
    assert not [key for key in rows(world, console.TABLE) if key.endswith("/2") or "/2/" in key]


@pytest.mark.parametrize("key", ["client:a", "user:u", "address:127.0.0.0/8"])
def test_a_ban_ends_connections_and_lets_nobody_in(world: World, key: str) -> None:
    client = world.client("a", user_name="u")
    put(world, BAN_TABLE, key, {"until": 0, "reason": "noise"})
    assert client.closed
    assert refused(world, "a", user_name="u") == 5
    put(world, BAN_TABLE, key, None)
    assert refused(world, "a", user_name="u") == 0


def test_a_ban_survives_kill_and_ends_by_itself(world: World) -> None:
    put(world, BAN_TABLE, "client:a", {"until": world.clock.now_ms() + 60_000, "reason": ""})
    again = world.restart()
    assert refused(again, "a") == 5
    again.advance(60_000 + again.clock.now_ms() - world.clock.now_ms())
    assert refused(again, "a") == 0


def test_connections_have_limits() -> None:
    world = World("immediate", connections_max=2)
    first = world.client("a")
    world.client("b")
    assert refused(world, "c") == 3
    first.disconnect()
    assert refused(world, "c") == 0
    assert world.gateway.operate.gate.refused == 1


def test_an_address_has_its_share() -> None:
    world = World("immediate", connections_per_address_max=1)

    def come(client_id: str, peer: str) -> Client:
        client = world.client()
        client.door.peer = peer
        client.send(Connect(client_id))
        return client

    first = come("a", "192.0.2.1:1")
    assert come("b", "192.0.2.1:2").closed
    assert not come("c", "192.0.2.2:1").closed
    first.disconnect()
    assert not come("d", "192.0.2.1:3").closed


def test_connects_wait_their_turn() -> None:
    world = World("immediate", connect_rate_max=2)
    codes = []
    clients = [world.client() for _ in range(25)]
    for number, client in enumerate(clients):
        client.send(Connect(f"c{number}"))
        codes.append([packet.code for packet in client.packets if isinstance(packet, ConnAck)])
    assert codes[:3] == [[0], [0], []]  # let in, let in, waits
    assert codes[-1] == [3]  # it would wait longer than ten seconds
    world.advance(600)
    assert isinstance(clients[2].packets[0], ConnAck)
    world.advance(10_000)
    assert [client.closed for client in clients].count(False) == 21  # 2 at once, 19 within ten seconds


def test_a_bucket_pays_back() -> None:
    bucket = Bucket(10, 0)
    assert [bucket.take(5, 0), bucket.take(5, 0)] == [0, 0]
    assert bucket.take(5, 0) == 501
    assert bucket.take(0, 600) == 0
    assert bucket.take(10, 100_000) == 0, "no more piles up than a second's worth"
    assert bucket.take(1, 100_000) == 101


def test_bans_of_addresses() -> None:
    bans = Bans()
    bans.load({"address:10.0.0.0/8": b"{}", "address:2001:db8::/32": b'{"until": 5}'})
    assert bans.find("", "", "10.1.2.3", 9) == Ban(0, "")
    assert bans.find("", "", "::ffff:10.1.2.3", 9) == Ban(0, "")
    assert bans.find("", "", "2001:db8::1", 9) is None
    assert bans.find("", "", "11.1.2.3", 9) is None
    assert bans.find("", "", "unix", 9) is None


@pytest.mark.parametrize("key", ["client:", "nobody:a", "address:10.0.0.1/8", "client"])
def test_rows_that_ban_nobody(key: str) -> None:
    with pytest.raises(ValueError, match=r"ban|network|host"):
        parse_ban(key, b"{}")


def test_who_publishes_too_fast_is_not_read_for_a_while() -> None:
    world = World("immediate", publish_rate_max=10)
    reader = world.client("r")
    reader.subscribe(("t", 0))
    fast, slow = world.client("fast", keep_alive_s=1), world.client("slow")
    fast.send(*[Publish(b"t", str(i).encode(), 0, 0) for i in range(35)])
    assert not fast.link.reading  # a second's worth was there; 25 are still to be paid for
    slow.publish("t", "s")
    assert slow.link.reading
    world.advance(2_400)
    assert not fast.link.reading
    world.advance(200)
    assert fast.link.reading
    assert not fast.closed, "the keep-alive clock stops while it is we who do not read"
    fast.publish("t", "last")
    found = [payload for _, payload in reader.messages()]
    assert found == [*[str(i).encode() for i in range(35)], b"s", b"last"]


def test_bytes_that_a_client_publishes_have_a_rate_of_their_own() -> None:
    world = World("immediate", publish_bytes_rate_max=1_000)
    client = world.client("c")
    client.publish("t", b"x" * 1_000)
    assert client.link.reading
    client.publish("t", b"x" * 500)
    assert not client.link.reading
    client.publish("t", b"")  # what came in one read with it
    world.advance(600)
    assert client.link.reading
    client.publish("t", b"x" * 5_000)
    client.disconnect()
    assert client.closed
    world.advance(10_000)
    assert world.client("c").link.reading, "a new connection begins anew"


def test_flapping_is_counted_in_windows() -> None:
    flapping = Flapping(2, 10)
    assert [flapping.left("a", at_ms) for at_ms in (0, 1, 2, 3, 4, 5)] == [False, False, True, False, False, True]
    assert [flapping.left("b", at_ms) for at_ms in (0, 5_000, 10_000, 11_000)] == [False, False, False, False]
    assert not any(Flapping(0, 10).left("a", 0) for _ in range(100))


def test_flapping_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "FLAPPING_CLIENTS_MAX", 2)
    flapping = Flapping(1, 10)
    assert [flapping.left(name, 0) for name in "abca"] == [False] * 4, "a was forgotten"
    assert flapping.left("c", 0)


@pytest.mark.parametrize("mode", ["immediate", "late"])
def test_who_comes_and_goes_too_often_is_banned_for_a_while(mode: str) -> None:
    world = World(mode, flapping_max=3, flapping_window_s=60, flapping_ban_s=120)
    for _ in range(4):
        world.client("a").disconnect()
    assert refused(world, "a") == 5
    assert refused(world, "b") == 0
    assert rows(world, BAN_TABLE)["client:a"]["reason"].startswith("over 3 connections within 60 s")
    world.advance(121_000)
    assert refused(world, "a") == 0
    assert rows(world, BAN_TABLE) == {}, "what is over is removed"
