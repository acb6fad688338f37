"""Rows of table `mqtt_retained`: what a topic of MQTT retains.

Key: native topic + `/` + tag, or `#` + SHA-256 of the topic where that is too long for a key. Value: QoS (1 byte), length of the topic (2 bytes), topic,
payload. With MQTT 5.0 properties or an expiry the first byte has `EXTENDED` added, and between topic and payload stand the expiry (8 bytes, ms since
the epoch, 0: none), the length of the property list (4 bytes) and the list. An empty payload deletes [MQTT-3.3.1-10].
"""

from __future__ import annotations

import hashlib
from typing import Final

from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError

TABLE: Final = "mqtt_retained"
KEY_BYTES_MAX: Final = 4000
"""Table keys have at most 4 KiB, and so have tags alone."""
EXTENDED: Final = 0x80
FIXED: Final = 3
"""Bytes of every row besides what a client sent."""
PAIRS_RESERVE: Final = 1024
"""Bytes of a record's properties that are left for what the store writes there, where a message is the row, too."""
_STANDING: Final = "/+#"
"""They stay escaped in what is decoded: one level with a separator or wildcard in it is no topic of MQTT."""


def row_key(topic: str) -> str:
    """Key of a topic's row."""
    first, *words = topic.split("/")
    key = names.encode_topic(first) + "/" + names.encode_tag(words)
    return key if len(key) <= KEY_BYTES_MAX else "#" + hashlib.sha256(topic.encode()).hexdigest()


def row_head(topic: str, qos: int, listed: bytes = b"", expires_ms: int = 0) -> bytes:
    """All of a row but the payload. `listed`: MQTT 5.0 properties."""
    encoded = topic.encode()
    head = len(encoded).to_bytes(2, "big") + encoded
    if not listed and not expires_ms:
        return bytes((qos,)) + head
    return bytes((qos | EXTENDED,)) + head + expires_ms.to_bytes(8, "big") + len(listed).to_bytes(4, "big") + listed


def mqtt_topic(native: str, tag: str) -> str:
    """The topic of MQTT that a message of this topic and tag has. Raises NAME_INVALID where only a gateway could tell, or it is none."""
    levels = [names.decode_escapes(part, _STANDING) for part in (native, *(tag.split(".") if tag else ()))]
    try:
        same = names.encode_topic(levels[0]) == native and names.encode_tag(levels[1:]) == tag
    except GantryError:
        same = False
    if not same or len("/".join(levels).encode()) > 0xFFFF:
        text = f"topic {native[:80]!r} with tag {tag[:80]!r} is no topic of MQTT, so nothing can be retained there"
        raise GantryError(ErrorCode.NAME_INVALID, text)
    return "/".join(levels)
