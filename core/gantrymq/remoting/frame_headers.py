"""The header of a JSON frame as classes of msgspec, one for each way to read it.

Apart from codec.py, which can be compiled: msgspec reads the annotations of a class, and a compiled class does not keep them
(docs/decisions/0008-compiled-build.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.headers import AckHeader, EndTransactionHeader, PopHeader, PullHeader, SendHeaderV2

H = TypeVar("H")


class JsonHeader(msgspec.Struct):
    """Any command, as Java writes it."""

    code: int
    opaque: int = 0
    flag: int = 0
    version: int = 0
    language: str | int | None = "JAVA"
    remark: str | None = None
    extFields: dict[str, str] | None = None


class LooseHeader(msgspec.Struct):
    """As some clients write it: with numbers and nulls in `extFields`, where Java has a map of strings."""

    code: int
    opaque: int = 0
    flag: int = 0
    version: int = 0
    language: str | int | None = "JAVA"
    remark: str | None = None
    extFields: dict[str, str | int | float | bool | None] | None = None


class Typed(msgspec.Struct, Generic[H], gc=False):
    """A request whose fields are read in the same pass. Fields that `H` does not have are passed over."""

    code: int
    extFields: H
    opaque: int = 0
    flag: int = 0
    version: int = 0
    language: str | int | None = "JAVA"
    remark: str | None = None


class JsonOut(msgspec.Struct, omit_defaults=True):
    """Key order as fastjson writes it."""

    code: int
    extFields: Mapping[str, str] | None = None
    flag: int | None = None
    language: str | None = None
    opaque: int | None = None
    remark: str | None = None
    serializeTypeCurrentRPC: str | None = None
    version: int | None = None


decode_json = msgspec.json.Decoder(JsonHeader).decode
decode_loose = msgspec.json.Decoder(LooseHeader, strict=False).decode
encode_json = msgspec.json.Encoder().encode

Decode = Callable[[bytes], Typed[Any]]

_HEADERS: Final[dict[RequestCode, type[msgspec.Struct]]] = {
    RequestCode.SEND_MESSAGE_V2: SendHeaderV2,
    RequestCode.SEND_BATCH_MESSAGE: SendHeaderV2,
    RequestCode.PULL_MESSAGE: PullHeader,
    RequestCode.LITE_PULL_MESSAGE: PullHeader,
    RequestCode.POP_MESSAGE: PopHeader,
    RequestCode.ACK_MESSAGE: AckHeader,
    RequestCode.END_TRANSACTION: EndTransactionHeader,
}
"""What comes once per message, or per few."""
TYPED_START: Final = 15
"""First bytes of a header that tell its code: as Java, and most clients after it, write it, with the keys in alphabetical order."""
TYPED: Final[dict[bytes, tuple[int, Decode]]] = {
    (b'{"code":%d,"extFields":' % int(code))[:TYPED_START]: (
        int(code),
        msgspec.json.Decoder(Typed[header], strict=False).decode,  # type: ignore[valid-type]
    )
    for code, header in _HEADERS.items()
}
"""By those bytes: the code, and what reads the header."""
