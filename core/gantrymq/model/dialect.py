"""RocketMQ's dialect of JSON, read: fastjson writes maps with integer keys as `{0:"..."}` and maps with object keys as
`{{"topic":...}:{...}}`."""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeVar

import msgspec

DEPTH_MAX: Final = 64
"""Nesting in the dialect; RocketMQ's deepest body is 6."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+|\s+')


class DialectError(ValueError):
    """Not JSON, not even in the dialect; the text says where."""


def standard(data: bytes) -> bytes:
    """Standard JSON for the dialect: numeric keys get quotes, an object key becomes a string with its JSON
    text.

    Raises `DialectError` for what is not a sequence of JSON tokens; other mistakes are left to the decoder.
    """
    out: list[bytes] = []
    # One entry per open bracket: [is an object, expects a key, index in `out` if it is itself a key or -1].
    stack: list[list[Any]] = []
    at = 0
    while at < len(data):
        match = _TOKEN.match(data, at)
        if match is None:
            raise DialectError(f"body is not JSON at byte {at}")
        token, at = match.group(), match.end()
        if token.isspace():
            continue
        top = stack[-1] if stack else None
        as_key = top is not None and top[0] and top[1]
        if token in (b"{", b"["):
            if len(stack) >= DEPTH_MAX:
                raise DialectError(f"body is nested deeper than {DEPTH_MAX}")
            stack.append([token == b"{", True, len(out) if as_key else -1])
        elif token in (b"}", b"]"):
            if top is None:
                raise DialectError(f"body has an unexpected {token.decode()} at byte {at - 1}")
            stack.pop()
            if top[2] >= 0:
                out.append(token)
                token = json.dumps(b"".join(out[top[2] :]).decode("utf-8", "replace"), ensure_ascii=False).encode()
                del out[top[2] :]
        elif top is not None and token in (b":", b","):
            top[1] = token == b","
        elif as_key and not token.startswith(b'"'):
            token = b'"%b"' % token
        out.append(token)
    return b"".join(out)


def read_json(data: bytes) -> Any:
    """The value of a text in standard JSON or the dialect. Raises `DialectError`."""
    try:
        try:
            return json.loads(data)
        except json.JSONDecodeError:
            return json.loads(standard(data))
    except (ValueError, RecursionError) as error:
        raise DialectError(str(error)) from None


def quick_json(data: bytes | str) -> Any:
    """As `json.loads`, in a third of its time; what is not quite standard, as halves of surrogate pairs, in its own. Raises ValueError."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError):
        return json.loads(data)


T = TypeVar("T")

_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode(body: bytes, shape: type[T]) -> T:
    """Body as `shape`, dialect or standard; raises `DialectError`. Numbers may stand in quotes, as fastjson takes them and the Go client
    writes the tag hashes of its heartbeats."""
    decoder = _decoders.get(shape)
    if decoder is None:
        decoder = _decoders[shape] = msgspec.json.Decoder(shape, strict=False)
    try:
        try:
            value: T = decoder.decode(body)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            value = decoder.decode(standard(body))
    except (msgspec.DecodeError, DialectError, UnicodeDecodeError, RecursionError) as error:
        raise DialectError(f"body is not {shape.__name__}: {error}") from None
    return value
