"""Accounts of Mosquitto, RabbitMQ and RocketMQ: what becomes of each line, and that what is not understood gives nobody a right."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gantrymq.auth.passwords import verify
from gantrymq.cli.app import app
from gantrymq.cli.security.imports.found import Found, ImportFileError
from gantrymq.cli.security.imports.mosquitto import read_mosquitto
from gantrymq.cli.security.imports.rabbitmq import read_rabbitmq
from gantrymq.cli.security.imports.rocketmq import read_rocketmq, read_yaml


def sha512(password: str, salt: bytes = b"salt-of-12by") -> str:
    """As mosquitto_passwd of Mosquitto 1.x."""
    digest = hashlib.sha512(password.encode() + salt).digest()
    return f"$6${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def pbkdf2(password: str, salt: bytes = b"salt-of-12by") -> str:
    """As mosquitto_passwd of Mosquitto 2.0."""
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 101)
    return f"$7$101${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def rabbit(password: str, salt: bytes = b"salt") -> str:
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def rules(found: Found, subject: str) -> list[tuple[str, str, str]]:
    return [(rule["decision"], ",".join(rule["actions"]), rule["resource"]) for rule in found.rules.get(subject, [])]


# Mosquitto.

PASSWORDS = f"# fleet\nalice:{sha512('alice-pass')}\nbob:{pbkdf2('bob-pass')}\n"
ACL = """
# everybody
topic read news/#
pattern write fleet/%u/#
pattern read $SYS/broker/connection/%c/state

user alice
topic orders/+/new
topic read my topic
topic deny orders/7/new
topic write orders/+/new
"""


def test_mosquittos_passwords_and_rights() -> None:
    found = read_mosquitto([PASSWORDS.encode(), ACL.encode()])
    assert sorted(found.users) == ["alice", "bob"]
    for name in ("alice", "bob"):
        assert verify(found.users[name]["hash"], f"{name}-pass")
        assert not verify(found.users[name]["hash"], "wrong")
        assert found.users[name]["groups"] == ["mosquitto"]
    assert rules(found, "user:anonymous") == [("Allow", "sub", "mqtt:news/#")]
    assert rules(found, "group:mosquitto") == [
        ("Allow", "pub", "mqtt:fleet/%u/#"), ("Allow", "sub", "mqtt:$SYS/broker/connection/%c/state"),
    ]  # fmt: skip
    assert rules(found, "user:alice") == [
        ("Allow", "pub,sub", "mqtt:orders/+/new"), ("Allow", "sub", "mqtt:my topic"), ("Deny", "pub,sub", "mqtt:orders/7/new"),
    ]  # fmt: skip
    assert found.left == []
    assert [note.partition(":")[0][:30] for note in found.notes] == [
        "clients without a name come in",
        "a subscription to more than it",
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("carol", "is not NAME:HASH"),  # [C12] Mosquitto took a line without a colon as a user without a password
        ("carol:", "is not NAME:HASH"),
        ("carol:plain-text", "not hashed"),
        ("carol:$9$x$y", "no hash of argon2id"),
        ("a/b:" + sha512("x"), "is no name"),
        ("#a:" + sha512("x"), ""),  # a remark
        ("+:" + sha512("x"), "is no name"),
    ],
)
def test_a_line_of_passwords_that_is_no_user(line: str, why: str) -> None:
    found = read_mosquitto([f"{PASSWORDS}{line}\n".encode()])
    assert sorted(found.users) == ["alice", "bob"]
    assert len(found.left) == bool(why)
    assert why in "".join(found.left)
    assert "plain-text" not in "".join(found.left)


@pytest.mark.parametrize("text", ["", "# nothing\n", "user a\nfoo bar\n", "user a\ntopic\n", "topic read a\nuser\n"])
def test_no_acl_file(text: str) -> None:
    """[C12] An empty file is not one that allows everything, and a line that is not understood may have been a denial."""
    with pytest.raises(ImportFileError):
        read_mosquitto([text.encode()])


def test_rights_that_mean_something_else_here() -> None:
    found = read_mosquitto([b"user a\ntopic read x/%u/y\ntopic read a/#/b\ntopic read ok\n"])
    assert rules(found, "user:a") == [("Allow", "sub", "mqtt:ok")]
    assert len(found.left) == 2


# RabbitMQ.


def definitions(**more: Any) -> bytes:
    said = {
        "users": [
            {"name": "app", "password_hash": rabbit("app-pass"), "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": []},
            {"name": "boss", "password_hash": rabbit("boss-pass"), "tags": "administrator,management"},
            {"name": "eyes", "password_hash": "", "tags": ["monitoring"], "limits": {"max-connections": 1}},
        ],
        "permissions": [
            {"user": "app", "vhost": "/", "configure": "^app", "write": "^(app|amq\\.topic)$", "read": ".*"},
            {"user": "ghost", "vhost": "/", "configure": "", "write": "", "read": ""},
        ],
        "topic_permissions": [
            {"user": "app", "vhost": "/", "exchange": "amq.topic", "write": "^{username}\\.", "read": ".*"}
        ],
    }  # fmt: skip
    return json.dumps(said | more).encode()


def test_rabbitmqs_users_and_permissions() -> None:
    found = read_rabbitmq(definitions())
    assert verify(found.users["app"]["hash"], "app-pass")
    assert found.users["app"]["amqp"] == {"/": ["^app", "^(app|amq\\.topic)$", ".*"]}
    assert found.users["app"]["amqpTopics"] == {"/": {"amq.topic": ["^{username}\\.", ".*"]}}
    assert found.users["boss"]["userType"] == "Super"
    assert verify(found.users["boss"]["hash"], "boss-pass")
    assert "hash" not in found.users["eyes"]
    assert rules(found, "user:eyes") == [("Allow", "get,list", "cluster:*")]
    assert "ghost" not in found.users
    assert [text.partition(":")[0] for text in found.left] == ["user boss", "user eyes"]
    assert len(found.notes) == 1


def test_what_cannot_be_matched_in_linear_time_gives_nothing() -> None:
    ahead = "^(?=app)"
    found = read_rabbitmq(
        definitions(permissions=[{"user": "app", "vhost": "/", "configure": ahead, "write": ".*", "read": ".*"}])
    )
    assert "amqp" not in found.users["app"]
    assert any("permission in vhost /" in text for text in found.left)
    topic = {"user": "app", "vhost": "/", "exchange": "amq.topic", "write": ahead, "read": ".*"}
    found = read_rabbitmq(definitions(topic_permissions=[topic]))
    assert "amqp" not in found.users["app"], "without its topic permission it would get more than it had"
    assert any("it gets nothing in that vhost" in text for text in found.left)


def test_a_hash_that_is_not_taken_over() -> None:
    user = {"name": "old", "password_hash": "abcd", "hashing_algorithm": "rabbit_password_hashing_md5", "tags": []}
    found = read_rabbitmq(definitions(users=[user]))
    assert "hash" not in found.users["old"]
    assert "rabbit_password_hashing_md5" in found.left[0]


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"users":1}', b'{"users":["x"]}', b'{"users":[{"name":1}]}', b"[" * 100_000]
)
def test_no_definitions(data: bytes) -> None:
    with pytest.raises(ImportFileError):
        read_rabbitmq(data)


# RocketMQ.

PLAIN_ACL = """
# comes with a broker
globalWhiteRemoteAddresses:
- 10.10.103.*

accounts:
- accessKey: RocketMQ
  secretKey: "12345678"   # quoted
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: DENY
  topicPerms:
  - topicA=DENY
  - topicB=PUB
  - topicC=ANY
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY
  - groupB=SUB

- accessKey: root
  secretKey: root-secret
  whiteRemoteAddress: 192.168.1.*
  admin: true
- accessKey: broken
"""


def test_plain_acl() -> None:
    found = read_rocketmq([PLAIN_ACL.encode()])
    assert found.users == {
        "RocketMQ": {"password": "12345678", "userType": "Normal"}, "root": {"password": "root-secret", "userType": "Super"},
    }  # fmt: skip
    assert rules(found, "user:RocketMQ") == [
        ("Allow", "pub,sub", "topic:*"), ("Deny", "pub,sub", "topic:topicA"), ("Allow", "pub", "topic:topicB"),
        ("Deny", "sub", "topic:topicB"), ("Allow", "pub,sub", "topic:topicC"), ("Deny", "pub,sub", "group:groupA"),
        ("Allow", "sub", "group:groupB"),
    ]  # fmt: skip
    assert len(found.left) == 3
    assert "root-secret" not in "".join(found.left + found.notes)


@pytest.mark.parametrize(
    "text",
    [
        "", "accounts:\n", "accounts: []\n", "accounts:\n- secretKey: x\n", "accounts:\n- accessKey: a\n  secretKey: b\n  topicPerms: [t=FLY]\n",
        "accounts:\n- accessKey: a\n  secretKey: b\n  defaultTopicPerm: FLY\n", "accounts: &x\n", "accounts:\n\t- accessKey: a\n",
        "accounts:\n- accessKey: a\n   secretKey: b\n", "accounts:\n- accessKey: a\n  accessKey: b\n", "accounts: {a: b}\n", "just text\n",
    ],
)  # fmt: skip
def test_no_plain_acl(text: str) -> None:
    with pytest.raises(ImportFileError):
        read_rocketmq([text.encode()])


def test_yaml_as_these_files_have_it() -> None:
    said = read_yaml(
        "a:\n  - x\n  -   b: 'y # no remark'\n      c: [1, \"2\"]\n      d:\n      - z\ne: f # remark\n---\n"
    )
    assert said == {"a": ["x", {"b": "y # no remark", "c": ["1", "2"], "d": ["z"]}], "e": "f"}


def test_acl_2() -> None:
    said = {
        "users": [
            {"username": "alice", "password": "alice-pass", "userType": "Normal", "userStatus": "enable"},
            {"username": "root", "password": "p", "userType": "Super", "userStatus": "disable"}, {"username": "none"},
        ],
        "acls": [
            {"subject": "User:alice", "policies": [{"policyType": "Custom", "entries": [
                {"resource": "Topic:orders*", "actions": ["Pub", "Sub"], "decision": "Allow", "sourceIps": ["10.0.0.0/8"]},
                {"resource": "Group:*", "actions": ["Sub"], "decision": "Deny"},
                {"resource": "Namespace:x", "actions": ["Sub"]}]}]},
        ],
    }  # fmt: skip
    found = read_rocketmq([json.dumps(said).encode()])
    assert found.users["root"] == {"password": "p", "userType": "Super", "userStatus": "disable"}
    assert rules(found, "user:alice") == [("Allow", "pub,sub", "topic:orders*"), ("Deny", "sub", "group:*")]
    assert found.rules["user:alice"][0]["sourceIps"] == ["10.0.0.0/8"]
    assert len(found.left) == 2
    with pytest.raises(ImportFileError):
        read_rocketmq(
            [
                b'{"acls":[{"subject":"User:a","policies":[{"entries":[{"resource":"Topic:a","actions":["Pub"],"decision":"Maybe"}]}]}]}'
            ]
        )


def test_the_command_says_what_it_would_do_without_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(PLAIN_ACL)
    done = CliRunner().invoke(app, ["auth", "import", "rocketmq", str(path), "--dry-run"])
    assert done.exit_code == 1, done.output
    assert "would be made" in done.output
    assert "left out: globalWhiteRemoteAddresses" in done.output
    assert "root-secret" not in done.output
    assert "12345678" not in done.output
    done = CliRunner().invoke(app, ["auth", "import", "rocketmq", str(path), "--dry-run", "--json"])
    said = json.loads(done.stdout)
    assert said["users"] == ["RocketMQ", "root"]
    assert "root-secret" not in done.output
    done = CliRunner().invoke(app, ["auth", "import", "rabbitmq", str(path), "--dry-run"])
    assert done.exit_code == 1
    assert "nothing was imported" in done.output
