"""Bits of a record's sysFlag, of a pull request's and of a topic's (RocketMQ MessageSysFlag, PullSysFlag)."""

from __future__ import annotations

from typing import Final

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2
TRANSACTION_MASK: Final = 0xC
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
"""Records with this value enter no queue and no index; fillers carry it."""
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
INNER_BATCH: Final = 0x80
COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

PULL_COMMIT_OFFSET: Final = 0x1
PULL_SUSPEND: Final = 0x2
PULL_SUBSCRIPTION: Final = 0x4
PULL_CLASS_FILTER: Final = 0x8
PULL_LITE: Final = 0x10
