"""Frames, and the results of submits."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.cluster.wire.codec import decode_body, encode_body, frame_of, pack_results, unpack_results
from gantrymq.model.errors import ErrorCode
from gantrymq.model.limits import FRAME_BYTES_MAX
from gantrymq.remoting.codec import Command, encode
from gantrymq.remoting.constants import FLAG_ONEWAY, FLAG_RESPONSE


@pytest.mark.parametrize("flag", [0, FLAG_RESPONSE, FLAG_ONEWAY])
@pytest.mark.parametrize("opaque", [0, 7, 0x7FFFFFFF])
@pytest.mark.parametrize("body", [b"", b"\x91\x09", b"%d" * 500])
def test_a_frame_is_that_of_the_command(flag: int, opaque: int, body: bytes) -> None:
    assert frame_of(60001, body, opaque, flag) == encode(Command(60001, None, body, opaque, flag))


def test_a_frame_over_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        frame_of(60001, bytes(FRAME_BYTES_MAX), 1)


@pytest.mark.parametrize(
    "results",
    [
        [],
        [0],
        [5, 6, (1 << 63) - 1, 1],
        [ErrorCode.BUSY],
        [ErrorCode.BUSY, 3, ErrorCode.NO_ROUTE],
        [3, ErrorCode.NO_ROUTE],
        [3, 4, ErrorCode.QUEUE_FULL, 5],
    ],
)
def test_results_come_back_as_they_were(results: list[Any]) -> None:
    assert unpack_results(decode_body(encode_body(pack_results(results)))) == results


@pytest.mark.parametrize("values", [["no such code"], [1, "no such code"], [None], [1, b"x"]])
def test_a_result_that_nobody_knows_is_an_error(values: list[Any]) -> None:
    with pytest.raises(KeyError):
        unpack_results(values)
