"""MQTT clients that nobody here wrote, in each of their versions and over each of their transports: every QoS, retained messages, wills, sessions
that go on after kill -9 of the server, shared subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from interop_tests.clients import CLIENT, SCENARIO
from interop_tests.mqtt_clients.driver import Driver, Message
from interop_tests.mqtt_clients.programs import KINDS, Kind
from interop_tests.running import Gantry
from interop_tests.waiting import until

pytestmark = pytest.mark.slow

VERSIONS = {3: "3.1", 4: "3.1.1", 5: "5.0"}
COUNT = 40

CASES = [
    pytest.param(
        (kind, level, scheme),
        id=f"{kind.name.replace(' ', '-')}-{VERSIONS[level]}-{scheme}",
    )
    for kind in KINDS
    for level in kind.levels
    for scheme in kind.schemes
]


@dataclass
class Talk:
    """A client's program, and where it connects to."""

    gantry: Gantry
    driver: Driver
    words: list[str]
    level: int
    scheme: str
    top: str = ""
    """A first level, and a beginning of client ids, that no other test uses."""

    @property
    def url(self) -> str:
        host, port = self.gantry.address("mqtt")
        return f"{self.scheme}://{host}:{port}" + ("/mqtt" if self.scheme == "ws" else "")

    def connect(self, name: str, clean: bool = True, will: str = "-", driver: Driver | None = None) -> str:
        return (driver or self.driver).connect(name, self.url, self.level, self.top + name, clean, will)


@pytest.fixture(scope="module")
def gantry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gantry]:
    """One that is killed and started again in between."""
    server = Gantry(tmp_path_factory.mktemp("gantry"))
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Kind], list[str]]:
    """The words that start a client's program; each is made once."""
    made: dict[Callable[[Path], list[str]], list[str]] = {}

    def find(kind: Kind) -> list[str]:
        if kind.made not in made:
            made[kind.made] = kind.made(tmp_path_factory.mktemp("client"))
        return made[kind.made]

    return find


@pytest.fixture(scope="module", params=CASES)
def running(
    request: pytest.FixtureRequest,
    gantry: Gantry,
    programs: Callable[[Kind], list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Talk]:
    kind, level, scheme = request.param
    words = programs(kind)
    driver = Driver(words, tmp_path_factory.mktemp("talk"))
    yield Talk(gantry, driver, words, level, scheme)
    driver.kill()


@pytest.fixture
def talk(running: Talk, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Talk:
    kind, level, scheme = request.node.callspec.params["running"]
    what = request.node.originalname.removeprefix("test_").replace("_", " ")
    qos = f" {request.node.callspec.params['qos']}" if "qos" in request.node.callspec.params else ""
    record_property(CLIENT, kind.name)
    record_property(SCENARIO, f"{VERSIONS[level]} {scheme}: {what}{qos}")
    running.top = f"t{uuid4().hex[:8]}"
    return running


def wanted(topic: str, qos: int, text: str, count: int = COUNT, retain: bool = False) -> list[Message]:
    return [Message(topic, qos, retain, f"{text}.{number}") for number in range(count)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_qos(talk: Talk, qos: int) -> None:
    driver, top = talk.driver, talk.top
    talk.connect("sub")
    talk.connect("pub")
    assert driver.subscribe("sub", f"{top}/+/x", qos) == qos
    driver.publish("pub", f"{top}/a/x", qos, "all", COUNT)
    driver.publish("pub", f"{top}/a/x", 2, "most")
    assert driver.receive("sub", COUNT + 1) == [
        *wanted(f"{top}/a/x", qos, "all"),
        *wanted(f"{top}/a/x", qos, "most", 1),
    ]
    driver.disconnect("sub")
    driver.disconnect("pub")


def test_retained(talk: Talk) -> None:
    driver, top = talk.driver, talk.top
    talk.connect("pub")
    driver.publish("pub", f"{top}/kept", 1, "kept", retain=True)
    driver.publish("pub", f"{top}/removed", 1, "removed", retain=True)
    driver.publish("pub", f"{top}/removed", 1, "-", retain=True)
    talk.connect("sub")
    driver.subscribe("sub", f"{top}/#", 1)
    assert driver.receive("sub", 1) == wanted(f"{top}/kept", 1, "kept", 1, retain=True)
    driver.publish("pub", f"{top}/kept", 1, "live", retain=True)
    assert driver.receive("sub", 1) == wanted(f"{top}/kept", 1, "live", 1)
    driver.disconnect("sub")
    driver.disconnect("pub")


def test_will(talk: Talk, tmp_path: Path) -> None:
    driver, top = talk.driver, talk.top
    talk.connect("sub")
    driver.subscribe("sub", f"{top}/#", 2)
    talk.connect("well", will=f"{top}/none")
    driver.disconnect("well")
    other = Driver(talk.words, tmp_path)
    try:
        talk.connect("ill", will=f"{top}/will", driver=other)
    finally:
        other.kill()
    assert driver.receive("sub", 1) == [Message(f"{top}/will", 1, False, "gone")]
    assert not driver.has_more("sub")
    driver.disconnect("sub")


def test_session_after_kill_of_the_server(talk: Talk) -> None:
    driver, top = talk.driver, talk.top
    assert talk.connect("sub", clean=False) in ("0", "-")
    driver.subscribe("sub", f"{top}/#", 2)
    driver.disconnect("sub")
    talk.connect("pub")
    for qos in (1, 2):
        driver.publish("pub", f"{top}/{qos}", qos, "away", COUNT)
    driver.disconnect("pub")
    talk.gantry.kill_and_restart()
    present = talk.connect("sub", clean=False)
    assert present in ("1", "-") or talk.level == 3  # which has no such flag
    assert driver.receive("sub", 2 * COUNT) == [*wanted(f"{top}/1", 1, "away"), *wanted(f"{top}/2", 2, "away")]
    talk.connect("pub")
    driver.publish("pub", f"{top}/live", 1, "live")
    assert driver.receive("sub", 1) == wanted(f"{top}/live", 1, "live", 1)
    driver.disconnect("sub")
    driver.disconnect("pub")
    talk.connect("sub")  # clean: nothing of it stays
    driver.disconnect("sub")


def test_shared_subscription(talk: Talk) -> None:
    driver, top = talk.driver, talk.top
    members = ("one", "two")
    for name in members:
        talk.connect(name)
        assert driver.subscribe(name, f"$share/{top}/{top}/#", 1) == 1
    talk.connect("pub")
    driver.publish("pub", f"{top}/x", 1, "each", COUNT)
    got: dict[str, list[Message]] = {name: [] for name in members}

    def all_came() -> bool:
        for name in members:
            while driver.has_more(name):
                got[name] += driver.receive(name, 1)
        return sum(map(len, got.values())) >= COUNT

    until(all_came)
    assert sorted([*got["one"], *got["two"]]) == sorted(wanted(f"{top}/x", 1, "each"))
    assert all(got.values()), "one member got everything"
    for name in (*members, "pub"):
        driver.disconnect(name)
