"""The authorization matrix of the gateways, over sockets: every MQTT packet, AMQP method and HTTP route x every right."""

from __future__ import annotations

import base64
import hashlib
import http.client
import itertools
import json
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from gantrymq.auth.resources import ACTION_NAMES
from gantrymq.client.accounts import Accounts
from gantrymq_gateways.amqp.access import NEEDS as AMQP_NEEDS
from gantrymq_gateways.amqp.door import HANDLERS
from gantrymq_gateways.amqp.management.api import TABLE
from gantrymq_gateways.amqp.wire.codec import method_frame
from gantrymq_gateways.amqp.wire.constants import METHODS
from gantrymq_gateways.cloudevents.access import ROUTES
from gantrymq_gateways.mqtt.access import NEEDS as MQTT_NEEDS
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire.connection import ALLOWED, State
from interop_tests import raw_peers
from interop_tests.accounts import ADMIN, PASSWORD, Guarded, make_user
from interop_tests.raw_peers import Raw
from interop_tests.running import free_port

ACTIONS = tuple(name for name in ACTION_NAMES if name != "all")
WORD: Final = "matrix-pass"
HASH: Final = "$6$c2FsdA==$" + base64.b64encode(hashlib.sha512(WORD.encode() + b"salt").digest()).decode()
"""Mosquitto's: a user is made in a millisecond."""

Need = tuple[str, str]
"""(action, resource), or (one of RabbitMQ's permissions, name)."""


@dataclass(frozen=True)
class User:
    """One that may `allowed`, or all but `denied`. `rabbit`: by RabbitMQ's expressions instead."""

    name: str
    allowed: frozenset[Need] = frozenset()
    denied: str = ""
    rabbit: bool = False
    password: str = field(default=WORD, compare=False)

    def may(self, needs: Sequence[Need]) -> bool:
        if self.name == ADMIN:
            return True
        if self.denied:
            return all(resource != self.denied for _, resource in needs)
        return all(need in self.allowed for need in needs)

    async def make(self, accounts: Accounts) -> None:
        if self.rabbit:
            allowed = [[name for permission, name in self.allowed if permission == each] for each in PERMISSIONS]
            amqp = {"/": [f"^({'|'.join(names)})$" if names else "^$" for names in allowed]}
            await accounts.create_user(self.name, hash=HASH, amqp=amqp)
            return
        rules: dict[str, list[str]] = {}
        for action, resource in self.allowed:
            rules.setdefault(resource, []).append(action)
        if self.denied:
            rules = {f"{kind}:*": ["all"] for kind in ("topic", "queue", "cluster")} | {self.denied: ["!all"]}
        await make_user(accounts, self.name, [(name, ",".join(each)) for name, each in rules.items()], hash=HASH)


def users(prefix: str, resources: Sequence[str], more: set[frozenset[Need]] = frozenset()) -> list[User]:  # type: ignore[assignment]
    """One for each right alone, for each of `more`, one without any, and one for each deny."""
    sets = {frozenset({need}) for need in itertools.product(ACTIONS, resources)} | {frozenset()} | more
    named = [
        User(f"{prefix}{n}", rights)
        for n, rights in enumerate(sorted(sets, key=lambda each: (len(each), sorted(each))))
    ]
    return [*named, *[User(f"{prefix}d{n}", denied=resource) for n, resource in enumerate(resources)]]


def tell(capsys: pytest.CaptureFixture[str], what: str, table: dict[tuple[User, str], tuple[bool, bool]]) -> None:
    """`table`: by user and request, whether it was refused, and whether that is right."""
    wrong = [f"{what}: {key}: refused: {refused}" for key, (refused, right) in table.items() if not right]
    assert not wrong, "\n".join(wrong[:20])
    refused = sum(each for each, _ in table.values())
    requests, askers = {request for _, request in table}, {user for user, _ in table}
    with capsys.disabled():
        sys.stdout.write(
            f"auth matrix: {what}: {len(requests)} requests x {len(askers)} users over sockets: {len(table) - refused} allowed, {refused} refused\n"
        )


ROOT = User(ADMIN, password=PASSWORD)
MANAGEMENT_PORT = free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    settings = (f"amqp.management_port={MANAGEMENT_PORT}", "server.address_connections_max=1000")
    gantry = Guarded(tmp_path_factory.mktemp("gantry"), settings=settings)
    try:
        gantry.start()

        async def make(accounts: Accounts) -> None:
            for user in (*MQTT_USERS, *AMQP_USERS, *HTTP_USERS, LOOKER):
                await user.make(accounts)

        gantry.accounts(make)
        yield gantry
    finally:
        gantry.stop()


# MQTT

MQTT_USERS = users("mqtt", ("mqtt:t/#", "topic:t"))


def mqtt_connect(server: Guarded, user: User, level: int, will: bool = False) -> Raw:
    text = raw_peers.mqtt_text
    flags = 0xC2 | (0x04 if will else 0)
    five = b"\x00" if level == c.LEVEL_5 else b""
    body = text(b"MQTT") + bytes([level, flags]) + b"\x00\x00" + five + text(b"")
    if will:
        body += five + text(b"t/will") + text(b"gone")
    body += text(user.name.encode()) + text(user.password.encode())
    raw = Raw(server, "mqtt")
    raw.send(packet(0x10, body))
    return raw


def packet(first: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes([first, len(body)]) + body


def next_packet(raw: Raw) -> tuple[int, bytes]:
    """Type and body; (0, b"") where the server closed."""
    try:
        first = raw.sock.recv(1)
    except ConnectionResetError:
        first = b""
    if not first:
        return 0, b""
    size = raw.exactly(1)[0]
    if size > 127:
        size = size & 127 | raw.exactly(1)[0] << 7
    return first[0] >> 4, raw.exactly(size)


def publish(level: int, flags: int) -> bytes:
    body = raw_peers.mqtt_text(b"t/x") + b"\x00\x07" + (b"\x00" if level == c.LEVEL_5 else b"") + b"body"
    return packet(0x30 | flags, body)


def subscribe(level: int, *filters: bytes) -> bytes:
    five = b"\x00" if level == c.LEVEL_5 else b""
    return packet(0x82, b"\x00\x08" + five + b"".join([raw_peers.mqtt_text(each) + b"\x01" for each in filters]))


def mqtt_packets(level: int) -> dict[str, tuple[int, bytes]]:
    """Name: type and bytes of what a connected client may send."""
    five = b"\x00" if level == c.LEVEL_5 else b""
    found = {
        "PUBLISH QoS 1": (c.PUBLISH, publish(level, 2)), "PUBLISH QoS 2": (c.PUBLISH, publish(level, 4)),
        "PUBLISH retained": (c.PUBLISH, publish(level, 3)),
        "SUBSCRIBE": (c.SUBSCRIBE, subscribe(level, b"t/x")), "SUBSCRIBE wildcard": (c.SUBSCRIBE, subscribe(level, b"t/+/y")),
        "SUBSCRIBE shared": (c.SUBSCRIBE, subscribe(level, b"$share/s/t/x")),
        "UNSUBSCRIBE": (c.UNSUBSCRIBE, packet(0xA2, b"\x00\x09" + five + raw_peers.mqtt_text(b"t/x"))),
        "PUBACK": (c.PUBACK, b"\x40\x02\x00\x63"), "PUBREC": (c.PUBREC, b"\x50\x02\x00\x63"),
        "PUBREL": (c.PUBREL, b"\x62\x02\x00\x63"), "PUBCOMP": (c.PUBCOMP, b"\x70\x02\x00\x63"),
        "PINGREQ": (c.PINGREQ, b"\xc0\x00"), "DISCONNECT": (c.DISCONNECT, b"\xe0\x00"),
    }  # fmt: skip
    return found


def mqtt_refused(server: Guarded, user: User, level: int, kind: int, data: bytes) -> bool:
    """Whether the packet is refused on MQTT's terms; any other end fails."""
    with mqtt_connect(server, user, level) as raw:
        assert next_packet(raw)[1][1] == 0
        raw.send(data + b"\xc0\x00")
        if kind == c.DISCONNECT:
            assert raw.to_end().answer == b""
            return False
        while True:
            answer, body = next_packet(raw)
            if answer in (c.PUBACK, c.PUBREC) and kind == c.PUBLISH:
                assert len(body) == 2 or body[2] in (0, 0x10, 0x87), body
                return len(body) > 2 and body[2] == 0x87
            if answer == c.SUBACK:
                assert body[-1] in (0, 1, 0x80, 0x87), body
                return body[-1] >= 0x80
            if answer == 0:
                assert (kind, level) == (c.PUBLISH, c.LEVEL_3_1_1), "closed"  # it has no other answer
                return True
            if answer == c.PINGRESP and kind not in (c.PUBLISH, c.SUBSCRIBE):
                return False


def test_auth_matrix_mqtt(server: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(MQTT_NEEDS) == ALLOWED[State.AWAIT_CONNECT] | ALLOWED[State.CONNECTED], (
        "packets without a declared right"
    )
    table = {}
    for level in (c.LEVEL_3_1_1, c.LEVEL_5):
        packets = mqtt_packets(level)
        assert {kind for kind, _ in packets.values()} | {c.AUTH, c.CONNECT} == set(MQTT_NEEDS)
        for user in (*MQTT_USERS, ROOT):
            for name, (kind, data) in packets.items():
                refused = mqtt_refused(server, user, level, kind, data)
                table[user, f"{level} {name}"] = (refused, refused is not mqtt_may(user, kind))
            with mqtt_connect(server, user, level, will=True) as raw:
                code = next_packet(raw)[1][1]
                assert code in (0, 0x87 if level == c.LEVEL_5 else 5)
                table[user, f"{level} CONNECT with a will"] = (bool(code), bool(code) is not mqtt_may(user, c.CONNECT))
    tell(capsys, "mqtt", table)


def mqtt_may(user: User, kind: int) -> bool:
    """An allow of pattern or native topic is enough, a deny of either wins."""
    wanted = MQTT_NEEDS[kind]
    if not wanted or user.name == ADMIN:
        return True
    if user.denied:
        return False
    name = str(wanted.name).lower()
    return bool(user.allowed & {(name, "mqtt:t/#"), (name, "topic:t")})


# AMQP

PERMISSIONS = ("configure", "write", "read")
NATIVE = {
    ("configure", "e"): "create topic:e", ("write", "e"): "pub topic:e", ("read", "e"): "sub topic:e",
    ("write", "e2"): "pub topic:e2", ("configure", "q"): "create queue:q", ("write", "q"): "update queue:q",
    ("read", "q"): "sub queue:q", ("write", "amq.default"): "pub queue:q",
}  # fmt: skip

AMQP: dict[str, tuple[tuple[Any, ...], list[Need]]] = {
    "exchange.declare": ((0, "e", "topic", False, True, False, False, False, []), [("configure", "e")]),
    "exchange.delete": ((0, "e", False, False), [("configure", "e")]),
    "exchange.bind": ((0, "e2", "e", "k", False, []), [("write", "e2"), ("read", "e")]),
    "exchange.unbind": ((0, "e2", "e", "k", False, []), [("write", "e2"), ("read", "e")]),
    "queue.declare": ((0, "q", False, True, False, False, False, []), [("configure", "q")]),
    "queue.bind": ((0, "q", "e", "k", False, []), [("write", "q"), ("read", "e")]),
    "queue.unbind": ((0, "q", "e", "k", []), [("write", "q"), ("read", "e")]),
    "queue.purge": ((0, "q", False), [("read", "q")]),
    "queue.delete": ((0, "q", False, False, False), [("configure", "q")]),
    "basic.consume": ((0, "q", "tag", False, False, False, False, []), [("read", "q")]),
    "basic.get": ((0, "q", False), [("read", "q")]),
    "basic.publish": ((0, "e", "k", False, False), [("write", "e")]),
    "basic.publish to the default exchange": ((0, "", "q", False, False), [("write", "amq.default")]),
    "channel.flow": ((True,), []), "channel.flow-ok": ((True,), []), "access.request": (("/", False, False, False, False, False), []),
    "confirm.select": ((False,), []), "tx.select": ((), []), "tx.commit": ((), []), "tx.rollback": ((), []),
    "basic.qos": ((0, 1, False), []), "basic.cancel": (("tag", False), []), "basic.cancel-ok": (("tag",), []),
    "basic.ack": ((1, False), []), "basic.reject": ((1, False), []), "basic.nack": ((1, False, False), []),
    "basic.recover": ((True,), []), "basic.recover-async": ((True,), []),
}  # fmt: skip
"""Every method that the door takes: arguments, and what RabbitMQ asks for it (its documentation's table of permissions)."""


def native(needs: Sequence[Need]) -> list[Need]:
    return [(action, resource) for action, _, resource in (NATIVE[need].partition(" ") for need in needs)]


def amqp_users() -> list[User]:
    needs = [each for _, each in AMQP.values()]
    found = users("amqp", ("topic:e", "topic:e2", "queue:q"), {frozenset(native(each)) for each in needs})
    names = ("e", "e2", "q", "amq.default")
    sets = {frozenset({need}) for need in itertools.product(PERMISSIONS, names)} | {frozenset(each) for each in needs}
    rabbit = [User(f"rabbit{n}", rights, rabbit=True) for n, rights in enumerate(sorted(sets, key=sorted))]
    return [*found, *rabbit]


AMQP_USERS = amqp_users()


def amqp_open(server: Guarded, user: User) -> Raw:
    raw = Raw(server, "amqp")
    raw.send(raw_peers.AMQP_HEADER)
    raw_peers.read_frame(raw)
    raw.send(raw_peers.amqp_login(f"\0{user.name}\0{user.password}".encode()))
    _, _, tune = raw_peers.read_frame(raw)
    assert struct.unpack_from(">HH", tune) == (10, 30), tune
    raw.send(raw_peers.method(0, 10, 31, struct.pack(">HIH", 2047, struct.unpack_from(">I", tune, 6)[0], 0)))
    raw.send(raw_peers.method(0, 10, 40, b"\x01/\x00\x00"))
    raw_peers.read_frame(raw)
    return raw


def amqp_refused(raw: Raw, channel: int, name: str) -> tuple[bool, bool]:
    """(refused with RabbitMQ's text, the connection is still there)."""
    method = name.partition(" ")[0]
    data = raw_peers.method(channel, 20, 10, b"\x00") + method_frame(channel, METHODS[method], AMQP[name][0])
    if method == "basic.publish":
        data += raw_peers.frame(2, channel, struct.pack(">HHQH", 60, 0, 4, 0)) + raw_peers.frame(3, channel, b"body")
    raw.send(data + method_frame(channel, METHODS["basic.qos"], (0, 1, False)))
    seen_qos = 1 if method == "basic.qos" else 0
    while True:
        _, number, payload = raw_peers.read_frame(raw)
        ids = struct.unpack_from(">HH", payload)
        if ids == (20, 40) and number == channel:
            code, text = struct.unpack_from(">H", payload, 4)[0], payload[7 : 7 + payload[6]]
            raw.send(raw_peers.method(channel, 20, 41))
            if code == 403:
                assert text.startswith(b"ACCESS_REFUSED - "), text
            return code == 403, True
        if ids == (10, 50):
            assert struct.unpack_from(">H", payload, 4)[0] != 403, payload
            return False, False
        if ids == (60, 11):
            seen_qos -= 1
            if seen_qos < 0:
                return False, True


def test_auth_matrix_amqp(server: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(HANDLERS) == set(AMQP_NEEDS), "methods without a declared right"
    assert {name.partition(" ")[0] for name in AMQP} == {*HANDLERS, "basic.publish"}, "methods that are not tested"
    table = {}
    for user in (*AMQP_USERS, ROOT):
        raw = amqp_open(server, user)
        for channel, name in enumerate(AMQP, 1):
            refused, alive = amqp_refused(raw, channel, name)
            needs = AMQP[name][1]
            table[user, name] = (refused, refused is not user.may(needs if user.rabbit else native(needs)))
            if not alive:
                raw.sock.close()
                raw = amqp_open(server, user)
        raw.sock.close()
    tell(capsys, "amqp", table)


# HTTP

HTTP_USERS = users("http", ("topic:t",))
LOOKER = User("looker", frozenset({("get", "cluster:*")}))


def request(
    connection: http.client.HTTPConnection, user: User | None, method: str, path: str, body: bytes, **more: str
) -> tuple[int, bytes]:
    headers = {name.replace("_", "-"): value for name, value in more.items()}
    if user is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(f"{user.name}:{user.password}".encode()).decode()
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


SINK = json.dumps({"sink": "http://127.0.0.1:9/hook", "protocol": "HTTP", "config": {"topic": "t"}}).encode()


def route(
    connection: http.client.HTTPConnection, user: User | None, path: str, method: str, known: str
) -> tuple[int, bytes]:
    """Ask one route about topic t. `known`: a subscription of it."""
    target = path.replace("{topic}", "t").replace("{id}", known)
    if path == "/topics/{topic}":
        event = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s", "ce_type": "a"}
        return request(connection, user, method, target, b"x", **event)
    if method == "POST":
        return request(connection, user, method, target, SINK, content_type="application/json")
    return request(connection, user, method, target, b"")


def test_auth_matrix_cloudevents(server: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    table = {}
    host, port = server.address("cloudevents")
    connection = http.client.HTTPConnection(host, port, timeout=30)
    for user in (*HTTP_USERS, ROOT, None):
        for (path, method), action in ROUTES.items():
            known = json.loads(route(connection, ROOT, "/subscriptions", "POST", "")[1])["id"]
            status, body = route(connection, user, path, method, known)
            if user is None:
                assert (status == 401) is bool(action), (path, method, status)
                continue
            may = not action or user.may([(str(action.name).lower(), "topic:t")])
            listed = (path, method) == ("/subscriptions", "GET")  # shows what one may have
            refused = known.encode() not in body if listed else status in (403, 404)
            assert status == 200 if listed else status < 300 or refused, (user, path, method, status)
            table[user, f"{method} {path}"] = (refused, refused is not may)
            if method == "POST" and path == "/subscriptions" and not refused:
                route(connection, ROOT, "/subscriptions/{id}", "DELETE", json.loads(body)["id"])
            route(connection, ROOT, "/subscriptions/{id}", "DELETE", known)
    connection.close()
    tell(capsys, "cloudevents", table)


def test_auth_matrix_management(server: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    """Administrators do everything, `get` on the cluster looks, and nobody else is told anything."""
    table = {}
    connection = http.client.HTTPConnection("127.0.0.1", MANAGEMENT_PORT, timeout=30)
    for user in (*HTTP_USERS, LOOKER, ROOT, None):
        for method, pattern, _ in TABLE:
            parts = ["%2F" if part == "{vhost}" else "x" if part.startswith("{") else part for part in pattern]
            body = b"{}" if method in ("PUT", "POST") else b""
            status, _ = request(connection, user, method, "/api/" + "/".join(parts), body)
            looks = user is LOOKER or (user is not None and bool(user.denied))  # these may everything else
            may = user is ROOT or (looks and method == "GET")
            key = user or User("")
            table[key, f"{method} {'/'.join(pattern)}"] = (status == 401, (status == 401) is not may)
    connection.close()
    tell(capsys, "management", table)
