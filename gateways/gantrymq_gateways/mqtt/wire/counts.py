"""What the connections of a gateway carried since it started. The hot paths add to it, per read, write or batch where they can."""

from __future__ import annotations


class Counts:
    """One gateway's. Bytes as they came from the transport; `published_*` are PUBLISH packets and their payloads."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "connects",
        "others_out",
        "packets_in",
        "published_bytes_in",
        "published_bytes_out",
        "published_in",
        "published_out",
        "sockets",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.packets_in = 0
        self.others_out = 0
        """Packets sent that are no PUBLISH."""
        self.published_in = 0
        self.published_bytes_in = 0
        self.published_out = 0
        self.published_bytes_out = 0
        self.connects = 0
        """Clients let in."""
        self.sockets = 0
        """Connections accepted."""
