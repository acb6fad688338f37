"""What a client raises: a `GantryError` that also knows the Remoting response code and who answered."""

from __future__ import annotations

from typing import Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import ResponseCode

ERROR_CODES: Final = {
    ResponseCode.SYSTEM_ERROR: ErrorCode.UNAVAILABLE,
    ResponseCode.SYSTEM_BUSY: ErrorCode.BUSY,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: ErrorCode.NOT_SUPPORTED,
    ResponseCode.MESSAGE_ILLEGAL: ErrorCode.MESSAGE_ILLEGAL,
    ResponseCode.SERVICE_NOT_AVAILABLE: ErrorCode.UNAVAILABLE,
    ResponseCode.NO_PERMISSION: ErrorCode.NO_PERMISSION,
    ResponseCode.TOPIC_NOT_EXIST: ErrorCode.TOPIC_NOT_FOUND,
    ResponseCode.TOPIC_EXIST_ALREADY: ErrorCode.ALREADY_EXISTS,
    ResponseCode.PULL_OFFSET_MOVED: ErrorCode.OFFSET_OUT_OF_RANGE,
    ResponseCode.QUERY_NOT_FOUND: ErrorCode.NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: ErrorCode.ILLEGAL_ARGUMENT,
    ResponseCode.INVALID_PARAMETER: ErrorCode.ILLEGAL_ARGUMENT,
    ResponseCode.NO_MESSAGE: ErrorCode.NOT_FOUND,
    ResponseCode.FLOW_CONTROL: ErrorCode.BUSY,
    ResponseCode.GO_AWAY: ErrorCode.SHUTTING_DOWN,
}
"""Everything else is UNAVAILABLE: the text says what the server answered."""


class BrokerError(GantryError):
    """An answer that is no success; clients raise it, nobody else makes one.

    Attributes:
        response_code (int): RocketMQ's response code.
        address (str): `host:port` of who answered.
    """

    def __init__(self, answer: Command, what: str, address: str) -> None:
        try:
            name = ResponseCode(answer.code).name
        except ValueError:
            name = "code"
        remark = f": {answer.remark}" if answer.remark else ""
        super().__init__(
            ERROR_CODES.get(answer.code, ErrorCode.UNAVAILABLE),  # type: ignore[call-overload]
            f"{what}: {address} answered {name} ({answer.code}){remark}",
        )
        self.response_code = answer.code
        self.address = address


def expect_success(answer: Command, what: str, address: str) -> Command:
    """The answer itself if it is a success, else raises `BrokerError`. `what`: the request, as the text begins."""
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerError(answer, what, address)
    return answer


def number(answer: Command, field: str, what: str, address: str) -> int:
    """A mandatory number of an answer; raises MESSAGE_ILLEGAL naming field and server."""
    value = answer.fields.get(field)
    try:
        return int(value or "")
    except ValueError:
        text = f"{what}: the answer of {address} has {field}={value!r} where a number belongs"
        raise GantryError(ErrorCode.MESSAGE_ILLEGAL, text) from None
