"""Where doors are to listen, before anything is opened."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest

from gantrymq.auth.config import AuthConfig
from gantrymq.config import ServerConfig, Settings, gather
from gantrymq.launch.openings import Openings, openings_of
from gantrymq.launch.plan import Launch, make_plan
from gantrymq.model.errors import ConfigError
from gantrymq.net.places import Place
from gantrymq.net.tls.contexts import TlsConfig
from tests.net.tls.certs import make_certificates


@dataclass
class Door:
    name: str
    alpn: tuple[str, ...] = ()
    asks_nobody: bool = False


def openings(
    *sets: str, tls: TlsConfig | None = None, server: ServerConfig | None = None, auth: bool = False
) -> tuple[Openings, list[str]]:
    settings: Settings = gather(None, {}, sets)
    errors: list[ConfigError] = []
    own = {"server": server or ServerConfig(), "tls": tls or TlsConfig(), "auth": AuthConfig(enabled=auth)}
    doors = [Door("mqtt", ("mqtt",)), Door("amqp"), Door("metrics", asks_nobody=True)]
    found = openings_of(settings, own, doors, errors)
    return found, [str(error) for error in errors]


def test_without_listeners_a_door_has_its_one_place() -> None:
    found, errors = openings("mqtt.port=1884")
    assert not errors
    assert found.each("mqtt", "127.0.0.1", 1884) == [(Place("127.0.0.1", 1884), None)]
    assert found.host("mqtt", "127.0.0.1") == "127.0.0.1"
    assert found.further("mqtt", "127.0.0.1", 1) == (Place("127.0.0.1", 1), None)


def test_listeners_come_instead(tmp_path: Path) -> None:
    certs = make_certificates(tmp_path / "certs")
    tls = TlsConfig(str(certs / "server.pem"), str(certs / "server.key"))
    listeners = "mqtt.listeners=tcp://127.0.0.1:1883,tls://0.0.0.0:8883"
    found, errors = openings(listeners, tls=tls, server=ServerConfig(insecure_bind=True))
    assert not errors
    assert [str(place) for place, _ in found.each("mqtt", "", 0)] == ["tcp://127.0.0.1:1883", "tls://0.0.0.0:8883"]
    assert [context is not None for _, context in found.each("mqtt", "", 0)] == [False, True]
    assert found.host("mqtt", "127.0.0.1") == "0.0.0.0"
    assert len(found.all_contexts()) == 1
    assert openings(listeners, tls=tls)[1] == [
        'mqtt.listeners = "0.0.0.0" (--set): other machines could connect, and nobody is authenticated; use 127.0.0.1, '
        "or auth.enabled=true, or add --set server.insecure_bind=true if the network is trusted"
    ]


def test_with_authentication_tls_may_be_reached(tmp_path: Path) -> None:
    certs = make_certificates(tmp_path / "certs")
    tls = TlsConfig(str(certs / "server.pem"), str(certs / "server.key"))
    assert not openings("mqtt.listeners=tls://0.0.0.0:8883", tls=tls, auth=True)[1]
    for scheme in ("tcp", "any"):
        found = openings(f"mqtt.listeners={scheme}://0.0.0.0:8883", tls=tls, auth=True)[1]
        assert ["passwords be read on the way" in error for error in found] == [True]
        plain = ServerConfig(plaintext_bind=True)
        assert not openings(f"mqtt.listeners={scheme}://0.0.0.0:8883", tls=tls, auth=True, server=plain)[1]


def test_with_authentication_a_door_that_asks_nobody_is_for_this_machine_or_for_certificates(tmp_path: Path) -> None:
    certs = make_certificates(tmp_path / "certs")
    tls = TlsConfig(str(certs / "server.pem"), str(certs / "server.key"), client_ca=str(certs / "ca.pem"))
    plain = ServerConfig(plaintext_bind=True)
    for place in (
        "tls://0.0.0.0:5557",
        "tls://0.0.0.0:5557?client_cert=optional",
        "any://0.0.0.0:5557?client_cert=required",
        "tcp://0.0.0.0:5557",
    ):
        errors = openings(f"metrics.listeners={place}", tls=tls, auth=True, server=plain)[1]
        assert ["asks nobody" in error for error in errors] == [True], place
        assert not openings(f"metrics.listeners={place}", tls=tls, auth=True, server=ServerConfig(insecure_bind=True))[
            1
        ]
    for place in ("tls://0.0.0.0:5557?client_cert=required", "tcp://127.0.0.1:5557", f"unix://{tmp_path}/socket"):
        assert not openings(f"metrics.listeners={place}", tls=tls, auth=True)[1], place
    everywhere = ServerConfig(host="0.0.0.0", plaintext_bind=True)
    errors = openings("server.host=0.0.0.0", auth=True, server=everywhere)[1]
    assert errors == [
        'server.host = "0.0.0.0" (--set): metrics asks nobody who he is, and other machines could read; '
        "give metrics.listeners tcp:// on 127.0.0.1, or tls:// with client_cert=required, or set metrics.enabled=false"
    ]
    assert not openings("metrics.listeners=tcp://127.0.0.1:5557", auth=True, server=everywhere)[1]
    assert not openings("server.host=0.0.0.0", server=everywhere)[1]


def test_who_says_no_name_is_somebody_where_users_are_and_names_may_be_missing() -> None:
    place = "tcp://127.0.0.1:1?user=legacy"
    for service in ("broker", "mqtt", "cloudevents"):
        assert make_plan(Launch("up", sets=("auth.enabled=true", f"{service}.listeners={place}")), {})
    with pytest.raises(ConfigError, match=r"user=legacy means nothing here: auth\.enabled is false"):
        make_plan(Launch("up", sets=(f"broker.listeners={place}",)), {})
    for service in ("amqp", "nameserver", "metrics"):
        with pytest.raises(ConfigError, match="come to broker, mqtt, cloudevents only"):
            make_plan(Launch("up", sets=("auth.enabled=true", f"{service}.listeners={place}")), {})


def test_metrics_are_such_a_door() -> None:
    sets = ("auth.enabled=true", "server.plaintext_bind=true")
    with pytest.raises(ConfigError, match="metrics asks nobody"):
        make_plan(Launch("broker", host="0.0.0.0", sets=sets), {})
    assert make_plan(Launch("broker", host="0.0.0.0", sets=(*sets, "metrics.listeners=tcp://127.0.0.1:0")), {})


def test_what_is_wrong_is_said() -> None:
    for sets, complaint in (
        (("mqtt.listeners=127.0.0.1:1883",), "must begin with tcp://"),
        (("mqtt.listeners=tls://127.0.0.1:8883",), "tls.cert is not given"),
        (("mqtt.listeners=tcp://127.0.0.1:1", "mqtt.port=2"), "mqtt.port = 2 (--set): mqtt.listeners (--set) says"),
        (("mqtt.listeners=tcp://127.0.0.1:1", "amqp.listeners=tcp://127.0.0.1:1"), "mqtt listens there, too"),
        (("mqtt.listeners=tcp://127.0.0.1:1,tcp://127.0.0.1:1",), "mqtt listens there, too"),
    ):
        errors = openings(*sets)[1]
        assert errors, sets
        assert all(complaint in error for error in errors), errors


def test_pre_shared_keys_are_for_one_door_and_one_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "psk"
    path.write_text("press-7:" + "ab" * 16)
    path.chmod(0o600)
    listeners = f"mqtt.listeners=tls://127.0.0.1:8884?psk_file={path}"
    monkeypatch.delattr(ssl, "HAS_PSK", raising=False)
    (error,) = openings(listeners)[1]
    assert error.startswith(
        "mqtt.listeners = tls://127.0.0.1:8884 (--set): psk_file needs Python 3.13 or newer, and this"
    )
    monkeypatch.undo()
    errors = openings(
        f"{listeners}&use_identity_as_username=true", f"amqp.listeners=tls://127.0.0.1:1?psk_file={path}"
    )[1]
    assert any(
        "use_identity_as_username means nothing here: auth.enabled is false" in error and "mqtt" in error
        for error in errors
    )
    assert any("psk_file is for mqtt; give it cert= and key=" in error and "amqp" in error for error in errors)
    if not getattr(ssl, "HAS_PSK", False):
        return
    found, errors = openings(f"{listeners}&use_identity_as_username=true", auth=True)
    assert errors == [], "it needs no certificate"
    assert found.contexts["mqtt", 0].config.client_cert == "none"
