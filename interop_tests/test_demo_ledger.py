"""The demonstration's checker must find what it is there to find: losses, inventions, changes, duplicates, missing alerts."""

import json
import threading

import pytest

psutil = pytest.importorskip("psutil", reason="the demonstration's packages are in the spark environment")

from interop_tests.demo.alerts import WATERMARK_S, WINDOW_S, Alert, AlertBook, RejectedBook, devices, due, expected  # noqa: E402
from interop_tests.demo.ledger import NO_ID, Ledger, digest_of, identify, percentile  # noqa: E402
from interop_tests.demo.sources import CORES_MAX, Reading, Telemetry, pack  # noqa: E402


def body(message_id: str, **more: object) -> bytes:
    return pack({"id": message_id, "at": 100.0, **more})


@pytest.fixture
def ledger() -> Ledger:
    """Three messages over one door, acknowledged, and received by both consumers."""
    books = Ledger(["mqtt"], ["queue", "spark"])
    for number in range(3):
        message_id = f"m-{number}"
        books.sending("mqtt", message_id, body(message_id))
        books.acknowledged("mqtt", message_id, 100.5)
        for consumer in books.consumers:
            assert books.received(consumer, "mqtt", body(message_id), 101.0) == message_id
    return books


def test_equal_sets_are_no_problem(ledger: Ledger) -> None:
    assert ledger.problems() == []
    assert ledger.lagging() == {}
    assert all(verdict.ok and verdict.received == 3 for verdict in ledger.verdicts())


def test_a_loss_is_found(ledger: Ledger) -> None:
    ledger.sending("mqtt", "m-3", body("m-3"))
    ledger.acknowledged("mqtt", "m-3", 100.5)
    ledger.received("queue", "mqtt", body("m-3"), 101.0)
    assert ledger.lagging() == {"spark": 1}
    assert ledger.judge("mqtt", "queue").ok
    verdict = ledger.judge("mqtt", "spark")
    assert (verdict.missing, verdict.invented, verdict.examples) == (1, 0, ("missing m-3",))
    assert ledger.problems() == ["spark from mqtt: 1 missing, 0 invented (missing m-3)"]


def test_an_invention_is_found(ledger: Ledger) -> None:
    ledger.received("spark", "mqtt", body("m-99"), 101.0)
    verdict = ledger.judge("mqtt", "spark")
    assert (verdict.missing, verdict.invented, verdict.examples) == (0, 1, ("invented m-99",))
    assert ledger.problems() == ["spark from mqtt: 0 missing, 1 invented (invented m-99)"]


def test_a_changed_body_is_a_loss_and_an_invention(ledger: Ledger) -> None:
    ledger.sending("mqtt", "m-3", body("m-3"))
    ledger.acknowledged("mqtt", "m-3", 100.5)
    ledger.received("queue", "mqtt", body("m-3"), 101.0)
    ledger.received("spark", "mqtt", body("m-3", extra=1), 101.0)
    verdict = ledger.judge("mqtt", "spark")
    assert (verdict.missing, verdict.invented) == (1, 1)


def test_a_body_without_an_id_is_an_invention(ledger: Ledger) -> None:
    for junk in (b"", b"{}", b"\xff", b"[1]", b'{"id":"m-0"}'):
        assert identify(junk) == (NO_ID, 0.0)
        ledger.received("queue", "mqtt", junk, 101.0)
    assert ledger.judge("mqtt", "queue").invented == 5


def test_a_duplicate_is_counted_and_no_problem(ledger: Ledger) -> None:
    ledger.received("queue", "mqtt", body("m-1"), 102.0)
    verdict = ledger.judge("mqtt", "queue")
    assert (verdict.received, verdict.duplicates, verdict.ok) == (3, 1, True)
    assert ledger.problems() == []


def test_what_was_never_acknowledged_is_a_problem(ledger: Ledger) -> None:
    ledger.sending("mqtt", "m-3", body("m-3"))
    ledger.sending_again("mqtt")
    assert ledger.unacknowledged() == 1
    assert ledger.problems() == ["mqtt: 1 messages were never acknowledged"]


def test_a_silent_door_is_a_problem() -> None:
    assert Ledger(["amqp"], ["queue"]).problems() == ["amqp: nothing was published"]


def test_an_id_is_used_once(ledger: Ledger) -> None:
    with pytest.raises(AssertionError, match="m-1 is used twice"):
        ledger.sending("mqtt", "m-1", b"other")


def test_acknowledged_twice_counts_once(ledger: Ledger) -> None:
    ledger.acknowledged("mqtt", "m-1", 105.0)
    assert len(ledger.doors["mqtt"].ack_times) == 3


def test_latencies(ledger: Ledger) -> None:
    verdict = ledger.judge("mqtt", "queue")
    assert (verdict.p50_s, verdict.p99_s) == (1.0, 1.0)
    assert percentile([], 0.5) == 0.0
    assert percentile(range(100), 0.5) == 50
    assert percentile(range(100), 0.99) == 99


def test_many_threads_may_write() -> None:
    ledger = Ledger(["mqtt"], ["queue"])
    for number in range(400):
        ledger.sending("mqtt", str(number), body(str(number)))

    def work(start: int) -> None:
        for number in range(start, 400, 4):
            ledger.acknowledged("mqtt", str(number), 100.5)
            ledger.received_pair("queue", "mqtt", (str(number), digest_of(body(str(number)))), 101.0, 100.0)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.problems() == []


def telemetry(*values: tuple[float, float]) -> list[tuple[str, Reading, float]]:
    """(time, busy) of one core; the last reading closes no window by itself."""
    return [(f"m-{n}", Reading("cpu0", "busy", "percent", busy), at) for n, (at, busy) in enumerate(values)]


BUSY = telemetry((100.0, 10.5), (101.0, 80.0), (106.0, 2.0), (100 + 2 * WINDOW_S + WATERMARK_S + 0.5, 90.0))
ALERT = Alert("cpu0", 100, 2, 80.0)


def as_body(alert: Alert, **other: object) -> bytes:
    record = {"device": alert.device, "start": alert.start, "readings": alert.messages, "highest": alert.peak}
    return json.dumps({**record, **other}).encode()


def test_the_busiest_of_many_cores_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    percents = [0.0] * 90
    percents[17], percents[70] = 60.0, 99.0
    monkeypatch.setattr(psutil, "cpu_percent", lambda percpu: percents)
    found = {reading.device: reading.value for reading in Telemetry().read() if reading.metric == "busy"}
    assert len(found) == CORES_MAX
    assert (found["cpu17"], found["cpu70"]) == (60.0, 99.0)


def test_alerts_are_foretold() -> None:
    late = Alert("cpu0", 100 + 2 * WINDOW_S + WATERMARK_S, 1, 90.0)
    assert expected(BUSY) == {ALERT, late}
    assert due(BUSY) == {ALERT}
    other = [("x", Reading("memory", "used", "percent", 99.0), 100.0), ("y", Reading("cpu0", "load", "n", 99.0), 100.0)]
    assert expected(other) == set()


def test_an_alert_that_came_twice_is_counted() -> None:
    book = AlertBook()
    for _ in range(2):
        book.receive("alerts/cpu0", as_body(ALERT), 116.0)
    assert book.problems(BUSY) == []
    assert (book.duplicates(), book.median_delay_s()) == (1, 116.0 - 100 - WINDOW_S)


@pytest.mark.parametrize(
    ("bodies", "text"),
    [
        ([], "alerts: 1 of 1 did not come"),
        ([as_body(ALERT, highest=81.0)], "alerts: 1 of 1 did not come"),
        ([as_body(ALERT), as_body(ALERT, readings=3)], "alerts: 1 do not follow from the telemetry"),
        ([as_body(ALERT), b"junk"], "alerts: 1 cannot be read"),
    ],
)
def test_wrong_alerts_are_found(bodies: list[bytes], text: str) -> None:
    book = AlertBook()
    for wrong in bodies:
        book.receive("alerts/cpu0", wrong, 116.0)
    assert any(line.startswith(text) for line in book.problems(BUSY))


def test_an_idle_machine_proves_nothing() -> None:
    calm = telemetry((100.0, 1.0), (100 + 3 * WINDOW_S + WATERMARK_S, 1.0))
    assert any("no core was busy" in line for line in AlertBook().problems(calm))


def test_dead_letters_are_foretold() -> None:
    published = [*BUSY, ("b-1", Reading("battery", "level", "percent", None), 101.0)]
    book = RejectedBook()
    assert book.missing(published) == {"b-1"}
    assert book.problems(published) == ["dead letters: 1 did not come, the first: b-1"]
    book.receive(body("b-1"))
    assert book.problems(published) == []
    book.receive(body("m-0"))
    assert book.problems(published) == ["dead letters: 1 of sound readings, the first: m-0"]


def test_the_reference_data_has_each_core() -> None:
    assert devices(2).splitlines() == [
        "device,metric,site,alarm_above", "cpu0,busy,this machine,10.0", "cpu1,busy,this machine,10.0"
    ]  # fmt: skip
