"""The authorization matrix of the Remoting door, over sockets: every request code that a server of ours knows x every right.

Each user has one right, or exactly what one request needs, or everything with one deny. What `rights.py` declares decides what must be refused;
`core/tests/remoting/server/test_rights.py` holds that every code that is answered is declared.
"""

from __future__ import annotations

import itertools
import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from gantrymq.auth.resources import ACTION_NAMES
from gantrymq.auth.signatures import ACCESS_KEY, SIGNATURE, sign
from gantrymq.client.accounts import Accounts
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import ResponseCode
from gantrymq.remoting.gateway_codes import MEMBER_BEGIN, MEMBER_PROVE
from gantrymq.remoting.request_classes import CLASSES, RequestClass
from gantrymq.remoting.server.guard import TRACE_NEED
from gantrymq.remoting.server.rights import RIGHTS
from interop_tests.accounts import ADMIN, PASSWORD, Guarded, make_user
from interop_tests.bench import remoting_wire

ACTIONS = tuple(name for name in ACTION_NAMES if name != "all")
RESOURCES = ("topic:t", "group:g", "cluster:")
NAMES = ("consumerGroup", "group", "groupName", "srcGroup", "destGroup")
FIELDS = {"topic": "t", "b": "t", **dict.fromkeys(NAMES, "g")}
BODY = json.dumps(
    {
        "group": "g", "consumerGroup": "g", "groupName": "g",
        "subscriptionData": {"topic": "t"}, "mqSet": [{"topic": "t", "brokerName": "b", "queueId": 0}],
        "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "t"}]}], "acks": [{"c": "g", "t": "t"}],
        "topicConfigList": [{"topicName": "t"}], "groupConfigList": [{"groupName": "g"}],
    }
).encode()  # fmt: skip
"""Names what each request may be about, and lacks what its handler needs beside that: those that are allowed change nothing."""

CODES = sorted(
    code
    for code, kind in CLASSES.items()
    if kind in (RequestClass.CLIENT, RequestClass.ADMINISTRATION) and code not in (MEMBER_BEGIN, MEMBER_PROVE)
)
"""Without the two by which processes of a cluster show each other its key: they ask for no right, and who has none is cut off (test_cluster_key)."""

REFUSALS = ("has no permission", "is no administrator", "is not signed", "is wrong", "was deleted or disabled")

STRANGERS = ("", "nobody")
"""One who does not sign, and one whom nobody knows."""

Rules = frozenset[tuple[str, str]]
"""(action, resource) pairs."""


def needs_of(code: int) -> list[tuple[frozenset[str], str]] | None:
    """(actions any of which is enough, resource) pairs; None: an administrator's request."""
    if code not in RIGHTS:
        return None
    found = [need for need in RIGHTS[code](Command(code, FIELDS, BODY)) if need != TRACE_NEED]
    return [(frozenset(actions.split("|")), resource) for actions, resource in found]


@dataclass(frozen=True)
class Asker:
    """A user, and what it may."""

    name: str
    password: str = "matrix-pass"
    allowed: Rules = frozenset()
    denied: str = ""
    """Everything is allowed but this resource."""
    admin: bool = False

    def may(self, code: int) -> bool:
        needs = needs_of(code)
        if self.admin:
            return True
        if needs is None or self.name in STRANGERS:
            return False
        if self.denied:
            return all(resource != self.denied for _, resource in needs)
        return all(any((action, resource) in self.allowed for action in actions) for actions, resource in needs)


def exact() -> set[Rules]:
    """What is just enough for some request, for each of its alternatives."""
    found = set()
    for code in CODES:
        alternatives = [[(action, resource) for action in actions] for actions, resource in needs_of(code) or ()]
        found |= {frozenset(choice) for choice in itertools.product(*alternatives)}
    return found


def askers() -> list[Asker]:
    sets = exact() | {frozenset({(action, resource)}) for action in ACTIONS for resource in RESOURCES}
    named = [
        Asker(f"m{number}", allowed=allowed)
        for number, allowed in enumerate(sorted(sets, key=lambda each: (len(each), sorted(each))))
    ]
    denied = [Asker(f"d{number}", denied=resource) for number, resource in enumerate(RESOURCES)]
    return [*named, *denied, Asker(""), Asker("nobody"), Asker(ADMIN, PASSWORD, admin=True)]


def rules_of(asker: Asker) -> list[tuple[str, str]]:
    rules: dict[str, list[str]] = {}
    for action, resource in asker.allowed:
        rules.setdefault(resource if resource != "cluster:" else "cluster:*", []).append(action)
    if asker.denied:
        rules = {f"{kind}:*": ["all"] for kind in ("topic", "group", "cluster")}
        rules[asker.denied if asker.denied != "cluster:" else "cluster:*"] = ["!all"]
    return [(name, ",".join(each)) for name, each in rules.items()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    gantry = Guarded(tmp_path_factory.mktemp("gantry"))
    try:
        gantry.start()

        async def make(accounts: Accounts) -> None:
            for asker in askers():
                if not asker.admin and asker.name not in STRANGERS:
                    await make_user(accounts, asker.name, rules_of(asker), password=asker.password)

        gantry.accounts(make)
        yield gantry
    finally:
        gantry.stop()


def ask_all(server: Guarded, asker: Asker) -> dict[int, tuple[int, str]]:
    """(response code, remark) by request code; in few connections."""
    fields = {**FIELDS, ACCESS_KEY: asker.name} if asker.name else FIELDS
    if asker.name:
        fields = {**fields, SIGNATURE: sign(asker.password, fields, BODY)}
    # Strangers are heard for 64 KiB, and for 16 wrong signatures.
    step = len(CODES) if asker.name not in STRANGERS else 8
    answers: dict[int, tuple[int, str]] = {}
    for at in range(0, len(CODES), step):
        with socket.create_connection(server.address("broker"), 30) as sock:
            for code in CODES[at : at + step]:
                sock.sendall(remoting_wire.encode(code, code, fields, BODY))
                opaque = -1
                while opaque != code:
                    answered, opaque, _, remark, _ = remoting_wire.decode(frame(sock))
                answers[code] = (answered, remark)
    return answers


def frame(sock: socket.socket) -> bytes:
    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = sock.recv(count - len(data))
            assert part, "closed"
            data += part
        return data

    return exactly(int.from_bytes(exactly(4), "big"))


def test_auth_matrix_over_sockets(server: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    wrong, allowed, refused = [], 0, 0
    everybody = askers()
    for asker in everybody:
        for code, (answered, remark) in ask_all(server, asker).items():
            is_refused = answered == ResponseCode.NO_PERMISSION and any(text in remark for text in REFUSALS)
            if is_refused is asker.may(code):
                wrong.append((asker, code, needs_of(code), answered, remark))
            allowed, refused = allowed + (not is_refused), refused + is_refused
    assert not wrong, "\n".join(map(str, wrong[:20]))
    with capsys.disabled():
        sys.stdout.write(
            f"auth matrix: remoting: {len(CODES)} request codes x {len(everybody)} users over sockets: {allowed} allowed, "
            f"{refused} refused with NO_PERMISSION\n"
        )


def test_auth_matrix_every_right_decides_something() -> None:
    """A right that no request needs would be one that nobody can test."""
    used = {(action, resource) for code in CODES for actions, resource in needs_of(code) or () for action in actions}
    assert {resource for _, resource in used} == set(RESOURCES)
    assert {action for action, _ in used} == set(ACTIONS)
