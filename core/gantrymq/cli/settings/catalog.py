"""Every setting there is, with what its dataclass says about it: for documentation, samples, and whoever asks what is in force.

A section's dataclass is the only place where a setting is described: its annotation, default, metadata and the docstring below the field.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Final, get_type_hints

from gantrymq.config import PROCESS_SECTIONS, SERVICE_KEYS, default_of, describe, limits_of
from gantrymq.model.settings import is_part
from gantrymq.services import Service

SHARED_ORDER: Final = ("nameserver", "broker")
"""Services whose sections come before those of the doors."""

COMMON: Final = {
    "port": "Port of the door; 0 takes a free one.",
    "enabled": "false leaves the service out of `gantry up`.",
    "listeners": "Where it listens, instead of server.host and port: tcp://HOST:PORT, tls://HOST:PORT, any://HOST:PORT (both), such as "
    "tls://0.0.0.0:8883?client_cert=required.",
}
"""Texts for keys that services have in common, where the service has none."""

COMMON_KINDS: Final[dict[str, tuple[object, object]]] = {"enabled": (bool, True), "listeners": (list[str], [])}
"""What keys that no dataclass has may be, and are."""

UNITS: Final = {
    "ms": "milliseconds", "s": "seconds", "hours": "hours", "bytes": "bytes", "size": "bytes",
    "ratio": "part of the whole",
}  # fmt: skip
"""What the unit in a name means: names carry it last, before words such as `max`."""

_UNIT: Final = re.compile(r"_(" + "|".join(UNITS) + r")(_(process_)?(max|min|ceiling))?\Z")

MEBIBYTE: Final = 1 << 20

WIDTH: Final = 100
"""Columns of a sample's comments."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a section."""

    section: str
    key: str
    default: object
    allowed: str
    """In words."""
    text: str
    """What it is; may be empty for a stranger's service."""

    @property
    def name(self) -> str:
        """`section.key`."""
        return f"{self.section}.{self.key}"

    @property
    def unit(self) -> str:
        """In words; empty: none, or the text says it."""
        found = _UNIT.search(self.key)
        return UNITS[found[1]] if found is not None else ""


def sections_of(services: Mapping[str, Service]) -> dict[str, tuple[type, tuple[str, ...]]]:
    """Sections of the process and of services: the dataclass, and the keys that it may have beside its fields."""
    found: dict[str, tuple[type, tuple[str, ...]]] = {name: (section, ()) for name, section in PROCESS_SECTIONS.items()}
    names = [name for name in SHARED_ORDER if name in services]
    for name in [*names, *[name for name in services if name not in names]]:
        service = services[name]
        found[name] = (service.config, SERVICE_KEYS)
        for extra, section in service.extra_sections.items():
            if not is_part(section):
                found.setdefault(extra, (section, ()))
    return found


def settings_of(name: str, section: type, common: tuple[str, ...] = ()) -> list[Setting]:
    """The settings of a section, as its dataclass has them."""
    hints, texts = get_type_hints(section), _texts(section)
    found = []
    for item in fields(section):
        if "set_as" in item.metadata:
            continue  # of another section
        text = item.metadata.get("help") or texts.get(item.name) or COMMON.get(item.name, "")
        found.append(Setting(name, item.name, default_of(item), describe(hints[item.name], limits_of(item)), str(text)))
    own = {setting.key for setting in found}
    for key in common:
        if key not in own:
            kind, default = COMMON_KINDS[key]
            found.append(Setting(name, key, default, describe(kind, {}), COMMON.get(key, "")))
    return found


def _texts(section: type) -> dict[str, str]:
    """The docstrings below the fields; none where the source is not there."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(section))).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match following:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    texts[field.target.id] = " ".join(text.split())
    return texts


def as_toml(value: object) -> str:
    """A value as one writes it in the file; TOML has no null: an empty text stands for None."""
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        return '""'
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join([as_toml(item) for item in value]) + "]"
    # A JSON string is a TOML string, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def template(sections: Mapping[str, tuple[type, tuple[str, ...]]]) -> Iterator[str]:
    """Lines of a sample file: every setting with what it is, and its default behind a `#`."""
    yield "# Settings of GantryMQ. Each line shows the default: remove the # before a setting to change it."
    yield "# `gantry config check FILE` says what is wrong with a file, `gantry config show --config FILE` what is in force."
    yield "# The environment (GANTRY_MQTT__PORT=1884) and --set mqtt.port=1884 win over this file."
    for name, (section, common) in sections.items():
        yield ""
        yield f"[{name}]"
        for setting in settings_of(name, section, common):
            yield ""
            unit = f"In {setting.unit}: " if setting.unit else "Allowed: "
            for text in (setting.text, unit + setting.allowed):
                yield from (f"# {line}" for line in _wrapped(text))
            yield f"#{setting.key} = {_sample(setting)}"


def _wrapped(text: str) -> list[str]:
    """A sentence in lines."""
    if not text:
        return []
    end = "" if text.endswith((".", ":", "!")) else "."
    return textwrap.wrap(text[0].upper() + text[1:] + end, WIDTH, break_long_words=False, break_on_hyphens=False)


def _sample(setting: Setting) -> str:
    """The default as people write it."""
    value = setting.default
    if setting.unit == "bytes" and type(value) is int and value >= MEBIBYTE and not value % MEBIBYTE:
        return f'"{value // MEBIBYTE} MiB"'
    return as_toml(value)
