"""Servers that cannot be reached, in every command and every entry point of the client: an error within ten seconds that names the address, what was
tried and what to do. Commands are those of the command line's own table, so that a new one is tried without being named here."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from asyncio import selector_events
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import typer.main

from core.tests.client.connecting.test_closing import push, receive
from core.tests.client.fake_cluster import FakeCluster
from gantrymq.cli import options
from gantrymq.cli.app import app, run_app
from gantrymq.client import (
    Admin,
    BlockingAdmin,
    BlockingProducer,
    BlockingPullConsumer,
    BlockingPushConsumer,
    BlockingSimpleConsumer,
    Fate,
    OutMessage,
    Producer,
    PullConsumer,
)
from gantrymq.client.connecting.routes import MessageQueue
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import RequestCode

LIMIT_S = 10.0
TICK_S = 0.05
TOGETHER = 40
"""Commands that wait side by side, nearly all the time."""

VALUES = {
    "--to": "latest", "--topic": "t", "--queue": "b/0", "--at": "b/0/0", "--key": "k", "--perm": "r", "--retries": "1", "POSITION": "0",
    "KIND": "mosquitto", "FILE...": str(Path(__file__).with_name("acl.mosquitto")),
}  # fmt: skip
"""What options and arguments are given that need one of a kind; others get a name."""

EXTRA = {
    "message get": ["ID", "--topic", "t"], "message query": ["--topic", "t", "--key", "k"], "query": ["--topic", "t", "--key", "k"],
    "user add": ["--no-password"], "mqtt ban": ["--client", "t"], "mqtt unban": ["--client", "t"],
    "topic update": ["--perm", "r"], "group update": ["--retries", "1"], "topic prune": ["--unused"], "message send": ["x"], "send": ["x"],
    "bridge add amqp": ["--queue", "t", "--from", "amqp://127.0.0.1/"],
}  # fmt: skip
"""What commands ask for that their parameters do not say."""


def commands() -> Iterator[list[str]]:
    """A command line for each command that talks to servers."""

    def walk(command: Any, path: list[str]) -> Iterator[list[str]]:
        if hasattr(command, "commands"):
            for name, inner in command.commands.items():
                yield from walk(inner, [*path, name])
            if not (path and command.invoke_without_command):
                return
        names = {parameter.name for parameter in command.params}
        if "nameserver" not in names or "free_ports" in names or path[0] == "config":  # servers, and their settings
            return
        line = list(path)
        for parameter in command.params:
            if parameter.required:
                label = (
                    parameter.opts[0] if parameter.opts[0].startswith("-") else (parameter.metavar or parameter.name)
                )
                value = VALUES.get(label.upper() if not label.startswith("-") else label, "t")
                line += [label, value] if label.startswith("-") else [value]
        if "yes" in names:
            line.append("--yes")
        line += EXTRA.get(" ".join(path), [])
        yield line

    yield from walk(typer.main.get_command(app), [])


@pytest.fixture
def full() -> Iterator[str]:
    """An address whose connections are never made: its queue of them is full, so SYNs are dropped as by a black hole."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        place = listening.getsockname()
        waiting = [socket.socket() for _ in range(8)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(place)
        try:
            yield f"127.0.0.1:{place[1]}"
        finally:
            for each in waiting:
                each.close()


@pytest.fixture
def mute() -> Iterator[FakeCluster]:
    """A nameserver that answers, and a broker that does not."""
    cluster = FakeCluster()
    cluster.topics["t"] = {"broker-a": 1}
    cluster.topics["%DLQ%t"] = {"broker-a": 1}
    cluster.broker().mute = set(RequestCode) | set(range(60_000, 60_200))
    yield cluster
    cluster.close()


class Lateness(threading.Thread):
    """How much later than asked for a wait ends, added up: what a loaded machine takes, which is none of our ten seconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seconds = 0.0
        self._over = threading.Event()

    def run(self) -> None:
        begun = time.monotonic()
        while not self._over.wait(TICK_S):
            now = time.monotonic()
            self.seconds += now - begun - TICK_S
            begun = now

    def __enter__(self) -> Lateness:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def all_at_once(lines: list[list[str]], *nameservers: str) -> list[tuple[str, str, int, float]]:
    """(nameserver, command, exit code, seconds) of each command at each of them: `TOGETHER` at a time."""

    def one(task: tuple[str, list[str]]) -> tuple[str, str, int, float]:
        nameserver, line = task
        begun = time.monotonic() - late.seconds
        code = run_app([*line, "--nameserver", nameserver])
        return nameserver, " ".join(line), code, time.monotonic() - late.seconds - begun

    with Lateness() as late, ThreadPoolExecutor(TOGETHER) as pool:
        return list(pool.map(one, [(nameserver, line) for nameserver in nameservers for line in lines]))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was complained about."""
    lines: list[str] = []
    monkeypatch.setattr(options, "complain", lines.append)
    # typer sets this variable for a moment and removes it: two commands at once would both remove it.
    monkeypatch.setenv("PYDANTIC_DISABLE_PLUGINS", "1")
    return lines


def test_there_are_commands() -> None:
    lines = [" ".join(line) for line in commands()]
    assert len(lines) > 30
    assert any(line.startswith("topic list") for line in lines)
    assert any(line.startswith("send t") for line in lines)


def test_every_command(silent: str, full: str, refused: str, said: list[str]) -> None:
    lines = list(commands())
    results = all_at_once(lines, silent, full, refused)
    wrong = [result for result in results if result[2] != options.EXIT_UNREACHABLE or result[3] >= LIMIT_S]
    assert not wrong
    for address in (silent, full, refused):
        assert len([text for text in said if address in text]) == len(lines)
    for text in said:
        assert "(tried for 3 s)" in text
        assert "start one there (`gantry up`), or name another" in text


@pytest.mark.usefixtures("said")
def test_every_command_at_a_broker_that_does_not_answer(mute: FakeCluster) -> None:
    slow = [result for result in all_at_once(list(commands()), mute.nameserver) if result[3] >= LIMIT_S]
    assert not slow


def test_several_nameservers_that_do_not_answer(silent: str, full: str, said: list[str]) -> None:
    ((_, _, code, seconds),) = all_at_once([["topic", "list"]], ";".join([silent, full] * 3))
    assert code == options.EXIT_UNREACHABLE
    assert seconds < LIMIT_S
    assert silent in said[0]
    assert full in said[0]


# The client.

QUEUE = MessageQueue("t", "broker-a", 0)
Entry = Callable[[str], Awaitable[Any]]


async def with_producer(nameserver: str, call: Callable[[Producer], Awaitable[Any]]) -> None:
    async with Producer(nameserver, check=lambda message: Fate.UNKNOWN) as producer:
        await call(producer)


def posted(producer: Producer) -> Awaitable[Any]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    producer.post(
        OutMessage("t", b""),
        lambda result: done.set_exception(result) if isinstance(result, GantryError) else done.set_result(None),
    )
    return done


SENDING: dict[str, Callable[[Producer], Awaitable[Any]]] = {
    "start": lambda producer: producer.start("t"),
    "send": lambda producer: producer.send("t", b""),
    "send_many": lambda producer: producer.send_many([OutMessage("t", b"")] * 3),
    "send_batch": lambda producer: producer.send_batch([OutMessage("t", b"")]),
    "send_transaction": lambda producer: producer.send_transaction(OutMessage("t", b""), lambda *_: Fate.COMMIT),
    "request": lambda producer: producer.request("t", b""),
    "post": posted,
}

ASKING: dict[str, Callable[[Admin], Awaitable[Any]]] = {
    "cluster": lambda admin: admin.cluster(),
    "topics": lambda admin: admin.topics(),
    "route": lambda admin: admin.route("t"),
    "create_topic": lambda admin: admin.create_topic("t"),
    "delete_topic": lambda admin: admin.delete_topic("t"),
    "topic_stats": lambda admin: admin.topic_stats("t"),
    "query_by_key": lambda admin: admin.query_by_key("t", "k"),
    "view": lambda admin: admin.view("k", "t"),
    "create_group": lambda admin: admin.create_group("g"),
    "delete_group": lambda admin: admin.delete_group("g"),
    "groups": lambda admin: admin.groups(),
    "members": lambda admin: admin.members("g"),
    "progress": lambda admin: admin.progress("g", "t"),
    "lag": lambda admin: admin.lag("g", "t"),
    "reset_offsets": lambda admin: admin.reset_offsets("g", "t", "latest"),
}


async def with_admin(nameserver: str, call: Callable[[Admin], Awaitable[Any]]) -> None:
    async with Admin(nameserver) as admin:
        await call(admin)


async def pull(nameserver: str, what: str) -> None:
    async with PullConsumer(nameserver, group="g") as consumer:
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "assign": lambda: consumer.assign("t"), "subscribe": lambda: consumer.subscribe("t"),
            "pull_queue": lambda: consumer.pull_queue(QUEUE, 0), "committed": lambda: consumer.committed(QUEUE),
            "commit": lambda: consumer.commit({QUEUE: 0}), "seek": lambda: consumer.seek(QUEUE, "latest"),
        }  # fmt: skip
        await calls[what]()


def blocking(nameserver: str, what: str) -> None:
    if what == "producer":
        with BlockingProducer(nameserver) as producer:
            producer.send("t", b"")
    elif what == "pull":
        with BlockingPullConsumer(nameserver, group="g") as pulling:
            pulling.assign("t")
    elif what == "simple":
        with BlockingSimpleConsumer(nameserver, group="g") as simple:
            simple.receive("t")
    elif what == "push":
        pushed = BlockingPushConsumer(nameserver, group="g")
        pushed.subscribe("t", lambda message: None)
        with pushed:
            pass
    else:
        with BlockingAdmin(nameserver) as admin:
            admin.topics()


def entries() -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for name, call in SENDING.items():
        found[f"Producer.{name}"] = lambda nameserver, call=call: with_producer(nameserver, call)  # type: ignore[misc]
    for name, question in ASKING.items():
        found[f"Admin.{name}"] = lambda nameserver, call=question: with_admin(nameserver, call)  # type: ignore[misc]
    for name in ("assign", "subscribe", "pull_queue", "committed", "commit", "seek"):
        found[f"PullConsumer.{name}"] = lambda nameserver, name=name: pull(nameserver, name)  # type: ignore[misc]
    found["SimpleConsumer.receive"] = receive
    found["PushConsumer"] = push
    for name in ("producer", "pull", "simple", "push", "admin"):
        found[f"blocking {name}"] = lambda nameserver, name=name: asyncio.to_thread(blocking, nameserver, name)  # type: ignore[misc]
    return found


Timed = dict[str, tuple[float, BaseException | None]]
"""By entry point: seconds, and how it failed."""


async def time_all(*nameservers: str) -> dict[str, Timed]:
    """By nameserver; everything at once."""

    async def one(call: Entry, nameserver: str) -> tuple[float, BaseException | None]:
        begun, failed = time.monotonic() - late.seconds, None
        try:
            await call(nameserver)
        except GantryError as error:
            failed = error
        return time.monotonic() - late.seconds - begun, failed

    async def at(nameserver: str) -> Timed:
        named = entries()
        found = await asyncio.gather(*[one(call, nameserver) for call in named.values()])
        return dict(zip(named, found, strict=True))

    with Lateness() as late:
        return dict(zip(nameservers, await asyncio.gather(*map(at, nameservers)), strict=True))


def test_every_entry_point_of_the_client(silent: str, full: str, refused: str) -> None:
    for address, found in asyncio.run(time_all(silent, full, refused)).items():
        for name, (seconds, error) in found.items():
            assert isinstance(error, GantryError), name
            assert error.code is ErrorCode.UNAVAILABLE, name
            assert seconds < LIMIT_S, name
            assert address in error.text, name
            if name != "Producer.request":  # it waits for its reply, and says that
                assert "start one there (`gantry up`)" in error.text, name


def test_every_entry_point_of_the_client_at_a_broker_that_does_not_answer(mute: FakeCluster) -> None:
    without_error = {
        "Admin.cluster",
        "Admin.topics",
        "Admin.route",
        "PushConsumer",
        "PullConsumer.subscribe",
        "Producer.start",
    }
    for name, (seconds, error) in asyncio.run(time_all(mute.nameserver))[mute.nameserver].items():
        assert seconds < LIMIT_S, name
        if name not in without_error and name not in ("blocking push", "blocking admin"):
            assert isinstance(error, GantryError), name
            assert mute.broker().address in error.text or "reply" in error.text, name


def test_a_command_that_gives_up_on_a_broker_leaves_no_connection_open(
    mute: FakeCluster, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    inner = selector_events._SelectorSocketTransport.__init__  # type: ignore[attr-defined]

    def note(transport: Any, loop: asyncio.AbstractEventLoop, sock: socket.socket, *args: Any, **more: Any) -> None:
        if threading.current_thread() is threading.main_thread():  # the cluster's have a thread of their own
            made.append(sock)
        inner(transport, loop, sock, *args, **more)

    monkeypatch.setattr(selector_events._SelectorSocketTransport, "__init__", note)  # type: ignore[attr-defined]
    assert run_app(["mqtt", "clients", "--nameserver", mute.nameserver]) == options.EXIT_UNREACHABLE
    assert said
    assert made
    assert [sock for sock in made if sock.fileno() >= 0] == []
