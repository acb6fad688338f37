"""What the service is asked and what its answers mean."""

from __future__ import annotations

import json
from urllib.parse import parse_qs

import pytest

from gantrymq.auth.outside.answers import GROUPS_MAX, AnswerError, Verdict, body_of, header_of, read_answer
from gantrymq.auth.rows import Rule

EVIL = 'a&username=root&x="}\r\nHost: evil\0%00+é'


@pytest.mark.parametrize("form", [True, False])
def test_what_is_asked_cannot_be_more_than_texts(form: bool) -> None:
    body = body_of(form, EVIL, EVIL, EVIL, "1.2.3.4")
    assert body is not None
    found = (
        {name: each[0] for name, each in parse_qs(body.decode(), strict_parsing=True).items()}
        if form
        else json.loads(body)
    )
    assert found == {"username": EVIL, "password": EVIL, "client_id": EVIL, "address": "1.2.3.4"}


def test_passwords_that_are_no_text() -> None:
    password = b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert body_of(True, "a", password, "", "") == b"username=a&password=%FF%FE&client_id=&address="
    assert body_of(False, "a", password, "", "") is None


@pytest.mark.parametrize(
    "body", [b"deny", b" deny wrong\n", b'{"result": "deny"}', b'{"result": "ignore", "groups": ["a"]}']
)
def test_denied(body: bytes) -> None:
    assert read_answer("alice", body) == Verdict(False)


def test_allowed() -> None:
    assert read_answer("alice", b"allow\n") == Verdict(True)
    assert read_answer("alice", b"allow monitoring devs") == Verdict(True, ("monitoring", "devs"))
    found = read_answer("alice", b'{"result": "allow", "groups": ["devs"], "is_superuser": true, "expires_s": 60, "rules":'
                        b'[{"resource": "topic:a*", "actions": ["pub"]}, {"resource": "topic:ab", "actions": ["all"], "allow": false}]}')  # fmt: skip
    assert (found.allowed, found.groups, found.expires_s) == (True, ("devs",), 60)
    assert found.policy is not None
    assert found.policy.rules == (Rule("topic:a*", ("pub",)), Rule("topic:ab", ("all",), False))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"ALLOW", b"allowed", b"allow a/b", b"allow " + b"g " * (GROUPS_MAX + 1), b"\xff", b"[]", b"true", b"{", b"{}", b'{"result": true}',
        b'{"result": "allow", "groups": "devs"}', b'{"result": "allow", "groups": ["a:b"]}', b'{"result": "allow", "expires_s": 0}',
        b'{"result": "allow", "rules": [{"resource": "topic:a", "actions": ["fly"]}]}', b'{"result": "allow", "rules": [{"resource": "x", "actions": ["pub"]}]}',
        b'{"result": "allow", "rules": [{"resource": "topic:a", "actions": ["pub"], "sources": ["x"]}]}', b'{"result": "allow"} {"result": "deny"}',
        b"<html>allow</html>", b'{"result": "allow", "x": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    ],
)  # fmt: skip
def test_what_is_no_answer(body: bytes) -> None:
    with pytest.raises(AnswerError):
        read_answer("alice", body)


def test_headers() -> None:
    assert header_of("Authorization: Bearer s3kret\n") == b"Authorization: Bearer s3kret\r\n"
    for text in ("", "x", "A b: c", "X: a\r\nY: b", "X: a\nY: b\n", "Host: x", "content-length: 1", "X: é", "X:"):
        with pytest.raises(ValueError, match=r"^one line") as caught:
            header_of(text)
        assert "s3kret" not in str(caught.value)
