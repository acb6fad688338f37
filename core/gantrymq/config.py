"""Settings: where they come from, what they may be, and errors that say what to do.

A section is a frozen dataclass whose fields all have defaults; services declare theirs, `server` is the process's own.
Sources, later ones win: defaults, the TOML file of --config, the environment (`GANTRY_SECTION__KEY`), `--set section.key=value`.
Values are typed by the annotations: int (sizes such as `64KiB` too), float, bool, str, list[str], Literal, Enum, and these or
None. Field metadata narrows them: `min`, `max`, `allowed` (a collection), `help`.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gantrymq.model.errors import ConfigError

Section = TypeVar("Section")

ENVIRONMENT_PREFIX: Final = "GANTRY_"

SIZE_UNITS: Final = {
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip

WORDS_OF_BOOL: Final = {
    "true": True,
    "false": False,
    "yes": True,
    "no": False,
    "on": True,
    "off": False,
    "1": True,
    "0": False,
}

SERVICE_KEYS: Final = ("enabled",)
"""Keys that every service's section has without declaring them; `server.py` reads them."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Section `server`: what holds for the whole process."""

    host: str = field(default="127.0.0.1", metadata={"help": "address that every door binds (--host)"})
    data: str = field(default="gantry-data", metadata={"help": "data directory (--data)"})
    nameserver: str = field(
        default="",
        metadata={
            "help": "nameservers, HOST:PORT[;...], or http://... of a page that names them (--nameserver; else NAMESRV_ADDR, else 127.0.0.1:9876)"
        },
    )
    insecure_bind: bool = field(
        default=False,
        metadata={"help": "allow a host that other machines can reach, though nobody is authenticated yet"},
    )
    log_level: Literal["debug", "info", "warning", "error"] = field(
        default="info", metadata={"help": "least severity written to stderr"}
    )
    log_format: Literal["text", "json"] = field(
        default="text", metadata={"help": "lines for people, or one JSON object per line (--log-format)"}
    )
    connections_max: int = field(
        default=100_000,
        metadata={
            "min": 1,
            "max": 10_000_000,
            "help": "open connections of the process, all doors together; the limit of open files lowers it",
        },
    )
    outbound_bytes_max: int = field(
        default=16 * 1024 * 1024,
        metadata={
            "min": 64 * 1024,
            "help": "bytes waiting for one slow reader above which nothing more is read from it",
        },
    )
    outbound_bytes_ceiling: int = field(
        default=64 * 1024 * 1024,
        metadata={"min": 64 * 1024, "help": "bytes waiting for one slow reader at which it is cut off"},
    )
    outbound_bytes_process_max: int = field(
        default=512 * 1024 * 1024,
        metadata={
            "min": 64 * 1024,
            "help": "bytes waiting for all slow readers together, above which the one with the most is cut off",
        },
    )
    stalled_reader_ms: int = field(
        default=30_000,
        metadata={"min": 100, "max": 3_600_000, "help": "a reader that takes nothing for so long is closed"},
    )
    drain_ms: int = field(
        default=10_000, metadata={"min": 0, "max": 600_000, "help": "time for open work after SIGTERM or Ctrl-C"}
    )


@dataclass(frozen=True, slots=True)
class Raw:
    """A value as it was given, and by whom."""

    value: object
    source: str


class Settings:
    """All given values by section and key, not yet typed."""

    def __init__(self) -> None:
        self.sections: dict[str, dict[str, Raw]] = {}

    def put(self, section: str, key: str, value: object, source: str) -> None:
        """A later call wins."""
        self.sections.setdefault(section, {})[key] = Raw(value, source)

    def get(self, section: str, key: str) -> Raw | None:
        """The value that won, if any was given."""
        return self.sections.get(section, {}).get(key)

    def flag(self, section: str, key: str, default: bool) -> bool:
        """A yes/no value outside of any dataclass."""
        raw = self.get(section, key)
        return default if raw is None else bool(convert(f"{section}.{key}", raw, bool, {}))

    def build(self, name: str, section_type: type[Section], common: tuple[str, ...] = ()) -> Section:
        """The dataclass `section_type` with the values given for section `name`; keys in `common` may also be given and are
        read elsewhere. Raises `ConfigError`."""
        given = self.sections.get(name, {})
        every: dict[str, Field[Any]] = {item.name: item for item in fields(section_type)}  # type: ignore[arg-type]
        known = {key: item for key, item in every.items() if "set_as" not in item.metadata}
        hints = get_type_hints(section_type)
        values: dict[str, object] = {}
        for key, raw in given.items():
            item = known.get(key)
            if item is None:
                if key in common:
                    continue
                if key in every:
                    where = every[key].metadata["set_as"]
                    raise ConfigError(f"{name}.{key} ({raw.source}): it is set as {where}")
                allowed = [f"{name}.{other}" for other in dict.fromkeys((*known, *common))]
                raise ConfigError(unknown(f"{name}.{key}", raw, allowed, "setting"))
            limits = dict(item.metadata)
            if key == "port":
                limits.setdefault("min", 0)
                limits.setdefault("max", 65535)
            values[key] = convert(f"{name}.{key}", raw, hints[key], limits)
        try:
            return section_type(**values)
        except (ValueError, ConfigError) as error:
            raise ConfigError(told(name, str(error), given)) from error

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Every section given must be in `known`. Raises `ConfigError`."""
        names = sorted(known)
        for name, given in self.sections.items():
            if name not in names and given:
                key, raw = next(iter(given.items()))
                raise ConfigError(unknown(f"{name}.{key}", raw, names, "section"))


def load(config_file: str | None, environment: Mapping[str, str], sets: Iterable[str]) -> Settings:
    """Read the sources in their order. Raises `ConfigError`."""
    settings = Settings()
    if config_file is not None:
        read_file(settings, Path(config_file))
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and "__" in name:
            section, _, key = name[len(ENVIRONMENT_PREFIX) :].lower().partition("__")
            settings.put(section, key, environment[name], f"environment {name}")
    for text in sets:
        name, equals, value = text.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            raise ConfigError(f"--set {text}: must be SECTION.KEY=VALUE, for example --set mqtt.port=1884")
        settings.put(section, key, value.strip(), "--set")
    return settings


def read_file(settings: Settings, path: Path) -> None:
    """Add a TOML file: a table per section."""
    import tomllib  # only for those who have a file: it costs 10 ms of the start

    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: not TOML: {error}") from error
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{section} = {table!r} ({path}): settings stand in a section, for example [server]")
        for key, value in table.items():
            settings.put(section, key, value, str(path))


def convert(name: str, raw: Raw, wanted: Any, limits: Mapping[str, Any]) -> object:
    """`raw` as the annotation `wanted` says. Raises `ConfigError` naming the key, the value and what is allowed."""
    try:
        value = to_type(raw.value, wanted)
        check_limits(value, limits)
    except (ValueError, OverflowError):
        raise ConfigError(f"{name} = {shown(raw.value)} ({raw.source}): must be {describe(wanted, limits)}") from None
    return value


def to_type(value: object, wanted: Any) -> object:
    """Text or a TOML value as `wanted`; ValueError if it is not one."""
    origin = get_origin(wanted)
    if origin is Union or origin is types.UnionType:
        return to_union(value, get_args(wanted))
    if origin is Literal:
        for choice in get_args(wanted):
            if value == choice or (isinstance(value, str) and value == str(choice)):
                return choice
        raise ValueError
    if origin in (list, tuple):
        return to_list(value, origin)
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        for member in wanted:
            if value in (member.value, member.name) or str(value).lower() in (
                member.name.lower(),
                str(member.value).lower(),
            ):
                return member
        raise ValueError
    if wanted is bool:
        return to_bool(value)
    if wanted is int:
        return to_int(value)
    if wanted is float:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError
        if not isfinite(float(value)):
            raise ValueError
        return float(value)
    if wanted in (str, Path):
        if not isinstance(value, str):
            raise ValueError
        return wanted(value)
    raise TypeError(f"settings cannot be of type {wanted}")


def to_union(value: object, choices: tuple[Any, ...]) -> object:
    """`X | None`: empty text and `none` mean None."""
    if type(None) in choices and isinstance(value, str) and value.lower() in ("", "none"):
        return None
    for choice in choices:
        if choice is not type(None):
            try:
                return to_type(value, choice)
            except ValueError:
                continue
    raise ValueError


def to_list(value: object, kind: Any) -> object:
    """A TOML array of strings, or text with commas."""
    items = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ValueError
    return kind(items)


def to_bool(value: object) -> bool:
    """true, yes, on, 1 and their opposites."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in WORDS_OF_BOOL:
        raise ValueError
    return WORDS_OF_BOOL[value.lower()]


def to_int(value: object) -> int:
    """A number, also hexadecimal or with underscores, or a size such as `64KiB`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise ValueError
    text = value.strip().lower()
    for unit, factor in SIZE_UNITS.items():
        if text.endswith(unit):
            size = float(text[: -len(unit)]) * factor
            if size != int(size):
                raise ValueError
            return int(size)
    return int(text, 0) if text.startswith("0x") else int(text)


def check_limits(value: object, limits: Mapping[str, Any]) -> None:
    """ValueError if the metadata forbids it."""
    if value is None:
        return
    if "allowed" in limits and value not in limits["allowed"]:
        raise ValueError
    if ("min" in limits and value < limits["min"]) or ("max" in limits and value > limits["max"]):
        raise ValueError


def describe(wanted: Any, limits: Mapping[str, Any]) -> str:
    """What is allowed, in words."""
    origin = get_origin(wanted)
    if "allowed" in limits:
        return "one of " + ", ".join(str(choice) for choice in limits["allowed"])
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(wanted))
    if origin is Union or origin is types.UnionType:
        return " or ".join("empty" if part is type(None) else describe(part, limits) for part in get_args(wanted))
    if origin in (list, tuple):
        return "a list of strings (in text: separated by commas)"
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return "one of " + ", ".join(str(member.value) for member in wanted)
    if wanted is bool:
        return "true or false"
    words = {int: "a whole number", float: "a number", str: "text", Path: "a path"}.get(wanted, str(wanted))
    if "min" in limits and "max" in limits:
        return (
            str(limits["min"]) if limits["min"] == limits["max"] else f"{words} from {limits['min']} to {limits['max']}"
        )
    if "min" in limits:
        return f"{words}, at least {limits['min']}"
    return f"{words}, at most {limits['max']}" if "max" in limits else words


def told(name: str, text: str, given: Mapping[str, Raw]) -> str:
    """What a section's own check says, `KEY = VALUE: allowed ...`, with the name of the section and where the value was given."""
    key, equals, rest = text.removeprefix(f"{name}.").partition(" = ")
    raw = given.get(key)
    _, colon, allowed = rest.rpartition(": ")
    if not equals or not colon or raw is None:
        return text if text.startswith(f"{name}.") else f"{name}: {text}"
    return f"{name}.{key} = {shown(raw.value)} ({raw.source}): {allowed}"


def shown(value: object) -> str:
    """A value in an error line: quoted text, at most 80 characters."""
    text = f'"{value}"' if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def unknown(name: str, raw: Raw, known: list[str], what: str) -> str:
    """The line for a name that does not exist, with the nearest one that does."""
    from difflib import get_close_matches

    wrong = name if what == "setting" else name.partition(".")[0]
    near = get_close_matches(wrong, known, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"{name} = {shown(raw.value)} ({raw.source}): no such {what}{hint} Allowed: {', '.join(known)}"


def default_of(item: Field[Any]) -> object:
    """A field's default, for documentation."""
    if item.default is not MISSING:
        return item.default
    return item.default_factory() if item.default_factory is not MISSING else None


def is_page(text: str) -> bool:
    """Whether nameservers are named by a page, and this is its address."""
    return text.strip().startswith(("http://", "https://"))
