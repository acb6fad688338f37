"""What is held for slow readers is counted as memory: a payload once, however many wait for it."""

from __future__ import annotations

from gantrymq.net.held.outbound import LARGE_BYTES, Held, Ledger, gathered

PAYLOAD = b"p" * LARGE_BYTES
OTHER = b"o" * (3 * LARGE_BYTES)


def test_small_pieces_are_joined_and_large_ones_stay_the_same_object() -> None:
    assert gathered([]) == b""
    assert gathered([b"a", b"b"]) == b"ab"
    pieces = gathered([b"a", b"b", PAYLOAD, OTHER, b"c", memoryview(OTHER)[LARGE_BYTES:], b"d"])
    assert isinstance(pieces, list)
    assert [bytes(piece[:2]) for piece in pieces] == [b"ab", b"pp", b"oo", b"c", b"oo", b"d"]
    assert pieces[1] is PAYLOAD
    assert pieces[2] is OTHER
    assert b"".join(pieces) == b"ab" + PAYLOAD + OTHER + b"c" + OTHER[LARGE_BYTES:] + b"d"


def test_a_payload_counts_once_until_its_last_reader_has_taken_it() -> None:
    ledger = Ledger()
    readers = [Held(ledger) for _ in range(600)]
    for reader in readers:
        reader.wrote(LARGE_BYTES + 2, [b"ab", PAYLOAD])
    assert ledger.held_bytes == LARGE_BYTES + 600 * 2
    assert readers[0].share_bytes() == LARGE_BYTES // 600 + 2
    for reader in readers[1:]:
        assert not reader.taken(LARGE_BYTES + 2)
    assert readers[0].taken(LARGE_BYTES + 1), "its last byte is missing: all of it is held"
    assert ledger.held_bytes == readers[0].share_bytes() == LARGE_BYTES + 2
    readers[0].clear()
    assert ledger.held_bytes == 0
    assert ledger._payloads == {}


def test_parts_of_a_payload_hold_the_whole() -> None:
    ledger = Ledger()
    reader = Held(ledger)
    view = memoryview(OTHER)
    reader.wrote(10, [view[:LARGE_BYTES], b"x", view[LARGE_BYTES : 2 * LARGE_BYTES]])
    assert ledger.held_bytes == len(OTHER) + 1
    reader.wrote(20, [view])
    assert ledger.held_bytes == len(OTHER) + 1
    assert reader.taken(10)
    assert ledger.held_bytes == len(OTHER)
    assert not reader.taken(20)
    assert ledger.held_bytes == 0


def test_bytes_of_one_reader_count_for_each() -> None:
    ledger = Ledger()
    first, second = Held(ledger), Held(ledger)
    first.wrote_before(5, 5)
    first.wrote(5 + LARGE_BYTES, PAYLOAD)
    second.wrote(LARGE_BYTES, PAYLOAD)
    assert ledger.held_bytes == 2 * LARGE_BYTES + 5
    assert first.taken(5)
    assert ledger.held_bytes == 2 * LARGE_BYTES
    first.clear()
    second.clear()
    assert ledger.held_bytes == 0
