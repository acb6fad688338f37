"""Failures of the broker as AMQP's reply codes: one table."""

from __future__ import annotations

from typing import Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq_gateways.amqp.wire.constants import INTERNAL_ERROR, NOT_FOUND, PRECONDITION_FAILED, AmqpError

_ERROR_CODES: Final = {
    ErrorCode.TOPIC_LIMIT: PRECONDITION_FAILED,
    ErrorCode.LIMIT_REACHED: PRECONDITION_FAILED,
    ErrorCode.TOPIC_NOT_FOUND: PRECONDITION_FAILED,
    ErrorCode.NAME_INVALID: PRECONDITION_FAILED,
    ErrorCode.MESSAGE_TOO_LARGE: PRECONDITION_FAILED,
    ErrorCode.MESSAGE_ILLEGAL: PRECONDITION_FAILED,
    ErrorCode.PROPERTIES_TOO_LARGE: PRECONDITION_FAILED,
    ErrorCode.ILLEGAL_ARGUMENT: PRECONDITION_FAILED,
    ErrorCode.NO_PERMISSION: 403,
    ErrorCode.QUEUE_NOT_FOUND: NOT_FOUND,
    ErrorCode.NOT_FOUND: NOT_FOUND,
    ErrorCode.UNAVAILABLE: NOT_FOUND,
    ErrorCode.BUSY: 506,
    ErrorCode.STORE_FULL: 506,
}
"""Failures of the broker as reply codes; every other one is 541. Codes from 500 on end the connection.

What only one broker of several decides is not there while that one is away, as a queue of a RabbitMQ node that is down; the channel ends, the connection's others go on."""


def amqp_error(error: GantryError, is_up: bool) -> AmqpError:
    """A failure of the broker on AMQP's terms. `is_up`: a broker is connected."""
    is_lost = error.code is ErrorCode.UNAVAILABLE and not is_up
    code = INTERNAL_ERROR if is_lost else _ERROR_CODES.get(error.code, INTERNAL_ERROR)
    return AmqpError(code, error.text, connection=code >= 500)
