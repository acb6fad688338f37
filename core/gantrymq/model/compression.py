"""Bodies that a RocketMQ client compressed, as they were before (sysFlag bit 0; bits 8 to 10 name the way).

The broker stores a body as it came. Doors whose protocols know nothing of this deliver the data bytes. Zlib is always there;
LZ4 frames and Zstandard need the extra `compression` (packages lz4 and zstandard), imported at the first such body.
"""

from __future__ import annotations

import io
import logging
import zlib
from typing import Final

from gantrymq.model import sysflag
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import BODY_BYTES_CEILING

ZSTD_WINDOW_BYTES_MAX: Final = 32 * 1024 * 1024
"""Memory that a Zstandard frame may ask for; the Java client's levels up to 19 stay below 8 MiB."""

log = logging.getLogger(__name__)
_told: set[str] = set()
"""Packages whose absence was logged: once per process."""


def inflate(body: bytes, sys_flag: int, bytes_max: int = BODY_BYTES_CEILING) -> bytes:
    """The data bytes. Raises MESSAGE_ILLEGAL for a broken body, MESSAGE_TOO_LARGE over `bytes_max`, NOT_SUPPORTED without the package."""
    if not sys_flag & sysflag.COMPRESSED:
        return body
    kind = sys_flag & sysflag.COMPRESSION_MASK
    if kind in (0, sysflag.COMPRESSION_ZLIB):  # clients before 5.0 set no kind and use zlib
        data = _zlib(body, bytes_max)
    elif kind == sysflag.COMPRESSION_LZ4:
        data = _lz4(body, bytes_max)
    elif kind == sysflag.COMPRESSION_ZSTD:
        data = _zstd(body, bytes_max)
    else:
        raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"the body is compressed in a way that nobody knows: {kind >> 8}")
    if len(data) > bytes_max:
        raise GantryError(ErrorCode.MESSAGE_TOO_LARGE, f"the body inflates to over {bytes_max} bytes")
    return data


def _broken(name: str, error: object) -> GantryError:
    return GantryError(ErrorCode.MESSAGE_ILLEGAL, f"the body says {name} and is not: {error}")


def _missing(name: str, package: str) -> GantryError:
    text = f"the body is compressed with {name}: install {package} (pip install 'gantrymq[compression]')"
    if package not in _told:
        _told.add(package)
        log.warning("a message cannot be delivered as its sender meant it: %s", text)
    return GantryError(ErrorCode.NOT_SUPPORTED, text)


def _zlib(body: bytes, bytes_max: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise _broken("zlib", error) from None
    if not stream.eof and len(data) <= bytes_max:
        raise _broken("zlib", "it is cut short")
    return data


def _lz4(body: bytes, bytes_max: int) -> bytes:
    try:
        from lz4 import frame
    except ImportError:
        raise _missing("LZ4", "lz4") from None
    stream = frame.LZ4FrameDecompressor()
    try:
        data = bytes(stream.decompress(body, max_length=bytes_max + 1))
    except RuntimeError as error:
        raise _broken("LZ4", error) from None
    if not stream.eof and len(data) <= bytes_max:
        raise _broken("LZ4", "it is cut short")
    return data


def _zstd(body: bytes, bytes_max: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise _missing("Zstandard", "zstandard") from None
    try:
        size = zstandard.get_frame_parameters(body).content_size
        reader = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX).stream_reader(io.BytesIO(body))
        data = bytes(reader.read(bytes_max + 1))
    except zstandard.ZstdError as error:
        raise _broken("Zstandard", error) from None
    if size not in (zstandard.CONTENTSIZE_UNKNOWN, len(data)) and len(data) <= bytes_max:
        raise _broken("Zstandard", "it is cut short")
    return data
