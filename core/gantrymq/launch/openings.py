"""What the doors of a process listen on: the places of `SECTION.listeners`, or the one of `server.host` and `SECTION.port`.

What can be told to be wrong before anything starts is told here: places that are none, that two doors share, that other machines reach
though nobody is authenticated, and certificates that cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gantrymq.auth.config import AuthConfig
from gantrymq.config import ServerConfig, Settings
from gantrymq.launch.checks import check_bind
from gantrymq.model.errors import ConfigError
from gantrymq.net.loopback import is_loopback
from gantrymq.net.places import GUEST, IDENTITY_IS_USER, Place, parse_place
from gantrymq.net.tls.contexts import Context, Outgoing, TlsConfig, TlsError, outgoing_of
from gantrymq.net.tls.keyed import KeyedContext

WITH_KEYS: Final = ("mqtt",)
"""Doors whose clients know pre-shared keys."""

WITH_GUESTS: Final = ("broker", "mqtt", "cloudevents")
"""Doors at which a client may say no name."""


@dataclass(slots=True)
class Openings:
    """Places of every door, and their TLS contexts."""

    places: dict[str, list[Place]] = field(default_factory=dict)
    """By service; only of those that have `listeners`."""
    contexts: dict[tuple[str, int], Context] = field(default_factory=dict)
    """By service and position."""
    outgoing: Outgoing | None = None
    """Of connections to other processes of the cluster; None: they have no TLS."""
    protocols: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """ALPN names that each service speaks."""

    def host(self, name: str, default: str) -> str:
        """The address that most can reach, of those that a door listens on."""
        hosts = [place.host for place in self.places.get(name, ())]
        return next((host for host in hosts if not is_loopback(host)), hosts[0] if hosts else default)

    def each(self, name: str, host: str, port: int) -> list[tuple[Place, Context | None]]:
        """Where a door listens that asks for `host` and `port`."""
        places = self.places.get(name)
        if not places:
            return [(Place(host, port), None)]
        return [(place, self.contexts.get((name, number))) for number, place in enumerate(places)]

    def further(self, name: str, host: str, port: int) -> tuple[Place, Context | None]:
        """Where a door that is open listens on one more port: as at its first place."""
        first, context = self.each(name, host, port)[0]
        return Place(first.host, port, first.scheme, first.options), context

    def all_contexts(self) -> list[Context]:
        """Those to look after."""
        return [*self.contexts.values(), *([self.outgoing] if self.outgoing is not None else [])]

    def is_plain(self, name: str) -> bool:
        """What connects to this door's first place has no TLS."""
        places = self.places.get(name)
        return not places or not places[0].speaks_tls


def openings_of(
    settings: Settings, own: Mapping[str, Any], services: Iterable[Any], errors: list[ConfigError]
) -> Openings:
    """The places of services (`services.Service`); what is wrong is added to `errors`. `own`: the process's sections."""
    found = Openings()
    try:
        found.outgoing = outgoing_of(own["tls"])
    except TlsError as error:
        errors.append(ConfigError(str(error)))
    for service in services:
        raw = settings.get(service.name, "listeners")
        if raw is None:
            errors += _unasked(settings, own, service, [])
            continue
        found.protocols[service.name] = tuple(getattr(service, "alpn", ()))
        try:
            found.places[service.name] = _places(settings, service.name)
        except ConfigError as error:
            errors.append(error)
            continue
        errors += _wrong(settings, own, service.name, found.places[service.name])
        errors += _unasked(settings, own, service, found.places[service.name])
        _load(found, own["tls"], service.name, raw.source, errors)
    errors += _shared(settings, found.places)
    return found


def unregistrable(auth: AuthConfig, has_key: bool, openings: Openings | None) -> Iterator[ConfigError]:
    """A broker that its own process's nameserver would not take. `openings`: None where another nameserver is asked."""
    if not auth.cluster_certificates or has_key or openings is None:
        return
    outgoing = openings.outgoing
    if openings.is_plain("nameserver") or outgoing is None or not outgoing.config.cluster_cert:
        yield ConfigError(
            "auth.cluster_certificates: the broker of this process could show its nameserver none; give nameserver.listeners tls:// first and "
            "tls.cluster_ca and tls.cluster_cert, or auth.cluster_key_file beside it"
        )


def _places(settings: Settings, name: str) -> list[Place]:
    """Raises `ConfigError`."""
    raw = settings.get(name, "listeners")
    assert raw is not None
    places = []
    for text in settings.texts(name, "listeners"):
        try:
            places.append(parse_place(text))
        except ValueError as error:
            raise ConfigError(f'{name}.listeners = "{text}" ({raw.source}): {error}', raw.source) from error
    port = settings.get(name, "port")
    if places and port is not None and port.source != "--free-ports":
        raise ConfigError(
            f"{name}.port = {port.value} ({port.source}): {name}.listeners ({raw.source}) says where it listens; drop one of both",
            port.source,
        )
    return places


def _wrong(settings: Settings, own: Mapping[str, Any], name: str, places: list[Place]) -> Iterator[ConfigError]:
    raw = settings.get(name, "listeners")
    source = raw.source if raw is not None else "default"
    server: ServerConfig = own["server"]
    auth: bool = own["auth"].enabled
    for place in places:
        may = server.insecure_bind or (auth and (server.plaintext_bind or not place.speaks_plain))
        try:
            check_bind(place.host, may, source, f"{name}.listeners", auth)
        except ConfigError as error:
            yield error
        yield from _wrong_keys(place, name, source, auth)
        if GUEST in place.options and (not auth or name not in WITH_GUESTS):
            why = (
                "auth.enabled is false" if not auth else f"clients without a name come to {', '.join(WITH_GUESTS)} only"
            )
            yield ConfigError(
                f"{name}.listeners = {place} ({source}): user={place.options[GUEST]} means nothing here: {why}", source
            )


def _wrong_keys(place: Place, name: str, source: str, auth: bool) -> Iterator[ConfigError]:
    if place.has_keys and name not in WITH_KEYS:
        yield ConfigError(
            f"{name}.listeners = {place} ({source}): psk_file is for {', '.join(WITH_KEYS)}; give it cert= and key=",
            source,
        )
    elif place.options.get(IDENTITY_IS_USER) == "true" and not auth:
        yield ConfigError(
            f"{name}.listeners = {place} ({source}): {IDENTITY_IS_USER} means nothing here: auth.enabled is false",
            source,
        )


def _unasked(settings: Settings, own: Mapping[str, Any], service: Any, places: list[Place]) -> Iterator[ConfigError]:
    """Where clients say who they are, a door that asks nobody (`asks_nobody`) is for this machine, or for certificates that are good."""
    server: ServerConfig = own["server"]
    if not own["auth"].enabled or server.insecure_bind or not getattr(service, "asks_nobody", False):
        return
    raw = settings.get(service.name, "listeners") if places else settings.get("server", "host")
    source = raw.source if raw is not None else "default"
    name = service.name
    setting = f"{name}.listeners" if places else "server.host"
    for place in places or [Place(server.host, 0)]:
        shown = not place.speaks_plain and own["tls"].of(place).client_cert == "required"
        if shown or _is_here(place):
            continue
        yield ConfigError(
            f'{setting} = "{place if places else server.host}" ({source}): {name} asks nobody who he is, and other machines could read; '
            f"give {name}.listeners tcp:// on 127.0.0.1, or tls:// with client_cert=required, or set {name}.enabled=false",
            source,
        )


def _is_here(place: Place) -> bool:
    """Nobody of another machine reaches it; what cannot be resolved is told by `check_bind`."""
    try:
        return is_loopback(place.host)
    except OSError:
        return True


def _load(found: Openings, tls: TlsConfig, name: str, source: str, errors: list[ConfigError]) -> None:
    for number, place in enumerate(found.places[name]):
        if place.speaks_tls:
            try:
                own = tls.of(place)
                if place.has_keys:
                    found.contexts[name, number] = KeyedContext(own, place, found.protocols[name])
                else:
                    found.contexts[name, number] = Context(own, found.protocols[name])
            except TlsError as error:
                errors.append(ConfigError(f"{name}.listeners = {place} ({source}): {error}", source))


def _shared(settings: Settings, places: Mapping[str, list[Place]]) -> Iterator[ConfigError]:
    """Two doors cannot have one port of one address; 0 is a free one."""
    takers: dict[tuple[str, int], str] = {}
    for name, listed in places.items():
        raw = settings.get(name, "listeners")
        source = raw.source if raw is not None else "default"
        for place in listed:
            first = takers.setdefault((place.host, place.port), name) if place.port else name
            if first != name or (place.port and listed.count(place) > 1):
                yield ConfigError(f"{name}.listeners = {place} ({source}): {first} listens there, too", source)
