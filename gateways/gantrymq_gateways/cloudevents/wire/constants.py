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
