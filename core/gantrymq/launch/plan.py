"""What a process is to run: the services that are wanted, found and loaded, with every setting read and checked.

Services come from the entry-point group `gantrymq.services`; one that is not wanted is not imported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from gantrymq.auth.config import AuthConfig
from gantrymq.auth.members.key import ClusterKey
from gantrymq.config import (
    PROCESS_SECTIONS,
    SERVICE_KEYS,
    ServerConfig,
    Settings,
    gather,
    parse_nameservers,
    refuse,
)
from gantrymq.launch.checks import check_ready_file, cluster_key_of, contradictions
from gantrymq.launch.openings import Openings, openings_of, unregistrable
from gantrymq.model.errors import ConfigError, GantryError
from gantrymq.model.settings import is_part
from gantrymq.services import Service

log = logging.getLogger(__name__)

SERVICES: Final = "gantrymq.services"
"""The entry-point group."""
BEFORE_DOORS: Final = ("nameserver", "broker")
"""Started first, in this order, and stopped last."""
METRICS: Final = "metrics"
"""Started before all, so that it can tell what the others do; in every process."""
WITHOUT_PORT: Final = (METRICS, *BEFORE_DOORS)
"""Services that are no doors to a broker."""

NAMESERVER_DEFAULT: Final = "127.0.0.1:9876"


@dataclass(frozen=True, slots=True)
class Launch:
    """What a command line asks for."""

    command: str
    """`up`, `nameserver`, `broker` or `gateway`."""
    services: tuple[str, ...] = ()
    """Names given to `gateway`; empty: all."""
    data: str | None = None
    host: str | None = None
    config: str | None = None
    nameserver: str | None = None
    ready_file: str | None = None
    log_level: str | None = None
    log_format: str | None = None
    sets: tuple[str, ...] = ()
    free_ports: bool = False
    accept_loss: bool = False
    """Start though segments of the log are missing."""


@dataclass(slots=True)
class Plan:
    """A launch with everything read and checked."""

    server: ServerConfig
    services: list[Service]
    configs: dict[str, Any]
    sections: dict[str, dict[str, Any]]
    openings: Openings
    auth: AuthConfig
    cluster_key: ClusterKey | None
    nameservers: list[str]
    data_is_default: bool
    ready_file: Path | None
    accept_loss: bool
    own_nameserver: bool
    """The nameserver of this process is the one to use: there is one, and no other was named."""


def discover() -> dict[str, EntryPoint]:
    """Installed services by name; nothing is imported."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=SERVICES):
        found.setdefault(point.name, point)
    return found


def wanted_names(launch: Launch, settings: Settings, installed: Mapping[str, EntryPoint]) -> list[str]:
    """Names of the services to start, in their order. Raises `ConfigError`."""
    gateways = [name for name in installed if name not in WITHOUT_PORT]
    if launch.command == "up":
        asked = [*BEFORE_DOORS, *gateways]
        if (
            (given := settings.get("server", "nameserver"))
            and given.value
            and not settings.get("nameserver", "enabled")
        ):
            asked.remove("nameserver")  # another one was named: nobody would look for us here
    elif launch.command == "gateway":
        asked = list(dict.fromkeys(launch.services)) or gateways
        for name in asked:
            if name not in gateways:
                raise ConfigError(f"gateway {name}: no such service; installed: {', '.join(sorted(gateways))}")
    else:
        asked = [launch.command]
    for name in asked:
        if name not in installed:
            raise ConfigError(f"service {name} is not installed (entry-point group {SERVICES})")
    on = [name for name in asked if settings.flag(name, "enabled", True)]
    if launch.command != "up" and launch.services:
        for name in asked:
            if name not in on:
                raise ConfigError(f"{name}.enabled = false, but the command line asks for {name}: drop one of both")
    if not on:
        raise ConfigError("every service is off: nothing to start")
    on.sort(
        key=lambda name: (BEFORE_DOORS.index(name) if name in BEFORE_DOORS else len(BEFORE_DOORS), asked.index(name))
    )
    return [METRICS, *on] if METRICS in installed and settings.flag(METRICS, "enabled", True) else on


class LoadError(Exception):
    """A service's code cannot be imported or made; the text is one line for the user."""


def load_service(point: EntryPoint) -> Service:
    """Import and make one service. Raises `LoadError`: whatever a stranger's module does must end in one line."""
    try:
        service: Service = point.load()()
    except Exception as error:
        log.debug("%s: traceback", point.name, exc_info=True)
        raise LoadError(
            f"{point.name}: cannot be loaded: {reason_of(error)}; --set {point.name}.enabled=false leaves it out"
        ) from error
    return service


def find_service(name: str) -> Service:
    """Find and load a service that is installed. Raises `LoadError`."""
    return load_service(discover()[name])


def make_plan(launch: Launch, environment: Mapping[str, str]) -> Plan:
    """Read every source and check every name and value. Raises `ConfigError` with everything that is wrong, and `LoadError`."""
    settings = read_settings(launch, environment)
    installed = discover()
    names = wanted_names(launch, settings, installed)
    if launch.free_ports:
        for name in names:
            given = settings.get(name, "port")
            if given is None or given.source != "--set":
                settings.put(name, "port", 0, "--free-ports")
    services = [load_service(installed[name]) for name in names]
    errors = list(settings.errors)
    settings.examine_sections(known_sections(settings, services, installed), errors)
    own: dict[str, Any] = {name: settings.examine(name, section, errors) for name, section in PROCESS_SECTIONS.items()}
    server: ServerConfig = own["server"]
    configs: dict[str, Any] = {
        service.name: settings.examine(service.name, service.config, errors, SERVICE_KEYS) for service in services
    }
    sections: dict[str, dict[str, Any]] = {
        service.name: {
            name: settings.examine(name, section, errors, others_keys(settings, name, section))
            for name, section in service.extra_sections.items()
        }
        for service in services
    }
    errors += contradictions(settings, server, configs, own["auth"].enabled)
    openings = openings_of(settings, own, services, errors)
    own_nameserver = "nameserver" in names and not server.nameserver
    source = "--nameserver" if server.nameserver else "NAMESRV_ADDR"
    named = "" if own_nameserver else server.nameserver or environment.get("NAMESRV_ADDR", "")
    nameservers: list[str] = []
    ready_file: Path | None = None
    key: ClusterKey | None = None
    try:
        key = cluster_key_of(settings, own["auth"])
    except ConfigError as error:
        errors.append(error)
    try:
        ready_file = check_ready_file(launch.ready_file, Path(server.data))
        nameservers = parse_nameservers(named or NAMESERVER_DEFAULT, source)
    except ConfigError as error:
        errors.append(error)
    errors += unregistrable(own["auth"], key is not None, openings if own_nameserver else None)
    refuse(list({str(error): error for error in errors}.values()))  # services share sections
    return Plan(
        server=server,
        services=services,
        configs=configs,
        sections=sections,
        openings=openings,
        auth=own["auth"],
        cluster_key=key,
        nameservers=nameservers,
        data_is_default=settings.get("server", "data") is None,
        ready_file=ready_file,
        accept_loss=launch.accept_loss,
        own_nameserver=own_nameserver,
    )


def others_keys(settings: Settings, name: str, section: type) -> tuple[str, ...]:
    """Keys given for a section of which a service reads a part: whose it is knows them."""
    return tuple(settings.sections.get(name, ())) if is_part(section) else ()


def read_settings(launch: Launch, environment: Mapping[str, str]) -> Settings:
    """Every value given, by the file, the environment and the command line; what is no value is in its `errors`."""
    settings = gather(launch.config, environment, launch.sets)
    for key in ("host", "data", "nameserver", "log_level", "log_format"):
        value = getattr(launch, key)
        if value is not None:
            settings.put("server", key, value, f"--{key.replace('_', '-')}")
    return settings


def known_sections(settings: Settings, services: list[Service], installed: Mapping[str, EntryPoint]) -> set[str]:
    """Sections that may be given: those of services that run here or do not, as one file may configure every process of a machine.

    Only a section that nobody here knows makes the other services be imported, to ask them for theirs; a service that is
    switched off is known by its name alone.
    """
    known = {*PROCESS_SECTIONS, *installed}
    for service in services:
        known.update(service.extra_sections)
    if any(name not in known for name in settings.sections):
        running = {service.name for service in services}
        for name, point in installed.items():
            if name not in running and settings.flag(name, "enabled", True):
                try:
                    known.update(load_service(point).extra_sections)
                except LoadError as error:
                    log.debug("%s: its settings are not checked: %s", name, error)
    return known


def reason_of(error: Exception) -> str:
    """A failure in one line."""
    if isinstance(error, (GantryError, ConfigError)):
        return str(error)
    if isinstance(error, OSError):
        text = error.strerror or str(error)
        return f"{text}: {error.filename}" if error.filename else text
    return f"{type(error).__name__}: {error}".replace("\n", " ")
