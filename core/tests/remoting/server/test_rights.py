"""Every request that is answered has a declared right, or is for administrators or members by decision."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gantrymq.auth.resources import ACTION_NAMES, Kind
from gantrymq.remoting import overview_codes
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.request_classes import CLASSES, RequestClass
from gantrymq.remoting.server.admin import accounts, audit
from gantrymq.remoting.server.changes import CHANGES, changed_by
from gantrymq.remoting.server.rights import RIGHTS
from tests.remoting.bench import Bench

PEOPLE = (RequestClass.CLIENT, RequestClass.ADMINISTRATION)


def test_auth_matrix_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(tmp_path)
    answered = {code: row for code, row in bench.doors.table.items() if row.kind in PEOPLE}
    bench.close()
    undeclared = answered.keys() - RIGHTS.keys() - {int(code) for code in (*accounts.HANDLERS, *audit.HANDLERS)}
    assert not undeclared, f"request codes without a declared right: {sorted(undeclared)}"
    with capsys.disabled():
        sys.stdout.write(
            f"auth matrix: {len(answered)} requests, {len(RIGHTS)} rights, {len(accounts.HANDLERS) + len(audit.HANDLERS)} of administrators\n"
        )


@pytest.mark.parametrize("code", sorted(RIGHTS))
def test_rights_are_words_that_a_policy_has_whatever_the_request_holds(code: int) -> None:
    for body in (b"", b"[]", b"{", b'{"consumerDataSet": 5, "acks": [1], "mqSet": {}, "subscriptionData": 1}'):
        for actions, resource in RIGHTS[code](Command(code, {"topic": "t", "b": "t", "consumerGroup": "g"}, body)):
            assert all(action in ACTION_NAMES for action in actions.split("|"))
            assert resource.partition(":")[0] in list(Kind)


@pytest.mark.parametrize("code", sorted(RIGHTS))
def test_no_name_hides_behind_another(code: int) -> None:
    """A send says its topic in `b`: who writes `topic` beside it needs both, and so with every pair of fields that are asked."""
    fields = ("topic", "b", "consumerGroup", "group", "groupName", "srcGroup", "destGroup")
    for name in fields:
        alone = {resource for _, resource in RIGHTS[code](Command(code, {name: "hidden"})) if "hidden" in resource}
        everything = {**dict.fromkeys(fields, "shown"), name: "hidden"}
        beside = {resource for _, resource in RIGHTS[code](Command(code, everything))}
        assert alone <= beside, name


def test_people_never_reach_what_gateways_and_brokers_say() -> None:
    assert not [code for code in RIGHTS if CLASSES.get(code) not in PEOPLE]


CHANGING = (
    "UPDATE_AND",
    "CREATE",
    "DELETE",
    "CLEAN",
    "SET_",
    "RESUME",
    "INVOKE_BROKER_TO_RESET",
    "CLONE",
    "PUT_",
    "WIPE",
    "ADD_",
    "UPDATE_BROKER",
    "UPDATE_NAMESRV",
)


def test_requests_of_administration_that_change_something_stand_in_the_audit_trail() -> None:
    of_ours = {overview_codes.DRAIN, overview_codes.PRUNE_TOPICS, overview_codes.DAMAGE_SKIP}
    changing = {
        code for code in RequestCode
        if CLASSES.get(code) is RequestClass.ADMINISTRATION and code.name.removeprefix("AUTH_").startswith((*CHANGING, "UPDATE"))
    }  # fmt: skip
    assert len(changing) > 20
    assert changing | of_ours <= CHANGES
    assert not [code for code in CHANGES if CLASSES[code] is not RequestClass.ADMINISTRATION]


def test_what_a_change_is_about_holds_names_and_no_secrets() -> None:
    body = b'{"username":"bob","password":"the-secret"}'
    fields = {"username": "bob", "password": "the-secret", "AccessKey": "root", "Signature": "x"}
    assert changed_by(Command(RequestCode.AUTH_CREATE_USER, fields, body)) == "username=bob"
    listed = b'{"topicConfigList":[{"topicName":"a"},{"topicName":"b"}]}'
    assert changed_by(Command(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, listed)) == "topic:a topic:b"
    assert changed_by(Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"key=the-secret")) == "cluster:"
