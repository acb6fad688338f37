"""How long a task tries: clock and connections are the test's own."""

from types import SimpleNamespace

import pytest

from core.tests.client.fake_cluster import FakeCluster

pa = pytest.importorskip("pyarrow")

from gantrymq.client.connecting.routes import MessageQueue  # noqa: E402
from gantrymq.model.errors import ErrorCode, GantryError  # noqa: E402
from gantrymq.remoting.codec import Command  # noqa: E402
from gantrymq.remoting.constants import ResponseCode  # noqa: E402
from gantrymq.spark import wire  # noqa: E402
from gantrymq.spark.writing import sender as sending  # noqa: E402
from gantrymq.spark.writing.requests import Request  # noqa: E402
from gantrymq.spark.writing.sender import RowError, Sender  # noqa: E402

ATTEMPTS_MAX = 100


class Clock:
    """Passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, pause_s: float) -> None:
        self.now += pause_s
        self.sleeps += 1
        assert self.sleeps < ATTEMPTS_MAX, f"still trying after {self.now:.0f} s"


class Closing:
    """A broker that takes each request and closes the connection, `faults` times."""

    def __init__(self, faults: int) -> None:
        self.faults = faults

    def post(self, commands: list[Command]) -> list[int]:
        return [1] * len(commands)

    def receive(self, opaque: int) -> Command:
        if self.faults:
            self.faults -= 1
            raise GantryError(ErrorCode.UNAVAILABLE, "connection was lost")
        return Command(ResponseCode.SUCCESS, {})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(wire, "time", SimpleNamespace(monotonic=made.monotonic, sleep=made.sleep))
    return made


def send(sender: Sender, broker: Closing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "wire", lambda address: broker)
    sender.send(Request("telemetry", MessageQueue("telemetry", "broker-a", 0), b"", range(3)), 0)
    sender.finish()


def test_a_broker_that_closes_behind_each_request(
    cluster: FakeCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = r"partition 0, rows 0 to 2 \(topic 'telemetry'\): connection was lost"
    with pytest.raises(RowError, match=text):
        send(Sender([cluster.nameserver], 0), Closing(ATTEMPTS_MAX), monkeypatch)
    assert wire.RETRY_FOR_S - wire.PAUSE_MAX_S <= clock.now <= wire.RETRY_FOR_S


def test_each_fault_behind_an_answer_has_the_whole_time(
    cluster: FakeCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the rows of a task come slowly, or connections break now and then."""
    sender = Sender([cluster.nameserver], 0)
    for _ in range(3):
        send(sender, Closing(10), monkeypatch)
        clock.now += 2 * wire.RETRY_FOR_S
    assert sender.stored == 9


@pytest.mark.parametrize("faults", [1, 2, 9])
def test_a_connection_that_breaks_with_many_requests_under_way(
    cluster: FakeCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch, faults: int
) -> None:
    """What is under way there goes into another queue of requests: nobody waits for those of the old one."""
    broker = Closing(0)
    monkeypatch.setattr(sending, "wire", lambda address: broker)
    sender = Sender([cluster.nameserver], 0)
    queue = MessageQueue("telemetry", "broker-a", 0)
    for number in range(3 * sending.OPEN_MAX):
        if number == 2 * sending.OPEN_MAX:
            broker.faults = faults
        sender.send(Request("telemetry", queue, b"", range(3)), 3 * number)
    sender.finish()
    assert sender.stored == 9 * sending.OPEN_MAX
