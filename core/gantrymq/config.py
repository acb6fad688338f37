"""Settings: where they come from, what they may be, and errors that say what to do.

A section is a frozen dataclass whose fields all have defaults; services declare theirs, `server` is the process's own.
Sources, later ones win: defaults, the TOML file of --config, the environment (`GANTRY_SECTION__KEY`), `--set section.key=value`.
Values are typed by the annotations: int (sizes such as `64KiB` too), float, bool, str, list[str], Literal, Enum, and these or
None. Field metadata narrows them: `min`, `max`, `allowed` (a collection), `help`.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gantrymq.auth.config import AuthConfig
from gantrymq.logs import SECRET
from gantrymq.model.errors import ConfigError, ConfigErrors
from gantrymq.model.settings import setting
from gantrymq.net.tls.contexts import TlsConfig

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

VARIABLE: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}", re.ASCII)

SERVICE_KEYS: Final = ("enabled", "listeners")
"""Keys that every service's section has without declaring them; `launch/plan.py` reads them."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Section `server`: what holds for the whole process."""

    host: str = setting("127.0.0.1", "address that every door binds (--host)")
    data: str = setting("gantry-data", "data directory (--data)")
    nameserver: str = setting(
        "",
        "nameservers, HOST:PORT[;...], or http://... of a page that names them (--nameserver; else NAMESRV_ADDR, else 127.0.0.1:9876)",
    )
    insecure_bind: bool = setting(False, "allow a host that other machines can reach, though nobody is authenticated")
    plaintext_bind: bool = setting(
        False,
        "with auth.enabled: allow a host that other machines can reach without TLS, so that passwords can be read on the way",
    )
    trusted_networks: str = setting(
        "",
        "networks (ADDRESS/BITS, separated by commas) whose peers may administrate, register brokers and be gateways, as this machine may",
    )
    host_names: str = setting(
        "",
        "names (separated by commas) beside localhost, 127.0.0.0/8 and [::1] by which an HTTP door on loopback may be asked; one that others reach answers to all",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "least severity written to stderr")
    log_format: Literal["text", "json"] = setting(
        "text", "lines for people, or one JSON object per line (--log-format)"
    )
    connections_max: int = setting(
        100_000,
        "open connections of the process, all doors together; the limit of open files lowers it",
        least=1,
        most=10_000_000,
    )
    door_connections_max: int = setting(
        0,
        "open connections of one door, so that none takes those of all others; 0: nine tenths of what all doors together have",
        least=0,
        most=10_000_000,
    )
    address_connections_max: int = setting(
        0,
        "open connections of one address (an IPv6 /64 counts as one), all doors together, but of this machine and server.trusted_networks; 0: a tenth of what all have",
        least=0,
        most=10_000_000,
    )
    address_connects_per_s: int = setting(
        0,
        "new connections of one address in a second, all doors together; more are refused; 0: any number",
        least=0,
        most=1_000_000,
    )
    address_requests_per_s: int = setting(
        0,
        "requests (packets, methods) of one address in a second, all its connections together: for more, reading pauses; 0: any number",
        least=0,
    )
    address_bytes_per_s: int = setting(0, "the same of bytes", least=0)
    outbound_bytes_max: int = setting(
        16 * 1024 * 1024, "bytes waiting for one slow reader above which nothing more is read from it", least=64 * 1024
    )
    outbound_bytes_ceiling: int = setting(
        64 * 1024 * 1024, "bytes waiting for one slow reader at which it is cut off", least=64 * 1024
    )
    outbound_bytes_process_max: int = setting(
        512 * 1024 * 1024,
        "memory held for all slow readers together (a payload that many get counts once), above which the one with the most is cut off",
        least=64 * 1024,
    )
    inbound_bytes_process_max: int = setting(
        512 * 1024 * 1024,
        "bytes held of all peers' unfinished frames and bodies together, above which those held longest are ended",
        least=64 * 1024,
    )
    frame_timeout_ms: int = setting(
        120_000,
        "a frame or body that is not whole so long after its first byte ends its connection",
        least=100,
        most=3_600_000,
    )
    stalled_reader_ms: int = setting(
        30_000, "a reader that takes nothing for so long is closed", least=100, most=3_600_000
    )
    drain_ms: int = setting(10_000, "time for open work after SIGTERM or Ctrl-C", least=0, most=600_000)


PROCESS_SECTIONS: Final[dict[str, type]] = {"server": ServerConfig, "tls": TlsConfig, "auth": AuthConfig}
"""Sections that are the process's own and no service's."""


@dataclass(frozen=True, slots=True)
class Raw:
    """A value as it was given, and by whom."""

    value: object
    source: str
    """`FILE:LINE`, an option, or a variable of the environment."""
    said: object = None
    """What stands in the file, where the value came from the environment (`${NAME}`): errors show this, and no secret."""

    @property
    def shown(self) -> object:
        """For errors."""
        return self.value if self.said is None else self.said


class Settings:
    """All given values by section and key, not yet typed."""

    def __init__(self) -> None:
        self.sections: dict[str, dict[str, Raw]] = {}
        self.errors: list[ConfigError] = []
        """What could not be understood as a value of a section."""

    def put(self, section: str, key: str, value: object, source: str, said: object = None) -> None:
        """A later call wins."""
        self.sections.setdefault(section, {})[key] = Raw(value, source, said)

    def get(self, section: str, key: str) -> Raw | None:
        """The value that won, if any was given."""
        return self.sections.get(section, {}).get(key)

    def flag(self, section: str, key: str, default: bool) -> bool:
        """A yes/no value outside of any dataclass."""
        raw = self.get(section, key)
        return default if raw is None else bool(convert(f"{section}.{key}", raw, bool, {}))

    def texts(self, section: str, key: str) -> list[str]:
        """A list outside of any dataclass; empty if it is not given. Raises `ConfigError`."""
        raw = self.get(section, key)
        found = [] if raw is None else convert(f"{section}.{key}", raw, list[str], {})
        assert isinstance(found, list)
        return found

    def build(self, name: str, section_type: type[Section], common: tuple[str, ...] = ()) -> Section:
        """The dataclass `section_type` with the values given for section `name`; keys in `common` may also be given and are
        read elsewhere. Raises `ConfigError`."""
        errors: list[ConfigError] = []
        built = self.examine(name, section_type, errors, common)
        refuse(errors)
        return built

    def examine(
        self, name: str, section_type: type[Section], errors: list[ConfigError], common: tuple[str, ...] = ()
    ) -> Section:
        """As `build`, but every error is added to `errors`; what is wrong has its default in the section returned."""
        given = self.sections.get(name, {})
        values: dict[str, object] = {}
        for key, raw in given.items():
            try:
                if key not in common or key in section_type.__dataclass_fields__:  # type: ignore[attr-defined]
                    values[key] = value_of(name, key, raw, section_type, common)
            except ConfigError as error:
                errors.append(error)
        while True:
            try:
                return section_type(**values)
            except (ValueError, ConfigError) as error:
                # A section says one thing at a time: go on without that to hear what else it has to say.
                keys, complaint = told(name, str(error), given)
                errors.append(complaint)
                if not values:
                    raise complaint from error  # its defaults are wrong
                wrong = [key for key in keys if key in values]
                for key in wrong or list(values):
                    del values[key]

    def examine_sections(self, known: Iterable[str], errors: list[ConfigError]) -> None:
        """Every section given must be in `known`; what is not is added to `errors`."""
        names = sorted(known)
        for name, given in self.sections.items():
            if name not in names and given:
                key, raw = next(iter(given.items()))
                errors.append(unknown(f"{name}.{key}", raw, names, "section"))

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Every section given must be in `known`. Raises `ConfigError`."""
        errors: list[ConfigError] = []
        self.examine_sections(known, errors)
        refuse(errors)


def refuse(errors: list[ConfigError]) -> None:
    """Raise what is wrong, if anything is."""
    if errors:
        raise errors[0] if len(errors) == 1 else ConfigErrors(errors)


def value_of(name: str, key: str, raw: Raw, section_type: type, common: tuple[str, ...]) -> object:
    """The value of one setting. Raises `ConfigError`."""
    every: dict[str, Field[Any]] = {item.name: item for item in fields(section_type)}
    item = every.get(key)
    if item is None:
        settable = [other for other in every if "set_as" not in every[other].metadata]
        raise unknown(
            f"{name}.{key}", raw, [f"{name}.{other}" for other in dict.fromkeys((*settable, *common))], "setting"
        )
    if item.metadata.get("secret") and raw.source == "--set":
        raise ConfigError(
            f"{name}.{key} (--set): it is a secret, and other users of this machine see command lines: give it in a file or the environment "
            f"({ENVIRONMENT_PREFIX}{name.upper()}__{key.upper()})",
            raw.source,
        )
    if "set_as" in item.metadata:
        raise ConfigError(f"{name}.{key} ({raw.source}): it is set as {item.metadata['set_as']}", raw.source)
    return convert(f"{name}.{key}", raw, get_type_hints(section_type)[key], limits_of(item))


def limits_of(item: Field[Any]) -> dict[str, Any]:
    """What narrows a field's values."""
    return ({"min": 0, "max": 65535} if item.name == "port" else {}) | dict(item.metadata)


def load(config_file: str | None, environment: Mapping[str, str], sets: Iterable[str]) -> Settings:
    """Read the sources in their order. Raises `ConfigError`."""
    settings = gather(config_file, environment, sets)
    refuse(settings.errors)
    return settings


def gather(
    config_file: str | None,
    environment: Mapping[str, str],
    sets: Iterable[str],
    variables: Mapping[str, str] | None = None,
) -> Settings:
    """As `load`, but what is wrong is left in `Settings.errors`. `variables`: what `${NAME}` in the file stands for, if not the environment."""
    settings = Settings()
    if config_file is not None:
        read_file(settings, Path(config_file), environment if variables is None else variables)
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and "__" in name:
            section, _, key = name[len(ENVIRONMENT_PREFIX) :].lower().partition("__")
            settings.put(section, key, environment[name], f"environment {name}")
    for text in sets:
        name, equals, value = text.partition("=")
        section, dot, key = name.strip().partition(".")
        if equals and dot and section and key:
            settings.put(section, key, value.strip(), "--set")
        else:
            settings.errors.append(
                ConfigError(f"--set {text}: must be SECTION.KEY=VALUE, for example --set mqtt.port=1884", "--set")
            )
    return settings


def filled(value: object, environment: Mapping[str, str]) -> object:
    """A file's value with variables of the environment in it: `${NAME}`, or `${NAME:-what else}`; `$${` is `${` itself. Raises ValueError with
    the name of one that is not set."""
    if isinstance(value, list):
        return [filled(each, environment) for each in value]
    if not isinstance(value, str) or "${" not in value:
        return value

    def fill(found: re.Match[str]) -> str:
        if found[0] == "$${":
            return "${"
        name, otherwise = found[1], found[2]
        text = environment.get(name, "") if otherwise is not None else environment.get(name)
        if text is None:
            raise ValueError(f"the environment has no {name}")
        return text or otherwise or ""

    return VARIABLE.sub(fill, value)


def read_file(settings: Settings, path: Path, environment: Mapping[str, str]) -> None:
    """Add a TOML file: a table per section."""
    import tomllib  # only for those who have a file: it costs 10 ms of the start

    from gantrymq.toml_lines import lines_of

    try:
        text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except OSError as error:
        settings.errors.append(ConfigError(f"--config {path}: {error.strerror}", str(path)))
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        settings.errors.append(ConfigError(f"--config {path}: not TOML: {error}", str(path)))
        return
    lines = lines_of(text)
    for section, table in tables.items():
        source = f"{path}:{lines.get((section, ''), 1)}"
        if not isinstance(table, dict):
            settings.errors.append(
                ConfigError(
                    f"{section} = {shown(table)} ({source}): settings stand in a section, for example [server]", source
                )
            )
            continue
        for key, value in table.items():
            where = f"{path}:{lines[section, key]}" if (section, key) in lines else source
            try:
                said = filled(value, environment)
            except ValueError as error:
                text = f"{section}.{key} = {shown(value)} ({where}): {error}"
                settings.errors.append(ConfigError(text, where))
                continue
            settings.put(section, key, said, where, None if said == value else value)


def convert(name: str, raw: Raw, wanted: Any, limits: Mapping[str, Any]) -> object:
    """`raw` as the annotation `wanted` says. Raises `ConfigError` naming the key, the value and what is allowed."""
    try:
        value = to_type(raw.value, wanted)
        check_limits(value, limits)
    except (ValueError, OverflowError):
        text = f"{name} = {shown_as(name, raw.shown)} ({raw.source}): must be {describe(wanted, limits)}"
        raise ConfigError(text, raw.source) from None
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


def told(name: str, text: str, given: Mapping[str, Raw]) -> tuple[list[str], ConfigError]:
    """What a section's own check says, `KEY[, KEY...] = VALUE: allowed ...`: the keys, and an error with the name of the section and
    where the values were given."""
    head, equals, rest = text.removeprefix(f"{name}.").partition(" = ")
    value, colon, allowed = rest.rpartition(": ")
    keys = head.split(", ") if equals and colon else []
    raws = [given[key] for key in keys if key in given]
    if not raws:
        return [], ConfigError(text if text.startswith(f"{name}.") else f"{name}: {text}")
    sources = ", ".join(dict.fromkeys([raw.source for raw in raws]))
    if len(keys) == 1:
        value = shown_as(f"{name}.{head}", raws[0].shown)
    return keys, ConfigError(f"{name}.{head} = {value} ({sources}): {allowed}", raws[0].source)


def is_secret(name: str) -> bool:
    """Whether nobody should see the value of setting `name`."""
    return SECRET.match(f"{name.rpartition('.')[2]}=x") is not None


def shown_as(name: str, value: object) -> str:
    """The value of setting `name` in an error line."""
    return "***" if is_secret(name) else shown(value)


def shown(value: object) -> str:
    """A value in an error line: quoted text, at most 80 characters."""
    text = f'"{value}"' if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def unknown(name: str, raw: Raw, known: list[str], what: str) -> ConfigError:
    """The error for a name that does not exist, with the nearest one that does."""
    from difflib import get_close_matches

    wrong = name if what == "setting" else name.partition(".")[0]
    near = get_close_matches(wrong, known, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else "."
    text = f"{name} = {shown_as(name, raw.shown)} ({raw.source}): no such {what}{hint} Allowed: {', '.join(known)}"
    return ConfigError(text, raw.source)


def default_of(item: Field[Any]) -> object:
    """A field's default, for documentation."""
    if item.default is not MISSING:
        return item.default
    return item.default_factory() if item.default_factory is not MISSING else None


def is_page(text: str) -> bool:
    """Whether nameservers are named by a page, and this is its address."""
    return text.strip().startswith(("http://", "https://"))


def parse_nameservers(text: str, source: str) -> list[str]:
    """`host:port[;...]`, or the address of a page that names them. Raises `ConfigError`."""
    if is_page(text):
        return [text.strip()]
    names = [part.strip() for part in text.split(";") if part.strip()]
    for name in names:
        host, _, port = name.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError(f'nameserver = "{name}" ({source}): must be HOST:PORT[;HOST:PORT...]')
    if not names:
        raise ConfigError(f'nameserver = "{text}" ({source}): must be HOST:PORT[;HOST:PORT...]')
    return names
