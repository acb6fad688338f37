"""Accounts of other brokers, imported into a running server: the tools that made them are the real ones where they are installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests import commands
from interop_tests.accounts import ADMIN, PASSWORD, Guarded
from interop_tests.test_auth_amqp import connect as amqp
from interop_tests.test_mqtt_paho import WAIT_S, Paho
from interop_tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    gantry = Guarded(tmp_path_factory.mktemp("imported"))
    try:
        gantry.start()
        yield gantry
    finally:
        gantry.stop()


def gantry(server: Guarded, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.gantry(*words, "--nameserver", server.nameserver, GANTRY_USER=ADMIN, GANTRY_PASSWORD=PASSWORD)


def mqtt(server: Guarded, client_id: str, user: str, password: str) -> Paho:
    client = Paho(server, client_id)
    client.client.username_pw_set(user, password)
    return client


def log_bytes(server: Guarded) -> bytes:
    return b"".join([path.read_bytes() for path in sorted((server.directory / "data/store/commitlog").iterdir())])


def test_a_mosquitto_moves_over(server: Guarded, tmp_path: Path) -> None:
    """[C12] With the tool's own hashes; after the first login they are ours."""
    if shutil.which("mosquitto_passwd") is None:
        pytest.skip("mosquitto_passwd is not installed (Debian: apt install mosquitto)")
    passwords, acl = tmp_path / "passwd", tmp_path / "acl"
    passwords.touch(mode=0o600)
    for name in ("sensor", "other"):
        subprocess.run(
            ["mosquitto_passwd", "-b", str(passwords), name, f"{name}-pass"], check=True, capture_output=True
        )
    acl.write_text("pattern write fleet/%u/%c/#\nuser sensor\ntopic read news/#\ntopic deny news/secret\n")
    done = gantry(server, "auth", "import", "mosquitto", str(passwords), str(acl))
    assert done.returncode == 0, done.stdout + done.stderr
    known = passwords.read_text().splitlines()[0].partition(":")[2].encode()
    assert known in log_bytes(server)
    client = mqtt(server, "c1", "sensor", "sensor-pass").start()
    client.subscribe(("news/a", 1))
    client.client.publish("fleet/sensor/c1/temp", b"1", 1).wait_for_publish(WAIT_S)
    client.stop()
    until(lambda: b'{"name":"sensor","groups":["mosquitto"],"password":"$argon2id$' in log_bytes(server))
    client = mqtt(server, "c1", "sensor", "sensor-pass").start()
    client.client.publish("fleet/other/c1/temp", b"1", 1)
    client.event("disconnect")
    client.client.loop_stop()
    again = gantry(server, "auth", "import", "mosquitto", str(passwords), str(acl))
    assert again.returncode == 0
    assert "was there: left as it is" in again.stdout
    mqtt(server, "c2", "sensor", "sensor-pass").start().stop()


def test_a_rabbitmq_moves_over(server: Guarded, tmp_path: Path) -> None:
    """Users as RabbitMQ's documentation and exports have them: `rabbit_password_hashing_sha256` of `test12` with the salt 908DC60A."""
    known = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
    path = tmp_path / "definitions.json"
    user = {"name": "rabbit", "password_hash": known, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": []}
    permission = {
        "user": "rabbit",
        "vhost": "/",
        "configure": "^jobs$",
        "write": "^(amq\\.default|jobs)$",
        "read": "^jobs$",
    }
    path.write_text(json.dumps({"users": [user], "permissions": [permission]}))
    done = gantry(server, "auth", "import", "rabbitmq", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    for _ in range(2):  # by the imported hash, then by ours
        connection = amqp(server, "rabbit", "test12")
        channel = connection.channel()
        channel.queue_declare("jobs")
        channel.basic_publish("", "jobs", b"x")
        connection.close()
        until(lambda: b'{"name":"rabbit","password":"$argon2id$' in log_bytes(server))


def test_accounts_of_a_rocketmq_sign(server: Guarded, tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(
        "accounts:\n- accessKey: RocketMQ\n  secretKey: 12345678\n  admin: false\n  defaultTopicPerm: DENY\n"
        "  defaultGroupPerm: SUB\n  topicPerms:\n  - orders=PUB|SUB\n"
    )
    done = gantry(server, "auth", "import", "rocketmq", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    account = {"GANTRY_USER": "RocketMQ", "GANTRY_PASSWORD": "12345678"}

    def send(topic: str) -> subprocess.CompletedProcess[str]:
        return commands.gantry("send", topic, "hello", "--nameserver", server.nameserver, **account)

    assert send("orders").returncode == 0
    refused = send("others")
    assert refused.returncode == 1
    assert "topic:others" in refused.stderr
    assert "12345678" not in server.log()
