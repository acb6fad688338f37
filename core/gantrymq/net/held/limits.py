"""What one connection, one address and one process may take."""

from __future__ import annotations

from dataclasses import dataclass

from gantrymq.net.held.rates import NO_RATES, RateLimits
from gantrymq.net.loopback import Network


@dataclass(frozen=True, slots=True)
class PumpLimits:
    """Of a process."""

    outbound_bytes_max: int = 16 * 1024 * 1024
    """Bytes waiting for one slow reader above which its requests are not read any more: as much as one largest frame."""
    outbound_bytes_ceiling: int = 64 * 1024 * 1024
    """Bytes waiting for one reader at which it is cut off, for a door that delivers in spite of `outbound_bytes`."""
    outbound_bytes_process_max: int = 512 * 1024 * 1024
    """Bytes held for all slow readers together, payloads that several get counted once; over it the one with the most is cut off, so
    that many slow readers, each within its own limit, do not take the process's memory."""
    inbound_bytes_process_max: int = 512 * 1024 * 1024
    """Bytes held of all peers' unfinished requests; over it those held longest go, so that many peers that trickle do not take the
    process's memory. Thirty-two largest frames, and a hundred times what a fleet of ordinary senders has under way."""
    frame_timeout_ms: int = 120_000
    """From the first byte of a frame or body to its last: the largest message at 35 KB/s."""
    stalled_reader_ms: int = 30_000
    """No byte taken for so long while data waits: closed. Longer than any Wi-Fi roaming, shorter than usual keep-alives."""
    trusted_networks: tuple[Network, ...] = ()
    """Whose peers may do what this machine's may."""
    linger_ms: int = 1_000
    """Time for the peer to read our last words and close; closing at once would reset a peer that is still sending."""
    connections_max: int = 100_000
    """Connections of the process, all doors together; also kept below the limit of open files."""
    door_connections_max: int = 100_000
    """Connections of one open port: what is idle at one door must not shut the others."""
    address_connections_max: int = 10_000
    """Connections of one address, all doors together, this machine and trusted networks aside: one machine must not shut out the others."""
    address_rates: RateLimits = NO_RATES
    """What each address may take in a second, these aside."""
    user_rates: RateLimits = NO_RATES
    """The same of each user who has shown who he is, wherever he is."""
