"""What a group is answered that asks for the records of its forward queue: it waits for some, reads again from where it says, settles by one number."""

from __future__ import annotations

from typing import Any

from gantrymq.broker.forward.feeding import BYTES_AT_ONCE, RECORDS_AT_ONCE, TRY_AGAIN_MS
from gantrymq.broker.forward.sending import CURSOR_GROUP
from gantrymq.broker.local import LocalBrokerPort
from gantrymq.broker.port import EARLIEST
from gantrymq.model.errors import ErrorCode
from tests.broker.node import SMALL
from tests.cluster.forward.forward_site import ForwardSite, code_of

SEGMENT = SMALL.commitlog_file_size


class Reader:
    """A connection of group b to a, which b itself does not hear."""

    def __init__(self, site: ForwardSite, light: int = 0) -> None:
        self.site = site
        self.light = light or site.peer("a", "b").light
        self.port = LocalBrokerPort(site.nodes["a"].broker)
        self.cursor: int = self._call("open_cursor", f"~{self.light}", CURSOR_GROUP, EARLIEST)[0].cursor

    def _call(self, method: str, *args: Any) -> list[Any]:
        box: list[Any] = []
        getattr(self.port, method)(*args, None, lambda token, result: box.append(result))
        self.site.run()
        return box

    def ask(self, offset: int) -> list[Any]:
        return self._call("read_forward", self.cursor, offset)

    def bodies(self, offset: int) -> list[bytes]:
        (found,) = self.ask(offset)
        return [each.message.body for each in found.deliveries]


def cut_site() -> ForwardSite:
    site = ForwardSite("a", "b")
    site.queue("b", "a")
    site.cut("a", "b")
    return site


def test_a_question_waits_until_there_is_a_record():
    site = cut_site()
    reader = Reader(site)
    box = reader.ask(0)
    site.wait(2 * TRY_AGAIN_MS)
    assert box == []
    site.publish("a", b"one")
    (found,) = box
    assert [each.message.body for each in found.deliveries] == [b"one"]
    assert (found.following, found.at_end) == (1, False)


def test_what_was_given_comes_again_until_it_is_settled():
    site = cut_site()
    site.publish("a", b"0", b"1", b"2")
    reader, peer, sending = Reader(site), site.peer("a", "b"), site.nodes["a"].broker.sending
    assert reader.bodies(0) == reader.bodies(0) == [b"0", b"1", b"2"]
    assert reader.bodies(2) == [b"2"]
    assert sending.behind(peer) == 3
    reader.port.settle_forward(reader.cursor, 2)
    assert sending.behind(peer) == 1
    assert reader.bodies(0) == [b"2"]
    reader.port.settle_forward(reader.cursor, 1 << 40)
    assert sending.behind(peer) == 0


def test_an_answer_is_bounded():
    site = cut_site()
    site.publish("a", *[b"%d" % number for number in range(RECORDS_AT_ONCE + 1)])
    reader = Reader(site)
    assert len(reader.bodies(0)) == RECORDS_AT_ONCE
    assert reader.bodies(RECORDS_AT_ONCE) == [b"%d" % RECORDS_AT_ONCE]
    site.publish("a", *[bytes(30_000)] * 40)
    assert 0 < len(reader.bodies(RECORDS_AT_ONCE + 1)) <= BYTES_AT_ONCE // 30_000


def test_an_earlier_connection_reads_and_settles_no_more():
    site = cut_site()
    site.publish("a", b"one")
    earlier, later = Reader(site), Reader(site)
    waits = later.ask(1)
    assert code_of(earlier.ask(0)[0]) is ErrorCode.NOT_OWNER
    earlier.port.settle_forward(earlier.cursor, 1)
    assert site.nodes["a"].broker.sending.behind(site.peer("a", "b")) == 1
    site.publish("a", b"two")
    assert [each.message.body for each in waits[0].deliveries] == [b"two"]


def test_the_queue_of_an_earlier_start_ends():
    site = cut_site()
    site.publish("a", b"one")
    light = site.peer("a", "b").light
    site.start("a", site.kill("a"))
    site.cut("a", "b")
    reader = Reader(site, light)
    assert reader.bodies(0) == [b"one"]
    (found,) = reader.ask(1)
    assert (found.deliveries, found.following, found.at_end) == ([], 1, True)


def test_who_asks_hears_that_the_queue_is_gone():
    site = cut_site()
    reader = Reader(site)
    box = reader.ask(0)
    site.nodes["a"].broker.drop_light(reader.light, [])
    site.wait(TRY_AGAIN_MS + 100)
    assert code_of(box[0]) in (ErrorCode.NOT_FOUND, ErrorCode.NOT_OWNER)


def test_a_closed_connection_is_answered_nothing():
    site = cut_site()
    reader = Reader(site)
    box = reader.ask(0)
    reader.port.close()
    site.publish("a", b"one")
    assert box == []


def test_a_damaged_record_is_passed_over_and_listed_by_the_source():
    site = cut_site()
    site.publish("a", b"0", b"1", b"2")
    node, light = site.nodes["a"], site.peer("a", "b").light
    position, size, _ = node.store.light_units(light, 1, 1)[0]
    node.stop()
    files = site.kill("a")
    segment = next(path for path in files.snapshot() if path.name == f"{position - position % SEGMENT:020d}")
    log = files.open(segment, False)
    files.pwrite(log, bytes(size), position % SEGMENT)
    files.close(log)
    site.start("a", files)
    site.cut("a", "b")
    reader = Reader(site, light)
    (found,) = reader.ask(0)
    assert [each.message.body for each in found.deliveries] == [b"0", b"2"]
    assert found.following == 3
    store = site.nodes["a"].store
    assert [(each.position, each.queue) for each in store.damage.entries.values()] == [(position, f"~{light}")]
    reader.port.settle_forward(reader.cursor, 3)
    assert site.nodes["a"].broker.sending.behind(site.peer("a", "b")) == 0
