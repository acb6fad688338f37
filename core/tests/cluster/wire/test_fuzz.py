"""Whatever a gateway's connection says, healthy clients beside it are answered, and after a restart everything of theirs is there."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gantrymq.broker.port import EARLIEST, Outcome, Route
from gantrymq.cluster.wire.calls import ARGUMENTS
from gantrymq.cluster.wire.codec import GatewayCode, encode_body, pack_sent
from gantrymq.cluster.wire.server import GatewaySession
from gantrymq.model.message import Message
from gantrymq.remoting.codec import Command
from gantrymq.remoting.gateway_codes import FIRST_CODE, LAST_CODE
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import Node

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 3, 7, 1 << 31, (1 << 31) - 1, 1 << 40, (1 << 63) - 1, -(1 << 63), 1.5, "", "t", "x", "other", "rmq_sys_gantry_topic",
    "TAGS", "\x01", "~1", "t/0", "end", "prefix", b"", b"{", b"\xff", b"TAGS\x01a\x02", [], [1], ["a"], [b"a"], [[]], {}, {"a": 1}, "y" * 300,
]  # fmt: skip


def garbage(lot: random.Random) -> tuple[int, bytes]:
    """A request: the right number of arguments or not, a message row with a column or two changed, or bytes by chance."""
    code = lot.choice([*ARGUMENTS, GatewayCode.SUBMIT, GatewayCode.SUBMIT, lot.randrange(FIRST_CODE, LAST_CODE + 1)])
    kind = lot.randrange(4)
    if kind == 0:
        return code, lot.randbytes(lot.randrange(40))
    if code == GatewayCode.SUBMIT and kind > 1:
        rows = []
        for _ in range(lot.randrange(1, 4)):
            row = list(pack_sent([Message("t", b"bad", b"TAGS\x01a\x02KEYS\x01k\x02", "a", ("k",), 0)])[0])
            for _ in range(lot.randrange(1, 3)):
                row[lot.randrange(len(row))] = lot.choice(VALUES)
            rows.append(row)
        return code, encode_body([rows, lot.choice([0, 0, 0, *VALUES])])
    arguments = [lot.choice(VALUES) for _ in range(lot.randrange(6))]
    if lot.random() < 0.3:
        arguments = [arguments] * lot.randrange(1, 4)
    return code, encode_body(arguments)


@pytest.mark.parametrize("seed", range(5))
def test_healthy_clients_beside_garbage(seed: int) -> None:
    lot = random.Random(seed)
    node = Node(MemoryFileSystem(), False)
    for _ in range(9):  # so that no number among VALUES is the healthy client's
        node.call("open_cursor", f"~{node.call('create_light')}", "g", EARLIEST)
    light = node.call("create_light")
    node.call("add_route", Route("healthy", "prefix", "t", "good", light))
    cursor = node.call("open_cursor", f"~{light}", "healthy", EARLIEST).cursor
    answered: list[bytes] = []
    sessions = [GatewaySession(node.broker, f"10.0.0.{number}:1", answered.append) for number in range(3)]
    consumed: list[int] = []
    for step in range(300):
        for number in range(lot.randrange(1, 6)):
            code, body = garbage(lot)
            lot.choice(sessions).handle(Command(code, None, body, step * 10 + number))
        results: list[Any] = []
        message = Message("t", b"%d" % step, b"TAGS\x01good\x02", "good", (), 0)
        node.port.submit([message], None, lambda token, result, box=results: box.append(result))
        node.port.put("healthy", [(f"k{step}", b"v")], None, lambda token, result, box=results: box.append(result))
        for _ in range(lot.randrange(4)):
            code, body = garbage(lot)
            lot.choice(sessions).handle(Command(code, None, body, step * 10 + 9))
        node.turn.run_until_quiet()
        assert len(results) == 2, step
        offsets = [result for result in results if result is not None]  # a row's answer is None
        assert [type(offset) for (offset,) in offsets] == [int], (step, results)
        found = node.call("acquire", cursor, 1, 100, 1 << 20)
        consumed += [int(delivery.message.body) for delivery in found if delivery.message.tag == "good"]
        node.port.settle([(cursor, delivery.offset, Outcome.ACK) for delivery in found[:-1]])
        if found:
            node.port.settle([(cursor, found[-1].offset, Outcome.RELEASE)])
            consumed.pop()
        node.turn.run_until_quiet()
    assert answered
    for session in sessions:
        session.close()
    node.turn.run_until_quiet()
    node.wheel.advance(10_000)
    node.turn.run_until_quiet()
    again = Node(node.files.after_process_crash(), False)  # type: ignore[attr-defined]
    assert len(again.broker.tables.rows("healthy")) >= 300
    left = again.call("acquire", cursor, 1, 1_000, 1 << 20)
    bodies = [int(delivery.message.body) for delivery in left if delivery.message.tag == "good"]
    assert consumed + bodies == list(range(300))
