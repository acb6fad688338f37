import pytest

from gantrymq.broker.port import Outcome
from gantrymq.model.errors import ErrorCode
from gantrymq.model.message import Message
from gantrymq_gateways.cloudevents.push import delivery
from gantrymq_gateways.cloudevents.push.delivery import ACQUIRES_PER_TURN, UNPARKED_AT_ONCE
from gantrymq_gateways.cloudevents.wire import constants
from tests.cloudevents.rig import POLICY, Rig


@pytest.fixture(params=["immediate", "late", "shuffled"])
def rig(request):
    return Rig(mode=request.param)


def unsettled(rig):
    return sum(len(cursor.leased) + len(cursor.returned) for cursor in rig.port.cursors.values())


def longest_delay_ms(attempts):
    return POLICY.delay_ms(attempts, lambda: 1.0)


def test_event_is_delivered_as_posted(rig):
    rig.subscribe()
    rig.post(identity="a b", data=b"\x00\xff", content_type="image/png", ce_subject="€ %")
    (sent,) = rig.sender.open
    assert sent.body == b"\x00\xff"
    assert sent.headers == {
        b"content-type": b"image/png",
        b"ce-specversion": b"1.0",
        b"ce-id": b"a%20b",
        b"ce-source": b"/s",
        b"ce-type": b"a.b",
        b"ce-subject": b"%E2%82%AC%20%25",
        b"gantry-subscription": b"id1s0",
        b"gantry-attempt": b"1",
    }
    assert unsettled(rig) == 1
    sent.answer(204)
    rig.run()
    assert unsettled(rig) == 0


def test_structured(rig):
    rig.subscribe(config={"contentmode": "structured"})
    rig.post(data=b'{"a": 1.10}', content_type="application/json")
    (sent,) = rig.sender.open
    assert sent.headers[b"content-type"] == b"application/cloudevents+json; charset=utf-8"
    assert b'"data":{"a": 1.10}' in sent.body


def test_start(rig):
    rig.post(identity="old")
    rig.subscribe()
    earliest = rig.subscribe(config={"from": "earliest"})
    rig.post(identity="new")
    assert sorted(sent.headers[b"gantry-subscription"].decode() + sent.id for sent in rig.sender.open) == [
        "id1s0new",
        f"{earliest}old",
    ]
    rig.answer_all()
    assert [sent.id for sent in rig.sender.all].count("new") == 2


def test_start_by_time(rig):
    rig.post(identity="old")
    rig.port.now_ms += 10_000
    rig.post(identity="new")
    rig.subscribe(config={"from": "2023-11-14T22:13:25Z"})
    assert rig.answer_all() == ["new"]


def test_filtered_events_are_done_at_once(rig):
    rig.subscribe(types=["a.b"], filters=[{"prefix": {"id": "x"}}])
    for identity, kind in (("x1", "a.b"), ("y1", "a.b"), ("x2", "c.d")):
        rig.post(identity=identity, type_=kind)
    assert rig.answer_all() == ["x1"]
    assert unsettled(rig) == 0


def test_filtered_events_settle_in_batches():
    rig = Rig()
    for number in range(50):
        rig.port.submit([Message("t", b"", b"TAGS\x01k\x02", "k")], number, lambda token, result: None)
    rig.subscribe(types=["other"], config={"from": "earliest"})
    assert unsettled(rig) == 0
    assert rig.port.calls.count("settle") == 1


def test_a_long_backlog_gives_way_to_others():
    rig = Rig()
    count = ACQUIRES_PER_TURN * constants.ACQUIRE_MAX * 3
    rig.port.submit([Message("t", b"", b"", "k") for _ in range(count)], None, lambda token, result: None)
    rig.subscribe(types=["other"], config={"from": "earliest"})
    assert unsettled(rig) == 0
    assert rig.port.calls.count("settle") >= 3


def test_messages_of_other_doors(rig):
    rig.subscribe(types=["line1.temp", "message"])
    rig.port.submit(
        [
            Message("t", b"21", b"TAGS\x01line1.temp\x02GANTRY_ORIGIN\x01mqtt\x02", "line1.temp"),
            Message("t", b"x", b"UNIQ_KEY\x01U1\x02"),
        ],
        None,
        lambda token, result: None,
    )
    rig.run()
    by_type = {sent.headers[b"ce-type"]: sent for sent in rig.sender.open}
    assert by_type[b"line1.temp"].headers[b"ce-subject"] == b"t/line1/temp"
    assert by_type[b"line1.temp"].body == b"21"
    assert by_type[b"message"].id == "U1"


def test_one_at_a_time_per_key_and_keys_in_parallel(rig):
    rig.subscribe()
    for number in range(3):
        rig.post(identity=f"a{number}", ce_partitionkey="a")
        rig.post(identity=f"b{number}", ce_partitionkey="b")
        rig.post(identity=f"t{number}", type_="tag")
    assert sorted(rig.open_ids()) == ["a0", "b0", "t0"]
    order = rig.answer_all()
    for key in "abt":
        assert [name for name in order if name[0] == key] == [f"{key}0", f"{key}1", f"{key}2"]
    assert unsettled(rig) == 0


def test_requests_in_flight_are_limited():
    rig = Rig(per_subscription_max=3)
    rig.subscribe()
    for number in range(10):
        rig.post(identity=str(number), type_=f"k{number}")
    assert len(rig.sender.open) == 3
    assert len(rig.answer_all()) == 10


def test_slow_sinks_leave_every_other_one_its_request():
    rig = Rig(per_subscription_max=4, process_max=4)
    slow = rig.subscribe(config={"topic": "slow"})
    for number in range(10):
        rig.post("slow", f"s{number}", f"k{number}")
    quick = rig.subscribe(config={"topic": "quick"})
    for number in range(5):
        rig.post("quick", f"q{number}", f"k{number}")
    assert rig.host.in_flight == 5
    done = []
    while quick_open := [sent for sent in rig.sender.open if sent.headers[b"gantry-subscription"] == quick.encode()]:
        done.append(quick_open[0].id)
        quick_open[0].answer(200)
        rig.run()
    assert sorted(done) == [f"q{number}" for number in range(5)]
    assert rig.request("DELETE", f"/subscriptions/{slow}")[0] == 204
    assert rig.host.in_flight == 0


@pytest.mark.parametrize("status", [0, 404, 408, 409, 429, 500, 503])
def test_retry_with_back_off(rig, status):
    rig.subscribe()
    rig.post()
    for attempt in (1, 2, 3):
        (sent,) = rig.sender.open
        assert sent.attempt == attempt
        sent.answer(status, failure="" if status else "timeout")
        rig.run()
        assert rig.sender.open == []
        rig.advance(longest_delay_ms(attempt) // 2 - 60)
        assert rig.sender.open == []
        rig.advance(longest_delay_ms(attempt) // 2 + 160)
    rig.sender.open[0].answer(200)
    rig.run()
    assert unsettled(rig) == 0


def test_a_failing_key_holds_up_itself_alone(rig):
    rig.subscribe()
    for number in range(3):
        rig.post(identity=f"bad{number}", ce_partitionkey="bad")
        rig.post(identity=f"good{number}", ce_partitionkey="good")
    good = []
    for _ in range(20):
        for sent in list(rig.sender.open):
            if sent.id.startswith("bad"):
                sent.answer(500)
            else:
                good.append(sent.id)
                sent.answer(200)
            rig.run()
    assert good == ["good0", "good1", "good2"]
    assert {sent.id for sent in rig.sender.all if sent.id.startswith("bad")} == {"bad0"}


def test_retry_after_pauses_the_whole_sink(rig):
    rig.subscribe()
    rig.post(identity="1", type_="k1")
    rig.sender.open[0].answer(429, b"30")
    rig.run()
    rig.post(identity="2", type_="k2")
    rig.advance(29_000)
    assert rig.sender.open == []
    rig.advance(2_000)
    (probe,) = rig.sender.open
    probe.answer(200)
    rig.run()
    assert len(rig.sender.open) == 1
    assert {sent.id for sent in rig.sender.all} == {"1", "2"}


def test_retry_after_is_capped(rig):
    rig.subscribe()
    rig.post()
    rig.sender.open[0].answer(503, b"86400")
    rig.run()
    rig.advance(POLICY.retry_after_max_ms + 200)
    assert rig.open_ids() == ["1"]


@pytest.mark.parametrize("status", [200, 429])
def test_a_retry_after_that_no_date_can_hold_does_not_stop_a_lane(rig, status):
    rig.subscribe()
    rig.post(identity="1")
    rig.post(identity="2")
    rig.sender.open[0].answer(status, b"Mon, 99999999999999999999 Jan 2020 00:00:00 GMT")
    rig.run()
    rig.advance(longest_delay_ms(1) + 200)
    rig.answer_all()
    assert unsettled(rig) == 0


@pytest.mark.parametrize("status", [301, 400, 401, 413])
def test_final_answers_go_to_the_dead_letters_at_once(rig, status):
    name = rig.subscribe()
    rig.post(identity="1", data=b"x")
    rig.post(identity="2")
    rig.sender.open[0].answer(status)
    rig.run()
    (letter,) = rig.dead(name)
    assert letter.body == b"x"
    assert (letter.property("CE_id"), letter.property("GANTRY_DLQ_STATUS")) == ("1", str(status))
    assert letter.property("GANTRY_DLQ_ATTEMPTS") == "1"
    assert rig.open_ids() == ["2"]
    rig.answer_all()
    assert unsettled(rig) == 0


def test_after_the_last_attempt_the_next_follows(rig):
    name = rig.subscribe(config={"maxattempts": 3})
    rig.post(identity="1")
    rig.post(identity="2")
    for _ in range(3):
        assert rig.open_ids() == ["1"]
        rig.sender.open[0].answer(0, failure="refused")
        rig.run()
        rig.advance(10_000)
    assert rig.open_ids() == ["2"]
    (letter,) = rig.dead(name)
    assert (letter.property("GANTRY_DLQ_REASON"), letter.property("GANTRY_DLQ_STATUS")) == ("refused", "0")
    assert letter.property("GANTRY_DLQ_ATTEMPTS") == "3"


def test_an_event_stays_until_its_dead_letter_is_stored(rig):
    name = rig.subscribe()
    rig.post(identity="1")
    rig.post(identity="2")
    rig.port.refuse = lambda message: ErrorCode.STORE_FULL if message.topic.startswith("%DLQ%") else None
    rig.sender.open[0].answer(400)
    rig.run()
    rig.advance(5_000)
    assert (rig.dead(name), rig.open_ids(), unsettled(rig)) == ([], [], 2)
    rig.port.refuse = lambda message: None
    rig.advance(20_000)
    assert len(rig.dead(name)) == 1
    assert rig.open_ids() == ["2"]


def test_a_message_that_cannot_be_read_goes_to_the_dead_letters(rig):
    name = rig.subscribe(types=["k"])
    message = Message("t", b"nonsense", b"TAGS\x01k\x02", "k")
    message.sys_flag = 1
    rig.port.submit([message], None, lambda token, result: None)
    rig.run()
    (letter,) = rig.dead(name)
    assert "zlib" in letter.property("GANTRY_DLQ_REASON")
    assert letter.sys_flag == 1
    assert rig.host.in_flight == 0


def test_gone_disables_the_subscription(rig):
    name = rig.subscribe()
    rig.post(identity="1", type_="k1")
    rig.post(identity="2", type_="k2")
    rig.sender.open[0].answer(410)
    rig.run()
    assert rig.sender.open == []
    status, _, shown = rig.request("GET", f"/subscriptions/{name}")
    assert (status, shown["status"], shown["statusreason"]) == (200, "disabled", "the sink answered 410 Gone")
    rig.post(identity="3")
    rig.advance(100_000)
    assert rig.sender.open == []
    assert unsettled(rig) == 2
    again = Rig(rig.port.crash(), seed=1)
    assert again.sender.open == []
    assert again.request("GET", f"/subscriptions/{name}")[2]["status"] == "disabled"


def test_window_is_bounded(rig):
    rig.subscribe()
    for number in range(constants.WINDOW_EVENTS + 100):
        rig.post(identity=str(number))
    leased = sum(len(cursor.leased) for cursor in rig.port.cursors.values())
    assert constants.WINDOW_EVENTS - constants.ACQUIRE_MAX < leased <= constants.WINDOW_EVENTS
    order = rig.answer_all()
    assert order == [str(number) for number in range(constants.WINDOW_EVENTS + 100)]


def test_window_is_bounded_in_bytes(rig):
    rig.subscribe()
    for number in range(8):
        rig.post(identity=str(number), data=b"x" * (1 << 20))
    held = sum(1 for cursor in rig.port.cursors.values() for _ in cursor.leased)
    assert held <= constants.WINDOW_BYTES // (1 << 20) + 1
    assert len(rig.answer_all()) == 8


def test_kill_and_restart_deliver_everything_not_answered(rig):
    rig.subscribe()
    for number in range(20):
        rig.post(identity=str(number), type_=f"k{number % 5}")
    for sent in list(rig.sender.open)[:3]:
        sent.answer(200)
    rig.run()
    done = {sent.id for sent in rig.sender.all if sent not in rig.sender.open}
    again = Rig(rig.port.crash(), seed=1)
    later = again.answer_all()
    assert done | set(later) == {str(number) for number in range(20)}
    assert not done & set(later)
    for key in range(5):
        mine = [name for name in later if int(name) % 5 == key]
        assert mine == sorted(mine, key=int)


def test_stop_gives_everything_back(rig):
    rig.subscribe()
    for number in range(4):
        rig.post(identity=str(number), type_=f"k{number % 2}")
    outcomes = []
    settle = rig.port.settle
    rig.port.settle = lambda items: (outcomes.extend(items), settle(items))
    rig.registry.stop()
    assert sorted(outcome for _, _, outcome in outcomes) == [Outcome.REQUEUE] * 2 + [Outcome.RELEASE] * 2
    assert rig.sender.open == []
    assert rig.host.in_flight == 0
    assert rig.port.leases == {}


def test_window_of_the_process_is_bounded(rig, monkeypatch):
    monkeypatch.setattr("gantrymq_gateways.cloudevents.push.delivery.PROCESS_WINDOW_BYTES", 1000)
    for topic in ("t1", "t2"):
        rig.subscribe(config={"topic": topic})
    for number in range(20):
        rig.post("t1", f"a{number}", data=b"x" * 600)
        rig.post("t2", f"b{number}", data=b"x" * 600)
    assert sum(len(cursor.leased) for cursor in rig.port.cursors.values()) <= 4
    assert len(rig.answer_all()) == 40
    assert rig.host.held_bytes == 0


def test_a_shorter_retry_after_does_not_end_a_pause(rig):
    rig.subscribe()
    for number in range(2):
        rig.post(identity=str(number), type_=f"k{number}")
    first, second = rig.sender.open
    first.answer(429, b"30")
    second.answer(429, b"1")
    rig.run()
    rig.advance(29_000)
    assert rig.sender.open == []
    rig.advance(2_000)
    assert len(rig.sender.open) == 1
    rig.answer_all()
    assert unsettled(rig) == 0


def test_dead_letters_do_not_fill_the_log(rig, caplog):
    rig.subscribe()
    for number in range(25):
        rig.post(identity=str(number))
    rig.answer_all(400)
    assert [record.args[-1] for record in caplog.records] == [1, 10]
    assert "put into %DLQ%id1s0: the sink answered 400 (event 1 " in caplog.text


def test_what_was_never_sent_uses_up_no_attempt(rig):
    name = rig.subscribe(config={"maxattempts": 1})
    rig.post()
    for _ in range(5):
        rig.sender.open[0].answer(0, failure="no thread", unsent=True)
        rig.run()
        rig.advance(1_100)
    assert rig.sender.open[0].attempt == 1
    assert rig.dead(name) == []
    rig.answer_all()
    assert unsettled(rig) == 0


def test_a_sink_of_one_request_a_second_loses_nothing():
    rig = Rig()
    name = rig.subscribe()
    for number in range(600):
        rig.post(identity=str(number), ce_partitionkey=f"k{number}")
    done, free_at_ms = [], 0
    for _ in range(20 * 800):
        for sent in list(rig.sender.open):
            now_ms = rig.clock.monotonic_ms()
            if now_ms >= free_at_ms:
                free_at_ms = now_ms + 1_000
                done.append(sent.id)
                sent.answer(204)
            else:
                sent.answer(429, b"1")
            rig.run()
        if len(done) == 600:
            break
        rig.advance(50)
    assert sorted(done, key=int) == [str(number) for number in range(600)]
    assert rig.dead(name) == []
    assert len(rig.sender.all) <= 3 * 600 + 2 * rig.host.config.per_subscription_max
    assert unsettled(rig) == 0


@pytest.mark.parametrize("status", [429, 503])
def test_a_sink_that_asks_to_wait_is_given_up_by_age(rig, status):
    name = rig.subscribe(config={"maxattempts": 1, "maxage_s": 60})
    rig.post()
    began_ms = rig.clock.monotonic_ms()
    while not rig.dead(name):
        for sent in list(rig.sender.open):
            sent.answer(status, b"2")
            rig.run()
        rig.advance(50)
    assert 60_000 <= rig.clock.monotonic_ms() - began_ms <= 60_000 + POLICY.longest_ms + 100
    (letter,) = rig.dead(name)
    assert int(letter.property("GANTRY_DLQ_ATTEMPTS")) == len(rig.sender.all) > 5


def test_failures_count_beside_refusals(rig):
    name = rig.subscribe(config={"maxattempts": 2})
    rig.post()
    for status, retry_after in ((429, b"1"), (500, None), (503, b"1"), (500, None)):
        assert rig.dead(name) == []
        rig.sender.open[0].answer(status, retry_after)
        rig.run()
        rig.advance(POLICY.longest_ms)
    assert rig.dead(name)[0].property("GANTRY_DLQ_ATTEMPTS") == "4"


def test_a_retry_after_of_nothing_is_no_licence_to_hammer(rig):
    rig.subscribe()
    rig.post()
    for _ in range(20 * 60):
        for sent in list(rig.sender.open):
            sent.answer(503, b"0")
            rig.run()
        rig.advance(50)
    assert len(rig.sender.all) < 20


def test_what_is_never_sent_is_given_up_by_age(rig):
    name = rig.subscribe(config={"maxage_s": 60})
    rig.post()
    began_ms = rig.clock.monotonic_ms()
    while not rig.dead(name):
        assert rig.clock.monotonic_ms() - began_ms < 65_000
        rig.sender.open[0].answer(0, failure="no thread", unsent=True)
        rig.run()
        rig.advance(1_050)
    assert rig.clock.monotonic_ms() - began_ms >= 60_000
    (letter,) = rig.dead(name)
    assert (letter.property("GANTRY_DLQ_REASON"), letter.property("GANTRY_DLQ_ATTEMPTS")) == ("no thread", "0")


def fill(rig, key, first, count):
    pairs = "TAGS\x01k\x02CE_specversion\x011.0\x02CE_source\x01/s\x02CE_type\x01k\x02"
    batch = [
        Message("t", b"x" * 100, f"{pairs}CE_id\x01{key}{number}\x02__SHARDINGKEY\x01{key}\x02".encode(), "k")
        for number in range(first, first + count)
    ]
    rig.port.submit(batch, None, lambda token, result: None)
    rig.run()


def test_a_failing_key_holds_up_itself_alone_with_10_000_events_waiting():
    rig = Rig(per_subscription_max=4)
    rig.subscribe(config={"maxattempts": 100})
    fill(rig, "a", 0, 1)
    rig.sender.open[0].answer(500)
    rig.run()
    fill(rig, "a", 1, 10_000)
    fill(rig, "b", 0, 300)
    (record,) = rig.registry._records.values()
    assert rig.answer_all() == [f"b{number}" for number in range(300)]
    assert (record.push.parked, record.push.held) == (10_000, 1)
    assert rig.host.held_bytes == 100
    rig.advance(longest_delay_ms(1))
    done = [rig.sender.open[0].id]
    rig.sender.open[0].answer(204)
    for _ in range(50):
        rig.run()
        (sent,) = rig.sender.open
        done.append(sent.id)
        sent.answer(204)
    rig.run()
    assert done == [f"a{number}" for number in range(51)]
    assert record.push.held <= UNPARKED_AT_ONCE
    rig.registry.stop()
    rig.run()
    assert rig.host.held_bytes == 0


def test_what_waited_behind_a_failure_comes_in_order(rig):
    rig.subscribe(config={"maxattempts": 3})
    fill(rig, "a", 0, 120)
    rig.sender.open[0].answer(500)
    rig.run()
    fill(rig, "a", 120, 300)
    rig.advance(longest_delay_ms(1))
    rig.sender.open[0].answer(500)
    rig.run()
    rig.advance(longest_delay_ms(2))
    assert rig.answer_all() == [f"a{number}" for number in range(420)]
    assert unsettled(rig) == 0
    (record,) = rig.registry._records.values()
    assert (record.push.parked, record.push.held, rig.host.held_bytes) == (0, 0, 0)


@pytest.mark.parametrize("trouble", ["moved", "busy"])
def test_parked_messages_that_cannot_be_read_are_asked_for_again(rig, trouble):
    """Retention moves what is alive: then the whole key is acquired again, in order."""
    rig.subscribe()
    fill(rig, "a", 0, 90)
    rig.sender.open[0].answer(500)
    rig.run()
    if trouble == "busy":
        rig.port.fail_next("read", ErrorCode.BUSY)
    else:
        whole, rig.port.by_offset = rig.port.by_offset, {}
    rig.advance(longest_delay_ms(1))
    rig.sender.open[0].answer(204)
    rig.run()
    if trouble == "moved":
        rig.port.by_offset = whole
    rig.advance(POLICY.first_ms * 2)
    assert rig.answer_all() == [f"a{number}" for number in range(1, 90)]
    assert unsettled(rig) == 0
    (record,) = rig.registry._records.values()
    assert (record.push.parked, record.push.held, rig.host.held_bytes) == (0, 0, 0)


def test_more_than_may_be_parked_holds_up_other_keys(rig, monkeypatch):
    monkeypatch.setattr(delivery, "PARKED_MAX", 50)
    rig.subscribe()
    fill(rig, "a", 0, 1)
    rig.sender.open[0].answer(500)
    rig.run()
    fill(rig, "a", 1, 500)
    (record,) = rig.registry._records.values()
    assert record.push.parked == 50
    assert record.push.held <= constants.WINDOW_EVENTS
    rig.advance(longest_delay_ms(1))
    assert rig.answer_all() == [f"a{number}" for number in range(501)]
