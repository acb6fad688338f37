"""Requests to the nameserver over a door without a socket."""

import json
import struct
import zlib
from collections.abc import Callable

import pytest

from gantrymq.auth.members.handshake import Applicant
from gantrymq.auth.members.key import ClusterKey, parse_key
from gantrymq.model import dialect
from gantrymq.net.testing import FakeLink, ManualClock, ManualWheel
from gantrymq.remoting import java_properties
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.codec import Command, FrameReader, encode
from gantrymq.remoting.constants import RequestCode as Code
from gantrymq.remoting.constants import ResponseCode as Answer
from gantrymq.remoting.gateway_codes import MEMBER_BEGIN, MEMBER_PROVE
from gantrymq_nameserver import register_body
from gantrymq_nameserver.door import NameserverDoor, State


class Server:
    def __init__(
        self, order_messages: bool = False, key: ClusterKey | None = None, brokers: tuple[str, ...] = ()
    ) -> None:
        self.clock = ManualClock()
        self.wheel = ManualWheel(self.clock)
        self.saves: list[Callable[[str], None]] = []
        self.state = State(self.wheel, order_messages, self.saves.append, key, brokers)

    def connect(self) -> FakeLink:
        return FakeLink(self.wheel).attach(NameserverDoor(self.state))


def ask(link: FakeLink, code: int, body: bytes = b"", version: int = 479, **fields: str) -> Command:
    sent = link.feed(encode(Command(code, fields, body, opaque=77, version=version)))
    (answer,) = FrameReader().feed(sent)
    assert answer.is_response
    assert answer.opaque == 77
    return answer


BROKER = {"brokerName": "a", "brokerAddr": "h:1", "clusterName": "C", "haServerAddr": "h:2", "brokerId": "0"}


def register_json(*topics: str, counter: int = 1) -> bytes:
    table = {topic: {"topicName": topic, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for topic in topics}
    version = {"counter": counter, "stateVersion": 0, "timestamp": 5}
    return json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": table, "dataVersion": version}}).encode()


def register(link: FakeLink, *topics: str, counter: int = 1, **fields: str) -> Command:
    answer = ask(link, Code.REGISTER_BROKER, register_json(*topics, counter=counter), **BROKER | fields)
    assert answer.code == 0, answer.remark
    return answer


def test_route_in_both_kinds_of_json() -> None:
    server = Server()
    link = server.connect()
    register(link, "T")
    new = ask(link, Code.GET_ROUTEINFO_BY_TOPIC, topic="T")
    assert json.loads(new.body) == {
        "brokerDatas": [{"cluster": "C", "brokerName": "a", "brokerAddrs": {"0": "h:1"}, "enableActingMaster": False}],
        "queueDatas": [{"brokerName": "a", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicSysFlag": 0}],
        "filterServerTable": {},
    }
    old = ask(link, Code.GET_ROUTEINFO_BY_TOPIC, topic="T", version=395)
    assert b'"brokerAddrs":{0:"h:1"}' in old.body
    asked = ask(link, Code.GET_ROUTEINFO_BY_TOPIC, topic="T", version=395, acceptStandardJsonOnly="true")
    assert asked.body == new.body
    assert bodies.decode(old.body, bodies.ReadTopicRoute) == bodies.decode(new.body, bodies.ReadTopicRoute)


def test_unknown_topic() -> None:
    answer = ask(Server().connect(), Code.GET_ROUTEINFO_BY_TOPIC, topic="T")
    assert answer.code == Answer.TOPIC_NOT_EXIST
    assert "No topic route info in name server for the topic: T" in (answer.remark or "")


def test_own_system_topics_have_no_route() -> None:
    link = Server().connect()
    register(link, "rmq_sys_gantry_ack")
    assert ask(link, Code.GET_ROUTEINFO_BY_TOPIC, topic="rmq_sys_gantry_ack").code == Answer.TOPIC_NOT_EXIST


def test_cached_route_follows_changes() -> None:
    server = Server()
    link, other = server.connect(), server.connect()
    register(link, "T")
    assert b"h:1" in ask(other, Code.GET_ROUTEINFO_BY_TOPIC, topic="T").body
    register(link, "T", counter=2, brokerAddr="h:9")
    assert b"h:9" in ask(other, Code.GET_ROUTEINFO_BY_TOPIC, topic="T").body
    link.lose()
    assert ask(other, Code.GET_ROUTEINFO_BY_TOPIC, topic="T").code == Answer.TOPIC_NOT_EXIST


def deflate_body(*topics: str) -> bytes:
    def part(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    texts = [f"{topic} 4 8 6 SINGLE_TAG" + (' {"a":"b"}' if topic == "U" else "") for topic in topics]
    data = part(b'{"counter":3,"stateVersion":0,"timestamp":5}') + struct.pack(">i", len(topics))
    data += b"".join(part(text.encode()) for text in texts) + part(b"[]") + struct.pack(">i", 0)
    return zlib.compress(data, 9)


def test_compressed_registration() -> None:
    server = Server()
    link = server.connect()
    body = deflate_body("T", "U")
    answer = ask(link, Code.REGISTER_BROKER, body, **BROKER, compressed="true", bodyCrc32=str(zlib.crc32(body)))
    assert answer.code == 0, answer.remark
    assert server.state.routes.topics["U"]["a"].write_queue_nums == 8
    version = server.state.routes.version_of("C", "h:1")
    assert version == bodies.DataVersion(0, 5, 3)


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"not zlib", {"compressed": "true"}),
        (deflate_body("T")[:-5], {"compressed": "true"}),
        (zlib.compress(b"\0\0\0\xff{}"), {"compressed": "true"}),
        (zlib.compress(b"\0\0\0\x02{}\0\0\0\x01\0\0\0\x03a b"), {"compressed": "true"}),
        (zlib.compress(b"\0\0\0\x02{}\0\0\0\x01\xff\xff\xff\xff"), {"compressed": "true"}),
        (b'{"topicConfigSerializeWrapper":3}', {}),
        (b"{}", {"bodyCrc32": "12345"}),
        (b"{}", {"brokerId": "x"}),
        (b"{}", {"brokerAddr": "nohost"}),
    ],
)
def test_bad_registration_is_refused(body: bytes, fields: dict[str, str]) -> None:
    server = Server()
    answer = ask(server.connect(), Code.REGISTER_BROKER, body, **BROKER | fields)
    assert answer.code == Answer.SYSTEM_ERROR
    assert answer.remark
    assert server.state.routes.groups == {}


def test_inflated_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register_body, "INFLATED_BYTES_MAX", 1000)
    answer = ask(Server().connect(), Code.REGISTER_BROKER, zlib.compress(bytes(100_000)), **BROKER, compressed="true")
    assert "more than 1000 bytes" in (answer.remark or "")


def test_slave_is_told_its_master_and_the_order_configuration() -> None:
    server = Server()
    server.state.kv.put("ORDER_TOPIC_CONFIG", "T", "a:4")
    link = server.connect()
    register(link, "T")
    answer = register(server.connect(), "T", brokerAddr="s:1", brokerId="1")
    assert answer.fields == {"masterAddr": "h:1", "haServerAddr": "h:2"}
    assert json.loads(answer.body) == {"table": {"T": "a:4"}}


def test_order_configuration_in_routes() -> None:
    server = Server(order_messages=True)
    link = server.connect()
    register(link, "T")
    ask_put = encode(Command(Code.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "a:4"}))
    link.feed(ask_put)
    assert json.loads(ask(link, Code.GET_ROUTEINFO_BY_TOPIC, topic="T").body)["orderTopicConf"] == "a:4"


def test_unregister_and_complete_tables() -> None:
    link = Server().connect()
    register(link, "T", "U")
    register(link, "T", counter=2, gantryCompleteTable="true")
    topics = json.loads(ask(link, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body)
    assert topics == {"topicList": ["T"]}
    assert ask(link, Code.UNREGISTER_BROKER, **BROKER).code == 0
    assert json.loads(ask(link, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body) == {"topicList": []}


def test_cluster_members_and_topic_lists() -> None:
    link = Server().connect()
    register(link, "T")
    info = {
        "brokerAddrTable": {
            "a": {"cluster": "C", "brokerName": "a", "brokerAddrs": {"0": "h:1"}, "enableActingMaster": False}
        },
        "clusterAddrTable": {"C": ["a"]},
    }
    assert json.loads(ask(link, Code.GET_BROKER_CLUSTER_INFO).body) == info
    assert json.loads(dialect.standard(ask(link, Code.GET_BROKER_CLUSTER_INFO, version=1).body)) == info
    members = json.loads(ask(link, Code.GET_BROKER_MEMBER_GROUP, clusterName="C", brokerName="a").body)
    assert members["brokerMemberGroup"]["brokerAddrs"] == {"0": "h:1"}
    assert json.loads(ask(link, Code.GET_TOPICS_BY_CLUSTER, cluster="C").body) == {"topicList": ["T"]}
    assert json.loads(ask(link, Code.GET_TOPICS_BY_CLUSTER, cluster="X").body) == {"topicList": []}
    system = json.loads(ask(link, Code.GET_SYSTEM_TOPIC_LIST_FROM_NS).body)
    assert system == {"topicList": ["C", "a"], "brokerAddr": "h:1"}
    for code in (Code.GET_UNIT_TOPIC_LIST, Code.GET_HAS_UNIT_SUB_TOPIC_LIST, Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST):
        assert json.loads(ask(link, code).body) == {"topicList": []}


def test_write_permission_and_deletion() -> None:
    server = Server()
    link = server.connect()
    register(link, "T", "U")
    assert ask(link, Code.WIPE_WRITE_PERM_OF_BROKER, brokerName="a").fields == {"wipeTopicCount": "2"}
    assert ask(link, Code.ADD_WRITE_PERM_OF_BROKER, brokerName="a").fields == {"addTopicCount": "2"}
    assert ask(link, Code.DELETE_TOPIC_IN_NAMESRV, topic="T").code == 0
    assert sorted(server.state.routes.topics) == ["U"]


def test_data_version_and_heartbeat() -> None:
    server = Server()
    link = server.connect()
    fields = {key: BROKER[key] for key in ("brokerName", "brokerAddr", "clusterName", "brokerId")}
    same, other = b'{"counter":1,"stateVersion":0,"timestamp":5}', b'{"counter":2,"stateVersion":0,"timestamp":5}'
    assert ask(link, Code.QUERY_DATA_VERSION, same, **fields).fields == {"changed": "true"}
    register(link, "T")
    assert ask(link, Code.QUERY_DATA_VERSION, other, **fields).fields == {"changed": "true"}
    server.wheel.advance(100_000)
    answer = ask(link, Code.QUERY_DATA_VERSION, same, **fields)
    assert (answer.fields, json.loads(answer.body)) == ({"changed": "false"}, json.loads(same))
    assert server.state.routes.expire(server.wheel.now_ms() + 30_000) == []
    server.wheel.advance(100_000)
    assert ask(link, Code.BROKER_HEARTBEAT, **fields).code == 0
    assert server.state.routes.expire(server.wheel.now_ms() + 30_000) == []
    assert server.state.routes.expire(server.wheel.now_ms() + 130_000) == ["a/0 h:1"]


def test_kv_is_answered_when_saved() -> None:
    server = Server()
    link = server.connect()
    put = encode(Command(Code.PUT_KV_CONFIG, {"namespace": "N", "key": "k", "value": "v"}, opaque=5))
    assert link.feed(put) == b""
    server.saves.pop()("")
    (answer,) = FrameReader().feed(link.feed(b""))
    assert (answer.code, answer.opaque) == (0, 5)
    assert ask(link, Code.GET_KV_CONFIG, namespace="N", key="k").fields == {"value": "v"}
    assert json.loads(ask(link, Code.GET_KVLIST_BY_NAMESPACE, namespace="N").body) == {"table": {"k": "v"}}
    link.feed(encode(Command(Code.DELETE_KV_CONFIG, {"namespace": "N", "key": "k"})))
    server.saves.pop()("disk full")
    (answer,) = FrameReader().feed(link.feed(b""))
    assert (answer.code, answer.remark) == (Answer.SYSTEM_ERROR, "disk full")
    assert ask(link, Code.GET_KV_CONFIG, namespace="N", key="k").code == Answer.QUERY_NOT_FOUND
    assert ask(link, Code.GET_KVLIST_BY_NAMESPACE, namespace="N").code == Answer.QUERY_NOT_FOUND
    assert ask(link, Code.PUT_KV_CONFIG, namespace="", key="", value="").code == Answer.SYSTEM_ERROR


@pytest.mark.parametrize("code", [3, 28, 200050, 1001])
def test_unknown_codes(code: int) -> None:
    answer = ask(Server().connect(), code)
    assert answer.code == Answer.REQUEST_CODE_NOT_SUPPORTED
    assert str(code) in (answer.remark or "")


def test_missing_field_is_named() -> None:
    answer = ask(Server().connect(), Code.GET_ROUTEINFO_BY_TOPIC)
    assert answer.code == Answer.SYSTEM_ERROR
    assert "`topic`" in (answer.remark or "")


def test_oneway_requests_get_no_answer() -> None:
    link = Server().connect()
    assert link.feed(encode(Command(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}, flag=2))) == b""


def test_broken_stream_is_answered_and_closed() -> None:
    link = Server().connect()
    good = encode(Command(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, opaque=1))
    answers = FrameReader().feed(link.feed(good + b"GET / HTTP/1.1\r\n\r\n"))
    assert [answer.code for answer in answers] == [0, Answer.SYSTEM_ERROR]
    assert "HTTP" in (answers[1].remark or "")
    assert link.closed_by == "close"


def test_idle_connection_is_closed_and_a_used_one_is_not() -> None:
    server = Server()
    idle, used = server.connect(), server.connect()
    for _ in range(5):
        server.wheel.advance(60_000)
        ask(used, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert idle.closed_by == "close"
    assert used.closed_by is None


def test_settings() -> None:
    server = Server()
    link = server.connect()
    before = java_properties.read(ask(link, Code.GET_NAMESRV_CONFIG).body)
    assert before["orderMessageEnable"] == "false"
    assert not any("path" in name.lower() or "home" in name.lower() for name in before)
    update = Command(Code.UPDATE_NAMESRV_CONFIG, {}, b"orderMessageEnable=true", opaque=5)
    assert link.feed(encode(update)) == b""  # answered when it is written
    server.saves.pop()("")
    (answer,) = FrameReader().feed(link.feed(b""))
    assert (answer.code, answer.opaque) == (0, 5)
    assert java_properties.read(ask(link, Code.GET_NAMESRV_CONFIG).body)["orderMessageEnable"] == "true"
    assert server.state.settings.to_bytes() == b"orderMessageEnable=true\n"
    again = Server()
    again.state.settings.load(b"orderMessageEnable=true\nlistenPort=1\n", "file")
    assert again.state.settings.order_messages
    for body, code in (
        (b"kvConfigPath=/etc/passwd", Answer.NO_PERMISSION),
        (b"orderMessageEnable=perhaps", Answer.INVALID_PARAMETER),
        (b"returnOrderTopicConfigToBroker=false\nother=1", Answer.INVALID_PARAMETER),
    ):
        refused = ask(link, Code.UPDATE_NAMESRV_CONFIG, body)
        assert (refused.code, bool(refused.remark)) == (code, True)
    assert server.state.settings.order_to_brokers
    assert server.saves == []


def test_changes_alone() -> None:
    """A broker sends what changed since a version that the nameserver has; else it is told to send everything."""
    server = Server()
    link = server.connect()
    register(link, "T", "U", counter=7, gantryCompleteTable="true")

    def changes(since: int, counter: int, topics: dict[str, int], *gone: str) -> Command:
        table = {name: {"topicName": name, "writeQueueNums": queues, "perm": 6} for name, queues in topics.items()}
        version = {"counter": counter, "stateVersion": 0, "timestamp": 5}
        body = {"topicConfigSerializeWrapper": {"topicConfigTable": table, "dataVersion": version}, "gantryGone": gone}
        return ask(link, Code.REGISTER_BROKER, json.dumps(body).encode(), **BROKER, gantrySince=str(since))

    assert changes(7, 9, {"V": 2, "T": 8}, "U").fields == {}
    topics = server.state.routes.topics
    assert sorted(topics) == ["T", "V"]
    assert (topics["T"]["a"].write_queue_nums, topics["V"]["a"].write_queue_nums) == (8, 2)
    assert changes(8, 10, {}, "T").fields == {"gantryUnknown": "true"}
    assert sorted(topics) == ["T", "V"]
    assert changes(9, 10, {}, "T", "missing").fields == {}
    assert sorted(topics) == ["V"]


def test_route_answers_are_kept_by_topic() -> None:
    server = Server()
    link = server.connect()
    register(link, "T", "U", counter=1)
    for topic in "TU":
        ask(link, Code.GET_ROUTEINFO_BY_TOPIC, topic=topic)
    assert sorted(server.state.cache) == ["T", "U"]
    register(link, "T", "U", counter=1)  # a heartbeat changes nothing
    assert sorted(server.state.cache) == ["T", "U"]
    server.state.routes.delete_topic("U", None)
    assert sorted(server.state.cache) == ["T"]
    assert ask(link, Code.WIPE_WRITE_PERM_OF_BROKER, brokerName="a").fields == {"wipeTopicCount": "1"}
    assert json.loads(ask(link, Code.GET_ROUTEINFO_BY_TOPIC, topic="T").body)["queueDatas"][0]["perm"] == 4


def test_write_permission_stays_away_and_comes_back_as_it_was() -> None:
    server = Server()
    link = server.connect()
    table = {name: {"topicName": name, "perm": perm} for name, perm in (("read", 4), ("both", 6))}

    def send(counter: int) -> None:
        body = {"topicConfigSerializeWrapper": {"topicConfigTable": table, "dataVersion": {"counter": counter}}}
        assert ask(link, Code.REGISTER_BROKER, json.dumps(body).encode(), **BROKER).code == 0

    def perms() -> dict[str, int]:
        return {name: queues["a"].perm for name, queues in server.state.routes.topics.items()}

    send(1)
    ask(link, Code.WIPE_WRITE_PERM_OF_BROKER, brokerName="a")
    assert perms() == {"read": 4, "both": 4}
    table["late"] = {"topicName": "late", "perm": 6}
    send(2)  # the broker drains: what it makes now is closed, too
    assert perms() == {"read": 4, "both": 4, "late": 4}
    ask(link, Code.ADD_WRITE_PERM_OF_BROKER, brokerName="a")
    assert perms() == {"read": 4, "both": 6, "late": 6}
    ask(link, Code.WIPE_WRITE_PERM_OF_BROKER, brokerName="a")
    ask(link, Code.UNREGISTER_BROKER, **BROKER)
    send(3)
    assert perms() == {"read": 4, "both": 6, "late": 6}


def test_topic_registered_by_a_tool() -> None:
    server = Server()
    link = server.connect()
    register(link, "T")
    queues = [{"brokerName": name, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6} for name in ("a", "unknown")]
    body = json.dumps({"brokerDatas": [], "queueDatas": queues}).encode()
    assert ask(link, Code.REGISTER_TOPIC_IN_NAMESRV, body, topic="New").code == 0
    assert list(server.state.routes.topics["New"]) == ["a"]
    link.lose()
    assert server.state.routes.topics == {}


KEY = parse_key("0123456789abcdef" * 4)
OTHER = parse_key("fedcba9876543210" * 4)
OF_BROKERS = [
    (Code.REGISTER_BROKER, register_json("T")), (Code.UNREGISTER_BROKER, b""), (Code.BROKER_HEARTBEAT, b""),
    (Code.QUERY_DATA_VERSION, b'{"counter":1,"stateVersion":0,"timestamp":5}'),
    (Code.REGISTER_TOPIC_IN_NAMESRV, b'{"queueDatas":[],"brokerDatas":[]}'),
]  # fmt: skip


def show(link: FakeLink, key: ClusterKey, name: str = "broker a") -> Command:
    """The last answer of somebody who says that it has the cluster's key."""
    applicant = Applicant(key, name)
    begun = ask(link, MEMBER_BEGIN, **applicant.begin())
    return begun if begun.code else ask(link, MEMBER_PROVE, **applicant.finish(begun.fields))


def test_with_a_key_who_has_shown_it_registers_and_nobody_else() -> None:
    server = Server(key=KEY)
    member, stranger = server.connect(), server.connect()
    assert show(member, KEY).code == 0
    for code, body in OF_BROKERS:
        answer = ask(stranger, code, body, **BROKER, topic="T")
        assert answer.code == Answer.NO_PERMISSION
        assert "auth.cluster_key_file" in (answer.remark or "")
    register(member, "T")
    assert ask(stranger, Code.GET_ROUTEINFO_BY_TOPIC, topic="T").code == 0, "clients show nothing"
    assert ask(stranger, Code.UNREGISTER_BROKER, **BROKER).code == Answer.NO_PERMISSION
    assert server.state.routes.route("T") is not None
    assert ask(member, Code.UNREGISTER_BROKER, **BROKER).code == 0
    assert server.state.routes.route("T") is None


def test_a_member_is_answered_what_only_this_machine_is(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(key=KEY)
    link = server.connect()
    link.peer_is_trusted = False
    assert ask(link, Code.GET_BROKER_CLUSTER_INFO).code == Answer.NO_PERMISSION
    assert show(link, KEY, "gateway").code == 0
    assert ask(link, Code.GET_BROKER_CLUSTER_INFO).code == 0


def test_another_key_is_told_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(key=KEY)
    link = server.connect()
    answer = show(link, OTHER)
    assert answer.code == Answer.NO_PERMISSION
    for text in (answer.remark or "", caplog.text):
        assert "broker a has another cluster key" in text
        assert OTHER.id in text
        assert KEY.id in text
    assert link.closed_by == "close"


def test_a_key_where_there_is_none(caplog: pytest.LogCaptureFixture) -> None:
    link = Server().connect()
    answer = show(link, KEY)
    assert answer.code == Answer.NO_PERMISSION
    assert "has no cluster key" in (answer.remark or "")
    assert "has no cluster key" in caplog.text
    assert link.closed_by == "close"


def test_brokers_that_are_named_register_and_no_others() -> None:
    server = Server(brokers=("a", "b"))
    link = server.connect()
    register(link, "T")
    answer = ask(link, Code.REGISTER_BROKER, register_json("T"), **BROKER | {"brokerName": "c"})
    assert answer.code == Answer.NO_PERMISSION
    assert answer.remark == "broker c is none of those that may register here (nameserver.brokers): a, b"
    assert ask(link, Code.UNREGISTER_BROKER, **BROKER | {"brokerName": "c"}).code == Answer.NO_PERMISSION
    route = b'{"queueDatas":[{"brokerName":"c","readQueueNums":1,"writeQueueNums":1,"perm":6}],"brokerDatas":[]}'
    assert ask(link, Code.REGISTER_TOPIC_IN_NAMESRV, route, topic="T").code == Answer.NO_PERMISSION
    assert sorted(server.state.routes.groups) == ["a"]
    for code, body in OF_BROKERS[2:4]:
        assert ask(link, code, body, **BROKER | {"brokerName": "c"}).code == Answer.NO_PERMISSION, code
        assert ask(link, code, body, **BROKER).code == 0, code


def test_nobody_keeps_a_broker_alive_under_another_name() -> None:
    server = Server(brokers=("a", "b"))
    link = server.connect()
    register(link, "T")
    (live,) = server.state.routes._live.values()
    seen_ms = live.seen_ms
    server.clock.advance(10_000)
    ask(link, Code.BROKER_HEARTBEAT, **BROKER | {"brokerName": "b"})
    assert live.seen_ms == seen_ms
    ask(link, Code.BROKER_HEARTBEAT, **BROKER)
    assert live.seen_ms > seen_ms
