"""Who a connection's requests are from, and what becomes of one that guesses."""

from __future__ import annotations

import pytest

from gantrymq.auth.audit import Audit
from gantrymq.auth.authority import Authority
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.members.handshake import Applicant, Porter
from gantrymq.auth.members.key import parse_key
from gantrymq.auth.rows import POLICIES, TOKENS, USERS, Policy, Rule, Token, User, encode
from gantrymq.auth.signatures import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, sign
from gantrymq.auth.tokens import own
from gantrymq.auth.tokens.ending import AGAIN_MS, Ending
from gantrymq.net.doors.threshold import Terms, Threshold
from gantrymq.net.testing import FakeLink, ManualClock, ManualWheel
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.door import RemotingDoor, code_name
from gantrymq.remoting.gateway_codes import FIRST_CODE, MEMBER_BEGIN
from gantrymq.remoting.server.guard import ALLOWED_MAX, WRONG_MAX, Guard


class CountedLogins:
    def __init__(self) -> None:
        self.failures: list[tuple[str, str]] = []

    def note_failure(self, user: str, address: str) -> None:
        self.failures.append((user, address))


class PlainKeys:
    """Secrets as they are."""

    def open(self, user: str, sealed: str) -> str:
        return sealed


class World:
    def __init__(self, *users: User) -> None:
        self.logins = CountedLogins()
        self.authority = Authority(
            AuthConfig(), self.logins, lambda callback: callback(), Audit(ManualWheel(ManualClock()), lambda: 0, "test")
        )  # type: ignore[arg-type]
        self.authority.keys = PlainKeys()  # type: ignore[assignment]
        self.authority.load(USERS, {user.name: encode(user) for user in users})
        self.authority.load(POLICIES, {})
        self.wheel = ManualWheel(ManualClock())
        self.link = FakeLink(self.wheel, peer="192.0.2.1:50000")
        self.door = RemotingDoor(self.wheel, {})
        self.link.attach(Threshold(self.door, Terms(1_000, 100, self.wheel)))
        self.guard = Guard(self.authority, self.link, self.door.stranger)

    def ask(self, secret: str, user: str = "root") -> str:
        fields = {"topic": "t", ACCESS_KEY: user}
        request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {**fields, SIGNATURE: sign(secret, fields, b"")})
        return self.guard.refusal(request)


KEY = parse_key("0123456789abcdef" * 2)

ROOT = User("root", admin=True, secret="right")


def test_who_signs_is_known() -> None:
    world = World(ROOT)
    assert "is wrong" in world.ask("wrong")
    assert not world.guard.is_known
    assert world.ask("right") == ""
    assert world.guard.is_known
    assert world.link.door is world.door


def test_who_guesses_is_closed_and_counted() -> None:
    world = World(ROOT)
    for number in range(WRONG_MAX):
        assert world.link.closed_by is None, number
        assert "is wrong" in world.ask("wrong", user="root" if number % 2 else "nobody")
    assert world.link.closed_by == "close"
    assert len(world.logins.failures) == WRONG_MAX
    assert set(world.logins.failures) == {("root", "192.0.2.1"), ("nobody", "192.0.2.1")}


def test_a_member_of_the_cluster_is_known_without_a_signature() -> None:
    for trusted in (True, False):
        world = World()
        world.link.peer_is_trusted = trusted
        assert bool(world.guard.refusal(Command(FIRST_CODE, {}))) is not trusted
        assert world.guard.is_known is trusted


def test_with_a_key_the_address_makes_nobody_a_member() -> None:
    world = World(ROOT)
    world.door.porter = porter = Porter(KEY)
    world.link.peer_is_trusted = True
    for code in (FIRST_CODE, RequestCode.REGISTER_BROKER):
        assert "cluster's key" in world.guard.refusal(Command(code, {}))
    applicant = Applicant(KEY, "gateway")
    begin = Command(MEMBER_BEGIN, applicant.begin())
    assert world.guard.refusal(begin) == ""
    assert not world.guard.is_known
    porter.finish(applicant.finish(porter.begin(begin.fields)))
    world.guard.met("gateway", "")
    assert world.guard.is_known
    assert world.guard.refusal(Command(FIRST_CODE, {})) == ""


def test_what_brokers_read_of_each_other_administrators_read_from_anywhere() -> None:
    world = World(ROOT, User("alice", secret="right"))
    world.link.peer_is_trusted = False
    for user, refused in (("root", False), ("alice", True)):
        fields = {ACCESS_KEY: user}
        request = Command(RequestCode.GET_ALL_TOPIC_CONFIG, {**fields, SIGNATURE: sign("right", fields, b"")})
        assert bool(world.guard.refusal(request)) is refused
    assert world.guard.refusal(Command(RequestCode.GET_ALL_TOPIC_CONFIG, {}))
    fields = {ACCESS_KEY: "root"}
    registers = Command(RequestCode.REGISTER_BROKER, {**fields, SIGNATURE: sign("right", fields, b"")})
    assert world.guard.refusal(registers)


@pytest.mark.parametrize(
    ("users", "name", "more"),
    [
        ((ROOT,), "root", True),
        ((ROOT,), "nobody", False),
        ((ROOT,), "", False),
        ((User("root", admin=True),), "root", False),
        ((User("anonymous"),), "", True),
        ((User("root", secret="right", enabled=False),), "root", False),
    ],
)
def test_a_large_frame_is_read_for_whoever_may_have_signed_it(users: tuple[User, ...], name: str, more: bool) -> None:
    world = World(*users)
    world.guard.ask_for_room(Command(RequestCode.SEND_MESSAGE, {ACCESS_KEY: name} if name else {}), 5_000)
    for _ in range(3):
        world.link.feed(b"\x00\x00\x20\x00\x00\x00\x10\x00" if not world.door.inbound_bytes() else b"x" * 100)
    assert (world.link.closed_by is None) is more


def send(where: str, secret: str = "right", **more: str) -> Command:
    fields = {"b": where, ACCESS_KEY: "alice", **more}
    return Command(RequestCode.SEND_MESSAGE_V2, {**fields, SIGNATURE: sign(secret, fields, b"body")}, b"body")


def test_a_send_that_was_allowed_is_asked_again_when_something_changes() -> None:
    """Every one is checked for its signature, and none is allowed for what another may."""
    world = World(User("alice", secret="right"))
    authority = world.authority
    authority.apply(POLICIES, "user:alice", encode(Policy("user:alice", (Rule("topic:t", ("pub",)),))))
    for _ in range(3):
        assert world.guard.refusal(send("t")) == ""
        assert "is wrong" in world.guard.refusal(send("t", "wrong"))
        assert "no permission pub on topic:other" in world.guard.refusal(send("other"))
        assert "no permission pub on topic:other" in world.guard.refusal(send("other", topic="t"))
        assert "no permission pub on topic:other" in world.guard.refusal(send("t", topic="other"))
    authority.apply(POLICIES, "user:alice", None)
    assert "no permission pub on topic:t" in world.guard.refusal(send("t"))
    authority.apply(POLICIES, "user:alice", encode(Policy("user:alice", (Rule("topic:t", ("pub",)),))))
    assert world.guard.refusal(send("t")) == ""
    authority.apply(USERS, "alice", encode(User("alice", secret="new")))
    assert "is wrong" in world.guard.refusal(send("t"))
    assert world.guard.refusal(send("t", "new")) == ""
    authority.apply(USERS, "alice", None)
    assert "is wrong" in world.guard.refusal(send("t", "new"))


def test_topics_that_are_remembered_are_bounded() -> None:
    world = World(User("alice", secret="right"))
    world.authority.apply(POLICIES, "user:alice", encode(Policy("user:alice", (Rule("topic:*", ("pub",)),))))
    for number in range(ALLOWED_MAX + 10):
        assert world.guard.refusal(send(f"t{number}")) == ""
    assert len(world.guard._allowed) <= ALLOWED_MAX


def with_token(text: str, where: str = "t", **more: str) -> Command:
    return Command(RequestCode.SEND_MESSAGE_V2, {"b": where, SECURITY_TOKEN: text, **more}, b"body")


def make_token(world: World, good_ms: int = 1_000) -> tuple[str, str]:
    name, text = own.make()
    world.authority.apply(TOKENS, name, encode(Token(name, "alice", own.parse(text)[1], good_ms)))
    return name, text


def test_a_token_says_who_sends_a_request() -> None:
    """Whatever else is there: RocketMQ's clients sign with a key beside it."""
    world = World(User("alice"))
    world.authority.apply(POLICIES, "user:alice", encode(Policy("user:alice", (Rule("topic:t", ("pub",)),))))
    name, text = make_token(world)
    for _ in range(3):
        assert world.guard.refusal(with_token(text)) == ""
        assert world.guard.refusal(with_token(text, **{ACCESS_KEY: "any", SIGNATURE: "any"})) == ""
        assert "no permission pub on topic:other" in world.guard.refusal(with_token(text, "other"))
    assert world.guard.is_known
    world.authority.apply(TOKENS, name, None)
    assert world.guard.is_gone()
    assert f"none with id {name} is known" in world.guard.refusal(with_token(text))


def test_a_security_token_that_is_none_of_ours_is_left_to_the_signature() -> None:
    world = World(User("alice", secret="right"))
    world.authority.apply(POLICIES, "user:alice", encode(Policy("user:alice", (Rule("topic:t", ("pub",)),))))
    assert world.guard.refusal(send("t", **{SECURITY_TOKEN: "of another cloud"})) == ""
    assert "is wrong" in world.guard.refusal(send("t", "wrong", **{SECURITY_TOKEN: "of another cloud"}))
    assert "not signed" in world.guard.refusal(with_token("of another cloud"))


def test_who_guesses_tokens_is_closed() -> None:
    world = World(User("alice"))
    make_token(world)
    for number in range(WRONG_MAX):
        assert world.link.closed_by is None, number
        assert "the token is refused" in world.guard.refusal(with_token(own.make()[1]))
    assert world.link.closed_by == "close"
    assert not world.guard.is_known


def test_a_connection_is_looked_at_when_its_token_ends() -> None:
    world = World(User("alice"))
    ended: list[bool] = []
    world.guard.ending = Ending(world.wheel, lambda: ended.append(True))
    clock_ms = [0]
    world.authority.audit.now_ms = lambda: clock_ms[0]
    world.guard.refusal(with_token(make_token(world)[1]))
    clock_ms[0] = 1_000
    world.wheel.advance(1_000 + AGAIN_MS)
    assert ended == [True]
    assert world.guard.is_gone()


def test_a_large_frame_is_read_for_whoever_has_a_token() -> None:
    world = World(User("alice"))
    for text, more in ((own.make()[1], False), (make_token(world)[1], True)):
        expected: list[int] = []
        world.link.expect = expected.append  # type: ignore[method-assign]
        world.guard.ask_for_room(with_token(text), 5_000)
        assert bool(expected) is more


def test_codes_of_ours_have_names_in_logs_and_the_audit_trail() -> None:
    assert [code_name(code) for code in (31, 60123, 64999)] == ["GET_MIN_OFFSET (31)", "TOPIC_LIST (60123)", "64999"]
