"""mosquitto.conf as settings: what maps, what needs nothing, what is said not to map."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gantrymq.cli.app import app, run_app
from gantrymq.cli.mqtt.mosquitto import read_mosquitto
from gantrymq.config import gather
from gantrymq.launch.exit_codes import EXIT_FAILED
from gantrymq.net.places import parse_place

FULL = """
# a site
per_listener_settings false
listener 1883
listener 8883 192.0.2.1
certfile /etc/a b/server.pem
keyfile /etc/server.key
cafile /etc/ca.pem
require_certificate true
listener 9001 127.0.0.1
protocol websockets
listener 0 /run/mosquitto.sock
allow_anonymous true
password_file /etc/mosquitto/passwd
acl_file /etc/mosquitto/acl
persistence true
max_inflight_messages 20
max_queued_messages 0
max_keepalive 300
message_size_limit 1000000
persistent_client_expiration 2w
connection office
address office.example
topic # out 1
remote_password p
listener 1999 ::1
"""


def test_a_site() -> None:
    found = read_mosquitto(FULL)
    assert found.settings == {
        "mqtt.allow_anonymous": True,
        "mqtt.inflight_max": 20,
        "mqtt.keep_alive_s_max": 300,
        "message.body_bytes_max": 1_000_000,
        "mqtt.session_expiry_s": 14 * 86_400,
        "mqtt.listeners": [
            "tcp://0.0.0.0:1883",
            "tls://192.0.2.1:8883?cert=/etc/a%20b/server.pem&key=/etc/server.key&client_ca=/etc/ca.pem&client_cert=required",
            "tcp://127.0.0.1:9001",
            "unix:///run/mosquitto.sock",
            "tcp://[::1]:1999",
        ],
    }
    assert found.bridges == "connection office\naddress office.example\ntopic # out 1\nremote_password p\n"
    left = "\n".join(found.left)
    for what in ("password_file", "acl_file", "max_queued_messages 0", "server.insecure_bind"):
        assert what in left
    assert [line.partition(":")[0] for line in found.kept] == [
        "per_listener_settings",
        "protocol websockets",
        "persistence",
    ]


def test_the_listeners_are_places() -> None:
    places = read_mosquitto(FULL).settings["mqtt.listeners"]
    assert isinstance(places, list)
    assert [parse_place(place).scheme for place in places] == ["tcp", "tls", "tcp", "unix", "tcp"]
    assert parse_place(places[1]).options["cert"] == "/etc/a b/server.pem"


def test_a_mosquitto_without_a_listener_is_for_this_machine() -> None:
    assert read_mosquitto("").settings == {}
    assert read_mosquitto("port 1884").settings == {"mqtt.listeners": ["tcp://127.0.0.1:1884"]}


@pytest.mark.parametrize("line", ["nonsense x", "listener x", "max_keepalive many", "persistent_client_expiration 2q"])
def test_what_is_not_understood_is_said(line: str) -> None:
    (left,) = read_mosquitto(line).left
    assert left.startswith(f"line 1: {line}")


def test_limits_of_what_waits_are_those_of_clean_and_of_kept_sessions() -> None:
    found = read_mosquitto("max_queued_messages 500\nmax_queued_bytes 1000000\n")
    assert found.settings == {
        "mqtt.volatile_entries_max": 500,
        "mqtt.volatile_bytes_max": 1_000_000,
        "mqtt.volatile_entries_full": "drop_newest",
        "broker.session_messages_max": 500,
        "broker.session_messages_full": "drop_newest",
        "broker.session_bytes_max": 1_000_000,
        "broker.session_bytes_full": "drop_newest",
    }
    assert found.left == []


def test_the_command_writes_files_that_the_server_reads(tmp_path: Path) -> None:
    conf, out, bridges = tmp_path / "mosquitto.conf", tmp_path / "gantry.toml", tmp_path / "bridges.conf"
    conf.write_text(FULL)
    done = CliRunner().invoke(
        app, ["mqtt", "import-config", str(conf), "--out", str(out), "--bridges", str(bridges)], catch_exceptions=False
    )
    assert done.exit_code == 0
    assert "NOT mapped: line" in done.stderr
    settings = gather(str(out), {}, ())
    assert settings.errors == []
    assert settings.texts("mqtt", "listeners")[0] == "tcp://0.0.0.0:1883"
    given = settings.get("mqtt", "bridges")
    assert given is not None
    assert given.value == str(bridges)
    assert bridges.read_text().startswith("connection office\n")


def test_a_file_of_another_kind_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "pyproject.toml"
    other.write_text('[project]\nname = "x"\n')
    out = tmp_path / "gantry.toml"
    assert run_app(["mqtt", "import-config", str(other), "--out", str(out)]) == EXIT_FAILED
    assert (
        "none of its 2 lines is an option of mosquitto.conf that maps; the first: line 1: [project]"
        in capsys.readouterr().err
    )
    assert not out.exists()
    other.write_text("# nothing but a comment\n")
    assert run_app(["mqtt", "import-config", str(other)]) == 0, "an empty file is Mosquitto's defaults"


KEYS = """psk_file /etc/mosquitto/psk
listener 8884
psk_hint plant 7
use_identity_as_username true
listener 8885
psk_hint b
listener 8883
certfile /etc/server.pem
use_identity_as_username true
"""


def test_listeners_with_pre_shared_keys() -> None:
    found = read_mosquitto(KEYS)
    places = found.settings["mqtt.listeners"]
    assert places == [
        "tls://0.0.0.0:8884?psk_file=/etc/mosquitto/psk&psk_hint=plant%207&use_identity_as_username=true",
        "tls://0.0.0.0:8885?psk_file=/etc/mosquitto/psk&psk_hint=b",
        "tls://0.0.0.0:8883?cert=/etc/server.pem",
    ]
    assert isinstance(places, list)
    assert parse_place(places[0]).options["psk_hint"] == "plant 7"
    assert found.settings["auth.certificate_user"] == "cn"
    assert found.left[0].startswith("use_identity_as_username: with auth.enabled=true, and a user for each identity")
    assert [line for line in found.kept if "Python 3.13" in line]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("psk_file /etc/psk\n", "psk_file /etc/psk: no listener has a psk_hint"),
        ("listener 8884\npsk_hint a\n", "psk_hint a: there is no psk_file"),
        ("psk_file /p\nlistener 1\npsk_hint a\ncertfile /c\n", "psk_hint a: its listener has certificates"),
        (
            "per_listener_settings true\nlistener 1\npsk_file /p\nlistener 2\npsk_hint a\n",
            "psk_hint a: there is no psk_file",
        ),
    ],
)
def test_keys_that_are_for_nobody_are_said(text: str, said: str) -> None:
    found = read_mosquitto(text)
    assert any(line.startswith(said) for line in found.left), found.left
    assert "psk" not in str(found.settings)
