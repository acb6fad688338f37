"""Which names an HTTP door on loopback may be asked by: no page in a browser reaches it under a name of its own (DNS rebinding).

A browser lets a page talk to whatever address the page's name has by now, and says the name in `Host`. So a door that only this machine can
reach answers to names of loopback alone, and to those of `server.host_names`. A door that others can reach answers to every name.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from gantrymq.net.loopback import is_loopback

KNOWN_MAX: Final = 256
"""Values of `Host` remembered as good: clients of a machine use a few; at the limit it begins anew."""
SHOWN_BYTES_MAX: Final = 100
"""Of a refused name, in the answer."""


def host_names(text: str) -> tuple[str, ...]:
    """The names of `server.host_names`, in lower case. Raises ValueError for what is no name, such as one with a port."""
    found = tuple([part.strip().lower() for part in text.split(",") if part.strip()])
    for name in found:
        if not all(letter.isalnum() or letter in "-._" for letter in name):
            raise ValueError(f"{name!r} is no name of a host")
    return found


class HostNames:
    """The names of one door."""

    __slots__ = ("_any", "_known", "_names")

    def __init__(self, bound: str, names: Iterable[str] = ()) -> None:
        """`bound`: the address or name that the door is bound to. Raises OSError for a name that cannot be resolved."""
        self._any = not is_loopback(bound)
        self._names = {"localhost", bound.lower(), *names}
        self._known: set[bytes] = set()

    def refusal(self, host: bytes | None) -> str:
        """Why a request with this `Host` is not answered; empty if it is. None: it has none, so that it comes from no browser."""
        if self._any or host is None or host in self._known:
            return ""
        if not self._is_ours(name_of(host)):
            shown = host[:SHOWN_BYTES_MAX].decode("latin-1")
            return f"Host {shown!r} is no name of this machine's loopback, where this port listens; server.host_names allows more"
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known.add(host)
        return ""

    def _is_ours(self, name: str) -> bool:
        if name in self._names:
            return True
        try:
            return ip_address(name).is_loopback
        except ValueError:
            return False


def name_of(host: bytes) -> str:
    """The host of `Host` or of a target's authority, without port and brackets, in lower case."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if ":" in text else text


def asked_host(target: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The host that a request is for: of its target if that names one (RFC 9112 3.2.2), else of `Host` (names in lower case)."""
    _, mark, rest = target.partition(b"://")
    if mark and not target.startswith(b"/"):
        return rest.partition(b"/")[0].partition(b"?")[0].rpartition(b"@")[2]
    return next((value for name, value in headers if name == b"host"), None)
