"""The header of a JSON frame as classes of msgspec, one for each way to read it.

Apart from codec.py, which can be compiled: msgspec reads the annotations of a class, and a compiled class does not keep them
(docs/decisions/0008-compiled-build.md).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gantrymq.remoting.headers import PopHeader, PullHeader, SendHeaderV2


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


class TypedSend(msgspec.Struct, gc=False):
    """SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE, whose fields are read in the same pass."""

    code: int
    extFields: SendHeaderV2
    opaque: int = 0
    flag: int = 0
    version: int = 0
    language: str | int | None = "JAVA"


class TypedPull(msgspec.Struct, gc=False):
    """PULL_MESSAGE and LITE_PULL_MESSAGE, read likewise."""

    code: int
    extFields: PullHeader
    opaque: int = 0
    flag: int = 0
    version: int = 0
    language: str | int | None = "JAVA"
    remark: str | None = None


class TypedPop(msgspec.Struct, gc=False):
    """POP_MESSAGE, read likewise."""

    code: int
    extFields: PopHeader
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
decode_send = msgspec.json.Decoder(TypedSend, strict=False).decode
decode_pull = msgspec.json.Decoder(TypedPull, strict=False).decode
decode_pop = msgspec.json.Decoder(TypedPop, strict=False).decode
encode_json = msgspec.json.Encoder().encode
