"""With users a client id is its user's: nobody else takes over its session [MQTT-3.1.4-2]."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gantrymq.auth.audit import Audit
from gantrymq.auth.authority import Authority
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.logins import WRONG
from gantrymq.auth.rows import POLICIES, USERS, Policy, Rule, User, encode
from gantrymq.logs import masked
from gantrymq.net.testing import ManualClock, ManualWheel
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.codec import ConnAck, Connect
from gateways.tests.mqtt.world import Client, World


class Plain:
    """A user's hash is the password itself."""

    def check(self, user: str, known: str, password: str, address: str, answer: Callable[[str], None]) -> None:
        answer("" if known and known == password else WRONG)


def guarded(world: World) -> Authority:
    authority = Authority(
        AuthConfig(enabled=True),
        Plain(),
        lambda callback: callback(),
        Audit(ManualWheel(ManualClock()), lambda: 0, "test"),
    )  # type: ignore[arg-type]
    users = [User(name, admin=name == "root", password="pw") for name in ("alice", "bob", "root")]
    authority.load(USERS, {user.name: encode(user) for user in users})
    rules = (Rule("topic:t", ("pub", "sub")),)
    authority.load(POLICIES, {f"user:{name}": encode(Policy(f"user:{name}", rules)) for name in ("alice", "bob")})
    world.gateway.authenticate_by(authority)
    return authority


def comes(world: World, user: str, level: int = c.LEVEL_3_1_1, clean: bool = False) -> tuple[Client, int]:
    """A client `c` of this user, and CONNACK's code."""
    client = Client(world, level=level)
    client.send(Connect("c", level=level, clean=clean, user_name=user, password=b"pw"))
    answer = client.packets.pop(0)
    assert isinstance(answer, ConnAck)
    client.present = answer.session_present
    return client, answer.code


@pytest.mark.parametrize(("level", "code"), [(c.LEVEL_3_1_1, 5), (c.LEVEL_5, 0x87)])
@pytest.mark.parametrize("clean", [False, True])
def test_nobody_takes_over_the_open_session_of_another_user(level: int, code: int, clean: bool) -> None:
    world = World()
    guarded(world)
    mine, first = comes(world, "alice", clean=clean)
    assert first == 0
    for other_clean in (False, True):
        assert comes(world, "bob", level, other_clean)[1] == code
        assert not mine.closed
    assert comes(world, "alice", level)[1] == 0
    assert mine.closed


def test_nobody_comes_back_to_the_stored_session_of_another_user() -> None:
    world = World()
    authority = guarded(world)
    mine, _ = comes(world, "alice")
    assert mine.subscribe("t/a") == [1]
    mine.link.lose()
    world.settle()
    row = world.port.tables["mqtt_session"]["c"]
    for clean in (False, True):
        assert comes(world, "bob", clean=clean)[1] == 5
    assert world.port.tables["mqtt_session"]["c"] == row
    root, code = comes(world, "root")
    assert (code, root.present) == (0, True)
    again, code = comes(world, "alice")  # an administrator's visit makes it nobody else's
    assert (code, again.present, root.closed) == (0, True, True)
    again.link.lose()
    world.settle()
    authority.apply(USERS, "alice", None)
    assert comes(world, "bob")[1] == 0  # whose it was is gone


def test_another_gateway_knows_whose_a_session_is() -> None:
    here = World()
    there = World(port=here.port)
    guarded(here)
    guarded(there)
    here.worlds = there.worlds = [here, there]
    mine, _ = comes(here, "alice")
    there.settle()
    assert comes(there, "bob")[1] == 5
    assert not mine.closed
    assert comes(there, "alice")[1] == 0


def test_a_clean_end_gives_the_client_id_back() -> None:
    world = World()
    guarded(world)
    mine, _ = comes(world, "alice", clean=True)
    mine.link.lose()
    world.settle()
    assert comes(world, "bob")[1] == 0


def test_the_log_says_why_a_login_failed_and_masks_no_word_of_it(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    guarded(world)
    client = Client(world)
    client.send(Connect("c", user_name="alice", password=b"wrong"))
    (record,) = [each for each in caplog.records if "CONNECT refused" in each.getMessage()]
    assert masked(record.getMessage()).endswith(
        "CONNECT refused, bad user name or password (the user name or password is wrong)"
    )
