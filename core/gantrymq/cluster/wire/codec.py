"""What a gateway process and a broker say to each other: private request codes from 60000, msgpack bodies
(docs/formats/gateway.md).

A request's body is the list of the call's arguments; the answer's body is the result. A failure is response
code 1 with the body [name of the ErrorCode, text]. Calls pipeline on one connection and are answered in any
order. NOTICE codes go from broker to gateway, one way.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

import msgspec

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.model.tables.message_rows import table_of_message
from gantrymq.remoting.codec import frame
from gantrymq.remoting.constants import VERSION

PROTOCOL_VERSION: Final = 10


class GatewayCode(IntEnum):
    """Request codes; numbers are on the wire: do not change them."""

    HELLO = 60000
    SUBMIT = 60001
    ENSURE_TOPIC = 60002
    TOPICS = 60003
    READ = 60004
    NEXT = 60005
    SUBMIT_WITH = 60006
    ADD_ROUTE = 60010
    REMOVE_ROUTES = 60011
    OPEN_TAP = 60012
    CLOSE_TAP = 60013
    ADD_VOLATILE = 60014
    REMOVE_VOLATILE = 60015
    CREATE_LIGHT = 60020
    DELETE_LIGHT = 60021
    OPEN_CURSOR = 60022
    DELETE_CURSOR = 60023
    ACQUIRE = 60024
    SETTLE = 60025
    RELEASE = 60026
    WATCH = 60027
    STATS = 60028
    PURGE = 60029
    PUT = 60030
    SET_POLICY = 60033
    TAKE_SEAT = 60034
    LEAVE_SEAT = 60035
    RANK = 60036
    SCAN = 60037
    SEEK = 60038
    DETAILS = 60039
    WATCH_TABLE = 60031
    PUT_IF = 60032
    TAKE_LEASE = 60040
    DROP_LEASE = 60041
    IS_FREE = 60042
    PUT_TOGETHER = 60043
    STOP_SLOTS = 60044
    FOLLOW = 60045
    FORWARD_END = 60046
    AWAIT_FORWARD = 60047
    READ_FORWARD = 60048
    SETTLE_FORWARD = 60049
    READ_LIGHT = 60050
    FREEZE_LIGHTS = 60051
    END_FREEZE = 60052
    HOLD_RECORDS = 60053
    RELEASE_RECORDS = 60054
    QUEUES_CAME = 60055
    TAKE_QUEUES = 60056
    NOTICE_READY = 60060
    NOTICE_RECORDS = 60061
    NOTICE_TABLE = 60062
    NOTICE_LEASE_LOST = 60063
    NOTICE_TURN = 60064


_HEADER: Final = (
    b'{"code":%%d,"flag":%%d,"language":"PYTHON","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
)
"""What `remoting.codec.encode_header` makes of such a command, without a JSON encoder for each."""

encode_body = msgspec.msgpack.Encoder().encode
decode_body = msgspec.msgpack.Decoder().decode


def pack_sent(batch: Sequence[Message]) -> list[tuple[Any, ...]]:
    """Messages on their way into the log: the columns of `calls.Sent`."""
    return [
        (
            message.topic, message.body, message.properties, message.tag, message.keys, message.queue_id, message.born_ms,
            message.sharding_key, message.exchange, message.demand_route, message.flag, message.sys_flag,
            table_of_message(message) if message.lmq else "",
        )
        for message in batch
    ]  # fmt: skip


def pack_stored(message: Message) -> list[Any]:
    """A record on its way to a gateway."""
    return [
        message.topic, message.body, message.properties, message.tag, message.queue_id, message.queue_offset,
        message.physical_offset, message.size, message.born_ms, message.store_ms, message.flag, message.sys_flag,
        message.reconsume_times, message.born_host, message.store_host, message.exchange,
    ]  # fmt: skip


def unpack_stored(row: list[Any]) -> Message:
    """Back from `pack_stored`."""
    message = Message(row[0], row[1], row[2], row[3], (), row[4], row[8])
    message.queue_offset, message.physical_offset, message.size = row[5], row[6], row[7]
    message.store_ms, message.flag, message.sys_flag, message.reconsume_times = row[9], row[10], row[11], row[12]
    message.born_host, message.store_host, message.exchange = row[13], row[14], row[15]
    return message


def pack_results(results: list[Any]) -> list[int | str]:
    """SubmitResults: offsets, or names of ErrorCodes."""
    try:
        sum(results)  # One addition in C for each: it fails if there is an ErrorCode among them.
    except TypeError:
        return [result if isinstance(result, int) else result.name for result in results]
    return results


def unpack_results(values: list[Any]) -> list[int | ErrorCode]:
    """Back from `pack_results`; raises KeyError for an unknown name."""
    try:
        sum(values)
    except TypeError:
        return [value if isinstance(value, int) else ErrorCode[value] for value in values]
    return values


def pack_error(error: GantryError) -> bytes:
    """Body of a failed answer."""
    return encode_body([error.code.name, error.text])


def frame_of(code: int, body: bytes, opaque: int, flag: int = 0) -> bytes:
    """The frame of `Command(code, None, body, opaque, flag)`; raises ValueError over the limit of a frame."""
    return frame(_HEADER % (code, flag, opaque), body)


class ForeignBrokerError(GantryError):
    """Of a broker that knows no gateways: RocketMQ's."""


def unpack_error(body: bytes, remark: str) -> GantryError:
    """Back from `pack_error`; a body of another shape becomes UNAVAILABLE with the remark."""
    try:
        name, text = decode_body(body)
        return GantryError(ErrorCode[name], text)
    except (msgspec.DecodeError, ValueError, KeyError, TypeError):
        return GantryError(ErrorCode.UNAVAILABLE, remark or "the broker sent an answer that cannot be read")
