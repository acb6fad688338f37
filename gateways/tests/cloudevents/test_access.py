import json
from base64 import b64encode

import pytest

from gantrymq.auth import logins
from gantrymq.auth.audit import Audit
from gantrymq.auth.authority import Authority
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.rows import POLICIES, USERS, Policy, Rule, User, encode
from gantrymq.net.testing import ManualClock, ManualWheel
from tests.cloudevents.rig import Rig, parse


class SlowLogins:
    """Passwords that are checked when the test says so; a user's hash is the password itself."""

    def __init__(self):
        self.waiting = []
        self.asked = 0

    def check(self, user, known, password, address, answer):
        self.asked += 1
        self.waiting.append(lambda: answer("" if known and known == password else logins.WRONG))

    def finish(self):
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each()


class Guarded(Rig):
    """A door that asks; `writer`, `reader`, `both` of topic `t`, `root` of all."""

    def __init__(self):
        self.logins = SlowLogins()
        self.authority = Authority(
            AuthConfig(enabled=True),
            self.logins,
            lambda callback: callback(),
            Audit(ManualWheel(ManualClock()), lambda: 0, "test"),
        )
        self.rows = {
            name: encode(User(name, admin=name == "root", password="pw"))
            for name in ("writer", "reader", "both", "root")
        }
        self.authority.load(USERS, self.rows)
        self.allow("writer", "pub")
        self.allow("reader", "sub")
        self.allow("both", "pub", "sub")
        self.authority.load(POLICIES, self.policies)
        super().__init__(authority=self.authority, clock=ManualClock())
        self.registry.ask(self.authority)

    policies = None

    def allow(self, user, *actions):
        self.policies = {
            **(self.policies or {}),
            f"user:{user}": encode(Policy(f"user:{user}", (Rule("topic:t", actions),))),
        }

    def ask(self, user, method, path, body=b"", password="pw", **headers):
        head = {"authorization": basic(user, password), **headers}
        lines = [f"{method} {path} HTTP/1.1", "host: h", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in head.items()]
        out = self.link.feed("\r\n".join([*lines, "", ""]).encode() + body)
        return parse(out + self.settle())

    def settle(self):
        self.logins.finish()
        self.run()
        return self.link.feed(b"")

    def post_as(self, user, topic="t", **more):
        head = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s", "ce_type": "a", **more}
        return self.ask(user, "POST", f"/topics/{topic}", b"body", **head)

    def subscribe_as(self, user, topic="t"):
        document = {"sink": "http://127.0.0.1:9/hook", "protocol": "HTTP", "config": {"topic": topic}}
        body = json.dumps(document).encode()
        return self.ask(user, "POST", "/subscriptions", body, content_type="application/json")


def basic(user, password="pw"):
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


EVENT = b"ce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\nce-type: a\r\n"


def head(credentials, length=4, more=b""):
    line = b"authorization: " + credentials.encode() + b"\r\n" if credentials else b""
    return b"POST /topics/t HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n" % length + EVENT + line + more + b"\r\n"


@pytest.mark.parametrize(
    "credentials",
    [
        "",
        "Basic",
        "Basic !!",
        "Basic " + b64encode(b"nocolon").decode(),
        "Basic " + b64encode(b"\xff:x").decode(),
        "Bearer x",
    ],
)
def test_nobody_is_challenged_and_no_byte_of_the_body_is_read(credentials):
    rig = Guarded()
    status, headers, problem = parse(rig.link.feed(head(credentials, 5_000) + b"x" * 3_000))
    assert (status, headers["www-authenticate"]) == (401, 'Basic realm="gantry", charset="UTF-8"')
    assert (headers["content-type"], problem["status"]) == ("application/problem+json", 401)
    assert headers["connection"] == "close"
    assert rig.link.door.inbound_bytes() == 0
    assert rig.port.submitted == []
    assert rig.logins.asked == 0


def test_a_second_header_is_no_way_in():
    rig = Guarded()
    out = rig.link.feed(head(basic("root"), more=b"authorization: " + basic("nobody").encode() + b"\r\n") + b"body")
    assert parse(out)[0] == 401


def test_a_request_without_a_body_is_challenged_and_the_connection_lives():
    rig = Guarded()
    status, headers, _ = rig.request("GET", "/subscriptions")
    assert (status, "connection" in headers) == (401, False)
    assert rig.ask("root", "GET", "/subscriptions")[0] == 200
    assert rig.request("GET", "/healthz")[0] == 200


def test_a_wrong_password():
    rig = Guarded()
    status, headers, problem = rig.ask("root", "POST", "/topics/t", b"body", password="guess")
    assert (status, problem["detail"]) == (401, logins.WRONG)
    assert "www-authenticate" in headers
    rig = Guarded()
    assert rig.ask("nobody", "POST", "/topics/t", b"body")[0] == 401


def test_nothing_is_read_while_a_password_is_checked():
    rig = Guarded()
    assert rig.link.feed(head(basic("writer"), more=b"expect: 100-continue\r\n")) == b""
    assert rig.link.reading is False
    assert rig.link.deadline_at_ms is None or rig.link.door.unfinished() == 0
    assert rig.settle() == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert rig.link.reading is True
    assert parse(rig.link.feed(b"body") + rig.settle())[0] == 202
    rig = Guarded()
    rig.link.feed(head(basic("writer", "guess"), more=b"expect: 100-continue\r\n"))
    assert parse(rig.settle())[0] == 401


def test_requests_behind_one_another_keep_their_order():
    rig = Guarded()
    rig.link.feed((head(basic("writer")) + b"body") * 3 + head(basic("reader")) + b"body")
    assert rig.port.submitted == []
    out = rig.settle() + rig.settle()
    assert [part[:3] for part in out.split(b"HTTP/1.1 ")[1:]] == [b"202", b"202", b"202", b"403"]
    assert rig.logins.asked == 2  # the same credentials are known on their connection


def test_a_client_that_ends_its_side_while_its_password_is_checked_is_answered():
    rig = Guarded()
    rig.link.feed(head(basic("writer")) + b"body")
    assert rig.link.peer_closes() == b""
    assert parse(rig.settle())[0] == 202
    assert rig.link.closed_by == "close"


def test_a_verdict_that_comes_too_late():
    rig = Guarded()
    rig.link.feed(head(basic("writer")) + b"body")
    rig.link.door.shutdown()
    assert parse(rig.settle())[0] == 503
    assert rig.port.submitted == []
    rig = Guarded()
    rig.link.feed(head(basic("writer")) + b"body")
    rig.link.lose()
    rig.logins.finish()
    rig.run()
    assert rig.port.submitted == []


def test_rights_of_publishers_and_subscribers():
    rig = Guarded()
    assert rig.post_as("writer")[0] == 202
    status, headers, problem = rig.post_as("writer", "other")
    assert (status, headers["content-type"]) == (403, "application/problem+json")
    assert (problem["code"], problem["detail"]) == ("NO_PERMISSION", "user writer may not publish to topic 'other'")
    assert rig.post_as("reader")[0] == 403
    assert rig.subscribe_as("writer")[0] == 403
    assert rig.subscribe_as("reader", "other")[0] == 403
    assert rig.subscribe_as("reader")[0] == 201
    assert rig.post_as("root", "other")[0] == 202
    assert [message.topic for message in rig.port.log] == ["t", "other"]


def test_a_name_that_is_encoded_is_asked_as_it_is_stored():
    rig = Guarded()
    assert rig.post_as("writer", "%74")[0] == 202  # `t`, percent-encoded
    assert rig.post_as("writer", "t%2Fx")[0] == 403
    assert rig.post_as("writer", "x" * 300)[0] == 403
    assert rig.topics.foreign == {}  # whoever may not use a name leaves no trace of it


@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
def test_retries_and_dead_letters_are_their_groups_as_at_the_remoting_door(prefix):
    rig = Guarded()
    for user, resource in (("reader", "topic:*"), ("both", "group:g")):
        value = encode(Policy(f"user:{user}", (Rule(resource, ("sub",)),)))
        rig.authority.apply(POLICIES, f"user:{user}", value)
    rig.port.ensure_topic(f"{prefix}g", True, None, lambda token, result: None)
    rig.run()
    assert rig.subscribe_as("reader", f"{prefix}g")[0] == 403
    assert rig.subscribe_as("both", f"{prefix}other")[0] == 403
    assert rig.subscribe_as("both", f"{prefix}g")[0] == 201
    assert rig.ask("reader", "GET", "/subscriptions")[2] == []


@pytest.mark.parametrize("target", ["http://h?x/topics/t", "http://h/a?x/topics/t", "/a?/topics/t"])
def test_what_stands_in_a_query_is_no_path(target):
    assert Guarded().ask("root", "GET", target)[0] == 404


@pytest.mark.parametrize("target", ["/topics/t#x", "/healthz#", "http://h/topics/t#x"])
def test_a_fragment_is_refused(target):
    """A proxy in front would cut it off, and ask its own rules about another name."""
    assert Guarded().ask("root", "GET", target)[0] == 400


def test_subscriptions_of_topics_that_one_may_not_have_do_not_exist():
    rig = Guarded()
    mine, other = rig.subscribe_as("root")[2]["id"], rig.subscribe_as("root", "other")[2]["id"]
    assert [each["id"] for each in rig.ask("root", "GET", "/subscriptions")[2]] == [mine, other]
    assert [each["id"] for each in rig.ask("reader", "GET", "/subscriptions")[2]] == [mine]
    assert rig.ask("writer", "GET", "/subscriptions")[2] == []
    assert rig.ask("reader", "GET", f"/subscriptions/{mine}")[0] == 200
    for method in ("GET", "DELETE"):
        assert rig.ask("reader", method, f"/subscriptions/{other}")[0] == 404
        assert rig.ask("writer", method, f"/subscriptions/{mine}")[0] == 404
    assert rig.ask("reader", "DELETE", f"/subscriptions/{mine}")[0] == 204


def test_a_subscription_pauses_while_its_owner_has_lost_the_right():
    rig = Guarded()
    name = rig.subscribe_as("reader")[2]["id"]
    rig.post_as("writer")
    (sent,) = rig.sender.open
    rig.authority.apply(POLICIES, "user:reader", None)
    rig.settle()
    assert sent.cancelled
    rig.post_as("writer", ce_id="2")
    rig.advance(60_000)
    assert rig.sender.open == []
    shown = rig.ask("root", "GET", f"/subscriptions/{name}")[2]
    assert (shown["status"], shown["statusreason"]) == (
        "paused", "user reader, who made it, may not subscribe to topic t",
    )  # fmt: skip
    rig.authority.apply(POLICIES, "user:reader", rig.policies["user:reader"])
    rig.settle()
    got = []
    while rig.sender.open:
        got.append(rig.sender.open[0].id)
        rig.sender.open[0].answer(204)
        rig.run()
    assert sorted(got) == ["1", "2"], "nothing was lost meanwhile"
    rig.post_as("writer", ce_id="3")
    assert len(rig.sender.open) == 1
    assert rig.ask("root", "GET", f"/subscriptions/{name}")[2]["status"] == "active"
    rig.authority.apply(USERS, "reader", None)
    rig.settle()
    assert rig.sender.open == []
    assert rig.ask("root", "DELETE", f"/subscriptions/{name}")[0] == 204
    assert (rig.port.leases, rig.port.tables["ce_subscription"]) == ({}, {})


def test_whose_a_subscription_is_outlives_a_restart():
    rig = Guarded()
    rig.subscribe_as("reader")
    (row,) = rig.port.tables["ce_subscription"].values()
    assert json.loads(row)["owner"] == "reader"
    assert rig.ask("root", "GET", "/subscriptions")[2][0]["status"] == "active"


def test_a_right_that_is_lost_while_the_body_comes():
    rig = Guarded()
    rig.link.feed(head(basic("writer")) + b"bo")
    rig.settle()
    rig.authority.apply(POLICIES, "user:writer", None)
    assert parse(rig.link.feed(b"dy") + rig.settle())[0] == 403
    assert rig.port.submitted == []


def test_a_user_that_changes_is_asked_again():
    rig = Guarded()
    assert rig.post_as("writer")[0] == 202
    rig.authority.apply(USERS, "writer", encode(User("writer", password="new")))
    assert rig.post_as("writer")[0] == 401
    rig = Guarded()
    rig.authority.apply(USERS, "writer", None)
    assert rig.post_as("writer")[0] == 401


def test_clients_without_a_name_are_the_user_anonymous_where_there_is_one():
    rig = Guarded()
    rig.authority.apply(USERS, "anonymous", encode(User("anonymous")))
    rig.authority.apply(POLICIES, "user:anonymous", encode(Policy("user:anonymous", (Rule("topic:open", ("pub",)),))))
    assert rig.post("open")[0] == 202
    assert rig.post("t")[0] == 403


def test_before_the_users_are_here_a_client_is_told_to_come_again():
    rig = Guarded()
    rig.authority.loaded = False
    status, headers, _ = rig.request("GET", "/subscriptions")
    assert (status, headers["retry-after"]) == (503, "1")
