"""Limits of every HTTP server here; each says why it has its value."""

from __future__ import annotations

from typing import Final

HEAD_BYTES_MAX: Final = 32 * 1024
"""Request line and headers: what a record's properties cannot hold (32,767 bytes) would not be stored anyway."""
HEADERS_MAX: Final = 200
"""Header lines of a request: RocketMQ allows 128 properties, and proxies add a few dozen lines."""
TARGET_BYTES_MAX: Final = 8 * 1024
"""Request target: at least 8,000 bytes are recommended (RFC 9112 3); four names of 255 bytes, percent-encoded, take 3 KiB."""
PIPELINE_MAX: Final = 64
"""Requests of one connection without an answer; above it reading stops until answers go out."""
PIPELINE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bodies of one connection without an answer; the same."""
REQUESTS_PER_TURN: Final = 32
"""Requests of one connection handled before others have their turn: a few milliseconds."""
CHUNKS_PER_TURN: Final = 100
"""Chunks of one connection's bodies read before others have their turn: each costs some 30 us, whatever its size."""
CHUNKS_MAX: Final = 10_000
CHUNK_BYTES_MIN: Final = 64
"""A body has at most `CHUNKS_MAX` chunks and one more for each of so many bytes; a chunk per byte is minutes of work for a few megabytes."""
HEAD_DEADLINE_MS: Final = 15_000
"""From the first byte of a request to the end of its headers."""
BODY_DEADLINE_MS: Final = 30_000
"""Between two reads of a body that together bring `BODY_PROGRESS_BYTES`."""
BODY_PROGRESS_BYTES: Final = 16 * 1024
"""A slower body is a slow-loris: 16 KiB in 30 s is below any link that carries webhooks."""
DRAIN_BYTES_MAX: Final = 64 * 1024
"""Rest of a body that is read and dropped after the request was refused at its head, so that the connection lives; after a longer one it is
closed."""
IDLE_DEADLINE_MS: Final = 75_000
"""Keep-alive without a request; above the 60 s that load balancers keep connections."""
