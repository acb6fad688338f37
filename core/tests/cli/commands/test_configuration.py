"""`gantry config`: what is in force, everything that is wrong, and a sample that is right."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from core.tests.stranger_service import install_stranger
from gantrymq.cli.app import run_app
from gantrymq.cli.commands import configuration
from gantrymq.cli.settings import check as config_check
from gantrymq.cli.settings.catalog import sections_of, settings_of
from gantrymq.cli.settings.check import Effective
from gantrymq.config import ServerConfig, load
from gantrymq.launch.exit_codes import EXIT_USAGE
from gantrymq.launch.plan import discover, load_service

SETTING = re.compile(r"^#(\w+ = )", re.MULTILINE)


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("GANTRY_") and "__" in name:
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "120")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = run_app(["config", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_sample_is_right_and_its_values_are_the_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, err = printed(capsys, "template")
    assert (code, err) == (0, "")
    file = tmp_path / "gantry.toml"
    file.write_text(text, encoding="utf-8")
    assert printed(capsys, "check", str(file)) == (0, f"{file}: nothing is wrong; settings given: 0\n", "")

    given, count = SETTING.subn(r"\1", text)
    file.write_text(given, encoding="utf-8")
    assert printed(capsys, "check", str(file)) == (
        0,
        f"{file}: nothing is wrong; settings given: {count}\n",
        "",
    )
    settings = load(str(file), {}, ())
    sections = sections_of({name: load_service(point) for name, point in discover().items()})
    sections["server"] = (ServerConfig, ())
    assert sum([len(settings_of(name, *section)) for name, section in sections.items()]) == count
    for name, (section, common) in sections.items():
        assert settings.build(name, section, common) == section()
        assert all(settings.get(name, setting.key) for setting in settings_of(name, section, common))


def test_a_sample_says_what_each_setting_is(capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = printed(capsys, "template")
    assert (
        "\n# Time for open work after SIGTERM or Ctrl-C.\n# In milliseconds: a whole number from 0 to 600000.\n#drain_ms = 10000\n"
    ) in text
    assert '#outbound_bytes_max = "16 MiB"\n' in text
    assert max(map(len, text.splitlines())) < 130


WRONG = """port = 1
[server]
host = "0.0.0.0"
[mqtt]
port = 5672
prt = 3
inflight_max = "x"
[amq]
port = 1
[store]
flush = "maybe"
disk_warn_ratio = 0.95
delete_when = "25"
[cloudevents]
retry_first_ms = 70000
enabled = "perhaps"
"""

COMPLAINTS = [
    (1, "port = 1 ({file}:1): settings stand in a section"),
    (3, 'server.host = "0.0.0.0" ({file}:3): other machines could connect'),
    (5, "mqtt.port = 5672 ({file}:5): amqp.port is the same (default); give one of them another port"),
    (6, "mqtt.prt = 3 ({file}:6): no such setting; did you mean mqtt.port? Allowed: "),
    (7, 'mqtt.inflight_max = "x" ({file}:7): must be a whole number from 1 to 10000'),
    (9, "amq.port = 1 ({file}:9): no such section; did you mean amqp? Allowed: "),
    (11, 'store.flush = "maybe" ({file}:11): must be one of async, sync'),
    (
        12,
        "store.disk_warn_ratio, disk_clean_ratio, disk_full_ratio = (0.95, 0.85, 0.9) ({file}:12): allowed are numbers",
    ),
    (13, 'store.delete_when = "25" ({file}:13): allowed are hours'),
    (15, "cloudevents.retry_first_ms, retry_max_ms = (70000, 60000) ({file}:15): allowed is"),
    (16, 'cloudevents.enabled = "perhaps" ({file}:16): must be true or false'),
]


def test_everything_that_is_wrong_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gantry.toml"
    file.write_text(WRONG, encoding="utf-8")
    code, out, err = printed(capsys, "check", str(file))
    assert (code, out) == (EXIT_USAGE, "")
    lines = err.splitlines()
    assert len(lines) == len(COMPLAINTS)
    for line, (_, text) in zip(lines, COMPLAINTS, strict=True):
        assert line.startswith("gantry: " + text.format(file=file))
    code, out, err = printed(capsys, "check", "--json", str(file))
    assert (code, err) == (EXIT_USAGE, "")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["file"], row["line"]) for row in rows] == [(str(file), line) for line, _ in COMPLAINTS]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[mqtt\n", "gantry: --config {file}: not TOML: Expected ']'"),
        ("[mqtt]\nport = 1\nport = 2\n", "gantry: --config {file}: not TOML: Cannot overwrite a value (at line 3"),
        (
            "[server]\noutbound_bytes_max = '2GiB'\noutbound_bytes_ceiling = '1GiB'\n",
            "gantry: server.outbound_bytes_ceiling = ",
        ),
        ("[server]\nnameserver = 'here'\n", 'gantry: nameserver = "here" ({file}:2): must be HOST:PORT'),
        (
            "[store]\nbody_bytes_max = 1\n",
            "gantry: store.body_bytes_max ({file}:2): it is set as message.body_bytes_max",
        ),
        (
            "[amqp]\nenabled = false\nchannel_max = 0\n",
            "gantry: amqp.channel_max = 0 ({file}:3): must be a whole number",
        ),
        (None, "gantry: --config {file}: No such file or directory"),
    ],
)
def test_a_single_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, line: str) -> None:
    file = tmp_path / "gantry.toml"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    code, _, err = printed(capsys, "check", str(file))
    assert code == EXIT_USAGE
    assert err.startswith(line.format(file=file))
    assert len(err.splitlines()) == 1


def test_what_is_in_force_and_who_gave_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gantry.toml"
    file.write_text('[mqtt]\n\nport = 1884\ninflight_max = 7\n[store]\nflush = "sync"\n[amqp]\nenabled = false\n')
    monkeypatch.setenv("GANTRY_MQTT__INFLIGHT_MAX", "8")
    monkeypatch.setenv("GANTRY_MESSAGE__BODY_BYTES_MAX", "1MiB")
    words = ["show", "--json", "--config", str(file), "--set", "message.body_bytes_max=2MiB", "--host", "127.0.0.2"]
    code, out, err = printed(capsys, *words)
    assert (code, err) == (0, "")
    rows = {row["setting"]: (row["value"], row["source"]) for row in map(json.loads, out.splitlines())}
    assert rows["server.host"] == ("127.0.0.2", "--host")
    assert rows["mqtt.port"] == (1884, f"{file}:3")
    assert rows["mqtt.inflight_max"] == (8, "environment GANTRY_MQTT__INFLIGHT_MAX")
    assert rows["message.body_bytes_max"] == (2 << 20, "--set")
    assert rows["store.flush"] == ("sync", f"{file}:6")
    assert rows["amqp.enabled"] == (False, f"{file}:8")
    assert not [name for name in rows if name.startswith("amqp.") and name != "amqp.enabled"]
    assert rows["metrics.port"] == (None, "default")

    code, out, _ = printed(capsys, "show", "--config", str(file), "--changed", "mqtt", "store")
    assert [line.split()[:2] for line in out.splitlines()[2:]] == [
        ["store.flush", '"sync"'], ["mqtt.port", "1884"], ["mqtt.inflight_max", "8"],
    ]  # fmt: skip
    code, _, err = printed(capsys, "show", "mqt")
    assert (code, err.partition(";")[0]) == (EXIT_USAGE, "gantry: section mqt: there is none")
    code, _, err = printed(capsys, "show", "--set", "mqtt.prt=1", "--set", "amqp.prt=1")
    assert (code, len(err.splitlines())) == (EXIT_USAGE, 2)


class Point:
    """An entry point whose loads are counted."""

    def __init__(self, service: Any = None) -> None:
        self.name = "door"
        self.loads = 0
        self.service = service

    def load(self) -> Any:
        self.loads += 1
        if self.service is None:
            raise ImportError("no module named grpc")
        return lambda: self.service


@dataclass(frozen=True)
class DoorConfig:
    port: int = 0
    password: str = ""
    pin: int = field(default=0, metadata={"max": 9})


class DoorService:
    name = "door"
    config = DoorConfig
    extra_sections: dict[str, type] = {}  # noqa: RUF012


def test_a_door_that_is_off_is_not_imported() -> None:
    point = Point()
    found = config_check.examine(load(None, {}, ["door.enabled=false"]), {"door": point}, True)  # type: ignore[dict-item]
    assert (point.loads, found.errors, found.off) == (0, [], ["door"])
    found = config_check.examine(load(None, {}, ["door.port=1"]), {"door": point}, False)  # type: ignore[dict-item]
    assert [str(error) for error in found.errors] == [
        "door: cannot be loaded: ImportError: no module named grpc; --set door.enabled=false leaves it out"
    ]


def test_secrets_are_masked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    point = Point(DoorService())
    monkeypatch.setattr(configuration, "discover", lambda: {"door": point})
    sets = ["--set", "door.password=swordfish", "--set", "server.nameserver=http://joe:swordfish@ns.example/list"]
    for words in (["show", *sets], ["show", "--json", *sets]):
        code, out, err = printed(capsys, *words)
        assert code == 0
        assert "swordfish" not in out + err
        assert "***" in out
        assert "http://***@ns.example/list" in out
    code, _, err = printed(capsys, "show", "--set", "door.passwort_=swordfish", "--set", "door.password_=swordfish")
    assert code == EXIT_USAGE
    assert err.count("swordfish") == 1  # only what is not named like a secret


def test_enumerations_and_secrets_as_json() -> None:
    row = configuration.as_row(Effective("door.password", "x", "", "--set"))
    assert row == {"setting": "door.password", "value": "***", "default": "", "source": "--set"}


def test_a_stranger_s_service_is_part_of_everything(tmp_path: Path) -> None:
    install_stranger(tmp_path, "port: int = 99", "wait_ms: int = 5", '"""How long it waits."""')
    (tmp_path / "gantry.toml").write_text("[stranger]\nwait_m = 5\n")

    def gantry(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gantrymq", "config", *words], cwd=tmp_path, capture_output=True, text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}, timeout=150, check=False,
        )  # fmt: skip

    sample = gantry("template").stdout
    assert "\n[stranger]\n" in sample
    assert "\n# How long it waits.\n# In milliseconds: a whole number.\n#wait_ms = 5\n" in sample
    done = gantry("check", "gantry.toml")
    assert done.returncode == EXIT_USAGE
    assert done.stderr.startswith(
        "gantry: stranger.wait_m = 5 (gantry.toml:2): no such setting; did you mean stranger.wait_ms?"
    )
    assert "stranger.wait_ms" in gantry("show", "stranger").stdout


def test_a_file_may_be_named_in_either_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gantry.toml"
    file.write_text("[server]\n")
    assert run_app(["config", "check", "--config", str(file)]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert run_app(["config", "check"]) == EXIT_USAGE
    assert run_app(["config", "check", str(file), "--config", str(file)]) == EXIT_USAGE
    capsys.readouterr()
    assert run_app(["config", "show", str(file)]) == EXIT_USAGE
    assert f"gantry config show --config {file}" in capsys.readouterr().err
