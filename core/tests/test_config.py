"""Settings: sources, types, and the lines that bad ones give."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.auth.config import AuthConfig
from gantrymq.broker.config import BrokerConfig, TimerConfig
from gantrymq.config import ServerConfig, Settings, is_secret, load
from gantrymq.model.errors import ConfigError
from gantrymq.model.limits import MessageConfig
from gantrymq.store.config import StoreConfig


class Colour(Enum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True)
class Sample:
    port: int = 5
    size: int = field(default=1024, metadata={"min": 1024, "max": 1 << 30})
    ratio: float = 0.5
    on: bool = True
    name: str = "x"
    names: list[str] = field(default_factory=list)
    flush: Literal["async", "sync"] = "async"
    colour: Colour = Colour.RED
    level: int = field(default=1, metadata={"allowed": (1, 2, 4)})
    limit: int | None = None
    floor: int = field(default=1, metadata={"min": 1})


def built(*sets: str, environment: dict[str, str] | None = None, file: Path | None = None) -> Sample:
    settings = load(str(file) if file else None, environment or {}, sets)
    return settings.build("sample", Sample)


@pytest.mark.parametrize(
    ("given_value", "key", "expected"),
    [
        ("port=0", "port", 0),
        ("size=64KiB", "size", 65536),
        ("size=1.5 MiB", "size", 1572864),
        ("size=2mb", "size", 2_000_000),
        ("size=0x800", "size", 2048),
        ("size=100_000", "size", 100_000),
        ("ratio=1e-3", "ratio", 0.001),
        ("on=no", "on", False),
        ("on=TRUE", "on", True),
        ("name=a=b", "name", "a=b"),
        ("names=a, b,,c", "names", ["a", "b", "c"]),
        ("flush=sync", "flush", "sync"),
        ("colour=GREEN", "colour", Colour.GREEN),
        ("level=4", "level", 4),
        ("limit=7", "limit", 7),
        ("limit=none", "limit", None),
    ],
)
def test_text_is_typed_by_the_annotation(given_value: str, key: str, expected: object) -> None:
    assert getattr(built("sample." + given_value), key) == expected


@pytest.mark.parametrize(
    ("given_value", "line"),
    [
        ("port=65536", 'sample.port = "65536" (--set): must be a whole number from 0 to 65535'),
        ("port=x", 'sample.port = "x" (--set): must be a whole number from 0 to 65535'),
        ("size=1KiB2", 'sample.size = "1KiB2" (--set): must be a whole number from 1024 to 1073741824'),
        ("size=0.3KiB", 'sample.size = "0.3KiB" (--set): must be a whole number from 1024 to 1073741824'),
        ("size=infKiB", 'sample.size = "infKiB" (--set): must be a whole number from 1024 to 1073741824'),
        ("floor=0", 'sample.floor = "0" (--set): must be a whole number, at least 1'),
        ("ratio=nan", 'sample.ratio = "nan" (--set): must be a number'),
        ("on=maybe", 'sample.on = "maybe" (--set): must be true or false'),
        ("flush=never", 'sample.flush = "never" (--set): must be one of async, sync'),
        ("colour=blue", 'sample.colour = "blue" (--set): must be one of red, green'),
        ("level=3", 'sample.level = "3" (--set): must be one of 1, 2, 4'),
        ("limit=x", 'sample.limit = "x" (--set): must be a whole number or empty'),
        ("prot=1", 'sample.prot = "1" (--set): no such setting; did you mean sample.port? Allowed: sample.port, '),
    ],
)
def test_bad_values_name_key_value_source_and_what_is_allowed(given_value: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built("sample." + given_value)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "gantry.toml"
    file.write_text('[sample]\nport = 1\nname = "file"\nnames = ["p", "q"]\nsize = "64KiB"\n', encoding="utf-8")
    environment = {"GANTRY_SAMPLE__PORT": "2", "GANTRY_SAMPLE__RATIO": "2", "GANTRY_HOME": "ignored", "PATH": "x"}
    sample = built("sample.port=3", "sample.port=4", environment=environment, file=file)
    assert (sample.port, sample.name, sample.names, sample.ratio, sample.size) == (4, "file", ["p", "q"], 2.0, 65536)


@pytest.mark.parametrize(
    ("toml", "part"),
    [
        ("port = 1\n", "settings stand in a section"),
        ("[sample\n", "not TOML"),
        ("[sample]\non = 1\n", "sample.on = 1 ("),
        ("[sample]\nport = true\n", "sample.port = True ("),
        ("[sample]\nnames = [1]\n", "sample.names = [1] ("),
        ("[sample]\nname = 1\n", "must be text"),
        ("[sample.deeper]\nname = 1\n", "sample.deeper = {'name': 1} ("),
    ],
)
def test_bad_files(tmp_path: Path, toml: str, part: str) -> None:
    file = tmp_path / "gantry.toml"
    file.write_text(toml, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        built(file=file)
    assert part in str(caught.value)
    assert str(file) in str(caught.value)


def test_missing_file_and_malformed_set() -> None:
    with pytest.raises(ConfigError, match=r"--config /nowhere/x\.toml: No such file"):
        load("/nowhere/x.toml", {}, [])
    for text in ("x", "x=1", "a.b", ".b=1", "a.=1"):
        with pytest.raises(ConfigError, match=r"SECTION\.KEY=VALUE"):
            load(None, {}, [text])


def test_unknown_section_with_a_hint_and_common_keys() -> None:
    settings = load(None, {"GANTRY_SAMPEL__PORT": "1"}, [])
    with pytest.raises(ConfigError) as caught:
        settings.refuse_unknown(["sample", "server"])
    assert str(caught.value) == (
        'sampel.port = "1" (environment GANTRY_SAMPEL__PORT): no such section; did you mean sample? Allowed: sample, server'
    )
    settings = load(None, {}, ["sample.enabled=off"])
    assert settings.build("sample", Sample, ("enabled",)) == Sample()
    assert settings.flag("sample", "enabled", True) is False
    with pytest.raises(ConfigError):
        settings.build("sample", Sample)


def test_server_section_has_a_line_of_help_per_key() -> None:
    assert ServerConfig().host == "127.0.0.1"
    assert all(item.metadata["help"] for item in ServerConfig.__dataclass_fields__.values())


json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(st.sampled_from(list(Sample.__dataclass_fields__)), json_values)
def test_any_value_is_taken_or_refused_in_one_line(key: str, value: object) -> None:
    settings = Settings()
    settings.put("sample", key, value, "test")
    line = ""
    try:
        settings.build("sample", Sample)
    except ConfigError as error:
        line = str(error)
    assert not line or (line.startswith(f"sample.{key} = ") and len(line.splitlines()) == 1 and len(line) < 300)


@pytest.mark.parametrize("key", ["name", "cluster"])
@pytest.mark.parametrize("value", ["", "a b", "x" * 256])
def test_names_that_no_nameserver_takes(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf'^broker\.{key} = ".* \(--set\): allowed are 1 to 255 of'):
        load(None, {}, [f"broker.{key}={value}"]).build("broker", BrokerConfig)


@pytest.mark.parametrize("value", ["a b", "http://x", "x" * 254, "a/b", "broker.example:10911", "1.2.3.4:80"])
def test_hosts_that_no_client_can_dial(value: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^broker\.advertised_host = .* \(--set\): allowed are a host name or an address"
    ):
        load(None, {}, [f"broker.advertised_host={value}"]).build("broker", BrokerConfig)


def test_what_a_section_checks_itself_is_told_with_its_source() -> None:
    for setting, section, allowed in (
        ("store.delete_when=25", StoreConfig, "allowed are hours from 0 to 23 separated by ; and the word always"),
        (
            "timer.delay_levels=1s 2x",
            TimerConfig,
            "allowed are 1 to 64 of a number and s, m, h or d, such as '1s 5s 10s'",
        ),
    ):
        name, _, value = setting.partition("=")
        with pytest.raises(ConfigError) as caught:
            load(None, {}, [setting]).build(name.partition(".")[0], section)
        assert str(caught.value) == f'{name} = "{value}" (--set): {allowed}'


def test_allowed_settings_are_named_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {}, ["broker.prt=1"]).build("broker", BrokerConfig, ("port",))
    assert str(caught.value).count("broker.port,") == 1


def test_a_setting_that_another_section_has() -> None:
    settings = load(None, {}, ["store.body_bytes_max=1MiB"])
    with pytest.raises(ConfigError, match=r"store\.body_bytes_max \(--set\): it is set as message\.body_bytes_max"):
        settings.build("store", StoreConfig)
    assert load(None, {}, ["message.body_bytes_max=15MiB"]).build("message", MessageConfig).body_bytes_max == 15 << 20
    for size in ("15728641", "65535"):
        with pytest.raises(ConfigError, match="from 65536 to 15728640"):
            load(None, {}, [f"message.body_bytes_max={size}"]).build("message", MessageConfig)


def test_variables_of_the_environment_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "gantry.toml"
    path.write_text(
        '[sample]\nname = "${WHERE}/x"\nport = "${PORT:-7}"\nnames = ["a", "${WHERE}", "$${WHERE}"]\nsize = "${SIZE}"\n[other]\nx = "${NONE:-}"\n'
    )
    settings = load(str(path), {"WHERE": "/run", "SIZE": "4KiB", "PORT": ""}, ())
    found = settings.build("sample", Sample)
    assert (found.name, found.port, found.size) == ("/run/x", 7, 4096)
    assert found.names == ["a", "/run", "${WHERE}"]
    raw = settings.get("other", "x")
    assert raw is not None
    assert raw.value == ""


def test_a_variable_that_is_not_set_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "gantry.toml"
    path.write_text('[sample]\n\nname = "${WHERE}"\n')
    with pytest.raises(ConfigError) as caught:
        load(str(path), {}, ())
    assert str(caught.value) == f'sample.name = "${{WHERE}}" ({path}:3): the environment has no WHERE'


def test_what_came_from_a_variable_is_not_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "gantry.toml"
    path.write_text('[sample]\nport = "${PASS}"\n')
    with pytest.raises(ConfigError) as caught:
        load(str(path), {"PASS": "hunter2"}, ()).build("sample", Sample)
    assert "hunter2" not in str(caught.value)
    assert 'sample.port = "${PASS}"' in str(caught.value)


def test_a_secret_stands_in_no_command_line() -> None:
    key = "0123456789abcdef" * 2
    with pytest.raises(ConfigError) as caught:
        load(None, {}, [f"auth.cluster_key={key}"]).build("auth", AuthConfig)
    assert key not in str(caught.value)
    assert "GANTRY_AUTH__CLUSTER_KEY" in str(caught.value)
    built = load(None, {"GANTRY_AUTH__CLUSTER_KEY": key}, ()).build("auth", AuthConfig)
    assert built.cluster_key == key
    assert key not in repr(built)
    assert is_secret("auth.cluster_key")
    assert not is_secret("auth.cluster_key_file")
