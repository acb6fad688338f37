"""What an HTTP client is told: one table from failures to statuses."""

from __future__ import annotations

from typing import Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.http.problems import Headers, Problem

STATUS: Final[dict[ErrorCode, int]] = {
    ErrorCode.TOPIC_NOT_FOUND: 404,
    ErrorCode.TOPIC_LIMIT: 404,
    ErrorCode.QUEUE_NOT_FOUND: 404,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.LIMIT_REACHED: 403,
    ErrorCode.ALREADY_EXISTS: 409,
    ErrorCode.NAME_INVALID: 400,
    ErrorCode.ILLEGAL_ARGUMENT: 400,
    ErrorCode.MESSAGE_ILLEGAL: 400,
    ErrorCode.MESSAGE_TOO_LARGE: 413,
    ErrorCode.PROPERTIES_TOO_LARGE: 413,
    ErrorCode.NO_PERMISSION: 403,
    ErrorCode.NO_ROUTE: 404,
    ErrorCode.OFFSET_OUT_OF_RANGE: 500,
    ErrorCode.GROUP_NOT_FOUND: 404,
    ErrorCode.LEASE_HELD: 409,
    ErrorCode.LEASE_LOST: 409,
    ErrorCode.NOT_OWNER: 503,
    ErrorCode.BUSY: 503,
    ErrorCode.STORE_FULL: 503,
    ErrorCode.STORE_FAILED: 503,
    ErrorCode.FLUSH_TIMEOUT: 503,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.SHUTTING_DOWN: 503,
    ErrorCode.QUEUE_FULL: 503,
    ErrorCode.DUPLICATE: 409,
    ErrorCode.NOT_ALONE: 409,
    ErrorCode.NOT_SUPPORTED: 501,
}
"""HTTP status of every `ErrorCode`."""

RETRY_AFTER_S: Final[dict[ErrorCode, int]] = {
    ErrorCode.BUSY: 1,
    ErrorCode.UNAVAILABLE: 2,
    ErrorCode.NOT_OWNER: 2,
    ErrorCode.SHUTTING_DOWN: 5,
    ErrorCode.FLUSH_TIMEOUT: 5,
    ErrorCode.STORE_FULL: 30,
    ErrorCode.QUEUE_FULL: 5,
    ErrorCode.STORE_FAILED: 60,
}
"""Seconds of Retry-After: how soon the cause can have gone."""


def problem_of(error: GantryError | ErrorCode) -> Problem:
    """The refusal that a failure of the broker becomes."""
    code, text = (error, error.value) if isinstance(error, ErrorCode) else (error.code, error.text)
    seconds = RETRY_AFTER_S.get(code)
    headers: Headers = () if seconds is None else ((b"retry-after", b"%d" % seconds),)
    return Problem(STATUS[code], text, headers, {"code": code.name})
