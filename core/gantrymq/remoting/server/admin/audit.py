"""The audit trail, and what is open to whom: requests of `gantry auth audit` and `gantry auth status`, for administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from gantrymq.administration.reading import patiently
from gantrymq.model.names import AUDIT_TOPIC
from gantrymq.net.loopback import is_loopback
from gantrymq.net.places import GUEST, UNIX
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.dispatch import Handler
from gantrymq.remoting.headers import parse
from gantrymq.remoting.overview_codes import AUDIT, AUTH_STATUS

if TYPE_CHECKING:
    from gantrymq.administration.reading import Reading, Steps
    from gantrymq.auth.authority import Authority
    from gantrymq.net.listen import Listener
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.identity import Identity
    from gantrymq.remoting.server.jobs import Jobs
    from gantrymq.remoting.server.reply import Reply

EVENTS_MAX: Final = 500
"""Of one answer."""
STEP: Final = 32
"""Events read in one slice."""

ASK_NOBODY: Final = ("nameserver", "metrics")


class Trail:
    """What the handlers need. `authority` None: without authentication. `keyed`: members of the cluster show a key."""

    def __init__(
        self, authority: Authority | None, reading: Reading, jobs: Jobs, identity: Identity, keyed: bool
    ) -> None:
        self.authority = authority
        self.keyed = keyed
        self.reading = reading
        self.jobs = jobs
        self.identity = identity


class _From(msgspec.Struct):
    offset: int = -EVENTS_MAX


def audit(command: Command, reply: Reply, services: Trail) -> None:
    """AUDIT."""
    services.jobs.run(command, reply, _events(services.reading, parse(command.fields, _From).offset))


def _events(reading: Reading, offset: int) -> Steps[bytes]:
    begin, end = reading.trail(AUDIT_TOPIC)
    at = min(max(end + offset if offset < 0 else offset, begin), end)
    last = min(at + EVENTS_MAX, end)
    events: list[tuple[int, msgspec.Raw]] = []
    while at < last:
        events += yield from patiently(reading, lambda read, at=at: _read(read, at, min(STEP, last - at)))  # type: ignore[misc]
        at += min(STEP, last - at)
        yield None
    return bodies.encode({"begin": begin, "next": at, "end": end, "events": events})


def _read(reading: Reading, offset: int, count: int) -> list[tuple[int, msgspec.Raw]]:
    units = reading.trail_units(AUDIT_TOPIC, offset, count)
    found = reading.store.get_many([(position, size) for position, size, _ in units])
    return [(offset + number, msgspec.Raw(each.body)) for number, each in enumerate(found) if each is not None]


def status(command: Command, reply: Reply, services: Trail) -> None:
    """AUTH_STATUS."""
    authority = services.authority
    doors = [
        _door(name, listener, authority is not None)
        for name, opened in sorted(services.identity.listeners.items())
        for listener in opened
    ]
    found: dict[str, Any] = {"enabled": authority is not None, "clusterKey": services.keyed, "doors": doors}
    if authority is not None:
        users, trail = authority.users(), authority.audit
        found |= {
            "users": len(users),
            "administrators": sum(user.admin and user.enabled for user in users),
            "anonymous": authority.anonymous("", "") is not None,
            "failed": authority.logins.failed,
            "waiting": authority.logins.waiting,
            "audit": {"written": trail.written, "waiting": trail.waiting, "leftOut": trail.left_out},
        }
    reply.respond(command, body=bodies.encode(found | {"weak": list(_weak(found))}))


def _door(name: str, listener: Listener, asked: bool) -> dict[str, Any]:
    place, tls = listener.place, listener.tls
    here = place.scheme == UNIX or is_loopback(place.host)
    return {
        "door": name, "place": str(place), "reach": "this machine" if here else "network",
        "tls": "no" if tls is None else "required" if not place.speaks_plain else "optional",
        "clientCert": "psk" if place.has_keys else tls.client_cert if tls is not None else "none", "asks": asked and name not in ASK_NOBODY,
        "connections": listener.connections, "guest": place.options.get(GUEST, ""),
    }  # fmt: skip


def _weak(found: dict[str, Any]) -> Any:
    """A line for every point that one should know of."""
    if not found["enabled"]:
        yield "nobody is asked who he is: auth.enabled is false"
    elif not found["administrators"]:
        yield "nobody is administrator"
    if found.get("anonymous"):
        yield "clients without a name come in as the user anonymous"
    inner = ("nameserver", "broker")
    if not found["clusterKey"] and any(door["reach"] == "network" and door["door"] in inner for door in found["doors"]):
        yield "who registers brokers and acts as a gateway is known by its address alone: there is no auth.cluster_key_file"
    for door in found["doors"]:
        if door["reach"] != "network":
            continue
        what = f"{door['door']} at {door['place']} is open to other machines"
        if door["guest"]:
            yield f"{what} and takes who says no name for user {door['guest']}"
        if door["tls"] != "required":
            yield f"{what} without TLS: what is sent, passwords too, can be read on the way"
        if not door["asks"] and door["clientCert"] != "required":
            yield f"{what} and asks nobody who he is"


HANDLERS: Final[dict[int, Handler[Reply, Trail]]] = {AUDIT: audit, AUTH_STATUS: status}
"""By request code."""
