"""Names and limits of the CloudEvents door. One place per fact; each limit says why it has its value."""

from __future__ import annotations

from typing import Final

SPECVERSION: Final = "1.0"
REQUIRED: Final = ("specversion", "id", "source", "type")
"""Attributes that every event has, non-empty (spec.md, REQUIRED Attributes)."""

STRUCTURED_TYPE: Final = "application/cloudevents+json"
BATCH_TYPE: Final = "application/cloudevents-batch+json"
JSON_TYPE: Final = "application/json"
OCTETS_TYPE: Final = "application/octet-stream"
PROBLEM_TYPE: Final = "application/problem+json"

ORIGIN: Final = "cloudevents"
"""Value of GANTRY_ORIGIN for messages of this door."""
DATA_STATE: Final = "GANTRY_CE_DATA"
"""Property of an event without data (`absent`) or with JSON null (`null`); without it data is there, if empty."""
ATTRIBUTE_TYPES: Final = "GANTRY_CE_TYPES"
"""Property with the JSON types of extensions that are no non-empty strings, joined by spaces: `name=i`
(Integer), `name=b` (Boolean), `name=e` (empty string, which a property cannot hold)."""
DLQ_REASON: Final = "GANTRY_DLQ_REASON"
DLQ_STATUS: Final = "GANTRY_DLQ_STATUS"
DLQ_ATTEMPTS: Final = "GANTRY_DLQ_ATTEMPTS"

SUBSCRIPTION_TABLE: Final = "ce_subscription"

HEAD_BYTES_MAX: Final = 32 * 1024
"""Request line and headers: what a record's properties cannot hold (32,767 bytes) would not be stored anyway."""
HEADERS_MAX: Final = 200
"""Header lines of a request: RocketMQ allows 128 properties, and proxies add a few dozen lines."""
TARGET_BYTES_MAX: Final = 2048
"""Request target: a topic of 127 bytes, percent-encoded three times over, fits with room."""
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

BATCH_EVENTS_MAX: Final = 10_000
"""Events of one batch request: bounds the time of one loop turn (about 15 us per event)."""
JSON_OVERHEAD_BYTES: Final = 64 * 1024
"""What the attributes of an event of the largest size may add to its request."""

FILTER_DEPTH_MAX: Final = 8
"""Nesting of `all`, `any`, `not`; deeper ones are written by programs gone wrong."""
FILTERS_MAX: Final = 100
"""Filter expressions of one subscription, nested ones included; each is evaluated per message."""
SUBSCRIPTION_BYTES_MAX: Final = 16 * 1024
"""Body of `POST /subscriptions`; it is kept in memory and in the log."""
SINK_BYTES_MAX: Final = 2048
"""Length of a sink URL."""
MAXATTEMPTS_DEFAULT: Final = 10
MAXATTEMPTS_CEILING: Final = 100
"""With the largest back-off 100 attempts span an hour and a half; a sink away for longer asks with `from`."""

MAXAGE_S_DEFAULT: Final = 24 * 60 * 60
MAXAGE_S_CEILING: Final = 7 * 24 * 60 * 60
"""Seconds for which an event waits on a sink that asks to wait; after a week somebody has to look."""

RESPONSE_BYTES_MAX: Final = 64 * 1024
"""Read from a sink's answer, headers included; more closes the connection (nobody reads the body)."""
DELIVERY_TIMEOUT_MS: Final = 15_000
"""One attempt, from connecting to the end of the answer."""
WINDOW_EVENTS: Final = 256
"""Entries that one subscription holds acquired, waiting ones included."""
WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Bodies that one subscription holds acquired; one message may exceed it alone."""
PROCESS_WINDOW_BYTES: Final = 64 * 1024 * 1024
"""Bodies that all subscriptions of a process hold acquired; above it each goes on with one message at a time."""
ACQUIRE_MAX: Final = 64
"""Entries per acquire: enough to fill the lanes, too few for one subscription to own a loop turn."""
