"""TLS with pre-shared keys, as Mosquitto has it: its own clients and OpenSSL's at a server with users."""

from __future__ import annotations

import secrets
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests import commands
from interop_tests.accounts import ADMIN, PASSWORD, Guarded
from interop_tests.running import Gantry
from interop_tests.waiting import until

ABLE = bool(getattr(ssl, "HAS_PSK", False))
able = pytest.mark.skipif(not ABLE, reason="pre-shared keys need Python 3.13 or newer first on PATH")
PUB, SUB, OPENSSL = (shutil.which(name) or "" for name in ("mosquitto_pub", "mosquitto_sub", "openssl"))
mosquitto = pytest.mark.skipif(not (PUB and SUB), reason="mosquitto_pub and mosquitto_sub are not installed")
openssl = pytest.mark.skipif(not OPENSSL, reason="openssl is not installed")

KEYS = {name: secrets.token_hex(32) for name in ("press-7", "press-8", "nobody")}
DEVICE, NAMED = "mqtt", "mqtt.any"
"""Where the key is the user's, and where users say a password, too."""


def write_keys(path: Path, keys: dict[str, str]) -> None:
    path.write_text("".join(f"{identity}:{key}\n" for identity, key in keys.items()))
    path.chmod(0o600)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("gantry")
    write_keys(directory / "psk", KEYS)
    keys = f"127.0.0.1:0?psk_file={directory}/psk&psk_hint=plant"
    gantry = Guarded(
        directory,
        settings=(
            f"mqtt.listeners=tls://{keys}&use_identity_as_username=true,any://{keys}",
            "auth.address_failures_max=1000",
        ),
    )
    try:
        gantry.start()
        for name in ("press-7", "press-8"):
            gantry.add_user(name, f"password-of-{name}", ("mqtt:plant/%u/#", "pub,sub"))
        yield gantry
    finally:
        gantry.stop()


def with_key(server: Guarded, door: str, program: str, identity: str, key: str, *more: str) -> list[str]:
    host, port = server.address(door)
    return [program, "-h", host, "-p", str(port), "--psk-identity", identity, "--psk", key, *more]


def publish(server: Guarded, identity: str, key: str, topic: str, *more: str, door: str = DEVICE) -> bool:
    """Whether it was taken; a refused one of MQTT 5 ends with 0."""
    command = with_key(server, door, PUB, identity, key, "-t", topic, "-m", "21.5", "-q", "1", *more)
    done = subprocess.run(command, timeout=60, capture_output=True, check=False)
    return done.returncode == 0 and b"failed" not in done.stderr


@able
@mosquitto
@pytest.mark.parametrize("version", ["tlsv1.2", "tlsv1.3"])
@pytest.mark.parametrize("level", ["mqttv311", "mqttv5"])
def test_mosquitto_clients_are_who_their_key_says(server: Guarded, version: str, level: str) -> None:
    more = ("--tls-version", version, "-V", level)
    assert publish(server, "press-7", KEYS["press-7"], "plant/press-7/temp", "-r", *more)
    listen = with_key(server, DEVICE, SUB, "press-7", KEYS["press-7"], "-t", "plant/press-7/#", "-C", "1", *more)
    assert subprocess.run(listen, timeout=60, capture_output=True, check=True).stdout == b"21.5\n"
    # The name that is said does not count, nor whose password it is.
    other = ("-u", "press-8", "-P", "password-of-press-8")
    assert publish(server, "press-7", KEYS["press-7"], "plant/press-7/temp", *other, *more)
    assert not publish(server, "press-7", KEYS["press-7"], "plant/press-8/temp", *other, *more)
    assert not publish(server, "nobody", KEYS["nobody"], "plant/nobody/temp", *more), "it is no user"


@able
@mosquitto
def test_where_users_say_a_password_the_key_lets_them_say_it(server: Guarded) -> None:
    said = ("-u", "press-8", "-P", "password-of-press-8")
    assert publish(server, "nobody", KEYS["nobody"], "plant/press-8/temp", *said, door=NAMED)
    assert not publish(server, "nobody", KEYS["nobody"], "plant/press-8/temp", *said[:3], "wrong", door=NAMED)
    assert not publish(server, "press-8", KEYS["press-8"], "plant/press-8/temp", door=NAMED)


def audited(server: Guarded) -> str:
    found = commands.gantry(
        "auth", "audit", "--json", "--last", "500", "--nameserver", server.nameserver,
        GANTRY_USER=ADMIN, GANTRY_PASSWORD=PASSWORD,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return found.stdout


def lines(server: Guarded, user: str) -> list[str]:
    return [line for line in audited(server).splitlines() if f'"{user}"' in line]


def shake(server: Guarded, identity: str, key: str, *more: str) -> subprocess.CompletedProcess[bytes]:
    host, port = server.address(DEVICE)
    command = [
        OPENSSL,
        "s_client",
        "-connect",
        f"{host}:{port}",
        "-psk_identity",
        identity,
        "-psk",
        key,
        "-brief",
        *more,
    ]
    return subprocess.run(command, stdin=subprocess.DEVNULL, timeout=60, capture_output=True, check=False)


def told(failed: subprocess.CompletedProcess[bytes]) -> list[bytes]:
    """What OpenSSL says of it, without the number of its thread in front."""
    return [line.partition(b":")[2] for line in failed.stderr.splitlines() if b"error" in line]


@able
@openssl
@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_a_wrong_key_and_an_unknown_identity_are_one_answer_and_are_audited(server: Guarded, version: str) -> None:
    good = shake(server, "press-7", KEYS["press-7"], version)
    assert b"CONNECTION ESTABLISHED" in good.stderr, good.stderr
    wrong = shake(server, "press-7", KEYS["press-8"], version)
    unknown = shake(server, f"stranger{version}", KEYS["press-8"], version)
    for each in (wrong, unknown):
        assert each.returncode != 0
        assert b"CONNECTION ESTABLISHED" not in each.stderr
        assert told(each), each.stderr
    assert told(wrong) == told(unknown)
    (line,) = until(lambda: lines(server, f"stranger{version}"))
    assert '"pre-shared key"' in line
    assert "the identity or its pre-shared key is wrong" in line
    texts = server.process("up").log() + audited(server)
    assert not any(key in texts for key in KEYS.values()), "a key was told"


@able
@openssl
def test_no_stranger_without_a_key_and_no_old_tls(server: Guarded) -> None:
    host, port = server.address(DEVICE)
    for more in (
        ["-tls1_2"],
        ["-tls1_3"],
        ["-tls1_1", "-psk", KEYS["press-7"], "-psk_identity", "press-7", "-cipher", "PSK@SECLEVEL=0"],
    ):
        command = [OPENSSL, "s_client", "-connect", f"{host}:{port}", "-brief", *more]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=60, capture_output=True, check=False)
        assert b"CONNECTION ESTABLISHED" not in done.stderr, more


@able
@mosquitto
def test_a_new_key_counts_after_sighup_and_status_says_psk(server: Guarded) -> None:
    new = secrets.token_hex(32)
    write_keys(server.directory / "psk", KEYS | {"press-8": new})
    server.process("up").process.send_signal(signal.SIGHUP)  # type: ignore[union-attr]
    until(lambda: publish(server, "press-8", new, "plant/press-8/temp"))
    assert not publish(server, "press-8", KEYS["press-8"], "plant/press-8/temp")
    assert publish(server, "press-7", KEYS["press-7"], "plant/press-7/temp")
    status = commands.gantry(
        "auth", "status", "--nameserver", server.nameserver, GANTRY_USER=ADMIN, GANTRY_PASSWORD=PASSWORD, COLUMNS="200"
    )
    assert "psk" in status.stdout


@pytest.mark.skipif(ABLE, reason="this Python has pre-shared keys")
def test_another_python_refuses_to_start(tmp_path: Path) -> None:
    write_keys(tmp_path / "psk", KEYS)
    gantry = Gantry(tmp_path, settings=(f"mqtt.listeners=tls://127.0.0.1:0?psk_file={tmp_path}/psk",))
    with pytest.raises(AssertionError, match=r"psk_file needs Python 3\.13 or newer, and this is 3"):
        gantry.start()
