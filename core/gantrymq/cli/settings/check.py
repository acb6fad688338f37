"""All settings of an installation looked at together: what is wrong with them, and what is in force.

A service that is switched off is not imported unless its settings are to be checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any

from gantrymq.cli.settings.catalog import sections_of, settings_of
from gantrymq.config import ServerConfig, Settings, parse_nameservers
from gantrymq.launch.checks import cluster_key_of, contradictions
from gantrymq.launch.openings import openings_of
from gantrymq.launch.plan import LoadError, load_service
from gantrymq.model.errors import ConfigError
from gantrymq.services import Service


@dataclass(slots=True)
class Examined:
    """What an installation makes of its settings."""

    sections: dict[str, tuple[type, tuple[str, ...]]] = field(default_factory=dict)
    """Known sections: dataclass, and the keys that it may have beside its fields."""
    values: dict[str, Any] = field(default_factory=dict)
    """Instances of the dataclasses; what is wrong has its default."""
    off: list[str] = field(default_factory=list)
    """Services that are switched off."""
    errors: list[ConfigError] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Effective:
    """One setting in force."""

    name: str
    value: object
    default: object
    source: str
    """`default`, `FILE:LINE`, `environment NAME`, or an option."""


def examine(settings: Settings, installed: Mapping[str, EntryPoint], off_too: bool) -> Examined:
    """Look at every setting. `off_too`: those of services that are switched off, too."""
    found = Examined(errors=list(settings.errors))
    services: dict[str, Service] = {}
    for name, point in installed.items():
        on = _is_on(settings, name, found.errors)
        if not on:
            found.off.append(name)
        if on or (off_too and settings.sections[name].keys() - {"enabled"}):
            _load(name, point, services, found.errors)
    if any(name not in {*installed, *sections_of(services)} for name in settings.sections):
        for name in found.off:  # the section may be theirs
            if name not in services:
                _load(name, installed[name], services, [])
    found.sections |= sections_of(services)
    settings.examine_sections({*found.sections, *installed}, found.errors)
    for name, (section, common) in found.sections.items():
        found.values[name] = settings.examine(name, section, found.errors, common)
    on_here = {name: found.values[name] for name in services if name not in found.off}
    server: ServerConfig = found.values["server"]
    found.errors += contradictions(settings, server, on_here, found.values["auth"].enabled)
    running = [service for name, service in services.items() if name not in found.off]
    openings_of(settings, found.values, running, found.errors)
    try:
        cluster_key_of(settings, found.values["auth"])
    except ConfigError as error:
        found.errors.append(error)
    given = settings.get("server", "nameserver")
    if server.nameserver and given is not None:
        try:
            parse_nameservers(server.nameserver, given.source)
        except ConfigError as error:
            found.errors.append(ConfigError(str(error), given.source))
    found.errors = list({str(error): error for error in found.errors}.values())
    return found


def _is_on(settings: Settings, name: str, errors: list[ConfigError]) -> bool:
    try:
        return settings.flag(name, "enabled", True)
    except ConfigError as error:
        errors.append(error)
        return True


def _load(name: str, point: EntryPoint, services: dict[str, Service], errors: list[ConfigError]) -> None:
    try:
        services[name] = load_service(point)
    except LoadError as error:
        errors.append(ConfigError(str(error)))


def effective(settings: Settings, found: Examined) -> list[Effective]:
    """Every setting in force, section by section; of a service that is switched off only that."""
    rows: list[Effective] = []
    for name in [*found.sections, *[name for name in found.off if name not in found.sections]]:
        if name in found.off:
            raw = settings.get(name, "enabled")
            rows.append(Effective(f"{name}.enabled", False, True, raw.source if raw is not None else "default"))
            continue
        section, common = found.sections[name]
        for setting in settings_of(name, section, common):
            raw = settings.get(name, setting.key)
            value = getattr(found.values[name], setting.key, setting.default)
            rows.append(Effective(setting.name, value, setting.default, raw.source if raw is not None else "default"))
    return rows
