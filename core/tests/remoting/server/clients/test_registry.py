"""Members of groups: what each subscribed to, where they differ, what one connection may keep."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.json_bodies import ConsumerData, Heartbeat, Subscription
from gantrymq.remoting.server.clients import registry as module
from gantrymq.remoting.server.clients.registry import Clients, ConsumerGroup, wanted_of
from tests.remoting.bench import Bench, ask, pull, send_frame
from tests.remoting.server.pulling.test_pulls import bodies_of


class Connection:
    """A member that counts the notices it gets."""

    link: Any = None
    language = version = beat_ms = 0

    def __init__(self) -> None:
        self.notices = 0

    def consumers_changed(self, group: str) -> None:
        self.notices += 1

    def push(self, code: int, fields: dict[str, str], body: bytes = b"") -> bool:
        return True

    def call(self, code: int, fields: dict[str, str], body: bytes, on_answer: Any, timeout_ms: int = 0) -> None:
        raise AssertionError


def beat(
    clients: Clients, member: Connection, client: str, version: int = 1, group: str = "G", model: str = "CLUSTERING", size: int = 0,
    **topics: str,
) -> None:  # fmt: skip
    subscriptions = [Subscription(topic, text, sub_version=version) for topic, text in topics.items()]
    data = ConsumerData(group, message_model=model, subscription_data_set=subscriptions)
    clients.heartbeat(member, Heartbeat(client, consumer_data_set=[data]), 0, 0, size)


def conflicts(clients: Clients) -> set[str]:
    group = clients.groups.get("G")
    return set(group.conflicts) if group is not None else set()


def test_each_client_has_its_own_subscription() -> None:
    clients, one, two = Clients(), Connection(), Connection()
    beat(clients, one, "c1", T="A")
    beat(clients, two, "c2", 2, T="B")
    found = [clients.subscription("G", "T", member) for member in (one, two, Connection(), None)]
    assert [each and each.sub_string for each in found] == ["A", "B", "B", "B"]
    assert clients.subscription("G", "U", one) is None
    clients.unregister(two, "c2", None, "G")
    newest = clients.subscription("G", "T")
    assert newest is not None
    assert newest.sub_string == "A"
    clients.connection_closed(one)
    assert clients.subscription("G", "T", one) is None


def test_two_clients_of_one_group_get_what_each_asked_for(bench: Bench) -> None:
    producer, one, two = bench.connect(), bench.connect(), bench.connect()
    producer.feed(b"".join(send_frame(tag.encode(), f"TAGS\x01{tag}\x02", opaque=i) for i, tag in enumerate("ABAB")))
    for link, client, text in ((one, "c1", "A"), (two, "c2", "B")):
        data = [{"groupName": "CG", "subscriptionDataSet": [{"topic": "T", "subString": text, "subVersion": 5}]}]
        ask(link, Code.HEART_BEAT, json.dumps({"clientID": client, "consumerDataSet": data}).encode())
    assert bodies_of(pull(one, sysFlag=0).body) == [b"A", b"A"]
    assert bodies_of(pull(two, sysFlag=0).body) == [b"B", b"B"]
    assert bench.doors.clients.conflicts() == 1


def test_a_conflict_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    clients, members = Clients(), [Connection() for _ in range(6)]
    with caplog.at_level(logging.INFO):
        for number, member in enumerate(members[:5]):
            beat(clients, member, f"c{number}", T="A || B")
        beat(clients, members[5], "c5", T="*")
        for _ in range(3):
            beat(clients, members[5], "c5", T="*")
        beat(clients, members[5], "c5", 2, T="A")
    assert len(caplog.records) == 1
    text = caplog.records[0].getMessage()
    assert "group G" in text
    assert "'A||B' by c0, c1, c2 and 2 more; '*' by c5" in text
    assert clients.conflicts() == 1
    group = clients.groups["G"]
    assert group.who_wants("T") == {("TAG", "A||B"): [f"c{n}" for n in range(5)], ("TAG", "A"): ["c5"]}
    with caplog.at_level(logging.INFO):
        beat(clients, members[5], "c5", 3, T=" B||A")
    assert "again" in caplog.records[1].getMessage()
    assert clients.conflicts() == 0


def test_a_member_without_the_topic_is_a_conflict() -> None:
    clients, one, two = Clients(), Connection(), Connection()
    beat(clients, one, "c1", T="*", U="*")
    beat(clients, two, "c2", T="*")
    assert conflicts(clients) == {"U"}
    assert clients.groups["G"].describe("U") == "'*' by c1; nothing by c2"
    beat(clients, two, "c2", 2, T="*", U="*", V="*")
    assert conflicts(clients) == {"V"}
    clients.connection_closed(two)
    assert conflicts(clients) == set()
    assert set(clients.groups["G"].subscriptions) == {"T", "U"}


def test_what_is_no_conflict() -> None:
    clients, one, two, three = Clients(), Connection(), Connection(), Connection()
    beat(clients, one, "c1", **{"T": "A", "%RETRY%G": "*"})
    beat(clients, two, "c2", T="A")  # a lite pull consumer names no retry topic
    beat(clients, three, "c3")  # nor does a pull consumer name any topic
    assert conflicts(clients) == set()
    beat(clients, one, "d1", group="B", model="BROADCASTING", T="A")
    beat(clients, two, "d2", group="B", model="BROADCASTING", T="B")
    assert clients.conflicts() == 0


SPELLINGS = [("A||B", " B || A "), ("*", ""), ("*", None), ("A", "A||A||")]


@pytest.mark.parametrize(("one", "other"), SPELLINGS)
def test_spellings_of_the_same(one: str, other: str | None) -> None:
    assert wanted_of(Subscription("T", one)) == wanted_of(Subscription("T", other, expression_type=None))
    assert wanted_of(Subscription("T", one)) != wanted_of(Subscription("T", one, expression_type="SQL92"))


def test_members_hear_of_changes_only() -> None:
    clients, one, two = Clients(), Connection(), Connection()
    beat(clients, one, "c1", T="A")
    beat(clients, two, "c2", T="A")
    heard = one.notices
    for _ in range(3):
        beat(clients, two, "c2", 2, T="A")
    assert one.notices == heard
    beat(clients, two, "c2", 3, T="B")
    assert one.notices == heard + 1


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["c1", "c2", "c3"]),
            st.one_of(st.none(), st.dictionaries(st.sampled_from("TUV"), st.sampled_from(["A", "B", "*"]), max_size=3)),
        ),
        max_size=20,
    )
)
def test_counts_agree_with_the_members(steps: list[tuple[str, dict[str, str] | None]]) -> None:
    clients = Clients()
    members = {name: Connection() for name in ("c1", "c2", "c3")}
    now: dict[str, dict[str, str]] = {}
    for version, (client, topics) in enumerate(steps):
        if topics is None:
            clients.unregister(members[client], client, None, "G")
            now.pop(client, None)
        else:
            beat(clients, members[client], client, version, **topics)
            now[client] = topics
        taking = [each for each in now.values() if each]
        wanted = {topic for each in taking for topic in each}
        assert conflicts(clients) == {topic for topic in wanted if len({each.get(topic) for each in taking}) > 1}
        group = clients.groups.get("G", ConsumerGroup("G"))
        assert set(group.subscriptions) == wanted
        for name, each in now.items():
            for topic, text in each.items():
                found = clients.subscription("G", topic, members[name])
                assert found is not None
                assert found.sub_string == text


def test_one_connection_keeps_a_bounded_number_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLACES_PER_CONNECTION_MAX", 3)
    clients, member = Clients(), Connection()
    for number in range(3):
        beat(clients, member, f"c{number}", T="A")
    with pytest.raises(GantryError, match="at most 3 groups") as caught:
        beat(clients, member, "c3", T="A")
    assert caught.value.code is ErrorCode.LIMIT_REACHED
    beat(clients, member, "c2", T="B")
    assert clients.client_ids("G") == ["c0", "c1", "c2"]


def test_heartbeats_of_one_connection_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_BYTES_MAX", 100)
    clients, member = Clients(), Connection()
    for _ in range(5):
        beat(clients, member, "c1", size=60, T="A")
    with pytest.raises(GantryError, match="at most 100 bytes"):
        beat(clients, member, "c2", size=60, T="A")
    clients.unregister(member, "c1", None, "G")
    beat(clients, member, "c2", size=60, T="A")
    clients.connection_closed(member)
    beat(clients, member, "c1", size=100, T="A")


def test_a_heartbeat_over_the_limit_is_refused_at_the_door(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_BYTES_MAX", 20)
    answer = ask(bench.connect(), Code.HEART_BEAT, b'{"clientID":"c","consumerDataSet":[]}')
    assert (answer.code, "20 bytes" in (answer.remark or "")) == (Answer.SYSTEM_BUSY, True)
