"""Bridges as mosquitto.conf writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq_gateways.bridges.mosquitto import BridgeFileError, TopicRule, parse

SITE = """
# to the head office
connection office
addresses office.example:1884 [2001:db8::1]:1885 10.0.0.1
topic sensors/# out 1 factory/ site7/
topic # in 2 from/ ""
topic "" both 0 local/one remote/one
topic plain
remote_clientid site7
remote_username u
remote_password p w
cleansession false
keepalive_interval 30
restart_timeout 2 20
notifications false
bridge_cafile /etc/ca.pem
bridge_insecure true
bridge_protocol_version mqttv50
"""


def test_a_bridge_with_everything() -> None:
    found = parse(SITE)
    (connection,) = found.connections
    assert connection.addresses == [("office.example", 1884), ("2001:db8::1", 1885), ("10.0.0.1", 1883)]
    assert connection.topics == [
        TopicRule("sensors/#", "out", 1, "factory/", "site7/"),
        TopicRule("#", "in", 2, "from/", ""),
        TopicRule("", "both", 0, "local/one", "remote/one"),
        TopicRule("plain"),
    ]
    assert (connection.client_id, connection.user_name, connection.password) == ("site7", "u", "p w")
    assert (connection.clean, connection.keep_alive_s, connection.restart_s) == (False, 30, (2.0, 20.0))
    assert (connection.notifications, connection.tls, connection.insecure) == (False, True, True)
    assert found.notes == ["connection office: bridge_protocol_version mqttv50"]


def test_prefixes_are_changed_for_each_other() -> None:
    rule = TopicRule("#", "both", 0, "local/", "remote/")
    assert (rule.local_filter, rule.remote_filter) == ("local/#", "remote/#")
    assert rule.to_remote("local/a/b") == "remote/a/b"
    assert rule.to_local("remote/a/b") == "local/a/b"
    one = TopicRule("", "both", 0, "local/one", "remote/one")
    assert one.to_remote("local/one") == "remote/one"


def test_names_come_from_the_machine() -> None:
    (connection,) = parse("connection a\naddress b\ntopic #\n", "host").connections
    assert connection.client_id == "host.a"
    assert connection.state_topic == "$SYS/broker/connection/host.a/state"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("topic #", "line 1: topic stands before"),
        ("connection a\naddress b", "needs a name, an address and a topic"),
        ("connection a\ntopic #", "needs a name, an address and a topic"),
        ("connection a\naddress b\ntopic # sideways", "line 3: a direction is one of"),
        ("connection a\naddress b\ntopic # out 3", "line 3: a direction"),
        ("connection a\naddress b\ntopic # out 1 a b c", "line 3: topic PATTERN"),
        ('connection a\naddress b\ntopic "" out 1', "line 3: a pattern that is empty"),
        ("connection a\naddress b\ntopic x out 1 +/ b", "line 3: a prefix has no wildcards"),
        ("connection a\naddress b\nnonsense 1", "line 3: nonsense is no option"),
        ("connection a\naddress b\ncleansession maybe", "line 3: cleansession is true or false"),
        ("connection a\naddress b\ntopic x\nconnection a\naddress b\ntopic x", "two connections have one name"),
    ],
)
def test_what_is_none(text: str, complaint: str) -> None:
    with pytest.raises(BridgeFileError, match=complaint):
        parse(text)


def test_passwords_from_files_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_text("of a file\nsecond line\n")
    site = "connection a\naddress h\ntopic # in\n"
    monkeypatch.setenv("BRIDGE_PASSWORD", "of the environment")
    for line, password in (
        (f"remote_password_file {path}", "of a file"),
        ("remote_password ${BRIDGE_PASSWORD}", "of the environment"),
        ("remote_password $plain", "$plain"),
    ):
        (connection,) = parse(f"{site}{line}\n").connections
        assert connection.password == password
        assert password not in repr(connection)
    for line in (f"remote_password_file {tmp_path}/none", "remote_password ${NOT_SET}"):
        with pytest.raises(BridgeFileError, match="line 4"):
            parse(f"{site}{line}\n")


def test_secrets_that_are_not_used_are_not_told() -> None:
    found = parse("connection a\naddress h\ntopic # in\nlocal_password hunter2\nbridge_psk abcdef\n")
    assert len(found.notes) == 2
    assert "hunter2" not in str(found)
    assert "abcdef" not in str(found)
