"""Reason codes of MQTT 5.0 (2.4) and return codes of 3.x, one table: what the server says about a failure in every version."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from gantrymq.model.errors import ErrorCode


class Reason(IntEnum):
    """Reason codes of MQTT 5.0. Below 0x80 they are no failures."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC = 0x83
    UNSUPPORTED_VERSION = 0x84
    CLIENT_ID_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_ID_IN_USE = 0x91
    PACKET_ID_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDS_NOT_SUPPORTED = 0xA1
    WILDCARDS_NOT_SUPPORTED = 0xA2


REFUSED_VERSION: Final = 1
REFUSED_IDENTIFIER: Final = 2
REFUSED_UNAVAILABLE: Final = 3
REFUSED_CREDENTIALS: Final = 4
REFUSED_NOT_AUTHORIZED: Final = 5

_RETURN_CODES: Final = {
    Reason.SUCCESS: 0,
    Reason.UNSUPPORTED_VERSION: REFUSED_VERSION,
    Reason.CLIENT_ID_NOT_VALID: REFUSED_IDENTIFIER,
    Reason.BAD_USER_NAME_OR_PASSWORD: REFUSED_CREDENTIALS,
    Reason.NOT_AUTHORIZED: REFUSED_NOT_AUTHORIZED,
    Reason.BANNED: REFUSED_NOT_AUTHORIZED,
    Reason.BAD_AUTHENTICATION_METHOD: REFUSED_NOT_AUTHORIZED,
    Reason.TOPIC_NAME_INVALID: REFUSED_NOT_AUTHORIZED,
}

SUBACK_FAILURE: Final = 0x80
"""The one failure that SUBACK of 3.1.1 knows."""

_OF_ERRORS: Final = {
    ErrorCode.NAME_INVALID: Reason.TOPIC_NAME_INVALID,
    ErrorCode.NO_PERMISSION: Reason.NOT_AUTHORIZED,
    ErrorCode.QUEUE_FULL: Reason.QUOTA_EXCEEDED,
    ErrorCode.MESSAGE_TOO_LARGE: Reason.PACKET_TOO_LARGE,
    ErrorCode.PROPERTIES_TOO_LARGE: Reason.PACKET_TOO_LARGE,
    ErrorCode.TOPIC_LIMIT: Reason.QUOTA_EXCEEDED,
    ErrorCode.LIMIT_REACHED: Reason.QUOTA_EXCEEDED,
    ErrorCode.STORE_FULL: Reason.QUOTA_EXCEEDED,
    ErrorCode.BUSY: Reason.SERVER_BUSY,
    ErrorCode.UNAVAILABLE: Reason.SERVER_UNAVAILABLE,
    ErrorCode.NOT_OWNER: Reason.SERVER_UNAVAILABLE,
    ErrorCode.SHUTTING_DOWN: Reason.SERVER_SHUTTING_DOWN,
    ErrorCode.ILLEGAL_ARGUMENT: Reason.TOPIC_FILTER_INVALID,
    ErrorCode.TOPIC_NOT_FOUND: Reason.NOT_AUTHORIZED,
}


def reason_of(code: ErrorCode) -> Reason:
    """What MQTT 5.0 calls a failure of ours."""
    return _OF_ERRORS.get(code, Reason.IMPLEMENTATION_SPECIFIC)


_IN_PUBLISH_ACKS: Final = frozenset(
    {
        Reason.SUCCESS,
        Reason.NO_MATCHING_SUBSCRIBERS,
        Reason.UNSPECIFIED,
        Reason.IMPLEMENTATION_SPECIFIC,
        Reason.NOT_AUTHORIZED,
        Reason.TOPIC_NAME_INVALID,
        Reason.PACKET_ID_IN_USE,
        Reason.QUOTA_EXCEEDED,
        Reason.PAYLOAD_FORMAT_INVALID,
    }
)
"""MQTT 5.0 tables 3-4 and 3-5."""


def publish_reason(code: ErrorCode) -> Reason:
    """The same for PUBACK and PUBREC, which may not say everything."""
    reason = reason_of(code)
    return reason if reason in _IN_PUBLISH_ACKS else Reason.IMPLEMENTATION_SPECIFIC


_IN_SUBACK: Final = frozenset(
    {
        Reason.UNSPECIFIED,
        Reason.IMPLEMENTATION_SPECIFIC,
        Reason.NOT_AUTHORIZED,
        Reason.TOPIC_FILTER_INVALID,
        Reason.PACKET_ID_IN_USE,
        Reason.QUOTA_EXCEEDED,
        Reason.SHARED_NOT_SUPPORTED,
        Reason.SUBSCRIPTION_IDS_NOT_SUPPORTED,
        Reason.WILDCARDS_NOT_SUPPORTED,
    }
)
"""MQTT 5.0 table 3-8."""


def subscribe_reason(code: ErrorCode) -> Reason:
    """The same for SUBACK."""
    reason = Reason.TOPIC_FILTER_INVALID if code is ErrorCode.NAME_INVALID else reason_of(code)
    return reason if reason in _IN_SUBACK else Reason.UNSPECIFIED


def return_code(reason: Reason) -> int:
    """CONNACK return code of MQTT 3.x (3.1.1 table 3.1) for a reason."""
    return _RETURN_CODES.get(reason, REFUSED_UNAVAILABLE)
