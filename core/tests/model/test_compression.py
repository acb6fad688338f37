"""Compressed bodies: the three ways of RocketMQ's clients, limits, damage, and what is said without a package."""

from __future__ import annotations

import sys
import zlib

import lz4.frame
import pytest
import zstandard

from gantrymq.model import sysflag
from gantrymq.model.compression import inflate
from gantrymq.model.errors import ErrorCode, GantryError

DATA = b"temperature 21.5 " * 1000
LZ4 = sysflag.COMPRESSED | sysflag.COMPRESSION_LZ4
ZSTD = sysflag.COMPRESSED | sysflag.COMPRESSION_ZSTD
ZLIB = sysflag.COMPRESSED | sysflag.COMPRESSION_ZLIB


def packed(flags: int, data: bytes = DATA) -> bytes:
    if flags == LZ4:
        return bytes(lz4.frame.compress(data, block_linked=False))
    if flags == ZSTD:
        return zstandard.ZstdCompressor(write_content_size=False).compress(data)
    return zlib.compress(data)


@pytest.mark.parametrize("flags", [LZ4, ZSTD, ZLIB, sysflag.COMPRESSED])
def test_round_trip(flags: int) -> None:
    assert inflate(packed(flags), flags) == DATA
    assert inflate(packed(flags, b""), flags) == b""


def test_bodies_that_are_not_compressed_stay() -> None:
    assert inflate(b"x", 0) == b"x"
    assert inflate(b"x", sysflag.COMPRESSION_LZ4) == b"x"  # the bits mean nothing without bit 0


@pytest.mark.parametrize("flags", [LZ4, ZSTD, ZLIB])
def test_too_large(flags: int) -> None:
    bomb = packed(flags, bytes(5_000_000))
    with pytest.raises(GantryError, match="over 4999999 bytes") as caught:
        inflate(bomb, flags, 4_999_999)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert len(inflate(bomb, flags, 5_000_000)) == 5_000_000


@pytest.mark.parametrize("flags", [LZ4, ZSTD, ZLIB])
@pytest.mark.parametrize("body", [b"", b"no frame at all", b"\x00" * 40])
def test_broken(flags: int, body: bytes) -> None:
    with pytest.raises(GantryError) as caught:
        inflate(body, flags)
    assert caught.value.code is ErrorCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("flags", "body"),
    [(LZ4, packed(LZ4)), (ZLIB, packed(ZLIB)), (ZSTD, zstandard.ZstdCompressor().compress(DATA))],
)
def test_cut_short(flags: int, body: bytes) -> None:
    with pytest.raises(GantryError, match=r"cut short|is not"):
        inflate(body[:-5], flags)


def test_unknown_way() -> None:
    with pytest.raises(GantryError, match="nobody knows: 5") as caught:
        inflate(b"x", sysflag.COMPRESSED | 0x500)
    assert caught.value.code is ErrorCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(("flags", "package"), [(LZ4, "lz4"), (ZSTD, "zstandard")])
def test_without_the_package(monkeypatch: pytest.MonkeyPatch, flags: int, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.frame", None)
    with pytest.raises(GantryError, match=rf"install {package} \(pip install 'gantrymq\[compression\]'\)") as caught:
        inflate(b"x", flags)
    assert caught.value.code is ErrorCode.NOT_SUPPORTED


def test_a_window_larger_than_any_body_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = stream.compress(bytes(100)) + stream.flush()
    with pytest.raises(GantryError, match="Zstandard and is not"):
        inflate(body, ZSTD)
