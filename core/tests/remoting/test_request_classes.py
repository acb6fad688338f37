"""Who may ask what: every request has a class, and strangers are answered clients' requests only."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from gantrymq.cluster.wire.codec import GatewayCode, encode_body
from gantrymq.net.loopback import is_trusted, networks_of
from gantrymq.net.testing import FakeLink
from gantrymq.remoting import overview_codes
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.request_classes import CLASSES, RequestClass, class_of, refusal
from gantrymq_nameserver.door import TABLE
from tests.remoting.bench import Bench, answers, request

ADMINISTRATION = {
    "CLEAN_EXPIRED_CONSUMEQUEUE", "CLEAN_UNUSED_TOPIC", "CLONE_GROUP_OFFSET", "CONSUME_MESSAGE_DIRECTLY",
    "DELETE_EXPIRED_COMMITLOG", "DELETE_SUBSCRIPTIONGROUP", "DELETE_TOPIC_IN_BROKER", "GET_BROKER_CONFIG",
    "UPDATE_BROKER_CONFIG", "UPDATE_AND_CREATE_TOPIC", "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", "INVOKE_BROKER_TO_RESET_OFFSET",
    "UPDATE_NAMESRV_CONFIG", "PUT_KV_CONFIG", "DELETE_KV_CONFIG", "WIPE_WRITE_PERM_OF_BROKER", "DELETE_TOPIC_IN_NAMESRV",
    "RESUME_CHECK_HALF_MESSAGE", "SET_MESSAGE_REQUEST_MODE", "GET_CONSUMER_RUNNING_INFO",
}  # fmt: skip
"""Some that must never be open to everybody."""


def test_what_a_java_client_sends_by_itself_is_answered_to_everybody() -> None:
    """MQClientAPIImpl, without what MQAdminImpl and the tools ask."""
    for name in [
        "SEND_MESSAGE_V2",
        "SEND_BATCH_MESSAGE",
        "PULL_MESSAGE",
        "LITE_PULL_MESSAGE",
        "QUERY_CONSUMER_OFFSET",
        "UPDATE_CONSUMER_OFFSET",
        "HEART_BEAT",
        "UNREGISTER_CLIENT",
        "CHECK_CLIENT_CONFIG",
        "GET_CONSUMER_LIST_BY_GROUP",
        "LOCK_BATCH_MQ",
        "UNLOCK_BATCH_MQ",
        "END_TRANSACTION",
        "CONSUMER_SEND_MSG_BACK",
        "GET_ROUTEINFO_BY_TOPIC",
        "GET_KV_CONFIG",
        "SEARCH_OFFSET_BY_TIMESTAMP",
        "GET_MAX_OFFSET",
        "GET_MIN_OFFSET",
        "QUERY_ASSIGNMENT",
        "POP_MESSAGE",
        "ACK_MESSAGE",
        "BATCH_ACK_MESSAGE",
        "CHANGE_MESSAGE_INVISIBLETIME",
        "RECALL_MESSAGE",
        "SEND_REPLY_MESSAGE_V2",
    ]:
        assert class_of(RequestCode[name]) is RequestClass.CLIENT


def test_administration_is_not() -> None:
    assert {class_of(RequestCode[name]) for name in ADMINISTRATION} == {RequestClass.ADMINISTRATION}
    assert class_of(60121) is RequestClass.ADMINISTRATION
    assert class_of(60001) is RequestClass.GATEWAY
    assert class_of(RequestCode.REGISTER_BROKER) is RequestClass.BROKER


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def stranger(bench: Bench) -> FakeLink:
    link = bench.connect("192.0.2.9:50000")
    link.peer_is_trusted = False
    return link


def first(link: FakeLink, code: int, body: bytes = b"") -> Command:
    """The answer, where there is one at once."""
    found = [command for command in answers(link.feed(request(code, body))) if command.is_response]
    return found[0] if found else Command(0)


def test_a_stranger_is_refused_with_the_setting_that_lets_it_in(bench: Bench, stranger: FakeLink) -> None:
    for code in sorted(set(bench.doors.table) | set(range(60000, 60006))):
        answer = first(stranger, code)
        refused = answer.code == ResponseCode.NO_PERMISSION and "server.trusted_networks" in (answer.remark or "")
        assert refused == bool(refusal(code)), code


def test_a_strangers_gateway_call_changes_nothing(bench: Bench, stranger: FakeLink) -> None:
    body = encode_body(["x", [["k", b"v"]], False])
    assert first(stranger, GatewayCode.PUT, body).code == ResponseCode.NO_PERMISSION
    assert bench.broker.tables.rows("x") == {}
    first(bench.connect(), GatewayCode.PUT, body)
    assert bench.broker.tables.rows("x") == {"k": b"v"}


@pytest.mark.parametrize(
    ("peer", "own", "trusted"),
    [
        ("10.1.2.3", "10.9.9.9", True), ("11.1.2.3", "10.9.9.9", False), ("192.0.2.7", "192.0.2.7", True),
        ("::ffff:10.1.2.3", "::ffff:10.9.9.9", True), ("fe80::1%eth0", "fe80::2%eth0", False), ("2001:db8::5", "2001:db8::6", True),
    ],
)  # fmt: skip
def test_who_is_trusted(peer: str, own: str, trusted: bool) -> None:
    networks = networks_of("10.0.0.0/8, 2001:db8::/32")
    assert is_trusted((peer, 1), (own, 2), networks) is trusted


def test_networks() -> None:
    assert networks_of("") == ()
    assert networks_of(" 10.0.0.0/8 ,") == (ip_network("10.0.0.0/8"),)
    with pytest.raises(ValueError, match="host bits set"):
        networks_of("10.0.0.1/8")


def test_every_request_code_has_a_class(bench: Bench) -> None:
    ours = {value for name, value in vars(overview_codes).items() if name.isupper() and isinstance(value, int)}
    known = {*map(int, RequestCode), *map(int, GatewayCode), *ours, *bench.doors.table, *TABLE}
    assert sorted(known - set(CLASSES)) == []
    assert {code: row.kind for code, row in (bench.doors.table | TABLE).items() if row.kind is not class_of(code)} == {}


def test_pops_with_binary_headers_are_a_clients(bench: Bench) -> None:
    """Their codes do not fit into 16 bits; clients send what is left of them."""
    for name in ("POP_MESSAGE", "ACK_MESSAGE", "CHANGE_MESSAGE_INVISIBLETIME", "BATCH_ACK_MESSAGE", "NOTIFICATION"):
        assert RequestCode[name] & 0xFFFF in bench.doors.table
        assert class_of(RequestCode[name] & 0xFFFF) is RequestClass.CLIENT
