"""`__CRC32#`: a CRC of the whole record, head and properties, too."""

from __future__ import annotations

import random
import zlib
from typing import TYPE_CHECKING

import pytest

from gantrymq.broker.pop.selection import with_count
from gantrymq.client.records import decode_records
from gantrymq.model.errors import GantryError
from gantrymq.model.message import Message
from gantrymq.model.properties import OWN_CRC_SIZE, has_own_crc, own_crc, own_crc_is_right
from gantrymq.store.log import record
from gantrymq.store.log.recovery import check_record, sound_records
from gantrymq.store.message_store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Bench

PROPERTIES = [b"", b"TAGS\x01a\x02", b"TAGS\x01a", b"k\x01" + b"v" * (record.SENDER_PROPERTIES_MAX - 2)]
ALL = frozenset({"queues", "index", "lights"})


@pytest.fixture(autouse=True)
def option(bench: Bench) -> None:
    bench.settings["properties_crc"] = True


def stored(store: MessageStore, message: Message) -> bytes:
    return store.read_log(message.physical_offset, message.size)


def test_the_pair_is_the_one_of_rocketmq() -> None:
    """MessageDecoder.createCrc32: ten digits, the last one first."""
    assert zlib.crc32(b"123456789") & 0x7FFFFFFF == 1274296614
    assert own_crc([b"1234", b"56789"], separated=True) == b"__CRC32#\x014166924721\x02"
    assert own_crc([b"1234", b"5678"], separated=False)[:1] == b"\x02"
    large = [b"head", bytes(100_000), b"tail"]
    assert own_crc(large, separated=True) == own_crc([b"".join(large), b""], separated=True)
    assert own_crc([b"", b""], separated=True) == b"__CRC32#\x010000000000\x02"


@pytest.mark.parametrize("properties", PROPERTIES)
@pytest.mark.parametrize("lights", [(), (1,), tuple(range(1, 200))])
@pytest.mark.parametrize("wide", [False, True])
def test_every_record_has_one_and_no_message_shows_it(
    bench: Bench, properties: bytes, lights: tuple[int, ...], wide: bool
) -> None:
    store = bench.open()
    messages = [
        Message("T", b"body", properties, queue_id=0),
        Message("%RETRY%" + "T" * 200 if wide else "T", b"", properties, queue_id=0),
    ]
    if wide:
        for message in messages:
            message.sys_flag, message.born_host = 16, bytes(20)
    assert [store.check(message) for message in messages] == [None, None]
    store.append(messages, [lights, ()])
    for message in messages:
        data = stored(store, message)
        assert has_own_crc(data)
        assert own_crc_is_right(data)
        assert record.fault(data, len(data)) == ""
        assert not has_own_crc(record.properties_of(data, 0, len(data)))
        again = record.decode(data)
        assert (again.body, again.size) == (message.body, message.size)
        assert again.dispatch == message.dispatch.lstrip(b"\x02")
        assert again.properties.rstrip(b"\x02") == properties.rstrip(b"\x02")
        (received,) = decode_records(data, check_crc=True)
        assert received.property("__CRC32#") == ""
    store.close()
    store = bench.open(anew=ALL)
    assert not bench.report.quarantined
    assert [store.light_visible_end(light) for light in lights] == [1] * len(lights)


def test_any_byte_that_changes_is_noticed_everywhere(bench: Bench) -> None:
    store = bench.open()
    message = Message("T", b"body", b"TAGS\x01abc\x02", queue_id=0)
    store.append([message], [(3,)])
    data = stored(store, message)
    assert record.is_at(data, len(data), 0, b"T", 0, 0)
    assert sound_records(data + bytes(99), 0, 0, 64 * 1024, 0, set())[0] in (0, len(data))
    lot = random.Random(1)
    for at in range(len(data)):
        bad = bytearray(data)
        bad[at] ^= 1 << lot.randrange(8)
        if data[-OWN_CRC_SIZE] <= at < len(data) - 11 or at == len(data) - 1:
            continue  # the pair's own name: then the record has none
        wrong = bytes(bad)
        assert record.fault(wrong, len(wrong)), at
        assert not record.is_at(wrong, len(wrong), 0, b"T", 0, 0), at
        with pytest.raises(record.RecordError):
            record.decode(wrong)
        with pytest.raises(GantryError):
            decode_records(wrong, check_crc=True)


@pytest.mark.parametrize("at", [15, 19, 43, 47, 51, 55, 63, 75, 83])
def test_a_start_puts_a_record_with_a_wrong_head_aside(
    bench: Bench, message_of: Callable[..., Message], at: int
) -> None:
    """Queue id, flag, born time and host, store time and host, reconsume times, prepared offset: nothing else covers them."""
    store = bench.open()
    messages = [message_of(number, b"body", "T", 0) for number in range(9)]
    for message in messages:
        store.append([message], [()])
    store.close()
    bench.damage(messages[4].physical_offset + at, b"\x55", "store", "commitlog", f"{0:020d}")
    store = bench.open()
    pieces, taken = store.read_units("T", 0, range(9), store.units("T", 0, 0, 9), 1 << 20)
    assert [bool(piece) for piece in pieces] == [number != 4 for number in range(taken)]
    assert [entry.what for entry in store.damage.entries.values()] == ["CRC of the record"]
    assert check_record(store._log, messages[4].physical_offset) == (0, None)
    store.close()
    bench.open(anew=ALL)
    assert bench.report.quarantined == [(messages[4].physical_offset, messages[4].size)]


@pytest.mark.parametrize("option", [True, False])
def test_a_pair_that_a_received_message_brought_along_goes(bench: Bench, option: bool) -> None:
    bench.settings["properties_crc"] = option
    store = bench.open()
    stale = own_crc([b"of another", b" record"], separated=True)
    message = Message("T", b"body", b"TAGS\x01a\x02" + stale, queue_id=0)
    assert store.check(message) is None
    assert message.properties == b"TAGS\x01a\x02"
    store.append([message], [()])
    assert record.decode(stored(store, message)).properties == b"TAGS\x01a\x02"
    assert has_own_crc(stored(store, message)) is option


def test_a_popped_record_with_its_count_has_the_crc_of_what_it_is_then(bench: Bench) -> None:
    store = bench.open()
    message = Message("T", b"body", b"TAGS\x01a\x02", queue_id=0)
    store.append([message], [()])
    piece = with_count(stored(store, message), 3)
    (received,) = decode_records(piece, check_crc=True)
    assert received.reconsume_times == 3
